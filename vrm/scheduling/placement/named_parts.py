"""The parts of a placement policy, by name or as a user's functions: eligibility, node order, share."""

from __future__ import annotations

from typing import Any
from collections.abc import Callable, Iterable, Iterator, Sequence

from vrm.model import bits
from vrm.model.cluster import Pool
from vrm.model.measured.heatmap import Heatmap
from vrm.model.job import Job
from vrm.model.node import CORES, Node
from vrm.model.policies import Eligibility, Rooms
from vrm.scheduling.placement.node_orders import AUTO, NODE_ORDERS, Order, make_node_order
from vrm.scheduling.placement.parts import ELIGIBILITIES, SHARES, Share
from vrm.scheduling.registry import PolicyError, Registry, guarded, shortened, where


def _part(registry: Registry, part: Any) -> tuple[Any, str, bool]:
    """Return the part with this name or function, its name in messages, and whether it is a user's."""
    own = registry.own(part) if isinstance(part, str) else part
    return (registry.find(part), part, False) if own is None else (own, _called(part), True)


def _called(part: Any) -> str:
    """Return the name of a part in messages."""
    return part if isinstance(part, str) else getattr(part, "__name__", type(part).__name__)


def eligibility_of(part: Any, heatmap: Heatmap | None) -> Eligibility:
    """Return the eligibility with this name, or for a function `mine(job, view, node)`."""
    made, text, own = _part(ELIGIBILITIES, part)
    if own:
        return _UserEligibility(text, made)
    eligibility: Eligibility = made(heatmap)
    return eligibility


def order_of(part: Any, heatmap: Heatmap | None, nodes: Sequence[Node]) -> Order:
    """Return the node order with this name and parameters, or for a function `mine(job, view, node)`. `auto` is the
    order that the heatmap names."""
    if part == AUTO:
        part = (heatmap or Heatmap).node_order
    own = NODE_ORDERS.own(part) if isinstance(part, str) else part
    if own is not None:
        return _UserNodeOrder(_called(part), own)
    order: Order = make_node_order(part, heatmap)
    order.bind(nodes)
    return order


def share_of(part: Any) -> Share:
    """Return the share with this name, or for a function `mine(job, view, node)`."""
    if isinstance(part, Share):
        return part
    made, text, own = _part(SHARES, part)
    if not own:
        share: Share = made
        return share
    ask = guarded(text, made)

    def cores(job: Job, view: Pool, node: int) -> list[int]:
        found = ask(job, view, node)
        chosen = list(found) if isinstance(found, Iterable) else [found]
        most = view.nodes[node].cores
        if not all(isinstance(core, int) and 0 <= core < most for core in chosen):
            raise PolicyError(f"`{text}`{where(made)} gives {shortened(found)} as the cores of node "
                              f"{node}; give numbers from 0 to {most - 1}")
        return chosen
    return Share(CORES, cores)


class _UserEligibility:
    """A user's `mine(job, view, node)`, called for every node that is up."""

    def __init__(self, text: str, own: Callable[..., Any]) -> None:
        self._own = guarded(text, own)

    def alone(self, job: Job) -> bool:
        """Return whether the job is exclusive."""
        return job.exclusive

    def nodes(self, job: Job, view: Pool) -> int:
        """Return the nodes for which the function returns true."""
        return sum(1 << node for node in bits.members(view.up) if self._own(job, view, node))


class _UserNodeOrder(Order):
    """A user's `mine(job, view, node)`, called for every eligible node."""

    def __init__(self, text: str, own: Callable[..., Any]) -> None:
        self._text, self._place = text, where(own)
        self._own = guarded(text, own)

    def groups(self, job: Job, view: Pool, eligible: int, rooms: Rooms) -> Iterator[int]:
        """Yield the nodes grouped by the number that the function returns, lowest first."""
        by_rank: dict[Any, int] = {}
        for node in bits.members(eligible):
            rank = self._own(job, view, node)
            if not isinstance(rank, (int, float)) or rank != rank:
                raise PolicyError(f"`{self._text}`{self._place} gives {shortened(rank)} for node "
                                  f"{node}; a node order gives a number, lowest first")
            by_rank[rank] = by_rank.get(rank, 0) | 1 << node
        return (by_rank[rank] for rank in sorted(by_rank))
