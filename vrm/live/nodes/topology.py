"""Describes what machines offer to a run: sockets, cores and their CPU numbers, memory, GPUs.
`vrm.live.nodes.geometry` makes the cluster of a run from it.

It is read from the kernel's own files under /sys and /proc, with no other tool: those of this machine, or those that
an agent (`vrm.live.runner.agent`) sends from a node.

Three numberings of cores meet here, and mixing them up puts ranks on the wrong cores:

| numbering | used by | example: 2 sockets of 4 cores, even CPUs on the first |
|---|---|---|
| socket and core, both from 0, counting only what this process may use | the model: `Node`, `RankSlot` | socket 1, core 0 |
| logical: socket and core within it, or core of the whole machine, counting all that the cpuset has | rankfiles, what Open MPI reports | socket 1, core 0; core 4 |
| CPU numbers of the operating system, one for each hardware thread | /proc, taskset, srun, what Open MPI 5 reports when cores have one thread | CPU 1 |

The logical order is the one of hwloc, since the launchers count with hwloc: sockets, and within them dies, NUMA nodes,
caches and cores, each level ordered by its lowest CPU number.
"""

from __future__ import annotations

import math
import os
import re
import threading
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import (Any, Union)
from collections.abc import Iterable, Mapping, Sequence

from vrm.live.runner import agent
from vrm.model import Node
from vrm.system.hosts import host_name

PathLike = Union[str, "os.PathLike[str]"]
Cpus = frozenset[int]

SYSTEM = "sys/devices/system"
"""The kernel's directory of files on CPUs, below the root."""

MOST_CPUS = 1 << 16
"""The largest number of CPUs of a synthetic machine."""


class TopologyError(Exception):
    """The machine cannot be read, or is smaller than requested; the text says how to fix it."""


@dataclass(frozen=True)
class Core:
    """One core: its position in the logical order (see above) and its CPU numbers.

    `number` counts over the whole machine; `socket` and `index` name the same core by its socket and its position
    there.
    """

    number: int
    socket: int
    index: int
    cpus: tuple[int, ...]


@dataclass(frozen=True)
class Topology:
    """The cores of one machine.

    `all_cores` are those of the cpuset in logical order, which is what a launcher sees; `sockets` are those among them
    that this process may use, socket by socket, without empty sockets. `hidden` is set if some socket has no core in
    the cpuset. `whole` is the number of cores of each socket of the machine, independent of who may use them (empty:
    unknown). `synthetic`: HWLOC_SYNTHETIC makes hwloc show this machine instead of the real one; launchers then map
    ranks to it, but the kernel binds them to nothing. If `per_core` is above 1, its cores are hardware threads, that
    many of each real core (see `by_thread`).
    """

    host: str
    all_cores: tuple[Core, ...]
    sockets: tuple[tuple[Core, ...], ...]
    hidden: bool = False
    synthetic: bool = False
    whole: tuple[int, ...] = ()
    per_core: int = 1

    @classmethod
    def regular(cls, host: str, sockets: Sequence[int]) -> Topology:
        """Return a machine with one thread per core and CPUs numbered in logical order."""
        cores: list[Core] = []
        for place, size in enumerate(sockets):
            first = len(cores)
            cores += [Core(first + i, place, i, (first + i,)) for i in range(size)]
        return cls(host, tuple(cores), _by_socket(cores), whole=tuple(sockets))

    @property
    def node(self) -> Node:
        """The usable cores as a node of the model."""
        return Node(self.host, tuple(len(cores) for cores in self.sockets), threads=self.per_core)

    def by_thread(self, threads: int) -> Topology:
        """Return the same machine with each of the `threads` hardware threads of a core as a core. In a socket the
        first threads of all cores come first (`Node`); the logical numbers are those of hardware threads. Raises
        TopologyError if cores have another number of threads."""
        if threads == 1:
            return self
        other = next((core for core in self.all_cores if len(core.cpus) != threads), None)
        if other is not None:
            raise TopologyError(f"Threads: {threads}, but core {other.number} of {self.host} has {len(other.cpus)} hardware "
                                "thread(s) that this run may use; correct Threads, or leave it out")

        def thread(core: Core, at: int) -> Core:
            return Core(core.number * threads + at, core.socket, core.index * threads + at, core.cpus[at:at + 1])
        return replace(self, all_cores=tuple(thread(core, at) for core in self.all_cores for at in range(threads)),
                       sockets=tuple(tuple(thread(core, at) for at in range(threads) for core in cores)
                                     for cores in self.sockets),
                       whole=tuple(threads * cores for cores in self.whole), per_core=threads)

    def matches(self, machine: Topology) -> bool:
        """Return whether this is the topology `machine`, or (with threads as cores) a part of it."""
        if self.per_core == 1:
            return self == machine
        try:
            there = machine.by_thread(self.per_core)
        except TopologyError:
            return False
        usable = {core for cores in there.sockets for core in cores}
        return self == replace(there, sockets=self.sockets) and all(usable.issuperset(cores) for cores in self.sockets)

    @property
    def cores(self) -> int:
        """Number of cores that this process may use."""
        return sum(len(cores) for cores in self.sockets)

    @cached_property
    def threads(self) -> bool:
        """True if some core has several hardware threads."""
        return any(len(core.cpus) > 1 for core in self.all_cores)

    @cached_property
    def even(self) -> bool:
        """True if the cpuset has the same number of cores on every socket."""
        counts = {len(cores) for cores in _by_socket(self.all_cores)}
        return len(counts) == 1 and not self.hidden

    @cached_property
    def number_of_cpu(self) -> dict[int, int]:
        """The logical core number of each CPU."""
        return {cpu: core.number for core in self.all_cores for cpu in core.cpus}

    def core(self, socket: int, core: int) -> Core:
        """Return the core with this number of socket and core in the model; raises IndexError if there is none."""
        return self.sockets[socket][core]


