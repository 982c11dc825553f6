"""The scheduler: one step decides everything that starts now, and where.

With an interval it decides only at ticks of it, like managers that work and then sleep.
"""

from __future__ import annotations

import copy
import math
from typing import NamedTuple

from vrm.model.cluster import Booking, Cluster
from vrm.model.job import Infeasible, Job
from vrm.model.policies import CountingPolicy
from vrm.model.queues import NO_QUEUES, Queues
from vrm.scheduling.placement.advance import BesideReservations, start_bound
from vrm.scheduling.backfilling.dispatcher import Dispatcher
from vrm.scheduling.orderings.limits import in_queues
from vrm.scheduling.orderings.ordering import Ordering
from vrm.scheduling.orderings.queue import JobQueue, Waiting
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
    """Ordering, dispatcher and placement policy, put together, with the queues of the run.

    `interval`: seconds between the moments at which anything is decided, counted from the first
    step that finds a job waiting; 0: every step decides. `starts`: how many heads may start at
    such a moment; 0: all that fit.

    An interval of 10 and one start imitate the loop of the thesis that defined this manager
    (A. Papavasileiou, NTUA, 2022): free what has ended, read new lines, sort, try the head alone,
    and sleep. A head that starts ends the turn. Only when the head does not fit does its loop
    backfill, and then whatever fits: backfilled jobs do not count. Cores that become free between
    two ticks stay idle until the next.

    Raises PolicyError for a limit without an interval (the jobs beyond it would wait for an event
    that may never come), and for one with several reservations, where heads do not start first.
    """

    def __init__(self, ordering: Ordering, dispatcher: Dispatcher, policy: CountingPolicy,
                 interval: float = 0.0, starts: int = 0, queues: Queues = NO_QUEUES) -> None:
        if starts and not interval:
            raise PolicyError("a limit of starts per interval wants an interval (seconds)")
        if starts and not dispatcher.heads_first:
            raise PolicyError("a limit of starts per interval works with the backfillings none, "
                              "easy and list")
        self.ordering = ordering.of_queues(queues)
        self.dispatcher = dispatcher
        self.policy = in_queues(policy, queues)
        self.queues = queues
        self.interval = interval
        self.starts = starts
        self._first: float | None = None  # the first tick's time, and the number of the last
        self._tick = 0
        self._beside: BesideReservations | None = None

    def copy(self, cluster: Cluster) -> Scheduler:
        """An independent copy for a copy of the cluster that it decided about."""
        twin = copy.copy(self)
        twin.dispatcher = self.dispatcher.copy(cluster)
        twin.policy = self.policy.copy()
        twin._beside = None
        return twin

    def policy_on(self, cluster: Cluster, now: float) -> CountingPolicy:
        """The placement policy at `now`: with advance reservations one that keeps clear of them."""
        calendar = cluster.calendar
        if not calendar:
            return self.policy
        cluster.at = now
        if self._beside is None or self._beside.calendar is not calendar:
            self._beside = BesideReservations(self.policy, calendar)
        return self._beside

    def new_queue(self) -> JobQueue:
        """An empty queue in this scheduler's order."""
        return JobQueue(self.ordering, self.policy.nodes, self.policy.size, self.queues, self.policy.similar)

    def check(self, job: Job) -> None:
        """Raise Infeasible, with the reason, when the job can never run here."""
        self.queues.check(job)
        self.policy.nodes(job)

    def lacks(self, job: Job) -> str:
        """Why a job can never run here, "" when it can."""
        try:
            self.check(job)
        except Infeasible as never:
            return str(never)
        return ""

    def step(self, now: float, queue: JobQueue, cluster: Cluster) -> list[Start]:
        """Start everything that may start at `now`, in the order in which the dispatcher says it.

        Books the jobs on the cluster and takes them out of the queue. With an interval it does
        nothing but at the moments that `wake` gives.
        """
        number = len(queue.jobs)
        if not number or (self.interval and not self._is_tick(now)):
            return []
        starts: list[Start] = []
        policy = self.policy
        if cluster.constraints:
            cluster.pass_time(now)
        if cluster.calendar:
            policy = self.policy_on(cluster, now)
            if queue.bound:
                starts += [Start(booking, False) for booking
                           in start_bound(now, queue, cluster, self.policy)]
        if queue.outside or starts:
            queue.admit(now, cluster)
            number = queue.competing
            if not number:
                return starts
        waiting = queue.in_order(now)
        idle = self.dispatcher.idle(waiting, cluster, policy)
        follower = policy.follower
        if not idle or follower is not None:
            heads = min(number, self.starts or number)
            decided = iter(()) if idle else self.dispatcher.decide(now, waiting, cluster, policy,
                                                                   heads)
            if follower is not None:
                decided = follower.follow(now, waiting, cluster, decided,
                                          self.dispatcher.tries_all)
            bookings = [cluster.book(job, placement, now) for job, placement in decided]
            if bookings:
                starts += _starts(bookings, waiting)
                queue.remove_started([booking[0] for booking in bookings])
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
        return self.dispatcher.wake(now)

    def boundary(self, now: float, cluster: Cluster) -> float:
        """When the next advance reservation begins or ends, or a constraint changes; infinity
        with an interval, whose next tick sees it."""
        return math.inf if self.interval else min(cluster.boundaries(now), default=math.inf)

    def ticked(self, at: float) -> None:
        """Continue with the ticks: one was at this time (seconds)."""
        self._first, self._tick = at, 0

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

    def promises(self, now: float, queue: JobQueue, cluster: Cluster) -> dict[int, float]:
        """What the dispatcher has promised: the latest starts of waiting jobs by id, in seconds."""
        if not queue.competing:
            return {}
        return self.dispatcher.promises(now, queue.in_order(now), cluster, self.policy_on(cluster, now))

    def reservations(self, now: float, queue: JobQueue, cluster: Cluster) -> dict[int, float]:
        """When waiting jobs can start at the latest, by id, as far as they have reservations."""
        if not queue.competing:
            return {}
        return self.dispatcher.reservations(now, queue.in_order(now), cluster,
                                            self.policy_on(cluster, now))


def _starts(bookings: list[Booking], waiting: Waiting) -> list[Start]:
    """The starts of a step: backfilled are jobs that overtook one which stays in the queue."""
    for place, booking in enumerate(bookings):
        if waiting[place] is not booking[0]:
            break
    else:
        return [_new(Start, (booking, False)) for booking in bookings]
    started = {booking.job.id for booking in bookings}
    first: set[int] = set()
    at, number = 0, len(waiting)
    while at < number and waiting[at].id in started:  # by place: the rest need not be in order
        first.add(waiting[at].id)
        at += 1
    return [Start(booking, booking.job.id not in first) for booking in bookings]
