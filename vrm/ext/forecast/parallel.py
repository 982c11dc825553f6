"""Distributes work to processes of this machine. They are forked, so each sees all the data of its parent."""

from __future__ import annotations

import multiprocessing
import os
import signal
from multiprocessing.connection import Connection
from typing import Any, TypeVar
from collections.abc import Callable

Found = TypeVar("Found")

Part = tuple[int, int]
"""Number of a part, from 0 on, and the number of parts."""


MOST = 4
"""Greatest number of processes that share work: the machine has other users."""

PAYS = 20_000
"""Number of replayed jobs (each counted as often as it is replayed) from which on several processes are worth
their cost: about a second of one process."""


def available() -> int:
    """Return the number of processes that may share work here."""
    return min(MOST, len(os.sched_getaffinity(0)))


def processes_for(replayed: int) -> int:
    """Return the number of processes that should share the replays of `replayed` jobs."""
    return available() if replayed >= PAYS else 1


def run_in_processes(work: Callable[[Part], list[Found]], processes: int) -> list[Found]:
    """Return what `work` finds, divided into as many parts as there are processes; this process does the first
    part. The result has the first element of each part, then the second of each, and so on.

    An exception in a part is raised here as a RuntimeError; then, and on Ctrl-C, the other processes are ended.
    They are forked, so no data of the work has to be sent.
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
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the parent, which ends this process
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        found: tuple[bool, Any] = True, work(part)
    except Exception as error:  # the parent raises it, whatever it is
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
