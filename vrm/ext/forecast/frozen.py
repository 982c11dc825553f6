"""A run at one moment, from which copies go on in virtual time."""

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
class Frozen:
    """A run at the moment `now` (seconds). `run` is never stepped; copies of it are.

    From `end` on nothing starts, and with `fit` no job that would not have ended by then by its
    walltime; what still runs is interrupted at `cut`. With `kill` jobs are ended at their walltimes.
    `past` are the jobs that ended before, `position` counts the events that led here: draws for equal
    positions are equal. `speedups` make jobs faster or slower beside others. `later` are jobs that are
    known to come, in order of time; their run times are not looked at. `due`: something has changed
    since the last decision, and what may start now does.
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
        """The state of the run, which must not be changed."""
        return self.run.state

    def waiting(self) -> Sequence[Job]:
        """The jobs that wait: those that may start in order, then the others by id."""
        state = self.state
        inside = list(state.queue.in_order(self.now))
        known = {job.id for job in inside}
        others = {job.id: job for job in state.queue if job.id not in known}
        others.update((job_id, entry.job) for job_id, entry in state.book.parked.items())
        return inside + [others[job_id] for job_id in sorted(others)]

    # What would be if. A run is copied whole before it is changed: its scheduler sees what happens.

    def with_job(self, job: Job, details: Details = PLAIN) -> Frozen:
        """If this job had been submitted now. Infeasible when it can never run; LifeError when it
        depends on a job that there is not."""
        run = self.run.copy()
        run.scheduler.check(job)
        run.state.submit([job if run.expectations is None else run.expectations.of(job)], details)
        return replace(self, run=run, due=True)

    def with_walltimes(self, seconds: Mapping[int, float]) -> Frozen:
        """If waiting jobs had these limits. LifeError for ids that there are not."""
        run = self.run.copy()
        changed = []
        for job_id, walltime in seconds.items():
            job = run.state.entry(job_id).job.but(walltime=walltime, expected=walltime)
            changed.append(job if run.expectations is None else run.expectations.of(job))
        run.state.expect(changed)
        return replace(self, run=run, due=True)

    def without(self, ids: Iterable[int]) -> Frozen:
        """If these jobs, which wait or run, had completed already. LifeError for ids that there are
        not."""
        run = self.run.copy()
        state = run.state
        for job_id in ids:
            state.entry(job_id)
            if job_id in state.cluster.bookings:
                state.cluster.release(job_id)
                state.lending.returned(job_id, self.now)
            state.end(job_id, JobState.COMPLETED, self.now)
        return replace(self, run=run, due=True)

    def released(self, job_id: int) -> Frozen:
        """If nobody held this job. LifeError when nobody does."""
        run = self.run.copy()
        run.state.release(job_id)
        return replace(self, run=run, due=True)

    def unbound(self, job_id: int) -> Frozen:
        """If this job, which waits, were bound to no advance reservation."""
        run = self.run.copy()
        run.state.queue.bind(job_id, None)
        return replace(self, run=run, due=True)

    def without_reservation(self, reservation_id: int) -> Frozen:
        """If this advance reservation had been cancelled."""
        run = self.run.copy()
        run.state.reservations.cancel(reservation_id, self.now, "")
        return replace(self, run=run, due=True)

    def at_every_moment(self) -> Frozen:
        """If decisions were not made at intervals, but whenever something happens."""
        run = self.run.copy()
        run.scheduler.interval = run.scheduler.starts = 0
        return replace(self, run=run, due=True)

    def until(self, end: float) -> Frozen:
        """If the allocation ended at another time (seconds)."""
        run = self.run.copy()
        if self.fit:
            run.state.book.fit(self.now, end)
        return replace(self, run=run, end=end, cut=math.inf, due=True)

    def under(self, make: Callable[[Cluster], Scheduler]) -> Frozen:
        """If another scheduler decided from now on, made for the cluster that it is given; what runs
        stays where it is. Infeasible when a waiting job can never run under it."""
        state = self.state.copy()
        scheduler = make(state.cluster)
        state.promises.clear()
        expectations = self.run.expectations
        return replace(self, run=Run(state.ordered(scheduler.new_queue()), scheduler,
                                     expectations and expectations.copy()), due=True)


def of_simulator(simulator: Simulator, past: History | None = None, position: int = 0) -> Frozen:
    """A simulation that stands still, as one does after each of `Simulator.moments`."""
    return Frozen(simulator.subject.copy(), simulator.now, end=simulator.end,
                  kill=simulator.executor.kill, past=History() if past is None else past, position=position)


def of_jobs(jobs: Iterable[Job], scheduler: Scheduler, cluster: Cluster,
            expectations: Expectations | None = None, now: float = 0.0, end: float = math.inf,
            past: History | None = None, speedups: Speedups | None = None) -> Frozen:
    """A queue of jobs, none of which has started. Infeasible for one that can never run."""
    state = State(scheduler.new_queue(), cluster)
    for job in jobs:
        scheduler.check(job)
        state.submit([job if expectations is None else expectations.of(job)])
    return Frozen(Run(state, scheduler, expectations), now, end, past=History() if past is None else past,
                  speedups=speedups)
