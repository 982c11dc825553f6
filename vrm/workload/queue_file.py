"""Queue files: what a line says, how a file is followed while it grows, how a recorded one is
replayed, and how to tell that its writer has ended.

One line per job, blanks between the columns:

    ft.B.x 8 60 0                  app, ranks, estimated seconds, exclusive (0 or 1)
    ft.B.x 8 1:30:00               times also as 90m, 2h, 1-12:00:00; exclusive is 0 unless given
    ft.B.x 8                       without an estimate an hour is assumed
    is.B.x 32 10 0 4               a recorded line: 4 seconds pass before the next one
    lu.B.x 8 90.5 1 cores=2        after the columns, key=value fields (see FIELDS)
    cg.B.x 4 30 0 name='run 1'     words are quoted as in a shell
    post 1 9 0 after=3 args='-o "a b" out.%i' array=0-9:2 env=TMPDIR=/scratch env=LC_ALL=C
    end                            nothing comes after this line

`#` at the start of a word begins a comment. A line that is wrong is a LineError with the reason,
and the lines after it count.

While a file is followed:

- A line is taken when its newline has arrived, and never twice. Lines are appended; what has
  been taken is not looked at again. To mend a refused line, append it anew.
- If the file is replaced or rewritten (as an editor saves) and its beginning is still what was
  taken, reading goes on behind that. If its beginning is another, the new content is read from
  its start: all its lines are new ones.
- A file that has shrunk or vanished may be in the middle of being saved. That is believed when two
  looks in a row find the same (`QueueFollower.unsettled` tells that a second one is due).

A program that writes a queue while the manager runs says so in a marker file (see WriterMarker).
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shlex
import socket
import stat
from collections import deque
from dataclasses import dataclass, field
from difflib import get_close_matches
from hashlib import blake2b
from pathlib import Path
from typing import (Any, BinaryIO, Callable, Deque, Dict, Iterable, Iterator, List, Mapping,
                    NamedTuple, NoReturn, Optional, Tuple, Union)

from vrm.model.job import Dependency
from vrm.model.ranges import MOST_JOBS, fold, member_range, numbers
from vrm.model.times import seconds_of
from vrm.system.files import read_own, write_atomically
from vrm.system.text import printable

EXAMPLE = "ft.B.x 8 60 0"
LONGEST = 16384
"""Bytes of the longest line that is read."""

UNKNOWN_TIME = 3600.0
"""Seconds that a job without an estimate is taken to run at most."""

LONGEST_TIME = 1_000_000_000
"""Seconds that an estimate or a delay may say: more than 31 years, and a table can show it."""


class LineError(ValueError):
    """A line that names no job as it should; the text says what is there and what is wanted.

    `app` is the program as far as the line names one, `jobs` how many ids the line takes: as many
    as its array has, so that the ids after it are those that its author had counted.
    """

    app = ""
    jobs = 1


# ---------------------------------------------------------------------------- what a line says


@dataclass(frozen=True)
class QueueLine:
    """The job that a line asks for. `seconds` is the estimate (UNKNOWN_TIME is `assumed` where the
    line has none), `delay` the seconds until the next
    line in a recorded queue (None where the column is missing), `fields` the values of the
    `key=value` fields as FIELDS reads them.
    """

    app: str
    procs: int
    seconds: float
    exclusive: bool = False
    delay: Optional[float] = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    assumed: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        """The line of a queue file that says this."""
        words = [self.app, str(self.procs), _plain(self.seconds), str(int(self.exclusive))]
        if self.delay is not None:
            words.append(_plain(self.delay))
        # `#x` would begin a comment; a quoted one does not.
        return " ".join([*map(shlex.quote, words),
                         *(f"{key}={shlex.quote(text)}" for key, value in self.fields.items()
                           for text in FIELDS[key].write(value))])


def _once(value: Any) -> List[str]:
    return [str(value)]


class _Entry(NamedTuple):
    """A column or field: the reader of its text (ValueError when it is wrong), what it wants, and
    the texts that say a value, several where it is `repeated`: then each is read as a pair, and
    the value is a mapping.
    """

    read: Callable[[str], Any]
    wanted: str
    write: Callable[[Any], List[str]] = _once
    repeated: bool = False


def _whole(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < 1:
        raise ValueError(text)
    return int(text)


def _number(text: str) -> float:
    if len(text) > 40 or not re.fullmatch(r"([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", text):
        raise ValueError(text)
    if float(text) > LONGEST_TIME:
        raise ValueError(text)
    return float(text)


def _time(text: str) -> float:
    if not 0 < seconds_of(text) <= LONGEST_TIME:
        raise ValueError(text)
    return seconds_of(text)


def _flag(text: str) -> bool:
    return {"0": False, "1": True}[text]


def _count(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,4}", text):
        raise ValueError(text)
    return int(text)


def _integer(text: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,9}", text):
        raise ValueError(text)
    return int(text)


_LIKE_IDS = re.compile(r"[0-9:,-]+")


def dependencies(text: str) -> tuple[Dependency, ...]:
    """What `after=` names: ids and ranges of them, or names of jobs, each perhaps behind `any:`."""
    found: Dict[Dependency, None] = {}
    total = 0
    for part in text.split(","):
        whatever = part.startswith("any:")
        what = part[4:] if whatever else part
        if _LIKE_IDS.fullmatch(what) or not what:
            ids = member_range(what)
            found[Dependency(ids, whatever)] = None
            total += len(ids)
        else:
            found[Dependency(range(0), whatever, _label(what))] = None
        if total > MOST_JOBS:
            raise LineError(f"after: `{show(text)}` names more than {MOST_JOBS} jobs")
    return tuple(found)


def _variable(text: str) -> Tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ValueError(text)
    if name.startswith("VRM_"):
        raise LineError(f"env: {show(name)} is one of the variables by which vrm knows its jobs; "
                        "take a name that does not begin with VRM_")
    return name, value


def _arguments(text: str) -> Tuple[str, ...]:
    words = tuple(shlex.split(text))
    if ":" in words:
        raise LineError("args: a `:` alone would begin a second program for mpirun; write it as a "
                        "part of another argument")
    return words


def _directory(text: str) -> str:
    if not 0 < len(text) <= 4096:
        raise ValueError(text)
    return text


def _label(text: str) -> str:
    if not text.isprintable() or not 0 < len(text) <= 64:
        raise ValueError(text)
    if _LIKE_IDS.fullmatch(text) or text.startswith("any:"):
        raise LineError(f"name: `{show(text)}` would be taken for ids in after=; put a letter "
                        f"before it: name=run{show(text)}")
    return text


def check_app(app: str) -> str:
    """The name of a program inside Applications.Path, unchanged; LineError when it leads out of
    there or could be taken for something else than a name.
    """
    inside = "it must be the name of a file that lies inside Applications.Path"
    if not app or app in (".", ".."):
        raise LineError(f"app: `{app}` names no file; {inside}; for example `{EXAMPLE}`")
    if "/" in app:
        raise LineError(f"app: `{show(app)}` is a path; {inside}, without a slash")
    if app.startswith("-"):
        raise LineError(f"app: `{show(app)}` begins with `-` and would be read as an option; "
                        f"{inside}")
    if not app.isprintable() or len(app) > 200:
        raise LineError(f"app: `{show(app)}` is longer than 200 characters or holds some that "
                        f"cannot be printed; {inside}")
    return app


COLUMNS: Dict[str, _Entry] = {
    "app": _Entry(check_app, "the name of a program"),
    "procs": _Entry(_whole, "a whole number of ranks, 1 or more"),
    "seconds": _Entry(_time, "the estimated run time above 0, a number of seconds (at most "
                      f"{LONGEST_TIME}) or as 90m, 2h, 1:30:00 or 1-12:00:00"),
    "exclusive": _Entry(_flag, "0 (may share its nodes) or 1 (may not)"),
    "delay": _Entry(_number, "the seconds until the next line, 0 or more and at most "
                    f"{LONGEST_TIME}"),
}

FIELDS: Dict[str, _Entry] = {
    "cores": _Entry(_whole, "the cores of each rank, a whole number, 1 or more"),
    "name": _Entry(_label, "a label of at most 64 printable characters"),
    "after": _Entry(dependencies, "the ids or the names of jobs that must have completed before, as "
                    "3,5-7 or prep, or any:3 however it ends",
                    lambda value: [",".join(map(str, value))]),
    "priority": _Entry(_integer, "a whole number; the jobs of a higher one come first"),
    "retries": _Entry(_count, "how often the job is tried again when it fails, 0 or more"),
    "env": _Entry(_variable, "a variable as NAME=VALUE (env= may be given several times)",
                  lambda value: [f"{name}={text}" for name, text in value.items()], repeated=True),
    "args": _Entry(_arguments, "arguments, quoted as a whole: args='-n 3'",
                   lambda value: [shlex.join(value)]),
    "dir": _Entry(_directory, "the directory to run in"),
    "array": _Entry(numbers, f"the indices of at most {MOST_JOBS} jobs, as 0-9:2,20",
                    lambda value: [fold(value)]),
    "hold": _Entry(_flag, "1 (the job waits for `vrm release`) or 0",
                   lambda value: [str(int(value))]),
}
"""The `key=value` fields: a new one is one line here."""


def parse_line(text: str) -> QueueLine:
    """The job that a line asks for; LineError when it is wrong, blank or only a comment."""
    words = _words(text)
    if not words:
        raise LineError(f"the line names no job; a job is for example `{EXAMPLE}`")
    return _job(words)


def _job(words: List[str]) -> QueueLine:
    try:
        return _understood(words)
    except LineError as error:
        with contextlib.suppress(LineError):
            error.app = check_app(words[0])
        for word in words[1:]:
            with contextlib.suppress(ValueError):
                error.jobs = len(numbers(word[6:])) if word.startswith("array=") else error.jobs
        raise


def _understood(words: List[str]) -> QueueLine:
    entries = list(COLUMNS.items())
    values: Dict[str, Any] = {"delay": None}
    fields: Dict[str, Any] = {}
    for index, word in enumerate(words):
        key, is_field, value = word.partition("=")
        if index > 0 and (is_field or fields):
            if index < 2:
                break
            if not is_field:
                raise LineError(f"`{show(word)}` is after the key=value fields and is none; "
                                f"quote a value with blanks: name='run 1'")
            if key not in FIELDS:
                _refuse_field(key)
            read = _read(key, value, FIELDS[key])
            if FIELDS[key].repeated:
                name, value = read
                if name in fields.setdefault(key, {}):
                    raise LineError(f"{key}: `{show(name)}` is given twice")
                fields[key][name] = value
            elif key in fields:
                raise LineError(f"`{key}` is given twice")
            else:
                fields[key] = read
        elif index == len(entries):
            raise LineError(f"`{show(word)}` is one column too many; there are {_names()}, for "
                            f"example `{EXAMPLE}`, and then key=value fields")
        else:
            column, entry = entries[index]
            values[column] = _read(column, word, entry)
    if "procs" not in values:
        missing = [column for column in list(COLUMNS)[:2] if column not in values]
        raise LineError(f"{', '.join(missing)} missing; the columns are {_names()}, for example "
                        f"`{EXAMPLE}`")
    assumed = "seconds" not in values
    return QueueLine(fields=fields, assumed=assumed, **{"seconds": UNKNOWN_TIME, **values})


def _read(name: str, text: str, entry: _Entry) -> Any:
    try:
        return entry.read(text)
    except LineError:
        raise
    except (ValueError, KeyError):
        found = f"`{show(text)}`" if text else "nothing"
        raise LineError(f"{name}: found {found}, wanted {entry.wanted}; for example `{EXAMPLE}`"
                        ) from None


def _refuse_field(key: str) -> NoReturn:
    close = get_close_matches(key, FIELDS, 1)
    hint = f"did you mean `{close[0]}`?" if close else f"known are {', '.join(FIELDS)}"
    raise LineError(f"unknown field `{show(key)}`; {hint}")


def _names() -> str:
    return "app, procs and, if given, seconds, exclusive and delay"


# Blanks, a comment at the start of a word, a word; a lone quote or backslash is left to shlex.
_PART = re.compile(r"""[ \t]+|(#)|(?:'[^']*'|"(?:\\.|[^"\\])*"|\\.|[^ \t'"\\])+|.""", re.DOTALL)
_BLANKS = re.compile(r"[ \t]+")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]")
_QUOTING = re.compile(r"['\"\\]")


