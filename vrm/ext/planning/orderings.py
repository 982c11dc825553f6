"""The ordering PRB, for machines whose nodes differ.

PRB (A. Netti, "Development of data-driven dispatching heuristics for heterogeneous HPC systems",
University of Bologna, 2017) takes queues into account: first comes the job that has waited longest in proportion to
the expected wait of its queue, and among equal ones the smallest. It is meant for the backfilling `list`, which tries
every job.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from collections.abc import Mapping

from vrm.model.amounts import people
from vrm.model.job import Job
from vrm.model.queues import EXPECTED_WAIT, Queues
from vrm.scheduling.orderings.ordering import Ordering


@dataclass(frozen=True)
class Prb(Ordering):
    """Orders jobs by their wait in proportion to the `expected_waits` of their queue (seconds, by name; an hour for
    other queues), then by the smaller product of expected run time and all that they request."""

    expected_waits: Mapping[str, float] = field(default_factory=dict)
    default: float = EXPECTED_WAIT

    def of_queues(self, queues: Queues) -> Ordering:
        """Return the ordering with the expected waits of these queues."""
        if not queues:
            return self
        waits = {queue.name: queue.expected_wait for queue in queues.all}
        return Prb(self.name, self.utility, False, expected_waits=waits,
                   default=queues.queue(Job(0, "", 1, 1.0)).expected_wait)

    def key(self, job: Job, now: float, nodes: int) -> tuple[float, ...]:
        """Return the sort key, smallest first: the negated rank, and the volume."""
        return (self.rank(job, now), volume(job), job.submit, job.id)

    def rank(self, job: Job, now: float) -> float:
        """Return minus the job's wait, scaled to the longest of the expected waits; smallest first."""
        longest = max([self.default, *self.expected_waits.values()])
        return -longest * (now - job.submit) / self.expected_waits.get(job.queue, self.default)


def volume(job: Job) -> float:
    """Return expected run time (seconds) times all that a job requests: cores, GiB of memory and pieces of
    all other resources, added up."""
    request = job.request
    each = request.cores_per_task + sum(people(name, amount) for name, amount in request.per_task)
    once = sum(people(name, amount) for name, amount in request.per_node)
    return job.expected * (request.tasks * each + request.least_nodes * once)


def _waited(job: Job, now: float, nodes: int) -> float:
    return now - job.submit


def prb() -> Ordering:
    """Return the ordering, for jobs without queues."""
    return Prb("PRB", _waited, static=False)
