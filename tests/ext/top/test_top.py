"""`vrm top`: the picture as a function of a snapshot, the keys, and the real program on a terminal
with a real manager."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from collections.abc import Iterator

import pytest
from hypothesis import given, strategies as st

from conftest import LIMIT, Site, wait_until
from support.snapshots import JOBS, NODES, NOW, UNTIMED, many, queued, running, snapshot, utc
from vrm.ext.top.commands import screen
from vrm.ext.top import cells, top_nodes, top_view
from vrm.ext.top.cells import ASCII, UNICODE, plain_text
from vrm.ext.top.top import render
from vrm.ext.top.top_view import PLAIN, JobEnd, View, press
from vrm.run.rundir import RunDirectory

ENDS = [JobEnd(9, "cg.A.x", "completed", NOW - 3, 3.2, ""),
        JobEnd(8, "is.A.x", "failed", NOW - 30, 3333.2, "exit 7")]
assert utc  # the local time is that of UTC in these tests, too


def text(state: Any, size: Any = (80, 24), view: View = PLAIN, **more: Any) -> list[str]:
    """The picture's lines, without the empty ones at its end and without the keys."""
    lines = plain_text(render(state, ENDS, size, NOW, view, **more)).split("\n")
    while lines[:-1] and not lines[-2]:
        del lines[-2]
    return lines


# ---------------------------------------------------------------------------------- exact pictures


def test_the_picture() -> None:
    jobs = [*JOBS[:2], running(5, "sp.B.x", 1, NOW - 67, 60.0, ("n1",)), *JOBS[2:],
            queued(6, "bt.B.x", 8, 5.0, held=True), queued(7, "bt.B.x", 4, 5.0, after=[3, 6])]
    nodes = [*NODES[:1], ("n1", True, [[0, 0, None, None], [None, None, 5, None]]), NODES[2]]
    assert text(snapshot(nodes, jobs)) == [
        "vrm top  WFP3 + EASY, strip  3 nodes of 2x4                             13:40:07",
        "3 running, 4 waiting (1 held), 6 ended (1 failed, 2 refused)",
        "cores 9 of 16 ━━━━━━━━━━━─────────  56 %  1 node down",
        "Nodes (3)",
        "n0 aabb│aa··   n1 aa··│··f·   n2 down",
        "  Id Running 3        Ranks Nodes     Progress                     Left With",
        "f  5 sp.B.x               1 n1        !!!!!!!!!!!!!!!!! 112 % +00:00:07 a ft.B.x",
        "a  0 ft.B.x               6 n0        ━━━━━━━━─────────  45 %  00:00:33 b lu.B.x",
        "b  1 lu.B.x               2 n0        ━━━━━━───────────  38 %  00:00:28 a ft.B.x",
        "  Id Waiting 4        Ranks  Estimate    Waited Starts",
        "   2 mg.B.x               8  00:00:10  00:00:10 13:40:40, in 00:00:33",
        "   3 lu.B.x               8  00:02:00  00:00:10",
        "   6 bt.B.x               8  00:00:05  00:00:10 held",
        "   7 bt.B.x               4  00:00:05  00:00:10 after 3, 6",
        "  Id Ended 6          Status     At           After Why",
        "   9 cg.A.x           completed  13:40:04    3.20 s",
        "   8 is.A.x           failed     13:39:37  00:55:34 exit 7",
        "q quit  ? help  c cancel  h hold  r release  g time  arrows select  / filter",
    ]


def test_reasons_have_the_room_that_names_leave() -> None:
    """No column of names where none of these jobs has one, and whole reasons where the screen is wide."""
    why = "needs 1 licence(s) of ansys, 0 free; next 13:50:00, and that is still a long time away"
    named = dict(running(0, "ft.B.x", 1, NOW - 3, 9.0, ("n0",)), name="a name of some length")
    jobs = [named, {**queued(1, "lu.B.x", 1, 60.0), "why": why}]
    narrow, wide = (text(snapshot(NODES, jobs), (width, 24)) for width in (80, 200))
    assert any(" a name of" in line for line in narrow)
    line = next(line for line in narrow if " 1 lu.B.x" in line)
    assert "needs 1 licence(s) of ansys" in line and any(line.endswith(why) for line in wide)


