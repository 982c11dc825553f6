"""Shorten a journal: records of ended jobs are folded into few records, and the rest stays as it is.

A manager does this when it continues a run, before its own first record. The new file is written next to the old one
and synced to disk, and then takes the old name: after a crash at any point one of the two files is there, and both
have the same content.

A life is folded when the journal has only its start and its end, and no other job waits for the job. It is then at
the end of the *stretch* of the journal in which it was. A stretch ends where the nodes, the lines or the loans change
(any event that is not in `MOVES`); a life that crosses such a boundary stays as it is. Within a stretch the order of
these lives and of records about other jobs makes no difference.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from pathlib import Path
from collections.abc import Iterable, Iterator

from vrm.run.journal import files, combined_records
from vrm.run.journal.record_checks import NEWEST, Record
from vrm.run.journal.history import RunHistory
from vrm.system.files import sync_directory

FEWEST = 20_000
"""Shorter journals, in records, stay as they are."""

TOGETHER = 1000
"""Maximum number of jobs in one record."""

AT_ONCE = 1 << 20
"""Bytes that are written at once."""

OLDEST = 3
"""Format of the oldest journals that are folded."""

MOVES = frozenset(("job", "jobs", "start", "end", "input", "back", "intent", "again", "hold", "release", "change",
                   "promise", "expect", "part", "finished"))
"""Events over which lives of other jobs may be moved; any other event is a boundary."""

_NOT_TOGETHER = frozenset(("array", "own", "at", "fault"))
"""A job's record with one of these keys stays as it is."""

_JOB = b'{"event":"job",'
_LIFE = re.compile(rb'\{"event":"(start|end)","id":(\d+),')


def worth(past: RunHistory) -> bool:
    """Return whether folding makes the journal of this past much shorter."""
    if past.number < FEWEST or past.runs[0].get("format", 1) < OLDEST:
        return False
    return 6 * (sum(simple(past, job_id) for job_id in past.ended) - past.folded) > past.number


def compact_journal(path: Path, past: RunHistory) -> None:
    """Fold the journal up to the mark of `past`, which was read from it. If the disk does not take the new file,
    raises OSError and leaves the journal unchanged."""
    new = path.with_name(f"{path.name}.new")
    with contextlib.suppress(FileNotFoundError):
        new.unlink()
    try:
        journal = files.Journal(new)
        for record in records_of(files.lines(path, past.mark), past):
            journal.append(**record)
            if journal.waiting > AT_ONCE:
                journal.sync()
        journal.close()
        os.replace(new, path)
    except OSError:
        with contextlib.suppress(OSError):
            new.unlink()
        raise
    past.mark = journal.mark
    sync_directory(path.parent)


def simple(past: RunHistory, job_id: int) -> bool:
    """Return whether the journal has only the start and the end of this ended job, and no job waits for it."""
    entry = past.state.book.entries[job_id]
    return not (job_id in past.marked or entry.wished or entry.wish is not None or entry.details.after)


def records_of(lines: Iterable[bytes], past: RunHistory) -> Iterator[Record]:
    """Yield the records of the new file; `lines` are those of the old one."""
    stretch, first = _JournalSegment(past), True
    for batch in files.batches(lines):
        jobs = [line for line in batch if line.startswith(_JOB)]
        jobs_records = map(_bare, files.together(jobs) or map(_read, jobs))  # decoded together
        for line in batch:
            life = _LIFE.match(line)
            if life and stretch.take(line, life[1] == b"start", int(life[2])):
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

    def __init__(self, past: RunHistory) -> None:
        self._past = past
        self._simple = {job_id for job_id in past.ended if simple(past, job_id)}
        self._jobs: list[Record] = []
        self._kind: tuple[bool, ...] = ()  # which optional values these have
        self._lives: list[int] = []
        self._open: dict[int, bytes] = {}
        self._stay: set[int] = set()  # lives that cross a boundary

    def take(self, line: bytes, start: bool, job_id: int) -> bool:
        """Collect the start or end of a job if its life is to be folded; return whether it is."""
        past = self._past
        if job_id not in self._simple or job_id in self._stay:
            return False
        if start:
            self._open[job_id] = line
            return True
        if (job_id in past.started) != (job_id in self._open):
            return False
        self._open.pop(job_id, None)
        self._lives.append(job_id)
        return True

    def add(self, record: Record) -> Iterator[Record]:
        """Add a record that is not part of a life; yield the records that are to be written now."""
        together = record["event"] == "job" and _NOT_TOGETHER.isdisjoint(record)
        kind = ("position" in record, "line" in record, "command" in record)
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
        past, lives = self._past, self._lives
        for at in range(0, len(lives), TOGETHER):
            yield {"event": combined_records.LIVES, **combined_records.lives_record(
                [(job_id, past.started.get(job_id), past.ended[job_id]) for job_id in lives[at:at + TOGETHER]])}
        lives.clear()
