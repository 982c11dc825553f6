"""PBS's names for jobs, their states, and the resources that they request.

Formats and numbers are those of OpenPBS: the reference guide, and src/cmds and src/include of its source."""

from __future__ import annotations

import getopt
import math
import re
import time
from typing import Any, NamedTuple
from collections.abc import Callable, Mapping, Sequence

from vrm.ext.slurm.calls import jobs as front
from vrm.ext.slurm.calls.answers import CallRefused, HelpAnswer
from vrm.ext.slurm.calls.handler import RequestHandler
from vrm.ext.slurm.calls.jobs import JobView, RunFacts
from vrm.model import JobState, quantities
from vrm.model.forms.hosts import HOST
from vrm.system.printing.output import json_text

SERVER = "vrm"
"""Name of the server, which follows the number in a job's id."""

VERSION = "pbs_version = vrm\n"
"""Output of `--version`."""

UNKNOWN, FINISHED, STATE, ILLEGAL, USAGE = 153, 35, 168, 1, 2
"""Exit codes: unknown job, finished job, wrong state, malformed id, wrong option."""

NO_QUEUE, NO_RESOURCE, VALUE, TOGETHER = 170, 187, 166, 5
"""Exit codes: unknown queue, unknown resource, invalid value of a resource, resources that exclude each other."""


class ResourceError(ValueError):
    """A job cannot have the resources that it requests; `code` is the exit status for this kind of error."""

    code = TOGETHER


class BadResourceValue(ResourceError):
    """An invalid value of a resource; `name` is the resource."""

    code = VALUE

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"Illegal attribute or resource value Resource_List.{name}: {why}")
        self.name = name


class UnknownResource(ResourceError):
    """vrm has no resource of this name."""

    code = NO_RESOURCE


_ID = re.compile(r"([0-9]{1,9})(\[([0-9]{0,9})\])?(?:\.[\w.-]*)?(?:@[\w.-]+)?")


