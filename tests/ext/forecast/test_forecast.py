"""The forecast of a run."""

from __future__ import annotations

import dataclasses
import json
import math
import random
from typing import Any
from collections.abc import Sequence

import numpy
import pytest
from hypothesis import given, settings, strategies as st

from vrm.ext.forecast.calibration import NEEDED, UNCALIBRATED, Calibration
from vrm.ext.forecast.draws import LAST, History
from vrm.ext.forecast.forecast import (FEWEST, SETTLED, Ensemble, Forecast, JobForecast, forecast,
                                   quantiles)
from vrm.ext.forecast.frozen import FrozenRun, of_jobs
from vrm.ext.forecast.replay import limits, replay
from vrm.ext.forecast.parallel import run_in_processes
from vrm.model import Cluster, Job
from vrm.scheduling import Scheduler, make_backfilling, make_ordering, make_policy


def run_of(jobs: Sequence[Job], past: History, now: float = 10.0, end: float = math.inf) -> FrozenRun:
    """Jobs on four nodes with four cores each; the first ones run since 0."""
    cluster = Cluster.regular(4, 2, 2)
    scheduler = Scheduler(make_ordering("FCFS"), make_backfilling("easy"),
                          make_policy("compact", cluster, None))
    run = of_jobs(jobs, scheduler, cluster).run.copy()
    run.step(0.0)
    return FrozenRun(run, now, end, past=past)


def history(*ratios: float) -> History:
    past = History()
    for ratio in ratios:
        past.add(Job(0, "a.x", 4, 100.0), 100.0 * ratio)
    return past


def queue(seed: int = 1, number: int = 30) -> Sequence[Job]:
    generator = random.Random(seed)
    return [Job(each, f"{each % 4}.x", generator.choice([4, 8, 16]), generator.uniform(50, 500), float(each))
            for each in range(number)]


SCATTERED = history(*[number / LAST for number in range(1, LAST + 1)])


def of(found: Forecast) -> dict[int, JobForecast]:
    return {job.id: job for job in found.jobs}


def test_equal_states_have_equal_forecasts() -> None:
    frozen = run_of(queue(), SCATTERED)
    found = forecast(frozen)
    assert found == forecast(frozen) == forecast(run_of(queue(), SCATTERED))
    assert found != forecast(dataclasses.replace(frozen, position=1))


def test_all_jobs_have_one() -> None:
    frozen = run_of(queue(), SCATTERED)
    found = of(forecast(frozen))
    assert sorted(found) == list(range(30))
    late = replay(frozen, limits)
    for job in found.values():
        assert job.p10 <= job.start <= job.p90 and job.end_p10 <= job.end <= job.end_p90
        assert job.latest == late[job.id].start and job.nodes and job.chance == 1
        if job.running:
            assert job.start == job.p10 == job.p90 == job.latest == 0 and job.end > 10
        else:
            assert job.p10 >= 10 and job.start < job.end
    assert any(job.p10 < job.p90 for job in found.values())
    assert any(job.start < job.latest for job in found.values())


def test_without_a_history_jobs_take_as_long_as_they_may() -> None:
    found = forecast(run_of(queue(), History()))
    assert found.members == FEWEST + 10  # nothing moves: no need for more draws
    for job in found.jobs:
        assert job.start == job.p10 == job.p90 == job.latest == job.likely


def test_draws_end_when_ranges_have_settled() -> None:
    frozen = run_of(queue(), SCATTERED)
    few = Ensemble(frozen, frozen.waiting(), 50, settled=10.0)
    many = Ensemble(frozen, frozen.waiting(), 50, settled=0.0)
    assert len(few.starts) == FEWEST + 10 and len(many.starts) == 50
    assert few.starts == many.starts[:FEWEST + 10]
    now = frozen.now
    for before, after, settled in [
            (now + 1000, now + 1049, True), (now + 1000, now + 1060, False), (now + 10, now + 12.9, True),
            (now + 10, now + 14, False), (math.inf, math.inf, True), (now + 10, math.inf, False),
            (math.inf, now + 10, False)]:
        one = Ensemble(frozen, [], 0)
        assert one._settled([[before, 0.0, before]], [[before, 0.0, after]]) is settled, (before, after)


