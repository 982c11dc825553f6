"""SD-policy: EASY backfilling in which a malleable job that would wait too long starts on cores that running jobs
lend.

M. D'Amico, A. Jokanovic and J. Corbalan, ICPP 2019 (see `vrm.ext.lending.mates`, which has the formulas). Jobs are
tried in the order of the queue, as under EASY: a job starts if it fits and does not delay the head. Otherwise, if it
is malleable and would end earlier on a share of its cores from now on than on all of them from its static start on,
the policy searches mates whose slowdown stays below a limit; they lend the job the share of their cores on all of
their nodes. After each start the queue is looked at again from its front, because the expected ends have changed.

Beyond the paper: a lend never delays the head's reservation, and it must pay its *price*. The borrower's work is
done before the work of the jobs ahead of it in the queue. Therefore each of these waits longer, by that work divided
by the number of nodes of the machine. The borrower must end earlier by more than the sum of these delays. With many
waiting jobs few lends pay: if there is more work than the machine can do, lends only delay other jobs.

The *static start* of the head is its reservation. That of another job is the earliest time from which on it fits
together with the head's reservation, if nothing else starts."""

from __future__ import annotations

import math
from functools import cached_property
from typing import NamedTuple
from collections.abc import Sequence

from vrm.model.cluster import Cluster
from vrm.model.job import Job
from vrm.model.placement import Placement
from vrm.model.policies import CountingPolicy
from vrm.scheduling.backfilling.easy import backfill, fitting, start_of
from vrm.scheduling.backfilling.dispatcher import Dispatcher, Starts
from vrm.ext.lending.lenders import PossibleLender, Lenders, LendingTerms
from vrm.ext.lending.mates import MOST, CarryLimits, MateLimits
from vrm.scheduling.backfilling.profile import CountProfile, PoolProfile, Profile, Slot
from vrm.scheduling.orderings.queue import QueueView
from vrm.scheduling.backfilling.shadow import Shadow


class _QueueScan(NamedTuple):
    """Result of the last look at the queue: the head's reservation, whether sets of mates were examined and
    rejected, and how many jobs were left waiting."""

    head: Shadow
    tried: bool
    waiting: int  # after the step


class SlowdownDriven(Dispatcher):
    """The policy with these terms (see `vrm.ext.lending.lenders.LendingTerms`).

    After a look in which no job could start, most events (time passes, jobs arrive, jobs end before the head's
    reservation) do not enable any of the same jobs to borrow. After such events only jobs that have arrived since
    are tried."""

    name = "sd"
    lends = True

    def __init__(self, max_slowdown: float | None = 10.0, share: float = 0.5, most: int = MOST,
                 always: bool = False, gain: bool = False) -> None:
        super().__init__()
        self.terms = LendingTerms(max_slowdown, share, most, always, gain)
        self._seen: _QueueScan | None = None  # of the last look, if no job could start in it

    def decide(self, now: float, waiting: QueueView, view: Cluster, policy: CountingPolicy,
               heads: int) -> Starts:
        """Yield the jobs that start at `now`; after each start, search again from the front of the queue."""
        started: set[int] = set()
        if self._seen is not None and self._seen.waiting != len(waiting) - len(waiting.fresh):
            self._seen = None  # jobs have left the queue, so that others have fewer jobs ahead
        known = self._kept(now, waiting, view)
        seen, self._seen = self._seen, None
        self.terms.watch(view)
        while heads:
            head = next((job for job in waiting if job.id not in started), None)
            if head is None:
                break
            placement = not known and policy.place(head, view)
            if placement:
                heads -= 1
                started.add(head.id)
                yield head, placement
            else:
                look = _LenderScan(self.terms, now, waiting, view, policy, known or head, started)
                for job, place in look.starts(known is not None, seen):
                    started.add(job.id)
                    yield job, place
                if look.complete:
                    self._seen = _QueueScan(look.head, look.tried, len(waiting) - len(started))
                    break
            known = seen = None
        self._left = view, view.generation

    def _kept(self, now: float, waiting: QueueView, view: Cluster) -> Shadow | None:
        """Return the head's reservation if only arrivals have happened since the last step, so that jobs that could
        not start then cannot start now; otherwise None."""
        head = self._seen.head if self._seen is not None else None
        if (head is None or self._left != (view, view.generation) or head.job is not waiting[0]
                or head.time <= now or (view.ends and view.ends[0][0] <= now)):
            return None
        return head

    def reservations(self, now: float, waiting: QueueView, view: Cluster,
                     policy: CountingPolicy) -> dict[int, float]:
        """Return the reservation of the head."""
        return start_of(waiting[0], now, view, policy)

    def copy(self, view: Cluster) -> SlowdownDriven:
        """Return an independent copy, which looks at all jobs again."""
        twin = super().copy(view)
        assert isinstance(twin, SlowdownDriven)
        twin._seen, twin.terms = None, self.terms.copy()
        return twin


