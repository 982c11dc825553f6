"""Shorten a journal: records of ended jobs are folded into few records, and the rest stays as it is.

A life is folded when the folded part has its start and its end and no other record of the job, and no other job waits
for the job. It is then at a later point of the *stretch* of the journal in which it was. A stretch ends where the
nodes, the lines or the loans change (any event that is not in `MOVES`); a life that crosses such a boundary stays as it
is. Within a stretch the order of these lives and of records about other jobs makes no difference.
"""

from __future__ import annotations

import errno
import json
import os
import re
from pathlib import Path
from collections.abc import Iterable, Iterator, Mapping, Set

from vrm.run.entry import Entry
from vrm.run.journal import files, combined_records
from vrm.run.journal.files import JournalPosition
from vrm.run.journal.record_checks import NEWEST, EndRecord, Record, StartRecord

FEWEST = 20_000
"""Number of records after the folded part from which on they are folded."""

TOGETHER = 1000
"""Maximum number of jobs in one record."""

AT_ONCE = 1 << 20
"""Bytes that are copied at once."""

OLDEST = 3
"""Format of the oldest journals that are folded."""

MOVES = frozenset(("job", "jobs", "start", "end", "input", "back", "intent", "again", "hold", "release", "change",
                   "promise", "expect", "part", "finished", combined_records.LIVES))
"""Events over which lives of other jobs may be moved; any other event is a boundary."""

_NOT_TOGETHER = frozenset(("array", "own", "at", "fault"))
"""A job's record with one of these keys stays as it is."""

_JOB = b'{"event":"job",'
_LIFE = re.compile(rb'\{"event":"(start|end)","id":(\d+),')


def fold(path: Path, since: JournalPosition, until: JournalPosition, entries: Mapping[int, Entry], new: int) -> None:
    """Write the journal up to `until` to the open file `new`, with the records after `since` folded, and sync it.
    `entries` are the jobs of the run. `folded_end` then returns the end of the records. Raises OSError."""
    with open(new, "wb", closefd=False) as file, files.opened(path) as old:
        file.writelines(old.read(min(AT_ONCE, since.offset - at)) for at in range(0, since.offset, AT_ONCE))
        if file.tell() != since.offset:
            raise OSError(errno.EIO, "the journal is too short")
        number, total = since.number, since.total
        simple = simple_lives(files.lines(old, since, until), entries)
        for record in records_of(files.lines(old, since, until), simple, since):
            line, total = files.chained(record, total)
            file.write(line)
            number += 1
        end = file.tell()
        file.write(json.dumps(JournalPosition(number, end, total, True, end)).encode())
        file.flush()
        os.fsync(new)


def folded_end(new: int) -> JournalPosition:
    """Return the end of the records in the open file, which `fold` has written. Raises OSError."""
    size = os.fstat(new).st_size
    return JournalPosition(*json.loads(os.pread(new, size, max(0, size - 200)).rpartition(b"\n")[2]))


def simple_lives(lines: Iterable[bytes], entries: Mapping[int, Entry]) -> set[int]:
    """Return the jobs that end in these lines, have no other records there than their submission and start, and for
    which no other job waits."""
    ended, marked = set[int](), set[int]()
    for line in lines:
        life = _LIFE.match(line)
        if life and b'"command":' not in line and b'"as":' not in line:
            if life[1] == b"end":
                ended.add(int(life[2]))
        elif not line.startswith(_JOB):
            marked.update(combined_records.jobs_with_details(json.loads(line)))
    ended -= marked
    return {job_id for job_id in ended if job_id in entries and not (
        entries[job_id].wished or entries[job_id].wish is not None or entries[job_id].details.after)}


