"""`vrm report`: figures against plain arithmetic, tables in every format, pictures, and the page in
a real browser without network."""

from __future__ import annotations

import csv
import html.parser
import io
import json
import math
import re
import shutil
import statistics as plain_statistics
import struct
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any
from collections.abc import Sequence

import pytest
from hypothesis import given, settings, strategies as st

from vrm.cli import main
from vrm.ext.study.report.table_formats import ReportColumn, Table, latex
from vrm.ext.study.report.job_table import JobTable
from vrm.ext.study.report.study import StudyRun, StudyError
from vrm.ext.study.report.study_files import read_study
from vrm.ext.study.report.study_findings import findings
from vrm.ext.study.report.study_tables import tables
from vrm.results.jobs import JobRow, JobWriter
from vrm.results.job_columns import JobFileError
from vrm.results.placement_text import fold_nodes, unfold_nodes
from vrm.ext.study.confidence import interval, t_quantile

Job = tuple[str, float, float, float, str]  # program, submission, start, end, cores


def make_run(directory: Path, jobs: Sequence[Job], **record: Any) -> Path:
    directory.mkdir(parents=True)
    with JobWriter(directory / "jobs.csv") as writer:
        for number, (app, submit, begin, end, cores) in enumerate(jobs):
            nodes = fold_nodes(part.partition(":")[0] for part in cores.split(";")) if cores else ""
            writer.write(JobRow(number, app, 2, submit, begin, end, 60, "completed",
                                app_time=(end - begin) / 2, nodes=nodes, cores=cores))
    if record:
        (directory / "run.json").write_text(json.dumps({"complete": True, **record}))
        algorithm, backfilling, policy = (record["changes"][key] for key in (
            "Scheduling.Algorithm", "Scheduling.Backfilling", "Allocation.Policy"))
        (directory / "summary.json").write_text(json.dumps({
            "algorithm": algorithm, "backfilling": backfilling, "policy": policy,
            "machine": {"all_cores": 8}}))
    return directory


WAITS: dict[tuple[str, str, str, int], float] = {}


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """{compact, strip} x {FCFS, FCFS + EASY} on two queues, three times each; how long the one job of
    each run waits is in WAITS."""
    root = tmp_path / "my <study>"
    WAITS.clear()
    for policy in ("strip", "compact"):
        for backfilling in ("none", "easy"):
            for queue in ("first", "second"):
                for repetition in (1, 2, 3):
                    wait = 10.0 + 4 * repetition + 7 * (policy == "compact") + (
                        3 if queue == "first" else 20) - 2 * (backfilling == "easy") + (
                        repetition ** 2 if policy == "strip" else 0)
                    WAITS[policy, backfilling, queue, repetition] = wait
                    cores = "n0:0/0-3+1/0-3" if policy == "compact" else "n0:0/0-1+1/0-1"
                    make_run(root / f"{policy}-{backfilling}.{queue}.{repetition}",
                             [("cg.A.x", 100, 100 + wait, 150 + wait, cores)],
                             scenario=f"{policy}-{backfilling}", queue=queue, repetition=repetition,
                             mode="simulated", seed=repetition, position=1,
                             changes={"Allocation.Policy": policy, "Scheduling.Algorithm": "FCFS",
                                      "Scheduling.Backfilling": backfilling},
                             versions={"vrm": "1", "source": "ab", "python": "3"},
                             machine={"cores": 8, "processor": "P & Q", "system": "S",
                                      "load": [0.5, 0, 0]})
    (root / "experiment.json").write_text(json.dumps({"scenarios": [
        {"name": f"{policy}-{backfilling}"} for policy in ("compact", "strip")
        for backfilling in ("none", "easy")]}))
    (root / "experiment.yaml").write_text("Queues: [first, second] # <b>\n")
    return root


# ----------------------------------------------------------------------------------- statistics


