"""A node and its sockets: what there is, and (in a view) who holds which core."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple
from collections.abc import Container, Mapping, Sequence

from vrm.model.measured.energy import PowerClass

WHOLE, HALF, CORES = "whole", "half", "cores"
Lane = tuple[int, int]


@dataclass(frozen=True)
class Device:
    """One of a node's resources that are given by index, such as a GPU: the index by which
    programs choose it, the socket it hangs on (-1: unknown), and its identifier, if it has one."""

    index: int
    socket: int = -1
    uuid: str = ""


@dataclass(frozen=True)
class Node:
    """The facts of one node: the cores of each socket, countable resources (in pieces, memory in
    GiB), features, the `devices` of resources that are given by index (see `devices_of`), and what is
    known of its power. Where `threads` is above 1, its cores are hardware threads, so many of each real core: in
    each socket the first threads of all real cores come first, so that the halves of a socket are siblings."""

    name: str
    sockets: tuple[int, ...]
    resources: Mapping[str, float] = field(default_factory=dict)
    features: frozenset[str] = frozenset()
    devices: Mapping[str, tuple[Device, ...]] = field(default_factory=dict)
    power: PowerClass | None = None
    threads: int = 1

    def __post_init__(self) -> None:
        if not self.sockets or min(self.sockets) < 1:
            raise ValueError(f"node {self.name}: every socket needs at least 1 core")

    @property
    def cores(self) -> int:
        """Cores of the node."""
        return sum(self.sockets)

    def called(self, names: Container[str]) -> bool:
        """Whether one of the names is the node's, in full or up to the first dot."""
        return self.name in names or self.name.partition(".")[0] in names

    def devices_of(self, name: str) -> tuple[Device, ...]:
        """The devices of a resource; where they are not listed, as many as there are of it, from
        index 0 on."""
        listed = self.devices.get(name)
        return tuple(map(Device, range(int(self.resources.get(name, 0))))) if listed is None \
            else listed

    def capacity(self, share: str, lane: int, width: int) -> int:
        """Ranks of `width` cores that fit on this node's lane (see `lane_of_socket`)."""
        return _capacity(self.sockets, share, lane, width)


class NodeClass(NamedTuple):
    """Nodes of equal shape (sockets, resources and features): the set of their numbers, and the
    first of them."""

    members: int
    node: Node


def node_classes(nodes: Sequence[Node]) -> tuple[NodeClass, ...]:
    """The classes of the nodes, in the order of their first members."""
    members: dict[tuple[object, ...], list[int]] = {}
    for number, node in enumerate(nodes):
        shape = (node.sockets, tuple(sorted(node.resources.items())) if node.resources else (),
                 node.features)
        members.setdefault(shape, []).append(number)
    if len(members) == 1:
        return (NodeClass((1 << len(nodes)) - 1, nodes[0]),)
    return tuple(NodeClass(sum(1 << number for number in numbers), nodes[numbers[0]])
                 for numbers in members.values())


@cache
def lane_of_socket(cores: int, share: str, lane: int) -> Lane:
    """First core and number of cores that a lane has in a socket of `cores` cores.

    A whole share is all of the socket. A half share is one of two lanes of C/2 cores,
    rounded down but never to 0; on a socket of one core only lane 0 has it.
    """
    if share == WHOLE:
        return 0, cores
    half = max(1, cores // 2)
    first = lane * half
    return first, min(half, cores - first)


@cache
def _capacity(sockets: tuple[int, ...], share: str, lane: int, width: int) -> int:
    return sum(lane_of_socket(cores, share, lane)[1] // width for cores in sockets)


@dataclass
class Socket:
    """A socket in a view of the cluster: `slots[core]` is the id of the job there, or None."""

    number: int
    slots: list[int | None]

    @property
    def taken(self) -> int:
        """Cores in use."""
        return sum(slot is not None for slot in self.slots)

    @property
    def status(self) -> str:
        """`Empty`, `Full`, or `Slots` when some cores are taken."""
        if not self.taken:
            return "Empty"
        return "Full" if self.taken == len(self.slots) else "Slots"
