"""The choice of mates: against all sets, and by its definitions."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings, strategies as st

from vrm.ext.lending.mates import (CarryLimits, Mate, MateLimits, longest_bearable, longest_carried, choose, outlasts, pays, penalty,
                                  stretched)


def by_brute_force(mates: list[Mate], nodes: int, most: int) -> tuple[int, ...] | None:
    """Of all sets of at most `most` with just so many nodes, the one with the least sum."""
    sets = [each for number in range(1, most + 1) for each in itertools.combinations(mates, number)
            if sum(mate.nodes for mate in each) == nodes]
    if not sets:
        return None
    best = min(sets, key=lambda each: (math.fsum(mate.penalty for mate in each), len(each),
                                       sorted(mate.id for mate in each)))
    return tuple(sorted(mate.id for mate in best))


@st.composite
def some_mates(draw: st.DrawFn) -> list[Mate]:
    """Mates with few sizes and few penalties, so that sums are met and are equal."""
    found = draw(st.lists(st.tuples(st.sampled_from([1.0, 1.5, 2.0, 2.5, 7.0]) | st.floats(1, 20),
                                    st.integers(1, 6)), max_size=9))
    ids = draw(st.permutations(range(len(found))))
    return [Mate(value, job_id, nodes) for (value, nodes), job_id in zip(found, ids)]


@given(some_mates(), st.integers(1, 14), st.integers(1, 4))
@settings(max_examples=600)
def test_the_set_with_the_least_sum_of_penalties_is_chosen(mates: list[Mate], nodes: int,
                                                           most: int) -> None:
    assert choose(mates, nodes, most) == by_brute_force(mates, nodes, most)


LENDERS = st.lists(st.tuples(st.integers(1, 6), st.integers(0, 60), st.integers(1, 300), st.integers(1, 200)),
                   max_size=8)
"""Nodes, submission, expected end and what was requested of jobs that run at 50 s."""


@given(LENDERS, LENDERS, st.integers(1, 14), st.integers(1, 150), st.integers(1, 4),
       st.sampled_from([2.0, 10.0, math.inf]), st.sampled_from([0.25, 0.5, 0.75]), st.booleans())
@settings(max_examples=300)
def test_nobody_who_finds_mates_is_out_of_reach(first: list, later: list, nodes: int, expected: int, most: int,
                                                limit: float, share: float, gone: bool) -> None:
    """Also where some came later, and the first have gone; and where all are there, only those in reach
    find some."""
    reach, left = MateLimits(most), []

    def longest(each: tuple[int, int, int, int]) -> float:
        _, submit, end, requested = each
        return longest_carried(end - 50, longest_bearable(submit, end, requested, limit), share)

    for each in [*first, *later]:
        reach.add(each[0], longest(each))
    for number, (size, submit, end, requested) in enumerate([*([] if gone else first), *later]):
        value = penalty(submit, end, requested, expected)
        if outlasts(end - 50, expected, share) and value < limit:
            left.append(Mate(value, number, size))
    found = choose(left, nodes, most)
    if found is not None:
        assert expected <= reach.of(nodes)
    elif not gone:
        assert expected >= reach.of(nodes) * (1 - 1e-6)


@given(st.dictionaries(st.integers(1, 6), st.lists(st.integers(1, 9), min_size=1, max_size=4), max_size=5),
       st.integers(1, 4))
@settings(max_examples=200)
def test_carriers_are_the_best_of_all_sets(able: dict[int, list[int]], most: int) -> None:
    looked_at: list[int] = []
    reach = MateLimits(most)
    found = CarryLimits({size: dict(enumerate(here)) for size, here in able.items()},
                        lambda each: looked_at.append(each) or float(each), reach, most)
    all_of = [(size, each) for size, here in able.items() for each in here]
    for nodes in range(1, 15):
        sets = [each for number in range(1, most + 1) for each in itertools.combinations(all_of, number)
                if sum(size for size, _ in each) == nodes]
        assert found[nodes] == max((min(each for _, each in some) for some in sets), default=-math.inf) == reach.of(nodes)
    assert len(looked_at) <= len(all_of), "once each"


def test_of_equal_sums_fewer_mates_and_then_the_lower_ids() -> None:
    assert choose([Mate(2.0, 1, 2), Mate(1.0, 2, 1), Mate(1.0, 3, 1)], 2) == (1,)
    assert choose([Mate(1.0, 7, 1), Mate(1.0, 5, 1), Mate(1.0, 6, 1)], 2) == (5, 6)
    assert choose([Mate(1.0, 1, 1)] * 0, 1) is None


def test_the_nodes_of_the_mates_sum_up_to_those_of_the_job_and_no_more() -> None:
    assert choose([Mate(1.0, 1, 3), Mate(9.0, 2, 2)], 2) == (2,)
    assert choose([Mate(1.0, 1, 3), Mate(9.0, 2, 4)], 5) is None
    assert choose([Mate(1.0, 1, 1), Mate(1.0, 2, 1), Mate(1.0, 3, 1)], 3) is None, "two at most"
    assert choose([Mate(1.0, 1, 1), Mate(1.0, 2, 1), Mate(1.0, 3, 1)], 3, 3) == (1, 2, 3)


@given(st.floats(0.05, 0.95), st.floats(1, 1e6), st.floats(0, 1e6))
def test_what_a_mate_loses_is_the_expected_time_of_the_job(share: float, expected: float,
                                                           left: float) -> None:
    """The identity behind `penalty`: while the job runs on its share, the mate runs at 1 - share."""
    during = stretched(expected, share)
    done = during * (1 - share)
    assert during - done == pytest.approx(expected)
    if outlasts(left, expected, share):
        assert left >= done * (1 - 1e-9)
    else:
        assert left <= done * (1 + 1e-9)


def test_at_half_the_cores_it_pays_where_the_wait_is_longer_than_the_job() -> None:
    assert pays(static_start=201.0, expected=100.0, now=100.0, share=0.5)
    assert not pays(static_start=200.0, expected=100.0, now=100.0, share=0.5)
    assert pays(static_start=134.0, expected=100.0, now=100.0, share=0.75)
    assert not pays(static_start=133.0, expected=100.0, now=100.0, share=0.75)


def test_the_penalty_is_the_slowdown_of_the_mate_by_its_request() -> None:
    # It waited 50 s, asked for 200 s, has lent before (its end is 100 s later) and will lose 30 s.
    assert penalty(submit=0.0, expected_end=50.0 + 200.0 + 100.0, requested=200.0,
                   expected=30.0) == pytest.approx((50 + 300 + 30) / 200)
