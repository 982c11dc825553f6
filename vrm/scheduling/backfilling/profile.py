"""The future of the machine: what is free at which time, given expected ends and reservations.

`CountProfile` counts free units; it is for policies under which counting is exact. `PoolProfile` keeps the free lanes
or cores themselves: a job cannot migrate, so it must find the *same* ones free during its whole run, and counting at
each moment would not show that.
"""

from __future__ import annotations

import bisect
import copy
import math
from array import array
from operator import itemgetter
from typing import Any, NamedTuple
from collections.abc import Iterator, Sequence

from vrm.model.cluster import Booking, Cluster, Pool
from vrm.model.job import Job
from vrm.model.placement import Placement
from vrm.model.policies import CountingPolicy
from vrm.scheduling.backfilling.node_profiles import NodeProfiles, Span
from vrm.scheduling.placement.wrapper import by_node, passes, wants


# Up to this number of steps, a loop is faster than arrays.
_SHORT = 80


class Slot(NamedTuple):
    """A reservation: its time, and in a PoolProfile also its placement."""

    time: float
    placement: Placement | None = None


def expected_end(booking: Booking, now: float) -> float:
    """Return when a running job is expected to free its nodes (seconds); just after `now` if it should already have
    ended."""
    return booking.gives if booking.gives > now else math.nextafter(now, math.inf)


class UnitProfile:
    """Free units as a step function of time: `free[i]` units from `times[i]` on.

    Short profiles are searched with loops, long ones with numpy.
    """

    def __init__(self, now: float, free: int) -> None:
        self.times, self.free = array("d", [now]), array("q", [free])

    def advance(self, now: float) -> None:
        """Forget everything before `now`."""
        if self.times[0] < now:
            first = bisect.bisect_right(self.times, now) - 1
            del self.times[:first], self.free[:first]
            self.times[0] = now

    def _step_at(self, time: float) -> int:
        """Return the index of the step that begins at `time`; insert the step if there is none."""
        at = bisect.bisect_left(self.times, time)
        if at == len(self.times) or self.times[at] != time:
            self.times.insert(at, time)
            self.free.insert(at, self.free[at - 1])
        return at

    def change(self, begin: float, end: float, units: int) -> None:
        """Free `units` (take, if negative) from `begin` to `end`."""
        if not begin < end:
            return
        free = self.free
        first = self._step_at(begin)
        last = self._step_at(end) if end < math.inf else len(free)
        if last - first < _SHORT:
            for at in range(first, last):
                free[at] += units
        else:
            _numpy().frombuffer(free, "q")[first:last] += units
        if last < len(free) and free[last] == free[last - 1]:
            del self.times[last], free[last]
        if first and free[first] == free[first - 1]:
            del self.times[first], free[first]

    def move(self, duration: float, size: int, old: float, new: float) -> None:
        """Move a reservation from time `old` to the earlier time `new`."""
        end = new + duration
        self.change(new, min(old, end), -size)
        self.change(max(old, end), old + duration, size)

    def hole(self, size: int, duration: float, limit: float = math.inf, until: float = math.inf) -> float:
        """Return the first time from which `size` units are free for `duration` seconds or until `limit`; `limit` if
        there is none before it. The caller knows that no hole begins at `until` or later."""
        times, free = self.times, self.free
        stop = begins = len(times) if limit == math.inf else bisect.bisect_left(times, limit)
        if limit < math.inf and stop and free[stop - 1] < size:
            begins = self._begins_before(size, duration, stop)
            if not begins:
                return limit
        if until < times[-1]:
            begins = bisect.bisect_left(times, until, 0, begins)
        if begins > _SHORT:
            return self._hole_in_arrays(size, duration, limit, stop)
        begin = end = -1.0
        for at in range(stop):
            if free[at] < size:
                if at + 1 >= begins:
                    return limit
                begin = -1.0
            else:
                if begin < 0:
                    begin = times[at]
                    end = begin + duration
                # A step lasts until the next one; the last one never ends.
                if at + 1 == stop or times[at + 1] >= end:
                    return begin
        return limit

    def _begins_before(self, size: int, duration: float, stop: int) -> int:
        """Return the number of first steps in which a hole can begin; the hole must end before the last blocked steps,
        which are just before `stop`."""
        times, free, blocked = self.times, self.free, stop - 1
        while blocked and free[blocked - 1] < size:
            blocked -= 1
        if times[0] + duration > times[blocked]:
            return 0
        return min(stop, bisect.bisect_right(times, times[blocked] - duration, 0, blocked) + 1)

    def _hole_in_arrays(self, size: int, duration: float, limit: float, stop: int) -> float:
        numpy = _numpy()
        times = numpy.frombuffer(self.times)[:stop]
        blocked = (numpy.frombuffer(self.free, "q")[:stop] < size).nonzero()[0]
        if not len(blocked):
            return float(times[0])
        ends = times[blocked]
        if blocked[0] and times[0] + duration <= ends[0]:
            return float(times[0])
        begins = times[blocked[:-1] + 1]
        wide = begins + duration <= ends[1:]
        if len(wide):
            at = int(wide.argmax())
            if wide[at]:
                return float(begins[at])
        after = int(blocked[-1]) + 1
        return float(times[after]) if after < stop else limit

    def most(self, begin: float, end: float) -> int:
        """Return the largest number of units that are free at any moment from `begin` to before `end`."""
        first = max(0, bisect.bisect_right(self.times, begin) - 1)
        last = bisect.bisect_left(self.times, end)
        if last <= first:
            return 0
        if last - first <= _SHORT:
            return max(self.free[first:last])
        return int(_numpy().frombuffer(self.free, "q")[first:last].max())

    def least(self, begin: float, end: float) -> int:
        """Return the smallest number of units that are free at any moment from `begin` to before `end`."""
        first = max(0, bisect.bisect_right(self.times, begin) - 1)
        return min(self.free[first:max(first + 1, bisect.bisect_left(self.times, end))])

    def fits(self, units: int, duration: float) -> bool:
        """Return whether these units are free for `duration` seconds from the first moment on."""
        last = bisect.bisect_left(self.times, self.times[0] + duration)
        return self.free[0] >= units and min(self.free[:last]) >= units


