"""An event loop for traces that only counts free nodes or cores: FCFS or another fixed order, without backfilling,
with EASY, or with conservative backfilling.

If all nodes hold the same number of ranks of each job, and the policy gives each job its own nodes (or cores),
the start times depend only on how much is free. This loop then only counts and creates no jobs, bookings or
placements. The schedule is identical to that of `vrm.simulation.engine`
(tests/ext/counting/test_counting.py compares them). It is a shortcut for long traces: it reads columns and
records which job starts when; `vrm.ext.counting.counted` computes everything else from that. If jobs are
written, `vrm.ext.counting.placing` finds their places.

Two checks before the run decide whether the loop can be used: `why_not` checks the rules, and
`CountingSimulator.read`, which reads the whole trace, checks the jobs.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from functools import partial
from itertools import chain, repeat
from typing import Any, NamedTuple
from collections.abc import Callable, Iterable, Mapping

from vrm.model.cluster import Cluster
from vrm.model.job import Infeasible, Job, Request
from vrm.scheduling.backfilling.easy import Easy, NoBackfilling
from vrm.scheduling.placement.by_core import CorePolicy
from vrm.scheduling.placement.lanes import LanePolicy
from vrm.scheduling.backfilling.reservations import Reserving
from vrm.scheduling.scheduler import Scheduler
from vrm.ext.counting.counted import BATCH, Counted
from vrm.ext.counting.waiting import Conservative, CountedJob, FirstInOrder, WithEasy
from vrm.simulation.library import ComposedSimulation
from vrm.simulation.results import Results
from vrm.workload.swf import Trace

MOST_JOBS = 1 << 40
"""Greater than the number of jobs in any trace."""

CHUNK = 4096
"""Number of jobs converted to tuples at a time."""


_counted_job = partial(tuple.__new__, CountedJob)

NEVER = CountedJob(math.inf, 0, 0, 0.0, 0.0, math.inf, 0.0)
"""Marks the end of the trace: a job that is never submitted."""


class Need(NamedTuple):
    """The demand of a job: `nodes`, and `size` in counted units (nodes or cores); 0 and 0, with the reason in `never`,
    if it can never fit. `request` is None if the job requests only processors."""

    request: Request | None
    nodes: int
    size: int
    never: str = ""


def why_not(source: Any, scheduler: Scheduler, besides: Mapping[str, Any]) -> str:
    """Return why this workload cannot be simulated by counting under these policies; "" if it can. `besides` holds
    further features by name: one that is in use prevents counting."""
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
    """Return an engine for a simulation that can be done by counting; None if it cannot."""
    if why_not(simulation.source, simulation.scheduler, simulation.besides):
        return None
    engine = CountingSimulator(simulation.scheduler, simulation.cluster, simulation.results, progress)
    if not engine.read(simulation.source):
        return engine
    simulation.forget()
    return None


class CountingSimulator:
    """Simulates a trace by counting. It calls `progress` like `vrm.simulation.engine.Simulator`."""

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
        self._needed: list[Need] = []  # by number of the job
        self._running: list[tuple[float, int, int, float]] = []  # end, id, size, expected end; a heap
        self._kept = self.counted.log, self.counted.times, self._running, self.line.expected

    def read(self, trace: Trace) -> str:
        """Read all jobs. Return why one of them cannot be counted; "" if all can."""
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

    def _chunk(self, first: int) -> Iterable[CountedJob]:
        """Return the next jobs from number `first` on, at most CHUNK."""
        needs = self._needed[first:first + CHUNK]
        ids, procs, submits, runs, estimates = self.counted.columns(first, first + CHUNK)
        keys = submits  # FCFS: earlier submission first
        if self.ordering.name != "FCFS":
            keys = [self.ordering.key(Job(job_id, "", wanted, estimate, submit, request=need.request), 0.0, need.nodes)
                    for job_id, wanted, estimate, submit, need in zip(ids, procs, estimates, submits, needs)]
        return map(_counted_job, zip(keys, ids, [need.size for need in needs], estimates, estimates, submits, runs,
                                     range(first, first + CHUNK), repeat(0)))

    def _refuse(self, now: float, job: CountedJob) -> None:
        """Refuse a job that can never fit."""
        need = self._needed[job.number]
        self.counted.log.append(~job.number)
        self.counted.times.append(now)
        self.results.refused(self.counted.job(job.number, need.request), need.never)

    def _start(self, now: float, jobs: list[CountedJob], overtake: bool = False) -> None:
        """Start jobs; with `overtake`, record them as backfilled."""
        log, times, running, expected = self._kept
        if overtake:
            self.counted.overtook.extend(range(len(log), len(log) + len(jobs)))
        for _, job_id, size, estimate, _, _, run, number, _ in jobs:
            log.append(number)
            times.append(now)
            self.free -= size
            limit = now + estimate
            heapq.heappush(running, (now + run, job_id, size, limit))
            if expected is not None:
                insort(expected, (limit, job_id, size))

    def run(self) -> None:
        """Simulate all jobs that were read, until the last one has ended."""
        counted, progress, line, running, pop = self.counted, self.progress, self.line, self._running, heapq.heappop
        queue, add, ended, decide, start, log = line.queue, line.add, line.ended, line.decide, self._start, counted.log
        expected = line.expected
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
                        del expected[bisect_left(expected, (limit, job_id))]
                while submit <= now:
                    job, following = following, next(source)
                    submit = following.submit
                    if not job.size:
                        self._refuse(now, job)
                    elif not queue and job.size <= self.free and submit > now:
                        start(now, [job])  # the only job, and it fits: same result as through the queue
                        line.alone(now, job)
                    else:
                        add(job)
                if queue:
                    decide(now, self.free, start)
                moments += 1
                if len(log) >= due:
                    counted.write_ended(self.ended)
                    due += BATCH
                if progress is not None and moments % 1000 == 0:
                    progress(now, self.ended, len(queue) - line.first)
        finally:
            self.events = moments
            counted.finish(self.ended, moments)
