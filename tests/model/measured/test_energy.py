"""Predictions of power, time and energy, against figures made by hand and the published ones."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.energy_facts import CLASSES, programs
from vrm.model.measured.energy import (BALANCED, ENERGY, HIGHEST, RUNTIME, Coefficients, MeasuredProgram, PowerClass,
                              Prediction, Programs, chosen, distance, predicted)

HALF = PowerClass("half", idle=10, frequencies=(1.0, 2.0), coefficients={
    (2.0, 1.0): Coefficients(0.5, 2.0, 5.0, 0.75, 0.25, 0.125),
    (2.0, 2.0): Coefficients(1, 0, 0, 1, 0, 0)})


def test_a_prediction_made_by_hand() -> None:
    found = predicted(MeasuredProgram(100, 200, cpi=2.0, tpi=4.0), 2.0, 1.0, HALF.coefficients[2.0, 1.0])
    # 0.5 x 200 + 2 x 4 + 5 W; 0.75 x 2 + 0.25 x 4 + 0.125 cycles; 100 s x 2.625 / 2 x 2 / 1
    assert found == Prediction(1.0, 113.0, 262.5, 2.625)
    assert found.joules == 29662.5


def test_the_frequency_of_a_measurement_is_where_it_begins() -> None:
    up = PowerClass("up", frequencies=(1.0, 2.0), coefficients={
        (1.0, 2.0): Coefficients(2, 0, 0, 1, 0, 0), (1.0, 1.0): Coefficients(1, 0, 0, 1, 0, 0)})
    low, high = up.predictions(MeasuredProgram(100, 50, cpi=1, frequency=1.0))
    assert low == Prediction(1.0, 50, 100, 1) and high == Prediction(2.0, 100, 50, 1)
    # Nothing leads from the highest one, where it would be taken to be measured.
    assert up.predictions(MeasuredProgram(100, 50, cpi=1)) == [Prediction(2.0, 50, 100, 1)]


def test_without_coefficients_or_cycles_there_is_the_measurement_alone() -> None:
    assert PowerClass("bare").predictions(MeasuredProgram(9, 7, 1, 1)) == [Prediction(0, 7, 9, 1)]
    assert HALF.predictions(MeasuredProgram(9, 7)) == [Prediction(2.0, 7, 9)]


TABLE = {  # published: frequencies at weight 1, joules, worse to best, at weight 1.5, with least energy
    "lu.C": ((2.4, 2.8), (18214, 19270), 1.078, (2.6, 2.8), (1.8, 2.1)),
    "ep.D": ((2.5, 3.0), (20387, 23462), 1.114, (2.7, 3.0), (2.2, 2.7)),
    "bt-mz.C": ((2.7, 3.1), (18309, 21099), 1.160, (2.7, 3.1), (2.1, 2.8)),
    "sp-mz.C": ((2.7, 3.1), (21198, 25507), 1.251, (2.7, 3.1), (1.8, 2.1)),
    "lu-mz.C": ((2.6, 3.0), (19580, 21023), 1.038, (2.7, 3.0), (2.2, 2.7)),
    "ua.C": ((2.4, 2.7), (15174, 16968), 1.136, (2.4, 3.0), (1.4, 2.3)),
    "DGEMM": ((2.7, 3.1), (23265, 26134), 1.117, (2.7, 3.1), (1.7, 2.0)),
    "STREAM": ((1.2, 1.2), (30184, 21914), 1.330, (1.2, 1.2), (1.2, 1.2))}


@pytest.mark.parametrize("app", TABLE)
def test_the_published_programs_to_the_digit(app: str) -> None:
    known = programs()
    offers = known.offers(app, CLASSES)
    scores = sorted(offer.score for offer in offers)
    assert (tuple(offer.prediction.frequency for offer in offers),
            tuple(round(offer.prediction.joules) for offer in offers),
            round(scores[1] / scores[0], 3),
            tuple(offer.prediction.frequency for offer in known.offers(app, CLASSES, weight=1.5)),
            tuple(offer.prediction.frequency for offer in known.offers(app, CLASSES, ENERGY))
            ) == TABLE[app]
    for weight in (1.0, 1.5):
        best = min(known.offers(app, CLASSES, weight=weight), key=lambda offer: offer.score)
        assert best.name == ("p2" if app == "STREAM" else "p1")


def test_run_times_on_other_classes() -> None:
    known = programs()
    assert known.time_coefficient("STREAM", "p2") == pytest.approx(81.437 / 107.548, rel=1e-4)
    assert known.time_coefficient("STREAM", "p1") == 1.0
    assert known.time_coefficient("STREAM", "p9") is None and known.time_coefficient("x", "p1") is None
    # At the highest frequency the pace is that coefficient, below it more.
    assert known.pace("lu.C", CLASSES["p2"], 0) == known.time_coefficient("lu.C", "p2")
    assert known.pace("lu.C", CLASSES["p1"], 1.2) > known.pace("lu.C", CLASSES["p1"], 2.7) == 1.0
    assert known.pace("unknown", CLASSES["p1"], 0) == 1.0


def test_programs_are_known_by_their_kind_too() -> None:
    known = Programs({"ft": {"p1": MeasuredProgram(10, 100)}, "ft.C.x": {"p1": MeasuredProgram(99, 100)}})
    assert known.of("ft.B.x")["p1"].seconds == 10 and known.of("ft.C.x")["p1"].seconds == 99
    assert not known.of("cg.B.x") and known.offers("cg.B.x", CLASSES) == ()


POINTS = st.lists(st.tuples(st.floats(1, 1000), st.floats(1, 1000)), min_size=1, max_size=12).map(
    lambda found: [Prediction(0.1 * at, watts, seconds) for at, (watts, seconds) in enumerate(found, 1)])


@given(POINTS, st.floats(0.1, 5), st.floats(0.1, 5))
def test_what_a_frequency_is_chosen_for(points: list[Prediction], one: float, other: float) -> None:
    least, most = sorted((one, other))
    assert chosen(points, RUNTIME).seconds == min(each.seconds for each in points)
    assert chosen(points, ENERGY).joules == min(each.joules for each in points)
    assert chosen(points, HIGHEST) is points[-1]
    # The definition, in plain loops; and the more time counts, the shorter it is.
    joules, seconds = (min(each.joules for each in points), min(each.seconds for each in points))
    best = math.inf
    for each in points:
        best = min(best, math.sqrt((each.joules / joules) ** 2 + least * (each.seconds / seconds) ** 2))
    picked = chosen(points, BALANCED, least)
    assert distance(picked.joules / joules, picked.seconds / seconds, least) == pytest.approx(best)
    assert chosen(points, BALANCED, most).seconds <= picked.seconds * (1 + 1e-9)
