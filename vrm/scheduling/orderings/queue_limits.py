"""How queues affect scheduling: which of their jobs compete, and on which nodes they run.

A job in a queue with limits competes once it is within the limits, counted together with the jobs of the queue that
run or already compete; it then competes until it starts or is removed. Of the jobs over a limit, the first in the
order is checked first. Dispatchers do not see jobs that do not compete, so these block no other job, and a limit can
never break the reservation that a job has got.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from vrm.model.cluster import Pool
from vrm.model.job import Infeasible, Insufficient, Job, Request
from vrm.model.placement import Placement
from vrm.model.policies import CountingPolicy
from vrm.model.queues import Queue, Queues
from vrm.scheduling.placement.wrapper import PlacementWrapper

Limit = tuple[str, str, int, int]
"""Queue, user ("": all users), maximum number of running jobs and of cores (0: no limit)."""


def limits_of(queue: Queue, job: Job) -> list[Limit]:
    """Return the limits that apply to a job of the queue."""
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
        except Infeasible:  # the job is from an earlier configuration that had its queue
            return []

    def add(self, job: Job) -> None:
        """Count a job that runs or competes."""
        for queue, user, _, _ in self._limits(job):
            jobs, cores = self._taken.get((queue, user), (0, 0))
            self._taken[queue, user] = jobs + 1, cores + job.request.cores

    def over(self, job: Job) -> str:
        """Return the limit that a job would exceed, in a few words; "" if it is within all limits."""
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
    """Return the policy for jobs of these queues; the policy itself if no queue restricts where its jobs run."""
    return QueuedPlacement(policy, queues) if queues.placed else policy


class QueuedPlacement(PlacementWrapper):
    """A placement policy for jobs of queues that have their own nodes or a number of cores per node.

    The nodes have features for their queues (`Queues.marked`); the restrictions of a queue are added to the requests
    of its jobs.
    """

    def __init__(self, policy: CountingPolicy, queues: Queues) -> None:
        super().__init__(policy)
        self._queues = queues
        self._requests: dict[tuple[str, Request], Request] = {}

    def asks(self, job: Job) -> Job:
        """Return the job with the restrictions of its queue. Raises Infeasible if they contradict its request."""
        key = job.queue, job.request
        request = self._requests.get(key)
        if request is None:
            request = self._requests[key] = self._queues.queue(job).request(job.request)
        return job if request is job.request else job.but(request=request)

    def nodes(self, job: Job) -> int:
        """Return the nodes that the inner policy needs; if the queue is the reason for Infeasible, the message names
        it."""
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
        """Return the class of the inner policy, separately for each queue."""
        found = super().similar(job)
        return found and ((job.queue, found[0]), found[1])

    def place(self, job: Job, view: Pool) -> Placement | Insufficient:
        """Return the placement of the inner policy; if the job does not fit, the reason names the queue."""
        found, queue = super().place(job, view), self._queues.queue(job)
        return found if found or not queue.placed else Insufficient(lambda: f"{found} (queue {queue.name})")
