"""SD-policy: EASY, in which a job that would wait too long starts malleable, on cores that running jobs lend.

M. D'Amico, A. Jokanovic and J. Corbalan, ICPP 2019 (see `vrm.scheduling.mates`, which has the numbers). In
the order of the queue each job is tried as under EASY: it starts if it fits and puts off the head no
further. Else, if it is malleable and would end earlier on a share of its cores now than on all of them
from its static start on, mates are looked for whose slowdown stays below a limit; they lend it the share
of their cores on all of their nodes. After each start the queue is looked at again from its front on, since
other ends are expected. Beyond the paper: a lend never moves the head's reservation to a later time.

The *static start* of the head is its reservation, that of another job the first time from which on it
fits beside the head's reservation, if nothing else starts.
"""

from __future__ import annotations

import bisect
import math
from typing import Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

from vrm.model import bits
from vrm.model.cluster import AnyPlacement, Booking, Cluster
from vrm.model.core_share import Borrowed
from vrm.model.job import Job
from vrm.model.policies import PlacementPolicy
from vrm.scheduling.backfilling import Reservation, reservation, window
from vrm.scheduling.dispatcher import Dispatcher, Starts
from vrm.scheduling.mates import MOST, Mate, choose, outlasts, pays, penalty
from vrm.scheduling.offers import NoOffer, borrowed, offer, ranks_on_a_node
from vrm.scheduling.profile import CountProfile, PoolProfile
from vrm.scheduling.queue import Waiting

_ANY = 1 << 60
"""A room in which every job fits."""

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


class SlowdownDriven(Dispatcher):
    """The policy. `max_slowdown`: mates are expected to stay below it; None: below the mean of what is
    expected of the jobs that run. `share`: the largest share of the cores of a running job that is
    lent. `most`: mates of one job. `always`: also where the job would end later than by waiting."""

    name = "sd"
    lends = True

    def __init__(self, max_slowdown: Optional[float] = 10.0, share: float = 0.5, most: int = MOST,
                 always: bool = False) -> None:
        super().__init__()
        self.max_slowdown = max_slowdown
        self.share = share
        self.most = most
        self.always = always
        self._head: Optional[Reservation] = None  # that of the last step
        # Who can lend only gets less but for jobs that start, or have their cores again (`newer`, in their
        # order). Who found no mates (`fruitless`: among how many of these) needs one that came later.
        self._watched: Optional[Cluster] = None
        self.newer: List[int] = []
        self.fruitless: Dict[int, int] = {}

    def booked(self, booking: Booking) -> None:
        """A job starts, and may lend."""
        self.newer.append(booking.job.id)

    def released(self, booking: Booking) -> None:
        """A job has ended."""

    def revised(self, booking: Booking, before: float) -> None:
        """A job has its cores again, or is expected to run on."""
        self.newer.append(booking.job.id)

    def nodes_changed(self) -> None:
        """Nodes came or went."""
        self.forget()

    def forget(self) -> None:
        """Look for mates of all jobs again."""
        self.newer.clear()
        self.fruitless.clear()

    def decide(self, now: float, waiting: Waiting, view: Cluster, policy: PlacementPolicy,
               heads: int) -> Starts:
        """The jobs that start at `now`: while any does, the next one from the front on."""
        started: Set[int] = set()
        known = self._kept(now, waiting, view)
        if self._watched is not view:
            view.watchers.append(self)
            self._watched = view
            self.forget()
        if not view.bookings:  # nobody can lend
            self.forget()
        while heads:
            head = next((job for job in waiting if job.id not in started), None)
            if head is None:
                break
            placement = None if known else policy.place(head, view)
            if placement is not None:
                heads -= 1
                found: Optional[Tuple[Job, AnyPlacement]] = (head, placement)
            else:
                step = _Step(self, now, waiting, view, policy,
                             known or reservation(head, now, view, policy), started)
                found = step.next(waiting.fresh if known else None)
                self._head = step.head
            known = None
            if found is None:
                break
            started.add(found[0].id)
            yield found
        self._left = view, view.generation

    def _kept(self, now: float, waiting: Waiting, view: Cluster) -> Optional[Reservation]:
        """The head's reservation where nothing but arrivals has happened since the last step: who could
        not start then cannot now."""
        head = self._head
        if (head is None or self._left != (view, view.generation) or head.job is not waiting[0]
                or head.time <= now or (view.ends and view.ends[0][0] <= now)):
            return None
        return head

    def limit(self, view: Cluster) -> float:
        """What the slowdown of a mate stays below."""
        if self.max_slowdown is not None:
            return self.max_slowdown
        running = view.bookings.values()
        return math.fsum((booking.expected_end - booking.job.submit) / booking.job.expected
                         for booking in running) / len(running) if running else math.inf

    def reservations(self, now: float, waiting: Waiting, view: Cluster,
                     policy: PlacementPolicy) -> Dict[int, float]:
        """That of the head."""
        head = waiting[0]
        time = reservation(head, now, view, policy).time
        return {head.id: time} if time < math.inf else {}

    def copy(self, view: Cluster) -> SlowdownDriven:
        """An independent copy, which looks at all jobs again."""
        twin = super().copy(view)
        assert isinstance(twin, SlowdownDriven)
        twin._head, twin._watched, twin.newer, twin.fruitless = None, None, [], {}
        return twin


