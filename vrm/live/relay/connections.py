"""What the relay (`relay.py`) knows of those that it connects: its clients, and the nodes behind its links."""

from __future__ import annotations

import marshal
import socket
import subprocess

if not __package__:
    import wire
else:
    from vrm.live.runner import wire


class RelayClient:
    """What has something done on a node: its connection and kind, the node and the number of its order (0 until that is
    whole), what waits for the node to answer, and what waits for the client to read it. `node`: the connection behind which
    it is done. `ending`: nothing more comes from it."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
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