@dataclass(frozen=True)
class Gpu:
    """A GPU that a run may use: its `kind` and `index` on its node, the `word` that makes programs use it, its `uuid`
    ("": unknown) and the socket of the model that it is nearest to (-1: unknown). See `vrm.live.runner.devices`."""

    kind: str
    index: int
    word: str
    uuid: str = ""
    socket: int = -1

    @property
    def name(self) -> str:
        """Its name on the node, such as `nvidia0`."""
        return f"{self.kind}{self.index}"


@dataclass(frozen=True)
class NodeFacts:
    """What a node has: its cores; bytes of memory (total, `available` at the time of reading, and the `limit` of its
    control groups, 0 for none); the GPUs that this run may use.

    `boot` identifies the period since its last boot, which was at `began` on this machine's monotonic clock. `warning`
    says what could not be understood, `lacking` why there are fewer GPUs than granted.
    """

    topology: Topology
    memory: int = 0
    available: int = 0
    gpus: tuple[Gpu, ...] = ()
    boot: str = ""
    warning: str = ""
    limit: int = 0
    lacking: str = ""
    began: float = field(default=-math.inf, compare=False)


# ------------------------------------------------------------------------------- this machine


def read_topology(root: PathLike = "/") -> Topology:
    """Return the topology of this machine as this process may use it, or the one of HWLOC_SYNTHETIC.

    `root` is a file system to read instead of / (all of its CPUs may then be used). Raises TopologyError if it shows
    no usable CPU.
    """
    if Path(root) != Path("/"):
        return parse_topology(root, host_name())
    synthetic = parse_synthetic(os.environ.get("HWLOC_SYNTHETIC", ""), host_name())
    if synthetic is not None:
        return synthetic
    return parse_topology(root, host_name(), cpuset=_cpuset(), mask=os.sched_getaffinity(0))


def _cpuset() -> set[int]:
    """Call `agent.widen` in a thread that ends at once, since it changes the thread's mask."""
    found: set[int] = set()
    thread = threading.Thread(target=lambda: found.update(agent.widen()))
    thread.start()
    thread.join()
    return found


# ------------------------------------------------------------------------------------ parsing


