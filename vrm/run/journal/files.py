"""The journal: an append-only file of what the manager does, written before the manager does it.

Each line is one JSON object and ends with a checksum that is chained over all earlier lines. `Journal` writes, `read`
reads, and `vrm.run.journal.history.replay` turns the records into the past of a run.

If a machine crashes while the disk writes several records, any subset of them may be on disk, with zeros for the
others. No process has acted on these records. Therefore the first record of each sync marks, by the name of its
checksum, that everything before it is on disk. Zeros before such a record are damage; zeros after the last one are
left by a crash, and are cut off.
"""

from __future__ import annotations

import contextlib
import errno
import io
import itertools
import json
import os
import re
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Union
from re import Pattern
from collections.abc import Iterable, Iterator, Sequence
from zlib import crc32

from vrm.run.journal import record_checks
from vrm.run.journal.codec import jobs_of
from vrm.run.journal.record_checks import JournalError, Record
from vrm.run.journal.combined_records import unfolded
from vrm.system.files import naming, open_own, sync_directory

FORMAT = record_checks.NEWEST
"""Journal format that `run` records state. Format 1 (vrm 0.1.0, which states none) has no checksums; it is read, and
records that are added to it are chained from there on. Up to format 3 no record says what is on disk: in such
journals all zeros before the last line are damage."""

RESERVE = 1 << 16
"""Number of zero bytes that are added to the file ahead of its records."""

_SUM = b',"sum":"%08x"}\n'
_SAFE = b',"SUM":"%08x"}\n'
"""The checksum of a record before which everything is on disk."""

_PLAIN, _SURE = _SUM[:8], _SAFE[:8]
_SUM_SIZE = len(_SUM % 0)
_IS_SAFE = re.compile(rb'(?:\0{"event":[^\0\n]*|\n[^\n]*),"SUM":"[0-9a-f]{8}"}\n')
"""Matches such a record after zeros."""


ZEROS = "zeros within the records"
"""Error text for zeros before the last record: the disk has lost a part."""

BATCH = 256
"""Number of records that are decoded together: this is faster, and they share the strings of their keys."""

PathLike = Union[str, "os.PathLike[str]"]

_encode = json.JSONEncoder(separators=(",", ":")).encode
_decode = json.JSONDecoder().raw_decode


class JournalPosition(NamedTuple):
    """A position between two lines of a journal: the number of lines before it, its offset in bytes, the checksum
    there, whether the line before it has a checksum, and the offset up to which everything is certainly on disk (-1:
    no record says so)."""

    number: int = 0
    offset: int = 0
    total: int = 0
    chained: bool = False
    safe: int = -1


START = JournalPosition()


