"""Read a queue file while it grows.

- A line is accepted when its newline has arrived, and never twice. Lines may be appended at any time.

- If the file is replaced or rewritten (as an editor saves) and still begins with the accepted lines, reading
  continues after them. If its beginning differs, nothing is read: the file is `edited`. The caller then compares its
  lines (`read_all`) with the accepted ones (`vrm.workload.queue_diff`) and sets where to continue (`go_to`).

- A file that has changed anywhere except at its end may be in the middle of being saved. The change counts only when
  the file has stayed the same for SETTLED seconds.
"""

from __future__ import annotations

import io
import os
import shlex
import stat
import time
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from collections.abc import Callable, Iterator

from vrm.workload.each_field import expanded
from vrm.workload.grammar import LONGEST, LineError, QueueLine, job_of_words, words_of

SETTLED = 1.0
"""Seconds that a file must stay the same before a change of accepted lines counts."""

_TAIL = 1024  # bytes before the position that identify the accepted part
_SMALL = 1 << 20  # up to this size in bytes, a file is compared completely at each change
_SPARING = 50.0  # seconds between two complete comparisons of a larger file, per second that one takes
_PART = 1 << 20

MARK = b"\xef\xbb\xbf"
"""The byte order mark that some editors write first."""


class Position(NamedTuple):
    """How far a queue file was accepted: its inode, the byte offset and the number of lines, and a digest of the last
    bytes before. Plain values, for a journal; `Position(*values)` restores it.
    """

    inode: int = 0
    offset: int = 0
    number: int = 0
    digest: str = ""


@dataclass(frozen=True)
class Line:
    """An accepted line: its number (from 1), text, the parsed job or its error, and the position after it. `digest`
    is a digest of its words: equal lines have the same.
    """

    number: int
    text: str
    parsed: QueueLine | LineError
    position: Position
    digest: int = field(default=0, compare=False)


class RawLine(NamedTuple):
    """A line as it is in the file: its bytes, its number, the offset after it, whether it is longer than the kept
    bytes, whether it is the `end` line, and its digest; 0 if it contains no job, such as a comment."""

    text: bytes
    number: int
    offset: int
    too_long: bool
    end: bool
    digest: int

    @property
    def words(self) -> bytes:
        """Its text without a byte order mark."""
        return self.text.removeprefix(MARK)


