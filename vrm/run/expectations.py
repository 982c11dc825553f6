"""What a run expects of its jobs: how long they take, learnt from those that have ended, and longer
where a running job outlives it. Live runs and simulations ask the same. What is expected of a
waiting job is recorded; all else follows from that and from the ends."""

from __future__ import annotations

import math
from typing import Iterable, List, Optional, Tuple, Union

from vrm.model import Booking, Cluster, Job, JobState
from vrm.scheduling.estimators import (Correction, Estimator, Table, alike, make_correction,
                                       make_estimator)

TEACHING = (JobState.COMPLETED, JobState.TIMEOUT)
"""How a job must have ended for estimators to learn from it: others end at any time."""

_ROUNDING = 1e-6
"""Seconds by which sums of times may be wrong."""


class Expectations:
    """An estimator, and the correction of what it expected too short."""

    def __init__(self, estimator: Estimator, correction: Correction) -> None:
        self.estimator = estimator
        self._correction = correction

    def of(self, job: Job) -> Job:
        """A job that comes, with what is expected of it."""
        expected = self.estimator.expected(job)
        return job if expected == job.expected else job.but(expected=expected)

    def learn(self, job: Job, run: float, state: JobState) -> bool:
        """A job has ended after `run` seconds; whether anything follows for jobs like it."""
        if state not in TEACHING:
            return False
        self.estimator.learn(job, run)
        return self.estimator.learns

    def again(self, waiting: Iterable[Job], like: Job) -> List[Job]:
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
        return Expectations(self.estimator.copy(), self._correction)


def make_expectations(estimates: Union[str, Estimator], correction: str,
                      table: Optional[Table] = None,
                      lessons: Iterable[Tuple[Job, float, JobState]] = (), live: bool = False
                      ) -> Optional[Expectations]:
    """What the names of an estimator and a correction stand for; None where nothing else is expected
    than what users say. `table`: see `make_estimator`. `lessons` are the jobs of earlier runs, with
    their run times (seconds) and how they ended. Raises PolicyError."""
    how = make_correction(correction)
    estimator = (make_estimator(estimates, table, live) if isinstance(estimates, str)
                 else estimates)
    if type(estimator) is Estimator:
        return None
    found = Expectations(estimator, how)
    for job, run, state in lessons:
        found.learn(job, run, state)
    return found


def _correctable(booking: Booking) -> bool:
    """Whether more could be expected of a job than is: no more is than its walltime."""
    return booking.expected_end < booking.limit
