"""Queues that decide from counts of free units which jobs start now: in order without backfilling, with EASY, and with
conservative backfilling. Used by simulations of long traces (`vrm.ext.counting.counting`) and by replays of a run in
forecasts (`vrm.ext.forecast.counted`)."""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from copy import copy
from typing import Any, NamedTuple, TypeVar
from collections.abc import Callable, Hashable, Iterable

from vrm.model.cluster import Cluster
from vrm.scheduling.backfilling.compression import ReservationTable, fastest
from vrm.scheduling.backfilling.profile import CountProfile, Slot
from vrm.scheduling.placement.by_core import CorePolicy
from vrm.scheduling.placement.lanes import LanePolicy


class CountedJob(NamedTuple):
    """A job, sorted by its queue `key` and its id. `size` is in counted units (nodes or cores); `expected`, `limit`
    and `run` are its expected, longest and real run times, `submit` its submission (seconds); `number` is its number in
    the trace (from 0). `kind` says which classes of nodes it may have (`vrm.ext.counting.node_classes`)."""

    key: Any
    id: int
    size: int
    expected: float
    limit: float
    submit: float
    run: float
    number: int = 0
    kind: int = 0


Easy = TypeVar("Easy", bound="WithEasy")
Start = Callable[..., None]
"""Function that starts jobs now. Arguments: the time, the jobs, and whether they overtake others (default: no)."""


class FirstInOrder:
    """Waiting jobs that start in order while they fit; the base class of the other queues.

    `queue` is sorted; `first` is the index of its head. `expected` holds the running jobs (expected end, id, size) by
    expected end (None: not needed). `reserved` is the head with a reservation; set it to None when a job has ended.
    `wake` is the time of the next step even if no event happens before."""

    expected: list[tuple[float, int, int]] | None = None
    wake = math.inf

    def __init__(self) -> None:
        self.queue: list[CountedJob] = []
        self.first = 0
        self.reserved: CountedJob | None = None  # the head whose shadow time is known

    def add(self, job: CountedJob) -> None:
        """Add a submitted job to the queue."""
        if not self.queue or job > self.queue[-1]:
            self.queue.append(job)
        else:
            insort(self.queue, job, self.first)

    def alone(self, now: float, job: CountedJob) -> None:
        """Record that a job starts because no other job waits."""

    def ended(self, now: float, limit: float, job_id: int, size: int) -> None:
        """Record the end of a job that was expected to run until `limit`."""

    def decide(self, now: float, free: int, start: Start) -> None:
        """Start the jobs that can start now. The queue must not be empty."""
        if self.queue[self.first].size <= free:
            self._cut(now, self._behind(free)[0], start)

    def _behind(self, free: int) -> tuple[int, int]:
        """Return the index of the first job that does not fit after the jobs before it, and what they leave free."""
        queue, head = self.queue, self.first
        waiting = len(queue)
        while head < waiting and queue[head].size <= free:
            free -= queue[head].size
            head += 1
        return head, free

    def _cut(self, now: float, head: int, start: Start) -> None:
        """Start the jobs before index `head`; the job there becomes the head."""
        queue = self.queue
        start(now, queue[self.first:head])
        self.first = head
        if head == len(queue) or (head > 1000 and head * 2 > len(queue)):
            del queue[:head]
            self.first = 0


