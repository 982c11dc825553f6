"""Collects what the processes of running jobs use now, from the reports of their nodes."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any
from collections.abc import Mapping, Sequence

from vrm.ext.slurm.calls.jobs import StepUsage
from vrm.ext.slurm.nodes import usage
from vrm.ext.slurm.nodes.usage import BATCH
from vrm.live.manager.liverun import LiveRun
from vrm.live.nodes.agent_events import AgentOrder

INQUIRY_SECONDS = 2.0
"""Time limit for nodes to report what a job uses, in seconds."""


@dataclass(frozen=True)
class JobUsage:
    """Report of one node: what the processes of a job use there now, by steps (see `vrm.ext.slurm.nodes.usage`)."""

    host: str
    job_id: int
    steps: Mapping[str, Mapping[str, Any]]


USAGE = AgentOrder("usage", (usage.__file__,),
                   lambda host, request, answer: JobUsage(host, request["job"], dict(answer["steps"])))


class UsageQuery:
    """A request for the usage of one job: `found` has the reports by node that have arrived so far."""

    def __init__(self, job_id: int) -> None:
        self.job_id = job_id
        self.waiting_for: set[str] = set()
        self.found: dict[str, Mapping[str, Mapping[str, Any]]] = {}
        self._until = time.monotonic() + INQUIRY_SECONDS

    def done(self) -> bool:
        """Return whether all nodes have answered, or the time limit is over."""
        return not self.waiting_for or time.monotonic() > self._until


class UsageSampler:
    """Requests usage reports from the nodes of jobs."""

    def __init__(self, live: LiveRun) -> None:
        self._live = live
        self._inquiries: list[UsageQuery] = []

    def ask(self, job_id: int, hosts: Sequence[str]) -> UsageQuery:
        """Request what the processes of a job use on these nodes. Usage on this machine is read at once."""
        inquiry, watch = UsageQuery(job_id), self._live.watch
        here = [host for host in hosts if not watch.watches or host == watch.here]
        if here:
            inquiry.found[watch.here or os.uname().nodename] = usage.here(self._live.launcher.run_id, job_id)
        inquiry.waiting_for = watch.order(USAGE, job_id, {host: {} for host in hosts if host not in here})
        if inquiry.waiting_for:
            self._inquiries.append(inquiry)
        return inquiry

    def answered(self, event: JobUsage) -> None:
        """Add a node's report to the requests that wait for it."""
        for inquiry in self._inquiries:
            if inquiry.job_id == event.job_id and event.host in inquiry.waiting_for:
                inquiry.waiting_for.discard(event.host)
                inquiry.found[event.host] = event.steps
        self._inquiries = [inquiry for inquiry in self._inquiries if not inquiry.done()]


def merge_usage(found: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[StepUsage]:
    """Merge reports by node into the usage of the script (`batch`) and of each step of a job (see
    `vrm.ext.slurm.nodes.usage`)."""
    steps: dict[str, dict[str, Mapping[str, Any]]] = {}
    for node, here in found.items():
        for step, used in here.items():
            steps.setdefault(step, {})[node] = used
    rows = []
    for step in sorted(steps, key=lambda step: -1 if step == BATCH else int(step)):
        on = steps[step]
        widest = max(on, key=lambda node: on[node]["largest"])
        rows.append(StepUsage(
            step, len({task for used in on.values() for task in used["tasks"]}),
            sum(used["cpu"] for used in on.values()),
            on[widest]["largest"], sum(used["memory"] for used in on.values()), widest,
            tuple(pid for used in on.values() for pid in used["pids"]), tuple(on)))
    return rows
