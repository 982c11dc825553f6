"""Watches the nodes of a run: which of them answer, where the ranks of a job really are, and what processes jobs leave
behind.

It is between the agents on the nodes (`vrm.live.nodes.agents`) and the manager, and never blocks the manager's loop.
An emulated cluster has no agents, and nothing is watched.
"""

from __future__ import annotations

import math
import select
import time
from dataclasses import dataclass, field
from typing import Any
from collections.abc import Iterable, Mapping, Sequence

from vrm.live.nodes.agents import Agents
from vrm.live.nodes.agent_events import Affinity, AgentOrder, NodeDown, NodeLost, NodeUp, SweepDone
from vrm.live.nodes.bindings import BindingCheck, compare_affinity
from vrm.live.nodes.topology import Gpu, Topology
from vrm.model import Cluster, Placement, RankSlot

CLOSING_SECONDS = 5.0
"""Seconds that the last sweep may take."""


@dataclass(frozen=True)
class NodeWentDown:
    """A node (by its number in the cluster) counts as down."""

    node: int
    reason: str


@dataclass(frozen=True)
class NodeUncertain:
    """The connection to a node was lost; the node itself may be lost."""

    node: int
    reason: str


@dataclass(frozen=True)
class NodeCameBack:
    """A node that was down or `NodeUncertain` answers again."""

    node: int


@dataclass(frozen=True)
class BindingsFound:
    """Where the ranks of a job were found, compared with their assigned cores."""

    job_id: int
    check: BindingCheck


@dataclass(frozen=True)
class ProcessesLeft:
    """A job that ended had left `processes` on a node; they were killed, except `immortal` ones."""

    job_id: int
    host: str
    processes: int
    immortal: int


NodeEvent = object
"""One of the classes above, a `MemoryUse`, or the event that an `AgentOrder` makes of an answer."""


@dataclass
class _Question:
    """An open request for the places of a job's ranks, with the answers so far."""

    slots: Sequence[RankSlot]
    waiting_for: set[str]
    found: dict[str, Mapping[int, frozenset[int]]] = field(default_factory=dict)


