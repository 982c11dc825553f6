"""All agents of a run (`vrm.live.runner.agent`), for an event loop: only `settle` and `close` wait for an agent.

Other nodes' agents are reached through the relay (`vrm.live.relay`); that of this machine is a plain child. Their use:

    agents = Agents(allocation.hosts, reach, env, timeout)
    found, failed = agents.settle()         # the start of a run: waits, `timeout` for each node
    agents.run = launcher.run_id
    ...
    loop: wait for agents.fileno(), or until the time that tick returned
          agents.tick(now) ; for event in agents.events(): ...

A node counts as down at the start if its agent cannot be started (two attempts, or one that hangs for `timeout`).
Later it counts as down if it does not answer a ping, or its lost agent could not be started again, for `timeout`: a lost
connection does not mean a lost node, but nothing should start there until it is clear. This machine is never down. Nodes
that are down are tried again, after longer and longer pauses.

Each outcome is reported once: `NodeLost` when a node's agent was lost, `NodeDown` when the node counts as down,
`NodeUp` when it answers for the first time, or again. A node that was restarted gives both of the last two. Open
requests to a node are sent again after its agent was lost. Sweeps wait for nodes that are down, and such a node is up
again only after it was swept; other requests to nodes that are down are dropped.
"""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from itertools import count
from typing import Any
from collections.abc import Collection, Iterable, Mapping, Sequence

from vrm.live.runner import agent, devices
from vrm.live.nodes.runner_commands import SILENCE, command_line, group_line, is_local, local_line, node_command, with_fix
from vrm.live.nodes.agent_connection import ANSWERS, CONNECTING, WAITING, AgentConnection, answer_in, end_inputs, kill
from vrm.live.nodes.agent_events import AgentEvent, AgentOrder, MemoryUse, NodeDown, NodeLost, NodeUp, outcome
from vrm.live.nodes.topology import NodeFacts, TopologyError, node_facts
from vrm.live.relay.process import RelayProcess
from vrm.live.relay.relay import EACH, SILENT
from vrm.system.transports.base import choose, transports

PING_EVERY, RELAYED_EVERY = 5.0, 60.0
"""Seconds from an agent's answer to the next ping, on this machine and on other nodes; the first is at most the timeout.
The relay asks the other nodes every few seconds, all with one message, so only their agents remain to be asked."""

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 60.0
"""Seconds before an agent is started again: the first time, and at most."""

FAN_OUT = 64
"""Nodes that may be in the state of connecting at the same time."""

PATIENCE = 30.0
"""Seconds within which the ranks of a job should have started, for `request_affinity`."""

RELAY_SECONDS = 1.0
"""Seconds within which the relay reports why it cannot reach a node."""

LONGEST_LINE, MOST_NOISE = 1 << 24, 1 << 20
"""Bytes: of one answer, and of all output that is not an answer, such as that of login scripts."""


@dataclass
class _Timing:
    ping: float
    relayed: float
    first_pause: float
    longest_pause: float
    fan_out: int


