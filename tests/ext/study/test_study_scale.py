"""Reports of what does not fit one picture or one average: scatter, several machines, long runs,
many jobs."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vrm.cli import main
from vrm.ext.study.report.node_density import COLUMNS, ROWS, Places, density
from vrm.ext.study.report.table_formats import ReportColumn, Table, comma_separated, text as as_text
from vrm.ext.study.report.study import Study
from vrm.ext.study.report.study_files import read_study
from vrm.ext.study.report.study_findings import findings
from vrm.ext.study.report.study_tables import tables
from vrm.results.jobs import JobRow, JobWriter
from vrm.results.names import policy_name, time_text
from vrm.ext.study.confidence import ConfidenceInterval


def make(root: Path, queue: str, waits: Sequence[Sequence[float]], cores: int = 8) -> None:
    """Runs of SJF, FCFS and so on, with EASY, on a queue: how long the one job of each repetition
    of each waits."""
    for algorithm, repetitions in zip(("FCFS", "SJF", "WFP3"), waits):
        for number, wait in enumerate(repetitions, 1):
            directory = root / f"{algorithm}.{queue}.{number}"
            directory.mkdir(parents=True)
            with JobWriter(directory / "jobs.csv") as writer:
                writer.write(JobRow(0, "a", 1, 0, wait, wait + 10, 60, "completed", nodes="n0",
                                    cores="n0:0/0"))
            (directory / "run.json").write_text(json.dumps({
                "complete": True, "scenario": algorithm, "queue": queue, "repetition": number,
                "changes": {"Scheduling.Algorithm": algorithm}}))
            (directory / "summary.json").write_text(json.dumps({
                "algorithm": algorithm, "backfilling": "easy", "policy": "compact",
                "machine": {"all_cores": cores}}))


def said(root: Path) -> str:
    return "\n".join(findings(read_study([str(root)])))


# ------------------------------------------------------------------------------------- winners


def test_a_winner_is_named_only_beyond_the_scatter(tmp_path: Path) -> None:
    make(tmp_path, "near", [[100, 140, 120], [113, 100, 150]])
    assert "back after 130 s (FCFS) to 131 s (SJF) on average: no difference beyond the scatter" \
        in said(tmp_path)
    assert "soonest" not in said(tmp_path)
    # Beyond it, even though the repetitions themselves scatter more.
    make(tmp_path / "far", "far", [[100, 200, 300], [50, 151, 249]])
    assert "soonest under SJF, after 160 s on average, 24 % sooner than under FCFS: beyond" \
        in said(tmp_path / "far")
    make(tmp_path / "some", "some", [[100, 140, 120], [113, 100, 150], [500, 510, 520]])
    text = said(tmp_path / "some")
    assert "no sooner beyond the scatter of the repetitions than under SJF; latest under WFP3" in text


def test_without_repetitions_scenarios_are_ranked_and_none_is_best(tmp_path: Path) -> None:
    make(tmp_path, "once", [[100], [90], [95]])
    text = said(tmp_path)
    assert "on average, after: SJF 100 s, WFP3 105 s, FCFS 110 s (one run each)" in text
    assert "soonest" not in text and "Nothing was repeated" in text


def test_each_queue_is_ranked_by_itself_and_machines_are_not_averaged(tmp_path: Path,
                                                                      capsys: Any) -> None:
    make(tmp_path, "kth", [[1000], [10]], cores=100)
    make(tmp_path, "lublin", [[10, 11], [1000, 1100]], cores=256)
    found = read_study([str(tmp_path)])
    assert found.averaged_queues == ["kth", "lublin"]
    text = said(tmp_path)
    assert "On kth, jobs were back, on average, after: SJF 20.0 s, FCFS 16.8 min" in text
    assert "On lublin, jobs were back" in text
    names = [table.name for table in tables(found)]
    from vrm.ext.study.report.study import pooled
    assert pooled(found, "SJF", lambda jobs: jobs.start, "kth") == [10]
    assert "averages-kth" in names and "averages" not in names and "machine-lublin" in names
    # On machines of one size, the average over the queues is still there.
    make(tmp_path / "same", "a", [[1], [2]])
    make(tmp_path / "same", "b", [[1], [2]])
    same = read_study([str(tmp_path / "same")])
    assert same.averaged_queues == [None] and "averages" in [table.name for table in tables(same)]


@pytest.mark.slow
def test_whiskers_are_promised_only_where_some_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from vrm.ext.study.report import study_pictures as pictures
    make(tmp_path, "kth", [[1000], [10]])
    make(tmp_path, "lublin", [[10, 11], [1000, 1100]])
    found = read_study([str(tmp_path)])
    drawn = pictures.averages(found)
    assert drawn.figure.get_supxlabel() == ""  # the queues have but one repetition in common
    alone = pictures.averages(found, "lublin")
    assert "95% confidence" in alone.figure.get_supxlabel().replace(" %", "%")
    assert main(["report", str(tmp_path), "--out", str(tmp_path / "page")]) == 0
    assert "whiskers their" not in (tmp_path / "page" / "report.html").read_text()


def test_simulations_of_several_workloads_are_queues(tmp_path: Path) -> None:
    for workload in ("lublin:8:30", "lublin:16:30"):
        for order in ("fcfs", "sjf"):
            assert main(["simulate", workload, "--algorithm", order, "--backfill", "easy", "--policy", "compact", "--json",
                         "--out", str(tmp_path / f"{order}-{workload.replace(':', '-')}")]) == 0
    found = read_study([str(tmp_path)])
    assert found.queues == ["lublin:16:30", "lublin:8:30"] == found.averaged_queues
    assert sorted(one.name for one in found.scenarios) == ["FCFS + EASY, compact",
                                                          "SJF + EASY, compact"]


# ---------------------------------------------------------------------------------- names, units


@pytest.mark.parametrize("algorithm, backfilling, name", [
    ("FCFS", "none", "FCFS"), ("FCFS", "easy", "FCFS + EASY"), ("FCFS", "1", "FCFS + EASY"),
    ("(q/t)**2*n", "conservative", "(q/t)**2*n + conservative"), ("WFP3", None, "WFP3"),
    ("WFP3", "depth 2", "WFP3 + depth 2")])
def test_a_policy_has_one_name(algorithm: str, backfilling: Any, name: str) -> None:
    assert policy_name(algorithm, backfilling) == name


def test_times_have_units_that_can_be_read() -> None:
    assert [time_text(value) for value in (0.5, 59.94, 1200, 18933, 1029965)] == [
        "0.50 s", "59.9 s", "20.0 min", "5.26 h", "11.9 days"]
    table = Table("t", "T", (ReportColumn("scenario"), ReportColumn("waiting [s] compact"),
                             ReportColumn("waiting [s] strip"), ReportColumn("jobs")),
                  (("a", ConfidenceInterval(36000.0, 3600.0, 3), 7200.0, 5), ("b", None, 90.0, 6)))
    shown = as_text(table)
    assert "waiting [h] compact" in shown and "waiting [h] strip" in shown
    assert "10.00 +- 1.00" in shown and "0.03" in shown
    assert "36000,3600,3,7200,5" in comma_separated(table)  # data stay seconds
    seconds = Table("t", "T", (ReportColumn("makespan [s]"),), ((28763776.0,), (0.123456789,), (1 / 3,)))
    assert comma_separated(seconds).split() == ["makespan", "[s]", "28763776", "0.123456789", "0.333333333333"]
    assert "waiting [s] compact" in comma_separated(table)


# --------------------------------------------------------------------------------- many jobs


def jobs_on(nodes: int, cores: int, rows: Sequence[tuple[int, int, float, float]]) -> list[Any]:
    starts = np.array([start for *_, start, _ in rows], float)
    return [Places.read([f"n{node}:0/0-{held - 1}" if held > 1 else f"n{node}:0/0"
                         for node, held, *_ in rows]),
            starts, starts + np.array([run for *_, run in rows], float)]


@settings(max_examples=40, deadline=None)
@given(rows=st.lists(st.tuples(st.integers(0, 4), st.integers(1, 3), st.floats(0, 900),
                               st.floats(0.001, 500)), min_size=1, max_size=8),
       first=st.floats(0, 500), length=st.floats(10, 1000))
def test_the_density_is_the_share_of_the_cores_in_use(rows: Any, first: float,
                                                      length: float) -> None:
    jobs = jobs_on(5, 3, rows)
    found = density(*jobs, None, first, length)
    assert found is not None and found.shares.shape == (found.lines, COLUMNS)
    nodes = sorted({node for node, *_ in rows})
    size = max(held for _, held, *_ in rows)
    step = length / COLUMNS
    chance = random.Random(1)
    for line, node in enumerate(nodes):
        for column in chance.sample(range(COLUMNS), 20):
            begin, end = first + column * step, first + (column + 1) * step
            used = sum(held * max(0.0, min(end, start + run) - max(begin, start))
                       for where, held, start, run in rows if where == node)
            assert found.shares[line, column] == pytest.approx(
                min(1.0, used / (size * step)), abs=1e-6)


def test_many_nodes_share_lines() -> None:
    jobs = jobs_on(1000, 1, [(node, 1, 0.0, 10.0) for node in range(0, 1000, 2)])
    found = density(*jobs, 1000, 0.0, 10.0)
    assert found is not None and found.lines <= ROWS and found.nodes == 500
    assert found.shares.max() <= 1


@pytest.fixture(scope="module")
def long_run(tmp_path_factory: Any) -> Path:
    """2,000 jobs on 32 cores."""
    out = tmp_path_factory.mktemp("long") / "run"
    assert main(["simulate", "lublin:32:2000", "--backfill", "easy", "--policy", "compact", "--json", "--out",
                 str(out)]) == 0
    return out


@pytest.mark.slow
def test_many_jobs_are_a_density_and_a_window_shows_them(long_run: Path) -> None:
    pytest.importorskip("matplotlib")
    from vrm.ext.study.report.study_timelines import timelines
    found = read_study([str(long_run)])
    whole, = timelines(found)
    assert whole.heavy and len(whole.png()) < 400_000
    assert whole.figure.axes[0].images and "share of the cores" in whole.figure.axes[0].get_title("left")
    part, = timelines(found, (86400.0, 2 * 86400.0))
    assert not part.heavy and not part.figure.axes[0].images
    assert "of the jobs ran in the time that is shown" in part.text
    labels = [label.get_text() for label in part.figure.axes[-1].get_xticklabels()]
    assert labels[0] == "24" or float(labels[0]) >= 24  # hours since the first submission


@pytest.mark.slow
def test_the_window_and_the_progress_of_the_command(long_run: Path, tmp_path: Path, capsys: Any,
                                                    monkeypatch: Any) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "page"
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert main(["report", str(long_run), "--out", str(out), "--from", "1d", "--to", "36h"]) == 0
    shown = capsys.readouterr()
    assert "reading run 1 of 1: run" in shown.err and "timelines: 1" in shown.err
    assert shown.err.endswith("\r\x1b[K") and shown.out == f"{out / 'report.html'}\n"
    page = (out / "report.html").read_text()
    assert "of the jobs ran in the time that is shown" in page and len(page) < 500_000
    for words, message in ((["--from", "9000d"], "begins before that"),
                           (["--from", "2d", "--to", "1d"], "--to is a time after")):
        assert main(["report", str(long_run), "--out", str(out), *words]) == 2
        assert message in capsys.readouterr().err
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False)
    assert main(["report", str(long_run), "--out", str(out), "--from", "1d"]) == 0
    assert capsys.readouterr().err == ""


def test_a_report_of_many_jobs_does_not_walk_them_node_by_node(long_run: Path,
                                                               monkeypatch: Any) -> None:
    """Under compact no two jobs share a node: nothing looks for pairs of them."""
    from vrm.ext.study.report import study
    monkeypatch.setattr(study, "_overlaps", lambda jobs: pytest.fail("walked"))
    found: Study = read_study([str(long_run)])
    tables(found), findings(found)
    assert found.runs[0].co_running_programs == {}


def test_a_number_of_reservations_is_part_of_the_name() -> None:
    """A configuration may have it as a number."""
    assert policy_name("FCFS", 2) == "FCFS + 2" and policy_name("FCFS", 0) == "FCFS"
