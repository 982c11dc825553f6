"""Workloads of a simulation: traces, queue files, and the jobs of an earlier run."""

from __future__ import annotations

import codecs
import functools
import gzip
import os
import shutil
import stat
import tempfile
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol
from collections.abc import Iterator, Sequence

from vrm.model.forms.fields import made
from vrm.model.job import PLAIN, Job, resolved
from vrm.model.measured.speedups import SpeedError, Speedups
from vrm.results.job_columns import SIMULATED, JobFileError
from vrm.results.jobs import JobRow, read_jobs, submitted
from vrm.system import plugins
from vrm.workload.extension_fields import load_all
from vrm.workload.columns import LONGEST
from vrm.workload.queue_follower import QueueFollower
from vrm.workload.grammar import LineError, QueueLine, parse_line
from vrm.workload.replay import replay
from vrm.workload.rows import Rows
from vrm.workload.submission import Submission
from vrm.workload.swf import FIELDS, LARGEST_ID, NEEDED, Selection, Trace, TraceError


class WorkloadError(ValueError):
    """A workload that cannot be used; the text names the file and the fix."""


class JobsFile:
    """A file in vrm's own format as a workload: `taken` counts the jobs used, `dirt`, by reason, what was left out.
    It does not contain the size of the machine, nor the time when it began."""

    header: dict[str, str] = {}
    processors: int | None = None
    unix_start: int | None = None

    def __init__(self, path: str | Path, rules: Selection = Selection(), name: str = "") -> None:
        self.path = Path(path)
        self.name = name or str(path)
        self.spool: Any = None
        self.rules = rules
        self.taken = 0
        self.dirt: dict[str, int] = {}


class QueueWorkload(JobsFile):
    """The jobs of a vrm queue file, recorded or not: ids count from 0, the first job is submitted at 0 s.

    A job runs for its compact time if `speedups` have it, else for its estimate; wrong lines are counted in `dirt`.
    Recorded delays are divided by `load`. Of the fields, cores, priority, array, after, hold and retries are used;
    the others are only kept for the record.
    """

    def __init__(self, path: str | Path, rules: Selection = Selection(),
                 speedups: Speedups | None = None, name: str = "") -> None:
        super().__init__(path, rules, name)
        self.speedups = speedups

    @property
    def says_more(self) -> bool:
        """Whether its lines may have key=value fields."""
        try:
            with open(self.path, encoding="utf-8", errors="replace") as file:
                return any("=" in line for line in file)
        except OSError:
            return False

    def __iter__(self) -> Iterator[Submission]:
        follower = QueueFollower(self.path)
        follower.finish()
        lines = follower.read_new()
        if follower.trouble:
            raise WorkloadError(f"queue file {self.name} {follower.trouble}")
        self.taken, next_id, self.dirt = 0, 0, {}
        named: dict[str, list[int]] = {}
        for offset, line in replay(lines, self.rules.load):
            wanted = line.parsed
            ids = range(next_id, next_id + (wanted.jobs if isinstance(wanted, LineError)
                                            else len(wanted.fields.get("array", ())) or 1))
            next_id = ids.stop
            if isinstance(wanted, LineError):  # a wrong line uses ids, as in a live run
                self.dirt["lines that name no job"] = self.dirt.get("lines that name no job", 0) + 1
                yield from (Submission(Job(job_id, wanted.app or "?", 1, 1.0, offset), 1.0,
                                       refused=f"{self.name}:{line.number}: {wanted}")
                            for job_id in ids if self.rules.wants(job_id, offset))
                continue
            for one in self._of_line(wanted, ids, offset, named):
                if self.rules.jobs is not None and self.taken >= self.rules.jobs:
                    return
                self.taken += 1
                yield one

    def _of_line(self, wanted: QueueLine, ids: range, offset: float, named: dict[str, list[int]]
                 ) -> Iterator[Submission]:
        """Yield the selected jobs of a line; `named` are the ids of earlier jobs by name."""
        fields, refused = wanted.fields, ""
        run = self.speedups.compact_time(wanted.app, wanted.procs) if self.speedups else None
        try:
            after = resolved(fields.get("after", ()), named)
        except ValueError as unknown:
            after, refused = (), str(unknown)
        one = Job(ids.start, wanted.app, wanted.procs, wanted.seconds, offset, wanted.exclusive)
        details = PLAIN
        if fields:
            one, details = made({**wanted.values, "after": after}, ids.start, offset)
        for job_id, index in zip(ids, fields.get("array") or (None,)):
            job = one if job_id == ids.start else one.but(id=job_id)
            own = details if index is None else details.of(index, job.payload)
            if self.rules.wants(job_id, offset):
                yield Submission(job, wanted.seconds if run is None else run, after, own.held, refused, details=own)
            if own.name:
                named.setdefault(own.name, []).append(job_id)


