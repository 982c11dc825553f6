"""The event loop where counts say all: FCFS or another fixed order, alone or with EASY, over a trace.

On nodes that all hold equally many ranks of each job, under a policy that gives jobs their nodes (or
cores) for themselves, when jobs start depends on nothing but how much is free. Then this loop
counts, and makes no bookings and no placements; the schedule is that of `vrm.simulation.engine`,
to the last figure (tests/simulation/test_counting.py compares them). It is a shortcut for long
traces; places are found by `vrm.simulation.writers.Placer`, where jobs are written.
"""

from __future__ import annotations

import bisect
import heapq
import math
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

from vrm.model.cluster import Cluster
from vrm.model.job import Infeasible, Job, Request
from vrm.scheduling.backfilling import Easy, NoBackfilling
from vrm.scheduling.by_core import CorePolicy
from vrm.scheduling.lanes import LanePolicy
from vrm.scheduling.queue import Key
from vrm.scheduling.scheduler import Scheduler
from vrm.simulation.results import BATCH, OVERTOOK, Results
from vrm.workload.submission import Submission
from vrm.workload.swf import Trace

MOST_JOBS = 1 << 40
"""More than ever come at one moment."""

Waiting = Tuple[Job, float, int]
"""A job, its run time and its size."""

Running = Tuple[float, int, int, int, float, bytes]
"""End, id, size, cores, expected end, and the record of a running job."""


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
        self.policy, self.machine = scheduler.policy, machine
        self.easy = isinstance(scheduler.dispatcher, Easy)
        self.ordering = scheduler.ordering
        room = self.policy.room(machine)
        assert room is not None
        self.room = room
        self.results = results
        self.progress = progress
        self.events = self.ended = self.left = 0

    def run(self, trace: Iterable[Submission]) -> None:
        """Run all jobs of the trace to their ends; Uncountable when one of them cannot be counted."""
        results = self.results
        try:
            self._run(trace)
        except KeyboardInterrupt:  # what had ended counts
            results.backfilled = sum(row.backfilled for row in results.rows())
            raise
        finally:
            self.ended = results.counts["completed"] = results.ran

    def _run(self, trace: Iterable[Submission]) -> None:
        """The loop."""
        results, easy, key_of, progress = (self.results, self.easy, self.ordering.key,
                                           self.progress)
        pack_job, pack_moment, jobs_out, moments_out = results.raw()
        trail, hand_over = results.trail(self.policy, self.machine)
        user_number, app_number = results.user_number, results.app_number
        push, pop, insort = heapq.heappush, heapq.heappop, bisect.insort
        free, busy, wanted, moments = self.room, 0, 0, 0
        running: List[Running] = []  # a heap
        expected: List[Tuple[float, int, int]] = []  # end, id, size; sorted
        needs: Dict[Request, Tuple[int, int]] = {}  # nodes and size of jobs
        # The queue, in order; `first` is the place of the head.
        keys: List[Key] = []
        queue: List[Waiting] = []
        first = 0
        # The head for which shadow and spare hold, until a job ends.
        reserved: Optional[Job] = None
        shadow, spare = 0.0, 0

        def start(now: float, jobs: List[Waiting], how: int) -> int:
            """Start the jobs; gives their cores."""
            cores = 0
            for job, run, size in jobs:
                job_id, procs, estimate = job.id, job.procs, job.expected
                cores += procs
                end = now + run
                record = pack_job(job_id, procs, procs, user_number(job.user), app_number(job.app),
                                  how, job.submit, now, end, estimate)
                push(running, (end, job_id, size, procs, now + estimate, record))
                if trail is not None:
                    trail.append((record, job.app))
                if easy:
                    insort(expected, (now + estimate, job_id, size))
            return cores

        source = iter(trace)
        following = next(source, None)
        submit = following[0].submit if following is not None else math.inf
        while running or submit < math.inf:
            now = running[0][0] if running and running[0][0] < submit else submit
            # Ends, then submissions.
            while running and running[0][0] <= now:
                _, job_id, size, procs, end, record = pop(running)
                free += size
                busy -= procs
                jobs_out += record
                if trail is not None:
                    trail.append(job_id)
                if easy:
                    reserved = None
                    del expected[bisect.bisect_left(expected, (end, job_id))]
            came = 0
            while submit <= now:
                assert following is not None
                job, run = following[0], following[1]
                following = next(source, None)
                submit = following[0].submit if following is not None else math.inf
                need = needs.get(job.request)
                if need is None:
                    try:
                        need = self.policy.nodes(job), self.policy.size(job)
                    except Infeasible as reason:
                        results.refused(job, str(reason))
                        continue
                    if not self.policy.exact(job):
                        raise Uncountable
                    needs[job.request] = need
                nodes, size = need
                if not queue and size <= free and submit > now:
                    free -= size  # it is alone and fits: the same as through the queue
                    busy += start(now, [(job, run, size)], 0)
                    break
                key = key_of(job, 0.0, nodes)
                came += 1
                wanted += job.procs
                if not queue or key > keys[-1]:
                    keys.append(key)
                    queue.append((job, run, size))
                else:
                    came = -MOST_JOBS  # it is not among the last ones: EASY looks at all
                    at = bisect.bisect(keys, key, first)
                    keys.insert(at, key)
                    queue.insert(at, (job, run, size))
            # Heads start while they fit.
            head, waiting = first, len(queue)
            while head < waiting and queue[head][2] <= free:
                free -= queue[head][2]
                head += 1
            if head > first:
                cores = start(now, queue[first:head], 0)
                busy += cores
                wanted -= cores
                first = head
                if first == waiting or first > 1000 and first * 2 > waiting:
                    del keys[:first], queue[:first]
                    waiting -= first
                    first = 0
            if easy and free and first + 1 < waiting:
                # The head gets what is free at its shadow time, others what that leaves over.
                job, _, size = queue[first]
                if job is reserved and came >= 0:
                    begin = max(first + 1, waiting - came)
                else:
                    begin, reserved, shadow, spare = first + 1, job, math.inf, free
                    for end, _, units in expected:
                        if end > shadow:
                            break
                        spare += units
                        if spare >= size and end < shadow:
                            shadow = end
                    spare -= size
                filled = []
                for at in range(begin, waiting):
                    job, _, size = queue[at]
                    if size <= free:
                        if now + job.expected > shadow:
                            if size > spare:
                                continue
                            spare -= size
                        filled.append(at)
                        free -= size
                        if not free:
                            break
                if filled:
                    cores = start(now, [queue[at] for at in filled], OVERTOOK)
                    results.backfilled += len(filled)
                    busy += cores
                    wanted -= cores
                    for at in reversed(filled):
                        del keys[at], queue[at]
                    waiting -= len(filled)
            moments_out += pack_moment(now, waiting - first, wanted, busy)
            moments += 1
            if trail is not None and len(trail) >= BATCH:
                hand_over()
            if progress is not None and moments % 1000 == 0:
                progress(now, results.ran, waiting - first)
        self.events = moments