@pytest.mark.parametrize("freedom, value", [  # of published tables, two-sided 95 %
    (1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (5, 2.571), (7, 2.365), (10, 2.228),
    (29, 2.045), (30, 2.042), (60, 2.000), (120, 1.980)])
def test_quantiles_of_student(freedom: int, value: float) -> None:
    assert t_quantile(freedom) == pytest.approx(value, abs=6e-4)
    assert t_quantile(freedom, 0.99) > t_quantile(freedom) > t_quantile(freedom, 0.9)


def test_quantiles_go_to_those_of_the_normal_distribution() -> None:
    for confidence in (0.5, 0.9, 0.95, 0.99):
        normal = plain_statistics.NormalDist().inv_cdf((1 + confidence) / 2)
        assert t_quantile(2000, confidence) == pytest.approx(normal, rel=2e-3)
    assert t_quantile(1, 0.95) == pytest.approx(math.tan(math.pi / 2 * 0.95))  # Cauchy
    with pytest.raises(ValueError):
        t_quantile(0)


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=9))
def test_an_interval_is_mean_and_standard_error(values: list[float]) -> None:
    found = interval(values)
    error = plain_statistics.stdev(values) / math.sqrt(len(values))
    assert found.mean == pytest.approx(plain_statistics.fmean(values), abs=1e-9)
    assert found.half == pytest.approx(t_quantile(len(values) - 1) * error, abs=1e-6)


# ------------------------------------------------------------------------------------- figures


def test_averages_and_changes_are_plain_arithmetic(study: Path) -> None:
    found = read_study([str(study)])
    assert (found.groups, found.series, found.queues) == (
        ["FCFS", "FCFS + EASY"], ["compact", "strip"], ["first", "second"])
    for backfilling, group in (("none", "FCFS"), ("easy", "FCFS + EASY")):
        both = {}
        for policy in ("compact", "strip"):
            scenario = found.scenario(group, policy)
            assert scenario is not None
            wait = [[WAITS[policy, backfilling, queue, repetition] for queue in ("first", "second")]
                    for repetition in (1, 2, 3)]
            both[policy] = means = [sum(pair) / 2 for pair in wait]
            assert found.mean(scenario.name, "waiting") == interval(means)
            assert found.mean(scenario.name, "waiting", "first") == interval(
                [pair[0] for pair in wait])
            running = found.mean(scenario.name, "running")
            assert running is not None and (running.mean, running.half) == (25, 0)
            turnaround = found.mean(scenario.name, "turnaround")
            assert turnaround is not None
            assert turnaround.mean == pytest.approx(sum(means) / 3 + 25)
        change = found.change(group, "strip", "waiting")
        base = sum(both["compact"]) / 3
        difference = interval([b - a for a, b in zip(both["compact"], both["strip"])])
        assert change is not None and change.half is not None and difference.half is not None
        assert change.mean == pytest.approx(100 * difference.mean / base)
        assert change.half == pytest.approx(100 * difference.half / base)


def test_a_queue_that_was_not_repeated_is_averaged_once(study: Path) -> None:
    for path in study.glob("*.second.[23]"):
        shutil.rmtree(path)
    found = read_study([str(study)])
    mean = found.mean("compact-none", "waiting")
    first = [WAITS["compact", "none", "first", repetition] for repetition in (1, 2, 3)]
    assert mean is not None and mean.half is None
    assert mean.mean == pytest.approx((sum(first) / 3 + WAITS["compact", "none", "second", 1]) / 2)


def test_runs_that_are_not_complete_are_left_out(study: Path) -> None:
    record = study / "strip-none.first.1" / "run.json"
    record.write_text(record.read_text().replace("true", "false"))
    plan = json.loads((study / "experiment.json").read_text())
    (study / "experiment.json").write_text(json.dumps({**plan, "runs": ["a run"] * 24}))
    found = read_study([str(study)])
    assert len(found.runs) == 23 and "1 planned run more is not complete." in findings(found)
    assert findings(read_study([str(study), str(study)])) == findings(found)
    for record in study.glob("*/run.json"):
        record.write_text('{"complete": false}')
    with pytest.raises(StudyError, match="none of the 24 planned runs is complete"):
        read_study([str(study)])