class RecordedRun(JobsFile):
    """The jobs of an earlier run, live or simulated, with their measured run times.

    Times are the seconds of that run; jobs that never ran are left out and counted. All submission data is used
    except `hold` (a job that ran was released, at an unknown time) and reservations: the file has only their
    names.
    """

    def __iter__(self) -> Iterator[Submission]:
        self.taken = 0
        self.dirt = {}
        found = []
        for row in self._rows():
            if row.start is None or row.end is None or row.end <= row.start:
                self.dirt["dropped: never ran"] = self.dirt.get("dropped: never ran", 0) + 1
                continue
            if not self.rules.wants(row.id, row.submit):
                continue
            try:
                job, details = submitted(row, row.submit)
            except ValueError as error:
                raise WorkloadError(f"{self.name}: job {row.id}: {error}") from error
            if "reservation" in details.more:
                details = replace(details, more={name: value for name, value in details.more.items()
                                                 if name != "reservation"})
            if job.believed is not None:
                job = job.but(expected=job.walltime)  # this run makes its own estimates
            found.append(Submission(job, row.end - row.start, details.after, details=details))
        found.sort(key=lambda one: (one.job.submit, one.job.id))
        for one in found[:self.rules.jobs]:
            self.taken += 1
            yield one

    @property
    def says_more(self) -> bool:
        """Whether it has columns after `reason`."""
        with open(self.path, encoding="utf-8", errors="replace") as file:
            return file.readline().count(",") > SIMULATED.count(",")

    def _rows(self) -> Iterator[JobRow]:
        """Yield the rows; errors name the file as the user did."""
        load_all()
        try:
            for row in read_jobs(self.path):
                times = (row.submit, row.start or 0, row.end or 0, row.walltime)
                if not (0 <= row.id <= LARGEST_ID and max(map(abs, times)) < LONGEST
                        and row.procs >= 1 and row.walltime > 0):
                    raise WorkloadError(
                        f"{self.name}: job {str(row.id)[:30]}: a number out of range; ids go from "
                        "0 to 2^63 - 1, times to 2^53 s, and ranks and walltime are above 0")
                yield row
        except JobFileError as error:
            raise WorkloadError(str(error).replace(str(self.path), self.name)) from error


class GeneratedWorkload(Protocol):
    """A workload that is generated, as for `lublin:256:5000`: each iteration yields its jobs."""

    header: dict[str, str]
    processors: int | None
    unix_start: int | None
    taken: int
    dirt: dict[str, int]

    def __iter__(self) -> Iterator[Submission]:
        """Yield the jobs in the order of their submission."""
        ...


class PackageWorkload:
    """A workload that the code of an installed package reads or draws. An exception of that code becomes one line
    that names the package."""

    def __init__(self, plugin: plugins.Plugin, made: Any) -> None:
        self.__dict__.update(_plugin=plugin, _made=made)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._made, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._made, name, value)

    def __iter__(self) -> Iterator[Submission]:
        try:
            yield from self._made
        except ERRORS:
            raise
        except Exception as error:  # foreign code, which may raise anything
            raise _package_error(self._plugin, error) from error


Workload = Trace | QueueWorkload | RecordedRun | Rows | GeneratedWorkload | PackageWorkload


def _package_error(plugin: plugins.Plugin, error: Exception) -> WorkloadError:
    """Return the error for an exception that a package has raised."""
    return WorkloadError(str(plugins.failed(plugin, error)))


