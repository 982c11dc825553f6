"""A journal becomes short: what it says of jobs that have ended is written as few records, and the rest as it is.

A manager does so when it continues a run, before its own first record. The new file is written next to the old one, is
on disk, and then takes its name: after a crash at any point one of the two is there, and both tell the same.

A life is folded when nothing but its start and its end tells of the job, and no other job waits for it. It then is at
the end of the *stretch* of the journal in which it was; a stretch ends where the nodes, the lines or the loans change
(`BOUNDARIES`), and a life that goes beyond one stays as it is. Within a stretch the order of such lives and of what is
said of other jobs makes no difference.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from pathlib import Path
from collections.abc import Iterable, Iterator

from vrm.run.journal import files, folded
from vrm.run.journal.check import NEWEST, Record
from vrm.run.journal.past import Past
from vrm.system.files import sync_names

FEWEST = 20_000
"""Records below which a journal stays as it is."""

TOGETHER = 1000
"""Jobs of one record."""

AT_ONCE = 1 << 20
"""Bytes that are written at once."""

OLDEST = 3
"""The format of the oldest journals that are folded."""

MOVES = frozenset(("job", "jobs", "start", "end", "input", "back", "intent", "again", "hold", "release", "change",
                   "promise", "expect", "part", "finished"))
"""Events over which lives of other jobs may be moved; any other one is a boundary."""

_NOT_TOGETHER = ("array", "own", "at", "fault")
"""What a job's record has that stays as it is."""

_LIFE = re.compile(rb'\{"event":"(start|end)","id":(\d+),')


def worth(past: Past) -> bool:
    """Whether the journal of this past becomes much shorter."""
    if past.number < FEWEST or past.runs[0].get("format", 1) < OLDEST:
        return False
    return 6 * (sum(simple(past, job_id) for job_id in past.ended) - past.folded) > past.number


def shorten(path: Path, past: Past) -> None:
    """Fold the journal, whose past this is, up to its mark. OSError when the disk does not take it: then it is as it
    was."""
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
    sync_names(path.parent)


def simple(past: Past, job_id: int) -> bool:
    """Whether nothing but its start and its end tells of a job that has ended, and nobody waits for it."""
    entry = past.state.book.entries[job_id]
    return not (job_id in past.marked or entry.wished or entry.wish is not None or entry.details.after)


def records_of(lines: Iterable[bytes], past: Past) -> Iterator[Record]:
    """The records of the new file; `lines` are those of the old one."""
    stretch, first = _Stretch(past), True
    for line in lines:
        life = _LIFE.match(line)
        if life and stretch.take(line, life[1] == b"start", int(life[2])):
            continue
        record = _read(line)
        if first:
            record["format"], first = NEWEST, False
        if record["event"] not in MOVES:
            yield from stretch.end()
        yield from stretch.add(record)
    yield from stretch.end()


def _read(line: bytes) -> Record:
    record: Record = json.loads(line)
    record.pop("sum", record.pop("SUM", None))
    return record


class _Stretch:
    """Records between two boundaries: jobs that came one after the other, lives that are whole, and the lines of those
    that are not yet."""

    def __init__(self, past: Past) -> None:
        self._past = past
        self._jobs: list[Record] = []
        self._lives: list[int] = []
        self._open: dict[int, bytes] = {}
        self._stay: set[int] = set()  # lives that go beyond a boundary

    def take(self, line: bytes, start: bool, job_id: int) -> bool:
        """Take the start or end of a job, if its life is to be folded."""
        past = self._past
        if job_id in self._stay or job_id not in past.ended or not simple(past, job_id):
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
        """Records that come before the next one: this one, or jobs before it."""
        together = record["event"] == "job" and not any(key in record for key in _NOT_TOGETHER)
        if self._jobs and (not together or len(self._jobs) == TOGETHER or record["id"] != self._jobs[-1]["id"] + 1
                           or _kind(record) != _kind(self._jobs[0])):
            yield from self._end_jobs()
        if together:
            self._jobs.append(record)
        else:
            yield record

    def _end_jobs(self) -> Iterator[Record]:
        if self._jobs:
            yield self._jobs[0] if len(self._jobs) == 1 else {"event": folded.JOBS, **folded.jobs_record(self._jobs)}
            self._jobs = []

    def end(self) -> Iterator[Record]:
        """The boundary: starts whose ends are behind it, and lives."""
        yield from self._end_jobs()
        for job_id, line in self._open.items():
            self._stay.add(job_id)
            yield _read(line)
        self._open.clear()
        past, lives = self._past, self._lives
        for at in range(0, len(lives), TOGETHER):
            yield {"event": folded.LIVES, **folded.lives_record(
                [(job_id, past.started.get(job_id), past.ended[job_id]) for job_id in lives[at:at + TOGETHER]])}
        lives.clear()


def _kind(record: Record) -> tuple[bool, ...]:
    return tuple([key in record for key in ("position", "line", "command")])
