"""A cap on power, as a constraint: a job starts only where what it draws is left at every moment of its walltime.

The cap holds as long as jobs draw what is known of them, and end by their walltimes. Under it a job takes what it adds
to the idle power of all nodes; what is left for jobs is the cap less that idle power. Amounts are whole milliwatts, so
that what is given back is exactly what was taken.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterator, Sequence

from vrm.model.cluster import Cluster
from vrm.model.constraint import Constraint
from vrm.model.job import Job
from vrm.model.placement import Placement
from vrm.model.measured.energy import Programs
from vrm.model.measured.power import draw
from vrm.model.node import Node
from vrm.ext.energy.cap import Cap
from vrm.scheduling.registry import PolicyError


class PowerCap(Constraint):
    """What a cap leaves for jobs, in milliwatts, and what those take that run in a view of the machine.

    A job takes its amount from its start to the end of its walltime; one that runs longer takes it for
    ever, until it is gone.
    """

    __slots__ = ("_nodes", "_programs", "_uniform", "_times", "_levels", "_last", "held", "total", "_floor")

    def __init__(self, cap: str, cluster: Cluster) -> None:
        """`cap` is a text as of `Cap.of`. Raises PolicyError for another, and for a cap that does not leave the nodes
        their idle power."""
        try:
            steps = Cap.of(cap)
        except ValueError as error:
            raise PolicyError(f"PowerCap: `{cap}`: {error}; give watts, as 5000, or steps of seconds and "
                              "watts, as `0=5000 28800=3000`") from None
        nodes = cluster.nodes
        idle = idle_power(nodes)
        if steps.least < idle or not steps.least:
            raise PolicyError(f"PowerCap: {steps.least:g} W is less than the {idle:g} W that the "
                              f"{len(nodes)} nodes draw without a job; give more than that"
                              if idle else "PowerCap: 0 W leave nothing to run with; give more")
        self._nodes, self._programs = nodes, cluster.programs
        self._uniform = len({(one.node.cores, one.node.power) for one in cluster.classes}) == 1
        self._times = [time for time, _ in steps.steps]
        self._levels = [int((watts - idle) * 1000) for _, watts in steps.steps]
        self._last: list[tuple[Job, Placement, int]] = []  # the amount that was asked for last, of all copies
        self.held: dict[int, tuple[float, int]] = {}  # end and amount
        self.total = 0
        self._floor: int | None = None

    def copy(self) -> PowerCap:
        """Return an independent copy."""
        twin = PowerCap.__new__(PowerCap)
        twin._nodes, twin._programs, twin._uniform, twin._last = self._nodes, self._programs, self._uniform, self._last
        twin._times, twin._levels = self._times, self._levels
        twin.held, twin.total, twin._floor = dict(self.held), self.total, self._floor
        return twin

    def depends(self, job: Job) -> bool:
        """Return whether what a job draws is predicted from where it runs: its user has not said it."""
        return not job.watts

    def uniform(self) -> bool:
        """Return whether all nodes are alike."""
        return self._uniform

    def most(self) -> int:
        """Return what there ever is for a job."""
        return max(self._levels)

    def _added(self, job: Job, placement: Placement) -> int:
        """Milliwatts that a job draws there above idle nodes; 0 where that is not known."""
        for known, where, amount in self._last:
            if known is job and where is placement:
                return amount
        amount = added(job, placement, self._nodes, self._programs) or 0
        self._last[:] = [(job, placement, amount)]
        return amount

    def _need(self, job: Job, alone: Placement | None) -> int | None:
        """Milliwatts that a job adds on the empty machine; None where that is not known."""
        if job.watts:
            return max(0, round(job.watts * 1000))
        return None if alone is None else added(job, alone, self._nodes, self._programs)

    def never(self, job: Job, alone: Placement | None) -> str:
        """Return why a job can never start: what it draws is not known, or is never left."""
        need = self._need(job, alone)
        if need is None:
            return (f"PowerCap: what {job.app} draws is not known; say watts=N in its line, or Busy: N in the Energy "
                    "of the node classes, or measure it (vrm energy measure)")
        if need > self.most():
            return (f"PowerCap: it draws {need / 1000:g} W above idle nodes, at most {self.most() / 1000:g} W are ever "
                    "left for jobs")
        return ""

    def allows(self, job: Job, placement: Placement | None, begin: float, end: float) -> bool:
        """Return whether what the job draws is left."""
        left = self.room(begin, end)
        if left <= 0 or job.watts * 1000 > left:
            return False
        return placement is None or self._added(job, placement) <= left

    def take(self, job: Job, placement: Placement, begin: float, end: float) -> None:
        """A job takes an amount up to an end."""
        amount = self._added(job, placement)
        self.held[job.id] = end, amount
        self.total += amount

    def give(self, job: Job, placement: Placement) -> None:
        """A job is gone."""
        self.total -= self.held.pop(job.id, (0.0, 0))[1]

    def boundaries(self, after: float) -> Iterator[float]:
        """Return when the cap is another one."""
        return (time for time in self._times if time > after)

    def room(self, begin: float, end: float) -> int:
        """Return what is left all the time from `begin`, which is that of the view, to before `end`."""
        if len(self._times) == 1:  # most caps are the same all the time
            left = self._levels[0] - self.total
            return left if self._floor is None or left < self._floor else self._floor
        at = max(0, bisect.bisect_right(self._times, begin) - 1)
        least = self._levels[at] - self.total
        for later in range(at + 1, len(self._times)):
            time = self._times[later]
            if time >= end:
                break
            used = sum(amount for until, amount in self.held.values()
                       if until > time or until <= begin)
            least = min(least, self._levels[later] - used)
        return least if self._floor is None else min(least, self._floor)

    def keep_common(self, other: Constraint, at: float) -> None:
        """Have no more left than the other, which is of a view at `at`, has then."""
        assert isinstance(other, PowerCap)  # the same constraint of another view
        left = other.room(at, at)
        self._floor = left if self._floor is None else min(self._floor, left)

    def alike(self, other: Constraint) -> bool:
        """Return whether the same jobs take the same in the other."""
        return isinstance(other, PowerCap) and self.held == other.held

    def lacks(self, job: Job, alone: Placement | None, begin: float, end: float) -> str:
        """Return how much the job draws, and how much power is left."""
        need = self._need(job, alone)
        return f"draws {(need or 0) / 1000:g} W, {max(0, self.room(begin, end)) / 1000:g} W are left under PowerCap"


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
