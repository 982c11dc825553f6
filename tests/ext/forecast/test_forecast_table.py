"""Forecasts as text: exact tables, the column of the queue, the picture of `vrm top`."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from support.snapshots import JOBS, NODES, NOW, UNTIMED, queued, running, snapshot, utc
from vrm.ext.top import cells
from vrm.ext.forecast.report.forecast_table import changes, chosen, facts, table
from vrm.ext.top.gantt import gantt
from vrm.report.moments import brief, when
from vrm.report.tables import queue_json, queue_table
from vrm.ext.top.cells import ASCII, UNICODE, plain_text
from vrm.ext.top.top import render
from vrm.ext.top.top_view import View, press
from vrm.results import forecast
from support.forecast_jobs import job, made

assert utc  # the local time is that of UTC in these tests, too


def test_the_table() -> None:
    text = table(made(job(5, 900, 1500, 700, 5000, latest=NOW + 90000, reason="job 1 runs"),
                      job(1, -60, 300, running=True),
                      job(7, None, None, chance=0.25, reason="would not end before")), now=NOW)
    assert text.splitlines() == [
        "forecast of 13:40:04, 3 s ago, from 50 draws",
        "+----+------+-------+-------+-------+-------------+-------+-----------+----"
        "----+--------+----------------------+",
        "| Id | App  | Ranks | State | Start | Range       | End   | Latest    | Nod"
        "es  | Chance | Why                  |",
        "+----+------+-------+-------+-------+-------------+-------+-----------+----"
        "----+--------+----------------------+",
        "| 1  | ep.x | 4     | R     | 13:39 |             | 13:45 |           | n[0"
        "-1] |        |                      |",
        "| 5  | ep.x | 4     | Q     | 13:55 | 13:51-15:03 | 14:05 | Fri 14:40 | n[0"
        "-1] |        | job 1 runs           |",
        "| 7  | ep.x | 4     | Q     | later |             | -     | later     | n[0"
        "-1] | 25%    | would not end before |",
        "+----+------+-------+-------+-------+-------------+-------+-----------+----"
        "----+--------+----------------------+",
        "not included: later submissions, failures, lost nodes; a later job of higher priority "
        "delays the others"]
    near = table(made(job(5, 900, 1500, -300, 1200)), now=NOW)
    assert " 13:55:07 " in near and " 13:40:07-14:00:07 " in near  # a moment that is over is now
    assert "no job runs or waits" in table(made(), now=NOW)
    assert "uncalibrated: 3 of 40" in table(made(calibrated="uncalibrated: 3 of 40"), now=NOW)


@UNTIMED
@given(st.integers(30, 150))
def test_the_table_fits_the_terminal(width: int) -> None:
    long = job(123456, 900, 1500, 700, 5000, app="a" * 40, reason="because of " + "x" * 90)
    lines = table(made(long), now=NOW, width=width).splitlines()
    if width >= 60:
        assert all(len(line) <= width for line in lines if line[0] in "|+")


def test_data_for_programs() -> None:
    found = facts(job(5, 900, 1500), made())
    assert found["start"] == NOW + 900 and found["status"] == "waiting" and found["calibrated"]
    assert list(found) == ["id", "app", "name", "ranks", "status", "start", "p10", "p90", "end", "end_p10",
                           "end_p90", "latest", "nodes", "chance", "reason", "time", "members",
                           "calibrated"]
    assert [each["id"] for each in chosen(made(job(5, 9, 10), job(3, 2, 4), job(4, 1, 8)), [5, 3])] == [
        3, 5]


def test_what_another_estimate_changes() -> None:
    before = made(job(1, 600, 900), job(2, 900, 1500), job(3, 50, 80), job(4, None, None))
    after = made(job(1, 50, 300, 40, 80), job(2, 300, 900), job(3, 90, 100), job(4, None, None))
    assert changes(before, after, [1, 4], NOW) == [
        "#1 would start 13:40:57 (13:40:47-13:41:27) instead of 13:50",
        "#4 would start later, as it does now",
        "1 other job would start earlier: #2", "1 other job would start later: #3"]


def test_moments_are_short() -> None:
    assert when(NOW + 90000, NOW) == "Fri 14:40" and when(NOW + 9e5, NOW) == "01 May"
    assert when(math.inf, NOW) == "later"
    assert brief(None, NOW) == ""
    assert brief(job(1, -60, 300, running=True), NOW) == "ends 13:45:07"
    assert brief(job(1, -60, 300), NOW) == "13:40:07"  # it should run by now: at once, then
    assert brief({**job(1, 900, 1500, 700), "p90": None}, NOW) == "13:55 (13:51-later)"


def test_the_queue_has_a_column(tmp_path: Path) -> None:
    state = snapshot(NODES, [running(1, "cg.x", 2, NOW - 9, 60.0), queued(2, "mg.x", 8, 10.0)])
    found = {1: job(1, -9, 40, running=True), 2: job(2, 900, 1500, 700, 5000)}
    text = queue_table(state, NOW, forecasts=found)
    assert "| Forecast            |" in text and "| ends 13:40:47       |" in text
    assert "| 13:55 (13:51-15:03) |" in text
    assert "Forecast" not in queue_table(state, NOW)
    narrow = queue_table(state, NOW, width=70, forecasts=found)
    assert "| 13:55         |" in narrow and "13:51" not in narrow
    assert "Forecast" not in queue_table(state, NOW, width=40, forecasts=found)
    first, second = queue_json(state, NOW, found)["jobs"]
    assert (first["forecast"]["end"], second["forecast"]["p90"]) == (NOW + 40, NOW + 5000)


def test_a_forecast_is_read_with_care(tmp_path: Path) -> None:
    path, state = tmp_path / "forecast.json", snapshot(NODES, JOBS)
    assert forecast.by_job(state, path) == {}
    path.write_text(json.dumps(made(job(2, 9, 10))))
    found = forecast.by_job(state, path)
    assert list(found) == [2] and found.time == json.loads(path.read_text())["time"]
    state["jobs"] = [queued(2, "mg.x", 8, 10.0)]
    assert "old" not in queue_table(state, found.time + 14, forecasts=found)
    assert queue_table(state, found.time + 20, forecasts=found).endswith("\nthe forecast is 20 s old")
    ended = {**state, "manager": {**state["manager"], "phase": "ended"}}
    assert forecast.by_job(ended, path) == {}
    for wrong in ("", "[", "[" * 9999, "{}", json.dumps(made(job(2, 9, 10), format=9)),
                  json.dumps(made({**job(2, 9, 10), "start": "now"})),
                  json.dumps(made({**job(2, 9, 10), "reason": "\x1b[2J"})),
                  json.dumps(made(job(2, 9, 10, chance=3))), json.dumps(made(job(2, 9, 10), time=1.0))):
        path.write_text(wrong)
        assert forecast.by_job(state, path) == {}, wrong
    path.unlink()
    path.mkdir()
    assert forecast.by_job(state, path) == {}


# ----------------------------------------------------------------------------------- vrm top


def with_forecasts(*found: dict[str, Any]) -> dict[str, Any]:
    by_id = {each["id"]: each for each in found}
    jobs = [running(1, "cg.x", 2, NOW - 9, 60.0), queued(2, "mg.x", 8, 10.0), queued(3, "lu.x", 8, 9.0)]
    return snapshot(NODES, [{**each, "forecast": by_id.get(each["id"])} for each in jobs])


def lines(state: Any, size: Any = (72, 12), glyphs: Any = UNICODE) -> list[str]:
    return plain_text(render(state, (), size, NOW, View(gantt=True), glyphs=glyphs)).split("\n")


def test_a_gantt_of_text() -> None:
    state = with_forecasts(job(1, -9, 40, running=True, end_p90=NOW + 60),
                           job(2, 60, 90, 40, 80, end_p90=NOW + 120), job(3, None, None))
    state["allocation"] = {"end": NOW + 100}
    assert lines(state)[3:7] == [
        "                   13:40:07         13:40:42          13:41:17",
        " 1 cg.x            ━━━━━━━━━━━━━━━━━━━━──────────                    │",
        " 2 mg.x                                ··········━━━━━━━━━━━━━━━─────│──",
        " 3 lu.x            later"]
    assert "####" in "\n".join(lines(state, glyphs=ASCII))
    assert all(len(line) <= 72 for line in lines(state))
    assert "no forecast" in "\n".join(lines(snapshot(NODES, JOBS)))


@UNTIMED
@given(st.integers(1, 200), st.integers(1, 40), st.lists(
    st.tuples(*[st.floats(-1e3, 1e7)] * 4), max_size=20), st.sampled_from([math.inf, 50.0, -5.0]))
def test_a_gantt_fits_whatever_is_forecast(width: int, rows: int, times: Any, end: float) -> None:
    jobs = [{"id": number, "app": "é" * 30, "forecast": job(number, a, b, c, d)}
            for number, (a, b, c, d) in enumerate(times)]
    found = gantt(jobs, NOW, NOW + end, (width, rows), ASCII, lambda job_id: "job0")
    assert len(found) <= max(2, rows)
    if width > 80:
        assert all(sum(len(part) for part, _ in line) <= width for line in found)


def test_a_key_shows_it_and_the_list_has_the_range() -> None:
    view, command = press(View(), "g", [])
    assert view.gantt and command is None and not press(view, "g", [])[0].gantt
    state = with_forecasts(job(2, 900, 1500, 700, 5000))
    assert "13:55 (13:51-15:03)" in plain_text(render(state, (), (100, 30), NOW))
    assert cells.plain_text(render(state, (), (100, 30), NOW, View(mode="help"))).count("forecast") == 1


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_the_screen_is_never_wider(width: int) -> None:
    state = with_forecasts(job(1, -9, 40, running=True), job(2, 60, 90, 40, 80))
    for view in (View(), View(gantt=True)):
        assert all(sum(cells.columns(text) for text, _ in line) <= width
                   for line in render(state, (), (width, 24), NOW, view))
