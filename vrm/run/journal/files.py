"""The journal: an append-only record of what the manager does, written before it does it.

One JSON object a line, closed by a checksum that is chained over all lines before it. `Journal`
writes, `read` reads; `vrm.run.journal.past.replay` turns the records into the past of a run.

A machine that dies while the disk takes several records may leave some of them, in any order, and zeros for the
others. Nobody has acted on these records. So the first record of each sync says, by the name of its checksum, that all
before it is on disk: zeros before such a record are damage, zeros behind the last one are what a crash left, and cut.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import re
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Union
from re import Pattern
from collections.abc import Iterator, Sequence
from zlib import crc32

from vrm.model import Job
from vrm.model.job import Details
from vrm.run.journal import check
from vrm.run.journal.codec import jobs_of, more_fault
from vrm.run.journal.check import EndRecord, JournalError, Record
from vrm.run.journal.folded import LIVES, jobs_in, unfolded
from vrm.system.files import naming, open_own, sync_names

FORMAT = check.NEWEST
"""What `run` records say of the journal's form. Format 1 (vrm 0.1.0, which says none) has no
checksums; it is read, and the records that are added to it are chained to it from there on. Up to format 3 no record
says what is on disk: there all zeros before the last line are damage."""

RESERVE = 1 << 16
"""Bytes by which the file is extended ahead of its records."""

_SUM = b',"sum":"%08x"}\n'
_SAFE = b',"SUM":"%08x"}\n'
"""The checksum of a record before which all is on disk."""

_PLAIN, _SURE = _SUM[:8], _SAFE[:8]
_SUM_SIZE = len(_SUM % 0)
_IS_SAFE = re.compile(rb'(?:\0{"event":[^\0\n]*|\n[^\n]*),"SUM":"[0-9a-f]{8}"}\n')
"""A record that says so, behind zeros."""


ZEROS = "zeros within the records"
"""What is wrong where the disk has lost a part."""

BATCH = 256
"""Records that are decoded together, which is quicker, and they share the texts of their keys."""

PathLike = Union[str, "os.PathLike[str]"]

_encode = json.JSONEncoder(separators=(",", ":")).encode
_decode = json.JSONDecoder().raw_decode


class Mark(NamedTuple):
    """A place between two lines of a journal: how many are before it, its offset in bytes, the
    checksum there, whether the line before it has one of its own, and up to which offset all is on disk for sure (-1:
    no record says so)."""

    number: int = 0
    offset: int = 0
    total: int = 0
    chained: bool = False
    safe: int = -1


START = Mark()


class Journal:
    """Appends records; `sync` makes what was appended survive a crash of the machine.

    The file is extended with zeros ahead of the records and cut to them when it is closed: to
    write inside a file that does not grow needs no change of the file system's own records,
    which makes a sync several times faster. What an earlier crash left half-written is
    cut off, so that it cannot swallow the next record; JournalError for any other damage. `since`: what
    is before it has been read, and is not looked at again. `cut` counts the whole records that were cut.
    """

    def __init__(self, path: Path, since: Mark = START) -> None:
        self._path = path
        self._fd = open_own(path, os.O_RDWR | os.O_CREAT)
        self._pending: list[bytes] = []
        self._begun = 0  # bytes of these that are written, which the disk need not have yet
        self.appended = 0  # records, by this object
        self.waiting = 0  # bytes that are pending
        try:
            with _opened(path, since.offset) as file:
                mark = since
                for _, found in _lines(path, file, since):
                    mark = found
            self._before, self._end, self._sum, _, self._safe = mark
            self.cut = self._cut(self._safe)
        except (JournalError, OSError):
            os.close(self._fd)
            raise
        self._reserved = self._end
        if not self._end:  # it is new: its name, and that of its directory
            for directory in (path.parent, path.parent.parent):
                sync_names(directory)

    def _cut(self, safe: int) -> int:
        """Cut what is behind the records, and have on disk what is there: those behind `safe` may be in memory only,
        even where the system takes them for written (a sync that failed). How many records were cut."""
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
        body = _encode({"event": event, **values})[:-1].encode()
        self._sum = crc32(body, self._sum)
        self.appended += 1
        if not self._pending:
            self._safe = self._end
        self._pending.append(body + (_SUM if self._pending else _SAFE) % self._sum)
        self.waiting += len(self._pending[-1])

    @property
    def mark(self) -> Mark:
        """The place behind what is on disk."""
        return Mark(self._before + self.appended, self._end, self._sum, bool(self.appended), self._safe)

    @property
    def pending(self) -> bool:
        """Whether there are records that are not on disk yet."""
        return bool(self._pending)

    def begin(self) -> None:
        """Let the disk begin with what is pending: the next `sync` has less to wait for."""
        if self._pending:
            data = b"".join(self._pending)
            with contextlib.suppress(OSError):  # `sync` tries it again
                self._put(data, wait=False)
                os.posix_fadvise(self._fd, self._end, len(data), os.POSIX_FADV_DONTNEED)
                self._begun = len(data)

    def sync(self) -> None:
        """Write what is pending and wait until it is on disk; OSError when that fails."""
        if not self._pending:
            return
        data = b"".join(self._pending)
        with naming(self._path):
            self._put(data)
        self._end += len(data)
        self._begun = self.waiting = 0
        self._pending.clear()

    def show(self) -> None:
        """Let those who read the file see what is pending, as far as the disk takes it; nobody waits
        until it is there, and the next `sync` writes it again."""
        if self._pending:
            with contextlib.suppress(OSError):
                self._put(b"".join(self._pending), wait=False)

    def _put(self, data: bytes, wait: bool = True) -> None:
        """Write behind the records, and nothing at all when that fails."""
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

    def _write(self, data: bytes, written: int = 0) -> None:
        """Write all of it behind the records, but what of it is written."""
        while written < len(data):
            written += os.pwrite(self._fd, data[written:], self._end + written)

    def close(self) -> None:
        """Sync and close."""
        self.sync()
        os.ftruncate(self._fd, self._end)
        os.close(self._fd)


def _opened(path: Path, offset: int = 0) -> BinaryIO:
    """A journal, to be read from there on. OSError as of `open_own`."""
    file = open(open_own(path, os.O_RDONLY), "rb", buffering=1 << 20)
    file.seek(offset)
    return file


def _whole_lines(path: Path, file: BinaryIO, before: int) -> Iterator[bytes]:
    """The lines that are written whole, of which `before` others are before; where there are zeros before the last
    line end, those up to the first line with zeros, which comes last.

    What stands behind the last line end is what a crash leaves, a line that was not written whole
    and the zeros kept ahead, and is passed over. JournalError for zeros before a record that says that all before it is
    on disk.
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
    file.seek(0, os.SEEK_END)  # what is in the buffer may be old: a manager may write at this moment
    file.seek(at)
    rest = file.read()
    end, zero = rest.rfind(b"\n") + 1, rest.find(b"\0")
    if zero >= 0 and (zero < end or rest[zero:].strip(b"\0")):
        if not before and end <= rest.find(b"\n") + 1:
            return  # the first record, which is synced alone
        end = rest.find(b"\n", zero) + 1 or len(rest)
        if _IS_SAFE.search(rest, zero):
            raise JournalError(path, before + rest.count(b"\n", 0, zero) + 1, ZEROS)
    yield from io.BytesIO(rest[:end])


