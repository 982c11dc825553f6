"""A run at one moment. Copies of it continue in virtual time."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from collections.abc import Callable, Iterable, Mapping, Sequence

from vrm.ext.forecast.draws import History
from vrm.model import Cluster, Job, JobState
from vrm.model.job import PLAIN, Details
from vrm.model.measured.speedups import Speedups
from vrm.run.expectations import Expectations
from vrm.run.run import Run
from vrm.run.state import State
from vrm.scheduling.scheduler import Scheduler
from vrm.simulation.engine import Simulator
from vrm.workload.submission import Submission


@dataclass(frozen=True)
class FrozenRun:
    """A run at the moment `now` (seconds). `run` itself is never stepped, only copies of it.

    Nothing starts from `end` on; with `fit`, also no job starts that would not have ended by then according to
    its walltime. Jobs that still run are interrupted at `cut`. With `kill`, jobs are ended at their walltimes.
    `past` are the jobs that ended before. `position` counts the events before this moment: draws for equal
    positions are equal. `speedups` make jobs faster or slower next to others. `later` are jobs that are known
    to come, in order of time; their run times are ignored. `due`: something has changed since the last
    decision, and jobs that may start now do so.
    """

    run: Run
    now: float
    end: float = math.inf
    kill: bool = False
    fit: bool = True
    cut: float = math.inf
    past: History = field(default_factory=History)
    position: int = 0
    speedups: Speedups | None = None
    later: tuple[Submission, ...] = ()
    due: bool = False

    @property
    def state(self) -> State:
        """The state of the run. It must not be changed."""
        return self.run.state

    def waiting(self) -> Sequence[Job]:
        """Return the waiting jobs: those that may start in queue order, then the others by id."""
        state = self.state
        inside = list(state.queue.in_order(self.now))
        known = {job.id for job in inside}
        others = {job.id: job for job in state.queue if job.id not in known}
        others.update((job_id, entry.job) for job_id, entry in state.book.parked.items())
        return inside + [others[job_id] for job_id in sorted(others)]

    # Changed copies ("what if"). The run is copied whole before the change, because its scheduler observes
    # changes.

    def with_job(self, job: Job, details: Details = PLAIN) -> FrozenRun:
        """Return this run as if `job` had been submitted now. Raises Infeasible if the job can never run, and
        JobStateError if it depends on a job that does not exist."""
        run = self.run.copy()
        run.scheduler.check(job)
        run.state.submit([job if run.expectations is None else run.expectations.of(job)], details)
        return replace(self, run=run, due=True)

    def with_walltimes(self, seconds: Mapping[int, float]) -> FrozenRun:
        """Return this run as if waiting jobs had these walltimes, by id. Raises JobStateError for unknown ids."""
        run = self.run.copy()
        changed = []
        for job_id, walltime in seconds.items():
            job = run.state.entry(job_id).job.but(walltime=walltime, expected=walltime)
            changed.append(job if run.expectations is None else run.expectations.of(job))
        run.state.expect(changed)
        return replace(self, run=run, due=True)

    def without(self, ids: Iterable[int]) -> FrozenRun:
        """Return this run as if these jobs, which wait or run, had completed already. Raises JobStateError for
        unknown ids."""
        run = self.run.copy()
        state = run.state
        for job_id in ids:
            state.entry(job_id)
            if job_id in state.cluster.bookings:
                state.cluster.release(job_id)
                state.lending.returned(job_id, self.now)
            state.end(job_id, JobState.COMPLETED, self.now)
        return replace(self, run=run, due=True)

    def released(self, job_id: int) -> FrozenRun:
        """Return this run as if the job were not held. Raises JobStateError if it is not held."""
        run = self.run.copy()
        run.state.release(job_id)
        return replace(self, run=run, due=True)

    def unbound(self, job_id: int) -> FrozenRun:
        """Return this run as if the waiting job were bound to no advance reservation."""
        run = self.run.copy()
        run.state.queue.bind(job_id, None)
        return replace(self, run=run, due=True)

    def without_reservation(self, reservation_id: int) -> FrozenRun:
        """Return this run as if this advance reservation had been cancelled."""
        run = self.run.copy()
        run.state.reservations.cancel(reservation_id, self.now, "")
        return replace(self, run=run, due=True)

    def without_interval(self) -> FrozenRun:
        """Return this run as if decisions were made at every event instead of at intervals."""
        run = self.run.copy()
        run.scheduler.interval = run.scheduler.starts = 0
        return replace(self, run=run, due=True)

    def until(self, end: float) -> FrozenRun:
        """Return this run as if the allocation ended at `end` (seconds)."""
        run = self.run.copy()
        if self.fit:
            run.state.book.fit(self.now, end)
        return replace(self, run=run, end=end, cut=math.inf, due=True)

    def under(self, make: Callable[[Cluster], Scheduler]) -> FrozenRun:
        """Return this run as if another scheduler decided from now on; `make` creates it for the cluster that
        it receives. Running jobs stay where they are. Raises Infeasible if a waiting job can never run under
        it."""
        state = self.state.copy()
        scheduler = make(state.cluster)
        state.promises.clear()
        expectations = self.run.expectations
        return replace(self, run=Run(state.ordered(scheduler.new_queue()), scheduler,
                                     expectations and expectations.copy()), due=True)


def freeze_simulation(simulator: Simulator, past: History | None = None, position: int = 0) -> FrozenRun:
    """Freeze a simulation that pauses, as after each of `Simulator.moments`."""
    return FrozenRun(simulator.subject.copy(), simulator.now, end=simulator.end,
                     kill=simulator.executor.kill, past=History() if past is None else past, position=position)


def of_jobs(jobs: Iterable[Job], scheduler: Scheduler, cluster: Cluster,
            expectations: Expectations | None = None, now: float = 0.0, end: float = math.inf,
            past: History | None = None, speedups: Speedups | None = None) -> FrozenRun:
    """Freeze a queue of jobs that have not started. Raises Infeasible if one of them can never run."""
    state = State(scheduler.new_queue(), cluster)
    for job in jobs:
        scheduler.check(job)
        state.submit([job if expectations is None else expectations.of(job)])
    return FrozenRun(Run(state, scheduler, expectations), now, end, past=History() if past is None else past,
                     speedups=speedups)
