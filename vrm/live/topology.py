"""What this machine offers to this process: sockets, cores, their CPU numbers, a CPU quota.

Read from the kernel's own files under /sys and /proc, with no other tool.

Three numberings of cores meet here, and mixing them up puts ranks on the wrong cores:

| numbering | used by | example: 2 sockets of 4 cores, even CPUs on the first |
|---|---|---|
| socket and core, both from 0, counting only what this process may use | the model: `Node`, `RankSlot` | socket 1, core 0 |
| logical: socket and core within it, or core of the whole machine, counting all that the cpuset has | rankfiles, what Open MPI reports | socket 1, core 0; core 4 |
| CPU numbers of the operating system, one for each hardware thread | /proc, taskset, srun, what Open MPI 5 reports when cores have one thread | CPU 1 |

The logical order is the one hwloc gives, since the launchers count with hwloc: sockets, and
within them dies, NUMA nodes, caches and cores, each level by its lowest CPU number.
"""

from __future__ import annotations

import os
import re
import threading
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Dict, FrozenSet, Iterable, List, Optional, Sequence, Set, Tuple, Union

from vrm.model import Node

PathLike = Union[str, "os.PathLike[str]"]
Size = Union[str, int]
Cpus = FrozenSet[int]


class TopologyError(Exception):
    """The machine cannot be read, or is smaller than what was asked for; the text says the mend."""


@dataclass(frozen=True)
class Core:
    """One core: its place in the logical order (see above) and its CPU numbers.

    `number` counts over the whole machine, `socket` and `index` name the same core by its
    socket and its place in it.
    """

    number: int
    socket: int
    index: int
    cpus: Tuple[int, ...]


@dataclass(frozen=True)
class Topology:
    """The cores of one machine.

    `all_cores` are those of the cpuset in logical order, which is what a launcher sees;
    `sockets` are the ones among them that this process may use, socket by socket, without
    empty sockets. `hidden` tells that the cpuset leaves some socket no core at all.
    """

    host: str
    all_cores: Tuple[Core, ...]
    sockets: Tuple[Tuple[Core, ...], ...]
    hidden: bool = False

    @classmethod
    def regular(cls, host: str, sockets: Sequence[int]) -> "Topology":
        """A machine with one thread on each core and CPUs numbered in logical order."""
        cores: List[Core] = []
        for place, size in enumerate(sockets):
            first = len(cores)
            cores += [Core(first + i, place, i, (first + i,)) for i in range(size)]
        return cls(host, tuple(cores), _by_socket(cores))

    @property
    def node(self) -> Node:
        """The usable cores as a node of the model."""
        return Node(self.host, tuple(len(cores) for cores in self.sockets))

    @property
    def cores(self) -> int:
        """How many cores this process may use."""
        return sum(len(cores) for cores in self.sockets)

    @cached_property
    def threads(self) -> bool:
        """Whether some core has several hardware threads."""
        return any(len(core.cpus) > 1 for core in self.all_cores)

    @cached_property
    def even(self) -> bool:
        """Whether the cpuset has the same number of cores of every socket."""
        counts = {len(cores) for cores in _by_socket(self.all_cores)}
        return len(counts) == 1 and not self.hidden

    @cached_property
    def number_of_cpu(self) -> Dict[int, int]:
        """The logical number of the core that each CPU belongs to."""
        return {cpu: core.number for core in self.all_cores for cpu in core.cpus}

    def core(self, socket: int, core: int) -> Core:
        """The core that the model calls so; IndexError when this machine has none such."""
        return self.sockets[socket][core]


# ------------------------------------------------------------------------------- this machine


def read_topology(root: PathLike = "/") -> Topology:
    """The topology of this machine as this process may use it.

    `root` stands for a file system to read instead (all of whose CPUs may then be used).
    Raises TopologyError when it shows no usable CPU.
    """
    if Path(root) != Path("/"):
        return parse_topology(root, host_name())
    mask = os.sched_getaffinity(0)
    return parse_topology(root, host_name(), cpuset=_cpuset(mask), mask=mask)


def host_name() -> str:
    """The short name of this machine."""
    return os.uname().nodename.partition(".")[0]


