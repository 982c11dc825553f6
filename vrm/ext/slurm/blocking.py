"""Programs that wait for a job: `srun` and `salloc` outside of jobs, `mpirun` of programs that do not know of a batch
system, and `sattach`.

Each but the last becomes a script job, which goes on as what was typed: as a step on all of its cores, as the
command, or as the real mpirun, which the job keeps on its cores. The client has what the job prints as it
comes, its exit status, and its own standard input where the job runs on the same machine. The job ends with the
client.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
from functools import partial
from collections.abc import Callable, Iterator, Mapping, Sequence

from vrm.ext.slurm.forms import nodelists, words
from vrm.ext.slurm.calls import shell
from vrm.ext.slurm.calls.answers import Answer, Joins, Needs, Refused, Reply, LaterAnswer
from vrm.ext.slurm.calls.counter import Counter
from vrm.ext.slurm.calls.jobs import JobView
from vrm.ext.slurm.forms.options import Options
from vrm.ext.slurm.sbatch import ask, components
from vrm.ext.slurm.calls.wire import STDIN, Call
from vrm.model import JobState
from vrm.ext.steps.options import known, parts_of

SRUN = Options("srun", known("srun"), "[options] PROGRAM [ARGUMENTS]")
"""The options of srun, which reads those of a step again in the job."""

SALLOC = Options("salloc", known("salloc"), "[options] [[--] COMMAND [ARGUMENTS]]")
SATTACH = Options("sattach", "Q quiet n -, v verbose n -", "JOB[.STEP]")
MPIRUN = Options("mpirun", "")

PART = 1 << 20
"""Bytes of output that are passed on at a time."""

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""Signals to the client that end its job; the others go to the job's processes."""


def srun(call: Call, counter: Counter) -> Reply:
    """A step in a job of its own."""
    parts = parts_of(call.arguments)
    (chosen, rest), *others = [SRUN.parse(part, mixed=False) for part in parts]
    if not rest or not all(words for _, words in others):
        raise SRUN.error("No command given to execute.")
    if "jobid" in chosen:
        return _step_of(chosen["jobid"], call, counter)
    if any("het-group" in given or "pack-group" in given for given, _ in ((chosen, rest), *others)):
        raise SRUN.error("--het-group names components of the job in which srun runs, and this is outside of jobs")
    job = {key: value for key, value in chosen.items() if key not in ("output", "error", "input", "export")}
    # The job has what is left out.
    typed = [SRUN.without(part, "nodelist", "nodefile", "exclude", "signal") for part in parts]
    if "pty" in chosen:
        return _enter(call, counter, SRUN, job, rest[0])
    words = [word for part in typed for word in (":", *part)][1:]
    return _submit(call, counter, SRUN, job, ["srun", *words], rest[0], "quiet" not in chosen,
                   others=[given for given, _ in others])


def _step_of(text: str, call: Call, counter: Counter) -> Reply:
    """A step in a job that runs: the client is its srun."""
    found, missing = SRUN.checked(f"Invalid job id {text}", words.find, counter, text)
    if missing or len(found) != 1:
        raise SRUN.error(f"--jobid={text}: " + ("Invalid job id specified" if missing else "name one job of the array"))
    try:
        return Joins(variables=counter.entering(found[0].id, call.env))
    except Refused as refused:
        raise SRUN.error(f"--jobid={text}: {refused}") from refused


_KEEPS = ("sleep", "2147483647")
"""What a job runs that is there for the steps that enter it: it ends with its limit, or by scancel."""


def salloc(call: Call, counter: Counter) -> Reply:
    """A command on the cores of a job."""
    (chosen, *others), rest = components(SALLOC, call.arguments)
    if "no-shell" in chosen and not rest:
        return _submit(call, counter, SALLOC, chosen, _KEEPS, "interactive", "quiet" not in chosen, Granted, others)
    if "no-shell" in chosen:
        raise SALLOC.error(f"--no-shell runs no command; leave out {rest[0]}, or the option")
    if not rest:
        return _enter(call, counter, SALLOC, chosen, "interactive", others)
    return _submit(call, counter, SALLOC, chosen, rest, rest[0], "quiet" not in chosen, others=others)


def sattach(call: Call, counter: Counter) -> Reply:
    """What a running job has printed and prints, until it has ended. The steps of a job print where it does."""
    _, rest = SATTACH.parse(call.arguments)
    if len(rest) != 1:
        raise SATTACH.error("name one job or step that runs, for example sattach 12.0")
    found, missing = SATTACH.checked(f"Invalid job id {rest[0]}", words.find, counter, rest[0].partition(".")[0])
    if missing or len(found) != 1:
        raise SATTACH.error(f"{rest[0]}: " + ("Invalid job id specified" if missing else "name one job of the array"))
    if not found[0].launched or found[0].state.ended:
        raise SATTACH.error(f"{rest[0]}: the job does not run")
    return Watching(counter, found[0].id, SATTACH.command, False)


