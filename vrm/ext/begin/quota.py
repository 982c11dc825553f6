"""Reads the limit on CPU time of this process."""

from __future__ import annotations

import os
from pathlib import Path


def cpu_quota(root: str | os.PathLike[str] = "/") -> float | None:
    """Return the limit on CPU time by the control groups of this process, as a number of CPUs; None = no limit.

    Containers often get less CPU time than they have cores; ranks on all cores are then stopped by the kernel for part
    of every period. Version 1 and 2 of control groups are read, with all parent groups.
    """
    quotas: list[float | None] = []
    for line in _read(Path(root, "proc/self/cgroup")).splitlines():
        _, controllers, group = (line.split(":", 2) + ["", ""])[:3]
        if controllers and "cpu" not in controllers.split(","):
            continue
        for mount in ("sys/fs/cgroup", f"sys/fs/cgroup/{controllers}", "sys/fs/cgroup/cpu"):
            place = Path(group.lstrip("/"))
            quotas += [_quota(Path(root, mount, above)) for above in (place, *place.parents)]
    return min((quota for quota in quotas if quota is not None), default=None)


def _quota(folder: Path) -> float | None:
    """Return the limit of one control group by itself, as a number of CPUs."""
    words = _read(folder / "cpu.max").split() or [
        _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")]
    if len(words) == 2 and all(word.isdigit() for word in words) and int(words[1]):
        return int(words[0]) / int(words[1])
    return None  # `max` or -1


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:  # files differ between kernels, machines and containers
        return ""
