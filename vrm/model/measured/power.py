"""Power of jobs on a machine, and a cap on it over time.

What a job draws is what its user says (`watts=`), else what is predicted of its program on its nodes,
else its share of what a busy node draws.
"""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass
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


def added(job: Job, placement: Placement, nodes: Sequence[Node], programs: Programs
          ) -> int | None:
    """Milliwatts by which a job raises the power of its nodes above that of idle ones; None where that
    is not known."""
    watts = draw(job, placement, nodes, programs)
    if watts is None:
        return None
    if not job.watts:
        watts -= sum(power.idle for number, _ in placement.ranks_by_node(nodes)
                     if (power := nodes[number].power) is not None
                     and placement.alone & 1 << number)
    return max(0, math.ceil(watts * 1000 - 1e-6))


def idle_power(nodes: Sequence[Node]) -> float:
    """Watts of all nodes without a job."""
    return math.fsum(node.power.idle for node in nodes if node.power is not None)


def pace(job: Job, placement: Placement, nodes: Sequence[Node], programs: Programs) -> float:
    """The run time of a job where it is, as a multiple of that on its program's first class at the
    highest frequency: that of its slowest node."""
    classes = {power.name: power for number, _ in placement.ranks_by_node(nodes)
               if (power := nodes[number].power) is not None}
    return max((programs.pace(job.app, power, placement.frequency) for power in classes.values()),
               default=1.0)


@dataclass(frozen=True)
class Cap:
    """The most watts that the machine may draw, as steps of time (seconds) and watts. Before the first
    step its watts count, after the last one the last's."""

    steps: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        for _, watts in self.steps:
            if not 0 <= watts <= 1e12:
                raise ValueError(f"a cap of {watts:g} W cannot be")
        for (one, _), (other, _) in zip(self.steps, self.steps[1:]):
            if not one < other:
                raise ValueError(f"the times of a cap ascend, {other:g} comes after {one:g}")
        if not self.steps or not all(0 <= time < 1e15 for time, _ in self.steps):
            raise ValueError("a cap has steps, at times of 0 s or more")

    @classmethod
    def of(cls, text: str) -> Cap:
        """That of a text as `5000`, or `0=5000 28800=3000`. ValueError for another."""
        steps = []
        for word in str(text).split():
            time, equals, watts = word.rpartition("=")
            if equals and not time:
                raise ValueError(word)
            steps.append((float(time or 0), float(watts)))
        return cls(tuple(steps))

    def __str__(self) -> str:
        if len(self.steps) == 1:
            return f"{self.steps[0][1]:.12g}"
        return " ".join(f"{time:.15g}={watts:.12g}" for time, watts in self.steps)

    @property
    def most(self) -> float:
        """The highest cap that there ever is."""
        return max(watts for _, watts in self.steps)

    @property
    def least(self) -> float:
        """The lowest cap that there ever is."""
        return min(watts for _, watts in self.steps)

    def at(self, time: float) -> float:
        """The cap at a time."""
        return self.steps[max(0, bisect.bisect_right(self.steps, (time, math.inf)) - 1)][1]

    def after(self, time: float) -> list[float]:
        """The times of later steps."""
        return [step for step, _ in self.steps if step > time]
