"""Replays where counts of cores say all: the same as `vrm.ext.forecast.replay`, at a small part of its cost.

That is so under EASY in an order that does not change, where any free cores will do for each job and nothing else
stands against one. Nobody needs to know then which cores a job has: only how many are free, who waits, and who ends
when.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from typing import NamedTuple
from collections.abc import Iterable, Iterator, Sequence, Set

from vrm.ext.forecast.frozen import Frozen
from vrm.ext.forecast.replay import Durations
from vrm.model import Dependency, Job
from vrm.model.job import ANY, Infeasible
from vrm.scheduling.backfilling.easy import Easy
from vrm.workload.submission import Submission


class NotCounted(Exception):
    """Counts do not say all."""


class CountedJob(NamedTuple):
    """A job as it is counted: its place in the order, its cores, how long it is expected to take and at most, and its
    id."""

    key: tuple[float, ...]
    size: int
    expected: float
    walltime: float
    id: int


class Held(NamedTuple):
    """A job that runs: when it is expected to end, the cores that come back then, and its id."""

    end: float
    size: int
    id: int


class CountedArrival(NamedTuple):
    """A job that comes: when, how long it will run, and for whose ends it waits, however they end."""

    job: CountedJob
    submit: float
    run: float
    after: Set[int]


_END, _EXPECTED = 0, 1

Event = tuple[float, int, int]
"""When a job (its id) ends, or is expected to (the kind)."""


class DrawnRuns(NamedTuple):
    """How long jobs take from their starts on (s), by id; what happens to those that run, as a heap; and when these
    have begun."""

    runs: dict[int, float]
    events: list[Event]
    begun: dict[int, float]


NOTHING = DrawnRuns({}, [], {})
"""Of a run without jobs."""


class RunSpan(NamedTuple):
    """When a job starts and ends, in seconds."""

    start: float
    end: float


class CountedRun:
    """A run at one moment, from which replays go on. NotCounted where counts do not say all."""

    def __init__(self, frozen: Frozen) -> None:
        self.frozen = frozen
        run, state, cluster = frozen.run, frozen.state, frozen.state.cluster
        scheduler, book = run.scheduler, state.book
        dispatcher, self.policy, self.queue = scheduler.dispatcher, scheduler.policy, state.queue
        if not (type(dispatcher) is Easy and dispatcher.order is None and scheduler.ordering.static):
            raise NotCounted
        if any((scheduler.interval, scheduler.queues, self.policy.follower, run.expectations, frozen.speedups,
                state.reservations, cluster.calendar, cluster.constraints, cluster.loans, cluster.programs,
                self.queue.outside, self.queue.bound, book.begins, book.deadlines, book.ends and book.parked)):
            raise NotCounted
        self._sizes: dict[object, int] = {}
        room = self.policy.room(cluster)
        if room is None:
            raise NotCounted
        self.room = room
        self.running = list(cluster.running())
        self.ends = sorted(Held(each.gives, cluster.returns(each.placement), each.job.id) for each in self.running)
        self.inside = [*self.queue]
        self.waiting = sorted(map(self.counted, self.inside))
        self.alike: dict[tuple[int, float, float], list[CountedJob]] = {}  # by cores and times
        for job in self.waiting:
            self.alike.setdefault(job[1:4], []).append(job)
        parked = [entry for entry in book.parked.values() if not entry.held]
        if any(entry.lacks or entry.wish is None for entry in parked) or any(
                entry.details.retries for entry in book.entries.values()):
            raise NotCounted
        known = {job_id for job_id, entry in book.entries.items() if not entry.state.ended}
        self.parked = [(entry.job, self._after(entry.details.after) & known) for entry in parked]

    def counted(self, job: Job) -> CountedJob:
        """A job that comes; Infeasible for one that can never run."""
        size = self._sizes.get(job.request)
        if size is None:
            self.frozen.run.scheduler.check(job)
            if not self.policy.exact(job) or job.priority or self.queue.prioritised:
                raise NotCounted
            size = self._sizes[job.request] = self.policy.size(job)
        return CountedJob(self.queue.key(job, 0.0), size, job.expected, job.walltime, job.id)

    @staticmethod
    def _after(after: Sequence[Dependency]) -> set[int]:
        """The jobs for whose ends one waits, however they end."""
        if any(each.kind != ANY for each in after):
            raise NotCounted
        return {job_id for each in after for job_id in each.ids}

    def coming(self, one: Submission) -> CountedArrival:
        """A job that comes later."""
        if not (one.plain or one._replace(after=()).plain):
            raise NotCounted
        try:
            return CountedArrival(self.counted(one.job), one.job.submit, one.run, self._after(one.after))
        except Infeasible:
            raise NotCounted from None

    def draw(self, durations: Durations) -> DrawnRuns:
        """What is known of its jobs once it is known how long they take."""
        runs, events = {}, list[Event]()
        for booking in self.running:
            job_id, ran = booking.job.id, self.frozen.now - booking.start
            runs[job_id] = max(durations(booking.job, max(0.0, ran)), ran)
            events += _events(job_id, booking.start + runs[job_id], booking.expected_end,
                              booking.limit if self.frozen.kill else math.inf)
        for job in [*self.inside, *(job for job, _ in self.parked)]:
            runs[job.id] = durations(job, 0.0)
        heapq.heapify(events)
        return DrawnRuns(runs, events, {booking.job.id: booking.start for booking in self.running})

    def replay(self, drawn: DrawnRuns, coming: Iterable[CountedArrival], until: Set[int] = frozenset(),
               started: bool = False) -> dict[int, RunSpan]:
        """What `vrm.ext.forecast.replay.replay` gives. `coming` are all that come later, in order of time."""
        return _Replay(self, drawn, until, started).go(iter(coming))


def _events(job_id: int, end: float, expected: float, limit: float) -> list[Event]:
    """The end of a job, and that it should have ended before."""
    end = min(end, limit)
    return [(expected, _EXPECTED, job_id)] * (end > expected) + [(end, _END, job_id)]


class _Replay:
    """One replay."""

    def __init__(self, base: CountedRun, drawn: DrawnRuns, until: Set[int], started: bool) -> None:
        frozen = base.frozen
        self.base, self.runs, self.events, self.begun = base, drawn.runs.copy(), drawn.events[:], drawn.begun.copy()
        self.left, self.stops, self.started = set(until), bool(until), started
        self.end, self.fit, self.kill = frozen.end, frozen.fit and frozen.end < math.inf, frozen.kill
        self.room, self.waiting, self.ends = base.room, base.waiting[:], base.ends[:]
        self.held = {each.id: each for each in base.ends}
        self.spans: dict[int, RunSpan] = {}
        self.fresh: list[CountedJob] = []  # that came since the last decision
        self.alike = {kind: jobs[:] for kind, jobs in base.alike.items()}
        self.blocked: dict[int, list[tuple[CountedJob, Set[int]]]] = {}  # by the ids for whose ends they wait
        # The reservation of the head of the queue, as long as nothing starts or ends besides.
        self.head: CountedJob | None = None
        self.shadow, self.spare = math.inf, 0

    def go(self, later: Iterator[CountedArrival]) -> dict[int, RunSpan]:
        """All of it."""
        frozen, events = self.base.frozen, self.events
        for job, after in self.base.parked:
            self._come(self.base.counted(job), after)
        self.fresh.clear()
        wake = frozen.now if frozen.due or not self.base.running else math.inf
        one = next(later, None)
        while True:
            now = min(wake, events[0][0] if events else math.inf, math.inf if one is None else one.submit)
            if now > self.end or now == math.inf:
                break
            wake = math.inf
            while events and events[0][0] <= now:
                self._happens(*heapq.heappop(events))
            while one is not None and one.submit <= now:
                self.runs[one.job.id] = one.run
                self._come(one.job, one.after)
                one = next(later, None)
            if self.room and (self.fit or not self._idle(now)):
                self._decide(now)
            if self.stops and not self.left:
                break
        self.spans.update((job_id, RunSpan(start, start + self.runs[job_id])) for job_id, start in self.begun.items())
        return self.spans

    def _happens(self, now: float, kind: int, job_id: int) -> None:
        """A job ends, or should have ended."""
        self.head = None
        if kind == _EXPECTED:
            return
        held = self.held.pop(job_id)
        del self.ends[bisect_left(self.ends, held)]
        self.room += held.size
        self.spans[job_id] = RunSpan(self.begun.pop(job_id), now)
        self.left.discard(job_id)
        for job, after in self.blocked.pop(job_id, ()):
            self._come(job, after)

    def _come(self, job: CountedJob, after: Set[int]) -> None:
        """A job may start, or waits for others."""
        waits = {job_id for job_id in after if job_id not in self.spans} if after else after
        if waits:  # the next of them is as good as any
            self.blocked.setdefault(min(waits), []).append((job, waits))
        else:
            for jobs in (self.waiting, self.alike.setdefault(job[1:4], [])):
                if jobs and job < jobs[-1]:
                    insort(jobs, job)
                else:
                    jobs.append(job)
            self.fresh.append(job)

    def _idle(self, now: float) -> bool:
        """Whether none of those that came can start, as the reservation stands."""
        head = self.head
        if head is None or self.shadow <= now or (self.ends and self.ends[0][0] <= now):
            return False
        for job in self.fresh:
            if job < head or (job[1] <= self.room and (job[1] <= self.spare or now + job[2] <= self.shadow)):
                return False
        self.fresh.clear()
        return True

    def _gone(self, job: CountedJob) -> None:
        """A job leaves the queue."""
        del self.waiting[bisect_left(self.waiting, job)]
        alike = self.alike[job[1:4]]
        del alike[bisect_left(alike, job)]
        if not alike:
            del self.alike[job[1:4]]

    def _decide(self, now: float) -> None:
        """Start what may start."""
        if self.fit:
            late = [jobs for kind, jobs in self.alike.items() if now + kind[2] > self.end]
            for job in [job for jobs in late for job in jobs]:
                self._gone(job)
            self.fresh = [job for job in self.fresh if now + job.walltime <= self.end]
        if now < self.end and self.waiting:
            head = self.waiting[0]
            if head is self.head and self.shadow > now and not (self.ends and self.ends[0].end <= now):
                for job in self.fresh if len(self.fresh) < 2 else sorted(self.fresh):
                    self._fill(job, now)
            else:
                self._decide_anew(now)
        self.fresh.clear()

    def _decide_anew(self, now: float) -> None:
        """Start those at the head of the queue, reserve for the one that does not fit, and start those behind it that
        do not delay it: of those that are alike, which have the same cores and times, the first ones."""
        while self.waiting and self.waiting[0].size <= self.room:
            job = self.waiting[0]
            self._start(job, now)
            self._gone(job)
        self.head = None
        if not self.room or not self.waiting:
            return
        self._reserve(self.waiting[0], now)
        room, spare = self.room, self.spare
        firsts = [(jobs[0], jobs) for (size, expected, _), jobs in self.alike.items()
                  if size <= room and (size <= spare or now + expected <= self.shadow)]
        heapq.heapify(firsts)
        while firsts and self.room:
            job, alike = firsts[0]
            if self._fill(job, now) and alike:
                heapq.heapreplace(firsts, (alike[0], alike))
            else:
                heapq.heappop(firsts)

    def _start(self, job: CountedJob, now: float) -> None:
        _, size, expected, walltime, job_id = job
        self.room -= size
        held = self.held[job_id] = Held(now + expected, size, job_id)
        insort(self.ends, held)
        self.begun[job_id] = now
        for event in _events(job_id, now + self.runs[job_id], held.end, now + walltime if self.kill else math.inf):
            heapq.heappush(self.events, event)
        if self.started:
            self.left.discard(job_id)

    def _fill(self, job: CountedJob, now: float) -> bool:
        """Start a job behind the head if it does not delay it; whether it has started."""
        if job.size > self.room:
            return False
        if now + job.expected > self.shadow:
            if job.size > self.spare:
                return False
            self.spare -= job.size
        self._start(job, now)
        self._gone(job)
        return True

    def _reserve(self, head: CountedJob, now: float) -> None:
        """When the head can start, and how many cores are spare then (see `vrm.scheduling.backfilling.shadow`)."""
        self.head, self.shadow, room = head, math.inf, self.room
        for end, size, _ in self.ends:
            if end > self.shadow:
                break
            room += size
            if room >= head.size and self.shadow == math.inf:
                self.shadow = max(end, now)
        self.spare = room - head.size
