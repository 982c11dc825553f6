"""Replays that only count free units: the results of `vrm.ext.forecast.replay` at a small part of its cost.

This is possible under EASY with a fixed queue order, if each job can run on any free units and nothing else prevents
a start. Then it is enough to know how many units are free, which jobs wait, and when running jobs end, but not which
cores a job has. Where nodes have features that some jobs need (those of a site's partitions), it is enough to know that
for each class of nodes, if jobs take the first free units and each class has consecutive nodes.
"""

from __future__ import annotations

import copy
import heapq
import math
from bisect import insort
from typing import NamedTuple
from collections.abc import Iterable, Sequence, Set

from vrm.ext.counting.node_classes import Counts, EasyOnClasses
from vrm.ext.counting.waiting import CountedJob, WithEasy
from vrm.ext.forecast.frozen import FrozenRun
from vrm.ext.forecast.replay import Durations
from vrm.model import Cluster, Dependency, Job, bits
from vrm.model.job import ANY, Infeasible
from vrm.model.policies import CountingPolicy
from vrm.scheduling.backfilling.easy import Easy
from vrm.scheduling.placement.by_core import CorePolicy
from vrm.workload.submission import Submission


class NotCounted(Exception):
    """Counting is not exact for this run."""


class CountedArrival(NamedTuple):
    """A submitted job, and the ids of the jobs that must end (with any result) before it may start."""

    job: CountedJob
    after: Set[int]


class RunSpan(NamedTuple):
    """Start and end of a job, in seconds."""

    start: float
    end: float


class CountedNeed(NamedTuple):
    """Units that a job needs, and its kind: which classes of nodes it may have."""

    size: int
    kind: int


class NodesAlike(NamedTuple):
    """A set of consecutive nodes with the same features."""

    nodes: int
    features: frozenset[str]


def _classes(cluster: Cluster, policy: CountingPolicy) -> list[NodesAlike]:
    """Return the classes of nodes, in order; [] if their nodes are not consecutive, all are alike, or jobs do not take
    the first free cores."""
    found: list[NodesAlike] = []
    if not (isinstance(policy, CorePolicy) and policy.first_free(Job(0, "", 1, 1.0))):
        return []
    for at, node in enumerate(cluster.nodes):
        if found and found[-1].features == node.features:
            found[-1] = NodesAlike(found[-1].nodes | 1 << at, node.features)
        elif any(node.features == each.features for each in found):
            return []
        else:
            found.append(NodesAlike(1 << at, node.features))
    return found if len(found) > 1 else []


Held = tuple[float, int, int]
"""A running job: when its units are expected to be free, its id, and how many become free."""


class CountedRun:
    """A run at one moment, as the start of replays. Raises NotCounted if counting is not exact for it."""

    def __init__(self, frozen: FrozenRun) -> None:
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
        self._needs: dict[object, CountedNeed] = {}
        self._classes = _classes(cluster, self.policy)
        self.kinds: dict[int, Counts] = {}  # the classes of nodes that jobs may have, by the kind of a counted job
        room = self.policy.room(cluster)
        if room is None:
            raise NotCounted
        self.room = room
        self.running = list(cluster.running())
        self.waiting: list[tuple[Job, Set[int]]] = [(job, frozenset()) for job in self.queue]  # and what must end first
        parked = [entry for entry in book.parked.values() if not entry.held]
        if any(entry.lacks or entry.wish is None for entry in parked) or any(
                entry.details.retries for entry in book.entries.values()):
            raise NotCounted
        known = {job_id for job_id, entry in book.entries.items() if not entry.state.ended}
        self.waiting += [(entry.job, self._after(entry.details.after) & known) for entry in parked]
        for job, _ in self.waiting:
            self.counted(job, 0.0)

    def counted(self, job: Job, run: float) -> CountedJob:
        """Return a job that runs for `run` seconds. Raises Infeasible if it can never run, or NotCounted."""
        need = self._needs.get(job.request)
        if need is None:
            self.frozen.run.scheduler.check(job)
            if job.priority or self.queue.prioritised:
                raise NotCounted
            need = self._needs[job.request] = self._need(job)
        return CountedJob(self.queue.key(job, 0.0), job.id, need.size, job.expected, job.walltime, job.submit, run,
                          kind=need.kind)

    def _need(self, job: Job) -> CountedNeed:
        """Return what is counted of a job. Raises NotCounted if that is not exact."""
        if not self._classes:
            if not self.policy.exact(job):
                raise NotCounted
            return CountedNeed(self.policy.size(job), 0)
        anywhere = job.but(request=job.request._replace(features=frozenset()))
        if not self.policy.exact(anywhere):
            raise NotCounted
        mine = tuple(at for at, one in enumerate(self._classes) if job.request.features <= one.features)
        kind = next((kind for kind, classes in self.kinds.items() if classes == mine), len(self.kinds))
        self.kinds[kind] = mine
        return CountedNeed(self.policy.size(anywhere), kind)

    def line(self) -> WithEasy:
        """Return the queue, without waiting jobs, and with the jobs that run."""
        cluster = self.frozen.state.cluster
        if not self._classes:
            return WithEasy((one.gives, one.job.id, cluster.returns(one.placement)) for one in self.running)
        cores = [cluster.layout.cores_of(one.nodes & cluster.up) for one in self._classes]
        return EasyOnClasses([bits.count(cluster.free_cores & here) for here in cores], self.kinds, (
            (one.gives, one.job.id, tuple(bits.count(one.placement.taken & here) for here in cores))
            for one in self.running))

    @staticmethod
    def _after(after: Sequence[Dependency]) -> set[int]:
        """Return the ids of the jobs that must end first. Raises NotCounted if their results matter."""
        if any(each.kind != ANY for each in after):
            raise NotCounted
        return {job_id for each in after for job_id in each.ids}

    def coming(self, one: Submission) -> CountedArrival:
        """Return a job that is submitted later, or raise NotCounted."""
        if not (one.plain or one._replace(after=()).plain):
            raise NotCounted
        try:
            return CountedArrival(self.counted(one.job, one.run), self._after(one.after))
        except Infeasible:
            raise NotCounted from None

    def draw(self, durations: Durations) -> CountedReplay:
        """Return a replay that begins at this moment, with these durations. Continue copies of it."""
        return CountedReplay(self, durations)


