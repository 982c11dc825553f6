"""Placement policies as combinations of three parts: on which nodes a job may run (eligibility), which of them come
first (node order), and how much of each it takes (share).

| policy | eligibility | node order | share |
|---|---|---|---|
| compact | `empty`: no job on the node | `number` | `all`: all cores of each socket |
| spare | `empty`, and closed to others then | `number` | `half` of each socket |
| strip | `shared`: at most one other job, not exclusive | that of its heatmap | `half` |
| pack | `open`: a free core | `first-fit` | `free`: what is free, core by core |

Under `shared`, an exclusive job is placed as under `empty`. A heatmap names the order that is used with it
(`Heatmap.node_order`): `heatmap`, unless it is learned. That order takes empty nodes first, then those
whose job is the better partner. A node is not eligible if its job and the new one, side by side, are measured to do
less than one after the other.

Counting: nodes with capacity for equally many ranks are counted, without a loop over them. Resources that a job does
not request cost no time.
"""

from __future__ import annotations

from typing import Any
from collections.abc import Callable

from vrm.model.amounts import people
from vrm.model.measured.heatmap import Heatmap
from vrm.model.node import CORES
from vrm.model.policies import CountingPolicy
from vrm.scheduling.placement.by_core import CorePolicy
from vrm.scheduling.placement.lanes import LanePolicy
from vrm.scheduling.placement.node_orders import AUTO
from vrm.scheduling.placement.named_parts import eligibility_of, order_of, share_of
from vrm.scheduling.registry import Registry

POLICIES = Registry("placement policy", "vrm.placements")


def combine(eligible: Any, order: Any, share: Any, name: str = ""
            ) -> Callable[..., CountingPolicy]:
    """Return a function that makes a placement policy from three parts, each a registered name or a function of your
    own.

    Eligibility: `mine(job, view, node)` is true if the job may run there. Node order: `mine(job, view, node)` returns
    a number, lowest first. Share: `mine(job, view, node)` returns the cores of the node, by number, that the job may
    have. `view` is a `vrm.model.Pool`, `node` a number below `len(view.nodes)`. The returned function makes the policy
    for a cluster, with another node order if one is given.
    """
    def make(cluster: Any, heatmap: Heatmap | None = None,
             node_order: Any = order) -> CountingPolicy:
        chosen = share_of(share)
        kind = CorePolicy if chosen.kind == CORES else LanePolicy
        return kind(name or " x ".join(map(_name, (eligible, order, share))),
                    eligibility_of(eligible, heatmap), order_of(node_order, heatmap, cluster.nodes),
                    chosen, cluster.nodes, heatmap,
                    {name: people(name, amount) for name, amount in cluster.all_licences.items()})
    return make


def _name(part: Any) -> str:
    return part if isinstance(part, str) else getattr(part, "__name__", type(part).__name__)


POLICIES.register("compact")(combine("empty", "number", "all", "compact"))
POLICIES.register("spare")(combine("empty", "number", "half", "spare"))
POLICIES.register("strip")(combine("shared", AUTO, "half", "strip"))
POLICIES.register("pack")(combine("open", "first-fit", "free", "pack"))