def records_of(lines: Iterable[bytes], simple: Set[int], since: JournalPosition) -> Iterator[Record]:
    """Yield the folded records of the lines after `since`; `simple` are the jobs whose lives may be folded."""
    stretch, first = _JournalSegment(simple, since), not since.number
    for batch in files.batches(lines):
        jobs = [line for line in batch if line.startswith(_JOB)]
        jobs_records = map(_bare, files.together(jobs) or map(_read, jobs))  # decoded together
        for line in batch:
            life = _LIFE.match(line)
            if life and stretch.take(line, life[1] == b"start", int(life[2])):
                if stretch.full:
                    yield from stretch.end_lives()
                continue
            record = next(jobs_records) if line.startswith(_JOB) else _read(line)
            if first:
                record["format"], first = NEWEST, False
            if record["event"] not in MOVES:
                yield from stretch.end()
            yield from stretch.add(record)
    yield from stretch.end()


def _read(line: bytes) -> Record:
    return _bare(json.loads(line))


def _bare(record: Record) -> Record:
    """Remove the checksum of a record, and return the record."""
    record.pop("sum", record.pop("SUM", None))
    return record


class _JournalSegment:
    """Records between two boundaries: jobs submitted one after the other, complete lives, and the lines of lives that
    are not complete yet."""

    def __init__(self, simple: Set[int], since: JournalPosition) -> None:
        self._simple = simple
        self._first = None if since.number else 0  # the first job whose start cannot be before `since`
        self._jobs: list[Record] = []
        self._kind: tuple[bool, ...] = ()  # which optional values these have
        self._lives: list[tuple[int, bytes, bytes]] = []  # with the lines of start (b"": none) and end
        self._open: dict[int, bytes] = {}
        self._stay: set[int] = set()  # lives that cross a boundary

    def take(self, line: bytes, start: bool, job_id: int) -> bool:
        """Collect the start or end of a job if its life is to be folded; return whether it is."""
        if job_id in self._stay or job_id not in self._simple:
            return False
        if start:
            self._open[job_id] = line
            return True
        begun = self._open.pop(job_id, b"")
        if not begun and (self._first is None or job_id < self._first):
            return False
        self._lives.append((job_id, begun, line))
        return True

    @property
    def full(self) -> bool:
        """Whether there are enough lives for a record."""
        return len(self._lives) == TOGETHER

    def add(self, record: Record) -> Iterator[Record]:
        """Add a record that is not part of a life; yield the records that are to be written now."""
        together = record["event"] == "job" and _NOT_TOGETHER.isdisjoint(record)
        kind = ("position" in record, "line" in record, "command" in record)
        if self._first is None and record["event"] == "job":
            self._first = record["id"]
        if self._jobs and (not together or len(self._jobs) == TOGETHER or record["id"] != self._jobs[-1]["id"] + 1
                           or kind != self._kind):
            yield from self._end_jobs()
        if together:
            self._jobs.append(record)
            self._kind = kind
        else:
            yield record

    def _end_jobs(self) -> Iterator[Record]:
        if self._jobs:
            yield self._jobs[0] if len(self._jobs) == 1 else {"event": combined_records.JOBS,
                                                              **combined_records.jobs_record(self._jobs)}
            self._jobs = []

    def end(self) -> Iterator[Record]:
        """Yield what remains at a boundary: starts whose ends come after it, and the folded lives."""
        yield from self._end_jobs()
        for job_id, line in self._open.items():
            self._stay.add(job_id)
            yield _read(line)
        self._open.clear()
        yield from self.end_lives()

    def end_lives(self) -> Iterator[Record]:
        """Yield the folded lives, after the jobs."""
        yield from self._end_jobs()
        lines = [line for _, *both in self._lives for line in both if line]
        records = iter(files.together(lines) or map(json.loads, lines))
        lives = [(job_id, _start(next(records)) if begun else None, EndRecord(next(records)))
                 for job_id, begun, _ in self._lives]
        if lives:
            yield {"event": combined_records.LIVES, **combined_records.lives_record(lives)}
        self._lives.clear()


def _start(record: Record) -> StartRecord:
    return StartRecord(record, record["placement"])
