"""Status tables: exact text for given snapshots, JSON, and redrawing on a real terminal."""

from __future__ import annotations

import copy
import fcntl
import io
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vrm.model import Cluster, Heatmap, Job
from vrm.report import tables
from vrm.results.state import JOB
from vrm.report.tables import queue_table, state_json, state_table
from vrm.report.watching import watch
from vrm.scheduling import make_policy
from support.snapshots import JOBS, NODES, NOW, UNTIMED, many, queued, running, snapshot, utc  # noqa: F401


HEAD = "WFP3 + EASY, strip: 2 running, 2 waiting, 6 ended (1 failed, 2 refused); 2 s ago"


def lines(text):
    return text.split("\n")


# ----------------------------------------------------------------------------------- exact tables


def test_queue_table():
    assert lines(queue_table(snapshot(NODES, JOBS), NOW)) == [
        HEAD,
        "+----+--------+-------+--------+----------+-----------+",
        "| Id | App    | Ranks | Status | Started  | Remaining |",
        "+----+--------+-------+--------+----------+-----------+",
        "| 0  | ft.B.x | 6     | R      | 13:39:40 | 00:00:33  |",
        "| 1  | lu.B.x | 2     | R      | 13:39:50 | 00:00:28  |",
        "| 2  | mg.B.x | 8     | Q      | -        | 00:00:10  |",
        "| 3  | lu.B.x | 8     | Q      | -        | 00:02:00  |",
        "+----+--------+-------+--------+----------+-----------+",
        "job 2 has a reservation for 13:40:40, in 00:00:33",
    ]


def test_state_table():
    assert lines(state_table(snapshot(NODES, JOBS), NOW)) == [
        HEAD,
        "+------+--------+-------+--------+-----------+-----------+-----------+-----------+",
        "| Node | Socket | Taken | Status | Core 0    | Core 1    | Core 2    | Core 3    |",
        "+------+--------+-------+--------+-----------+-----------+-----------+-----------+",
        "| n0   | 0      | 4/4   | Full   | #0 ft.B.x | #0 ft.B.x | #1 lu.B.x | #1 lu.B.x |",
        "| n0   | 1      | 2/4   | Slots  | #0 ft.B.x | #0 ft.B.x | .         | .         |",
        "| n1   | 0      | 2/4   | Slots  | #0 ft.B.x | #0 ft.B.x | .         | .         |",
        "| n1   | 1      | 0/4   | Empty  | .         | .         | .         | .         |",
        "| n2   | 0      | 0/4   | Down   | .         | .         | .         | .         |",
        "| n2   | 1      | 0/4   | Down   | .         | .         | .         | .         |",
        "+------+--------+-------+--------+-----------+-----------+-----------+-----------+",
    ]


def test_no_jobs_and_no_nodes():
    empty = snapshot(ended={"completed": 0})
    assert lines(queue_table(empty, NOW)) == [
        "WFP3 + EASY, strip: 0 running, 0 waiting, 0 ended; 2 s ago",
        "+----+-----+-------+--------+---------+-----------+",
        "| Id | App | Ranks | Status | Started | Remaining |",
        "+----+-----+-------+--------+---------+-----------+",
        "+----+-----+-------+--------+---------+-----------+",
    ]
    for width in (None, 80):
        assert "| Node | Socket | Taken | Status" in state_table(empty, NOW, width)


def test_sockets_of_different_sizes():
    text = state_table(snapshot([("a", True, [[0] * 3]), ("b", True, [[None], [0, 0]])], JOBS), NOW)
    assert lines(text)[4:-1] == [
        "| a    | 0      | 3/3   | Full   | #0 ft.B.x | #0 ft.B.x | #0 ft.B.x |",
        "| b    | 0      | 0/1   | Empty  | .         |           |           |",
        "| b    | 1      | 2/2   | Full   | #0 ft.B.x | #0 ft.B.x |           |",
    ]


