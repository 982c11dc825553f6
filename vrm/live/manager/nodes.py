"""The nodes while jobs run: which are lost or closed, and whether ranks are where they should be."""

from __future__ import annotations

import math
from typing import Dict, List, Optional

from vrm.live.manager.desk import Desk
from vrm.live.manager.ends import Ends
from vrm.live.manager.running import Running
from vrm.live.manager.lending import Lending
from vrm.live.nodes.outcomes import Masks, MemoryUse
from vrm.live.nodes.nodewatch import Bound, Down, Left, NodeWatch, Unset, Unsure, Up
from vrm.model import AnyPlacement
from vrm.model.amounts import MEMORY, said
from vrm.model.job import Request
from vrm.scheduling import Start


class Nodes:
    """Acts on what the agents on the nodes tell. `closed`: until when nothing starts on a node."""

    def __init__(self, desk: Desk, ends: Ends, watch: NodeWatch, prepared: List[Start],
                 lending: Lending) -> None:
        self.desk = desk
        self.ends = ends
        self.lending = lending
        self.watch = watch
        self.closed: Dict[int, float] = {}
        self._prepared = prepared  # decided, and not launched yet
        self._unset = False        # it was said that frequencies cannot be set

    def look(self, now: float) -> None:
        """What the agents on the nodes tell."""
        desk = self.desk
        for event in self.watch.poll(now):
            if isinstance(event, Down):
                self._down(event)
            elif isinstance(event, Unsure):
                self.close(event.node)
                desk.tell("note", f"node {desk.cluster.nodes[event.node].name}: {event.reason}; "
                                  "nothing starts there until it answers")
            elif isinstance(event, Up):
                desk.state.node_up(event.node)
                desk.changes()
                desk.tell("note", f"node {desk.cluster.nodes[event.node].name} answers again and "
                                  "is used again")
            elif isinstance(event, Masks):
                self.lending.answered(event)
            elif isinstance(event, Bound) and not self.lending.moving(event.job_id):
                self.ends.records.found(event.job_id, event.check)
                self._judge_bindings(event.job_id, event.check.state)
            elif isinstance(event, MemoryUse):
                self._memory(event)
            elif isinstance(event, Unset):
                if not self._unset:
                    desk.tell("warning", f"the frequency of cores is not set on {event.host}: {event.error}; "
                              "jobs run at the nodes' own (Energy: {Frequency: false} asks for no other)")
                self._unset = True
            elif isinstance(event, Left):
                desk.tell("warning", f"#{event.job_id}: {event.processes} process(es) outlived it "
                                     f"on {event.host} and were killed"
                          + (f", {event.immortal} of them do not die" if event.immortal else ""))

    def _down(self, event: Down) -> None:
        """A node is lost: nothing starts there, and the jobs that are on it are lost with it."""
        desk, ends = self.desk, self.ends
        name = desk.cluster.nodes[event.node].name
        self.close(event.node)
        lost = [running for running in desk.running.values()
                if not running.former and running.booking.placement.node_set >> event.node & 1]
        desk.tell("warning", f"node {name} is down: {event.reason}; "
                  + (f"its {len(lost)} job(s) are ended" if lost else "no job was on it")
                  + ", nothing starts there")
        for running in lost:
            running.why = running.why or f"node {name} is down"
            ends.end_job(running, "node")
        for held in list(ends.held.values()):
            if held.running.booking.placement.node_set >> event.node & 1:
                held.running.why = f"node {name} is down"
                ends.release_verdict(held, "node")

    def _memory(self, event: MemoryUse) -> None:
        """What a job has of memory on a node, or that this is too much."""
        desk, running = self.desk, self.desk.running.get(event.job_id)
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
        if desk.settings.memory.over == "kill":
            desk.tell("warning", f"#{job.id} {job.app}: {why}; ending it (Memory: {{Over: kill}})")
            running.why = why
            self.ends.end_job(running, "memory")
        else:
            desk.tell("warning", f"#{job.id} {job.app}: {why}")

    def _limits(self, placement: AnyPlacement, request: Request) -> Dict[str, int]:
        """The bytes of memory that a job asked for on each of its nodes; none where it asked for none."""
        each, once = (dict(amounts).get(MEMORY, 0) for amounts in (request.per_task,
                                                                      request.per_node))
        if not each and not once:
            return {}
        nodes = self.desk.cluster.nodes
        return {nodes[node].name: each * tasks + once
                for node, tasks in placement.ranks_by_node(nodes)}

    def follow_memory(self, now: float) -> None:
        """Follow the memory of jobs that run for a while and have asked for some."""
        if self.desk.settings.memory.over == "off":
            return
        for running in self.desk.running.values():
            if now >= running.memory_due and not running.former and not running.away:
                running.memory_due = math.inf
                limits = self._limits(running.booking.placement, running.job.request)
                if limits:
                    self.watch.follow_memory(running.job.id, limits)

    def close(self, node: int, until: Optional[float] = None) -> None:
        """Nothing starts on a node any more, or `until` then."""
        desk = self.desk
        desk.state.node_down(node)
        desk.changes()
        for start in list(self._prepared):  # not launched yet, so it can still go elsewhere
            if start.booking.placement.node_set >> node & 1:
                self._prepared.remove(start)
                self.ends.take_back(start.job)
        self.lending.lost(node, f"{desk.cluster.nodes[node].name} does not answer")
        if until is not None:
            self.closed[node] = until

    def reopen(self, now: float) -> None:
        """Use nodes again that were closed for a while."""
        for node in [node for node, until in self.closed.items() if now >= until]:
            del self.closed[node]
            if self.watch.answers(node):
                self.desk.state.node_up(node)
                self.desk.changes()

    def check_bindings(self, now: float) -> None:
        """Look where the ranks of jobs are that run for a while, so that a wrong place is known
        in time."""
        for running in list(self.desk.running.values()):
            if now >= running.bindings_due:
                running.bindings_due = float("inf")
                if self.desk.settings.launcher.check_bindings != "ignore":
                    self._check(running)

    def _check(self, running: Running) -> None:
        job_id, cluster = running.job.id, self.desk.cluster
        if self.lending.moving(job_id):
            return  # it is looked at when its ranks are where they are to be
        self.watch.ask(job_id, list(cluster.slots(running.booking) if not running.former
                                    else running.booking.placement.slots(cluster.nodes)))
        self._judge_bindings(job_id, self.ends.records.check_bindings(running.booking))

    def _judge_bindings(self, job_id: int, state: str) -> None:
        """End a job whose ranks are on the cores of others, where that is wished."""
        desk, running = self.desk, self.desk.running.get(job_id)
        if running is None or state == "unchecked":
            return
        running.binding, desk.dirty = state, True
        if (state == "mismatch" and not running.intent
                and desk.settings.launcher.check_bindings == "fail"):
            self.ends.end_job(running, "binding")
