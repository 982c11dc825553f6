"""What running jobs use on their nodes: agents measure it from time to time; at a job's end it is combined with
what the launcher's process has used."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any
from collections.abc import Mapping

from vrm.ext.learning.nodes import use
from vrm.live.manager.liverun import LiveRun
from vrm.live.manager.records.records import EndedJob
from vrm.live.nodes.agent_events import AgentOrder
from vrm.model import Booking, bits

LOOKS = (5.0, 30.0, 90.0)
"""Seconds after the start of a job at which its nodes are asked."""

EVERY = 120.0
"""Seconds between later requests."""


@dataclass(frozen=True)
class NodeUse:
    """What the processes of a job on a node have used so far: CPU seconds, and the number of threads that run
    at once. `programs`: for each program of a coupled job, CPU seconds and the bytes of its largest process."""

    host: str
    job_id: int
    cpu: float
    running: int
    programs: tuple[tuple[float, int], ...] = ()


def _read(host: str, request: Mapping[str, Any], answer: Mapping[str, Any]) -> NodeUse:
    return NodeUse(host, request["job"], float(answer["cpu"]), int(answer["running"]),
                   tuple((float(cpu), int(largest)) for cpu, largest in answer["programs"]))


USE = AgentOrder("use", (use.__file__,), _read)


@dataclass
class _LastUse:
    """What is known of a running job: CPU seconds by host and when they were reported, and the greatest number
    of threads that ran beyond its cores there. `ends`: for each program of a coupled job, its last rank plus 1."""

    cores: dict[str, int]
    due: float
    ends: list[int]
    asked: int = 0
    cpu: dict[str, tuple[float, float]] = field(default_factory=dict)
    programs: dict[str, tuple[tuple[float, int], ...]] = field(default_factory=dict)
    beyond: int = 0


class JobUses:
    """Asks nodes what jobs use. `due` is the time of the next request, on the run's clock."""

    def __init__(self, live: LiveRun) -> None:
        self._live = live
        self._jobs: dict[int, _LastUse] = {}
        self.due = math.inf

    def launched(self, booking: Booking, now: float) -> None:
        """Follow a job from its start."""
        if self._live.watch.watches:
            nodes = self._live.cluster.nodes
            cores = {nodes[node].name: bits.count(cores) for node, _, cores in booking.placement.on_nodes(nodes)}
            ends = list(accumulate(part.procs for part in booking.job.parts)) if booking.job.request.parts else []
            self._jobs[booking.job.id] = _LastUse(cores, now + LOOKS[0], ends)
            self.due = min(self.due, now + LOOKS[0])

    def ask(self, now: float) -> None:
        """Ask the nodes of the jobs that are due."""
        if now < self.due:
            return
        for job_id, job in self._jobs.items():
            if now >= job.due:
                job.asked += 1
                job.due += LOOKS[job.asked] - LOOKS[job.asked - 1] if job.asked < len(LOOKS) else EVERY
                values = {"ends": job.ends, "variables": list(self._live.watch.variables)}
                self._live.watch.order(USE, job_id, dict.fromkeys(job.cores, values))
        self.due = min((job.due for job in self._jobs.values()), default=math.inf)

    def answered(self, event: NodeUse, now: float) -> None:
        """Take the answer of a node."""
        job = self._jobs.get(event.job_id)
        if job is not None:
            job.cpu[event.host] = event.cpu, now
            job.programs[event.host] = event.programs
            job.beyond = max(job.beyond, event.running - job.cores[event.host])

    def complete(self, outcome: EndedJob) -> None:
        """Add what a job used to the record of its end. What the launcher has waited for is known exactly; on
        other nodes the last answer is extrapolated to the job's end."""
        job, booking = self._jobs.pop(outcome.job.id, None), outcome.booking
        if booking is None or job is None:
            return
        outcome.beyond = job.beyond
        if outcome.cpu is None and outcome.used[2]:
            lasted = outcome.end - booking.start
            others = self._elsewhere(booking)
            here = [(said, at - booking.start) for host, (said, at) in job.cpu.items() if host in others]
            if len(here) == len(others) and all(since > 0 for _, since in here):
                outcome.cpu = sum(outcome.used[:2]) + sum(said * max(1.0, lasted / since) for said, since in here)
        if job.ends and len(job.programs) == len(job.cores):
            outcome.programs = _programs(list(job.programs.values()), outcome.cpu)

    def _elsewhere(self, booking: Booking) -> set[str]:
        """Return the names of a job's nodes where its launcher's process is not, and has not waited for what
        ran there."""
        live = self._live
        names = [live.cluster.nodes[node].name for node in booking.placement.nodes]
        alone = booking.job.payload.script or live.launcher.kind == "direct"
        return {*names} - {names[0] if alone else live.watch.here}


def _programs(nodes: list[tuple[tuple[float, int], ...]], whole: float | None) -> tuple[tuple[float, int], ...]:
    """Return CPU seconds of each program of a coupled job, and bytes of its largest process, as seen on the
    nodes. The seconds of the `whole` job are divided in proportion to those at the last look (None: as seen)."""
    seen = [(sum(cpu for cpu, _ in each), max(largest for _, largest in each)) for each in zip(*nodes)]
    total = sum(cpu for cpu, _ in seen)
    return tuple((cpu * whole / total if whole and total else cpu, largest) for cpu, largest in seen)
