"""How long jobs take in a draw: against the definition in plain words."""

from __future__ import annotations

import dataclasses

import pytest

from vrm.ext.forecast.draws import ENOUGH, LAST, OVERDUE, WIDER, History, draws_of, likely, members
from vrm.ext.forecast.frozen import FrozenRun, of_jobs
from vrm.model import Cluster, Job
from vrm.model.job import Program
from vrm.model.rules import Rules
from vrm.run.expectations import make_expectations
from vrm.scheduling import Scheduler, make_backfilling, make_ordering, make_policy

NUMBER = 400


def job_of(number: int, app: str = "a.x", procs: int = 1, walltime: float = 100.0, user: str = "",
           arguments: str = "") -> Job:
    return Job(number, app, procs, walltime, user=user, payload=Program(tuple(arguments.split())))


def frozen_of(jobs: list[Job], past: History, algorithm: str = "FCFS", estimates: str = "requested") -> FrozenRun:
    cluster = Cluster.regular(4, 2, 2)
    scheduler = Scheduler(make_ordering(algorithm), make_backfilling("easy"),
                          make_policy("compact", cluster, None))
    return of_jobs(jobs, scheduler, cluster, make_expectations(Rules(estimates=estimates)), past=past)


def history_of(*ended: tuple[Job, float]) -> History:
    past = History()
    for job, run in ended:
        past.add(job, run)
    return past


def drawn(frozen: FrozenRun, job: Job, ran: float = 0.0) -> list[float]:
    return [durations(job, ran) for durations in members(frozen, NUMBER)]


def test_the_first_group_in_which_enough_have_ended_counts() -> None:
    def ratios(past: History, job: Job) -> list[float]:
        return sorted(set(past.ratios(job)[0].round(6)))

    this = job_of(0, arguments="-n 1")
    wider = [(job_of(1, arguments="-n 2"), 20.0)] * ENOUGH
    widest = [(job_of(1, procs=2), 30.0)] * ENOUGH
    others = [(job_of(1, app="b.x"), 40.0)] * ENOUGH
    assert ratios(history_of(), this) == [1.0]  # nothing is known
    assert ratios(history_of((this, 10.0)), this) == [0.1]  # all, however few
    assert ratios(history_of(*others, *[(this, 10.0)] * (ENOUGH - 1)), this) == [0.1, 0.4]
    assert ratios(history_of(*others, *widest), this) == [0.3]
    assert ratios(history_of(*others, *widest, *wider), this) == [0.2]
    assert ratios(history_of(*others, *widest, *wider, *[(this, 10.0)] * ENOUGH), this) == [0.1]
    assert ratios(history_of(*[(this, 90.0)] * LAST, *[(this, 10.0)] * LAST), this) == [0.1]


def test_where_users_are_named_theirs_count() -> None:
    past = history_of(*[(job_of(1, user="eve"), 10.0)] * ENOUGH,
                      *[(job_of(1, user="eve", walltime=50.0), 20.0)] * ENOUGH,
                      *[(job_of(1, user="bob"), 90.0)] * LAST)
    assert set(past.ratios(job_of(2, user="eve"))[0]) == {0.1}
    assert set(past.ratios(job_of(2, user="eve", walltime=60.0))[0]) == {0.1, 0.4}
    assert set(past.ratios(job_of(2, user="ann"))[0]) == {0.9}


def test_what_a_user_has_long_not_asked_for_counts_no_more() -> None:
    this, other = job_of(1, user="eve"), job_of(2, user="eve", walltime=50.0)
    before = [(this, 10.0)] * ENOUGH
    assert set(history_of(*before, *[(other, 45.0)] * (LAST - 1)).ratios(this)[0]) == {0.1}
    assert set(history_of(*before, *[(other, 45.0)] * LAST).ratios(this)[0]) == {0.9}
    # The same program with the same arguments is the same, however long ago it ran.
    own, wider = job_of(1, arguments="-n 1"), job_of(1, arguments="-n 2")
    assert set(history_of(*[(own, 10.0)] * ENOUGH, *[(wider, 90.0)] * 99).ratios(own)[0]) == {0.1}


def test_draws_are_the_ratios_of_the_group_and_now_and_then_of_wider_ones() -> None:
    this = job_of(0)
    past = history_of(*[(job_of(1, app="b.x"), 90.0)] * LAST,
                      *[(this, 10.0 + number) for number in range(10)])
    found = drawn(frozen_of([this], past), this)
    own = [seconds for seconds in found if seconds < 20]
    assert sorted({round(seconds) for seconds in own}) == list(range(10, 20))
    # a.x on one rank is the narrowest group and the two next; the fourth are all.
    assert len(own) / NUMBER == pytest.approx(1 - WIDER / 4 / 2, abs=0.05)
    assert all(sum(round(seconds) == each for seconds in own) > NUMBER / 40 for each in range(10, 20))