def test_running_jobs_stand_by_start_and_waiting_ones_as_in_the_queue():
    jobs = [queued(1, "a", 1, 9.0), running(2, "a", 1, NOW - 1, 9.0), queued(0, "a", 1, 9.0),
            running(4, "a", 1, NOW - 2, 9.0), running(3, "a", 1, NOW - 2, 9.0)]
    text = queue_table(snapshot(jobs=jobs), NOW)
    assert [line.split("|")[1].strip() for line in lines(text)[4:-1]] == ["3", "4", "2", "1", "0"]
    assert [job["id"] for job in queue_json(snapshot(jobs=jobs), NOW)["jobs"]] == [3, 4, 2, 1, 0]


def test_a_cluster_of_the_policies():
    """The view of a real cluster under strip: two jobs share a socket half and half."""
    cluster = Cluster.regular(1, 2, 4)
    policy = make_policy("strip", cluster, Heatmap({}))
    jobs = [Job(0, "ft.B.x", 4, 60.0), Job(1, "is.B.x", 3, 60.0)]
    for job in jobs:
        cluster.book(job, policy.place(job, cluster), NOW)
    view = [("n0", True, [socket.slots for socket in cluster.view()[0]])]
    shown = [running(job.id, job.app, job.procs, NOW, 60.0) for job in jobs]
    text = state_table(snapshot(view, shown), NOW)
    assert lines(text)[4:-1] == [
        "| n0   | 0      | 4/4   | Full   | #0 ft.B.x | #0 ft.B.x | #1 is.B.x | #1 is.B.x |",
        "| n0   | 1      | 3/4   | Slots  | #0 ft.B.x | #0 ft.B.x | #1 is.B.x | .         |",
    ]


# ---------------------------------------------------------------------------------------- times


@pytest.mark.parametrize("elapsed, remaining", [
    (0, "00:01:00"), (59.5, "00:00:01"), (60, "00:00:00"), (60.4, "00:00:00"), (72, "+00:00:12"),
    (60 + 3601, "+01:00:01"), (60 - 100 * 3600, "100:00:00"),
])
def test_remaining(elapsed, remaining):
    text = queue_table(snapshot(jobs=[running(0, "a", 1, NOW - elapsed, 60.0)]), NOW)
    assert lines(text)[4].split("|")[6].strip() == remaining


def test_local_time(monkeypatch):
    monkeypatch.setenv("TZ", "Europe/Athens")
    time.tzset()
    assert "| 16:39:40 |" in queue_table(snapshot(NODES, JOBS), NOW)


@pytest.mark.parametrize("age, text", [
    (0, "0 s ago"), (-30, "0 s ago"), (14.9, "14 s ago"), (599, "599 s ago"), (600, "10 min ago"),
    (7200, "2 h ago"), (86400 * 3, "3 days ago"),
])
def test_age(age, text):
    assert lines(queue_table(snapshot(time=NOW - age), NOW))[0].endswith(f"; {text}")


# ----------------------------------------------------------------------------------- head lines


@pytest.mark.parametrize("table", [queue_table, state_table])
def test_emulated_is_said_in_every_table(table):
    text = table(snapshot(NODES, JOBS, emulated=True), NOW)
    assert lines(text)[1] == ("EMULATED: 3 nodes of 2x4 on this machine, ranks oversubscribed and"
                              " unbound")
    uneven = table(snapshot([("a", True, [[None] * 3, [None]])], emulated=True), NOW)
    assert "EMULATED: 1 node of 3+1 cores on this machine" in uneven
    mixed = table(snapshot([("a", True, [[None]]), ("b", True, [[None] * 2])], emulated=True), NOW)
    assert "EMULATED: 2 nodes on this machine" in mixed