def _lines(path: Path, file: BinaryIO, since: Mark = START) -> Iterator[tuple[bytes, Mark]]:
    """The whole lines of a journal that follow `since`: each with the place after it. JournalError for what is
    no line."""
    first, at, total, chained, safe = since
    for number, line in enumerate(_whole_lines(path, file, first), first + 1):
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
                return  # a crash left it
            wrong = ZEROS
        if wrong:
            raise JournalError(path, number, wrong)
        if form == _SURE:
            safe = at
        at += len(line)
        yield line, Mark(number, at, total, chained, safe)


def _records(path: Path, file: BinaryIO, since: Mark = START, only: Pattern[bytes] | None = None
             ) -> Iterator[tuple[Record, Mark]]:
    """The records of these lines, each with the place after it; `only`: of lines in which that is found."""
    for batch in _batches(_lines(path, file, since), only):
        yield from _checked(path, batch)


def _batches(lines: Iterator[tuple[bytes, Mark]], only: Pattern[bytes] | None) -> Iterator[list[tuple[bytes, Mark]]]:
    """Lines, some at a time; those before a line that is none come first."""
    batch: list[tuple[bytes, Mark]] = []
    try:
        for found in lines:
            if only is None or only.search(found[0]):
                batch.append(found)
                if len(batch) == BATCH:
                    yield batch
                    batch = []
    except JournalError:
        yield batch
        raise
    yield batch


def _checked(path: Path, lines: Sequence[tuple[bytes, Mark]]) -> Iterator[tuple[Record, Mark]]:
    """The records of lines. JournalError for one that is none, after those before it."""
    together = _together([line for line, _ in lines]) if lines and lines[0][1].chained else None
    for at, (line, mark) in enumerate(lines):
        try:
            record = _decoded(line) if together is None else together[at]
        except (ValueError, RecursionError) as error:
            raise JournalError(path, mark.number, "not a journal record") from error
        if not isinstance(record, dict) or not isinstance(record.get("event"), str):
            raise JournalError(path, mark.number, "not a journal record")
        if not mark.chained and 1 < record.get("format", 1) <= FORMAT:
            raise JournalError(path, mark.number, "it has no checksum")
        yield record, mark


def _together(lines: Sequence[bytes]) -> list[Any] | None:
    """What these lines say, whose checksums are right; None where they must be decoded one by one."""
    try:
        found: list[Any] = _decode(f"[{b','.join(lines).decode()}]")[0]
    except (ValueError, RecursionError):
        return None
    return found if len(found) == len(lines) else None