class Journal:
    """Appends records; after `sync` they survive a crash of the machine.

    The file is extended with zeros ahead of the records, and cut to the records when it is closed: writing inside a
    file that does not grow needs no update of the file system's metadata, which makes a sync several times faster.
    Incomplete data that an earlier crash has left is cut off, so that it cannot corrupt the next record. Raises
    JournalError for any other damage. `since`: the part before it has been read already and is not read again. `cut`
    is the number of complete records that were cut.
    """

    def __init__(self, path: Path, since: JournalPosition = START) -> None:
        self._path = path
        self._fd = open_own(path, os.O_RDWR | os.O_CREAT)
        self._pending: list[bytes] = []
        self._begun = 0  # bytes of these that are written, but perhaps not on disk
        self._renamed = False  # the file has this name, but perhaps not on disk
        self.appended = 0  # number of records added by this object
        self.waiting = 0  # number of pending bytes
        try:
            with opened(path, since.offset) as file:
                mark = since
                for _, found in _lines(path, _whole_lines(path, file, since.number), since):
                    mark = found
            self._before, self._end, self._sum, _, self._safe = mark
            self.cut = self._cut(self._safe)
        except (JournalError, OSError):
            os.close(self._fd)
            raise
        self._reserved = self._end
        if not self._end:  # it is new: sync its name, and the name of its directory
            for directory in (path.parent, path.parent.parent):
                sync_directory(directory)

    def _cut(self, safe: int) -> int:
        """Cut off what follows the records, and write the records after `safe` to disk again: they may be in memory
        only, even if the system considers them written (after a failed sync). Return how many records were cut."""
        size = os.fstat(self._fd).st_size
        lost = os.pread(self._fd, size - self._end, self._end).count(b"\n")
        os.ftruncate(self._fd, self._end)
        if self._end:
            begin = self._end if safe < 0 else safe
            data, self._end = os.pread(self._fd, self._end - begin, begin), begin
            self._write(data)
            os.fdatasync(self._fd)
            self._end += len(data)
        return lost

    def append(self, event: str, **values: Any) -> None:
        """Add a record; it is on disk after the next `sync`."""
        body = _body({"event": event, **values})
        self._sum = crc32(body, self._sum)
        self.appended += 1
        if not self._pending:
            self._safe = self._end
        self._pending.append(body + (_SUM if self._pending else _SAFE) % self._sum)
        self.waiting += len(self._pending[-1])

    @property
    def mark(self) -> JournalPosition:
        """The position after the records that are on disk."""
        return JournalPosition(self.number, self._end, self._sum, bool(self.appended), self._safe)

    @property
    def number(self) -> int:
        """Number of records."""
        return self._before + self.appended

    @property
    def pending(self) -> bool:
        """Whether there are records that are not on disk yet."""
        return bool(self._pending)

    def begin(self) -> None:
        """Start writing the pending records to disk, so that the next `sync` waits less."""
        if self._pending:
            data = b"".join(self._pending)
            with contextlib.suppress(OSError):  # `sync` tries again
                self._put(data, wait=False)
                os.posix_fadvise(self._fd, self._end, len(data), os.POSIX_FADV_DONTNEED)
                self._begun = len(data)

    def sync(self) -> None:
        """Write the pending records and wait until they are on disk. Raises OSError if that fails."""
        if not self._pending:
            return
        data = b"".join(self._pending)
        with naming(self._path):
            self._put(data)
        self._end += len(data)
        self._begun = self.waiting = 0
        self._pending.clear()

    def show(self) -> None:
        """Make pending records visible to readers of the file, if the disk takes them; does not wait until they are
        on disk. The next `sync` writes them again."""
        if self._pending:
            with contextlib.suppress(OSError):
                self._put(b"".join(self._pending), wait=False)

    def _put(self, data: bytes, wait: bool = True) -> None:
        """Write data after the records, or nothing at all if that fails."""
        if self._renamed:
            sync_directory(self._path.parent)
            self._renamed = False
        try:
            if self._end + len(data) > self._reserved:
                self._write(bytes(len(data) + RESERVE))
                self._reserved = self._end + len(data) + RESERVE
                self._begun = 0
            self._write(data, self._begun)
            if wait:
                os.fdatasync(self._fd)
        except OSError:
            self._begun = 0
            os.ftruncate(self._fd, self._end)
            self._reserved = self._end
            raise

    def continue_in(self, new: Path, file: int, end: JournalPosition, since: JournalPosition) -> None:
        """Continue in the file `new`: its records before `end` mean the same as those of this one before `since`. It
        gets the records after `since`, and then the name of this one. `file` is open for writing, and belongs to this
        object afterwards. Raises OSError, and continues in the old file, if the disk does not take it."""
        self.sync()
        added, total = list[bytes](), end.total
        with opened(self._path) as old:
            for line in lines(old, since, self.mark):
                total = crc32(line[:-_SUM_SIZE], total)
                added.append(line[:-_SUM_SIZE] + (_SUM if added else _SAFE) % total)
        data, written = b"".join(added), 0
        os.ftruncate(file, end.offset)
        while written < len(data):
            written += os.pwrite(file, data[written:], end.offset + written)
        os.fdatasync(file)
        try:
            os.replace(new, self._path)
        except OSError:
            if not os.path.samestat(os.fstat(file), os.stat(self._path)):  # a server may do it and report an error
                raise
        os.close(self._fd)
        self._fd, self._end, self._sum, self._safe = file, end.offset + len(data), total, end.offset
        self._reserved, self._before = self._end, end.number + len(added) - self.appended
        self._renamed = True
        with contextlib.suppress(OSError):  # the next write tries it again
            self._put(b"")

    def _write(self, data: bytes, written: int = 0) -> None:
        """Write all data after the records, except the first `written` bytes, which are written already."""
        while written < len(data):
            written += os.pwrite(self._fd, data[written:], self._end + written)

    def close(self) -> None:
        """Sync and close."""
        self.sync()
        os.ftruncate(self._fd, self._end)
        os.close(self._fd)


def _body(record: Record) -> bytes:
    """Return a line without its checksum."""
    return _encode(record)[:-1].encode()


