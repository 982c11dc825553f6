"""Quantiles of plain values are those of numpy, and of infinite values what a limit would give."""

from __future__ import annotations

import math

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vrm.model.measured.quantile import quantile

SHARE = st.floats(0, 1) | st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.9, 0.95, 1.0])


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=60), SHARE)
def test_it_is_that_of_numpy(values: list[float], share: float) -> None:
    ordered = sorted(values)
    found = quantile(ordered, share)
    assert found == pytest.approx(float(numpy.quantile(values, share)), rel=1e-12, abs=1e-6)
    assert ordered[0] <= found <= ordered[-1] or found == pytest.approx(ordered[-1])


@given(st.floats(0, 1e9), st.integers(1, 60), SHARE)
def test_of_equal_values_it_is_exactly_that_value(value: float, count: int, share: float) -> None:
    assert quantile([value] * count, share) == value


@given(st.lists(st.floats(0, 1e9) | st.just(math.inf), min_size=1, max_size=60), SHARE)
def test_it_is_infinite_where_the_value_above_is(values: list[float], share: float) -> None:
    ordered = sorted(values)
    above = ordered[math.ceil(share * (len(ordered) - 1))]
    assert (quantile(ordered, share) == math.inf) == (above == math.inf)
