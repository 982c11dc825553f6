"""A placement: the cores that the ranks of one job take, kept as sets of nodes or of cores."""

from __future__ import annotations

import bisect
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

from vrm.model import bits
from vrm.model.node import CORES, Node, lane_of_socket

if TYPE_CHECKING:
    from vrm.model.cluster import Pool


Devices = Mapping[int, Mapping[str, Tuple[int, ...]]]
"""Devices by node and resource, as indices: those of the tasks there, in their order, then those of
all of them (see `vrm.model.devices`)."""

NO_DEVICES: Devices = {}


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
    filled. `width` is the number of cores of each rank, `size` the number of nodes. `most` tells
    how many ranks a node takes where that is less than its cores allow (for lack of other
    resources). `devices` are given when the job is booked. `frequency` is that of its cores in GHz (0: as
    the nodes choose), `pace` its run time there as a multiple of that of which its user speaks.
    """

    __slots__ = ("share", "claims", "order", "procs", "width", "size", "most", "devices",
                 "frequency", "pace")

    def __init__(self, share: str, claims: Tuple[int, int], order: Tuple[int, ...],
                 procs: int, width: int = 1, size: int = 0,
                 most: Optional[Mapping[int, int]] = None,
                 devices: Devices = NO_DEVICES, frequency: float = 0.0, pace: float = 1.0) -> None:
        self.share = share
        self.claims = claims
        self.order = order
        self.procs = procs
        self.width = width
        self.size = size or bits.count(claims[0] | claims[1])
        self.most = most
        self.devices = devices
        self.frequency = frequency
        self.pace = pace

    def take(self, pool: "Pool") -> None:
        """Mark the lanes as taken."""
        lane0, lane1 = self.claims
        pool.busy0 |= lane0
        pool.busy1 |= lane1

    def give(self, pool: "Pool") -> None:
        """Undo `take`."""
        lane0, lane1 = self.claims
        pool.busy0 &= ~lane0
        pool.busy1 &= ~lane1

    def clashes(self, pool: "Pool") -> bool:
        """Whether something of it is taken, or on a node that is down."""
        lane0, lane1 = self.claims
        if lane0 & pool.busy0 or lane1 & pool.busy1 or (lane0 | lane1) & ~pool.up:
            return True
        return bool(pool.busy_cores) and any((lane0 | lane1) >> node & 1 for node, *_ in
                                             pool.layout.spans(pool.busy_cores))

    def size_on(self, pool: "Pool") -> int:
        """Nodes of it that are up."""
        return bits.count(self.node_set & pool.up)

    @property
    def node_set(self) -> int:
        """The nodes as a set."""
        return self.claims[0] | self.claims[1]

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
            if self.most is not None:
                here = min(here, self.most.get(node, here))
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


class CoreLayout:
    """The cores of all nodes numbered through: node by node, socket by socket."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.first: List[int] = []  # of each socket of each node, in order
        self.socket: List[Tuple[int, int]] = []  # node and socket number, beside `first`
        self.node_first: List[int] = []
        self.total = 0
        for index, node in enumerate(nodes):
            self.node_first.append(self.total)
            for number, cores in enumerate(node.sockets):
                self.first.append(self.total)
                self.socket.append((index, number))
                self.total += cores
        self.all = (1 << self.total) - 1

    def node_cores(self, index: int) -> int:
        """The cores of a node, as a set."""
        last = index + 1 == len(self.node_first)
        end = self.total if last else self.node_first[index + 1]
        return (1 << end) - (1 << self.node_first[index])

    def on_node(self, cores: int, index: int) -> int:
        """Those of a set of cores that are on a node, counted from its first."""
        last = index + 1 == len(self.node_first)
        end = self.total if last else self.node_first[index + 1]
        first = self.node_first[index]
        return cores >> first & ((1 << end - first) - 1)

    def split(self, cores: int) -> Callable[[int], int]:
        """What gives those of a set of cores that are on a node, as `on_node` does: to ask for many."""
        data = (cores & self.all).to_bytes((self.total + 7) // 8, "little")
        first = self.node_first

        def here(index: int) -> int:
            begin = first[index]
            end = first[index + 1] if index + 1 < len(first) else self.total
            found = int.from_bytes(data[begin >> 3:(end + 7) >> 3], "little")
            return found >> (begin & 7) & ((1 << end - begin) - 1)
        return here

    def join(self, parts: Iterable[Tuple[int, int]]) -> int:
        """The set of cores that has these on these nodes: pairs of a node, and cores of it, counted from
        its first."""
        data = bytearray((self.total + 7) // 8 + 8)
        for index, cores in parts:
            at = self.node_first[index]
            cores <<= at & 7
            at >>= 3
            while cores:
                data[at] |= cores & 255
                cores >>= 8
                at += 1
        return int.from_bytes(data, "little")

    def sockets(self) -> Iterator[Tuple[int, int]]:
        """First core and number of cores of every socket, in order."""
        return zip(self.first, map(operator.sub, [*self.first[1:], self.total], self.first))

    def sockets_of(self, node: int) -> Iterator[Tuple[int, int]]:
        """First core and number of cores of every socket of a node."""
        at = bisect.bisect_left(self.first, self.node_first[node])
        while at < len(self.first) and self.socket[at][0] == node:
            end = self.first[at + 1] if at + 1 < len(self.first) else self.total
            yield self.first[at], end - self.first[at]
            at += 1

    def spans(self, cores: int) -> Iterator[Tuple[int, int, int, int]]:
        """A set of cores as (node, socket, first core, one past the last) within the sockets."""
        for start, stop in bits.runs(cores):
            yield from self.span(start, stop)

    def span(self, start: int, stop: int) -> Iterator[Tuple[int, int, int, int]]:
        """The cores from start to before stop, in the same form."""
        at = bisect.bisect_right(self.first, start) - 1
        while start < stop:
            begin = self.first[at]
            end = self.first[at + 1] if at + 1 < len(self.first) else self.total
            node, socket = self.socket[at]
            yield node, socket, start - begin, min(stop, end) - begin
            start, at = end, at + 1


class CorePlacement:
    """Cores taken by a job on nodes that it shares with others, core by core.

    `taken` is a set of cores in the numbering of `layout`; ranks fill it in that order, each
    with `width` cores of one socket. `size` is the number of cores. `devices` are given when the job
    is booked.
    """

    __slots__ = ("layout", "taken", "procs", "width", "size", "devices", "frequency", "pace", "_spans")

    share = CORES
    claims = (0, 0)  # no lane is closed

    def __init__(self, layout: CoreLayout, taken: int, procs: int, width: int = 1,
                 devices: Devices = NO_DEVICES, frequency: float = 0.0, pace: float = 1.0) -> None:
        self.layout = layout
        self.taken = taken
        self.procs = procs
        self.width = width
        self.size = procs * width
        self.devices = devices
        self.frequency = frequency
        self.pace = pace
        self._spans: Optional[List[Tuple[int, int, int, int]]] = None

    @property
    def spans(self) -> List[Tuple[int, int, int, int]]:
        """The cores as (node, socket, first core, one past the last) within the sockets."""
        if self._spans is None:
            self._spans = list(self.layout.spans(self.taken))
        return self._spans

    def take(self, pool: "Pool") -> None:
        """Mark the cores as taken."""
        pool.busy_cores |= self.taken

    def give(self, pool: "Pool") -> None:
        """Undo `take`."""
        pool.busy_cores &= ~self.taken

    def clashes(self, pool: "Pool") -> bool:
        """Whether a core of it is taken, or on a node that is down."""
        if self.taken & ~pool.free_cores:
            return True
        lanes = pool.busy0 | pool.busy1
        return bool(lanes) and bool(lanes & self.node_set)

    def size_on(self, pool: "Pool") -> int:
        """Cores of it on nodes that are up."""
        return bits.count(self.taken & pool.up_cores)

    @property
    def nodes(self) -> List[int]:
        """Node indices in the order in which ranks fill them."""
        return list(self._cores_by_node())

    @property
    def node_set(self) -> int:
        """The nodes as a set."""
        chosen = 0
        for node, *_ in self.spans:
            chosen |= 1 << node
        return chosen

    @property
    def order(self) -> Tuple[int, ...]:
        """The nodes as one set: ranks fill them by number."""
        return (self.node_set,)

    @property
    def cores(self) -> int:
        """Cores in use by the ranks."""
        return self.size

    def _cores_by_node(self) -> Dict[int, int]:
        found: Dict[int, int] = {}
        for node, _, first, stop in self.spans:
            found[node] = found.get(node, 0) + stop - first
        return found

    def ranks_by_node(self, nodes: Sequence[Node]) -> Iterator[Tuple[int, int]]:
        """Pairs of node index and ranks there, in rank order."""
        return ((node, cores // self.width) for node, cores in self._cores_by_node().items())

    def slots(self, nodes: Sequence[Node]) -> Iterator[RankSlot]:
        """The place of every rank, in rank order."""
        rank, held = 0, []
        for node, socket, first, stop in self.spans:
            for core in range(first, stop):
                held.append(core)
                if len(held) == self.width:
                    yield RankSlot(rank, node, socket, tuple(held))
                    rank, held = rank + 1, []

    def __repr__(self) -> str:
        return f"CorePlacement(nodes={self.nodes}, procs={self.procs})"
