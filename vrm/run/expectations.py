"""What a run expects of its jobs: how long they take, learnt from those that have ended, and longer
where a running job outlives it. Live runs and simulations ask the same. What is expected of a
waiting job is recorded; all else follows from that and from the ends."""

from __future__ import annotations

import math
from collections.abc import Iterable

from vrm.model import Booking, Cluster, Job, JobState
from vrm.model.rules import Rules
from vrm.scheduling.estimators import (Correction, Estimator, Lesson, Longest, Own, Table, alike, make_correction,
                                       make_estimator)
from vrm.scheduling.registry import own_name

TEACHING = (JobState.COMPLETED, JobState.TIMEOUT)
"""How a job must have ended for estimators to learn from it: others end at any time."""

_ROUNDING = 1e-6
"""Seconds by which sums of times may be wrong."""


class Expectations:
    """An estimator, and the correction of what it expected too short. `reestimates`: waiting jobs are
    estimated again when a job like them ends; `whole`: in whole seconds. `longest`: how long jobs take at the most."""

    def __init__(self, estimator: Estimator, correction: Correction, reestimates: bool = False,
                 whole: bool = False) -> None:
        self.estimator = estimator
        self._correction = correction
        self._reestimates = reestimates
        self._whole = whole
        self.longest = Longest()

    def of(self, job: Job) -> Job:
        """A job that comes, with what is expected of it."""
        expected = self.estimator.expected(job)
        if self._whole:
            expected = float(math.floor(expected)) or expected
        return job if expected == job.expected else job.but(expected=expected)

    def learn(self, job: Job, run: float, state: JobState) -> bool:
        """A job has ended after `run` seconds; whether waiting jobs like it are to be estimated again."""
        if state not in TEACHING:
            return False
        self.estimator.learn(job, run)
        self.longest.learn(job, run)
        return self._reestimates

    def again(self, waiting: Iterable[Job], like: Job) -> list[Job]:
        """The waiting jobs like the one that has ended of which something else is expected now."""
        key = alike(like)
        found = []
        for job in waiting:
            if alike(job) == key:
                new = self.of(job)
                if new is not job:
                    found.append(new)
        return found

    def correct(self, cluster: Cluster, job_id: int, now: float) -> Booking:
        """A running job has outlived what was expected: expect it longer, if its walltime lets it
        run longer."""
        booking = cluster.bookings[job_id]
        if not _correctable(booking) or booking.expected_end > now:
            return booking
        job, _, start = booking[:3]
        ran = max(now - start, job.expected) + _ROUNDING
        return cluster.revise(job_id, start + self._correction(job.expected, ran, booking.limit - start),
                              now)

    def correct_all(self, cluster: Cluster, now: float) -> bool:
        """Do that for all such jobs; whether there was any."""
        outlived = [job_id for end, job_id in cluster.ends
                    if end <= now and _correctable(cluster.bookings[job_id])]
        for job_id in outlived:
            self.correct(cluster, job_id, now)
        return bool(outlived)

    def due(self, cluster: Cluster) -> float:
        """When the next running job outlives what is expected of it; infinity for never."""
        for end, job_id in cluster.ends:
            if _correctable(cluster.bookings[job_id]):
                return end
        return math.inf

    def copy(self) -> Expectations:
        """An independent copy, with all that was learnt."""
        twin = Expectations(self.estimator.copy(), self._correction, self._reestimates, self._whole)
        twin.longest = self.longest.copy()
        return twin


def make_expectations(rules: Rules, table: Table | None = None,
                      lessons: Iterable[Lesson] = (), live: bool = False
                      ) -> Expectations | None:
    """What rules say of estimates (a name, an estimator, or an object with `expected(job)`); None where
    nothing else is expected than what users say. `table`: see `make_estimator`. `lessons` are the jobs of
    earlier runs, with their run times (seconds) and how they ended. Raises PolicyError."""
    how = make_correction(rules.correction)
    estimator = (rules.estimates if isinstance(rules.estimates, Estimator)
                 else make_estimator(rules.estimates, table, live) if isinstance(rules.estimates, str)
                 else Own(own_name(rules.estimates), rules.estimates))
    if type(estimator) is Estimator:
        return None
    found = Expectations(estimator, how, rules.reestimate, rules.events == "published")
    for job, run, state in lessons:
        found.learn(job, run, state)
    return found


def _correctable(booking: Booking) -> bool:
    """Whether more could be expected of a job than is: no more is than its walltime."""
    return booking.expected_end < booking.limit