def _words(text: str) -> List[str]:
    """The words of a line without its comment. LineError for open quotes and control characters."""
    text = text.rstrip("\r\n")
    for part in _PART.finditer(text) if "#" in text else ():
        if part.group(1):
            text = text[:part.start()]
            break
    control = _CONTROL.search(text)
    if control:
        raise LineError(f"the line holds the control character 0x{ord(control.group()):02x} at "
                        f"place {control.start() + 1}; a queue file is plain text, for example "
                        f"`{EXAMPLE}`")
    if not _QUOTING.search(text):
        return [word for word in _BLANKS.split(text) if word]  # the same, and much faster
    try:
        return shlex.split(text)
    except ValueError:
        raise LineError("a quote is not closed, or a backslash is at the end of the line"
                        ) from None


def show(text: str, longest: int = 60) -> str:
    """The text as a message may show it: short, and without what a terminal would obey."""
    return printable(text, longest)


def _plain(seconds: float) -> str:
    return str(int(seconds)) if float(seconds).is_integer() else repr(float(seconds))


# -------------------------------------------------------------------------- following a file

_TAIL = 1024  # bytes before the place reached by which what was taken is known again


class Position(NamedTuple):
    """How far a queue file was taken: its inode, the byte and the lines reached, and a digest of
    the last bytes before. Plain values, for a journal; `Position(*values)` restores it.
    """

    inode: int = 0
    offset: int = 0
    number: int = 0
    digest: str = ""


