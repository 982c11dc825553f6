"""Probes of nodes while a run is managed: a node takes no jobs for the seconds of its probe."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping

from vrm.ext.learning.health.found import ProbeRecord
from vrm.ext.learning.nodes import probe
from vrm.live.manager.liverun import LiveRun
from vrm.live.manager.nodes import Nodes
from vrm.live.nodes.outcomes import AgentOrder
from vrm.model import RankSlot

NO_JOB = -2
"""The number of no job, as whose a node is probed."""

PEERS = 2
"""Other nodes that are probed, to compare with."""

FRESH = 86400.0
"""Seconds for which a probe of another node is compared with."""

LATE = probe.PATIENCE + 30.0
"""Seconds after which nobody waits for a probe."""

WHY = "vrm checks its speed"
"""Why a node takes no jobs meanwhile."""


@dataclass(frozen=True)
class Probed:
    """What a probe of a node has measured, as `vrm.ext.learning.health.found.ProbeRecord` has it."""

    host: str
    compute: float
    memory: float
    workers: int
    fault: str


def _read(host: str, _: Mapping[str, Any], answer: Mapping[str, Any]) -> Probed:
    return Probed(host, float(answer["compute"]), float(answer["memory"]), int(answer["workers"]),
                  " ".join(str(answer["fault"]).split())[:200])


PROBE = AgentOrder("probe", (probe.__file__,), _read)


class Probes:
    """The last probe of each node, `known` by name, of which the store does not have the `unsaved`. `until` is when one
    that is running is given up (the manager's clock)."""

    def __init__(self, live: LiveRun, nodes: Nodes, machine: str) -> None:
        self.live = live
        self.nodes = nodes
        self._machine = machine
        self.known: dict[str, ProbeRecord] = {}
        self.unsaved: list[ProbeRecord] = []
        self._running: dict[int, float] = {}
        self._mute = False  # nobody probes nodes here

    def know(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Learn of earlier probes."""
        for row in rows:
            record = ProbeRecord(*row)
            if record.time > self.live.now - FRESH:
                self.known[record.name] = record

    @property
    def until(self) -> float:
        """When the next probe is given up."""
        return min(self._running.values(), default=math.inf)

    def overdue(self, now: float) -> bool:
        """Whether a probe is to be given up."""
        return now >= self.until

    def peers(self, name: str, kind: Callable[[str], Hashable]) -> list[ProbeRecord]:
        """The probes of nodes that are like this one."""
        return [each for each in self.known.values() if each.name != name and kind(each.name) == kind(name)
                and each.time > self.live.now - FRESH]

    def begin(self, nodes: Iterable[int], suspects: Mapping[str, float], kind: Callable[[str], Hashable],
              leaves: int | None = None) -> None:
        """Probe those of these nodes that are suspected and were not probed since then, and a few like them, where no
        job is but the one that `leaves`."""
        if self._mute:
            return
        names = [node.name for node in self.live.cluster.nodes]
        busy = 0
        for job_id, booking in self.live.cluster.bookings.items():
            if job_id != leaves:
                busy |= booking.placement.node_set
        for node in nodes:
            name = names[node]
            wanted = (self._since(name) < suspects[name] - 1.0 if name in suspects else
                      self._since(name) == -math.inf and any(self._lacks_peer(each, name, kind) for each in suspects))
            if wanted and node not in self._running and not busy >> node & 1 and self.live.watch.answers(node):
                self._start(node, name)

    def _since(self, name: str) -> float:
        record = self.known.get(name)
        return -math.inf if record is None else record.time

    def _lacks_peer(self, suspect: str, name: str, kind: Callable[[str], Hashable]) -> bool:
        """Whether a node is like one that is suspected, of which too few others are known or being probed."""
        running = [self.live.cluster.nodes[node].name for node in self._running]
        return kind(suspect) == kind(name) and len(self.peers(suspect, kind)) + sum(
            kind(each) == kind(suspect) for each in running if each != suspect) < PEERS

    def _start(self, node: int, name: str) -> None:
        found = self.live.cluster.nodes[node]
        slots = [RankSlot(0, node, socket, tuple(range(cores))) for socket, cores in enumerate(found.sockets)]
        cpus = sorted({min(self.live.watch.cpus([RankSlot(0, node, slot.socket, (core,))]).get(name, {0: {-1}})[0])
                       for slot in slots for core in slot.cores})
        if not self.live.watch.order(PROBE, NO_JOB, {name: {"cpus": [cpu for cpu in cpus if cpu >= 0]}}):
            self._mute = True
            self.live.tell("note", "nodes cannot be probed here, so their jobs alone show which are bad")
            return
        self._running[node] = self.live.now + LATE
        if node not in self.live.drained:
            self.nodes.drain(node, WHY)

    def answered(self, event: Probed, drained: Collection[str]) -> None:
        """A node was probed; it takes jobs again but for those that are to stay drained."""
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
        """A node is down, and answers nothing."""
        if node in self._running:
            self._end(node, ())

    def forget(self, now: float, drained: Collection[str]) -> None:
        """Give up probes that take too long."""
        for node in [node for node, until in self._running.items() if now >= until]:
            self._end(node, drained)
