"""Scaling curves: what is learned of programs whose curves are known, with intervals that hold."""

from __future__ import annotations

import random
from statistics import fmean

import pytest

from vrm.ext.learning.curves import Curves, LikelyShape, ScalingCurve, input_key
from vrm.ext.learning.widths import SPEEDUP, Downey
from vrm.model.job import Job, Program


def amdahl(ranks: int) -> float:
    return 0.05 + 0.95 / ranks


@pytest.mark.parametrize("a, b, c", [(0, 100, 0), (10, 90, 0), (50, 0, 0), (5, 100, 1.0), (0, 40, 2.0), (1, 1000, 0.01)])
def test_a_curve_is_found_again(a: float, b: float, c: float) -> None:
    curve = ScalingCurve()
    for n in (1, 2, 4, 8, 16, 32):
        curve.add(n, a + b / n + c * n)
    for n in (1, 3, 12, 24):
        assert curve.expected(n, amdahl).seconds == pytest.approx(a + b / n + c * n, rel=0.02)


def test_a_curve_that_goes_up_again() -> None:
    curve = ScalingCurve({n: (100 / n + 2 * n,) for n in (1, 2, 4, 16)})
    times = {n: curve.expected(n, amdahl).seconds for n in range(1, 17)}
    assert min(times, key=times.__getitem__) == 7


def test_one_measurement_scales_the_shape() -> None:
    curve = ScalingCurve({4: (50.0,)})
    assert curve.expected(4, amdahl).seconds == pytest.approx(50) and curve.expected(8, amdahl).seconds == pytest.approx(50 * amdahl(8) / amdahl(4))


def test_noise_and_intervals() -> None:
    chance, inside, errors = random.Random(7), 0, []
    for _ in range(200):
        serial = chance.uniform(0, 0.3)
        curve = ScalingCurve()
        for n in (2, 2, 2, 4, 4, 8, 8, 8):
            curve.add(n, 100 * (serial + (1 - serial) / n) * chance.lognormvariate(0, 0.05))
        for n in (2, 4, 16):
            true = 100 * (serial + (1 - serial) / n)
            found = curve.expected(n, amdahl)
            inside += found.low <= true <= found.high
            errors.append(abs(found.seconds / true - 1))
    assert fmean(errors) < 0.06 and inside >= 0.8 * 600


def job(app: str = "a.x", arguments: tuple[str, ...] = (), **more: object) -> Job:
    return Job(1, app, 4, 100.0, payload=Program(arguments, directory=str(more.pop("directory", ""))), more=more)


def test_programs_and_inputs_are_apart() -> None:
    curves = Curves()
    curves.learn(("", "a.x", 1), "-n 3", 4, 50.0)
    assert curves.expected(job(arguments=("-n", "3")), 4).seconds == pytest.approx(50)
    assert curves.expected(job(arguments=("-n", "4")), 4).seconds == 100 and curves.expected(job("b.x"), 4).seconds == 100
    assert curves.sure(job(arguments=("-n", "3")), 4) and not curves.sure(job(), 4)


def test_another_input_lends_its_shape() -> None:
    curves = Curves()
    for n in (2, 4, 8):
        curves.learn(("", "a.x", 1), "small", n, 7.0)  # it does not scale at all
    assert curves.expected(job(arguments=("large",)), 8).seconds == pytest.approx(100, rel=0.01)
    assert curves.expected(job("b.x"), 8).seconds < 70


def test_a_given_speed_up_is_the_shape_of_what_nobody_has_seen() -> None:
    found = Curves().expected(job(**{SPEEDUP: (8.0, 0.0)}), 8)
    assert found.seconds == pytest.approx(100 * Downey(8, 0).time(8) / Downey(8, 0).time(4))


def test_a_copy_learns_alone() -> None:
    one = Curves()
    one.learn(("", "a.x", 1), "", 4, 50.0)
    two = one.copy()
    two.learn(("", "a.x", 1), "", 4, 10.0)
    assert one.expected(job(), 4).seconds == pytest.approx(50)
    assert two.expected(job(), 4).seconds == pytest.approx(500 ** 0.5)


def test_what_was_measured_makes_a_shape_likelier() -> None:
    true = Downey(11.0, 0.0)
    points = {n: (100 * true.time(n),) * 4 for n in (2, 4, 8)}
    for noise, off in ((0.01, 0.1), (3.0, 0.6)):
        shape = LikelyShape(4, points, noise)
        assert shape(16) == pytest.approx(100 * true.time(16), rel=off)
    assert LikelyShape(4, points, 3.0)(16) > 1.2 * LikelyShape(4, points, 0.01)(16)


def test_times_that_scatter_say_little_of_the_shape() -> None:
    curves, chance = Curves(), random.Random(3)
    for _ in range(40):
        for n in (4, 8):
            curves.learn(("", "a.x", 1), "", n, 100 * chance.lognormvariate(0, 1.5))
    ratio = curves.expected(job(), 8).seconds / curves.expected(job(), 4).seconds
    assert curves.scatter() > 1 and 0.6 < ratio < 0.85 and not curves.sure(job(), 8)


def test_an_unknown_program_takes_the_part_of_its_limit_that_others_took() -> None:
    curves = Curves()
    curves.ended(job("b.x"), 20.0)
    assert curves.expected(job("c.x"), 4).seconds == pytest.approx(20.0)


def test_the_key_of_an_input() -> None:
    assert input_key(job(arguments=("-n", "a b"), directory="x")) == "-n 'a b'" and input_key(job(directory="x")) == "x"


def test_a_job_that_took_no_time_says_nothing() -> None:
    """A manager that comes to its end within one turn sees none (seed 795835147364 of the world)."""
    curves, job = Curves(), Job(1, "a.x", 2, 100.0, 0.0)
    before = curves.expected(job, 2).seconds
    curves.ended(job, 0.0)
    assert curves.expected(job, 2).seconds == before > 0