@dataclass(frozen=True)
class Line:
    """A line that was taken: its number (from 1), text, the job or what is wrong with it, and
    the position after it.
    """

    number: int
    text: str
    parsed: Union[QueueLine, LineError]
    position: Position


class QueueFollower:
    """Follows a queue file that grows; never waits, and never fails for what the file does.

    `position` (of a Line, or of an earlier follower) continues there: nothing taken before it
    is taken again, nothing after it is missed. `fault` may tell why a file's new lines are not to
    be obeyed ("" when they are).
    """

    def __init__(self, path: Union[str, Path], position: Optional[Position] = None,
                 fault: Callable[[Path], str] = lambda path: "") -> None:
        self.path = Path(path)
        self.position = position or Position()
        self._fault = fault
        self.ended = False
        """Nothing more will come: the `end` line was read, or all there was after `finish()`."""
        self.trouble = ""
        """Why the file cannot be read at the moment; empty when it can."""
        self._notices: List[str] = []
        self._finishing = False
        self._seen: Any = None  # the state of the file that was read to its end
        self._doubt: Any = None  # the state of a shrunken or vanished file, until seen again
        self._skipped = 0  # how far a line too long has been searched for its end

    @property
    def unsettled(self) -> bool:
        """The file has shrunk or vanished; another look soon will tell whether for good."""
        return self._doubt is not None

    def take_notices(self) -> List[str]:
        """What happened to the file since the last call, each thing once, in whole sentences."""
        notices, self._notices = self._notices, []
        return notices

    def finish(self) -> None:
        """Nothing more will be written: what stands there at the next `read_new` is all, and a
        last line without newline counts.
        """
        self._finishing = True
        self._seen = None

    def read_new(self) -> List[Line]:
        """The job lines and bad lines that came since the last call; not blanks and comments."""
        if self.ended:
            return []
        try:
            # A pipe under this name must not block the manager.
            handle = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            self._missing()
            return []
        except OSError as error:
            self._unreadable(error)
            return []
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                self._in_trouble("is not a regular file", "name one under Applications.Queue")
                return []
            with open(handle, "rb", closefd=False) as file:
                return self._read(file)
        except OSError as error:
            self._unreadable(error)
            return []
        finally:
            os.close(handle)

    def _missing(self) -> None:
        gone = self.position.offset > 0
        if gone and self._doubt != "missing" and not self._finishing:
            self._doubt = "missing"
            return
        if gone:
            self._notices.append(
                f"queue file {self.path} is gone after {self._taken()}; a new one of this name "
                f"is read from its start")
            self._restart()
            self.trouble = "is not there"
        else:
            self._in_trouble("is not there", "it is waited for")
        self.ended = self._finishing

    def _unreadable(self, error: OSError) -> None:
        mend = f"fix it with: chmod u+r {shlex.quote(str(self.path))}" if isinstance(
            error, PermissionError) else "fix its path or its file system"
        self._in_trouble(f"cannot be read ({error.strerror})", f"it is tried again ({mend})")

    def _in_trouble(self, trouble: str, then: str) -> None:
        if self.trouble != trouble:
            self.trouble = trouble
            self._notices.append(f"queue file {self.path} {trouble}; {then}")

    def _taken(self) -> str:
        return f"{self.position.number} line(s) of it were taken"

    def _restart(self) -> None:
        self.position = Position()
        self._seen = self._doubt = None
        self._skipped = 0

    def _read(self, file: BinaryIO) -> List[Line]:
        status = os.fstat(file.fileno())
        seen = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        fault = self._fault(self.path) if seen != self._seen else ""
        if fault:
            self._in_trouble(f"is not obeyed: {fault}", "it is looked at again")
            return []
        if seen != self._seen and not _is(self.path, status):
            return []  # replaced since it was opened: the fault was that of another file
        self.trouble = ""
        if seen != self._seen and not self._still_known(file, status, seen):
            return []
        self._doubt = None
        if seen == self._seen:
            return []
        lines = list(self._take_lines(file, status.st_ino))
        if self.ended and file.read(1):
            self._notices.append(f"queue file {self.path}: what follows its `end` line (line "
                                 f"{self.position.number + 1}) is not read")
        self.ended = self.ended or self._finishing
        self._seen = seen
        return lines

    def _still_known(self, file: BinaryIO, status: os.stat_result, seen: Any) -> bool:
        """Whether the position holds for this file; False to wait for a second look."""
        position = self.position
        replaced = position.offset > 0 and position.inode != status.st_ino
        if status.st_size >= position.offset and _digest(file, position.offset) == position.digest:
            if replaced:
                self._notices.append(f"queue file {self.path} was replaced and begins with the "
                                     f"{position.number} line(s) taken; what follows them is read")
            if status.st_size < self._skipped or status.st_ino != position.inode:
                self._skipped = 0
            self.position = position._replace(inode=status.st_ino)
            return True
        shrunk = status.st_size < position.offset
        if shrunk and seen != self._doubt and not self._finishing:
            self._doubt = seen
            return False
        how = "replaced" if replaced else "truncated" if shrunk else "rewritten"
        self._notices.append(f"queue file {self.path} was {how} after {self._taken()}; it is "
                             f"read from its start, each line as a new job")
        self._restart()
        self.position = Position(inode=status.st_ino)
        return True

    def _take_lines(self, file: BinaryIO, inode: int) -> Iterator[Line]:
        file.seek(self.position.offset)
        while not self.ended:
            raw = file.readline(LONGEST + 1)
            too_long = len(raw) > LONGEST
            complete = raw.endswith(b"\n") or (too_long and self._skip_line(file))
            if not raw or not (complete or self._finishing):
                return
            offset, number = file.tell(), self.position.number + 1
            if raw.startswith(b"\xef\xbb\xbf"):
                raw = raw[3:]  # the byte order mark that some editors put first
            parsed = self._parse(raw, too_long)
            if self.ended:
                return  # the position stays before `end`: a restarted manager shall find it, too
            self.position = Position(inode, offset, number, _digest(file, offset))
            if parsed is not None:
                text = raw.decode("utf-8", "backslashreplace").rstrip("\r\n")
                yield Line(number, text[:200] if too_long else text, parsed, self.position)

    def _skip_line(self, file: BinaryIO) -> bool:
        """Go past the rest of a line too long to be kept; False when its end is not there yet."""
        file.seek(max(self._skipped, file.tell()))
        while True:
            part = file.readline(65536)
            if part.endswith(b"\n"):
                return True
            if not part:
                self._skipped = file.tell()
                return False

    def _parse(self, raw: bytes, too_long: bool) -> Union[QueueLine, LineError, None]:
        try:
            if too_long:
                raise LineError(f"the line is longer than {LONGEST} bytes")
            words = _words(raw.decode("utf-8"))
            if words == ["end"]:
                self.ended = True
                return None
            return _job(words) if words else None
        except LineError as error:
            return error
        except UnicodeDecodeError as error:
            return LineError(f"byte 0x{raw[error.start]:02x} at place {error.start + 1} is not "
                             f"UTF-8; save the file as UTF-8")


