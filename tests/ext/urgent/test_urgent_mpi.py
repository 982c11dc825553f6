"""Real MPI jobs stand still for urgent ones, and compute right results afterwards; also when the
manager is killed meanwhile, again and again (VRM_TEST_KILLS)."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from conftest import Site, mpiexecs, mpiruns, wait_until
from support.lending_site import PROGRAM, done, prepared, records
from support.testbed import LOGIN, Testbed
from support.two_nodes import TwoNodes

from vrm.ext.lending.nodes.pausing import state_of
from vrm.live.nodes.topology import read_topology
from vrm.run.rundir import RunDirectory

ROOT = Path(__file__).resolve().parents[3]

URGENT = ("submit", "wait.x", "2", "60", "--mem-per-task", "100M", "--urgent", "--yes")

TIMES = int(os.environ.get("VRM_TEST_KILLS", "3"))
"""Kills of the manager."""


def built(mpirun: str, target: Path) -> Path:
    """The program of rounds.c, compiled for an mpirun."""
    compiler = shutil.which("mpicc" if mpirun == "auto" else os.fspath(Path(mpirun).with_name(re.sub("mpi(exec|run)(.hydra)?", "mpicc", Path(mpirun).name))))
    if compiler is None:
        pytest.skip(f"no mpicc for the mpirun {mpirun}")
    subprocess.run([compiler, "-O", os.fspath(ROOT / "tests" / "support" / "rounds.c"), "-o", os.fspath(target)],
                   check=True)
    return target


def said_of(root: Path, job: int, rank: int) -> tuple[int, int]:
    """The process of a rank, and its last round; zeros while it has not begun."""
    try:
        pid, number = (root / f"round.{job}.{rank}").read_text().split()
        return int(pid), int(number)
    except (OSError, ValueError):
        return 0, 0


def computes(root: Path, job: int, ranks: int) -> bool:
    """Whether all ranks go on to further rounds."""
    before = [said_of(root, job, rank)[1] for rank in range(ranks)]
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        if all(said_of(root, job, rank)[1] > one > 0 for rank, one in enumerate(before)):
            return True
    return False


def still(root: Path, job: int, ranks: int) -> bool:
    """Whether all ranks of a job on this machine are stopped."""
    return all(state_of(said_of(root, job, rank)[0]) == b"T" for rank in range(ranks))


@pytest.mark.mpi
@pytest.mark.parametrize("kind, mpirun", [*(("openmpi", mpirun) for mpirun in mpiruns()),
                                          *(("hydra", mpiexec) for mpiexec in mpiexecs())])
def test_ranks_stand_still_and_compute_right_results(site: Site, kind: str, mpirun: str) -> None:
    prepared(site, "rounds.x 2 600 0 mem_per_task=200M", Launcher={
        "Kind": kind, "Mpirun": mpirun, "CheckBindings": "fail", **({"AllowRoot": True} if kind == "openmpi" else {})})
    built(mpirun, site.bin / "rounds.x")
    manager = site.start()
    wait_until(lambda: computes(site.root, 0, 2), "job 0 computes")
    asked = site.run(*URGENT)
    assert asked.returncode == 0, asked
    wait_until(lambda: (site.root / "pid.1.1").exists(), "the urgent job runs")
    assert still(site.root, 0, 2) and not computes(site.root, 0, 2)
    done(site, 1)
    wait_until(lambda: computes(site.root, 0, 2), "job 0 computes again")
    done(site, 0)
    site.append("end\n")
    site.finish(manager)
    assert site.statuses() == {0: "completed", 1: "completed"}, site.said(manager)
    assert "right after" in said(site, 0)
    wanted = {"ok"} if kind == "openmpi" else {"ok", "unchecked"}
    assert {row.binding for row in site.rows().values()} <= wanted


@pytest.mark.mpi
def test_a_manager_that_is_killed_again_and_again_leaves_nothing_stopped(site: Site) -> None:
    """At random moments of pauses and of their ends; each next manager goes on, and in the end all jobs are right."""
    numbers = random.Random(34)
    prepared(site, "rounds.x 2 3600 0 mem_per_task=200M")
    built("auto", site.bin / "rounds.x")
    manager = site.start()
    wait_until(lambda: computes(site.root, 0, 2), "job 0 computes")
    answers = site.root / "answers"
    for number in range(TIMES):
        with open(answers, "w") as file:
            asked = subprocess.Popen([sys.executable, "-m", "vrm.cli", "-c", str(site.config_file), *URGENT], cwd=site.root,
                                     env=site.env, stdout=file, stderr=file)
        site.started.append(asked)  # type: ignore[arg-type]
        later = numbers.random()
        if number % 2:  # before it stands still, or while it does
            passed(later)
        else:  # while it is to continue
            wait_until(lambda: still(site.root, 0, 2) or asked.poll(), f"{number}: job 0 stands still")
            assert not asked.poll(), (number, answers.read_text(), site.said(manager))
            done(site, *urgent_jobs(site))
            passed(later / 5)
        manager.kill()
        manager.wait()
        manager = site.start()
        asked.wait(60)
        done(site, *urgent_jobs(site))
        wait_until(lambda: computes(site.root, 0, 2), f"{number}: job 0 computes again: {site.said(manager)}")
    done(site, 0, *urgent_jobs(site))
    site.append("end\n")
    site.finish(manager)
    assert {row.status for row in site.rows().values()} == {"completed"}, site.said(manager)
    assert "right after" in said(site, 0) and len(site.rows()) >= TIMES // 2


def passed(seconds: float) -> None:
    """Wait for a random moment."""
    end = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() > end, "a moment")


def urgent_jobs(site: Site) -> list[int]:
    """Those that have come so far."""
    return [record["id"] for record in records(site) if record["event"] == "job" and record["id"]]


def said(site: Site, job: int) -> str:
    """What a job has printed."""
    run = RunDirectory(site.log, site.log, site.log / "state")
    return run.output("rounds.x", job).read_text()


@pytest.mark.mpi
@pytest.mark.testbed
def test_ranks_on_two_nodes_stand_still(real: Testbed, tmp_path: Path) -> None:
    """Real daemons of mpirun on nodes that see this machine's cores."""
    root = tmp_path / "site"
    (root / "bin").mkdir(parents=True)
    built("auto", root / "bin" / "rounds.x")
    program = root / "bin" / "wait.x"
    program.write_text("#!/bin/sh\n" + PROGRAM)
    program.chmod(0o755)
    whole = len(read_topology().sockets[0])
    (root / "vrm.yaml").write_text(yaml.safe_dump({
        "Applications": {"Path": "bin", "Queue": "queue"}, "Log": "log", "Grace": 2, "Allocation": {"Policy": "compact"},
        "Launcher": {"Kind": "openmpi", "AllowRoot": True, "Transport": "tcp", "Environment": {"HERE": str(root)}}}))
    (root / "queue").write_text(f"rounds.x 2 600 0 cores={whole} nodes=2 tasks_per_node=1 mem_per_task=100M\n")

    def vrm(*words: str) -> subprocess.CompletedProcess[str]:
        return real.exec(LOGIN, [sys.executable, "-m", "vrm.cli", "-c", root / "vrm.yaml", *words],
                         env={"PYTHONPATH": os.fspath(ROOT)}, cwd=root)

    def printed() -> str:
        return (root / "said").read_text()

    with real.allocation(2, "--exclusive") as batch:
        manager = real.popen(batch.host, [sys.executable, "-m", "vrm.cli", "-c", root / "vrm.yaml", "--wait"],
                             env={**batch.env, "PYTHONPATH": os.fspath(ROOT), "PYTHONUNBUFFERED": "1"}, cwd=root,
                             text=True, stdout=open(root / "said", "w"), stderr=subprocess.STDOUT)
        wait_until(lambda: computes(root, 0, 2), "job 0 computes")
        asked = vrm("submit", "wait.x", "2", "60", "--nodes", "2", "--mem-per-task", "100M", "--urgent", "--yes")
        assert asked.returncode == 0, asked.stderr + asked.stdout
        wait_until(lambda: (root / "pid.1.1").exists(), f"the urgent job runs: {printed()}")
        before = [said_of(root, 0, rank) for rank in (0, 1)]
        passed(1.0)
        assert [said_of(root, 0, rank) for rank in (0, 1)] == before and "#0 is paused for #1" in printed()
        (root / "done.1").touch()
        wait_until(lambda: computes(root, 0, 2), f"job 0 computes again: {printed()}")
        (root / "done.0").touch()
        with open(root / "queue", "a") as file:
            file.write("end\n")
        assert manager.wait(60) == 0, printed()
    assert "right after" in next((root / "log").glob("rounds.x.0*.o*")).read_text() and "MISMATCH" not in printed().upper()


