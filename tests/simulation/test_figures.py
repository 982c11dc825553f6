"""Figures that users rely on: what counts as in use, which pairs share a node, and what is said of
jobs that were not measured."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from support import plain_metrics
from vrm.commands import simulate as command
from vrm.commands.parsing import Parser
from vrm.model import Cluster, Job
from vrm.model.job import application_kind
from vrm.model.measured.speedups import Speedups
from vrm.ext.study.report.compare import read_runs
from vrm.ext.study.report.study_files import read_study
from vrm.results.jobs import JobRow, read_jobs
from vrm.scheduling import make_policy
from vrm.api import Machine, Measurements, Rules, Submission, simulate


def run(*words: Any) -> int:
    """`vrm simulate` with these words."""
    parser = Parser()
    command.add_parsers(parser.add_subparsers(), argparse.ArgumentParser(add_help=False))
    args = parser.parse_args(["simulate", *map(str, words)])
    return args.act(args)


def json_of(capsys: Any) -> dict[str, Any]:
    return json.loads(capsys.readouterr().out)


# --------------------------------------------------------------------------- cores of each rank


@pytest.fixture
def wide(tmp_path: Path) -> Path:
    """Two jobs in a row that fill a machine of 8 cores with 4 ranks of 2 cores."""
    queue = tmp_path / "wide"
    queue.write_text("a.S.x 4 10 0 cores=2\na.S.x 4 10 0 cores=2\n")
    return queue


def test_all_cores_of_a_rank_count(wide: Path, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "out"
    assert run(wide, "--nodes", 1, "--cores", 8, "--policy", "pack", "--json", "--out", out) == 0
    found = json_of(capsys)
    assert found["utilisation"] == 1 and found["loss_of_capacity"] == 0
    assert found["per_processor_bounded_slowdown"]["maximum"] == 1
    assert found["makespan"] == 20

    # The tables and pictures of runs read the same from jobs.csv.
    rows = list(read_jobs(out / "jobs.csv"))
    assert [row.processors for row in rows] == [8, 8]
    again = plain_metrics.summary(rows, 8)
    assert (again["utilisation"], again["loss_of_capacity"]) == (1, 0)
    assert [moment.busy_procs for moment in plain_metrics.load(rows)] == [8, 8, 0]
    assert read_runs([str(out)])[0].utilisation == 1
    assert read_study([str(out)]).runs[0].figures["utilisation"] == 100


@pytest.mark.parametrize("places", ["none", "nodes"])
@pytest.mark.parametrize("policy", ["pack", "compact"])
def test_all_cores_count_whatever_of_the_places_is_written(wide: Path, tmp_path: Path, capsys: Any,
                                                           places: str, policy: str) -> None:
    out = tmp_path / "out"
    assert run(wide, "--nodes", 1, "--cores", 8, "--policy", policy, "--json", "--out", out,
               "--places", places) == 0
    assert [row.processors for row in read_jobs(out / "jobs.csv")] == [8, 8]


def test_cores_that_jobs_csv_does_not_tell_are_one_for_each_rank() -> None:
    assert JobRow(0, "a", 3, 0, 0, 1, 1, "completed").processors == 3
    placed = JobRow(0, "a", 3, 0, 0, 1, 1, "completed", cores="n-0-1:0/0-3+1/7;n-0-2:0/4-5")
    assert placed.processors == 4 + 1 + 2


def test_killed_jobs_are_no_throughput(tmp_path: Path, capsys: Any) -> None:
    trace = tmp_path / "t.swf"
    # The last job is killed at its estimate, within the window that a cool-down leaves.
    rows = [(1, 0, 4, 4), (2, 0, 90, 8), (3, 20, 1, 1)]
    trace.write_text("; MaxProcs: 2\n" + "".join(
        f"{number} {submit} -1 {time} 1 -1 -1 1 {estimate} -1 1 -1 -1 -1 -1 -1 -1 -1\n"
        for number, submit, time, estimate in rows))
    for words, expected in ([], 2 * 3600 / 21), (["--cool-down", 1], 1 * 3600 / 19):
        assert run(trace, "--kill", "--keep-estimates", "--json", *words) == 0
        found = json_of(capsys)
        assert found["timeout"] == 1
        assert found["throughput_per_hour"] == pytest.approx(expected)


# ------------------------------------------------------------------------- pairs and their loads


def loads(**times: float) -> Speedups:
    """Speed-ups of loads beside each other of their own application's class and ranks."""
    pairs: dict[str, dict[str, float]] = {}
    for name, value in times.items():
        size = name.replace("_", ".")
        for own, other in (("x", "y"), ("y", "x")):
            pairs.setdefault(f"{own}.{size}", {})[f"{other}.{size}"] = value
    return Speedups(pairs)


SIZES = loads(A_4=0.4, B_8=1.0)


