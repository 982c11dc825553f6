"""Allocations that have died: how that is detected, and what happens to their jobs."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from vrm.ext.allocations.pool import batch
from vrm.ext.allocations.pool.journal import PoolError, PoolJournal
from vrm.ext.allocations.pool.job_states import of_run
from vrm.ext.allocations.pool.state import PoolState

WATCHED = 12.0
"""Seconds within which a living manager writes its state."""

LOOKS = 0.2
"""Seconds between two checks of its state file."""


def ended_now(pool: Path, state: PoolState, name: str, answers: batch.BatchAnswers) -> list[tuple[str, dict[int, str]]]:
    """Return the allocation and the ends of its jobs if it has certainly ended: the batch system reports it, or
    has started its job again. Otherwise return []."""
    allocation = state.allocations[name]
    if state.successor(name) is None and not answers.ended(allocation.job):
        return []
    try:
        return [(name, of_run(pool / name).done)]
    except PoolError:
        return []  # its results cannot be read: jobs that run twice are worse than jobs that wait


def give_back(pool: PoolJournal, name: str) -> int:
    """Give back the jobs of an allocation that the user knows to be gone; return their number. Raises PoolError
    if it is not gone: the batch system reports its job as running, or its manager writes its state."""
    job, held = pool.state.allocations[name].job, pool.state.held_by(name)
    system = pool.state.options.get("system", "")
    if batch.runs(system, job):
        raise PoolError(f"the batch system says that {name} runs: end it first "
                        f"({batch.SYSTEMS[system].cancel[0]} {job})")
    if _is_written(pool.directory / name / "state"):
        raise PoolError(f"the manager of {name} has just written {pool.directory / name / 'state'}: it lives. End its "
                        "processes first")
    done = of_run(pool.directory / name).done
    pool.decide(lambda state: {"do": "end", "name": name, "done": done} if state.is_live(name) else None)
    return sum(job not in done for job in held)


def _is_written(path: Path) -> bool:
    """Return whether a file is being written now. No clocks are compared."""
    def version() -> tuple[int, int] | None:
        with contextlib.suppress(OSError), open(path, "rb") as file:  # opening makes NFS query its server
            found = os.fstat(file.fileno())
            return found.st_ino, found.st_mtime_ns
        return None

    before, limit = version(), time.monotonic() + WATCHED
    while time.monotonic() < limit:
        if version() != before:
            return True
        time.sleep(LOOKS)
    return False
