"""A run: its state, and who decides about it. A loop drives it: the manager's by the wall clock, with processes, or the
simulator's in virtual time. Both have the same turn: what has happened changes the state, then `Run.turn` decides."""

from __future__ import annotations

import math
from typing import Protocol
from collections.abc import Sequence

from vrm.model import Job, JobState
from vrm.run.entry import Dropped
from vrm.run.expectations import Expectations
from vrm.run.state import State
from vrm.scheduling import Scheduler, Start


class Driver(Protocol):
    """The loop that drives a run: it carries out what a turn decides."""

    def start(self, start: Start, now: float) -> None:
        """A job starts: it is booked, and out of the queue."""

    def drop(self, dropped: Sequence[Dropped], cause: str) -> None:
        """Waiting jobs will never run; each needs an end (`State.end`)."""

    def put_off(self, jobs: Sequence[Job], now: float) -> None:
        """Jobs wait for another allocation, since they would not end in this one."""


class Run:
    """The state of a run and its scheduler. `expectations`: how long jobs are expected to take; None:
    as long as their users say. `asks`: a job that borrows cores has not started when that is decided:
    who drives the run asks the nodes first, and calls `State.started`."""

    asks = False

    def __init__(self, state: State, scheduler: Scheduler,
                 expectations: Expectations | None = None) -> None:
        self.state = state
        self.scheduler = scheduler
        self.expectations = expectations
        if expectations is not None:
            scheduler.dispatcher.inform(expectations.longest.of)

    def turn(self, now: float, driver: Driver, end: float = math.inf, fits: bool = True) -> None:
        """Decide, after all that has happened by `now` (seconds): what may start starts, and what can meet its deadline
        no more will not run. Nothing starts from the `end` on, and with `fits` nothing that would end after it."""
        state, book = self.state, self.state.book
        missed = book.missed(math.nextafter(now, -math.inf)) if book.deadlines else ()
        if missed:  # before now: it would end too late, though there may be room for it
            driver.drop(missed, "deadline")
        while True:
            late = book.fit(now, end) if fits else ()
            if late:
                driver.put_off(late, now)
            if state.queue.jobs and now < end:
                for start in self.step(now):
                    driver.start(start, now)
            missed = book.missed(now) if book.deadlines else ()
            if not missed:
                return
            driver.drop(missed, "deadline")  # others waited for them, perhaps

    def step(self, now: float) -> list[Start]:
        """Start all that may start at `now` (seconds): it is booked, and out of the queue."""
        state = self.state
        if state.reservations:
            state.reservations.pass_time(now)
        starts = self._starts(now)
        while state.book.dependencies.opened and not self.scheduler.interval:  # by a start that others waited for
            starts += self._starts(now)
        if state.log is not None and self.scheduler.dispatcher.promising:
            state.promise(self.scheduler.promises(now, state.queue, state.cluster), now)
        return starts

    def _starts(self, now: float) -> list[Start]:
        """What starts by one decision."""
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
                    continue  # it has started when its cores are clear
            state.started(start, now)
        return starts

    def learn(self, job: Job, run: float, how: JobState) -> None:
        """A job has ended after `run` seconds: those like it that wait are estimated again, where the
        rules say so."""
        if how is JobState.COMPLETED and self.scheduler.dispatcher.learns:
            self.scheduler.dispatcher.learn(job, run)
        expectations, state = self.expectations, self.state
        if expectations is not None and expectations.learn(job, run, how):
            new = expectations.again([*state.queue, *(entry.job for entry
                                                      in state.book.parked.values())], job)
            if new:
                state.expect(new)

    def wake(self, now: float) -> float:
        """When the next step is due although nothing may happen by then, in seconds."""
        time, cluster = self.scheduler.wake(now), self.state.cluster
        if cluster.calendar or cluster.constraints:
            time = min(time, self.scheduler.boundary(now, cluster))
        return time

    def copy(self) -> Run:
        """An independent copy, which can go on in virtual time while this one goes on in its own.
        Nothing of it is recorded."""
        state = self.state.copy()
        return Run(state, self.scheduler.copy(state.cluster),
                   self.expectations and self.expectations.copy())
