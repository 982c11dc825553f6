"""Expected run times of jobs: learnt from ended jobs, and extended when a running job exceeds its expectation. Live
runs and simulations use the same code. The expectations of waiting jobs are recorded in the journal; all others
follow from these and from the ends."""

from __future__ import annotations

import math
from collections.abc import Iterable

from vrm.model import Booking, Cluster, Job, JobState
from vrm.model.rules import Rules
from vrm.scheduling.estimators import (Correction, Estimator, ObservedRun, LongestRunTimes, Own, Table, alike,
                                       make_correction,
                                       make_estimator)
from vrm.scheduling.registry import own_name

TEACHING = (JobState.COMPLETED, JobState.TIMEOUT)
"""End states from which estimators learn: jobs with other end states may have ended at any time."""

_ROUNDING = 1e-6
"""Tolerance for sums of times, in seconds."""


class Expectations:
    """An estimator of run times, and the correction for jobs that exceed their estimate. `reestimates`: estimate
    waiting jobs again when a similar job ends; `whole`: use whole seconds. `longest` learns the maximum run times."""

    def __init__(self, estimator: Estimator, correction: Correction, reestimates: bool = False,
                 whole: bool = False) -> None:
        self.estimator = estimator
        self._correction = correction
        self._reestimates = reestimates
        self._whole = whole
        self.longest = LongestRunTimes()

    def of(self, job: Job) -> Job:
        """Return the submitted job with its expected run time set."""
        expected = self.estimator.expected(job)
        if self._whole:
            expected = float(math.floor(expected)) or expected
        return job if expected == job.expected else job.but(expected=expected)

    def learn(self, job: Job, run: float, state: JobState) -> bool:
        """Learn from a job that ended after `run` seconds; return whether similar waiting jobs must be estimated
        again."""
        if state not in TEACHING:
            return False
        self.estimator.learn(job, run)
        self.longest.learn(job, run)
        return self._reestimates

    def again(self, waiting: Iterable[Job], like: Job) -> list[Job]:
        """Return, with new estimates, the waiting jobs similar to the ended job `like` whose estimate has changed."""
        key = alike(like)
        found = []
        for job in waiting:
            if alike(job) == key:
                new = self.of(job)
                if new is not job:
                    found.append(new)
        return found

    def correct(self, cluster: Cluster, job_id: int, now: float) -> Booking:
        """Extend the expected end of a running job that has exceeded it, at most up to its limit; return its
        booking."""
        booking = cluster.bookings[job_id]
        if not _correctable(booking) or booking.expected_end > now:
            return booking
        job, _, start = booking[:3]
        ran = max(now - start, job.expected) + _ROUNDING
        return cluster.revise(job_id, start + self._correction(job.expected, ran, booking.limit - start),
                              now)

    def correct_all(self, cluster: Cluster, now: float) -> bool:
        """Correct all running jobs that have exceeded their expected ends; return whether there was one."""
        outlived = [job_id for end, job_id in cluster.ends
                    if end <= now and _correctable(cluster.bookings[job_id])]
        for job_id in outlived:
            self.correct(cluster, job_id, now)
        return bool(outlived)

    def due(self, cluster: Cluster) -> float:
        """Return when the next running job reaches its expected end (seconds) with time left to its limit; infinity
        for never."""
        for end, job_id in cluster.ends:
            if _correctable(cluster.bookings[job_id]):
                return end
        return math.inf

    def copy(self) -> Expectations:
        """Return an independent copy, with everything learnt."""
        twin = Expectations(self.estimator.copy(), self._correction, self._reestimates, self._whole)
        twin.longest = self.longest.copy()
        return twin


def make_expectations(rules: Rules, table: Table | None = None,
                      lessons: Iterable[ObservedRun] = (), live: bool = False
                      ) -> Expectations | None:
    """Make the expectations that the rules configure (`estimates`: a name, an estimator, or an object with
    `expected(job)`); None if only the users' own time limits count. `table`: see `make_estimator`. `lessons` are jobs
    of earlier runs, with their run times (seconds) and end states. Raises PolicyError."""
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
    """Return whether the expected end is before the limit: the expectation never exceeds the walltime."""
    return booking.expected_end < booking.limit
