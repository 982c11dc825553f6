"""Rows and columns come out the same whoever draws them, and as JSON what a program can read."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, strategies as st
from prettytable import PrettyTable

from vrm.system.printing.output import aligned, boxed, comma_separated, show

CELLS = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=8)


@given(st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=5))
def test_plain_cells_look_as_prettytable_draws_them(rows: list[tuple[str, str]]) -> None:
    table = PrettyTable(["Id", "Name"], align="l")
    table.add_rows(rows)
    assert boxed(["Id", "Name"], rows) == table.get_string()


def test_columns_may_be_at_the_right_share_a_head_and_end_in_a_sum() -> None:
    assert boxed(["x", "n", "n"], [["a", 1, 2], ["all", 10, 20]], left=(0,), line_above_last=True).split("\n") == [
        "+-----+----+----+", "| x   |  n | n  |", "+-----+----+----+", "| a   |  1 |  2 |", "+-----+----+----+",
        "| all | 10 | 20 |", "+-----+----+----+"]


def test_rows_without_lines_have_no_blanks_behind() -> None:
    assert aligned([["a", "10", ""], ["bc", "9", "x"]], right=(1,)) == "a   10\nbc   9  x"


def test_csv_has_comments_above_and_quotes_commas() -> None:
    assert comma_separated([["a", "b"], [1, "x,y"]], ["one"]) == '# one\na,b\n1,"x,y"\n'


@pytest.mark.parametrize("as_json", [True, False])
def test_one_of_both_forms_is_made_and_printed(as_json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    def unwanted() -> str:
        raise AssertionError
    show(as_json, unwanted if not as_json else lambda: {"a": 1}, unwanted if as_json else lambda: "text")
    out = capsys.readouterr().out
    assert json.loads(out) == {"a": 1} if as_json else out == "text\n"
