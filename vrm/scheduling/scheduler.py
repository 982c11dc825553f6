"""The scheduler: one step decides everything that starts now, and where.

With an interval it decides only at ticks, like managers that work and then sleep.
"""

from __future__ import annotations

import copy
import math
from typing import NamedTuple

from vrm.model.cluster import Booking, Cluster
from vrm.model.job import Infeasible, Job
from vrm.model.policies import CountingPolicy
from vrm.model.queues import NO_QUEUES, Queues
from vrm.scheduling.placement.advance_reservations import OutsideReservations, start_bound
from vrm.scheduling.backfilling.dispatcher import Dispatcher
from vrm.scheduling.orderings.queue_limits import in_queues
from vrm.scheduling.orderings.ordering import Ordering
from vrm.scheduling.orderings.queue import JobQueue, QueueView
from vrm.scheduling.registry import PolicyError

# The constructor of a named tuple calls this; calling it directly takes a third of the time.
_new = tuple.__new__

# Tolerance (seconds) for being at a tick: sums of floats since the epoch are not exact.
_EXACT = 1e-6


class Start(NamedTuple):
    """A job that starts now; `backfilled` if it overtook the head of the queue."""

    booking: Booking
    backfilled: bool

    @property
    def job(self) -> Job:
        """The job."""
        return self.booking.job


class Scheduler:
    """Combines the ordering, the dispatcher and the placement policy with the queues of the run.

    `interval`: seconds between the moments at which decisions are made, counted from the first step that finds a
    waiting job; 0: every step decides. `starts`: how many heads may start at such a moment; 0: all that fit.

    An interval of 10 with one start imitates the loop of the thesis that defined this manager (A. Papavasileiou, NTUA,
    2022): free what has ended, read new lines, sort, try only the head, and sleep. If the head starts, the turn is
    over. Only if it does not fit does the loop backfill everything that fits: backfilled jobs do not count. Cores that
    become free between two ticks stay idle until the next tick.

    Raises PolicyError for a limit without an interval (the jobs beyond it would wait for an event that may never
    come), and for a limit with several reservations, where heads do not start first.
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
        self._first: float | None = None  # time of the first tick; below, number of the last one
        self._tick = 0
        self._beside: OutsideReservations | None = None

    def copy(self, cluster: Cluster) -> Scheduler:
        """Return an independent copy for a copy of its cluster."""
        twin = copy.copy(self)
        twin.dispatcher = self.dispatcher.copy(cluster)
        twin.policy = self.policy.copy()
        twin._beside = None
        return twin

    def policy_on(self, cluster: Cluster, now: float) -> CountingPolicy:
        """Return the placement policy at `now`; if there are advance reservations, one that avoids their nodes."""
        calendar = cluster.calendar
        if not calendar:
            return self.policy
        cluster.at = now
        if self._beside is None or self._beside.calendar is not calendar:
            self._beside = OutsideReservations(self.policy, calendar)
        return self._beside

    def new_queue(self) -> JobQueue:
        """Return an empty queue with this scheduler's order."""
        return JobQueue(self.ordering, self.policy.nodes, self.policy.size, self.queues, self.policy.similar)

    def check(self, job: Job) -> None:
        """Raise Infeasible, with the reason, if the job can never run here."""
        self.queues.check(job)
        self.policy.nodes(job)

    def lacks(self, job: Job) -> str:
        """Return why a job can never run here; "" if it can."""
        try:
            self.check(job)
        except Infeasible as never:
            return str(never)
        return ""

    def step(self, now: float, queue: JobQueue, cluster: Cluster) -> list[Start]:
        """Start everything that may start at `now`, in the order of the dispatcher.

        Books the jobs on the cluster and removes them from the queue. With an interval, it does nothing except at the
        moments that `wake` returns.
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
        """Return the time (seconds) when the next step is due even if nothing happens before: a reservation begins,
        or, with an interval, the next tick, at which a step must have exactly this time.

        Infinity if steps are only useful after submissions and ends.
        """
        if self.interval:
            if self._first is None:
                return math.inf
            passed = math.floor((now - self._first) / self.interval)
            return self._first + (max(passed, self._tick) + 1) * self.interval
        return self.dispatcher.wake(now)

    def boundary(self, now: float, cluster: Cluster) -> float:
        """Return when the next advance reservation begins or ends, or a constraint changes; infinity with an interval,
        because the next tick handles it."""
        return math.inf if self.interval else min(cluster.boundaries(now), default=math.inf)

    def ticked(self, at: float) -> None:
        """Continue the ticks of an earlier run, one of which was at `at` (seconds)."""
        self._first, self._tick = at, 0

    def _is_tick(self, now: float) -> bool:
        """Return whether `now` is a tick that has not been used."""
        if self._first is None:
            self._first = now
            return True
        tick = round((now - self._first) / self.interval)
        if tick <= self._tick or abs(self._first + tick * self.interval - now) > _EXACT:
            return False
        self._tick = tick
        return True

    def promises(self, now: float, queue: JobQueue, cluster: Cluster) -> dict[int, float]:
        """Return the promises of the dispatcher: latest starts of waiting jobs by id, in seconds."""
        if not queue.competing:
            return {}
        return self.dispatcher.promises(now, queue.in_order(now), cluster, self.policy_on(cluster, now))

    def reservations(self, now: float, queue: JobQueue, cluster: Cluster) -> dict[int, float]:
        """Return the latest starts (seconds) of the waiting jobs that have reservations, by id."""
        if not queue.competing:
            return {}
        return self.dispatcher.reservations(now, queue.in_order(now), cluster,
                                            self.policy_on(cluster, now))


def _starts(bookings: list[Booking], waiting: QueueView) -> list[Start]:
    """Return the starts of a step. Jobs that overtook one which stays in the queue are marked as backfilled."""
    for place, booking in enumerate(bookings):
        if waiting[place] is not booking[0]:
            break
    else:
        return [_new(Start, (booking, False)) for booking in bookings]
    started = {booking.job.id for booking in bookings}
    first: set[int] = set()
    at, number = 0, len(waiting)
    while at < number and waiting[at].id in started:  # by index, because the rest may not be sorted yet
        first.add(waiting[at].id)
        at += 1
    return [Start(booking, booking.job.id not in first) for booking in bookings]
