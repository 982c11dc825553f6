"""The event loop where counts say all: FCFS or another fixed order, alone, with EASY or with conservative
backfilling, over a trace.

On nodes that all hold equally many ranks of each job, under a policy that gives jobs their nodes (or
cores) for themselves, when jobs start depends on nothing but how much is free. Then this loop
counts, and makes no jobs, no bookings and no placements; the schedule is that of
`vrm.simulation.engine`, to the last figure (tests/ext/counting/test_counting.py compares them). It is a
shortcut for long traces: it reads columns, notes which job starts when, and all else follows from that
(`vrm.ext.counting.counted`); places are found by `vrm.ext.counting.placing`, where jobs are written.

Whether it can take a run is known before that begins: `why_not` says what is against it by the rules, and
`CountingSimulator.read`, which reads the whole trace, by its jobs.
"""

from __future__ import annotations

import bisect
import heapq
import math
from functools import partial
from itertools import chain
from typing import Any, NamedTuple
from collections.abc import Callable, Iterable, Mapping

from vrm.model.cluster import Cluster
from vrm.model.job import Infeasible, Job, Request
from vrm.scheduling.backfilling.easy import Easy, NoBackfilling
from vrm.scheduling.placement.by_core import CorePolicy
from vrm.scheduling.backfilling.compressing import ReservationTable, fastest
from vrm.scheduling.placement.lanes import LanePolicy
from vrm.scheduling.backfilling.profile import CountProfile, Slot
from vrm.scheduling.backfilling.reservations import Reserving
from vrm.scheduling.scheduler import Scheduler
from vrm.ext.counting.counted import BATCH, Counted
from vrm.simulation.library import ComposedSimulation
from vrm.simulation.results import Results
from vrm.workload.swf import Trace

MOST_JOBS = 1 << 40
"""More than ever come."""

CHUNK = 4096
"""Jobs whose columns become tuples at a time."""


class Coming(NamedTuple):
    """A job: its place in the order of the queue and id, by which jobs are sorted; its submission, its number
    in the trace (from 0), size, run time and estimate (s)."""

    key: Any
    id: int
    submit: float
    number: int
    size: int
    run: float
    expected: float


_coming = partial(tuple.__new__, Coming)

NEVER = Coming(math.inf, 0, math.inf, 0, 0, 0.0, 0.0)
"""What comes after the last job."""

Start = Callable[..., None]
"""Starts jobs now: a time, the jobs, and whether they overtake others."""


class Need(NamedTuple):
    """What jobs with a request take: nodes, and units of what is counted; 0 and 0, with the reason, if they never
    fit. None as request: so many cores."""

    request: Request | None
    nodes: int
    size: int
    never: str = ""


def why_not(source: Any, scheduler: Scheduler, besides: Mapping[str, Any]) -> str:
    """Why counts do not say all of this workload under these policies, "" where they do. `besides` says what else
    is against it, by what it is."""
    dispatcher, policy, against = scheduler.dispatcher, scheduler.policy, dict(besides)
    if not isinstance(source, Trace) or not isinstance(policy, (LanePolicy, CorePolicy)):
        return "a workload that is not a trace" if not isinstance(source, Trace) else f"the policy {policy.name}"
    against["jobs that outrun their estimates"] = source.rules.keep_estimates
    against[f"the backfilling {dispatcher.name}"] = getattr(dispatcher, "order", None) is not None or not (
        type(dispatcher) in (NoBackfilling, Easy)
        or (type(dispatcher) is Reserving and dispatcher.kept and dispatcher.depth is None))
    against["an order that changes"] = not scheduler.ordering.static
    against["an interval"], against["queues"] = scheduler.interval, scheduler.queues
    against["a policy that follows each step"] = policy.follower is not None
    against["nodes that differ"] = not policy.exact(Job(0, "", 1, 1.0))
    return next((what for what, there in against.items() if there), "")


def count(simulation: ComposedSimulation, progress: Callable[[float, int, int], None] | None
          ) -> CountingSimulator | None:
    """An engine for a simulation of which counts say all; None for others."""
    if why_not(simulation.source, simulation.scheduler, simulation.besides):
        return None
    engine = CountingSimulator(simulation.scheduler, simulation.cluster, simulation.results, progress)
    if not engine.read(simulation.source):
        return engine
    simulation.forget()
    return None


