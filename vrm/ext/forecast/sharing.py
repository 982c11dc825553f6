"""Work that is shared out to processes of this machine, which see all that their parent sees."""

from __future__ import annotations

import multiprocessing
import os
import signal
from multiprocessing.connection import Connection
from typing import Any, TypeVar
from collections.abc import Callable

Found = TypeVar("Found")

Part = tuple[int, int]
"""Which part of how many; the first is 0."""


MOST = 4
"""Processes that share work at most: the machine is not ours alone."""

PAYS = 20_000
"""Jobs that are replayed, each as often as it is, from which on several processes pay: a second of one."""


def available() -> int:
    """How many processes may share work here."""
    return min(MOST, len(os.sched_getaffinity(0)))


def processes_for(replayed: int) -> int:
    """How many processes are to share the replays of so many jobs."""
    return available() if replayed >= PAYS else 1


def shared_out(work: Callable[[Part], list[Found]], processes: int) -> list[Found]:
    """What `work` finds in each of as many parts as there are processes, the first of which is this
    one: the first of each part in turn, then the second of each, and so on.

    What a part raises is raised here as a RuntimeError; then, and on Ctrl-C, the others are ended.
    They are forked, so that nothing of the work has to be sent.
    """
    if processes < 2:
        return work((0, 1))
    context = multiprocessing.get_context("fork")
    others: list[tuple[Any, Connection]] = []
    try:
        for at in range(1, processes):
            receiver, sender = context.Pipe(duplex=False)
            other = context.Process(target=_send, args=(sender, work, (at, processes)), daemon=True)
            other.start()
            sender.close()
            others.append((other, receiver))
        parts = [work((0, processes)), *(_received(receiver) for _, receiver in others)]
    finally:
        for other, receiver in others:
            receiver.close()
            other.terminate()
            other.join()
    return [part[at] for at in range(max(map(len, parts))) for part in parts if at < len(part)]


def _send(sender: Connection, work: Callable[[Part], list[Found]], part: Part) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is the parent's, which ends this one
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        found: tuple[bool, Any] = True, work(part)
    except Exception as error:  # whatever it is, the parent says it
        found = False, f"{type(error).__name__}: {error}"
    sender.send(found)
    sender.close()


def _received(receiver: Connection) -> list[Any]:
    try:
        good, found = receiver.recv()
    except EOFError:
        raise RuntimeError("a process that shared the work was killed") from None
    if not good:
        raise RuntimeError(found)
    result: list[Any] = found
    return result
