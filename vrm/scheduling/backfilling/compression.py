"""Reservations of conservative backfilling when counting is exact, and their compression: when a job ends early, each
reservation moves to its earliest hole."""

from __future__ import annotations

import math
from array import array
from operator import itemgetter
from typing import Any, Generic, Protocol, TypeVar
from collections.abc import Callable, Iterator

from vrm.model.job import Job
from vrm.model.placement import Placement
from vrm.scheduling.backfilling.profile import CountProfile, Profile, Slot
from vrm.scheduling.orderings.queue import Key

# Up to this number of reservations, a loop is faster than arrays.
_FEW = 48


class Timed(Protocol):
    """A job that can have a reservation."""

    @property
    def id(self) -> int: ...

    @property
    def expected(self) -> float: ...


Kind = TypeVar("Kind", bound=Timed)


class ReservationTable(Generic[Kind]):
    """Reservations by job, with sizes, durations and times in columns."""

    def __init__(self) -> None:
        self.jobs: list[Kind] = []
        self.keys: list[Key] = []
        self.size, self.duration, self.time = array("q"), array("d"), array("d")
        self._placements: list[Placement | None] = []
        self._row: dict[int, int] = {}

    def copy(self) -> ReservationTable[Kind]:
        """Return an independent copy."""
        twin: ReservationTable[Kind] = ReservationTable()
        twin.jobs, twin.keys = list(self.jobs), list(self.keys)
        twin.size, twin.duration, twin.time = self.size[:], self.duration[:], self.time[:]
        twin._placements, twin._row = list(self._placements), dict(self._row)
        return twin

    def __len__(self) -> int:
        return len(self.jobs)

    def __contains__(self, job_id: object) -> bool:
        return job_id in self._row

    def __iter__(self) -> Iterator[tuple[Kind, Slot]]:
        return zip(self.jobs, map(Slot, self.time, self._placements))

    def clear(self) -> None:
        """Remove all reservations."""
        self.jobs.clear()
        self.keys.clear()
        self._placements.clear()
        self._row.clear()
        del self.size[:], self.duration[:], self.time[:]

    def add(self, job: Kind, slot: Slot, size: int, key: Key) -> None:
        """Add a reservation; `key` is the job's sort key in the queue."""
        self._row[job.id] = len(self.jobs)
        self.jobs.append(job)
        self.keys.append(key)
        self._placements.append(slot.placement)
        self.size.append(size)
        self.duration.append(job.expected)
        self.time.append(slot.time)

    def rekey(self, key_of: Callable[[Kind], Key]) -> None:
        """Compute all keys again, after their form has changed."""
        self.keys[:] = map(key_of, self.jobs)

    def remove(self, job: Kind) -> None:
        """Remove a reservation; the last row takes its place."""
        row, last = self._row.pop(job.id), self.jobs[-1]
        if last is not job:
            self._row[last.id] = row
        columns: tuple[Any, ...] = (self.jobs, self.keys, self._placements, self.size,
                                    self.duration, self.time)
        for column in columns:
            column[row] = column[-1]
            column.pop()

    def slot(self, job: Kind) -> Slot:
        """Return the reservation of a job."""
        row = self._row[job.id]
        return Slot(self.time[row], self._placements[row])

    def move(self, job: Kind, slot: Slot) -> None:
        """Change the reservation of a job."""
        row = self._row[job.id]
        self.time[row], self._placements[row] = slot

    def due(self, now: float) -> list[Kind]:
        """Return the jobs whose reservation has begun."""
        if len(self.jobs) <= _FEW:
            return [job for job, time in zip(self.jobs, self.time) if time <= now]
        rows = (_numpy().frombuffer(self.time) <= now).nonzero()[0]
        return [self.jobs[row] for row in rows.tolist()]

    def first_after(self, now: float) -> float:
        """Return the first reservation time after `now`; infinity if there is none."""
        if len(self.jobs) <= _FEW:
            return min([time for time in self.time if time > now], default=math.inf)
        times = _numpy().frombuffer(self.time)
        later = times[times > now]
        return float(later.min()) if len(later) else math.inf


def _numpy() -> Any:
    import numpy  # imported only when many jobs wait
    return numpy


def compress(table: ReservationTable[Any], profile: CountProfile, freed: float, key_of: Callable[[Job], Key] | None
             ) -> float:
    """Move every reservation, in the order of the queue, to its earliest hole.

    A job can only move into capacity that was given back: until the time `freed`, more is free than when each
    reservation was last checked; no new hole begins later. `key_of` returns a job's sort key if keys change with time;
    otherwise the keys of the table are used. Returns the time until which moves have freed capacity for jobs that were
    already checked.
    """
    size, duration, time = table.size, table.duration, table.time
    keys = table.keys if key_of is None else list(map(key_of, table.jobs))
    now = profile.times[0]
    left, most = -math.inf, profile.most(now, freed)
    for row in sorted(range(len(keys)), key=keys.__getitem__):
        old = time[row]
        if size[row] > most or old <= now:
            continue
        new = profile.hole(size[row], duration[row], old, freed)
        if new < old:
            profile.move(duration[row], size[row], old, new)
            time[row] = new
            if old == math.inf:
                continue
            end = old + duration[row]
            left, freed = max(left, end), max(freed, end)
            most = max(most, profile.most(max(old, new + duration[row]), end))
    return left


Compress = Callable[[ReservationTable[Any], CountProfile, float, Callable[[Job], Key] | None], float]

OFFERS: list[Callable[[], Compress | None]] = []
"""Functions that may return a faster `compress` with the same result. Other packages add them, because they read
files."""

_taken: list[Compress] = []


def fastest(rows: int) -> Compress:
    """Return the fastest compression for a table with `rows` rows."""
    if rows <= _FEW:
        return compress
    if not _taken:
        _taken.append(next(filter(None, (offer() for offer in OFFERS)), compress))
    return _taken[0]


def move_earlier(table: ReservationTable[Job], profile: Profile, freed: float, key_of: Callable[[Job], Key] | None
                 ) -> float:
    """Run `compress` with counts, or with the nodes themselves."""
    if isinstance(profile, CountProfile):
        return fastest(len(table))(table, profile, freed, key_of)
    keys = table.keys if key_of is None else map(key_of, table.jobs)
    for _, job in sorted(zip(keys, table.jobs), key=itemgetter(0)):
        slot = table.slot(job)
        moved = profile.compress(job, slot)
        if moved is not slot:
            table.move(job, moved)
    profile.tidy()
    return -math.inf
