"""One replay: what happens to the jobs of a run if each takes an assumed time.

The run's own dispatcher decides, and it sees what it would see in reality: the users' limits, or the expected
run times. Only the replay knows how long jobs really take.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple
from collections.abc import Callable, Iterable, Set

from vrm.ext.forecast.draws import OVERDUE
from vrm.ext.forecast.frozen import FrozenRun
from vrm.model import Job
from vrm.model.cluster import Booking
from vrm.model.placement import Placement
from vrm.scheduling.scheduler import Start
from vrm.ext.measured.corun import CoRunning
from vrm.simulation.engine import Recorder, Simulator
from vrm.workload.submission import Submission

Durations = Callable[[Job, float], float]
"""Returns how many seconds a job takes from its start to its end, given the job and the seconds that it has run
already (0: it waits). The result is greater than the latter."""


class PlannedJob(NamedTuple):
    """When a job starts and ends, in seconds, and where. `backfilled`: it overtakes another job."""

    start: float
    end: float
    placement: Placement
    backfilled: bool


class _PlanRecorder(Recorder):
    """Records when jobs end."""

    def __init__(self) -> None:
        self.jobs: dict[int, PlannedJob] = {}

    def ended(self, booking: Booking, start: Start, end: float, status: str) -> None:
        self.jobs[booking.job.id] = PlannedJob(booking.start, end, booking.placement, start.backfilled)


def limits(job: Job, ran: float) -> float:
    """Return the run time of a job that takes as long as its user's limit allows."""
    return max(job.walltime, ran + OVERDUE)


def replay(frozen: FrozenRun, durations: Durations, more: Iterable[Submission] = (), until: Set[int] = frozenset(),
           started: bool = False) -> dict[int, PlannedJob]:
    """Return, by id, the jobs that run and those that start in this allocation. `more` are jobs that are not
    known yet, in order of time, with their run times. With `until` the replay stops when these jobs have ended;
    with `started` also, when they have all started, since their ends are known then. Other jobs are in the
    result if they have ended by then or run."""
    run = frozen.run.copy()
    state, now = run.state, frozen.now
    runs, loans = {}, state.cluster.loans
    for booking in state.cluster.running():
        lost = loans.lost(state.cluster, booking, now) if loans or booking.shares else 0.0
        ran = now - booking.start - lost
        runs[booking.job.id] = max(durations(booking.job, max(0.0, ran)), ran) + lost
    for job in frozen.waiting():
        runs[job.id] = durations(job, 0.0)
    plan = _PlanRecorder()
    rate = (CoRunning(state.cluster, frozen.speedups, ideal=False)
            if frozen.speedups is not None or loans or run.scheduler.dispatcher.lends else None)
    simulator = Simulator.of(run, plan, runs, now, frozen.kill, rate, frozen.end,
                             frozen.due, frozen.fit)
    coming: Iterable[Submission] = (one._replace(run=durations(one.job, 0.0)) for one in frozen.later)
    if more:
        coming = heapq.merge(coming, more, key=lambda one: one.job.submit)
    for _ in simulator.moments(coming):
        if until and all(job_id in plan.jobs or (started and job_id in state.cluster.bookings) for job_id in until):
            break
    for booking in state.cluster.running():  # the allocation ends before they do
        job = booking.job
        plan.jobs[job.id] = PlannedJob(booking.start, booking.start + simulator.executor.runs[job.id],
                                       booking.placement, False)
    return plan.jobs
