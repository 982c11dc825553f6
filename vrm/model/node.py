"""Nodes and their sockets: their hardware, and (in a view) which job holds which core."""

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
    """A resource of a node that jobs get by index, such as a GPU: the index by which programs choose it, the socket
    that it is attached to (-1: unknown), and its identifier, if it has one."""

    index: int
    socket: int = -1
    uuid: str = ""


@dataclass(frozen=True)
class Node:
    """The properties of one node, which never change.

    `sockets` has the number of cores of each socket; `resources` are countable (in pieces, memory in GiB); `devices`
    lists the resources that jobs get by index (see `devices_of`); `power` is what is known of its power. If `threads`
    is above 1, its cores are hardware threads, that many for each physical core. In each socket, the first threads of
    all physical cores come first, so the two halves of a socket are siblings.
    """

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
        """Number of cores of the node."""
        return sum(self.sockets)

    def called(self, names: Container[str]) -> bool:
        """Return whether `names` contains the node's name, in full or up to the first dot."""
        return self.name in names or self.name.partition(".")[0] in names

    def devices_of(self, name: str) -> tuple[Device, ...]:
        """Return the devices of a resource; if none are listed, one for each piece of it, with indices from 0."""
        listed = self.devices.get(name)
        return tuple(map(Device, range(int(self.resources.get(name, 0))))) if listed is None \
            else listed

    def capacity(self, share: str, lane: int, width: int) -> int:
        """Return how many ranks of `width` cores fit on a lane of this node (see `lane_of_socket`)."""
        return _capacity(self.sockets, share, lane, width)


class NodeClass(NamedTuple):
    """Nodes of equal shape (sockets, resources and features): the set of their numbers, and the first of them."""

    members: int
    node: Node


def node_classes(nodes: Sequence[Node]) -> tuple[NodeClass, ...]:
    """Group the nodes into classes, in the order of their first members."""
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
    """Return the first core and the number of cores that a lane has in a socket of `cores` cores.

    A lane (core share) is the part of each socket that a job may take. The whole share is all of the socket. The half
    share is one of two lanes of C/2 cores, rounded down but never to 0; in a socket of one core only lane 0 has that
    core.
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
    """A socket in a view of the cluster: `slots[core]` is the id of the job on that core, or None."""

    number: int
    slots: list[int | None]

    @property
    def taken(self) -> int:
        """Number of cores in use."""
        return sum(slot is not None for slot in self.slots)

    @property
    def status(self) -> str:
        """`Empty`, `Full`, or `Slots` if only some cores are taken."""
        if not self.taken:
            return "Empty"
        return "Full" if self.taken == len(self.slots) else "Slots"
