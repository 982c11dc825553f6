"""The speed of jobs that share nodes, and of jobs with fewer cores: a run time model for changing neighbours.

The model is that of the ELiSE group (JSSPP 2025; the measured speed-ups, with their definitions, are in
`vrm.model.measured.speedups`). A job is as fast as its slowest part: its speed is the smallest speed-up over all
neighbours on all its nodes. The work of a job is its run time under compact. When neighbours change, the remaining
work continues at the new speed. A pair that was not measured has speed 1, and the job is counted.

A job that lends cores, or runs on borrowed ones, is slower by the share of its cores that it lacks: with `ideal`,
as if its work were spread evenly over its cores; otherwise, as slow as its slowest rank. Lender and borrower are
neighbours.
"""

from __future__ import annotations

import math
from collections import Counter
from functools import reduce
from itertools import chain
from operator import or_
from collections.abc import Iterable

from vrm.model import bits
from vrm.model.cluster import Booking, Cluster
from vrm.model.job import Job
from vrm.model.node import HALF
from vrm.model.measured.speedups import Speedups, load_name
from vrm.results.shares import shared


class _RunningJob:
    """A running job: its remaining work (s of compact time) at time `since`, and its speed.

    `lacks` are the cases ("beside", "alone") in which its speed, as computed at `looked`, was not measured.
    `beside` are the jobs on each of its nodes, including itself; empty if there are no measured speed-ups.
    """

    __slots__ = ("booking", "left", "since", "speed", "looked", "lacks", "beside")

    def __init__(self, booking: Booking, left: float, since: float) -> None:
        self.booking = booking
        self.left = left
        self.since = since
        self.speed = -1.0  # not computed yet
        self.looked = since
        self.lacks: set[str] = set()
        self.beside: list[list[int]] = []


def _programs(booking: Booking) -> list[tuple[Job, int]]:
    """Return the programs of a job, each with its nodes (a bit set)."""
    places = booking.placement.parts or (booking.placement,)
    return [(job, place.node_set) for job, place in zip(booking.job.parts, places)]