def test_a_narrow_and_low_screen_keeps_the_most_important() -> None:
    assert text(snapshot(NODES, JOBS, emulated=True), (40, 13)) == [
        "vrm top  WFP3 + EASY, strip  3… 13:40:07",
        "2 running, 2 waiting, 6 ended (1 failed…",
        "cores 8 of 16 ━━━━───  50 %  1 node down",
        "EMULATED: 3 nodes of 2x4 on this machin…",
        "Nodes (3)",
        "n0 aabb│aa··   n1 aa··│····",
        "n2 down",
        "  Id Running 2      Ranks      Left",
        "a  0 ft.B.x             6  00:00:33",
        "b  1 lu.B.x             2  00:00:28",
        "  Id Waiting 1-1/2   Estimate Starts",
        "   2 mg.B.x          00:00:10 13:40:40",
        "q quit  ? help  c cancel  h hold",
    ]


@pytest.mark.parametrize("emulated", [False, True])
def test_the_smallest_screens_show_jobs(emulated: bool) -> None:
    """At 40 x 10 the nodes give way to jobs."""
    shown = text(snapshot(NODES, JOBS, emulated=emulated), (40, 10))
    assert len(shown) == 10 and not any(line.startswith("Nodes") for line in shown)
    assert {"a  0 ft.B.x             6  00:00:33", "   2 mg.B.x          00:00:10 13:40:40"} <= set(
        shown)


def test_ascii_pictures_are_ascii() -> None:
    state = snapshot([("knötchen", True, [[0, None]])], [running(0, "名前.x", 2, NOW - 3, 9.0)])
    lines = plain_text(render(state, ENDS, (60, 24), NOW, glyphs=ASCII))
    assert lines.isascii() and "kn?tchen a." in lines and " ##----  33 % " in lines


def test_wide_names_keep_the_columns() -> None:
    state = snapshot(NODES, [running(0, "名前.x", 2, NOW - 3, 9.0), JOBS[0]])
    rows = [line for line in text(state) if "%" in line and "cores" not in line]
    ends = [cells.columns(line[:line.index("%")]) for line in rows]
    assert len(ends) == 2 and ends[0] == ends[1]


def test_the_end_of_the_allocation_is_shown_when_known() -> None:
    line = text(snapshot(NODES, JOBS, allocation={"end": NOW + 7200}))[2]
    assert line.endswith(" 50 %  ends 15:40:07, in 02:00:00  1 node down")
    assert "ends" not in text(snapshot(NODES, JOBS, allocation={"end": None}))[2]


@pytest.mark.parametrize("phase, age, alive, said", [
    ("running", 2, None, None), ("stopping", 2, None, "is stopping"),
    ("ended", 60, None, "has ended, 60 s ago"),
    ("running", 40, None, "has not written for 40 s"), ("running", 40, True, "has not written for"),
    ("running", 8, False, "is dead: it wrote last 8 s ago"),
])
def test_a_manager_that_is_gone_is_told_plainly(phase: str, age: float, alive: Any,
                                                said: Any) -> None:
    state = snapshot(NODES, JOBS, time=NOW - age)
    state["manager"]["phase"] = phase
    for size in ((80, 24), (40, 12)):
        line = text(state, size, alive=alive)[3]
        assert "manager" not in line if said is None else said[:15] in line
    assert said is None or said in text(state, alive=alive)[3]


def test_without_a_state_the_last_line_says_why() -> None:
    assert text(None, status=("no manager has written it yet", "bad")) == [
        "vrm top", "no manager has written it yet"]


def test_another_format_is_refused() -> None:
    with pytest.raises(ValueError, match="format 3 and this vrm reads formats 1 and 2"):
        text(snapshot(format=3))


def test_names_cannot_write_to_the_terminal() -> None:
    state = snapshot([("n\x1b[2J", True, [[0]])], [running(0, "a\x1b]0;x\x07\nb", 1, NOW, 60.0)])
    drawn = "\n".join(text(state, (200, 30), View(selected=0, mode="cancel")))
    assert "\x1b" not in drawn and "\x07" not in drawn and "n\\x1b[2J" in drawn


# ------------------------------------------------------------------------------------- the nodes


