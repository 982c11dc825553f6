"""Node orders: which of its eligible nodes a job takes first.

| order | first come |
|---|---|
| `first-fit` | the lowest numbers |
| `number` | nodes without a job, then shared ones; the lowest numbers of each |
| `heatmap` | nodes without a job, then those whose job is the better partner |

Orders that depend on what is left on nodes are in `vrm.ext.planning.node_orders`. A parameter follows the name:
`weighted window=50`.
"""

from __future__ import annotations

from typing import Any
from collections.abc import Iterator, Sequence

from vrm.model.cluster import Cluster, Pool
from vrm.model.measured.heatmap import Heatmap
from vrm.model.job import Job
from vrm.model.node import Node
from vrm.model.policies import PolicyObserver, Rooms
from vrm.scheduling.registry import Registry

NODE_ORDERS = Registry("node order", "vrm.node_orders")

AUTO = "auto"
"""Selects the default node order of the placement policy."""


class Order:
    """Decides which nodes are taken first: the second of the three parts of a placement policy. Subclasses override
    `groups`. `follower` is the order itself, if it depends on waiting or earlier jobs; otherwise None."""

    follower: PolicyObserver | None = None

    def bind(self, nodes: Sequence[Node]) -> None:
        """Receive the nodes of the machine, before the first call of `groups`. Raises PolicyError if a parameter names
        something that they do not have."""

    def groups(self, job: Job, view: Pool, eligible: int, rooms: Rooms) -> Iterator[int]:
        """Yield the eligible nodes as disjoint sets, best set first; within a set, the lowest numbers come first.
        Nodes without capacity for the job may be left out."""
        raise NotImplementedError

    def copy(self) -> Order:
        """Return an independent copy; the order itself if it keeps nothing between steps."""
        return self


@NODE_ORDERS.register("number")
class ByNumber(Order):
    """Lowest number first, empty nodes before shared ones."""

    def __init__(self, heatmap: Heatmap | None = None) -> None:
        pass

    def groups(self, job: Job, view: Pool, eligible: int, rooms: Rooms) -> Iterator[int]:
        """Yield the empty nodes, then the others."""
        empty = view.empty
        yield eligible & empty
        yield eligible & ~empty


@NODE_ORDERS.register("first-fit")
class FirstFit(Order):
    """Lowest number first."""

    def __init__(self, heatmap: Heatmap | None = None) -> None:
        pass

    def groups(self, job: Job, view: Pool, eligible: int, rooms: Rooms) -> Iterator[int]:
        """Yield all eligible nodes as one set."""
        yield eligible


@NODE_ORDERS.register("heatmap")
class ByPartner(Order):
    """Empty nodes first, then by the heatmap's rank of the job on the node."""

    def __init__(self, heatmap: Heatmap | None = None) -> None:
        self._heatmap = heatmap
        self._known: tuple[Cluster | None, int, dict[str, int]] = (None, -1, {})

    def _by_app(self, view: Pool) -> dict[str, int]:
        """Return the nodes on which each application runs; cached until the cluster changes."""
        if isinstance(view, Cluster) and self._known[:2] == (view, view.generation):
            return self._known[2]
        found: dict[str, int] = {}
        for (app, _), (lane0, lane1) in view.tenants.items():
            found[app] = found.get(app, 0) | lane0 | lane1
        if isinstance(view, Cluster):
            self._known = view, view.generation, found
        return found

    def groups(self, job: Job, view: Pool, eligible: int, rooms: Rooms) -> Iterator[int]:
        """Yield the empty nodes, then those of each rank, then those where no job runs now (in a view of the future,
        with a free lane)."""
        empty = eligible & view.empty
        yield empty  # the generator continues only if these are not enough
        shared = eligible & ~empty
        if not shared or self._heatmap is None:
            yield shared
            return
        by_rank: dict[float, int] = {}
        kind, known = job.kind, 0
        for app, nodes in self._by_app(view).items():
            beside = nodes & shared
            if beside:
                rank = self._heatmap.rank(kind, app)
                by_rank[rank] = by_rank.get(rank, 0) | beside
                known |= beside
        for rank in sorted(by_rank):
            yield by_rank[rank]
        yield shared & ~known


FIXED = (ByNumber, FirstFit, ByPartner)
"""Orders with two properties: of two jobs that differ only in size, the larger takes all nodes that the smaller takes;
and empty nodes are taken by number."""


def make_node_order(text: str, heatmap: Heatmap | None = None) -> Any:
    """Return the node order with this name and parameters, such as `weighted window=50`, not yet bound to nodes.
    Raises PolicyError."""
    return NODE_ORDERS.make(text, heatmap)
