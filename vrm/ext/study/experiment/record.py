"""What is known of a run beside its results: versions, machine, inputs, seeds and times.

It is kept in run.json, so that another person can repeat the run and judge what differs.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from datetime import datetime
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any
from collections.abc import Callable, Iterable

import vrm
from vrm.live.nodes.topology import TopologyError, read_topology
from vrm.system.files import write_atomically

RECORD = "run.json"


def read_record(directory: Path) -> dict[str, Any] | None:
    """The record of a run's directory; None where there is none, ValueError where it is damaged."""
    path = directory / RECORD
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise ValueError("it is not a JSON object")
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise ValueError(f"{path}: vrm has not written this ({error}); remove the run's "
                         "directory and it is done again") from error
    return found


def write_record(directory: Path, record: dict[str, Any]) -> None:
    """Replace the record of a run's directory, whole or not at all."""
    write_atomically(directory / RECORD, json.dumps(record, indent=2) + "\n")


def moment(time: float) -> str:
    """A time since the epoch (s) as people and programs read it, with the offset of the zone."""
    return datetime.fromtimestamp(time).astimezone().isoformat(timespec="seconds")


def versions(mpi: str | None) -> dict[str, str]:
    """What the results depend on; `source` tells vrm's very files."""
    found = {"vrm": vrm.__version__, "source": _source(),
             "python": platform.python_version(), "numpy": metadata.version("numpy")}
    return {**found, "mpi": mpi} if mpi else found


@lru_cache(maxsize=1)
def _source() -> str:
    root = Path(vrm.__file__).parent
    return digest(sorted(root.rglob("*.py")))


def digest(paths: Iterable[Path]) -> str:
    """A fingerprint of files: the first 16 hex digits of the SHA-256 of their contents."""
    found = hashlib.sha256()
    for path in paths:
        with open(path, "rb") as file:
            while True:
                block = file.read(1 << 20)
                if not block:
                    break
                found.update(block)
    return found.hexdigest()[:16]


def machine() -> dict[str, Any]:
    """What the machine is: processor, usable cores, memory (bytes), kernel, load (1, 5, 15 min)."""
    found: dict[str, Any] = {
        "host": platform.node(), "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)), "memory": _memory(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "load": [round(value, 2) for value in os.getloadavg()]}
    try:
        found["sockets"] = list(read_topology().node.sockets)
    except TopologyError:
        pass  # a system that does not show its sockets; the cores are told above
    return found


def _memory() -> int:
    """The machine's memory in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass  # not everywhere is /proc; the architecture is all there is then
    return platform.processor() or platform.machine()


def programs(file_of: Callable[[str, str], Path], wanted: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The fingerprints of programs, by their paths where jobs name these, else by name; `file_of`
    gives the file of name and path ("": none)."""
    return {file or app: digest([file_of(app, file)]) for app, file in wanted}
