"""Placement policies that put a condition on another one: what they have in common."""

from __future__ import annotations

import copy
from collections.abc import Hashable

from vrm.model.cluster import Pool
from vrm.model.measured.heatmap import Heatmap
from vrm.model.job import Insufficient, Job
from vrm.model.placement import Placement
from vrm.model.policies import Follower, CountingPolicy
from vrm.scheduling.placement.by_core import CorePolicy
from vrm.scheduling.backfilling.node_times import Wants


def passes(policy: CountingPolicy, job: Job, view: Pool) -> bool:
    """Whether a job could run at the moment of which this is a view, whatever is before and after it: where
    it could not, it cannot start at any time from which it would still run then. Asked of the pools of a
    plan themselves, which know most of the answer, before what they have in common is looked for."""
    return policy.passes(job, view) if isinstance(policy, Wrapped) else policy.fits(job, view)


def by_node(policy: CountingPolicy) -> bool:
    """Whether `wants` says something of any job under the policy."""
    while isinstance(policy, Wrapped):
        policy = policy.inner
    return isinstance(policy, CorePolicy) and policy.by_node


def wants(policy: CountingPolicy, job: Job) -> Wants | None:
    """What a job must find on nodes all the time that it runs; None where that cannot be said."""
    return policy.wants(job) if isinstance(policy, (Wrapped, CorePolicy)) else None


class Wrapped:
    """Says what `inner` says of the job that `asks` gives. Subclasses override what their condition changes; where that
    is not of the nodes and the cluster alone, `similar` and `exact`, too."""

    def __init__(self, inner: CountingPolicy) -> None:
        self.inner = inner
        self.name: str = inner.name
        self.heatmap: Heatmap | None = inner.heatmap

    @property
    def follower(self) -> Follower | None:
        """That of the policy."""
        return self.inner.follower

    def copy(self) -> CountingPolicy:
        """An independent copy; itself where nothing is kept from step to step."""
        inner = self.inner.copy()
        if inner is self.inner:
            return self
        twin = copy.copy(self)
        twin.inner = inner
        return twin

    def asks(self, job: Job) -> Job:
        """The job as the inner policy sees it."""
        return job

    def nodes(self, job: Job) -> int:
        """As the policy says."""
        return self.inner.nodes(self.asks(job))

    def fits(self, job: Job, view: Pool) -> bool:
        """As the policy says."""
        return self.inner.fits(self.asks(job), view)

    def passes(self, job: Job, view: Pool) -> bool:
        """See above. Subclasses whose condition is of more than a moment leave it out here."""
        return passes(self.inner, self.asks(job), view)

    def wants(self, job: Job) -> Wants | None:
        """As the policy says."""
        return wants(self.inner, self.asks(job))

    def place(self, job: Job, view: Pool) -> Placement | Insufficient:
        """As the policy says."""
        return self.inner.place(self.asks(job), view)

    def similar(self, job: Job) -> tuple[Hashable, int] | None:
        """As the policy says."""
        return self.inner.similar(self.asks(job))

    def exact(self, job: Job) -> bool:
        """As the policy says."""
        return self.inner.exact(self.asks(job))

    def size(self, job: Job) -> int:
        """As the policy says."""
        return self.inner.size(self.asks(job))

    def room(self, view: Pool) -> int | None:
        """As the policy says."""
        return self.inner.room(view)
