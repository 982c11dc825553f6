"""Follows the nodes while jobs run: which are lost, closed or drained."""

from __future__ import annotations

import math
import selectors

from vrm.live.manager.jobs.ends import Ends
from vrm.live.manager.jobs.verdict import LOST
from vrm.live.manager.liverun import LiveRun
from vrm.live.manager.part import NodeClosed, Part
from vrm.live.nodes.node_watch import NodeWentDown, ProcessesLeft, NodeUncertain, NodeCameBack


class NodeEvents(Part):
    """Notifies all parts of the reports of the agents on the nodes. `closed`: the time until which nothing starts on a
    node."""

    observes = (NodeWentDown, NodeUncertain, NodeCameBack)

    def __init__(self, live: LiveRun, ends: Ends) -> None:
        self.live = live
        self.ends = ends
        self.closed: dict[int, float] = {}

    def begin(self, selector: selectors.BaseSelector) -> None:
        """Let reports of agents wake the loop."""
        if self.live.watch.fileno() >= 0:
            selector.register(self.live.watch.fileno(), selectors.EVENT_READ, lambda: None)

    def look(self, now: float, files: bool) -> None:
        """Pass on the reports of the agents; open nodes whose closing time is over."""
        live = self.live
        for event in live.watch.poll(now):
            live.notify(event)
        for node in [node for node, until in self.closed.items() if now >= until]:
            del self.closed[node]
            if live.watch.answers(node):
                self._open(node)

    def deadline(self, now: float) -> float:
        """Return when the agents must be polled, or a node is to be used again."""
        return min([self.live.watch.deadline, *self.closed.values()])

    def observe(self, event: object) -> None:
        """Handle nodes that fail or return, and processes that outlived their jobs."""
        live = self.live
        if isinstance(event, NodeWentDown):
            self._down(event)
        elif isinstance(event, NodeUncertain):
            name = live.cluster.nodes[event.node].name
            self.close(event.node)
            live.tell("note", f"node {name}: {event.reason}; nothing starts there until it answers")
            for held in list(self.ends.held.values()):  # its mpirun noticed the loss earlier than vrm's own connection
                if held.outcome.reason.startswith(LOST) and held.running.booking.placement.node_set >> event.node & 1:
                    held.running.why = f"{LOST} {name} was lost"
                    self.ends.release_verdict(held, "node")
        elif isinstance(event, NodeCameBack):
            self._open(event.node)
            live.tell("note", f"node {live.cluster.nodes[event.node].name} answers again"
                              + ("" if event.node in live.drained else " and is used again"))
        elif isinstance(event, ProcessesLeft):
            live.tell("warning", f"#{event.job_id}: {event.processes} process(es) outlived it "
                                 f"on {event.host} and were killed"
                      + (f", {event.immortal} of them do not die" if event.immortal else ""))

    def _down(self, event: NodeWentDown) -> None:
        """Handle a lost node: close it and end the jobs on it."""
        live, ends = self.live, self.ends
        name = live.cluster.nodes[event.node].name
        self.close(event.node)
        lost = [running for running in live.running.values()
                if not running.former and running.booking.placement.node_set >> event.node & 1]
        live.tell("warning", f"node {name} is down: {event.reason}; "
                  + (f"its {len(lost)} job(s) are ended" if lost else "no job was on it")
                  + ", nothing starts there")
        for running in lost:
            running.why = running.why or f"node {name} is down"
            ends.end_job(running, "node")
        for held in list(ends.held.values()):
            if held.running.booking.placement.node_set >> event.node & 1:
                held.running.why = f"node {name} is down"
                ends.release_verdict(held, "node")

    def close(self, node: int, until: float = math.inf) -> None:
        """Start nothing on a node, for the rest of the run or `until` then."""
        live = self.live
        live.state.cluster.set_up(node, False)
        live.changes()
        live.notify(NodeClosed(node))
        if until < math.inf:
            self.closed[node] = until

    def _open(self, node: int) -> None:
        """Use a node that answers again, unless it is drained."""
        live = self.live
        if node not in live.drained:
            live.state.cluster.set_up(node, True)
            live.changes()

    def drain(self, node: int, why: str) -> None:
        """Start nothing more on a node; its jobs run to their ends. `why` is a text for people."""
        self.live.drained[node] = why
        self.close(node)

    def resume_node(self, node: int) -> None:
        """Use a drained node again."""
        del self.live.drained[node]
        if self.live.watch.answers(node):
            self._open(node)
