"""A cap on power, as a constraint: a job starts only if the power that it draws is available at every moment of its
walltime.

The cap holds as long as jobs draw what is known of them, and end by their walltimes. A job takes what it adds to the
idle power of all nodes; jobs together can take the cap minus that idle power. Amounts are whole milliwatts, so that a
release returns exactly the amount that was allocated.
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
from vrm.ext.energy.cap import PowerLimit
from vrm.scheduling.registry import PolicyError


class PowerCap(Constraint):
    """The power that a cap leaves for jobs, and the power that the running jobs in a view of the machine take, in
    milliwatts.

    A job takes its amount from its start to the end of its walltime; a job that runs longer keeps its amount until it
    ends.
    """

    __slots__ = ("_nodes", "_programs", "_uniform", "_times", "_levels", "_last", "held", "total", "_floor")

    def __init__(self, cap: str, cluster: Cluster) -> None:
        """`cap` is a text for `PowerLimit.of`. Raises PolicyError for an invalid one, and for a cap that is below the
        idle power of the nodes."""
        try:
            steps = PowerLimit.of(cap)
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
        self._last: list[tuple[Job, Placement, int]] = []  # the last computed amount, shared by all copies
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
        """Return whether a job's power is predicted from where it runs, because its user has not given it."""
        return not job.watts

    def uniform(self) -> bool:
        """Return whether all nodes are alike."""
        return self._uniform

    def most(self) -> int:
        """Return the most milliwatts that can ever be available for jobs."""
        return max(self._levels)

    def _added(self, job: Job, placement: Placement) -> int:
        """Return the milliwatts that a job adds to idle nodes in this placement; 0 if that is unknown."""
        for known, where, amount in self._last:
            if known is job and where is placement:
                return amount
        amount = added(job, placement, self._nodes, self._programs) or 0
        self._last[:] = [(job, placement, amount)]
        return amount

    def _need(self, job: Job, alone: Placement | None) -> int | None:
        """Return the milliwatts that a job adds on the empty machine; None if that is unknown."""
        if job.watts:
            return max(0, round(job.watts * 1000))
        return None if alone is None else added(job, alone, self._nodes, self._programs)

    def never(self, job: Job, alone: Placement | None) -> str:
        """Return why a job can never start: its power is unknown, or is never available; "" if it can."""
        need = self._need(job, alone)
        if need is None:
            return (f"PowerCap: what {job.app} draws is not known; say watts=N in its line, or Busy: N in the Energy "
                    "of the node classes, or measure it (vrm energy measure)")
        if need > self.most():
            return (f"PowerCap: it draws {need / 1000:g} W above idle nodes, at most {self.most() / 1000:g} W are ever "
                    "left for jobs")
        return ""

    def allows(self, job: Job, placement: Placement | None, begin: float, end: float) -> bool:
        """Return whether the power of the job is available."""
        left = self.room(begin, end)
        if left <= 0 or job.watts * 1000 > left:
            return False
        return placement is None or self._added(job, placement) <= left

    def take(self, job: Job, placement: Placement, begin: float, end: float) -> None:
        """Allocate the power of a job until `end`."""
        amount = self._added(job, placement)
        self.held[job.id] = end, amount
        self.total += amount

    def give(self, job: Job, placement: Placement) -> None:
        """Release the power of a job that has ended."""
        self.total -= self.held.pop(job.id, (0.0, 0))[1]

    def boundaries(self, after: float) -> Iterator[float]:
        """Yield the times after `after` when the cap changes."""
        return (time for time in self._times if time > after)

    def room(self, begin: float, end: float) -> int:
        """Return the milliwatts that are available all the time from `begin`, which is the time of the view, to before
        `end`."""
        if len(self._times) == 1:  # most caps never change
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
        """Limit what is available to what the other constraint, of a view at time `at`, has available then."""
        assert isinstance(other, PowerCap)  # the same constraint of another view
        left = other.room(at, at)
        self._floor = left if self._floor is None else min(self._floor, left)

    def alike(self, other: Constraint) -> bool:
        """Return whether the same jobs take the same amounts in the other constraint."""
        return isinstance(other, PowerCap) and self.held == other.held

    def lacks(self, job: Job, alone: Placement | None, begin: float, end: float) -> str:
        """Return a text on how much power the job draws, and how much is available."""
        need = self._need(job, alone)
        return f"draws {(need or 0) / 1000:g} W, {max(0, self.room(begin, end)) / 1000:g} W are left under PowerCap"


def added(job: Job, placement: Placement, nodes: Sequence[Node], programs: Programs
          ) -> int | None:
    """Return the milliwatts by which a job raises the power of its nodes above that of idle ones; None if that is
    unknown."""
    watts = draw(job, placement, nodes, programs)
    if watts is None:
        return None
    if not job.watts:
        watts -= sum(power.idle for number, _ in placement.ranks_by_node(nodes)
                     if (power := nodes[number].power) is not None
                     and placement.alone & 1 << number)
    return max(0, math.ceil(watts * 1000 - 1e-6))


def idle_power(nodes: Sequence[Node]) -> float:
    """Return the watts that all nodes draw without a job."""
    return math.fsum(node.power.idle for node in nodes if node.power is not None)
