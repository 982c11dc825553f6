"""Metrics: hand-made figures, laws that hold always, and plain loops over seconds beside them."""

from __future__ import annotations

import json
import math
import random
import statistics
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from support.plain_metrics import (Fairness, bounded_slowdown, columns_of, fairness, load, loss_of_capacity,
                           per_processor_bounded_slowdown, queue_length, slowdown, summary, throughput, trim,
                           turnaround, utilisation)
from vrm.model import JobState
from vrm.results import metrics
from vrm.results.jobs import JobRow
from vrm.results.metrics import (closing_line, idle_while_waiting, idle_text, jain_index, makespan, running, span,
                                 waiting)
from vrm.results.summary import Distribution, distribution

# A busy machine is not a failure.
UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def row(submit, start, end, procs=1, status="completed", app_time=None, user=""):
    return SimpleNamespace(status=status, submit=submit, start=start, end=end, processors=procs,
                           walltime=100.0, app_time=app_time, user=user)


# Two processors: A 0-60 on 1; B came at 0, 60-120 on 2; C came at 30, 120-125 on 1.
SMALL = [row(0, 0, 60), row(0, 60, 120, procs=2), row(30, 120, 125)]
REFUSED = row(5, None, None, procs=64, status="refused")


@st.composite
def schedules(draw, processors=4):
    """Any jobs at whole seconds that fit on the processors: each starts when there is room."""
    free = [processors] * 400
    jobs = []
    for _ in range(draw(st.integers(0, 8))):
        submit, run = draw(st.integers(0, 20)), draw(st.integers(0, 15))
        procs = draw(st.integers(1, processors))
        start = submit + draw(st.integers(0, 10))
        while run and min(free[start:start + run]) < procs:
            start += 1
        for second in range(start, start + run):
            free[second] -= procs
        jobs.append(row(submit, start, start + run, procs, draw(st.sampled_from(
            ["completed", "completed", "failed", "timeout", "cancelled"]))))
    return jobs + draw(st.lists(st.just(REFUSED), max_size=1))


# ------------------------------------------------------------------------------------- per job


@pytest.mark.parametrize("job, expected", [
    (row(0, 60, 120), (60, 60, 120, 2.0, 2.0)),
    (row(0, 0, 60), (0, 60, 60, 1.0, 1.0)),
    (row(0, 18, 20), (18, 2, 20, 10.0, 2.0)),
    (row(0, 2, 4), (2, 2, 4, 2.0, 1.0)),
    (row(0, 50, 50), (50, 0, 50, math.inf, 5.0)),
    (row(7, 7, 7), (0, 0, 0, 1.0, 1.0)),
])
def test_per_job(job, expected):
    assert (waiting(job), running(job), turnaround(job), slowdown(job),
            bounded_slowdown(job)) == expected


def test_threshold_and_processors():
    job = row(0, 90, 100, procs=4)
    assert bounded_slowdown(job, threshold=10) == 10
    assert bounded_slowdown(job, threshold=50) == 2
    assert per_processor_bounded_slowdown(job) == 2.5
    assert per_processor_bounded_slowdown(job, threshold=50) == 1
    for metric in (bounded_slowdown, per_processor_bounded_slowdown):
        with pytest.raises(ValueError, match="above 0 s, not 0"):
            metric(job, threshold=0)


@UNTIMED
@given(schedules(), st.floats(0.1, 100))
@pytest.mark.slow
def test_laws_per_job(jobs, threshold):
    for job in metrics.ran(jobs):
        bounded = bounded_slowdown(job, threshold)
        assert waiting(job) + running(job) == turnaround(job)
        assert 1 <= per_processor_bounded_slowdown(job, threshold) <= bounded
        assert 1 <= bounded <= max(1, slowdown(job))
        assert bounded_slowdown(job, 2 * threshold) <= bounded
        if running(job) >= threshold:
            assert bounded == slowdown(job)


# ------------------------------------------------------------------------------- distributions


@UNTIMED
@given(st.lists(st.floats(-1e6, 1e6), min_size=2))
def test_distribution_is_that_of_the_standard_library(values):
    found = distribution(values)
    assert found.count == len(values)
    assert found.mean == pytest.approx(statistics.fmean(values), abs=1e-6)
    assert found.median == pytest.approx(statistics.median(values), abs=1e-6)
    assert found.p95 == pytest.approx(
        statistics.quantiles(values, n=20, method="inclusive")[-1], abs=1e-6)
    assert found.maximum == max(values)


