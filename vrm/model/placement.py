"""A placement: the cores that the ranks of one job take, kept as sets of nodes or of cores."""

from __future__ import annotations

import bisect
import itertools
import operator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

from vrm.model import bits
from vrm.model.node import CORES, Node, lane_of_socket

if TYPE_CHECKING:
    from vrm.model.cluster import Pool


Devices = Mapping[int, Mapping[str, Tuple[int, ...]]]
"""Devices by node and resource, as indices: those of the tasks there, in their order, then those of
all of them (see `vrm.model.devices`)."""

NO_DEVICES: Devices = {}

Amounts = Sequence[Tuple[str, int, int]]
"""What is taken of nodes besides cores: the resource, the node, and how much (base units). A placement keeps them
with the request of which they are: a plan asks again and again."""


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
                 "frequency", "pace", "amounts")

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
        self.amounts: Optional[Tuple[object, Amounts]] = None

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
        for node in itertools.chain.from_iterable(map(bits.members, self.order)):
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
        self._nodes = nodes
        for index, node in enumerate(nodes):
            self.node_first.append(self.total)
            for number, cores in enumerate(node.sockets):
                self.first.append(self.total)
                self.socket.append((index, number))
                self.total += cores
        self.all = (1 << self.total) - 1
        self._cores_of: Dict[int, int] = {}
        self._everywhere: Dict[int, int] = {}

    def _end(self, index: int) -> int:
        """One past the last core of a node."""
        return self.node_first[index + 1] if index + 1 < len(self.node_first) else self.total

    def node_cores(self, index: int) -> int:
        """The cores of a node, as a set."""
        return (1 << self._end(index)) - (1 << self.node_first[index])

    def on_node(self, cores: int, index: int) -> int:
        """Those of a set of cores that are on a node, counted from its first."""
        first = self.node_first[index]
        return cores >> first & ((1 << self._end(index) - first) - 1)

    # Sets of nodes at a time: where a job has the same cores on all of its nodes, this takes as long for a
    # thousand of them as for one.

    def cores_of(self, nodes: int) -> int:
        """The cores of a set of nodes."""
        found = self._cores_of.get(nodes)
        if found is None:
            found = 0
            for first, stop in bits.runs(nodes):
                found |= (1 << self._end(stop - 1)) - (1 << self.node_first[first])
            _keep(self._cores_of, nodes, found)
        return found

    def spread(self, nodes: int, cores: int) -> int:
        """The set of cores that has these on each of some nodes, counted from its first."""
        found = self._everywhere.get(cores)
        if found is None:
            found = 0
            for first, number, each in self._blocks:
                found |= _repeated(cores & ((1 << each) - 1), each, number) << self.node_first[first]
            _keep(self._everywhere, cores, found)
        return found & self.cores_of(nodes)

    def patterns(self, cores: int, nodes: int) -> List[Tuple[int, int]]:
        """Some nodes with equally many cores, by what is there of a set of cores: pairs of nodes, and the
        cores on each of them, counted from its first."""
        found: Dict[int, int] = {}
        left = [nodes] if nodes else []
        while left:
            some = left.pop()
            here = self.on_node(cores, (some & -some).bit_length() - 1)
            if cores & self.cores_of(some) == self.spread(some, here):
                found[here] = found.get(here, 0) | some
            else:
                below = bits.lowest(some, bits.count(some) // 2)
                left += [some ^ below, below]
        return [(some, here) for here, some in found.items()]

    @cached_property
    def shapes(self) -> Dict[Tuple[int, ...], int]:
        """The nodes by the cores of their sockets."""
        found: Dict[Tuple[int, ...], List[int]] = {}
        for index, node in enumerate(self._nodes):
            found.setdefault(node.sockets, []).append(index)
        if len(found) == 1:
            return {sockets: (1 << len(self._nodes)) - 1 for sockets in found}
        return {sockets: sum(1 << index for index in here) for sockets, here in found.items()}

    @cached_property
    def _blocks(self) -> List[Tuple[int, int, int]]:
        """Nodes one after the other with equally many cores: the first, how many nodes, and the cores of
        each."""
        found: List[Tuple[int, int, int]] = []
        for index, first in enumerate(self.node_first):
            cores = self._end(index) - first
            if found and found[-1][2] == cores:
                found[-1] = found[-1][0], found[-1][1] + 1, cores
            else:
                found.append((index, 1, cores))
        return found

    def split(self, cores: int) -> Callable[[int], int]:
        """What gives those of a set of cores that are on a node, as `on_node` does: to ask for many."""
        data = (cores & self.all).to_bytes((self.total + 7) // 8, "little")
        first = self.node_first

        def here(index: int) -> int:
            begin, end = first[index], self._end(index)
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


_KEPT = 256
"""So many answers of each kind are kept: a set of cores of five thousand nodes has 10 KB."""


def _keep(answers: Dict[int, int], question: int, answer: int) -> None:
    if len(answers) >= _KEPT:
        answers.clear()
    answers[question] = answer


def _repeated(cores: int, each: int, number: int) -> int:
    """A set of cores so many times, one every `each` cores."""
    found, done, size = 0, 0, 1
    while number:
        if number & 1:
            found |= cores << done * each
            done += size
        cores |= cores << size * each
        size *= 2
        number >>= 1
    return found


class CorePlacement:
    """Cores taken by a job on nodes that it shares with others, core by core.

    `taken` is a set of cores in the numbering of `layout`; ranks fill it in that order, each
    with `width` cores of one socket. `held` are the cores that others cannot have meanwhile: the same, but
    where the job is exclusive all of its nodes. `size` is their number. `devices` are given when the job
    is booked.
    """

    __slots__ = ("layout", "taken", "procs", "width", "held", "size", "devices", "frequency", "pace", "amounts",
                 "_spans", "_nodes")

    share = CORES
    claims = (0, 0)  # no lane is closed

    def __init__(self, layout: CoreLayout, taken: int, procs: int, width: int = 1,
                 devices: Devices = NO_DEVICES, frequency: float = 0.0, pace: float = 1.0,
                 held: int = 0) -> None:
        self.layout = layout
        self.taken = taken
        self.procs = procs
        self.width = width
        self.held = held or taken
        self.size = bits.count(held) if held else procs * width
        self.devices = devices
        self.frequency = frequency
        self.pace = pace
        self.amounts: Optional[Tuple[object, Amounts]] = None
        self._spans: Optional[List[Tuple[int, int, int, int]]] = None
        self._nodes = 0

    @property
    def spans(self) -> List[Tuple[int, int, int, int]]:
        """The cores as (node, socket, first core, one past the last) within the sockets."""
        if self._spans is None:
            self._spans = list(self.layout.spans(self.taken))
        return self._spans

    def take(self, pool: "Pool") -> None:
        """Mark the cores as taken."""
        pool.busy_cores |= self.held

    def give(self, pool: "Pool") -> None:
        """Undo `take`."""
        pool.busy_cores &= ~self.held

    def clashes(self, pool: "Pool") -> bool:
        """Whether a core of it is taken, or on a node that is down."""
        return bool(self.held & ~pool.free_cores)

    def on_whole_nodes(self) -> CorePlacement:
        """The same ranks, with all cores of their nodes held."""
        return CorePlacement(self.layout, self.taken, self.procs, self.width, self.devices, self.frequency, self.pace,
                             self.layout.cores_of(self.node_set))

    def size_on(self, pool: "Pool") -> int:
        """Cores of it on nodes that are up."""
        return bits.count(self.held & pool.up_cores)

    @property
    def nodes(self) -> List[int]:
        """Node indices in the order in which ranks fill them."""
        return list(dict.fromkeys([span[0] for span in self.spans]))

    @property
    def node_set(self) -> int:
        """The nodes as a set."""
        if not self._nodes:
            for node, *_ in self.spans:
                self._nodes |= 1 << node
        return self._nodes

    @property
    def order(self) -> Tuple[int, ...]:
        """The nodes as one set: ranks fill them by number."""
        return (self.node_set,)

    @property
    def cores(self) -> int:
        """Cores in use by the ranks."""
        return self.procs * self.width

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