def _cpuset(mask: Set[int]) -> Set[int]:
    """The CPUs of the cpuset this process lives in, which is what launchers see and use.

    An affinity mask can be smaller (taskset, srun): Open MPI does not keep to it. The mask is
    widened in a thread that ends at once, since the kernel cuts it to the cpuset and knows
    cpusets of every kind.
    """
    found = set(mask)

    def widen() -> None:
        try:
            os.sched_setaffinity(0, range(max(os.cpu_count() or 1, max(mask) + 1)))
            found.update(os.sched_getaffinity(0))
        except OSError:  # a sandbox forbids it: then the mask is all there is to know
            pass

    thread = threading.Thread(target=widen)
    thread.start()
    thread.join()
    return found


# ------------------------------------------------------------------------------------ parsing


def parse_topology(root: PathLike, host: str, cpuset: Optional[Iterable[int]] = None,
                   mask: Optional[Iterable[int]] = None) -> Topology:
    """The topology that the files under `root` describe, cut to a cpuset and to a mask.

    None stands for all CPUs. Raises TopologyError when nothing is left. Where the kernel tells
    nothing of sockets or threads, CPUs are cores of one socket.
    """
    kernel = _Kernel(Path(root, "sys/devices/system"), cpuset)
    allowed = kernel.cpus if cpuset is None else kernel.cpus & frozenset(cpuset)
    usable = allowed if mask is None else allowed & frozenset(mask)
    if not usable:
        raise TopologyError(f"no CPU that this process may use is found under {kernel.system}")
    places: Dict[Cpus, int] = {}
    sizes: Dict[int, int] = {}
    cores: List[Core] = []
    taken: Set[int] = set()
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
                    hidden=any(kernel.package(cpu) not in places for cpu in kernel.cpus))


def _by_socket(cores: Iterable[Core]) -> Tuple[Tuple[Core, ...], ...]:
    sockets: Dict[int, List[Core]] = {}
    for core in cores:
        sockets.setdefault(core.socket, []).append(core)
    return tuple(tuple(sockets[place]) for place in sorted(sockets))


class _Kernel:
    """The kernel's files on CPUs below `system`; each is read once."""

    def __init__(self, system: Path, cpuset: Optional[Iterable[int]]) -> None:
        self.system = system
        self._lists: Dict[Path, Cpus] = {}
        self._numa = sorted((system / "node").glob("node[0-9]*"))
        self.cpus = self._online(cpuset)

    def _online(self, cpuset: Optional[Iterable[int]]) -> Cpus:
        """The CPUs that are switched on."""
        listed = self._list(self.system / "cpu/online")
        if listed:
            return listed
        names = (entry.name[3:] for entry in (self.system / "cpu").glob("cpu[0-9]*"))
        named = frozenset(int(name) for name in names if name.isdigit())
        return named or frozenset(cpuset or ())  # /sys is masked in some containers

    def package(self, cpu: int) -> Cpus:
        """The CPUs of the CPU's socket. Some ARM machines call every socket -1."""
        folder = self.system / f"cpu/cpu{cpu}/topology"
        siblings = self._first_list(folder, "package_cpus_list", "core_siblings_list")
        if siblings:
            return siblings | {cpu}
        own = _read(folder / "physical_package_id")
        if own is None:
            return self.cpus
        return frozenset(other for other in self.cpus if own == _read(
            self.system / f"cpu/cpu{other}/topology/physical_package_id"))

    def threads(self, cpu: int) -> Cpus:
        """The CPUs of the CPU's core."""
        folder = self.system / f"cpu/cpu{cpu}/topology"
        return self._first_list(folder, "core_cpus_list", "thread_siblings_list") | {cpu}

    def nest(self, cpu: int) -> Tuple[int, ...]:
        """The CPU's place in the logical order: the lowest CPU of everything around it, from
        the largest (the socket, or a NUMA node of several) to the core, and the CPU itself."""
        folder = self.system / f"cpu/cpu{cpu}"
        around = {self.package(cpu), self.threads(cpu)}
        around.update(self._list(folder / f"topology/{name}_cpus_list")
                      for name in ("die", "cluster"))
        around.update(self._list(path / "shared_cpu_list")
                      for path in (folder / "cache").glob("index[0-9]*"))
        around.update(self._list(path / "cpulist") for path in self._numa)
        nest = sorted((group for group in around if cpu in group),
                      key=lambda group: (-len(group), min(group)))
        return (*map(min, nest), cpu)

    def _first_list(self, folder: Path, *names: str) -> Cpus:
        """The first of several files that there is; the kernel has renamed some."""
        return next(filter(None, (self._list(folder / name) for name in names)), frozenset())

    def _list(self, path: Path) -> Cpus:
        """The CPUs listed in a file that are switched on; none when there is no such file."""
        found = self._lists.get(path)
        if found is None:
            try:
                found = parse_cpu_list(_read(path) or "")
            except ValueError as error:
                raise TopologyError(f"{path}: {error}") from error
            if path.name != "online":
                found &= self.cpus
            self._lists[path] = found
        return found


