"""The journal: an append-only record of what the manager does, written before it does it.

One JSON object a line, closed by a checksum that is chained over all lines before it. `Journal`
writes, `read` reads, `replay` turns the records into the past of a run, from which a restarted
manager goes on.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Optional, Set, Tuple, Union
from zlib import crc32

from vrm.model import Job, JobState
from vrm.model.job import Details
from vrm.model.reservation import Reservation
from vrm.model.rules import Rules
from vrm.run import journal_check as check, lending
from vrm.run.codec import jobs_of, own_of
from vrm.run.journal_check import JournalError, Record
from vrm.run.state import State
from vrm.system.files import naming, open_own, read_own

FORMAT = check.NEWEST
"""What `run` records say of the journal's form. Format 1 (vrm 0.1.0, which says none) has no
checksums; it is read, and the records that are added to it are chained to it from there on."""

RESERVE = 1 << 16
"""Bytes by which the file is extended ahead of its records."""

_SUM = b',"sum":"%08x"}\n'
_SUM_SIZE = len(_SUM % 0)

PathLike = Union[str, "os.PathLike[str]"]

_encode = json.JSONEncoder(separators=(",", ":")).encode


class Journal:
    """Appends records; `sync` makes what was appended survive a crash of the machine.

    The file is extended with zeros ahead of the records and cut to them when it is closed: to
    write inside a file that does not grow needs no change of the file system's own records,
    which makes a sync several times faster. A line that an earlier crash left half-written is
    cut off, so that it cannot swallow the next record; JournalError for any other damage.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = open_own(path, os.O_RDWR | os.O_CREAT)
        self._pending: List[bytes] = []
        self._begun = 0  # bytes of these that are written, which the disk need not have yet
        self._end = self._sum = 0
        try:
            for _, (_, self._end, self._sum, _) in _lines(path, read_own(path)):
                pass
        except JournalError:
            os.close(self._fd)
            raise
        self._reserved = self._end
        os.ftruncate(self._fd, self._end)

    def append(self, event: str, **values: Any) -> None:
        """Add a record; it is on disk after the next `sync`."""
        body = _encode({"event": event, **values})[:-1].encode()
        self._sum = crc32(body, self._sum)
        self._pending.append(body + _SUM % self._sum)

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
        self._begun = 0
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


class Mark(NamedTuple):
    """A place between two lines of a journal: how many are before it, its offset in bytes, the
    checksum there, and whether the line before it has one of its own."""

    number: int = 0
    offset: int = 0
    total: int = 0
    chained: bool = False


START = Mark()


def _lines(path: Path, data: bytes, since: Mark = START) -> Iterator[Tuple[bytes, Mark]]:
    """The whole lines of a journal: each with the place after it. `data` is what follows `since`.

    What stands behind the last line end is what a crash leaves, a line that was not written whole
    and the zeros kept ahead, and is passed over. JournalError for anything else that is no line.
    """
    end = data.rfind(b"\n") + 1
    zero = data.find(b"\0")
    first, at, total, chained = since
    if zero >= 0 and (zero < end or data[zero:].strip(b"\0")):
        raise JournalError(path, first + data.count(b"\n", 0, zero) + 1,
                           "zeros within the records")
    for number, line in enumerate(data[:end].split(b"\n")[:-1], first + 1):
        line += b"\n"
        at += len(line)
        body = line[:-_SUM_SIZE]
        if line[-_SUM_SIZE:-_SUM_SIZE + 8] == _SUM[:8]:
            total, chained = crc32(body, total), True
            if line[-_SUM_SIZE:] != _SUM % total:
                raise JournalError(path, number, "its checksum does not match: it was changed, or "
                                                 "a line before it is missing or out of place")
        elif chained:
            raise JournalError(path, number, "it has no checksum")
        else:
            total = crc32(line, total)
        yield line, Mark(number, at, total, chained)