@pytest.mark.parametrize("table", [queue_table, state_table])
def test_a_silent_manager_is_told(table):
    warning = "the manager (pid 4242 on login1) has not written for {}: it may have died"
    assert lines(table(snapshot(NODES, JOBS, time=NOW - 15.5), NOW))[1] == warning.format("15 s")
    assert warning.format("2 h") in table(snapshot(NODES, JOBS, time=NOW - 7300), NOW)
    assert "may have died" not in table(snapshot(NODES, JOBS, time=NOW - 15), NOW)


@pytest.mark.parametrize("phase, line", [
    ("ended", "the manager has ended"),
    ("stopping", "the manager is stopping: it starts no more jobs"),
])
def test_phases(phase, line):
    state = snapshot(NODES, JOBS)
    state["manager"]["phase"] = phase
    assert lines(queue_table(state, NOW))[1] == line
    state["time"] = NOW - 3600
    assert ("may have died" in state_table(state, NOW)) == (phase != "ended")


def test_another_format_is_refused():
    for table in (queue_table, state_table, queue_json, state_json):
        with pytest.raises(ValueError, match="format 3 and this vrm reads formats 1 and 2"):
            table(snapshot(format=3), NOW)


def test_names_cannot_write_to_the_terminal():
    state = snapshot([("n\x1b[2J", True, [[0]])], [running(0, "a\x1b]0;x\x07\nb", 1, NOW, 60.0)])
    for table in (queue_table, state_table):
        text = table(state, NOW)
        assert "\x1b" not in text and "\x07" not in text
        assert "a\\x1b]0;x\\x07\\nb" in text


# --------------------------------------------------------------------------- wide and large tables


@pytest.mark.parametrize("width", [80, 160])
def test_wide_sockets_are_folded_into_runs(width):
    nodes = [("cn01", True, [[0] * 16 + [1] * 16 + [None] * 32, [None] * 64])]
    assert lines(state_table(snapshot(nodes, JOBS), NOW, width))[-5:] == [
        "| Node | Socket | Taken | Status | Cores                                    |",
        "+------+--------+-------+--------+------------------------------------------+",
        "| cn01 | 0      | 32/64 | Slots  | 0-15 #0 ft.B.x, 16-31 #1 lu.B.x, 32-63 . |",
        "| cn01 | 1      | 0/64  | Empty  | 0-63 .                                   |",
        "+------+--------+-------+--------+------------------------------------------+",
    ]


def test_runs_are_of_jobs_not_of_applications():
    jobs = [running(0, "ft.B.x", 1, NOW, 60.0), running(1, "ft.B.x", 1, NOW, 60.0)]
    text = state_table(snapshot([("n0", True, [[0] * 10 + [1] * 10])], jobs), NOW, 80)
    assert "| 0-9 #0 ft.B.x, 10-19 #1 ft.B.x |" in text


def test_runs_that_do_not_fit_go_on_below():
    nodes = [("n0", True, [[0, 1] * 3 + [None] * 58])]
    assert lines(state_table(snapshot(nodes, JOBS), NOW, 66))[-5:-1] == [
        "| n0   | 0      | 6/64  | Slots  | 0 #0 ft.B.x, 1 #1 lu.B.x, |",
        "|      |        |       |        | 2 #0 ft.B.x, 3 #1 lu.B.x, |",
        "|      |        |       |        | 4 #0 ft.B.x, 5 #1 lu.B.x, |",
        "|      |        |       |        | 6-63 .                    |",
    ]


def test_the_full_table_is_kept_when_it_just_fits():
    full = state_table(snapshot(NODES, JOBS), NOW)
    width = len(lines(full)[1])
    assert lines(state_table(snapshot(NODES, JOBS), NOW, width))[-9:] == lines(full)[-9:]
    assert "Cores" in state_table(snapshot(NODES, JOBS), NOW, width - 1)


@UNTIMED
@given(st.integers(60, 200), st.lists(st.sampled_from([0, 1, 7, None]), min_size=1, max_size=70),
       st.text("abcdefghijkl.", min_size=1, max_size=60))
