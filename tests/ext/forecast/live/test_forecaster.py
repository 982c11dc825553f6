"""The process beside the manager: it forecasts, and the manager is none the worse whatever becomes
of it."""

from __future__ import annotations

import json
import os
import signal
import stat
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from conftest import Site, descendants, wait_until
from vrm.config.schema import Settings, load
from vrm.ext.forecast.live.process import ForecastProcess
from vrm.ext.forecast.live.forecaster import RESTARTS, Forecaster
from vrm.model import Cluster, Job
from vrm.results import forecast as forecasts
from vrm.results.forecast import ManagerReport
from vrm.run.journal import codec
from vrm.run.journal.files import FORMAT, Journal
from vrm.run.rundir import RunDirectory
from vrm.run.state import State
from vrm.scheduling import Scheduler, make_backfilling, make_ordering, make_policy


def beside(manager: Any) -> list[psutil.Process]:
    """The processes that forecast for a manager."""
    return descendants(manager.pid, "vrm.ext.forecast.live.process")


@pytest.mark.mpi
def test_a_run_is_forecast_while_it_goes_on(site: Site) -> None:
    site.config(Launcher={"Kind": "direct"}, Scheduling={"Backfilling": "easy"})
    site.program("wait.x", 'while [ ! -e "$0.go" ]; do sleep 0.05; done\n')
    site.lines("wait.x 1 1000", "wait.x 1 50", "wait.x 1 20", end=False)
    manager = site.start()
    file = site.log / "forecast.json"
    wait_until(file.exists, "the first forecast")
    made = forecasts.read(file)
    assert {job["id"]: job["running"] for job in made["jobs"]} == {0: True, 1: False, 2: False}
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    process = beside(manager)[0]
    assert process.nice() == 19
    process.kill()  # who kills it gets another one
    site.append("wait.x 1 10\n")
    wait_until(lambda: file.exists() and len(forecasts.read(file)["jobs"]) == 4, "another one's")
    another = beside(manager)[0]
    assert another.pid != process.pid
    manager.kill()
    wait_until(lambda: not another.is_running() or another.status() == psutil.STATUS_ZOMBIE,
               "it ends with a manager that is killed")
    manager.wait()
    (site.bin / "wait.x.go").touch()
    site.append("end\n")
    done = site.run()
    assert done.returncode == 0 and "4 completed" in done.stdout
    assert not file.exists()  # it was of a run that has ended


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    run = RunDirectory(tmp_path / "run", tmp_path / "log", tmp_path / "run" / "state")
    run.create()
    return run


