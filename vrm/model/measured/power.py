"""Power of jobs on a machine.

The power of a job is what its user says (`watts=`), otherwise the prediction for its program on its nodes, otherwise
its share of the power of busy nodes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from collections.abc import Sequence

from vrm.model.measured.energy import Programs
from vrm.model.job import Job
from vrm.model.node import Node

if TYPE_CHECKING:
    from vrm.model.placement import Placement

MARK = "class:"
"""Prefix of the feature that says which power class a node belongs to."""


def draw(job: Job, placement: Placement, nodes: Sequence[Node], programs: Programs
         ) -> float | None:
    """Return the mean watts of a job on its nodes; None if unknown. A prediction is for whole nodes; for a job that
    shares a node, only the power above idle counts, in proportion to its cores."""
    if job.watts:
        return job.watts
    total = 0.0
    for number, tasks in placement.ranks_by_node(nodes):
        node = nodes[number]
        power = node.power
        if power is None:
            return None
        there = programs.at(job.app, power, placement.frequency)
        busy = there.watts if there is not None else power.busy
        if not busy:
            return None
        whole = placement.alone & 1 << number
        share = 1.0 if whole else min(1.0, tasks * job.cores / node.cores)
        total += power.idle * bool(whole) + share * (busy - power.idle)
    return total


def pace(job: Job, placement: Placement, nodes: Sequence[Node], programs: Programs) -> float:
    """Return the run time of a job at its placement, as a multiple of that on its program's first class at the highest
    frequency. It is that of its slowest node."""
    classes = {power.name: power for number, _ in placement.ranks_by_node(nodes)
               if (power := nodes[number].power) is not None}
    return max((programs.pace(job.app, power, placement.frequency) for power in classes.values()),
               default=1.0)
