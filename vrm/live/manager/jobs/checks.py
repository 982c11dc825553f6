"""Checks running jobs: whether their ranks run on the right cores, and how much memory they use."""

from __future__ import annotations

import math

from vrm.live.manager.jobs.ends import Ends
from vrm.live.manager.liverun import LiveRun
from vrm.live.manager.part import Part
from vrm.live.manager.jobs.live_job import LiveJob
from vrm.live.nodes.node_watch import BindingsFound
from vrm.live.nodes.agent_events import MemoryUse
from vrm.model import Placement
from vrm.model.amounts import MEMORY, said
from vrm.model.job import Request


class Checks(Part):
    """Queries the nodes about jobs that have run for a while, and acts on the answers."""

    observes = (BindingsFound, MemoryUse)

    def __init__(self, live: LiveRun, ends: Ends) -> None:
        self.live = live
        self.ends = ends

    def observe(self, event: object) -> None:
        """Handle reports of where ranks run and how much memory jobs use."""
        if isinstance(event, BindingsFound) and not self._moving(event.job_id):
            self.live.records.found(event.job_id, event.check)
            self._judge_bindings(event.job_id, event.check.state)
        elif isinstance(event, MemoryUse):
            self._memory(event)

    def tidy(self, now: float) -> None:
        """Start the checks of jobs that are due."""
        bindings = self.live.settings.launcher.check_bindings != "ignore"
        memory = self.live.settings.memory.over != "off"
        for running in list(self.live.running.values()):
            if now >= running.bindings_due:
                running.bindings_due = math.inf
                if bindings and not self._moving(running.job.id):  # otherwise it is checked after the move
                    self._check(running)
            if memory and now >= running.memory_due and not running.former and not running.away:
                running.memory_due = math.inf
                limits = self._limits(running.booking.placement, running.job.request)
                if limits:
                    self.live.watch.follow_memory(running.job.id, limits)

    def _moving(self, job_id: int) -> bool:
        return any(part.moving(job_id) for part in self.live.parts.having("moving"))

    def _check(self, running: LiveJob) -> None:
        job_id, cluster = running.job.id, self.live.cluster
        self.live.watch.ask(job_id, list(cluster.slots(running.booking) if not running.former
                                    else running.booking.placement.slots(cluster.nodes)))
        self._judge_bindings(job_id, self.live.records.check_bindings(running.booking))

    def _judge_bindings(self, job_id: int, state: str) -> None:
        """Record the state of the bindings; end a job with wrong bindings if `Launcher.CheckBindings` is `fail`."""
        live, running = self.live, self.live.running.get(job_id)
        if running is None or state == "unchecked":
            return
        running.binding, live.dirty = state, True
        if (state == "mismatch" and not running.intent
                and live.settings.launcher.check_bindings == "fail"):
            self.ends.end_job(running, "binding")

    def _memory(self, event: MemoryUse) -> None:
        """Record the memory that a job uses on a node; if it is too much, warn or end the job."""
        live, running = self.live, self.live.running.get(event.job_id)
        if running is None:
            return
        running.memory = max(running.memory, event.memory)
        if not event.over or running.intent:
            return
        job, placement = running.job, running.booking.placement
        allowed = self._limits(placement, job.request)[event.host]
        used = (f"{event.memory / 2**30:.1f}G" if event.memory > 10 << 30
                else f"{event.memory / 2**20:.0f}M")
        why = f"it used {used} of memory on {event.host}, and asked for {said(MEMORY, allowed)} there"
        if live.settings.memory.over == "kill":
            live.tell("warning", f"#{job.id} {job.app}: {why}; ending it (Memory: {{Over: kill}})")
            running.why = why
            self.ends.end_job(running, "memory")
        else:
            live.tell("warning", f"#{job.id} {job.app}: {why}")

    def _limits(self, placement: Placement, request: Request) -> dict[str, int]:
        """Return the bytes of memory that a job requested, by the names of its nodes; empty if it requested none."""
        found: dict[str, int] = {}
        nodes = self.live.cluster.nodes
        for asked, part in zip(request.parts or (request,), placement.parts or (placement,)):
            each, once = (dict(amounts).get(MEMORY, 0) for amounts in (asked.per_task, asked.per_node))
            for node, tasks in part.ranks_by_node(nodes) if each or once else ():
                name = nodes[node].name
                found[name] = found.get(name, 0) + each * tasks + once
        return found