def chained(record: Record, total: int) -> tuple[bytes, int]:
    """Return the line of a record after the checksum `total`, and its checksum. All before it must be on disk before
    anybody reads it."""
    body = _body(record)
    total = crc32(body, total)
    return body + _SAFE % total, total


def opened(path: Path, offset: int = 0) -> BinaryIO:
    """Open a journal for reading from this offset. Raises OSError like `open_own`."""
    file = open(open_own(path, os.O_RDONLY), "rb", buffering=1 << 20)
    file.seek(offset)
    return file


def _whole_lines(path: Path, file: BinaryIO, before: int) -> Iterator[bytes]:
    """Yield the complete lines; `before` is the number of lines before them. If there are zeros before the last
    newline, yield the lines up to the first one with zeros, which is the last.

    Skips what follows the last newline: a crash leaves an incomplete line there, and the reserved zeros. Raises
    JournalError for zeros before a record that marks everything before it as on disk.
    """
    at = file.tell()
    for line in file:
        if line[-1:] != b"\n" or b"\0" in line:
            break
        yield line
        before += 1
        at += len(line)
    else:
        return
    file.seek(0, os.SEEK_END)  # the buffer may be outdated: a manager may be writing now
    file.seek(at)
    rest = file.read()
    end, zero = rest.rfind(b"\n") + 1, rest.find(b"\0")
    if zero >= 0 and (zero < end or rest[zero:] != bytes(len(rest) - zero)):
        if not before and end <= rest.find(b"\n") + 1:
            return  # the first record, which has a sync of its own
        end = rest.find(b"\n", zero) + 1 or len(rest)
        if _IS_SAFE.search(rest, zero):
            raise JournalError(path, before + rest.count(b"\n", 0, zero) + 1, ZEROS)
    yield from io.BytesIO(rest[:end])


def _lines(path: Path, lines: Iterable[bytes], since: JournalPosition) -> Iterator[tuple[bytes, JournalPosition]]:
    """Yield the lines that follow `since`, each with the position after it. Raises JournalError for an invalid line."""
    first, at, total, chained, safe = since
    for number, line in enumerate(lines, first + 1):
        form, wrong = line[-_SUM_SIZE:-_SUM_SIZE + 8], ""
        if form in (_PLAIN, _SURE):
            total, chained = crc32(line[:-_SUM_SIZE], total), True
            if not line.endswith(_SUM[8:] % total):
                wrong = "its checksum does not match: it was changed, or a line before it is missing or out of place"
        elif chained or b"\0" in line:
            wrong = "it has no checksum"
        else:
            total = crc32(line, total)
        if wrong and b"\0" in line:
            if safe >= 0:
                return  # left by a crash
            wrong = ZEROS
        if wrong:
            raise JournalError(path, number, wrong)
        if form == _SURE:
            safe = at
        at += len(line)
        yield line, JournalPosition(number, at, total, chained, safe)


def _sound(lines: Sequence[bytes], since: JournalPosition) -> JournalPosition | None:
    """Return the position after lines that follow `since`; None if one of them has no right checksum."""
    _, at, total, _, safe = since
    for line in lines:
        total = crc32(line[:-_SUM_SIZE], total)
        if line[-_SUM_SIZE:] != _SUM % total:
            if line[-_SUM_SIZE:] != _SAFE % total:
                return None
            safe = at
        at += len(line)
    return JournalPosition(since.number + len(lines), at, total, True, safe)


def _records(path: Path, file: BinaryIO, since: JournalPosition = START, only: Pattern[bytes] | None = None
             ) -> Iterator[tuple[list[Record], JournalPosition]]:
    """Yield lists of the records after `since`, each list with the position after it; `only`: just those whose line
    matches. Lines that are not all right are read one by one. Raises JournalError for an invalid one, after those
    before it."""
    for batch in batches(_whole_lines(path, file, since.number)):
        mark = _sound(batch, since)
        found = together(batch if only is None else list(filter(only.search, batch))) if mark is not None else None
        if mark is not None and found is not None:
            since = mark
            yield found, mark
            continue
        last = since.number + len(batch)
        for line, mark in _lines(path, batch, since):
            if only is None or only.search(line):
                yield [_checked(path, line, mark)], mark
            since = mark
        if since.number < last:
            return  # the rest was left by a crash


