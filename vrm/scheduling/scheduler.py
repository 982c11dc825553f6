"""The scheduler: one step decides everything that starts now, and where.

With an interval it decides only at ticks of it, like managers that work and then sleep.
"""

from __future__ import annotations

import math
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from vrm.model.cluster import Booking, Cluster
from vrm.model.job import Job
from vrm.scheduling.ordering import Ordering
from vrm.scheduling.queue import JobQueue, Waiting
from vrm.scheduling.registry import PolicyError

# What a named tuple's own constructor calls; without that detour, a third of the time.
_new = tuple.__new__

# Seconds by which a moment may miss a tick and be it: sums of floats since the epoch are not exact.
_EXACT = 1e-6


class Start(NamedTuple):
    """A job that starts now; `backfilled` when it overtook the head of the queue."""

    booking: Booking
    backfilled: bool

    @property
    def job(self) -> Job:
        """The job."""
        return self.booking.job


class Scheduler:
    """Ordering, backfilling and placement policy, put together.

    `interval`: seconds between the moments at which anything is decided, counted from the first
    step that finds a job waiting; 0: every step decides. `starts`: how many heads may start at
    such a moment; 0: all that fit.

    An interval of 10 and one start imitate the loop of the thesis that defined this manager
    (A. Papavasileiou, NTUA, 2022): free what has ended, read new lines, sort, try the head alone,
    and sleep. A head that starts ends the turn. Only when the head does not fit does its loop
    backfill, and then whatever fits: backfilled jobs do not count. Cores that become free between
    two ticks stay idle until the next.

    Raises PolicyError for a limit without an interval (the jobs beyond it would wait for an event
    that may never come), and for one beside several reservations, where heads do not start first.
    """

    def __init__(self, ordering: Ordering, backfilling: Any, policy: Any, interval: float = 0.0,
                 starts: int = 0) -> None:
        if starts and not interval:
            raise PolicyError("a limit of starts per interval wants an interval (seconds)")
        if starts and hasattr(backfilling, "plan"):
            raise PolicyError("a limit of starts per interval works with the backfillings none, "
                              "easy and list")
        self.ordering = ordering
        self.backfilling = backfilling
        self.policy = policy
        self.interval = interval
        self.starts = starts
        self._first: Optional[float] = None  # the first tick's time, and the number of the last
        self._tick = 0
        self._place = policy.place
        # The head that did not fit when the last step left the cluster; no need to ask again.
        self._blocked: Optional[Tuple[int, Job, Cluster]] = None
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

        Books the jobs on the cluster and takes them out of the queue. With an interval it does
        nothing but at the moments that `wake` tells.
        """
        number = len(queue.jobs)
        if not number or (self.interval and not self._is_tick(now)):
            return []
        waiting = queue.in_order(now)
        if self._plan is not None:
            starts = self._follow_plan(now, waiting, cluster)
        else:
            starts = self._follow_order(now, waiting, cluster, min(number, self.starts or number))
        if starts:
            queue.remove_started([start.booking.job for start in starts])
        queue.fresh.clear()
        return starts

    def wake(self, now: float) -> float:
        """When the next step is due although nothing may happen by then: a reservation begins, or
        with an interval the next tick comes, at which a step must have exactly this time.

        Infinity when only submissions and ends make steps worth while.
        """
        if self.interval:
            if self._first is None:
                return math.inf
            passed = math.floor((now - self._first) / self.interval)
            return self._first + (max(passed, self._tick) + 1) * self.interval
        wake = getattr(self.backfilling, "wake", None)
        return math.inf if wake is None else wake(now)

    def _is_tick(self, now: float) -> bool:
        """Whether it is the moment of a tick that has not been used."""
        if self._first is None:
            self._first = now
            return True
        tick = round((now - self._first) / self.interval)
        if tick <= self._tick or abs(self._first + tick * self.interval - now) > _EXACT:
            return False
        self._tick = tick
        return True

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

    def _follow_order(self, now: float, waiting: Waiting, cluster: Cluster,
                      most: int) -> List[Start]:
        """Start up to so many heads while they fit, then backfill behind the one that does not."""
        starts = []
        for place in range(most):
            if self._room is not None and self._room(cluster) == 0:
                break
            head = waiting[place]
            state = cluster.generation, head, cluster
            placement = None if state == self._blocked else self._place(head, cluster)
            if placement is None:
                if place + 1 < len(waiting):
                    for job, placement in self._fill(now, waiting, place, cluster, self.policy):
                        starts.append(_new(Start, (cluster.book(job, placement, now), True)))
                self._blocked = cluster.generation, head, cluster
                break
            starts.append(_new(Start, (cluster.book(head, placement, now), False)))
        return starts

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