def waiting_state() -> State:
    cluster = Cluster.regular(2, 1, 1)
    scheduler = Scheduler(make_ordering("FCFS"), make_backfilling("easy"),
                          make_policy("compact", cluster, None))
    state = State(scheduler.new_queue(), cluster)
    state.submit([Job(0, "a.x", 1, 10.0)])
    state.cluster.set_up(1, False)
    return state


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program that is started instead of Python."""
    program = tmp_path / "python"
    monkeypatch.setattr("sys.executable", str(program))
    return program


def write_program(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_one_that_fails_is_given_up_with_one_warning(run: RunDirectory, stand_in: Path) -> None:
    write_program(stand_in, "echo started >> $0.log; echo 'line 1' >&2; echo 'no numpy' >&2; exit 1")
    said: list[str] = []
    forecaster, state = Forecaster(Settings(), run, 5.0, said.append), waiting_state()

    def tell() -> bool:
        if forecaster.awake(state, 6.0):
            forecaster.tell(state, "running", 100.0, 6.0)
        return bool(said)
    assert not forecaster.awake(state, 4.0)
    wait_until(tell, "a warning")
    assert not forecaster.awake(state, 7.0)
    for _ in range(10):
        tell()
    forecaster.close()
    assert said == ["forecasts have ended: the process that makes them ended several times (no numpy)"]
    assert len(Path(f"{stand_in}.log").read_text().split()) == RESTARTS + 1


def test_one_that_cannot_be_started_is_given_up(run: RunDirectory, stand_in: Path) -> None:
    said: list[str] = []
    forecaster, state = Forecaster(Settings(), run, 5.0, said.append), waiting_state()
    forecaster.tell(state, "running", 100.0, 6.0)
    assert not forecaster.awake(state, 7.0)
    assert said == ["forecasts have ended: the process that makes them ended several times "
                    "(No such file or directory)"]


def test_one_that_hangs_is_not_waited_for(run: RunDirectory, stand_in: Path) -> None:
    write_program(stand_in, "exec sleep 1000")
    said: list[str] = []
    forecaster, state = Forecaster(Settings(), run, 0.0, said.append), waiting_state()
    begun = time.monotonic()
    for number in range(20_000):  # more than the pipe takes, and than is kept for it
        forecaster.tell(state, "running", 100.0, float(number))
    process = forecaster.process
    assert process is not None and process.poll() is None and len(forecaster.left) < 2 << 20
    (run.directory / ".forecast.json.77.abc").touch()  # it was killed while it wrote
    forecaster.close()
    assert not list(run.directory.glob(".forecast*"))
    assert time.monotonic() - begun < 30 and process.returncode == -signal.SIGKILL and not said


def test_what_it_is_told_is_settings_and_what_no_file_says(run: RunDirectory, stand_in: Path,
                                                           tmp_path: Path) -> None:
    from vrm.config.schema import of_line

    write_program(stand_in, f"head -n 2 > {tmp_path}/heard; exec sleep 1000")
    (tmp_path / "vrm.yaml").write_text("Grace: 3\nEnd: {Margin: 7}\n")
    forecaster = Forecaster(load(tmp_path / "vrm.yaml"), run, 0.0, lambda text: None)
    forecaster.tell(waiting_state(), "stopping", 100.0, 6.0)
    heard = tmp_path / "heard"
    wait_until(lambda: heard.exists() and heard.read_text().count("\n") == 2, "two lines")
    forecaster.close()
    settings, told = heard.read_text().splitlines()
    assert of_line(settings) == load(tmp_path / "vrm.yaml")
    assert of_line(settings).base == tmp_path
    assert ManagerReport.read(told) == ManagerReport("stopping", 100.0, frozenset({"n1"}), 6.0)


def begin(run: RunDirectory, tmp_path: Path, jobs: int) -> Settings:
    """A run on one core with so many jobs."""
    journal = Journal(run.journal)
    journal.append("run", format=FORMAT, run="abc", time=0.0,
                   nodes=codec.nodes_record(Cluster.regular(1, 1, 1).nodes))
    for job_id in range(jobs):
        journal.append("job", **codec.job_record(Job(job_id, "a.x", 1, 10.0 + job_id, 1.0)))
    journal.close()
    (tmp_path / "vrm.yaml").write_text(json.dumps({
        "Directory": str(run.directory), "Log": str(run.log), "State": str(run.state)}))
    return load(tmp_path / "vrm.yaml")


def test_it_forecasts_when_something_has_happened_or_time_has_passed(run: RunDirectory,
                                                                     tmp_path: Path) -> None:
    made = ForecastProcess(begin(run, tmp_path, 3))
    told = ManagerReport("running", time=5.0)
    assert made.look(told)
    assert {job["id"]: job["start"] for job in forecasts.read(made.path)["jobs"]}[0] == 5.0
    assert not made.look(told._replace(time=6.0))
    assert made.look(told._replace(time=6.0, down=frozenset({"n0"})))
    assert {job["start"] for job in forecasts.read(made.path)["jobs"]} == {None}
    assert made.look(told._replace(time=30.0))


def test_the_first_forecast_of_each_job_is_kept(run: RunDirectory, tmp_path: Path) -> None:
    made = ForecastProcess(begin(run, tmp_path, 3))
    for seconds in (5.0, 30.0):
        assert made.look(ManagerReport("running", time=seconds))
    kept = [json.loads(line) for line in run.forecasts.read_text().splitlines()]
    assert [(each["id"], each["time"]) for each in kept] == [(0, 5.0), (1, 5.0), (2, 5.0)]
    folder = run.archive([])
    assert folder is not None and (folder / "forecasts.jsonl").exists()
    assert not run.forecasts.exists() and not run.forecast.exists()  # they are of another run


def test_of_a_long_queue_it_forecasts_the_first_jobs(run: RunDirectory, tmp_path: Path,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vrm.ext.forecast.live.process.MOST", 7)
    made = ForecastProcess(begin(run, tmp_path, 40))
    made.look(ManagerReport("running", time=5.0))
    assert sorted(job["id"] for job in forecasts.read(made.path)["jobs"]) == list(range(7))
    assert os.listdir(run.directory).count("forecast.json") == 1
