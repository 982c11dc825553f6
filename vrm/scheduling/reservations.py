"""Backfilling with several reservations: depth n, and conservative, where every job has one.

Conservative backfilling (Feitelson and Weil, 1998; Mu'alem and Feitelson, 2001): a job gets a
reservation in the earliest hole of the plan when it comes, so nobody is delayed by who comes
later. Kept reservations are moved when a job ends early: every one, in the order of the queue,
to its earliest hole, never to a later time. Recomputed ones are made anew at each step. Depth n
(LoadLeveler's top dogs, Moab's reservation depth) gives reservations to the first n jobs that
cannot start.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from vrm.model.cluster import Booking, Cluster, Watcher
from vrm.model.job import Job
from vrm.model.policies import CountingPolicy
from vrm.model.reservation import NO_CALENDAR
from vrm.scheduling.compressing import ReservationTable, move_earlier
from vrm.scheduling.dispatcher import Dispatcher, Starts
from vrm.scheduling.profile import CountProfile, PoolProfile, Profile, Slot, countable
from vrm.scheduling.queue import Waiting


class Reserving(Dispatcher, Watcher):
    """Backfilling with at most `depth` reservations (None: for every job; with `per_queue` for the
    jobs of each queue), kept or recomputed.

    A head that would fit has to wait where it would take what is reserved.
    """

    heads_first = False

    def __init__(self, depth: int | None, kept: bool, per_queue: bool = False) -> None:
        super().__init__()
        self.depth = depth
        self.kept = kept
        self.per_queue = per_queue
        self.name = ("conservative" if depth is None else
                     f"depth {depth}" + " per queue" * per_queue)
        self._cluster: Cluster | None = None
        self._profile: Profile | None = None
        self._table = ReservationTable[Job]()
        self._counting = True
        self._early: list[Booking] = []
        self._stale = True
        self._freed = -math.inf  # until then more is free than when each reservation was last looked at
        self._prioritised = False
        self._starting: set[int] = set()
        self._promised: dict[int, float] = {}
        self._calendar = NO_CALENDAR
        self._given_back = False  # nodes, by the end of an advance reservation

    def restore(self, promises: Mapping[int, float]) -> None:
        """Make the first plan in the order of these starts: then none of them is later on the same
        machine, where counts say all."""
        if self.kept:
            self._promised = dict(promises)

    def copy(self, view: Cluster) -> Reserving:
        """An independent copy: the promises, and the plan that they stand in."""
        twin = super().copy(view)
        assert isinstance(twin, Reserving)
        twin._table = self._table.copy()
        twin._early = list(self._early)
        twin._starting = set()
        if self._cluster is not None:
            twin._cluster = view
            view.watchers.append(twin)
        if self._profile is not None:
            twin._profile = self._profile.copy(view)
        return twin

    # What the cluster tells.

    def booked(self, booking: Booking) -> None:
        """A job started; one that is not of this plan makes it void, unless it starts on nodes which
        the plan has left to its advance reservation."""
        if booking.job.id in self._starting:
            return
        if self._profile is not None and self._calendar.covers(
                booking.placement.node_set, booking.start, booking.gives):
            self._profile.hold(booking.job, Slot(booking.start, booking.placement))
            return
        self._stale = True
        if self._calendar and self.kept and not self._promised:
            self._promised = {job.id: slot.time for job, slot in self._table}

    def released(self, booking: Booking) -> None:
        """A job ended."""
        self._early.append(booking)

    def revised(self, booking: Booking, before: float) -> None:
        """A job is expected to run on: what was planned for its nodes is void."""
        self._stale = True

    def nodes_changed(self) -> None:
        """Nodes came or went."""
        self._stale = True

    # What the scheduler asks.

    def reservations(self, now: float, waiting: Waiting, view: Cluster,
                     policy: CountingPolicy) -> dict[int, float]:
        """Planned starts of waiting jobs by id, in seconds (infinity: nodes are missing)."""
        return {job.id: slot.time for job, slot in self._table}

    def wake(self, now: float) -> float:
        """When the next reservation begins; infinity if none does."""
        return self._table.first_after(math.nextafter(now, math.inf))

    def decide(self, now: float, waiting: Waiting, view: Cluster, policy: CountingPolicy,
               heads: int) -> Starts:
        """The jobs whose reservation begins now, and those that fit beside all reservations."""
        cluster = view
        if self._cluster is not cluster:
            if self._cluster is not None:
                self._cluster.watchers.remove(self)
            cluster.watchers.append(self)
            self._cluster, self._stale = cluster, True
        self._starting = set()
        self._update(now, waiting, cluster, policy)
        assert self._profile is not None
        yield from self._start_due(now, waiting, cluster, self._profile)
        if self.depth is not None:
            yield from self._walk(now, waiting, cluster, self._profile, self.depth)

    def _update(self, now: float, waiting: Waiting, cluster: Cluster,
                policy: CountingPolicy) -> None:
        """Bring the plan up to now: ends, new jobs, and whatever makes it void."""
        table, fresh = self._table, waiting.fresh
        if cluster.calendar is not self._calendar:
            self._other_calendar(now, waiting, cluster, policy)
        if waiting.prioritised and not self._prioritised:
            self._prioritised = True
            table.rekey(waiting.key)
        overdue = bool(cluster.ends) and cluster.ends[0][0] <= now
        late = any(booking.gives < now for booking in self._early)
        self._check_countable(fresh, cluster, policy)
        profile = self._profile
        if self.kept and profile is not None and not (self._stale or overdue or late):
            profile.advance(now)
            self._release_gone(waiting, profile)
            if self.depth is not None or len(table) + len(fresh) == len(waiting):
                self._move_earlier(now, waiting, profile)
                if self.depth is None:
                    self._reserve(fresh, waiting)
                return
        self._plan_again(now, waiting, cluster, policy)
        # A plan made with jobs that should have ended is worth nothing a moment later.
        self._stale = overdue

    def _plan_again(self, now: float, waiting: Waiting, cluster: Cluster, policy: CountingPolicy) -> None:
        """Make the plan from nothing: in the order of the starts that were promised, or of the queue."""
        table = self._table
        self._profile = (CountProfile if self._counting else PoolProfile)(now, cluster, policy)
        promised, self._promised = self._promised, {}
        jobs = list(waiting) if self.depth is None else [
            job for job in waiting if job.id in (promised or table)] if self.kept else []
        jobs.sort(key=lambda job: promised.get(job.id, math.inf))
        table.clear()
        self._freed = -math.inf
        self._early.clear()
        self._given_back = False
        self._reserve(jobs, waiting)

    def _move_earlier(self, now: float, waiting: Waiting, profile: Profile) -> None:
        """Jobs have ended early, or the plan has got something back: every reservation moves to its earliest
        hole."""
        early = [booking for booking in self._early if booking.gives > now]
        self._early.clear()
        for booking in early:
            profile.give_booking(booking, now)
            self._freed = max(self._freed, booking.gives)
        if not len(self._table):
            self._freed = -math.inf
        elif early or self._given_back:
            self._freed = move_earlier(self._table, profile, self._freed, None if waiting.static else waiting.key)
        self._given_back = False

    def _release_gone(self, waiting: Waiting, profile: Profile) -> None:
        """Release what is reserved for jobs that have left the queue, or came back to it changed."""
        table, fresh = self._table, waiting.fresh
        if self.depth is None and len(table) + len(fresh) == len(waiting):
            return
        again = {job.id for job in fresh}
        for job, slot in list(table):
            if job.id in again or not waiting.holds(job):
                profile.give(job, slot)
                table.remove(job)
                self._freed = max(self._freed, slot.time + job.expected)
                self._given_back = True

    def _other_calendar(self, now: float, waiting: Waiting, cluster: Cluster,
                        policy: CountingPolicy) -> None:
        """Advance reservations were made or are over. Beside a new one the plan is made again, in the
        order of its starts; else every job keeps its start, or finds an earlier one."""
        before, self._calendar = self._calendar, cluster.calendar
        known = {span.reservation.id for span in before.spans}
        profile, table = self._profile, self._table
        if any(span.reservation.id not in known for span in cluster.calendar.spans):
            if self.kept and not self._promised:
                self._promised = {job.id: slot.time for job, slot in table}
            self._counting, self._stale = False, True
        elif cluster.calendar or profile is None:
            if profile is not None:
                profile.policy = policy
        elif all(policy.exact(job) for job in waiting) and countable(cluster, policy):
            self._counting = True
            self._profile = counts = CountProfile(now, cluster, policy)
            slots = [(job, slot) for job, slot in table if waiting.holds(job)]
            table.clear()
            for job, slot in slots:
                counts.hold(job, Slot(slot.time))
                table.add(job, Slot(slot.time), policy.size(job), waiting.key(job))
            self._early.clear()
            self._freed = math.inf
        else:
            profile.policy = policy
        self._given_back = True

    def _check_countable(self, fresh: Sequence[Job], cluster: Cluster,
                         policy: CountingPolicy) -> None:
        if self._counting and not (all(policy.exact(job) for job in fresh)
                                   and (not self._stale or countable(cluster, policy))):
            self._counting, self._stale = False, True

    def _reserve(self, jobs: Iterable[Job], waiting: Waiting) -> None:
        profile = self._profile
        assert profile is not None
        for job in jobs:
            slot = profile.earliest(job)
            profile.hold(job, slot)
            self._table.add(job, slot, profile.policy.size(job), waiting.key(job))

    def _start_due(self, now: float, waiting: Waiting, cluster: Cluster, profile: Profile) -> Starts:
        """Start the jobs whose reservation begins now."""
        for job in sorted(self._table.due(now), key=waiting.key):
            placement = profile.start(job, self._table.slot(job), cluster)
            if placement is None:  # something went otherwise than planned
                self._stale = True
                continue
            self._table.remove(job)
            self._starting.add(job.id)
            yield job, placement

    def _walk(self, now: float, waiting: Waiting, cluster: Cluster, profile: Profile, depth: int) -> Starts:
        """Start what fits beside the reservations, and give more of these while there are any."""
        table, starting = self._table, self._starting
        has = Counter(job.queue if self.per_queue else "" for job, _ in table)
        for job in self._tried(waiting, cluster, profile.policy, depth):
            if job.id in starting or job.id in table:
                continue
            queue = job.queue if self.per_queue else ""
            if profile.fits_now(job):
                placement = profile.place(job, cluster)
                if placement is not None:
                    profile.hold(job, Slot(now, placement))
                    starting.add(job.id)
                    yield job, placement
            elif has[queue] < depth:
                has[queue] += 1
                self._reserve([job], waiting)

    def _tried(self, waiting: Waiting, cluster: Cluster, policy: CountingPolicy, depth: int) -> Iterable[Job]:
        """The waiting jobs; when no more reservations are to be given only those that may start now."""
        for at, job in enumerate(waiting):
            yield job
            if not self.per_queue and len(self._table) >= depth:
                room = policy.room(cluster)
                yield from waiting[at + 1:] if room is None else waiting.fitting(at + 1, room)
                return