def nodes_of(kinds: Any, size: Any = (80, 24), **view: Any) -> list[str]:
    """The lines of the nodes."""
    lines = text(snapshot(kinds, JOBS), size, View(**view))
    start = next(i for i, line in enumerate(lines) if line.startswith("Nodes"))
    stop = next(i for i, line in enumerate(lines) if " Running " in line)
    return lines[start:stop]


def test_neighbours_with_the_same_jobs_are_drawn_once_where_there_is_no_room() -> None:
    kinds = many((3, [[0] * 8] * 2, True), (50, [[None] * 8] * 2, True),
                 (1, [[None] * 8] * 2, False), (2, [[0] * 4 + [1] * 4] * 2, True))
    assert nodes_of(kinds) == [
        "Nodes (56)",
        "n0-n2   aaaaaaaa│aaaaaaaa   n3-n52  ········│········",
        "n53     down                n54-n55 aaaabbbb│aaaabbbb"]
    assert nodes_of(kinds, (120, 60))[1].startswith("n0  aaaaaaaa│aaaaaaaa   n1  aaaa")


def test_wide_nodes_get_a_mark_for_several_cores_that_still_shows_both_halves() -> None:
    kinds = many((4, [[0] * 32 + [1] * 32] * 2, True))
    assert nodes_of([*kinds[:1], ("m", True, [[None] * 64] * 2)], (80, 24)) == [
        "Nodes (2)  a mark is 2 cores",
        "n0 " + "│".join(["a" * 16 + "b" * 16] * 2),
        "m  " + "│".join(["·" * 32] * 2)]


def test_nodes_that_find_no_room_are_counted_and_n_makes_room() -> None:
    kinds = many(*[(1, [[i % 3, None] * 8] * 2, True) for i in range(64)])
    some, every = nodes_of(kinds, (80, 40)), nodes_of(kinds, (80, 40), nodes="all")
    assert some[0] == "Nodes (64)  a mark is 8 cores" and some[-1].endswith("n63 aa│aa")
    assert every[0] == "Nodes (64)  a mark is 2 cores" and len(every) == 23
    few = nodes_of(kinds, (80, 24))
    assert few[0] == "Nodes (64)  a mark is 8 cores, 34 more are not shown (n shows all)"
    assert len(few) == 6
    assert not any(line.startswith("Nodes") for line in text(
        snapshot(kinds, JOBS), (80, 40), View(nodes="none")))


def test_the_cores_of_the_selected_job_stand_out() -> None:
    picture = render(snapshot(NODES, JOBS), [], (80, 24), NOW, View(selected=1))
    reversed_ = [(span, style) for line in picture[4:6] for span, style in line
                 if style.startswith("reverse")]
    assert reversed_ == [("bb", "reverse job1")]


def test_jobs_with_the_same_letter_have_different_colours() -> None:
    looks = [(top_nodes.mark(job), top_nodes.colour(job)) for job in range(52 * 6)]
    assert len(set(looks)) == len(looks)


# ------------------------------------------------------------------------------- long lists


def test_the_selected_job_is_always_in_sight() -> None:
    jobs = [running(i, "a", 1, NOW - 100 + i, 600.0) for i in range(40)] + [
        queued(i, "b", 1, 9.0) for i in range(40, 90)]
    for size in ((80, 24), (40, 12), (60, 9)):
        for job in jobs:
            lines = text(snapshot(NODES, jobs), size, View(selected=job["id"]))
            assert sum(line.startswith(f"  {job['id']:>2} b ") or line[1:6] == f" {job['id']:>2} a"
                       for line in lines) == 1, (size, job["id"])


def test_a_cut_list_tells_which_part_is_shown() -> None:
    jobs = [queued(i, "b", 1, 9.0) for i in range(90)]
    lines = text(snapshot(NODES, jobs), (80, 24), View(selected=50))
    assert any(line.startswith("  Id Waiting 45-57/90 ") for line in lines)


@pytest.mark.parametrize("order, ids", [("queue", [1, 0, 4, 3, 2]), ("id", [0, 1, 2, 3, 4]),
                                        ("app", [1, 0, 2, 4, 3]), ("time", [0, 1, 2, 3, 4])])
