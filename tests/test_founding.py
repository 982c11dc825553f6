"""The study of the founding experiments: its command on made-up queues, its imitation of the old
backfilling, and its figures on the recorded queues where these are at hand.
"""

from __future__ import annotations

import csv
import importlib.util
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from vrm.model import Job
from vrm.api import Machine, Rules, Submission, simulate

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "studies" / "founding" / "compare.py"
DATA = Path(os.environ.get("VRM_REFERENCE_DATA", ROOT.parent / "shared" / "data"))

# program, ranks, estimated seconds, exclusive, seconds to the next line
QUEUE = [("bt.C.x", 64, 100, 0, 3), ("cg.C.x", 160, 40, 0, 4), ("ep.C.x", 2, 20, 0, 5),
         ("ft.C.x", 128, 60, 1, 3), ("mg.C.x", 20, 30, 0, 6), ("sp.C.x", 40, 90, 0, 3),
         ("is.C.x", 4, 10, 0, 3), ("lu.C.x", 160, 50, 0, 9)]
POOL = {"machine": "m", "suite": "s", "loads": [json.dumps({
    "load_name": name, "num_of_processes": 256, "compact_timelogs": [100.0],
    "coscheduled_timelogs": {other: [[50.0 if name.startswith("bt") else 100.0]]
                             for other in ("bt.D.256", "cg.D.256", "sp.D.256")}})
    for name in ("bt.D.256", "cg.D.256", "sp.D.256")]}


def study() -> Any:
    """The study as a module."""
    spec = importlib.util.spec_from_file_location("founding_compare", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def queues(tmp_path: Path) -> Path:
    """A directory with a made-up queue under the name of a recorded one."""
    (tmp_path / "queues").mkdir()
    (tmp_path / "queues" / "class-c-a.rewind").write_text(
        "".join(" ".join(map(str, line)) + "\n" for line in QUEUE))
    return tmp_path / "queues"


def run(*arguments: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *map(str, arguments)], text=True,
                          capture_output=True, timeout=120, check=False,
                          env={**os.environ, "PYTHONPATH": str(ROOT)})


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(text.splitlines()))


@pytest.mark.slow
def test_the_command_compares_all_scenarios(queues: Path, tmp_path: Path) -> None:
    pool = tmp_path / "pool.json"
    pool.write_text(json.dumps(POOL))
    out = tmp_path / "out"
    done = run("--queues", queues, "--heatmap", pool, "--out", out)
    assert done.returncode == 0, done.stderr
    assert done.stdout == (out / "comparison.txt").read_text()
    for word in ("compact FCFS+BF", "strip WFP3", "measured speed-up", "class-c-a, 16 nodes"):
        assert word in done.stdout and word in (out / "comparison.md").read_text()
    assert (out / "comparison.png").read_bytes()[:4] == b"\x89PNG"
    assert (out / "comparison.svg").read_text().startswith("<?xml")
    rows = rows_of((out / "comparison.csv").read_text())
    assert [(row["policy"], row["algorithm"], row["backfilling"]) for row in rows] == [
        (policy, algorithm, backfilling) for policy in ("compact", "strip")
        for algorithm in ("FCFS", "WFP3") for backfilling in ("none", "easy")]
    first = rows[0]
    assert (first["published_waiting"], first["published_turnaround"]) == ("485.52", "598.42")

    # Under compact the run times have the published mean, and nothing else changes them.
    for row in rows[:4]:
        for kind in ("imitated", "easy", "event", "unlimited"):
            assert row[f"{kind}_running"] == f"{float(row['published_running']):.2f}"
    # Under strip the work is that of compact, and BT is faster beside others that fill a node.
    for row, compact in zip(rows[4:], rows):
        assert float(row["imitated_running"]) < float(compact["imitated_running"])

    # FCFS where nodes are never short: a start at each tick from the job's line on.
    ticks, time, waits = -1, 0, []
    for _, _, _, _, delay in QUEUE:
        ticks = max(ticks + 1, math.ceil(time / 10))
        waits.append(10 * ticks - time)
        time += delay
    assert float(first["unlimited_waiting"]) == pytest.approx(sum(waits) / len(waits), abs=0.01)
    # Without backfilling the old rule and EASY are the same; more decisions never hurt here.
    for row in rows:
        if row["backfilling"] == "none":
            assert row["imitated_waiting"] == row["easy_waiting"]
        assert float(row["event_waiting"]) <= float(row["imitated_waiting"])