def test_small_distributions():
    assert distribution([7]) == Distribution(1, 7, 7, 7, 7)
    assert distribution([]) == Distribution(0, None, None, None, None)
    assert distribution(range(1, 22)).p95 == 20


# --------------------------------------------------------------------------------- the machine


def test_small_machine():
    assert span(SMALL) == (0, 125)
    assert makespan(SMALL) == 125
    assert utilisation(SMALL, 2) == (60 + 120 + 5) / (2 * 125)
    assert throughput(SMALL) == 3 * 3600 / 125
    # B wants 2 while 1 idles for 60 s; C waits on a full machine.
    assert loss_of_capacity(SMALL, 2) == 60 / (2 * 125)
    assert load(SMALL) == [(0, 1, 2, 1, 1), (30, 2, 3, 1, 1), (60, 1, 1, 1, 2),
                           (120, 0, 0, 1, 1), (125, 0, 0, 0, 0)]
    assert queue_length(SMALL).mean == (30 * 1 + 30 * 2 + 60 * 1) / 125
    assert queue_length(SMALL).maximum == 2


def test_window():
    assert utilisation(SMALL, 2, (30, 90)) == (30 + 60) / 120
    assert utilisation(SMALL, 2, (200, 300)) == 0
    assert queue_length(SMALL, (0, 30)).mean == 1
    assert queue_length(SMALL, (-30, 30)).mean == 0.5
    assert queue_length(SMALL, (125, 200)).maximum == 0
    assert throughput(SMALL, (61, 120)) == 3600 / 59
    assert throughput([*SMALL, row(0, 5, 9, status="failed")]) == 3 * 3600 / 125


@pytest.mark.parametrize("rows", [[], [REFUSED]])
def test_nothing_ran(rows):
    assert makespan(rows) == 0
    assert utilisation(rows, 4) == loss_of_capacity(rows, 4) == throughput(rows) == 0
    assert load(rows) == [] and queue_length(rows).mean is None


@UNTIMED
@given(schedules(), st.integers(-2, 30), st.integers(1, 30))
@pytest.mark.slow
def test_machine_against_a_loop_over_seconds(jobs, first, length):
    done = metrics.ran(jobs)
    window = (first, first + length)
    used = lost = waited = 0
    lengths = []
    for second in range(*window):  # everything happens at whole seconds
        busy = sum(job.processors for job in done if job.start <= second < job.end)
        queue = [job.processors for job in done if job.submit <= second < job.start]
        used += busy
        lost += min(4 - busy, sum(queue))
        waited += len(queue)
        lengths.append(len(queue))
    assert utilisation(jobs, 4, window) == pytest.approx(used / (4 * length))
    columns = columns_of(done)
    assert columns.core_seconds(*window) == pytest.approx(used)
    assert columns.utilisation(4) == pytest.approx(utilisation(jobs, 4))
    assert loss_of_capacity(jobs, 4, window) == pytest.approx(lost / (4 * length))
    found = queue_length(jobs, window)
    if done:
        assert found.mean == pytest.approx(waited / length)
        assert found.maximum == max(lengths)
        assert found.median == sorted(lengths)[math.ceil(length / 2) - 1]
        assert found.p95 == sorted(lengths)[math.ceil(0.95 * length - 1e-9) - 1]


@UNTIMED
@given(schedules())
@pytest.mark.slow
def test_capacity_is_used_lost_or_not_asked_for(jobs):
    done = metrics.ran(jobs)
    assume(makespan(done) > 0)
    first, last = span(done)
    unasked = sum(max(0, 4 - sum(job.processors for job in done if job.submit <= second < job.end))
                  for second in range(first, last))
    assert (utilisation(jobs, 4) + loss_of_capacity(jobs, 4)
            + unasked / (4 * makespan(done))) == pytest.approx(1)


@UNTIMED
@given(schedules())
@pytest.mark.slow
def test_mean_queue_is_the_waiting_of_all_jobs(jobs):
    """Little's law, which counting in two ways must obey."""
    done = metrics.ran(jobs)
    assume(makespan(done) > 0)
    assert queue_length(jobs).mean * makespan(jobs) == pytest.approx(
        sum(waiting(job) for job in done))


