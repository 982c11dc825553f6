"""Resources of nodes besides cores, and the jobs that use them: GPUs by index, memory and other amounts, licences;
from the state file.
"""

from __future__ import annotations

from typing import Any
from collections.abc import Iterable, Mapping, Sequence

GPU, MEMORY = "gpu", "memory"

Node = Mapping[str, Any]
Held = dict[tuple[str, str, int], int]
"""The id of the job that holds a device, by node, resource and index."""


def parse_devices(text: str) -> dict[str, dict[str, tuple[int, ...]]]:
    """Return the devices of a job by node and resource, from a text such as `n0:gpu/0,2;n1:gpu/1+mic/0`; empty for
    other texts."""
    found: dict[str, dict[str, tuple[int, ...]]] = {}
    for part in text.split(";"):
        node, _, rest = part.rpartition(":")
        for each in rest.split("+"):
            name, _, indices = each.partition("/")
            if node and indices.replace(",", "").isdigit():
                found.setdefault(node, {})[name] = tuple(
                    int(index) for index in indices.split(",") if index)
    return found


def held(jobs: Iterable[Mapping[str, Any]]) -> Held:
    """Return which job holds which device."""
    return {(node, name, index): job["id"] for job in jobs if job.get("devices")
            for node, here in parse_devices(job["devices"]).items()
            for name, indices in here.items() for index in indices}


def gpus(node: Node, holders: Held) -> list[tuple[int, int | None]]:
    """Return the GPUs of a node: index, and the job that holds it or None."""
    _, there = node.get("resources", {}).get(GPU, (0, 0))
    indices = node.get("devices", {}).get(GPU, range(int(there)))
    return [(index, holders.get((node["name"], GPU, index))) for index in indices]


def has_resources(snapshot: Mapping[str, Any]) -> bool:
    """Return whether there is anything besides cores that is of interest. All nodes have memory, so memory counts
    only if a job uses some."""
    return bool(snapshot.get("licences")) or any(
        node.get("features") or any(name != MEMORY or left != there
                                    for name, (left, there) in node.get("resources", {}).items())
        for node in snapshot["nodes"])


def rows(nodes: Sequence[Node], holders: Held, apps: Mapping[int, str]
         ) -> tuple[list[str], list[list[str]]]:
    """Return the column names and rows of a table of what nodes have besides cores: the free amounts, and the job on
    each GPU (`.`: free)."""
    resources = sorted({name for node in nodes for name in node.get("resources", {}) if name != GPU},
                       key=lambda name: (name != MEMORY, name))
    most = max((len(gpus(node, holders)) for node in nodes), default=0)
    features = any(node.get("features") for node in nodes)
    names = ["Node", *(name.capitalize() for name in resources),
             *(f"GPU {number}" for number in range(most)), *["Features"] * features]
    lines: list[list[str]] = []
    for node in nodes:
        amounts = [f"{left:g}/{there:g}" + " GiB" * (name == MEMORY) if there else "" for name, (
            left, there) in ((name, node.get("resources", {}).get(name, (0, 0))) for name in resources)]
        on = []
        for place, (index, job) in enumerate(gpus(node, holders)):
            called = "." if job is None else apps.get(job, f"#{job}")
            on.append(called if index == place else f"{index}: {called}")
        lines.append([node["name"], *amounts, *on, *[""] * (most - len(on)),
                      *[", ".join(node.get("features", ()))] * features])
    return names, lines


def licences_line(snapshot: Mapping[str, Any]) -> str:
    """Return a text as `Licences free: ansys 2 of 4`; empty if there are none."""
    found = [f"{name} {left:g} of {there:g}"
             for name, (left, there) in snapshot.get("licences", {}).items()]
    return f"Licences free: {', '.join(found)}" if found else ""
