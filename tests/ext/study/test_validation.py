"""`vrm validate`: a live run against its replay; errors by their plain definitions."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from statistics import mean, median
from typing import Any

import pytest

from conftest import Site
from vrm.cli import main
from vrm.model import Heatmap, Job, Node
from vrm.model.measured.speedups import Speedups
from vrm.ext.study.validation.validation_report import data, draw, table
from vrm.results.jobs import JobRow, read_jobs
from vrm.ext.study.validation.validation_result import Error
from vrm.api import Machine, Measurements, Recording, Submission, Timetable, simulate
from vrm.model.rules import Rules
from vrm.run.journal.files import Journal
from vrm.ext.study.validation.replay import ValidationError, read_changes, read_rules, validate
from vrm.ext.measured.estimates import Estimate, read_estimates

ROOT = Path(__file__).resolve().parents[3]

# app, ranks, seconds it takes.
JOBS = [("ep", 2, 0.5), ("cg", 1, 0.2), ("ft", 2, 0.3), ("is", 1, 0.6), ("cg", 1, 0.2)]


def estimates_of(seconds: dict[tuple[str, int], float]) -> dict[tuple[str, int], Estimate]:
    """A table of estimates."""
    return {(app, procs): Estimate(app, procs, value)
            for (app, procs), value in seconds.items()}


def test_a_live_run_is_replayed_and_its_errors_are_told(site: Site) -> None:
    site.config(Nodes=2, Sockets=1, Cores=2, Emulate=True,
                Scheduling={"Algorithm": "WFP3", "Backfilling": "easy"})
    for app, _, seconds in JOBS:
        site.program(f"{app}.x", f"exec sleep {seconds}\n")
    site.program("bad.x", "exit 3\n")
    site.lines(*(f"{app}.x {procs} 5 0" for app, procs, _ in JOBS), "bad.x 1 5 0", "none.x 1 5 0")
    assert site.run().returncode == 1
    table_file = site.root / "estimates.csv"
    table_file.write_text("app,procs,seconds,times\n" + "".join(  # the mean of the times counts
        f"{app}.x,{procs},{seconds:.3f},{seconds:.3f} {seconds + 0.3:.3f} {seconds:.3f}\n"
        for app, procs, seconds in dict.fromkeys(JOBS)))
    picture = site.root / "scatter.svg"
    done = site.run("validate", "--estimates", str(table_file), "--json", "--out", str(picture))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)

    rows = site.rows()
    completed = [row for row in rows.values() if row.status == "completed"]
    known = {(f"{app}.x", procs): seconds + 0.1 for app, procs, seconds in JOBS}
    assert sorted(job["id"] for job in found["jobs"]) == sorted(row.id for row in completed)
    for job in found["jobs"]:
        row = rows[job["id"]]
        assert job["live"] == pytest.approx(row.end - row.submit, abs=1e-6)
        assert job["simulated_run"] == pytest.approx(known[row.app, row.procs], abs=1e-6)
    errors = [job["simulated"] / job["live"] - 1 for job in found["jobs"]]
    assert found["turnaround"]["mape"] == pytest.approx(mean(map(abs, errors)))
    assert found["turnaround"]["median"] == pytest.approx(median(map(abs, errors)))
    assert found["turnaround"]["bias"] == pytest.approx(mean(errors))
    ran = [row for row in rows.values() if row.end is not None and row.start is not None]
    length = max(row.end for row in ran) - min(row.submit for row in ran)
    assert found["makespan"]["live"] == pytest.approx(length, abs=1e-6)
    assert found["makespan"]["error"] == pytest.approx(
        found["makespan"]["simulated"] / length - 1)
    assert found["known"] == "calibrated" and found["left_out"] == 1
    assert picture.read_text().startswith("<?xml")

    # With the run times of the run itself both decide alike.
    done = site.run("validate", str(site.log), "--known", "actual", "--json")
    found = json.loads(done.stdout)
    assert found["known"] == "actual"
    assert abs(found["makespan"]["error"]) < 0.01 and found["turnaround"]["mape"] < 0.01
    text = site.run("validate", str(site.log), "--known", "actual").stdout
    assert "cg.x 1 " in text and "1 job(s) did not complete" in text


def test_the_study_calibrates_runs_and_replays(site: Site) -> None:
    site.config(Sockets=1, Cores=2, Emulate=True)
    for app, seconds in (("ep.x", 0.1), ("cg.x", 0.05)):
        site.program(app, f"exec sleep {seconds}\n")
    heatmap = site.root / "heatmap"
    heatmap.write_text("ep cg ep\ncg ep cg\n")
    out = site.root / "study"
    done = subprocess.run(
        [sys.executable, str(ROOT / "studies" / "validation" / "run.py"), "--out", str(out), "-c",
         str(site.config_file), "--heatmap", str(heatmap), "--apps", "ep.x,cg.x", "--jobs", "4",
         "--repetitions", "1"], text=True, capture_output=True, timeout=120, check=False,
        env={**site.env, "PYTHONPATH": str(ROOT)}, cwd=site.root)
    assert done.returncode == 0, done.stdout + done.stderr
    whole = json.loads((out / "validation.json").read_text())
    found = whole["runs"]
    assert [one["run"] for one in found] == ["compact-1", "strip-1"]
    for one in found:
        assert abs(one["actual"]["makespan"]["error"]) < 0.01
        assert one["actual"]["turnaround"]["mape"] < 0.01
        assert one["before"]["known"] == one["beside"]["known"] == "calibrated"
    assert (out / "validation.txt").read_text() in done.stdout
    # The same programs with two numbers of ranks under compact, one under strip.
    for policy, ranks in (("compact", [1, 1, 2, 2]), ("strip", [1, 1, 1, 1])):
        assert sorted(row.procs for row in read_jobs(out / "runs" / f"{policy}-1" / "jobs.csv")
                      ) == ranks
        assert (out / f"{policy}-1-beside.svg").exists()

    # A run is replayed with what was measured before it, or with the rounds on either side.
    def times(name: str) -> list[float]:
        return list(read_estimates(out / f"{name}.csv")[0]["ep.x", 1].times)

    rounds = [time for first in (1, 3, 4, 5) for time in times(f"calibrated-{first}")]
    assert times("compact-1-before") == rounds[:3]
    assert times("strip-1-before") == rounds[1:4]
    assert times("compact-1-beside") == rounds[1:5]
    assert times("strip-1-beside") == rounds[2:6]


PAIR = (Node("a", (4,)), Node("b", (4,)))


def recorded(tmp_path: Path, speedups: Speedups) -> tuple[list[JobRow], Rules]:
    """A run on two nodes under strip, in which jobs ran as fast as `speedups` say."""
    rules = Rules("FCFS", "easy", "strip")
    jobs = [Submission(Job(number, f"{app}.A.x", procs, 50, 3 * number + 0.5), run)
            for number, (app, procs, run) in enumerate(
                [("cg", 2, 10), ("ep", 4, 20), ("cg", 4, 14), ("ep", 2, 11), ("ep", 4, 20)])]
    simulate(jobs, Machine(PAIR), Rules(policy="strip", backfill="easy"),
             measured=Measurements(speedups=speedups, heatmap=Heatmap.parse(["cg ep cg", "ep cg ep"])),
             record=Recording(out=tmp_path))
    return list(read_jobs(tmp_path / "jobs.csv")), rules


def test_neighbours_count_under_strip(tmp_path: Path) -> None:
    speedups = Speedups({"cg": {"ep": 1.25, "cg": 0.8}, "ep": {"cg": 0.9, "ep": 1.0}},
                        {"cg": 1.3, "ep": 1.0})
    rows, rules = recorded(tmp_path, speedups)
    order = Heatmap.parse(["cg ep cg", "ep cg ep"])
    known = estimates_of({("cg.A.x", 2): 10, ("cg.A.x", 4): 14, ("ep.A.x", 2): 11,
                          ("ep.A.x", 4): 20})
    exact = validate(rows, rules, PAIR, known, Measurements(order, speedups))
    assert exact.turnaround.mape < 1e-3 and abs(exact.makespan_error) < 1e-3
    blind = validate(rows, rules, PAIR, known, Measurements(order))
    assert blind.running.mape > 0.05
    again = validate(rows, rules, PAIR, None, Measurements(order, speedups))
    assert again.turnaround.mape < 1e-3  # measured times have the neighbours in them


def test_a_run_whose_rules_changed_is_replayed_by_all_of_them(tmp_path: Path) -> None:
    """Jobs of 10 s that want the node: by submission, from 15 on the longest first, from 35 on the shortest."""
    jobs = [Submission(Job(number, "a", 4, walltime, 0.5 * number), 10.0)
            for number, walltime in enumerate([50.0, 40.0, 10.0, 20.0, 60.0, 30.0])]
    node = (Node("n0", (4,)),)
    changes = [(15.0, Rules("LJF", "none", "pack")), (35.0, Rules("SJF", "conservative", "pack"))]
    out = simulate(jobs, Machine(node), Rules(backfill="none", policy="pack"), timetable=Timetable(changes=changes),
                   record=Recording(out=tmp_path))
    assert sorted((row.start, row.id) for row in out.jobs) == [
        (0, 0), (10, 1), (20, 4), (30, 5), (40, 2), (50, 3)]
    rows = list(read_jobs(tmp_path / "jobs.csv"))
    rows = [replace(row, submit=row.submit + 1e9, start=row.start + 1e9, end=row.end + 1e9) for row in rows]
    later = [(time + 1e9, rules) for time, rules in changes]
    found = validate(rows, Rules("FCFS", "none", "pack"), node, changes=later)
    assert found.turnaround.mape == 0 and found.makespan_error == 0
    assert validate(rows, changes[1][1], node).turnaround.mape > 0.1
    with pytest.raises(ValidationError, match="under the rules of the run"):
        validate(rows, Rules("FCFS", "none", "pack"), node, changes=[
            (time, replace(rules, policy="strip")) for time, rules in later])


def test_the_rules_of_a_run_are_in_its_journal(tmp_path: Path) -> None:
    path, first, second, other = tmp_path / "journal", Rules("FCFS"), Rules("SJF"), Rules("LJF")
    assert read_changes(path, other) == [(-math.inf, other)]

    def written(*records: dict[str, Any]) -> None:
        path.unlink(missing_ok=True)
        made = Journal(path)
        for record in records:
            made.append(**record)
        made.close()

    def run(time: float) -> dict[str, Any]:
        return {"event": "run", "format": 2, "run": "r", "time": time}

    def change(time: float, rules: Rules, was: Rules) -> dict[str, Any]:
        return {"event": "rules", "time": time, "rules": rules.record(), "was": was.record(), "reason": ""}

    written(run(5.0))
    assert read_changes(path, other) == [(-math.inf, other)]
    advised = Rules("advised", "easy")
    written(run(5.0), change(9.0, second, advised), run(20.0))  # goes on with the changed ones
    assert read_changes(path, second) == [(-math.inf, Rules("FCFS", "easy")), (9.0, second)]
    written(run(5.0), change(9.0, second, first), run(20.0))  # the configuration was edited
    assert read_changes(path, other) == [(-math.inf, first), (9.0, second), (20.0, other)]
    written(run(5.0), change(9.0, second, first), run(20.0), change(30.0, second, other))
    assert read_changes(path, second) == [(-math.inf, first), (9.0, second), (20.0, other), (30.0, second)]
    path.write_bytes(b"nothing\n")
    with pytest.raises(ValidationError, match="journal:1: not a journal record"):
        read_changes(path, second)


def test_errors_are_relative_to_the_live_run() -> None:
    found = Error.of([0.1, -0.3, 0.05])
    assert found == Error(pytest.approx(0.15), pytest.approx(0.1), pytest.approx(-0.05))


@pytest.mark.slow
def test_pictures_and_tables_of_many_applications(tmp_path: Path) -> None:
    nodes = (Node("n0", (4,)),)
    rows = [JobRow(number, f"a{number % 13}$x", 1, 10.0, 10.0 + number, 11.0 + number * number,
                   5.0, "completed") for number in range(1, 40)]
    found = validate(rows, Rules("FCFS", "none", "pack"), nodes, estimates_of(
        {(row.app, 1): 2.0 for row in rows}))
    assert f"{found.turnaround.mape:.1%}" in table(found)
    assert len(data(found)["jobs"]) == 39
    draw(found, tmp_path / "scatter.png")
    assert (tmp_path / "scatter.png").read_bytes()[:4] == b"\x89PNG"


def test_what_cannot_be_replayed_is_told_with_the_mend(tmp_path: Path, monkeypatch: pytest.
                                                       MonkeyPatch, capsys: pytest.CaptureFixture
                                                       ) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("VRM_CONFIG", raising=False)

    def told(*arguments: str) -> str:
        assert main(["validate", *arguments]) == 2
        return capsys.readouterr().err

    assert "which run?" in told()
    assert "state: not there; name the directory" in told(str(tmp_path))
    (tmp_path / "state").write_text("{}")
    assert "state: vrm has not written this" in told(str(tmp_path))
    row = JobRow(0, "cg.A.x", 2, 5.0, 5.0, 9.0, 5.0, "completed")
    rules = Rules("FCFS", "none", "compact")
    with pytest.raises(ValidationError, match=r"no line for cg.A.x on 2 rank\(s\)"):
        validate([row], rules, (Node("n0", (4,)),), estimates_of({("cg.A.x", 4): 4.0}))
    with pytest.raises(ValidationError, match="job 0 .* does not fit on the nodes"):
        validate([row], rules, (Node("n0", (1,)),))


def test_rules_are_those_of_the_state_file(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.write_text(json.dumps({
        "scheduling": {"algorithm": "WFP3", "backfilling": 3, "policy": "strip", "interval": 10,
                       "starts_per_interval": 1},
        "nodes": [{"name": "n0", "sockets": [[None, None], [4]]}]}))
    assert read_rules(state) == (
        Rules("WFP3", "3", "strip", interval=10, starts_per_interval=1), (Node("n0", (2, 1)),))
