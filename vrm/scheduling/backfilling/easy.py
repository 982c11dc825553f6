"""Backfilling: which later jobs may start while the head of the queue waits for nodes.

EASY (Lifka, "The ANL/IBM SP scheduling system", 1995; Mu'alem and Feitelson, 2001) gives the
head a reservation at its *shadow time*, the earliest moment at which it fits if every running
job ends when its estimate says. A later job may start now when it (1) ends by the shadow time,
or (2) leaves the head what it needs at the shadow time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from vrm.model.cluster import Cluster, Pool
from vrm.model.job import Job
from vrm.model.policies import CountingPolicy
from vrm.scheduling.backfilling.dispatcher import Dispatcher, Starts
from vrm.scheduling.orderings.candidates import Candidates
from vrm.scheduling.orderings.ordering import Ordering
from vrm.scheduling.orderings.queue import QueueView
from vrm.scheduling.registry import Registry
from vrm.scheduling.backfilling.shadow import Shadow, admitted

BACKFILLINGS = Registry("backfilling", "vrm.dispatchers")


class NoBackfilling(Dispatcher):
    """Dispatcher without backfilling: no job overtakes the head."""

    tries_all = False

    def idle(self, waiting: QueueView, view: Cluster, policy: CountingPolicy) -> bool:
        """Return whether too little is free for the head."""
        room = policy.room(view)
        return room is not None and (room == 0 or policy.size(waiting[0]) > room)


def ordered(jobs: Iterable[Job], order: Ordering | None, now: float,
            policy: CountingPolicy) -> Iterable[Job]:
    """Return later jobs in the order in which they are backfilled; unchanged if `order` is None."""
    if order is None:
        return jobs
    key, nodes = order.key, policy.nodes
    return sorted(jobs, key=lambda job: key(job, now, nodes(job)))


def fitting(waiting: QueueView, first: int, view: Pool, policy: CountingPolicy,
            window: float = math.inf, extra: int = 0) -> Iterable[Job]:
    """Return the jobs from index `first` on, without those that are too large for the free capacity, and without those
    that take longer than `window` (seconds) and need more than `extra`, as far as counting shows it."""
    room = policy.room(view)
    if room is None:
        return waiting[first:]
    if room <= 0:
        return ()
    return waiting.fitting(first, room, window, extra)


def backfill(jobs: Iterable[Job], now: float, view: Cluster, policy: CountingPolicy,
             reservations: Sequence[Shadow] = ()) -> Starts:
    """Yield those of `jobs`, in order, that fit now and delay none of the reservations."""
    size_of, room, checks = policy.size, policy.room(view), [each.may for each in reservations]
    longest, extra = reservations[-1].window(now) if reservations else (math.inf, 0)
    for each in reservations:
        each.forget()
    for job in jobs:
        size = size_of(job)
        if (room is not None and size > room) or (size > extra and job.expected > longest):
            continue
        for may in checks:
            if not may(job, size, now, policy):
                break
        else:
            placement = policy.place(job, view)
            if placement and admitted(reservations, job, placement, now, policy):
                yield job, placement
                room = policy.room(view)
                if room == 0:
                    return
                for each in reservations:
                    each.forget()
                    longest, extra = each.window(now)
            if placement and isinstance(jobs, Candidates):
                _narrow(jobs, room, longest, extra, now, policy, reservations)


def _narrow(jobs: Candidates, room: int | None, longest: float, extra: int, now: float, policy: CountingPolicy,
            reservations: Sequence[Shadow]) -> None:
    """Remove in advance the candidates that `backfill` would skip."""
    known = jobs.similar == policy.similar
    jobs.narrow(math.inf if room is None else room, longest, extra,
                [each.refusals(now) for each in reservations] if known else ())


class ListScheduling(Dispatcher):
    """List scheduling: everything that fits starts, in the order of the queue (or, after the head, in that of
    `order`), without reservations."""

    name = "list"

    def __init__(self, order: Ordering | None = None) -> None:
        super().__init__()
        self.order = order

    def fill(self, now: float, waiting: QueueView, first: int, view: Cluster,
             policy: CountingPolicy) -> Starts:
        """Yield the jobs after the head (at `first`) that fit, with their placements."""
        jobs = fitting(waiting, first + 1, view, policy)
        return backfill(ordered(jobs, self.order, now, policy), now, view, policy)


class Easy(Dispatcher):
    """EASY backfilling: one reservation, for the head, computed again at each step. Later jobs are backfilled in the
    order of the queue, or by `order` (the shortest first: Tsafrir, Etsion and Feitelson, 2007). Subclasses define
    which reservations the head gets (`reserve`) and which jobs are tried in which order (`behind`)."""

    name = "easy"

    def __init__(self, order: Ordering | None = None) -> None:
        super().__init__()
        self.order = order
        # The reservations of the last step, and the state of the cluster after it. Jobs that did not fit then still do
        # not fit until something changes, so only new jobs are tried.
        self._reserved: list[Shadow] = []
        self._kept: tuple[Cluster | None, int] = (None, -1)

    def fill(self, now: float, waiting: QueueView, first: int, view: Cluster,
             policy: CountingPolicy) -> Starts:
        """Yield the jobs after the head (at `first`) that may start now, with their placements."""
        return self._fill(waiting[first], now, waiting, first + 1, view, policy)

    def reserve(self, head: Job, now: float, view: Cluster, policy: CountingPolicy) -> list[Shadow]:
        """Return the reservations of the head, which all jobs that start now must respect; the last one is the
        soonest."""
        return [Shadow(head, now, view, policy)]

    def behind(self, head: Job, jobs: Iterable[Job], now: float, view: Cluster, policy: CountingPolicy
               ) -> Iterable[Job]:
        """Return the later `jobs` that are tried, in order."""
        return ordered(jobs, self.order, now, policy)

    def _fill(self, head: Job, now: float, waiting: QueueView, first: int, view: Cluster, policy: CountingPolicy
              ) -> Starts:
        """Yield the jobs from index `first` on that start now."""
        if self._still_valid(head, now, view, policy):
            jobs: Iterable[Job] = [job for job in waiting.fresh if job is not head]
        else:
            self._reserved = self.reserve(head, now, view, policy)
            jobs = fitting(waiting, first, view, policy, *self._reserved[-1].window(now))
        before = view.generation
        yield from backfill(self.behind(head, jobs, now, view, policy), now, view, policy, self._reserved)
        # Unless counting is exact, placements depend on neighbours: after a start, the next step tries all jobs again.
        counts = self._reserved[-1].pool is None
        self._kept = (view, view.generation) if counts or view.generation == before else (None, -1)

    def _still_valid(self, head: Job, now: float, view: Cluster, policy: CountingPolicy) -> bool:
        """Return whether the reservations of the last step are still valid: the head is the same, and nothing has
        changed."""
        known = self._reserved
        return (self._kept == (view, view.generation) and known[0].job is head
                and policy.exact(head) is (known[0].pool is None)
                and not (view.ends and view.ends[0][0] <= now) and all(each.holds(now) for each in known))

    def reservations(self, now: float, waiting: QueueView, view: Cluster,
                     policy: CountingPolicy) -> dict[int, float]:
        """Return the latest start of the head, by its id."""
        return start_of(waiting[0], now, view, policy)

    def copy(self, view: Cluster) -> Easy:
        """Return an independent copy, with the reservations."""
        twin = super().copy(view)
        assert isinstance(twin, Easy)
        twin._reserved = [each.copy(view) for each in self._reserved]
        if self._kept[0] is not None:
            twin._kept = view, self._kept[1]
        return twin


def start_of(head: Job, now: float, view: Cluster, policy: CountingPolicy) -> dict[int, float]:
    """Return the latest start of the head by its id (seconds); empty if it is unknown."""
    time = Shadow(head, now, view, policy).time
    return {head.id: time} if time < math.inf else {}


BACKFILLINGS.register("none")(NoBackfilling)
BACKFILLINGS.register("easy")(Easy)
BACKFILLINGS.register("list")(ListScheduling)