def _is(path: Path, status: os.stat_result) -> bool:
    """Whether that file is still the one of this name."""
    try:
        now = path.stat()
    except OSError:
        return False
    return (now.st_dev, now.st_ino) == (status.st_dev, status.st_ino)


def _digest(file: BinaryIO, offset: int) -> str:
    """What stands before the offset, for recognising it again; empty at the start of a file."""
    if offset == 0:
        return ""
    first = max(0, offset - _TAIL)
    return blake2b(os.pread(file.fileno(), offset - first, first), digest_size=8).hexdigest()


# -------------------------------------------------------------------------- recorded queues


def replay(lines: Iterable[Line], speed: float = 1.0) -> Iterator[Tuple[float, Line]]:
    """Each line with the seconds after the first at which it is due. A line's delay comes before
    the next line, `speed` times faster than recorded; lines without one, and bad lines, have 0.
    """
    if not speed > 0:
        raise ValueError(f"the speed of a replay must be above 0, not {speed:g}")
    offset = 0.0
    for line in lines:
        yield offset, line
        offset += _delay(line) / speed


def _delay(line: Line) -> float:
    return 0.0 if isinstance(line.parsed, LineError) else line.parsed.delay or 0.0


class Replay:
    """Gives the lines of a followed queue when they are due; `now` is any clock in seconds.

    The first line (also the first after a restored position) is due at the first call. A line that
    is appended later than its delay asks for is due at once, and those after it count from there.
    A queue without delays is just followed.
    """

    def __init__(self, follower: QueueFollower, speed: float = 1.0) -> None:
        if not speed > 0:
            raise ValueError(f"the speed of a replay must be above 0, not {speed:g}")
        self.follower = follower
        self.speed = speed
        self.position = follower.position
        """The position after the last line that was given, to be stored and continued from."""
        self._waiting: Deque[Tuple[float, Line]] = deque()
        self._next = -math.inf  # when the line after the last one read is due

    @property
    def ended(self) -> bool:
        """Nothing more will come, and all that came was given."""
        return self.follower.ended and not self._waiting

    def due(self, now: float) -> List[Line]:
        """The lines that are due at `now` and were not given yet; reads the file's new lines."""
        for line in self.follower.read_new():
            at = max(self._next, now)
            self._waiting.append((at, line))
            self._next = at + _delay(line) / self.speed
        lines = []
        while self._waiting and self._waiting[0][0] <= now:
            lines.append(self._waiting.popleft()[1])
        if lines:
            self.position = lines[-1].position
        return lines

    def next_due(self) -> Optional[float]:
        """When the next line that was read is due; None when none waits."""
        return self._waiting[0][0] if self._waiting else None


