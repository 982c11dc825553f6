"""The scheduler: one step decides everything that starts now, and where."""

from __future__ import annotations

from dataclasses import dataclass
from typing import List

from vrm.model.cluster import Booking, Cluster
from vrm.model.job import Job
from vrm.scheduling.backfilling import Easy, NoBackfilling
from vrm.scheduling.ordering import Ordering
from vrm.scheduling.placement import LanePolicy
from vrm.scheduling.queue import JobQueue


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

    def __init__(self, ordering: Ordering, backfilling: "NoBackfilling | Easy",
                 policy: LanePolicy) -> None:
        self.ordering = ordering
        self.backfilling = backfilling
        self.policy = policy

    def new_queue(self) -> JobQueue:
        """An empty queue in this scheduler's order."""
        return JobQueue(self.ordering, self.policy.nodes)

    def check(self, job: Job) -> None:
        """Raise Infeasible, with the reason, when the job can never run here."""
        self.policy.nodes(job)

    def step(self, now: float, queue: JobQueue, cluster: Cluster) -> List[Start]:
        """Start everything that may start at `now`: heads while they fit, then backfilling.

        Books the jobs on the cluster and takes them out of the queue.
        """
        waiting = queue.in_order(now)
        starts: List[Start] = []
        head = 0
        while head < len(waiting):
            placement = self.policy.place(waiting[head], cluster)
            if placement is None:
                break
            starts.append(Start(cluster.book(waiting[head], placement, now), False))
            head += 1
        if head + 1 < len(waiting):
            for job, placement in self.backfilling.fill(now, waiting, head, cluster, self.policy):
                starts.append(Start(cluster.book(job, placement, now), True))
        if starts:
            queue.remove_started(head, [start.job for start in starts[head:]])
        return starts