def test_equal_scenarios_are_called_so(tmp_path: Path) -> None:
    for name in ("a", "b"):
        make_run(tmp_path / name, [("cg.A.x", 0, 4, 8, "")])
    assert "Jobs were back after 6.00 s on average in every scenario." in \
        findings(read_study([str(tmp_path / "a"), str(tmp_path / "b")]))


def test_runs_of_one_origin_are_told_once(study: Path) -> None:
    record = study / "strip-none.first.1" / "run.json"
    record.write_text(record.read_text().replace("P & Q", "another"))
    *_, runs, origins = tables(read_study([str(study)]))
    assert (runs.name, origins.name) == ("runs", "origins")
    wanted = {"8 cores of P & Q, S": 23, "8 cores of another, S": 1}
    assert {row[-1]: row[1] for row in origins.rows} == wanted
    numbers = {row[-1]: row[0] for row in origins.rows}
    assert {row[0]: row[-1] for row in runs.rows}["strip-none.first.1"] == \
        numbers["8 cores of another, S"]


def test_a_long_table_goes_on_in_latex() -> None:
    table = Table("t", "Many", (ReportColumn("n"),), tuple((number,) for number in range(90)), "a note")
    parts = latex(table).split(r"\end{table}")[:-1]
    assert [part.count("\\\\\n") for part in parts] == [41, 41, 11]
    assert [r"\caption{Many (%d of 3). A note.}" % number in part
            for number, part in enumerate(parts, 1)] == [True] * 3


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 12), st.integers(1, 6), st.integers(0, 2),
                          st.integers(0, 2)), min_size=1, max_size=7))
def test_companions_against_a_count_of_seconds(jobs: list[tuple[int, int, int, int]]) -> None:
    rows = [JobRow(number, f"app{number}.x", 1, 0, begin, begin + length, 9, "completed",
                   cores=";".join(f"n{node}:0/0" for node in {one, other}))
            for number, (begin, length, one, other) in enumerate(jobs)]
    run = StudyRun(Path("x"), "x", "", 1, JobTable.of(rows), (None, None, None), None)
    for row, (begin, length, *nodes) in zip(rows, jobs):
        wanted: Counter = Counter()
        together = 0
        for second in range(begin, begin + length):
            there = [number for number, (start, seconds, *others) in enumerate(jobs)
                     if number != row.id and start <= second < start + seconds
                     and set(nodes) & set(others)]
            wanted.update(f"app{number}.x" for number in there)
            together += bool(there)
        found = run.co_running_programs.get(row.id, {})
        assert {app: round(share * length) for app, share in found.items()} == wanted
        assert sum(end - start for start, end in run.shared.get(row.id, ())) == together


def test_applications_alone_and_side_by_side(tmp_path: Path) -> None:
    def changes(policy: str) -> dict[str, str]:
        return {"Scheduling.Algorithm": "FCFS", "Scheduling.Backfilling": "none",
                "Allocation.Policy": policy}
    make_run(tmp_path / "s" / "a", [("cg.A.x", 0, 0, 20, "n0:0/0-1"),
                                    ("ep.A.x", 0, 20, 60, "n0:0/0-1"),
                                    ("is.S.x", 0, 60, 60.3, "n0:0/0-1")],
             scenario="a", queue="q", repetition=1, changes=changes("compact"))
    make_run(tmp_path / "s" / "b", [("cg.A.x", 0, 0, 25, "n0:0/0"), ("ep.A.x", 0, 0, 50, "n0:0/1"),
                                    ("cg.A.x", 0, 30, 46, "n1:0/0"),
                                    ("is.S.x", 0, 50, 50.2, "n0:0/0")],
             scenario="b", queue="q", repetition=1, changes=changes("strip"))
    table = next(one for one in tables(read_study([str(tmp_path / "s")]))
                 if one.name == "applications")
    assert [[cell for index, cell in enumerate(row) if index != 4] for row in table.words()] == [
        ["cg.A.x", "2", "compact", "alone", "10.00", "1.00"],
        ["cg.A.x", "2", "strip", "alone", "8.00", "1.25"],
        ["cg.A.x", "2", "strip", "with ep.A.x", "12.50", "0.80"],
        ["ep.A.x", "2", "compact", "alone", "20.00", "1.00"],
        ["ep.A.x", "2", "strip", "with cg.A.x", "25.00", "0.80"],
        ["is.S.x", "2", "compact", "alone", "0.15", "-"],  # too short to tell
        ["is.S.x", "2", "strip", "alone", "0.10", "-"]]