class CountProfile(UnitProfile):
    """The free units of a machine under a policy by which jobs need only a number of units."""

    def __init__(self, now: float, cluster: Cluster, policy: CountingPolicy) -> None:
        self.policy = policy
        self._cluster = cluster
        room = policy.room(cluster)
        assert room is not None
        super().__init__(now, room)
        for booking in cluster.running():
            end = expected_end(booking, now)
            room += cluster.returns(booking.placement)
            if end == self.times[-1]:
                self.free[-1] = room
            else:
                self.times.append(end)
                self.free.append(room)

    def copy(self, cluster: Cluster) -> CountProfile:
        """Return an independent copy, for a copy of the cluster."""
        twin = copy.copy(self)
        twin._cluster = cluster
        twin.times, twin.free = self.times[:], self.free[:]
        return twin

    def hold(self, job: Job, slot: Slot) -> None:
        """Take the units of a reservation."""
        if slot.time < math.inf:
            self.change(slot.time, slot.time + job.expected, -self.policy.size(job))

    def give(self, job: Job, slot: Slot) -> None:
        """Undo `hold`."""
        if slot.time < math.inf:
            self.change(max(slot.time, self.times[0]), slot.time + job.expected, self.policy.size(job))

    def give_booking(self, booking: Booking, now: float) -> None:
        """Free the remaining time of a running job that ended before its expected end."""
        self.change(now, booking.gives, self._cluster.returns(booking.placement))

    def earliest(self, job: Job) -> Slot:
        """Return the first hole in which the job fits for its whole expected run time; at infinity if there is none."""
        return Slot(self.hole(self.policy.size(job), job.expected))

    def fits_now(self, job: Job) -> bool:
        """Return whether the job's units are free from the first moment on for its whole expected run time."""
        return self.fits(self.policy.size(job), job.expected)

    def place(self, job: Job, cluster: Cluster) -> Placement | None:
        """Return where a job that fits now starts."""
        return self.policy.place(job, cluster) or None

    def start(self, job: Job, slot: Slot, cluster: Cluster) -> Placement | None:
        """Return where a job starts whose reservation begins now. The profile stays unchanged: the job takes what was
        reserved."""
        return self.policy.place(job, cluster) or None


def _numpy() -> Any:
    import numpy  # imported only when a plan is long
    return numpy