@pytest.mark.slow
def test_without_co_run_times_strip_has_the_published_mean(queues: Path) -> None:
    done = run("--queues", queues, "--json", "--held", 5)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    for one in found["scenarios"]:
        known = one["published"]
        assert one["imitated"]["running"] == pytest.approx(known["running"])
        assert one["event"]["turnaround"] == pytest.approx(
            one["event"]["waiting"] + known["running"])
    assert any("no co-run times given" in note for note in found["assumptions"])
    assert "nodes are held for the run time and 5 s more" in found["assumptions"]


def test_a_pool_that_matches_no_program_is_said(queues: Path, tmp_path: Path) -> None:
    module = study()
    own = [one for one in module.read_published() if one.queue == "class-c-a"]
    for old, new in (("none", "none"), ("bt.D", "pop2.X"), ("cg.D", "wrf.X"), ("sp.D", "imagick.X")):
        pool = tmp_path / "pool.json"
        pool.write_text((pool.read_text() if pool.exists() else json.dumps(POOL)).replace(old, new))
    other = module.Study(queues / "class-c-a.rewind", own, module.CoRun(pool))
    other.run()
    notes = other.notes()
    assert notes[0].startswith("class-c-a under strip: no program of the queue is in the co-run times; what strip ")
    assert re.match(r"class-c-a under strip: \d jobs ran with others at speed 1: the heatmap has no such pair", notes[1])
    _found, notes = module.compare(queues, module.CoRun(pool))
    assert any("every job has speed 1, alone and with others" in note for note in notes)
    assert not any("measured speed-up of the two applications" in note for note in notes)
    assert any("no program of the queue" in note for note in notes)


@pytest.mark.parametrize("content, message", [
    (None, "none of the recorded queues is there; they are files named class-b-a,"),
    ("", "not a recorded queue, whose lines are program, ranks"),
    ("bt.B.x many 5 0 3\n", "not a recorded queue"),
    ("bt.B.x 65 5 0 3\n", "1 job(s) of the queue do not fit on 16 nodes under strip"),
])
@pytest.mark.slow
def test_what_cannot_be_studied_is_told(tmp_path: Path, content: Any, message: str) -> None:
    if content is not None:
        (tmp_path / "class-b-b.rewind").write_text(content)
    done = run("--queues", tmp_path)
    assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr


def test_the_old_backfilling_is_as_the_thesis_has_it() -> None:
    """Six one-core nodes, of which 1 and 2 hold four until 10 and 20; the head 3 wants five.

    It misses three, and the third smallest of 10, 10, 20, 20 is 20. Job 4 may start, for it ends
    by then. The next in the queue, 5, is short and a node is free, but it is passed over. 6 would
    run past the window; EASY lets it, on the node that the head leaves over.
    """
    rows = [(1, 2, 10), (2, 2, 20), (3, 5, 5), (4, 1, 15), (5, 1, 1), (6, 1, 40)]
    jobs = [Submission(Job(number, "a", procs, estimate, 0.0), estimate)
            for number, procs, estimate in rows]

    def starts(backfill: Any) -> dict[int, float]:
        return {row.id: row.start for row in simulate(jobs, Machine.of(6), Rules(backfill=backfill)).jobs}

    assert starts(study().FoundingBackfilling()) == {1: 0, 2: 0, 3: 20, 4: 0, 5: 10, 6: 20}
    assert starts("easy") == {1: 0, 2: 0, 3: 20, 4: 0, 5: 0, 6: 1}


def test_the_published_figures_have_the_published_means() -> None:
    """Averages over the queues of a class, as the thesis prints them too."""
    published = study().read_published()
    assert len(published) == 56
    means = {("class-b", "compact", "FCFS"): (285.26, 91.25), ("class-c", "strip", "WFP3+BF"):
             (363.20, 101.09), ("class-d", "strip", "FCFS+BF"): (474.74, 167.13),
             ("class-b", "strip", "WFP3+BF"): (193.97, 89.10),
             ("class-d", "compact", "FCFS"): (759.46, 192.54)}
    for (kind, policy, name), (waiting, running) in means.items():
        found = [one for one in published if one.queue.startswith(kind)
                 and (one.policy, one.name) == (policy, name)]
        assert sum(one.waiting for one in found) / len(found) == pytest.approx(waiting, abs=0.02)
        assert sum(one.running for one in found) / len(found) == pytest.approx(running, abs=0.02)


@pytest.fixture(scope="module")
def recorded() -> Path:
    directory = DATA / "thesis-queues"
    if not directory.is_dir():
        pytest.skip(f"{directory} is not there (name its parent in VRM_REFERENCE_DATA)")
    return directory


