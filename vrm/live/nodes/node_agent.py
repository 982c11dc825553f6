"""One node's agent, as the loop that asks it knows it: its program, what it has said, what it is asked."""

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

from vrm.live.nodes.outcomes import AgentOrder
from vrm.live.nodes.topology import NodeFacts

WAITING, CONNECTING, ANSWERS = "waiting", "connecting", "answers"
"""States of an agent."""

CLOSE_SECONDS = 2.0
"""Seconds that agents have to end by themselves."""


class AgentNode:
    """What is known of one node's agent."""

    def __init__(self, host: str, reach: str, poll: select.epoll) -> None:
        """`poll` is the loop's, which hears of its connection."""
        self.host = host
        self.reach = reach
        self._poll = poll
        self.state = WAITING
        self.connection: socket.socket | None = None
        self.process: subprocess.Popen[bytes] | None = None  # on this machine
        self.unread = bytearray()
        self.unsent: deque[bytes] = deque()
        self.noise = 0
        self.said = ""  # what was last said that is not an answer
        self.due = 0.0  # when to do something: connect, give up connecting, ping, give up a ping
        self.pinged = False
        self.failures = 0
        self.lost_at: float | None = None  # when an agent that had answered was lost
        self.up: bool | None = None  # as was told; None: not yet
        self.boot = ""
        self.rising: NodeFacts | None = None  # what it is, while it is swept before it is up
        self.asked: dict[int, dict[str, Any]] = {}
        self.brought: set[str] = set()  # the orders whose modules this agent was sent

    @property
    def local(self) -> bool:
        """Whether it is this machine."""
        return self.reach == "local"

    def forget(self) -> None:
        """Begin anew: what was said to and by the agent before this one is nothing to it."""
        self.unread.clear()
        self.unsent.clear()
        self.brought.clear()
        self.noise, self.said, self.pinged = 0, "", False

    def send(self, request: Mapping[str, Any], known: Mapping[str, AgentOrder]) -> None:
        """Send a request, behind the modules of the `known` orders of extensions in it that the agent does not have."""
        for name in (request["ask"], *request.get("orders", ())):
            if name in known and name not in self.brought:
                self.brought.add(name)
                files = [(path, text_of(path)) for path in known[name].files]
                self.send({"number": 0, "ask": "bring", "order": name, "files": files}, known)
        self.unsent.append((json.dumps(request, separators=(",", ":")) + "\n").encode())
        self.flush()

    def flush(self) -> None:
        """Write what the connection takes; the poll tells when it takes more."""
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
        except OSError:  # the end of its output tells of the loss
            self.unsent.clear()
        self._poll.modify(connection, select.EPOLLIN | (select.EPOLLOUT if self.unsent else 0))

    def receive(self) -> list[bytes] | None:
        """Read what the connection has; the lines that are whole, None where it has ended."""
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
        """Keep the last line that is no answer."""
        lines = [line.strip() for line in data.decode(errors="replace").splitlines()]
        said = next((line for line in reversed(lines) if line), "")
        if said:
            self.said = "".join(c if c.isprintable() else "?" for c in said)[:300]


@cache
def text_of(path: str) -> str:
    """The text of a module."""
    with open(path, encoding="utf-8") as file:
        return file.read()


def end_inputs(nodes: Collection[AgentNode]) -> None:
    """Let those that answer see the end of their input, and give them CLOSE_SECONDS to end."""
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
    """The answer in a line, None when it is something else: login scripts print what they like."""
    if not line.startswith(b"{"):
        return None
    try:
        answer = json.loads(line)
    except ValueError:
        return None
    return answer if isinstance(answer, dict) and answer.get("vrm") == 1 else None


def kill(process: subprocess.Popen[bytes]) -> None:
    """End an agent of this machine; it leads a session, and so a group."""
    if process.poll() is None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            process.kill()