class PoolProfile:
    """Free lanes, cores and amounts as a step function of time."""

    def __init__(self, now: float, cluster: Cluster, policy: CountingPolicy) -> None:
        self.policy = policy
        self.times = [now]
        self.pools: list[Pool] = [cluster.what_if()]
        self.pools[0].at = now
        self._left: list[float | None] = [None]  # free capacity at each step; None: not counted yet
        # Not while jobs of a policy by lanes still run: what such a job frees depends on its neighbour.
        follows = by_node(policy) and not (cluster.busy0 or cluster.busy1)
        self._nodes = NodeProfiles(now, self.pools[0]) if follows else None
        for booking in cluster.running():
            end = expected_end(booking, now)
            if end != self.times[-1]:
                self.times.append(end)
                self.pools.append(self.pools[-1].what_if())
                self.pools[-1].at = end
                self._left.append(None)
            self._give(self.pools[-1:], booking.job, booking.placement, end, math.inf)
        self._boundaries = frozenset(cluster.boundaries(now))  # a job may begin to fit here, too
        for time in self._boundaries:
            self._step_at(time)
        # If what a job takes depends on its nodes, a job may fit only where less is free.
        self._even = all(each.uniform() for each in cluster.constraints)

    def copy(self, cluster: Cluster) -> PoolProfile:
        """Return an independent copy, for a copy of the cluster."""
        twin = copy.copy(self)
        twin.times = list(self.times)
        twin._left = list(self._left)
        twin._nodes = self._nodes and self._nodes.copy()
        twin.pools = [pool.what_if() for pool in self.pools]
        for pool in twin.pools:
            pool.tenants = cluster.tenants
        return twin

    def advance(self, now: float) -> None:
        """Forget everything before `now`."""
        first = bisect.bisect_right(self.times, now) - 1
        if first > 0:
            del self.times[:first], self.pools[:first], self._left[:first]
        self._left[0] = None
        self.times[0] = self.pools[0].at = max(self.times[0], now)

    def tidy(self) -> None:
        """Remove steps at which nothing changes: a job that does not fit before such a step does not fit at it
        either."""
        if not self._even:
            return
        kept = [0]
        for at in range(1, len(self.times)):
            if self.times[at] in self._boundaries or not self.pools[at].alike(self.pools[kept[-1]]):
                kept.append(at)
        if len(kept) < len(self.times):
            self.times = [self.times[at] for at in kept]
            self.pools = [self.pools[at] for at in kept]
            self._left = [self._left[at] for at in kept]

    def _step_at(self, time: float) -> int:
        at = bisect.bisect_left(self.times, time)
        if at == len(self.times) or self.times[at] != time:
            self.times.insert(at, time)
            self.pools.insert(at, self.pools[at - 1].what_if())
            self.pools[at].at = time
            self._left.insert(at, None)
        return at

    def _steps(self, begin: float, end: float) -> Sequence[Pool]:
        if not begin < end:
            return ()
        first = self._step_at(begin)
        last = self._step_at(end)
        self._left[first:last] = [None] * (last - first)
        return self.pools[first:last]

    def hold(self, job: Job, slot: Slot) -> None:
        """Take the lanes or cores of a reservation."""
        if slot.placement is not None:
            begin, end = slot.time, slot.time + job.expected
            pools = self._steps(begin, end)
            before = pools[0].busy_cores if pools else 0
            for pool in pools:
                pool.take(job, slot.placement, slot.time)
            self._note(pools, before, job, slot.placement, begin, end, -1)

    def give(self, job: Job, slot: Slot) -> None:
        """Undo `hold`."""
        if slot.placement is not None:
            begin, end = max(slot.time, self.times[0]), slot.time + job.expected
            self._give(self._steps(begin, end), job, slot.placement, begin, end)

    def give_booking(self, booking: Booking, now: float) -> None:
        """Free the remaining time of a running job that ended before its expected end."""
        self._give(self._steps(now, booking.gives), booking.job, booking.placement, now, booking.gives)

    def _give(self, pools: Sequence[Pool], job: Job, placement: Placement, begin: float, end: float) -> None:
        before = pools[0].busy_cores if pools else 0
        for pool in pools:
            pool.give(job, placement)
        self._note(pools, before, job, placement, begin, end, +1)

    def _note(self, pools: Sequence[Pool], before: int, job: Job, placement: Placement, begin: float,
              end: float, sign: int) -> None:
        """Record the changes in the pools of some steps for each node, if nodes are tracked."""
        if pools and self._nodes is not None:
            amounts = placement.amounts[1] if placement.amounts is not None and job.request.amounts else ()
            self._nodes.change(begin, end, placement.node_set, before ^ pools[0].busy_cores, amounts, sign)

    def candidates(self, job: Job, limit: float = math.inf, own: Placement | None = None) -> Iterator[int]:
        """Yield the steps before `limit`, ascending, at which the job may start as far as each moment by itself shows
        it, until the end of the job or until `limit`, from which on it has its `own` placement. Counts are checked
        first; the rest is checked node by node, if the policy can say what the job needs on a node. Otherwise, if the
        job did not fit at a yielded step, the last step of its run at which it cannot run is searched, and earlier
        starts are skipped."""
        times, policy, size = self.times, self.policy, self.policy.size(job)
        spans: list[Span] | None = None
        if self._nodes is not None and (sought := wants(policy, job)) is not None:
            spans = self._nodes.starts(sought, job, times[0], limit, own.node_set if own is not None else 0)
        first = at = asked = turn = 0
        bound = bool(self.pools[0].constraints)
        while first < len(times) and times[first] < limit:
            if spans is not None:
                turn = bisect.bisect_left(spans, times[first], turn, key=itemgetter(1))
                if turn == len(spans):
                    break
                if times[first] < spans[turn][0]:
                    first = bisect.bisect_left(times, spans[turn][0], first)
                    at = max(at, first)
                    continue
            end = min(times[first] + job.expected, limit)
            while at < len(times) and times[at] < end:
                left = self._left[at]
                if size > (self._count(at) if left is None else left) or (bound and not self._allows(job, at)):
                    first = at = at + 1
                    break
                at += 1
            else:
                if spans is not None or passes(policy, job, self.pools[first]):
                    yield first
                    asked = max(asked, first + 1)
                    if spans is None and at > asked:
                        first = self._last_without(job, asked, at, first)
                        asked = at
                first += 1
                at = max(at, first)

    def _last_without(self, job: Job, begin: int, end: int, none: int) -> int:
        """Return the last step in a range at which a job cannot run; `none` if it can run at all of them."""
        return next((at for at in range(end - 1, begin - 1, -1)
                     if not passes(self.policy, job, self.pools[at])), none)

    def _allows(self, job: Job, at: int) -> bool:
        """Return whether the constraints allow a job at the beginning of a step, as far as is known without its
        placement."""
        pool = self.pools[at]
        return all(each.allows(job, None, pool.at, pool.at) for each in pool.constraints)

    def _count(self, at: int) -> float:
        """Return the counted free capacity of a step; infinity if it cannot be counted."""
        room = self.policy.room(self.pools[at])
        self._left[at] = found = math.inf if room is None else room
        return found

    def _free_throughout(self, job: Job, first: int) -> Pool | None:
        """Return a pool of what is free during the whole run of a job that starts at a step; None if the job does not
        fit in it."""
        pool, policy, nodes = self.pools[first], self.policy, self._nodes
        end = self.times[first] + job.expected
        others = self.pools[first + 1:bisect.bisect_left(self.times, end)]
        # What a job takes may depend on its placement: with less free capacity it may get another one.
        guessed = bool(pool.constraints) and any(each.depends(job) for each in pool.constraints)
        if nodes is not None and not guessed and (sought := wants(policy, job)) is not None:
            pool = pool.what_if()
            pool.keep_common(*others, nodes=False)
            nodes.keep_common(pool, self.times[first], end, sought)
            return pool if policy.fits(job, pool) else None
        if not policy.fits(job, pool):
            return None
        if not others:
            return pool
        pool = pool.what_if()
        for other in others if guessed else ():
            pool.keep_common(other)
            if not policy.fits(job, pool):
                return None
        if not guessed:
            pool.keep_common(*others)
        return pool if policy.fits(job, pool) else None

    def earliest(self, job: Job) -> Slot:
        """Return the first hole in which the job fits for its whole expected run time; at infinity if there is none."""
        for first in self.candidates(job):
            pool = self._free_throughout(job, first)
            if pool is not None:
                return Slot(self.times[first], self.policy.place(job, pool) or None)
        return Slot(math.inf)

    def compress(self, job: Job, slot: Slot) -> Slot:
        """Move a reservation to an earlier hole, if there is one, and return the reservation."""
        given = False
        # `candidates` ignores what the job itself takes from its current start on.
        for first in self.candidates(job, slot.time, slot.placement):
            if not given and self.times[first] + job.expected > slot.time:
                self.give(job, slot)
                given = True
            pool = self._free_throughout(job, first)
            if pool is not None:
                moved = Slot(self.times[first], self.policy.place(job, pool) or None)
                if not given:
                    self.give(job, slot)
                self.hold(job, moved)
                return moved
        if given:
            self.hold(job, slot)
        return slot

    def fits_now(self, job: Job) -> bool:
        """Return whether the job fits from the first moment on for its whole expected run time."""
        return passes(self.policy, job, self.pools[0]) and self._free_throughout(job, 0) is not None

    def place(self, job: Job, cluster: Cluster) -> Placement | None:
        """Return where a job that fits now starts."""
        pool = self._free_throughout(job, 0)
        return None if pool is None else self.policy.place(job, pool) or None

    def start(self, job: Job, slot: Slot, cluster: Cluster) -> Placement | None:
        """Return where a job starts whose reservation begins now. Its reservation is released, and its placement is
        held instead."""
        self.give(job, slot)
        placement = self.place(job, cluster)
        if placement is not None:
            self.hold(job, Slot(self.times[0], placement))
        return placement


Profile = CountProfile | PoolProfile


def countable(cluster: Cluster, policy: CountingPolicy) -> bool:
    """Return whether counting is exact for all running jobs. It is not for jobs that an earlier policy placed in other
    units."""
    return all(policy.exact(job) and (placement.lease is not None or policy.size(job) == placement.size)
               for job, placement, *_ in cluster.running())