class FirstInOrder:
    """The jobs that wait, of which the first start while they fit; the base of the others.

    `queue` is in order, and `first` the place of its head. `expected` are the running jobs by their expected ends
    (end, id, size), where these count. `wake`: when the next step is due although nothing may happen by then."""

    expected: list[tuple[float, int, int]] | None = None
    wake = math.inf

    def __init__(self) -> None:
        self.queue: list[Coming] = []
        self.first = 0
        self.reserved: Coming | None = None  # the head of which is known when others put it off

    def add(self, job: Coming) -> None:
        """A job comes."""
        if not self.queue or job > self.queue[-1]:
            self.queue.append(job)
        else:
            bisect.insort(self.queue, job, self.first)
            self.reserved = None

    def alone(self, now: float, job: Coming) -> None:
        """A job starts since nobody waits."""

    def ended(self, now: float, limit: float, job_id: int, size: int) -> None:
        """A job ended that was expected to run until then."""

    def decide(self, now: float, free: int, start: Start) -> None:
        """Start what starts now; there are jobs that wait."""
        if self.queue[self.first].size <= free:
            self._start_heads(now, free, start)

    def _start_heads(self, now: float, free: int, start: Start) -> int:
        """Start the first ones while they fit; what is free then."""
        queue, head = self.queue, self.first
        waiting = len(queue)
        while head < waiting and queue[head].size <= free:
            free -= queue[head].size
            head += 1
        self._cut(now, head, start)
        return free

    def _cut(self, now: float, head: int, start: Start) -> None:
        """Start the jobs before this place, which is that of the head then."""
        queue = self.queue
        start(now, queue[self.first:head])
        self.first = head
        if head == len(queue) or (head > 1000 and head * 2 > len(queue)):
            del queue[:head]
            self.first = 0


class WithEasy(FirstInOrder):
    """EASY: the head gets what is free at its shadow time, others what that leaves over. Both hold until a job ends
    or another one starts as the head."""

    def __init__(self) -> None:
        super().__init__()
        self.expected: list[tuple[float, int, int]] = []
        self._shadow, self._spare = 0.0, 0
        self._looked = 0  # the jobs before this place do not fit behind it

    def decide(self, now: float, free: int, start: Start) -> None:
        """Start heads, and fill in behind the one that does not fit."""
        queue = self.queue
        if queue[self.first].size <= free:
            free = self._start_heads(now, free, start)
            self.reserved = None
        if free and self.first + 1 < len(queue):
            filled = self._fill(now, free)
            if filled:
                start(now, [queue[at] for at in filled], True)
                for at in reversed(filled):
                    del queue[at]
            self._looked = len(queue)

    def _fill(self, now: float, free: int) -> list[int]:
        """The places of the jobs that start behind the head."""
        queue, head, begin = self.queue, self.queue[self.first], self._looked
        shadow, spare, filled = self._shadow, self._spare, []
        if head is not self.reserved:
            self.reserved, shadow, spare, begin = head, math.inf, free, self.first + 1
            for end, _, units in self.expected:
                if end > shadow:
                    break
                spare += units
                if spare >= head.size and end < shadow:
                    shadow = end
            spare -= head.size
        for at in range(begin, len(queue)):
            job = queue[at]
            if job.size <= free:
                if now + job.expected > shadow:
                    if job.size > spare:
                        continue
                    spare -= job.size
                filled.append(at)
                free -= job.size
                if not free:
                    break
        self._shadow, self._spare = shadow, spare
        return filled


class Conservative(FirstInOrder):
    """Conservative backfilling, as `vrm.scheduling.backfilling.reservations.Reserving` has it, where nothing happens
    that is not planned but early ends."""

    def __init__(self, machine: Cluster, policy: LanePolicy | CorePolicy) -> None:
        super().__init__()
        self._profile, self._table = CountProfile(0.0, machine, policy), ReservationTable[Coming]()
        self._fresh: list[Coming] = []  # the jobs that came since the last step
        self._freed = -math.inf  # until then more is free than when each reservation was last looked at
        self._early = False  # whether a job ended early since the last step

    def add(self, job: Coming) -> None:
        """A job comes."""
        self._fresh.append(job)
        super().add(job)

    def alone(self, now: float, job: Coming) -> None:
        """A job starts since nobody waits."""
        self._profile.advance(now)
        self._profile.change(now, now + job.expected, -job.size)

    def ended(self, now: float, limit: float, job_id: int, size: int) -> None:
        """A job ended that was expected to run until then."""
        if limit > now:
            self._profile.advance(now)
            self._profile.change(now, limit, size)
            self._freed = max(self._freed, limit)
            self._early = True

    def decide(self, now: float, free: int, start: Start) -> None:
        """Start the jobs whose reservations begin."""
        queue, head, chosen = self.queue, self.first, self._due(now)
        for job in chosen:
            head += queue[head] is job
        overtake = chosen[head - self.first:]
        places = [bisect.bisect_left(queue, job, head) for job in overtake]
        if head > self.first:
            before = len(queue)
            self._cut(now, head, start)
            places = [at - before + len(queue) for at in places]
        if overtake:
            start(now, overtake, True)
            for at in reversed(places):
                del queue[at]

    def _due(self, now: float) -> list[Coming]:
        """The waiting jobs that start now, in order; then the next reservation begins at `wake`."""
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


