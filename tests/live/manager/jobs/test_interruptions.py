"""What a job's end counts as when vrm, the batch system or a lost node ended it."""

from __future__ import annotations

import math
import os
import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conftest import Site, mpiruns, wait_until
from support.executor import Managed
from vrm.live.batch.allocation import batch_job, kill_delay
from vrm.ext.sites.pbs import parse_qstat
from vrm.live.manager.jobs.verdict import HOLD, verdict
from vrm.live.nodes.node_watch import NodeWentDown, NodeCameBack
from vrm.run.requeue import LOSSES
from vrm.live.spawn.records import ExitStatus
from vrm.model import JobState

LOG = 'echo "$VRM_JOB_ID" >> "$(dirname "$0")/log"\n'
WAIT = LOG + 'while [ ! -e "$0.go" ]; do sleep 0.02; done\n'
SHELL = LOG + "sleep 600\necho post\n"
CHECKPOINT = LOG + ('trap \'sleep 0.3; echo saved > "$0.saved"; exit 0\' TERM\n'
                    "while :; do sleep 0.02; done\n")


def configure(site: Site, **keys: Any) -> None:
    site.config(**{"Launcher": {"Kind": "direct"}, "Nodes": "auto", "Sockets": "auto",
                   "Cores": 1, **keys})


def started(site: Site) -> list[int]:
    path = site.bin / "log"
    return [int(line) for line in path.read_text().splitlines()] if path.exists() else []


def batch(site: Site, *arguments: str) -> subprocess.Popen[str]:
    """vrm inside a batch job of one node, this one."""
    return site.start(*arguments, SLURM_JOB_ID="7", SLURM_JOB_NODELIST=os.uname().nodename)


# The rule.


def status(code: int = 0, end: float = 100.0) -> ExitStatus:
    return ExitStatus(code, None, None, 0.0, 5.0, 0.0, 0.0, 0, 5.0, end)


@pytest.mark.parametrize("intent, state", [
    ("timeout", JobState.TIMEOUT), ("cancel", JobState.CANCELLED), ("stop", JobState.CANCELLED),
    ("pause", JobState.CANCELLED), ("interrupted", JobState.CANCELLED),
    ("requeue", JobState.CANCELLED), ("binding", JobState.FAILED)])
def test_exit_status_0_counts_before_the_signal_and_not_behind_it(
        intent: str, state: JobState) -> None:
    assert verdict(intent, status(end=99.9), told=100.0) == (JobState.COMPLETED, "")
    assert verdict(intent, status(end=100.1), told=100.0)[0] is state
    assert verdict(intent, status(), told=math.inf)[0] is JobState.COMPLETED  # never told
    assert verdict(intent, status(code=3, end=99.0), told=100.0)[0] is state


def test_who_wanted_the_end_of_a_job_that_could_not_start_has_it() -> None:
    """Also where only the next manager hears that; the walltime of one that did not run is none."""
    lacking = ExitStatus(None, None, "a.x: Resource temporarily unavailable", 0.0, 0.0, 0.0, 0.0, 0, 0.0, 1.0)
    for intent in ("cancel", "stop", "pause", "interrupted", "requeue"):
        assert verdict(intent, lacking)[0] is JobState.CANCELLED
    for intent in ("", "timeout", "memory"):
        assert verdict(intent, lacking)[0] is JobState.FAILED and "unavailable" in verdict(intent, lacking)[1]


def test_a_lost_node_is_no_success() -> None:
    assert verdict("node", status(), "n1 is down") == (JobState.FAILED, "n1 is down")
    assert verdict("", status(code=3)) == (JobState.FAILED, "exit 3")


# What vrm ends.


@pytest.mark.parametrize("kind", ["direct", *mpiruns()])
def test_a_job_that_is_killed_is_not_completed_because_its_shell_goes_on(
        site: Site, kind: str) -> None:
    launcher = {"Kind": "direct"} if kind == "direct" else {"Kind": "openmpi", "Mpirun": kind}
    configure(site, Launcher=launcher, Walltime="kill")
    site.program("shell.x", SHELL)
    site.lines(*["shell.x 1 0.4 0"] * 4)
    site.run(limit=120)
    assert site.statuses() == dict.fromkeys(range(4), "timeout")
    assert not any("post" in (site.log / f"shell.x.{i}.o").read_text() for i in range(4))
    site.nothing_left()


