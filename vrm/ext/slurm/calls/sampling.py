"""What the processes of running jobs use now, put together from what each node says of them."""

from __future__ import annotations

from typing import Any
from collections.abc import Mapping

from vrm.ext.slurm.calls.jobs import StepUsage
from vrm.live.nodes.usage import BATCH


def put_together(found: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[StepUsage]:
    """What the script of a job (`batch`) and its steps use; `found` by nodes (see `vrm.live.nodes.usage`)."""
    steps: dict[str, dict[str, Mapping[str, Any]]] = {}
    for node, here in found.items():
        for step, used in here.items():
            steps.setdefault(step, {})[node] = used
    rows = []
    for step in sorted(steps, key=lambda step: -1 if step == BATCH else int(step)):
        on = steps[step]
        widest = max(on, key=lambda node: on[node]["largest"])
        rows.append(StepUsage(
            step, len({task for used in on.values() for task in used["tasks"]}),
            sum(used["cpu"] for used in on.values()),
            on[widest]["largest"], sum(used["memory"] for used in on.values()), widest,
            tuple(pid for used in on.values() for pid in used["pids"]), tuple(on)))
    return rows
