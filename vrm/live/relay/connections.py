"""The objects that the relay (`relay.py`) connects: its clients, and the nodes behind its links."""

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


class RemoteConnection:
    """The connection of a client that runs on a node, through the runner there. Has the methods of a socket that the
    relay uses; `send` writes out what waits for the node's link."""

    def __init__(self, node: NodeConnection, number: int, send: Callable[[NodeLink], None]) -> None:
        self._node, self._number, self._send = node, number, send

    def fileno(self) -> int:
        """Return -1: this connection is no file of this process."""
        return -1

    def settimeout(self, seconds: float) -> None:
        """Do nothing: this connection never waits."""

    def sendall(self, data: bytes) -> None:
        """Send the client its answer."""
        self._node.link.unsent += wire.frame(self._node.host, self._number, bytes(data))
        self._send(self._node.link)

    def close(self) -> None:
        """Forget the client, which has its answer or knows that there is none."""
        self._node.far.pop(self._number, None)


class RelayClient:
    """A client that requests something on a node. `number` is the number of its order (0 until the order is complete),
    `node` the connection to the node. `unsent` are bytes for the node, until it has answered; `undelivered` are bytes for
    the client, until it can read them. `ending`: the client sends nothing further."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection  # a socket, or a FarConnection
        self.kind = self.host = b""
        self.number = 0
        self.node: NodeConnection | None = None
        self.unread = bytearray()
        self.unsent = bytearray()
        self.undelivered = bytearray()
        self.ending = False


class NodeLink:
    """A process, ssh or srun, with the runners of one or several nodes at its other end."""

    def __init__(self, process: subprocess.Popen[bytes], hosts: list[bytes]) -> None:
        assert process.stdin and process.stdout and process.stderr
        self.process = process
        self.several = len(hosts) > 1
        self.nodes: dict[bytes, NodeConnection] = {}
        self.stdin, self.stdout, self.stderr = process.stdin, process.stdout, process.stderr
        self.unread = bytearray()
        self.unsent = bytearray()
        self.sent = False  # whether the runners' program was sent, to all of them at once
        self.base: dict[bytes, bytes] = {}
        self.noise = 0
        self.said = ""

    def shortened(self, order: bytes) -> bytes:
        """Return an order for a runner here with its environment replaced by the differences from the first one.
        The first environment is sent to all runners, as each frame of srun is; the environments of a run are
        nearly equal."""
        kind, (argv, env, *rest) = marshal.loads(order)
        if not self.base:
            self.base = env
            self.unsent += wire.frame(wire.EVERY, 0, marshal.dumps(env, wire.PORTABLE))
        changes = {name: value for name, value in env.items() if self.base.get(name) != value}
        return marshal.dumps((kind, (argv, (changes, [*self.base.keys() - env.keys()]), *rest)), wire.PORTABLE)


class NodeConnection:
    """One node behind a link. `due` is the time of the next action: a question whether the node is alive, or, if
    `asked` is set, giving it up as lost."""

    def __init__(self, host: bytes, link: NodeLink, due: float) -> None:
        self.host = host
        self.link = link
        self.ready = False
        self.due = due
        self.asked = True
        self.unread = bytearray()
        self.clients: dict[int, RelayClient] = {}
        self.far: dict[int, RelayClient] = {}  # clients on the node, by number
