"""Estimators against plain versions of their definitions, and corrections against their steps."""

from __future__ import annotations

import random
from fractions import Fraction
from typing import Any

import pytest

from vrm.model.job import Job
from vrm.ext.estimates.estimators import MEMORY, QUANTILE
from vrm.scheduling.estimators import CORRECTIONS, ESTIMATORS, LEAST, STEPS, make_correction, make_estimator
from vrm.ext.planning.estimators import prefix
from vrm.scheduling.registry import PolicyError

Ended = list[tuple[Job, float]]


def some_jobs(seed: int, number: int) -> Ended:
    """Jobs of few users, programs, sizes and requests, with their run times."""
    draw = random.Random(seed)
    found = []
    for job_id in range(number):
        wall = float(draw.choice((60, 600, 3600, 3600, 36000)))
        job = Job(job_id, draw.choice(("ft.1", "ft.2", "cg", "mg_7", "12")),
                  draw.choice((1, 2, 16)), wall, user=draw.choice(("ann", "bob", "", "")),
                  queue=draw.choice(("", "long")))
        found.append((job, draw.choice((0.0, 0.4, wall, round(wall * draw.random(), 2)))))
    return found


def bounded(job: Job, seconds: float) -> float:
    return min(job.walltime, max(1.0, seconds))


def same_people(one: Job, other: Job) -> bool:
    if one.user or other.user:
        return one.user == other.user
    return (one.app, one.procs) == (other.app, other.procs)


def plain_last_two(job: Job, ended: Ended) -> float:
    runs = [run for other, run in ended if same_people(job, other)][-2:]
    return bounded(job, sum(runs) / 2) if len(runs) == 2 else job.walltime


def plain_accasim(job: Job, ended: Ended) -> float:
    """The six rules, as they are written."""
    def near(name: str) -> bool:
        return prefix(name) != "" and prefix(name) == prefix(job.app)

    mine = [(other, run) for other, run in reversed(ended) if other.user == job.user]
    profile = [(other, run) for other, run in mine
               if (other.queue, other.walltime) == (job.queue, job.walltime)]
    rules: Any = (
        [run for other, run in profile if other.app == job.app and other.request == job.request],
        [run for other, run in profile if near(other.app) and other.request == job.request],
        [run for other, run in profile if other.app == job.app],
        [run for other, run in profile if near(other.app)],
        [run for other, run in mine if other.app == job.app],
        [run for other, run in mine if near(other.app)])
    for found in rules:
        if found:
            return bounded(job, found[0])
    return job.walltime


def plain_history(job: Job, ended: Ended) -> float:
    """The ratios of the nearest kind of job, sorted, and the share of them by exact fractions."""
    def who(one: Job) -> tuple[str, ...]:
        return (one.user,) if one.user else ("", one.app, str(one.procs))

    for near in (lambda other: (who(other), other.walltime) == (who(job), job.walltime),
                 lambda other: who(other) == who(job),
                 lambda other: True):
        ratios = sorted([run / other.walltime for other, run in ended if near(other)][-MEMORY:])
        if ratios:
            place = Fraction(QUANTILE) * (len(ratios) - 1)
            low = int(place)
            high = min(low + 1, len(ratios) - 1)
            share = Fraction(ratios[low]) + (place - low) * (Fraction(ratios[high])
                                                             - Fraction(ratios[low]))
            return bounded(job, job.walltime * float(share))
    return job.walltime


@pytest.mark.parametrize("name, plain", [
    ("last-two", plain_last_two), ("accasim", plain_accasim), ("history", plain_history)])
@pytest.mark.parametrize("seed", range(4))
def test_what_is_expected_is_that_of_the_plain_definition(name: str, plain: Any, seed: int) -> None:
    estimator, ended = make_estimator(name), []
    differing = 0
    for job, run in some_jobs(seed, 400):
        expected = estimator.expected(job)
        assert expected == pytest.approx(plain(job, ended), rel=1e-12)
        assert min(job.walltime, LEAST) <= expected <= job.walltime
        differing += expected != job.walltime
        estimator.learn(job, run)
        ended.append((job, run))
    assert differing > 100