def _read(path: Path) -> Optional[str]:
    try:
        return path.read_text().strip()
    except OSError:  # files differ between kernels, machines and containers
        return None


def parse_cpu_list(text: str) -> Cpus:
    """The numbers in a kernel's list such as `0-3,8,10-11`; ValueError when it is none."""
    numbers: Set[int] = set()
    for part in text.split(",") if text.strip() else ():
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if not match:
            raise ValueError(f"`{text.strip()}` is not a list of CPU numbers")
        first = int(match.group(1))
        numbers.update(range(first, int(match.group(2) or first) + 1))
    return frozenset(numbers)


# -------------------------------------------------------------------------------------- quota


def cpu_quota(root: PathLike = "/") -> Optional[float]:
    """How many CPUs' worth of time the control groups of this process allow; None = no limit.

    Containers are often given less time than cores; ranks on all cores are then stopped by
    the kernel for part of every period. Version 1 and 2 of control groups are read, with all
    groups above.
    """
    quotas = []
    for line in (_read(Path(root, "proc/self/cgroup")) or "").splitlines():
        _, controllers, group = (line.split(":", 2) + ["", ""])[:3]
        if controllers and "cpu" not in controllers.split(","):
            continue
        for mount in ("sys/fs/cgroup", f"sys/fs/cgroup/{controllers}", "sys/fs/cgroup/cpu"):
            place = Path(group.lstrip("/"))
            for above in (place, *place.parents):
                quotas.append(_quota(Path(root, mount, above)))
    return min((quota for quota in quotas if quota is not None), default=None)


def _quota(folder: Path) -> Optional[float]:
    """CPUs' worth of time that one control group allows itself."""
    words = (_read(folder / "cpu.max") or "").split() or [
        _read(folder / "cpu.cfs_quota_us") or "", _read(folder / "cpu.cfs_period_us") or ""]
    if len(words) == 2 and all(word.isdigit() for word in words) and int(words[1]):
        return int(words[0]) / int(words[1])
    return None  # `max` or -1


# ----------------------------------------------------------------------------------- geometry


def geometry(nodes: Size = "auto", sockets: Size = "auto", cores: Size = "auto",
             emulate: bool = False, topology: Optional[Topology] = None
             ) -> Tuple[List[Node], bool]:
    """The nodes of the wished cluster, and whether they are emulated.

    Each size is a number or `auto`, which is what the machine has. A cluster that is smaller
    than the machine uses its first sockets and cores. A larger one is emulated if `emulate`
    allows it (its nodes are then n0, n1, ...), else TopologyError.
    """
    machine = (topology or read_topology()).node
    wanted_nodes = _size("Nodes", nodes) or 1
    wanted_sockets = _size("Sockets", sockets) or len(machine.sockets)
    wanted_cores = _size("Cores", cores)
    shape = tuple(
        wanted_cores or (machine.sockets[i] if i < len(machine.sockets) else max(machine.sockets))
        for i in range(wanted_sockets))
    fits = wanted_nodes == 1 and wanted_sockets <= len(machine.sockets) and all(
        wanted <= there for wanted, there in zip(shape, machine.sockets))
    if fits:
        return [Node(machine.name, shape)], False
    if emulate:
        return [Node(f"n{i}", shape) for i in range(wanted_nodes)], True
    raise TopologyError(
        f"Nodes, Sockets and Cores ask for {wanted_nodes} node(s) of {_shape(shape)} cores; this "
        f"machine is 1 node of {_shape(machine.sockets)} usable cores. Make them smaller, or "
        "write auto; or add `Emulate: true` to run the ranks oversubscribed and unbound")


def _size(key: str, value: Size) -> int:
    """The number, or 0 for auto."""
    if value == "auto":
        return 0
    if not isinstance(value, int) or value < 1:
        raise TopologyError(f"{key}: found {value!r}, wanted auto or a whole number from 1 up")
    return value


def _shape(sockets: Sequence[int]) -> str:
    """`2 x 4` for two sockets of four cores, `2+4` when they differ."""
    if len(set(sockets)) == 1:
        return f"{len(sockets)} x {sockets[0]}"
    return "+".join(map(str, sockets))
