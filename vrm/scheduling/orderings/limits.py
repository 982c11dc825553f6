"""What queues mean for decisions: who of them competes, and on which nodes.

A job of a queue with limits competes as soon as it is within them, together with the jobs of the
queue that run and those that compete already; it keeps competing until it starts or is taken away.
Of those that are over a limit whoever comes first in the order is asked first. Dispatchers do not
see the others: for them it is as if these did not wait, so they block nobody, and a reservation
that a job has got can never be broken by a limit.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from vrm.model.cluster import Pool
from vrm.model.job import Infeasible, Insufficient, Job, Request
from vrm.model.placement import Placement
from vrm.model.policies import CountingPolicy
from vrm.model.queues import Queue, Queues
from vrm.scheduling.placement.wrapping import Wrapped

Limit = tuple[str, str, int, int]
"""Queue, user ("": all of them), the most running jobs and cores (0: any number)."""


def limits_of(queue: Queue, job: Job) -> list[Limit]:
    """The limits under which a job of the queue falls."""
    found = []
    if queue.max_running or queue.max_cores:
        found.append((queue.name, "", queue.max_running, queue.max_cores))
    if queue.max_running_per_user or queue.max_cores_per_user:
        found.append((queue.name, job.user or " ", queue.max_running_per_user,
                      queue.max_cores_per_user))
    return found


class QueueUsage:
    """Jobs and cores that count against the limits of queues."""

    def __init__(self, queues: Queues, jobs: Iterable[Job]) -> None:
        self._queues = queues
        self._taken: dict[tuple[str, str], tuple[int, int]] = {}
        for job in jobs:
            self.add(job)

    def _limits(self, job: Job) -> list[Limit]:
        try:
            return limits_of(self._queues.queue(job), job)
        except Infeasible:  # a job of an earlier configuration, which had its queue
            return []

    def add(self, job: Job) -> None:
        """A job that runs or competes."""
        for queue, user, _, _ in self._limits(job):
            jobs, cores = self._taken.get((queue, user), (0, 0))
            self._taken[queue, user] = jobs + 1, cores + job.request.cores

    def over(self, job: Job) -> str:
        """The limit that stands against a job, in a few words; "" where it is within all."""
        for queue, user, most_jobs, most_cores in self._limits(job):
            jobs, cores = self._taken.get((queue, user), (0, 0))
            whose = f" of {user.strip() or 'its user'}" if user else ""
            if most_jobs and jobs >= most_jobs:
                return f"queue {queue}: {jobs} of {most_jobs} jobs{whose} run or are next"
            if most_cores and cores + job.request.cores > most_cores:
                return (f"queue {queue}: {cores} of {most_cores} cores{whose} are taken or spoken "
                        "for")
        return ""


def in_queues(policy: CountingPolicy, queues: Queues) -> CountingPolicy:
    """The policy for jobs of these queues; itself where no queue says where its jobs run."""
    return QueuedPlacement(policy, queues) if queues.placed else policy


class QueuedPlacement(Wrapped):
    """A placement policy for jobs of queues that have nodes or a number of cores per node.

    The nodes have their queues as features (`Queues.marked`); what a queue demands is added to what
    its jobs ask for.
    """

    def __init__(self, policy: CountingPolicy, queues: Queues) -> None:
        super().__init__(policy)
        self._queues = queues
        self._requests: dict[tuple[str, Request], Request] = {}

    def asks(self, job: Job) -> Job:
        """The job with what its queue demands; Infeasible where that cannot be."""
        key = job.queue, job.request
        request = self._requests.get(key)
        if request is None:
            request = self._requests[key] = self._queues.queue(job).request(job.request)
        return job if request is job.request else job.but(request=request)

    def nodes(self, job: Job) -> int:
        """As the policy says; Infeasible names the queue where that is the reason."""
        asking = self.asks(job)
        try:
            return self.inner.nodes(asking)
        except Infeasible as never:
            queue = self._queues.queue(job)
            if not queue.placed:
                raise
            here = f" on {len(queue.nodes)} node(s)" if queue.nodes else ""
            cores = f" with {queue.cores_per_node} cores of each" if queue.cores_per_node else ""
            raise Infeasible(f"{never} (queue {queue.name} runs{here}{cores})") from None

    def similar(self, job: Job) -> tuple[Hashable, int] | None:
        """As the policy says, for jobs of one queue."""
        found = super().similar(job)
        return found and ((job.queue, found[0]), found[1])

    def place(self, job: Job, view: Pool) -> Placement | Insufficient:
        """As the policy says; where it does not fit the queue is named."""
        found, queue = super().place(job, view), self._queues.queue(job)
        return found if found or not queue.placed else Insufficient(lambda: f"{found} (queue {queue.name})")
