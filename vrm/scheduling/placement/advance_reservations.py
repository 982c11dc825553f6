"""How advance reservations affect scheduling: which jobs may start around them, and which start in them.

Dispatchers see the jobs that are bound to no reservation, with a placement policy that gives such a job no node of a
reservation into which its walltime reaches, for the time of whatever view they use. So the same code serves a start
now, a shadow time and a plan. Dispatchers do not see bound jobs. Once their reservation has begun, these start on its
nodes, in the order of the queue, if they fit and end by its end.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable, Iterator, Sequence

from vrm.model.cluster import Booking, Cluster, Pool
from vrm.model.job import Insufficient, Job
from vrm.model.placement import Placement
from vrm.model.policies import CountingPolicy
from vrm.model.reservation import Calendar
from vrm.scheduling.orderings.queue import JobQueue
from vrm.scheduling.placement.wrapper import PlacementWrapper


class OutsideReservations(PlacementWrapper):
    """A placement policy for jobs that are bound to no reservation of `calendar`.

    Counting is never exact for a job while there is a reservation: which nodes are closed to it depends on its start
    and its walltime.
    """

    def __init__(self, policy: CountingPolicy, calendar: Calendar) -> None:
        super().__init__(policy)
        self.calendar = calendar
        self._views: dict[int, Pool] = {}  # views of the current cluster, by the closed nodes
        self._of: tuple[Pool | None, int] = (None, -1)

    def copy(self) -> CountingPolicy:
        """Return an independent copy."""
        twin = copy.copy(self)
        twin.inner = self.inner.copy()
        twin._views, twin._of = {}, (None, -1)
        return twin

    def open(self, job: Job, view: Pool) -> Pool:
        """Return the view without the nodes that are closed to a job that starts at the time of the view."""
        closed = self.calendar.closed(view.at, view.at + job.walltime) & view.up
        if not closed:
            return view
        if not isinstance(view, Cluster):
            found = view.what_if()
            found.close(closed)
            return found
        if self._of[0] is not view or self._of[1] != view.generation:
            self._of = view, view.generation
            self._views.clear()
        if closed not in self._views:
            self._views[closed] = view.what_if()
            self._views[closed].close(closed)
        return self._views[closed]

    def fits(self, job: Job, view: Pool) -> bool:
        """Return whether the job could start on the view, at its time."""
        return self.inner.fits(job, self.open(job, view))

    def place(self, job: Job, view: Pool) -> Placement | Insufficient:
        """Return where the job would start on the view, at its time."""
        return self.inner.place(job, self.open(job, view)) or Insufficient(self._lacks, job, view)

    def similar(self, job: Job) -> tuple[Hashable, int] | None:
        """Return the class of the inner policy, separately for each walltime."""
        found = self.inner.similar(job)
        return found and ((job.walltime, found[0]), found[1])

    def exact(self, job: Job) -> bool:
        """Return False: see the class."""
        return False

    def _lacks(self, job: Job, view: Pool) -> str:
        """Return the reason of the inner policy, or which reservation is in the way."""
        placement = self.inner.place(job, view)
        if not placement:
            return str(placement)
        closed = self.calendar.closed(view.at, view.at + job.walltime)
        found = self.calendar.blocking_reservation(closed, view.at, view.at + job.walltime)
        return (f"its walltime reaches into reservation {found.name} on "
                f"{len(found.nodes)} node{'s' * (len(found.nodes) > 1)}" if found else "")


def start_bound(now: float, queue: JobQueue, cluster: Cluster, policy: CountingPolicy
                ) -> list[Booking]:
    """Start the jobs of reservations that have begun: in the order of the queue, those that fit on the nodes of their
    reservation and end by its end. They are booked and removed from the queue."""
    bookings: list[Booking] = []
    for reservation, nodes in cluster.calendar.open(now):
        jobs = [job for job_id, job in queue.outside.items()
                if queue.bound.get(job_id) == reservation.id
                and now + job.walltime <= reservation.limit]
        for job in sorted(jobs, key=lambda job: queue.key(job, now)):
            view = cluster.what_if()
            view.close(view.up & ~nodes)
            placement = policy.place(job, view)
            if placement:
                bookings.append(cluster.book(job, placement, now))
                queue.remove(job.id)
    return bookings


def changes(ends: Sequence[tuple[float, int]], boundaries: Sequence[float]) -> Iterator[tuple[float, int | None]]:
    """Yield, in order, when more may be free than before: the ends of running jobs (time, id), and the boundaries of
    reservations and of constraints (time, None)."""
    at = 0
    for end, job_id in ends:
        while at < len(boundaries) and boundaries[at] < end:
            yield boundaries[at], None
            at += 1
        yield end, job_id
    for time in boundaries[at:]:
        yield time, None