def test_a_checkpoint_with_status_0_is_no_completion(site: Site) -> None:
    """Ended for its walltime, and at the allocation's end: the one is recorded as what vrm did,
    the other waits again; both had the time to write."""
    configure(site, Walltime="kill", Grace=30)
    site.program("saves.x", CHECKPOINT)
    site.lines("saves.x 1 0.5 0")
    done = site.run()
    assert site.statuses() == {0: "timeout"} and (site.bin / "saves.x.saved").exists(), done.stdout
    (site.bin / "saves.x.saved").unlink()
    site.lines("saves.x 1 50 0")
    manager = batch(site, "--fresh")
    wait_until(lambda: started(site) == [0, 0], "it runs")
    manager.terminate()
    said = site.finish(manager)
    assert "#0 saves.x waits again: interrupted" in said and site.statuses() == {}
    assert (site.bin / "saves.x.saved").exists()


def test_cancel_is_cancelled_with_status_0(site: Site) -> None:
    configure(site)
    site.program("saves.x", CHECKPOINT)
    site.lines("saves.x 1 50 0")
    manager = site.start()
    wait_until(lambda: started(site) == [0], "it runs")
    assert site.run("cancel", "0").returncode == 0
    site.finish(manager)
    assert site.statuses() == {0: "cancelled"} and (site.bin / "saves.x.saved").exists()


# What the batch system ends.


def test_sigterm_in_a_batch_job_interrupts_and_the_same_script_goes_on(site: Site) -> None:
    configure(site)
    long = site.program("long.x", WAIT)
    site.lines("long.x 1 50 0", "long.x 1 50 0 after=0")
    manager = batch(site)
    wait_until(lambda: started(site) == [0], "it runs")
    manager.terminate()
    said = site.finish(manager)
    assert "SIGTERM from the batch system: starting nothing more, ending 1" in said
    assert "2 job(s) still wait: the same command continues them" in said
    site.nothing_left()
    Path(f"{long}.go").touch()
    assert site.finish(batch(site)).count("completed") >= 2
    assert started(site) == [0, 0, 1] and site.statuses() == {0: "completed", 1: "completed"}


def test_interrupted_jobs_are_cancelled_where_that_is_wished(site: Site) -> None:
    configure(site, Interrupted="mark")
    site.program("long.x", WAIT)
    site.lines("long.x 1 50 0")
    manager = batch(site)
    wait_until(lambda: started(site) == [0], "it runs")
    manager.terminate()
    site.finish(manager)
    assert site.statuses() == {0: "cancelled"}
    assert site.rows()[0].reason == "the end of the allocation interrupted it"


def test_a_job_that_was_killed_a_moment_before_vrm_was_told_was_interrupted(site: Site) -> None:
    """As scancel does it: the processes of the steps first. No retry is used."""
    configure(site, Cores=1)
    long = site.program("long.x", WAIT)
    site.lines("long.x 1 50 0 retries=1")
    manager = batch(site)
    wait_until(lambda: started(site) == [0], "it runs")
    os.kill(site.processes()[0], signal.SIGSEGV)
    wait_until(lambda: not site.processes(), "the job is over")
    manager.terminate()
    said = site.finish(manager)
    assert "waits again: interrupted by the end of the allocation" in said
    assert "retry" not in said and site.statuses() == {}
    Path(f"{long}.go").touch()
    site.finish(batch(site))
    assert site.statuses() == {0: "completed"}


def test_a_failure_stays_one_when_nothing_follows(site: Site) -> None:
    """In a batch job the verdict comes a second later; its cores are free at once."""
    configure(site)
    site.program("fails.x", LOG + "exit 3\n")
    site.program("ok.x", LOG)
    site.lines("fails.x 1 9 0 retries=1", "ok.x 1 9 0")
    said = site.finish(batch(site))
    assert "#0 fails.x waits again: failed (exit 3); retry 1 of 1" in said
    assert started(site) == [0, 1, 0] and site.statuses() == {0: "failed", 1: "completed"}
    assert site.rows()[0].exit_code == 3


def test_commands_do_not_wait_for_a_held_verdict(tmp_path: Path) -> None:
    managed = failed(tmp_path / "run", "pbs 1")
    ends = managed.manager.ends
    assert ends.held and managed.state.book.entries[0].state is JobState.RUNNING
    ends.settle(0)
    assert not ends.held and managed.state.book.entries[0].state is JobState.FAILED
    managed.close()


def one_job(root: Path, allocation: str = "") -> Managed:
    """A job that runs on the first of two nodes."""
    managed = Managed(root, "ok.x 1 9 0")
    managed.live.place = replace(managed.live.place, allocation=allocation)
    managed.start(0.0)
    return managed