class _Step:
    """One look at the queue. `head`: the reservation of the first job, which does not fit."""

    def __init__(self, rules: SlowdownDriven, now: float, waiting: Waiting, view: Cluster,
                 policy: PlacementPolicy, head: Reservation, started: Set[int]) -> None:
        self.rules, self.now, self.waiting = rules, now, waiting
        self.view, self.policy, self.head, self.started = view, policy, head, started
        self._able: Optional[List[Able]] = None
        self._by_id: Optional[Dict[int, Able]] = None
        self._limit = math.nan
        self._future: Optional[_Future] = None

    def next(self, among: Optional[Sequence[Job]]) -> Optional[Tuple[Job, AnyPlacement]]:
        """The first job that starts, with its place. `among`: the only ones that could."""
        for job in self._worth(among):
            if job.id in self.started:
                continue
            if job is self.head.job:
                placement, start = None, self.head.time
            else:
                placement, start = self._beside(job), -1.0
            if placement is None and job.malleable:
                placement = self._on_mates(job, start)
            if placement is not None:
                return job, placement
        return None

    def _worth(self, among: Optional[Sequence[Job]]) -> Iterable[Job]:
        """The jobs that could start, in order: those that fit beside the head, and those that mates could
        outlast, as far as can be counted."""
        waiting, policy, view = self.waiting, self.policy, self.view
        if among is not None:
            return among
        room = policy.room(view)
        if room is None:
            return waiting
        share = self.rules.share
        last = view.ends[-1][0] if view.ends else self.now
        short = waiting.fitting(0, _ANY, (last - self.now) * share / (1 - share) * _CLOSE)
        if room <= 0:
            return short
        head = self.head
        fitting = waiting.fitting(0, room, window(self.now, head.time), self._spare(room))
        both = {job.id: job for job in (*short, *fitting)}
        return sorted(both.values(), key=waiting.key)

    def _spare(self, room: int) -> int:
        """How much of the room jobs may take that run beyond the start of the head, as far as can be
        counted."""
        return self.head.spare if self.head.pool is None and self.head.time < math.inf else room

    def _beside(self, job: Job) -> Optional[AnyPlacement]:
        """The place of a job behind the head that starts now as under EASY."""
        policy, head, view = self.policy, self.head, self.view
        room = policy.room(view)
        if room is not None and policy.size(job) > room:
            return None
        if self.now + job.expected <= head.time:
            return policy.place(job, view)
        if head.pool is None:
            assert room is not None
            spare = self._spare(room)
            placement = policy.place(job, view) if policy.size(job) <= spare else None
            return placement if placement is not None and placement.size <= spare else None
        placement = policy.place(job, view)
        if placement is None or head.time == math.inf:
            return placement
        head.pool.take(job, placement)
        fits = policy.fits(head.job, head.pool)
        head.pool.give(job, placement)
        return placement if fits else None

    def _on_mates(self, job: Job, start: float) -> Optional[Borrowed]:
        """The place of a malleable job on cores that mates lend; `start` is its static start, if it is
        known."""
        rules, now, expected = self.rules, self.now, job.expected
        limit, nodes, share = self._below(), self.policy.nodes(job), rules.share
        if job.id in rules.fruitless and not self._newly(job, nodes, limit):
            return None
        if not rules.always:
            if start < 0:
                start = self._static_start(job)
            if not pays(start, expected, now, share):
                return None
        choosy = bool(job.request.features) or not self.view.all_up
        mates: List[Mate] = []
        by_id: Dict[int, Able] = {}
        for each in self._lenders():
            if each.nodes <= nodes:
                end = each.booking.expected_end
                if outlasts(end - now, expected, share):
                    lender = each.booking.job
                    value = penalty(lender.submit, end, lender.expected, expected)
                    if value < limit and not (choosy and self._hinders(job, each)):
                        mates.append(Mate(value, lender.id, each.nodes))
                        by_id[lender.id] = each
        chosen = choose(mates, nodes, rules.most)
        if chosen is None:
            if rules.max_slowdown is not None:  # else the limit moves
                rules.fruitless[job.id] = len(rules.newer)
            return None
        placement = self._lent(job, [by_id[mate] for mate in chosen], start)
        if placement is None and job is not self.head.job:
            free = [mate for mate in mates if not self._needed(by_id[mate.id], expected / share)]
            chosen = choose(free, nodes, rules.most) if len(free) < len(mates) else None
            if chosen is not None:
                placement = self._lent(job, [by_id[mate] for mate in chosen], start)
        return placement

    def _newly(self, job: Job, nodes: int, limit: float) -> bool:
        """Whether a job that found no mates could have one that came later."""
        rules = self.rules
        if self._by_id is None:
            self._by_id = {each.booking.job.id: each for each in self._lenders()}
        for at in range(rules.fruitless[job.id], len(rules.newer)):
            each = self._by_id.get(rules.newer[at])
            if each is not None and each.nodes <= nodes:
                end, lender = each.booking.expected_end, each.booking.job
                if (outlasts(end - self.now, job.expected, rules.share)
                        and penalty(lender.submit, end, lender.expected, job.expected) < limit):
                    return True
        rules.fruitless[job.id] = len(rules.newer)
        return False

    def _lent(self, job: Job, mates: Sequence[Able], start: float) -> Optional[Borrowed]:
        """The place of a job on what these mates lend; None where it does not fit, where it gets so little
        that it pays no more or a mate ends before it, or where the head would start later."""
        view, follows = self.view, job is not self.head.job
        if follows and self._delays(mates, job.expected / self.rules.share):
            return None
        lent = []
        for each in mates:
            try:
                found = offer(view, each.booking.job.id,
                              each.per_rank * ranks_on_a_node(view, each.booking))
            except NoOffer:
                return None
            lent.append((found.lender, found.cores))
        placement = borrowed(job, view, lent, shrinks=True)
        if placement is None:
            return None
        seconds = job.expected * job.cores / placement.width
        if not self.rules.always and not start + job.expected > self.now + seconds:
            return None
        for each in mates:
            left = each.booking.expected_end - self.now
            if left * _CLOSE < seconds * (1 - each.lost):
                return None
        return None if follows and self._delays(mates, seconds) else placement

    def _needed(self, mate: Able, seconds: float) -> bool:
        """Whether the head counts on nodes of a mate which this would keep beyond the head's start."""
        return mate.booking.expected_end <= self.head.time < mate.end(seconds)

    def _delays(self, mates: Sequence[Able], seconds: float) -> bool:
        """Whether the head would start later if these lend for so long."""
        head, view = self.head, self.view
        late = [mate.booking for mate in mates if self._needed(mate, seconds)]
        if not late or head.time == math.inf:
            return False
        if head.pool is None:
            return sum(view.returns(booking.placement) for booking in late) > head.spare
        for booking in late:
            head.pool.take(booking.job, booking.placement)
        fits = self.policy.fits(head.job, head.pool)
        for booking in late:
            head.pool.give(booking.job, booking.placement)
        return not fits

    def _below(self) -> float:
        if math.isnan(self._limit):
            self._limit = self.rules.limit(self.view)
        return self._limit

    def _lenders(self) -> List[Able]:
        """The running jobs that could lend now."""
        if self._able is None:
            self._able = list(lenders(self.view, self.rules.share))
        return self._able

    def _hinders(self, job: Job, mate: Able) -> bool:
        """Whether a node of a mate is down or lacks what the job asks for."""
        nodes = mate.booking.placement.node_set
        features = job.request.features
        return bool(nodes & ~self.view.up) or any(not features <= self.view.nodes[node].features
                                                  for node in bits.members(nodes))

    def _static_start(self, job: Job) -> float:
        if self._future is None:
            self._future = _Future(self.now, self.view, self.policy, self.head)
        return self._future.start(job)


