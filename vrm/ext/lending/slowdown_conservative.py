"""SD-policy in which no reservation begins later because of a lend: conservative backfilling in which a job with a
reservation may start earlier on cores that running jobs lend (see `vrm.ext.lending.slowdown`).

The *static start* of a job is its reservation. A lend is made only if all other reservations can stay where they are
while the mates run longer. When a loan or its lender ends, the plan is rebuilt in the order of the planned starts.
No more is in use than was expected, so no start moves to a later time."""

from __future__ import annotations

import math
from collections.abc import Sequence

from vrm.model.cluster import Booking, Cluster
from vrm.model.job import Job
from vrm.model.placement import Placement
from vrm.model.policies import CountingPolicy
from vrm.scheduling.backfilling.dispatcher import Starts
from vrm.ext.lending.lenders import PossibleLender, Lenders, LendingTerms
from vrm.scheduling.backfilling.profile import CountProfile
from vrm.scheduling.orderings.queue import QueueView
from vrm.scheduling.backfilling.reservation_plan import ReservationPlan
from vrm.scheduling.backfilling.reservations import Reserving


class LendingPlan(ReservationPlan):
    """A plan that is kept while a lend is made (`lending`)."""

    lending = False

    def revised(self, booking: Booking, before: float) -> None:
        """The expected end of a job has changed, because it now lends or no longer lends."""
        if self.lending and isinstance(self.profile, CountProfile):
            assert self._cluster is not None
            self.profile.change(before, booking.gives, -self._cluster.returns(booking.placement))
        else:
            self.renew()


class SlowdownAll(Reserving):
    """The policy. It lends only if counts alone decide what fits; otherwise it is conservative backfilling."""

    lends = True

    plan: LendingPlan

    def __init__(self, terms: LendingTerms) -> None:
        super().__init__(None, kept=True)
        self.name = "sd reservations=all"
        self.plan = LendingPlan(True, True)
        self.terms = terms

    def copy(self, view: Cluster) -> SlowdownAll:
        """Return an independent copy."""
        twin = super().copy(view)
        assert isinstance(twin, SlowdownAll)
        twin.terms = self.terms.copy()
        return twin

    def decide(self, now: float, waiting: QueueView, view: Cluster, policy: CountingPolicy,
               heads: int) -> Starts:
        """Yield the jobs that start at `now`: those whose reservation begins, then those that borrow."""
        yield from super().decide(now, waiting, view, policy, heads)
        self.terms.watch(view)
        plan = self.plan
        while isinstance(plan.profile, CountProfile) and not plan.void:
            found = self._next_borrower(now, waiting, view, policy, plan.profile)
            if found is None:
                return
            plan.starting.add(found[0].id)
            plan.lending = True
            try:
                yield found
            finally:
                plan.lending = False
            plan.capacity_freed = True  # its former reservation

    def _next_borrower(self, now: float, waiting: QueueView, view: Cluster, policy: CountingPolicy,
                       profile: CountProfile) -> tuple[Job, Placement] | None:
        """Return the first job that can start on cores of others, with its placement; its reservation is removed
        from the plan."""
        jobs, table = _PlanLenders(self.terms, now, view, policy, profile), self.plan.table
        reach = jobs.reach
        for job in waiting:
            if not job.malleable or job.id not in table or job.expected > reach.of(policy.nodes(job)):
                continue
            begin, size = table.slot(job).time, policy.size(job)
            if begin < math.inf:
                profile.change(begin, begin + job.expected, size)
            placement = jobs.place_on_mates(job, begin)
            if placement is not None:
                table.remove(job)
                return job, placement
            if begin < math.inf:
                profile.change(begin, begin + job.expected, -size)
        return None


class _PlanLenders(Lenders):
    """The possible lenders, with a plan that has all reservations except that of the borrower."""

    def __init__(self, terms: LendingTerms, now: float, view: Cluster, policy: CountingPolicy,
                 profile: CountProfile) -> None:
        super().__init__(terms, now, view, policy)
        self._profile = profile

    def needed(self, job: Job, mate: PossibleLender, seconds: float) -> bool:
        """Return whether a reservation counts on a mate's nodes."""
        return self.delays(job, [mate], seconds)

    def delays(self, job: Job, mates: Sequence[PossibleLender], seconds: float) -> bool:
        """Return whether a reservation counts on nodes of these mates."""
        longer: list[tuple[float, float, int]] = [
            (mate.booking.gives, mate.end(seconds), self.view.returns(mate.booking.placement)) for mate in mates]
        for begin, end, size in longer:
            self._profile.change(begin, end, -size)
        late = any(self._profile.least(begin, end) < 0 for begin, end, _ in longer)
        for begin, end, size in longer:
            self._profile.change(begin, end, size)
        return late
