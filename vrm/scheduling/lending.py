"""Who could lend cores to a waiting job, and where it would be on them: what the dispatchers of SD-policy
have in common (`vrm.scheduling.slowdown`, `vrm.scheduling.slowdown_all`).
"""

from __future__ import annotations

import math
from operator import itemgetter
from typing import Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

from vrm.model import bits
from vrm.model.cluster import Booking, Cluster
from vrm.model.core_share import Borrowed
from vrm.model.job import Job
from vrm.model.policies import PlacementPolicy
from vrm.scheduling.mates import MOST, Mate, Reach, carries, choose, outlasts, pays, penalty
from vrm.scheduling.offers import NoOffer, borrowed, offer, ranks_on_a_node, reserved

_VAIN = 16
"""After so many jobs that were looked at in vain it is counted again who could have mates."""

_CLOSE = 1 + 1e-9
"""By how much a duration may be longer for rounding."""


class Able(NamedTuple):
    """A running job that could lend: its booking, its nodes, and the cores of each rank that it would
    lend."""

    booking: Booking
    nodes: int
    per_rank: int

    @property
    def lost(self) -> float:
        """The share of its speed that it would lose."""
        return self.per_rank / self.booking.placement.width

    def end(self, seconds: float) -> float:
        """Its expected end if it lends for so long from now on."""
        return self.booking.expected_end + self.lost * seconds


class Terms:
    """On which terms jobs lend, and how far that reaches.

    `max_slowdown`: mates are expected to stay below it; None: below the mean of what is expected of the
    jobs that run. `share`: the largest share of the cores of a running job that is lent. `most`: mates of
    one job. `always`: also where the job would end later than by waiting; `gain`: only where it ends so
    much earlier that this is more than what its mates lose together."""

    def __init__(self, max_slowdown: Optional[float] = 10.0, share: float = 0.5, most: int = MOST,
                 always: bool = False, gain: bool = False) -> None:
        self.max_slowdown = max_slowdown
        self.share = share
        self.most = most
        self.always = always
        self.gain = gain
        # Who can lend only gets less but for jobs that start, or have their cores again (`newer`): `reach`
        # bounds what all together could carry. It is made again where it has let many jobs pass in vain.
        self._watched: Optional[Cluster] = None
        self.newer: Set[int] = set()
        self.reach: Optional[Reach] = None
        self.vain = 0

    def copy(self) -> Terms:
        """The same terms, of which nobody has found out how far they reach."""
        return Terms(self.max_slowdown, self.share, self.most, self.always, self.gain)

    def watch(self, view: Cluster) -> None:
        """Follow who could lend on a cluster."""
        if self._watched is not view:
            view.watchers.append(self)
            self._watched = view
            self.forget()

    def booked(self, booking: Booking) -> None:
        """A job starts, and may lend."""
        self.newer.add(booking.job.id)

    def released(self, booking: Booking) -> None:
        """A job has ended."""
        self.newer.discard(booking.job.id)

    def revised(self, booking: Booking, before: float) -> None:
        """A job has its cores again, or is expected to run on."""
        self.newer.add(booking.job.id)

    def nodes_changed(self) -> None:
        """Nodes came or went."""
        self.forget()

    def forget(self) -> None:
        """Find out again who could lend."""
        self.newer.clear()
        self.reach = None

    def limit(self, view: Cluster) -> float:
        """What the slowdown of a mate stays below."""
        if self.max_slowdown is not None:
            return self.max_slowdown
        running = view.bookings.values()
        return math.fsum((booking.expected_end - booking.job.submit) / booking.job.expected
                         for booking in running) / len(running) if running else math.inf


