"""The messages between a manager and its nodes: from clients to the relay (`relay.py`), from the relay to the runners
(`runner.py`), and back. The standard library only, Python 3.6 or newer.

A client connects to the relay's socket, which has an abstract name and no file: only processes of this machine can
connect, and each side refuses those of another user. It sends its kind (one byte), the node's name and the order, with
their length in front. A program (PROGRAM) then sends one byte for each signal to pass on, and gets as its answer how
it ended. A daemon of mpirun (DAEMON) gets its answer as a line for a shell: its exit status, and what went wrong. An
agent (AGENT) receives and sends bytes.

The relay sends a frame to runners: the lengths of the content (four bytes) and of the name (one), the number of the
order (eight), the name of the node (EVERY: each node that receives it), the content, and a line end, since Slurm
passes on whole lines only. One srun brings the frames of all nodes to each of its runners.

Runners send lines, since the lines of many nodes arrive through one srun: the mark LINE, the node's name, and a part
of the frame in base64: its number, length and content. A frame with number 0 and no content asks whether the other
side is alive, and is also the answer to that. A frame with number 0 and a dictionary gives all runners of a link the
environment of its first program; the environments of later programs are sent as differences from it. A frame with the
bit FAR goes the other way: a program on the node has requested from its runner, as clients do from the relay, a daemon
on another node; without content the frame withdraws the request. The answer has the same number; its content is what
the program gets, or nothing if the daemon was lost.
"""

import binascii
import marshal
import os
import sys

import _socket as socket  # `socket` imports enum, which makes every fork 10 % slower

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List, Tuple

PROGRAM, AGENT, DAEMON = b"p", b"a", b"d"
"""Kinds of clients."""

EVERY = b"*"
"""The name in a frame that is for all nodes that receive it."""

FAR = 1 << 63
"""Bit in the number of a request from a runner to the relay: a program on its node requests a daemon on another
node."""

LINE = b"\1vrm "
"""The mark at the start of each line of a runner."""

PART = 690
"""Bytes of a frame in one line: Slurm passes on lines of up to 1,024 bytes whole."""

PORTABLE = 2
"""Version of `marshal` that the Python of any node can read."""

SO_PEERCRED = getattr(socket, "SO_PEERCRED", 17)


def own(connection: "Any") -> bool:
    """Return whether the process at the other end belongs to this user."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, SO_PEERCRED, 12)  # process, user and group, four bytes each
    return int.from_bytes(credentials[4:8], sys.byteorder) == os.geteuid()


def connect(address: bytes, kind: bytes, host: bytes, order: "Tuple[Any, ...]") -> "socket.socket":
    """Connect to the relay `address` and send it an order for the node `host`: for a program the arguments of
    `starting.start_job`, for an agent those of `agent.serve`. If the relay has ended, waits for the next one; raises
    OSError if none will come."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(b"\0" + address)
        if not own(connection):
            raise PermissionError(1, "it belongs to another user")
        data = kind + host + b"\0" + marshal.dumps((kind, order), PORTABLE)
        connection.sendall(len(data).to_bytes(4, "little") + data)
    except OSError:
        connection.close()
        raise
    return connection


def answer(connection: "socket.socket") -> "Tuple[Any, ...]":
    """Return how the program ended, as the runner sent it; () if the connection to its node, or the relay, was lost."""
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


def said(host: bytes, content: bytes) -> bytes:
    """Return how a daemon ended, as a line for a shell."""
    message, raw = marshal.loads(content)[:2]  # type: str, int
    if message:
        return b"255 " + host + b": " + message.encode() + b"\n"
    return b"%d\n" % (128 + os.WTERMSIG(raw) if os.WIFSIGNALED(raw) else os.WEXITSTATUS(raw))


def frame(host: bytes, number: int, content: bytes = b"") -> bytes:
    """Return a frame for a runner as bytes."""
    return (len(content).to_bytes(4, "little") + bytes([len(host)]) + number.to_bytes(8, "little") + host + content + b"\n")


def take_frames(unread: bytearray) -> "List[Tuple[bytes, int, bytes]]":
    """Remove the complete frames from what a runner has read; return the node's name, number and content of each."""
    frames = []
    while len(unread) > 13:
        begin = 13 + unread[4]
        end = begin + int.from_bytes(unread[:4], "little")
        if len(unread) <= end:
            break
        frames.append((bytes(unread[13:begin]), int.from_bytes(unread[5:13], "little"), bytes(unread[begin:end])))
        del unread[:end + 1]
    return frames


def lines(host: bytes, number: int, content: bytes = b"") -> bytes:
    """Return a frame of a runner as lines for the relay."""
    data = number.to_bytes(8, "little") + len(content).to_bytes(4, "little") + content
    return b"".join(LINE + host + b" " + binascii.b2a_base64(data[at:at + PART]) for at in range(0, len(data), PART))


def part_of(line: bytes) -> "Tuple[bytes, bytes]":
    """Return the node's name and the part of a frame in a line; an empty name if the line is not from a runner."""
    mark, _, rest = line.rpartition(LINE)
    host, _, text = rest.partition(b" ")
    try:
        return (host, binascii.a2b_base64(text)) if line[len(mark):].startswith(LINE) else (b"", b"")
    except binascii.Error:
        return b"", b""


def take_answers(unread: bytearray) -> "List[Tuple[int, bytes]]":
    """Remove the complete frames from what the relay has read of one runner; return number and content of each."""
    answers = []
    while len(unread) >= 12:
        end = 12 + int.from_bytes(unread[8:12], "little")
        if len(unread) < end:
            break
        answers.append((int.from_bytes(unread[:8], "little"), bytes(unread[12:end])))
        del unread[:end]
    return answers