def test_a_group_is_named_after_its_order_even_if_all_have_the_same(tmp_path: Path) -> None:
    for backfilling in ("none", "easy"):
        changes = {"Scheduling.Algorithm": "SJF", "Scheduling.Backfilling": backfilling,
                   "Allocation.Policy": "compact"}
        run = make_run(tmp_path / "s" / backfilling, [("a", 0, 1, 2, "")], scenario=backfilling,
                       queue="q", repetition=1, changes=changes)
        record = json.loads((run / "run.json").read_text())
        record["changes"] = {"Scheduling.Backfilling": backfilling}
        (run / "run.json").write_text(json.dumps(record))
    assert sorted(read_study([str(tmp_path / "s")]).groups) == ["SJF", "SJF + EASY"]


def test_what_a_simulation_without_speeds_cannot_tell_is_said(study: Path) -> None:
    assert any("running the same, for without measured speed-ups" in said
               for said in findings(read_study([str(study)])))


def test_plain_directories_are_reported_too(tmp_path: Path, capsys: Any) -> None:
    for policy in ("compact", "strip"):
        assert main(["simulate", "lublin:16:60", "--policy", policy, "--nodes", "8", "--cores", "2",
                     "--out", str(tmp_path / policy)]) == 0
    (tmp_path / "bare").mkdir()
    shutil.copy(tmp_path / "strip" / "jobs.csv", tmp_path / "bare")
    capsys.readouterr()
    assert main(["report", str(tmp_path / "compact"), str(tmp_path / "strip")]) == 0
    out = capsys.readouterr().out
    assert "2 scenarios, 1 queue, 1 repetition: 2 runs" in out
    assert "Change from compact to strip" in out and "no confidence intervals" in out
    assert "overlap" not in out
    assert "ide by side" not in out  # a trace's jobs without a name do not do the same work
    assert main(["report", str(tmp_path / "bare")]) == 0
    out = capsys.readouterr().out
    assert "1 scenario, 1 queue, 1 repetition: 1 run" in out and "Jobs waited " in out
    assert "seed" not in out and "position" not in out  # nobody knows of any
    assert unfold_nodes("n[0-2,7]") == ["n0", "n1", "n2", "n7"] and unfold_nodes("a") == ["a"]
    many = [f"n{number}" for number in range(400) if number % 40 < 30]
    assert unfold_nodes(fold_nodes(many)) == many and len(unfold_nodes("n[0-99],m[1-2]r[0-99],x")) == 301
    for text in ("n[0-9999999]", "n[0-1999]r[0-1999]", "a,n[0-999999],m[0-9]"):
        with pytest.raises(JobFileError, match="more nodes than any machine has"):
            unfold_nodes(text)


# --------------------------------------------------------------------------------------- tables


def printed(capsys: Any, study: Path, name: str) -> str:
    assert main(["report", str(study), "--format", name]) == 0
    return capsys.readouterr().out


