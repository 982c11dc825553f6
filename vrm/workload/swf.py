"""Traces in the Standard Workload Format 2.2, plain or gzipped: read as a stream, and written.

Format: D. Feitelson, "The Standard Workload Format", Parallel Workloads Archive; 18 fields, -1 for unknown values,
header lines `; Key: value`. Real traces contain errors: every row that is dropped or changed is counted, by reason,
in `Trace.dirt`.
"""

from __future__ import annotations

import gzip
import io
import warnings
import zlib
from array import array
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, IO
from collections.abc import Callable, Iterable, Iterator

from vrm.model.amounts import MEMORY
from vrm.model.job import Job, Request
from vrm.model.quantities import seconds_text
from vrm.workload.columns import LONGEST, Block, Names, of_lines, of_submissions
from vrm.workload.submission import Submission

FIELDS = 18
NEEDED = 14
"""Number of fields that a row must have to describe a job: up to the executable."""

LARGEST_ID = 2 ** 63 - 1
_REMARK = (b";", b"#")
_UNCLEAN = {**dict.fromkeys((b"2", b"3", b"4"), "cleaned: part of a checkpointed job"), b"5": "cleaned: cancelled"}


class TraceError(ValueError):
    """A trace that cannot be read; the text names the file, the line and the fix."""


@dataclass(frozen=True)
class Selection:
    """Which rows of a workload are used, and how they are changed.

    `first` and `last` are job numbers (inclusive), `begin` and `end` submission times in seconds of the trace (`end` is
    not included). `load` divides the times between submissions: 2 makes the load twice as high. `clean` drops rows of
    jobs that were cancelled (status 5), and of partial executions (2 to 4), which other rows sum up. `largest` is the
    number of processors of the machine: if given, larger jobs are dropped. `memory`: use requested memory. `units`: a
    row of n nodes is n equal parts, and one node may have several (see `vrm.workload.rows.request_of`). `resources` are
    the names of the machine's resources, and `features` those that its nodes offer (None: not known). `keep_estimates`
    leaves requested times below the run time unchanged; otherwise they are raised to the run time. Raises ValueError
    for a load that is not above 0, and for less than one job.
    """

    first: int | None = None
    last: int | None = None
    begin: float | None = None
    end: float | None = None
    load: float = 1.0
    clean: bool = False
    largest: int | None = None
    jobs: int | None = None  # at most this many
    memory: bool = False
    units: bool = False
    resources: frozenset[str] = frozenset()
    features: frozenset[str] | None = None
    keep_estimates: bool = False

    def __post_init__(self) -> None:
        if not self.load > 0:
            raise ValueError(f"the load factor must be above 0, not {self.load:g}")
        if self.jobs is not None and self.jobs < 1:
            raise ValueError(f"a workload has at least 1 job, not {self.jobs}")

    def wants(self, job_id: int, submit: float) -> bool:
        """Return whether a job is within the limits of job numbers and submission times."""
        return ((self.first is None or job_id >= self.first)
                and (self.last is None or job_id <= self.last)
                and (self.begin is None or submit >= self.begin)
                and (self.end is None or submit < self.end))


def __getattr__(name: str) -> Any:
    """Return `Selection` for its old name `Rules`, which is kept for one more version."""
    if name != "Rules":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn("vrm.workload.swf.Rules: write Selection", DeprecationWarning, stacklevel=2)
    return Selection


