"""EASY with a guard against starvation. It bounds how long a job can wait when the expected run times of jobs are too
short, or when shorter jobs are always backfilled first.

The rules, in addition to those of EASY:

1. A job *starves* when it has waited longer than `factor` times the mean wait of the jobs that have
   started so far. Starving jobs come before all others of their priority, by submission: as heads,
   and among those that are backfilled.
2. While the head starves, run times are replaced by their longest plausible values
   (`vrm.scheduling.estimators.LongestRunTimes`; without data, the walltimes). The head's reservation is computed from
   these, and a backfilled job must end by it according to these, or leave the head what it needs. A running job
   that has exceeded its value is assumed to need twice as long, then four times, and so on, up to its walltime.
3. Any other head has a second reservation, which it keeps: SLIP times as far in the future as its start according
   to the walltimes at the moment when it became head. Backfilled jobs respect both reservations, the second one
   according to their walltimes. So a head that others overtook because their expected run times were too short is
   delayed at most that far.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from vrm.model.cluster import Cluster
from vrm.model.job import Job
from vrm.model.policies import CountingPolicy
from vrm.scheduling.backfilling.easy import Easy, start_of
from vrm.scheduling.backfilling.dispatcher import Dispatcher, Starts
from vrm.scheduling.orderings.ordering import Ordering
from vrm.scheduling.orderings.queue import QueueView
from vrm.scheduling.backfilling.shadow import WALLTIME, Ends, Lasts, Shadow

SLIP = 3.0
"""Factor by which the wait of a head may exceed that computed from the walltimes (rule 3)."""


class GuardedEasy(Easy):
    """EASY with the guard. `order` is the order in which later jobs are backfilled; None: that of the queue."""

    promising = True

    def __init__(self, factor: float, order: Ordering | None = None) -> None:
        super().__init__(order)
        self.factor = factor
        self._started = 0       # number of started jobs; below, sum of their waits in seconds
        self._waited = 0.0
        self._promise: tuple[int, float] = (-1, math.inf)  # the head, and the time of its second reservation
        self._longest: Lasts = WALLTIME
        self._turn: Sequence[Job] = ()  # waiting jobs of this step; below, those that starve
        self._starving: dict[int, Job] = {}

    @property
    def patience(self) -> float:
        """Seconds of waiting after which a job starves; infinity until a job has started."""
        return self.factor * self._waited / self._started if self._started else math.inf

    def recall(self, waits: Iterable[float]) -> None:
        """Add the waiting times (seconds) of the jobs that an earlier manager of the run has started."""
        for wait in waits:
            self._started += 1
            self._waited += wait

    def follow(self, before: Dispatcher) -> None:
        """Take over the observed waits and the promise of the previous dispatcher, if it had a guard."""
        if isinstance(before, GuardedEasy):
            self._started, self._waited = before._started, before._waited
            self._promise = before._promise

    def inform(self, longest: Lasts) -> None:
        """Set the function that returns the longest plausible run time of a job."""
        self._longest = longest

    def promises(self, now: float, waiting: QueueView, view: Cluster,
                 policy: CountingPolicy) -> dict[int, float]:
        """Return the second reservation of the head."""
        head, time = self._promise
        return {head: time} if waiting.has(head) else {}

    def restore(self, promises: Mapping[int, float]) -> None:
        """Take the last promise as the second reservation of the head."""
        for self._promise in promises.items():
            pass

    def decide(self, now: float, waiting: QueueView, view: Cluster, policy: CountingPolicy,
               heads: int) -> Starts:
        """Yield the heads that fit, and the jobs that may start while the first head that does not fit waits."""
        self._turn, self._starving = starving_first(waiting, now, self.patience)
        for job, placement in super().decide(now, waiting, view, policy, heads):
            self._started += 1
            self._waited += now - job.submit
            yield job, placement

    def turn(self, waiting: QueueView) -> Sequence[Job]:
        """Return the waiting jobs, starving ones first."""
        return self._turn

    def fill(self, now: float, waiting: QueueView, first: int, view: Cluster,
             policy: CountingPolicy) -> Starts:
        """Yield the jobs after the head (at `first` in turn) that may start now, with their placements."""
        return self._fill(self._turn[first], now, waiting, 0, view, policy)

    def behind(self, head: Job, jobs: Iterable[Job], now: float, view: Cluster, policy: CountingPolicy
               ) -> Iterable[Job]:
        """Return the starving jobs, then the others."""
        started, starving = view.bookings, self._starving
        rest = [job for job in jobs if job.id not in started and job.id not in starving and job is not head]
        return (*(job for job in starving.values() if job.id not in started and job is not head),
                *super().behind(head, rest, now, view, policy))

    def reserve(self, head: Job, now: float, view: Cluster, policy: CountingPolicy) -> list[Shadow]:
        """Return the reservation by the longest plausible run times (rule 2); or the kept second reservation, and that
        of EASY (rule 3)."""
        if head.id in self._starving:
            return [Shadow(head, now, view, policy, self._latest(now, view), self._longest)]
        if self._promise[0] != head.id or self._promise[1] == math.inf:
            prospect = Shadow(head, now, view, policy, view.limits, WALLTIME).time
            self._promise = head.id, now + SLIP * (prospect - now)
        return [Shadow(head, now, view, policy, view.limits, WALLTIME, self._promise[1]),
                *super().reserve(head, now, view, policy)]

    def _still_valid(self, head: Job, now: float, view: Cluster, policy: CountingPolicy) -> bool:
        """Return whether the reservations of the last step are still valid: whether the head starves has not changed,
        either."""
        return ((head.id in self._starving) is (len(self._reserved) == 1)
                and super()._still_valid(head, now, view, policy))

    def _latest(self, now: float, view: Cluster) -> Ends:
        """Return the latest plausible ends of running jobs, earliest first."""
        found, longest = [], self._longest
        for job_id, booking in view.bookings.items():
            start, limit, seconds = booking.start, booking.limit, longest(booking.job)
            while start + seconds <= now < limit:
                seconds *= 2
            found.append((max(min(start + seconds, limit), booking.until), job_id))
        found.sort()
        return found

    def reservations(self, now: float, waiting: QueueView, view: Cluster,
                     policy: CountingPolicy) -> dict[int, float]:
        """Return the start of the head according to expected run times."""
        return start_of(starving_first(waiting, now, self.patience)[0][0], now, view, policy)


def starving_first(waiting: QueueView, now: float, patience: float) -> tuple[Sequence[Job], dict[int, Job]]:
    """Return the waiting jobs with the starving ones first, and the starving ones by id, in their order."""
    if waiting.by_submission:  # the starving ones are at the front already
        starving = {}
        for job in waiting:
            if now - job.submit <= patience:
                break
            starving[job.id] = job
        return waiting, starving
    old = sorted((job for job in waiting if now - job.submit > patience),
                 key=lambda job: (-job.priority, job.submit, job.id))
    starving = {job.id: job for job in old}
    if not old:
        return waiting, starving
    turn = [*old, *(job for job in waiting if job.id not in starving)]
    turn.sort(key=lambda job: -job.priority)  # stable
    return turn, starving