def test_sorting(order: str, ids: list[int]) -> None:
    jobs = [running(0, "z", 1, NOW - 5, 9.0), running(1, "y", 1, NOW - 9, 99.0),
            queued(4, "k", 1, 9.0), queued(3, "l", 1, 8.0), queued(2, "a", 1, 1.0)]
    listed = top_view.jobs_in_view(snapshot(jobs=jobs), View(order=order), NOW)
    assert [job["id"] for part in listed for job in part] == ids


@pytest.mark.parametrize("wanted, ids", [("", [0, 1, 2, 3]), ("LU", [1, 3]), ("n0", [0, 1]),
                                         ("2", [2]), ("held", []), ("zz", [])])
def test_filter(wanted: str, ids: list[int]) -> None:
    listed = top_view.jobs_in_view(snapshot(jobs=JOBS), View(wanted=wanted), NOW)
    assert sorted(job["id"] for part in listed for job in part) == ids


# ------------------------------------------------------------------------------------------- keys


def after(keys: list[str], jobs: Any = tuple(JOBS), view: View = PLAIN) -> Any:
    """The view and the commands that keys lead to."""
    sent = []
    for key in keys:
        view, wanted = press(view, key, jobs)
        sent += [wanted] if wanted else []
    return view, sent


@pytest.mark.parametrize("keys, sent", [
    (["down", "c", "y"], [{"do": "cancel", "id": 1}]),
    (["down", "c", "n"], []), (["down", "c", "enter"], []), (["down", "c", "down", "y"], []),
    (["c", "y"], []), (["h"], []), (["up", "h"], [{"do": "hold", "id": 1}]),
    (["down", "down", "down", "h", "down", "r"],
     [{"do": "hold", "id": 2}, {"do": "release", "id": 3}]),
    (["end", "r"], [{"do": "release", "id": 3}]),
    (["pagedown", "pagedown", "k", "h"], [{"do": "hold", "id": 2}]),
    (["?", "c", "y"], []), (["/", "c", "h", "enter"], []), (["down", "escape", "h"], []),
])
def test_commands(keys: list[str], sent: Any) -> None:
    assert after(keys)[1] == sent


def test_the_question_names_the_job_and_stays_with_it() -> None:
    view, _ = after(["down", "down", "c"])
    assert text(snapshot(NODES, JOBS[:1] + JOBS[2:]), view=view)[-1] == "y/n: cancel job 0 ?"
    assert text(snapshot(NODES, JOBS), view=view)[-1] == "y/n: cancel job 0 ft.B.x?"


def test_when_the_selected_job_is_gone_its_successor_is_selected() -> None:
    view, _ = after(["down", "down"])
    assert view.selected == 0
    rest = [job for job in JOBS if job["id"] != 0]
    assert press(view, "h", rest)[1] == {"do": "hold", "id": 2}
    assert press(view, "h", [])[1] is None


def test_typing_a_filter() -> None:
    assert after(["/", "c", "g", "x", "backspace"])[0] == View(mode="filter", wanted="cg")
    assert after(["/", "c", "g", "enter"])[0].wanted == "cg"
    assert after(["/", "c", "g", "enter", "escape"])[0].wanted == ""
    typing = View(mode="filter", wanted="cg")
    assert text(snapshot(NODES, JOBS), view=typing)[-1].startswith("filter: cg_")


# ----------------------------------------------------------------------------- any picture at all

NAMES = st.one_of(st.text(max_size=30),
                  st.sampled_from(["ft.B.x", "n1", "n2", "n10", "漢字", "e\u0301"]))
SECONDS = st.one_of(st.floats(-1e6, 2e9), st.integers(0, 100).map(lambda s: NOW - s))
STATES = st.builds(
    lambda nodes, jobs, age, phase, more: snapshot(
        nodes, jobs, time=NOW - age, **more) | {"manager": {
            "host": "h" * 30, "pid": 1, "start": NOW, "phase": phase}},
    st.lists(st.tuples(NAMES, st.booleans(), st.lists(st.lists(
        st.one_of(st.none(), st.integers(0, 300)), max_size=70), max_size=4)), max_size=12),
    st.lists(st.one_of(
        st.builds(running, st.integers(0, 300), NAMES, st.integers(1, 10 ** 6), SECONDS,
                  st.floats(0.001, 1e9), st.lists(NAMES, min_size=1, max_size=3)),
        st.builds(lambda *given, start, held, after: queued(
            *given, expected_start=start, held=held, after=after),
                  st.integers(0, 300), NAMES, st.integers(1, 99), st.floats(0.001, 1e9),
                  start=st.one_of(st.none(), SECONDS), held=st.booleans(),
                  after=st.lists(st.integers(0, 9), max_size=3))), max_size=30),
    st.floats(-100, 1e6), st.sampled_from(["running", "stopping", "ended"]),
    st.fixed_dictionaries({"emulated": st.booleans(), "allocation": st.one_of(
        st.none(), st.fixed_dictionaries({"end": st.one_of(st.none(), SECONDS)}))}))
