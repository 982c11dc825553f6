"""The ranges of advice: calibrated by the jobs that have ended."""

from __future__ import annotations

import random

import pytest

from vrm.ext.advice.advice import CALIBRATED, advise, combinations
from vrm.ext.forecast.backtest import LONGEST, needed, of_queues
from vrm.ext.forecast.draws import Draws, History
from vrm.ext.forecast.frozen import of_jobs
from vrm.model import Cluster, Job
from vrm.model.rules import Rules
from vrm.scheduling.compose import compose

CORES = 64


def ended(seed: int, number: int) -> list[tuple[Job, float]]:
    """Jobs whose users have other habits every hundred jobs, all of them together."""
    draw, found, habit = random.Random(seed), [], 0.5
    for job_id in range(number):
        if job_id % 100 == 0:
            habit = draw.uniform(0.1, 0.9)
        job = Job(job_id, "x", draw.choice((1, 4, 16)), float(draw.choice((3600, 7200))), user=draw.choice("abc"))
        found.append((job, job.walltime * min(1.0, habit * draw.uniform(0.7, 1.3))))
    return found


def held(ended: list[tuple[Job, float]], jobs: int, windows: int) -> tuple[float, float]:
    """The shares of the last windows whose work the ranges hold: as drawn, and calibrated by what was before."""
    import numpy
    raw = calibrated = 0
    for number in range(windows):
        first = len(ended) - (number + 1) * jobs
        past, before = History(), ended[:first]
        for job, run in before:
            past.add(job, run)
        draws = Draws(past, first, 30)
        stretch = ended[first:first + jobs]
        drawn = sum(draws.drawn(job, 0.0) * job.procs for job, _ in stretch) / CORES
        p10, p50, p90 = map(float, numpy.quantile(drawn, (0.1, 0.5, 0.9)))
        truth = sum(run * job.procs for job, run in stretch) / CORES
        low, middle, high = of_queues(before, jobs, CORES, 30).widened(0.0, p10, p50, p90)
        assert middle == p50 and low <= middle <= high
        raw += p10 <= truth <= p90
        calibrated += low <= truth <= high
    return raw / windows, calibrated / windows


def test_ranges_of_queues_hold_what_they_promise_where_users_err_together() -> None:
    raw, calibrated = held(ended(3, 1000), 20, 15)
    assert raw < 0.5 and 0.7 <= calibrated <= 0.95


def test_ranges_are_as_drawn_until_enough_jobs_have_ended() -> None:
    jobs = ended(2, needed(50))
    assert not of_queues(jobs[1:], 50, CORES, 20).ready and of_queues(jobs, 50, CORES, 20).ready
    assert not of_queues(jobs, 0, CORES, 20).ready
    assert needed(1) < needed(LONGEST) == needed(10 * LONGEST)


@pytest.mark.parametrize("number, ready", [(199, False), (400, True)])
def test_advice_says_whether_its_ranges_are_calibrated(number: int, ready: bool) -> None:
    past, cluster, rules = History(), Cluster.regular(CORES, 1, 1), Rules(backfill="easy")
    for job, run in ended(3, number):
        past.add(job, run)
    frozen = of_jobs([job.but(id=at) for at, (job, _) in enumerate(ended(4, 50))], compose(rules, cluster), cluster,
                     past=past)
    found, raw = (advise(frozen, combinations(rules, most=3), members=20, calibrate=wanted) for wanted in (True, False))
    assert (found.ranges == CALIBRATED) == ready and ("200 jobs must have ended" in found.ranges) != ready
    assert found.choices == raw.choices and found.record()["ranges"] == found.ranges
    for one, other in zip(found.combinations, raw.combinations):
        for objective, spread in one.gives.items():
            drawn = other.gives[objective]
            assert (spread.mean, spread.p50) == (drawn.mean, drawn.p50)
            assert (spread == drawn) == (not ready or objective == "slowdown"), objective