class Agents:
    """The agents of all hosts of a run; see the top of this file.

    `run` is the mark of the run's processes; it must be set before ranks are requested or swept. `relay` leads to
    other nodes (None: there are none); it serves the programs of jobs, too. `reach` is auto, or one of
    `vrm.system.transports`; `command` replaces ssh, and `attach` adds its sessions to the batch job (see
    `command_line`); `env` is the environment of ssh and srun. `granted` are the numbers of cores to claim on each
    node, `wanted` the request on GPUs that is sent to its agent (see `agent.device_facts`). `timeout`: seconds within
    which a node must answer. All times are of the clock time.monotonic.
    """

    def __init__(self, hosts: Iterable[str], reach: str = "auto",
                 env: Mapping[str, str] | None = None, timeout: float = 10.0,
                 command: Sequence[str] = (), run: str = "", ping: float | None = None,
                 pauses: tuple[float, float] = (FIRST_PAUSE, LONGEST_PAUSE),
                 fan_out: int = FAN_OUT, attach: Sequence[str] = (),
                 granted: Mapping[str, int] | None = None,
                 wanted: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        env = dict(os.environ if env is None else env)
        self.run = run
        self.reach = "ssh" if command else choose(reach, env)
        self.timeout = timeout
        self._command = tuple(command)
        self._attach = tuple(attach)
        self._wishes = {host: str(cores) for host, cores in (granted or {}).items()}
        self._devices = {host: dict(wanted) for host, wanted in (wanted or {}).items()}
        self.env = transports()[self.reach].environment(env)
        self._timing = _Timing(min(PING_EVERY, timeout) if ping is None else ping,
                               RELAYED_EVERY if ping is None else ping, *pauses, fan_out)
        self._poll = select.epoll()
        self._nodes = {host: AgentConnection(host, "local" if is_local(host, env) else self.reach, self._poll)
                       for host in hosts}
        ways = self._ways()
        here = {host: local_line(host) for host, node in self._nodes.items() if node.local and ways}
        self.relay = RelayProcess({**ways, **here}, self.env, timeout, self._groups([*ways])) if ways else None
        self._ready: list[AgentEvent] = []
        self._dying: list[subprocess.Popen[bytes]] = []
        self._numbers = count(1)
        self._by_fd: dict[int, AgentConnection] = {}
        self._known: dict[str, AgentOrder] = {}

    # For the event loop.

    def start(self) -> None:
        """Start the agents, as many at a time as the fan-out allows; returns at once."""
        self.tick(time.monotonic())

    @property
    def begun(self) -> bool:
        """True if some agent was started."""
        return any(node.state != WAITING for node in self._nodes.values())

    def fileno(self) -> int:
        """Return a descriptor that is readable when `events` has something to read."""
        return self._poll.fileno()

    def events(self) -> list[AgentEvent]:
        """Return what has happened since the last call."""
        self._read(time.monotonic())
        ready, self._ready = self._ready, []
        return ready

    def tick(self, now: float) -> float:
        """Connect, ping and give up nodes when it is time; return when to call this again: `now` if there are events."""
        self._read(now)  # an answer that has come must not count as silence
        self._dying = [process for process in self._dying if process.poll() is None]
        connecting = sum(node.state == CONNECTING for node in self._nodes.values())
        for node in self._nodes.values():
            if (node.up and node.lost_at is not None and not node.local
                    and now >= node.lost_at + self.timeout):
                self._down(node, node.said or "its agent was lost")
            if now < node.due:
                continue
            if node.state == WAITING:
                if connecting < self._timing.fan_out:
                    connecting += 1
                    self._connect(node, now)
            elif node.state == CONNECTING:
                node.failures += 1  # one attempt that hangs counts as two
                self._fail(node, now, f"no answer within {self.timeout:g} s" + (
                    f"; it said: {node.said}" if node.said else ""))
            elif node.pinged:
                reason = f"{SILENT} {self.timeout:g} s"
                if node.up and not node.local:
                    self._down(node, reason)
                self._fail(node, now, reason)
            else:
                node.pinged, node.due = True, now + self.timeout
                node.send({"number": 0, "ask": "ping"}, self._known)
        if self._ready:
            return now
        times = [node.due for node in self._nodes.values()
                 if node.state != WAITING or connecting < self._timing.fan_out]
        times += [node.lost_at + self.timeout for node in self._nodes.values()
                  if node.up and node.lost_at is not None and not node.local]
        times += [now + 0.1] if self._dying else []
        return max(now, min(times, default=now + 60.0))

    def resumed(self, seconds: float) -> None:
        """Move all deadlines by the `seconds` for which this process, and perhaps the agents with it, was stopped."""
        for node in self._nodes.values():
            node.due += seconds
            if node.lost_at is not None:
                node.lost_at += seconds

    # Requests.

    def request_affinity(self, job_id: int, hosts: Mapping[str, int], variables: Sequence[str],
                         patience: float = PATIENCE) -> None:
        """Request the CPUs of a job's ranks: `hosts` are its nodes with the number of its ranks on each, `variables`
        those that show the rank (see `vrm.live.launch.base`).

        Each of these nodes that is up gives an `Affinity` when it has found all its ranks, or after `patience`
        seconds, or when the job is swept.
        """
        for host, ranks in hosts.items():
            node = self._nodes.get(host)
            if node is not None and node.up is not False:
                self._ask(node, {"ask": "affinity", "run": self.run, "job": job_id,
                                 "ranks": ranks, "variables": list(variables),
                                 "patience": patience})

    def know(self, order: AgentOrder) -> None:
        """Register an order of an extension: agents clean up after it when they sweep."""
        self._known[order.name] = order

    def order(self, order: AgentOrder, job_id: int, hosts: Mapping[str, Mapping[str, Any]]) -> set[str]:
        """Send the order of an extension about a job to nodes, each with further values. Return the nodes that are not
        down: each gives the event that `order` makes of its answer; a node that goes down first gives only its
        `NodeDown`."""
        self.know(order)
        asked = set()
        for host, values in hosts.items():
            node = self._nodes.get(host)
            if node is not None and node.up is not False:
                self._ask(node, {"ask": order.name, "run": self.run, "job": job_id, **values})
                asked.add(host)
        return asked

    def follow_memory(self, job_id: int, limits: Mapping[str, int]) -> None:
        """Follow the memory of a job until `forget_memory`: `limits` are its nodes with the bytes that it may use
        there. A node gives a `MemoryUse` each time the memory has grown much, and as soon as it exceeds the limit."""
        for host, limit in limits.items():
            node = self._nodes.get(host)
            if node is not None and node.up is not False:
                self._ask(node, {"ask": "memory", "run": self.run, "job": job_id, "limit": limit})

    def forget_memory(self, job_id: int, hosts: Iterable[str]) -> None:
        """Stop following the memory of a job that has ended."""
        for host in hosts:
            node = self._nodes.get(host)
            if node is None:
                continue
            node.asked = {number: request for number, request in node.asked.items()
                          if (request["ask"], request["job"]) != ("memory", job_id)}
            if node.state == ANSWERS:
                node.send({"number": 0, "ask": "forget", "run": self.run, "job": job_id}, self._known)

    def sweep(self, job_id: int | None, hosts: Iterable[str] | None = None, patience: float = 0.0,
              lost: bool = False, spare: Sequence[int] | None = None) -> None:
        """Kill all processes of a job (None: of the whole run) on some or all nodes (`hosts` None) that have not ended
        by themselves within `patience` seconds.

        Each node gives a `SweepDone`; a node that is down gives it when it is back, before its `NodeUp`. The job must not
        start again under its number before that (see `sweeping`), since a sweep ends every process with its marks.
        `lost`: it is unknown whether the job has ended there, so no other job may start there before. `spare` are jobs
        of the run that go on running.
        """
        if not self.run:
            raise ValueError("the run has no mark yet: set Agents.run")
        for host in self._nodes if hosts is None else sorted(hosts):
            node = self._nodes.get(host)
            if node is not None:
                self._ask(node, {"ask": "sweep", "run": self.run, "job": job_id, "patience": patience,
                                 **({"lost": True} if lost else {}), **({} if spare is None else {"spare": spare}),
                                 **({"orders": list(self._known)} if self._known else {})})

    def sweeping(self, job_id: int, hosts: Collection[str] = (), doubted: bool = False) -> bool:
        """Return whether a node that is not down is being swept of this job, or whether one of `hosts` is being swept
        of a lost job. `doubted`: the sweep of a whole run may be of this job, too."""
        return any(request["ask"] == "sweep" and (
            request["job"] in ((None, job_id) if doubted else (job_id,))
            or ("lost" in request and node.host in hosts))
            for node in self._nodes.values() if node.up is not False and node.asked
            for request in node.asked.values())

    def unanswered(self, up_only: bool = True) -> int:
        """Return the number of requests without an answer yet, by default without those to nodes that are down."""
        return sum(request["ask"] != "memory" for node in self._nodes.values()
                   if node.up is not False or not up_only for request in node.asked.values())

    def _ways(self) -> dict[str, tuple[str, ...]]:
        """Return the commands that start a runner on each of the other nodes."""
        return {node.host: command_line(node.host, node.reach, self.timeout, self._command, self._attach,
                                        self._granted_gpus(node.host))
                for node in self._nodes.values() if not node.local}

    def _groups(self, hosts: Sequence[str]) -> list[tuple[Sequence[str], Sequence[str]]]:
        """Return the command that starts a runner on all other nodes, if there are several and the transport can; else []."""
        gpus = {self._granted_gpus(host) for host in hosts}
        line = group_line(hosts, self.reach, self.timeout, gpus.pop()) if len(hosts) > 1 and len(gpus) == 1 else ()
        return [(hosts, line)] if line else []

    def reached(self) -> dict[str, tuple[tuple[str, ...], bool]]:
        """Return the commands that start any program on a node from another one, by node name (see `node_command`)."""
        return {host: node_command(host, self.reach, self.timeout, self._command, self._granted_gpus(host))
                for host in self._nodes}

    def _granted_gpus(self, host: str) -> int:
        """Return how many GPUs of a node the batch system grants, as far as it reports that; else 0."""
        return int(self._devices.get(host, {}).get("count", 0))

    def drop(self, hosts: Iterable[str]) -> None:
        """End the agents of these nodes and forget the nodes."""
        self._end([node for node in [self._nodes.pop(host, None) for host in hosts] if node])

    def settle(self) -> tuple[dict[str, NodeFacts], dict[str, str]]:
        """Start the agents, and wait until every node has answered or counts as down. Return the facts of the former
        and the reasons of the latter, which are tried again unless they are dropped."""
        found: dict[str, NodeFacts] = {}
        failed: dict[str, str] = {}
        poll = select.poll()
        poll.register(self.fileno(), select.POLLIN)
        while True:
            now = time.monotonic()
            due = self.tick(now)
            for event in self.events():
                if isinstance(event, NodeUp):
                    found[event.host] = event.facts
                    failed.pop(event.host, None)
                elif isinstance(event, NodeDown):
                    failed[event.host] = event.reason
                    found.pop(event.host, None)
            if len(found) + len(failed) >= len(self._nodes):
                return found, failed
            poll.poll(1000 * min(max(0.0, due - now), 1.0))

    def close(self) -> None:
        """End all agents. Jobs are not affected."""
        self._end(self._nodes.values())
        for process in self._dying:
            try:
                process.wait(0.1)
            except subprocess.TimeoutExpired:
                continue  # it hangs in the kernel, and was sent SIGKILL
        self._nodes.clear()
        self._poll.close()
        if self.relay is not None:
            self.relay.close()

    def _end(self, nodes: Collection[AgentConnection]) -> None:
        """End agents, by force those that do not end by themselves or have never answered."""
        end_inputs(nodes)
        for node in nodes:
            self._disconnect(node)

    # Connecting and losing.

    def _connect(self, node: AgentConnection, now: float) -> None:
        wish, said = self._wishes.get(node.host, ""), self._devices.get(node.host)
        devices = json.dumps(said, separators=(",", ":")) if said else ""
        try:
            if node.local:
                node.connection, theirs = socket.socketpair()
                with theirs:  # a session of its own: a Ctrl-C at the terminal reaches only vrm
                    node.process = subprocess.Popen(
                        [sys.executable, "-I", "-S", os.path.abspath(agent.__file__), str(SILENCE), wish, devices],
                        env=self.env, stdin=theirs.fileno(), stdout=theirs.fileno(), stderr=theirs.fileno(), start_new_session=True, cwd="/")
            else:
                assert self.relay is not None
                node.connection = self.relay.connect_agent(node.host, float(SILENCE), wish, devices)
        except OSError as error:
            self._fail(node, now, f"its agent cannot be started: {error.strerror}")
            return
        node.connection.setblocking(False)
        self._by_fd[node.connection.fileno()] = node
        self._poll.register(node.connection, select.EPOLLIN)
        # The relay gives up a node after the same time, and has its last output; it may try the node a second time.
        relayed = 2 * self.timeout + EACH * len(self._nodes) + RELAY_SECONDS
        node.state, node.due = CONNECTING, now + (self.timeout if node.local else relayed)
        node.forget()

    def _disconnect(self, node: AgentConnection) -> None:
        process, node.process = node.process, None
        connection, node.connection = node.connection, None
        node.rising = None
        if connection is not None:
            if self._by_fd.pop(connection.fileno(), None) is not None:
                self._poll.unregister(connection)
            connection.close()
        if process is not None:
            kill(process)
            if process.poll() is None:
                self._dying.append(process)

    def _fail(self, node: AgentConnection, now: float, reason: str) -> None:
        """Handle an agent that is lost or could not be started: try again after a pause."""
        answered = node.state == ANSWERS
        self._disconnect(node)
        node.failures += 1
        node.said = reason
        node.state = WAITING
        node.due = now + min(self._timing.longest_pause,
                             self._timing.first_pause * 2 ** min(node.failures - 1, 20))
        if answered and node.lost_at is None:
            node.lost_at = now
            if node.up and not node.local:
                self._ready.append(NodeLost(node.host, reason))
        if node.up is None and node.failures >= 2:
            self._down(node, reason)

    def _down(self, node: AgentConnection, reason: str) -> None:
        node.up = False
        node.lost_at = None
        node.asked = {number: request for number, request in node.asked.items()
                      if request["ask"] == "sweep"}
        self._ready.append(NodeDown(node.host, with_fix(reason)))

    # Sending.

    def _ask(self, node: AgentConnection, request: dict[str, Any]) -> None:
        request["number"] = next(self._numbers)
        node.asked[request["number"]] = request
        if node.state == ANSWERS:
            node.send(request, self._known)

    # Receiving.

    def _read(self, now: float) -> None:
        for fd, mask in self._poll.poll(0, max(1, len(self._nodes))):
            node = self._by_fd.get(fd)
            if node is None:
                continue  # lost a moment ago
            if mask & select.EPOLLOUT:
                node.flush()
            if mask & ~select.EPOLLOUT:
                self._hear(node, now)

    def _hear(self, node: AgentConnection, now: float) -> None:
        lines = node.receive()
        if lines is None:
            node.note(bytes(node.unread))
            if node.up and node.said.startswith(SILENT):
                self._down(node, node.said)
            self._fail(node, now, node.said or "its agent ended and printed nothing")
            return
        for line in lines:
            answer = answer_in(line)
            if answer is None:
                node.noise += len(line)
                node.note(line)
            else:
                node.noise = 0
                self._take(node, answer, now)
                if node.state == WAITING:
                    return  # its answer could not be read
        unread = len(node.unread)
        if (unread + node.noise > MOST_NOISE and not node.unread.startswith(b"{")) or (
                unread > LONGEST_LINE):
            node.note(bytes(node.unread[:300]))
            self._fail(node, now, f"something other than an agent answers there: {node.said}")

    def _take(self, node: AgentConnection, answer: dict[str, Any], now: float) -> None:
        """Handle one answer of an agent."""
        try:
            if "facts" in answer:
                self._take_facts_answer(node, answer["facts"], now)
                return
            node.pinged, node.failures, node.due = False, 0, now + (self._timing.ping if node.local else self._timing.relayed)
            request = node.asked.get(answer["number"])
            if request is None:
                return
            if request["ask"] == "memory":  # this request stays open
                self._ready.append(MemoryUse(node.host, request["job"], int(answer["memory"]),
                                             bool(answer["over"])))
                return
            del node.asked[answer["number"]]
            self._ready.append(outcome(node.host, request, answer, self._known))
            if request["ask"] == "sweep":
                self._report_up(node)
        except TopologyError as error:
            self._fail(node, now, str(error))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            self._fail(node, now, f"its agent's answer cannot be read: {error!r}")

    def _take_facts_answer(self, node: AgentConnection, facts: dict[str, Any], now: float) -> None:
        """Handle the facts that an agent sends when it has started."""
        self._take_facts(node, node_facts(facts, node.host), now)
        if facts.get("claimed"):  # claim the same ones after a reconnection
            self._wishes[node.host] = "cpus:" + ",".join(map(str, facts["claimed"]))
        wanted = self._devices.get(node.host, {})
        if wanted.get("claim") and node.state == ANSWERS:
            wanted.setdefault("again", [devices.name_of(device) for device in facts["devices"]])

    def _take_facts(self, node: AgentConnection, facts: NodeFacts, now: float) -> None:
        node.state, node.pinged, node.due = ANSWERS, False, now + (self._timing.ping if node.local else self._timing.relayed)
        if node.up and node.boot and facts.boot != node.boot:
            self._down(node, "it was restarted")
        back = node.lost_at is not None and not node.local
        node.lost_at = None
        node.boot = facts.boot
        node.rising = facts if back or not node.up else None
        for request in list(node.asked.values()):
            node.send(request, self._known)
        self._report_up(node)

    def _report_up(self, node: AgentConnection) -> None:
        """Report a node that answers, once all its sweeps are done: the swept jobs may then start there again."""
        if node.rising is not None and not any(request["ask"] == "sweep"
                                               for request in node.asked.values()):
            node.up = True
            self._ready.append(NodeUp(node.host, node.rising))
            node.rising = None


def probe(hosts: Iterable[str], reach: str = "auto", env: Mapping[str, str] | None = None,
          timeout: float = 10.0, command: Sequence[str] = (),
          wanted: Mapping[str, Mapping[str, Any]] | None = None
          ) -> tuple[dict[str, NodeFacts], dict[str, str]]:
    """Ask all hosts at the same time for their facts. Return the facts of those that answer, and the reasons of those
    that do not. Leaves no process running. `wanted` as in `Agents`."""
    agents = Agents(hosts, reach, env, timeout, command, wanted=wanted)
    try:
        return agents.settle()
    finally:
        agents.close()
