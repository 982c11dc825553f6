"""What the processes between a manager and its nodes say to each other: clients to the relay (`relay.py`), the relay to
the runners (`runner.py`) and back. The standard library only, Python 3.6 or newer.

A client connects to the relay's socket, which has an abstract name and no file: only processes of this machine can
connect, and each side refuses those of another user. It sends its kind (one byte), the node's name and the order behind
their length. A program (PROGRAM) then gets a byte for each signal to pass on, its answer is how it ended. So is that to a daemon
of mpirun (DAEMON), as a line for a shell: its exit status, and what went wrong. An agent (AGENT) gets and gives bytes.

To runners goes a frame: the lengths of content (four bytes) and of name (one), the number of the order (eight), the
name of the node (EVERY: each that hears it), the content, and the end of a line, since Slurm passes on whole lines only. One srun brings
the frames of all nodes to each of its runners.

From runners come lines, since the lines of many arrive through one srun: the mark LINE, the node's name, and a part
of the frame in base64: its number, length and content. A frame of number 0 without content asks whether the other is there,
and is the answer. One with the bit FAR goes the other way: a program on the node has asked its runner, as clients ask the
relay, for a daemon on another node; without content it withdraws that. The answer has the same number; its content is what the
program gets, and nothing where the daemon was lost. One with a dictionary tells all runners of a link the environment of its first program; those of others
are said by what is different in them.
"""

import binascii
import marshal
import os
import sys

import _socket as socket  # `socket` imports enum, which makes every fork a tenth dearer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List, Tuple

PROGRAM, AGENT, DAEMON = b"p", b"a", b"d"
"""Kinds of clients."""

EVERY = b"*"
"""The name of all nodes that hear a frame."""

FAR = 1 << 63
"""In the number of what a runner asks the relay for: programs on its node ask for daemons on others."""

LINE = b"\1vrm "
"""Begins each line of a runner."""

PART = 690
"""Bytes of a frame in one line: Slurm passes on lines of up to 1,024 bytes whole."""

PORTABLE = 2
"""Version of `marshal` that the Python of any node reads."""

SO_PEERCRED = getattr(socket, "SO_PEERCRED", 17)


def own(connection: "Any") -> bool:
    """Whether the process at the other end belongs to this user."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, SO_PEERCRED, 12)  # process, user and group, four bytes each
    return int.from_bytes(credentials[4:8], sys.byteorder) == os.geteuid()


def connect(address: bytes, kind: bytes, host: bytes, order: "Tuple[Any, ...]") -> "socket.socket":
    """A connection to the relay of this name, which is asked for something on the node `host`: for a program `order` are
    the arguments of `starting.start_job`, for an agent those of `agent.serve`. It waits for the next relay where one
    has ended; raises OSError where none will come."""
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


def said(host: bytes, content: bytes) -> bytes:
    """How a daemon ended, for a shell."""
    message, raw = marshal.loads(content)[:2]  # type: str, int
    if message:
        return b"255 " + host + b": " + message.encode() + b"\n"
    return b"%d\n" % (128 + os.WTERMSIG(raw) if os.WIFSIGNALED(raw) else os.WEXITSTATUS(raw))


def frame(host: bytes, number: int, content: bytes = b"") -> bytes:
    """What goes to a runner."""
    return (len(content).to_bytes(4, "little") + bytes([len(host)]) + number.to_bytes(8, "little") + host + content + b"\n")


def take_frames(unread: bytearray) -> "List[Tuple[bytes, int, bytes]]":
    """Take the whole frames off what a runner has read: the node's name, number and content of each."""
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
    """What a runner says."""
    data = number.to_bytes(8, "little") + len(content).to_bytes(4, "little") + content
    return b"".join(LINE + host + b" " + binascii.b2a_base64(data[at:at + PART]) for at in range(0, len(data), PART))


def part_of(line: bytes) -> "Tuple[bytes, bytes]":
    """The node's name and the part of a frame in a line; no name where a runner has not said it."""
    mark, _, rest = line.rpartition(LINE)
    host, _, text = rest.partition(b" ")
    try:
        return (host, binascii.a2b_base64(text)) if line[len(mark):].startswith(LINE) else (b"", b"")
    except binascii.Error:
        return b"", b""


def take_answers(unread: bytearray) -> "List[Tuple[int, bytes]]":
    """Take the whole frames off what the relay has heard of one runner: number and content of each."""
    answers = []
    while len(unread) >= 12:
        end = 12 + int.from_bytes(unread[8:12], "little")
        if len(unread) < end:
            break
        answers.append((int.from_bytes(unread[:8], "little"), bytes(unread[12:end])))
        del unread[:end]
    return answers