class _LenderScan(Lenders):
    """One look at the queue. `head` is the reservation of the first job, which does not fit, or that job if its
    reservation is not known yet."""

    def __init__(self, terms: LendingTerms, now: float, waiting: QueueView, view: Cluster,
                 policy: CountingPolicy, head: Shadow | Job, started: set[int]) -> None:
        super().__init__(terms, now, view, policy)
        self.waiting, self.started = waiting, started
        self.complete = False  # no other job can start
        self._ahead: _StartsBehindHead | None = None
        self.head = head if isinstance(head, Shadow) else self._future(head).head

    def starts(self, arrivals: bool, seen: _QueueScan | None) -> Starts:
        """Yield the jobs that start, with their placements, until the head has started. `seen`: the result of the
        last look. `arrivals`: only arrivals have happened since then."""
        waiting, head = self.waiting, self.head.job
        short: Sequence[Job] = ()
        if seen is not None and (arrivals or self._unchanged_since(seen)):
            short, self.tried = waiting.fresh, seen.tried
        else:
            short = self._short()
        later = [job for job in (short if arrivals else fitting(
            waiting, 0, self.view, self.policy, *self.head.window(self.now))) if job is not head]
        while True:
            own = next(backfill((job for job in later if job.id not in self.started), self.now, self.view, self.policy,
                                [self.head]), None)
            later = later[later.index(own[0]):] if own is not None else []  # the jobs before it do not fit later either
            if own is not None:
                self.head.withdraw(*own, self.now)
            found = self._next_borrower(short, own) or own
            if found is None:
                self.complete = True
                return
            yield found
            if found[0] is head or self.head.pool is not None:
                return
            self._after(*found)
            short = self._short()

    def _next_borrower(self, short: Sequence[Job], other: tuple[Job, Placement] | None
                       ) -> tuple[Job, Placement] | None:
        """Return the first job that can start on mates, with its placement, among the jobs ahead of `other`, which
        can start anyway."""
        key, head = self.waiting.key, self.head
        until = other and key(other[0])
        for job in short:
            if until and key(job) >= until:
                break
            if job.malleable and job.id not in self.started:
                placement = self.place_on_mates(job, head.time if job is head.job else None)
                if placement is not None:
                    return job, placement
        return None

    def _after(self, job: Job, placement: Placement) -> None:
        """Update the head's reservation after a start of another job: the head starts at the same time, with equal
        or less spare capacity."""
        self.forget()
        self._ahead = None
        if placement.lease is not None:
            self.head = self._future(self.head.job).head
        else:
            self.head.admit(job, placement, self.now, self.policy)

    def _unchanged_since(self, seen: _QueueScan) -> bool:
        """Return whether no job can borrow now that could not in an earlier look: jobs may have ended since, but
        none has started or has a new expected end, and the head has the same reservation with no more spare
        capacity. False if a set of mates was rejected then, because another set may be found now."""
        head, before = self.head, seen.head
        return (not seen.tried and head.pool is None and before.pool is None and head.job is before.job
                and head.time == before.time and head.spare <= before.spare and not self.terms.changed)

    def _short(self) -> Sequence[Job]:
        """Return, in order, the waiting jobs that could be short enough for mates and would wait too long, as far as
        counts can tell."""
        head, terms, ahead = self.head.job, self.terms, self._future(self.head.job)
        factor, price = (0.0, 0.0) if terms.always else (1 / terms.share - 1, 1 / len(self.view.nodes))
        gone, longest = len(self.started), self._behind.by_nodes
        short = [job for job in self.waiting.within(longest, ahead.spare, factor, price, gone) if job is not head]
        if (head.expected <= self.reach.of(self.policy.nodes(head))
                and head.expected * factor <= ahead.latest(self.head.time) - self.now):
            short.insert(0, head)
        return short

    def price(self, job: Job, nodes: int) -> float:
        """Return the total delay of the jobs ahead of it, in seconds."""
        key = self.waiting.key
        mine, bookings = key(job), self.view.bookings
        gone = sum(key(bookings[job_id].job) < mine for job_id in self.started)
        return (self.waiting.place(job) - gone) * nodes * job.expected / len(self.view.nodes)

    def needed(self, job: Job, mate: PossibleLender, seconds: float) -> bool:
        """Return whether the head's reservation needs nodes of a mate that the mate would now keep beyond the head's
        start."""
        return job is not self.head.job and mate.booking.expected_end <= self.head.time < mate.end(seconds)

    def known(self, job: Job) -> MateLimits:
        """Return the upper bound that belongs to `beside`."""
        return self.reach if job is self.head.job else self._behind

    def beside(self, job: Job) -> CarryLimits:
        """Return how long the jobs may be that the running jobs could lend to, counting only lenders that do not
        delay the head by themselves."""
        return self._carriers if job is self.head.job else self._unneeded

    @cached_property
    def _behind(self) -> MateLimits:
        """Upper bound for `_unneeded`."""
        head = self.head
        if head.pool is not None or head.time == math.inf:
            return self.reach
        return self.terms.beside(head.job, head.time, head.spare, self.reach, self._longest)

    @cached_property
    def _unneeded(self) -> CarryLimits:
        if self._behind is self.reach:
            return self._carriers
        return CarryLimits(self.terms.by_nodes, self._longest, self._behind, self.terms.most)

    def _longest(self, each: PossibleLender) -> float:
        """Return how long a job may be, at most, that this lender could carry now without delaying the head."""
        found, booking, head = self.longest(each), each.booking, self.head
        if booking.expected_end <= head.time and self.view.returns(booking.placement) > head.spare:
            return min(found, each.leaves(head.time) * self.terms.share)
        return found

    def delays(self, job: Job, mates: Sequence[PossibleLender], seconds: float) -> bool:
        """Return whether the head would start later if these mates lend for `seconds` seconds."""
        head, view = self.head, self.view
        late = [mate.booking for mate in mates if self.needed(job, mate, seconds)]
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

    def _future(self, head: Job) -> _StartsBehindHead:
        if self._ahead is None:
            self._ahead = _StartsBehindHead(self.now, self.view, self.policy, head)
        return self._ahead

    def static_start(self, job: Job) -> float:
        """Return the static start of a job."""
        return self._future(self.head.job).plan.earliest(job).time


