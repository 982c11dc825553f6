"""All agents of a run (see `vrm.live.runner.agent`), for an event loop: nothing here ever waits for one.

The agent of another node is reached through the relay (`vrm.live.relay`), that of this machine is a plain
child. A run uses it like this:

    agents = Agents(allocation.hosts, reach, env, timeout)
    found, failed = agents.settle()         # the start of a run: waits, `timeout` for each node
    agents.run = launcher.run_id
    ...
    loop: wait for agents.fileno(), or until the time that tick returned
          agents.tick(now) ; for event in agents.events(): ...

When a node counts as down: at the start, when its agent cannot be started (two attempts, or one that hangs for `timeout`). Later, when
it does not answer a ping for `timeout`, or when its agent was lost and cannot be started anew for `timeout`: a lost connection alone is
no lost node, but nothing should start there meanwhile. This machine is never down. Nodes that are down are tried again, after longer and
longer pauses.

Outcomes are told once: `NodeLost` when its agent was lost, `NodeDown` when a node counts as down, `NodeUp` when it answers first, or
again. A node that was restarted gives both. What was asked of a node is asked again when its agent was lost; sweeps wait for nodes that
are down, which are not up again before they are swept; other questions are forgotten.
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
from vrm.live.nodes.connecting import SILENCE, command_line, group_line, is_local, local_line, way_to, with_fix
from vrm.live.nodes.node_agent import ANSWERS, CONNECTING, WAITING, AgentNode, answer_in, end_inputs, kill
from vrm.live.nodes.outcomes import AgentEvent, AgentOrder, MemoryUse, NodeDown, NodeLost, NodeUp, outcome
from vrm.live.nodes.topology import NodeFacts, TopologyError, node_facts
from vrm.live.relay.process import RelayProcess
from vrm.live.relay.relay import EACH, SILENT
from vrm.system.transports.base import choose, transports

PING_EVERY, RELAYED_EVERY = 5.0, 60.0
"""Seconds from an agent's answer to the next ping; less where a node must answer in less. The relay asks other nodes every
few seconds, all with one message, and only their agents are left to be asked."""

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 60.0
"""Seconds before an agent is started again: the first time, and at most."""

FAN_OUT = 64
"""Nodes that are being connected to at the same time."""

PATIENCE = 30.0
"""Seconds in which the ranks of a job should have started, for `ask_affinity`."""

RELAY_SECONDS = 1.0
"""Seconds in which the relay says why it cannot reach a node."""

LONGEST_LINE, MOST_NOISE = 1 << 24, 1 << 20
"""Bytes: of one answer, and of all that is not an answer, as login scripts print."""


@dataclass
class _Timing:
    ping: float
    relayed: float
    first_pause: float
    longest_pause: float
    fan_out: int


class Agents:
    """The agents of all hosts of a run; see the top of this file.

    `run` is the mark of the run's processes, needed before ranks are asked for or swept. `relay` leads to other nodes, None where
    there are none; it serves the programs of jobs, too. `reach` is auto, or one of `vrm.system.transports`; `command` replaces ssh,
    and `attach` adds its sessions to the batch job (see `command_line`); `env` is the environment of ssh and srun. `granted` are
    cores to be claimed on a node, `wanted` what is said to its agent of GPUs (see `agent.of_devices`). `timeout`: seconds in which
    a node must answer. Times given and returned are of the clock time.monotonic.
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
        self._nodes = {host: AgentNode(host, "local" if is_local(host, env) else self.reach, self._poll)
                       for host in hosts}
        ways = self._ways()
        here = {host: local_line(host) for host, node in self._nodes.items() if node.local and ways}
        self.relay = RelayProcess({**ways, **here}, self.env, timeout, self._groups([*ways])) if ways else None
        self._ready: list[AgentEvent] = []
        self._dying: list[subprocess.Popen[bytes]] = []
        self._numbers = count(1)
        self._by_fd: dict[int, AgentNode] = {}
        self._known: dict[str, AgentOrder] = {}

    # For the event loop.

    def start(self) -> None:
        """Start the agents, so many at a time as the fan-out allows; returns at once."""
        self.tick(time.monotonic())

    @property
    def begun(self) -> bool:
        """Whether some agent was started."""
        return any(node.state != WAITING for node in self._nodes.values())

    def fileno(self) -> int:
        """Readable when `events` has something to read."""
        return self._poll.fileno()

    def events(self) -> list[AgentEvent]:
        """What has happened since the last call."""
        self._read(time.monotonic())
        ready, self._ready = self._ready, []
        return ready

    def tick(self, now: float) -> float:
        """Connect, ping and give up, each when it is time; returns when to call again: at once when there are events."""
        self._read(now)  # what has been said must not count as silence
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
                node.failures += 1  # it need not hang a second time
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
        """Move all deadlines by the seconds for which this process was stopped, and perhaps the agents with it."""
        for node in self._nodes.values():
            node.due += seconds
            if node.lost_at is not None:
                node.lost_at += seconds

    # What is asked.

    def ask_affinity(self, job_id: int, hosts: Mapping[str, int], variables: Sequence[str],
                     patience: float = PATIENCE) -> None:
        """Ask for the CPUs of a job's ranks: `hosts` are its nodes with the number of its ranks
        on each, `variables` what shows the rank (see `vrm.live.launch.base`).

        Each of these nodes that is up gives an `Affinity` when it has found so many, or after
        `patience` seconds, or when the job is swept.
        """
        for host, ranks in hosts.items():
            node = self._nodes.get(host)
            if node is not None and node.up is not False:
                self._ask(node, {"ask": "affinity", "run": self.run, "job": job_id,
                                 "ranks": ranks, "variables": list(variables),
                                 "patience": patience})

    def know(self, order: AgentOrder) -> None:
        """Learn what an extension asks agents for: they clean up after it when they sweep."""
        self._known[order.name] = order

    def order(self, order: AgentOrder, job_id: int, hosts: Mapping[str, Mapping[str, Any]]) -> set[str]:
        """Ask nodes for what an extension's modules do about a job, each with further values. Each that is up gives the
        event that `order` makes of its answer, and is in the result; one that goes down first gives nothing else."""
        self.know(order)
        asked = set()
        for host, values in hosts.items():
            node = self._nodes.get(host)
            if node is not None and node.up is not False:
                self._ask(node, {"ask": order.name, "run": self.run, "job": job_id, **values})
                asked.add(host)
        return asked

    def follow_memory(self, job_id: int, limits: Mapping[str, int]) -> None:
        """Follow the memory of a job until it is to be forgotten: `limits` are its nodes with the bytes
        that it may have there. A node gives a `MemoryUse` each time that it has grown much, and as soon
        as it has grown too large."""
        for host, limit in limits.items():
            node = self._nodes.get(host)
            if node is not None and node.up is not False:
                self._ask(node, {"ask": "memory", "run": self.run, "job": job_id, "limit": limit})

    def forget_memory(self, job_id: int, hosts: Iterable[str]) -> None:
        """A job has ended whose memory was followed."""
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
        """Kill all processes of a job on some nodes, or on all, of the whole run if it is None, that have not ended
        by themselves within `patience` seconds.

        Each node gives a `Swept`, one that is down when it has come back, before its `NodeUp`.
        A job must not start again under its number before (see `sweeping`): a sweep ends all
        that has the marks. `lost`: nobody knows whether the job has ended there, so no other job must start there before. `spare` are jobs of the
        run that run on.
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
        """Whether some node that is not down is being swept of this job, or one of the hosts of a lost one. `doubted`: the job may
        be any of those of the run."""
        return any(request["ask"] == "sweep" and (
            request["job"] in ((None, job_id) if doubted else (job_id,))
            or ("lost" in request and node.host in hosts))
            for node in self._nodes.values() if node.up is not False and node.asked
            for request in node.asked.values())

    def unanswered(self, up_only: bool = True) -> int:
        """Questions without an answer yet, by default without those to nodes that are down."""
        return sum(request["ask"] != "memory" for node in self._nodes.values()
                   if node.up is not False or not up_only for request in node.asked.values())

    def _ways(self) -> dict[str, tuple[str, ...]]:
        """The commands that start a runner on each of the other nodes."""
        return {node.host: command_line(node.host, node.reach, self.timeout, self._command, self._attach,
                                        self._granted_gpus(node.host))
                for node in self._nodes.values() if not node.local}

    def _groups(self, hosts: Sequence[str]) -> list[tuple[Sequence[str], Sequence[str]]]:
        """The command that starts a runner on all other nodes, if there are several and one does."""
        gpus = {self._granted_gpus(host) for host in hosts}
        line = group_line(hosts, self.reach, self.timeout, gpus.pop()) if len(hosts) > 1 and len(gpus) == 1 else ()
        return [(hosts, line)] if line else []

    def reached(self) -> dict[str, tuple[tuple[str, ...], bool]]:
        """What starts any program on a node from another one, by their names (see `way_to`)."""
        return {host: way_to(host, self.reach, self.timeout, self._command, self._granted_gpus(host))
                for host in self._nodes}

    def _granted_gpus(self, host: str) -> int:
        """How many GPUs of a node the batch system grants, as far as it says it."""
        return int(self._devices.get(host, {}).get("count", 0))

    def drop(self, hosts: Iterable[str]) -> None:
        """Have nothing to do with these nodes any more."""
        self._end([node for node in [self._nodes.pop(host, None) for host in hosts] if node])

    def settle(self) -> tuple[dict[str, NodeFacts], dict[str, str]]:
        """Start, and wait until every node has answered or counts as down: the facts of the
        ones and the reasons of the others, who are tried again unless they are dropped."""
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
        """End all agents. Jobs are not touched."""
        self._end(self._nodes.values())
        for process in self._dying:
            try:
                process.wait(0.1)
            except subprocess.TimeoutExpired:
                continue  # it hangs in the kernel, and has its SIGKILL
        self._nodes.clear()
        self._poll.close()
        if self.relay is not None:
            self.relay.close()

    def _end(self, nodes: Collection[AgentNode]) -> None:
        """End agents, by force what does not end by itself or has never answered."""
        end_inputs(nodes)
        for node in nodes:
            self._disconnect(node)

    # Connecting and losing.

    def _connect(self, node: AgentNode, now: float) -> None:
        wish, said = self._wishes.get(node.host, ""), self._devices.get(node.host)
        devices = json.dumps(said, separators=(",", ":")) if said else ""
        try:
            if node.local:
                node.connection, theirs = socket.socketpair()
                with theirs:  # a session of its own: a Ctrl-C at the terminal is for vrm alone
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
        # The relay gives a node up after the same time, and knows what was said there; it may try it a second time.
        relayed = 2 * self.timeout + EACH * len(self._nodes) + RELAY_SECONDS
        node.state, node.due = CONNECTING, now + (self.timeout if node.local else relayed)
        node.forget()

    def _disconnect(self, node: AgentNode) -> None:
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

    def _fail(self, node: AgentNode, now: float, reason: str) -> None:
        """The agent is lost, or was never there: try again after a pause."""
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

    def _down(self, node: AgentNode, reason: str) -> None:
        node.up = False
        node.lost_at = None
        node.asked = {number: request for number, request in node.asked.items()
                      if request["ask"] == "sweep"}
        self._ready.append(NodeDown(node.host, with_fix(reason)))

    # Speaking.

    def _ask(self, node: AgentNode, request: dict[str, Any]) -> None:
        request["number"] = next(self._numbers)
        node.asked[request["number"]] = request
        if node.state == ANSWERS:
            node.send(request, self._known)

    # Listening.

    def _read(self, now: float) -> None:
        for fd, mask in self._poll.poll(0, max(1, len(self._nodes))):
            node = self._by_fd.get(fd)
            if node is None:
                continue  # lost a moment ago
            if mask & select.EPOLLOUT:
                node.flush()
            if mask & ~select.EPOLLOUT:
                self._hear(node, now)

    def _hear(self, node: AgentNode, now: float) -> None:
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
                    return  # it could not be understood
        unread = len(node.unread)
        if (unread + node.noise > MOST_NOISE and not node.unread.startswith(b"{")) or (
                unread > LONGEST_LINE):
            node.note(bytes(node.unread[:300]))
            self._fail(node, now, f"something other than an agent answers there: {node.said}")

    def _take(self, node: AgentNode, answer: dict[str, Any], now: float) -> None:
        """One answer of an agent."""
        try:
            if "facts" in answer:
                self._take_first(node, answer["facts"], now)
                return
            node.pinged, node.failures, node.due = False, 0, now + (self._timing.ping if node.local else self._timing.relayed)
            request = node.asked.get(answer["number"])
            if request is None:
                return
            if request["ask"] == "memory":  # which is asked on
                self._ready.append(MemoryUse(node.host, request["job"], int(answer["memory"]),
                                             bool(answer["over"])))
                return
            del node.asked[answer["number"]]
            self._ready.append(outcome(node.host, request, answer, self._known))
            if request["ask"] == "sweep":
                self._rise(node)
        except TopologyError as error:
            self._fail(node, now, str(error))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            self._fail(node, now, f"its agent's answer cannot be read: {error!r}")

    def _take_first(self, node: AgentNode, facts: dict[str, Any], now: float) -> None:
        """What an agent says of its node when it is there."""
        self._take_facts(node, node_facts(facts, node.host), now)
        if facts.get("claimed"):  # the same ones, if it is connected to again
            self._wishes[node.host] = "cpus:" + ",".join(map(str, facts["claimed"]))
        wanted = self._devices.get(node.host, {})
        if wanted.get("claim") and node.state == ANSWERS:
            wanted.setdefault("again", [devices.name_of(device) for device in facts["devices"]])

    def _take_facts(self, node: AgentNode, facts: NodeFacts, now: float) -> None:
        node.state, node.pinged, node.due = ANSWERS, False, now + (self._timing.ping if node.local else self._timing.relayed)
        if node.up and node.boot and facts.boot != node.boot:
            self._down(node, "it was restarted")
        back = node.lost_at is not None and not node.local
        node.lost_at = None
        node.boot = facts.boot
        node.rising = facts if back or not node.up else None
        for request in list(node.asked.values()):
            node.send(request, self._known)
        self._rise(node)

    def _rise(self, node: AgentNode) -> None:
        """Tell of a node that answers, once it is swept: what is swept may start there again."""
        if node.rising is not None and not any(request["ask"] == "sweep"
                                               for request in node.asked.values()):
            node.up = True
            self._ready.append(NodeUp(node.host, node.rising))
            node.rising = None


def probe(hosts: Iterable[str], reach: str = "auto", env: Mapping[str, str] | None = None,
          timeout: float = 10.0, command: Sequence[str] = (),
          wanted: Mapping[str, Mapping[str, Any]] | None = None
          ) -> tuple[dict[str, NodeFacts], dict[str, str]]:
    """Ask all hosts at the same time what they are: the facts of those that answer, and the
    reasons of those that do not. Leaves nothing running. `wanted` is that of `Agents`."""
    agents = Agents(hosts, reach, env, timeout, command, wanted=wanted)
    try:
        return agents.settle()
    finally:
        agents.close()
