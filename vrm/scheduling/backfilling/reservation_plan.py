"""A plan: reservations of waiting jobs, and what they and the running jobs leave free.

If reservations are kept, then after a job ends early each of them, in the order of the queue, moves to its earliest
hole, never to a later time. Otherwise they are all computed again at each step.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping, Sequence

from vrm.model.booking import Booking, Watcher
from vrm.model.cluster import Cluster
from vrm.model.job import Job
from vrm.model.placement import Placement
from vrm.model.policies import CountingPolicy
from vrm.model.reservation import NO_CALENDAR
from vrm.scheduling.backfilling.compression import ReservationTable, move_earlier
from vrm.scheduling.backfilling.profile import CountProfile, PoolProfile, Profile, Slot, countable
from vrm.scheduling.orderings.queue import QueueView


class ReservationPlan(Watcher):
    """The reservations (`table`) and the future of the machine with them (`profile`). The plan is updated while jobs
    start and end, or it is `void` until the next `update`.

    `kept`: reservations stay from step to step. `complete`: every waiting job has one. `starting` are the jobs that
    start by the plan in this step.
    """

    profile: Profile

    def __init__(self, kept: bool, complete: bool) -> None:
        self.kept, self.complete = kept, complete
        self.table = ReservationTable[Job]()
        self.starting: set[int] = set()
        self.void = True
        self.capacity_freed = False  # a removed reservation has freed capacity that was not used yet
        self._cluster: Cluster | None = None
        self._counting = True
        self._early: list[Booking] = []
        self._freed = -math.inf  # until then, more is free than when reservations were last checked
        self._prioritised = False
        self._promised: dict[int, float] = {}
        self._calendar = NO_CALENDAR

    def restore(self, promises: Mapping[int, float]) -> None:
        """Make the next plan in the order of these starts. On the same machine, if counting is exact, no job then
        starts later than promised."""
        if self.kept:
            self._promised = dict(promises)

    def renew(self) -> None:
        """Make the plan again at the next step, in the order of its starts."""
        self.void = True
        if self.kept and not self._promised:
            self._promised = self.starts

    @property
    def starts(self) -> dict[int, float]:
        """Planned starts of waiting jobs by id, in seconds (infinity: nodes are missing)."""
        return {job.id: slot.time for job, slot in self.table}

    def copy(self, view: Cluster) -> ReservationPlan:
        """Return an independent copy, for a copy of the cluster."""
        twin = copy.copy(self)
        twin.table, twin._early, twin.starting = self.table.copy(), list(self._early), set()
        if self._cluster is not None:
            twin._cluster, twin.profile = view, self.profile.copy(view)
            view.watchers.append(twin)
        return twin

    # Notifications of the cluster.

    def booked(self, booking: Booking) -> None:
        """React to a start. A job that is not of this plan makes it void, unless it starts on nodes that the plan has
        left to the job's advance reservation."""
        if booking.job.id in self.starting:
            return
        if self._calendar.covers(booking.placement.node_set, booking.start, booking.gives):
            self.profile.hold(booking.job, Slot(booking.start, booking.placement))
        elif self._calendar:
            self.renew()
        else:
            self.void = True

    def released(self, booking: Booking) -> None:
        """React to the end of a job."""
        self._early.append(booking)

    def revised(self, booking: Booking, before: float) -> None:
        """React to a changed expected end: the plan becomes void."""
        self.void = True

    def nodes_changed(self) -> None:
        """React to nodes that came up or went down: the plan becomes void."""
        self.void = True

    # Scheduling steps.

    def update(self, now: float, waiting: QueueView, cluster: Cluster, policy: CountingPolicy) -> None:
        """Bring the plan up to date at `now`: ended jobs, new jobs, and everything that makes it void."""
        table, fresh, self.starting = self.table, waiting.fresh, set()
        self.void = self.void or self._cluster is not cluster
        if cluster.calendar is not self._calendar:
            self._other_calendar(now, waiting, cluster, policy)
        if waiting.prioritised and not self._prioritised:
            self._prioritised = True
            table.rekey(waiting.key)
        overdue = bool(cluster.ends) and cluster.ends[0][0] <= now
        late = any(booking.gives < now for booking in self._early)
        self._check_countable(fresh, cluster, policy)
        if self.kept and not (self.void or overdue or late):
            self.profile.advance(now)
            self._release_gone(waiting)
            if not self.complete or len(table) + len(fresh) == len(waiting):
                self._move_earlier(now, waiting)
                if self.complete:
                    self.reserve(fresh, waiting)
                return
        self._plan_again(now, waiting, cluster, policy)
        # A plan made while jobs are overdue is invalid a moment later.
        self.void = overdue

    def reserve(self, jobs: Iterable[Job], waiting: QueueView) -> None:
        """Give each of the jobs its earliest hole."""
        profile = self.profile
        for job in jobs:
            slot = profile.earliest(job)
            profile.hold(job, slot)
            self.table.add(job, slot, profile.policy.size(job), waiting.key(job))

    def start(self, job: Job, cluster: Cluster) -> Placement | None:
        """Return where a job starts whose reservation has begun; None if the machine is not as planned, which makes
        the plan void."""
        placement = self.profile.start(job, self.table.slot(job), cluster)
        if placement is None:
            self.void = True
        else:
            self.table.remove(job)
            self.starting.add(job.id)
        return placement

    def _plan_again(self, now: float, waiting: QueueView, cluster: Cluster, policy: CountingPolicy) -> None:
        """Make the plan from scratch: in the order of the promised starts, otherwise in that of the queue."""
        self.profile = (CountProfile if self._counting else PoolProfile)(now, cluster, policy)
        if self._cluster is not cluster:
            if self._cluster is not None:
                self._cluster.watchers.remove(self)
            cluster.watchers.append(self)
            self._cluster = cluster
        promised, self._promised = self._promised, {}
        jobs = list(waiting) if self.complete else [
            job for job in waiting if job.id in (promised or self.table)] if self.kept else []
        jobs.sort(key=lambda job: promised.get(job.id, math.inf))
        self.table.clear()
        self._freed = -math.inf
        self._early.clear()
        self.capacity_freed = False
        self.reserve(jobs, waiting)

    def _move_earlier(self, now: float, waiting: QueueView) -> None:
        """Move every reservation to its earliest hole, if jobs have ended early or other capacity was freed."""
        early = [booking for booking in self._early if booking.gives > now]
        self._early.clear()
        for booking in early:
            self.profile.give_booking(booking, now)
            self._freed = max(self._freed, booking.gives)
        if not len(self.table):
            self._freed = -math.inf
        elif early or self.capacity_freed:
            self._freed = move_earlier(self.table, self.profile, self._freed, None if waiting.static else waiting.key)
        self.capacity_freed = False

    def _release_gone(self, waiting: QueueView) -> None:
        """Release the reservations of jobs that have left the queue, or returned to it changed."""
        table, fresh = self.table, waiting.fresh
        if self.complete and len(table) + len(fresh) == len(waiting):
            return
        again = {job.id for job in fresh}
        for job, slot in list(table):
            if job.id in again or not waiting.holds(job):
                self.profile.give(job, slot)
                table.remove(job)
                self._freed = max(self._freed, slot.time + job.expected)
                self.capacity_freed = True

    def _other_calendar(self, now: float, waiting: QueueView, cluster: Cluster, policy: CountingPolicy) -> None:
        """React to advance reservations that were added or are over. After an addition, the plan is made again in the
        order of its starts; otherwise every job keeps its start, or gets an earlier one."""
        known = {span.reservation.id for span in self._calendar.spans}
        self._calendar = cluster.calendar
        if any(span.reservation.id not in known for span in cluster.calendar.spans):
            self._counting = False
            self.renew()
        elif not cluster.calendar and all(policy.exact(job) for job in waiting) and countable(cluster, policy):
            self._counting = True
            self.profile = CountProfile(now, cluster, policy)
            slots = [(job, Slot(slot.time)) for job, slot in self.table if waiting.holds(job)]
            self.table.clear()
            for job, slot in slots:
                self.profile.hold(job, slot)
                self.table.add(job, slot, policy.size(job), waiting.key(job))
            self._early.clear()
            self._freed = math.inf
        elif not self.void:
            self.profile.policy = policy
        self.capacity_freed = True

    def _check_countable(self, fresh: Sequence[Job], cluster: Cluster, policy: CountingPolicy) -> None:
        if self._counting and not (all(policy.exact(job) for job in fresh)
                                   and (not self.void or countable(cluster, policy))):
            self._counting, self.void = False, True
