"""Following a queue file while it grows.

- A line is taken when its newline has arrived, and never twice. Lines are appended; what has
  been taken is not looked at again. To mend a refused line, append it anew.
- If the file is replaced or rewritten (as an editor saves) and its beginning is still what was
  taken, reading goes on behind that. If its beginning is another, the new content is read from
  its start: all its lines are new ones.
- A file that has shrunk or vanished may be in the middle of being saved. That is believed when two
  looks in a row find the same.
"""

from __future__ import annotations

import os
import shlex
import stat
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO, Callable, Iterator, List, NamedTuple, Optional, Union

from vrm.workload.grammar import LONGEST, LineError, QueueLine, job_of_words, words_of

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
    be obeyed ("" when they are). Of a file that is not `needed` nothing is said while it is not there.
    """

    def __init__(self, path: Union[str, Path], position: Optional[Position] = None,
                 fault: Callable[[Path], str] = lambda path: "", needed: bool = True) -> None:
        self.path = Path(path)
        self.position = position or Position()
        self._needed = needed
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
        elif self._needed:
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
            words = words_of(raw.decode("utf-8"))
            if words == ["end"]:
                self.ended = True
                return None
            return job_of_words(words) if words else None
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
