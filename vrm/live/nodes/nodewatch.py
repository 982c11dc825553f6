"""The nodes of a run while it runs: which of them answer, where the ranks of a job really are, and
what jobs leave behind.

Stands between the agents on the nodes (`vrm.live.nodes.agents`) and the manager, whose loop it never holds
up. On a cluster that is emulated there are no agents, and nothing is watched.
"""

from __future__ import annotations

import math
import select
import time
from dataclasses import dataclass, field
from typing import Any
from collections.abc import Iterable, Mapping, Sequence

from vrm.live.nodes.agents import Agents
from vrm.live.nodes.outcomes import Affinity, AgentOrder, NodeDown, NodeLost, NodeUp, Swept
from vrm.live.nodes.bindings import BindingCheck, compare_affinity
from vrm.live.nodes.topology import Gpu, Topology
from vrm.model import Cluster, Placement, RankSlot

CLOSING_SECONDS = 5.0
"""Seconds that the last sweep may take."""


@dataclass(frozen=True)
class Down:
    """A node (its number in the cluster) does not answer any more."""

    node: int
    reason: str


@dataclass(frozen=True)
class Unsure:
    """The connection to a node was lost, which may mean that the node was."""

    node: int
    reason: str


@dataclass(frozen=True)
class Up:
    """A node that was down, or of which nobody could be sure, answers again."""

    node: int


@dataclass(frozen=True)
class Bound:
    """Where the ranks of a job were found, compared with where they should be."""

    job_id: int
    check: BindingCheck


@dataclass(frozen=True)
class Left:
    """A job that ended had left processes on a node; they are killed, but for `immortal` ones."""

    job_id: int
    host: str
    processes: int
    immortal: int


NodeEvent = object
"""One of the classes above, a `MemoryUse`, or what an `AgentOrder` makes of an answer."""


@dataclass
class _Question:
    """Where the ranks of a job are, as far as its nodes have answered."""

    slots: Sequence[RankSlot]
    waiting_for: set[str]
    found: dict[str, Mapping[int, frozenset[int]]] = field(default_factory=dict)


