"""How far off the draws of whole queues were: the calibration of what is said of one (`vrm.ext.forecast.calibration`).

A queue comes true once, when its last job has ended, so there are no forecasts to learn from. But the draws can be
tried on the jobs that have ended: stretches of as many of them as the queue has are drawn by what was known before.
What is compared is their work, cores times run time, for on it hang the makespan and the waits; nothing is replayed.
"""

from __future__ import annotations

from collections.abc import Sequence

from vrm.ext.forecast.calibration import NEEDED, Ranges
from vrm.ext.forecast.draws import ENOUGH, KEPT, Draws, History
from vrm.model import Job

STRETCHES = 80
"""How many are tried at most. They overlap where few jobs have ended."""

APART = 4
"""So many times as many jobs as a stretch has must have ended: of fewer the stretches are all the same."""

LONGEST = KEPT // APART
"""Jobs of a stretch at most: longer queues are taken to be as far off."""

SHARES = (0.1, 0.5, 0.9)


def needed(jobs: int) -> int:
    """How many jobs must have ended for a queue of so many."""
    jobs = min(jobs, LONGEST)
    return max(APART * jobs, ENOUGH + jobs + NEEDED)


def of_queues(ended: Sequence[tuple[Job, float]], jobs: int, cores: int, members: int) -> Ranges:
    """The ranges of queues of so many jobs, by those that have ended, with their run times (s), on a machine of so
    many cores. They are not ready where too few have ended."""
    found, past = Ranges(), History()
    if not jobs or len(ended) < needed(jobs):
        return found
    jobs = min(jobs, LONGEST)
    last = len(ended) - jobs
    starts = set(range(last, ENOUGH - 1, -max(1, (last - ENOUGH) // STRETCHES))[:STRETCHES])
    for at, (job, run) in enumerate(ended):
        if at in starts:
            _try(found, Draws(past, at, members), ended[at:at + jobs], cores)
        past.add(job, run)
    return found


def _try(found: Ranges, draws: Draws, stretch: Sequence[tuple[Job, float]], cores: int) -> None:
    """Learn from a stretch. Work is in seconds of the whole machine."""
    import numpy
    drawn = sum(draws.drawn(job, 0.0) * job.request.cores for job, _ in stretch) / cores
    truth = sum(run * job.request.cores for job, run in stretch) / cores
    p10, p50, p90 = map(float, numpy.quantile(drawn, SHARES))
    low, _, high = found.widened(0.0, p10, p50, p90)
    found.learn(p10, p90, truth, [low, high] if found.ready else [])
