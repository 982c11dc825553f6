"""A placement: the cores that the ranks of one job use, kept as sets of nodes or of cores."""

from __future__ import annotations

import bisect
import itertools
import operator
from dataclasses import dataclass
from functools import cached_property, lru_cache, reduce
from typing import (Any, Final, NamedTuple)
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from vrm.model import bits
from vrm.model.node import CORES, Node, lane_of_socket

Devices = Mapping[int, Mapping[str, tuple[int, ...]]]
"""Devices by node and resource, as indices: first those of the tasks on the node, in task order, then those that all
of these tasks share (see `vrm.model.sharing.devices`)."""

NO_DEVICES: Devices = {}

Amounts = Sequence[tuple[str, int, int]]
"""What a job takes from nodes besides cores: resource, node, and amount (base units). A placement caches them with the
request that they belong to, because plans ask for them again and again."""

Room = tuple[int, int, int]
"""What a job or pool holds: the nodes whose lane 0 it has, those whose lane 1 it has (see `vrm.model.node`), and a set
of cores."""


@dataclass(frozen=True)
class RankSlot:
    """Where one rank runs: node index, socket, and its cores (logical numbers, within the socket)."""

    rank: int
    node: int
    socket: int
    cores: tuple[int, ...]


class OnNode(NamedTuple):
    """The ranks of a job on one node, and their cores when none is lent, counted from the node's first core."""

    node: int
    ranks: int
    cores: int


