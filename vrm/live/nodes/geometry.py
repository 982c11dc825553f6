"""Builds the cluster of a run from what its nodes have (`vrm.live.nodes.topology`) and what the configuration
requests."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from collections.abc import Callable, Mapping, Sequence

from vrm.live.nodes.topology import Gpu, NodeFacts, Topology, TopologyError, read_topology
from vrm.model.amounts import GPU, MEMORY, people
from vrm.model.node import Device, Node

Size = str | int


def geometry(nodes: Size = "auto", sockets: Size = "auto", cores: Size = "auto",
             emulate: bool = False, topology: Topology | None = None
             ) -> tuple[list[Node], bool]:
    """Return the nodes of the requested cluster, and whether they are emulated.

    Each size is a number or `auto`, which means all that the machine has. A cluster that is smaller than the machine
    uses its first sockets and cores. A larger one is emulated if `emulate` allows that (its nodes are then n0, n1,
    ...); otherwise raises TopologyError.
    """
    machine = topology or read_topology()
    found = cluster_geometry([machine.host], {machine.host: NodeFacts(machine)},
                             nodes, sockets, cores, emulate)
    return list(found.nodes), found.emulated


@dataclass(frozen=True)
class Geometry:
    """The nodes of a run and their topologies by name. An `emulated` cluster has no topologies: all of its nodes are
    this machine. `warnings` report what is used differently than expected. `granted` are all nodes of the allocation;
    one that does not answer is assumed to be like the first that does. `whole` are the nodes with all cores that they
    have, if the batch system has granted fewer and the configuration requests all; otherwise it is empty. `gpus` are
    the GPUs of each node by its name."""

    nodes: tuple[Node, ...]
    topologies: Mapping[str, Topology]
    emulated: bool = False
    warnings: tuple[str, ...] = ()
    granted: tuple[Node, ...] = ()
    gpus: Mapping[str, tuple[Gpu, ...]] = field(default_factory=dict)
    whole: tuple[Node, ...] = ()


MOST_CORES = 10_000_000
"""Number of cores of the largest possible cluster."""


def cluster_geometry(hosts: Sequence[str], facts: Mapping[str, NodeFacts],
                     nodes: Size = "auto", sockets: Size = "auto", cores: Size = "auto",
                     emulate: bool = False, granted: Mapping[str, int] | None = None,
                     failed: Mapping[str, str] | None = None,
                     memory: Mapping[str, int] | None = None,
                     stand_ins: Callable[[str], Sequence[Gpu]] | None = None,
                     described: bool = False, gpus: Mapping[str, int] | None = None, threads: int = 1) -> Geometry:
    """Return the requested cluster on the nodes of an allocation.

    `hosts` are in the allocation's order; `facts` are those of hosts that answered, `failed` the reasons of those that
    did not. The latter are left out with a warning; if no host answered, raises TopologyError. `granted` is the number
    of cores that the batch system grants on a host; if the probe sees more, the first ones are used (a batch system
    that confines jobs shows only the granted cores). `memory` (bytes) and `gpus` are the amounts that it grants. The
    memory of a node is the least of the granted amount, of what the node has and of its limit. `stand_ins` returns the
    GPUs of an emulated node, which has no others. Emulated nodes share this machine's memory, unless they are only
    `described`.

    `nodes`, `sockets` and `cores` are numbers or `auto`, which means all that there are: nodes may differ. Smaller
    numbers select the first nodes, sockets and cores. Larger ones give nodes n0, n1 ... emulated on this machine if
    `emulate` allows that, otherwise TopologyError. `threads` above 1: the hardware threads of a core count as cores,
    see `Node`.
    """
    granted, failed, memory = granted or {}, failed or {}, memory or {}
    wanted_nodes = _size("Nodes", nodes) or len(hosts)
    wanted_sockets, wanted_cores = _size("Sockets", sockets), _size("Cores", cores)
    answered = [host for host in hosts if host in facts]
    if wanted_nodes * (wanted_sockets or 1) * (wanted_cores or 1) > MOST_CORES:
        raise TopologyError(f"Nodes, Sockets and Cores ask for more than {MOST_CORES} cores in all; "
                            "make them smaller, or write auto")
    if not answered:
        raise TopologyError("no node of the allocation answers: " + "; ".join(
            f"{host}: {failed.get(host, 'not asked')}" for host in hosts))
    warnings = [f"{host} is left out: {failed.get(host, 'not asked')}"
                for host in hosts if host not in facts]
    chosen, shapes, complaint = [], {}, ""
    for host in answered[:wanted_nodes]:
        machine, text = _granted(facts[host].topology, granted.get(host))
        warnings += [f"{host}: {part}" for part in (facts[host].warning, text, facts[host].lacking)
                     if part]
        shape = _wanted_shape(machine, wanted_sockets, wanted_cores)
        chosen.append(_node(host, shape, facts[host], memory.get(host, 0)))
        shapes[host] = machine
        if not complaint and not (len(shape) <= len(machine) and all(
                wanted <= there for wanted, there in zip(shape, machine))):
            complaint = (f"this machine is 1 node of {_shape(machine)} usable cores"
                         if len(hosts) == 1 else f"{host} has {_shape(machine)} usable cores")
    first = shapes[chosen[0].name]
    complaint = complaint or _without_threads(facts, threads)
    if wanted_nodes > len(hosts) and not complaint:
        complaint = (f"this machine is 1 node of {_shape(first)} usable cores" if len(hosts) == 1
                     else f"the allocation has {len(hosts)} nodes")
    if not complaint:
        like = facts[answered[0]]
        silent = [_node(host, _wanted_shape(_granted(like.topology, granted.get(host))[0],
                                            wanted_sockets, wanted_cores), like, memory.get(host, 0))
                  for host in hosts if host not in facts]
        return _of_threads(threads, Geometry(tuple(chosen), {host: facts[host].topology for host in shapes},
                        warnings=tuple(warnings),
                        granted=tuple(_promised(node, gpus or {}) for node in (
                            *chosen, *silent))[:wanted_nodes],
                        gpus={host: facts[host].gpus for host in shapes},
                        whole=() if wanted_sockets or wanted_cores else _whole(chosen, facts)))
    shape = _wanted_shape(first, wanted_sockets, wanted_cores)
    if emulate:
        machine_facts = facts[chosen[0].name]
        share = usable_memory(machine_facts, memory.get(chosen[0].name, 0)) // (
            1 if described else wanted_nodes)
        standing = {f"n{i}": tuple(stand_ins(f"n{i}")) if stand_ins else () for i in range(wanted_nodes)}
        return _of_threads(threads, Geometry(tuple(
            _node(host, shape, NodeFacts(machine_facts.topology, share, gpus=own)) for host, own in standing.items()),
            {}, True, tuple(warnings), gpus=standing))
    raise TopologyError(
        f"Nodes, Sockets and Cores ask for {wanted_nodes} node(s) of {_shape(shape)} cores; "
        f"{complaint}. Make them smaller, or write auto; or add `Emulate: true` to run the ranks "
        "oversubscribed and unbound")


def _without_threads(facts: Mapping[str, NodeFacts], threads: int) -> str:
    """Return an error text if the cores of some node do not have `threads` hardware threads each; "" if all do."""
    try:
        for each in facts.values():
            each.topology.by_thread(threads)
    except TopologyError as error:
        return str(error)
    return ""


def _of_threads(threads: int, found: Geometry) -> Geometry:
    """Return the cluster with each hardware thread as a core."""
    if threads == 1:
        return found

    def wide(nodes: Sequence[Node]) -> tuple[Node, ...]:
        return tuple(replace(node, sockets=tuple(threads * cores for cores in node.sockets), threads=threads)
                     for node in nodes)
    sockets = {node.name: node.sockets for node in found.nodes}
    return replace(found, nodes=wide(found.nodes), granted=wide(found.granted), whole=wide(found.whole), topologies={
        host: replace(machine, sockets=tuple(cores[:size] for cores, size in zip(machine.sockets, sockets[host]))
                      ).by_thread(threads) for host, machine in found.topologies.items()})


def _whole(nodes: Sequence[Node], facts: Mapping[str, NodeFacts]) -> tuple[Node, ...]:
    """Return the nodes with all their cores; () if they have all of them already."""
    whole = tuple(replace(node, sockets=topology.whole or tuple(map(len, topology.sockets)), devices={})
                  for node in nodes for topology in (facts[node.name].topology,))
    return whole if sum(node.cores for node in whole) > sum(node.cores for node in nodes) else ()


def _wanted_shape(machine: Sequence[int], sockets: int, cores: int) -> tuple[int, ...]:
    """Return the number of cores of each requested socket; 0 means as many as the machine has."""
    return tuple(cores or (machine[i] if i < len(machine) else max(machine))
                 for i in range(sockets or len(machine)))


def _granted(topology: Topology, cores: int | None) -> tuple[tuple[int, ...], str]:
    """Return the number of usable cores of each socket if `cores` are granted (None: all), and a warning if these are
    fewer than the node has."""
    sockets = topology.node.sockets
    if cores is None or cores >= sum(sockets):
        return sockets, ""
    cut, left = [], max(cores, 1)
    for size in sockets:
        cut += [min(size, left)] if left else []
        left -= min(size, left)
    return tuple(cut), (f"{cores} of the {sum(sockets)} cores that are seen there are granted to this "
                        "job, and the first ones are used")


MEMORY_STEP = 64 * 2**20
"""A node's memory is rounded down to a multiple of this number of bytes: nodes of one kind differ by a few pages."""