VIEWS = st.builds(View, st.one_of(st.none(), st.integers(0, 300)), st.integers(-5, 400),
                  st.sampled_from(["", "ft", "n1", "漢"]), st.sampled_from(top_view.ORDERS),
                  st.sampled_from(["some", "all", "none"]),
                  st.sampled_from(["list", "help", "filter", "cancel"]))
LASTS = st.lists(st.builds(
    JobEnd, st.integers(0, 10 ** 7), NAMES, st.sampled_from(["completed", "lost"]),
    st.one_of(st.none(), SECONDS), st.one_of(st.none(), st.floats(-9, 1e9)), NAMES), max_size=20)


@UNTIMED
@given(STATES, LASTS, st.tuples(st.integers(1, 200), st.integers(1, 70)), VIEWS,
       st.sampled_from([None, True, False]), st.sampled_from([UNICODE, ASCII]), st.booleans())
@pytest.mark.slow
def test_no_picture_is_larger_than_the_screen(state: Any, ends: Any, size: Any, view: View,
                                              alive: Any, glyphs: Any, interactive: bool) -> None:
    picture = render(state, ends, size, NOW, view, ("done: " + "x" * 90, "good"), alive, glyphs,
                     interactive)
    assert len(picture) == size[1] if interactive else len(picture) <= size[1]
    widths = [sum(cells.columns(span) for span, _ in line) for line in picture]
    assert max(widths) <= size[0]
    assert not interactive or widths[-1] < size[0]
    drawn = plain_text(picture)
    assert all(char.isprintable() or char == "\n" for char in drawn)
    assert glyphs is UNICODE or drawn.isascii()


@UNTIMED
@given(STATES, VIEWS, st.lists(st.sampled_from(
    ["up", "down", "home", "end", "pageup", "pagedown", "c", "y", "n", "h", "r", "s", "/", "?", "a",
     "enter", "escape", "backspace", "漢"]), max_size=12))
@pytest.mark.slow
def test_keys_command_jobs_in_view_only(state: Any, view: View, keys: list[str]) -> None:
    for key in keys:
        running_, waiting = top_view.jobs_in_view(state, view, NOW)
        asked = view.mode == "cancel"
        view, sent = press(view, key, [*running_, *waiting])
        if sent and not asked:
            assert sent["id"] in [job["id"] for job in (*running_, *waiting)]
        assert sent is None or (sent["do"] == "cancel") == (asked and key == "y")


# ------------------------------------------------------------------------------------------ ends


def test_the_last_ends_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    assert top_view.read_ends(path) == []
    path.write_text("id,app,procs,submit,start,end,walltime,status,exit_code,app_time,exclusive,"
                    "backfilled,nodes,cores,binding,reason\n")
    assert top_view.read_ends(path) == []
    with open(path, "a") as file:
        file.writelines(f'{i},ft.B.x,8,100,110,120.5,60,completed,0,9.5,0,0,"n[0-1,3]",,ok,\n' for i in range(3000))
        file.write("3000,is.B.x,8,100,,,60,refused,,,0,0,,,,\"no, never\"\nnonsense\n3001,torn")
    ends = top_view.read_ends(path, 50)
    assert ends[0] == JobEnd(3000, "is.B.x", "refused", None, None, "no, never")
    assert ends[1] == JobEnd(2999, "ft.B.x", "completed", 120.5, 10.5, "") and len(ends) == 49


# ------------------------------------------------------------------------------- the real program


