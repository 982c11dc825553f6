"""The waiting jobs, kept in the order in which they should start."""

from __future__ import annotations

import bisect
from typing import Callable, Dict, Iterable, Iterator, List, Sequence, Tuple

from vrm.model.job import Job
from vrm.scheduling.ordering import Ordering


class JobQueue:
    """Waiting jobs under an ordering; `nodes_of(job)` tells how many nodes a job needs.

    A static ordering is kept sorted as jobs come and go, others are sorted when asked for.
    """

    def __init__(self, ordering: Ordering, nodes_of: Callable[[Job], int]) -> None:
        self.ordering = ordering
        self._nodes_of = nodes_of
        self._jobs: Dict[int, Job] = {}
        self._keys: List[Tuple[float, float, int]] = []
        self._sorted: List[Job] = []

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[Job]:
        return iter(self._jobs.values())

    def __contains__(self, job_id: object) -> bool:
        return job_id in self._jobs

    def get(self, job_id: int) -> Job:
        """The waiting job of that id; KeyError when there is none."""
        return self._jobs[job_id]

    def add(self, job: Job) -> None:
        """Enter a job; ValueError when its id waits already."""
        if job.id in self._jobs:
            raise ValueError(f"job {job.id} waits already")
        self._jobs[job.id] = job
        if self.ordering.static:
            key = self._key(job, 0.0)
            at = bisect.bisect(self._keys, key)
            self._keys.insert(at, key)
            self._sorted.insert(at, job)

    def remove(self, job_id: int) -> Job:
        """Take a job out; KeyError when it does not wait."""
        job = self._jobs.pop(job_id)
        if self.ordering.static:
            at = bisect.bisect_left(self._keys, self._key(job, 0.0))
            del self._keys[at], self._sorted[at]
        return job

    def remove_started(self, head: int, others: Iterable[Job]) -> None:
        """Take out the first `head` jobs of the last order given, and `others`."""
        if self.ordering.static:
            for job in self._sorted[:head]:
                del self._jobs[job.id]
            del self._keys[:head], self._sorted[:head]
            for job in others:
                self.remove(job.id)
        else:
            for job in [*self._sorted[:head], *others]:
                del self._jobs[job.id]

    def in_order(self, now: float) -> Sequence[Job]:
        """The waiting jobs, first to start first. Valid until the next change."""
        if not self.ordering.static:
            keyed = [(*self._key(job, now), job) for job in self._jobs.values()]
            keyed.sort()  # ids differ, so two jobs are never compared
            self._sorted = [entry[3] for entry in keyed]
        return self._sorted

    def _key(self, job: Job, now: float) -> Tuple[float, float, int]:
        return self.ordering.key(job, now, self._nodes_of(job))
