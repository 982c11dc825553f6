"""What the relay (`relay.py`) knows of those that it connects: its clients, and the nodes behind its links."""

from __future__ import annotations

import marshal
import subprocess

if not __package__:
    import wire
else:
    from vrm.live.runner import wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any
    from collections.abc import Callable


class FarConnection:
    """The connection of a client on a node, which goes by the runner there; `send` writes a frame to that."""

    def __init__(self, node: NodeConnection, number: int, send: Callable[[NodeLink], None]) -> None:
        self._node, self._number, self._send = node, number, send

    def fileno(self) -> int:
        """No file of this process."""
        return -1

    def settimeout(self, seconds: float) -> None:
        """It never waits."""

    def sendall(self, data: bytes) -> None:
        """Give the client its answer."""
        self._node.link.unsent += wire.frame(self._node.host, self._number, bytes(data))
        self._send(self._node.link)

    def close(self) -> None:
        """The client has its answer, or was told that there is none."""
        self._node.far.pop(self._number, None)


class RelayClient:
    """What has something done on a node: its connection and kind, the node and the number of its order (0 until that is
    whole), what waits for the node to answer, and what waits for the client to read it. `node`: the connection behind which
    it is done. `ending`: nothing more comes from it."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection  # a socket, or a FarConnection
        self.kind = self.host = b""
        self.number = 0
        self.node: NodeConnection | None = None
        self.unread = bytearray()
        self.unsent = bytearray()
        self.unheard = bytearray()
        self.ending = False


class NodeLink:
    """A program, ssh or srun, with the runners of one node or of several at its other end."""

    def __init__(self, process: subprocess.Popen[bytes], hosts: list[bytes]) -> None:
        assert process.stdin and process.stdout and process.stderr
        self.process = process
        self.several = len(hosts) > 1
        self.nodes: dict[bytes, NodeConnection] = {}
        self.stdin, self.stdout, self.stderr = process.stdin, process.stdout, process.stderr
        self.unread = bytearray()
        self.unsent = bytearray()
        self.sent = False  # the program, to all runners at once
        self.base: dict[bytes, bytes] = {}
        self.noise = 0
        self.said = ""

    def shortened(self, order: bytes) -> bytes:
        """An order for a runner here, with what its environment has other than the first one: that goes to all runners, as
        each frame of srun does, and the environments of a run are nearly the same."""
        kind, (argv, env, *rest) = marshal.loads(order)
        if not self.base:
            self.base = env
            self.unsent += wire.frame(wire.EVERY, 0, marshal.dumps(env, wire.PORTABLE))
        changes = {name: value for name, value in env.items() if self.base.get(name) != value}
        return marshal.dumps((kind, (argv, (changes, [*self.base.keys() - env.keys()]), *rest)), wire.PORTABLE)


class NodeConnection:
    """One node behind a link. `due`: when it counts as lost, or is to be asked whether it is not; `asked` tells which."""

    def __init__(self, host: bytes, link: NodeLink, due: float) -> None:
        self.host = host
        self.link = link
        self.ready = False
        self.due = due
        self.asked = True
        self.unread = bytearray()
        self.clients: dict[int, RelayClient] = {}
        self.far: dict[int, RelayClient] = {}  # on the node, by their numbers
