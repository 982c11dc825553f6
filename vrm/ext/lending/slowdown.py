"""SD-policy: EASY, in which a job that would wait too long starts malleable, on cores that running jobs lend.

M. D'Amico, A. Jokanovic and J. Corbalan, ICPP 2019 (see `vrm.ext.lending.mates`, which has the numbers). In
the order of the queue each job is tried as under EASY: it starts if it fits and puts off the head no
further. Else, if it is malleable and would end earlier on a share of its cores now than on all of them
from its static start on, mates are looked for whose slowdown stays below a limit; they lend it the share
of their cores on all of their nodes. After each start the queue is looked at again from its front on, since
other ends are expected. Beyond the paper: a lend never moves the head's reservation to a later time, and it must
pay its *price*: the work of who borrows is done before that of the jobs ahead of it in the queue, each of which
so waits longer by that work divided by the nodes of the machine. It must end earlier by more than that, in all.
Where many wait few lends pay: with more work than the machine can do, they only put off others.

The *static start* of the head is its reservation, that of another job the first time from which on it
fits beside the head's reservation, if nothing else starts.
"""

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
from vrm.ext.lending.lending import Able, Lenders, Terms
from vrm.ext.lending.mates import MOST, Carriers, Reach
from vrm.scheduling.backfilling.profile import CountProfile, PoolProfile, Profile, Slot
from vrm.scheduling.orderings.queue import Waiting
from vrm.scheduling.backfilling.shadow import Shadow


class _Seen(NamedTuple):
    """What the last look at the queue saw: the head's reservation, whether sets of mates were looked at and
    none of them was taken, and how many jobs were left waiting."""

    head: Shadow
    tried: bool
    waiting: int  # after the step


class SlowdownDriven(Dispatcher):
    """The policy, on these terms (see `vrm.ext.lending.lending.Terms`).

    After a look in which nobody could start, most of what happens lets nobody borrow who could not then: time
    passes, jobs come, and jobs end before the head's reservation. Then only who came since is asked whether it
    could."""

    name = "sd"
    lends = True

    def __init__(self, max_slowdown: float | None = 10.0, share: float = 0.5, most: int = MOST,
                 always: bool = False, gain: bool = False) -> None:
        super().__init__()
        self.terms = Terms(max_slowdown, share, most, always, gain)
        self._seen: _Seen | None = None  # by the last look, in which nobody could start

    def decide(self, now: float, waiting: Waiting, view: Cluster, policy: CountingPolicy,
               heads: int) -> Starts:
        """The jobs that start at `now`: while any does, the next one from the front on."""
        started: set[int] = set()
        if self._seen is not None and self._seen.waiting != len(waiting) - len(waiting.fresh):
            self._seen = None  # jobs have left the queue: others have fewer ahead
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
                look = _Look(self.terms, now, waiting, view, policy, known or head, started)
                for job, place in look.starts(known is not None, seen):
                    started.add(job.id)
                    yield job, place
                if look.complete:
                    self._seen = _Seen(look.head, look.tried, len(waiting) - len(started))
                    break
            known = seen = None
        self._left = view, view.generation

    def _kept(self, now: float, waiting: Waiting, view: Cluster) -> Shadow | None:
        """The head's reservation where nothing but arrivals has happened since the last step: who could
        not start then cannot now."""
        head = self._seen.head if self._seen is not None else None
        if (head is None or self._left != (view, view.generation) or head.job is not waiting[0]
                or head.time <= now or (view.ends and view.ends[0][0] <= now)):
            return None
        return head

    def reservations(self, now: float, waiting: Waiting, view: Cluster,
                     policy: CountingPolicy) -> dict[int, float]:
        """That of the head."""
        return start_of(waiting[0], now, view, policy)

    def copy(self, view: Cluster) -> SlowdownDriven:
        """An independent copy, which looks at all jobs again."""
        twin = super().copy(view)
        assert isinstance(twin, SlowdownDriven)
        twin._seen, twin.terms = None, self.terms.copy()
        return twin


