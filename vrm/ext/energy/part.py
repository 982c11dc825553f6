"""The part of the manager that makes agents measure the energy of jobs and set the frequencies of their cores."""

from __future__ import annotations

import selectors
import time
from dataclasses import dataclass, field
from typing import Any
from collections.abc import Mapping, Sequence

from vrm.ext.energy.nodes import power
from vrm.live.manager.liverun import LiveRun
from vrm.live.manager.part import JobReleased, JobLaunched, Part, RecordPrepared
from vrm.live.manager.records.records import EndedJob
from vrm.live.nodes.agent_events import AgentOrder
from vrm.model import Booking

ANSWER = 5.0
"""Seconds after the end of a job in which its nodes may report what they used; after that nobody waits for them."""

NO_JOB = -1
"""The job number in a request that belongs to no job: it only makes a node restore what a killed agent had set."""


@dataclass(frozen=True)
class EnergyRead:
    """The answer of a node at the begin or the end of a job: the joules that the node used in between (None: unknown),
    and why it could not set the frequency ("": no error)."""

    host: str
    job_id: int
    begin: bool
    energy: float | None
    error: str


def _read(host: str, request: Mapping[str, Any], answer: Mapping[str, Any]) -> EnergyRead:
    energy = answer["energy"]
    return EnergyRead(host, request["job"], bool(request["begin"]), None if energy is None else float(energy),
                      str(answer["error"]))


POWER = AgentOrder("power", (power.__file__,), _read)


@dataclass
class _Measured:
    hosts: Sequence[str]
    frequency: float
    error: str = ""
    waiting_for: set[str] = field(default_factory=set)
    until: float = 0.0
    joules: dict[str, float] = field(default_factory=dict)


class EnergyPart(Part):
    """Measures the energy of jobs on nodes with known power values, and sets their frequencies. It keeps data of a job
    from its start until the job is recorded."""

    observes = (JobLaunched, JobReleased, EnergyRead, RecordPrepared)

    def __init__(self, live: LiveRun) -> None:
        self.live = live
        self._jobs: dict[int, _Measured] = {}
        self._unset = False  # whether the warning was given that frequencies cannot be set

    def begin(self, selector: selectors.BaseSelector) -> None:
        """Make all nodes restore the frequencies that a killed manager had set."""
        self.live.watch.order(POWER, NO_JOB, {node.name: {"begin": None} for node in self.live.cluster.nodes
                                              if node.power is not None})

    def observe(self, event: object) -> None:
        """Follow jobs from their starts to their records."""
        if isinstance(event, JobLaunched):
            self._starts(self.live.running[event.job.id].booking)
        elif isinstance(event, JobReleased):
            self._left(event.job.id)
        elif isinstance(event, EnergyRead):
            self._answered(event)
        elif isinstance(event, RecordPrepared):
            self._complete(event.outcome)

    def _starts(self, booking: Booking) -> None:
        """Start to measure a job, and set its frequency (GHz; 0: not set)."""
        live, placement = self.live, booking.placement
        nodes = live.cluster.nodes
        if all(nodes[node].power is None for node in placement.nodes):
            return
        frequency = placement.frequency if live.settings.extended("Energy.Frequency") else 0.0
        cpus = {host: sorted(set[int]().union(*ranks.values()))
                for host, ranks in live.watch.cpus(placement.slots(nodes)).items()}
        if live.watch.order(POWER, booking.job.id, {host: {"begin": True, "cpus": here, "frequency": frequency}
                                                    for host, here in cpus.items()}):
            self._jobs[booking.job.id] = _Measured(list(cpus), frequency)

    def _left(self, job_id: int) -> None:
        """Request the energy of a job that has left its cores; the nodes also restore the frequencies of these."""
        job = self._jobs.get(job_id)
        if job is not None:
            job.until = time.monotonic() + ANSWER
            job.waiting_for = self.live.watch.order(POWER, job_id, {host: {"begin": False} for host in job.hosts})

    def _answered(self, event: EnergyRead) -> None:
        job = self._jobs.get(event.job_id)
        if job is None:
            return
        if event.begin:
            job.error = job.error or event.error
            if event.error and not self._unset:
                self._unset = True
                self.live.tell("warning", f"the frequency of cores is not set on {event.host}: {event.error}; "
                               "jobs run at the nodes' own (Energy: {Frequency: false} asks for no other)")
            return
        job.waiting_for.discard(event.host)
        if event.energy is not None:
            job.joules[event.host] = event.energy

    def keeps(self, job_id: int) -> bool:
        """Return whether a node may still report what a job that has ended has used."""
        job = self._jobs.get(job_id)
        return job is not None and bool(job.waiting_for) and time.monotonic() < job.until

    def _complete(self, outcome: EndedJob) -> None:
        """Add the joules of a job to its record, if each of its nodes has reported them, and the frequency that was
        set."""
        job = self._jobs.pop(outcome.job.id, None)
        if job is None or outcome.booking is None:
            return
        outcome.joules = sum(job.joules.values()) if len(job.joules) == len(job.hosts) else None
        outcome.frequency = 0.0 if job.error else job.frequency
