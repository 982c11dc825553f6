"""A machine: its nodes, and what there is once for all of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Collection, Mapping, Tuple

from vrm.model.node import Node


@dataclass(frozen=True)
class Machine:
    """Nodes, and licences by name for the whole run."""

    nodes: Tuple[Node, ...]
    licences: Mapping[str, float] = field(default_factory=dict)


def holdings(resources: Mapping[str, float], features: Collection[str] = ()) -> str:
    """What a node has besides its cores, for people: `64 GiB, 2 gpu, ib`; empty for nothing."""
    return ", ".join([f"{amount:g} GiB" if name == "memory" else f"{amount:g} {name}"
                      for name, amount in sorted(resources.items(), key=_memory_first) if amount]
                     + sorted(features))


def _memory_first(item: Tuple[str, float]) -> Tuple[bool, str]:
    return item[0] != "memory", item[0]
