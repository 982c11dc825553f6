"""The manager's side of the relay (`relay.py`), which starts everything that a run has on other nodes.

Programs of jobs connect to a socket that this process has created and the relay listens on. This process keeps it
open, so that they wait for the next relay when one is killed.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import secrets
import shlex
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence

from vrm.live.relay import relay
from vrm.live.runner import wire
from vrm.live.relay import rsh_agent as rsh_agent_module

UNREACHED = f": {relay.UNREACHED}"
"""Follows the node's name in the message on a program that was not started because the node did not answer."""

WAITING = 4096
"""Connections that may wait for the relay; further ones block."""

GONE_WITHIN = 3.0
"""Seconds within which a relay without programs must end."""

RSH_AGENT = "vrm-rsh"
"""The program that replaces ssh for mpiruns, among the commands of a run."""


def rsh_agent() -> str:
    """Return the text of the script RSH_AGENT: mpirun accepts only one path, without arguments."""
    return f"#!/bin/sh\nexec {shlex.join([sys.executable, '-I', '-S', rsh_agent_module.__file__])} \"$@\"\n"


class RelayProcess:
    """The relay of a run. `ways` are the commands that start a runner, by node name; `groups` are pairs of several
    nodes and the command that starts a runner on each of them. `env` is the environment of these commands, `timeout`
    the seconds within which a node must answer.

    `life` becomes readable when the relay has ended; `address` is the name of the socket for clients.
    """

    def __init__(self, ways: Mapping[str, Sequence[str]], env: Mapping[str, str], timeout: float,
                 groups: Sequence[tuple[Sequence[str], Sequence[str]]] = ()) -> None:
        self._setup = marshal.dumps((
            {os.fsencode(host): list(way) for host, way in ways.items()},
            [([*map(os.fsencode, hosts)], list(way)) for hosts, way in groups], timeout))
        self._env = dict(env)
        self._process: subprocess.Popen[bytes] | None = None
        self.address = f"vrm-{secrets.token_hex(16)}"
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listening.bind(f"\0{self.address}")
        self._listening.listen(WAITING)
        self._alive, self._kept = os.pipe()
        self.life = -1
        self._closed = False

    def fileno(self) -> int:
        """Return the descriptor that a supervisor keeps open as long as a program of its job may need the relay."""
        return self._kept

    def connect_agent(self, host: str, silence: float, wish: str, devices: str) -> socket.socket:
        """Return a connection to a new agent on a node, which serves as its input and output; starts the relay if
        necessary. The other arguments are those of `agent.serve`. Raises OSError."""
        self.started()
        return socket.socket(fileno=wire.connect(self.address.encode(), wire.AGENT, os.fsencode(host),
                                                 (silence, wish, devices)).detach())

    def started(self) -> int:
        """Start the relay unless it was started; return `life`. Raises OSError."""
        return self.start() if self._process is None else self.life

    def start(self) -> int:
        """Start the relay, or replace one that has ended; return `life`.

        Programs of the earlier relay end with their connections. Raises OSError.
        """
        if self._process is not None:
            os.close(self.life)
            self._process.kill()
            self._process.wait()
        self.life, theirs = os.pipe()
        given = [self._listening.fileno(), self._alive]
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", relay.__file__, *map(str, given)],
                stdin=subprocess.PIPE, stdout=theirs, stderr=subprocess.DEVNULL, env=self._env,
                cwd="/", pass_fds=given, start_new_session=True)
        finally:
            os.close(theirs)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it was killed; `life` shows that
            self._process.stdin.write(self._setup)
            self._process.stdin.close()
        return self.life

    @property
    def pid(self) -> int | None:
        """Process number of the relay, which leads a session; None if there is none."""
        return self._process.pid if self._process is not None else None

    def close(self) -> None:
        """Let the relay end, as soon as the programs that it has started have ended. Closing twice is harmless."""
        if self._closed:
            return
        self._closed = True
        self._listening.close()
        os.close(self._alive)
        os.close(self._kept)
        if self._process is not None:
            try:
                self._process.wait(GONE_WITHIN)
            except subprocess.TimeoutExpired:
                pass  # programs run: it ends after them
            os.close(self.life)
            self._process = None
