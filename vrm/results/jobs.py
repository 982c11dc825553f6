"""The file `jobs.csv`: one line per ended job, in the same form for live runs and simulations.
`vrm.results.job_columns` defines the form of a line."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TextIO, TypeVar
from collections.abc import Iterator

from vrm.model.forms.fields import ADDED, OF_DETAILS, OF_JOB, RESULT, getter, made
from vrm.model.job import PLAIN, Details, Job
from vrm.results.job_columns import (COMPUTED, FIRST, MORE, NAMES, JobFileError, PathLike, Values, added_names,
                                     cell, cells_of, first_cells, header, more_cells, read_values)

_Row = TypeVar("_Row")


def _with_fields(row: type[_Row]) -> type[_Row]:
    """Add the columns of the fields to the class of a row."""
    for each in MORE:
        row.__annotations__[each.column] = Any
        setattr(row, each.column, each.plain_default)
    row.__annotations__["more"] = tuple[tuple[str, Any], ...]
    row.more = ()  # type: ignore[attr-defined]
    return row


@dataclass(frozen=True)
@_with_fields
class JobRow:
    """A job that ended, as a line of `jobs.csv` has it.

    `submit`, `start`, `end`, `walltime` (the user's estimate) and `app_time` (the application's own measurement) are
    in seconds; `start` and `end` are None if the job never ran. `exit_code` is as a shell reports it (128 + signal).
    `nodes` and `cores` are in the forms of `PlacementText`; `binding` is ok, mismatch, unchecked or unbound.

    Further columns: `devices` (in the form of `PlacementText`), `memory_peak` (the highest memory use that was
    observed on a node, as `106M`; of live jobs that requested memory), `cause` (why vrm ended it: `timeout`,
    `memory`, `node`, `cancel`, `stop`, `interrupted`, `deadline` and others) and the fields of the job, those of MORE
    in their plain form: `name`, `args` (quoted as in a shell), `dir` (empty: the run's own), `index` (None:
    not in an array) and others. A simulation's file has these columns if its workload has values for them. `more` are
    pairs of an extension's column and its value: `added` finds one.
    """

    id: int
    app: str
    procs: int
    submit: float
    start: float | None
    end: float | None
    walltime: float
    status: str
    exit_code: int | None = None
    app_time: float | None = None
    exclusive: bool = False
    backfilled: bool = False
    nodes: str = ""
    cores: str = ""
    binding: str = ""
    reason: str = ""

    if TYPE_CHECKING:
        def __getattr__(self, name: str) -> Any:
            """Return a column of MORE."""

    @cached_property
    def processors(self) -> int:
        """The number of cores that the job held: those in `cores`, else one for each rank."""
        return cores_in(self.cores) if self.cores else self.procs

    @property
    def line(self) -> str:
        """The job's line, with its line end."""
        return f"{first_cells(_first_of(self))}{more_cells(vars(self))}{added_cells(self)}\n"

    def added(self, name: str, default: Any = None) -> Any:
        """Return the value of an extension's column, such as a field that it adds."""
        return next((value for column, value in self.more if column == name), default)

    @property
    def short_line(self) -> str:
        """The job's line with the columns of `job_columns.FIRST` only."""
        return f"{first_cells(_first_of(self))}\n"


_first_of = attrgetter(*NAMES[:len(FIRST)])
_core_ranges = re.compile(r"/(\d+)(?:-(\d+))?").findall


def cores_in(places: str) -> int:
    """Return the number of cores in a text of the column `cores`."""
    if "-" not in places:
        return places.count("/")
    return sum(int(last or first) - int(first) + 1 for first, last in _core_ranges(places))


def added_cells(row: JobRow) -> str:
    """Return the columns of extensions, each with a comma before it. Values that were read from a file are not
    computed again."""
    return "".join([f",{cell(value)}" for value in _added_values(row)])


def _added_values(row: JobRow) -> Iterator[Any]:
    for name in added_names():
        found = row.added(name)
        yield COMPUTED[name](row) if found is None and name in COMPUTED else found


_NOTHING = tuple(each.plain_default for each in MORE)
_more_of = attrgetter(*(each.column for each in MORE))
_OF_JOB, _OF_DETAILS = ([(each.column, getter(each), each.kind.plain) for each in MORE
                         if each.kept in kept] for kept in (OF_JOB, OF_DETAILS))