def _enter(call: Call, counter: Counter, options: Options, chosen: Mapping[str, str], program: str,
           others: Sequence[Mapping[str, str]] = ()) -> Reply:
    """A job that is there for what its client runs then."""
    return _submit(call, counter, options, chosen, ("/bin/sh", "-c", shell.SCRIPT), program,
                   "quiet" not in chosen and options is SALLOC, partial(Entered, call.env), others)


_COUNTS = ("n", "np", "c")
_PER_NODE = ("npernode", "ppn", "perhost", "N")
_HOSTS = ("H", "host", "hosts", "hostfile", "machinefile", "machine", "f", "rankfile", "rf", "nolocal")
_VALUES = {**dict.fromkeys(("mca", "gmca", "omca", "prtemca", "pmixmca", "env", "genv"), 2), **dict.fromkeys((
    *_COUNTS, *_PER_NODE, "x", "map-by", "bind-to", "rank-by", "wdir", "wd", "path", "output", "output-filename",
    "display", "genvlist", "envlist", "timeout", "prefix", "stdin", "personality", "report-uri", "runtime-options",
    "rmk", "bootstrap", "launcher", "iface", "tune", "am", "s", "outfile-pattern", "errfile-pattern"), 1)}
"""How many values follow an option of mpirun."""


def mpirun(call: Call, counter: Counter) -> Reply:
    """The real mpirun, in a job of as many tasks as it is to start."""
    tasks, cores, per_node, program = _ranks(call.name, call.arguments)
    chosen = {"ntasks": str(tasks), "cpus-per-task": str(cores)}
    if per_node:
        chosen["ntasks-per-node"] = str(per_node)
    return _submit(call, counter, MPIRUN, chosen, [call.name, *call.arguments], program, False)


def _ranks(name: str, arguments: Sequence[str]) -> tuple[int, int, int, str]:
    """How many ranks an mpirun is to start, with how many cores each, how many on a node at most (0: any),
    and which program. Refused where it does not say."""
    total, cores, per_node, program = 0, 1, 0, ""
    left = list(arguments)
    while left:
        found = 0
        for option, value in _launcher_options(left):
            if option in _COUNTS:
                found = _whole(value)
            elif option in _PER_NODE:
                per_node = _whole(value)
            wide = re.search(r"\bpe=(\d{1,4})\b", value.lower())
            cores = max(cores, int(wide[1])) if wide else cores
        if not left:
            break
        if not found:
            raise MPIRUN.error(f"how many ranks is it to start? For example {name} -n 4 {left[0]}")
        total, program = total + found, program or left[0]
        left = left[left.index(":") + 1:] if ":" in left else []
    if not program:
        raise MPIRUN.error(f"which program? For example {name} -n 4 PROGRAM")
    return total, cores, per_node, program


def _launcher_options(left: list[str]) -> Iterator[tuple[str, str]]:
    """The options at the beginning, each with its value if it has one; they are taken from the list."""
    while left and left[0].startswith("-") and left[0] != "--":
        option, equals, value = left.pop(0).lstrip("-").partition("=")
        if option in _HOSTS:
            raise MPIRUN.error(f"vrm chooses the nodes and cores; leave out the option {option}")
        needed = _VALUES.get(option, 0)
        needed -= needed == 1 and bool(equals)
        if len(left) < needed:
            raise MPIRUN.error(f"the option {option} needs a value")
        yield option, left[0] if needed == 1 else value
        del left[:needed]


def _whole(text: str) -> int:
    if not re.fullmatch(r"[1-9][0-9]{0,6}", text):
        raise MPIRUN.error(f"`{text}` is not a number of ranks")
    return int(text)


def _submit(call: Call, counter: Counter, options: Options, chosen: Mapping[str, str], typed: Sequence[str],
            program: str, says: bool, waits: Callable[..., Attached] | None = None,
            others: Sequence[Mapping[str, str]] = ()) -> Reply:
    """The job that goes on as what was typed, and who waits for it. `others`: see `ask`."""
    named: list[Mapping[str, str]] = []
    for each in (chosen, *others):
        found = nodelists.read({key: value for key, value in each.items() if key != "chdir"}, options, call)
        if isinstance(found, Needs):
            return found
        named.append(found)
    asked = ask(named[0], options, call, counter, os.path.basename(program) or program, output=False,
                script=_script(call, typed), others=named[1:])
    try:
        return (waits or Attached)(counter, counter.submit(asked)[0], options.command, says)
    except Refused as refused:
        raise options.error(f"Unable to allocate resources: {refused}") from refused


def _script(call: Call, typed: Sequence[str]) -> bytes:
    """The job's script."""
    pid, _, host = call.env.get(STDIN, "").partition("@")
    lines = ["#!/bin/sh"]
    if pid.isdigit():
        there = f"/proc/{pid}/fd/0"
        lines += [f"if [ \"$(uname -n)\" = {shlex.quote(host)} ] && (: <{there}) 2>/dev/null; then exec <{there}; fi"]
    lines += [f"exec {shlex.join(typed)}"]
    return os.fsencode("\n".join(lines) + "\n")