@pytest.mark.slow
def test_no_line_is_wider_than_the_terminal(width, slots, app):
    state = snapshot([("n0", True, [slots, slots])],
                     [running(0, app, 4, NOW, 60.0), running(1, "is.B.x", 2, NOW, 5.0),
                      queued(2, app, 1, 5.0)], emulated=True, time=NOW - 100)
    for text in (queue_table(state, NOW, width), state_table(state, NOW, width)):
        assert max(map(len, lines(text))) <= width
    compact = state_table(state, NOW, 60)
    if "Cores" in compact and len(app) < 15:
        cells = [cell.split("|")[5] for cell in lines(compact) if cell.startswith(("| n0   | 0", "|      |"))]
        assert unfold(" ".join(cells).replace(",", " "))[:len(slots)] == [
            {0: f"#0{app}", 1: "#1is.B.x", 7: "job7", None: "."}[slot] for slot in slots]


def unfold(text):
    """The job on each core, from the runs of the compact form."""
    apps = []
    for numbers, app in re.findall(r"(?<![\d#])(\d+(?:-\d+)?) (job 7|#\d \S+|\.)", text):
        first, _, last = numbers.partition("-")
        apps += [app.replace(" ", "")] * (int(last or first) - int(first) + 1)
    return apps


def test_long_names_are_cut_to_the_terminal():
    text = queue_table(snapshot(jobs=[running(0, "x" * 100, 1, NOW, 60.0)]), NOW, 80)
    assert max(map(len, lines(text))) == 80 and "xxx...  |" not in text and "xxx... |" in text
    assert "x" * 100 in queue_table(snapshot(jobs=[running(0, "x" * 100, 1, NOW, 60.0)]), NOW)


def test_at_80_characters_a_queue_keeps_names_and_reasons():
    """The start times of running jobs are left out before words become useless."""
    job = {**queued(999, "solve.x", 8, 10.0), "name": "case/0137", "index": 136, "why": "needs 8 free cores, 3 free"}
    text = queue_table(snapshot(jobs=[running(0, "solve.x", 1, NOW, 60.0), job]), NOW, 80)
    assert max(map(len, lines(text))) <= 80 and "Started" not in text
    assert "| case/0137[136] |" in text and "| needs 8 fre... |" in text


@pytest.mark.parametrize("made", [tables.APART, tables.APART + 1])
def test_many_waiting_jobs_of_each_share_a_row(made):
    """Their names and arguments differ. Jobs of another line, and a job with another reason, have rows of their own."""
    def one(number, line, first, why):
        return {**queued(first + number, "solve.x", 1, 10.0), "name": f"{line}/{number:03}", "args": f"-i {number:03}.in",
                "index": number, "why": why}

    jobs = [one(0, "case", 3, "starts by 16:00"), *(one(each, "case", 3, "behind job 3") for each in range(1, made + 1)),
            *(one(each, "other", made + 4, "behind job 3") for each in range(2))]
    state = snapshot(NODES, jobs)
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines(queue_table(state, NOW))
            if line.startswith("|")][1:]
    whole = made > tables.APART
    assert [row[0] for row in rows] == ["3", *([f"4-{made + 3}"] if whole else [str(each) for each in range(4, made + 4)]),
                                        str(made + 4), str(made + 5)]
    assert rows[1][2:4] == ([f"case/0*[1-{made}]", "-i 0*"] if whole else ["case/001[1]", "-i 001.in"])
    assert len(lines(queue_table(state, NOW, each=True))) == 5 + len(jobs)
    assert [job["id"] for job in queue_json(state, NOW)["jobs"]] == [job["id"] for job in jobs]


