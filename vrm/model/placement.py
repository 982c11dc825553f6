"""A placement: the cores that the ranks of one job take, kept as sets of nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterator, List, Sequence, Tuple

from vrm.model import bits
from vrm.model.node import Node, lane_of_socket


@dataclass(frozen=True)
class RankSlot:
    """Where one rank runs: node index, socket, and its cores (logical, within the socket)."""

    rank: int
    node: int
    socket: int
    cores: Tuple[int, ...]


class Placement:
    """Nodes taken by a job, in rank order, and the lane of each.

    Every node offers two lanes (see `vrm.model.node`). `claims[lane]` is the set of nodes on
    which the job holds that lane: both lanes for a whole share, and for a half share closed to
    others. `order` is a sequence of disjoint node sets: ranks fill the nodes of the first set
    by number, then the next, socket by socket and core by core; the last node may stay partly
    filled. `width` is the number of cores of each rank.
    """

    __slots__ = ("share", "claims", "order", "procs", "width")

    def __init__(self, share: str, claims: Tuple[int, int], order: Tuple[int, ...],
                 procs: int, width: int = 1) -> None:
        self.share = share
        self.claims = claims
        self.order = order
        self.procs = procs
        self.width = width

    @property
    def nodes(self) -> List[int]:
        """Node indices in the order in which ranks fill them."""
        return [node for group in self.order for node in bits.members(group)]

    @property
    def cores(self) -> int:
        """Cores in use by the ranks."""
        return self.procs * self.width

    def lane(self, node: int) -> int:
        """The lane whose cores the job uses on a node of its."""
        return 0 if self.claims[0] >> node & 1 else 1

    def ranks_by_node(self, nodes: Sequence[Node]) -> Iterator[Tuple[int, int]]:
        """Pairs of node index and ranks there, in rank order."""
        left = self.procs
        for node in self.nodes:
            here = min(left, nodes[node].capacity(self.share, self.lane(node), self.width))
            yield node, here
            left -= here

    def slots(self, nodes: Sequence[Node]) -> Iterator[RankSlot]:
        """The place of every rank, in rank order."""
        rank = 0
        for node, here in self.ranks_by_node(nodes):
            stop = rank + here
            for socket, cores in enumerate(nodes[node].sockets):
                first, length = lane_of_socket(cores, self.share, self.lane(node))
                for core in range(first, first + length - self.width + 1, self.width):
                    if rank == stop:
                        break
                    yield RankSlot(rank, node, socket, tuple(range(core, core + self.width)))
                    rank += 1

    def __repr__(self) -> str:
        return f"Placement({self.share}, nodes={self.nodes}, procs={self.procs})"