@UNTIMED
@given(schedules())
def test_load_ends_empty_and_is_never_negative(jobs):
    series = load(jobs)
    assert all(min(point[1:]) >= 0 and point.busy_procs <= 4 for point in series)
    assert [point.time for point in series] == sorted({point.time for point in series})
    assert not series or series[-1][1:] == (0, 0, 0, 0)


def test_no_processors():
    with pytest.raises(ValueError, match="at least 1 processor, not 0"):
        utilisation(SMALL, 0)
    with pytest.raises(ValueError, match="at least 1 processor"):
        summary([], 0)


# ------------------------------------------------------------------------------------ fairness


def test_fairness_by_user():
    rows = [row(0, 10, 20, user="ada"), row(0, 30, 40, user="ada"), row(0, 0, 10, user="bob"),
            row(0, 5, 10), REFUSED]
    assert fairness(rows, waiting) == Fairness(0.5, {"ada": 20, "bob": 0})
    assert fairness(rows).means == {"ada": 3, "bob": 1}
    assert fairness(rows).index == pytest.approx(16 / 20)
    assert fairness(SMALL) == Fairness(None, {})


@UNTIMED
@given(st.lists(st.floats(0, 1e300), min_size=1, max_size=20), st.floats(0.001, 1000))
def test_jain_index(values, factor):
    index = jain_index(values)
    assert 1 / len(values) - 1e-9 <= index <= 1 + 1e-9
    assert jain_index([5.0] * len(values)) == pytest.approx(1)
    assert jain_index([1.0] + [0.0] * (len(values) - 1)) == pytest.approx(1 / len(values))
    if 0 < max(values) < 1e200 and max(values) > 1e-200:
        assert jain_index([value * factor for value in values]) == pytest.approx(index)


# ------------------------------------------------------------------------------------ trimming


def test_trim():
    rows = [row(t, t, t + 5) for t in range(0, 100, 10)]
    assert [job.submit for job in trim(rows, 20, 30)] == [20, 30, 40, 50, 60]
    assert trim(rows) == rows and trim([], 5, 5) == []
    with pytest.raises(ValueError, match="from 0 on"):
        trim(rows, -1)


# ------------------------------------------------------------------------------------- results


def test_summary():
    found = summary([*SMALL, REFUSED, row(0, None, None, status="cancelled")], 2)
    assert found["jobs"] == 3
    assert [found[state.value] for state in JobState if state.ended] == [3, 0, 0, 1, 1]
    assert found["average_wait"] == (0 + 60 + 90) / 3
    assert found["average_running"] == (60 + 60 + 5) / 3
    assert found["average_turnaround"] == (60 + 120 + 95) / 3
    assert found["average_bounded_slowdown"] == (1 + 2 + 9.5) / 3
    assert found["makespan"] == 125
    assert found["utilisation"] == utilisation(SMALL, 2)
    assert found["loss_of_capacity"] == loss_of_capacity(SMALL, 2)
    assert found["average_queue_length"] == queue_length(SMALL).mean
    assert found["throughput_per_hour"] == throughput(SMALL)
    assert found["wait"] == {"count": 3, "mean": 50, "median": 60, "p95": pytest.approx(87),
                             "maximum": 90}
    assert found["slowdown"]["maximum"] == 19
    assert found["per_processor_bounded_slowdown"]["maximum"] == 9.5
    assert found["fairness"] is None
    assert found["method"]["bounded_slowdown_threshold"] == 10
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_summary_of_nothing():
    found = summary([], 2)
    assert found["jobs"] == 0 and found["average_wait"] is None and found["makespan"] == 0
    json.dumps(found, allow_nan=False)


def test_summary_trimmed():
    rows = [row(t, t + 1, t + 6, procs=2) for t in range(0, 100, 10)]
    rows[0] = row(0, 1, 200)
    found = summary(rows, 4, warm_up=10, cool_down=10)
    assert found["jobs"] == 8 and found["average_wait"] == 1 and found["makespan"] == 200
    assert found["completed"] == 10
    assert found["utilisation"] == utilisation(rows, 4, (10, 80)) == (70 + 7 * 10) / 280
    assert found["method"]["warm_up"] == 10
    with pytest.raises(ValueError, match="warm-up of 50 s and a cool-down of 40 s leave nothing"):
        summary(rows, 4, warm_up=50, cool_down=40)