class Lending:
    """The running jobs at one moment, as those who could lend. Subclasses say whom a lend would put off."""

    def __init__(self, terms: Terms, now: float, view: Cluster, policy: PlacementPolicy) -> None:
        self.terms, self.now, self.view, self.policy = terms, now, view, policy
        self._able: Optional[List[Tuple[float, Able]]] = None
        self._limit = math.nan

    def static_start(self, job: Job) -> float:
        """When a job would start on cores of its own."""
        raise NotImplementedError

    def needed(self, job: Job, mate: Able, seconds: float) -> bool:
        """Whether others count on nodes of a mate which it would keep longer, if it lent to the job for so
        long."""
        raise NotImplementedError

    def delays(self, job: Job, mates: Sequence[Able], seconds: float) -> bool:
        """Whether a reservation would begin later if these lend to the job for so long."""
        raise NotImplementedError

    def on_mates(self, job: Job, start: float) -> Optional[Borrowed]:
        """The place of a malleable job on cores that mates lend; `start` is its static start, if it is
        known."""
        terms, now, expected = self.terms, self.now, job.expected
        limit, nodes, share = self._below(), self.policy.nodes(job), terms.share
        if expected > self.reach().of(nodes):
            return None
        if not terms.always:
            if start < 0:
                start = self.static_start(job)
            if not pays(start, expected, now, share):
                return None
        choosy = bool(job.request.features) or not self.view.all_up
        mates: List[Mate] = []
        by_id: Dict[int, Able] = {}
        for longest, each in self._lenders():
            if longest < expected:
                break
            if each.nodes <= nodes:
                end = each.booking.expected_end
                if outlasts(end - now, expected, share):
                    lender = each.booking.job
                    value = penalty(lender.submit, end, lender.expected, expected)
                    if value < limit and not (choosy and self._hinders(job, each)):
                        mates.append(Mate(value, lender.id, each.nodes))
                        by_id[lender.id] = each
        chosen = choose(mates, nodes, terms.most)
        if chosen is None:
            terms.vain += 1
            return None
        placement = self._lent(job, [by_id[mate] for mate in chosen], start)
        if placement is None:
            free = [mate for mate in mates if not self.needed(job, by_id[mate.id], expected / share)]
            chosen = choose(free, nodes, terms.most) if len(free) < len(mates) else None
            if chosen is not None:
                placement = self._lent(job, [by_id[mate] for mate in chosen], start)
        return placement

    def reach(self) -> Reach:
        """What the running jobs could carry, at most."""
        terms = self.terms
        if terms.reach is None or terms.vain > _VAIN:
            terms.reach, terms.vain = Reach(terms.most), 0
            terms.newer.update(self.view.bookings)
        if terms.newer:
            for each in lenders(self.view, terms.share, terms.newer):
                terms.reach.add(each.nodes, self._carries(each))
            terms.newer.clear()
        return terms.reach

    def _lent(self, job: Job, mates: Sequence[Able], start: float) -> Optional[Borrowed]:
        """The place of a job on what these mates lend; None where it does not fit, where it gets so little
        that it pays no more or a mate ends before it, or where a reservation would begin later."""
        if self.delays(job, mates, job.expected / self.terms.share):
            return None
        placement = self._place(job, mates)
        if placement is None:
            return None
        seconds = job.expected * job.cores / placement.width
        lost = sum(each.lost for each in mates) * seconds if self.terms.gain else 0.0
        if not self.terms.always and not start + job.expected > self.now + seconds + lost:
            return None
        for each in mates:
            left = each.booking.expected_end - self.now
            if left * _CLOSE < seconds * (1 - each.lost):
                return None
        if self.delays(job, mates, seconds) or reserved(self.view, placement.lent, self.now, job, placement):
            return None
        return placement

    def _place(self, job: Job, mates: Sequence[Able]) -> Optional[Borrowed]:
        """The place of a job on what these mates lend: whole sockets first, or as many cores of each socket
        where it has more of them so."""
        view, best = self.view, None
        for within in (False, True):
            try:
                lent = [offer(view, each.booking.job.id,
                              each.per_rank * ranks_on_a_node(view, each.booking), within) for each in mates]
            except NoOffer:
                continue
            found = borrowed(job, view, [(each.lender, each.cores) for each in lent], shrinks=True)
            if found is not None and (best is None or found.width > best.width):
                best = found
            if best is not None and best.width * job.procs >= sum(bits.count(each.cores) for each in lent):
                break  # it has all that is lent
        return best

    def _below(self) -> float:
        if math.isnan(self._limit):
            self._limit = self.terms.limit(self.view)
        return self._limit

    def _lenders(self) -> List[Tuple[float, Able]]:
        """The running jobs that could lend now, and how long the jobs may take that they could carry, the
        longest first."""
        if self._able is None:
            self._able = sorted(((self._carries(each), each) for each in lenders(self.view, self.terms.share)),
                                key=itemgetter(0), reverse=True)
        return self._able

    def _carries(self, each: Able) -> float:
        """How long jobs may take that this one could carry, at most."""
        terms, end, lender = self.terms, each.booking.expected_end, each.booking.job
        limit = math.inf if terms.max_slowdown is None else terms.max_slowdown  # the dynamic one moves
        return carries(end - self.now, lender.submit, end, lender.expected, limit, terms.share)

    def _hinders(self, job: Job, mate: Able) -> bool:
        """Whether a node of a mate is down or lacks what the job asks for."""
        nodes = mate.booking.placement.node_set
        features = job.request.features
        return bool(nodes & ~self.view.up) or any(not features <= self.view.nodes[node].features
                                                  for node in bits.members(nodes))


def lenders(view: Cluster, share: float, among: Optional[Iterable[int]] = None) -> Iterator[Able]:
    """The running jobs (`among` these ids) that could lend a share of their cores: malleable ones which
    hold all of theirs and none of others, and have a core for each rank to spare."""
    loans = view.loans
    lending = {loan.lender for loan in loans.all} if loans else ()
    for job_id in view.bookings if among is None else among:
        booking = view.bookings.get(job_id)
        if booking is None:
            continue
        job, placement = booking.job, booking.placement
        if (job.malleable and not job.exclusive and job_id not in lending and job_id not in loans.unwilling
                and not isinstance(placement, Borrowed)):
            per_rank = int(share * placement.width + 1e-9)
            if per_rank:
                yield Able(booking, bits.count(placement.node_set), per_rank)
