"""EASY with a guard against starvation, which bounds how long a job can wait when what is expected
of jobs is too short, or when shorter jobs are always backfilled first.

The rules, beside those of EASY:

1. A job *starves* when it has waited longer than `factor` times the mean wait of the jobs that have
   started so far. Starving jobs come before all others of their priority, by submission: as heads,
   and among those that are backfilled.
2. While the head starves, the walltimes count instead of what is expected: its reservation is made
   from them, and who is backfilled must end by it, or leave the head what it needs, by its walltime.
3. Any other head has a second reservation, which it keeps: SLIP times as far in the future as the
   walltimes say at the moment at which it has become head. What is backfilled respects both, the
   second one by the walltimes; so a head that others were put before, since too little was expected
   of them, is put off at most that far.
"""

from __future__ import annotations

import copy
import math
from typing import Dict, Iterable, List, Mapping, Optional, Set, Tuple

from vrm.model.cluster import AnyPlacement, Cluster, Pool
from vrm.model.job import Job
from vrm.model.policies import PlacementPolicy
from vrm.scheduling.advance import changes
from vrm.scheduling.backfilling import fitting, ordered, reservation
from vrm.scheduling.dispatcher import Dispatcher, Starts
from vrm.scheduling.ordering import Ordering
from vrm.scheduling.queue import Waiting

SLIP = 3.0
"""How many times as long as the walltimes say a head may wait for its start (rule 3)."""

Ends = List[Tuple[float, int]]


class GuardedEasy(Dispatcher):
    """EASY with the guard. `order`: that in which later jobs are backfilled; None: the queue's."""

    name = "easy"
    promising = True

    def __init__(self, factor: float, order: Optional[Ordering] = None) -> None:
        super().__init__()
        self.factor = factor
        self.order = order
        self._started = 0       # jobs, and the sum of their waits in seconds
        self._waited = 0.0
        self._promise: Tuple[int, float] = (-1, math.inf)  # the head, and its second reservation

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

    def promises(self, now: float, waiting: Waiting, view: Cluster,
                 policy: PlacementPolicy) -> Dict[int, float]:
        """The second reservation of the head."""
        head, time = self._promise
        return {head: time} if waiting.has(head) else {}

    def restore(self, promises: Mapping[int, float]) -> None:
        """The second reservation of the head is the one that was made last."""
        for self._promise in promises.items():
            pass

    def decide(self, now: float, waiting: Waiting, view: Cluster, policy: PlacementPolicy,
               heads: int) -> Starts:
        """The heads that fit, and what may start beside the first that does not."""
        patience = self.patience
        jobs, starving = in_turn(waiting, now, patience)
        started: Set[int] = set()
        for job in jobs:
            if len(started) == heads:
                return
            placement = policy.place(job, view)
            if placement is None:
                if len(started) + 1 < len(waiting):
                    yield from self._fill(now, job, waiting, view, policy, starving, started)
                return
            started.add(job.id)
            self._start(job, now)
            yield job, placement

    def _start(self, job: Job, now: float) -> None:
        self._started += 1
        self._waited += now - job.submit

    def _fill(self, now: float, head: Job, waiting: Waiting, view: Cluster,
              policy: PlacementPolicy, starving: Dict[int, Job], started: Set[int]) -> Starts:
        """The later jobs that start now."""
        reservations = [_Reservation(head, now, view, policy, view.limits, True)]
        if head.id not in starving:
            prospect = reservations[0].time
            if self._promise[0] != head.id or self._promise[1] == math.inf:
                self._promise = head.id, now + SLIP * (prospect - now)
            reservations[0].put_off(max(prospect, self._promise[1]), now, view)
            reservations.append(_Reservation(head, now, view, policy, view.ends, False))
        skipped = started | {head.id}
        later = [job for job in fitting(waiting, 0, view, policy) if job.id not in skipped]
        first = [job for job in starving.values() if job.id not in skipped]
        rest = [job for job in later if job.id not in starving]
        for job in (*first, *ordered(rest, self.order, now, policy)):
            if not policy.fits(job, view):
                continue
            placement = policy.place(job, view)
            if placement is None or not all(each.allows(job, placement) for each in reservations):
                continue
            for each in reservations:
                each.take(job, placement)
            self._start(job, now)
            yield job, placement
            if policy.room(view) == 0:
                return

    def reservations(self, now: float, waiting: Waiting, view: Cluster,
                     policy: PlacementPolicy) -> Dict[int, float]:
        """That of the head, by what is expected."""
        head = next(iter(in_turn(waiting, now, self.patience)[0]))
        time = reservation(head, now, view, policy).time
        return {head.id: time} if time < math.inf else {}

    def copy(self, view: Cluster) -> GuardedEasy:
        """An independent copy."""
        return copy.copy(self)


def in_turn(waiting: Waiting, now: float, patience: float) -> Tuple[Iterable[Job], Dict[int, Job]]:
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


class _Reservation:
    """A reservation of the head: its `time`, and what the head leaves over then. `limits`: the ends
    of jobs are those of their walltimes, else what is expected."""

    def __init__(self, head: Job, now: float, view: Cluster, policy: PlacementPolicy, ends: Ends,
                 limits: bool) -> None:
        self._head, self._policy, self._ends, self._limits = head, policy, ends, limits
        self._now = now
        self._exact = policy.exact(head)
        self.time = math.inf
        if self._exact:
            wanted, room = policy.size(head), policy.room(view)
            assert room is not None
            for end, job_id in ends:
                if end > self.time:
                    break
                room += view.returns(view.bookings[job_id].placement)
                if room >= wanted and self.time == math.inf:
                    self.time = max(end, now)
            self._spare = room - wanted if self.time < math.inf else room
        else:
            self._pool: Pool = view.what_if()
            for end, ending in changes(ends, view.boundaries(now)):
                if end > self.time:
                    break
                self._pool.at = max(end, now)
                if ending is not None:
                    booking = view.bookings[ending]
                    self._pool.give(booking.job, booking.placement)
                if self.time == math.inf and policy.fits(head, self._pool):
                    self.time = max(end, now)
            self._pool.at = self.time

    def put_off(self, time: float, now: float, view: Cluster) -> None:
        """Have it at a later time."""
        before, self.time = self.time, time
        for end, job_id in self._ends:
            if end > time:
                break
            if max(end, now) > before:
                booking = view.bookings[job_id]
                if self._exact:
                    self._spare += view.returns(booking.placement)
                else:
                    self._pool.give(booking.job, booking.placement)
        if not self._exact:
            self._pool.at = time

    def _ends_by(self, job: Job) -> bool:
        """Whether a job that starts now ends by the time."""
        return self._now + (job.walltime if self._limits else job.expected) <= self.time

    def allows(self, job: Job, placement: AnyPlacement) -> bool:
        """Whether a job may start now: it ends by the time, or leaves the head what it needs."""
        if self._ends_by(job) or self.time == math.inf:
            return True
        if self._exact:
            return placement.size <= self._spare
        self._pool.take(job, placement, self._now)
        fits = self._policy.fits(self._head, self._pool)
        self._pool.give(job, placement)
        return fits

    def take(self, job: Job, placement: AnyPlacement) -> None:
        """A job starts."""
        if not self._ends_by(job):
            if self._exact:
                self._spare -= placement.size
            else:
                self._pool.take(job, placement, self._now)
