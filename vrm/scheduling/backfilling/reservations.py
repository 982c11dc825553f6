"""Backfilling with several reservations: depth n, and conservative, where every job has one.

Conservative backfilling (Feitelson and Weil, 1998; Mu'alem and Feitelson, 2001): a job gets a reservation in the
earliest hole of the plan when it is submitted, so no job is delayed by a later one. Depth n (LoadLeveler's top dogs,
Moab's reservation depth) gives reservations to the first n jobs that cannot start.
`vrm.scheduling.backfilling.reservation_plan` keeps the plan.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping

from vrm.model.cluster import Cluster
from vrm.model.job import Job
from vrm.model.policies import CountingPolicy
from vrm.scheduling.backfilling.dispatcher import Dispatcher, Starts
from vrm.scheduling.backfilling.profile import Slot
from vrm.scheduling.orderings.queue import QueueView
from vrm.scheduling.backfilling.reservation_plan import ReservationPlan


class Reserving(Dispatcher):
    """Backfilling with at most `depth` reservations (None: for every job; with `per_queue`, for the jobs of each
    queue), kept or recomputed.

    A head that would fit has to wait if it would take reserved capacity.
    """

    heads_first = False

    def __init__(self, depth: int | None, kept: bool, per_queue: bool = False) -> None:
        super().__init__()
        self.depth = depth
        self.kept = kept
        self.per_queue = per_queue
        self.name = ("conservative" if depth is None else
                     f"depth {depth}" + " per queue" * per_queue)
        self.plan = ReservationPlan(kept, depth is None)

    def restore(self, promises: Mapping[int, float]) -> None:
        """Make the first plan in the order of these starts."""
        self.plan.restore(promises)

    def copy(self, view: Cluster) -> Reserving:
        """Return an independent copy, with the promises and their plan."""
        twin = super().copy(view)
        assert isinstance(twin, Reserving)
        twin.plan = self.plan.copy(view)
        return twin

    def reservations(self, now: float, waiting: QueueView, view: Cluster,
                     policy: CountingPolicy) -> dict[int, float]:
        """Return the planned starts of waiting jobs by id, in seconds (infinity: nodes are missing)."""
        return self.plan.starts

    def wake(self, now: float) -> float:
        """Return when the next reservation begins; infinity if none does."""
        return self.plan.table.first_after(math.nextafter(now, math.inf))

    def decide(self, now: float, waiting: QueueView, view: Cluster, policy: CountingPolicy,
               heads: int) -> Starts:
        """Yield the jobs whose reservation begins now, and those that fit without delaying any reservation."""
        plan = self.plan
        plan.update(now, waiting, view, policy)
        for job in sorted(plan.table.due(now), key=waiting.key):
            placement = plan.start(job, view)
            if placement is not None:
                yield job, placement
        if self.depth is not None:
            yield from self._walk(now, waiting, view, policy, self.depth)

    def _walk(self, now: float, waiting: QueueView, view: Cluster, policy: CountingPolicy, depth: int) -> Starts:
        """Start the jobs that fit without delaying reservations, and give further reservations while some are left."""
        plan = self.plan
        has = Counter(job.queue if self.per_queue else "" for job, _ in plan.table)
        for job in self._tried(waiting, view, policy, depth):
            if job.id in plan.starting or job.id in plan.table:
                continue
            queue = job.queue if self.per_queue else ""
            if plan.profile.fits_now(job):
                placement = plan.profile.place(job, view)
                if placement is not None:
                    plan.profile.hold(job, Slot(now, placement))
                    plan.starting.add(job.id)
                    yield job, placement
            elif has[queue] < depth:
                has[queue] += 1
                plan.reserve([job], waiting)

    def _tried(self, waiting: QueueView, view: Cluster, policy: CountingPolicy, depth: int) -> Iterable[Job]:
        """Yield the waiting jobs; once no more reservations can be given, only those that may start now."""
        for at, job in enumerate(waiting):
            yield job
            if not self.per_queue and len(self.plan.table) >= depth:
                room = policy.room(view)
                yield from waiting[at + 1:] if room is None else waiting.fitting(at + 1, room)
                return