def lenders(view: Cluster, share: float) -> Iterator[Able]:
    """The running jobs that could lend a share of their cores: malleable ones which hold all of theirs and
    none of others, and have a core for each rank to spare."""
    loans = view.loans
    lending = {loan.lender for loan in loans.all} if loans else ()
    for job_id, booking in view.bookings.items():
        job, placement = booking.job, booking.placement
        if (job.malleable and not job.exclusive and job_id not in lending and job_id not in loans.unwilling
                and not isinstance(placement, Borrowed)):
            per_rank = int(share * placement.width + 1e-9)
            if per_rank:
                yield Able(booking, bits.count(placement.node_set), per_rank)


class _Future:
    """When jobs could start beside the head's reservation, if nothing else starts."""

    def __init__(self, now: float, view: Cluster, policy: PlacementPolicy, head: Reservation) -> None:
        self.head, self.policy = head, policy
        self._plan: Optional[PoolProfile] = None
        if head.pool is not None:
            self._plan = PoolProfile(now, view, policy)
            if head.time < math.inf:
                self._plan.hold(head.job, self._plan.earliest(head.job))
            return
        # What is free only grows until the head starts: times at which it does, and how much is then.
        counts = CountProfile(now, view, policy)
        self._times, self._free = counts.times, counts.free
        self._size = policy.size(head.job)

    def start(self, job: Job) -> float:
        """The first time from which on it fits for all that is expected of it."""
        if self._plan is not None:
            return self._plan.earliest(job).time
        size, head = self.policy.size(job), self.head
        first = self._when(size)
        if first + job.expected <= head.time or head.time == math.inf:
            return first
        ends = head.time + head.job.expected
        if first >= ends or size <= self._at(max(first, head.time)) - self._size:
            return first
        return min(max(first, ends), self._when(size + self._size))

    def _when(self, size: int) -> float:
        """When so much is free, were it not for the head."""
        at = bisect.bisect_left(self._free, size)
        return self._times[at] if at < len(self._free) else math.inf

    def _at(self, time: float) -> int:
        """How much is free at a time, were it not for the head."""
        return self._free[bisect.bisect_right(self._times, time) - 1]