def test_thousands_of_nodes_share_lines():
    nodes = many((3, [[0, 0]], True), (700, [[None, None]], True), (1, [[None, None]], False),
                 (2, [[1, None]], True), (4000, [[None, None]], True))
    assert lines(state_table(snapshot(nodes, JOBS), NOW))[4:-1] == [
        "| n0-n2      | 0      | 2/2   | Full   | #0 ft.B.x | #0 ft.B.x |",
        "| n3-n702    | 0      | 0/2   | Empty  | .         | .         |",
        "| n703       | 0      | 0/2   | Down   | .         | .         |",
        "| n704-n705  | 0      | 1/2   | Slots  | #1 lu.B.x | .         |",
        "| n706-n4705 | 0      | 0/2   | Empty  | .         | .         |",
    ]


def test_small_clusters_are_shown_node_by_node():
    nodes = many((tables.FOLD_ABOVE, [[None, None]], True))
    assert state_table(snapshot(nodes), NOW).count("Empty") == tables.FOLD_ABOVE


def test_only_names_that_follow_each_other_share_a_line():
    names = [f"n{i}" for i in range(60) if i != 30] + ["cn008", "cn009", "cn010", "cn11", "gpu",
                                                     "r1n0", "r1n1", "r2n2"]
    text = state_table(snapshot([(name, True, [[None]]) for name in names]), NOW)
    assert [line.split("|")[1].strip() for line in lines(text)[4:-1]] == [
        "n0-n29", "n31-n59", "cn008-cn010", "cn11", "gpu", "r1n0-r1n1", "r2n2"]


def test_two_jobs_of_one_application_do_not_share_a_line():
    jobs = [running(0, "ft.B.x", 1, NOW, 60.0), running(1, "ft.B.x", 1, NOW, 60.0)]
    nodes = many((40, [[0]], True), (40, [[1]], True))
    text = state_table(snapshot(nodes, jobs), NOW)
    assert [line.split("|")[1].strip() for line in lines(text)[4:-1]] == ["n0-n39", "n40-n79"]


def test_waiting_jobs_can_be_limited():
    jobs = [running(0, "ft.B.x", 6, NOW, 60.0),
            *(queued(i, "mg.B.x", 8, 10.0) for i in range(1, 5001))]
    assert len(lines(queue_table(snapshot(jobs=jobs), NOW))) == 5 + 5001
    short = lines(queue_table(snapshot(jobs=jobs), NOW, limit=2))
    assert [line.split("|")[1].strip() for line in short[4:-2]] == ["0", "1", "2"]
    assert short[-1] == "... and 4998 more waiting; `vrm queue --all` shows them" and "5000 waiting" in short[0]


# --------------------------------------------------------------------------------------- as JSON


def queue_json(*arguments: Any) -> dict[str, Any]:
    """The data, with a list of all jobs."""
    data = tables.queue_json(*arguments)
    return {**data, "jobs": list(data["jobs"])}


def test_queue_json():
    found = queue_json(snapshot(NODES, JOBS), NOW)
    assert json.loads(json.dumps(found)) == found
    jobs = found.pop("jobs")
    assert found == {
        "format": 2, "time": NOW - 2, "age": 2, "stale": False, "emulated": False,
        "manager": {"host": "login1", "pid": 4242, "start": NOW - 60, "phase": "running"},
        "scheduling": {"algorithm": "WFP3", "backfilling": "easy", "policy": "strip"},
        "ended": {"completed": 3, "failed": 1, "timeout": 0, "cancelled": 0, "refused": 2}}
    assert [job["id"] for job in jobs] == [0, 1, 2, 3]
    assert jobs[0] == {**JOB, "devices": "", "id": 0, "app": "ft.B.x", "procs": 6, "state": "running",
                       "submit": NOW - 32, "estimate": 60, "exclusive": False, "start": NOW - 27,
                       "remaining": 33, "expected_start": None, "nodes": ["n0"],
                       "priority": 0, "held": False, "after": "", "late": False, "lacks": "", "forecast": None,
                       "name": "", "args": "", "dir": "", "index": None, "why": "",
                           "cores": 1, "retries": 0}
    assert jobs[2] == {**JOB, "devices": "", "id": 2, "app": "mg.B.x", "procs": 8, "state": "queued",
                       "submit": NOW - 10, "estimate": 10, "exclusive": False, "start": None,
                       "remaining": 10, "expected_start": NOW + 33, "nodes": [],
                       "priority": 0, "held": False, "after": "", "late": False, "lacks": "", "forecast": None,
                       "name": "", "args": "", "dir": "", "index": None, "why": "",
                           "cores": 1, "retries": 0}