# ---------------------------------------------------------------- is there still a writer?

HEARTBEAT = 20.0
"""Seconds within which a writer touches its marker."""
_LOST = 6 * HEARTBEAT


@dataclass(frozen=True)
class Writer:
    """What a marker tells of a queue's writer: `state` is none, writing or ended."""

    state: str
    reason: str


class WriterMarker:
    """While a program writes a queue: `with WriterMarker(queue) as marker:`, and `marker.beat()`
    with every line, at least every HEARTBEAT seconds.

    The marker is the file `<queue>.writer`, a JSON object: `host`, `pid`, `start` (of the process,
    in clock ticks since the boot, so that a reused pid is not mistaken for it) and `ended`. It
    stays when the writer has ended, or else a manager that starts later could not know. Raises
    RuntimeError when another program writes this queue, OSError when the marker can't be written.
    """

    def __init__(self, queue: Union[str, Path]) -> None:
        self.path = marker_path(queue)
        self.queue = queue

    def __enter__(self) -> "WriterMarker":
        try:
            touched = self.path.stat().st_mtime
        except FileNotFoundError:
            touched = 0.0
        # Without a clock of its own, a marker on another host counts as just touched.
        other = writer_of(self.queue, touched)
        if other.state == "writing":
            raise RuntimeError(f"{self.queue} is being written already: {other.reason}; end that "
                               f"program, or remove {self.path} if it is gone")
        self._write(ended=False)
        return self

    def __exit__(self, *failure: object) -> None:
        self._write(ended=True)

    def beat(self) -> None:
        """Tell managers on other hosts that this writer is alive."""
        os.utime(self.path)

    def _write(self, ended: bool) -> None:
        facts = {"host": socket.gethostname(), "pid": os.getpid(),
                 "start": _process_start(os.getpid()), "ended": ended}
        write_atomically(self.path, json.dumps(facts) + "\n")


