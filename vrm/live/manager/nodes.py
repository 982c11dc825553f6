"""The nodes while jobs run: which are lost or closed."""

from __future__ import annotations

import math
import selectors

from vrm.live.manager.jobs.ends import Ends
from vrm.live.manager.jobs.verdict import LOST
from vrm.live.manager.liverun import LiveRun
from vrm.live.manager.part import Closed, Part
from vrm.live.nodes.nodewatch import Down, Left, Unsure, Up


class Nodes(Part):
    """Lets all parts know what the agents on the nodes report. `closed`: until when nothing starts on a node."""

    observes = (Down, Unsure, Up)

    def __init__(self, live: LiveRun, ends: Ends) -> None:
        self.live = live
        self.ends = ends
        self.closed: dict[int, float] = {}

    def begin(self, selector: selectors.BaseSelector) -> None:
        """Reports of agents wake the loop."""
        if self.live.watch.fileno() >= 0:
            selector.register(self.live.watch.fileno(), selectors.EVENT_READ, lambda: None)

    def look(self, now: float, files: bool) -> None:
        """Hand on what the agents report; use nodes again that were closed for a while."""
        live = self.live
        for event in live.watch.poll(now):
            live.notify(event)
        for node in [node for node, until in self.closed.items() if now >= until]:
            del self.closed[node]
            if live.watch.answers(node):
                self._open(node)

    def deadline(self, now: float) -> float:
        """When agents are to be heard, or a node is to be used again."""
        return min([self.live.watch.deadline, *self.closed.values()])

    def observe(self, event: object) -> None:
        """Take notice of nodes that come and go, and of what jobs do to them."""
        live = self.live
        if isinstance(event, Down):
            self._down(event)
        elif isinstance(event, Unsure):
            name = live.cluster.nodes[event.node].name
            self.close(event.node)
            live.tell("note", f"node {name}: {event.reason}; nothing starts there until it answers")
            for held in list(self.ends.held.values()):  # its mpirun was quicker to see what ended vrm's own connection
                if held.outcome.reason.startswith(LOST) and held.running.booking.placement.node_set >> event.node & 1:
                    held.running.why = f"{LOST} {name} was lost"
                    self.ends.release_verdict(held, "node")
        elif isinstance(event, Up):
            self._open(event.node)
            live.tell("note", f"node {live.cluster.nodes[event.node].name} answers again"
                              + ("" if event.node in live.drained else " and is used again"))
        elif isinstance(event, Left):
            live.tell("warning", f"#{event.job_id}: {event.processes} process(es) outlived it "
                                 f"on {event.host} and were killed"
                      + (f", {event.immortal} of them do not die" if event.immortal else ""))

    def _down(self, event: Down) -> None:
        """A node is lost: nothing starts there, and the jobs that are on it are lost with it."""
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
        """Nothing starts on a node any more, or `until` then."""
        live = self.live
        live.state.cluster.set_up(node, False)
        live.changes()
        live.notify(Closed(node))
        if until < math.inf:
            self.closed[node] = until

    def _open(self, node: int) -> None:
        """Use a node again that answers, if it is not drained."""
        live = self.live
        if node not in live.drained:
            live.state.cluster.set_up(node, True)
            live.changes()

    def drain(self, node: int, why: str) -> None:
        """Start nothing more on a node, whose jobs run to their ends; `why` is for people."""
        self.live.drained[node] = why
        self.close(node)

    def resume_node(self, node: int) -> None:
        """Use a node again that was drained."""
        del self.live.drained[node]
        if self.live.watch.answers(node):
            self._open(node)