def test_state_json():
    found = state_json(snapshot(NODES, JOBS, time=NOW - 60), NOW)
    assert json.loads(json.dumps(found)) == found
    assert found["stale"] and found["age"] == 60
    assert [(node["name"], node["up"]) for node in found["nodes"]] == [
        ("n0", True), ("n1", True), ("n2", False)]
    assert found["nodes"][0]["sockets"] == [
        {"socket": 0, "taken": 4, "status": "Full", "jobs": [0, 0, 1, 1],
         "apps": ["ft.B.x", "ft.B.x", "lu.B.x", "lu.B.x"]},
        {"socket": 1, "taken": 2, "status": "Slots", "jobs": [0, 0, None, None],
         "apps": ["ft.B.x", "ft.B.x", None, None]}]
    assert found["nodes"][2]["sockets"][0]["status"] == "Down"


def test_nothing_changes_the_snapshot():
    state = snapshot(NODES, JOBS)
    before = copy.deepcopy(state)
    for show in (queue_table, state_table, queue_json, state_json):
        show(state, NOW)
    assert state == before


# -------------------------------------------------------------------------------------- watching


class Frames:
    """Renders what it is given, one after another; an exception is raised; then stops."""

    def __init__(self, *frames):
        self.frames = list(frames)
        self.stop = threading.Event()

    def __call__(self):
        frame = self.frames.pop(0)
        if not self.frames:
            self.stop.set()
        if isinstance(frame, Exception):
            raise frame
        return frame


def test_watch_into_a_file_goes_on_below():
    out = io.StringIO()
    render = Frames("one\n", "two", "three")
    watch(render, 0.001, render.stop, out)
    assert out.getvalue() == f"one\n{'-' * 40}\ntwo\n{'-' * 40}\nthree\n"


def test_watch_goes_on_while_the_file_is_missing():
    out = io.StringIO()
    render = Frames("one", FileNotFoundError(2, "No such file", "state"), ValueError("bad"), "two")
    watch(render, 0.001, render.stop, out)
    shown = out.getvalue().split(f"{'-' * 40}\n")
    assert re.fullmatch(r"\d\d:\d\d:\d\d \[Errno 2\] No such file: 'state'\none\n", shown[1])
    assert re.fullmatch(r"\d\d:\d\d:\d\d bad\none\n", shown[2])
    assert shown[3] == "two\n"


def test_watch_does_not_hide_other_errors():
    with pytest.raises(ZeroDivisionError):
        watch(Frames(ZeroDivisionError()), 0.001, out=io.StringIO())


def test_watch_tells_who_calls_that_nobody_reads():
    reader, writer = os.pipe()
    os.close(reader)
    with pytest.raises(BrokenPipeError), open(writer, "w") as out:
        watch(lambda: "text", 0.001, out=out)


ENTER, LEAVE = "\x1b[?1049h\x1b[?25l\x1b[?7l", "\x1b[?7h\x1b[?25h\x1b[?1049l"


class Terminal:
    """A pseudo terminal of a given size; `read_until` gives what was written to it."""

    def __init__(self, rows, columns):
        self.leader, self.follower = pty.openpty()
        size = struct.pack("HHHH", rows, columns, 0, 0)
        fcntl.ioctl(self.follower, termios.TIOCSWINSZ, size)
        self.seen = ""

    def read_until(self, text, times=1):
        deadline = time.monotonic() + 60
        while self.seen.count(text) < times:
            assert select.select([self.leader], [], [], max(0, deadline - time.monotonic()))[0], (
                f"{text!r} did not come, only {self.seen!r}")
            self.seen += os.read(self.leader, 65536).decode()
        return self.seen

    def close(self):
        os.close(self.leader)
        os.close(self.follower)