class QueueFollower:
    """Reads a growing queue file; never waits, and never fails because of the file's state.

    `position` (of a Line, or of an earlier follower): continue there; nothing before it is accepted again, and
    nothing after it is missed. `fault` returns why the file's lines must not be used ("" if they may). A missing file
    is not reported if it is not `needed`. `taken` (not None): the caller keeps the accepted lines and can compare
    them; True: an earlier manager has accepted some, so the file counts as edited at the first read. `clock` returns
    seconds.
    """

    def __init__(self, path: str | Path, position: Position | None = None,
                 fault: Callable[[Path], str] = lambda path: "", needed: bool = True, taken: bool | None = None,
                 clock: Callable[[], float] = time.monotonic) -> None:
        self.path = Path(path)
        self.position = position or Position()
        self.needed = needed
        self._fault = fault
        self._compares = taken is not None
        self._clock = clock
        self.ended = False
        """Nothing more will come: the `end` line was read, or everything after `finish()`."""
        self.edited = False
        """The accepted lines have changed: compare them with `read_all`, then call `go_to` or `leave`."""
        self.trouble = ""
        """Why the file cannot be read now; empty if it can."""
        self._notices: list[str] = []
        self._finishing = self._rest = False
        self._seen: Any = None  # state of the file when it was last read to its end
        self._doubt: tuple[Any, float] = (None, 0.0)  # state of an edited file, and since when
        self._skipped = 0  # offset up to which an overlong line has been searched for its end
        self._whole = None if taken else blake2b()  # digest of the whole accepted part
        self._next_whole = 0.0  # when a large file is compared completely again
        self._strict = False  # the file was edited: compare it completely
        self._said_behind = False
        self._end = b""  # last bytes of the accepted part
        self._compared = 0, b""  # inode and content of the file that `read_all` has read

    def take_notices(self) -> list[str]:
        """Return the messages about the file since the last call, each event once, as complete sentences."""
        notices, self._notices = self._notices, []
        return notices

    def finish(self) -> None:
        """Declare that nothing more will be written: the next `read_new` reads all that is left, and accepts a last
        line without newline.
        """
        if not self._finishing:
            self._finishing, self._seen = True, None

    @property
    def settled(self) -> bool:
        """Whether the edited file has stayed the same for SETTLED seconds."""
        return self._clock() >= self._doubt[1] + SETTLED

    def holds(self) -> bool:
        """Return whether the end of the accepted part is still in its place. Raises OSError if the file cannot be
        read."""
        with open(self.path, "rb") as file:
            return _digest(_before(file, self.position.offset)) == self.position.digest

    @property
    def in_doubt(self) -> bool:
        """Whether the file was edited and must stay the same for SETTLED seconds before it is read."""
        return self._doubt[0] is not None

    def read_rest(self) -> list[Line]:
        """Return the new lines like `read_new`, including a last line without newline."""
        self._rest, self._seen = True, None
        try:
            return self.read_new()
        finally:
            self._rest = False

    def read_new(self) -> list[Line]:
        """Return the job lines and wrong lines that were added since the last call, without blank lines and
        comments."""
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
        taken = self.position.offset > 0
        if taken and self.trouble != "is not there" and self._settled("missing"):
            self._in_trouble("is not there", f"{self._taken()}, and their jobs stay; put it back, or give jobs by "
                             "`vrm submit`")
            self._doubt = None, 0.0
        elif not taken and self.needed:
            self._in_trouble("is not there", "it is waited for")
        self._seen = None
        self.ended = self._finishing

    def _settled(self, seen: Any) -> bool:
        """Return whether the file has been in this state for SETTLED seconds."""
        if self._doubt[0] != seen:
            self._doubt = seen, self._clock()
        return self.settled

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

    def _read(self, file: BinaryIO) -> list[Line]:
        status = os.fstat(file.fileno())
        seen = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        if seen == self._seen and not self._due_whole():
            self.trouble = ""
            return []
        fault = self._fault(self.path)
        if fault:
            self._in_trouble(f"is ignored: {fault}", "it is looked at again")
            return []
        if not _is(self.path, status):
            return []  # replaced since it was opened: the fault was checked on another file
        self.trouble = ""
        if not self._still_known(file, status):
            self.edited = self._settled(seen) or (self._whole is None and self._seen is None)
            self._seen = seen
            self._strict, self._next_whole = True, 0.0
            return []
        self._doubt, self.edited, self._strict = (None, 0.0), False, False
        self.ended = False
        lines = list(self._take_lines(file, status.st_ino))
        if self.ended and not self._said_behind and file.read(1):
            self._said_behind = True
            self._notices.append(f"queue file {self.path}: what follows its `end` line (line "
                                 f"{self.position.number + 1}) is not read; remove that line to run it")
        self.ended = self.ended or self._finishing
        self._seen = seen
        return lines

    def _due_whole(self) -> bool:
        """Return whether the file must be compared with the accepted part, although it has not changed since the last
        read."""
        return self.in_doubt or 0 < self._next_whole <= self._clock()

    def _still_known(self, file: BinaryIO, status: os.stat_result) -> bool:
        """Return whether the accepted part is unchanged, so that the position is valid for this file."""
        position = self.position
        replaced = position.inode != status.st_ino
        if self._whole is None:
            return False
        self._end = _before(file, position.offset)
        if position.offset > 0:
            if (status.st_size < position.offset or _digest(self._end) != position.digest
                    or not _line_ends(file, position.offset)):
                return False
            if not self._same_whole(file, replaced):
                return False
            if replaced:
                self._notices.append(f"queue file {self.path} was replaced and begins with the "
                                     f"{position.number} line(s) taken; what follows them is read")
        if status.st_size < self._skipped or replaced:
            self._skipped = 0
        self.position = position._replace(inode=status.st_ino)
        return True

    def _same_whole(self, file: BinaryIO, replaced: bool) -> bool:
        """Return whether the whole accepted part is unchanged. For a large file that has grown this is checked
        rarely: usually the check of its end is enough."""
        if not self._compares:
            return True
        now = self._clock()
        large = self.position.offset > _SMALL and not (replaced or self._strict)
        if large and not 0 < self._next_whole <= now:
            self._next_whole = self._next_whole or now + SETTLED
            return True
        found = _add(blake2b(), file, 0, self.position.offset)
        took = self._clock() - now
        self._next_whole = now + _SPARING * took if large and took > SETTLED / _SPARING else 0.0
        return self._whole is not None and found.digest() == self._whole.digest()

    def read_all(self) -> list[RawLine]:
        """Return all lines of the file, including a last one without newline. Raises OSError if it cannot be read.
        The content is kept for `go_to`, because the file may change meanwhile."""
        self._rest, self._skipped = True, 0
        try:
            with open(self.path, "rb") as file:
                self._compared = os.fstat(file.fileno()).st_ino, file.read()
            return list(self._raw_lines(io.BytesIO(self._compared[1]), 0, 0))
        finally:
            self._rest = False

    def go_to(self, raw: RawLine | None) -> None:
        """Mark everything up to this line of `read_all` as accepted; None: nothing."""
        inode, data = self._compared
        taken = data[:raw.offset if raw is not None else 0]
        self.position = Position(inode, len(taken), raw.number if raw is not None else 0, _digest(taken))
        self._whole, self._compared = blake2b(taken), (0, b"")
        self._seen, self._doubt, self.edited, self._strict, self._skipped = None, (None, 0.0), False, False, 0

    def leave(self, settled: bool = True) -> None:
        """Ignore the edited file until it changes again; not `settled`: until it has stayed the same for SETTLED
        seconds."""
        self.edited = False
        if settled:
            self._doubt = None, 0.0

    def line(self, raw: RawLine) -> Line:
        """Return a line of `read_all`, parsed."""
        return self._line(raw, Position(self.position.inode, raw.offset, raw.number, ""))

    def _line(self, raw: RawLine, position: Position) -> Line:
        text = raw.words.decode("utf-8", "backslashreplace").rstrip("\r\n")
        return Line(raw.number, text[:200] if raw.too_long else text, self._parse(raw), position, raw.digest)

    def _take_lines(self, file: BinaryIO, inode: int) -> Iterator[Line]:
        for raw in self._raw_lines(file, self.position.offset, self.position.number):
            if raw.end:
                self.ended = True
                return  # the position stays before `end`, so that a restarted manager finds it, too
            # Use the bytes that were read: the file may have been replaced.
            taken = raw.text if not raw.too_long else os.pread(file.fileno(), raw.offset - self.position.offset,
                                                               self.position.offset)
            self._end = (self._end + taken)[-_TAIL:]
            if self._compares and self._whole is not None:
                self._whole.update(taken)
            self.position = Position(inode, raw.offset, raw.number, _digest(self._end))
            if raw.digest:
                yield self._line(raw, self.position)

    def _raw_lines(self, file: BinaryIO, offset: int, number: int) -> Iterator[RawLine]:
        """Yield the lines from an offset on, including blanks and comments, whose digest is 0."""
        file.seek(offset)
        while True:
            raw = file.readline(LONGEST + 1)
            too_long = len(raw) > LONGEST
            complete = raw.endswith(b"\n") or (too_long and self._skip_line(file))
            if not raw or not (complete or self._finishing or self._rest):
                return
            number += 1
            words = _words(raw.removeprefix(MARK), too_long)
            end = words == ["end"]
            yield RawLine(raw, number, file.tell(), too_long, end, 0 if end else _digest_of(words,
                                                                                            raw.removeprefix(MARK)))

    def _skip_line(self, file: BinaryIO) -> bool:
        """Skip the rest of an overlong line; return False if its end has not been written yet."""
        file.seek(max(self._skipped, file.tell()))
        while True:
            part = file.readline(65536)
            if part.endswith(b"\n"):
                return True
            if not part:
                self._skipped = file.tell()
                return False

    def _parse(self, raw: RawLine) -> QueueLine | LineError:
        words = _words(raw.words, raw.too_long)
        try:
            return words if isinstance(words, LineError) else expanded(
                job_of_words(words), self.path.parent, self._fault)
        except LineError as error:
            return error