class Terminal:
    """A tmux session of this test's own server: a new one at each start."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self._servers = 0
        self._tmux: list[str] = []

    def start(self, *arguments: str, size: Any = (80, 24), **env: str) -> None:
        """Run vrm in it, and leave its exit status in a file."""
        self.close()
        self._servers += 1  # a server that is about to end answers on its socket still
        self._tmux = ["tmux", "-f", "/dev/null", "-S", str(self.site.root / f"tmux{self._servers}")]
        words = [sys.executable, "-m", "vrm.cli", "-c", str(self.site.config_file), *arguments]
        line = f"trap : INT; {shlex.join(words)}; echo $? > status"  # Ctrl-C goes to both
        pairs = {"LC_ALL": "C.UTF-8", "LANG": "", **env}
        self._run("new-session", "-d", "-x", str(size[0]), "-y", str(size[1]),
                  "-c", str(self.site.root), "env", "-u", "COLUMNS", "-u", "LINES",  # they'd win
                  *(f"{key}={value}" for key, value in pairs.items()),
                  "sh", "-c", f"{line}; exec cat", env=self.site.env)

    def _run(self, *words: str, env: Any = None) -> str:
        return subprocess.run([*self._tmux, *words], check=True, stdout=subprocess.PIPE, text=True,
                              timeout=20, env=env).stdout

    def keys(self, *keys: str) -> None:
        """Type keys."""
        self._run("send-keys", *keys)

    def resize(self, columns: int, lines: int) -> None:
        """Make the terminal larger or smaller."""
        self._run("resize-window", "-x", str(columns), "-y", str(lines))

    def screen(self, *options: str) -> str:
        """What is on it."""
        return self._run("capture-pane", "-p", *options)

    def shows(self, *texts: str) -> str:
        """Wait until all texts are on the screen."""
        try:
            return wait_until(lambda: (seen := self.screen()) and all(t in seen for t in texts)
                              and seen, "")
        except pytest.fail.Exception:
            pytest.fail(f"the screen does not show {texts}, but:\n{self.screen()}")

    def status(self) -> int:
        """Wait for vrm's end; its exit status."""
        path = self.site.root / "status"
        wait_until(lambda: path.exists() and path.read_text(), "vrm top ends")
        return int(path.read_text())

    def close(self) -> None:
        """End the server and what runs in it."""
        if self._tmux:
            subprocess.run([*self._tmux, "kill-server"], check=False, stderr=subprocess.DEVNULL)


@pytest.fixture
def terminal(site: Site) -> Iterator[Terminal]:
    """A terminal, with a site of 4 emulated nodes."""
    if not shutil.which("tmux"):
        pytest.skip("no tmux")
    site.config(Nodes=4, Sockets=2, Cores=2, Emulate=True, Allocation={"Policy": "strip"})
    site.program("waits.x", "while [ ! -e \"$0.go\" ]; do sleep 0.02; done\n")
    made = Terminal(site)
    yield made
    made.close()


def test_watching_and_cancelling_a_real_run(site: Site, terminal: Terminal) -> None:
    site.lines("waits.x 2 600 0", "waits.x 2 600 0", "waits.x 2 600 0", "waits.x 8 600 1")
    terminal.start("top")
    terminal.shows("no manager has written")
    manager = site.start()
    seen = terminal.shows("Running 3", "Waiting 1", "EMULATED", "n0 ")
    assert "/8" not in seen and "4 nodes of 2x2" in seen
    terminal.keys("c")
    terminal.shows("select a job first")
    terminal.keys("Down", "Down", "c")
    terminal.shows("y/n: cancel job 1 waits.x?")
    terminal.keys("n", "c", "y")
    seen = terminal.shows("cancelled by its user", "job 1 (waits.x) is being ended")
    assert site.statuses() == {1: "cancelled"}
    terminal.keys("?")
    terminal.shows("Keys", "cancel the selected job")
    terminal.resize(40, 12)
    terminal.keys("q")  # leaves the help, not the program
    terminal.shows("q quit")
    assert all(len(line) <= 40 for line in terminal.screen().splitlines())
    terminal.resize(120, 40)
    terminal.shows("n nodes: some")
    manager.send_signal(signal.SIGTERM)
    site.finish(manager)
    terminal.shows("the manager has ended")
    terminal.keys("h")
    terminal.shows("no manager runs")
    terminal.keys("q")
    assert terminal.status() == 0
    assert "vrm top" not in terminal.screen()  # the terminal is as it was