def test_summary_takes_jobs_that_ran_no_time():
    found = summary([row(0, 50, 50), row(0, 0, 10)], 1)
    assert found["slowdown"]["count"] == 1 and found["average_bounded_slowdown"] == 3
    json.dumps(found, allow_nan=False)


@UNTIMED
@given(schedules(), st.randoms())
@pytest.mark.slow
def test_the_order_of_the_jobs_does_not_matter(jobs, chance):
    shuffled = jobs[:]
    chance.shuffle(shuffled)
    assert summary(jobs, 4) == summary(iter(shuffled), 4)


def test_a_simulation_may_bring_its_own_rows():
    rows = [JobRow(i, "a", 1, i, i + 1, i + 3, 10.0, "completed") for i in range(5)]
    assert summary(rows, 1)["average_turnaround"] == 3


# -------------------------------------------------------------------------------- closing line


@pytest.mark.parametrize("backfilling, name", [
    ("none", "0"), ("easy", "1"), (0, "0"), (1, "1"), (False, "0"), ("EASY", "1"),
    ("conservative", "conservative"), (4, "4"), ("my_policies:mine", "my_policies:mine"),
])
def test_closing_line(backfilling, name):
    rows = [row(0, 200, 272.3, app_time=None), row(0, 299.7, 400, app_time=72.3),
            row(0, 5, 6, status="failed"), REFUSED]
    assert closing_line("WFP3", backfilling, rows) == f"WFP3({name}): (249.85, 72.3, 322.15)"


def test_closing_line_of_whole_seconds_and_none():
    assert closing_line("FCFS", "none", [row(0, 10, 30)]) == "FCFS(0): (10.0, 20.0, 30.0)"
    assert closing_line("FCFS", "none", [REFUSED]) == "FCFS(0): no job completed"


@UNTIMED
@given(schedules(), st.integers(0, 30), st.integers(1, 60))
def test_idle_while_jobs_waited_is_the_loss_of_capacity(jobs, first, length):
    assert idle_while_waiting(jobs, 4) == pytest.approx(loss_of_capacity(jobs, 4))
    window = first, first + length
    assert idle_while_waiting(jobs, 4, window) == pytest.approx(loss_of_capacity(jobs, 4, window))


def test_a_job_that_waits_for_another_does_not_count_as_waiting():
    after = row(0, 60, 120)
    assert idle_while_waiting([row(0, 0, 60), after], 2) == 0.25
    after.after = "0"
    assert idle_while_waiting([row(0, 0, 60), after], 2) == 0.0


def test_much_idle_time_is_said_with_what_to_type():
    assert idle_text(0.2, "compact", "vrm") == ""
    assert idle_text(0.44, "pack", "vrm -c a.yaml") == (
        "44 % of the core time was idle while jobs waited: `vrm -c a.yaml advise` compares other rules")
    assert idle_text(0.44, "compact", "vrm").endswith(
        ": `Policy: pack` lets jobs share nodes, `vrm advise --placements compact,pack` compares")


def test_closing_line_of_a_finished_enum():
    rows = [row(0, 1, 2, status=JobState.COMPLETED)]
    assert closing_line("q / t", "easy", rows) == "q / t(1): (1.0, 1.0, 2.0)"
    assert summary(rows, 1)["completed"] == 1


def test_thousands_of_jobs_against_plain_averages():
    chance = random.Random(7)
    rows = []
    for number in range(5000):
        submit = number * 3 + chance.random()
        start = submit + chance.expovariate(1 / 50)
        rows.append(row(submit, start, start + chance.expovariate(1 / 20), chance.randint(1, 8)))
    found = summary(rows, 128)
    assert found["average_wait"] == pytest.approx(
        sum(job.start - job.submit for job in rows) / len(rows))
    assert found["average_bounded_slowdown"] == pytest.approx(sum(
        max(1, (job.end - job.submit) / max(10, job.end - job.start)) for job in rows) / len(rows))
    assert found["utilisation"] == pytest.approx(
        sum((job.end - job.start) * job.processors for job in rows)
        / 128 / (max(job.end for job in rows) - rows[0].submit))
