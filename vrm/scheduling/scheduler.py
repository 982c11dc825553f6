"""The scheduler: one step decides everything that starts now, and where."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Tuple

from vrm.model.cluster import Booking, Cluster
from vrm.model.job import Job
from vrm.scheduling.ordering import Ordering
from vrm.scheduling.queue import JobQueue, Waiting


@dataclass(frozen=True)
class Start:
    """A job that starts now; `backfilled` when it overtook the head of the queue."""

    booking: Booking
    backfilled: bool

    @property
    def job(self) -> Job:
        """The job."""
        return self.booking.job


class Scheduler:
    """Ordering, backfilling and placement policy, put together."""

    def __init__(self, ordering: Ordering, backfilling: Any, policy: Any) -> None:
        self.ordering = ordering
        self.backfilling = backfilling
        self.policy = policy
        self._place = policy.place
        # The head that did not fit when the last step left the cluster; no need to ask again.
        self._blocked: Optional[Tuple[Job, Cluster, int]] = None
        self._room = getattr(policy, "room", None)  # 0 of it: nothing can start, whoever is first
        self._plan = getattr(backfilling, "plan", None)
        self._fill = getattr(backfilling, "fill", None)

    def new_queue(self) -> JobQueue:
        """An empty queue in this scheduler's order."""
        return JobQueue(self.ordering, self.policy.nodes, getattr(self.policy, "size", None))

    def check(self, job: Job) -> None:
        """Raise Infeasible, with the reason, when the job can never run here."""
        self.policy.nodes(job)

    def step(self, now: float, queue: JobQueue, cluster: Cluster) -> List[Start]:
        """Start everything that may start at `now`: heads while they fit, then backfilling.

        Books the jobs on the cluster and takes them out of the queue.
        """
        number = len(queue)
        if not number:
            return []
        waiting = queue.in_order(now)
        if self._plan is not None:
            starts = self._follow_plan(now, waiting, cluster)
        else:
            starts = []
            head = 0
            while self._room is None or self._room(cluster) != 0:
                if head == number:
                    break
                job = waiting[head]
                blocked = self._blocked
                placement = None
                if (blocked is None or blocked[0] is not job or blocked[1] is not cluster
                        or blocked[2] != cluster.generation):
                    placement = self._place(job, cluster)
                if placement is None:
                    if head + 1 < number:
                        for job, placement in self._fill(now, waiting, head, cluster, self.policy):
                            starts.append(Start(cluster.book(job, placement, now), True))
                    self._blocked = waiting[head], cluster, cluster.generation
                    break
                starts.append(Start(cluster.book(job, placement, now), False))
                head += 1
        if starts:
            queue.remove_started([start.booking.job for start in starts])
        queue.fresh.clear()
        return starts

    def wake(self, now: float) -> float:
        """When the next step is due although nothing may happen by then: a reservation begins.

        Infinity when only submissions and ends make steps worth while.
        """
        wake = getattr(self.backfilling, "wake", None)
        return math.inf if wake is None else wake(now)

    def reservations(self, now: float, queue: JobQueue, cluster: Cluster) -> Dict[int, float]:
        """When waiting jobs can start at the latest, by id, as far as they have reservations."""
        if not len(queue):
            return {}
        if hasattr(self.backfilling, "reservations"):
            return self.backfilling.reservations()
        if hasattr(self.backfilling, "reserve"):
            head = queue.in_order(now)[0]
            time = self.backfilling.reserve(head, now, cluster, self.policy).time
            return {head.id: time} if time < math.inf else {}
        return {}

    def _follow_plan(self, now: float, waiting: Waiting, cluster: Cluster) -> List[Start]:
        """Start what the plan of reservations lets start; heads may have to wait, too."""
        bookings = []
        for job, placement in self._plan(now, waiting, cluster, self.policy):
            bookings.append(cluster.book(job, placement, now))
        if not bookings:
            return []
        started = {booking.job.id for booking in bookings}
        first = 0  # of those that stay
        while first < len(waiting) and waiting[first].id in started:
            first += 1
        if first == len(waiting):
            return [Start(booking, False) for booking in bookings]
        ahead = {job.id for job in waiting[:first]}
        return [Start(booking, booking.job.id not in ahead) for booking in bookings]
