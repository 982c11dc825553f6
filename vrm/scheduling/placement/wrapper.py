"""Placement policies that add a condition to another one: their common base."""

from __future__ import annotations

import copy
from collections.abc import Hashable

from vrm.model.cluster import Pool
from vrm.model.measured.heatmap import Heatmap
from vrm.model.job import Insufficient, Job
from vrm.model.placement import Placement
from vrm.model.policies import PolicyObserver, CountingPolicy
from vrm.scheduling.placement.by_core import CorePolicy
from vrm.scheduling.backfilling.node_profiles import NodeNeeds


def passes(policy: CountingPolicy, job: Job, view: Pool) -> bool:
    """Return whether a job could run at the moment of the view, regardless of earlier and later times. If not, it
    cannot start at any time from which it would still run at that moment. A plan checks its pools with this first,
    because they have most of the answer cached, before it intersects them."""
    return policy.passes(job, view) if isinstance(policy, PlacementWrapper) else policy.fits(job, view)


def by_node(policy: CountingPolicy) -> bool:
    """Return whether `wants` can return something for a job under the policy."""
    while isinstance(policy, PlacementWrapper):
        policy = policy.inner
    return isinstance(policy, CorePolicy) and policy.by_node


def wants(policy: CountingPolicy, job: Job) -> NodeNeeds | None:
    """Return what a job must find on nodes during its whole run; None if that cannot be defined."""
    return policy.wants(job) if isinstance(policy, (PlacementWrapper, CorePolicy)) else None


class PlacementWrapper:
    """Forwards every question to the policy `inner`, with the job that `asks` returns. Subclasses override what their
    condition changes; if it depends on more than the nodes and the cluster, also `similar` and `exact`."""

    def __init__(self, inner: CountingPolicy) -> None:
        self.inner = inner
        self.name: str = inner.name
        self.heatmap: Heatmap | None = inner.heatmap

    @property
    def follower(self) -> PolicyObserver | None:
        """The follower of the inner policy."""
        return self.inner.follower

    def copy(self) -> CountingPolicy:
        """Return an independent copy; the policy itself if it keeps nothing between steps."""
        inner = self.inner.copy()
        if inner is self.inner:
            return self
        twin = copy.copy(self)
        twin.inner = inner
        return twin

    def asks(self, job: Job) -> Job:
        """Return the job as the inner policy sees it."""
        return job

    def nodes(self, job: Job) -> int:
        """Ask the inner policy."""
        return self.inner.nodes(self.asks(job))

    def fits(self, job: Job, view: Pool) -> bool:
        """Ask the inner policy."""
        return self.inner.fits(self.asks(job), view)

    def passes(self, job: Job, view: Pool) -> bool:
        """Return the answer of `passes`. Subclasses whose condition covers more than a moment ignore it here."""
        return passes(self.inner, self.asks(job), view)

    def wants(self, job: Job) -> NodeNeeds | None:
        """Ask the inner policy."""
        return wants(self.inner, self.asks(job))

    def place(self, job: Job, view: Pool) -> Placement | Insufficient:
        """Ask the inner policy."""
        return self.inner.place(self.asks(job), view)

    def similar(self, job: Job) -> tuple[Hashable, int] | None:
        """Ask the inner policy."""
        return self.inner.similar(self.asks(job))

    def exact(self, job: Job) -> bool:
        """Ask the inner policy."""
        return self.inner.exact(self.asks(job))

    def size(self, job: Job) -> int:
        """Ask the inner policy."""
        return self.inner.size(self.asks(job))

    def room(self, view: Pool) -> int | None:
        """Ask the inner policy."""
        return self.inner.room(view)
