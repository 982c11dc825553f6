"""The replies that a command of another batch system can get from a manager."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from collections.abc import Callable, Generator, Mapping

from vrm.ext.slurm.calls.wire import Call


@dataclass(frozen=True)
class Answer:
    """Text to print, and the exit status."""

    out: str = ""
    err: str = ""
    code: int = 0


class CallRefused(ValueError):
    """The command is not carried out; the text is the reason, as one line for standard error."""

    def __init__(self, text: str, code: int = 1) -> None:
        super().__init__(text)
        self.code = code


class HelpAnswer(Exception):
    """The command was called with `--help` or `--version`; `answer` is the reply, whatever other arguments there
    are."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.answer = Answer(text)


@dataclass(frozen=True)
class FileNeeded:
    """Asks the client to send this file first ("": its standard input); then the command is called again."""

    path: str


@dataclass(frozen=True)
class RunLocally:
    """Asks the client to handle the command itself, in Python."""


@dataclass(frozen=True)
class JoinStep(Answer):
    """Asks the client to become a step of a job, with these variables, or to run a shell or step with a job of its
    own."""

    variables: Mapping[str, str] = field(default_factory=dict)

    def packed(self) -> bytes:
        """Return the variables as the content of a frame."""
        return b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in self.variables.items())


class DeferredAnswer:
    """An answer that comes later: the client waits while `poll` returns None.

    `has_work`: the next `poll` has something to do, even if no event happens before it. `gone`: called when the
    client has ended. `signalled`: called when a signal was sent to the client."""

    has_work = False

    def poll(self) -> Answer | None:
        """Return the answer, or None if there is none yet. Called in each turn of the manager's loop."""
        raise NotImplementedError

    def take(self) -> tuple[bytes, bytes]:
        """Return the new output since the last call, for standard output and standard error."""
        return b"", b""

    def gone(self) -> None:
        """The client has ended; nobody waits for the answer."""

    def signalled(self, number: int) -> None:
        """The client has received this signal."""


PART = 0.02
"""Seconds that an answer in parts may work in one turn of the manager's loop."""


class AnswerInParts(DeferredAnswer):
    """An answer that takes long and is made in parts; other calls are answered between them. The generator `parts`
    yields None after each part and returns the answer, or a `DeferredAnswer`."""

    def __init__(self, parts: Generator[None, None, Answer | DeferredAnswer]) -> None:
        self._parts = parts
        self._end: Answer | DeferredAnswer | None = None
        self.has_work = True

    def poll(self) -> Answer | None:
        """Work for up to PART seconds; return the answer if that was the last part."""
        until = time.monotonic() + PART
        while self.has_work:
            self._next()
            if time.monotonic() >= until:
                break
        return self._end.poll() if isinstance(self._end, DeferredAnswer) else self._end

    def finish(self) -> Answer | DeferredAnswer:
        """Do all remaining parts and return the answer."""
        while self._end is None:
            self._next()
        return self._end

    def gone(self) -> None:
        """Finish the work although nobody waits for the answer."""
        end = self.finish()
        if isinstance(end, DeferredAnswer):
            end.gone()

    def _next(self) -> None:
        try:
            next(self._parts)
        except StopIteration as done:
            self._end, self.has_work = done.value, False


Reply = Answer | FileNeeded | RunLocally | JoinStep | DeferredAnswer

Handler = Callable[..., Reply]
"""Called with a `Call` and a `vrm.ext.slurm.calls.handler.RequestHandler`; may raise CallRefused."""

__all__ = ["Answer", "Call", "Handler", "AnswerInParts", "JoinStep", "RunLocally", "FileNeeded", "CallRefused",
           "Reply", "HelpAnswer",
           "DeferredAnswer"]
