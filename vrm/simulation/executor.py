"""Run jobs in virtual time: knows how long each job takes, and which ends next.

Only this module knows the real run times; the scheduler sees the users' estimates.
"""

from __future__ import annotations

import heapq
import math
from typing import Any, NamedTuple, Protocol
from collections.abc import Iterable

from vrm.model.cluster import Booking
from vrm.scheduling.scheduler import Start

# What a named tuple's own constructor calls; calling it directly takes a third of the time.
_new = tuple.__new__


NODE_DOWN, NODE_UP, SUBMISSION, END, EXPECTED = range(5)
"""Kinds of events, in the order of most published schedules. EXPECTED: a running job has reached its expected end
without ending, so that waiting jobs are scheduled again."""

LATER = 5
"""Added to the kind of an event that comes after those of running jobs: in the usual order, all other events do."""


class Event(NamedTuple):
    """An event of a kind at a time (seconds), for a subject. `order` sorts the events of one kind at one time: the id
    of the job, the number of its start, or the number of the node. `killed`: the job is ended at its walltime."""

    time: float
    kind: int
    order: int
    killed: bool
    subject: Any


class SpeedModel(Protocol):
    """How fast jobs run next to others. An extension registers a function in `vrm.speeds`; its arguments are the
    cluster, the measured speeds of pairs (None: neighbours do not count), and whether work is spread evenly over the
    cores of a job."""

    def started(self, booking: Booking, run: float, now: float) -> Iterable[tuple[int, float]]:
        """Record the start of a job with `run` seconds of work; return the jobs whose ends change, with their
        ends."""

    def ended(self, booking: Booking, now: float) -> Iterable[tuple[int, float]]:
        """Record that a job has left; return the jobs whose ends change, with their new ends."""

    def remaining(self, job_id: int, now: float) -> float:
        """Return the remaining work of a running job, in seconds."""

    def unmatched(self) -> dict[str, dict[str, int]]:
        """Return the jobs that ran at speed 1 for some time because their speed was not measured, `beside` another
        job, and `alone` on half of a node: the number of jobs of each load."""


class VirtualExecutor:
    """Runs jobs in virtual time. `events` is a heap of future events, of running jobs and others.

    With `kill`, a job that reaches its walltime is ended there. With a `rate`, jobs run faster or slower next to
    others. `tracked`: running jobs may end at other times than predicted at their starts, as with a rate; events of
    outdated ends are then void. Otherwise every end is `foreseen`, and none is void. With `revises`, the expected
    ends of running jobs may change. Ends at one time are in the order of the ids, or with `by_start` in the order of
    the starts.
    """

    def __init__(self, kill: bool = False, rate: SpeedModel | None = None, tracked: bool = False,
                 revises: bool = False, by_start: bool = False) -> None:
        self.kill = kill
        self.rate = rate
        self.events: list[Event] = []
        self.runs: dict[int, float] = {}  # run times (seconds) of jobs that have not ended
        self.foreseen = not (tracked or revises or by_start or rate is not None)
        self._live: dict[int, tuple[Start, float]] = {}  # empty if all is foreseen
        self._revises, self._by_start = revises, by_start
        self._starts: dict[int, int] = {}  # numbers of the starts, by job id
        self._started = 0
        self._expected: dict[int, float] = {}  # expected ends that have changed since the start
        self._limits: dict[int, float] = {}  # ends of walltimes that have changed since the start

    def plan(self, time: float, kind: int, order: int, subject: Any, killed: bool = False) -> None:
        """Add an event at a time (seconds)."""
        heapq.heappush(self.events, _new(Event, (time, kind, order, killed, subject)))

    def next_time(self) -> float:
        """Return the time of the next event; infinity for never."""
        events = self.events
        if not self.foreseen:
            while events and self.is_void(events[0]):
                heapq.heappop(events)
        return events[0][0] if events else math.inf

    def start(self, start: Start, now: float) -> None:
        """Start a job, whose run time is in `runs`."""
        booking = start[0]
        job_id = booking[0].id
        run = self.runs[job_id] * booking[1].pace
        if self._by_start:
            self._started += 1
            self._starts[job_id] = self._started
        if self.foreseen and now + run <= booking[3]:
            self.plan(now + run, END, job_id, start)
        else:
            self._run(start, now + run, run, now)

    def resume_from(self, start: Start, now: float) -> None:
        """Continue a job that runs already, whose run time since its start is in `runs`."""
        end = start.booking.start + self.runs[start.job.id]
        self._run(start, end, end - now, now)

    def _run(self, start: Start, end: float, left: float, now: float) -> None:
        """Run a job until `end`, or with a rate until `left` seconds of work are done."""
        if self.rate is None:
            self.set_end(start, end)
        else:
            self._live[start.job.id] = start, math.nan
            self._move(self.rate.started(start.booking, left, now))

    def set_end(self, start: Start, end: float) -> None:
        """Set the end of a job; with `kill`, at most at its walltime."""
        booking = start[0]
        job, killed = booking.job, False
        if self.kill:
            limit = self._limits.get(job.id, booking.limit)
            end, killed = min(end, limit), end > limit
        expected_end = self._expected.get(job.id, booking.expected_end)
        if end > expected_end and (self._revises or job.id not in self._live or math.isnan(self._live[job.id][1])):
            self.plan(expected_end, EXPECTED, job.id, start)
        if not self.foreseen:
            self._live[job.id] = start, end
        self.plan(end, END, self._starts.get(job.id, job.id), start, killed)

    def start_of(self, job_id: int) -> Start:
        """Return the start of a running job."""
        return self._live[job_id][0]

    def end_of(self, job_id: int) -> float:
        """Return when a running job ends, as far as is known."""
        return self._live[job_id][1]

    def revise(self, start: Start, expected_end: float, now: float) -> None:
        """Set the expected end of a running job; if it is `now`, no EXPECTED event follows."""
        job_id = start[0][0].id
        self._expected[job_id] = expected_end
        if self._live[job_id][1] > expected_end > now:
            self.plan(expected_end, EXPECTED, job_id, start)

    def reshaped(self, booking: Booking, now: float) -> None:
        """Update the limit and expected end of a running job that has lent cores, or has them again. Its speed
        changes when its borrower starts or ends."""
        self._limits[booking.job.id] = booking.limit
        self.revise(self._live[booking.job.id][0], booking.expected_end, now)

    def _move(self, ends: Iterable[tuple[int, float]]) -> None:
        for job_id, end in ends:
            self.set_end(self._live[job_id][0], end)

    def is_void(self, event: Event) -> bool:
        """Return whether an event is outdated: the end has moved, or the job is gone."""
        time, kind, _, _, start = event
        if self.foreseen or not END <= kind <= EXPECTED:
            return False
        job_id = start[0][0].id
        live = self._live.get(job_id)
        if live is None or live[0] is not start:
            return True
        if kind == END:
            return live[1] != time
        return self._revises and self._expected.get(job_id, start[0][3]) != time

    def unfinished(self, job_id: int, now: float) -> bool:
        """Return whether a job that is ended at its walltime has work left."""
        return self.rate is None or self.rate.remaining(job_id, now) > 1e-6

    def gone(self, start: Start, now: float) -> None:
        """Remove a job that has left its cores; its neighbours may become faster."""
        job_id = start[0][0].id
        del self._live[job_id]
        if self._expected or self._limits or self._starts:
            for known in (self._expected, self._limits, self._starts):
                known.pop(job_id, None)
        if self.rate is not None:
            self._move(self.rate.ended(start[0], now))