def open_workload(path: str | Path, rules: Selection = Selection(),
                  speedups: Speedups | None = None) -> Workload:
    """Open the workload of a file: an SWF trace (18 columns), a `jobs.csv`, one of the formats that extensions add
    (`vrm.formats`), or else a queue file; or a workload that an extension generates (`vrm.workloads`), for a text
    that begins with its name and a colon. A pipe is first read to its end; `-` is standard input.

    Raises WorkloadError if it cannot be read.
    """
    drawn = _drawn(str(path), rules)
    if drawn is not None:
        return drawn
    path, name = Path("/dev/stdin" if str(path) == "-" else path), str(path)
    try:
        spool = _spooled(path)
        if spool is not None:
            path = Path(spool.name)
        with open(path, "rb") as file:
            start = file.read(1 << 16)
        if start[:2] == b"\x1f\x8b":
            with gzip.open(path) as packed:
                start = packed.read(1 << 16)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise WorkloadError(f"{name}: damaged gzip file ({error}); fetch it again") from error
    except OSError as error:
        raise WorkloadError(f"{name}: {(error.strerror or str(error)).lower()}; name {WANTED}"
                            ) from error
    try:
        made = _workload(path, name, start, rules, speedups)
    except TraceError as error:
        raise WorkloadError(str(error)) from error
    made.spool = spool  # deleted together with the workload
    return made


WANTED = ("a trace (SWF, also .gz), a dump of sacct, a log of PBS, a CSV with jobs, a queue file, the "
          "jobs.csv of a run, or lublin:PROCESSORS:JOBS[:SEED]")
_MARKS = {codecs.BOM_UTF8: "UTF-8", codecs.BOM_UTF16_LE: "UTF-16", codecs.BOM_UTF16_BE: "UTF-16"}


def processors_of(source: Any, remedy: str) -> int:
    """Return the number of processors of a workload's machine. Raises WorkloadError, with the remedy, if it is
    unknown."""
    processors: int | None = getattr(source, "processors", None)
    if processors is None:
        name = getattr(source, "name", "")
        raise WorkloadError(f"{f'{name}: ' if name else ''}the workload does not say how large the machine is (a "
                            f"trace does in its header, `; MaxProcs: N`); {remedy}")
    return processors


def _spooled(path: Path) -> Any:
    """Return a temporary file with the whole content of a pipe, since workloads are read more than once; None for a
    file. Raises WorkloadError for a device."""
    kind = os.stat(path).st_mode
    if stat.S_ISCHR(kind) or stat.S_ISBLK(kind):
        raise WorkloadError(f"{path}: a device, not a file; name {WANTED}")
    if not (stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind)):
        return None
    spool = tempfile.NamedTemporaryFile(prefix="vrm-")
    with open(path, "rb") as pipe:
        shutil.copyfileobj(pipe, spool)
    spool.flush()
    return spool


def _workload(path: Path, name: str, start: bytes, rules: Selection,
              speedups: Speedups | None) -> Trace | QueueWorkload | RecordedRun | Rows | PackageWorkload:
    """Return the workload of a file that begins with `start`."""
    _check_text(name, start)
    text = start.decode("utf-8", "replace")
    if text.startswith("id,app,"):
        return RecordedRun(path, rules, name)
    first = next((line for line in text.splitlines()
                  if line.strip() and not line.startswith(("#", ";"))), "")
    is_trace = name.endswith((".swf", ".swf.gz"))
    for plugin, form in _forms(packages=not is_trace):
        try:
            if form.tells(first):
                made = form(path, rules, name)
                return PackageWorkload(plugin, made) if plugin.foreign else made
        except Exception as error:  # of a package's code, which may raise anything
            if not plugin.foreign:
                raise
            raise _package_error(plugin, error) from error
    rows = [line for line in text.splitlines()
            if line.strip() and not line.lstrip().startswith((";", "#"))]
    if is_trace or text.lstrip().startswith(";") or (rows and _is_row(rows[0])):
        return Trace(path, rules, name=name)
    _check_queue(name, text)
    return QueueWorkload(path, rules, speedups, name)