def marker_path(queue: Union[str, Path]) -> Path:
    """The marker file of a queue's writer."""
    return Path(f"{queue}.writer")


def writer_of(queue: Union[str, Path], now: float) -> Writer:
    """What is known of the writer of a queue file; `now` in epoch seconds.

    On this host the process is looked for; on another, the marker must have been touched within
    the last six heartbeats. Without a marker, or with one that is not understood, the state is
    none: somebody may append by hand at any time, and the queue ends with an `end` line.
    """
    marker = marker_path(queue)
    try:
        touched = marker.lstat().st_mtime
        facts = json.loads(read_own(marker, 4096))
        host, pid, start, ended = (facts[key] for key in ("host", "pid", "start", "ended"))
        pid = int(pid)
    except FileNotFoundError:
        return Writer("none", "no program has announced that it writes this queue")
    except OSError as error:
        return Writer("none", f"{marker} is not looked at: it {error.strerror}")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        return Writer("none", f"{marker} is not understood ({error}); remove it")
    who = f"process {pid} on {host}"
    if ended:
        return Writer("ended", f"{who} has written all its lines")
    if host == socket.gethostname():
        if _process_start(pid) == start:
            return Writer("writing", f"{who} is running")
        return Writer("ended", f"{who} is gone")
    if now - touched <= _LOST:
        return Writer("writing", f"{who} gave a sign {max(0.0, now - touched):.0f} s ago")
    return Writer("ended", f"{who} has given no sign for {now - touched:.0f} s")


def _process_start(pid: int) -> Optional[int]:
    """When the process started, in clock ticks since the boot; None when it does not run."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name in parentheses may hold anything; the state (Z: a zombie) follows it.
    words = text.rpartition(")")[2].split()
    return None if words[0] in "ZX" else int(words[19])