def node_facts(said: Mapping[str, Any], host: str) -> NodeFacts:
    """Return the facts of node `host` from those that an agent sent (`agent.facts`).

    Raises TopologyError if they are invalid, or show no usable CPU.
    """
    try:
        text = str(said["synthetic"])
        topology = parse_synthetic(text, host)
        warning = ""
        if topology is None:
            topology = replace(_alike(tuple(said["files"].items()), frozenset(said["cpuset"]),
                                      frozenset(said["mask"])), host=host)
            if text:
                warning = (f"HWLOC_SYNTHETIC is `{text}` there, which vrm does not understand: "
                           "expected the numbers of packages, cores and PUs, such as `pack:2 "
                           "core:4 pu:1`; the real cores are used")
        if said.get("claimed") is not None:
            topology = claimed(topology, said["claimed"])
            warning = str(said.get("shared", "")) or warning
        if said.get("fault"):
            raise TopologyError(str(said["fault"]))
        return NodeFacts(topology, int(said["memory"]), int(said["available"]),
                         gpus_of(said["devices"], topology), str(said["boot"]), warning,
                         int(said["limit"]), str(said.get("lacking", "")), time.monotonic() - float(said["age"]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise TopologyError(f"its agent sent facts that cannot be read ({error!r}); do all nodes "
                            "see the same version of vrm?") from error


def gpus_of(devices: Sequence[Mapping[str, Any]], topology: Topology | None = None
            ) -> tuple[Gpu, ...]:
    """Return the GPUs in an agent's facts. A GPU that is near the CPUs of exactly one socket gets that socket
    (`topology` None: CPUs are unknown). If GPUs of two kinds have the same index, all are renumbered from 0."""
    found = []
    indices = [int(said["index"]) for said in devices]
    sockets = topology.sockets if topology else ()
    for place, said in enumerate(devices):
        socket = said["socket"]
        if socket is None:
            near = _near(str(said["cpus"]))
            those = [number for number, cores in enumerate(sockets)
                     if any(not near.isdisjoint(core.cpus) for core in cores)]
            socket = those[0] if len(those) == 1 else -1
        elif topology and socket >= len(sockets):
            socket = -1
        found.append(Gpu(str(said["kind"]),
                         place if len(set(indices)) < len(indices) else indices[place],
                         str(said["word"]), str(said["uuid"]), int(socket)))
    return tuple(found)


def _near(text: str) -> Cpus:
    """Return the CPUs in a GPU's list; an empty set if the text is not a list, since only the nearness is lost."""
    try:
        return parse_cpu_list(text)
    except ValueError:
        return frozenset()


def claimed(topology: Topology, cpus: Iterable[int]) -> Topology:
    """Return the machine with only those of its cores that were claimed. Raises TopologyError if there are none."""
    own = frozenset(cpus)
    sockets = _by_socket(core for cores in topology.sockets for core in cores
                         if not own.isdisjoint(core.cpus))
    if not sockets:
        raise TopologyError("all of its cores are taken by other vrm; wait for their end, or ask "
                            "the batch system for whole nodes (--exclusive)")
    return replace(topology, sockets=sockets)


@lru_cache(maxsize=16)
def _alike(files: tuple[tuple[str, str], ...], cpuset: Cpus, mask: Cpus) -> Topology:
    """Return the topology of nodes with equal files (cached): most nodes of a cluster are equal, and a large one takes
    a twentieth of a second."""
    return _topology(dict(files), "/" + SYSTEM, "", cpuset, mask)


_LEVEL = re.compile(r"""
    (?P<attached>\[[^\]]*\])
    |(?P<type>[a-z]\w*):(?P<count>[1-9]\d*)(?:\([^()]*\))?
    """, re.VERBOSE | re.IGNORECASE)
_PACKAGE = re.compile(r"pa\w*|so\w*", re.IGNORECASE)
_CORE = re.compile(r"co\w*", re.IGNORECASE)
_PU = re.compile(r"pu", re.IGNORECASE)
_BETWEEN = re.compile(r"(ma|n[uo]|di|gr|ca|l[1-5])\w*", re.IGNORECASE)


def parse_synthetic(text: str, host: str) -> Topology | None:
    """Return the machine that hwloc shows if HWLOC_SYNTHETIC is `text`; None if the text is not understood.

    Supported are levels with a type: one of packages (or sockets), one of cores, PUs last, and NUMA nodes, dies,
    groups and caches anywhere between, for example `numa:2 pack:1 l3:1 core:4 pu:2`. Each number counts the children
    of one object above. CPU numbers are assumed to be in order: an `(indexes=...)` is ignored.
    """
    levels, place = [], 0
    stripped = text.strip()
    while place < len(stripped):
        match = _LEVEL.match(stripped, place)
        if not match:
            return None
        if match["type"]:
            levels.append((match["type"], int(match["count"])))
        place = match.end()
        while stripped[place:place + 1].isspace():
            place += 1
    order = "".join("P" if _PACKAGE.fullmatch(name) else "C" if _CORE.fullmatch(name)
                    else "U" if _PU.fullmatch(name) else "." if _BETWEEN.fullmatch(name) else "?"
                    for name, _ in levels)
    shape = re.fullmatch(r"(\.*P)(\.*C)(\.*U)", order)
    if not shape:
        return None
    packages, cores, threads = (
        math.prod(count for _, count in levels[slice(*shape.span(part))]) for part in (1, 2, 3))
    if packages * cores * threads > MOST_CPUS:
        return None
    every = tuple(Core(number, number // cores, number % cores,
                       tuple(range(number * threads, (number + 1) * threads)))
                  for number in range(packages * cores))
    return Topology(host, every, _by_socket(every), synthetic=True)


def parse_topology(root: PathLike, host: str, cpuset: Iterable[int] | None = None,
                   mask: Iterable[int] | None = None) -> Topology:
    """Return the topology that the files under `root` describe, cut to a cpuset and to a mask.

    None means all CPUs. Raises TopologyError if no CPU is left. If the kernel reports nothing on sockets or threads,
    each CPU is a core of one socket.
    """
    return _topology(agent.read_files(root), Path(root, SYSTEM), host, cpuset, mask)


def _topology(files: Mapping[str, str], system: PathLike, host: str,
              cpuset: Iterable[int] | None, mask: Iterable[int] | None) -> Topology:
    kernel = _Kernel(files, Path(system), cpuset)
    allowed = kernel.cpus if cpuset is None else kernel.cpus & frozenset(cpuset)
    usable = allowed if mask is None else allowed & frozenset(mask)
    if not usable:
        raise TopologyError(f"no CPU that this process may use is found under {kernel.system}")
    places: dict[Cpus, int] = {}
    sizes: dict[int, int] = {}
    cores: list[Core] = []
    taken: set[int] = set()
    for cpu in sorted(allowed, key=kernel.nest):
        if cpu in taken:
            continue
        package = kernel.package(cpu)
        threads = (kernel.threads(cpu) & package & allowed) - taken
        taken |= threads
        place = places.setdefault(package, len(places))
        cores.append(Core(len(cores), place, sizes.get(place, 0), tuple(sorted(threads))))
        sizes[place] = sizes.get(place, 0) + 1
    return Topology(host, tuple(cores),
                    _by_socket(core for core in cores if not usable.isdisjoint(core.cpus)),
                    hidden=any(kernel.package(cpu) not in places for cpu in kernel.cpus), whole=kernel.whole())


def _by_socket(cores: Iterable[Core]) -> tuple[tuple[Core, ...], ...]:
    sockets: dict[int, list[Core]] = {}
    for core in cores:
        sockets.setdefault(core.socket, []).append(core)
    return tuple(tuple(sockets[place]) for place in sorted(sockets))


class _Kernel:
    """The kernel's files on CPUs, by their path below `system` (see `agent.read_files`)."""

    def __init__(self, files: Mapping[str, str], system: Path,
                 cpuset: Iterable[int] | None) -> None:
        self.system = system
        self._files = files
        self._lists: dict[str, Cpus] = {}
        self._caches: dict[str, list[str]] = {}
        for name in files:
            folder, cache, _ = name.partition("/cache/")
            if cache:
                self._caches.setdefault(folder, []).append(name)
        self._numa = sorted(name for name in files if name.startswith("node/"))
        self.cpus = self._online(cpuset)
        self._by_id: dict[str, Cpus] = {}

    def _online(self, cpuset: Iterable[int] | None) -> Cpus:
        """Return the CPUs that are switched on."""
        listed = self._list("cpu/online")
        if listed:
            return listed
        folders = (re.fullmatch(r"cpu/cpu(\d+)", name) for name in self._files)
        named = frozenset(int(folder[1]) for folder in folders if folder)
        return named or frozenset(cpuset or ())  # /sys is masked in some containers

    def package(self, cpu: int) -> Cpus:
        """Return the CPUs of the CPU's socket. Some ARM machines number every socket -1."""
        folder = f"cpu/cpu{cpu}/topology"
        siblings = self._first_list(folder, "package_cpus_list", "core_siblings_list")
        if siblings:
            return siblings | {cpu}
        own = self._files.get(f"{folder}/physical_package_id")
        if own is None:
            return self.cpus
        if own not in self._by_id:
            self._by_id[own] = frozenset(other for other in self.cpus if own == self._files.get(
                f"cpu/cpu{other}/topology/physical_package_id"))
        return self._by_id[own]

    def threads(self, cpu: int) -> Cpus:
        """Return the CPUs of the CPU's core."""
        folder = f"cpu/cpu{cpu}/topology"
        return self._first_list(folder, "core_cpus_list", "thread_siblings_list") | {cpu}

    def whole(self) -> tuple[int, ...]:
        """Return the number of cores of each socket."""
        cores = {self.threads(cpu): self.package(cpu) for cpu in sorted(self.cpus)}
        return tuple(Counter(cores.values()).values())

    def nest(self, cpu: int) -> tuple[int, ...]:
        """Return the CPU's position in the logical order: the lowest CPU of everything around it, from the largest
        (the socket, or a NUMA node of several) to the core, and the CPU itself."""
        folder = f"cpu/cpu{cpu}"
        around = {self.package(cpu), self.threads(cpu)}
        around.update(self._list(f"{folder}/topology/{name}_cpus_list")
                      for name in ("die", "cluster"))
        around.update(self._list(name) for name in self._caches.get(folder, ()))
        around.update(self._list(name) for name in self._numa)
        nest = sorted((group for group in around if cpu in group),
                      key=lambda group: (-len(group), min(group)))
        return (*map(min, nest), cpu)

    def _first_list(self, folder: str, *names: str) -> Cpus:
        """Return the list of the first of several files that exists; the kernel has renamed some."""
        return next(filter(None, (self._list(f"{folder}/{name}") for name in names)), frozenset())

    def _list(self, name: str) -> Cpus:
        """Return the CPUs listed in a file that are switched on; an empty set if there is no such file."""
        found = self._lists.get(name)
        if found is None:
            try:
                found = parse_cpu_list(self._files.get(name, ""))
            except ValueError as error:
                raise TopologyError(f"{self.system / name}: {error}") from error
            if name != "cpu/online":
                found &= self.cpus
            self._lists[name] = found
        return found


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:  # files differ between kernels, machines and containers
        return None


def fold(numbers: Iterable[int]) -> str:
    """Return the numbers as text, `0-2,5` for 0, 1, 2, 5: the format that `parse_cpu_list` reads."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def parse_cpu_list(text: str) -> Cpus:
    """Return the numbers in a kernel's list such as `0-3,8,10-11`; raises ValueError if it is not such a list."""
    numbers: set[int] = set()
    for part in text.split(",") if text.strip() else ():
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if not match:
            raise ValueError(f"`{text.strip()}` is not a list of CPU numbers")
        first = int(match.group(1))
        numbers.update(range(first, int(match.group(2) or first) + 1))
    return frozenset(numbers)
