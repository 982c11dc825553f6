"""Runs jobs in virtual time: knows how long each takes, and says which ends next.

How long a job takes is known here alone; whoever decides sees what the user believes.
"""

from __future__ import annotations

import heapq
import math
from typing import Dict, Iterable, List, Optional, Protocol, Tuple

from vrm.model.cluster import Booking
from vrm.scheduling.scheduler import Start

END, EXPECTED = 0, 1
"""What an event is: a job ends, or it should have ended by now and goes on, so that what waits for
it is judged anew. Ends come first."""

Event = Tuple[float, int, int, bool, Start]
"""A time, what happens, the job's id, whether it is ended at its walltime, and its start."""


class Rate(Protocol):
    """How fast jobs run beside others (see `vrm.simulation.corun`)."""

    def started(self, booking: Booking, run: float, now: float) -> Iterable[Tuple[int, float]]:
        """A job of `run` seconds of work started: the jobs whose end changes, with their ends."""

    def ended(self, booking: Booking, now: float) -> Iterable[Tuple[int, float]]:
        """A job left: the jobs whose end changes, with their new ends."""

    def remaining(self, job_id: int, now: float) -> float:
        """Work that is left of a running job, in seconds."""


class VirtualExecutor:
    """Runs jobs in virtual time. `events` is a heap of what will happen to the jobs that run.

    With `kill`, a job that reaches its walltime is ended there. With a `rate` jobs run faster or
    slower beside others. `tracked`: running jobs may end otherwise than foreseen at their start, as
    with a rate; events of other ends are void then. Else every end is `foreseen`, and none is void.
    With `revises`, other ends may be expected of running jobs than at their start.
    """

    def __init__(self, kill: bool = False, rate: Optional[Rate] = None, tracked: bool = False,
                 revises: bool = False) -> None:
        self.kill = kill
        self.rate = rate
        self.events: List[Event] = []
        self.runs: Dict[int, float] = {}  # seconds that jobs take which have not ended
        self._live: Optional[Dict[int, Tuple[Start, float]]] = (
            {} if tracked or revises or rate is not None else None)
        self._revises = revises
        self._expected: Dict[int, float] = {}  # ends that are expected otherwise than at the start
        self._limits: Dict[int, float] = {}  # ends of walltimes that are others than at the start
        self.foreseen = self._live is None

    def next_time(self) -> float:
        """When something happens next; infinity for never."""
        events = self.events
        if self._live is not None:
            while events and self.is_void(events[0]):
                heapq.heappop(events)
        return events[0][0] if events else math.inf

    def start(self, start: Start, now: float) -> None:
        """A job starts, whose run time is in `runs`."""
        booking = start[0]
        job_id = booking[0].id
        run = self.runs[job_id] * booking[1].pace
        if self.foreseen and now + run <= booking[3]:
            heapq.heappush(self.events, (now + run, END, job_id, False, start))
            return
        if self.rate is None:
            self.set_end(start, now + run)
            return
        assert self._live is not None
        self._live[job_id] = start, math.nan
        self._move(self.rate.started(booking, run, now))

    def go_on(self, start: Start, now: float) -> None:
        """A job runs already, whose run time from its start on is in `runs`."""
        booking = start[0]
        end = booking.start + self.runs[booking.job.id]
        if self.rate is None:
            self.set_end(start, end)
            return
        assert self._live is not None
        self._live[booking.job.id] = start, math.nan
        self._move(self.rate.started(booking, end - now, now))

    def set_end(self, start: Start, end: float) -> None:
        """A job will end at this time, or with `kill` at its walltime."""
        booking = start[0]
        job, expected_end = booking.job, booking.expected_end
        limit = self._limits.get(job.id, booking.limit)
        killed = self.kill and end > limit
        if killed:
            end = limit
        expected_end = self._expected.get(job.id, expected_end)
        if end > expected_end and (self._revises or self._live is None or job.id not in self._live
                                   or math.isnan(self._live[job.id][1])):
            heapq.heappush(self.events, (expected_end, EXPECTED, job.id, False, start))
        if self._live is not None:
            self._live[job.id] = start, end
        heapq.heappush(self.events, (end, END, job.id, killed, start))

    def revise(self, start: Start, expected_end: float, now: float) -> None:
        """A job that runs is expected to end at this time; if that is now, nothing more is."""
        assert self._live is not None
        job_id = start[0][0].id
        self._expected[job_id] = expected_end
        if self._live[job_id][1] > expected_end > now:
            heapq.heappush(self.events, (expected_end, EXPECTED, job_id, False, start))

    def reshaped(self, booking: Booking, now: float) -> None:
        """A job that runs has lent cores, or has them again: its ends are others. It goes slower or
        faster when whom it lends to starts or ends."""
        assert self._live is not None
        self._limits[booking.job.id] = booking.limit
        self.revise(self._live[booking.job.id][0], booking.expected_end, now)

    def _move(self, ends: Iterable[Tuple[int, float]]) -> None:
        assert self._live is not None
        for job_id, end in ends:
            self.set_end(self._live[job_id][0], end)

    def is_void(self, event: Event) -> bool:
        """Whether what was to happen will not: the end has moved, or the job is gone."""
        if self._live is None:
            return False
        time, what, job_id, _, start = event
        live = self._live.get(job_id)
        if live is None or live[0] is not start:
            return True
        if what == END:
            return live[1] != time
        return self._revises and self._expected.get(job_id, start[0][3]) != time

    def unfinished(self, event: Event, now: float) -> bool:
        """Whether a job that is ended at its walltime had work left."""
        return event[3] and (self.rate is None or self.rate.remaining(event[2], now) > 1e-6)

    def gone_of(self, job_id: int, now: float) -> Start:
        """A job has left its cores before its end; its start."""
        assert self._live is not None
        start = self._live[job_id][0]
        self.gone(start, now)
        return start

    def gone(self, start: Start, now: float) -> None:
        """A job has left its cores, whose neighbours may be faster from now on."""
        if self._live is not None:
            del self._live[start[0][0].id]
            self._expected.pop(start[0][0].id, None)
            self._limits.pop(start[0][0].id, None)
        if self.rate is not None:
            self._move(self.rate.ended(start[0], now))