def failed(root: Path, allocation: str = "") -> Managed:
    """It has failed."""
    managed = one_job(root, allocation)
    managed.end(0, 1.0, code=3)
    return managed


def test_a_verdict_is_held_until_a_lost_node_is_known(tmp_path: Path) -> None:
    managed = failed(tmp_path / "run", "pbs 1")
    ends = managed.manager.ends
    ends.look(1.0 + 0.9 * HOLD, False)
    assert ends.held
    managed.agents.says.append(NodeWentDown(0, "it is off"))
    managed.manager.nodes.look(1.0 + HOLD, False)
    assert not ends.held and managed.state.waiting == 1  # without a retry
    assert managed.state.book.entries[0].tries == 0
    managed.close()


def test_a_job_that_takes_nodes_down_does_not_do_so_for_ever(tmp_path: Path) -> None:
    managed = one_job(tmp_path / "run")
    for number in range(LOSSES + 1):
        running, = managed.live.running.values()
        managed.agents.says.append(NodeWentDown(0, "it is off"))
        managed.manager.nodes.look(float(number), False)
        assert running.intent == "node" and running.why == "node n0 is down"
        managed.end(0, float(number), code=3)
        managed.agents.says.append(NodeCameBack(0))
        managed.manager.nodes.look(float(number), False)
        if number < LOSSES:
            assert managed.state.waiting == 1
            managed.start(float(number))
    assert managed.state.book.entries[0].state is JobState.FAILED
    managed.close()


def test_what_failed_unjudged_in_an_allocation_that_is_over_runs_again(site: Site) -> None:
    """vrm was killed; its job failed afterwards, perhaps by the same end. In the same batch job
    it has failed, in the next it was interrupted."""
    configure(site)
    site.program("long.x", WAIT + "exit 3\n")
    site.lines("long.x 1 50 0")
    manager = batch(site)
    wait_until(lambda: started(site) == [0], "it runs")
    manager.kill()
    manager.wait()
    site.kill_processes()
    wait_until(lambda: (site.log / "ended").exists() and list((site.log / "ended").iterdir()),
               "its status is there")
    (site.bin / "long.x.go").touch()
    said = site.finish(site.start(SLURM_JOB_ID="8", SLURM_JOB_NODELIST=os.uname().nodename))
    assert "waits again: interrupted" in said
    assert started(site) == [0, 0] and site.rows()[0].exit_code == 3


def test_a_batch_job_that_is_run_again_is_another_one() -> None:
    env = {"SLURM_JOB_ID": "5", "SLURM_JOB_NODELIST": "n0"}
    assert batch_job(env) == batch_job({**env, "SLURM_RESTART_COUNT": "0"}) == "slurm 5"
    assert batch_job({**env, "SLURM_RESTART_COUNT": "2"}) == "slurm 5 again 2"
    assert batch_job({"PBS_JOBID": "5.pbs"}, 1) == batch_job({"PBS_JOBID": "5.pbs"}) == "pbs 5.pbs"
    assert batch_job({"PBS_JOBID": "5.pbs"}, 3) == "pbs 5.pbs again 2"
    assert batch_job({}, 3) == ""
    assert parse_qstat("Job Id: 5.pbs\n    run_count = 2\n").runs == 2
    assert (kill_delay("pbs 5"), kill_delay("slurm 5"), kill_delay("lsf 5")) == (10, 30, 5)


# What the user stops.


def test_on_stop_requeue_lets_running_jobs_wait_again(site: Site) -> None:
    configure(site, OnStop="requeue", Interrupted="mark")
    long = site.program("long.x", WAIT)
    site.lines("long.x 1 50 0")
    manager = site.start()
    wait_until(lambda: started(site) == [0], "it runs")
    manager.send_signal(signal.SIGINT)
    assert "waits again: the manager was stopped" in site.finish(manager)
    site.nothing_left()
    Path(f"{long}.go").touch()
    assert site.run().returncode == 0 and started(site) == [0, 0]


def test_vrm_stop_in_a_batch_job_cancels(site: Site) -> None:
    configure(site)
    site.program("long.x", WAIT)
    site.lines("long.x 1 50 0")
    manager = batch(site)
    wait_until(lambda: started(site) == [0], "it runs")
    assert site.run("stop", "--now").returncode == 0
    site.finish(manager)
    assert site.statuses() == {0: "cancelled"}