def test_a_dead_manager_is_told(site: Site, terminal: Terminal) -> None:
    site.lines("waits.x 2 600 0")
    manager = site.start()
    wait_until(lambda: site.running(), "a job runs")
    terminal.start("top")
    terminal.shows("Running 1")
    manager.kill()
    manager.wait()
    state = json.loads((site.log / "state").read_text())
    state["time"] -= 60  # as a minute later
    (site.log / "state").write_text(json.dumps(state))
    terminal.shows("the manager is dead")
    again = site.start()
    wait_until(lambda: "dead" not in terminal.screen(), "the new manager is seen")
    again.send_signal(signal.SIGTERM)
    site.finish(again)


def test_colours_only_where_they_are_wanted(site: Site, terminal: Terminal) -> None:
    site.lines("waits.x 2 600 0")
    manager = site.start()
    wait_until(lambda: site.running(), "a job runs")
    terminal.start("top", TERM="xterm-256color")
    terminal.shows("Running 1")
    coloured = re.compile(r"\x1b\[(?:\d+;)*3[0-8][;m]").search
    assert coloured(terminal.screen("-e"))
    terminal.keys("q")
    terminal.status()
    (site.root / "status").unlink()
    terminal.start("top", NO_COLOR="1", LC_ALL="C")
    seen = terminal.shows("Running 1")
    assert not coloured(terminal.screen("-e")) and seen.isascii()
    terminal.keys("C-c")
    assert terminal.status() == 0
    manager.send_signal(signal.SIGTERM)
    site.finish(manager)


def test_a_hanging_file_system_does_not_freeze_the_screen(site: Site, terminal: Terminal) -> None:
    site.log.mkdir()
    os.mkfifo(site.log / "state")  # to open it waits for ever
    terminal.start("top")
    terminal.shows("vrm top", "q quit")
    terminal.keys("?")
    terminal.shows("cancel the selected job")
    terminal.keys("x", "q")
    assert terminal.status() == 0


def test_a_terminal_without_a_screen_gets_text(site: Site, terminal: Terminal) -> None:
    site.program("ok.x", "exit 0\n")
    site.lines("ok.x 1 10 0")
    assert site.run().returncode == 0
    terminal.start("top", TERM="dumb")
    assert terminal.status() == 0
    assert "the manager has ended" in terminal.screen() and "q quit" not in terminal.screen()


def test_a_command_that_nobody_answers_is_taken_back(tmp_path: Path,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen, "REPLY_SECONDS", 0.2)
    run = RunDirectory(tmp_path, tmp_path, tmp_path / "state")
    run.create()
    run.state.write_text(json.dumps(snapshot(NODES, JOBS, time=time.time())))
    reader = screen.Reader(run)
    reader.start()
    reader.send({"do": "hold", "id": 2})
    assert reader.replies.get(timeout=LIMIT) == ("asked: hold job 2", "plain")
    assert len(list(run.commands.iterdir())) == 1
    said, _ = reader.replies.get(timeout=LIMIT)
    assert "no answer" in said and "withdrawn" in said and not list(run.commands.iterdir())
    reader.close()
    assert not reader.is_alive()


def test_at_80_characters_names_come_before_neighbours() -> None:
    jobs = [{**job, "name": "cases/013", "index": 13} for job in JOBS]
    seen = plain_text(render(snapshot(NODES, jobs), [], (80, 24), NOW))
    assert "cases/013[13]" in seen and "Name" in seen and " With" not in seen


def test_without_a_terminal_it_prints_one_picture(site: Site) -> None:
    assert "no manager has written" in site.run("top").stderr
    site.program("ok.x", "exit 0\n")
    site.lines("ok.x 1 10 0")
    assert site.run().returncode == 0
    done = site.run("top", LC_ALL="C")
    assert done.returncode == 0 and done.stdout.isascii()
    assert "the manager has ended" in done.stdout and "ok.x" in done.stdout
    assert "\x1b" not in done.stdout
    (site.log / "state").write_text("{")
    assert "cannot read" in site.run("top").stderr