class Attached(LaterAnswer):
    """Waits for a job: passes on what it prints, and signals; ends it when nobody waits any more.
    `says`: it is told, as Slurm does, that the job waits and that it starts."""

    def __init__(self, counter: Counter, job_id: int, command: str, says: bool) -> None:
        self.id = job_id
        self._counter, self._command, self._says = counter, command, says
        self._text = {1: b"", 2: b""}
        self._read: dict[int, int] = {1: 0, 2: 0}
        self._asked = self._started = self._over = False
        self._by = 0

    def poll(self) -> Answer | None:
        """The exit status of the job, when it has ended and all that it printed was passed on."""
        found = self._counter.jobs([self.id])
        if not found:
            return Answer(err=f"{self._command}: error: job {self.id} is no longer known\n", code=1)
        job = found[0]
        self._say(job)
        over = job.state.ended and not job.ending
        more = self._follow(job)
        if not over or more:
            return None
        self._over = True
        code = 128 + self._by if self._by and job.state is JobState.CANCELLED else job.code or 0
        told = job.state in (JobState.CANCELLED, JobState.TIMEOUT, JobState.REFUSED)
        why = f": {job.reason}" if job.reason else ""
        return Answer(err=f"{self._command}: error: job {self.id} {job.state.value}{why}\n" if told else "",
                      code=code or int(job.state is not JobState.COMPLETED))

    def _say(self, job: JobView) -> None:
        started = bool(job.nodes)
        if self._says and not self._asked and not started and not job.state.ended:
            self._text[2] += f"{self._command}: job {self.id} queued and waiting for resources\n".encode()
            self._asked = True
        if started and not self._started:
            self._started = True
            if self._asked:
                self._text[2] += f"{self._command}: job {self.id} has been allocated resources\n".encode()

    def _follow(self, job: JobView) -> bool:
        """Read what the job has printed; whether there may be more."""
        more = False
        out, err, _ = self._counter.files(job)
        for number, path in ((1, out), (2, err)):
            if not path or not self._started or (number == 2 and err == out):
                continue
            try:
                with open(path, "rb") as file:
                    if os.fstat(file.fileno()).st_size < self._read[number]:
                        self._read[number] = 0  # the job began again
                    file.seek(self._read[number])
                    data = file.read(PART)
            except OSError:
                continue
            self._read[number] += len(data)
            self._text[number] += data
            more |= len(data) == PART
        return more

    def take(self) -> tuple[bytes, bytes]:
        """What is to be printed."""
        out, err = self._text[1], self._text[2]
        self._text = {1: b"", 2: b""}
        return out, err

    def gone(self) -> None:
        """The client was killed: its job ends, too."""
        self._end()

    def signalled(self, number: int) -> None:
        """A signal came to the client."""
        if number in ENDING:
            self._by = self._by or number
            self._end()
        elif number != signal.SIGCONT:
            self._end(number)

    def _end(self, number: int = 0) -> None:
        if not self._over:
            try:
                self._counter.cancel(self.id, number)
            except Refused:  # it has ended meanwhile
                pass


class Watching(Attached):
    """Shows what a job prints; the job goes on when the client ends."""

    def poll(self) -> Answer | None:
        """The exit status of the job, or what has ended the client."""
        return Answer(code=128 + self._by) if self._by else super().poll()

    def _end(self, number: int = 0) -> None:
        """Neither a signal nor the client's end is for the job."""


class Granted(Attached):
    """Waits until a job has started, and leaves it then. `granted` is what it says."""

    granted = "salloc: Granted job allocation %d\n"

    def poll(self) -> Answer | None:
        """That it has been granted, or how it ended before."""
        job, = self._counter.jobs([self.id])
        if not job.launched:
            return super().poll()
        self._say(job)
        self._over = True
        self._text[2] += (self.granted % self.id).encode() * self._says
        return self._granted(job)

    def _granted(self, job: JobView) -> Answer:
        return Answer()


class Entered(Granted):
    """Waits until a job has started; its client runs a shell or step with the job then (see
    `vrm.ext.slurm.calls.shell`)."""

    closing = ""
    """What the client says at its end, of the job with this id."""

    def __init__(self, env: Mapping[str, str], counter: Counter, job_id: int, command: str, says: bool) -> None:
        super().__init__(counter, job_id, command, says)
        self._env = env

    def _granted(self, job: JobView) -> Answer:
        tasks, closing = str(job.job.procs), self.closing % self.id if self.closing else shell.SILENTLY
        return Joins(variables={**self._counter.entering(self.id, self._env), "SLURM_NTASKS": tasks,
                                "SLURM_NPROCS": tasks, shell.ENTERED: closing})


__all__: list[str] = ["Attached", "mpirun", "salloc", "sattach", "srun"]