class CountedReplay:
    """A replay that can be copied at any moment and continued with `go`."""

    def __init__(self, base: CountedRun, durations: Durations) -> None:
        frozen = base.frozen
        self.end, self.fit, self.kill = frozen.end, frozen.fit and frozen.end < math.inf, frozen.kill
        self.room, self.wake = base.room, frozen.now if frozen.due or not base.running else math.inf
        self.events: list[tuple[float, bool, Held]] = []  # a heap: ends (True) and expected ends (False)
        self.running: dict[int, tuple[float, float]] = {}  # starts and undisturbed ends, by id
        self.ended: dict[int, tuple[float, float]] = {}
        self.blocked: dict[int, list[CountedArrival]] = {}  # by the id of the job that they wait for
        self.longest: list[tuple[float, CountedJob]] = []  # a heap by -limit: jobs that were queued; used with `fit`
        for booking in base.running:
            job, ran = booking.job, frozen.now - booking.start
            run = max(durations(job, max(0.0, ran)), ran)
            held = booking.gives, job.id, frozen.state.cluster.returns(booking.placement)
            self._runs(held, booking.start, booking.start + run, booking.expected_end, booking.limit)
        self.line = base.line()
        for job, after in base.waiting:
            self._come(CountedArrival(base.counted(job, durations(job, 0.0)), after))

    def copy(self) -> CountedReplay:
        """Return an independent copy."""
        twin = copy.copy(self)
        twin.line, twin.events, twin.longest = self.line.copy(), self.events[:], self.longest[:]
        twin.running, twin.ended = self.running.copy(), self.ended.copy()
        twin.blocked = {job_id: jobs[:] for job_id, jobs in self.blocked.items()}
        return twin

    def go(self, coming: Iterable[CountedArrival], until: Set[int] = frozenset(), started: bool = False
           ) -> dict[int, RunSpan]:
        """Continue the replay; return starts and ends by id (see `vrm.ext.forecast.replay.replay`), with `until` only
        of these jobs. `coming` are all later jobs, in order of time."""
        later, events, line, left = iter(coming), self.events, self.line, list(until)
        following = next(later, None)
        while True:
            now = min(self.wake, events[0][0] if events else math.inf,
                      math.inf if following is None else following.job.submit)
            if now > self.end or now == math.inf:
                break
            self.wake = math.inf
            while events and events[0][0] <= now:
                self._happens(*heapq.heappop(events))
            while following is not None and following.job.submit <= now:
                self._come(following)
                following = next(later, None)
            if self.room and now < self.end:
                if self.longest:
                    self._leave_out(now)
                if line.queue:
                    line.decide(now, self.room, self._start)
            while left and (left[-1] in self.ended or (started and left[-1] in self.running)):
                left.pop()
            if until and not left:
                break
        found = {**self.ended, **self.running}
        return {job_id: RunSpan(*found[job_id]) for job_id in until or found if job_id in found}

    def _runs(self, held: Held, start: float, end: float, expected: float, limit: float) -> None:
        """Record a running job; its end is an event, and `expected` too if it ends later."""
        self.running[held[1]] = start, end
        if self.kill and limit < end:
            end = limit
        heapq.heappush(self.events, (end, True, held))
        if end > expected:
            heapq.heappush(self.events, (expected, False, held))

    def _happens(self, now: float, ends: bool, held: Held) -> None:
        """Process the end of a job, or its expected end, which only causes a decision."""
        if ends:
            limit, job_id, size = held
            self.line.release(limit, job_id)
            self.room += size
            self.ended[job_id] = self.running.pop(job_id)[0], now
            for arrival in self.blocked.pop(job_id, ()):
                self._come(arrival)

    def _come(self, arrival: CountedArrival) -> None:
        """Add a job to the queue, or block it until another job has ended."""
        job, after = arrival
        waits = after - self.ended.keys() if after else after
        if waits:  # any of them will do: at its end, the rest is checked again
            self.blocked.setdefault(min(waits), []).append(arrival)
            return
        self.line.add(job)
        if self.fit:
            heapq.heappush(self.longest, (-job.limit, job))

    def _leave_out(self, now: float) -> None:
        """Remove jobs that might not end before the allocation does."""
        longest = self.longest
        while longest and now - longest[0][0] > self.end:
            job = heapq.heappop(longest)[1]
            if job.id not in self.running and job.id not in self.ended:
                self.line.drop(job)

    def _start(self, now: float, jobs: Sequence[CountedJob], overtake: bool = False) -> None:
        """Start jobs at `now`."""
        for _, job_id, size, expected, limit, _, run, _, _ in jobs:
            self.room -= size
            held = (now + expected, job_id, size)
            insort(self.line.expected, held)
            self._runs(held, now, now + run, held[0], now + limit)