def test_every_format_has_the_same_figures(study: Path, tmp_path: Path, capsys: Any) -> None:
    assert main(["report", str(study), "--out", str(tmp_path / "r"), "--format", "csv,text",
                 "--format", "markdown,latex"]) == 0
    written = {Path(line).name for line in capsys.readouterr().out.splitlines()}
    assert {"averages.csv", "averages-first.csv", "change.csv", "report.txt", "report.md",
            "report.tex"} <= written
    rows = list(csv.reader(io.StringIO((tmp_path / "r" / "averages.csv").read_text())))
    mean = read_study([str(study)]).mean("strip-easy", "waiting")
    assert mean is not None and mean.half is not None
    at = rows[0].index("waiting [s] strip")
    assert rows[0][at + 1:at + 3] == ["waiting [s] strip +-", "waiting [s] strip n"]
    assert rows[2][0] == "FCFS + EASY"
    numbers = list(map(float, rows[2][at:at + 3]))
    assert numbers == pytest.approx([mean.mean, mean.half, 3], rel=1e-5)
    shown = f"{mean.mean:.2f} ± {mean.half:.2f}"
    assert shown.replace("±", "+-") in printed(capsys, study, "text")
    assert f"| {shown} |" in printed(capsys, study, "markdown")
    tex = printed(capsys, study, "latex")
    assert shown.replace("±", r"$\pm$") in tex
    for table in tex.split(r"\end{table}")[:-1]:
        columns = len(re.search(r"\\begin\{tabular\}\{([lr]+)\}", table).group(1))
        lines = [line for line in table.splitlines() if line.endswith(r"\\")]
        assert len(lines) > 1 and {line.count(" & ") for line in lines} == {columns - 1}


def test_hostile_names_do_no_harm_in_latex_and_markdown(tmp_path: Path, capsys: Any) -> None:
    run = make_run(tmp_path / "a_b", [(r"x|&%$#_{}~^\<i>.x", 0, 1, 9, "n0:0/0")])
    assert r"x\|&%$#_{}~^\\<i>.x" in printed(capsys, run, "markdown")
    assert r"x\textbar{}\&\%\$\#\_\{\}\textasciitilde{}\textasciicircum{}\textbackslash{}" in \
        printed(capsys, run, "latex")


@pytest.mark.parametrize("words, message", [
    (["none"], "none is not a directory; name that of a run"),
    (["empty"], "empty: there is no jobs.csv in it"),
    (["idle"], "no job ran there"),
    (["other"], "this is not a list of jobs"),
    (["broken"], "run.json: vrm has not written this"),
    (["good", "--format", "html"], "html needs a place: give --out DIR"),
    (["good", "--out", "good/jobs.csv"], "cannot write good/jobs.csv"),
])
def test_messages(words: list[str], message: str, tmp_path: Path, capsys: Any,
                  monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "good", [("a", 0, 1, 2, "")])
    make_run(tmp_path / "idle", [])
    (make_run(tmp_path / "broken", [("a", 0, 1, 2, "")]) / "run.json").write_text("[]")
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "jobs.csv").write_text("a,b\n1,2\n")
    assert main(["report", *words]) == 2
    out, error = capsys.readouterr()
    assert message in error and error.startswith("vrm: ") and error.count("\n") == 1 and not out


def test_an_unknown_format_is_told(capsys: Any) -> None:
    with pytest.raises(SystemExit):
        main(["report", ".", "--format", "pdf"])
    assert "there is no format pdf; the formats are text, csv" in capsys.readouterr().err


