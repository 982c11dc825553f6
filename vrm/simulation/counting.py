"""The event loop where counts say all: FCFS or another fixed order, alone, with EASY or with conservative
backfilling, over a trace.

On nodes that all hold equally many ranks of each job, under a policy that gives jobs their nodes (or
cores) for themselves, when jobs start depends on nothing but how much is free. Then this loop
counts, and makes no jobs, no bookings and no placements; the schedule is that of
`vrm.simulation.engine`, to the last figure (tests/simulation/test_counting.py compares them). It is a
shortcut for long traces: it reads columns, notes which job starts when, and all else follows from that
(`vrm.simulation.counted`); places are found by `vrm.simulation.placing`, where jobs are written.
"""

from __future__ import annotations

import bisect
import heapq
import math
from itertools import chain
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Tuple, Union

from vrm.model.cluster import Cluster
from vrm.model.job import Infeasible, Job, Request
from vrm.scheduling.backfilling import Easy, NoBackfilling
from vrm.scheduling.by_core import CorePolicy
from vrm.scheduling.compressing import Table, fastest
from vrm.scheduling.dispatcher import Dispatcher
from vrm.scheduling.lanes import LanePolicy
from vrm.scheduling.profile import CountProfile, Slot
from vrm.scheduling.reservations import Reserving
from vrm.scheduling.scheduler import Scheduler
from vrm.simulation.counted import BATCH, Counted
from vrm.simulation.results import Results
from vrm.workload.columns import Block
from vrm.workload.swf import Trace

MOST_JOBS = 1 << 40
"""More than ever come at one moment."""

Coming = Tuple[Any, int, float, int, int, float, float]
"""A job: its place in the order of the queue and id, by which jobs are sorted; its submission, its number
in the trace (from 0), size, run time and estimate."""

Running = Tuple[float, int, int, float]
"""End, id, size and expected end of a running job."""

NEVER: Coming = (math.inf, 0, math.inf, 0, 0, 0.0, 0.0)
"""What comes after the last job."""


def possible(source: Any, scheduler: Scheduler) -> bool:
    """Whether counts say all of this workload under these policies."""
    return (isinstance(source, Trace) and not source.keep_estimates  # no job outruns its estimate
            and (type(scheduler.dispatcher) in (NoBackfilling, Easy) or _conservative(scheduler.dispatcher))
            and getattr(scheduler.dispatcher, "order", None) is None
            and scheduler.ordering.static and not scheduler.interval
            and isinstance(scheduler.policy, (LanePolicy, CorePolicy))
            and scheduler.policy.follower is None  # it is to be told each step
            and not scheduler.queues
            and scheduler.policy.exact(Job(0, "", 1, 1.0)))


def _conservative(dispatcher: Dispatcher) -> bool:
    """Whether every job has a reservation, which is kept."""
    return type(dispatcher) is Reserving and dispatcher.kept and dispatcher.depth is None


class Uncountable(Exception):
    """A job came of which counts do not say all: the run has to begin again with the engine."""


class Planned(NamedTuple):
    """A job that has a reservation."""

    id: int
    expected: float
    job: Coming


class Plan:
    """Conservative backfilling, as `vrm.scheduling.reservations.Reserving` has it, where nothing happens that
    is not planned but early ends."""

    def __init__(self, machine: Cluster, policy: Union[LanePolicy, CorePolicy]) -> None:
        self._profile, self._table = CountProfile(0.0, machine, policy), Table[Planned]()
        self._freed = -math.inf  # until then more is free than when each reservation was last looked at
        self._early = False  # whether a job ended early since the last step

    def start(self, now: float, job: Coming) -> None:
        """A job starts since nobody waits."""
        self._profile.advance(now)
        self._profile.change(now, now + job[6], -job[4])

    def ended(self, now: float, limit: float, size: int) -> None:
        """A job ended that was expected to run until then."""
        if limit > now:
            self._profile.advance(now)
            self._profile.change(now, limit, size)
            self._freed = max(self._freed, limit)
            self._early = True

    def step(self, now: float, fresh: List[Coming]) -> Tuple[List[Coming], float]:
        """The waiting jobs that start now, in order, and when the next reservation begins. `fresh` are the jobs
        that came since the last step."""
        profile, table = self._profile, self._table
        profile.advance(now)
        if not table.jobs:
            self._freed = -math.inf
        elif self._early:
            self._freed = fastest(len(table))(table, profile, self._freed, None)
        self._early = False
        for job in sorted(fresh):
            _, job_id, _, _, size, _, estimate = job
            time = profile.hole(size, estimate)
            profile.change(time, time + estimate, -size)
            table.add(Planned(job_id, estimate, job), Slot(time), size, job)
        due = table.due(now)
        for each in due:
            table.remove(each)
        return sorted(each.job for each in due), table.first_after(math.nextafter(now, math.inf))