def usable_memory(facts: NodeFacts, granted: int = 0) -> int:
    """Return the bytes of a node's memory that a run may use: the least of what it has, of its limit, and of what is
    granted (0: unknown); 0 if nothing is known."""
    kernel = facts.memory // MEMORY_STEP * MEMORY_STEP or facts.memory
    return min((size for size in (kernel, facts.limit, granted) if size), default=0)


def _promised(node: Node, gpus: Mapping[str, int]) -> Node:
    """Return a node with the number of GPUs that the batch system grants, if fewer were found so far."""
    promised = gpus.get(node.name, 0)
    if promised <= node.resources.get(GPU, 0):
        return node
    return replace(node, resources={**node.resources, GPU: promised}, devices={})


def _node(host: str, shape: tuple[int, ...], facts: NodeFacts, granted: int = 0) -> Node:
    """Return a node with its memory and GPUs."""
    memory = usable_memory(facts, granted)
    resources: dict[str, float] = {MEMORY: people(MEMORY, memory)} if memory else {}
    devices = {}
    if facts.gpus:
        resources[GPU] = len(facts.gpus)
        devices[GPU] = tuple(Device(gpu.index, gpu.socket if gpu.socket < len(shape) else -1, gpu.uuid)
                               for gpu in facts.gpus)
    return Node(host, shape, resources, devices=devices)


def _size(key: str, value: Size) -> int:
    """Return the number, or 0 for auto; raises TopologyError for anything else."""
    if value == "auto":
        return 0
    if not isinstance(value, int) or value < 1:
        raise TopologyError(f"{key}: found {value!r}, wanted auto or a whole number from 1 up")
    return value


def _shape(sockets: Sequence[int]) -> str:
    """Return `2 x 4` for two sockets of four cores, `2+4` if they differ."""
    if len(set(sockets)) == 1:
        return f"{len(sockets)} x {sockets[0]}"
    return "+".join(map(str, sockets))