def test_without_matplotlib_there_are_tables(study: Path, tmp_path: Path, capsys: Any,
                                             monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "Average waiting" in printed(capsys, study, "text")
    for name in ("html", "png"):
        assert main(["report", str(study), "--out", str(tmp_path / "r"), "--format", name]) == 2
        assert "-m pip install matplotlib Jinja2`" in capsys.readouterr().err


# ------------------------------------------------------------------------------------- pictures


def test_curves_of_many_scenarios_are_told_apart(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from vrm.ext.study.report.study_pictures import distributions
    runs = [make_run(tmp_path / f"a_long_name_of_a_run_{number}", [("a", 0, number, 60, "")])
            for number in range(12)]
    picture = next(distributions(read_study(list(map(str, runs)))))
    lines = picture.figure.axes[0].get_lines()
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == 12
    assert all(len(line.get_label()) <= 21 for line in lines)


def test_slanted_names_of_scenarios_do_not_overlap(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from vrm.ext.study.report.study_pictures import average
    for algorithm in ("FCFS", "SJF", "WFP3"):
        for backfilling in ("easy", "conservative"):
            make_run(tmp_path / f"{algorithm}-{backfilling}", [("a", 0, 1, 2, "n0:0/0")], scenario=f"{algorithm}-{backfilling}",
                     queue="q", repetition=1, mode="simulated", changes={
                         "Allocation.Policy": "pack", "Scheduling.Algorithm": algorithm, "Scheduling.Backfilling": backfilling})
    figure = average(read_study([str(tmp_path)]), "waiting").figure
    figure.canvas.draw()
    labels = [each.get_text() for each in figure.axes[0].get_xticklabels()]
    assert "FCFS + conservative" in labels and not any("\n" in label for label in labels)
    assert {each.get_rotation() for each in figure.axes[0].get_xticklabels()} == {20.0}
    few = average(read_study([str(tmp_path / "SJF-easy"), str(tmp_path / "FCFS-easy")]), "waiting").figure
    assert {each.get_rotation() for each in few.axes[0].get_xticklabels()} == {0.0}


def test_where_runs_come_from_is_said_only_of_those_that_say_it(study: Path, tmp_path: Path) -> None:
    told = "each run's directory has its config.yaml and run.json"
    assert any(told in table.note for table in tables(read_study([str(study)])))
    plain = make_run(tmp_path / "plain", [("a", 0, 1, 2, "n0:0/0")])
    assert not any(told in table.note for table in tables(read_study([str(plain)])))


@pytest.mark.parametrize("app, words", [("cg.A.x", "0 cg.A"), ("app", "0")])
def test_a_box_has_the_name_of_the_program_if_the_trace_says_it(app: str, words: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from vrm.ext.study.report.study_timelines import timelines
    picture = next(timelines(read_study([str(make_run(tmp_path / "r", [(app, 0, 0, 100, "n0:0/0-1+1/0-1")]))])))
    assert [each.get_text() for each in picture.figure.axes[0].texts] == [words]


def test_jobs_too_short_for_an_edge_are_seen(tmp_path: Path) -> None:
    """They would be drawn white in white."""
    pytest.importorskip("matplotlib")
    from vrm.ext.study.report.study_timelines import timelines
    run = make_run(tmp_path / "r", [("a", 0, at, at + 1, "n0:0/0") for at in range(1000)])
    picture = next(timelines(read_study([str(run)])))
    canvas = picture.figure.canvas
    canvas.draw()
    box = picture.figure.axes[0].bbox
    wide, high = canvas.get_width_height()
    middle = wide * int(high - (box.y0 + box.y1) / 2)
    dots = bytes(canvas.buffer_rgba())
    shown = [dots[4 * (middle + x):4 * (middle + x) + 3]
             for x in range(int(box.x0) + 2, int(box.x1) - 2)]
    assert sum(max(colour) - min(colour) > 40 for colour in shown) > len(shown) / 2


@pytest.mark.slow
def test_pictures_are_files_of_their_kinds(study: Path, tmp_path: Path, capsys: Any) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "r"
    assert main(["report", str(study), "--out", str(out), "--format", "png,svg"]) == 0
    names = {path.stem for path in out.glob("*.png")}
    assert names == {path.stem for path in out.glob("*.svg")}
    assert {"averages", "averages-first", "averages-second", "distribution-waiting",
            "distribution-slowdown", "timeline-strip-easy.first.1"} <= names
    assert sum(name.startswith("timeline-") for name in names) == 4
    for path in out.glob("*.png"):
        content = path.read_bytes()
        assert content.startswith(b"\x89PNG") and struct.unpack(">I", content[16:20])[0] >= 600
    before = (out / "averages.svg").read_text()
    assert main(["report", str(study), "--out", str(out), "--format", "svg"]) == 0
    assert (out / "averages.svg").read_text() == before


# ----------------------------------------------------------------------------------------- page

EVIL = "<img src=x onerror=alert(1)>$a$&.x"


@pytest.fixture
def page(study: Path, tmp_path: Path, capsys: Any) -> Path:
    pytest.importorskip("matplotlib")
    pytest.importorskip("jinja2")
    run = study / "strip-none.first.1"
    shutil.rmtree(run)
    record = json.loads((study / "strip-easy.first.1" / "run.json").read_text())
    record.update(scenario="strip-none", changes={**record["changes"],
                                                  "Scheduling.Backfilling": "none"})
    make_run(run, [(EVIL, 0, 5, 90, "n0:0/0;n1:0/0"), ("ep.A.x", 0, 10, 80, "n0:0/1"),
                   (EVIL, 0, 80, 99, "n0:0/1")], **record)
    assert main(["report", str(study), "--out", str(tmp_path / "r")]) == 0
    capsys.readouterr()
    return tmp_path / "r" / "report.html"


class Elements(html.parser.HTMLParser):
    """Counts what a page has; fails where elements are not closed as they were opened."""

    VOID = {"meta", "link", "img", "br"}

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.slow
def test_the_page_is_whole_and_needs_no_network(page: Path) -> None:
    text = page.read_text()
    elements = Elements()
    elements.feed(text)
    assert not elements.open
    names = [attributes["id"] for _, attributes in elements.found if "id" in attributes]
    assert len(names) == len(set(names))
    for tag, attributes in elements.found:
        for key in ("src", "href"):
            if attributes.get(key):
                assert attributes[key].startswith(("#", "data:")), (tag, attributes)
        assert not any(key.startswith("on") for key in attributes) and tag != "script"
    assert set(re.findall(r"https?://[^\"' <)]+", text)) <= {"http://www.w3.org/2000/svg"}
    inside = set(re.findall(r"(?:href=\"#|url\(#)([^\")]+)", text))
    assert inside <= set(names)
    assert all(attributes.get("aria-label") for tag, attributes in elements.found
               if attributes.get("role") == "img")
    assert [tag for tag, _ in elements.found].count("svg") == 3 + 2 + 4


@pytest.mark.slow
def test_what_comes_from_files_is_escaped(page: Path) -> None:
    text = page.read_text()
    assert "<img src=x" not in text and "my <study>" not in text and "<b>" not in text
    elements = Elements()
    elements.feed(text)
    assert EVIL in elements.text and "my <study>" in elements.text and "# <b>" in elements.text


BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.mark.slow
def test_a_browser_without_network_shows_it(page: Path, tmp_path: Path) -> None:
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is on PATH")
    # What the page is like in a window as narrow as a phone: nothing but the scrolling parts may
    # be wider. A page of its own asks, since headless windows have a least width.
    asking = tmp_path / "r" / "ask.html"
    asking.write_text(
        f'<iframe id=f src="{page.name}" style="width:375px;height:800px"></iframe>'
        '<pre id=o></pre><script>const f = document.getElementById("f"); f.onload = () => {'
        'const d = f.contentDocument; document.getElementById("o").textContent = '
        '"width " + d.documentElement.scrollWidth + " pictures " + d.querySelectorAll("svg").length'
        ' + " title " + d.title; };</script>')
    run = subprocess.run(
        [browser, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
         "--disable-background-networking", "--host-resolver-rules=MAP * ~NOTFOUND",
         "--allow-file-access-from-files", f"--user-data-dir={tmp_path / 'profile'}",
         "--enable-logging=stderr", "--virtual-time-budget=3000", "--dump-dom",
         asking.resolve().as_uri()],
        stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=120, check=False)
    assert run.returncode == 0, run.stderr
    told = re.search(r"width (\d+) pictures (\d+) title (.*?)</pre>", run.stdout)
    assert told, run.stdout
    assert int(told.group(1)) <= 375 and int(told.group(2)) == 9
    assert told.group(3).endswith(": 4 scenarios")
    said = [line for line in run.stderr.splitlines() if "CONSOLE" in line]
    assert not said
