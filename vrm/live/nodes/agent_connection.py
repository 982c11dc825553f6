"""One node's agent from the view of the loop that sends it requests: its process, its output, its open requests."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import time
from collections import deque
from collections.abc import Collection, Mapping
from functools import cache
from typing import Any

from vrm.live.nodes.agent_events import AgentOrder
from vrm.live.nodes.topology import NodeFacts

WAITING, CONNECTING, ANSWERS = "waiting", "connecting", "answers"
"""States of an agent."""

CLOSE_SECONDS = 2.0
"""Seconds that agents have to end by themselves."""


class AgentConnection:
    """The state of the connection to one node's agent."""

    def __init__(self, host: str, reach: str, poll: select.epoll) -> None:
        """Create it in state WAITING. `poll` is the poll object of the loop, where its connection is registered."""
        self.host = host
        self.reach = reach
        self._poll = poll
        self.state = WAITING
        self.connection: socket.socket | None = None
        self.process: subprocess.Popen[bytes] | None = None  # on this machine
        self.unread = bytearray()
        self.unsent: deque[bytes] = deque()
        self.noise = 0
        self.said = ""  # the last line that is not an answer
        self.due = 0.0  # time of the next action: connect, give up connecting, ping, give up a ping
        self.pinged = False
        self.failures = 0
        self.lost_at: float | None = None  # when an agent that had answered was lost
        self.up: bool | None = None  # as last reported; None: not yet
        self.boot = ""
        self.rising: NodeFacts | None = None  # the node's facts, while it is swept before it is up
        self.asked: dict[int, dict[str, Any]] = {}
        self.sent_modules: set[str] = set()  # the orders whose modules were sent to this agent

    @property
    def local(self) -> bool:
        """True if the node is this machine."""
        return self.reach == "local"

    def forget(self) -> None:
        """Reset what was sent to and received from an earlier agent."""
        self.unread.clear()
        self.unsent.clear()
        self.sent_modules.clear()
        self.noise, self.said, self.pinged = 0, "", False

    def send(self, request: Mapping[str, Any], known: Mapping[str, AgentOrder]) -> None:
        """Send a request, after the modules of the extension orders in it (`known`) that the agent does not have
        yet."""
        for name in (request["ask"], *request.get("orders", ())):
            if name in known and name not in self.sent_modules:
                self.sent_modules.add(name)
                files = [(path, text_of(path)) for path in known[name].files]
                self.send({"number": 0, "ask": "bring", "order": name, "files": files}, known)
        self.unsent.append((json.dumps(request, separators=(",", ":")) + "\n").encode())
        self.flush()

    def flush(self) -> None:
        """Write what the connection takes; the poll reports when it takes more."""
        connection = self.connection
        assert connection is not None
        try:
            while self.unsent:
                written = connection.send(self.unsent[0])
                if written < len(self.unsent[0]):
                    self.unsent[0] = self.unsent[0][written:]
                else:
                    self.unsent.popleft()
        except BlockingIOError:
            pass
        except OSError:  # the end of its output shows the loss
            self.unsent.clear()
        self._poll.modify(connection, select.EPOLLIN | (select.EPOLLOUT if self.unsent else 0))

    def receive(self) -> list[bytes] | None:
        """Read from the connection; return the complete lines, or None if the connection has ended."""
        assert self.connection is not None
        try:
            data = self.connection.recv(1 << 18)
        except BlockingIOError:
            return []
        except ConnectionError:
            data = b""
        if not data:
            return None
        self.unread += data
        lines: list[bytes] = []
        if b"\n" in data:  # a long answer comes in many parts
            *lines, rest = bytes(self.unread).split(b"\n")
            self.unread[:] = rest
        return lines

    def note(self, data: bytes) -> None:
        """Keep the last line that is not an answer."""
        lines = [line.strip() for line in data.decode(errors="replace").splitlines()]
        said = next((line for line in reversed(lines) if line), "")
        if said:
            self.said = "".join(c if c.isprintable() else "?" for c in said)[:300]


@cache
def text_of(path: str) -> str:
    """Return the text of a module."""
    with open(path, encoding="utf-8") as file:
        return file.read()


def end_inputs(nodes: Collection[AgentConnection]) -> None:
    """Close the input of the agents that answer, and give them CLOSE_SECONDS to end."""
    poll = select.poll()
    open_ones = {}
    for node in nodes:
        if node.connection is not None and node.state == ANSWERS:
            with contextlib.suppress(OSError):
                node.connection.shutdown(socket.SHUT_WR)
            open_ones[node.connection.fileno()] = node.connection
            poll.register(node.connection, select.POLLIN)
    end = time.monotonic() + CLOSE_SECONDS
    while open_ones and time.monotonic() < end:
        for fd, _ in poll.poll(1000 * max(0.0, end - time.monotonic())):
            with contextlib.suppress(OSError):
                if open_ones[fd].recv(1 << 16):
                    continue
            poll.unregister(fd)
            del open_ones[fd]


def answer_in(line: bytes) -> dict[str, Any] | None:
    """Return the answer in a line, None if it is something else: login scripts may print anything."""
    if not line.startswith(b"{"):
        return None
    try:
        answer = json.loads(line)
    except ValueError:
        return None
    return answer if isinstance(answer, dict) and answer.get("vrm") == 1 else None


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill an agent of this machine with its process group (it leads a session)."""
    if process.poll() is None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            process.kill()
