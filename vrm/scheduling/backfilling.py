"""Backfilling: which later jobs may start while the head of the queue waits for nodes.

EASY (Lifka, "The ANL/IBM SP scheduling system", 1995; Mu'alem and Feitelson, 2001) gives the
head a reservation at its *shadow time*, the earliest moment at which it fits if every running
job ends when its estimate says. A later job may start now when it (1) ends by the shadow time,
or (2) leaves the head what it needs at the shadow time.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Dict, Hashable, Iterable, NamedTuple, Optional, Tuple, Union

from vrm.model.cluster import AnyPlacement, Cluster, Pool
from vrm.model.job import Job
from vrm.model.policies import PlacementPolicy
from vrm.scheduling.advance import changes
from vrm.scheduling.dispatcher import Dispatcher, Starts
from vrm.scheduling.ordering import Ordering, make_ordering
from vrm.scheduling.queue import Waiting
from vrm.scheduling.registry import (PolicyError, Readers, Registry, above_0, guarded, is_dotted,
                                     whole)
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


def reserve(job: Job, now: float, cluster: Cluster, policy: PlacementPolicy) -> Reservation:
    """The earliest start of a job that does not fit now, from the expected ends of running jobs.

    A running job past its expected end counts as ending now. Where there are advance reservations
    it may start when one of them ends. The time is infinite when the job does not fit even then
    (nodes are down).
    """
    pool = cluster.what_if()
    shadow = math.inf
    for end, job_id in changes(cluster.ends, cluster.boundaries(now)):
        end = max(end, now)
        if end > shadow:
            break
        pool.at = end
        if job_id is not None:
            booking = cluster.bookings[job_id]
            pool.give(booking.job, booking.placement)
        if shadow == math.inf and policy.fits(job, pool):
            shadow = end  # and the others that end at this moment are given back, too
    pool.at = shadow
    return Reservation(job, shadow, pool)


def reserve_by_count(job: Job, now: float, cluster: Cluster, policy: PlacementPolicy
                     ) -> Reservation:
    """The same for a job of which counts say all."""
    wanted, room = policy.size(job), policy.room(cluster)
    assert room is not None
    bookings, returns, all_up = cluster.bookings, cluster.returns, cluster.all_up
    shadow = math.inf
    for end, job_id in cluster.ends:
        if end > shadow:
            break
        placement = bookings[job_id][1]
        room += placement.size if all_up else returns(placement)
        if room >= wanted and shadow == math.inf:
            shadow = end if end > now else now
    return Reservation(job, shadow, None, room - wanted)


def reservation(job: Job, now: float, cluster: Cluster, policy: PlacementPolicy) -> Reservation:
    """The reservation that a job gets when it is the head, the quickest way."""
    return (reserve_by_count if policy.exact(job) else reserve)(job, now, cluster, policy)


class NoBackfilling(Dispatcher):
    """Nothing overtakes the head."""

    tries_all = False

    def idle(self, waiting: Waiting, view: Cluster, policy: PlacementPolicy) -> bool:
        """Whether there is too little room for the head."""
        room = policy.room(view)
        return room is not None and (room == 0 or policy.size(waiting[0]) > room)


def ordered(jobs: Iterable[Job], order: Optional[Ordering], now: float,
            policy: PlacementPolicy) -> Iterable[Job]:
    """Later jobs in the order in which they are backfilled; None: as they come."""
    if order is None:
        return jobs
    key, nodes = order.key, policy.nodes
    return sorted(jobs, key=lambda job: key(job, now, nodes(job)))


class ListScheduling(Dispatcher):
    """Whatever fits starts, in the order of the queue (or behind the head by `order`); nobody gets a
    reservation."""

    name = "list"

    def __init__(self, order: Optional[Ordering] = None) -> None:
        super().__init__()
        self.order = order

    def fill(self, now: float, waiting: Waiting, first: int, view: Cluster,
             policy: PlacementPolicy) -> Starts:
        """Jobs of `waiting` after the head (at `first`) that fit, with their places."""
        for job in ordered(fitting(waiting, first + 1, view, policy), self.order, now, policy):
            placement = policy.place(job, view)
            if placement is not None:
                yield job, placement


def fitting(waiting: Waiting, first: int, view: Pool, policy: PlacementPolicy,
            window: float = math.inf, beside: int = 0) -> Iterable[Job]:
    """The jobs from place `first` on without those that cannot start for lack of room, and
    those that take longer than `window` and need more than `beside`, as far as can be counted."""
    room = policy.room(view)
    if room is None:
        return waiting[first:]
    if room <= 0:
        return ()
    return waiting.fitting(first, room, window, beside)


class Easy(Dispatcher):
    """EASY backfilling: one reservation, for the head, made again at each step. Later jobs are
    backfilled in the order of the queue, or by `order` (the shortest first: Tsafrir, Etsion and
    Feitelson, 2007)."""

    name = "easy"

    def __init__(self, order: Optional[Ordering] = None) -> None:
        super().__init__()
        self.order = order
        # That of the last step, and how that left the cluster. What found no room then finds none
        # until something changes, unless it has come since.
        self.reservation: Optional[Reservation] = None
        self._kept: Tuple[Optional[Cluster], int] = (None, -1)

    def fill(self, now: float, waiting: Waiting, first: int, view: Cluster,
             policy: PlacementPolicy) -> Starts:
        """Jobs of `waiting` after the head (at `first`) that may start now, with their places."""
        known = self.reservation
        if (known is None or known.job is not waiting[first] or known.time <= now
                or self._kept != (view, view.generation)
                or (view.ends and view.ends[0][0] <= now)):
            known = None
        exact = policy.exact(waiting[first])
        if known is not None and exact is not (known.pool is None):  # it can be counted no more
            known = None
        if exact:
            return self._fill_by_count(now, waiting, first, view, policy, known)
        return self._fill(now, waiting, first, view, policy, known)

    def _fill_by_count(self, now: float, waiting: Waiting, first: int, view: Cluster,
                       policy: PlacementPolicy, known: Optional[Reservation]) -> Starts:
        head = waiting[first]
        room = policy.room(view)
        assert room is not None
        if known is not None:
            jobs: Iterable[Job] = [job for job in waiting.fresh if job is not head]
            shadow, spare = known.time, known.spare
        else:
            self.reservation = found = reserve_by_count(head, now, view, policy)
            shadow, spare = found.time, found.spare
            if shadow == math.inf:
                spare = room
            jobs = fitting(waiting, first + 1, view, policy, window(now, shadow), spare)
        size_of = policy.size
        for job in ordered(jobs, self.order, now, policy):
            size = size_of(job)
            if size > room:
                continue
            beyond = now + job.expected > shadow
            if beyond and size > spare:
                continue
            placement = policy.place(job, view)
            if placement is not None:
                if beyond:
                    if placement.size > spare:  # more than the least
                        continue
                    spare -= placement.size
                    self.reservation = Reservation(head, shadow, None, spare)
                yield job, placement
                room = policy.room(view)
                assert room is not None
                if room <= 0:
                    break
        self._kept = (view, view.generation)

    def _fill(self, now: float, waiting: Waiting, first: int, view: Cluster,
              policy: PlacementPolicy, known: Optional[Reservation]) -> Starts:
        head = waiting[first]
        if known is not None:
            jobs: Iterable[Job] = [job for job in waiting.fresh if job is not head]
        else:
            jobs = fitting(waiting, first + 1, view, policy)
            self.reservation = known = reserve(head, now, view, policy)
        # The smallest job of each class that was found to take what the head needs; a larger
        # one of the class would too. Forgotten when the cluster changes.
        too_large: Dict[Hashable, int] = {}
        started = False
        size_of, room = policy.size, policy.room(view)
        for job in ordered(jobs, self.order, now, policy):
            if room is not None and size_of(job) > room:
                continue
            if now + job.expected <= known.time:
                placement = policy.place(job, view)
            else:
                placement = _beside_head(job, now, known, view, policy, too_large)
            if placement is not None:
                yield job, placement
                started = True
                room = policy.room(view)
                too_large.clear()
        # Places depend on neighbours: once a job started the next step looks at all again.
        self._kept = (None, -1) if started else (view, view.generation)

    def reservations(self, now: float, waiting: Waiting, view: Cluster,
                     policy: PlacementPolicy) -> Dict[int, float]:
        """That of the head."""
        head = waiting[0]
        time = reservation(head, now, view, policy).time
        return {head.id: time} if time < math.inf else {}

    def copy(self, view: Cluster) -> Easy:
        """An independent copy, with the reservation."""
        twin = super().copy(view)
        assert isinstance(twin, Easy)
        known = self.reservation
        if known is not None and known.pool is not None:
            pool = known.pool.what_if()
            pool.tenants = view.tenants
            twin.reservation = known._replace(pool=pool)
        if self._kept[0] is not None:
            twin._kept = view, self._kept[1]
        return twin


def _beside_head(job: Job, now: float, known: Reservation, view: Cluster,
                 policy: PlacementPolicy, too_large: Dict[Hashable, int]) -> Optional[AnyPlacement]:
    """The place of a job that runs past the shadow time, if the head still fits then."""
    similar = policy.similar(job)
    if similar and similar[1] >= too_large.get(similar[0], math.inf):
        return None
    placement = policy.place(job, view)
    if placement is None:
        return None
    assert known.pool is not None
    known.pool.take(job, placement, now)
    if known.time == math.inf or policy.fits(known.job, known.pool):
        return placement
    known.pool.give(job, placement)
    if similar:
        too_large[similar[0]] = similar[1]
    return None


def window(now: float, shadow: float) -> float:
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
    """A reservation for every job, all made again at each step."""
    return Reserving(None, kept=False)


@BACKFILLINGS.register("easy-kept")
def easy_kept() -> Reserving:
    """One reservation, which its job keeps until it starts, whoever is first by then."""
    return Reserving(1, kept=True)


@BACKFILLINGS.register("cp")
def cp(jobs: int = 100, budget: Fraction = Fraction("0.1"), start: str = "easy") -> Dispatcher:
    """The starts of a plan for the first waiting jobs, by constraint programming."""
    from vrm.scheduling.plan import Effort
    from vrm.scheduling.planning import Planning
    return Planning(jobs, Effort(float(budget), max(16.0, float(budget)), start == "easy"))


@BACKFILLINGS.register("eamc")
def eamc(variant: str = "priority-inc-v", weight: Fraction = Fraction(1),
         threshold: Fraction = Fraction("0.35")) -> Dispatcher:
    """The best class of nodes and frequency for each job, by time and energy."""
    from vrm.scheduling.eamc import Eamc
    return Eamc(variant, float(weight), float(threshold))


def _variant(text: str) -> str:
    from vrm.scheduling.eamc import GOALS
    if text not in GOALS:
        raise ValueError(text)
    return text


@BACKFILLINGS.register("sd")
def sd(max_slowdown: Optional[float] = 10.0, share: Fraction = Fraction("0.5"), mates: int = 2,
       when: str = "earlier", reservations: str = "head") -> Dispatcher:
    """EASY, or conservative backfilling, in which jobs that would wait too long start on cores that running
    jobs lend."""
    if reservations == "all":
        from vrm.scheduling.lending import Terms
        from vrm.scheduling.slowdown_all import SlowdownAll
        return SlowdownAll(Terms(max_slowdown, float(share), mates, when == "always", when == "gain"))
    from vrm.scheduling.slowdown import SlowdownDriven
    return SlowdownDriven(max_slowdown, float(share), mates, when == "always", when == "gain")


def _max_slowdown(text: str) -> Optional[float]:
    if text == "dynamic":
        return None
    if not float(text) > 1:
        raise ValueError(text)
    return float(text)


def _below_1(text: str) -> Fraction:
    if above_0(text) >= 1:
        raise ValueError(text)
    return above_0(text)


def _when(text: str) -> str:
    if text not in ("earlier", "always", "gain"):
        raise ValueError(text)
    return text


def _reservations(text: str) -> str:
    if text not in ("head", "all"):
        raise ValueError(text)
    return text


def _start(text: str) -> str:
    if text not in ("easy", "nothing"):
        raise ValueError(text)
    return text


_READERS: Readers = {
    "jobs": (whole, "a number of waiting jobs from 1 on, as jobs=100"),
    "budget": (above_0, "seconds of the solver's deterministic clock, as budget=0.1"),
    "max_slowdown": (_max_slowdown, "a number above 1, inf or dynamic, as max_slowdown=10"),
    "share": (_below_1, "a share of a job's cores above 0 and below 1, as share=0.5"),
    "mates": (whole, "a number of jobs that lend to one, as mates=2"),
    "when": (_when, "when=earlier, when=always or when=gain: whether a job must end earlier than by waiting, and "
             "if so by more than its mates lose"),
    "reservations": (_reservations, "reservations=head or reservations=all: whose start no lend puts off"),
    "start": (_start, "start=easy or start=nothing: with which plan the search begins"),
    "variant": (_variant, "variant=reorder, priority-inc, priority-inc-v, base, min-runtime or min-energy"),
    "weight": (above_0, "how much more time counts than energy, as weight=1.5"),
    "threshold": (above_0, "from which share above the best a class is tried last, as threshold=0.35"),
}


_DEPTH = re.compile(r"(\d{1,18})(-per-queue)?(-kept)?", re.ASCII)


def make_backfilling(text: Union[str, int], order: str = "queue",
                     starvation: float = 0.0) -> Dispatcher:
    """The dispatcher of that name or dotted path, or with that number of reservations.

    `3` makes three reservations again at each step, `3-kept` keeps them; `1-per-queue` makes one for
    each queue: where queues have nodes of their own, each is a machine of its own. A user's own is a function
    or class without arguments whose result is a `Dispatcher` or has `fill`, as Easy, or `plan`, as
    `Dispatcher.decide` without its last argument. `order`: that in which later jobs are backfilled,
    queue or as of `make_ordering`. `starvation`: the factor of `vrm.scheduling.starvation`, 0 for
    none. Raises PolicyError.
    """
    dispatcher = _backfilling(text)
    return with_order(dispatcher, order, starvation)


def with_order(dispatcher: Dispatcher, order: str, starvation: float) -> Dispatcher:
    """A dispatcher with the order in which it backfills, and the factor of its guard; PolicyError
    where it has no use for them."""
    by = None if order.strip().lower() == "queue" else make_ordering(order)
    if starvation:
        if type(dispatcher) is not Easy:
            raise PolicyError("Starvation works with the backfilling easy: "
                              f"{dispatcher.name} has no one head to which others give way")
        from vrm.scheduling.starvation import GuardedEasy
        return GuardedEasy(starvation, by)
    if by is not None:
        if not isinstance(dispatcher, (Easy, ListScheduling)):
            raise PolicyError("an order of backfilling works with the backfillings easy and list: "
                              f"under {dispatcher.name} it is the queue's")
        dispatcher.order = by
    return dispatcher


def _backfilling(text: Union[str, int]) -> Dispatcher:
    depth = _DEPTH.fullmatch(str(text).strip())
    if depth is None:
        from vrm.scheduling.custom import dispatcher_of
        if not str(text).split() or is_dotted(str(text).split()[0]):
            return dispatcher_of(str(text), guarded(str(text), BACKFILLINGS.find(str(text)))())
        made: Dispatcher = BACKFILLINGS.make(str(text), _READERS)
        return made
    number, per_queue, kept = int(depth.group(1)), bool(depth.group(2)), bool(depth.group(3))
    if number == 0:
        return NoBackfilling()
    if number == 1 and not kept and not per_queue:
        return Easy()
    return Reserving(number, kept, per_queue)
