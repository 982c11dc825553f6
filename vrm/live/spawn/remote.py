"""The manager's side of the relay (`relay.py`), through which programs start on other nodes.

Supervisors send their orders through a socket of which the relay has the other end. This process
has both ends, so that orders wait for the next relay when one is killed.
"""

from __future__ import annotations

import marshal
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence

from vrm.live.spawn import relay

UNREACHED = f": {relay.UNREACHED}"
"""Stands behind the node's name where a program was not started since the node did not answer."""

GONE_WITHIN = 3.0
"""Seconds in which a relay without programs must have ended."""


class RelayProcess:
    """The relay of a run: `ways` are the commands that start a runner, by the node's name; `env`
    is their environment, `timeout` the seconds in which a node must answer.

    `life` can be read when the relay has ended.
    """

    def __init__(self, ways: Mapping[str, Sequence[str]], env: Mapping[str, str],
                 timeout: float) -> None:
        self._setup = marshal.dumps((timeout, {
            os.fsencode(host): list(way) for host, way in ways.items()}))
        self._env = dict(env)
        self._process: subprocess.Popen[bytes] | None = None
        self._orders, self._taken = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.life = -1

    def fileno(self) -> int:
        """The end of the socket that supervisors get."""
        return self._orders.fileno()

    def start(self) -> int:
        """Start the relay, or another one instead of one that has ended; gives `life`.

        Programs that the one before had started are ended with their connections. Raises OSError.
        """
        if self._process is not None:
            os.close(self.life)
            self._process.kill()
            self._process.wait()
        self.life, theirs = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", relay.__file__, str(self._taken.fileno())],
                stdin=subprocess.PIPE, stdout=theirs, stderr=subprocess.DEVNULL, env=self._env,
                cwd="/", pass_fds=[self._taken.fileno()], start_new_session=True)
        finally:
            os.close(theirs)
        assert self._process.stdin is not None
        self._process.stdin.write(self._setup)
        self._process.stdin.close()
        return self.life

    @property
    def pid(self) -> int | None:
        """The relay's process, which leads a session; None if there is none."""
        return self._process.pid if self._process is not None else None

    def close(self) -> None:
        """Let the relay end, once the programs that it has started have ended."""
        self._orders.close()
        self._taken.close()
        if self._process is not None:
            try:
                self._process.wait(GONE_WITHIN)
            except subprocess.TimeoutExpired:
                pass  # programs run: it ends with them
            os.close(self.life)
            self._process = None