class NodeWatch:
    """Watches the nodes of a cluster through their agents (None: nothing is watched).

    `topologies` by node name; `variables` show the rank in a process's environment; `here` is the name of this machine
    in the cluster; `gpus` by node name are those that jobs can get.
    """

    def __init__(self, agents: Agents | None, cluster: Cluster,
                 topologies: Mapping[str, Topology], variables: Sequence[str], here: str = "",
                 gpus: Mapping[str, Sequence[Gpu]] | None = None) -> None:
        self._agents = agents
        self._cluster = cluster
        self._topologies = topologies
        self.variables = tuple(variables)
        self.here = here
        self._gpus = dict(gpus or {})
        self._hosts = [node.name for node in cluster.nodes]
        self._alone = set(self._hosts) == {here}  # then the place of a job is known
        self._index = {host: number for number, host in enumerate(self._hosts)}
        self._questions: dict[int, _Question] = {}
        self._run = ""
        self._following: dict[int, tuple[str, ...]] = {}
        self._down: set[int] = set()
        self._unsure: set[int] = set()
        self._doubted: frozenset[int] = frozenset()
        # The only agent of a single machine starts at the first request. If other nodes were left out, it was started
        # before, and must be polled: otherwise its end would wake up the loop again and again.
        self._awake = agents is not None and (not self._alone or agents.begun)
        self.deadline = 0.0 if self._awake else math.inf
        """When `poll` must be called even if nothing can be read (on the manager's clock)."""

    @property
    def watches(self) -> bool:
        """True if there are agents on the nodes."""
        return self._agents is not None

    def fileno(self) -> int:
        """Return a descriptor that is readable when `poll` has something; -1 if nothing is watched."""
        return -1 if self._agents is None else self._agents.fileno()

    def begin(self, run: str) -> None:
        """Set the mark of the run's processes."""
        self._run = run
        if self._agents is not None:
            self._agents.run = run

    def poll(self, now: float) -> list[NodeEvent]:
        """Return what has happened; `now` is the manager's clock."""
        if self._agents is None or not self._awake:
            return []
        moment = time.monotonic()
        due = self._agents.tick(moment)
        events: list[NodeEvent] = []
        for event in self._agents.events():
            if isinstance(event, Affinity):
                events += self._answered(event.job_id, event.host, event.ranks)
            elif isinstance(event, SweepDone):
                if event.job_id is not None and event.processes:
                    events.append(ProcessesLeft(event.job_id, event.host, event.processes, event.left))
            elif isinstance(event, (NodeUp, NodeLost, NodeDown)):
                events += self._changed(event)
            else:  # memory use, and answers for extensions
                events.append(event)
        self.deadline = now + (due - moment)
        return events

    def resumed(self, seconds: float) -> None:
        """Do not count the seconds for which this process was stopped, since it could not hear answers in that time."""
        if self._agents is not None:
            self._agents.resumed(seconds)
            self.deadline = 0.0 if self._awake else self.deadline

    def _changed(self, event: NodeUp | NodeLost | NodeDown) -> list[NodeEvent]:
        """Return the events for a node that is lost, down or up; at the start of a run all nodes count as up."""
        node = self._index[event.host]
        if isinstance(event, NodeLost):
            self._unsure.add(node)
            return [NodeUncertain(node, event.reason)]
        if isinstance(event, NodeUp):
            if self.answers(node):
                return []
            self._unsure.discard(node)
            known = self._topologies.get(event.host)
            if known is None or not known.matches(event.topology):
                self._down.add(node)
                return [NodeWentDown(node, "it has come back with other cores than before")]
            gone = [gpu.name for gpu in self._gpus.get(event.host, ()) if gpu not in event.gpus]
            if gone:
                self._down.add(node)
                return [NodeWentDown(node, f"it has come back without {', '.join(gone)}")]
            self._down.discard(node)
            return [NodeCameBack(node)]
        told: list[NodeEvent] = [] if node in self._down else [NodeWentDown(node, event.reason)]
        self._down.add(node)
        for job_id in [job_id for job_id, question in self._questions.items()
                       if event.host in question.waiting_for]:
            told += self._answered(job_id, event.host, {})
        return told

    def answers(self, node: int) -> bool:
        """Return whether a node answers, as far as is known."""
        return node not in self._down | self._unsure

    # Places of ranks.

    def ask(self, job_id: int, slots: Sequence[RankSlot]) -> bool:
        """Request where the ranks of a job run, for a later `BindingsFound`; False if that cannot be found out."""
        ranks: dict[str, int] = {}
        for slot in slots:
            host = self._hosts[slot.node]
            topology = self._topologies.get(host)
            if topology is not None and not topology.synthetic:
                ranks[host] = ranks.get(host, 0) + 1
        if self._agents is None or not self.variables or not ranks:
            return False
        self._awake = True
        self.deadline = 0.0
        self._questions[job_id] = _Question(slots, set(ranks))
        self._agents.request_affinity(job_id, ranks, self.variables)
        return True

    def _answered(self, job_id: int, host: str,
                  ranks: Mapping[int, frozenset[int]]) -> list[NodeEvent]:
        question = self._questions.get(job_id)
        if question is None or host not in question.waiting_for:
            return []
        question.found[host] = ranks
        question.waiting_for.discard(host)
        if question.waiting_for:
            return []
        del self._questions[job_id]
        return [BindingsFound(job_id, compare_affinity(question.slots, self._cluster.nodes,
                                                       self._topologies, question.found))]

    def know(self, order: AgentOrder) -> None:
        """Register an order of an extension (see `Agents.know`)."""
        if self._agents is not None:
            self._agents.know(order)

    def order(self, order: AgentOrder, job_id: int, hosts: Mapping[str, Mapping[str, Any]]) -> set[str]:
        """Send the order of an extension about a job to nodes, each with further values. Return the nodes that were
        asked: `poll` later returns the event of each of them (or its `NodeWentDown`). The set is empty if the cores are
        emulated."""
        if self._agents is None or not hosts:
            return set()
        self._awake = True
        self.deadline = 0.0
        return self._agents.order(order, job_id, hosts)

    def cpus(self, slots: Iterable[RankSlot]) -> dict[str, dict[int, set[int]]]:
        """Return the CPUs of ranks, by host and rank, as far as cores are not emulated. A job whose ranks cannot be
        distinguished counts as one process on each node (rank 0), with the cores of all its ranks."""
        found: dict[str, dict[int, set[int]]] = {}
        for slot in slots:
            host = self._hosts[slot.node]
            topology = self._topologies.get(host)
            if topology is not None and not topology.synthetic:
                found.setdefault(host, {}).setdefault(slot.rank if self.variables else 0, set()).update(
                    cpu for core in slot.cores for cpu in topology.core(slot.socket, core).cpus)
        return found

    def forget_question(self, job_id: int) -> None:
        """Drop an open request for the places of a job's ranks."""
        self._questions.pop(job_id, None)

    # Memory of jobs.

    def follow_memory(self, job_id: int, limits: Mapping[str, int]) -> None:
        """Follow the memory of a job, which may use `limits` bytes on each of its nodes; `poll` returns a `MemoryUse`
        from time to time."""
        if self._agents is not None and limits:
            self._awake = True
            self.deadline = 0.0
            self._following[job_id] = tuple(limits)
            self._agents.follow_memory(job_id, limits)

    def forget_memory(self, job_id: int) -> None:
        """Stop following the memory of a job that has ended."""
        hosts = self._following.pop(job_id, ())
        if self._agents is not None and hosts:
            self._agents.forget_memory(job_id, hosts)

    # Processes that jobs leave behind.

    def beyond(self, placement: Placement) -> bool:
        """Return whether a placement uses other nodes than this machine (emulated nodes are this machine)."""
        return self._agents is not None and not self._alone and any(
            self._hosts[node] != self.here for node in placement.nodes)

    def sweep(self, job_id: int, placement: Placement, well: bool = False, patience: float = 0.0,
              former: Cluster | None = None) -> None:
        """Kill what is left of a job on its nodes after `patience` seconds. A job that has ended `well` is over on all
        nodes, and this machine is swept, too. For a job that has not, the manager itself sweeps its sessions on this
        machine, and no job starts on its nodes before they are swept. `former`: the cluster that the placement refers
        to, if it is another one."""
        self._questions.pop(job_id, None)
        if self._agents is None or (self._alone and not well):
            return
        hosts = {self._hosts[node] if former is None else former.nodes[node].name for node in placement.nodes} - {self.here}
        if well:
            hosts.add(self.here)
        if hosts:
            self._awake = True
            self.deadline = 0.0
            self._agents.sweep(job_id, hosts, patience, lost=not well)

    def sweep_others(self, jobs: Iterable[int], doubted: Iterable[int]) -> None:
        """Kill what is left of the run on other nodes, except processes of these `jobs`; no job starts on a node
        before that. The `doubted` jobs, which may run there, start nowhere before that."""
        hosts = set(self._hosts) - {self.here}
        if self._agents is not None and hosts:
            self._awake = True
            self.deadline = 0.0
            self._doubted = frozenset(doubted)
            self._agents.sweep(None, hosts, lost=True, spare=sorted(jobs))

    def sweeping(self, job_id: int, placement: Placement | None = None) -> bool:
        """Return whether some node is still being swept of this job, or a node of the placement of another job that
        was lost there."""
        hosts = () if placement is None or self._alone else {self._hosts[node] for node in placement.nodes}
        return self._agents is not None and self._agents.sweeping(job_id, hosts, job_id in self._doubted)

    def close(self, sweep: bool) -> int:
        """End the agents; with `sweep`, first kill every process of the run on every node. Return the number of
        processes that were killed."""
        if self._agents is None:
            return 0
        killed = 0
        if sweep and self._awake and self._agents.run:
            self._agents.sweep(None)
            end = time.monotonic() + CLOSING_SECONDS
            readable = select.poll()
            readable.register(self._agents.fileno(), select.POLLIN)
            while self._agents.unanswered() and time.monotonic() < end:
                due = self._agents.tick(time.monotonic())
                killed += sum(event.processes for event in self._agents.events()
                              if isinstance(event, SweepDone))
                readable.poll(1000 * min(max(0.0, due - time.monotonic()), 0.1))
        self._agents.close()
        self._agents = None
        return killed
