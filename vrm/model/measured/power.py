"""Power of jobs on a machine.

What a job draws is what its user says (`watts=`), else what is predicted of its program on its nodes,
else its share of what a busy node draws.
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
"""What the feature begins with that says to which power class a node belongs."""


def draw(job: Job, placement: Placement, nodes: Sequence[Node], programs: Programs
         ) -> float | None:
    """Mean watts of a job on its nodes; None where that is not known. A prediction is of whole nodes,
    and a job that shares one is taken to draw as much more than the idle node as its cores are."""
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
    """The run time of a job where it is, as a multiple of that on its program's first class at the
    highest frequency: that of its slowest node."""
    classes = {power.name: power for number, _ in placement.ranks_by_node(nodes)
               if (power := nodes[number].power) is not None}
    return max((programs.pace(job.app, power, placement.frequency) for power in classes.values()),
               default=1.0)