@pytest.fixture
def terminal():
    terminal = Terminal(5, 20)
    yield terminal
    terminal.close()


def test_watch_redraws_in_place(terminal):
    render = Frames("one\ntwo", "three", "\n".join(f"line {i}" for i in range(9)), "x" * 30)
    with open(os.dup(terminal.follower), "w", newline="\n") as out:
        watch(render, 0.001, render.stop, out)
    shown = terminal.read_until(LEAVE)
    assert shown.startswith(ENTER) and shown.endswith(LEAVE)
    frames = shown[len(ENTER):-len(LEAVE)].replace("\r\n", "\n").split("\x1b[H")
    assert frames == [
        "", "\x1b[Kone\n\x1b[Ktwo\n\x1b[J", "\x1b[Kthree\n\x1b[J",
        "\x1b[Kline 0\n\x1b[Kline 1\n\x1b[Kline 2\n\x1b[Kline 3\n\x1b[K... 5 more lines: a ",
        f"\x1b[K{'x' * 20}\n\x1b[J"]


PROGRAM = """
import sys, threading
from vrm.report.watching import watch
count = 0
def render():
    global count
    count += 1
    return f"frame {count}"
watch(render, float(sys.argv[1]))
print("went on")
"""


@pytest.mark.parametrize("number, code, after", [
    (signal.SIGINT, 0, "went on"), (signal.SIGTERM, 143, "")])
@pytest.mark.parametrize("interval", [0.001, 3600])
@pytest.mark.slow
def test_watch_leaves_the_terminal_in_order(terminal, number, code, after, interval):
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, str(interval)],
                               stdout=terminal.follower, stderr=subprocess.PIPE, text=True)
    try:
        terminal.read_until("frame 1")
        process.send_signal(number)
        shown = terminal.read_until(LEAVE)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert errors == "" and process.returncode == code
    if after:
        shown = terminal.read_until(after)
    assert shown.count(ENTER) == shown.count(LEAVE) == 1


def test_watch_gives_the_signals_back():
    before = signal.getsignal(signal.SIGTERM)
    render = Frames("one")
    watch(render, 0.001, render.stop, io.StringIO())
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("facts, shown", [
    ({}, "Q"), ({"held": False, "after": [], "late": False, "lacks": ""}, "Q"), ({"held": True}, "held"),
    ({"held": True, "after": [1], "late": True}, "held"), ({"after": [4]}, "after 4"),
    ({"after": [4, 5, 6, 7]}, "after 4-7"), ({"late": True}, "late"),
    ({"after": "4,6,9-12,20"}, "after 4,6,9-12,..."),
])
def test_why_a_job_waits(facts, shown):
    job = {**next(job for job in JOBS if job["state"] == "queued"), **facts}
    line = queue_table(snapshot(NODES, [job]), NOW).splitlines()[4]
    assert line.split("|")[4].strip() == shown


