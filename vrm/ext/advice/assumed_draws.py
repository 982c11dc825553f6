"""The draws of advice: from the jobs that have ended, or from an assumption while these are too few.

With only one ended job all draws would be equal, and the advice would be certain and wrong.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from vrm.ext.forecast.draws import ENOUGH, OVERDUE, members
from vrm.ext.forecast.frozen import FrozenRun
from vrm.ext.forecast.replay import Durations
from vrm.model import Job

RATIOS = (0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 1.0)
"""Assumed ratios of run time to requested time, equally likely: users request far too much, and by how much
differs from job to job."""


def draws(frozen: FrozenRun, number: int) -> Iterator[Durations]:
    """Return `number` draws of the jobs' run times; they are the same under any policy."""
    if len(frozen.past) >= ENOUGH:
        return members(frozen, number)
    return (_assumed(f"{frozen.position} {member}") for member in range(number))


def _assumed(seed: str) -> Durations:
    shares: dict[int, float] = {}

    def seconds(job: Job, ran: float) -> float:
        share = shares.get(job.id)
        if share is None:
            share = shares[job.id] = random.Random(f"{seed} {job.id}").random()
        able = [ratio for ratio in RATIOS if ratio * job.walltime > ran] or [1.0]
        ratio = able[int(share * len(able))]
        return max(ratio * job.walltime, ran + OVERDUE)
    return seconds


def told(frozen: FrozenRun) -> str:
    """Return a text on the source of the draws."""
    number = len(frozen.past)
    if number >= ENOUGH:
        return f"from {number} jobs that have ended"
    low, high = (round(100 * ratio) for ratio in (RATIOS[0], RATIOS[-1]))
    few = f"only {number} job{'s have' if number > 1 else ' has'} ended" if number else "no job has ended yet"
    return f"from an assumption, that jobs take {low} to {high} % of their limits: {few} (--history names earlier runs)"
