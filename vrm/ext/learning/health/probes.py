"""Probes of nodes during a run: a node takes no jobs for the seconds of its probe."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping

from vrm.ext.learning.health.findings import ProbeRecord
from vrm.ext.learning.nodes import probe
from vrm.live.manager.liverun import LiveRun
from vrm.live.manager.nodes import NodeEvents
from vrm.live.nodes.agent_events import AgentOrder
from vrm.model import RankSlot

NO_JOB = -2
"""The job id under which nodes are probed; no job has it."""

PEERS = 2
"""Number of other nodes that are probed for comparison."""

FRESH = 86400.0
"""Seconds for which a probe of another node is used for comparison."""

LATE = probe.PATIENCE + 30.0
"""Seconds after which a probe is given up."""

WHY = "vrm checks its speed"
"""The reason why a node takes no jobs during its probe."""


@dataclass(frozen=True)
class ProbeFinished:
    """The result of a node's probe; the attributes are those of `vrm.ext.learning.health.findings.ProbeRecord`."""

    host: str
    compute: float
    memory: float
    workers: int
    fault: str


def _read(host: str, _: Mapping[str, Any], answer: Mapping[str, Any]) -> ProbeFinished:
    return ProbeFinished(host, float(answer["compute"]), float(answer["memory"]), int(answer["workers"]),
                         " ".join(str(answer["fault"]).split())[:200])


PROBE = AgentOrder("probe", (probe.__file__,), _read)


class Probes:
    """The last probe of each node: `known` by name; those in `unsaved` are not in the store yet. `until` is
    when a running probe is given up (the manager's clock)."""

    def __init__(self, live: LiveRun, nodes: NodeEvents, machine: str) -> None:
        self.live = live
        self.nodes = nodes
        self._machine = machine
        self.known: dict[str, ProbeRecord] = {}
        self.unsaved: list[ProbeRecord] = []
        self._running: dict[int, float] = {}
        self._cannot_probe = False  # nodes cannot be probed here

    def know(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Take earlier probes from the store."""
        for row in rows:
            record = ProbeRecord(*row)
            if record.time > self.live.now - FRESH:
                self.known[record.name] = record

    @property
    def until(self) -> float:
        """When the next probe is given up."""
        return min(self._running.values(), default=math.inf)

    def overdue(self, now: float) -> bool:
        """Return whether a probe is to be given up."""
        return now >= self.until

    def peers(self, name: str, kind: Callable[[str], Hashable]) -> list[ProbeRecord]:
        """Return the recent probes of other nodes of the same kind."""
        return [each for each in self.known.values() if each.name != name and kind(each.name) == kind(name)
                and each.time > self.live.now - FRESH]

    def begin(self, nodes: Iterable[int], suspects: Mapping[str, float], kind: Callable[[str], Hashable],
              leaves: int | None = None) -> None:
        """Probe those of `nodes` that are suspected and were not probed since then, and a few nodes of the same
        kind. A node is probed only if it has no job, except the one that `leaves`."""
        if self._cannot_probe:
            return
        names = [node.name for node in self.live.cluster.nodes]
        busy = 0
        for job_id, booking in self.live.cluster.bookings.items():
            if job_id != leaves:
                busy |= booking.placement.node_set
        for node in nodes:
            name = names[node]
            wanted = (self._since(name) < suspects[name] - 1.0 if name in suspects else
                      self._since(name) == -math.inf and any(self._needed_as_peer(each, name,
                                                                                  kind) for each in suspects))
            if wanted and node not in self._running and not busy >> node & 1 and self.live.watch.answers(node):
                self._start(node, name)

    def _since(self, name: str) -> float:
        record = self.known.get(name)
        return -math.inf if record is None else record.time

    def _needed_as_peer(self, suspect: str, name: str, kind: Callable[[str], Hashable]) -> bool:
        """Return whether a node is of the same kind as a suspected one for which too few others are known or
        being probed."""
        running = [self.live.cluster.nodes[node].name for node in self._running]
        return kind(suspect) == kind(name) and len(self.peers(suspect, kind)) + sum(
            kind(each) == kind(suspect) for each in running if each != suspect) < PEERS

    def _start(self, node: int, name: str) -> None:
        found = self.live.cluster.nodes[node]
        slots = [RankSlot(0, node, socket, tuple(range(cores))) for socket, cores in enumerate(found.sockets)]
        cpus = sorted({min(self.live.watch.cpus([RankSlot(0, node, slot.socket, (core,))]).get(name, {0: {-1}})[0])
                       for slot in slots for core in slot.cores})
        if not self.live.watch.order(PROBE, NO_JOB, {name: {"cpus": [cpu for cpu in cpus if cpu >= 0]}}):
            self._cannot_probe = True
            self.live.tell("note", "nodes cannot be probed here, so their jobs alone show which are bad")
            return
        self._running[node] = self.live.now + LATE
        if node not in self.live.drained:
            self.nodes.drain(node, WHY)

    def answered(self, event: ProbeFinished, drained: Collection[str]) -> None:
        """Take the result of a probe. The node takes jobs again, unless it is among the nodes `drained`."""
        record = ProbeRecord(self._machine, event.host, self.live.now, event.compute, event.memory, event.workers,
                             event.fault)
        self.known[event.host] = record
        self.unsaved.append(record)
        for node in list(self._running):
            if self.live.cluster.nodes[node].name == event.host:
                self._end(node, drained)

    def _end(self, node: int, drained: Collection[str]) -> None:
        del self._running[node]
        if self.live.cluster.nodes[node].name not in drained and self.live.drained.get(node) == WHY:
            self.nodes.resume_node(node)

    def lost(self, node: int) -> None:
        """End the probe of a node that is down and does not answer."""
        if node in self._running:
            self._end(node, ())

    def forget(self, now: float, drained: Collection[str]) -> None:
        """Give up probes that take too long."""
        for node in [node for node, until in self._running.items() if now >= until]:
            self._end(node, drained)
