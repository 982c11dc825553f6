"""The database of programs from jobs that ran: which jobs count, and calibration runs on a made-up node."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import Site

from vrm.ext.energy.keys import Energy
from vrm.ext.energy.database import read_programs
from vrm.ext.measure.bench import MeasureError
from vrm.ext.measure.learning import calibration, feature, learn
from vrm.model import Cluster, Node
from vrm.model.measured.energy import MeasuredProgram, PowerClass, Programs
from vrm.results.jobs import JobRow

COUNTER = "sys/class/powercap/intel-rapl:0/energy_uj"
CLASSES = {"n0": "p1", "n1": "p2"}


def job(number: int, app: str = "a", node: str = "n0", seconds: float = 10.0, **more: Any) -> JobRow:
    return JobRow(number, app, 2, 0, 5.0, 5.0 + seconds, 60, **{
        "status": "completed", "nodes": node, "cores": f"{node}:0/0-1", "power": 30.0, "metered": True, **more})


def test_jobs_alone_on_a_node_are_learnt_from() -> None:
    learnt = learn([job(1, power=30.0), job(2, seconds=30.0, power=50.0), job(3, node="n1", seconds=40.0),
                    job(4, cores="n0:0/0", power=9.0)], CLASSES.get)
    # Two jobs with two cores: the mean time, and the power over both; the narrow one is not about a full node.
    assert learnt.found == {("a", "p1"): (MeasuredProgram(20.0, 45.0), 2, 2), ("a", "p2"): (MeasuredProgram(40.0, 30.0), 1, 2)}
    assert learnt.left_out == {"had fewer cores than others of their program": 1}


@pytest.mark.parametrize("more, why", [
    ({"status": "failed"}, "did not complete"), ({"metered": False}, "where no energy was measured"),
    ({"nodes": "n[0-1]"}, "on several nodes"), ({"frequency": 1.8}, "had a frequency set"),
    ({"nodes": "n7"}, "on nodes without a class")])
def test_other_jobs_say_nothing(more: dict[str, Any], why: str) -> None:
    learnt = learn([job(1, **more)], CLASSES.get)
    assert not learnt.found and why in next(iter(learnt.left_out)) and sum(learnt.left_out.values()) == 1


def test_several_arguments_are_several_programs() -> None:
    learnt = learn([job(1, args="small"), job(2, args="large"), job(3, app="b")], CLASSES.get)
    assert set(learnt.found) == {("b", "p1")}
    assert learnt.left_out == {"are of a, which ran with several arguments": 2}


def test_what_is_known_is_not_run_again() -> None:
    cluster = Cluster([Node("n0", (2, 2), power=PowerClass("p1")), Node("n1", (3,), power=PowerClass("p2")),
                       Node("n2", (3,), power=PowerClass("p2"))])
    known = Programs({"ep.S.x": {"p1": MeasuredProgram(1, 1)}})
    assert calibration(["ep.S.x", "own"], cluster, known, 60) == [
        f"ep.S.x 2 60 0 nodes=1 features={feature('p2')}", f"own 4 60 0 nodes=1 features={feature('p1')}",
        f"own 2 60 0 nodes=1 features={feature('p2')}"]
    with pytest.raises(MeasureError, match="no node has a class"):
        calibration(["own"], Cluster.regular(1, 1, 1), known, 60)


def test_a_class_without_coefficients_is_read_again() -> None:
    """What a command writes for a manager to read."""
    assert Energy.model_validate({"Name": "p1", "Coefficients": None}).coefficients is None


@pytest.mark.mpi
@pytest.mark.slow
def test_calibration_runs_fill_the_database(site: Site) -> None:
    zone = (site.root / "node" / COUNTER).parent
    zone.mkdir(parents=True)
    for name, text in (("name", "package-0"), ("energy_uj", "1000"), ("max_energy_range_uj", "262143328850")):
        (zone / name).write_text(text)
    spend = (f"sleep 0.7\nexec {sys.executable} -c '\nimport sys\nwith open(\"{zone}/energy_uj\", \"r+\") as counter:\n"
             "    value = int(counter.read()) + 7000000\n    counter.seek(0)\n    counter.write(str(value))\n'\n")
    site.program("one.x", spend)
    site.program("two.x", "exit 3\n")
    site.config(Launcher={"Kind": "direct"}, NodeClasses=[
        {"Hosts": socket.gethostname(), "Energy": {"Name": "here"}}])
    (site.root / "none").mkdir()
    refused = site.run("energy", "calibrate", VRM_POWER=str(site.root / "none"))
    assert refused.returncode == 2 and "the energy of this node cannot be read" in refused.stderr
    assert not (site.root / "energy.yaml").exists()
    done = site.run("energy", "calibrate", VRM_POWER=str(site.root / "node"))
    assert done.returncode == 1, done.stdout + done.stderr  # two.x has failed
    assert "one.x on here" in done.stdout, done.stdout + done.stderr
    found = read_programs(site.root / "energy.yaml").of("one.x")["here"]
    assert found.watts * found.seconds == pytest.approx(7, rel=0.01)
    (zone / "energy_uj").write_text("1000")
    site.program("two.x", spend)
    again = site.run("energy", "calibrate", VRM_POWER=str(site.root / "node"))
    assert again.returncode == 0 and "two.x on here" in again.stdout, again.stdout + again.stderr
    assert "one.x" not in again.stdout  # it was not run again
    nothing = site.run("energy", "calibrate", VRM_POWER=str(site.root / "node"))
    assert nothing.returncode == 0 and "nothing is missing" in nothing.stdout
    assert not list(Path(site.root).glob(".energy*"))