class _StartsBehindHead:
    """When jobs could start together with the head's reservation, if nothing else starts."""

    def __init__(self, now: float, view: Cluster, policy: CountingPolicy, head: Job) -> None:
        self.head = Shadow(head, now, view, policy)
        self.spare = _LatestStarts(self)
        self._now, self._view, self._policy = now, view, policy

    @cached_property
    def plan(self) -> Profile:
        """The free capacity over time, after the head's reservation is subtracted."""
        head = self.head
        plan = (CountProfile if head.pool is None else PoolProfile)(self._now, self._view, self._policy)
        if head.time < math.inf:
            plan.hold(head.job, Slot(head.time) if head.pool is None else plan.earliest(head.job))
        return plan

    def latest(self, time: float) -> float:
        """Return a start time with a margin for rounding; infinity if counts alone do not decide."""
        return time + 1e-9 * (time + self._now) if self.head.pool is None else math.inf


class _LatestStarts(dict[int, float]):
    """The latest time, in seconds from now, at which a job behind the head starts, by its size, for any expected run
    time. Computed when first used."""

    def __init__(self, ahead: _StartsBehindHead) -> None:
        super().__init__()
        self._ahead = ahead

    def __missing__(self, size: int) -> float:
        ahead, plan = self._ahead, self._ahead.plan
        found = self[size] = (ahead.latest(plan.hole(size, math.inf)) - ahead._now
                              if isinstance(plan, CountProfile) else math.inf)
        return found
