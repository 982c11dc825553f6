"""Determines which running jobs could lend cores to a waiting job, and its placement on these cores: the common part
of the dispatchers of SD-policy (`vrm.ext.lending.slowdown`, `vrm.ext.lending.slowdown_conservative`).

Running jobs *carry* a job if they can lend it cores until it ends. Bounds of that are longest expected run times of
such jobs, by their numbers of nodes."""

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
from vrm.ext.lending.mates import (MOST, CarryLimits, Mate, MateLimits, longest_bearable, longest_carried, choose,
                                   outlasts, pays,
                                  penalty)
from vrm.ext.lending.offers import CannotLend, borrowed, offer, max_ranks_per_node, reserved
from vrm.scheduling.placement.spread import admits

_CLOSE = 1 + 1e-9
"""Tolerance factor for rounding of durations."""


class PossibleLender(NamedTuple):
    """A running job that could lend: its booking, the number of its nodes, the cores that each rank would lend, and
    the longest expected run time of a job that it could bear (see `vrm.ext.lending.mates.longest_bearable`)."""

    booking: Booking
    nodes: int
    per_rank: int
    most: float

    @property
    def lost(self) -> float:
        """Fraction of its speed that it would lose."""
        return self.per_rank / self.booking.placement.width

    def end(self, seconds: float) -> float:
        """Return its expected end if it lends for `seconds` seconds from now on."""
        return self.booking.expected_end + self.lost * seconds

    def leaves(self, time: float) -> float:
        """Return how many seconds it may lend, at most, so that it ends by `time`, which is not before its expected
        end."""
        end = self.booking.expected_end
        return _CLOSE * (time - end + 1e-12 * end) / self.lost


class PossibleMate(NamedTuple):
    """A running job as a possible mate of a waiting job."""

    mate: Mate
    able: PossibleLender


class LendingTerms(Watcher):
    """The terms on which jobs lend, and upper bounds of what the running jobs could carry.

    `max_slowdown`: the expected slowdown of a mate must stay below it; None: below the mean of the expected
    slowdowns of the running jobs. `share`: the largest share of its cores that a running job lends. `most`: maximum
    number of mates of one job. `always`: lend even if the borrower ends later than it would by waiting. `gain`: lend
    only if the borrower ends earlier by more than its mates lose together."""

    def __init__(self, max_slowdown: float | None = 10.0, share: float = 0.5, most: int = MOST,
                 always: bool = False, gain: bool = False) -> None:
        self.max_slowdown = max_slowdown
        self.share = share
        self.most = most
        self.always = always
        self.gain = gain
        # The set of possible lenders only shrinks, except for jobs that start or get their cores back (`_newer`).
        # `_reach` bounds what all of them could carry; `_beside` bounds what they could carry without delaying the
        # head, as long as the head's reservation (`_head`) is the same. Both are rebuilt when many more lenders have
        # gone than are left.
        self._watched: Cluster | None = None
        self.by_nodes: dict[int, dict[int, PossibleLender]] = {}
        self._nodes: dict[int, int] = {}  # number of nodes of each possible lender
        self._newer: set[int] = set()
        self._reach: MateLimits | None = None
        self._beside: MateLimits | None = None
        self._head: tuple[object, float, float] = None, 0.0, 0.0
        self._added: list[PossibleLender] = []  # since `_beside` was last computed
        self._gone = 0  # number of jobs that can no longer lend since `_reach` was made

    def copy(self) -> LendingTerms:
        """Return the same terms without any computed bounds."""
        return LendingTerms(self.max_slowdown, self.share, self.most, self.always, self.gain)

    def watch(self, view: Cluster) -> None:
        """Observe the possible lenders of a cluster."""
        if self._watched is not view:
            view.watchers.append(self)
            self._watched = view
            self.forget()

    def booked(self, booking: Booking) -> None:
        """A job has started, and may lend."""
        self._newer.add(booking.job.id)

    def released(self, booking: Booking) -> None:
        """A job has ended."""
        self._newer.discard(booking.job.id)
        self._drop(booking.job.id)

    def _drop(self, job_id: int) -> None:
        """Remove a job that can no longer lend, as far as is known."""
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
        """A job lends, has its cores back, or has a new expected end."""
        self._newer.add(booking.job.id)

    def nodes_changed(self) -> None:
        """Nodes have appeared or disappeared."""
        self.forget()

    def forget(self) -> None:
        """Discard the bounds; they are computed again from all running jobs."""
        self._reach = self._beside = None

    def reach(self, now: float, view: Cluster) -> MateLimits:
        """Return an upper bound of what the running jobs could carry. Afterwards `by_nodes` has all possible
        lenders, by number of nodes and id."""
        if self._reach is None or self._gone > 9 + 4 * len(self._nodes):
            self._reach, self._beside, self._gone = MateLimits(self.most), None, 0
            self._added.clear()
            self.by_nodes.clear()
            self._nodes.clear()
            self._newer = set(view.bookings)
        if self._newer:
            for job_id in self._newer:
                self._drop(job_id)
            limit = math.inf if self.max_slowdown is None else self.max_slowdown  # the dynamic one changes
            for each in lenders(view, self.share, limit, self._newer):
                job_id = each.booking.job.id
                self.by_nodes.setdefault(each.nodes, {})[job_id] = each
                self._nodes[job_id] = each.nodes
                self._reach.add(each.nodes, longest_carried(each.booking.expected_end - now, each.most, self.share))
                if self._beside is not None:
                    self._added.append(each)
            self._newer.clear()
        return self._reach

    def beside(self, head: Job, time: float, spare: int, reach: MateLimits,
               longest: Callable[[PossibleLender], float]) -> MateLimits:
        """Return an upper bound of what the lenders could carry without delaying the head, which starts at `time`
        and leaves `spare` units. `reach`: the bound without that condition; `longest`: how long a job may be that a
        lender could carry on this condition by itself."""
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
        """Whether jobs have started or have new expected ends since `reach` was last called."""
        return bool(self._newer) or self._reach is None

    def limit(self, view: Cluster) -> float:
        """Return the limit of the slowdown of mates."""
        if self.max_slowdown is not None:
            return self.max_slowdown
        running = view.bookings.values()
        return math.fsum((booking.expected_end - booking.job.submit) / booking.job.expected
                         for booking in running) / len(running) if running else math.inf