class CountingSimulator:
    """Runs a trace by counting; `progress` is called as by `vrm.simulation.engine.Simulator`."""

    def __init__(self, scheduler: Scheduler, machine: Cluster, results: Results,
                 progress: Optional[Callable[[float, int, int], None]] = None) -> None:
        assert isinstance(scheduler.policy, (LanePolicy, CorePolicy))
        self.policy = scheduler.policy
        self.easy = isinstance(scheduler.dispatcher, Easy)
        self.plan = Plan(machine, scheduler.policy) if _conservative(scheduler.dispatcher) else None
        self.ordering = scheduler.ordering
        room = self.policy.room(machine)
        assert room is not None
        self.room = room
        self.results = results
        self.counted = Counted(results, self.policy, machine)
        self.progress = progress
        self.events = self.ended = self.left = 0
        self._needs: Dict[Union[int, Request], Tuple[int, int]] = {}  # nodes and size of jobs
        self._never: Dict[int, Tuple[Job, str]] = {}  # jobs that are too large, and why

    def run(self, trace: Trace) -> None:
        """Run all jobs of the trace to their ends; Uncountable when one of them cannot be counted."""
        self._run(trace)

    def _coming(self, block: Block) -> Iterable[Coming]:
        """The jobs of a block; the size of one that is too large is 0."""
        first = self.counted.add(block)
        submits, ids, procs, estimates = (
            column.tolist() for column in (block.submit, block.ids, block.procs, block.estimate))
        sizes: List[int] = []
        keys: Any = submits  # who waits longer was submitted earlier
        if self.ordering.name != "FCFS":
            keys = []
        for at, wanted in enumerate(procs):
            request = block.requests.get(at) if block.requests else None
            need = self._needs.get(wanted if request is None else request)
            if need is None:
                need = self._need(first + at, ids[at], wanted, estimates[at], submits[at], request)
            sizes.append(need[1])
            if keys is not submits:
                job = Job(ids[at], "", wanted, estimates[at], submits[at], request=request)
                keys.append(self.ordering.key(job, 0.0, need[0]))
        return zip(keys, ids, submits, range(first, first + len(ids)), sizes, block.run.tolist(), estimates)

    def _need(self, number: int, job_id: int, procs: int, estimate: float, submit: float,
              request: Optional[Request]) -> Tuple[int, int]:
        """Nodes and size of a job; 0 and 0 if it never fits."""
        job = Job(job_id, self.counted.app_of(number), procs, estimate, submit, request=request)
        try:
            need = self.policy.nodes(job), self.policy.size(job)
        except Infeasible as reason:
            self._never[number] = job, str(reason)
            return 0, 0
        if not self.policy.exact(job):
            raise Uncountable
        self._needs[procs if request is None else request] = need
        return need

    def _run(self, trace: Trace) -> None:
        """The loop."""
        counted, easy, plan, progress = self.counted, self.easy, self.plan, self.progress
        push, pop, insort = heapq.heappush, heapq.heappop, bisect.insort
        log, times, overtook = counted.log, counted.times, counted.overtook
        free, ended, moments = self.room, 0, 0
        due = BATCH if counted.written else MOST_JOBS
        running: List[Running] = []  # a heap
        expected: List[Tuple[float, int, int]] = []  # end, id, size; sorted
        queue: List[Coming] = []  # in order; `first` is the place of the head
        first = 0
        # The head for which shadow and spare hold, until a job ends.
        reserved: Optional[Coming] = None
        shadow, spare = 0.0, 0
        # For the plan: the jobs that came; of it: those that start, and when the next does.
        fresh: List[Coming] = []
        chosen: List[Coming] = []
        wake = math.inf

        def start(now: float, jobs: List[Coming]) -> None:
            for _, job_id, _, number, size, run, estimate in jobs:
                log.append(number)
                times.append(now)
                limit = now + estimate
                push(running, (now + run, job_id, size, limit))
                if easy:
                    insort(expected, (limit, job_id, size))

        try:
            source = chain(chain.from_iterable(map(self._coming, trace.blocks(
                self.results.users, self.results.apps))), [NEVER])
            following = next(source)
            submit = following[2]
            while running or submit < math.inf or wake < math.inf:
                now = running[0][0] if running and running[0][0] < submit else submit
                if wake < now:
                    now = wake
                # Ends, then submissions.
                while running and running[0][0] <= now:
                    _, job_id, size, limit = pop(running)
                    free += size
                    ended += 1
                    if easy:
                        reserved = None
                        del expected[bisect.bisect_left(expected, (limit, job_id))]
                    elif plan is not None:
                        plan.ended(now, limit, size)
                came = 0
                while submit <= now:
                    job = following
                    following = next(source)
                    submit = following[2]
                    size = job[4]
                    if not size:
                        log.append(~job[3])
                        times.append(now)
                        self.results.refused(*self._never.pop(job[3]))
                        continue
                    if not queue and size <= free and submit > now:
                        free -= size  # it is alone and fits: the same as through the queue
                        start(now, [job])
                        if plan is not None:
                            plan.start(now, job)
                        break
                    came += 1
                    if plan is not None:
                        fresh.append(job)
                    if not queue or job > queue[-1]:
                        queue.append(job)
                    else:
                        came = -MOST_JOBS  # it is not among the last ones: EASY looks at all
                        bisect.insort(queue, job, first)
                # Heads start while they fit, or as planned.
                head, waiting = first, len(queue)
                if plan is None:
                    while head < waiting and queue[head][4] <= free:
                        free -= queue[head][4]
                        head += 1
                elif head < waiting:
                    chosen, wake = plan.step(now, fresh)
                    fresh.clear()
                    for job in chosen:
                        free -= job[4]
                        if queue[head] is job:
                            head += 1
                    del chosen[:head - first]
                if head > first:
                    start(now, queue[first:head])
                    first = head
                    if first == waiting or first > 1000 and first * 2 > waiting:
                        del queue[:first]
                        waiting -= first
                        first = 0
                filled = [bisect.bisect_left(queue, job, first) for job in chosen]
                chosen = []
                if easy and free and first + 1 < waiting:
                    # The head gets what is free at its shadow time, others what that leaves over.
                    job = queue[first]
                    if job is reserved and came >= 0:
                        begin = max(first + 1, waiting - came)
                    else:
                        begin, reserved, shadow, spare = first + 1, job, math.inf, free
                        size = job[4]
                        for end, _, units in expected:
                            if end > shadow:
                                break
                            spare += units
                            if spare >= size and end < shadow:
                                shadow = end
                        spare -= size
                    for at in range(begin, waiting):
                        job = queue[at]
                        size = job[4]
                        if size <= free:
                            if now + job[6] > shadow:
                                if size > spare:
                                    continue
                                spare -= size
                            filled.append(at)
                            free -= size
                            if not free:
                                break
                if filled:
                    overtook.extend(range(len(log), len(log) + len(filled)))
                    start(now, [queue[at] for at in filled])
                    for at in reversed(filled):
                        del queue[at]
                    waiting -= len(filled)
                moments += 1
                if len(log) >= due:
                    counted.hand_over(ended)
                    due += BATCH
                if progress is not None and moments % 1000 == 0:
                    progress(now, ended, waiting - first)
        finally:
            self.events, self.ended = moments, ended
            counted.finish(ended, moments)
