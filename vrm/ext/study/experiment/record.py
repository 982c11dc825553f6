"""The record of a run apart from its results: versions, machine, inputs, seeds and times.

It is stored in run.json, so that another person can repeat the run and see what differs.
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
    """Return the record in a run's directory; None if there is none. Raises ValueError if it is damaged."""
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
    """Replace the record in a run's directory atomically."""
    write_atomically(directory / RECORD, json.dumps(record, indent=2) + "\n")


def moment(time: float) -> str:
    """Return a time (seconds since the epoch) as ISO 8601 text with the offset of the time zone."""
    return datetime.fromtimestamp(time).astimezone().isoformat(timespec="seconds")


def versions(mpi: str | None) -> dict[str, str]:
    """Return the versions of the software that the results depend on; `source` is a digest of vrm's source files."""
    found = {"vrm": vrm.__version__, "source": _source(),
             "python": platform.python_version(), "numpy": metadata.version("numpy")}
    return {**found, "mpi": mpi} if mpi else found


@lru_cache(maxsize=1)
def _source() -> str:
    root = Path(vrm.__file__).parent
    return digest(sorted(root.rglob("*.py")))


def digest(paths: Iterable[Path]) -> str:
    """Return a fingerprint of files: the first 16 hex digits of the SHA-256 of their contents."""
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
    """Describe this machine: processor, usable cores, memory (bytes), kernel, load (1, 5, 15 min)."""
    found: dict[str, Any] = {
        "host": platform.node(), "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)), "memory": _memory(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "load": [round(value, 2) for value in os.getloadavg()]}
    try:
        found["sockets"] = list(read_topology().node.sockets)
    except TopologyError:
        pass  # a system that does not show its sockets; the number of cores is already known
    return found


def _memory() -> int:
    """Return the machine's memory in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass  # without /proc only the architecture is known
    return platform.processor() or platform.machine()


def programs(file_of: Callable[[str, str], Path], wanted: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the fingerprints of programs by their paths if jobs name paths, else by name. `file_of(app, file)`
    returns the file of a program ("": no path given)."""
    return {file or app: digest([file_of(app, file)]) for app, file in wanted}
