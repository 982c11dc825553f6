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
from itertools import accumulate
from typing import Dict, NamedTuple, Optional, Sequence, Set, Tuple, Union

from vrm.model.cluster import AnyPlacement, Cluster
from vrm.model.core_share import Borrowed
from vrm.model.job import Job
from vrm.model.policies import PlacementPolicy
from vrm.scheduling.backfilling import Reservation, reservation, window
from vrm.scheduling.dispatcher import Dispatcher, Starts
from vrm.scheduling.lending import Able, Lending, Terms
from vrm.scheduling.mates import MOST, Carriers, Reach
from vrm.scheduling.profile import PoolProfile
from vrm.scheduling.queue import Waiting


class _Seen(NamedTuple):
    """What the last look at the queue saw: the head's reservation, and whether sets of mates were looked at and
    none of them was taken."""

    head: Reservation
    tried: bool


class SlowdownDriven(Dispatcher):
    """The policy, on these terms (see `vrm.scheduling.lending.Terms`).

    After a look in which nobody could start, most of what happens lets nobody borrow who could not then: time
    passes, jobs come, and jobs end before the head's reservation. Then only who came since is asked whether it
    could."""

    name = "sd"
    lends = True

    def __init__(self, max_slowdown: Optional[float] = 10.0, share: float = 0.5, most: int = MOST,
                 always: bool = False, gain: bool = False) -> None:
        super().__init__()
        self.terms = Terms(max_slowdown, share, most, always, gain)
        self._seen: Optional[_Seen] = None  # by the last look, in which nobody could start

    def decide(self, now: float, waiting: Waiting, view: Cluster, policy: PlacementPolicy,
               heads: int) -> Starts:
        """The jobs that start at `now`: while any does, the next one from the front on."""
        started: Set[int] = set()
        known = self._kept(now, waiting, view)
        seen, self._seen = self._seen, None
        self.terms.watch(view)
        while heads:
            head = next((job for job in waiting if job.id not in started), None)
            if head is None:
                break
            placement = None if known else policy.place(head, view)
            if placement is not None:
                heads -= 1
                started.add(head.id)
                yield head, placement
            else:
                look = _Look(self.terms, now, waiting, view, policy, known or head, started)
                for job, place in look.starts(known is not None, seen):
                    started.add(job.id)
                    yield job, place
                if look.complete:
                    self._seen = _Seen(look.head, look.tried)
                    break
            known = seen = None
        self._left = view, view.generation

    def _kept(self, now: float, waiting: Waiting, view: Cluster) -> Optional[Reservation]:
        """The head's reservation where nothing but arrivals has happened since the last step: who could
        not start then cannot now."""
        head = self._seen.head if self._seen is not None else None
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
        twin._seen, twin.terms = None, self.terms.copy()
        return twin


class _Look(Lending):
    """One look at the queue. `head`: the reservation of the first job, which does not fit; or that job, where
    it is not known yet."""

    def __init__(self, terms: Terms, now: float, waiting: Waiting, view: Cluster,
                 policy: PlacementPolicy, head: Union[Reservation, Job], started: Set[int]) -> None:
        super().__init__(terms, now, view, policy)
        self.waiting, self.started = waiting, started
        self.complete = False  # nobody else starts
        self._ahead: Optional[_Ahead] = None
        self.head = head if isinstance(head, Reservation) else self._future(head).head

    def starts(self, arrivals: bool, seen: Optional[_Seen]) -> Starts:
        """The jobs that start, with their places, until the head has. `seen`: by the last look, `arrivals`: since
        which jobs have come and nothing else has happened."""
        waiting, head = self.waiting, self.head.job
        short: Sequence[Job] = ()
        if seen is not None and (arrivals or self._no_more_than(seen)):
            short, self.tried = waiting.fresh, seen.tried
        else:
            short = self._short()
        fitting = short if arrivals else self._fitting()
        at = 0
        while True:
            found = None
            while found is None and at < len(fitting):  # who does not fit now does so the less later
                job = fitting[at]
                if job is not head and job.id not in self.started:
                    placement = self._beside(job)
                    if placement is not None:
                        found = job, placement
                        break
                at += 1
            found = self._borrows(short, found) or found
            if found is None:
                self.complete = True
                return
            yield found
            if found[0] is head or self.head.pool is not None:
                return
            self._after(found[0])
            short = self._short()

    def _borrows(self, short: Sequence[Job], other: Optional[Tuple[Job, AnyPlacement]]
                 ) -> Optional[Tuple[Job, AnyPlacement]]:
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

    def _after(self, job: Job) -> None:
        """A job behind the head has started: the head starts when it would have, with as much to spare or less."""
        self.forget()
        self._ahead, head, booking = None, self.head, self.view.bookings[job.id]
        if isinstance(booking.placement, Borrowed):
            self.head = self._future(head.job).head
        elif booking.gives > head.time:
            self.head = head._replace(spare=head.spare - self.view.returns(booking.placement))

    def _no_more_than(self, seen: _Seen) -> bool:
        """Whether nobody can borrow now who could not in an earlier look: jobs have ended since, but none has
        started or is expected to end at another time, and the head has the same reservation, which leaves no more
        than then. A set of mates that was passed over then may have made way for another one."""
        head, before = self.head, seen.head
        return (not seen.tried and head.pool is None and before.pool is None and head.job is before.job
                and head.time == before.time and head.spare <= before.spare and not self.terms.changed)

    def _short(self) -> Sequence[Job]:
        """The jobs that mates could outlast and that would wait too long, in order, as far as can be counted."""
        head = self.head.job
        short = self.waiting.within(self._behind.by_nodes)
        if head.expected <= self.reach.of(self.policy.nodes(head)) and not (short and short[0] is head):
            short.insert(0, head)
        if short and not self.terms.always:
            now, factor, latest = self.now, 1 / self.terms.share - 1, self._future(head).latest
            short = [job for job in short if job.expected * factor <= latest(job) - now]
        return short

    def _fitting(self) -> Sequence[Job]:
        """The jobs that fit beside the head, in order, as far as can be counted."""
        room, head = self.policy.room(self.view), self.head
        if room is None:
            return self.waiting[:]
        return () if room <= 0 else list(self.waiting.fitting(0, room, window(self.now, head.time),
                                                              self._spare(room)))

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
        return self._future(self.head.job).start(job)


