"""Backfilling: which later jobs may start while the head of the queue waits for nodes.

EASY (Lifka, "The ANL/IBM SP scheduling system", 1995; Mu'alem and Feitelson, 2001) gives the
head a reservation at its *shadow time*, the earliest moment at which it fits if every running
job ends when its estimate says. A later job may start now when it (1) ends by the shadow time,
or (2) leaves the head what it needs at the shadow time.
"""

from __future__ import annotations

import math
import re
from typing import Any, Dict, Hashable, Iterable, Iterator, NamedTuple, Optional, Tuple

from vrm.model.cluster import AnyPlacement, Cluster, Pool
from vrm.model.job import Job
from vrm.scheduling.queue import Waiting
from vrm.scheduling.registry import PolicyError, Registry
from vrm.scheduling.reservations import Reserving

BACKFILLINGS = Registry("backfilling")


class Reservation(NamedTuple):
    """When a job can start at the latest, and the free and taken lanes just before it does.

    Where counts say all there is no `pool` but `spare`, what the job leaves over then.
    """

    job: Job
    time: float
    pool: Optional[Pool] = None
    spare: int = 0


def reserve(job: Job, now: float, cluster: Cluster, policy: Any) -> Reservation:
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


def reserve_by_count(job: Job, now: float, cluster: Cluster, policy: Any) -> Reservation:
    """The same for a policy under which counts say all of the job."""
    wanted, room = policy.size(job), policy.room(cluster)
    bookings, returns = cluster.bookings, cluster.returns
    shadow = math.inf
    for end, job_id in cluster.ends:
        if end > shadow:
            break
        room += returns(bookings[job_id].placement)
        if room >= wanted and shadow == math.inf:
            shadow = end if end > now else now
    return Reservation(job, shadow, None, room - wanted)


class NoBackfilling:
    """Nothing overtakes the head."""

    name = "none"

    def fill(self, now: float, waiting: Waiting, first: int, cluster: Cluster,
             policy: Any) -> Iterator[Tuple[Job, AnyPlacement]]:
        """No job."""
        return iter(())


class ListScheduling:
    """Whatever fits starts, in the order of the queue; nobody gets a reservation."""

    name = "list"

    def fill(self, now: float, waiting: Waiting, first: int, cluster: Cluster,
             policy: Any) -> Iterator[Tuple[Job, AnyPlacement]]:
        """Jobs of `waiting` after the head (at `first`) that fit, with their places."""
        for job in fitting(waiting, first + 1, cluster, policy):
            placement = policy.place(job, cluster)
            if placement is not None:
                yield job, placement


def fitting(waiting: Waiting, first: int, cluster: Cluster, policy: Any,
            window: float = math.inf, beside: int = 0) -> Iterable[Job]:
    """The jobs from place `first` on without those that cannot start for lack of room, and
    those that take longer than `window` and need more than `beside`, as far as can be counted."""
    room = policy.room(cluster) if hasattr(policy, "room") else None
    if room is None:
        return waiting[first:]
    if room <= 0:
        return ()
    return waiting.fitting(first, room, window, beside)


