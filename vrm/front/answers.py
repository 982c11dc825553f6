"""What a command of another batch system gives back, and what it asks of a manager."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Optional, Union

from vrm.front.wire import Call


@dataclass(frozen=True)
class Answer:
    """What is printed, and the exit status."""

    out: str = ""
    err: str = ""
    code: int = 0


class Refused(ValueError):
    """The command is not carried out; the text says why, as one line of standard error."""

    def __init__(self, text: str, code: int = 1) -> None:
        super().__init__(text)
        self.code = code


class Told(Exception):
    """A command was asked what it is (`--help`, `--version`): that is the answer, whatever else was typed."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.answer = Answer(text)


@dataclass(frozen=True)
class Needs:
    """The client is to send this file first ("": its standard input); then it is called again."""

    path: str


@dataclass(frozen=True)
class Locally:
    """The client is to do it itself, with Python."""


class Waiting:
    """An answer that comes later: the client waits as long as `poll` gives None.

    `gone`: the client has ended. `signalled`: it was sent a signal.
    """

    def poll(self) -> Optional[Answer]:
        """The answer, once there is one. It is asked in each turn of the manager's loop."""
        raise NotImplementedError

    def take(self) -> "tuple[bytes, bytes]":
        """What is to be printed until now, on standard output and standard error, once."""
        return b"", b""

    def gone(self) -> None:
        """The client has ended; nobody waits any more."""

    def signalled(self, number: int) -> None:
        """A signal came to the client."""


Reply = Union[Answer, Needs, Locally, Waiting]

Handler = Callable[..., Reply]
"""Called with a `Call` and a `vrm.front.counter.Counter`; may raise Refused."""

__all__ = ["Answer", "Call", "Handler", "Locally", "Needs", "Refused", "Reply", "Told", "Waiting"]