def test_a_draw_is_of_the_moment_the_member_and_the_job_whatever_the_policy() -> None:
    jobs = [job_of(number, app=f"{number % 3}.x") for number in range(6)]
    past = history_of(*[(job_of(1, app=f"{number % 3}.x"), 1.0 + number) for number in range(90)])
    one, other = frozen_of(jobs, past), frozen_of(jobs[::-1], past, "LJF")
    assert [drawn(one, job) for job in jobs] == [drawn(other, job) for job in jobs]
    assert drawn(one, jobs[0]) != drawn(dataclasses.replace(one, position=1), jobs[0])
    # One or two draws are the first ones of many.
    assert [each(jobs[4], 0.0) for each in members(one, 2)] == drawn(one, jobs[4])[:2]


def test_half_of_the_draws_share_a_percentile_per_program() -> None:
    same, other = [job_of(number) for number in (0, 1)], job_of(2, app="b.x")
    past = history_of(*[(job_of(1, app=app), float(number)) for app in ("a.x", "b.x")
                        for number in range(1, 100)])
    frozen = frozen_of([*same, other], past)
    first, second, third = (drawn(frozen, job) for job in (*same, other))
    assert first[::2] == second[::2]
    assert sum(a == b for a, b in zip(first[1::2], second[1::2])) < NUMBER / 2 / 5
    assert sum(a == b for a, b in zip(first[::2], third[::2])) < NUMBER / 2 / 5


def test_a_burst_with_a_request_far_beyond_all_before_is_one_unknown() -> None:
    """A user's jobs took the ten minutes that they asked for; then 20 ask for a day each."""
    before = [(job_of(number, walltime=600.0, user="u"), 580.0 + number) for number in range(LAST)]
    burst = [job_of(100 + number, walltime=86400.0, user="u") for number in range(20)]
    frozen = frozen_of(burst, history_of(*before))
    rows = [drawn(frozen, job) for job in burst]
    short = [member for member in range(NUMBER) if rows[0][member] < 600]
    assert 0.65 * NUMBER < len(short) < 0.85 * NUMBER  # the others take the day that the ratios say
    assert all(row[member] == rows[0][member] for row in rows for member in short)
    assert len({rows[0][member] for member in short}) > LAST / 2
    assert min(drawn(frozen, burst[0], 590.0)) >= 590.0 + OVERDUE
    near = job_of(200, walltime=1200.0, user="u")  # not so far beyond: by the ratios
    assert min(drawn(frozen_of([near], history_of(*before)), near)) > 1100.0
    known = history_of(*before, *[(job_of(1, walltime=86400.0, user="u"), 43200.0)] * ENOUGH)
    assert min(drawn(frozen_of(burst, known), burst[0])) > 40000.0


def test_a_running_job_takes_longer_than_it_has() -> None:
    this = job_of(0)
    past = history_of(*[(this, seconds) for seconds in (10.0, 20.0, 30.0, 40.0) * 5])
    frozen = frozen_of([this], past)
    assert set(drawn(frozen, this, 20.0)) == {30.0, 40.0}
    assert set(drawn(frozen, this, 50.0)) == {100.0}  # none took so long: its limit
    assert set(drawn(frozen, this, 150.0)) == {150.0 + OVERDUE}


def test_jobs_outrun_their_walltimes_only_where_they_may() -> None:
    this = job_of(0)
    past = history_of(*[(this, 130.0)] * LAST)
    frozen = frozen_of([this], past)
    assert set(drawn(frozen, this)) == {130.0}
    assert set(drawn(dataclasses.replace(frozen, kill=True), this)) == {100.0}
    assert likely(frozen)(this, 0.0) == 130.0
    assert likely(dataclasses.replace(frozen, kill=True))(this, 0.0) == 100.0


def test_another_limit_makes_no_job_faster() -> None:
    this = job_of(0)
    frozen = frozen_of([this], history_of(*[(this, 50.0)] * LAST))
    draws = draws_of(frozen, 1).of(0)
    assert draws(this.but(walltime=60.0), 0.0) == 50.0
    asked_first = draws_of(dataclasses.replace(frozen, kill=True), 1).of(0)
    assert asked_first(this.but(walltime=40.0), 0.0) == 40.0
    assert asked_first(this, 0.0) == 50.0


def test_what_is_likely() -> None:
    this = job_of(0)
    past = history_of(*[(this, 10.0 * number) for number in range(1, 10)])
    seconds = likely(frozen_of([this], past))
    assert seconds(this, 0.0) == 50.0 and seconds(this, 45.0) == 70.0
    assert seconds(this, 95.0) == 100.0 and seconds(this, 105.0) == 105.0 + OVERDUE
    # With an estimator, what that expects.
    frozen = frozen_of([this], past, estimates="last-two")
    assert frozen.run.expectations is not None
    expected = this.but(expected=33.0)
    assert likely(frozen)(expected, 0.0) == 33.0 and likely(frozen)(expected, 40.0) == 100.0