def _decoded(line: bytes) -> Any:
    """What a line of JSON says; ValueError when it is none."""
    text = line.decode()
    found, end = _decode(text)
    return found if end == len(text) - 1 else json.loads(text)


class JournalReader:
    """The records of a journal, one after the other, without a half-written last line; none when there is no file.
    `only`: those in whose line that is found. `mark` is the place after the last one.

    Raises JournalError with the line's number for a line that is not a record.
    """

    def __init__(self, path: Path, only: Pattern[bytes] | None = None) -> None:
        self.path = path
        self.mark = START
        self._only = only

    def __iter__(self) -> Iterator[Record]:
        with contextlib.suppress(FileNotFoundError), _opened(self.path) as file:
            for record, mark in _records(self.path, file, only=self._only):
                self.mark = mark
                yield record


def lines(path: Path, until: Mark) -> Iterator[bytes]:
    """The lines of a journal up to a place to which it has been read."""
    with _opened(path) as file:
        yield from itertools.islice(file, until.number)


def records(path: Path, only: Pattern[bytes] | None = None) -> Iterator[Record]:
    """The records of a journal: see `JournalReader`."""
    return iter(JournalReader(path, only))


def read(path: Path) -> list[Record]:
    """All records at once; as `records` else."""
    return list(records(path))


_JOBS = re.compile(b'"event": ?"jobs?"')
"""In each line that tells of new jobs."""


def made_by(path: Path, command: str) -> list[int]:
    """The jobs that a command has brought, whether or not anybody has answered it. They are on disk then: the manager
    may have ended between its record and the sync, and who asks reports these jobs."""
    found = [job.id for record in unfolded(records(path, _JOBS)) if record["event"] == "job"
             and record.get("command") == command for job in jobs_of(record)[0]]
    if found:
        with _opened(path) as file:
            os.fsync(file.fileno())
    return found


class Alone(NamedTuple):
    """A job: whether it waits, and somebody holds it, and the record of its end; and how many jobs have come."""

    job: Job
    details: Details
    waits: bool
    held: bool
    end: EndRecord | None
    came: int


def alone(path: Path, job_id: int) -> Alone | None:
    """What became of a job; None where there is none, or where it has a field of an extension that is not there. It
    looks at this job alone, which is fast in a run of any length. JournalError as of `read`."""
    found: tuple[Job, Details] | None = None
    end: EndRecord | None = None
    is_held = waits = False
    came = 0

    def counted() -> Iterator[Record]:
        nonlocal came
        only = re.compile(b'%b|"event":"%b"|"id": ?%d\\b' % (_JOBS.pattern, LIVES.encode(), job_id))
        for record in records(path, only):
            came += jobs_in(record)
            yield record

    for record in unfolded(counted(), job_id):
        event, first = record["event"], record.get("id", job_id + 1)
        if first <= job_id < first + jobs_in(record):
            if more_fault(record.get("more", {})):
                return None
            jobs, details, _ = jobs_of({**record, "id": job_id, "array": "0"})
            found, waits, is_held, end = (jobs[0], details), True, details.held, None
        elif first != job_id:
            continue
        elif event in ("hold", "release"):
            is_held = event == "hold"
        elif event in ("start", "end"):
            waits, end = False, EndRecord(record) if event == "end" else None
        elif event in ("again", "back"):
            waits, end = True, None
    return Alone(*found, waits, is_held, end, came) if found is not None else None


def parsed(data: bytes, path: Path) -> list[Record]:
    """The records in these bytes of a journal at `path`; JournalError as of `read`."""
    return [record for record, _ in _records(path, io.BytesIO(data))]


class JournalFollower:
    """Reads a journal while it is written: each record once.

    `trouble` says what is wrong behind the records that were read; "" for nothing. Then the file is
    read again from there at the next look: on a shared file system a line may come in parts.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.trouble = ""
        self._mark = START
        self._file = (0, 0)

    @property
    def number(self) -> int:
        """How many records were read."""
        return self._mark.number

    def read_new(self) -> tuple[bool, list[Record]]:
        """What was added; and whether it is the beginning of another journal than before. OSError
        when it cannot be read."""
        with open(open_own(self.path, os.O_RDONLY), "rb") as file:
            about = os.fstat(file.fileno())
            same = self._file == (about.st_dev, about.st_ino) and about.st_size >= self._mark.offset
            if not same:
                self._file, self._mark = (about.st_dev, about.st_ino), START
            file.seek(self._mark.offset)
            data = file.read()
        found = []
        self.trouble = ""
        try:
            for record, mark in _records(self.path, io.BytesIO(data), self._mark):
                found.append(record)
                self._mark = mark
        except JournalError as error:
            self.trouble = str(error)
        return not same, found
