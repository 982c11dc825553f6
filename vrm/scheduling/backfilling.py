"""Backfilling: which later jobs may start while the head of the queue waits for nodes.

EASY (Lifka, "The ANL/IBM SP scheduling system", 1995; Mu'alem and Feitelson, 2001) gives the
head a reservation at its *shadow time*, the earliest moment at which it fits if every running
job ends when its estimate says. A later job may start now when it (1) ends by the shadow time,
or (2) leaves the head what it needs at the shadow time.
"""

from __future__ import annotations

import math
from typing import Dict, Hashable, Iterator, NamedTuple, Optional, Sequence, Tuple

from vrm.model.cluster import Cluster, Pool
from vrm.model.job import Job
from vrm.model.placement import Placement
from vrm.scheduling.placement import LanePolicy
from vrm.scheduling.registry import Registry

BACKFILLINGS = Registry("backfilling")


class Reservation(NamedTuple):
    """When a job can start at the latest, and the free and taken lanes just before it does."""

    job: Job
    time: float
    pool: Pool


def reserve(job: Job, now: float, cluster: Cluster, policy: LanePolicy) -> Reservation:
    """The earliest start of a job that does not fit now, from the expected ends of running jobs.

    A running job past its expected end counts as ending now. The time is infinite when the job
    does not fit even then (nodes are down).
    """
    pool = cluster.copy()
    shadow = math.inf
    for booking in cluster.running():
        end = max(booking.expected_end, now)
        if end > shadow:
            break
        pool.give(booking.job, booking.placement)
        if shadow == math.inf and policy.fits(job, pool):
            shadow = end  # and the others that end at this moment are given back, too
    return Reservation(job, shadow, pool)


class NoBackfilling:
    """Nothing overtakes the head."""

    name = "none"

    def fill(self, now: float, waiting: Sequence[Job], first: int, cluster: Cluster,
             policy: LanePolicy) -> Iterator[Tuple[Job, Placement]]:
        """No job."""
        return iter(())


class Easy:
    """EASY backfilling: one reservation, for the head, made anew at each step."""

    name = "easy"

    def __init__(self) -> None:
        self.reservation: Optional[Reservation] = None

    def fill(self, now: float, waiting: Sequence[Job], first: int, cluster: Cluster,
             policy: LanePolicy) -> Iterator[Tuple[Job, Placement]]:
        """Jobs of `waiting` after the head (at `first`) that may start now, with their places.

        The caller books each job on the cluster before it takes the next.
        """
        head = waiting[first]
        self.reservation = reservation = reserve(head, now, cluster, policy)
        shadow = reservation.time
        # The smallest job of each class that was found to take what the head needs; a larger
        # one of the class would too. Forgotten when the cluster changes.
        too_large: Dict[Hashable, int] = {}
        for index in range(first + 1, len(waiting)):
            job = waiting[index]
            if not policy.fits(job, cluster):
                continue
            if now + job.estimate <= shadow:
                placement = policy.place(job, cluster)
            else:
                placement = self._beside_head(job, reservation, cluster, policy, too_large)
            if placement is not None:
                yield job, placement
                too_large.clear()

    @staticmethod
    def _beside_head(job: Job, reservation: Reservation, cluster: Cluster, policy: LanePolicy,
                     too_large: Dict[Hashable, int]) -> Optional[Placement]:
        """The place of a job that runs past the shadow time, if the head still fits then."""
        similar = policy.similar(job)
        if similar and similar[1] >= too_large.get(similar[0], math.inf):
            return None
        placement = policy.place(job, cluster)
        if placement is None:
            return None
        reservation.pool.take(job, placement)
        if reservation.time == math.inf or policy.fits(reservation.job, reservation.pool):
            return placement
        reservation.pool.give(job, placement)
        if similar:
            too_large[similar[0]] = similar[1]
        return None


BACKFILLINGS.register("none")(NoBackfilling)
BACKFILLINGS.register("easy")(Easy)


def make_backfilling(text: str) -> "NoBackfilling | Easy":
    """The backfilling of that name or dotted path; PolicyError when there is none."""
    return BACKFILLINGS.find(text)()
