"""Makes fake /sys trees that describe the processors of machines."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path


Cores = Sequence[Sequence[int]]  # of one socket: the CPU numbers of each core
TWO_BY_FOUR = [[(0,), (1,), (2,), (3,)], [(4,), (5,), (6,), (7,)]]
EVEN_ODD_THREADS = [[(0, 8), (2, 10), (4, 12), (6, 14)], [(1, 9), (3, 11), (5, 13), (7, 15)]]


def listed(cpus: Iterable[int]) -> str:
    return ",".join(map(str, sorted(cpus))) + "\n"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def machine(root: Path, sockets: Sequence[Cores], online: set[int] | None = None,
            numa: Sequence[set[int]] = (), caches: Sequence[set[int]] = (),
            package_id: int | None = None, old_names: bool = False,
            without: Collection[str] = ()) -> Path:
    """Write the files of the kernel from which vrm and hwloc read topologies, for these sockets; return `root`.
    `caches` are the CPU sets of the third-level caches, `numa` those of the NUMA nodes."""
    every = {cpu for cores in sockets for core in cores for cpu in core}
    online = every if online is None else online
    system = root / "sys/devices/system"
    for name, cpus in (("online", online), ("possible", every), ("present", every)):
        write(system / "cpu" / name, listed(cpus))
    for place, cores in enumerate(sockets):
        package = {cpu for core in cores for cpu in core} & online
        for number, core in enumerate(cores):
            for cpu in core:
                folder = system / f"cpu/cpu{cpu}"
                folder.mkdir(parents=True)
                if cpu in online:
                    threads = set(core) & online
                    called = place if package_id is None else package_id
                    files = {"physical_package_id": f"{called}\n", "core_id": f"{number}\n"}
                    names = (("core_siblings", "thread_siblings") if old_names
                             else ("package_cpus", "core_cpus"))
                    for name, cpus in zip(names, (package, threads)):
                        files[f"{name}_list"] = listed(cpus)
                        files[name] = f"{sum(1 << c for c in cpus):x}\n"
                    for name, text in files.items():
                        if name not in without:
                            write(folder / "topology" / name, text)
                for cache in caches:
                    if cpu in cache and cpu in online:
                        shared = cache & online
                        mask = f"{sum(1 << c for c in shared):x}\n"
                        for name, text in (
                                ("level", "3\n"), ("type", "Unified\n"), ("size", "1024K\n"),
                                ("shared_cpu_list", listed(shared)), ("shared_cpu_map", mask)):
                            write(folder / "cache/index3" / name, text)
    for number, node in enumerate(numa):
        folder = system / f"node/node{number}"
        write(folder / "cpulist", listed(node & online))
        write(folder / "cpumap", f"{sum(1 << c for c in node & online):x}\n")
        write(folder / "meminfo", f"Node {number} MemTotal: 1048576 kB\n")
        write(folder / "distance", " ".join("10" if n == number else "20"
                                            for n in range(len(numa))) + "\n")
        write(system / "node/online", f"0-{len(numa) - 1}\n")
    write(root / "proc/cpuinfo", "".join(f"processor\t: {cpu}\n\n" for cpu in sorted(online)))
    write(root / "proc/meminfo", "MemTotal: 4194304 kB\n")
    return root
