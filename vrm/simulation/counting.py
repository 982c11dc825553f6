"""The event loop where counts say all: FCFS or another fixed order, alone or with EASY, over a trace.

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
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple, Union

from vrm.model.cluster import Cluster
from vrm.model.job import Infeasible, Job, Request
from vrm.scheduling.backfilling import Easy, NoBackfilling
from vrm.scheduling.by_core import CorePolicy
from vrm.scheduling.lanes import LanePolicy
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
            and type(scheduler.dispatcher) in (NoBackfilling, Easy)
            and getattr(scheduler.dispatcher, "order", None) is None
            and scheduler.ordering.static and not scheduler.interval
            and isinstance(scheduler.policy, (LanePolicy, CorePolicy))
            and scheduler.policy.follower is None  # it is to be told each step
            and not scheduler.queues
            and scheduler.policy.exact(Job(0, "", 1, 1.0)))


class Uncountable(Exception):
    """A job came of which counts do not say all: the run has to begin again with the engine."""


class CountingSimulator:
    """Runs a trace by counting; `progress` is called as by `vrm.simulation.engine.Simulator`."""

    def __init__(self, scheduler: Scheduler, machine: Cluster, results: Results,
                 progress: Optional[Callable[[float, int, int], None]] = None) -> None:
        assert isinstance(scheduler.policy, (LanePolicy, CorePolicy))
        self.policy = scheduler.policy
        self.easy = isinstance(scheduler.dispatcher, Easy)
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
        counted, easy, progress = self.counted, self.easy, self.progress
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
            while running or submit < math.inf:
                now = running[0][0] if running and running[0][0] < submit else submit
                # Ends, then submissions.
                while running and running[0][0] <= now:
                    _, job_id, size, limit = pop(running)
                    free += size
                    ended += 1
                    if easy:
                        reserved = None
                        del expected[bisect.bisect_left(expected, (limit, job_id))]
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
                        break
                    came += 1
                    if not queue or job > queue[-1]:
                        queue.append(job)
                    else:
                        came = -MOST_JOBS  # it is not among the last ones: EASY looks at all
                        bisect.insort(queue, job, first)
                # Heads start while they fit.
                head, waiting = first, len(queue)
                while head < waiting and queue[head][4] <= free:
                    free -= queue[head][4]
                    head += 1
                if head > first:
                    start(now, queue[first:head])
                    first = head
                    if first == waiting or first > 1000 and first * 2 > waiting:
                        del queue[:first]
                        waiting -= first
                        first = 0
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
                    filled = []
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