def _records(path: Path, data: bytes, since: Mark = START) -> Iterator[Tuple[Record, Mark]]:
    """The records of these lines, each with the place after it."""
    for line, mark in _lines(path, data, since):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise JournalError(path, mark.number, "not a journal record") from error
        if not isinstance(record, dict) or not isinstance(record.get("event"), str):
            raise JournalError(path, mark.number, "not a journal record")
        if not mark.chained and record.get("format") == FORMAT:
            raise JournalError(path, mark.number, "it has no checksum")
        yield record, mark


def read(path: Path) -> List[Record]:
    """The records of a journal, without a half-written last line; [] when there is no file.

    Raises JournalError with the line's number for a line that is not a record.
    """
    try:
        return parsed(read_own(path), path)
    except FileNotFoundError:
        return []


def made_by(path: Path, command: str) -> List[int]:
    """The jobs that a command has brought, whether or not anybody has answered it."""
    return [job.id for record in read(path) if record["event"] == "job" and record.get("command") == command
            for job in jobs_of(record)[0]]


def parsed(data: bytes, path: Path) -> List[Record]:
    """The records in these bytes of a journal at `path`; JournalError as of `read`."""
    return [record for record, _ in _records(path, data)]


class Follower:
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

    def read_new(self) -> Tuple[bool, List[Record]]:
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
            for record, mark in _records(self.path, data, self._mark):
                found.append(record)
                self._mark = mark
        except JournalError as error:
            self.trouble = str(error)
        return not same, found


class Past:
    """What a journal tells: the state of the run, and what else its manager has to know.

    `format` is that of the manager which began the run: 1 is vrm 0.1.0. `runs` are the records of
    the managers that wrote it, `run_of` the one under which a job was started. `started` and
    `ended` are the records of the last start and of the end of jobs. `again` are those that wait
    after a start. `waits` are the seconds that jobs had waited at each start. `rules` is the last
    record of a change of how the run schedules, if there was one. `rooms` are, by lender and borrower, the
    records of the start of jobs that have lent cores, and of the manager then. `of_file` are the jobs of the queue
    file's lines, in their order, `by_command` those of each command file.
    """

    def __init__(self, state: Optional[State] = None) -> None:
        self.state = State.of_journal() if state is None else state
        self.run = ""
        self.format = FORMAT
        self.finished = False
        self.position: Optional[List[Any]] = None
        self.input_ended = False
        self.started: Dict[int, Record] = {}
        self.ended: Dict[int, Record] = {}
        self.again: Set[int] = set()
        self.waits: List[float] = []
        self.runs: List[Record] = []
        self.run_of: Dict[int, Record] = {}
        self.commands: List[str] = []
        self.by_command: Dict[str, List[int]] = {}
        self.rules: Optional[Record] = None
        self.rooms: Dict[Tuple[int, int], lending.Room] = {}
        self.of_file: List[int] = []

    @property
    def jobs(self) -> Dict[int, Job]:
        """All jobs of the run."""
        return {job_id: entry.job for job_id, entry in self.state.book.entries.items()}

    def in_force(self, configured: Rules) -> Rules:
        """How the run schedules: as it was changed to, while the configuration says the same as it did
        then; else as that says."""
        if self.rules is None or self.rules["was"] != configured.record():
            return configured
        return replace(Rules.read(self.rules["rules"]), queues=configured.queues)

    @property
    def details(self) -> Dict[int, Details]:
        """What else they were submitted with."""
        return {job_id: entry.details for job_id, entry in self.state.book.entries.items()}

    @property
    def waiting(self) -> List[Job]:
        """Jobs that were neither started nor ended."""
        return [job for i, job in self.jobs.items()
                if i not in self.started and i not in self.ended]

    @property
    def running(self) -> List[Tuple[Job, Record]]:
        """Jobs that were started and whose end is not recorded, with the start's record."""
        entries = self.state.book.entries
        return [(entries[i].job, start) for i, start in self.started.items()
                if i not in self.ended]


    def take(self, record: Record, number: int, path: PathLike = "journal") -> None:
        """Apply the next record to what those before it left. JournalError, which names its line
        `number` of `path`, when it makes no sense there."""
        fault = check.fault(record, self)
        if fault:
            raise JournalError(path, number, fault)
        _apply(record, self)

    def lesson(self, job_id: int) -> Optional[Tuple[Job, float, JobState]]:
        """A job that has ended, how long it ran in seconds, and how it ended; None for one that never
        started."""
        end, start = self.ended[job_id], self.started.get(job_id)
        if start is None:
            return None
        ran = end["time"] - start["time"] - end.get("slower", 0.0)
        return self.state.entry(job_id).job, ran, JobState(end["state"])