@pytest.mark.parametrize("made", [tables.APART, tables.APART + 1])
def test_many_waiting_jobs_of_an_array_share_a_row(made: int) -> None:
    """Each has its own row where they are few, or where that is asked for; all are counted, and all are in the JSON."""
    job = {**ARRAY, "ids": f"3-{made + 2}", "indices": f"0-{2 * made - 2}:2"}
    state = snapshot(NODES, [JOBS[0], job, queued(1000, "other.x", 1, 5.0)], format=2)

    def cells(**how: Any) -> list[list[str]]:
        return [[cell.strip() for cell in line.split("|")[1:-1]]
                for line in queue_table(state, NOW, **how).splitlines() if line.startswith("|")][2:]

    apart = cells(each=True)
    assert [row[0] for row in apart] == [*(str(number) for number in range(3, made + 3)), "1000"]
    assert [row[2] for row in apart[:2]] == ["sweep[0]", "sweep[2]"]
    assert cells() == apart if made == tables.APART else [[row[0], *row[2:4]] for row in cells()] == [
        [job["ids"], f"sweep[{job['indices']}]", "-i %i -o 'a b'"], ["1000", "", ""]]
    assert len(cells(limit=1)) == 1
    for how in ({}, {"each": True}, {"limit": 1}):
        assert f"1 running, {made + 1} waiting" in queue_table(state, NOW, **how)
    assert [job["id"] for job in queue_json(state, NOW)["jobs"]] == [JOBS[0]["id"], *range(3, made + 3), 1000]


def test_a_row_of_many_jobs_names_the_first_of_long_lists() -> None:
    job = {**ARRAY, "ids": ",".join(map(str, range(3, 90, 4))), "indices": "1,5,6,9-27"}
    row = queue_table(snapshot(NODES, [job], format=2), NOW).splitlines()[4].split("|")
    assert (row[1].strip(), row[3].strip()) == ("3,7,11,...", "sweep[1,5,6,...]")


ARRAY = queued(None, "part.x", 2, 60.0, name="sweep", args="-i %i -o 'a b'", why="behind job 2",
               dir="/data", after="0-2", ids="3-5", indices="10-14:2")


def test_neighbours_that_are_one_value_in_the_state_are_jobs_again():
    state = snapshot(NODES, [JOBS[0], ARRAY], format=2)
    jobs = queue_json(state, NOW)["jobs"]
    assert [(job["id"], job["index"], job["args"]) for job in jobs[1:]] == [
        (3, 10, "-i 10 -o 'a b'"), (4, 12, "-i 12 -o 'a b'"), (5, 14, "-i 14 -o 'a b'")]
    assert {(job["name"], job["dir"], job["after"], job["why"]) for job in jobs[1:]} == {
        ("sweep", "/data", "0-2", "behind job 2")}
    assert "1 running, 3 waiting" in queue_table(state, NOW)


def test_the_table_has_columns_for_what_tells_jobs_apart_and_for_why_they_wait():
    state = snapshot(NODES, [JOBS[0], ARRAY], format=2)
    table = [[cell.strip() for cell in line.split("|")[1:-1]]
             for line in queue_table(state, NOW).splitlines() if line.startswith("|")]
    assert table[0] == ["Id", "App", "Name", "Args", "Ranks", "Status", "Started", "Remaining",
                        "Why"]
    assert table[2] == ["3", "part.x", "sweep[10]", "-i 10 -o 'a b'", "2", "after 0-2", "-",
                        "00:01:00", "behind job 2"]


@pytest.mark.parametrize("width", [120, 100, 80])
def test_long_names_and_reasons_are_cut_to_the_terminal(width):
    job = {**ARRAY, "args": "-x " * 60, "why": "needs 12 empty nodes, 3 empty; next 14:02:10"}
    for line in queue_table(snapshot(NODES, [JOBS[0], job], format=2), NOW, width=width).splitlines():
        assert len(line) <= width


@pytest.mark.parametrize("width", [40, 50, 80])
def test_a_queue_fits_on_narrow_screens(width: int) -> None:
    """Columns are left out where cutting them is not enough; ids and states stay."""
    jobs = [running(0, "cg.A.x", 4, NOW, 60.0), queued(1, "ft.A.x", 4, 60.0)]
    for job in jobs:
        job.update(name="a name", args="-n 100", why="needs 1 empty node, 0 empty")
    rows = [line for line in queue_table(snapshot(jobs=jobs), NOW, width=width).splitlines()
            if line.startswith(("|", "+"))]
    assert max(map(len, rows)) <= width and "| Id | App" in rows[1] and "Status" in rows[1]