class CoRunning:
    """Computes the speeds of the jobs on a cluster while neighbours start and end."""

    def __init__(self, cluster: Cluster, speedups: Speedups | None = None, ideal: bool = True
                 ) -> None:
        self.cluster = cluster
        self.ideal = ideal
        self.speedups = speedups
        self._runs: dict[int, _RunningJob] = {}
        self._on_node: list[list[int]] = [[] for _ in cluster.nodes] if speedups is not None else []
        self._shares: dict[int, set[int]] = {}  # without speed-ups: the jobs with which each job shares cores
        # Jobs that needed a speed that was not measured, with their loads.
        self._unmatched: dict[str, dict[int, str]] = {"beside": {}, "alone": {}}

    def started(self, booking: Booking, run: float, now: float) -> Iterable[tuple[int, float]]:
        """Add a job with `run` seconds of work that starts; return the jobs whose ends change, with their new ends."""
        job_id = booking.job.id
        here = self._runs[job_id] = _RunningJob(booking, run, now)
        if self.speedups is None:
            if not shared(booking):
                here.speed = 1.0
                return ((job_id, now + run),)
            return self._update([job_id, *self._in_order(booking, self._share(job_id))], now)
        here.beside = [self._on_node[node] for node in bits.members(booking.placement.node_set)]
        touched = dict.fromkeys([job_id, *chain.from_iterable(here.beside)])
        for jobs in here.beside:
            jobs.append(job_id)
        return self._update(touched, now)

    def _share(self, job_id: int) -> set[int]:
        """Return the jobs with which a starting job shares cores: lenders, borrowers, and other borrowers of the
        same lender."""
        found: set[int] = set()
        for loan in self.cluster.loans.all:
            if job_id in loan[:2]:
                for other in loan[:2]:
                    found |= {other, *self._shares.get(other, ())}
        found = {other for other in found if other in self._runs and other != job_id}
        if found:
            self._shares[job_id] = found
        for other in found:
            self._shares.setdefault(other, set()).add(job_id)
        return found

    def _in_order(self, booking: Booking, others: Iterable[int]) -> list[int]:
        """Sort jobs by the first node that they have in common with a job."""
        def key(other: int) -> tuple[int, int]:
            common = booking.placement.node_set & self._runs[other].booking.placement.node_set
            return common & -common, other
        return sorted(others, key=key)

    def ended(self, booking: Booking, now: float) -> Iterable[tuple[int, float]]:
        """Remove a job that ended; return the jobs whose ends change, with their new ends."""
        job_id = booking.job.id
        ran = self._runs.pop(job_id)
        if self.speedups is None:
            others = self._shares.pop(job_id, None)
            if others is None:
                return ()
            for other in others:
                self._shares[other].discard(job_id)
            return self._update(self._in_order(booking, others), now)
        self._count(ran, now)
        for jobs in ran.beside:
            jobs.remove(job_id)
        return self._update(dict.fromkeys(chain.from_iterable(ran.beside)), now)

    def remaining(self, job_id: int, now: float) -> float:
        """Return the remaining work of a running job, in seconds of compact time."""
        run = self._runs[job_id]
        return run.left - (now - run.since) * run.speed

    def _update(self, jobs: Iterable[int], now: float) -> list[tuple[int, float]]:
        ends = []
        for job_id in jobs:
            run = self._runs[job_id]
            self._count(run, now)
            speed = self._speed(run)
            if speed != run.speed:
                run.left = max(0.0, run.left - (now - run.since) * run.speed)
                run.since = now
                run.speed = speed
                ends.append((job_id, now + run.left / speed if speed else math.inf))
        return ends

    def _speed(self, run: _RunningJob) -> float:
        """Return the speed of a job with its neighbours and its current cores."""
        speed = 1.0 if self.speedups is None else self._speed_with_neighbours(run, self.speedups)
        booking = self.cluster.bookings[run.booking.job.id]
        return speed * self.cluster.loans.rate(self.cluster, booking, self.ideal)

    def _speed_with_neighbours(self, run: _RunningJob, speedups: Speedups) -> float:
        """Return the smallest speed-up over all nodes of the job."""
        job, placement = run.booking.job, run.booking.placement
        if placement.share != HALF:
            others = [other for loan in self.cluster.loans.all if job.id in loan[:2]
                      for other in loan[:2] if other != job.id and other in self._runs]
            return min((self._beside(run, other, speedups) for other in others), default=1.0)
        neighbours = set().union(*run.beside)
        neighbours.discard(job.id)
        if placement.parts or any(self._runs[other].booking.placement.parts for other in neighbours):
            return self._coupled(run, neighbours, speedups)
        speeds = []
        if not neighbours or min(map(len, run.beside)) == 1:
            speeds.append(self._measured(speedups.alone(job.app, job.procs), run, "alone"))
        speeds += [self._beside(run, other, speedups) for other in neighbours]
        return min(speeds)

    def _coupled(self, run: _RunningJob, neighbours: Iterable[int], speedups: Speedups) -> float:
        """Return the smallest speed-up over all programs of a job, each with all other programs on its nodes,
        including those of the same job."""
        mine = _programs(run.booking)
        around = [*mine, *chain.from_iterable(_programs(self._runs[other].booking) for other in neighbours)]
        speeds = []
        for at, (job, nodes) in enumerate(mine):
            others = [(other, there) for number, (other, there) in enumerate(around) if number != at and there & nodes]
            speeds += [self._measured(speedups.beside(job.app, job.procs, other.app, other.procs), run, "beside")
                       for other, _ in others]
            if nodes & ~reduce(or_, (there for _, there in others), 0):
                speeds.append(self._measured(speedups.alone(job.app, job.procs), run, "alone"))
        return min(speeds)

    def _beside(self, run: _RunningJob, other: int, speedups: Speedups) -> float:
        job, beside = run.booking.job, self._runs[other].booking.job
        return self._measured(speedups.beside(job.app, job.procs, beside.app, beside.procs), run,
                              "beside")

    @staticmethod
    def _measured(speed: float | None, run: _RunningJob, where: str) -> float:
        if speed is not None:
            return speed
        run.lacks.add(where)
        return 1.0

    def _count(self, run: _RunningJob, now: float) -> None:
        """Record a job for the speeds that were missing until `now`, if it ran any time without them."""
        if now > run.looked:
            job = run.booking.job
            for where in run.lacks:
                self._unmatched[where][job.id] = load_name(job.app, job.procs)
        run.looked = now
        run.lacks.clear()

    def unmatched(self) -> dict[str, dict[str, int]]:
        """Return the number of jobs, by load, that ran at speed 1 for some time because their speed was not
        measured: `beside` another job, and `alone` on half of a node."""
        return {where: dict(sorted(Counter(jobs.values()).items()))
                for where, jobs in self._unmatched.items()}
