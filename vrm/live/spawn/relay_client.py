"""How a process of a job reaches the relay (`relay.py`): a connection for each program that it starts on another node.

The relay listens on an abstract socket, which has a name and no file; only processes of this machine can
connect to it, and each side refuses those of another user.
"""

from __future__ import annotations

import marshal
import os
import sys

import _socket as socket  # see `supervisor.py`

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SO_PEERCRED = getattr(socket, "SO_PEERCRED", 17)

PORTABLE = 2
"""Version of `marshal` that the Python of any node reads."""


def own(connection: Any) -> bool:
    """Whether the process at the other end belongs to this user."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, SO_PEERCRED, 12)  # process, user and group, four bytes each
    return int.from_bytes(credentials[4:8], sys.byteorder) == os.geteuid()


def connect(address: bytes) -> socket.socket:
    """A connection to the relay of this name; it waits for the next one where that has ended. Raises OSError where
    none will come."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(b"\0" + address)
    if not own(connection):
        connection.close()
        raise PermissionError(1, "it belongs to another user")
    return connection


def send_order(connection: socket.socket, host: bytes, order: tuple[Any, ...]) -> None:
    """Ask for a program on the node `host`; `order` are the arguments of `starting.start_job` there. Raises OSError."""
    data = host + b"\0" + marshal.dumps(order, PORTABLE)
    connection.sendall(len(data).to_bytes(4, "little") + data)


def answer(connection: socket.socket) -> tuple[Any, ...]:
    """How the program ended, as a runner says it; () where the connection to its node, or the relay, was lost."""
    data = b""
    try:
        while True:
            part = connection.recv(4096)
            if not part:
                break
            data += part
    except OSError:
        return ()
    return marshal.loads(data) if data else ()