class _Ahead:
    """When jobs could start beside the head's reservation, if nothing else starts."""

    def __init__(self, now: float, view: Cluster, policy: PlacementPolicy, head: Job) -> None:
        self.policy = policy
        self._now, self._view = now, view
        self._starts: Dict[int, Tuple[float, float]] = {}
        self._plan: Optional[PoolProfile] = None
        self._counts = policy.exact(head)
        if not self._counts:
            self.head = reservation(head, now, view, policy)
            return
        # What is free only grows until the head starts: when it does, and how much is free then.
        bookings = view.bookings
        room = policy.room(view)
        assert room is not None
        self._times = [end for end, _ in view.ends]
        placements = (bookings[job_id].placement for _, job_id in view.ends)
        self._free = list(accumulate((placement.size for placement in placements) if view.all_up
                                     else map(view.returns, placements), initial=room))
        self._size = size = policy.size(head)
        at = bisect.bisect_left(self._free, size)
        time = max(self._times[at - 1], now) if at < len(self._free) else math.inf
        spare = self._free[bisect.bisect_right(self._times, time)] - size
        self.head = Reservation(head, time, None, spare)

    def start(self, job: Job) -> float:
        """The first time from which on it fits for all that is expected of it."""
        head = self.head
        if not self._counts:
            if self._plan is None:
                self._plan = PoolProfile(self._now, self._view, self.policy)
                if head.time < math.inf:
                    self._plan.hold(head.job, self._plan.earliest(head.job))
            return self._plan.earliest(job).time
        first, later = self._starts_of(self.policy.size(job))
        return first if first + job.expected <= head.time else later

    def latest(self, job: Job) -> float:
        """A time before which it starts, as far as can be counted, whatever is expected of it; with what may be
        rounded."""
        if not self._counts:
            return math.inf
        size = self.policy.size(job)
        time = self.head.time if job is self.head.job else self._starts_of(size)[1]
        return time + 1e-12 * (time + self._now)

    def _starts_of(self, size: int) -> Tuple[float, float]:
        """When jobs of this size start which end before the head begins, and when others."""
        found = self._starts.get(size)
        if found is None:
            head, first = self.head, self._when(size)
            ends, later = head.time + head.job.expected, first
            if not (head.time == math.inf or first >= ends
                    or size <= self._at(max(first, head.time)) - self._size):
                later = min(max(first, ends), self._when(size + self._size))
            found = self._starts[size] = first, later
        return found

    def _when(self, size: int) -> float:
        """When so much is free, were it not for the head: just after now where a job should have ended."""
        at = bisect.bisect_left(self._free, size)
        if not at:
            return self._now
        return max(self._times[at - 1], math.nextafter(self._now, math.inf)) if at < len(self._free) else math.inf

    def _at(self, time: float) -> int:
        """How much is free at a time, were it not for the head."""
        return self._free[bisect.bisect_right(self._times, time)] if time > self._now else self._free[0]
