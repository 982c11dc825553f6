"""A run: its state and its scheduler. A loop drives it: the manager's loop by the wall clock, with processes, or the
simulator's loop in virtual time. Both have the same turn: first events change the state, then `Run.turn` decides."""

from __future__ import annotations

import math
from typing import Protocol
from collections.abc import Sequence

from vrm.model import Job, JobState
from vrm.run.entry import DroppedJob
from vrm.run.expectations import Expectations
from vrm.run.state import State
from vrm.scheduling import Scheduler, Start


class Driver(Protocol):
    """The loop that drives a run: it carries out the decisions of a turn."""

    def start(self, start: Start, now: float) -> None:
        """Start a job; it is already booked and out of the queue."""

    def drop(self, dropped: Sequence[DroppedJob], cause: str) -> None:
        """Handle waiting jobs that will never run; end each one (`State.end`)."""

    def postpone(self, jobs: Sequence[Job], now: float) -> None:
        """Handle jobs that wait for another allocation, since they would not end in this one."""


class Run:
    """The state of a run and its scheduler. `expectations`: expected run times; None: use the users' time limits.
    `asks`: a job that borrows cores has not started when the scheduler decides so: the driver first asks the nodes,
    and then calls `State.started`."""

    asks = False

    def __init__(self, state: State, scheduler: Scheduler,
                 expectations: Expectations | None = None) -> None:
        self.state = state
        self.scheduler = scheduler
        self.expectations = expectations
        if expectations is not None:
            scheduler.dispatcher.inform(expectations.longest.of)

    def turn(self, now: float, driver: Driver, end: float = math.inf, fits: bool = True) -> None:
        """Make all decisions after the events up to `now` (seconds): start jobs, and drop jobs that can no longer
        meet their deadlines. Nothing starts from `end` on, and with `fits` nothing that would end after it."""
        state, book = self.state, self.state.book
        missed = book.missed(math.nextafter(now, -math.inf)) if book.deadlines else ()
        if missed:  # deadline before now: it would end too late even if it fits on the nodes
            driver.drop(missed, "deadline")
        while True:
            late = book.fit(now, end) if fits else ()
            if late:
                driver.postpone(late, now)
            if state.queue.jobs and now < end:
                for start in self.step(now):
                    driver.start(start, now)
            missed = book.missed(now) if book.deadlines else ()
            if not missed:
                return
            driver.drop(missed, "deadline")  # other jobs may have waited for these

    def step(self, now: float) -> list[Start]:
        """Start all jobs that may start at `now` (seconds) and return them, booked and out of the queue."""
        state = self.state
        if state.reservations:
            state.reservations.pass_time(now)
        starts = self._starts(now)
        while state.book.dependencies.opened and not self.scheduler.interval:  # a start met dependencies of other jobs
            starts += self._starts(now)
        if state.log is not None and self.scheduler.dispatcher.promising:
            state.promise(self.scheduler.promises(now, state.queue, state.cluster), now)
        return starts

    def _starts(self, now: float) -> list[Start]:
        """Return the jobs that one scheduling decision starts."""
        state = self.state
        starts = self.scheduler.step(now, state.queue, state.cluster)
        state.book.dependencies.opened = False
        for start in starts:
            if start.booking.placement.lease is not None:
                for loan in state.cluster.loans.of_borrower(start.job.id):
                    found = state.lending.lend(loan)
                    if not self.asks:
                        state.lending.lent(found.number, now)
                if self.asks:
                    continue  # it starts when its cores are clear
            state.started(start, now)
        return starts

    def learn(self, job: Job, run: float, how: JobState) -> None:
        """Learn from a job that ended after `run` seconds, and estimate similar waiting jobs again if the rules say
        so."""
        if how is JobState.COMPLETED and self.scheduler.dispatcher.learns:
            self.scheduler.dispatcher.learn(job, run)
        expectations, state = self.expectations, self.state
        if expectations is not None and expectations.learn(job, run, how):
            new = expectations.again([*state.queue, *(entry.job for entry
                                                      in state.book.parked.values())], job)
            if new:
                state.expect(new)

    def wake(self, now: float) -> float:
        """Return when the next step is due even if no event happens before, in seconds."""
        time, cluster = self.scheduler.wake(now), self.state.cluster
        if cluster.calendar or cluster.constraints:
            time = min(time, self.scheduler.boundary(now, cluster))
        return time

    def copy(self) -> Run:
        """Return an independent copy, to be continued in virtual time. It logs no events."""
        state = self.state.copy()
        return Run(state, self.scheduler.copy(state.cluster),
                   self.expectations and self.expectations.copy())
