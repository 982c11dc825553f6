"""`vrm experiment`: what a file means, what is wrong with it, and what is run, again, and anew."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from conftest import Site, wait_until
from vrm.cli import main
from vrm.config.problems import ConfigError
from vrm.ext.study.experiment.execute import Experiment, ExperimentTask
from vrm.ext.study.experiment.experiment_plan import read_plan
from vrm.results.jobs import read_jobs
from vrm.api import Machine, Rules, simulate

GRID = {"Allocation.Policy": ["compact", "strip"], "Scheduling.Algorithm": ["FCFS", "WFP3"],
        "Scheduling.Backfilling": ["none", "easy"]}
EIGHT = [f"{policy}-{algorithm}-{backfilling}" for policy in ("compact", "strip")
         for algorithm in ("FCFS", "WFP3") for backfilling in ("none", "easy")]
MACHINE = {"Nodes": 4, "Sockets": 2, "Cores": 4}


def write(path: Path, **keys: Any) -> Path:
    path.write_text(yaml.safe_dump(keys, sort_keys=False))
    return path


@pytest.fixture
def queue(tmp_path: Path) -> Path:
    path = tmp_path / "mix"
    path.write_text("".join(f"{app}.B.x {procs} {seconds} 0 {delay}\n" for app, procs, seconds,
                            delay in (("ep", 8, 40, 5), ("cg", 16, 90, 3), ("ft", 16, 60, 4),
                                      ("is", 4, 5, 2), ("lu", 16, 60, 9), ("mg", 8, 10, 0))))
    return path


def simulated(tmp_path: Path, queue: Path, **keys: Any) -> Path:
    return write(tmp_path / "e.yaml", **{"Mode": "simulated", "Keys": MACHINE, "Grid": GRID,
                                         "Queues": [str(queue)], **keys})


# ------------------------------------------------------------------------------------- the file


def test_a_grid_is_every_combination_and_a_list_is_added(tmp_path: Path, queue: Path) -> None:
    base = write(tmp_path / "base.yaml", Nodes=2, Sockets=1, Cores=8, Log="elsewhere",
                 Scheduling={"Backfilling": "conservative"})
    path = simulated(tmp_path, queue, Config="base.yaml", Keys={"Sockets": 2}, Scenarios=[
        {"Name": "wide / ñ", "Allocation.Policy": "spare", "Nodes": 9},
        {"Scheduling": {"Algorithm": "(q / t)**2"}}])
    plan = read_plan(path)
    assert [one.name for one in plan.scenarios] == [*EIGHT, "wide_ñ", "q_t_2"]
    strip = plan.scenarios[-3].settings
    assert (strip.nodes, strip.sockets, strip.cores) == (2, 2, 8)
    assert (strip.allocation.policy, strip.scheduling.algorithm, strip.scheduling.backfilling) == (
        "strip", "WFP3", "easy")
    wide, expression = (one.settings for one in plan.scenarios[-2:])
    assert (wide.nodes, wide.scheduling.backfilling) == (9, "conservative")
    assert expression.scheduling.algorithm == "(q / t)**2"
    assert base.exists() and plan.out == Path("runs/e")


def test_repetitions_are_blocks_in_an_order_of_the_seed(tmp_path: Path, queue: Path) -> None:
    mix = {"Name": "drawn", "Generate": {"Jobs": 5, "Estimates": "class-b"}}
    names = []
    for seed in (1, 1, 2):
        plan = read_plan(simulated(tmp_path, queue, Queues=[mix], Repetitions=3, Seed=seed))
        names.append([run.name for run in plan.runs])
        for repetition in (1, 2, 3):
            block = plan.runs[8 * (repetition - 1):8 * repetition]
            assert {run.repetition for run in block} == {repetition}
            assert sorted(run.scenario.name for run in block) == sorted(EIGHT)
            assert {run.seed for run in block} == {seed + repetition - 1}
    assert names[0] == names[1] != names[2]
    plan = read_plan(simulated(tmp_path, queue, Queues=[mix, str(queue)], Repetitions=2,
                               Order="given"))
    assert [run.scenario.name for run in plan.runs[:8]] == EIGHT
    # What a simulation would do again the same is not repeated.
    assert Counter(run.queue.name for run in plan.runs) == {"drawn": 16, "mix": 8}


@pytest.mark.parametrize("keys, line, message", [
    ({"Mode": "life"}, 1, 'Mode: found "life", wanted live or simulated'),
    ({"Repetitions": 0}, 15, 'Repetitions: found "0", wanted a whole number from 1 up'),
    ({"Repetition": 2}, 15, "Repetition: unknown key; did you mean Repetitions?"),
    ({"Keys": {**MACHINE, "Core": 2}}, 6, "Core: unknown key; did you mean Cores?"),
    ({"Keys": {**MACHINE, "Log": "x"}}, 6, "Log: Log is decided by the experiment"),
    ({"Keys": {"Nodes": "auto"}}, 1, "Mode: a simulated machine has to have a size"),
    ({"Grid": {"Scheduling.Algorithm": "FCFS"}}, 7, "wanted a list"),
    ({"Grid": {"Scheduling.Algorithm": ["FCFS", "(q"]}}, 9, "Scheduling.Algorithm"),
    ({"Grid": {"Nodes.Some": [3]}}, 8, "is not a key of a configuration"),
    ({"Queues": []}, 14, "Queues: found an empty list, wanted a list"),
    ({"Queues": ["none"]}, 15, "none is not a file"),
    ({"Queues": [{"Name": "n"}]}, 15, "queue 1 is either a file or drawn"),
    ({"Queues": [{"Generate": {"Job": 3}}]}, 16, "Queues.Generate.Job: unknown key; did you mean "
                                                 "Jobs?"),
    ({"Queues": [{"Generate": {"Jobs": 3}}]}, 15, "no estimates; name a table"),
    ({"Queues": [{"Generate": {"Estimates": "class-b", "Apps": ["xx"]}}]}, 15, "xx is not"),
    ({"Config": "none.yaml"}, 15, "none.yaml: no such file"),
])
def test_what_is_wrong_is_told_with_its_line(keys: dict[str, Any], line: int, message: str,
                                             tmp_path: Path, queue: Path, capsys: Any) -> None:
    path = simulated(tmp_path, queue, **keys)
    if line > 8:  # the keys of this file are one to a line
        text = path.read_text().splitlines()
        line = next((number for number, words in enumerate(text, 1)
                     if words.split(":")[0].strip(" -") == next(iter(keys))), line)
    assert main(["experiment", str(path)]) == 2
    error = capsys.readouterr().err
    assert message in error
    told = next(words for words in error.splitlines() if str(path) in words)
    key = next(iter(keys))
    if key not in ("Grid", "Queues"):
        assert told.startswith(f"{path}:{line}: ")
    else:
        assert told.startswith(f"{path}:")


def test_a_live_experiment_wants_its_programs(tmp_path: Path, queue: Path, capsys: Any) -> None:
    path = write(tmp_path / "e.yaml", Keys={"Applications": {"Path": str(tmp_path)}},
                 Queues=[str(queue), "lublin:8:9"])
    assert main(["experiment", str(path)]) == 2
    assert "a live run needs programs to start" in capsys.readouterr().err
    path = write(tmp_path / "e.yaml", Keys={"Applications": {"Path": str(tmp_path)}},
                 Queues=[str(queue)])
    assert main(["experiment", str(path)]) == 2
    assert f"{tmp_path}/cg.B.x does not exist; build it" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


# ------------------------------------------------------------------------------------ simulated


def run_all(path: Path, out: Path, *options: str) -> int:
    return main(["experiment", str(path), "--out", str(out), *options])


@pytest.mark.slow
def test_simulated_runs_are_those_of_the_simulator(tmp_path: Path, queue: Path,
                                                   capsys: Any) -> None:
    path = simulated(tmp_path, queue, Queues=[str(queue), {
        "Name": "drawn", "Generate": {"Jobs": 9, "Estimates": "class-b", "Ranks": [4, 8]}}],
        Repetitions=2)
    out = tmp_path / "out"
    assert run_all(path, out) == 0
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 25 and told[-1].startswith("[24/24] ")
    assert told[0] == "simulated once, not 2 times: mix; the same jobs give the same result again"
    for name in EIGHT:
        policy, algorithm, backfill = name.split("-")
        for queue_file, run in ((queue, f"{name}.mix.1"),
                                (out / "inputs" / "drawn-1", f"{name}.drawn.2")):
            outcome = simulate(queue_file, Machine.of(4, sockets=2, cores=4),
                               Rules(policy=policy, algorithm=algorithm, backfill=backfill))
            rows = {row.id: row.start for row in read_jobs(out / run / "jobs.csv")}
            assert rows == {row.id: row.start for row in outcome.jobs}
            record = json.loads((out / run / "run.json").read_text())
            assert record["complete"] and record["exit_status"] == 0
            assert record["changes"] == dict(zip(GRID, name.split("-")))
            assert record["versions"]["python"] and record["machine"]["cores"] >= 1
    # The command that a record names does the same again.
    directory = out / "strip-WFP3-easy.drawn.2"
    before = (directory / "jobs.csv").read_text()
    words = json.loads((directory / "run.json").read_text())["command"].split()
    assert subprocess.run([sys.executable, "-m", "vrm.cli", *words[1:]], cwd=directory,
                          stdout=subprocess.DEVNULL, check=False).returncode == 0
    assert (directory / "jobs.csv").read_text() == before


def test_a_queue_may_be_a_window_of_a_trace(tmp_path: Path) -> None:
    rows = [f"{number} {number * 100} -1 50 2 -1 -1 2 60 -1 {1 + 4 * (number == 5)} 1 -1 1 -1 -1 -1 -1" for number in range(10)]
    (tmp_path / "t.swf").write_text("; MaxProcs: 4\n" + "\n".join(rows) + "\n")
    path = write(tmp_path / "e.yaml", Mode="simulated", Queues=[
        "t.swf", {"File": "t.swf", "Name": "part", "Begin": 300, "End": 800, "Clean": True}])
    assert run_all(path, tmp_path / "out") == 0
    found = {run.name.split(".")[1]: (sorted(row.id for row in read_jobs(run / "jobs.csv")), json.loads(
        (run / "run.json").read_text())["command"]) for run in sorted((tmp_path / "out").glob("*.1"))}
    assert found["t"][0] == list(range(10)) and found["part"][0] == [3, 4, 6, 7]
    assert found["part"][1] == "vrm simulate ../inputs/part.swf -c config.yaml --begin 300 --end 800 --clean --out ."


@pytest.mark.parametrize("mode, keys, says", [
    ("live", {"Clean": True}, "Jobs, Load, Begin, End and Clean are for simulated runs"),
    ("simulated", {"Begin": 5, "End": 5}, "End is not after Begin"),
])
def test_a_window_that_cannot_be_is_refused(mode: str, keys: dict[str, Any], says: str, tmp_path: Path, queue: Path,
                                            capsys: Any) -> None:
    path = write(tmp_path / "e.yaml", Mode=mode, Keys=MACHINE, Queues=[{"File": str(queue), **keys}])
    assert main(["experiment", str(path)]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.slow
def test_only_what_is_missing_is_run(tmp_path: Path, queue: Path, capsys: Any) -> None:
    path, out = simulated(tmp_path, queue), tmp_path / "out"
    assert run_all(path, out, "--dry-run") == 0
    assert "8 runs (simulated), 8 to do" in capsys.readouterr().out and not out.exists()
    assert run_all(path, out, "--jobs", "1") == 0
    records = sorted(out.glob("*/run.json"))
    before = {record: record.stat().st_mtime_ns for record in records}
    assert len(before) == 8
    records[0].unlink()
    cut = json.loads(records[1].read_text())
    records[1].write_text(json.dumps({**cut, "complete": False}))
    capsys.readouterr()
    assert run_all(path, out, "--dry-run") == 0
    shown = capsys.readouterr().out
    assert "8 runs (simulated), 2 to do" in shown and "cut short" in shown
    assert run_all(path, out) == 0
    assert "6 of 8 runs are complete already" in capsys.readouterr().err
    (records[2].parent / "jobs.csv").unlink()
    assert run_all(path, out, "--dry-run") == 0
    assert "8 runs (simulated), 1 to do" in capsys.readouterr().out
    assert run_all(path, out) == 0
    assert {record for record in records if record.stat().st_mtime_ns == before[record]} == \
        set(records[3:])
    # More repetitions and scenarios may come; runs of other settings are not mixed with these.
    grid = {**GRID, "Allocation.Policy": ["compact", "strip", "spare"]}
    assert run_all(simulated(tmp_path, queue, Grid=grid), out) == 0
    assert len(list(out.glob("*/run.json"))) == 12
    assert run_all(simulated(tmp_path, queue, Keys={**MACHINE, "Nodes": 5}), out) == 2
    assert "holds a run with other settings or another queue" in capsys.readouterr().err
    queue.write_text(queue.read_text().replace("ep", "bt"))
    assert run_all(simulated(tmp_path, queue), out) == 2


def test_a_failing_run_does_not_stop_the_others(tmp_path: Path, capsys: Any) -> None:
    trace = tmp_path / "t.swf"
    trace.write_text("; MaxProcs: 4\n1 0 -1 10 2 -1 -1 2 20 -1 1 1 -1 -1 -1 -1 -1 -1\n")
    (tmp_path / "bad.swf").write_text(trace.read_text().partition("\n")[2])  # no size
    path = write(tmp_path / "e.yaml", Mode="simulated", Queues=["bad.swf", "t.swf"])
    assert run_all(path, tmp_path / "out") == 2
    error = capsys.readouterr().err
    assert "1 of 2 runs failed; the first, base.bad.1: " in error
    assert (tmp_path / "out" / "base.t.1" / "summary.json").exists()


# ----------------------------------------------------------------------------------------- live


@pytest.fixture
def live(site: Site) -> Path:
    site.program("quick.x", "echo ' Time in seconds = 0.01'\n")
    site.program("wait.x", f"while [ ! -e {site.root}/go ]; do read -t 0.05 x < /dev/zero; done\n"
                           "echo ' Time in seconds = 0.02'\n")
    (site.root / "mix").write_text("quick.x 1 5 0 0\nwait.x 1 5 0 0\n")
    return write(site.root / "e.yaml", Mode="live", Repetitions=2, Order="given", Queues=["mix"],
                 Keys={"Applications": {"Path": str(site.bin)}, "Nodes": 1, "Sockets": 1,
                       "Cores": 1, "Grace": 1},
                 Grid={"Scheduling.Algorithm": ["FCFS", "LJF"]})


def start(site: Site, path: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "vrm.cli", "experiment", str(path), "--out", str(site.root / "out")],
        cwd=site.root, env=site.env, text=True, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    site.started.append(process)
    return process


def records(site: Site) -> list[dict[str, Any]]:
    found = [json.loads(path.read_text()) for path in (site.root / "out").glob("*/run.json")]
    return sorted(found, key=lambda record: record["position"])


def test_live_runs_are_the_managers_own(site: Site, live: Path) -> None:
    (site.root / "go").touch()
    process = start(site, live)
    out, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    assert "4 runs are in" in out
    told = [line for line in error.splitlines() if line.startswith("[")]
    assert [line.split()[0] for line in told] == ["[1/4]", "[2/4]", "[3/4]", "[4/4]"]
    assert "left" in told[0] and "left" not in told[-1]
    found = records(site)
    assert [(one["scenario"], one["repetition"]) for one in found] == [
        ("FCFS", 1), ("LJF", 1), ("FCFS", 2), ("LJF", 2)]
    for record in found:
        directory = site.root / "out" / f"{record['scenario']}.mix.{record['repetition']}"
        assert [row.status for row in read_jobs(directory / "jobs.csv")] == ["completed"] * 2
        assert record["versions"]["mpi"].startswith("Open MPI")
        assert sorted(record["programs"]) == ["quick.x", "wait.x"]
        assert (directory / "output").read_text().count("completed after") == 2
    site.nothing_left()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_is_cut_short_is_done_anew(site: Site, live: Path, how: signal.Signals) -> None:
    process = start(site, live)
    directory = site.root / "out" / "FCFS.mix.1"
    wait_until(lambda: (directory / "pids" / "1").exists(), "the second job runs")
    process.send_signal(how)
    _, error = process.communicate(timeout=60)
    if how == signal.SIGTERM:
        assert process.returncode == 130 and "the same command continues" in error
    # Its manager was told, too, and has ended its jobs.
    wait_until(lambda: not site.processes() and not _owned(directory), "the manager has ended")
    assert [record["complete"] for record in records(site)] == [False]
    (site.root / "go").touch()
    process = start(site, live)
    _, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    assert [record["complete"] for record in records(site)] == [True] * 4
    assert [row.status for row in read_jobs(directory / "jobs.csv")] == ["completed"] * 2
    before = [record["started"] for record in records(site)]
    process = start(site, live)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 0 and "4 of 4 runs are complete already" in error
    assert [record["started"] for record in records(site)] == before
    site.nothing_left()


def _owned(directory: Path) -> bool:
    from vrm.run.rundir import RunDirectory
    return RunDirectory(directory, directory, directory / "state").manager_runs()


def test_failing_jobs_are_told(site: Site, live: Path) -> None:
    site.program("wait.x", "exit 3\n")
    live.write_text(live.read_text().replace("Repetitions: 2", "Repetitions: 1"))
    process = start(site, live)
    _, error = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "1 of 2 jobs did not succeed; job 1 (wait.x): " in error
    assert [record["exit_status"] for record in records(site)] == [1] * 2


def test_a_manager_that_crashed_is_a_failed_run(site: Site, live: Path, capsys: Any,
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(self: Experiment, task: ExperimentTask, *options: str) -> int:
        (task.directory / "output").write_text("Traceback (most recent call last):\nMemoryError\n")
        return 1  # as after a run in which jobs failed

    monkeypatch.setattr(Experiment, "_child", crash)
    monkeypatch.setattr(Experiment, "_checked", staticmethod(lambda tasks: "none"))
    assert main(["experiment", str(live), "--out", str(site.root / "out")]) == 2
    assert "4 of 4 runs failed" in (said := capsys.readouterr().err) and "MemoryError" in said
    assert not any(record["complete"] for record in records(site))


def test_examples_can_be_read(tmp_path: Path) -> None:
    """The files of experiments/ are right, but for programs that are not built."""
    folder = Path(__file__).parents[3] / "experiments"
    assert len(list(folder.glob("*.yaml"))) >= 2
    for path in folder.glob("*.yaml"):
        try:
            assert read_plan(path).runs
        except ConfigError as error:
            assert all("build it" in str(problem) or "Applications.Path" in problem.key
                       for problem in error.problems), error
    assert os.sep not in read_plan(folder / "founding-simulated.yaml").name


def test_simulated_runs_on_the_nodes_of_a_machine_file(tmp_path: Path, capsys: Any) -> None:
    log = Path(__file__).parents[1] / "formats" / "data" / "sacct.txt"
    (tmp_path / "my.yaml").write_text("Classes:\n- {Count: 4, Sockets: 2, Cores: 16, Memory: 128G}\n- {Name: gpu, "
                                      "Cores: 16, Memory: 64G, Resources: {gpu: 2}, Features: [ib, ssd]}\n"
                                      "Licences: {ansys: 2}\n")
    path = write(tmp_path / "e.yaml", Mode="simulated", Machine="my.yaml", Queues=[str(log)],
                 Keys={"Allocation.Policy": "pack"}, Grid={"Allocation.NodeOrder": ["first-fit", "weighted"]})
    out = tmp_path / "out"
    assert main(["experiment", str(path), "--out", str(out)]) == 0
    capsys.readouterr()
    assert main(["experiment", str(path), "--out", str(out)]) == 0  # nothing is left to do
    runs = sorted(out.glob("*/summary.json"))
    assert len(runs) == 2 and all(json.loads(one.read_text())["completed"] == 6 for one in runs)
    assert (out / "inputs" / "machine.yaml").read_text() == (tmp_path / "my.yaml").read_text()
    (tmp_path / "my.yaml").write_text("Classes: [{Cores: x}]")
    assert main(["experiment", str(path), "--out", str(tmp_path / "other")]) == 2
    error = capsys.readouterr().err
    assert "cannot be used; see below" in error and "Classes.Cores: found" in error
    live = write(tmp_path / "l.yaml", Machine="my.yaml", Queues=[str(log)])
    assert main(["experiment", str(live), "--out", str(tmp_path / "other")]) == 2
    assert "live runs have the machine that they run on" in capsys.readouterr().err
