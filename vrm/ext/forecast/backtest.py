"""Test of the draws on jobs that have ended: calibrates the forecasts of whole queues
(`vrm.ext.forecast.calibration`).

The forecast of a queue comes true only once, when its last job has ended, so there are no past forecasts to
learn from. But the draws can be tested on jobs that have ended. Each test takes a stretch (consecutive ended
jobs, as many as the queue has) and draws their run times from what was known before them. It compares the work
(cores times run time), because makespan and waiting times depend on it; nothing is replayed.
"""

from __future__ import annotations

from collections.abc import Sequence

from vrm.ext.forecast.calibration import NEEDED, RangeCalibration
from vrm.ext.forecast.draws import ENOUGH, KEPT, Draws, History
from vrm.model import Job

STRETCHES = 80
"""Greatest number of stretches that are tested. They overlap if few jobs have ended."""

APART = 4
"""Number of ended jobs that are needed, as a multiple of the jobs of a stretch: with fewer, all stretches are
the same."""

LONGEST = KEPT // APART
"""Greatest number of jobs of a stretch. The errors of longer queues are taken to be those of this length."""

SHARES = (0.1, 0.5, 0.9)


def needed(jobs: int) -> int:
    """Return how many jobs must have ended to test a queue of `jobs` jobs."""
    jobs = min(jobs, LONGEST)
    return max(APART * jobs, ENOUGH + jobs + NEEDED)


def of_queues(ended: Sequence[tuple[Job, float]], jobs: int, cores: int, members: int) -> RangeCalibration:
    """Return the calibrated ranges for queues of `jobs` jobs on a machine of `cores` cores. `ended` are the
    jobs that have ended, with their run times in seconds. The ranges are not ready if too few jobs have ended."""
    found, past = RangeCalibration(), History()
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


def _try(found: RangeCalibration, draws: Draws, stretch: Sequence[tuple[Job, float]], cores: int) -> None:
    """Learn from one stretch. Work is measured in seconds of the whole machine."""
    import numpy
    drawn = sum(draws.drawn(job, 0.0) * job.request.cores for job, _ in stretch) / cores
    truth = sum(run * job.request.cores for job, run in stretch) / cores
    p10, p50, p90 = map(float, numpy.quantile(drawn, SHARES))
    low, _, high = found.widened(0.0, p10, p50, p90)
    found.learn(p10, p90, truth, [low, high] if found.ready else [])
