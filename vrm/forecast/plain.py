"""Plain draws of how long jobs take: by the ratios of all jobs that have ended, of what users said."""

from __future__ import annotations

import random
from typing import Iterator, List

from vrm.forecast.frozen import Frozen
from vrm.forecast.replay import OVERDUE, Durations
from vrm.model import Job

ASSUMED = (0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 1.0)
"""Ratios where nothing has ended."""

LAST = 200
"""Jobs whose ratios count."""


def members(frozen: Frozen, number: int) -> Iterator[Durations]:
    """So many draws; a job takes the same in each of them whatever the policy."""
    ratios = sorted(min(1.0, run / job.walltime) for job, run in frozen.past.ended[-LAST:]) or list(ASSUMED)
    for member in range(number):
        yield _member(f"{frozen.position} {member}", ratios)


def _member(seed: str, ratios: List[float]) -> Durations:
    def durations(job: Job, ran: float) -> float:
        able = [ratio for ratio in ratios if ratio * job.walltime > ran] or [1.0]
        drawn = able[int(random.Random(f"{seed} {job.id}").random() * len(able))]
        return max(drawn * job.walltime, ran + OVERDUE)
    return durations


def told(frozen: Frozen) -> str:
    """Where the draws come from, for people."""
    number = min(len(frozen.past.ended), LAST)
    return (f"from {number} job(s) that have ended" if number else
            "from an assumption, since no job has ended: that jobs take 5 to 100 % of their limits")
