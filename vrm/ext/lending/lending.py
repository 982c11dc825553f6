"""Who could lend cores to a waiting job, and where it would be on them: what the dispatchers of SD-policy
have in common (`vrm.ext.lending.slowdown`, `vrm.ext.lending.slowdown_all`).
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import NamedTuple
from collections.abc import Callable, Iterable, Iterator, Sequence

from vrm.model import bits
from vrm.model.booking import Booking, Watcher
from vrm.model.cluster import Cluster
from vrm.model.placement import Placement
from vrm.model.job import Job
from vrm.model.policies import CountingPolicy
from vrm.ext.lending.mates import (MOST, Carriers, Mate, Reach, bearable, carries, choose, outlasts, pays,
                                  penalty)
from vrm.ext.lending.offers import NoOffer, borrowed, offer, ranks_on_a_node, reserved
from vrm.scheduling.placement.spread import admits

_CLOSE = 1 + 1e-9
"""By how much a duration may be longer for rounding."""


class Able(NamedTuple):
    """A running job that could lend: its booking, its nodes, the cores of each rank that it would lend, and
    how long the jobs may take that it could bear (see `vrm.ext.lending.mates.bearable`)."""

    booking: Booking
    nodes: int
    per_rank: int
    most: float

    @property
    def lost(self) -> float:
        """The share of its speed that it would lose."""
        return self.per_rank / self.booking.placement.width

    def end(self, seconds: float) -> float:
        """Its expected end if it lends for so long from now on."""
        return self.booking.expected_end + self.lost * seconds

    def leaves(self, time: float) -> float:
        """For how long it may lend, at most, to end by that time, which is not before its expected end."""
        end = self.booking.expected_end
        return _CLOSE * (time - end + 1e-12 * end) / self.lost


class Offered(NamedTuple):
    """A running job as a mate of one that waits."""

    mate: Mate
    able: Able


class Terms(Watcher):
    """On which terms jobs lend, and how far that reaches.

    `max_slowdown`: mates are expected to stay below it; None: below the mean of what is expected of the
    jobs that run. `share`: the largest share of the cores of a running job that is lent. `most`: mates of
    one job. `always`: also where the job would end later than by waiting; `gain`: only where it ends so
    much earlier that this is more than what its mates lose together."""

    def __init__(self, max_slowdown: float | None = 10.0, share: float = 0.5, most: int = MOST,
                 always: bool = False, gain: bool = False) -> None:
        self.max_slowdown = max_slowdown
        self.share = share
        self.most = most
        self.always = always
        self.gain = gain
        # Who can lend only gets less but for jobs that start, or have their cores again (`_newer`): `_reach`
        # bounds what all together could carry, `_beside` what they could without putting off the head, as long
        # as its reservation (`_head`) is the same. They are made again when many more have gone than are left.
        self._watched: Cluster | None = None
        self.by_nodes: dict[int, dict[int, Able]] = {}
        self._nodes: dict[int, int] = {}  # of those that could lend
        self._newer: set[int] = set()
        self._reach: Reach | None = None
        self._beside: Reach | None = None
        self._head: tuple[object, float, float] = None, 0.0, 0.0
        self._added: list[Able] = []  # since `_beside` was asked for
        self._gone = 0  # who can lend no more since `_reach` was made

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
        self._newer.add(booking.job.id)

    def released(self, booking: Booking) -> None:
        """A job has ended."""
        self._newer.discard(booking.job.id)
        self._drop(booking.job.id)

    def _drop(self, job_id: int) -> None:
        """A job can lend no more, as far as is known."""
        nodes = self._nodes.pop(job_id, None)
        if nodes is not None:
            self._gone += 1
            here = self.by_nodes[nodes]
            del here[job_id]
            if not here:
                del self.by_nodes[nodes]
                for reach in (self._reach, self._beside):
                    if reach is not None:
                        reach.gone(nodes)

    def revised(self, booking: Booking, before: float) -> None:
        """A job lends, has its cores again, or is expected to run on."""
        self._newer.add(booking.job.id)

    def nodes_changed(self) -> None:
        """Nodes came or went."""
        self.forget()

    def forget(self) -> None:
        """Find out again who could lend."""
        self._reach = self._beside = None

    def reach(self, now: float, view: Cluster) -> Reach:
        """What the running jobs could carry, at most. Who could lend is in `by_nodes` then, with ids."""
        if self._reach is None or self._gone > 9 + 4 * len(self._nodes):
            self._reach, self._beside, self._gone = Reach(self.most), None, 0
            self._added.clear()
            self.by_nodes.clear()
            self._nodes.clear()
            self._newer = set(view.bookings)
        if self._newer:
            for job_id in self._newer:
                self._drop(job_id)
            limit = math.inf if self.max_slowdown is None else self.max_slowdown  # the dynamic one moves
            for each in lenders(view, self.share, limit, self._newer):
                job_id = each.booking.job.id
                self.by_nodes.setdefault(each.nodes, {})[job_id] = each
                self._nodes[job_id] = each.nodes
                self._reach.add(each.nodes, carries(each.booking.expected_end - now, each.most, self.share))
                if self._beside is not None:
                    self._added.append(each)
            self._newer.clear()
        return self._reach

    def beside(self, head: Job, time: float, spare: int, reach: Reach, longest: Callable[[Able], float]) -> Reach:
        """What they could carry without putting off the head, at most, which starts at this time and leaves so
        much. `reach`: what they could else; `longest`: how long one alone could carry jobs so."""
        before = self._head
        if self._beside is None or head is not before[0] or time != before[1] or spare > before[2]:
            self._beside = reach.copy()
        else:
            for each in self._added:
                self._beside.add(each.nodes, longest(each))
        self._added.clear()
        self._head = head, time, spare
        return self._beside

    @property
    def changed(self) -> bool:
        """Whether since the last question jobs have started, or are expected to end at another time."""
        return bool(self._newer) or self._reach is None

    def limit(self, view: Cluster) -> float:
        """What the slowdown of a mate stays below."""
        if self.max_slowdown is not None:
            return self.max_slowdown
        running = view.bookings.values()
        return math.fsum((booking.expected_end - booking.job.submit) / booking.job.expected
                         for booking in running) / len(running) if running else math.inf


class Lenders:
    """The running jobs at one moment, as those who could lend. Subclasses say whom a lend would put off."""

    def __init__(self, terms: Terms, now: float, view: Cluster, policy: CountingPolicy) -> None:
        self.terms, self.now, self.view, self.policy = terms, now, view, policy
        self._unwilling = view.loans.unwilling
        self.forget()

    def forget(self) -> None:
        """A job has started: what is known of the running ones is out of date."""
        self.tried = False  # whether sets of mates were looked at
        self._limit = math.nan
        for name in ("reach", "_carriers", "_behind", "_unneeded"):
            self.__dict__.pop(name, None)

    def static_start(self, job: Job) -> float:
        """When a job would start on cores of its own."""
        raise NotImplementedError

    def price(self, job: Job, nodes: int) -> float:
        """By how many seconds it must end earlier, at least, for others."""
        return 0.0

    def needed(self, job: Job, mate: Able, seconds: float) -> bool:
        """Whether others count on nodes of a mate which it would keep longer, if it lent to the job for so
        long."""
        raise NotImplementedError

    def delays(self, job: Job, mates: Sequence[Able], seconds: float) -> bool:
        """Whether a reservation would begin later if these lend to the job for so long."""
        raise NotImplementedError

    def on_mates(self, job: Job, start: float | None) -> Placement | None:
        """The place of a malleable job on cores that mates lend. `start`: its static start; None where that is
        not known yet."""
        terms, nodes = self.terms, self.policy.nodes(job)
        if job.expected > self.known(job).of(nodes) or job.expected > self.beside(job)[nodes]:
            return None
        start = self._paying(job, nodes, start)
        if start is None:
            return None
        self.tried = True
        by_id = self._mates(job, nodes)
        mates = [mate for mate, _ in by_id.values()]
        chosen = choose(mates, nodes, terms.most)
        if chosen is None:
            return None
        placement = self._lent(job, [by_id[mate].able for mate in chosen], start)
        if placement is None:
            free = [mate for mate, able in by_id.values() if not self.needed(job, able, job.expected / terms.share)]
            chosen = choose(free, nodes, terms.most) if len(free) < len(mates) else None
            if chosen is not None:
                placement = self._lent(job, [by_id[mate].able for mate in chosen], start)
        return placement

    def _paying(self, job: Job, nodes: int, start: float | None) -> float | None:
        """The static start of a job, less what others lose; None where it does not pay to start it before on
        lent cores."""
        terms = self.terms
        if terms.always:
            return math.inf if start is None else start
        start = self.static_start(job) if start is None else start
        if not pays(start, job.expected, self.now, terms.share):
            return None
        start -= self.price(job, nodes)
        return start if pays(start, job.expected, self.now, terms.share) else None

    def _mates(self, job: Job, nodes: int) -> dict[int, Offered]:
        """The running jobs of at most so many nodes that may lend to a job, by id."""
        limit, share, found = self._below(), self.terms.share, {}
        choosy = bool(job.request.features or job.request.exclude) or not self.view.all_up
        for size, able in self.terms.by_nodes.items():
            for lender_id, each in able.items() if size <= nodes else ():
                end, lender = each.booking.expected_end, each.booking.job
                if outlasts(end - self.now, job.expected, share) and lender_id not in self._unwilling:
                    value = penalty(lender.submit, end, lender.expected, job.expected)
                    if value < limit and not (choosy and self._hinders(job, each)):
                        found[lender_id] = Offered(Mate(value, lender_id, size), each)
        return found

    @cached_property
    def reach(self) -> Reach:
        """What the running jobs could carry, at most."""
        return self.terms.reach(self.now, self.view)

    def _lent(self, job: Job, mates: Sequence[Able], start: float) -> Placement | None:
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

    def _place(self, job: Job, mates: Sequence[Able]) -> Placement | None:
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

    def known(self, job: Job) -> Reach:
        """What is known of `beside`."""
        return self.reach

    def beside(self, job: Job) -> Carriers:
        """What the running jobs could carry of a job, at most, of which each alone puts nobody off."""
        return self._carriers

    @cached_property
    def _carriers(self) -> Carriers:
        """What the running jobs could carry now, at most."""
        return Carriers(self.terms.by_nodes, self.longest, self.reach, self.terms.most)

    def longest(self, each: Able) -> float:
        """How long jobs may take that this one could carry now, at most."""
        booking = each.booking
        if self._unwilling and booking.job.id in self._unwilling:
            return -math.inf
        return carries(booking.expected_end - self.now, each.most, self.terms.share)

    def _hinders(self, job: Job, mate: Able) -> bool:
        """Whether a node of a mate is down or lacks what the job asks for."""
        nodes = mate.booking.placement.node_set
        return bool(nodes & ~self.view.up) or not all(admits(job.request, self.view.nodes[node])
                                                      for node in bits.members(nodes))


def lenders(view: Cluster, share: float, limit: float, among: Iterable[int]) -> Iterator[Able]:
    """The running jobs of these ids that could lend a share of their cores, with slowdowns below the limit:
    malleable ones which hold all of theirs and none of others, and have a core for each rank to spare."""
    loans = view.loans
    lending = {loan.lender for loan in loans.all} if loans else ()
    for job_id in among:
        booking = view.bookings.get(job_id)
        if booking is None:
            continue
        job, placement = booking.job, booking.placement
        if (job.malleable and not job.exclusive and job_id not in lending and job_id not in loans.unwilling
                and placement.lease is None):
            per_rank = int(share * placement.width + 1e-9)
            if per_rank:
                yield Able(booking, bits.count(placement.node_set), per_rank,
                           bearable(job.submit, booking.expected_end, job.expected, limit))