@pytest.mark.mpi
@pytest.mark.testbed
@pytest.mark.slow
@pytest.mark.parametrize("lost", ["another", "its own"])
def test_a_node_is_lost_while_a_job_stands_still_there(testbed: Testbed, tmp_path: Path, lost: str) -> None:
    """The job that stands still waits again, and nothing of it is left stopped on its other node. The urgent job goes on
    where it is, or starts again on the node that is left."""
    run = TwoNodes(testbed, tmp_path, lines=["wait 2 600 0 cores=4 nodes=2 tasks_per_node=1 mem_per_task=10M"],
                   Sockets=1, Cores=4)
    with run.running():
        run.vrm("submit", "wait", "1", "60", "--mem-per-task", "10M", "--urgent", "--yes")
        wait_until(lambda: len(run.ran(1)) == 1, "the urgent job runs")
        here, = run.ran(1)
        left = {"n1": "n2", "n2": "n1"}[here] if lost == "its own" else here
        assert {"T", "Tl"} & set(states_on(testbed, left)), "job 0 stands still there"
        testbed.kill("n2" if left == "n1" else "n1")
        wait_until(lambda: ("again", 0) in run.events(), "job 0 waits")
        wait_until(lambda: set(run.ran(1)) == {here, left}, "the urgent job runs where it can")
        wait_until(lambda: not any(state.startswith("T") for state in states_on(testbed, left)), "nothing is stopped")
    assert run.statuses() == {0: "cancelled", 1: "completed"}
    assert (("again", 1) in run.events()) == (lost == "its own")


def states_on(testbed: Testbed, node: str) -> list[str]:
    """The states of the processes on a node, as ps shows them."""
    return testbed.exec(node, ["ps", "-e", "-o", "stat="], check=True).stdout.split()
