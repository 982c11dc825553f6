"""How fast jobs run beside others: the model of a run whose neighbours change.

The model is that of the ELiSE group (JSSPP 2025; the measured speed-ups, with their definitions,
are in `vrm.model.speedups`). A job is as fast as its slowest part: over all neighbours on all its
nodes the smallest speed-up. When neighbours change, the work that is left is done at the new
speed; the compact time is the work.
"""

from __future__ import annotations

from typing import Dict, Iterable, List, Tuple

from vrm.model import bits
from vrm.model.cluster import Booking, Cluster
from vrm.model.node import HALF
from vrm.model.speedups import Speedups


class _Run:
    """A running job: what is left of its work (s of compact time) at a moment, and its speed."""

    __slots__ = ("booking", "left", "since", "speed")

    def __init__(self, booking: Booking, left: float, since: float) -> None:
        self.booking = booking
        self.left = left
        self.since = since
        self.speed = 0.0


class CoRunning:
    """The speeds of the jobs on a cluster, as neighbours come and go."""

    def __init__(self, cluster: Cluster, speedups: Speedups) -> None:
        self.cluster = cluster
        self.speedups = speedups
        self._runs: Dict[int, _Run] = {}
        self._on_node: List[List[int]] = [[] for _ in cluster.nodes]

    def started(self, booking: Booking, run: float, now: float) -> Iterable[Tuple[int, float]]:
        """A job of `run` seconds of work started: the jobs whose end changes, with their ends."""
        job_id = booking.job.id
        self._runs[job_id] = _Run(booking, run, now)
        touched = [job_id]
        for node in bits.members(booking.placement.node_set):
            for other in self._on_node[node]:
                if other not in touched:
                    touched.append(other)
            self._on_node[node].append(job_id)
        return self._update(touched, now)

    def ended(self, booking: Booking, now: float) -> Iterable[Tuple[int, float]]:
        """A job left: the jobs whose end changes, with their new ends."""
        job_id = booking.job.id
        del self._runs[job_id]
        touched: List[int] = []
        for node in bits.members(booking.placement.node_set):
            here = self._on_node[node]
            here.remove(job_id)
            for other in here:
                if other not in touched:
                    touched.append(other)
        return self._update(touched, now)

    def remaining(self, job_id: int, now: float) -> float:
        """Work that is left of a running job, in seconds of compact time."""
        run = self._runs[job_id]
        return run.left - (now - run.since) * run.speed

    def _update(self, jobs: Iterable[int], now: float) -> List[Tuple[int, float]]:
        ends = []
        for job_id in jobs:
            run = self._runs[job_id]
            speed = self._speed(run)
            if speed != run.speed:
                run.left = max(0.0, run.left - (now - run.since) * run.speed)
                run.since = now
                run.speed = speed
                ends.append((job_id, now + run.left / speed))
        return ends

    def _speed(self, run: _Run) -> float:
        """The smallest speed-up over all nodes of the job."""
        job, placement = run.booking.job, run.booking.placement
        if placement.share != HALF:
            return 1.0
        neighbours = set()
        lonely = False
        for node in bits.members(placement.node_set):
            here = self._on_node[node]
            lonely = lonely or len(here) == 1
            neighbours.update(here)
        neighbours.discard(job.id)
        speeds = [self.speedups.alone(job.app, job.procs)] if lonely or not neighbours else []
        for other in neighbours:
            beside = self._runs[other].booking.job
            speeds.append(self.speedups.beside(job.app, job.procs, beside.app, beside.procs))
        return min(speeds)