class Easy:
    """EASY backfilling: one reservation, for the head, made anew at each step."""

    name = "easy"

    def __init__(self) -> None:
        self.reservation: Optional[Reservation] = None
        # The cluster as the last step left it: what found no room then finds none until a job
        # ends, unless it has come since.
        self._left: Optional[Tuple[Cluster, int]] = None

    @staticmethod
    def reserve(job: Job, now: float, cluster: Cluster, policy: Any) -> Reservation:
        """The reservation that a job gets when it is the head."""
        if hasattr(policy, "exact") and policy.exact(job):
            return reserve_by_count(job, now, cluster, policy)
        return reserve(job, now, cluster, policy)

    def fill(self, now: float, waiting: Waiting, first: int, cluster: Cluster,
             policy: Any) -> Iterator[Tuple[Job, AnyPlacement]]:
        """Jobs of `waiting` after the head (at `first`) that may start now, with their places.

        The caller books each job on the cluster before it takes the next.
        """
        if hasattr(policy, "exact") and policy.exact(waiting[first]):
            return self._fill_by_count(now, waiting, first, cluster, policy)
        return self._fill(now, waiting, first, cluster, policy)

    def _fill_by_count(self, now: float, waiting: Waiting, first: int, cluster: Cluster,
                       policy: Any) -> Iterator[Tuple[Job, AnyPlacement]]:
        head, known = waiting[first], self.reservation
        if (known is not None and known.pool is None and known.job is head and known.time > now
                and self._left == (cluster, cluster.generation)
                and not (cluster.ends and cluster.ends[0][0] <= now)):
            jobs: Iterable[Job] = [job for job in waiting.fresh if job is not head]
            shadow, spare = known.time, known.spare
        else:
            self.reservation = known = reserve_by_count(head, now, cluster, policy)
            shadow, spare = known.time, known.spare
            if shadow == math.inf:
                spare = policy.room(cluster)
            jobs = fitting(waiting, first + 1, cluster, policy, _window(now, shadow), spare)
        size_of, room = policy.size, policy.room(cluster)
        for job in jobs:
            size = size_of(job)
            if size > room:
                continue
            beyond = now + job.estimate > shadow
            if beyond and size > spare:
                continue
            placement = policy.place(job, cluster)
            if placement is not None:
                if beyond:
                    spare -= size
                    self.reservation = Reservation(head, shadow, None, spare)
                yield job, placement
                room = policy.room(cluster)
                if room <= 0:
                    break
        self._left = (cluster, cluster.generation)

    def _fill(self, now: float, waiting: Waiting, first: int, cluster: Cluster,
              policy: Any) -> Iterator[Tuple[Job, AnyPlacement]]:
        head = waiting[first]
        left = (cluster, cluster.generation)
        known = self.reservation
        if (known is not None and known.job is head and self._left == left
                and not (cluster.ends and cluster.ends[0][0] <= now)):
            jobs: Iterable[Job] = [job for job in waiting.fresh if job is not head]
            reservation = known
        else:
            jobs = fitting(waiting, first + 1, cluster, policy)
            self.reservation = reservation = reserve(head, now, cluster, policy)
        shadow = reservation.time
        # The smallest job of each class that was found to take what the head needs; a larger
        # one of the class would too. Forgotten when the cluster changes.
        too_large: Dict[Hashable, int] = {}
        for job in jobs:
            if not policy.fits(job, cluster):
                continue
            if now + job.estimate <= shadow:
                placement = policy.place(job, cluster)
            else:
                placement = self._beside_head(job, reservation, cluster, policy, too_large)
            if placement is not None:
                yield job, placement
                too_large.clear()
        # Once a job started the next step looks at all again: places depend on neighbours.
        self._left = left

    @staticmethod
    def _beside_head(job: Job, reservation: Reservation, cluster: Cluster, policy: Any,
                     too_large: Dict[Hashable, int]) -> Optional[AnyPlacement]:
        """The place of a job that runs past the shadow time, if the head still fits then."""
        similar = policy.similar(job)
        if similar and similar[1] >= too_large.get(similar[0], math.inf):
            return None
        placement = policy.place(job, cluster)
        if placement is None:
            return None
        assert reservation.pool is not None
        reservation.pool.take(job, placement)
        if reservation.time == math.inf or policy.fits(reservation.job, reservation.pool):
            return placement
        reservation.pool.give(job, placement)
        if similar:
            too_large[similar[0]] = similar[1]
        return None


def _window(now: float, shadow: float) -> float:
    """The longest estimate that can end by the shadow time; may be a rounding too long."""
    return math.nextafter(shadow - now, math.inf) if shadow < math.inf else math.inf


BACKFILLINGS.register("none")(NoBackfilling)
BACKFILLINGS.register("easy")(Easy)
BACKFILLINGS.register("list")(ListScheduling)


@BACKFILLINGS.register("conservative")
def conservative() -> Reserving:
    """A reservation for every job, kept and moved forward when jobs end early."""
    return Reserving(None, kept=True)


@BACKFILLINGS.register("conservative-recomputed")
def conservative_recomputed() -> Reserving:
    """A reservation for every job, all made anew at each step."""
    return Reserving(None, kept=False)


@BACKFILLINGS.register("easy-kept")
def easy_kept() -> Reserving:
    """One reservation, which its job keeps until it starts, whoever is first by then."""
    return Reserving(1, kept=True)


_DEPTH = re.compile(r"(\d{1,6})(-kept)?")


def make_backfilling(text: str) -> Any:
    """The backfilling of that name or dotted path, or with that number of reservations.

    `3` makes three reservations anew at each step, `3-kept` keeps them. A user's own is a
    function or class without arguments whose result has `fill`, as Easy, or `plan`, as
    Reserving. Raises PolicyError.
    """
    depth = _DEPTH.fullmatch(text.strip())
    if depth is None:
        made = BACKFILLINGS.make(text)
        if not (hasattr(made, "fill") or hasattr(made, "plan")):
            raise PolicyError(f"`{text}` makes no backfilling; it must give an object with "
                              "`fill`, as Easy has it, or `plan`")
        return made
    number, kept = int(depth.group(1)), bool(depth.group(2))
    if number == 0:
        return NoBackfilling()
    if number == 1 and not kept:
        return Easy()
    return Reserving(number, kept)
