"""The energy of jobs on the nodes that they have for themselves, and their frequencies: what the agents were
asked (`vrm.live.nodes.power`) and have answered."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from collections.abc import Mapping, Sequence

from vrm.live.nodes.agents import Agents
from vrm.live.nodes.outcomes import Metered

ANSWER = 5.0
"""Seconds after the end of a job in which its nodes may say what they used; nobody waits longer."""


@dataclass
class _Job:
    hosts: Sequence[str]
    frequency: float
    error: str = ""
    waiting_for: set[str] = field(default_factory=set)
    until: float = 0.0
    joules: dict[str, float] = field(default_factory=dict)


class Metering:
    """The jobs that are measured, until what they used was asked for."""

    def __init__(self, agents: Agents) -> None:
        self._agents = agents
        self._jobs: dict[int, _Job] = {}

    def begin(self, job_id: int, cpus: Mapping[str, Sequence[int]], frequency: float) -> None:
        """A job starts on these CPUs, by host; `frequency` in GHz is to be set, 0: none."""
        self._jobs[job_id] = _Job(list(cpus), frequency)
        for host, here in cpus.items():
            self._agents.ask_power(job_id, host, True, here, frequency)

    def end(self, job_id: int) -> None:
        """A job has ended."""
        job = self._jobs.get(job_id)
        if job is not None:
            job.until = time.monotonic() + ANSWER
            for host in job.hosts:
                if self._agents.ask_power(job_id, host, False):
                    job.waiting_for.add(host)

    def answered(self, event: Metered) -> str:
        """A node has answered: why it could not set the frequency, if so."""
        job = self._jobs.get(event.job_id)
        if job is None:
            return ""
        if event.begin:
            job.error = job.error or event.error
            return event.error
        job.waiting_for.discard(event.host)
        if event.energy is not None:
            job.joules[event.host] = event.energy
        return ""

    def waits(self, job_id: int) -> bool:
        """Whether a node may still say what a job that has ended has used."""
        job = self._jobs.get(job_id)
        return job is not None and bool(job.waiting_for) and time.monotonic() < job.until

    def take(self, job_id: int) -> tuple[float | None, float]:
        """The joules of a job, None where one of its nodes did not say, and the frequency that was set."""
        job = self._jobs.pop(job_id, None)
        if job is None:
            return None, 0.0
        known = len(job.joules) == len(job.hosts)
        return sum(job.joules.values()) if known else None, 0.0 if job.error else job.frequency