@pytest.mark.parametrize("processes", [2, 3])
@pytest.mark.parametrize("settled", [0.0, SETTLED, 10.0])
def test_processes_that_share_draws_find_the_same(processes: int, settled: float,
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    frozen, shared = run_of(queue(), SCATTERED), []

    def noted(work: Any, number: int) -> Any:
        shared.append(number)
        return run_in_processes(work, number)

    alone = Ensemble(frozen, frozen.waiting(), 47, settled, processes)  # it takes no time: none is started
    monkeypatch.setattr("vrm.ext.forecast.forecast.WORTH", 0.0)
    monkeypatch.setattr("vrm.ext.forecast.forecast.run_in_processes", noted)
    many = Ensemble(frozen, frozen.waiting(), 47, settled, processes)
    assert (many.starts, many.ends) == (alone.starts, alone.ends) and set(shared) == {processes}
    assert len(many.starts) in ((47,) if not settled else (30, 40, 47))
    assert forecast(frozen, 47, processes=processes) == forecast(frozen, 47)


def test_without_members_the_likely_run_is_told() -> None:
    found = forecast(run_of(queue(), history(*[0.5] * LAST)), 0)
    assert found.members == 0
    for job in found.jobs:
        assert job.start == job.p10 == job.p90 == job.likely
    assert any(job.start < job.latest for job in found.jobs)


def test_what_does_not_start_in_this_allocation_counts_as_never() -> None:
    # 1 waits for 0, which ends by 100 at the latest; 1 starts only if 50 s are left then.
    jobs = [Job(0, "a.x", 16, 100.0), Job(1, "a.x", 16, 50.0, 1.0), Job(2, "a.x", 16, 900.0, 2.0)]
    found = of(forecast(run_of(jobs, history(*[0.2, 0.9] * 10), end=80.0)))
    assert 0.2 < found[1].chance < 0.8 and found[1].p10 == 20 and found[1].p90 == math.inf
    assert found[1].latest == math.inf
    assert found[2].chance == 0 and found[2].start == math.inf and found[2].nodes == ""


def test_ranges_are_calibrated() -> None:
    frozen = run_of(queue(), SCATTERED)
    calibration = Calibration()
    before = forecast(frozen, calibration=calibration)
    assert before == forecast(frozen) and before.calibrated == UNCALIBRATED
    for _ in range(NEEDED):
        calibration.starts.learn(100.0, 200.0, 300.0, [])
    after = forecast(frozen, calibration=calibration)
    assert after.calibrated == ""
    wider = [(job.p90 - old.p90) / (old.p90 - old.p10) for job, old in zip(after.jobs, before.jobs)
             if old.p90 - old.p10 > 100]
    assert wider and wider == pytest.approx([1.0] * len(wider))
    for job, old in zip(after.jobs, before.jobs):
        assert job.start == old.start and job.drawn == old.drawn
        assert job.p10 <= job.start <= job.p90 and job.end_p90 >= job.p90


def test_it_is_written_and_read() -> None:
    jobs = [Job(0, "a.x", 16, 100.0), Job(1, "a.x", 16, 50.0, 1.0)]
    found = forecast(run_of(jobs, SCATTERED, end=80.0))
    assert any(job.p90 == math.inf for job in found.jobs)
    assert Forecast.read(json.loads(json.dumps(found.record(), allow_nan=False))) == found


def test_an_empty_run_has_an_empty_forecast() -> None:
    assert forecast(run_of([], History())).jobs == ()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.floats(0, 1e6) | st.just(math.inf), min_size=2, max_size=2), min_size=1,
                max_size=60))
def test_quantiles(rows: list[list[float]]) -> None:
    found = list(quantiles(rows))
    for column in range(2):
        values = sorted(row[column] for row in rows)
        if values[-1] < math.inf:
            assert found[column] == pytest.approx(numpy.quantile(values, [0.1, 0.5, 0.9]))
        for row, share in enumerate((0.1, 0.5, 0.9)):  # infinity where any value is that counts
            above = math.ceil(share * (len(values) - 1))
            assert (found[column][row] == math.inf) == (values[above] == math.inf)