def test_the_recorded_queues_give_these_figures(recorded: Path) -> None:
    """Average waiting under compact: imitated, with EASY in its place, event-driven."""
    expected = {
        ("class-b-a", "FCFS"): (198, 198, 112), ("class-b-a", "FCFS+BF"): (115, 99, 57),
        ("class-b-a", "WFP3"): (152, 152, 82), ("class-b-a", "WFP3+BF"): (135, 132, 37),
        ("class-c-a", "FCFS"): (470, 470, 167), ("class-c-a", "FCFS+BF"): (289, 303, 64),
        ("class-c-a", "WFP3"): (379, 379, 64), ("class-c-a", "WFP3+BF"): (379, 379, 43),
    }
    module = study()
    found, _ = module.compare(recorded)
    shown = {(one.published.queue, one.published.name): tuple(
        round(value.waiting) for value in (one.imitated, one.easy, one.event))
        for one in found if one.published.policy == "compact"}
    assert {key: shown[key] for key in expected} == expected
    assert len(found) == 56 and all(one.event.waiting < one.imitated.waiting for one in found)
    # The ratios that the documents print, like for like: imitated by event-driven.
    assert next(line[:110] for line in module.ranges(found)).startswith(
        "compact: waiting with the imitated loop is 1.2 to 92.0 times that of event-driven, both in "
        "virtual time")
    table = (ROOT / "tests" / "data" / "founding" / "compact.md").read_text(encoding="utf-8").splitlines()
    assert ["| " + " | ".join(module._cells(one)) + " |" for one in found if one.published.policy == "compact"] == table
    rows = (ROOT / "docs" / "research" / "founding.md").read_text(encoding="utf-8")
    for queue, group in module.by_queue(found).items():
        ratios = [one.imitated.waiting / one.event.waiting for one in group if one.published.policy == "compact"]
        digits = 1 if max(ratios) < 10 else 0
        assert re.search(rf"^\| {queue} \| [^|]* \| {min(ratios):.{digits}f} to {max(ratios):.{digits}f} \|", rows, re.M), queue


def test_running_times_under_strip_are_those_of_the_document(recorded: Path) -> None:
    """Class C and D: the change from compact to strip, published and imitated."""
    pool = DATA / "corun" / "aris-nas.json"
    module = study()
    published = module.read_published()
    changes: dict[str, list[float]] = {}
    for name, path in module.find_queues(recorded, published).items():
        own = [one for one in published if one.queue == name]
        if own[0].machine == "aris":
            for one in module.Study(path, own, module.CoRun(pool)).run():
                if one.published.policy == "strip":
                    before = next(other.running for other in own if (other.policy, other.name)
                                  == ("compact", one.published.name))
                    changes.setdefault(name[:7], []).append(
                        100 * (one.imitated.running / before - 1))
    assert min(changes["class-c"]) >= -3 and max(changes["class-c"]) <= -1.9
    assert min(changes["class-d"]) >= -10.4 and max(changes["class-d"]) <= -8.4


@pytest.mark.parametrize("fills, alone, faster", [
    ("node", "one", {"bt.C.64"}), ("socket", "one", {"bt.C.64", "bt.C.10"}),
    ("any", "best", {"bt.C.64", "bt.C.10", "bt.C.4"})])
def test_which_jobs_measured_speeds_are_taken_for(queues: Path, tmp_path: Path, fills: str,
                                                  alone: str, faster: Any) -> None:
    (queues / "class-c-a.rewind").write_text(
        "".join(f"bt.C.x {procs} 10 0 3\n" for procs in (64, 10, 4)))
    pool = tmp_path / "pool.json"
    pool.write_text(json.dumps(POOL))
    module = study()
    own = [one for one in module.read_published() if one.queue == "class-c-a"]
    speeds = module.Study(queues / "class-c-a.rewind", own,
                          module.CoRun(pool, fills, alone)).speedups
    assert set(speeds.pairs) == faster
    assert all(row == dict.fromkeys(faster, 2.0) for row in speeds.pairs.values())
    assert speeds.spare == (dict.fromkeys(faster, 2.0) if alone == "best" else {})


@pytest.mark.slow
def test_the_assumptions_about_strip_are_compared(queues: Path, tmp_path: Path) -> None:
    pool = tmp_path / "pool.json"
    pool.write_text(json.dumps(POOL))
    done = subprocess.run([sys.executable, str(SCRIPT.with_name("strip.py")), "--queues",
                           str(queues), "--heatmap", str(pool)], text=True, capture_output=True,
                          timeout=120, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[2] == "| published | | -3 % |" and len(lines) == 9
    assert "| a socket or more | as with the best partner | -" in lines[7]
