"""A machine: its nodes, and the licences that all of them share."""

from __future__ import annotations

from dataclasses import dataclass, field
from collections.abc import Collection, Mapping, Sequence

from vrm.model.node import Node


MOST_SOCKETS = 1_000_000
"""Maximum number of sockets of a machine: each socket costs memory, and a wrong number could use up all of it."""


@dataclass(frozen=True)
class Machine:
    """Nodes, and licences by name for the whole run. Without nodes, a simulation takes as many one-core nodes as the
    trace says its machine has processors."""

    nodes: Sequence[Node] = ()
    licences: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, nodes: int, sockets: int = 1, cores: int = 1, licences: Mapping[str, float] | None = None
           ) -> Machine:
        """Return a machine of equal nodes, named n0, n1, ..., each with `sockets` sockets of `cores` cores. Raises
        ValueError for numbers below 1, and for more than a million sockets."""
        if min(nodes, sockets, cores) < 1:
            raise ValueError("a machine has at least 1 node, 1 socket and 1 core")
        if nodes * sockets > MOST_SOCKETS:
            raise ValueError(f"{nodes} nodes of {sockets} socket(s) are too many; a machine has at most "
                             f"{MOST_SOCKETS} sockets")
        return cls(tuple(Node(f"n{number}", (cores,) * sockets) for number in range(nodes)), licences or {})


def holdings(resources: Mapping[str, float], features: Collection[str] = ()) -> str:
    """Format what a node has besides cores, for people: `64 GiB, 2 gpu, ib`; "" for nothing."""
    return ", ".join([f"{amount:g} GiB" if name == "memory" else f"{amount:g} {name}"
                      for name, amount in sorted(resources.items(), key=_memory_first) if amount]
                     + sorted(features))


def _memory_first(item: tuple[str, float]) -> tuple[bool, str]:
    return item[0] != "memory", item[0]
