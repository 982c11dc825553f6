"""Node orders: which nodes a job takes first, of those on which it may run.

| order | first come |
|---|---|
| `first-fit` | the lowest numbers |
| `number` | nodes without a job, then shared ones; the lowest numbers of each |
| `heatmap` | nodes without a job, then those whose job is the better partner |

Those that go by what is left on nodes are in `vrm.ext.planning.node_orders`. A parameter stands behind the name:
`weighted window=50`.
"""

from __future__ import annotations

from typing import Any
from collections.abc import Iterator, Sequence

from vrm.model.cluster import Cluster, Pool
from vrm.model.measured.heatmap import Heatmap
from vrm.model.job import Job
from vrm.model.node import Node
from vrm.model.policies import Follower, Rooms
from vrm.scheduling.registry import Registry

NODE_ORDERS = Registry("node order", "vrm.node_orders")

AUTO = "auto"
"""The node order that a placement policy has by itself."""


class Order:
    """Which nodes are taken first: the second third of a placement policy. Subclasses say `groups`. `follower` is
    itself, where it goes by what waits or by earlier jobs."""

    follower: Follower | None = None

    def bind(self, nodes: Sequence[Node]) -> None:
        """The nodes of the machine, before the first question. PolicyError where a parameter names
        what they do not have."""

    def groups(self, job: Job, view: Pool, eligible: int, rooms: Rooms) -> Iterator[int]:
        """The eligible nodes as disjoint sets, best set first; within a set, by number. Nodes
        without room for the job may be left out."""
        raise NotImplementedError

    def copy(self) -> Order:
        """An independent copy; itself where nothing is kept from step to step."""
        return self


@NODE_ORDERS.register("number")
class ByNumber(Order):
    """Lowest number first, empty nodes before shared ones."""

    def __init__(self, heatmap: Heatmap | None = None) -> None:
        pass

    def groups(self, job: Job, view: Pool, eligible: int, rooms: Rooms) -> Iterator[int]:
        """The empty nodes, then the others."""
        empty = view.empty
        yield eligible & empty
        yield eligible & ~empty


@NODE_ORDERS.register("first-fit")
class FirstFit(Order):
    """Lowest number first."""

    def __init__(self, heatmap: Heatmap | None = None) -> None:
        pass

    def groups(self, job: Job, view: Pool, eligible: int, rooms: Rooms) -> Iterator[int]:
        """All of them."""
        yield eligible


@NODE_ORDERS.register("heatmap")
class ByPartner(Order):
    """Empty nodes first, then by the rank that the heatmap gives the job that is there."""

    def __init__(self, heatmap: Heatmap | None = None) -> None:
        self._heatmap = heatmap
        self._known: tuple[Cluster | None, int, dict[str, int]] = (None, -1, {})

    def _by_app(self, view: Pool) -> dict[str, int]:
        """The nodes on which each application is, kept until the cluster changes."""
        if isinstance(view, Cluster) and self._known[:2] == (view, view.generation):
            return self._known[2]
        found: dict[str, int] = {}
        for (app, _), (lane0, lane1) in view.tenants.items():
            found[app] = found.get(app, 0) | lane0 | lane1
        if isinstance(view, Cluster):
            self._known = view, view.generation, found
        return found

    def groups(self, job: Job, view: Pool, eligible: int, rooms: Rooms) -> Iterator[int]:
        """The empty nodes, then those of each rank, then those where nobody is now (a lane that is
        free in a view of the future)."""
        empty = eligible & view.empty
        yield empty  # the others are looked at only where these do not suffice
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
"""Orders in which, of two jobs that are alike but for their size, the larger takes all nodes that the
smaller takes, and which on empty nodes go by number."""


def make_node_order(text: str, heatmap: Heatmap | None = None) -> Any:
    """The node order of a name with its parameters, such as `weighted window=50`, not bound to
    nodes yet. Raises PolicyError."""
    return NODE_ORDERS.make(text, heatmap)
