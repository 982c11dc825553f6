"""The fields `ranks` and `speedup`, and Downey's model."""

from __future__ import annotations

import random

import pytest

from vrm.ext.learning.widths import MOST, Downey, ranks, speedup, text_of, widths_of
from vrm.model.forms.field_types import FieldError


@pytest.mark.parametrize("text, widths, written", [
    ("2..4", (2, 3, 4), "2..4"), ("2..16,powers", (2, 4, 8, 16), "2..16,powers"), ("3..33,powers", (4, 8, 16, 32), "4..32,powers"),
    ("1..30,squares", (1, 4, 9, 16, 25), "1..25,squares"), ("{4,9,16}", (4, 9, 16), "4..16,squares"),
    ("16,2,4,4", (2, 4, 16), "2,4,16"), ("8", (8,), "8"), ("4..4", (4,), "4"), ("1,1000000", (1, 1000000), "1,1000000")])
def test_choices(text: str, widths: tuple[int, ...], written: str) -> None:
    assert widths_of(text) == widths and text_of(widths) == written and widths_of(written) == widths


def test_what_is_written_is_read_again() -> None:
    chance = random.Random(2)
    for _ in range(300):
        widths = tuple(sorted(chance.sample(range(1, chance.choice([12, 40, 3000])), chance.randint(1, 8))))
        assert widths_of(text_of(widths)) == widths


@pytest.mark.parametrize("text, why", [
    ("16..2", "`'16..2'` has its larger end first; write 2..16"), ("", "not a choice"), ("2-16", "not a choice"),
    ("2..16,cubes", "not a choice"), ("{}", "not a choice"), ("0..4", "does not name 1 to"), ("5..7,powers", "names no number"),
    ("1..99999", f"more than {MOST}"), ("99999999", "from 1 to"), ("1..1e3", "not a choice"), ("-4..4", "not a choice")])
def test_wrong_choices(text: str, why: str) -> None:
    with pytest.raises(FieldError) as error:
        widths_of(text)
    assert why.replace("`'", "`").replace("'`", "`") in error.value.said(str)


def test_the_fields_keep_their_values_in_all_forms() -> None:
    for field, text, value in ((ranks(), "2..16,powers", (2, 4, 8, 16)), (speedup(), "12:0.5", (12.0, 0.5)),
                               (speedup(), "3", (3.0, 0.0))):
        kind = field.kind
        assert kind.read(text) == value
        assert kind.sound(kind.to_record(value)) and kind.of_record(kind.to_record(value)) == value
        assert kind.of_plain(kind.plain(value)) == value and kind.read(*kind.write(value)) == value
        assert not kind.sound("x") and not kind.sound(3)
    for wrong in ("0.5", "4:-1", "a", "4:1:1", "nan", "inf", ""):
        with pytest.raises(FieldError, match="average parallelism"):
            speedup().kind.read(wrong)


@pytest.mark.parametrize("average, variation", [(1, 0), (1, 2), (8, 0), (8, 0.5), (8, 1), (8, 1.0001), (8, 3), (50, 0.2)])
def test_downeys_speed_up(average: float, variation: float) -> None:
    curve = Downey(average, variation)
    values = [curve.speedup(n) for n in range(1, 400)]
    assert values[0] == pytest.approx(1) and values[-1] == pytest.approx(average, rel=0.02 if variation < 2 else 0.3)
    for n, (value, following) in enumerate(zip(values, values[1:]), 1):
        assert value <= min(n, average) * (1 + 1e-12) and -1e-12 <= following - value <= 1 + 1e-12
    assert curve.time(4) == pytest.approx(1 / values[3])


def test_both_of_downeys_formulas_agree_where_they_meet() -> None:
    for n in (1, 2, 5, 8, 12, 15, 40):
        assert Downey(8, 1).speedup(n) == pytest.approx(Downey(8, 1 + 1e-9).speedup(n), abs=1e-6)