class NodeWatch:
    """Watches the nodes of a cluster through their agents (None: nothing is watched).

    `topologies` by node name; `variables` show the rank in a process's environment; `here` is
    the name of this machine in the cluster; `gpus` by node name are those that are given to jobs.
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
        self._alone = set(self._hosts) == {here}  # then nobody need look where a job is
        self._index = {host: number for number, host in enumerate(self._hosts)}
        self._questions: dict[int, _Question] = {}
        self._run = ""
        self._following: dict[int, tuple[str, ...]] = {}
        self._down: set[int] = set()
        self._unsure: set[int] = set()
        self._doubted: frozenset[int] = frozenset()
        # The one agent of a single machine starts when it is first asked something; where other nodes were left out, it
        # has begun, and is to be heard: else its end would wake the loop for ever.
        self._awake = agents is not None and (not self._alone or agents.begun)
        self.deadline = 0.0 if self._awake else math.inf
        """When `poll` must be called even if nothing can be read (the manager's clock)."""

    @property
    def watches(self) -> bool:
        """Whether there are agents on the nodes."""
        return self._agents is not None

    def fileno(self) -> int:
        """Readable when `poll` has something; -1 when nothing is watched."""
        return -1 if self._agents is None else self._agents.fileno()

    def begin(self, run: str) -> None:
        """Learn the mark of the run's processes."""
        self._run = run
        if self._agents is not None:
            self._agents.run = run

    def poll(self, now: float) -> list[NodeEvent]:
        """What has happened; `now` is the manager's clock."""
        if self._agents is None or not self._awake:
            return []
        moment = time.monotonic()
        due = self._agents.tick(moment)
        events: list[NodeEvent] = []
        for event in self._agents.events():
            if isinstance(event, Affinity):
                events += self._answered(event.job_id, event.host, event.ranks)
            elif isinstance(event, Swept):
                if event.job_id is not None and event.processes:
                    events.append(Left(event.job_id, event.host, event.processes, event.left))
            elif isinstance(event, (NodeUp, NodeLost, NodeDown)):
                events += self._changed(event)
            else:  # of memory, and what extensions have asked for
                events.append(event)
        self.deadline = now + (due - moment)
        return events

    def resumed(self, seconds: float) -> None:
        """Forget the seconds for which this process was stopped: it has heard nobody meanwhile."""
        if self._agents is not None:
            self._agents.resumed(seconds)
            self.deadline = 0.0 if self._awake else self.deadline

    def _changed(self, event: NodeUp | NodeLost | NodeDown) -> list[NodeEvent]:
        """A node that comes or goes; at the start of a run all are known to be up."""
        node = self._index[event.host]
        if isinstance(event, NodeLost):
            self._unsure.add(node)
            return [Unsure(node, event.reason)]
        if isinstance(event, NodeUp):
            if self.answers(node):
                return []
            self._unsure.discard(node)
            known = self._topologies.get(event.host)
            if known is None or not known.matches(event.topology):
                self._down.add(node)
                return [Down(node, "it has come back with other cores than before")]
            gone = [gpu.name for gpu in self._gpus.get(event.host, ()) if gpu not in event.gpus]
            if gone:
                self._down.add(node)
                return [Down(node, f"it has come back without {', '.join(gone)}")]
            self._down.discard(node)
            return [Up(node)]
        told: list[NodeEvent] = [] if node in self._down else [Down(node, event.reason)]
        self._down.add(node)
        for job_id in [job_id for job_id, question in self._questions.items()
                       if event.host in question.waiting_for]:
            told += self._answered(job_id, event.host, {})
        return told

    def answers(self, node: int) -> bool:
        """Whether a node does, as far as is known."""
        return node not in self._down | self._unsure

    # Where ranks are.

    def ask(self, job_id: int, slots: Sequence[RankSlot]) -> bool:
        """Ask where the ranks of a job run, for a `Bound` later; False when nobody can tell."""
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
        self._agents.ask_affinity(job_id, ranks, self.variables)
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
        return [Bound(job_id, compare_affinity(question.slots, self._cluster.nodes,
                                               self._topologies, question.found))]

    def know(self, order: AgentOrder) -> None:
        """Learn what an extension asks agents for (see `Agents.know`)."""
        if self._agents is not None:
            self._agents.know(order)

    def order(self, order: AgentOrder, job_id: int, hosts: Mapping[str, Mapping[str, Any]]) -> set[str]:
        """Ask nodes for what an extension's modules do about a job, each with further values. `poll` gives the event of
        each of those that are in the result (or its `Down`); nobody does it where the cores are emulated."""
        if self._agents is None or not hosts:
            return set()
        self._awake = True
        self.deadline = 0.0
        return self._agents.order(order, job_id, hosts)

    def cpus(self, slots: Iterable[RankSlot]) -> dict[str, dict[int, set[int]]]:
        """The CPUs of ranks, by host and rank, where cores are not emulated. A job whose ranks nobody can tell apart is
        one process on each node, with the cores of all."""
        found: dict[str, dict[int, set[int]]] = {}
        for slot in slots:
            host = self._hosts[slot.node]
            topology = self._topologies.get(host)
            if topology is not None and not topology.synthetic:
                found.setdefault(host, {}).setdefault(slot.rank if self.variables else 0, set()).update(
                    cpu for core in slot.cores for cpu in topology.core(slot.socket, core).cpus)
        return found

    def forget_question(self, job_id: int) -> None:
        """Where the ranks of a job were a moment ago does not matter any more."""
        self._questions.pop(job_id, None)

    # How much memory jobs use.

    def follow_memory(self, job_id: int, limits: Mapping[str, int]) -> None:
        """Follow the memory of a job, which may have so many bytes on each of its nodes, for a
        `MemoryUse` from time to time."""
        if self._agents is not None and limits:
            self._awake = True
            self.deadline = 0.0
            self._following[job_id] = tuple(limits)
            self._agents.follow_memory(job_id, limits)

    def forget_memory(self, job_id: int) -> None:
        """The job has ended."""
        hosts = self._following.pop(job_id, ())
        if self._agents is not None and hosts:
            self._agents.forget_memory(job_id, hosts)

    # What jobs leave behind.

    def beyond(self, placement: Placement) -> bool:
        """Whether a placement has other nodes than this machine, which emulated ones are not."""
        return self._agents is not None and not self._alone and any(
            self._hosts[node] != self.here for node in placement.nodes)

    def sweep(self, job_id: int, placement: Placement, well: bool = False, patience: float = 0.0,
              former: Cluster | None = None) -> None:
        """Nothing of a job that is over may stay on its nodes for longer than `patience` seconds. One that has ended `well` is
        over everywhere, and this machine is swept, too; the manager sweeps the sessions of others here itself, and no job starts
        on their nodes before they are swept. `former`: the cluster that the placement is of, where that is another."""
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
        """Nothing of the run may stay on other nodes but what belongs to these jobs; no job starts on a node before. The
        `doubted` ones, which may run there, start nowhere before."""
        hosts = set(self._hosts) - {self.here}
        if self._agents is not None and hosts:
            self._awake = True
            self.deadline = 0.0
            self._doubted = frozenset(doubted)
            self._agents.sweep(None, hosts, lost=True, spare=sorted(jobs))

    def sweeping(self, job_id: int, placement: Placement | None = None) -> bool:
        """Whether some node is still being swept of a job, or one of the placement of another job that was lost there."""
        hosts = () if placement is None or self._alone else {self._hosts[node] for node in placement.nodes}
        return self._agents is not None and self._agents.sweeping(job_id, hosts, job_id in self._doubted)

    def close(self, sweep: bool) -> int:
        """End the agents; before, with `sweep`, every process of the run on every node. The number
        of processes that were still there."""
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
                              if isinstance(event, Swept))
                readable.poll(1000 * min(max(0.0, due - time.monotonic()), 0.1))
        self._agents.close()
        self._agents = None
        return killed
