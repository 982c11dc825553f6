"""Allocations that have died: who says so, and what becomes of their jobs."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from vrm.ext.allocations.pool import batch
from vrm.ext.allocations.pool.journal import PoolError, PoolJournal
from vrm.ext.allocations.pool.records import of_run
from vrm.ext.allocations.pool.state import PoolState

WATCHED = 12.0
"""Seconds in which a manager that lives writes its state."""

LOOKS = 0.2
"""Seconds between two looks at it."""


def ended_now(pool: Path, state: PoolState, name: str, answers: batch.BatchAnswers) -> list[tuple[str, dict[int, str]]]:
    """The allocation, and how its jobs have ended, if it is sure that it has ended: the batch system says so, or has
    begun its job again."""
    allocation = state.allocations[name]
    if state.successor(name) is None and not answers.ended(allocation.job):
        return []
    try:
        return [(name, of_run(pool / name).done)]
    except PoolError:
        return []  # what it has done cannot be read: that its jobs run twice is worse than that they wait


def give_back(pool: PoolJournal, name: str) -> int:
    """Give back the jobs of an allocation that a person knows to be gone; how many. PoolError where it is not: the
    batch system calls its job a running one, or its manager writes its state."""
    job, held = pool.state.allocations[name].job, pool.state.held_by(name)
    system = pool.state.options.get("system", "")
    if batch.runs(system, job):
        raise PoolError(f"the batch system says that {name} runs: end it first "
                        f"({batch.SYSTEMS[system].cancel[0]} {job})")
    if _writes(pool.directory / name / "state"):
        raise PoolError(f"the manager of {name} has just written {pool.directory / name / 'state'}: it lives. End its "
                        "processes first")
    done = of_run(pool.directory / name).done
    pool.decide(lambda state: {"do": "end", "name": name, "done": done} if state.is_live(name) else None)
    return sum(job not in done for job in held)


def _writes(path: Path) -> bool:
    """Whether somebody writes a file now: no clocks are compared."""
    def version() -> tuple[int, int] | None:
        with contextlib.suppress(OSError), open(path, "rb") as file:  # which has NFS ask its server
            found = os.fstat(file.fileno())
            return found.st_ino, found.st_mtime_ns
        return None

    before, limit = version(), time.monotonic() + WATCHED
    while time.monotonic() < limit:
        if version() != before:
            return True
        time.sleep(LOOKS)
    return False
