"""The page of a forecast: what is on it, and that nothing on it comes from elsewhere."""

from __future__ import annotations

import html.parser
import re
from typing import Any

import pytest
from hypothesis import given, strategies as st

from support.forecast_jobs import job, made
from support.snapshots import NODES, NOW, UNTIMED, snapshot, utc
from vrm.ext.forecast.report import forecast_page
from vrm.ext.forecast.report.forecast_page import page

assert utc


class Seen(html.parser.HTMLParser):
    """What a page has: texts, bars with their places, and tags that do not match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.bars: list[dict[str, str]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag != "meta":
            self.open.append(tag)
        assert not {"src", "href"} & set(dict(attrs)), "nothing is loaded"
        if tag == "b" and "style" in dict(attrs):
            self.bars.append(dict(attrs))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.texts.append(data)


def state(**more: Any) -> dict[str, Any]:
    return {**snapshot([*NODES[:2], ("n2", False, [[None] * 4] * 2)]), "allocation": {"end": None}, **more}


def test_what_is_on_it() -> None:
    found = made(job(1, -9, 400, running=True), job(2, 900, 1500, 700, 2000, nodes="n0", reason="late"),
                 job(3, 1000, 1700, nodes="n0"), job(4, None, None, chance=0.4))
    text = page(found, state(allocation={"end": NOW + 1900}, reservations=[
        {"name": "tests", "nodes": ["n1"], "begin": NOW + 800, "end": NOW + 1200, "jobs": ""}]),
        NOW, "logs/run")
    seen = Seen(text)
    words = " ".join(seen.texts)
    assert "1 running, 3 waiting, 6 ended; 3 nodes of 2x4" in words
    assert "the allocation ends 14:11" in words and "uncalibrated" not in words
    assert "13:55:07" in words and "13:51:47-14:13:27" in words and "40%" in words and "late" in words
    assert "n2 down" in words and "Not included: later submissions" in words
    titles = [bar["title"] for bar in seen.bars if "title" in bar]
    assert titles.count("reservation tests: 13:53 to 14:00") == 1
    assert sum(title.startswith("#1 ep.x, 4 ranks: runs until 13:46:47") for title in titles) == 2
    both = [bar["style"] for bar in seen.bars if bar.get("title", "").startswith(("#2", "#3"))]
    assert [re.findall("top:([0-9.]+)%", style) for style in both] == [["0.00"], ["50.00"]]
    assert text.count("<i class=\"edge\" style=") >= 3 and "http-equiv" not in text
    for link in ("http://", "https://", "<script", "@import", "url("):
        assert link not in text


def test_it_loads_itself_while_the_run_goes_on() -> None:
    assert '<meta http-equiv="refresh" content="5">' in page(made(), state(), NOW, "x", 5)
    assert "No job runs or waits" in page(made(), None, NOW, "x")


def test_nodes_in_one_state_share_a_row_and_thousands_are_cut() -> None:
    nodes = [(f"n{number}", True, [[None]]) for number in range(3290)]
    text = page(made(job(1, -9, 400, running=True, nodes="n[100-3289]")),
                {**snapshot(nodes), "allocation": {"end": None}}, NOW, "x")
    assert text.count("class=\"row\"") == 3 and "n100 – n3289" in text
    busy = [job(number, -9, 40 + number, running=True, nodes=f"n{number}") for number in range(100)]
    text = page(made(*busy), {**snapshot(nodes), "allocation": {"end": None}}, NOW, "x")
    assert "37 more rows of nodes are not shown" in text and len(text) < 200_000
    many = [job(number, 900, 1000) for number in range(forecast_page.MOST + 7)]
    assert "7 more jobs are not shown" in page(made(*many), None, NOW, "x")


@UNTIMED
@given(st.text(max_size=20), st.text(max_size=20), st.one_of(st.none(), st.floats(-1e6, 1e8)),
       st.one_of(st.none(), st.floats(-1e6, 1e8)), st.booleans())
def test_whatever_is_forecast_the_page_is_sound(name: str, reason: str, start: Any, end: Any,
                                                running: bool) -> None:
    each = {**job(1, start, end, running=running), "app": name, "reason": reason}
    if start is None or end is None:
        each = {**each, "start": None, "end": None}
    seen = Seen(page(made(each), state(), NOW, name))
    for bar in seen.bars:
        left, width = (float(value) for value in re.findall("(?:left|width):([0-9.]+)%", bar["style"]))
        assert 0 <= left <= 100 and 0 < width <= 100.5


@pytest.mark.parametrize("evil", ["<script>alert(1)</script>", '"><img onerror=x>', "\x1b[2J", "&lt;"])
def test_names_are_escaped(evil: str) -> None:
    text = page(made(job(1, 9, 10, app=evil, nodes=evil, reason=evil)), None, NOW, evil)
    assert "<script" not in text and "<img" not in text and "\x1b" not in text
    Seen(text)


@pytest.mark.parametrize("seconds, step", [(60, 10), (75, 15), (3000, 600), (6 * 3600, 3600), (5 * 86400, 86400), (1e8, 1e8 / 6)])
def test_the_times_over_a_picture_are_round(seconds: float, step: float) -> None:
    scale = forecast_page._Scale(NOW, NOW + seconds)
    places = [float(place) for place in re.findall(r"left:([0-9.]+)%", scale.axis())]
    times = [NOW + place / 100 * seconds for place in places]
    assert 2 <= len(times) <= 7 and all(later - time == pytest.approx(step, rel=1e-3) for time, later in zip(times, times[1:]))
    if step <= 600:
        assert all(abs((time + 1) % step - 1) < 1 for time in times), "parts of an hour"