class _Look(Lenders):
    """One look at the queue. `head`: the reservation of the first job, which does not fit; or that job, where
    it is not known yet."""

    def __init__(self, terms: Terms, now: float, waiting: Waiting, view: Cluster,
                 policy: CountingPolicy, head: Shadow | Job, started: set[int]) -> None:
        super().__init__(terms, now, view, policy)
        self.waiting, self.started = waiting, started
        self.complete = False  # nobody else starts
        self._ahead: _Ahead | None = None
        self.head = head if isinstance(head, Shadow) else self._future(head).head

    def starts(self, arrivals: bool, seen: _Seen | None) -> Starts:
        """The jobs that start, with their places, until the head has. `seen`: by the last look, `arrivals`: since
        which jobs have come and nothing else has happened."""
        waiting, head = self.waiting, self.head.job
        short: Sequence[Job] = ()
        if seen is not None and (arrivals or self._no_more_than(seen)):
            short, self.tried = waiting.fresh, seen.tried
        else:
            short = self._short()
        later = [job for job in (short if arrivals else fitting(
            waiting, 0, self.view, self.policy, *self.head.window(self.now))) if job is not head]
        while True:
            own = next(backfill((job for job in later if job.id not in self.started), self.now, self.view, self.policy,
                                [self.head]), None)
            later = later[later.index(own[0]):] if own is not None else []  # others fit the less later
            if own is not None:
                self.head.withdraw(*own, self.now)
            found = self._borrows(short, own) or own
            if found is None:
                self.complete = True
                return
            yield found
            if found[0] is head or self.head.pool is not None:
                return
            self._after(*found)
            short = self._short()

    def _borrows(self, short: Sequence[Job], other: tuple[Job, Placement] | None
                 ) -> tuple[Job, Placement] | None:
        """The first job that starts on mates, with its place, before another one starts."""
        key, head = self.waiting.key, self.head
        until = other and key(other[0])
        for job in short:
            if until and key(job) >= until:
                break
            if job.malleable and job.id not in self.started:
                placement = self.on_mates(job, head.time if job is head.job else None)
                if placement is not None:
                    return job, placement
        return None

    def _after(self, job: Job, placement: Placement) -> None:
        """A job behind the head has started: the head starts when it would have, with as much to spare or less."""
        self.forget()
        self._ahead = None
        if placement.lease is not None:
            self.head = self._future(self.head.job).head
        else:
            self.head.admit(job, placement, self.now, self.policy)

    def _no_more_than(self, seen: _Seen) -> bool:
        """Whether nobody can borrow now who could not in an earlier look: jobs have ended since, but none has
        started or is expected to end at another time, and the head has the same reservation, which leaves no more
        than then. A set of mates that was passed over then may have made way for another one."""
        head, before = self.head, seen.head
        return (not seen.tried and head.pool is None and before.pool is None and head.job is before.job
                and head.time == before.time and head.spare <= before.spare and not self.terms.changed)

    def _short(self) -> Sequence[Job]:
        """The jobs that mates could outlast and that would wait too long, in order, as far as can be counted."""
        head, terms, ahead = self.head.job, self.terms, self._future(self.head.job)
        factor, price = (0.0, 0.0) if terms.always else (1 / terms.share - 1, 1 / len(self.view.nodes))
        gone, longest = len(self.started), self._behind.by_nodes
        short = [job for job in self.waiting.within(longest, ahead.spare, factor, price, gone) if job is not head]
        if (head.expected <= self.reach.of(self.policy.nodes(head))
                and head.expected * factor <= ahead.latest(self.head.time) - self.now):
            short.insert(0, head)
        return short

    def price(self, job: Job, nodes: int) -> float:
        """What the jobs ahead of it lose."""
        key = self.waiting.key
        mine, bookings = key(job), self.view.bookings
        gone = sum(key(bookings[job_id].job) < mine for job_id in self.started)
        return (self.waiting.place(job) - gone) * nodes * job.expected / len(self.view.nodes)

    def needed(self, job: Job, mate: Able, seconds: float) -> bool:
        """Whether the head counts on nodes of a mate which this would keep beyond the head's start."""
        return job is not self.head.job and mate.booking.expected_end <= self.head.time < mate.end(seconds)

    def known(self, job: Job) -> Reach:
        """What is known of `beside`."""
        return self.reach if job is self.head.job else self._behind

    def beside(self, job: Job) -> Carriers:
        """Which of these jobs the running ones could carry, at most, of which each alone does not put the head
        off."""
        return self._carriers if job is self.head.job else self._unneeded

    @cached_property
    def _behind(self) -> Reach:
        """What is known of `_unneeded`."""
        head = self.head
        if head.pool is not None or head.time == math.inf:
            return self.reach
        return self.terms.beside(head.job, head.time, head.spare, self.reach, self._longest)

    @cached_property
    def _unneeded(self) -> Carriers:
        if self._behind is self.reach:
            return self._carriers
        return Carriers(self.terms.by_nodes, self._longest, self._behind, self.terms.most)

    def _longest(self, each: Able) -> float:
        """How long jobs may take that this one could carry now, at most, without putting the head off."""
        found, booking, head = self.longest(each), each.booking, self.head
        if booking.expected_end <= head.time and self.view.returns(booking.placement) > head.spare:
            return min(found, each.leaves(head.time) * self.terms.share)
        return found

    def delays(self, job: Job, mates: Sequence[Able], seconds: float) -> bool:
        """Whether the head would start later if these lend for so long."""
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

    def _future(self, head: Job) -> _Ahead:
        if self._ahead is None:
            self._ahead = _Ahead(self.now, self.view, self.policy, head)
        return self._ahead

    def static_start(self, job: Job) -> float:
        """The head's is its reservation."""
        return self._future(self.head.job).plan.earliest(job).time


class _Ahead:
    """When jobs could start beside the head's reservation, if nothing else starts."""

    def __init__(self, now: float, view: Cluster, policy: CountingPolicy, head: Job) -> None:
        self.head = Shadow(head, now, view, policy)
        self.spare = _Spare(self)
        self._now, self._view, self._policy = now, view, policy

    @cached_property
    def plan(self) -> Profile:
        """What is free, when the head has what is reserved for it."""
        head = self.head
        plan = (CountProfile if head.pool is None else PoolProfile)(self._now, self._view, self._policy)
        if head.time < math.inf:
            plan.hold(head.job, Slot(head.time) if head.pool is None else plan.earliest(head.job))
        return plan

    def latest(self, time: float) -> float:
        """A start, with what may be rounded; infinite where counts do not say all."""
        return time + 1e-9 * (time + self._now) if self.head.pool is None else math.inf


class _Spare(dict[int, float]):
    """In how many seconds jobs start behind the head, by their size, at the latest, whatever is expected of them;
    found where it is asked for."""

    def __init__(self, ahead: _Ahead) -> None:
        super().__init__()
        self._ahead = ahead

    def __missing__(self, size: int) -> float:
        ahead, plan = self._ahead, self._ahead.plan
        found = self[size] = (ahead.latest(plan.hole(size, math.inf)) - ahead._now
                              if isinstance(plan, CountProfile) else math.inf)
        return found