def fields_of(job: Job, details: Details) -> dict[str, Any]:
    """Return the columns of MORE for a job; in an array, its arguments contain its own index."""
    own = job if details.index is None else job.but(payload=job.payload.own(details.index))
    found = {column: plain(get(own)) for column, get, plain in _OF_JOB}
    if details is not PLAIN:
        found.update({column: plain(get(details)) for column, get, plain in _OF_DETAILS})
    if job.more:
        found["more"] = tuple((word, ADDED[word].kind.plain(value)) for word, value in job.more.items())
    return found


class SharedFields:
    """Caches the columns of MORE for jobs, without those that have their defaults: consecutive jobs often have equal
    ones."""

    def __init__(self) -> None:
        self._said: tuple[Any, ...] = ()
        self._details: Details | None = None
        self._found: dict[str, Any] = {}

    def of(self, job: Job, details: Details) -> dict[str, Any]:
        """Return the columns of a job; the result must not be changed."""
        said = _field_values(job)
        if said != self._said or details != self._details:
            values = fields_of(job, details)
            self._said, self._details = said, details
            self._found = {name: value for name, value in values.items() if value != _PLAIN_VALUES.get(name, ())}
        return self._found


_field_values = attrgetter(*(name for name in Job.__slots__ if name not in ("id", "submit")))
_PLAIN_VALUES = {each.column: each.plain_default for each in MORE}


def row_of(values: dict[str, Any]) -> JobRow:
    """Return a row that uses the dictionary `values`; missing values have their defaults."""
    row = JobRow.__new__(JobRow)
    row.__dict__.update(values)
    return row