class Lenders:
    """The running jobs at one moment as possible lenders. Subclasses define which jobs a lend would delay."""

    def __init__(self, terms: LendingTerms, now: float, view: Cluster, policy: CountingPolicy) -> None:
        self.terms, self.now, self.view, self.policy = terms, now, view, policy
        self._unwilling = view.loans.refusing_lenders
        self.forget()

    def forget(self) -> None:
        """Discard what is known of the running jobs, after a job has started."""
        self.tried = False  # whether sets of mates were examined
        self._limit = math.nan
        for name in ("reach", "_carriers", "_behind", "_unneeded"):
            self.__dict__.pop(name, None)

    def static_start(self, job: Job) -> float:
        """Return when a job would start on cores of its own."""
        raise NotImplementedError

    def price(self, job: Job, nodes: int) -> float:
        """Return by how many seconds the job must end earlier, at least, to make up for the delay of others."""
        return 0.0

    def needed(self, job: Job, mate: PossibleLender, seconds: float) -> bool:
        """Return whether other jobs count on nodes of a mate which it would keep longer if it lent to the job for
        `seconds` seconds."""
        raise NotImplementedError

    def delays(self, job: Job, mates: Sequence[PossibleLender], seconds: float) -> bool:
        """Return whether a reservation would begin later if these mates lend to the job for `seconds` seconds."""
        raise NotImplementedError

    def place_on_mates(self, job: Job, start: float | None) -> Placement | None:
        """Return the placement of a malleable job on cores that mates lend; None if there is none. `start`: its
        static start; None if it is not known yet."""
        terms, nodes = self.terms, self.policy.nodes(job)
        if job.expected > self.known(job).of(nodes) or job.expected > self.beside(job)[nodes]:
            return None
        start = self._worthwhile_start(job, nodes, start)
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

    def _worthwhile_start(self, job: Job, nodes: int, start: float | None) -> float | None:
        """Return the static start of a job minus its price; None if it does not pay to start earlier on lent cores."""
        terms = self.terms
        if terms.always:
            return math.inf if start is None else start
        start = self.static_start(job) if start is None else start
        if not pays(start, job.expected, self.now, terms.share):
            return None
        start -= self.price(job, nodes)
        return start if pays(start, job.expected, self.now, terms.share) else None

    def _mates(self, job: Job, nodes: int) -> dict[int, PossibleMate]:
        """Return the running jobs with at most `nodes` nodes that may lend to a job, by id."""
        limit, share, found = self._below(), self.terms.share, {}
        choosy = bool(job.request.features or job.request.exclude) or not self.view.all_up
        for size, able in self.terms.by_nodes.items():
            for lender_id, each in able.items() if size <= nodes else ():
                end, lender = each.booking.expected_end, each.booking.job
                if outlasts(end - self.now, job.expected, share) and lender_id not in self._unwilling:
                    value = penalty(lender.submit, end, lender.expected, job.expected)
                    if value < limit and not (choosy and self._unsuitable(job, each)):
                        found[lender_id] = PossibleMate(Mate(value, lender_id, size), each)
        return found

    @cached_property
    def reach(self) -> MateLimits:
        """Upper bound of what the running jobs could carry."""
        return self.terms.reach(self.now, self.view)

    def _lent(self, job: Job, mates: Sequence[PossibleLender], start: float) -> Placement | None:
        """Return the placement of a job on the cores that these mates lend. None if it does not fit, if it gets so
        few cores that it does not pay or a mate ends before it, or if a reservation would begin later."""
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

    def _place(self, job: Job, mates: Sequence[PossibleLender]) -> Placement | None:
        """Return the placement of a job on the cores that these mates lend: on whole sockets first, or on equally
        many cores of each socket if the job gets more cores in that way."""
        view, best = self.view, None
        for within in (False, True):
            try:
                lent = [offer(view, each.booking.job.id,
                              each.per_rank * max_ranks_per_node(view, each.booking), within) for each in mates]
            except CannotLend:
                continue
            found = borrowed(job, view, [(each.lender, each.cores) for each in lent], shrinks=True)
            if found is not None and (best is None or found.width > best.width):
                best = found
            if best is not None and best.width * job.procs >= sum(bits.count(each.cores) for each in lent):
                break  # it has all lent cores
        return best

    def _below(self) -> float:
        if math.isnan(self._limit):
            self._limit = self.terms.limit(self.view)
        return self._limit

    def known(self, job: Job) -> MateLimits:
        """Return the upper bound that belongs to `beside`."""
        return self.reach

    def beside(self, job: Job) -> CarryLimits:
        """Return how long the jobs may be that the running jobs could lend to, counting only lenders that delay no
        other job by themselves."""
        return self._carriers

    @cached_property
    def _carriers(self) -> CarryLimits:
        """How long the jobs may be, at most, that the running jobs could carry now."""
        return CarryLimits(self.terms.by_nodes, self.longest, self.reach, self.terms.most)

    def longest(self, each: PossibleLender) -> float:
        """Return how long a job may be, at most, that this lender could carry now."""
        booking = each.booking
        if self._unwilling and booking.job.id in self._unwilling:
            return -math.inf
        return longest_carried(booking.expected_end - self.now, each.most, self.terms.share)

    def _unsuitable(self, job: Job, mate: PossibleLender) -> bool:
        """Return whether a node of a mate is down or lacks what the job requests."""
        nodes = mate.booking.placement.node_set
        return bool(nodes & ~self.view.up) or not all(admits(job.request, self.view.nodes[node])
                                                      for node in bits.members(nodes))


def lenders(view: Cluster, share: float, limit: float, among: Iterable[int]) -> Iterator[PossibleLender]:
    """Yield those of the running jobs with these ids that could lend a share of their cores with a slowdown below
    the limit: malleable jobs that hold all of their own cores and no others, and have a core to spare for each rank."""
    loans = view.loans
    lending = {loan.lender for loan in loans.all} if loans else ()
    for job_id in among:
        booking = view.bookings.get(job_id)
        if booking is None:
            continue
        job, placement = booking.job, booking.placement
        if (job.malleable and not job.exclusive and job_id not in lending and job_id not in loans.refusing_lenders
                and placement.lease is None):
            per_rank = int(share * placement.width + 1e-9)
            if per_rank:
                yield PossibleLender(booking, bits.count(placement.node_set), per_rank,
                                     longest_bearable(job.submit, booking.expected_end, job.expected, limit))
