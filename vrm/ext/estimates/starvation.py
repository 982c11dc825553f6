"""EASY with a guard against starvation, which bounds how long a job can wait when what is expected
of jobs is too short, or when shorter jobs are always backfilled first.

The rules, beside those of EASY:

1. A job *starves* when it has waited longer than `factor` times the mean wait of the jobs that have
   started so far. Starving jobs come before all others of their priority, by submission: as heads,
   and among those that are backfilled.
2. While the head starves, what counts is how long jobs take at the most, as far as is known
   (`vrm.scheduling.estimators.Longest`; the walltimes, where nothing is): its reservation is made from that, and
   who is backfilled must end by it by that, or leave the head what it needs. A job that has outlived it is taken to
   need twice as long, then four times, and so on, up to its walltime.
3. Any other head has a second reservation, which it keeps: SLIP times as far in the future as the
   walltimes say at the moment at which it has become head. What is backfilled respects both, the
   second one by the walltimes; so a head that others were put before, since too little was expected
   of them, is put off at most that far.
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
from vrm.scheduling.orderings.queue import Waiting
from vrm.scheduling.backfilling.shadow import WALLTIME, Ends, Lasts, Shadow

SLIP = 3.0
"""How many times as long as the walltimes say a head may wait for its start (rule 3)."""


class GuardedEasy(Easy):
    """EASY with the guard. `order`: that in which later jobs are backfilled; None: the queue's."""

    promising = True

    def __init__(self, factor: float, order: Ordering | None = None) -> None:
        super().__init__(order)
        self.factor = factor
        self._started = 0       # jobs, and the sum of their waits in seconds
        self._waited = 0.0
        self._promise: tuple[int, float] = (-1, math.inf)  # the head, and its second reservation
        self._longest: Lasts = WALLTIME
        self._turn: Sequence[Job] = ()  # the waiting jobs of this step, and those that starve
        self._starving: dict[int, Job] = {}

    @property
    def patience(self) -> float:
        """Seconds of waiting beyond which a job starves."""
        return self.factor * self._waited / self._started if self._started else math.inf

    def recall(self, waits: Iterable[float]) -> None:
        """The waits of the jobs that an earlier manager of the run has started, in seconds."""
        for wait in waits:
            self._started += 1
            self._waited += wait

    def follow(self, before: Dispatcher) -> None:
        """What the other one, if it had a guard, has seen of waits, and its promise."""
        if isinstance(before, GuardedEasy):
            self._started, self._waited = before._started, before._waited
            self._promise = before._promise

    def inform(self, longest: Lasts) -> None:
        """How long jobs take at the most."""
        self._longest = longest

    def promises(self, now: float, waiting: Waiting, view: Cluster,
                 policy: CountingPolicy) -> dict[int, float]:
        """The second reservation of the head."""
        head, time = self._promise
        return {head: time} if waiting.has(head) else {}

    def restore(self, promises: Mapping[int, float]) -> None:
        """The second reservation of the head is the one that was made last."""
        for self._promise in promises.items():
            pass

    def decide(self, now: float, waiting: Waiting, view: Cluster, policy: CountingPolicy,
               heads: int) -> Starts:
        """The heads that fit, and what may start while the first that does not waits."""
        self._turn, self._starving = in_turn(waiting, now, self.patience)
        for job, placement in super().decide(now, waiting, view, policy, heads):
            self._started += 1
            self._waited += now - job.submit
            yield job, placement

    def turn(self, waiting: Waiting) -> Sequence[Job]:
        """The starving jobs first."""
        return self._turn

    def fill(self, now: float, waiting: Waiting, first: int, view: Cluster,
             policy: CountingPolicy) -> Starts:
        """The jobs after the head (at `first` in turn) that may start now, with their places."""
        return self._fill(self._turn[first], now, waiting, 0, view, policy)

    def behind(self, head: Job, jobs: Iterable[Job], now: float, view: Cluster, policy: CountingPolicy
               ) -> Iterable[Job]:
        """The starving jobs, then the others."""
        started, starving = view.bookings, self._starving
        rest = [job for job in jobs if job.id not in started and job.id not in starving and job is not head]
        return (*(job for job in starving.values() if job.id not in started and job is not head),
                *super().behind(head, rest, now, view, policy))

    def reserve(self, head: Job, now: float, view: Cluster, policy: CountingPolicy) -> list[Shadow]:
        """By how long jobs take at the most (rule 2); or the one that it keeps, and that of EASY (rule 3)."""
        if head.id in self._starving:
            return [Shadow(head, now, view, policy, self._latest(now, view), self._longest)]
        if self._promise[0] != head.id or self._promise[1] == math.inf:
            prospect = Shadow(head, now, view, policy, view.limits, WALLTIME).time
            self._promise = head.id, now + SLIP * (prospect - now)
        return [Shadow(head, now, view, policy, view.limits, WALLTIME, self._promise[1]),
                *super().reserve(head, now, view, policy)]

    def _stands(self, head: Job, now: float, view: Cluster, policy: CountingPolicy) -> bool:
        """Whether the reservations of the last step stand: it starves, or does not, as then."""
        return ((head.id in self._starving) is (len(self._reserved) == 1)
                and super()._stands(head, now, view, policy))

    def _latest(self, now: float, view: Cluster) -> Ends:
        """When jobs end at the latest, as far as is known, earliest first."""
        found, longest = [], self._longest
        for job_id, booking in view.bookings.items():
            start, limit, seconds = booking.start, booking.limit, longest(booking.job)
            while start + seconds <= now < limit:
                seconds *= 2
            found.append((max(min(start + seconds, limit), booking.until), job_id))
        found.sort()
        return found

    def reservations(self, now: float, waiting: Waiting, view: Cluster,
                     policy: CountingPolicy) -> dict[int, float]:
        """That of the head, by what is expected."""
        return start_of(in_turn(waiting, now, self.patience)[0][0], now, view, policy)


def in_turn(waiting: Waiting, now: float, patience: float) -> tuple[Sequence[Job], dict[int, Job]]:
    """The waiting jobs with the starving ones first, and these by id, in their order."""
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
