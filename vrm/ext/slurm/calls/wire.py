"""The protocol between a client and a manager on the socket in the run's directory.

A client sends one call: eight bytes (`VRM1`, and the length of what follows), then texts that each end
with a zero byte: the working directory, the name of the command, the number of arguments, the arguments,
and the environment variables, the last of which are STDIN and TOKEN. The manager answers in frames: a letter,
a length and that number of bytes:

| letter | from | content |
|---|---|---|
| O, E | manager | text for standard output, for standard error; an empty one confirms that the call was received |
| X | manager | the exit status, as a decimal number; the last frame |
| I | manager | the path of a file that the client is to send ("" for its standard input) |
| S | manager | the client becomes a step of a job with these variables (each ends with a zero), or has its own job |
| P | manager | the client handles the call itself, in Python (`vrm.ext.slurm.calls.client`) |
| D | client | the content of that file |
| F | client | the reason why it cannot be read |
| K | client | a signal that the client got, as a decimal number; any frame answers it |

Lengths are four bytes, least significant byte first."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass, field
from functools import lru_cache
from collections.abc import Iterable, Mapping

MAGIC = b"VRM1"
HEADER = struct.Struct("<4sI")
FRAME = struct.Struct("<cI")

STDIN = "VRM_STDIN"
"""Variable that a client adds to its environment: its process id and host, `pid@host`. A job on that host may read
the client's standard input."""

TOKEN = "VRM_CALL"  # noqa: S105  (not a secret)
"""The last variable of a call: its name, which is also the name of its command file (`vrm.run.command_files.new_name`).
It is recorded with the jobs that the call submits. If the manager is lost before it has answered, the client repeats
the call under the same name, by a command file, and gets the same jobs."""

LARGEST = 16 << 20
"""Maximum size of a call or frame in bytes."""

PART = 1 << 20
"""Maximum size in bytes of the frames in which a manager sends an answer."""

SOCKET = "socket"
"""Name of the socket in the directory of a run."""

DIRECTORY = "VRM_DIRECTORY"
"""Variable with the directory of the client's run."""


PATIENCE = 60.0
"""Seconds that a manager has to answer a command that only reads, or any command from another node."""

SAYS_AFTER = 10.0
"""Seconds after which any other command prints that it is still waiting; it waits as long as needed."""


def timeout_message() -> str:
    """Return the error text of a command that has waited for PATIENCE seconds. It begins with Slurm's own words,
    which calling programs recognize."""
    return ("Socket timed out on send/recv operation: the manager of vrm has not answered within "
            f"{PATIENCE:g} s")


def waits() -> str:
    """Return the text that a command prints when it continues to wait."""
    return f"the manager of vrm has not answered for {SAYS_AFTER:g} s; still waiting (Ctrl-C ends this)"


class WireError(ValueError):
    """The received bytes are not a valid call or frame."""


@dataclass(frozen=True)
class Call:
    """A command as it was typed. `sent` are the files that the client has sent, by path ("": its standard input);
    `missing` are the files that it could not read, with the reason. `token` is the name of the call."""

    name: str
    arguments: list[str]
    cwd: str = "/"
    env: Mapping[str, str] = field(default_factory=dict)
    sent: Mapping[str, bytes] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    token: str = ""

    def packed(self) -> bytes:
        """Return the call as it is sent through the socket."""
        texts = [self.cwd, self.name, str(len(self.arguments)), *self.arguments,
                 *(f"{name}={value}" for name, value in self.env.items()),
                 *([f"{TOKEN}={self.token}"] if self.token else [])]
        body = b"".join(os.fsencode(text) + b"\0" for text in texts)
        return HEADER.pack(MAGIC, len(body)) + body


def size_of(data: bytes) -> int | None:
    """Return the size in bytes, with its header, of the call that begins with `data`; None if more data is needed.
    Raises WireError for other data."""
    if data[:4] != MAGIC[:len(data)]:
        raise WireError("this is not a call of a command")
    if len(data) < HEADER.size:
        return None
    length = HEADER.unpack_from(data)[1]
    if length > LARGEST:
        raise WireError(f"a call of {length} bytes is too long")
    return HEADER.size + int(length)


def call_of(data: bytes) -> Call:
    """Return the call in these bytes. Raises WireError for invalid data."""
    words = os.fsdecode(data[HEADER.size:]).split("\0")
    try:
        if words.pop():
            raise ValueError("its last text has no end")
        count = int(words[2])
        if not 0 <= count <= len(words) - 3:
            raise ValueError("its arguments are missing")
    except (IndexError, ValueError) as error:
        raise WireError(f"this is not a call of a command: {error}") from error
    variables = words[3 + count:]
    token = variables.pop()[len(TOKEN) + 1:] if variables and variables[-1].startswith(f"{TOKEN}=") else ""
    last = [variables.pop()] if variables and variables[-1].startswith(f"{STDIN}=") else []
    env = _variables("\0".join(variables))
    return Call(words[1], words[3:3 + count], words[0], {**env, **_variables(last[0])} if last else env, token=token)


@lru_cache(maxsize=64)
def _variables(text: str) -> Mapping[str, str]:
    """Return the variables of zero-separated `NAME=VALUE` texts; nearly all calls repeat those of the call before."""
    env: dict[str, str] = {}
    for each in text.split("\0"):
        name, equals, value = each.partition("=")
        if equals and name:
            env.setdefault(name, value)
    return env


def signal_of(data: bytes) -> int:
    """Return the signal number of a frame K. Raises WireError for an invalid one."""
    if not (data.isdigit() and len(data) < 3 and 1 <= int(data) <= 64):
        raise WireError("this is not a signal")
    return int(data)


def frame(kind: bytes, data: bytes) -> bytes:
    """Return a frame."""
    return FRAME.pack(kind, len(data)) + data


def frames(data: bytes) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """Return the complete frames at the beginning, and the remaining bytes. Raises WireError for a frame that is too
    long."""
    found: list[tuple[bytes, bytes]] = []
    at = 0
    while len(data) - at >= FRAME.size:
        kind, length = FRAME.unpack_from(data, at)
        if length > LARGEST:
            raise WireError(f"a frame of {length} bytes is too long")
        if len(data) - at - FRAME.size < length:
            break
        at += FRAME.size
        found.append((kind, data[at:at + length]))
        at += length
    return found, data[at:]


def texts(answers: Iterable[tuple[bytes, str]]) -> bytes:
    """Return the frames of these texts, each at most PART bytes long; empty texts get no frame."""
    parts = []
    for kind, text in answers:
        data = os.fsencode(text)
        parts += [frame(kind, data[at:at + PART]) for at in range(0, len(data), PART)]
    return b"".join(parts)
