"""How well a run uses nodes that differ: resource allocation efficiency and load, over all resources.

The definitions are those of A. Netti, "Development of data-driven dispatching heuristics for heterogeneous HPC
systems" (University of Bologna, 2017). Cores, GiB of memory and units of all other resources are added without
weights, so the figures compare runs on one machine and mean little alone. The efficiency

- of a job is the amount that it requested, divided by the amount that was free on its nodes just before its start;
- at a time is the amount that the running jobs requested, divided by the capacity of the nodes on which a job
  runs; for one resource, only the jobs that request it, and their nodes, count.

The load at a time is the allocated amount divided by the capacity of all nodes.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple
from collections.abc import Iterable, Iterator, Sequence

from vrm.model.amounts import people
from vrm.model.booking import Booking, Watcher
from vrm.model.job import Request
from vrm.model.node import Node
from vrm.model.placement import Placement
from vrm.results.summary import distribution
from vrm.simulation.results import ResultRow

CORES, ALL = "cores", "all"


class FinishedJob(NamedTuple):
    """A job that ran: its request, its placement, its start and end (s)."""

    request: Request
    placement: Placement
    start: float
    end: float


@dataclass(frozen=True)
class EfficiencySample:
    """Load and efficiency by resource from `time` (s) on. `nodes` is the number of nodes on which a job uses the
    resource; the key `all` is for all resources together. `efficiency` has no entry for a resource that no job uses
    at that time."""

    time: float
    load: dict[str, float]
    efficiency: dict[str, float]
    nodes: dict[str, int]


class Efficiency:
    """Efficiency and load of the jobs of a run on its nodes. At equal times, ends are processed before starts; jobs
    that start at the same time are processed in the given order.

    `jobs` are the efficiencies of the jobs in the order of their starts, `moments` a sample after each change.
    """

    def __init__(self, nodes: Sequence[Node], held: Iterable[FinishedJob]) -> None:
        self.names = [CORES, *sorted({name for node in nodes for name in node.resources})]
        self._whole = [{CORES: float(node.cores), **node.resources} for node in nodes]
        self._free = [dict(each) for each in self._whole]
        self._capacity = {name: math.fsum(each.get(name, 0.0) for each in self._whole)
                          for name in self.names}
        self._nodes = nodes
        self._taken = dict.fromkeys(self.names, 0.0)
        # Resource -> node -> number of jobs on the node that use the resource.
        self._hosts: dict[str, dict[int, int]] = {name: {} for name in [ALL, *self.names]}
        self.jobs: list[float] = []
        self.moments: list[EfficiencySample] = []
        runs = list(held)
        events = [(run.start, 1, at) for at, run in enumerate(runs)]
        events += [(run.end, 0, at) for at, run in enumerate(runs) if run.end > run.start]
        # A job with a run time of 0 ends right after its start.
        events += [(run.end, 2, at) for at, run in enumerate(runs) if run.end <= run.start]
        events.sort()
        for place, (time, kind, at) in enumerate(events):
            self._change(runs[at], 1 if kind == 1 else -1)
            if place + 1 == len(events) or events[place + 1][0] > time:
                self.moments.append(self._moment(time))

    def _parts(self, run: FinishedJob) -> list[tuple[int, dict[str, float]]]:
        """Return (node, amounts by resource) for each node of the job."""
        request, found = run.request, []
        for node, tasks in run.placement.ranks_by_node(self._nodes):
            part = {name: people(name, amount) for name, amount in request.on_node(tasks)}
            part[CORES] = float(tasks * request.cores_per_task)
            found.append((node, part))
        return found

    def _change(self, run: FinishedJob, sign: int) -> None:
        parts = self._parts(run)
        if sign > 0:
            there = math.fsum(amount for node, _ in parts for amount in self._free[node].values())
            asked = math.fsum(amount for _, part in parts for amount in part.values())
            self.jobs.append(asked / there if there > 0 else 0.0)
        for node, part in parts:
            for name, amount in part.items():
                self._free[node][name] = self._free[node].get(name, 0.0) - sign * amount
                self._taken[name] += sign * amount
            for name in (ALL, *(name for name, amount in part.items() if amount)):
                hosts = self._hosts[name]
                hosts[node] = hosts.get(node, 0) + sign
                if not hosts[node]:
                    del hosts[node]

    def _moment(self, time: float) -> EfficiencySample:
        taken = {ALL: math.fsum(self._taken.values()), **self._taken}
        capacity = {ALL: math.fsum(self._capacity.values()), **self._capacity}
        efficiency = {}
        for name, hosts in self._hosts.items():
            there = math.fsum(amount for node in hosts for amount in (
                self._whole[node].values() if name == ALL else [self._whole[node].get(name, 0.0)]))
            if there:
                efficiency[name] = taken[name] / there
        return EfficiencySample(time, {name: taken[name] / whole if whole else 0.0
                             for name, whole in capacity.items()}, efficiency,
                      {name: len(hosts) for name, hosts in self._hosts.items()})

    def summary(self) -> dict[str, Any]:
        """Return the distribution of the efficiency over the jobs, and per resource two means over the time from
        the first start to the last end: of the load, and of the efficiency while a job uses the resource."""
        spans = [(later.time - moment.time, moment)
                 for moment, later in zip(self.moments, self.moments[1:])]
        whole = math.fsum(seconds for seconds, _ in spans)
        load, efficiency = {}, {}
        for name in (ALL, *self.names):
            load[name] = math.fsum(seconds * moment.load[name] for seconds, moment in spans) / whole \
                if whole else 0.0
            busy = [(seconds, moment.efficiency[name]) for seconds, moment in spans
                    if name in moment.efficiency]
            time = math.fsum(seconds for seconds, _ in busy)
            if time:
                efficiency[name] = math.fsum(seconds * value for seconds, value in busy) / time
        return {"allocation_efficiency": asdict(distribution(self.jobs)),
                "allocation_efficiency_over_time": efficiency, "load": load}


class BookingRecorder(Watcher):
    """Records the bookings made on these nodes, in their order."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = nodes
        self._made: list[Booking] = []

    def booked(self, booking: Booking) -> None:
        """Record the start of a job."""
        self._made.append(booking)

    def efficiency(self, rows: Iterable[ResultRow]) -> Efficiency:
        """Return how efficiently the jobs of the rows used the nodes."""
        return Efficiency(self._nodes, self.held(rows))

    def held(self, rows: Iterable[ResultRow]) -> Iterator[FinishedJob]:
        """Yield the jobs of the rows with their requests and placements, in the order of their starts."""
        ended = {(row.id, row.start): row.end for row in rows}
        for booking in self._made:
            end = ended.get((booking.job.id, booking.start))
            if end is not None:
                yield FinishedJob(booking.job.request, booking.placement, booking.start, end)
