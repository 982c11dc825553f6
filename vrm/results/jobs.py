"""`jobs.csv`: one line per job that ended, the same for live runs and simulations.

Each job is one physical line, whatever its texts hold: line ends in them are written as `\\n`, so
that a line torn by a crash can be told and cut off, and `grep` and `tail -f` show whole jobs.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, fields
from functools import cached_property
from operator import attrgetter
from typing import (TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Mapping, Optional,
                    Sequence, TextIO, Tuple, Type, TypeVar, Union)

from vrm.model.fields import OF_DETAILS, OF_JOB, RESULT, SIMULATED as FIRST, TABLE, Field, getter, made
from vrm.model.kinds import FieldError
from vrm.model.job import PLAIN, Details, Job, JobState
from vrm.system.text import printable

PathLike = Union[str, "os.PathLike[str]"]


class JobFileError(ValueError):
    """A file that is not a list of jobs, or has a line that cannot be read; names the place."""


MORE: Tuple[Field, ...] = tuple(sorted(
    (each for each in TABLE if each.column and each.form > FIRST), key=attrgetter("form")))
"""The fields of a job that have columns behind `reason`."""

_Row = TypeVar("_Row")


def _with_fields(row: Type[_Row]) -> Type[_Row]:
    """Give the class of a row the columns of the fields."""
    for each in MORE:
        row.__annotations__[each.column] = Any
        setattr(row, each.column, each.plain_default)
    return row


@dataclass(frozen=True)
@_with_fields
class JobRow:
    """A job that ended, as a line of `jobs.csv` has it.

    `submit`, `start`, `end`, `walltime` (the user's estimate) and `app_time` (the application's
    own measurement) are in seconds; `start` and `end` are None when the job never ran.
    `exit_code` is what a shell would show (128 + signal). `nodes` and `cores` are in the forms of
    `PlacementText`; `binding` is ok, mismatch, unchecked or unbound.

    Behind these are `devices` (in the form of `PlacementText`), `memory_peak` (the most memory that was seen in
    use on a node, as `106M`; of live jobs that asked for memory), `cause` (why vrm ended it: `timeout`, `memory`,
    `node`, `cancel`, `stop`, `interrupted`, `deadline` and so on) and the fields of the job, those of MORE
    in their plain form: `name`, `args` (as a
    shell would quote them), `dir` (empty: the run's own), `index` (in an array, else None) and so on.
    A simulation's file has columns for them where its workload says something of them.
    """

    id: int
    app: str
    procs: int
    submit: float
    start: Optional[float]
    end: Optional[float]
    walltime: float
    status: str
    exit_code: Optional[int] = None
    app_time: Optional[float] = None
    exclusive: bool = False
    backfilled: bool = False
    nodes: str = ""
    cores: str = ""
    binding: str = ""
    reason: str = ""

    if TYPE_CHECKING:
        def __getattr__(self, name: str) -> Any:
            """A column of MORE."""

    @cached_property
    def processors(self) -> int:
        """The cores that the job held: those in `cores`, else one for each rank."""
        if not self.cores:
            return self.procs
        if "-" not in self.cores:
            return self.cores.count("/")
        return sum(int(last or first) - int(first) + 1
                   for first, last in _core_ranges(self.cores))

    @property
    def line(self) -> str:
        """The job's line, with its line end."""
        first = job_line(self.id, self.app, self.procs, self.submit, self.start, self.end,
                         self.walltime, self.status, self.exit_code, self.app_time,
                         self.exclusive, self.backfilled, self.nodes, self.cores, self.binding,
                         self.reason)
        return first[:-1] + more_columns(vars(self)) + "\n"


_core_ranges = re.compile(r"/(\d+)(?:-(\d+))?").findall

COLUMNS = tuple(column.name for column in fields(JobRow))
HEADER = ",".join(COLUMNS) + "\n"
SIMULATED = ",".join(COLUMNS[:-len(MORE)]) + "\n"
"""The first line of a file of vrm 0.1, and of a simulation of jobs of which nothing more is known:
nothing comes behind `reason`."""
_REQUIRED = COLUMNS[:8]


# ---------------------------------------------------------------------------------- formatting


def seconds_text(value: Optional[float]) -> str:
    """A time in seconds: at most 3 decimals, whole numbers bare, nothing for None."""
    if value is None:
        return ""
    if not isinstance(value, float):
        return str(value)
    if not value.is_integer():
        value = round(value, 3)
        if not value.is_integer():
            return str(value)
    return str(int(value))


def job_line(id: int, app: str, procs: int, submit: float, start: Optional[float],
             end: Optional[float], walltime: float, status: str,
             exit_code: Optional[int] = None, app_time: Optional[float] = None,
             exclusive: bool = False, backfilled: bool = False, nodes: str = "",
             cores: str = "", binding: str = "", reason: str = "") -> str:
    """The line of a job under SIMULATED, with its line end; arguments as the fields of `JobRow`.

    For a simulation, which need not make a `JobRow` for every job it writes.
    """
    state = status if type(status) is str else JobState(status).value
    code = "" if exit_code is None else exit_code
    return (f"{id},{_text(app)},{procs},{seconds_text(submit)},{seconds_text(start)},"
            f"{seconds_text(end)},{seconds_text(walltime)},{state},{code},"
            f"{seconds_text(app_time)},{'1' if exclusive else '0'},{'1' if backfilled else '0'},"
            f"{_text(nodes)},{_text(cores)},{_text(binding)},{_text(reason)}\n")


def more_columns(values: Mapping[str, Any]) -> str:
    """The columns behind `reason`, a comma before each; what has its default is an empty one."""
    said = tuple([values.get(column, default) for column, default in _DEFAULTS])
    if said == _NOTHING:
        return _NO_CELLS
    cells = []
    for value, default in zip(said, _NOTHING):
        if value == default:
            cells.append("")
        elif type(value) is str:
            cells.append(_text(value))
        elif type(value) is float:
            cells.append(seconds_text(value))
        else:
            cells.append(str(int(value)))
    return "," + ",".join(cells)


_NOTHING = tuple(each.plain_default for each in MORE)
_DEFAULTS = [(each.column, each.plain_default) for each in MORE]
_NO_CELLS = "," * len(MORE)
_more_of = attrgetter(*(each.column for each in MORE))
_OF_JOB, _OF_DETAILS = ([(each.column, getter(each), each.kind.plain) for each in MORE
                         if each.kept in kept] for kept in (OF_JOB, OF_DETAILS))


def fields_of(job: Job, details: Details) -> Dict[str, Any]:
    """The columns of MORE for a job; its arguments are its own, with its index in them."""
    own = job if details.index is None else job.but(payload=job.payload.own(details.index))
    found = {column: plain(get(own)) for column, get, plain in _OF_JOB}
    if details is not PLAIN:
        found.update({column: plain(get(details)) for column, get, plain in _OF_DETAILS})
    return found


def submitted(row: "JobRow", submit: float) -> Tuple[Job, Details]:
    """What was submitted, as far as a row tells; `submit` is when. ValueError for a row that says
    what no job can have."""
    # Before there was a column for it, only the cores that a rank had said how many it wants.
    width = max(1, row.processors // row.procs) if row.cores else 1
    said = _more_of(row)
    if said == _NOTHING:
        return Job(row.id, row.app, row.procs, row.walltime, submit, row.exclusive, width), PLAIN
    values = {field.at: field.kind.of_plain(value) for field, value, default in
              zip(MORE, said, _NOTHING) if value != default and field.kept != RESULT}
    return made({"app": row.app, "procs": row.procs, "walltime": row.walltime,
                 "exclusive": row.exclusive, "cores": width, **values}, row.id, submit)


_special = re.compile(r'[,"\\\n\r\0]').search
_ESCAPES = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\0": "\\0"}
_UNESCAPES = {escape: char for char, escape in _ESCAPES.items()}
_to_escape = re.compile(r"[\\\n\r\0]")
_escaped = re.compile(r"\\(?:u[0-9a-f]{4}|.)")


def _text(text: str) -> str:
    """A text as a field: on one line, quoted where CSV asks for it."""
    if not _special(text):
        return text
    if _to_escape.search(text):
        text = _to_escape.sub(lambda found: _ESCAPES[found.group()], text)
    return '"' + text.replace('"', '""') + '"' if "," in text or '"' in text else text


def _plain(field: str) -> str:
    """The text that `_text` and the file's encoding made the field from."""
    return _escaped.sub(_unescape, field) if "\\" in field else field


def _unescape(found: "re.Match[str]") -> str:
    escape = found.group()
    if len(escape) == 6:  # a part of a name that is no valid UTF-8; see JobWriter
        return chr(int(escape[2:], 16))
    return _UNESCAPES.get(escape, escape)


# ------------------------------------------------------------------------------------- writing


class JobWriter:
    """Writes a list of jobs; use it in a `with` or close it.

    Jobs are added to what is there, and each reaches the operating system before `write` returns.
    The rest of a line that a crash tore is cut off first. The file is valid UTF-8 whatever bytes a program's name has.

    A file of an older vrm, which lacks the last columns, gets them first, by a new file in its
    place. Raises JobFileError when the file exists and is no list of jobs, OSError as `open` does.
    """

    def __init__(self, path: PathLike) -> None:
        self.path = os.fspath(path)
        has_header = self._mend()
        if has_header:
            self._widen()
        self._file = self._open()
        if not has_header:
            self._file.write(HEADER)

    def write(self, row: JobRow) -> None:
        """Add a job; OSError when the disk does not take it, and then nothing was added."""
        start = os.path.getsize(self.path)
        try:
            self._file.write(row.line)
        except OSError:
            self._begin_anew(start)
            raise

    def _begin_anew(self, size: int) -> None:
        """Forget what could not be written, on disk and in the buffer."""
        try:
            self._file.close()
        except OSError:
            pass  # what it still held is what could not be written
        os.truncate(self.path, size)
        self._file = self._open()

    def _open(self) -> TextIO:
        return open(self.path, "a", buffering=1, encoding="utf-8", errors="backslashreplace",
                    newline="\n")

    def close(self) -> None:
        """Write what is still held and close the file."""
        self._file.close()

    def __enter__(self) -> "JobWriter":
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

    def _mend(self) -> bool:
        """Cut off a torn last line; True when the header is there."""
        try:
            file = open(self.path, "r+b")
        except FileNotFoundError:
            return False
        with file:
            first = file.readline(4096)
            whole_line = first.endswith(b"\n")
            if first not in _HEADERS if whole_line else not HEADER.encode().startswith(first):
                raise JobFileError(
                    f"{self.path}:1: this is not a list of jobs that can be continued (its first"
                    f" line is not `{HEADER.strip()}`); move it away or choose another file")
            end = file.seek(0, os.SEEK_END)
            whole = _after_last_newline(file, end)
            if whole < end:
                file.truncate(whole)
            return whole > 0


    def _widen(self) -> None:
        """Give a file of an older vrm the columns that it lacks, empty ones."""
        with open(self.path, "rb") as file:
            first = file.readline()
            lacking = HEADER.count(",") - first.count(b",")
            if not lacking:
                return
            new = f"{self.path}.{os.getpid()}.new"
            handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            try:
                with open(handle, "wb") as wider:
                    wider.write(HEADER.encode())
                    wider.writelines(line[:-1] + b"," * lacking + b"\n" for line in file)
                    wider.flush()
                    os.fchmod(handle, os.fstat(file.fileno()).st_mode & 0o777)
                    os.fsync(handle)
                os.replace(new, self.path)
            except OSError:
                os.unlink(new)
                raise


_HEADERS = {(",".join(COLUMNS[:count]) + "\n").encode()
            for count in range(SIMULATED.count(",") + 1, len(COLUMNS) + 1)}
"""The first lines of files that are continued: columns were only ever added behind the others."""


def _after_last_newline(file: Any, end: int) -> int:
    """Offset behind the last line end of a binary file of `end` bytes; 0 if it has none."""
    while end:
        begin = max(0, end - 65536)
        file.seek(begin)
        found = file.read(end - begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
        end = begin
    return 0


# ------------------------------------------------------------------------------------- reading


def read_jobs(path: PathLike) -> Iterator[JobRow]:
    """The jobs of a list, one by one, so that memory does not grow with it.

    Columns are found by the names in the first line; those from `exit_code` on may be missing,
    and others are passed over. A last line without its line end is being written and is left
    out. Raises JobFileError with the place of a line that cannot be read, OSError as `open` does.
    """
    name = os.fspath(path)
    with open(path, encoding="utf-8", errors="backslashreplace", newline="\n") as file:
        header = file.readline()
        if not header.endswith("\n"):
            return
        convert = _converters(name, _split(header))
        known = max(at for at, each in enumerate(convert, 1) if each[2] is _PARSERS[each[0]])
        there = [(index, parse) for _, index, parse in convert[:known]]
        names = [column for column, _, _ in convert[:known]]  # the others have their defaults
        new = JobRow.__new__
        for number, line in enumerate(file, 2):
            if not line.endswith("\n"):
                return
            values = _split(line)
            try:
                # At once, and not by guarded assignments: reports read jobs by the million.
                row = new(JobRow)
                row.__dict__.update(zip(names, [parse(values[index]) for index, parse in there]))
            except (ValueError, IndexError) as error:
                what = _first_bad(convert, values)
                raise JobFileError(f"{name}:{number}: {what}") from error
            yield row


def _split(line: str) -> List[str]:
    """The fields of a line. The csv module would refuse one of more than 128 KiB, which `cores`
    is for a job on ten thousand nodes, and let a stray quote swallow the lines after it."""
    line = line.rstrip("\r\n")
    if '"' not in line:
        return line.split(",")
    parts = line.split('"')
    parts[1::2] = [quoted.replace(",", "\0") for quoted in parts[1::2]]
    return [_unquoted(field) if '"' in field else field for field in '"'.join(parts).split(",")]


def _unquoted(field: str) -> str:
    if len(field) > 1 and field[0] == field[-1] == '"':
        field = field[1:-1].replace('""', '"')
    return field.replace("\0", ",")


Converter = Tuple[str, int, Callable[[str], Any]]


def _converters(name: str, header: Sequence[str]) -> List[Converter]:
    missing = [column for column in _REQUIRED if column not in header]
    if missing:
        raise JobFileError(f"{name}:1: this is not a list of jobs: the first line names no column"
                           f" {', '.join(f'`{column}`' for column in missing)}")
    return [(column.name, header.index(column.name), _PARSERS[column.name])
            if column.name in header else (column.name, 0, _always(column.default))
            for column in fields(JobRow)]


def _first_bad(convert: Sequence[Converter], values: Sequence[str]) -> str:
    for column, index, parse in convert:
        if index >= len(values):
            return f"the line ends before `{column}`"
        try:
            parse(values[index])
        except FieldError as error:
            return f"{column}: {error.said(printable)}"
        except ValueError as error:
            return f"{column}: {printable(str(error), 200)}"
    raise AssertionError("no column of the line is bad")


def _always(value: Any) -> Callable[[str], Any]:
    return lambda text: value


def _or(default: Any, parse: Callable[[str], Any]) -> Callable[[str], Any]:
    return lambda text: parse(text) if text else default


def _maybe(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    return _or(None, parse)


def _flag(text: str) -> bool:
    if text not in ("0", "1", ""):
        raise ValueError(f"`{printable(text)}` is neither 0 nor 1")
    return text == "1"


_STATUSES = {state.value: state.value for state in JobState if state.ended}


def _status(text: str) -> str:
    if text not in _STATUSES:
        raise ValueError(f"`{printable(text)}` is none of {', '.join(_STATUSES)}")
    return _STATUSES[text]


def seconds_of(text: str) -> float:
    """The time that `seconds_text` has written; ValueError for none that a clock could show."""
    value = float(text)
    if not abs(value) < 1e15:
        raise ValueError(f"`{printable(text)}` is no number of seconds")
    return value


def _whole(text: str) -> int:
    value = int(text)
    if not abs(value) <= 10 ** 15:
        raise ValueError(f"`{printable(text)}` is too large")
    return value


def _id(text: str) -> int:
    if _whole(text) < 0:
        raise ValueError(f"`{printable(text)}` is no job's id")
    return _whole(text)


def _ranks(text: str) -> int:
    if _whole(text) < 1:
        raise ValueError(f"`{printable(text)}` is no number of ranks")
    return _whole(text)


_PARSERS: Dict[str, Callable[[str], Any]] = {
    "id": _id, "app": _plain, "procs": _ranks, "submit": seconds_of, "start": _maybe(seconds_of),
    "end": _maybe(seconds_of), "walltime": seconds_of, "status": _status, "exit_code": _maybe(_whole),
    "app_time": _maybe(seconds_of), "exclusive": _flag, "backfilled": _flag, "nodes": _plain,
    "cores": _plain, "binding": _plain, "reason": _plain,
    **{each.column: _plain if isinstance(each.plain_default, str) else
       _or(each.plain_default, each.kind.cell) for each in MORE},
}