def replay(records: Iterable[Record], path: PathLike = "journal",
           state: Optional[State] = None) -> Past:
    """The past that the records tell; each is applied to what those before it left, in `state`, a
    frozen one.

    JournalError, which names the line of `path`, for a record that makes no sense there.
    """
    past = Past(state)
    for number, record in enumerate(records, 1):
        past.take(record, number, path)
    return past


def _apply(record: Record, past: Past) -> None:
    """What a record changes."""
    event, state = record["event"], past.state
    if event == "run":
        if not past.runs:
            past.format = record.get("format", 1)
        past.run, past.finished = record["run"], False  # a copy takes another name
        past.runs.append(record)
    elif event == "job":
        _jobs_came(past, record)
    elif event == "input":
        past.position = record.get("position") or past.position
        past.input_ended = record["ended"]
    elif event == "start":
        past.started[record["id"]] = record
        past.waits.append(record["time"] - state.book.entries[record["id"]].job.submit)
        past.again.discard(record["id"])
        past.run_of[record["id"]] = past.runs[-1]
        state.began(record["id"], record["time"])
    elif event == "back":
        del past.started[record["id"]]
        state.back(record["id"])
    elif event == "intent":
        state.intend(record["id"], record["reason"], record.get("time", 0.0))
    elif event == "end":
        past.ended[record["id"]] = record
        state.end(record["id"], JobState(record["state"]), record["time"])
    elif event == "again":
        past.started.pop(record["id"], None)
        past.ended.pop(record["id"], None)
        past.again.add(record["id"])
        state.again(record["id"], record.get("time", 0.0), retry=record["retry"],
                    lost=record.get("lost", False))
    elif event in ("hold", "release"):
        state.kept(record["id"], event == "hold")
    elif event == "change":
        state.change(record["id"], record["walltime"], record["priority"])
    elif event == "expect":
        state.expect([state.entry(job_id).job.but(expected=seconds)
                      for job_id, seconds in record["jobs"]
                      if job_id in state.book.entries])
    elif event == "promise":
        for job_id, start in record["starts"]:
            state.promises.pop(job_id, None)
            if start is not None:
                state.promises[job_id] = start  # the last one made at the end
    elif event == "reserve":
        state.reserved(Reservation(record["reservation"], record["name"],
                                   tuple(record["nodes_reserved"]), record["begin"], record["end"]),
                       record["jobs_bound"])
    elif event == "lend":
        if record["to"] is not None:
            past.rooms[record["id"], record["to"]] = past.started[record["id"]], past.run_of[record["id"]]
        state.lend(lending.of_record(record), number=record["number"])
    elif event == "lent":
        state.lent(record["number"], record["time"])
    elif event == "regain":
        state.regain(record["number"], record["time"], record["reason"])
    elif event == "regained":
        state.regained(record["number"], record["time"])
    elif event == "grown":
        state.grown(record["id"], int(record["cores"], 16), record["width"], record["time"])
    elif event == "unreserve":
        state.unreserve(record["reservation"], record["time"], record["reason"])
    elif event == "rules":
        past.rules = record
    elif event == "finished":
        past.finished = True
    if record.get("command"):
        past.commands.append(record["command"])


def _jobs_came(past: Past, record: Record) -> None:
    """The job of a record, or all jobs of an array."""
    jobs, details, indices = jobs_of(record)
    past.state.submit(jobs, details, indices, own_of(record))
    if record.get("command"):
        past.by_command.setdefault(record["command"], []).extend(job.id for job in jobs)
    if record.get("position"):
        past.of_file += [job.id for job in jobs]
    past.position = record.get("position") or past.position