class CountingSimulator:
    """Runs a trace by counting; `progress` is called as by `vrm.simulation.engine.Simulator`."""

    def __init__(self, scheduler: Scheduler, machine: Cluster, results: Results,
                 progress: Callable[[float, int, int], None] | None = None) -> None:
        assert isinstance(scheduler.policy, (LanePolicy, CorePolicy))
        self.policy, self.ordering, self.machine = scheduler.policy, scheduler.ordering, machine
        self.line = (WithEasy() if isinstance(scheduler.dispatcher, Easy)
                     else Conservative(machine, self.policy) if isinstance(scheduler.dispatcher, Reserving)
                     else FirstInOrder())
        room = self.policy.room(machine)
        assert room is not None
        self.free = room
        self.results, self.counted, self.progress = results, Counted(results), progress
        self.events = self.ended = self.left = 0
        self._needs: dict[int | Request, Need] = {}
        self._needed: list[Need] = []  # of each job
        self._running: list[tuple[float, int, int, float]] = []  # end, id, size, expected end; a heap
        self._kept = self.counted.log, self.counted.times, self._running, self.line.expected

    def read(self, trace: Trace) -> str:
        """Read all jobs. Return why one of them cannot be counted, "" where all can."""
        for block in trace.blocks(self.results.users, self.results.apps):
            first = self.counted.add(block)
            wanted: list[int | Request] = block.procs.tolist()
            for at, request in block.requests.items():
                wanted[at] = request
            for new in set(wanted) - self._needs.keys():
                at = wanted.index(new)
                job = self.counted.job(first + at, block.requests.get(at))
                need = self._needs[new] = self._need(job, block.requests.get(at))
                if not need.never and not self.policy.exact(job):
                    return f"what job {job.id} asks for"
            self._needed += map(self._needs.__getitem__, wanted)
        return ""

    def _need(self, job: Job, request: Request | None) -> Need:
        try:
            return Need(request, self.policy.nodes(job), self.policy.size(job))
        except Infeasible as reason:
            return Need(request, 0, 0, str(reason))

    def _chunk(self, first: int) -> Iterable[Coming]:
        """The jobs from this number on, as many as become tuples at a time."""
        needs = self._needed[first:first + CHUNK]
        ids, procs, submits, runs, estimates = self.counted.columns(first, first + CHUNK)
        keys = submits  # who waits longer was submitted earlier
        if self.ordering.name != "FCFS":
            keys = [self.ordering.key(Job(job_id, "", wanted, estimate, submit, request=need.request), 0.0, need.nodes)
                    for job_id, wanted, estimate, submit, need in zip(ids, procs, estimates, submits, needs)]
        return map(_coming, zip(keys, ids, submits, range(first, first + CHUNK), [need.size for need in needs], runs,
                                estimates))

    def _refuse(self, now: float, job: Coming) -> None:
        """A job comes that is too large."""
        need = self._needed[job.number]
        self.counted.log.append(~job.number)
        self.counted.times.append(now)
        self.results.refused(self.counted.job(job.number, need.request), need.never)

    def _start(self, now: float, jobs: list[Coming], overtake: bool = False) -> None:
        """Start jobs."""
        log, times, running, expected = self._kept
        if overtake:
            self.counted.overtook.extend(range(len(log), len(log) + len(jobs)))
        for _, job_id, _, number, size, run, estimate in jobs:
            log.append(number)
            times.append(now)
            self.free -= size
            limit = now + estimate
            heapq.heappush(running, (now + run, job_id, size, limit))
            if expected is not None:
                bisect.insort(expected, (limit, job_id, size))

    def run(self) -> None:
        """Run all jobs that were read to their ends."""
        counted, progress, line, running, pop = self.counted, self.progress, self.line, self._running, heapq.heappop
        queue, add, ended, decide, start, log = line.queue, line.add, line.ended, line.decide, self._start, counted.log
        expected, find = line.expected, bisect.bisect_left
        due = BATCH if counted.place(self.policy, self.machine) else MOST_JOBS
        source = chain(chain.from_iterable(map(self._chunk, range(0, len(self._needed), CHUNK))), [NEVER])
        following, moments = next(source), 0
        submit = following.submit
        try:
            while running or submit < math.inf or line.wake < math.inf:
                now = running[0][0] if running and running[0][0] < submit else submit
                now = line.wake if line.wake < now else now
                while running and running[0][0] <= now:  # ends, then submissions
                    _, job_id, size, limit = pop(running)
                    self.free += size
                    self.ended += 1
                    if expected is None:
                        ended(now, limit, job_id, size)
                    else:
                        line.reserved = None
                        del expected[find(expected, (limit, job_id))]
                while submit <= now:
                    job, following = following, next(source)
                    submit = following.submit
                    if not job.size:
                        self._refuse(now, job)
                    elif not queue and job.size <= self.free and submit > now:
                        start(now, [job])  # it is alone and fits: the same as through the queue
                        line.alone(now, job)
                    else:
                        add(job)
                if queue:
                    decide(now, self.free, start)
                moments += 1
                if len(log) >= due:
                    counted.hand_over(self.ended)
                    due += BATCH
                if progress is not None and moments % 1000 == 0:
                    progress(now, self.ended, len(queue) - line.first)
        finally:
            self.events = moments
            counted.finish(self.ended, moments)