@dataclass
class Trace:
    """An SWF file: its header, and the submissions as a stream.

    A row becomes a job when its run time is above 0, its processors (requested, else allocated) are at least 1 and
    its submission time is not negative. The estimate is the requested time, else the run time, and never less than
    the run time unless `rules.keep_estimates`. Times are the trace's own seconds. Preceding jobs and think times
    (fields 17 and 18) are ignored: jobs are submitted at the times in the trace. Lines that begin with `;` or `#` are
    comments. If memory is used (see `Selection`), field 10 is the requested memory per processor in KiB. Field 15 is
    the queue.

    Job numbers need not increase, but each is used for one job: a row whose number was used before gets one above all
    others. `name` is the file's name in messages (default: its path).
    """

    path: Path
    rules: Selection = field(default_factory=Selection)
    header: dict[str, str] = field(default_factory=dict)
    dirt: Counter[str] = field(default_factory=Counter)
    taken: int = 0
    name: str = ""
    spool: Any = field(default=None, repr=False, compare=False)
    _given: float | None = field(default=None, repr=False, compare=False)
    _raw: IO[bytes] | None = field(default=None, repr=False, compare=False)
    _bytes: int = field(default=0, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.path = Path(self.path)
        self.name = self.name or str(self.path)
        with self._open() as lines:
            self.header = read_header(line.decode("utf-8", "replace") for line in lines)

    @property
    def processors(self) -> int | None:
        """Processors of the machine according to the header (or its nodes, if it has no number of processors)."""
        for key in ("MaxProcs", "MaxNodes"):
            number = _header_number(self.header.get(key, ""))
            if number:
                return number
        return None

    @property
    def nodes(self) -> int | None:
        """Nodes of the machine according to the header."""
        return _header_number(self.header.get("MaxNodes", ""))

    @property
    def unix_start(self) -> int | None:
        """Epoch seconds of time 0, if the header has it."""
        return _header_number(self.header.get("UnixStartTime", ""))

    @property
    def read(self) -> float:
        """The fraction of the file that has been read, or of its jobs that have been returned (0 to 1)."""
        if self._given is not None:
            return self._given
        if self._raw is None or self._raw.closed or not self._bytes:
            return 1.0
        return self._raw.tell() / self._bytes

    @contextmanager
    def _open(self) -> Iterator[Iterable[bytes]]:
        try:
            raw: IO[bytes] = open(self.path, "rb")
        except OSError as error:
            raise TraceError(f"{self.name}: {(error.strerror or str(error)).lower()}") from error
        with raw:
            self._bytes = raw.seek(0, 2)
            raw.seek(0)
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            self._raw = raw
            stream: Any = gzip.GzipFile(fileobj=raw) if packed else raw
            try:
                yield io.BufferedReader(stream, 1 << 16)
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                raise TraceError(f"{self.name}: damaged gzip file ({error}); fetch it again"
                                 ) from error

    def __iter__(self) -> Iterator[Submission]:
        """Yield the submissions, sorted by time and then line; resets the counts `taken` and `dirt`."""
        self.taken = 0
        self.dirt = Counter()
        self._given = None
        with self._open() as lines:
            in_order, rising = _survey(lines)
        repeated = None
        if not rising:
            with self._open() as lines:
                repeated = _repeated(lines)
        with self._open() as lines:
            rows = self._rows(lines, repeated)
            if not in_order:
                rows = iter(sorted(rows, key=lambda row: row.job.submit))  # stable: equal times keep line order
            for row in rows:
                if self.rules.jobs is not None and self.taken >= self.rules.jobs:
                    return
                self.taken += 1
                yield row

    def blocks(self, users: Names, apps: Names) -> Iterator[Block]:
        """Yield the same submissions as columns, thousands at a time, and fill `users` and `apps`. Counts like
        `__iter__`."""
        self.taken = 0
        self.dirt = Counter()
        rules, found = self.rules, None
        if replace(rules, largest=None, resources=frozenset(), features=None,
                   keep_estimates=False) == Selection():
            with self._open() as stream:
                found = of_lines(stream, lambda lines, first: self._rows(lines, None, first),
                                 rules.largest, users, apps)
        if found is None:
            for names in (users, apps):
                names.forget()
            yield from of_submissions(self, users, apps)
            return
        jobs = sum(map(len, found))
        for block in found:
            self.taken += len(block)
            self._given = self.taken / max(1, jobs)
            yield block

    def _rows(self, lines: Iterable[bytes], repeated: int | None, first: int = 1
              ) -> Iterator[Submission]:
        """Yield the submissions of these lines in order; line numbers begin with `first`. `repeated` is the largest
        job number if job numbers repeat, else None."""
        rules, dirt, keep = self.rules, self.dirt, self.rules.keep_estimates
        filtered = any(value is not None for value in
                       (rules.first, rules.last, rules.begin, rules.end))
        largest = float("inf") if rules.largest is None else rules.largest
        unclean = _UNCLEAN.keys() if rules.clean else ()
        load, origin = rules.load, None
        latest = float("-inf")
        seen: set[int] = set()
        number, fields, largest_id, longest = _number, FIELDS, LARGEST_ID, LONGEST
        memory = rules.memory
        requests: dict[tuple[int, bytes], Request | None] = {}
        queues, owners, names = _Texts("{}"), _Texts("{}", ""), _Texts("app{}", "app")
        queues[b"-1"] = ""
        for line_number, line in enumerate(lines, first):
            words = line.split()
            if not words:
                continue
            try:
                job_id = int(words[0])
                procs = int(words[7])
                if procs <= 0:
                    procs = int(words[4])
                    if procs > 0:
                        dirt["allocated processors instead of requested ones"] += 1
                submit: float
                run: float
                estimate: float
                try:
                    submit, run, estimate = int(words[1]), int(words[3]), int(words[8])
                except ValueError:
                    submit, run, estimate = number(words[1]), number(words[3]), number(words[8])
                status, user, app = words[10], words[11], words[13]
            except (ValueError, IndexError) as error:
                if words[0].startswith(_REMARK):
                    continue
                if len(words) < NEEDED:
                    dirt[f"dropped: fewer than {NEEDED} of the 18 fields"] += 1
                    continue
                raise TraceError(f"{self.name}:{line_number}: not a row of numbers ({_short(error)})"
                                 "; put a `;` before it if it is a remark") from error
            if len(words) < fields:
                dirt["fewer than 18 fields: the missing last ones are unknown"] += 1
            if not (-1 <= job_id <= largest_id and submit < longest > run and estimate < longest):
                raise TraceError(
                    f"{self.name}:{line_number}: a number out of range; job numbers go from 0 to "
                    "2^63 - 1 and times to 2^53 s: correct the row, or put a `;` before it")
            if filtered and not rules.wants(job_id, submit):
                continue
            if run <= 0 or procs <= 0 or submit < 0 or procs > largest or status in unclean:
                dirt[_why_dropped(run, procs, submit, largest, status)] += 1
                continue
            if estimate <= 0:
                dirt["no requested time: run time instead"] += 1
                estimate = run
            elif estimate < run and not keep:
                dirt["run time above the requested time: estimate raised"] += 1
                estimate = run
            if submit < latest:
                dirt["submitted before a row above"] += 1
            else:
                latest = submit
            if repeated is not None:
                if job_id in seen:
                    dirt["job number used before: renumbered"] += 1
                    job_id = repeated = repeated + 1
                seen.add(job_id)
            if load != 1.0:
                if origin is None:
                    origin = submit
                submit = origin + (submit - origin) / load
            queue = queues[words[14]] if len(words) >= fields - 3 else ""
            request = None
            if memory:
                key = procs, words[9]
                try:
                    request = requests[key]
                except KeyError:
                    request = requests[key] = self._with_memory(procs, words[9], line_number)
            yield Submission(Job(job_id, names[app], procs, estimate, submit, user=owners[user], queue=queue,
                                 request=request), run)

    def _with_memory(self, procs: int, text: bytes, line_number: int) -> Request | None:
        """Return a request of `procs` processors with this memory in KiB for each; None if the memory is not above
        0."""
        try:
            size = int(text)
        except ValueError:
            raise TraceError(f"{self.name}:{line_number}: memory `{text.decode('ascii', 'replace')}` is "
                             "not a whole number of KiB; correct the row, or put a `;` before it") from None
        return None if size <= 0 else Request.of(procs, 1, False, {MEMORY: size / (1 << 20)})


def _why_dropped(run: float, procs: int, submit: float, largest: float, status: bytes) -> str:
    """Return why a row is not a job."""
    return next(why for wrong, why in (
        (run == 0, "dropped: run time 0"), (run < 0, "dropped: no run time"), (procs <= 0, "dropped: no processors"),
        (submit < 0, "dropped: no submission time"), (procs > largest, "dropped: more processors than the machine"),
        (True, _UNCLEAN.get(status, ""))) if wrong)


class _Texts(dict[bytes, str]):
    """Texts of words of a trace in a form; `unknown` (None: as others) for words that begin with a `-`."""

    def __init__(self, form: str, unknown: str | None = None) -> None:
        self._form, self._unknown = form, unknown

    def __missing__(self, word: bytes) -> str:
        known = self._unknown is None or not word.startswith(b"-")
        text = self[word] = self._form.format(word.decode("ascii", "replace")) if known else self._unknown or ""
        return text


def _number(text: bytes) -> float:
    """Return a time; whole numbers stay int, so that they are written as they were read."""
    try:
        return int(text)
    except ValueError:
        value = float(text)
        if value != value or value in (float("inf"), float("-inf")):
            raise ValueError(f"`{text.decode('ascii', 'replace')}` is not a time") from None
        return value


def _header_number(text: str) -> int | None:
    words = text.split()
    return int(words[0]) if words and words[0].isdigit() else None


def _survey(lines: Iterable[bytes]) -> tuple[bool, bool]:
    """Return whether the rows are sorted by submission time, and whether job numbers increase."""
    latest: float = float("-inf")
    last = -2
    in_order = rising = True
    for line in lines:
        try:
            first, second, _ = line.split(None, 2)
            number = int(first)
            try:
                submit: float = int(second)  # faster than float, and nearly always right
            except ValueError:
                submit = float(second)
        except ValueError:
            continue  # a comment, or a row that the reader reports or drops
        if submit < latest:
            in_order = False
        else:
            latest = submit
        if number <= last:
            rising = False
        last = number
    return in_order, rising


def _repeated(lines: Iterable[bytes]) -> int | None:
    """Return the largest job number if any number repeats, else None."""
    numbers = array("q")
    for line in lines:
        words = line.split(None, 1)
        if words and not words[0].startswith(_REMARK):
            try:
                numbers.append(int(words[0]))
            except (ValueError, OverflowError):
                continue  # the reader reports it
    return max(numbers) if len(set(numbers)) < len(numbers) else None


def _short(error: Exception) -> str:
    """Return the text of an error, shortened to 120 characters."""
    text = str(error)
    return text if len(text) <= 120 else f"{text[:117]}..."


def read_header(lines: Iterable[str]) -> dict[str, str]:
    """Return the `; Key: value` lines at the top; values of a repeated key are joined by newlines."""
    header: dict[str, str] = {}
    for line in lines:
        line = line.strip()
        if not line:
            continue
        if not line.startswith((";", "#")):
            break
        key, colon, value = line.lstrip(";# \t").partition(":")
        key = key.strip()
        if colon and key and key.replace("_", "").isalnum():
            value = value.strip()
            header[key] = f"{header[key]}\n{value}" if key in header else value
    return header


def write(path: str | Path, submissions: Iterable[Submission], header: dict[str, object],
          starts: Callable[[int], tuple[float, float]] | None = None,
          status: Callable[[int], int] = lambda job: 1, names: Iterable[Any] = ()) -> int:
    """Write a trace and return the number of its rows.

    `header` has the keys of the header lines in order. `starts(job id)`, if given, returns the start and end of a
    job, from which the waiting time is computed; `status(job id)` returns its SWF status (1: completed). A path that
    ends in `.gz` is compressed.

    Users and programs whose names are not numbers get a number; for those of `names` (objects with `app` and `user`)
    the header lists the numbers.
    """
    path = Path(path)
    rows = 0
    opened: IO[str]
    if path.suffix == ".gz":  # without name and time, so that equal traces are equal files
        binary = gzip.GzipFile("", "wb", fileobj=open(path, "wb"), mtime=0)
        opened = io.TextIOWrapper(binary, "ascii", newline="\n")
    else:
        opened = open(path, "w", encoding="ascii", newline="\n")
    apps: dict[str, int] = {}
    users: dict[str, int] = {}
    for one in names:
        _code(_program(one.app), apps)
        _code(one.user, users)
    notes = [f"{what} {number}: {name}".encode("ascii", "backslashreplace").decode()
             for what, known in (("Executable", apps), ("User", users))
             for name, number in known.items()]
    if notes:
        header = {**header, "Note": "\n".join(notes)}
    with opened as out:
        for key, value in {"Version": "2.2", **header}.items():
            for line in str(value).splitlines():
                out.write(f"; {key}: {line}\n")
        for job, run, *_ in submissions:
            wait = "-1"
            if starts is not None:
                wait = seconds_text(starts(job.id)[0] - job.submit)
            app = _code(_program(job.app), apps)
            out.write(f"{job.id} {seconds_text(job.submit)} {wait} {seconds_text(run)} {job.procs} -1 -1 "
                      f"{job.procs} {seconds_text(job.walltime)} -1 {status(job.id)} {_code(job.user, users)} -1 {app} "
                      "-1 -1 -1 -1\n")
            rows += 1
    return rows


def _program(app: str) -> str:
    """Return a program's name in the trace: `7` for the `app7` that `Trace` makes of it."""
    return app[3:] if app == "app" or (app.startswith("app") and app[3:].isdigit()) else app


def _code(name: str, known: dict[str, int]) -> int:
    """Return a number for a name: the name itself if it is a number, else the next free one (-1 for an unknown
    name)."""
    if not name:
        return -1
    if name.isdigit():
        return int(name)
    return known.setdefault(name, len(known) + 1)