_PACKED = {b"\xfd7zXZ\0": "xz -dc", b"BZh": "bzip2 -dc", b"\x28\xb5\x2f\xfd": "zstd -dc", b"PK\x03\x04": "unzip -p",
           b"\x1f\x9d": "gzip -dc"}
"""The beginnings of compressed files that are not read, and what unpacks them."""


def _check_text(name: str, start: bytes) -> None:
    """Raise WorkloadError unless a file that begins with `start` is text with lines."""
    if not start:
        raise WorkloadError(f"{name}: empty; name {WANTED}")
    unpack = next((unpack for magic, unpack in _PACKED.items() if start.startswith(magic)), None)
    if unpack is not None:
        raise WorkloadError(f"{name}: compressed; of compressed files vrm reads gzip alone: type <({unpack} {name}) "
                            "instead of the name")
    mark = next((mark for mark in _MARKS if start.startswith(mark)), None)
    if mark is not None:
        convert = "tail -c +4" if mark == codecs.BOM_UTF8 else "iconv -f UTF-16 -t UTF-8"
        raise WorkloadError(f"{name}:1: begins with a byte order mark ({_MARKS[mark]}); convert "
                            f"it: `{convert} {name} > NEW`")
    if b"\0" in start:
        raise WorkloadError(f"{name}: not a text file; name {WANTED}")
    if b"\r" in start and b"\n" not in start:
        raise WorkloadError(f"{name}: its lines end with a carriage return alone; convert it: "
                            f"`tr '\\r' '\\n' < {name} > NEW`")


def is_generated(text: str) -> bool:
    """Return whether a text such as `lublin:256:5000` names a workload that an extension generates, and not a
    file."""
    name, colon, _ = text.partition(":")
    if not colon or not name.isidentifier() or os.path.exists(text):
        return False
    try:
        return plugins.find("vrm.workloads", name) is not None
    except plugins.PluginError:
        return True  # two packages have this name: opening it reports that


def _drawn(text: str, rules: Selection) -> GeneratedWorkload | PackageWorkload | None:
    """Return the workload that an extension generates; None if none has this name."""
    if not is_generated(text):
        return None
    try:
        plugin = plugins.find("vrm.workloads", text.partition(":")[0])
        assert plugin is not None  # checked by `is_generated`
        make = plugins.load(plugin)
    except plugins.PluginError as error:
        raise WorkloadError(str(error)) from error
    try:
        made: GeneratedWorkload = make(text, rules)
    except WorkloadError:
        raise
    except Exception as error:  # foreign code, which may raise anything
        raise _package_error(plugin, error) from error
    return PackageWorkload(plugin, made) if plugin.foreign else made


@functools.cache
def _forms(packages: bool) -> Sequence[tuple[plugins.Plugin, type[Rows]]]:
    """Return the workload formats that extensions add, with or without those of installed `packages`: classes whose
    method `tells(line)` checks the first line of a file."""
    if not packages:
        return [(plugin, plugins.load(plugin)) for plugin in plugins.own("vrm.formats")]
    found: list[tuple[plugins.Plugin, type[Rows]]] = []
    plugins.use("vrm.formats", (), lambda plugin, form: found.append((plugin, form)))
    return found


def _is_row(line: str) -> bool:
    """Return whether a line is a row of a trace: many fields, and the first ones are numbers."""
    words = line.split()
    try:
        [float(word) for word in words[:3]]
    except ValueError:
        return len(words) >= FIELDS
    return len(words) >= NEEDED


def _check_queue(name: str, text: str) -> None:
    """Raise WorkloadError unless a line in the beginning of a queue file describes a job."""
    wrong = ""
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].strip()
        if not words or words == "end":
            continue
        try:
            parse_line(line)
            return
        except LineError as error:
            wrong = wrong or f"{name}:{number}: {error}"
    if wrong:
        raise WorkloadError(f"{wrong}. No line of it names a job; name {WANTED}")


ERRORS = (WorkloadError, TraceError, JobFileError, SpeedError)
"""Errors of a simulation's files; the text of each is a complete message for the user."""
