"""`vrm compare`: its figures against plain arithmetic and the simulator's own, its picture, and
what it says about directories that are no runs."""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from vrm.ext.study.report.plotting import chart_label
from vrm.cli import main
from vrm.ext.study.report import compare
from vrm.results.jobs import JobRow, JobWriter

Times = tuple[float, float | None, float | None]  # submission, start, end


def make_run(directory: Path, *jobs: Times, procs: int = 2) -> Path:
    directory.mkdir(parents=True)
    with JobWriter(directory / "jobs.csv") as writer:
        for number, (submit, start, end) in enumerate(jobs):
            status = "refused" if start is None else "completed"
            writer.write(JobRow(number, "cg.A.x", procs, submit, start, end, 60, status))
    return directory


def found(capsys: Any, *words: Any) -> dict[str, Any]:
    assert main(["compare", *map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_figures_of_a_live_run(tmp_path: Path, capsys: Any) -> None:
    first = make_run(tmp_path / "one", (100, 100, 120), (100, 110, 150), (110, 140, 145),
                     (115, None, None))
    second = make_run(tmp_path / "two", (100, 100, 120), (100, 105, 145), (110, 125, 130),
                      (115, None, None))
    (first / "state").write_text(json.dumps({
        "scheduling": {"algorithm": "WFP3", "backfilling": "easy", "policy": "strip"},
        "nodes": [{"name": "n0", "up": True, "sockets": [[None, 7], [None, None]]}]}))
    one, two = found(capsys, first, second)["runs"]
    assert (one["name"], one["algorithm"], one["backfilling"], one["policy"], one["processors"]) \
        == ("one", "WFP3", "easy", "strip", 4)
    assert one["jobs"] == 3 and one["makespan"] == 50
    assert one["wait"] == {"count": 3, "mean": pytest.approx(40 / 3), "median": 10,
                           "p95": pytest.approx(28), "maximum": 30}
    assert one["average_bounded_slowdown"] == pytest.approx((1 + 50 / 40 + 35 / 10) / 3)
    assert one["utilisation"] == pytest.approx(2 * (20 + 40 + 5) / (4 * 50))
    assert one["wait_ratio"] == 1 and two["wait_ratio"] == pytest.approx(0.5)
    assert (two["algorithm"], two["processors"], two["utilisation"]) == (None, None, None)
    assert two["same_jobs"]

    assert main(["compare", str(first), str(second)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert cells(lines[3]) == ["one", "WFP3 + EASY, strip", "3", "13.3", "10.0", "28.0", "30.0",
                               "1.92", "0.650", "50.0", "1.000"]
    assert cells(lines[4]) == ["two", "-", "3", "6.67", "5.00", "14.0", "15.0", "1.38", "-",
                               "45.0", "0.500"]
    assert "not the same jobs" not in lines[-1]


def test_figures_are_those_of_the_simulator(tmp_path: Path, capsys: Any) -> None:
    directories = []
    for algorithm, backfill in (("fcfs", "none"), ("wfp3", "easy")):
        directories.append(tmp_path / f"{algorithm}-{backfill}")
        assert main(["simulate", "lublin:32:200", "--policy", "compact", "--algorithm", algorithm, "--backfill", backfill,
                     "--out", str(directories[-1])]) == 0
    capsys.readouterr()
    runs = found(capsys, *directories)["runs"]
    for directory, run in zip(directories, runs):
        told = json.loads((directory / "summary.json").read_text())
        for key in ("algorithm", "backfilling", "policy", "jobs", "makespan"):
            assert run[key] == told[key]
        assert run["processors"] == 32 and run["same_jobs"]
        assert run["wait"] == pytest.approx(told["wait"])
        for key in ("utilisation", "average_bounded_slowdown"):
            assert run[key] == pytest.approx(told[key])
    assert main(["compare", *map(str, directories)]) == 0
    text = capsys.readouterr().out
    assert "| WFP3 + EASY |" in text and "placement: compact in all" in text


def test_runs_of_other_jobs_are_told(tmp_path: Path, capsys: Any) -> None:
    jobs = [(0, 1, 2), (0, 2, 3)]
    runs = [make_run(tmp_path / "a", *jobs), make_run(tmp_path / "b", *jobs[:1]),
            make_run(tmp_path / "c", *jobs), make_run(tmp_path / "d", *jobs, procs=3)]
    assert main(["compare", *map(str, runs)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == \
        "not the same jobs as in a ran in: b, d"


def test_runs_of_one_name_are_told_apart(tmp_path: Path, capsys: Any) -> None:
    runs = [make_run(tmp_path / part / "out", (0, 1, 2)) for part in "ab"]
    assert [run["name"] for run in found(capsys, *runs)["runs"]] == [str(run) for run in runs]


@pytest.mark.slow
def test_a_first_run_without_waits_has_no_ratio(tmp_path: Path, capsys: Any) -> None:
    pytest.importorskip("matplotlib")
    runs = [make_run(tmp_path / "a", (0, 0, 2)), make_run(tmp_path / "b", (0, 1, 2))]
    picture = tmp_path / "c.svg"
    assert [run["wait_ratio"] for run in found(capsys, *runs, "--out", picture)["runs"]] \
        == [None, None]
    assert picture.stat().st_size


@pytest.fixture
def four(tmp_path: Path) -> list[Path]:
    return [make_run(tmp_path / name, *((i, i + factor * (i % 40) ** 2, i + 9000)
                                        for i in range(2000)))
            for name, factor in (("fcfs", 5.5), ("easy$", 0.02), ("wfp3$", 0.3), ("cons", 1))]


@pytest.mark.slow
def test_a_png_is_wide_enough_and_small(four: list[Path], tmp_path: Path, capsys: Any) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "c.png"
    assert main(["compare", *map(str, four), "--out", str(picture)]) == 0
    assert f"drawn: {picture}" in capsys.readouterr().out
    content = picture.read_bytes()
    assert content.startswith(b"\x89PNG")
    assert struct.unpack(">I", content[16:20])[0] >= 900 and len(content) < 120_000


@pytest.mark.slow
def test_an_svg_has_every_run_in_every_panel(four: list[Path], tmp_path: Path,
                                             capsys: Any) -> None:
    pytest.importorskip("matplotlib")
    pictures = [tmp_path / "c.svg", tmp_path / "again.svg"]
    for picture in pictures:
        assert main(["compare", *map(str, four), "--out", str(picture)]) == 0
    text = pictures[0].read_text()
    assert text == pictures[1].read_text()
    for path, colour in zip(four, compare.COLOURS):
        # Two points with their edges, a curve and its key; the text of a label is before its
        # outlines.
        assert text.count(colour.lower()) >= 4
        assert text.count(f"<!-- {path.name} -->") == 3
    assert text.count("<!-- logarithmic -->") == 1  # means from 10 to 2824 s
    assert "<!-- 47.1 min -->" in text and "<!-- 10 min -->" in text


@given(st.lists(st.integers(0, 9), min_size=1, max_size=60).map(sorted))
def test_steps_are_the_empirical_distribution(waits: list[int]) -> None:
    times, shares = compare.steps(waits)
    assert times == sorted(set(waits))
    assert shares == [sum(wait <= time for wait in waits) / len(waits) for time in times]


@given(st.integers(compare.POINTS, 20 * compare.POINTS), st.integers(1, 5000))
def test_steps_of_many_values_are_few_and_exact(count: int, different: int) -> None:
    waits = sorted(number * 7919 % different for number in range(count))
    times, shares = compare.steps(waits)
    assert len(times) <= compare.POINTS + 1
    assert (times[0], times[-1], shares[-1]) == (waits[0], waits[-1], 1)
    for index in (0, len(times) // 2):
        assert shares[index] == sum(wait <= times[index] for wait in waits) / count


@pytest.mark.parametrize("words, message", [
    (["none"], "none: there is no jobs.csv; name what `vrm simulate --out` wrote"),
    (["good", "good/jobs.csv"], "there is no jobs.csv"),
    (["good", "idle"], "none of its 1 jobs ran"),
    (["empty"], "none of its 0 jobs ran"),
    (["other"], "jobs.csv:1: this is not a list of jobs"),
    (["broken"], "summary.json: vrm has not written this"),
    (["good", "--out", "c.gif"], "ends in .png or .svg"),
    (["good", "--out", "none/c.png"], "cannot write none/c.png"),
])
def test_messages(words: list[str], message: str, tmp_path: Path, capsys: Any,
                  monkeypatch: pytest.MonkeyPatch) -> None:
    if words[-1].endswith(".png"):
        pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "good", (0, 1, 2))
    make_run(tmp_path / "idle", (0, None, None))
    make_run(tmp_path / "empty")
    (make_run(tmp_path / "broken", (0, 1, 2)) / "summary.json").write_text("[]")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "jobs.csv").write_text("a,b\n1,2\n")
    assert main(["compare", *words]) == 2
    out, error = capsys.readouterr()
    assert message in error and error.startswith("vrm: ") and error.count("\n") == 1
    assert out == ""


def test_without_matplotlib(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path / "a", (0, 1, 2))
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["compare", str(run)]) == 0
    assert "| a " in capsys.readouterr().out
    assert main(["compare", str(run), "--out", str(tmp_path / "c.png")]) == 2
    error = capsys.readouterr().err
    assert "-m pip install matplotlib Jinja2`" in error and error.count("\n") == 1
    assert not (tmp_path / "c.png").exists()


@pytest.mark.parametrize("name, shown", [
    ("FCFS + EASY", "FCFS + EASY"), ("my_policies:short_and_old + conservative", "short_and_old\n+ conservative"),
    ("my.policies:mine + a.b:other", "mine + other"), ("lublin:16:60", "lublin:16:60"), ("a$b$", r"a\$b\$"),
    ("a_name_that_is_much_too_long + EASY", "a_name_that_is_mu…\n+ EASY")])
def test_names_in_pictures_keep_what_tells_them_apart(name: str, shown: str) -> None:
    assert chart_label(name) == shown
