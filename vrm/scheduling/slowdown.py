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
from functools import cached_property
from typing import Dict, Iterable, Optional, Sequence, Set, Tuple

from vrm.model.cluster import AnyPlacement, Cluster
from vrm.model.job import Job
from vrm.model.policies import PlacementPolicy
from vrm.scheduling.backfilling import Reservation, reservation, window
from vrm.scheduling.dispatcher import Dispatcher, Starts
from vrm.scheduling.lending import Able, Lending, Terms
from vrm.scheduling.mates import MOST, Carriers
from vrm.scheduling.profile import CountProfile, PoolProfile
from vrm.scheduling.queue import Waiting

class SlowdownDriven(Dispatcher):
    """The policy, on these terms (see `vrm.scheduling.lending.Terms`)."""

    name = "sd"
    lends = True

    def __init__(self, max_slowdown: Optional[float] = 10.0, share: float = 0.5, most: int = MOST,
                 always: bool = False, gain: bool = False) -> None:
        super().__init__()
        self.terms = Terms(max_slowdown, share, most, always, gain)
        self._head: Optional[Reservation] = None  # that of the last step

    def decide(self, now: float, waiting: Waiting, view: Cluster, policy: PlacementPolicy,
               heads: int) -> Starts:
        """The jobs that start at `now`: while any does, the next one from the front on."""
        started: Set[int] = set()
        known = self._kept(now, waiting, view)
        self.terms.watch(view)
        while heads:
            head = next((job for job in waiting if job.id not in started), None)
            if head is None:
                break
            placement = None if known else policy.place(head, view)
            if placement is not None:
                heads -= 1
                found: Optional[Tuple[Job, AnyPlacement]] = (head, placement)
            else:
                step = _Step(self.terms, now, waiting, view, policy,
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
        twin._head, twin.terms = None, self.terms.copy()
        return twin


class _Step(Lending):
    """One look at the queue. `head`: the reservation of the first job, which does not fit."""

    def __init__(self, terms: Terms, now: float, waiting: Waiting, view: Cluster,
                 policy: PlacementPolicy, head: Reservation, started: Set[int]) -> None:
        super().__init__(terms, now, view, policy)
        self.waiting, self.head, self.started = waiting, head, started
        self._future: Optional[_Future] = None

    def next(self, among: Optional[Sequence[Job]]) -> Optional[Tuple[Job, AnyPlacement]]:
        """The first job that starts, with its place. `among`: the only ones that could."""
        start: Optional[float]
        for job in self._worth(among):
            if job.id in self.started:
                continue
            if job is self.head.job:
                placement, start = None, self.head.time
            else:
                placement, start = self._beside(job), None
            if placement is None and job.malleable:
                placement = self.on_mates(job, start)
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
        short = [job for job in waiting.within(self.reach.by_nodes) if job.malleable]
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

    def needed(self, job: Job, mate: Able, seconds: float) -> bool:
        """Whether the head counts on nodes of a mate which this would keep beyond the head's start."""
        return job is not self.head.job and mate.booking.expected_end <= self.head.time < mate.end(seconds)

    def beside(self, job: Job) -> Carriers:
        """Which of these jobs the running ones could carry, at most, of which each alone does not put the head
        off."""
        return self._carriers if job is self.head.job else self._unneeded

    @cached_property
    def _unneeded(self) -> Carriers:
        head = self.head
        if head.pool is not None or head.time == math.inf:
            return self._carriers
        returns, share, shadow = self.view.returns, self.terms.share, head.time

        def longest(each: Able) -> float:
            found, booking = self.longest(each), each.booking
            if booking.expected_end <= shadow and returns(booking.placement) > head.spare:
                return min(found, each.leaves(shadow) * share)
            return found
        return self.carriers(longest)

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

    def static_start(self, job: Job) -> float:
        """The head's is its reservation."""
        if self._future is None:
            self._future = _Future(self.now, self.view, self.policy, self.head)
        return self._future.start(job)


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
