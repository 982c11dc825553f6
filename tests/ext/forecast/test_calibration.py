"""Ranges that hold what they promise."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings, strategies as st

from vrm.ext.forecast.calibration import MISSES, NEEDED, WINDOW, Calibration, RangeCalibration, RangeSide


def test_a_side_is_moved_by_what_all_but_a_tenth_would_have_needed() -> None:
    side = RangeSide()
    for number in range(100):
        side.learn(number / 100, math.nan)
    assert side.by == pytest.approx(0.91)  # the 92nd of 100: ceil(101 * 0.91)
    for _ in range(WINDOW):
        side.learn(-0.5, math.nan)
    assert side.by == -0.5  # the old ones are forgotten, and what is too wide becomes narrower


def test_misses_raise_the_quantile_and_hits_lower_it() -> None:
    sides = [RangeSide(), RangeSide(), RangeSide()]
    for number in range(WINDOW):
        for side, missed in zip(sides, (math.nan, 0.0, 1.0)):
            side.learn(number / WINDOW, missed)
    middle, low, high = (side.by for side in sides)
    assert low < middle < high


def test_ranges_are_as_drawn_until_enough_have_come_true() -> None:
    ranges = RangeCalibration()
    for _ in range(NEEDED - 1):
        ranges.learn(100.0, 200.0, 250.0, [])
    assert not ranges.ready and ranges.widened(0, 100.0, 150.0, 200.0) == [100.0, 150.0, 200.0]
    ranges.learn(100.0, 200.0, 250.0, [])
    assert ranges.ready
    assert ranges.widened(0, 100.0, 150.0, 200.0) == [150.0, 150.0, 250.0]


def test_what_has_no_end_is_left_as_it_is_and_teaches_nothing() -> None:
    ranges = RangeCalibration()
    for _ in range(NEEDED):
        ranges.learn(100.0, math.inf, 250.0, [])
        ranges.learn(math.inf, math.inf, 250.0, [])
    assert not ranges.ready
    for _ in range(NEEDED):
        ranges.learn(100.0, 200.0, 210.0, [])
    assert ranges.widened(0, 100.0, 150.0, math.inf) == [100.0, 150.0, math.inf]
    assert ranges.widened(0, math.inf, math.inf, math.inf) == [math.inf] * 3


times = st.floats(0, 1e9)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(times, times, times, times), min_size=NEEDED, max_size=60), times,
       st.lists(times, min_size=3, max_size=3))
def test_a_range_is_in_order_and_not_in_the_past(
        past: list[tuple[float, float, float, float]], now: float, range_: list[float]) -> None:
    ranges = RangeCalibration()
    for low, high, truth, shown in past:
        ranges.learn(min(low, high), max(low, high), truth, [shown, shown + 1])
    p10, p50, p90 = sorted(range_)
    low, middle, high = ranges.widened(now, now + p10, now + p50, now + p90)
    assert now <= low <= middle <= high and middle == now + p50


@pytest.mark.parametrize("spread", [0.2, 1.0, 3.0])
def test_four_of_five_lie_in_the_range_however_wrong_the_draws(spread: float) -> None:
    """The truth lies about the middle with `spread` times the width that is drawn, at first."""
    generator = random.Random(17)
    ranges = RangeCalibration()
    inside = early = late = count = 0
    for number in range(3000):
        width = generator.uniform(100, 1000)
        truth = 10_000 + width * spread * (2 if number > 1500 else 1) * generator.gauss(0, 0.4)
        low, _, high = ranges.widened(0, 10_000 - width / 2, 10_000, 10_000 + width / 2)
        if ranges.ready:
            count += 1
            early += truth < low
            late += truth > high
            inside += low <= truth <= high
        ranges.learn(10_000 - width / 2, 10_000 + width / 2, truth, [low, high] if ranges.ready else [])
    assert 0.78 < inside / count < 0.84
    for misses in (early, late):
        assert abs(misses / count - MISSES) < 0.02


def test_starts_and_ends_are_apart() -> None:
    calibration = Calibration()
    for _ in range(NEEDED):
        calibration.ends.learn(1.0, 2.0, 3.0, [])
    assert not calibration.ready and calibration.ends.ready