def batches(lines: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Yield lists of lines, none empty; the lines before an invalid one are yielded before the error."""
    batch: list[bytes] = []
    wrong = None
    try:
        for line in lines:
            batch.append(line)
            if len(batch) == BATCH:
                yield batch
                batch = []
    except JournalError as error:
        wrong = error
    if batch:
        yield batch
    if wrong is not None:
        raise wrong


def _checked(path: Path, line: bytes, mark: JournalPosition) -> Record:
    """Return the record of the line before `mark`. Raises JournalError for an invalid one."""
    try:
        record: Record = _decoded(line)
    except (ValueError, RecursionError) as error:
        raise JournalError(path, mark.number, "not a journal record") from error
    if not isinstance(record, dict) or not isinstance(record.get("event"), str):
        raise JournalError(path, mark.number, "not a journal record")
    if not mark.chained and 1 < record.get("format", 1) <= FORMAT:
        raise JournalError(path, mark.number, "it has no checksum")
    return record


def together(lines: Sequence[bytes]) -> list[Record] | None:
    """Return the records of lines with right checksums; None if they must be decoded one by one."""
    try:
        found: list[Any] = _decode(f"[{b','.join(lines).decode()}]")[0]
    except (ValueError, RecursionError):
        return None
    sound = len(found) == len(lines) and all(type(each) is dict and type(each.get("event")) is str for each in found)
    return found if sound else None


def _decoded(line: bytes) -> Any:
    """Return the value of a JSON line. Raises ValueError if it is invalid."""
    text = line.decode()
    found, end = _decode(text)
    return found if end == len(text) - 1 else json.loads(text)


class JournalReader:
    """Iterates over the records of a journal, without an incomplete last line; empty if there is no file. `only`:
    just those whose line matches. `mark` is the position after the last record.

    Raises JournalError with the line number for a line that is not a record.
    """

    def __init__(self, path: Path, only: Pattern[bytes] | None = None) -> None:
        self.path = path
        self.mark = START
        self._only = only

    def __iter__(self) -> Iterator[Record]:
        with contextlib.suppress(FileNotFoundError), opened(self.path) as file:
            for found, mark in _records(self.path, file, only=self._only):
                yield from found
                self.mark = mark


def lines(file: BinaryIO, since: JournalPosition, until: JournalPosition) -> Iterator[bytes]:
    """Yield the lines of an open journal between two positions. Raises OSError if they are not as written."""
    file.seek(since.offset)
    for batch in batches(itertools.islice(file, until.number - since.number)):
        mark = _sound(batch, since)
        if mark is None:
            break
        yield from batch
        since = mark
    if since[:3] != until[:3]:
        raise OSError(errno.EIO, "the journal is damaged")


def records(path: Path, only: Pattern[bytes] | None = None) -> Iterator[Record]:
    """Iterate over the records of a journal: see `JournalReader`."""
    return iter(JournalReader(path, only))


def read(path: Path) -> list[Record]:
    """Return all records as a list; errors are those of `records`."""
    return list(records(path))


JOBS_LINE = re.compile(b'"event": ?"jobs?"')
"""Matches each line that records new jobs."""


def jobs_of_command(path: Path, command: str) -> list[int]:
    """Return the jobs that a command has made, whether or not it was answered. They are on disk on return: the
    manager may have ended between writing the record and the sync, and the caller reports these jobs to its user."""
    found = [job.id for record in unfolded(records(path, JOBS_LINE)) if record["event"] == "job"
             and record.get("command") == command for job in jobs_of(record)[0]]
    if found:
        with opened(path) as file:
            os.fsync(file.fileno())
    return found


def parsed(data: bytes, path: Path) -> list[Record]:
    """Return the records in these bytes of a journal at `path`. Raises JournalError like `read`."""
    return [record for found, _ in read_after(path, data, START) for record in found]


def is_at(mark: JournalPosition, file: BinaryIO) -> bool:
    """Return whether an open journal has this position."""
    if not mark.chained:
        return True
    file.seek(mark.offset - _SUM_SIZE)
    return file.read(_SUM_SIZE) in (_SUM % mark.total, _SAFE % mark.total)


def read_after(path: Path, data: bytes, since: JournalPosition) -> Iterator[tuple[list[Record], JournalPosition]]:
    """Yield lists of the records in the bytes after the position `since` of the journal at `path`, each list with the
    position after it. Raises JournalError, after the records before the damage."""
    return _records(path, io.BytesIO(data), since)
