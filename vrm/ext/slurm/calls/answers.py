"""What a command of another batch system gives back, and what it asks of a manager."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from collections.abc import Callable, Generator, Mapping

from vrm.ext.slurm.calls.wire import Call


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


class HelpAnswer(Exception):
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


@dataclass(frozen=True)
class Joins(Answer):
    """The client is to be a step of a job, with these variables, or to run a shell or step with a job of its own."""

    variables: Mapping[str, str] = field(default_factory=dict)

    def packed(self) -> bytes:
        """The frame as it is sent through the socket."""
        return b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in self.variables.items())


class LaterAnswer:
    """An answer that comes later: the client waits as long as `poll` gives None.

    `has_work`: the next `poll` has something to do, whatever happens until then.
    `gone`: the client has ended. `signalled`: it was sent a signal.
    """

    has_work = False

    def poll(self) -> Answer | None:
        """The answer, once there is one. It is asked in each turn of the manager's loop."""
        raise NotImplementedError

    def take(self) -> tuple[bytes, bytes]:
        """What is to be printed until now, on standard output and standard error, once."""
        return b"", b""

    def gone(self) -> None:
        """The client has ended; nobody waits any more."""

    def signalled(self, number: int) -> None:
        """A signal came to the client."""


PART = 0.02
"""Seconds for which an answer in parts works in a turn of the manager's loop."""


class InParts(LaterAnswer):
    """An answer that takes long, in parts: others are answered in between. `parts` gives None after each, and
    returns the answer, or another one that comes later."""

    def __init__(self, parts: Generator[None, None, Answer | LaterAnswer]) -> None:
        self._parts = parts
        self._end: Answer | LaterAnswer | None = None
        self.has_work = True

    def poll(self) -> Answer | None:
        """The answer, if this was the last part."""
        until = time.monotonic() + PART
        while self.has_work:
            self._next()
            if time.monotonic() >= until:
                break
        return self._end.poll() if isinstance(self._end, LaterAnswer) else self._end

    def finish(self) -> Answer | LaterAnswer:
        """Do all that is left, and give the answer."""
        while self._end is None:
            self._next()
        return self._end

    def gone(self) -> None:
        """What was asked is done although nobody waits for the answer any more."""
        end = self.finish()
        if isinstance(end, LaterAnswer):
            end.gone()

    def _next(self) -> None:
        try:
            next(self._parts)
        except StopIteration as done:
            self._end, self.has_work = done.value, False


Reply = Answer | Needs | Locally | Joins | LaterAnswer

Handler = Callable[..., Reply]
"""Called with a `Call` and a `vrm.ext.slurm.calls.counter.Counter`; may raise Refused."""

__all__ = ["Answer", "Call", "Handler", "InParts", "Joins", "Locally", "Needs", "Refused", "Reply", "HelpAnswer",
           "LaterAnswer"]
