"""Shadow times: when a job that does not fit now can start, and which jobs may start before it without delaying it."""

from __future__ import annotations

import copy
import math
from operator import attrgetter
from collections.abc import Callable, Hashable, Sequence

from vrm.model.cluster import Cluster, Pool
from vrm.model.job import Job
from vrm.model.placement import Placement
from vrm.model.policies import CountingPolicy
from vrm.scheduling.placement.advance_reservations import changes

Ends = Sequence[tuple[float, int]]
"""Ends of running jobs, with their ids, earliest first."""

Lasts = Callable[[Job], float]
"""Function that returns how many seconds a job takes."""

EXPECTED: Lasts = attrgetter("expected")
WALLTIME: Lasts = attrgetter("walltime")


class Shadow:
    """The earliest start of a job that does not fit now, from the ends of running jobs; no earlier than `least`.

    A running job that is past its end counts as ending now. If there are advance reservations or constraints, the job
    may also start at one of their boundaries. `time` is infinite if the job does not fit even after all ends (nodes
    are down). Another job may start now if it ends by `time`, or leaves what this job needs then. If counting is
    exact, `spare` is the number of units that it leaves over; otherwise `pool` has what is free just before `time`.
    `ends` are by default the expected ones; `lasts` returns how long another job takes.
    """

    __slots__ = ("job", "time", "spare", "pool", "_first_end", "_lasts", "_too_large")

    def __init__(self, job: Job, now: float, view: Cluster, policy: CountingPolicy, ends: Ends | None = None,
                 lasts: Lasts = EXPECTED, least: float = -math.inf) -> None:
        ends = view.ends if ends is None else ends
        self.job, self._lasts, self.spare = job, lasts, 0
        self._first_end = ends[0][0] if ends else math.inf
        self.pool: Pool | None = None
        # For each class, the size of the smallest job found to delay this one: a larger one would delay it, too.
        self._too_large: dict[Hashable, int] = {}
        least = max(least, now)
        if policy.exact(job):
            self.time = self._count(view, policy, ends, least)
        else:
            self.pool = view.what_if()
            self.time = self.pool.at = self._try(self.pool, now, view, policy, ends, least)

    def _count(self, view: Cluster, policy: CountingPolicy, ends: Ends, least: float) -> float:
        wanted, room, shadow = policy.size(self.job), policy.room(view), math.inf
        assert room is not None
        bookings, returns, all_up = view.bookings, view.returns, view.all_up
        for end, job_id in ends:
            if end > shadow:
                break
            placement = bookings[job_id][1]
            room += placement.size if all_up else returns(placement)
            if room >= wanted and shadow == math.inf:
                shadow = end if end > least else least
        self.spare = room - wanted
        return shadow

    def _try(self, pool: Pool, now: float, view: Cluster, policy: CountingPolicy, ends: Ends, least: float) -> float:
        shadow = math.inf
        for end, job_id in changes(ends, view.boundaries(now)):
            if end > shadow:
                break
            pool.at = max(end, now)
            if job_id is not None:
                booking = view.bookings[job_id]
                pool.give(booking.job, booking.placement)
            if shadow == math.inf and policy.fits(self.job, pool):
                shadow = max(end, least)  # the loop still frees the other jobs that end at this moment
        return shadow

    def copy(self, view: Cluster) -> Shadow:
        """Return an independent copy, for a copy of the cluster."""
        twin = copy.copy(self)
        twin._too_large = {}
        if self.pool is not None:
            twin.pool = self.pool.what_if()
            twin.pool.tenants = view.tenants
        return twin

    def holds(self, now: float) -> bool:
        """Return whether it is still valid at a later moment if nothing has changed: its time is in the future, and no
        job has run past its end."""
        return self.time > now and self._first_end > now

    def window(self, now: float) -> tuple[float, int]:
        """Return seconds and a size: a job that takes longer and is larger may not start. The seconds may be too long
        by a rounding error; they are infinite if counting is not exact."""
        if self.pool is not None or self.time == math.inf:
            return math.inf, 0
        return self._longest(now), self.spare

    def _longest(self, now: float) -> float:
        """Return an upper bound for the seconds of a job that starts now and ends by `time`: both the sum of times and
        the difference are rounded."""
        return math.nextafter(math.nextafter(self.time, math.inf) - now, math.inf)

    def refusals(self, now: float) -> tuple[float, dict[Hashable, int]]:
        """Return seconds, and a size for some classes: a job that takes longer and is at least as large as the size
        for its class may not start. The seconds may be too long by a rounding error; they are infinite if nothing is
        known."""
        known = self.pool is not None and self._lasts is EXPECTED and self.time < math.inf
        return self._longest(now) if known else math.inf, self._too_large

    def may(self, job: Job, size: int, now: float, policy: CountingPolicy) -> bool:
        """Return whether a job may start now, as far as is known without its placement."""
        if size <= self.spare or now + self._lasts(job) <= self.time:
            return True
        if not self._too_large:
            return self.pool is not None
        similar = policy.similar(job)
        return not similar or similar[1] < self._too_large.get(similar[0], math.inf)

    def admit(self, job: Job, placement: Placement, now: float, policy: CountingPolicy) -> bool:
        """Return whether a job for which `may` is true can start with this placement; if so, subtract what it takes at
        `time`."""
        if now + self._lasts(job) <= self.time:
            return True
        if self.pool is None:
            if placement.size > self.spare:
                return False
            self.spare -= placement.size
            return True
        self.pool.take(job, placement, now)
        if policy.fits(self.job, self.pool):
            return True
        self.pool.give(job, placement)
        similar = policy.similar(job)
        if similar:
            self._too_large[similar[0]] = similar[1]
        return False

    def withdraw(self, job: Job, placement: Placement, now: float) -> None:
        """Undo `admit` for a job that does not start."""
        if now + self._lasts(job) > self.time:
            if self.pool is None:
                self.spare += placement.size
            else:
                self.pool.give(job, placement)

    def forget(self) -> None:
        """Forget refused sizes, because jobs may now get other placements."""
        self._too_large.clear()


def admitted(reservations: Sequence[Shadow], job: Job, placement: Placement, now: float,
             policy: CountingPolicy) -> bool:
    """Return whether all reservations admit a job; if one does not, the others are left unchanged."""
    for at, each in enumerate(reservations):
        if not each.admit(job, placement, now, policy):
            for before in reservations[:at]:
                before.withdraw(job, placement, now)
            return False
    return True
