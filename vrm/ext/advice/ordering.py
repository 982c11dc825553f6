"""The ordering `advised`: FCFS until the process beside a live manager (`vrm.ext.advice.adviser`) has found better rules."""

from __future__ import annotations

from vrm.model.job import Job
from vrm.scheduling.ordering import ADVISED, Fcfs, Ordering


def _first(job: Job, now: float, nodes: int) -> float:
    return -job.submit


def advised() -> Ordering:
    """Return the ordering."""
    return Fcfs(ADVISED, _first, static=True)
