"""The objects of which a simulation is composed, their flat names, and the old keywords of `simulate`."""

from __future__ import annotations

import inspect
import warnings
from pathlib import Path
from typing import Any

import pytest

from vrm.model import Heatmap, Job, Node
from vrm.model.reservation import ReservationRequest
from vrm.api import (Machine, Measurements, Outage, Recording, Rules, Selection, Submission, Timetable, Watcher,
                            simulate)
from vrm.simulation.arguments import FIELDS, by_name
from vrm.simulation.inputs import WorkloadError
from vrm.ext.study.experiment.matrix import Cell, run_cell

JOBS = [Submission(Job(at, "cg", 1 + at % 3, 90.0 - at, at * 5.0), 40.0 + at % 7) for at in range(40)]
MACHINE = Machine.of(4, sockets=2, cores=2)
CASES = [
    ({"nodes": 4, "sockets": 2, "cores": 2, "algorithm": "SJF", "backfill": "easy", "policy": "compact"},
     {"machine": MACHINE, "rules": Rules(algorithm="SJF", backfill="easy", policy="compact")}),
    ({"nodes": list(MACHINE.nodes), "licences": {"ansys": 2}, "kill": True, "outages": [Outage(1, 20.0, 60.0)],
      "end": 500.0, "reservations": [ReservationRequest(100.0, 200.0, 2)], "changes": [(50.0, Rules(backfill="none"))]},
     {"machine": Machine(MACHINE.nodes, {"ansys": 2}), "rules": Rules(kill=True), "timetable": Timetable(
         [Outage(1, 20.0, 60.0)], 500.0, [ReservationRequest(100.0, 200.0, 2)], [(50.0, Rules(backfill="none"))])}),
    ({"machine": MACHINE, "policy": "strip", "heatmap": Heatmap.parse(["cg ep cg", "ep cg ep"]), "threshold": 1.0, "warm_up": 20.0,
      "efficiency": True},
     {"machine": MACHINE, "rules": Rules(policy="strip"), "measured": Measurements(Heatmap.parse(["cg ep cg", "ep cg ep"])),
      "record": Recording(efficiency=True, threshold=1.0, warm_up=20.0)})]


def found(workload: Any, given: dict[str, Any]) -> dict[str, Any]:
    outcome = simulate(workload, **given)
    clock = ("simulated_seconds", "jobs_per_second")
    return {"rows": list(outcome.jobs), **{key: value for key, value in outcome.summary.items() if key not in clock}}


@pytest.mark.parametrize("old, new", CASES)
def test_old_keywords_warn_and_give_the_same(old: dict[str, Any], new: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        expected = found(JOBS, new)
    with pytest.warns(DeprecationWarning):
        assert found(JOBS, old) == expected


def test_old_keywords_of_workloads_in_files(tmp_path: Path) -> None:
    queue = tmp_path / "queue"
    queue.write_text("".join(f"cg 1 {9 + at} 1\n" for at in range(9)))
    with pytest.warns(DeprecationWarning, match="vrm.workload.swf.Rules: write Selection"):
        from vrm.workload.swf import Rules as OldSelection  # type: ignore[attr-defined]
    with pytest.warns(DeprecationWarning):
        old = simulate(queue, nodes=2, rules=OldSelection(jobs=5), keep_estimates=True,  # type: ignore[call-arg]
                       out=tmp_path / "old")
    new = simulate(queue, Machine.of(2), selection=Selection(jobs=5, keep_estimates=True),
                   record=Recording(tmp_path / "new"))
    assert list(old.jobs) == list(new.jobs) and len(new.jobs) == 5
    assert (tmp_path / "old" / "jobs.csv").read_bytes() == (tmp_path / "new" / "jobs.csv").read_bytes()


def test_the_warning_is_the_new_form() -> None:
    with pytest.warns(DeprecationWarning) as told:
        simulate(JOBS, nodes=4, cores=4, algorithm="SJF", end=9e9, backfill="easy",  # type: ignore[call-arg]
                 watchers=[Watcher()])
    assert [str(one.message) for one in told] == [
        "simulate(nodes=, cores=, algorithm=, end=, backfill=, watchers=): write simulate(workload, "
        "machine=Machine.of(nodes=..., cores=...), rules=Rules(algorithm=..., backfill=...), "
        "timetable=Timetable(end=...), record=Recording(watchers=...))"]
    assert told[0].filename == __file__
    with pytest.warns(DeprecationWarning) as told:
        simulate(workload=JOBS, nodes=MACHINE.nodes)  # type: ignore[call-arg]
    assert str(told[0].message) == "simulate(nodes=): write simulate(workload, machine=Machine(nodes=...))"


def test_flat_names_are_those_of_fields() -> None:
    parameters = inspect.signature(simulate).parameters
    assert set(FIELDS.values()) <= set(parameters) and not FIELDS.keys() & parameters.keys()
    assert by_name({"backfill": "none", "nodes": 2, "progress": print}) == {
        "rules": Rules(backfill="none"), "machine": Machine.of(2), "progress": print}
    assert by_name({"rules": Rules(kill=True), "policy": "compact"})["rules"] == Rules(kill=True, policy="compact")


def test_a_machine_of_a_file_keeps_its_licences(tmp_path: Path) -> None:
    file = tmp_path / "machine.yaml"
    file.write_text("Classes: [{Count: 2, Cores: 4}]\nLicences: {ansys: 4}\n")
    assert by_name({"machine": file, "licences": {"ansys": 1}})["machine"].licences == {"ansys": 4}
    file.write_text("Classes: [{Count: 2, Cores: 4}]\n")
    assert by_name({"machine": file, "licences": {"ansys": 1}})["machine"].licences == {"ansys": 1}
    with pytest.raises(WorkloadError, match="give either that or nodes"):
        by_name({"machine": file, "nodes": 3})


@pytest.mark.parametrize("sizes, message", [
    ((0, 1, 1), "at least 1 node"), ((1, 0, 1), "1 socket"), ((2, 600_000, 1), "too many; a machine has at most")])
def test_machines_that_there_cannot_be(sizes: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Machine.of(*sizes)


def test_machines() -> None:
    assert Machine.of(2, 2, 4).nodes == (Node("n0", (4, 4)), Node("n1", (4, 4)))
    assert len(simulate("lublin:16:20").cluster.nodes) == len(simulate("lublin:16:20", Machine()).cluster.nodes) == 16


def test_cells_of_a_matrix_name_fields_without_a_warning(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run_cell(Cell("lublin:16:20", (("backfill", "none"), ("warm_up", 5.0))), str(tmp_path))
