"""The ordering `advised`: FCFS until the process next to a live manager has found better rules
(`vrm.ext.advice.adviser`)."""

from __future__ import annotations

from vrm.model.job import Job
from vrm.scheduling.orderings.ordering import ADVISED, Fcfs, Ordering


def _first(job: Job, now: float, nodes: int) -> float:
    return -job.submit


def advised() -> Ordering:
    """Return the ordering."""
    return Fcfs(ADVISED, _first, static=True)