def options(command: str, letters: str, usage: str, words: Sequence[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """Return the options of a command, each with its value, and the other words. Raises CallRefused with the usage for
    wrong options, HelpAnswer for `--help` and `--version`."""
    if list(words[:1]) in (["--help"], ["--version"]):
        raise HelpAnswer(f"usage: {usage}\n" if words[0] == "--help" else VERSION)
    try:
        found, rest = getopt.getopt(list(words), letters)
    except getopt.GetoptError as error:
        raise CallRefused(f"{command}: {error}\nusage: {usage}", USAGE) from error
    return [(name.lstrip("-"), value) for name, value in found], rest


_MOMENT = re.compile(r"(?:(?:(?:(\d{2})?(\d{2}))?(\d{2}))?(\d{2}))?(\d{2})(\d{2})(?:\.(\d{2}))?")


def moment(text: str, now: float) -> float:
    """Return the moment (epoch seconds) that `[[[[CC]YY]MM]DD]hhmm[.SS]` names. If parts are left out, it is the
    next moment that fits the given parts. Raises ValueError for other texts."""
    found = _MOMENT.fullmatch(text)
    if not found:
        raise ValueError(text)
    today = time.localtime(now)
    century, year, month, day, hour, minute, second = (None if each is None else int(each) for each in found.groups())
    said = [today[0] if year is None else (today[0] // 100 if century is None else century) * 100 + year,
            month or today[1], day or today[2]]
    if hour is None or minute is None or not (hour < 24 and minute < 60 and (second or 0) < 60
                                              and 0 < said[1] < 13 and 0 < said[2] < 32):
        raise ValueError(text)
    at = time.mktime((*said, hour, minute, second or 0, 0, 0, -1))  # type: ignore[arg-type]
    if at < now and year is None:
        said[0 if month is not None else 1 if day is not None else 2] += 1
        at = time.mktime((*said, hour, minute, second or 0, 0, 0, -1))  # type: ignore[arg-type]
    return at


def document(handler: RequestHandler, found: Mapping[str, Any]) -> str:
    """Return the output of `-F json`."""
    return json_text({"timestamp": int(handler.now), "pbs_version": "vrm", "pbs_server": SERVER, **found}, 4) + "\n"


def shown(job: JobView) -> str:
    """Return the id of a job: `12.vrm`, or `12[3].vrm` for a job of an array."""
    return f"{job.id}.{SERVER}" if job.array is None else f"{job.array}[{job.details.index}].{SERVER}"


def whole(array: int) -> str:
    """Return the id of an array."""
    return f"{array}[].{SERVER}"


class JobReference(NamedTuple):
    """The jobs that an id names: a job, a job of an array, or all jobs of an array (then `array` is its number)."""

    jobs: list[JobView]
    array: int | None

    @property
    def id(self) -> str:
        """The complete id."""
        return shown(self.jobs[0]) if self.array is None else whole(self.array)


def find(handler: RequestHandler, command: str, text: str) -> JobReference:
    """Return the jobs that an id names, with or without the server's name. Raises CallRefused if the id is malformed or
    unknown."""
    match = _ID.fullmatch(text)
    if not match:
        raise CallRefused(f"{command}: illegally formed job identifier: {text}", ILLEGAL)
    number = int(match[1])
    here = handler.jobs([number])
    if here and here[0].array == number:
        here = handler.array(number)
        if not match[3]:
            return JobReference(here, number)
        here = [job for job in here if job.details.index == int(match[3])]
    elif match[2] or (here and here[0].array is not None):  # a job of an array has no number of its own
        here = []
    if not here:
        name = text.partition("@")[0]
        raise CallRefused(f"{command}: Unknown Job Id {name if '.' in name else f'{name}.{SERVER}'}", UNKNOWN)
    return JobReference(here, None)


def state(job: JobView) -> str:
    """Return the letter of a job's state."""
    if job.state is JobState.RUNNING:
        return "E" if job.ending else "R"
    if job.state.ended:
        return "F" if job.array is None else "X"
    return {front.HELD: "H", front.DEPENDENCY: "H", front.BEGIN: "W"}.get(job.why, "Q")


def state_of(jobs: Sequence[JobView]) -> str:
    """Return the state letter of an array: B as soon as one of its jobs has started."""
    states = {state(job) for job in jobs}
    if states <= {"X"}:
        return "F"
    return "B" if states & {"R", "E", "X"} else min(states, key="QWH".find)


def exit_status(job: JobView) -> int | None:
    """Return the exit status as PBS counts: 256 plus the number of the signal that ended the job, -29 for the end of
    the walltime. The status of a script that ended by a signal of its own is as its shell shows it."""
    if job.state is JobState.TIMEOUT:
        return -29
    if job.state is JobState.CANCELLED and math.isfinite(job.start):
        return 256 + (job.code - 128 if job.code is not None and job.code > 128 else 15)
    return job.code


def queue(job: JobView, site: RunFacts) -> str:
    """Return the queue of a job."""
    return job.job.queue or next(iter(site.queues), "vrm")


def clock(seconds: float) -> str:
    """Return a duration as HH:MM:SS."""
    return quantities.clock(min(seconds, 10 ** 9))


def walltime(text: str) -> float:
    """Return the seconds of `3600`, `10:00` or `1:00:00`. Raises BadResourceValue."""
    found = quantities.seconds_of_parts(text) if re.fullmatch(r"[0-9]+(:[0-9]{1,2}){0,2}(\.[0-9]+)?", text) else 0.0
    if not found:
        raise BadResourceValue("walltime", f"{text}: no time as 3600 or 1:00:00")
    return found


def size(text: str) -> int:
    """Return the bytes of `4gb`, `500mb`, `2048` or `1000kw`. Raises ValueError."""
    return quantities.memory_bytes(text, quantities.PBS_MEMORY)


MOST = 1_000_000
"""Maximum number of chunks, and of cores of a job."""

_COUNTED = ("ncpus", "mpiprocs", "ngpus", "ompthreads")


def chunk(text: str) -> tuple[int, dict[str, str]]:
    """Return the number of chunks and the resources of each for `2:ncpus=4:mpiprocs=2`. Raises ValueError."""
    number, *parts = text.split(":")
    if "=" in number:
        number, parts = "1", [number, *parts]
    values: dict[str, str] = {}
    for part in parts:
        name, _, value = part.partition("=")
        if name in _COUNTED or name == "ppn":
            int(value)
        values[name] = value
    if not 1 <= int(number) <= MOST:
        raise ValueError(text)
    return int(number), values


def resources(text: str, into: dict[str, str]) -> None:
    """Add the resources of one `-l` to `into`. Raises ValueError for a resource without value."""
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if not name or not equals or not value:
            raise ValueError(part)
        into[name.strip()] = value.strip()


KNOWN = frozenset((
    "select", "nodes", "ncpus", "procs", "mem", "pmem", "ngpus", "place", "walltime", "nodect", "mpiprocs",
    "min_walltime", "max_walltime",
    # These have no effect: vrm does not count them.
    "cput", "file", "nice", "vmem", "pvmem", "software", "arch", "host_type", "preempt_targets", "naccesspolicy",
    "filesystems"))
"""Known resources."""

_OF_CHUNKS = ("nodes", "ncpus", "mpiprocs", "mem", "ngpus", "procs")
"""Resources that cannot be combined with `select`."""

PLACES = ("free", "pack", "scatter", "vscatter", "excl", "exclhost", "shared")


class Chunks(NamedTuple):
    """The chunks of a job, which are all equal: how many, the resources of each, its ranks, the cores of a rank, and
    the fields of the job that say where the chunks are placed."""

    number: int
    each: dict[str, str]
    ranks: int
    cores: int
    where: dict[str, Any]


def request(wanted: dict[str, str]) -> dict[str, Any]:
    """Return what a job requests, by the names of `vrm.model.forms.fields`. Raises ValueError with the reason if vrm
    cannot provide it."""
    place = frozenset(wanted.get("place", "free").split(":"))
    for word in sorted(place - set(PLACES)):
        raise BadResourceValue("place", f"{word}: vrm knows {', '.join(PLACES)}")
    for name in wanted:
        if name not in KNOWN:
            raise UnknownResource(f"Unknown resource Resource_List.{name}: vrm has none of this name; leave it out")
    together = [name for name in _OF_CHUNKS if name in wanted and "select" in wanted]
    if together:
        raise ResourceError(f'"-lresource=" cannot be used with "select" or "place", resource is: {together[0]}')
    form = next((form for name, form in _FORMS.items() if name in wanted), _alone)
    chunks = form(wanted, bool({"scatter", "vscatter"} & place))
    tasks = chunks.number * chunks.ranks
    if tasks < 1:
        raise ValueError("a job needs a core")
    if tasks * chunks.cores > MOST:
        raise ValueError(f"a job has {MOST} cores at most")
    return {"exclusive": bool({"excl", "exclhost"} & place), "procs": tasks, "cores": chunks.cores, **chunks.where,
            **_memory(wanted, chunks), **_gpus(chunks)}


def _spread(count: int, ranks: int) -> dict[str, Any]:
    """Return the fields that place each chunk on a node of its own."""
    return {"nodes": (count, count), "tasks_per_node": ranks}


def _by_nodes(wanted: Mapping[str, str], _: bool) -> Chunks:
    """Read `nodes=2:ppn=4:ib`."""
    count, each, _hosts = _equal(wanted["nodes"], "nodes")
    ranks = int(each.get("ppn", "1"))
    features = frozenset(each) - {*_COUNTED, "ppn", "mem"}
    return Chunks(count, each, ranks, 1, {**_spread(count, ranks), **({"features": features} if features else {})})


def _by_chunks(wanted: Mapping[str, str], fixed: bool) -> Chunks:
    """Read `select=2:ncpus=8:mpiprocs=4`. `fixed`: each chunk is on a node of its own."""
    different = _different(wanted["select"])
    count, each, hosts = different or _equal(wanted["select"], "select")
    cpus, ranks = int(each.get("ncpus", "1")), int(each.get("mpiprocs", "1"))
    unknown = set(each) - {*_COUNTED, "mem", "vmem", "arch"}
    if unknown:
        raise UnknownResource(f"Unknown resource {', '.join(sorted(unknown))}: vrm has none of this name in a chunk; "
                              "leave it out")
    if ranks < 1 or cpus < 1:
        raise ValueError("select: a chunk needs a core and a rank")
    if cpus % ranks and cpus > ranks:
        raise ValueError(f"select: {cpus} cores cannot be shared equally by {ranks} ranks")
    if different and fixed:
        raise ValueError("place=scatter: vrm spreads ranks evenly; ask for equal chunks, or leave it out")
    chunks = sum(chunk(part)[0] for part in wanted["select"].split("+"))
    return Chunks(count, each, ranks, max(1, cpus // ranks), _on_hosts(hosts, count, ranks, fixed) if hosts else
                  _spread(count, ranks) if fixed else {"nodes": (1, chunks)})


def _alone(wanted: Mapping[str, str], fixed: bool) -> Chunks:
    """Read `ncpus=4` or `procs=8`."""
    ranks = int(wanted.get("procs", wanted.get("mpiprocs", "1")))
    return Chunks(1, {name: wanted[name] for name in ("ngpus",) if name in wanted}, ranks,
                  max(1, int(wanted.get("ncpus", "1")) // max(1, ranks)),
                  _spread(1, ranks) if fixed else {} if "procs" in wanted else {"nodes": (1, 1)})


_FORMS: Mapping[str, Callable[[Mapping[str, str], bool], Chunks]] = {"nodes": _by_nodes, "select": _by_chunks}


def _on_hosts(hosts: Sequence[str], count: int, ranks: int, fixed: bool) -> dict[str, Any]:
    """Return the fields for chunks some or all of which name their hosts. Each host must have the same number of
    chunks, because vrm spreads ranks evenly."""
    names = frozenset(hosts)
    wrong = [name for name in hosts if not HOST.fullmatch(name)]
    if wrong:
        raise ValueError(f"select: `{wrong[0]}` is not a name of a host")
    there = {hosts.count(host) for host in names}
    if len(there) > 1 or (len(hosts) < count and there != {1}):
        raise ValueError("select: vrm spreads chunks evenly; ask for equally many on each host")
    number = len(names) + count - len(hosts)
    return {"nodelist": names, **({"nodes": (len(names), count)} if len(hosts) < count and not fixed else
                                  _spread(number, count * ranks // number))}


def _different(text: str) -> tuple[int, dict[str, str], list[str]] | None:
    """Return chunks that differ only in their number of ranks as chunks of one rank each; None if they are equal, or
    if their ranks differ: all ranks of a job of vrm have the same resources."""
    try:
        parts = [chunk(part) for part in text.split("+")]
    except ValueError:
        return None  # `_equal` reports the error
    if all(each == parts[0][1] for _, each in parts) or any({"host", "vnode"} & set(each) for _, each in parts):
        return None
    kinds, total = set(), 0
    for count, each in parts:
        ranks = int(each.get("mpiprocs", "1"))
        amounts = {"ncpus": int(each.get("ncpus", "1")), "ngpus": int(each.get("ngpus", "0")),
                   "mem": size(each["mem"]) if "mem" in each else 0}
        if ranks < 1 or any(amount % ranks for amount in amounts.values()):
            return None
        rest = {key: value for key, value in each.items() if key not in ("mpiprocs", *amounts)}
        rest.update((key, f"{amount // ranks}{'b' * (key == 'mem')}") for key, amount in amounts.items() if amount)
        kinds.add(tuple(sorted(rest.items())))
        total += count * ranks
    return (total, dict(kinds.pop()), []) if len(kinds) == 1 else None


def _equal(text: str, what: str) -> tuple[int, dict[str, str], list[str]]:
    """Return the number of chunks, the resources of each, which must be equal for all, and the hosts of the chunks
    that name one."""
    total, same = 0, None
    hosts: list[str] = []
    for part in text.split("+"):
        try:
            count, each = chunk(part)
        except ValueError:
            raise BadResourceValue(what, f"`{part}` is not of the form 2 or 2:ncpus=4") from None
        named = [each.pop(key) for key in ("host", "vnode") if key in each]
        hosts += named[:1] * count
        if same is not None and each != same:
            raise ValueError(f"{what}={text}: vrm gives ranks of one kind; ask for chunks with as many "
                             "cores, and as much memory and GPUs, for each rank (mpiprocs)")
        total, same = total + count, each
    assert same is not None
    return total, same, hosts


def _memory(wanted: Mapping[str, str], chunks: Chunks) -> dict[str, int]:
    """Return the memory of a rank; the memory of a chunk is divided by its ranks."""
    for name, values, share in (("mem", chunks.each, chunks.ranks), ("pmem", wanted, 1),
                                ("mem", wanted, chunks.number * chunks.ranks)):
        if name in values:
            try:
                return {"mem_per_task": -(-size(values[name]) // share)}
            except ValueError as error:
                raise BadResourceValue(name, f"{values[name]}: no size as 500mb") from error
    return {}


def _gpus(chunks: Chunks) -> dict[str, int]:
    """Return the GPUs of a rank, or of a node if each chunk has a node of its own."""
    gpus, ranks = int(chunks.each.get("ngpus", "0")), chunks.ranks
    if gpus % ranks == 0:
        return {"gpus_per_task": gpus // ranks} if gpus else {}
    if chunks.where.get("nodes") != (chunks.number, chunks.number):
        raise ValueError(f"{gpus} GPUs cannot be shared equally by {ranks} ranks")
    return {"gpus_per_node": gpus}
