"""One node's agent, as the loop that asks it knows it: its program, what it has said, what it is asked."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections import deque
from typing import Any

from vrm.live.nodes.topology import NodeFacts

WAITING, CONNECTING, ANSWERS = "waiting", "connecting", "answers"
"""States of an agent."""


class AgentNode:
    """What is known of one node's agent."""

    def __init__(self, host: str, reach: str) -> None:
        self.host = host
        self.reach = reach
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
