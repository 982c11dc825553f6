"""EASY by counts on nodes that are not open to all jobs, as those of partitions that share nodes: what is free is
counted for each class of nodes."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence

from vrm.ext.counting.waiting import CountedJob, Start, WithEasy

Counts = tuple[int, ...]
"""Numbers of units, one for each class of nodes."""


class EasyOnClasses(WithEasy):
    """EASY where a job may have nodes of some classes: `classes` has their indices, in the order in which they are
    taken, by the `kind` of the job. `free` are the free units of each class; `running` are the running jobs (expected
    end, id, units of each class)."""

    def __init__(self, free: Sequence[int], classes: Mapping[int, Counts],
                 running: Iterable[tuple[float, int, Counts]] = ()) -> None:
        held = list(running)
        super().__init__((end, job_id, sum(units)) for end, job_id, units in held)
        self._free, self._classes = list(free), classes
        self._taken = {job_id: units for _, job_id, units in held}
        self._head: Counts = ()  # the classes of the head that has a reservation

    def copy(self) -> EasyOnClasses:
        """Return an independent copy."""
        twin = super().copy()
        twin._free, twin._taken = self._free[:], self._taken.copy()
        return twin

    def release(self, limit: float, job_id: int) -> None:
        """Remove a running job that was expected to run until `limit`."""
        super().release(limit, job_id)
        for at, units in enumerate(self._taken.pop(job_id)):
            self._free[at] += units

    def _alike(self, job: CountedJob) -> tuple[int, int]:
        return job.kind, job.size

    def decide(self, now: float, free: int, start: Start) -> None:
        """Start heads while they fit; then backfill behind the head that does not fit."""
        queue, filled = self.queue, list[CountedJob]()
        if queue[self.first] is self.reserved and not (self.expected and self.expected[0][0] <= now):
            filled = [job for job in sorted(self._fresh) if self._admits(job, now)]
        else:
            head = self.first
            while head < len(queue) and self._room(queue[head]) >= queue[head].size:
                self._take(queue[head])
                head += 1
            for job in queue[self.first:head]:
                self._forget(job)
            self._cut(now, head, start)
            self.reserved = None
            if self.first + 1 < len(queue):
                filled = self._fill(now, free)
        if filled:
            for job in filled:
                self._remove(job)
            start(now, filled, True)
            self.reserved = None  # other nodes would be taken now: jobs that would have delayed the head may not
        self._fresh.clear()

    def _room(self, job: CountedJob) -> int:
        return sum(self._free[at] for at in self._classes[job.kind])

    def _take(self, job: CountedJob) -> None:
        """Take the units of a job that fits: the first ones that it may have."""
        free, taken, left = self._free, [0] * len(self._free), job.size
        for at in self._classes[job.kind]:
            taken[at] = min(left, free[at])
            free[at] -= taken[at]
            left -= taken[at]
        self._taken[job.id] = tuple(taken)

    def _admits(self, job: CountedJob, now: float) -> bool:
        """Start a job if it fits now and does not delay the head; return whether it does."""
        if self._room(job) < job.size:
            return False
        self._take(job)
        if now + job.expected > self._shadow:
            held = self._of_head(self._taken[job.id])
            if held > self._spare:
                for at, units in enumerate(self._taken.pop(job.id)):
                    self._free[at] += units
                return False
            self._spare -= held
        return True

    def _of_head(self, units: Sequence[int]) -> int:
        """Return how many of these units are of the classes of the head."""
        return sum(units[at] for at in self._head)

    def _fill(self, now: float, free: int) -> list[CountedJob]:
        """Make the reservation of the head; return the jobs that may start behind it, in queue order."""
        head = self.queue[self.first]
        self._reserve(head, now, free)
        filled: list[CountedJob] = []
        firsts = [(jobs[0], 0, jobs) for jobs in self._sized.values() if jobs[0] is not head or len(jobs) > 1]
        heapq.heapify(firsts)
        while firsts:
            job, place, jobs = firsts[0]
            if self._room(job) < job.size:
                heapq.heappop(firsts)  # nor does any other job of its size
                continue
            if job is not head and self._admits(job, now):
                filled.append(job)
            place = self._next(jobs, place + 1, now)
            if place < len(jobs):
                heapq.heapreplace(firsts, (jobs[place], place, jobs))
            else:
                heapq.heappop(firsts)
        return filled

    def _next(self, jobs: list[CountedJob], place: int, now: float) -> int:
        """See `WithEasy._next`. All jobs have the same size and classes; units outside the head's classes are spare."""
        number, shadow = len(jobs), self._shadow
        outside = sum(self._free[at] for at in self._classes[jobs[0].kind] if at not in self._head)
        if jobs[0].size - outside > self._spare:  # and later in this step, less of the other classes is free
            while place < number and now + jobs[place].expected > shadow:
                place += 1
        return place

    def _reserve(self, head: CountedJob, now: float, free: int) -> None:
        """Compute the shadow time of the head, and how many units it leaves over then in its classes."""
        self._head, shadow = self._classes[head.kind], math.inf
        free = self._of_head(self._free)
        for end, job_id, _ in self.expected:
            if end > shadow:
                break
            free += self._of_head(self._taken[job_id])
            if free >= head.size and shadow == math.inf:
                shadow = end if end > now else now
        self.reserved, self._shadow, self._spare = head, shadow, free - head.size
