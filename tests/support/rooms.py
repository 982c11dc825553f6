"""The packages of vrm (rooms), and which may import which."""

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
"""Each room, and the rooms directly below it. A room may import these and everything below them."""


def below(room: str) -> frozenset[str]:
    """Return all rooms that a room may import."""
    direct = DIRECT[room].split()
    return frozenset(direct).union(*map(below, direct))
