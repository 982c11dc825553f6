"""Speeds of jobs that share nodes: the file forms, the model, and whole runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vrm.model import Cluster, Heatmap, Job
from vrm.scheduling import Scheduler, make_backfilling, make_ordering, make_policy
from vrm.api import Machine, Measurements, Rules, Submission, simulate
from vrm.simulation.arguments import by_name
from vrm.model.measured.speedups import SpeedError, Speedups
from vrm.ext.measured.corun import CoRunning
from vrm.simulation.engine import Simulator
from vrm.simulation.results import Results
from vrm.ext.measured.heatmap_files import read

PAIRS = Speedups({"bt": {"bt": 0.8, "cg": 1.25}, "cg": {"bt": 1.6, "cg": 1.0}},
                 spare={"bt": 1.25})


def job(number: int, app: str, procs: int, work: float, submit: float = 0.0) -> Submission:
    return Submission(Job(number, app, procs, 1000, submit), work)


def ends(jobs: list[Submission], nodes: int = 1, **choices: Any) -> dict[int, float]:
    choices.setdefault("speedups", PAIRS)
    outcome = simulate(jobs, **by_name(dict(nodes=nodes, sockets=2, cores=2, policy="strip", **choices)))
    return {row.id: row.end for row in outcome.jobs}


def test_a_pair_runs_at_its_speed_ups() -> None:
    # cg does 160 s of work at 1.6; bt has done 125 by then and does the rest alone at 1.25.
    assert ends([job(1, "bt.A", 2, 250), job(2, "cg.A", 2, 160)]) == {2: 100, 1: 200}


def test_an_unknown_pair_and_an_unknown_spare_run_at_1() -> None:
    assert ends([job(1, "ep.A", 2, 50), job(2, "bt.A", 2, 20)]) == {2: 20, 1: 50}


def test_alone_is_the_spare_speed_up() -> None:
    assert ends([job(1, "bt.A", 2, 100)]) == {1: 80}


def test_a_job_is_as_fast_as_its_slowest_part() -> None:
    # bt lies on both nodes, beside cg on one and beside bt on the other: min(1.25, 0.8).
    found = ends([job(1, "bt.A", 4, 80), job(2, "cg.A", 2, 1600), job(3, "bt.A", 2, 8000)], 2)
    assert found[1] == 100


def test_work_done_is_kept_when_neighbours_change() -> None:
    # Alone for 40 s at 1.25 (50 done), then beside cg at 1.25 until it ends, and so on.
    found = ends([job(1, "bt.A", 2, 150), job(2, "bt.A", 2, 32, submit=40)])
    # From 40 on both at 0.8: job 2 ends at 80 with job 1 at 82 of 150, the rest at 1.25.
    assert found[2] == pytest.approx(80) and found[1] == pytest.approx(80 + 68 / 1.25)


def test_kills_follow_the_clock_not_the_work() -> None:
    jobs = [Submission(Job(1, "bt.A", 2, 100), 90), Submission(Job(2, "bt.A", 2, 100), 70)]
    outcome = simulate(jobs, Machine.of(1, sockets=2, cores=2), Rules(policy="strip", kill=True),
                       measured=Measurements(speedups=PAIRS))
    assert {row.id: row.end for row in outcome.jobs} == {2: 87.5, 1: pytest.approx(87.5 + 20 / 1.25)
                                                         if 87.5 + 20 / 1.25 < 100 else 100}
    assert outcome.summary["timeout"] == 1


def test_under_other_policies_speeds_stay_at_1() -> None:
    jobs = [job(1, "bt.A", 2, 100), job(2, "bt.A", 2, 100)]
    for policy in ("compact", "pack"):
        outcome = simulate(jobs, Machine.of(2, sockets=2, cores=2), Rules(policy=policy),
                           measured=Measurements(speedups=PAIRS))
        assert {row.end for row in outcome.jobs} == {100}
    spare = simulate(jobs, Machine.of(2, sockets=2, cores=2), Rules(policy="spare"),
                     measured=Measurements(speedups=PAIRS))
    assert {row.end for row in spare.jobs} == {80}


def test_ranks_order_nodes_but_leave_speeds_at_1() -> None:
    heatmap = Heatmap.parse(["bt cg bt", "cg bt cg"])
    assert ends([job(1, "bt.A", 2, 50), job(2, "bt.A", 2, 20)], speedups=None,
                heatmap=heatmap) == {2: 20, 1: 50}


APPS = ["bt.A", "cg.A", "ep.A"]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(APPS), st.integers(1, 6), st.integers(1, 50),
                          st.integers(0, 60)), min_size=1, max_size=12))
def test_work_is_conserved(rows: list[Any]) -> None:
    """Between any two events each job does its work at the speed of the model."""
    rows.sort(key=lambda one: one[3])
    jobs = [job(number, app, procs, work, submit)
            for number, (app, procs, work, submit) in enumerate(rows, 1)]
    cluster = Cluster.regular(2, 2, 2)
    found: list[Any] = []

    class Record(Results):
        def ended(self, booking: Any, start: Any, end: float, *rest: Any) -> None:
            found.append((booking.job, booking.placement.nodes, booking.start, end))

    scheduler = Scheduler(make_ordering("FCFS"), make_backfilling("easy"),
                          make_policy("strip", cluster))
    Simulator(scheduler, cluster, Record(cluster.nodes), rate=CoRunning(cluster, PAIRS)).run(jobs)
    assert len(found) == sum(procs <= 4 for _, procs, _, _ in rows)
    moments = sorted({start for _, _, start, _ in found} | {end for *_, end in found})
    for own, nodes, start, end in found:
        work = 0.0
        for begin, until in zip(moments, moments[1:]):
            if not start <= begin < end:
                continue
            speeds = []
            for node in nodes:
                beside = [other for other, where, first, last in found
                          if other is not own and node in where and first <= begin < last]
                assert len(beside) <= 1
                speeds.append(PAIRS.beside(own.app, own.procs, beside[0].app, beside[0].procs) or 1
                              if beside else PAIRS.alone(own.app, own.procs) or 1)
            work += (until - begin) * min(speeds)
        assert work == pytest.approx(jobs[own.id - 1].run)


def test_a_table(tmp_path: Path) -> None:
    path = tmp_path / "speeds"
    path.write_text("# own speed-ups\n     bt.D cg.D spare\nbt.D 1.5 0.75 2\ncg.D 1 1.2 1.1\n")
    own = read(path).speedups
    assert own.beside("bt.D.x", 8, "cg.D.x", 8) == 0.75 and own.alone("bt.D.x", 8) == 2
    assert read(path, "partner").speedups.beside("cg.D.x", 8, "bt.D.x", 8) == 0.75
    heatmap, speedups = Measurements(path).pairs(0)
    assert speedups is not None and heatmap.rank("cg", "cg") < heatmap.rank("cg", "bt")
    path.write_text("bt cg bt\ncg bt cg\n")
    heatmap, speedups = Measurements(path).pairs(0)
    assert speedups is None and heatmap.rank("bt", "cg") == 1


def test_a_pool_of_measured_loads(tmp_path: Path) -> None:
    def load(name: str, compact: list[float], partners: dict[str, Any]) -> str:
        return json.dumps({"load_name": name, "num_of_processes": int(name.split(".")[2]),
                           "compact_timelogs": compact, "coscheduled_timelogs": partners})
    path = tmp_path / "pool.json"
    path.write_text(json.dumps({"machine": "m", "suite": "s", "loads": [
        load("bt.D.64", [100, 120, 90], {"cg.D.64": [[80, 70], [90]]}),
        load("cg.D.64", [60], {"bt.D.64": [[50]], "cg.D.64": [[]]}),
        load("lu.D.64", [], {})]}))
    pool = read(path).speedups
    assert pool.compact_time("bt.D.64", 64) == pool.compact_time("bt.D.x", 64) == 100
    assert pool.beside("bt.D.x", 64, "cg.D.x", 64) == 100 / 80
    assert pool.beside("cg.D.x", 64, "cg.D.x", 64) is None
    assert pool.compact_time("bt.D.x", 32) is None


@pytest.mark.parametrize("text, message", [
    ("", "empty"), ("bt cg\nbt 1\n", "1 speed-ups for 2 columns"), ("bt cg\nbt 1 x1\n", "not a speed"),
    ("bt\nbt 0\n", "must be above 0"), ('{"loads": [1]}', "not a pool of measured loads")])
def test_files_that_cannot_be_used(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "speeds"
    path.write_text(text)
    with pytest.raises(SpeedError, match=message):
        read(path)