def test_a_copy_learns_for_itself() -> None:
    for name in ("last-two", "accasim", "history"):
        estimator = make_estimator(name)
        for job, run in some_jobs(1, 50):
            estimator.learn(job, run)
        twin, job = estimator.copy(), Job(99, "ft.1", 1, 3600.0, user="ann")
        before = estimator.expected(job)
        for _ in range(20):
            twin.learn(job, 3599.0)
        assert estimator.expected(job) == before != twin.expected(job)


def test_a_table_and_the_run_time_itself() -> None:
    job = Job(4, "ft", 2, 100.0)
    table = make_estimator("calibrated", {("ft", 2): 30.0, ("cg", 2): 700.0})
    assert [table.expected(each) for each in (
        job, Job(5, "cg", 2, 100.0), Job(6, "cg", 4, 100.0))] == [30.0, 100.0, 100.0]
    actual = make_estimator("Actual")
    actual.runs = {4: 42.0, 5: 500.0}
    assert [actual.expected(each) for each in (job, Job(5, "ft", 2, 100.0))] == [42.0, 100.0]


def test_what_cannot_be_is_refused_with_what_to_type() -> None:
    for text, live, said in (
            ("last-tow", False, "did you mean last-two?"),
            ("calibrated", False, "name it: Scheduling.Calibrated in the configuration"),
            ("actual", True, "only a simulation knows; use last-two"),
            ("./mine.py:guess", False, "mine:guess"),
            ("builtins:dict", False, "makes no estimator")):
        with pytest.raises(PolicyError, match=said):
            make_estimator(text, live=live)
    with pytest.raises(PolicyError, match="unknown correction `twice`; did you mean stepwise"):
        make_correction("twice")


def test_an_estimator_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    class Half:
        """Half of the request, then what was learnt."""

        def __init__(self) -> None:
            self.known = 0.5

        def expected(self, job: Job) -> float:
            return job.walltime * self.known

        def learn(self, job: Job, run: float) -> None:
            self.known = run / job.walltime

    monkeypatch.setattr("vrm.scheduling.orderings.queue.Half", Half, raising=False)
    own = make_estimator("vrm.scheduling.orderings.queue:Half")
    job = Job(1, "ft", 1, 100.0)
    assert own.expected(job) == 50.0
    own.learn(job, 700.0)
    assert own.expected(job) == 100.0
    own._own.expected = lambda job: "long"
    with pytest.raises(PolicyError, match="expects 'long' of job 1; an estimator gives seconds"):
        own.expected(job)


def test_names_without_the_numbers_at_their_ends() -> None:
    assert [prefix(name) for name in ("sim_001", "sim-2.7", "run", "ft.B.4", "7", "a1b2")] == [
        "sim", "sim", "run", "ft.B", "", "a1b"]


def test_corrections_in_turn() -> None:
    """From event to event each expects more, until it is the walltime."""
    for name, steps in (("request", [5000.0]),
                        ("doubling", [200.0, 400.0, 800.0, 1600.0, 3200.0, 5000.0]),
                        ("stepwise", [160.0, 400.0, 1000.0, 1900.0, 3700.0, 5000.0])):
        correct, ran, found = make_correction(name), 100.0, []
        while ran < 5000.0:
            ran = correct(100.0, ran, 5000.0)
            found.append(ran)
        assert found == steps
    assert make_correction("stepwise")(1.0, 1 + STEPS[-1], 1e9) == 1e9


@pytest.mark.parametrize("name", CORRECTIONS.names)
def test_a_correction_that_comes_late_is_the_same(name: str) -> None:
    """Nobody counts corrections: a manager that was away expects what one expects that was not."""
    correct, draw = make_correction(name), random.Random(name)
    for _ in range(500):
        first, walltime = draw.uniform(1, 3000), draw.uniform(3000, 1e6)
        late = draw.uniform(first, walltime * 1.1)
        expected = first
        while expected <= late and expected < walltime:
            before, expected = expected, correct(first, expected, walltime)
            assert before < expected <= walltime
        assert correct(first, late, walltime) == expected


def test_each_estimator_has_a_line_of_help() -> None:
    from vrm.model.rules import KEYS
    assert all(name in KEYS["estimates"].help for name in ESTIMATORS.names)
    assert all(name in KEYS["correction"].help for name in CORRECTIONS.names)