def ends(speedups: Speedups, *jobs: tuple[str, int], least: float = 1.0) -> list[float]:
    """When jobs of 100 s of work that come together end, on one node of 16 cores under strip."""
    outcome = simulate([Submission(Job(number, app, procs, 100.0), 100.0) for number, (app, procs) in enumerate(jobs)],
                       Machine.of(1, sockets=2, cores=8), Rules(policy="strip", min_throughput=least),
                       measured=Measurements(speedups=speedups))
    return [row.end for row in sorted(outcome.jobs)]


def test_a_pair_is_judged_by_its_own_figures() -> None:
    # The mean over the sizes, 1.4, would let the small ones share, which do 0.8 together.
    assert ends(SIZES, ("x.A.x", 4), ("y.A.x", 4)) == [100, 200]
    assert ends(SIZES, ("x.A.x", 4), ("y.A.x", 4), least=0.0) == [250, 250]
    assert ends(SIZES, ("x.B.x", 8), ("y.B.x", 8)) == [100, 100]


def test_what_was_not_measured_is_judged_by_its_class_and_then_its_application() -> None:
    together = loads(A_4=0.4, A_8=0.5, B_8=1.0).throughput()
    assert together.of("x.A.x", 4, "y.A.x", 4) == pytest.approx(0.8)
    assert together.of("x.A.x", 2, "y.A.x", 4) == pytest.approx((0.8 + 1.0) / 2)
    assert together.of("x.C.x", 2, "y.A.x", 4) == pytest.approx((0.8 + 1.0 + 2.0) / 3)
    assert together.of("x.A.x", 4, "z.A.x", 4) is None
    assert ends(SIZES, ("x.A.x", 2), ("y.A.x", 8)) == [100, 200]


def test_a_pool_without_spare_times_is_judged_against_compact(tmp_path: Path) -> None:
    """The default refuses nothing there; 2 asks for as much as compact side by side."""
    from vrm.ext.measured.heatmap_files import read
    pool = tmp_path / "pool.json"
    pool.write_text(json.dumps({"machine": "m", "suite": "s", "loads": [json.dumps({
        "load_name": name, "num_of_processes": 4, "compact_timelogs": [100.0],
        "coscheduled_timelogs": {"x.A.4": [[110.0]], "y.A.4": [[105.0]]}})
        for name in ("x.A.4", "y.A.4")]}))
    assert not read(pool, least=1.0).heatmap.refused
    assert len(read(pool, least=2.0).heatmap.refused) == 4


def test_the_nodes_of_a_live_table_are_as_full_as_they_are() -> None:
    cluster = Cluster.regular(1, 2, 4)
    job = Job(0, "a", 3, 10.0, cores=2)
    placement = make_policy("pack", cluster).place(job, cluster)
    cluster.book(job, placement, 0.0)
    taken = [core for socket in cluster.view()[0] for core in socket.slots]
    assert taken.count(0) == 6 == cluster.taken_cores and taken.count(None) == 2


def test_names_of_numbered_suites_are_kept(tmp_path: Path, capsys: Any) -> None:
    assert application_kind("628.pot3d_s") == "628.pot3d_s" == application_kind(
        "628.pot3d_s.1024") and application_kind("628") == "628"
    assert application_kind("ft.B.x") == "ft"
    pool = tmp_path / "pool.json"
    pool.write_text(json.dumps({"machine": "m", "suite": "s", "loads": [json.dumps({
        "load_name": name, "num_of_processes": 1024, "compact_timelogs": [100.0],
        "coscheduled_timelogs": {"628.pot3d_s": [[110.0]], "605.lbm_s": [[120.0]]}})
        for name in ("628.pot3d_s", "605.lbm_s")]}))
    from vrm.ext.measured.heatmap_files import rank_text, read
    lines = rank_text(read(pool).heatmap).splitlines()[1:]
    assert [line.split()[0] for line in lines] == ["628.pot3d_s", "605.lbm_s"]


def test_jobs_without_a_measured_speed_are_counted_and_said(tmp_path: Path, capsys: Any) -> None:
    speeds = tmp_path / "speeds.csv"
    speeds.write_text("placement,app,procs,partner,partner_procs,speedup_compact\n"
                      "strip,a.D,1024,a.D,1024,0.8\n")
    queue = tmp_path / "queue"
    queue.write_text("a.D.x 4 10 0\na.D.x 4 20 0\nb.D.x 4 30 0\n")
    shape = ["--nodes", 1, "--sockets", 2, "--cores", 4, "--policy", "strip"]
    assert run(queue, "--heatmap", speeds, "--json", *shape) == 0
    assert json_of(capsys)["unmatched_speeds"] == {
        "beside": {"a.D.4": 2, "b.D.4": 1}, "alone": {"b.D.4": 1}}
    assert run(queue, "--heatmap", speeds, *shape) == 0
    shown = capsys.readouterr().out
    assert "3 jobs ran with others at speed 1" in shown and "a.D.4 (2)" in shown
    assert "1 jobs were alone on half a node" in shown