def _words(raw: bytes, too_long: bool) -> list[str] | LineError:
    try:
        if too_long:
            raise LineError(f"the line is longer than {LONGEST} bytes")
        return words_of(raw.decode("utf-8"))
    except LineError as error:
        return error
    except UnicodeDecodeError as error:
        return LineError(f"byte 0x{raw[error.start]:02x} at place {error.start + 1} is not "
                         f"UTF-8; save the file as UTF-8")


def _digest_of(words: list[str] | LineError, raw: bytes) -> int:
    """Return a digest of the words of a line, or of the whole text of a wrong one; 0 for a line without content."""
    if not words:
        return 0
    text = raw.strip() if isinstance(words, LineError) else "\0".join(words).encode()
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "big") or 1


def _add(found: Any, file: BinaryIO, begin: int, end: int) -> Any:
    """Add the bytes between two offsets of a file to a digest, and return it."""
    while begin < end:
        part = os.pread(file.fileno(), min(_PART, end - begin), begin)
        if not part:
            break
        found.update(part)
        begin += len(part)
    return found


def _line_ends(file: BinaryIO, offset: int) -> bool:
    """Return whether a line ends at this offset: a last line that was accepted without newline may have been
    continued."""
    around = os.pread(file.fileno(), 2, offset - 1)
    return around[:1] == b"\n" or around[1:] in (b"", b"\n", b"\r")


def _is(path: Path, status: os.stat_result) -> bool:
    """Return whether that open file is still the one at this path."""
    try:
        now = path.stat()
    except OSError:
        return False
    return (now.st_dev, now.st_ino) == (status.st_dev, status.st_ino)


def _digest(taken: bytes) -> str:
    """Return a digest of the end of the accepted part, to recognise it later; empty if nothing was accepted."""
    return blake2b(taken[-_TAIL:], digest_size=8).hexdigest() if taken else ""


def _before(file: BinaryIO, offset: int) -> bytes:
    """Return the last bytes of a file before this offset."""
    first = max(0, offset - _TAIL)
    return os.pread(file.fileno(), offset - first, first)