class CoreLayout:
    """Numbering of the cores of all nodes: node by node, socket by socket."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.first: list[int] = []  # the first core of each socket of each node, in order
        self.socket: list[tuple[int, int]] = []  # node and socket number, parallel to `first`
        self.node_first: list[int] = []
        self.total = 0
        self._nodes = nodes
        for index, node in enumerate(nodes):
            self.node_first.append(self.total)
            for number, cores in enumerate(node.sockets):
                self.first.append(self.total)
                self.socket.append((index, number))
                self.total += cores
        self.all = (1 << self.total) - 1
        self._cores_of: dict[int, int] = {}
        self._everywhere: dict[int, int] = {}

    def _end(self, index: int) -> int:
        """Return one past the last core of a node."""
        return self.node_first[index + 1] if index + 1 < len(self.node_first) else self.total

    def node_cores(self, index: int) -> int:
        """Return the cores of a node, as a set."""
        return (1 << self._end(index)) - (1 << self.node_first[index])

    def on_node(self, cores: int, index: int) -> int:
        """Return the part of a set of cores that is on a node, counted from the node's first core."""
        first = self.node_first[index]
        return cores >> first & ((1 << self._end(index) - first) - 1)

    def nodes_of(self, cores: int) -> int:
        """Return the nodes of a set of cores."""
        found = 0
        for start, stop in bits.runs(cores):
            found |= (1 << bisect.bisect_left(self.node_first, stop)) - (
                1 << bisect.bisect_right(self.node_first, start) - 1)
        return found

    # These methods work on whole sets of nodes: for a job with the same cores on all of its nodes, a thousand
    # nodes take as long as one.

    def cores_of(self, nodes: int) -> int:
        """Return the cores of a set of nodes."""
        found = self._cores_of.get(nodes)
        if found is None:
            found = 0
            for first, stop in bits.runs(nodes):
                found |= (1 << self._end(stop - 1)) - (1 << self.node_first[first])
            _keep(self._cores_of, nodes, found)
        return found

    def spread(self, nodes: int, cores: int) -> int:
        """Return the set of cores that has `cores`, counted from a node's first core, on each of some nodes."""
        found = self._everywhere.get(cores)
        if found is None:
            found = 0
            for first, number, each in self._blocks:
                found |= _repeated(cores & ((1 << each) - 1), each, number) << self.node_first[first]
            _keep(self._everywhere, cores, found)
        return found & self.cores_of(nodes)

    def patterns(self, cores: int, nodes: int) -> list[tuple[int, int]]:
        """Group nodes that have equally many cores by their part of a set of cores. Returns pairs: a set of nodes, and
        the cores on each of them, counted from its first core."""
        found: dict[int, int] = {}
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
    def shapes(self) -> dict[tuple[int, ...], int]:
        """The sets of nodes by the core counts of their sockets."""
        found: dict[tuple[int, ...], list[int]] = {}
        for index, node in enumerate(self._nodes):
            found.setdefault(node.sockets, []).append(index)
        if len(found) == 1:
            return {sockets: (1 << len(self._nodes)) - 1 for sockets in found}
        return {sockets: sum(1 << index for index in here) for sockets, here in found.items()}

    @cached_property
    def _blocks(self) -> list[tuple[int, int, int]]:
        """Runs of consecutive nodes with equally many cores: the first node, the number of nodes, and the cores of
        each."""
        found: list[tuple[int, int, int]] = []
        for index, first in enumerate(self.node_first):
            cores = self._end(index) - first
            if found and found[-1][2] == cores:
                found[-1] = found[-1][0], found[-1][1] + 1, cores
            else:
                found.append((index, 1, cores))
        return found

    def split(self, cores: int) -> Callable[[int], int]:
        """Return a function with the same result as `on_node` for this set of cores; faster for many nodes."""
        data = (cores & self.all).to_bytes((self.total + 7) // 8, "little")
        first = self.node_first

        def here(index: int) -> int:
            begin, end = first[index], self._end(index)
            found = int.from_bytes(data[begin >> 3:(end + 7) >> 3], "little")
            return found >> (begin & 7) & ((1 << end - begin) - 1)
        return here

    def join(self, parts: Iterable[tuple[int, int]]) -> int:
        """Return the set of cores that has the given cores on the given nodes: pairs of a node and cores of it,
        counted from its first core."""
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

    def sockets(self) -> Iterator[tuple[int, int]]:
        """Yield the first core and the number of cores of every socket, in order."""
        return zip(self.first, map(operator.sub, [*self.first[1:], self.total], self.first))

    def spans(self, cores: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield a set of cores as (node, socket, first core, one past the last), with core numbers within the
        socket."""
        for start, stop in bits.runs(cores):
            yield from self.span(start, stop)

    def span(self, start: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield the cores from `start` to before `stop` in the form of `spans`."""
        at = bisect.bisect_right(self.first, start) - 1
        while start < stop:
            begin = self.first[at]
            end = self.first[at + 1] if at + 1 < len(self.first) else self.total
            node, socket = self.socket[at]
            yield node, socket, start - begin, min(stop, end) - begin
            start, at = end, at + 1


_KEPT = 256
"""Number of answers of each kind that are cached: a set of cores of five thousand nodes has 10 KB."""


def _keep(answers: dict[int, int], question: int, answer: int) -> None:
    if len(answers) >= _KEPT:
        answers.clear()
    answers[question] = answer


def _repeated(cores: int, each: int, number: int) -> int:
    """Return a set of cores repeated `number` times, at a distance of `each` cores."""
    found, done, size = 0, 0, 1
    while number:
        if number & 1:
            found |= cores << done * each
            done += size
        cores |= cores << size * each
        size *= 2
        number >>= 1
    return found


class Lease(NamedTuple):
    """What a job holds that started on cores of running jobs. `lent` has these jobs, each with all cores that it lends
    to this job. `grown` has the earlier placements of its ranks, each with the time (seconds) until which it was
    valid: they had fewer cores then, before they got more of what passed to them from lenders that have ended."""

    lent: tuple[tuple[int, int], ...]
    grown: tuple[tuple[float, Placement], ...] = ()


class Placement:
    """What a job holds of the machine, and where its ranks are. Never changed: `but` makes a changed copy.

    `room` has the lanes of nodes and the cores that no other job can have: both lanes of a node if the job is alone
    there. `share` says how the ranks fill it. For a whole or half share, `order` has disjoint sets of nodes: ranks
    fill the nodes of the first set by number, then the next set, socket by socket and core by core; the last node may
    stay partly filled. For CORES, `order` has one set of cores (numbered as in `layout`), which ranks fill by number.

    `procs` is the number of ranks, `width` the number of cores of each, which lie in one socket. `size` counts what
    the job holds, in nodes or cores. `most` is the number of ranks that a node takes where that is less than its cores
    allow (because other resources are short). `devices` are assigned when the job is booked. `frequency` is the
    frequency of its cores in GHz (0: the nodes choose), `pace` its run time there as a multiple of the run time that
    its user gave.

    With a `lease`, the ranks are on cores that running jobs hold and lend; `room` is then what passed to the job from
    lenders that have ended.

    The placement of a coupled job has `parts`, the placements of its programs; ranks are numbered through them in this
    order. Then `room`, `procs` and `devices` cover all parts, and `width` is the largest.
    """

    __slots__ = ("share", "room", "order", "procs", "width", "size", "most", "devices", "frequency", "pace", "lease",
                 "layout", "parts", "amounts", "_nodes")

    def __init__(self, share: str, room: Room | tuple[int, int], order: tuple[int, ...], procs: int,
                 width: int = 1, size: int = 0, most: Mapping[int, int] | None = None,
                 devices: Devices = NO_DEVICES, frequency: float = 0.0, pace: float = 1.0,
                 lease: Lease | None = None, layout: CoreLayout | None = None,
                 parts: tuple[Placement, ...] = (), nodes: int = -1) -> None:
        self.share: Final = share
        self.room: Final[Room] = room if len(room) == 3 else (*room, 0)
        self.order: Final = order
        self.procs: Final = procs
        self.width: Final = width
        self.size: Final = size or bits.count(room[0] | room[1]) + bits.count(self.room[2])
        self.most: Final = most
        self.devices: Final = devices
        self.frequency: Final = frequency
        self.pace: Final = pace
        self.lease: Final = lease
        self.layout: Final = layout or _NO_LAYOUT
        self.parts: Final = parts
        self.amounts: tuple[object, Amounts] | None = None
        self._nodes = nodes

    @classmethod
    def of_cores(cls, layout: CoreLayout, taken: int, procs: int, width: int = 1, held: int = 0) -> Placement:
        """Return a placement of ranks on a set of cores. `held` are the cores that no other job can have meanwhile, if
        these are more."""
        return cls(CORES, (0, 0, held or taken), (taken,), procs, width, 0 if held else procs * width, layout=layout)

    @classmethod
    def together(cls, parts: Sequence[Placement]) -> Placement:
        """Return the placement of a coupled job from those of its programs, which must be disjoint and have the same
        share."""
        first = parts[0]
        order: list[int] = []
        for group in itertools.chain.from_iterable(part.order for part in parts):
            new = group & ~reduce(operator.or_, order, 0)
            order += [new] if new else []
        if first.share == CORES:
            order = [reduce(operator.or_, order)]
        devices: dict[int, dict[str, tuple[int, ...]]] = {}
        for part in parts:
            for node, by_name in part.devices.items():
                here = devices.setdefault(node, {})
                here.update((name, here.get(name, ()) + indices) for name, indices in by_name.items())
        lane0, lane1, cores = (reduce(operator.or_, each) for each in zip(*(part.room for part in parts)))
        return cls(first.share, (lane0, lane1, cores), tuple(order), sum(part.procs for part in parts),
                   max(part.width for part in parts), devices=devices, frequency=first.frequency,
                   pace=max(part.pace for part in parts), layout=first.layout, parts=tuple(parts))

    def but(self, **changes: Any) -> Placement:
        """Return a copy in which some attributes have other values; `nodes` is the node set of its cores."""
        if "room" in changes:
            changes["size"] = 0
        twin = Placement(**{**dict(zip(_FACTS, _facts(self))), "nodes": self._nodes, **changes})
        twin.amounts = self.amounts
        return twin

    @property
    def node_set(self) -> int:
        """The nodes as a set."""
        if self._nodes < 0:
            self._nodes = self.layout.nodes_of(self.taken) if self.share == CORES else self.room[0] | self.room[1]
        return self._nodes

    @property
    def nodes(self) -> list[int]:
        """Node indices in the order in which ranks fill them."""
        groups = (self.node_set,) if self.share == CORES else self.order
        return [node for group in groups for node in bits.members(group)]

    @property
    def alone(self) -> int:
        """The nodes that the job has to itself, as far as lanes show it."""
        return self.room[0] & self.room[1] if self.lease is None else 0

    @property
    def taken(self) -> int:
        """The cores of its ranks, if `share` is CORES; otherwise the empty set."""
        return self.order[0] if self.share == CORES else 0

    @property
    def cores(self) -> int:
        """Number of cores in use by the ranks."""
        return sum(part.cores for part in self.parts) if self.parts else self.procs * self.width

    @property
    def lent(self) -> tuple[tuple[int, int], ...]:
        """The jobs that lend cores to it, each with all cores that it lends."""
        return self.lease.lent if self.lease is not None else ()

    @property
    def grown(self) -> tuple[tuple[float, Placement], ...]:
        """Earlier placements of its ranks, each with the time (seconds) until which it was valid."""
        return self.lease.grown if self.lease is not None else ()

    @property
    def at_start(self) -> Placement:
        """The placement with which the job started."""
        return self.grown[0][1] if self.grown else self

    def slower(self, cores: int) -> float:
        """Return the run time there as a multiple of the expected one, if each rank requested `cores` cores."""
        return self.pace if self.lease is None else self.pace * cores / self.width

    def lane(self, node: int) -> int:
        """Return the lane that the job uses on one of its nodes."""
        return 0 if self.room[0] >> node & 1 else 1

    def ranks_by_node(self, nodes: Sequence[Node]) -> Iterator[tuple[int, int]]:
        """Yield pairs (node index, ranks there), in rank order. In a coupled job a node can appear again, for another
        program."""
        if self.parts:
            for part in self.parts:
                yield from part.ranks_by_node(nodes)
        elif self.share == CORES:
            yield from (each[:2] for each in self.on_nodes(nodes))
        else:
            left = self.procs
            for node in itertools.chain.from_iterable(map(bits.members, self.order)):
                here = min(left, nodes[node].capacity(self.share, self.lane(node), self.width))
                if self.most is not None:
                    here = min(here, self.most.get(node, here))
                yield node, here
                left -= here

    def on_nodes(self, nodes: Sequence[Node]) -> Iterator[OnNode]:
        """Yield the ranks and cores node by node, in rank order. In a coupled job a node can appear again, for another
        program."""
        if self.parts:
            for part in self.parts:
                yield from part.on_nodes(nodes)
        elif self.share == CORES:
            here, width = self.layout.split(self.taken), self.width
            for node in bits.members(self.node_set):
                cores = here(node)
                yield OnNode(node, bits.count(cores) // width, cores)
        else:
            for node, ranks in self.ranks_by_node(nodes):
                if ranks:
                    yield OnNode(node, ranks,
                                 in_lane(nodes[node].sockets, self.share, self.lane(node), self.width, ranks))

    def slots(self, nodes: Sequence[Node]) -> Iterator[RankSlot]:
        """Yield the place of every rank, in rank order."""
        return slots_of(((each, part.width) for part in self.parts or (self,) for each in part.on_nodes(nodes)), nodes)

    def __repr__(self) -> str:
        return f"Placement({self.share}, nodes={self.nodes}, procs={self.procs})"


_FACTS = ("share", "room", "order", "procs", "width", "size", "most", "devices", "frequency", "pace", "lease", "layout",
          "parts")
_facts = operator.attrgetter(*_FACTS)
_NO_LAYOUT = CoreLayout(())  # for placements that need none

CorePlacement = Placement.of_cores
"""The name that users' policies use."""


@lru_cache(maxsize=4096)
def in_lane(sockets: Sequence[int], share: str, lane: int, width: int, ranks: int) -> int:
    """Return the cores of `ranks` ranks in a lane of a node, counted from its first core."""
    cores = at = 0
    for count in sockets:
        first, length = lane_of_socket(count, share, lane)
        here = min(ranks, length // width)
        cores |= ((1 << here * width) - 1) << at + first
        ranks -= here
        at += count
    return cores


SMALL = 8
"""Maximum size of a small job, in nodes or cores."""


class SlotCache:
    """Cache of the places of ranks: small jobs run again and again on the same nodes."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = nodes
        self._known: dict[Any, tuple[RankSlot, ...]] = {}

    def of(self, placement: Placement) -> tuple[RankSlot, ...]:
        """Return the place of every rank, in rank order."""
        if placement.size > SMALL or placement.most is not None or placement.parts:
            return tuple(placement.slots(self._nodes))
        key = placement.share, placement.room, placement.order, placement.procs, placement.width
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= 4096:
                self._known.clear()
            found = self._known[key] = tuple(placement.slots(self._nodes))
        return found


def slots_of(parts: Iterable[tuple[OnNode, int]], nodes: Sequence[Node]) -> Iterator[RankSlot]:
    """Yield the place of every rank. `parts` has the ranks of each node, with the number of cores of each rank."""
    rank = 0
    for (node, ranks, cores), width in parts:
        stop = rank + ranks
        for socket, count in enumerate(nodes[node].sockets):
            here = tuple(bits.members(cores & ((1 << count) - 1)))
            for first in range(0, len(here) - width + 1, width):
                if rank < stop:
                    yield RankSlot(rank, node, socket, here[first:first + width])
                    rank += 1
            cores >>= count
