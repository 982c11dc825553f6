"""A run: its state, and who decides about it. The loops that drive one (the manager's by the wall
clock, the simulator's in virtual time) ask it what starts now."""

from __future__ import annotations

from typing import List, Optional

from vrm.model import Job, JobState
from vrm.model.core_share import Borrowed
from vrm.run.expectations import Expectations
from vrm.run.state import State
from vrm.scheduling import Scheduler, Start


class Run:
    """The state of a run and its scheduler. `expectations`: how long jobs are expected to take; None:
    as long as their users say. `asks`: a job that borrows cores has not started when that is decided:
    who drives the run asks the nodes first, and calls `State.started`."""

    asks = False

    def __init__(self, state: State, scheduler: Scheduler,
                 expectations: Optional[Expectations] = None) -> None:
        self.state = state
        self.scheduler = scheduler
        self.expectations = expectations

    def step(self, now: float) -> List[Start]:
        """Start all that may start at `now` (seconds): it is booked, and out of the queue."""
        state = self.state
        if state.reservations:
            state.pass_time(now)
        starts = self._starts(now)
        while state.book.opened and not self.scheduler.interval:  # by a start that others waited for
            starts += self._starts(now)
        if state.log is not None and self.scheduler.dispatcher.promising:
            state.promise(self.scheduler.promises(now, state.queue, state.cluster), now)
        return starts

    def _starts(self, now: float) -> List[Start]:
        """What starts by one decision."""
        state = self.state
        starts = self.scheduler.step(now, state.queue, state.cluster)
        if not state.sparse or state.book.entries:
            state.book.opened = False
            for start in starts:
                placement = start.booking.placement
                if isinstance(placement, Borrowed) and not state.sparse:
                    for loan in state.cluster.loans.of_borrower(start.job.id):
                        found = state.lend(loan)
                        if not self.asks:
                            state.lent(found.number, now)
                    if self.asks:
                        continue  # it has started when its cores are clear
                state.started(start, now)
        return starts

    def learn(self, job: Job, run: float, how: JobState) -> None:
        """A job has ended after `run` seconds: what is expected of those like it that wait is
        judged again."""
        expectations, state = self.expectations, self.state
        if expectations is not None and expectations.learn(job, run, how):
            new = expectations.again([*state.queue, *(entry.job for entry
                                                      in state.book.parked.values())], job)
            if new:
                state.expect(new)

    def wake(self, now: float) -> float:
        """When the next step is due although nothing may happen by then, in seconds."""
        return min(self.scheduler.wake(now), self.scheduler.boundary(now, self.state.cluster))

    def copy(self) -> Run:
        """An independent copy, which can go on in virtual time while this one goes on in its own.
        Nothing of it is recorded."""
        state = self.state.copy()
        return Run(state, self.scheduler.copy(state.cluster),
                   self.expectations and self.expectations.copy())