def submitted(row: JobRow, submit: float) -> tuple[Job, Details]:
    """Return the job and details that were submitted, as far as a row contains them; `submit` is the submission time.
    Raises ValueError for values that no job can have."""
    # Older files have no column for cores per rank: compute it from the cores that the job had.
    width = max(1, row.processors // row.procs) if row.cores else 1
    said = _more_of(row)
    added = {name: ADDED[name].kind.of_plain(value) for name, value in row.more if name in ADDED}
    if said == _NOTHING and not added:
        return Job(row.id, row.app, row.procs, row.walltime, submit, row.exclusive, width), PLAIN
    values = {field.at: field.kind.of_plain(value) for field, value, default in
              zip(MORE, said, _NOTHING) if value != default and field.kept != RESULT}
    return made({"app": row.app, "procs": row.procs, "walltime": row.walltime,
                 "exclusive": row.exclusive, "cores": width, **values, **added}, row.id, submit)


# ------------------------------------------------------------------------------------- writing


class JobWriter:
    """Appends to a list of jobs; use it in a `with` block, or close it.

    Each job has reached the operating system when `write` returns. An incomplete line that a crash has left is cut
    off first. The file is valid UTF-8, whatever bytes a program's name has.

    A file of an older vrm, or of one without some extension, lacks columns; it is first replaced by a new file with
    all columns. Columns of an extension that is not installed now stay, and new jobs have no values in them. Raises
    JobFileError if the file exists and is not a list of jobs, OSError like `open`.
    """

    def __init__(self, path: PathLike) -> None:
        self.path = os.fspath(path)
        has_header = self._mend()
        self._gone: list[str] = []  # columns of extensions that are not installed, after all others
        if has_header:
            self._widen()
        self._file = self._open()
        self._torn: int | None = None  # size of the file before a failed write
        if not has_header:
            self._file.write(header())

    def write(self, row: JobRow) -> None:
        """Add a job. Raises OSError if the disk does not take it; nothing is added then."""
        if self._torn is not None:
            self._begin_anew(self._torn)
        start = os.path.getsize(self.path)
        try:
            self._file.write(row.line if not self._gone else f"{row.line[:-1]}{',' * len(self._gone)}\n")
        except OSError:
            self._torn = start
            with suppress(OSError):  # a disk that is read-only now: repeat this before the next job
                self._begin_anew(start)
            raise

    def _begin_anew(self, size: int) -> None:
        """Discard the failed write, on disk and in the buffer."""
        with suppress(OSError):  # its buffer is the failed write
            self._file.close()
        os.truncate(self.path, size)
        self._file = self._open()
        os.fsync(self._file.fileno())  # see `_mend`
        self._torn = None

    def _open(self) -> TextIO:
        return open(self.path, "a", buffering=1, encoding="utf-8", errors="backslashreplace",
                    newline="\n")

    def close(self) -> None:
        """Write the buffer and close the file."""
        self._file.close()

    def __enter__(self) -> JobWriter:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

    def _mend(self) -> bool:
        """Cut off an incomplete last line, and everything after zeros, which a crash of the machine leaves where data
        was not on disk yet. Return whether the header is there."""
        try:
            file = open(self.path, "r+b")
        except FileNotFoundError:
            return False
        with file:
            size = file.seek(0, os.SEEK_END)
            end = _first_zero(file)
            file.seek(0)
            first = file.readline(16384)[:end]
            whole_line = first.endswith(b"\n")
            if not _continues(first) if whole_line else not header().encode().startswith(first):
                raise JobFileError(
                    f"{self.path}:1: this is not a list of jobs that can be continued (its first"
                    f" line is not `{header().strip()}`); move it away or choose another file")
            whole = _after_last_newline(file, end)
            if whole < size:
                file.truncate(whole)
                os.fsync(file.fileno())  # or else a crash could mix the cut data with the data that replaces it
            return whole > 0


    def _widen(self) -> None:
        """Add the missing columns, empty, to a file of an older vrm."""
        with open(self.path, "rb") as file:
            before = file.readline().decode().rstrip("\n").split(",")
            wanted = [*NAMES, *added_names()]
            self._gone = [name for name in before if name not in wanted]
            names = [*wanted, *self._gone]
            if names == before:
                return
            places = [before.index(name) if name in before else -1 for name in names]
            new = f"{self.path}.{os.getpid()}.new"
            handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            try:
                with open(handle, "wb") as wider:
                    wider.write(f"{','.join(names)}\n".encode())
                    wider.writelines(_rearranged(line, places) for line in file)
                    wider.flush()
                    os.fchmod(handle, os.fstat(file.fileno()).st_mode & 0o777)
                    os.fsync(handle)
                os.replace(new, self.path)
            except OSError:
                os.unlink(new)
                raise


_NAME = re.compile(r"[A-Za-z][\w-]*")


def _continues(first: bytes) -> bool:
    """Return whether a file with this first line can be continued: new columns of vrm were always added after the
    others, and columns of extensions come after these."""
    names = first.decode("utf-8", "replace").rstrip("\n").split(",")
    known = next((at for at, name in enumerate(names) if name not in NAMES), len(names))
    return (known >= len(FIRST) and tuple(names[:known]) == NAMES[:known] and len({*names}) == len(names)
            and all(name not in NAMES and _NAME.fullmatch(name) for name in names[known:]))


def _rearranged(line: bytes, places: list[int]) -> bytes:
    """Return a line with its cells in these places; -1 gives an empty cell, and so does a cell that a damaged line
    lacks. The text of the cells is unchanged."""
    cells = cells_of(line[:-1])
    return b",".join([cells[at] if 0 <= at < len(cells) else b"" for at in places]) + b"\n"


def _first_zero(file: Any) -> int:
    """Return the offset of the first zero byte of a file, or its size if there is none."""
    file.seek(0)
    before = 0
    while part := file.read(1 << 20):
        at: int = part.find(0)
        if at >= 0:
            return before + at
        before += len(part)
    return before


def _after_last_newline(file: Any, end: int) -> int:
    """Return the offset after the last newline in the first `end` bytes of a binary file; 0 if there is none."""
    while end:
        begin = max(0, end - 65536)
        file.seek(begin)
        found: int = file.read(end - begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
        end = begin
    return 0


# ------------------------------------------------------------------------------------- reading


def rows_of(values: Values) -> Iterator[JobRow]:
    """Yield the rows with these values."""
    names, new = tuple(values), JobRow.__new__
    for each in zip(*values.values()):
        row = new(JobRow)  # skips the frozen dataclass's slow assignments: reports read millions of jobs
        row.__dict__.update(zip(names, each))
        yield row


def read_jobs(path: PathLike) -> Iterator[JobRow]:
    """Yield the jobs of a list, one by one; see `vrm.results.job_columns.read_values`."""
    for values in read_values(path):
        yield from rows_of(values)
