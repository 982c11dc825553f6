"""The rooms of vrm, and what may import what."""

from __future__ import annotations

from pathlib import Path

import vrm


HOUSE = Path(vrm.__file__).parent
DIRECT = {
    "model": "", "system": "",
    "scheduling": "model system",
    "workload": "model system",
    "results": "model system",
    "run": "scheduling workload system",
    "config": "scheduling workload system",
    "live.runner": "",
    "live.relay": "live.runner",
    "live.nodes": "model system live.relay",
    "live.batch": "model system",
    "live.launch": "live.nodes live.batch scheduling",
    "live.spawn": "system live.relay",
    "live.site": "run results config live.launch live.spawn",
    "live.manager": "run results live.site",
    "simulation": "run results config",
    "report": "results",
}
"""A room, and the rooms below it. Each may import also what those may."""


def below(room: str) -> frozenset[str]:
    """All rooms that a room may import."""
    direct = DIRECT[room].split()
    return frozenset(direct).union(*map(below, direct))