class WithEasy(FirstInOrder):
    """EASY: the head has a reservation at its shadow time, and other jobs may use what it leaves over then (`_spare`;
    see `vrm.scheduling.backfilling.shadow`). Both stay valid until a job ends, a job runs longer than expected, or the
    head changes; until then only new jobs are tried."""

    def __init__(self, running: Iterable[tuple[float, int, int]] = ()) -> None:
        super().__init__()
        self.expected: list[tuple[float, int, int]] = sorted(running)
        self._sized: dict[Any, list[CountedJob]] = {}  # waiting jobs by `_alike`, each list in queue order
        self._fresh: list[CountedJob] = []  # added since the last decision
        self._shadow, self._spare = math.inf, 0

    def copy(self: Easy) -> Easy:
        """Return an independent copy."""
        twin = copy(self)
        twin.queue, twin.first = self.queue[self.first:], 0
        twin.expected, twin._fresh = self.expected[:], self._fresh[:]
        twin._sized = {alike: jobs[:] for alike, jobs in self._sized.items()}
        return twin

    def _alike(self, job: CountedJob) -> Hashable:
        """Return what jobs have in common of which the first in the queue is tried first."""
        return job.size

    def add(self, job: CountedJob) -> None:
        """Add a submitted job to the queue."""
        self._fresh.append(job)
        alike = self._alike(job)
        jobs = self._sized.get(alike)
        if jobs is None:
            self._sized[alike] = [job]
        elif job < jobs[-1]:
            insort(jobs, job)
        else:
            jobs.append(job)
        super().add(job)

    def release(self, limit: float, job_id: int) -> None:
        """Remove a running job that was expected to run until `limit`."""
        self.reserved = None
        del self.expected[bisect_left(self.expected, (limit, job_id))]

    def drop(self, job: CountedJob) -> None:
        """Remove a waiting job that will not start."""
        self._remove(job)
        if job in self._fresh:
            self._fresh.remove(job)
        if self.first == len(self.queue):
            self.queue.clear()
            self.first = 0

    def _remove(self, job: CountedJob) -> None:
        """Remove a job from the queue."""
        del self.queue[bisect_left(self.queue, job, self.first)]
        self._forget(job)

    def _forget(self, job: CountedJob) -> None:
        """Remove a job from the list of those alike."""
        alike = self._alike(job)
        jobs = self._sized[alike]
        if len(jobs) > 1:
            del jobs[bisect_left(jobs, job)]
        else:
            del self._sized[alike]

    def decide(self, now: float, free: int, start: Start) -> None:
        """Start heads while they fit; then backfill behind the head that does not fit."""
        queue, expected = self.queue, self.expected
        filled: list[CountedJob] = []
        if queue[self.first] is self.reserved and not (expected and expected[0][0] <= now):
            for job in self._fresh if len(self._fresh) < 2 else sorted(self._fresh):
                if job.size <= free and self._admits(job, now):
                    free -= job.size
                    filled.append(job)
        else:
            if queue[self.first].size <= free:
                head, free = self._behind(free)
                for job in queue[self.first:head]:
                    self._forget(job)
                self._cut(now, head, start)
                self.reserved = None
            if free and self.first + 1 < len(queue):
                filled = self._fill(now, free)
        if filled:
            for job in filled:
                self._remove(job)
            start(now, filled, True)
        self._fresh.clear()

    def _admits(self, job: CountedJob, now: float) -> bool:
        """Return whether a job that fits now does not delay the head; subtract what it holds at the
        shadow time from the spare units."""
        if now + job.expected > self._shadow:
            if job.size > self._spare:
                return False
            self._spare -= job.size
        return True

    def _fill(self, now: float, free: int) -> list[CountedJob]:
        """Make the reservation of the head; return the jobs that may start behind it, in queue order."""
        self._reserve(self.queue[self.first], now, free)
        filled: list[CountedJob] = []
        firsts, shadow, spare = [], self._shadow, self._spare
        for size, jobs in self._sized.items():
            if size <= spare and size <= free:
                firsts.append((jobs[0], 0, jobs))
            elif size <= free:
                for place, job in enumerate(jobs):
                    if now + job.expected <= shadow:
                        firsts.append((job, place, jobs))
                        break
        heapq.heapify(firsts)
        while firsts and free:
            job, place, jobs = firsts[0]
            if job.size <= free and self._admits(job, now):
                free -= job.size
                filled.append(job)
            place = self._next(jobs, place + 1, now) if job.size <= free else len(jobs)
            if place < len(jobs):
                heapq.heapreplace(firsts, (jobs[place], place, jobs))
            else:
                heapq.heappop(firsts)
        return filled

    def _next(self, jobs: list[CountedJob], place: int, now: float) -> int:
        """Return the index, from `place` on, of the first job that does not delay the head; the length of `jobs` if
        there is none. All jobs have the same size."""
        number, shadow = len(jobs), self._shadow
        if place < number and jobs[0].size > self._spare:
            while place < number and now + jobs[place].expected > shadow:
                place += 1
        return place

    def _reserve(self, head: CountedJob, now: float, free: int) -> None:
        """Compute the shadow time of the head, and how many units it leaves over then."""
        shadow, wanted = math.inf, head.size
        for end, _, units in self.expected:
            if end > shadow:
                break
            free += units
            if free >= wanted and shadow == math.inf:
                shadow = end if end > now else now
        self.reserved, self._shadow, self._spare = head, shadow, free - wanted


class Conservative(FirstInOrder):
    """Conservative backfilling with the schedule of `vrm.scheduling.backfilling.reservations.Reserving`, for runs in
    which the only unplanned events are early ends of jobs."""

    def __init__(self, machine: Cluster, policy: LanePolicy | CorePolicy) -> None:
        super().__init__()
        self._profile, self._table = CountProfile(0.0, machine, policy), ReservationTable[CountedJob]()
        self._fresh: list[CountedJob] = []  # jobs added since the last step
        self._freed = -math.inf  # until this time more is free than when reservations were last checked
        self._early = False  # whether a job ended early since the last step

    def add(self, job: CountedJob) -> None:
        """Add a submitted job to the queue."""
        self._fresh.append(job)
        super().add(job)

    def alone(self, now: float, job: CountedJob) -> None:
        """Add to the plan a job that starts because no other job waits."""
        self._profile.advance(now)
        self._profile.change(now, now + job.expected, -job.size)

    def ended(self, now: float, limit: float, job_id: int, size: int) -> None:
        """Return the units of a job to the plan if it ended before `limit`, its expected end."""
        if limit > now:
            self._profile.advance(now)
            self._profile.change(now, limit, size)
            self._freed = max(self._freed, limit)
            self._early = True

    def decide(self, now: float, free: int, start: Start) -> None:
        """Start the jobs whose reservations begin now."""
        queue, head, chosen = self.queue, self.first, self._due(now)
        for job in chosen:
            head += queue[head] is job
        overtake = chosen[head - self.first:]
        places = [bisect_left(queue, job, head) for job in overtake]
        if head > self.first:
            before = len(queue)
            self._cut(now, head, start)
            places = [at - before + len(queue) for at in places]
        if overtake:
            start(now, overtake, True)
            for at in reversed(places):
                del queue[at]

    def _due(self, now: float) -> list[CountedJob]:
        """Return the waiting jobs that start now, in queue order; set `wake` to the start of the next reservation."""
        profile, table = self._profile, self._table
        profile.advance(now)
        if not table.jobs:
            self._freed = -math.inf
        elif self._early:
            self._freed = fastest(len(table))(table, profile, self._freed, None)
        self._early = False
        for job in sorted(self._fresh):
            time = profile.hole(job.size, job.expected)
            profile.change(time, time + job.expected, -job.size)
            table.add(job, Slot(time), job.size, job)
        self._fresh.clear()
        due = table.due(now)
        for each in due:
            table.remove(each)
        self.wake = table.first_after(math.nextafter(now, math.inf))
        return sorted(due)
