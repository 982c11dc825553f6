"""Going on after a manager that ran elsewhere: on another host, before a reboot, in a batch job
that is over, or on other nodes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from conftest import Site, wait_until
from vrm.live.batch.allocation import batch_job
from vrm.live.launch.base import disconnected
from vrm.live.manager.takeover import recovery
from vrm.live.manager.takeover.recovery import ManagerPlace, look
from vrm.live.spawn.records import Marker
from vrm.model import Cluster, Job, Node
from vrm.run.journal.codec import moved
from vrm.run.rundir import RunDirectory
from vrm.scheduling import make_policy
from vrm.system.hosts import boot_id

LOG = 'echo "$VRM_JOB_ID" >> "$(dirname "$0")/log"\n'
WAIT = LOG + 'while [ ! -e "$0.go" ]; do sleep 0.02; done\n'
STATUS = {"code": 3, "signal": None, "error": None, "start": 1.0, "end": 2.0, "user": 0.0,
          "system": 0.0, "maxrss": 0, "duration": 1.0}


def started(site: Site) -> list[int]:
    """The ids of the jobs in the order of their starts."""
    path = site.bin / "log"
    return [int(line) for line in path.read_text().splitlines()] if path.exists() else []


# What became of a job.


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    run = RunDirectory(tmp_path / "run", tmp_path / "log", tmp_path / "run" / "state")
    run.create()
    return run


def mark(run: RunDirectory, status: Any = None, **facts: Any) -> None:
    """The marker of job 1, of a process that lives, and what `facts` say over it."""
    started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    marker = {"id": 1, "pid": os.getpid(), "started": started, "boot": boot_id(),
              "host": os.uname().nodename, "time": 1.0, **facts}
    lines = [marker, status] if status else [marker]
    run.marker(1).write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize("facts, before, now, what", [
    ({}, "", "", "running"),
    ({}, "slurm 1", "slurm 2", "running"),             # the same host says more than any name
    ({"started": 1}, "", "", "lost"),
    ({"started": 1}, "slurm 1", "slurm 1", "lost"),
    ({"started": 1}, "slurm 1", "slurm 2", "interrupted"),
    ({"boot": "other"}, "", "", "interrupted"),
    ({"host": "other"}, "slurm 1", "slurm 2", "interrupted"),
    ({"host": "other"}, "slurm 1", "slurm 1", "elsewhere"),
    ({"host": "other"}, "", "slurm 1", "elsewhere"),
    ({"host": "other"}, "slurm 1", "", "elsewhere"),
    ({"host": "other"}, "", "", "elsewhere"),
])
def test_what_a_marker_tells(run: RunDirectory, facts: dict, before: str, now: str,
                             what: str) -> None:
    here = ManagerPlace(os.uname().nodename, boot_id(), now)
    assert look(run, 1, {"allocation": before}, here).what == "unstarted"
    mark(run, **facts)
    assert look(run, 1, {"allocation": before}, here).what == what
    mark(run, STATUS, **facts)  # killed before it could rename the file
    ended = {"lost": "ended", "interrupted": "ended"}.get(what, what)
    found = look(run, 1, {"allocation": before}, here)
    assert found.what == ended and (found.status is not None) == (ended == "ended")
    os.replace(run.marker(1), run.status(1))
    found = look(run, 1, {"allocation": before}, here)
    assert found.what == "ended" and found.status.code == 3


def test_the_end_of_a_job_whose_supervisor_dies_while_somebody_looks_is_found(run: RunDirectory, monkeypatch: pytest.MonkeyPatch
                                                                              ) -> None:
    """Once it is dead the files change no more, and not before."""
    def dies(marker: Marker) -> bool:
        mark(run, STATUS)
        os.replace(run.marker(1), run.status(1))
        return False
    mark(run)
    monkeypatch.setattr(Marker, "alive", dies)
    assert look(run, 1, {}, ManagerPlace.here()).what == recovery.ENDED


@pytest.mark.parametrize("text", ["", "{", '{"id": 1}\n', "\0\0\0\n"])
def test_a_damaged_marker_is_an_interrupted_job(run: RunDirectory, text: str) -> None:
    run.marker(1).write_text(text)
    found = look(run, 1, {}, ManagerPlace.here())
    assert found.what == recovery.INTERRUPTED and str(run.marker(1)) in found.trouble


@pytest.mark.parametrize("marked, ended", [(7, 7), (7, 1), (1, 7)])
def test_what_a_dead_machine_left_of_another_job_is_not_that_of_this_one(
        run: RunDirectory, marked: int, ended: int) -> None:
    """A marker's file was that of an earlier job; its new text may not have come to the disk."""
    mark(run, {**STATUS, "id": ended}, id=marked, boot="before")
    found = look(run, 1, {}, ManagerPlace.here())
    assert found.what == recovery.INTERRUPTED and found.status is None
    assert "job 7" in found.trouble
    os.replace(run.marker(1), run.status(1))
    assert look(run, 1, {}, ManagerPlace.here()).what == recovery.INTERRUPTED


def test_what_a_dead_machine_brings_back_of_an_earlier_start_is_not_that_of_this_one(run: RunDirectory) -> None:
    """Its removal had not come to the disk; the host has begun anew before the job was started again."""
    here = ManagerPlace.here()
    mark(run, STATUS, boot="before")
    os.replace(run.marker(1), run.status(1))
    for boot, what in ((here.boot, recovery.UNSTARTED), ("before", recovery.ENDED)):
        assert look(run, 1, {"host": here.host, "boot": boot}, here).what == what
    os.replace(run.status(1), run.marker(1))
    for boot, what in ((here.boot, recovery.UNSTARTED), ("before", recovery.ENDED)):
        assert look(run, 1, {"host": here.host, "boot": boot}, here).what == what


def test_what_came_back_of_an_earlier_start_in_the_same_boot_is_not_that_of_this_one(run: RunDirectory) -> None:
    """As a manager that has started a job twice leaves it, before its machine dies. By the clocks of the manager: its own
    began at 1000 when the machine was up for 50 seconds."""
    here = ManagerPlace.here()
    under = {"host": here.host, "boot": "before", "time": 1000.0, "tick": 50.0}
    mark(run, {**STATUS, "tick": 57.5}, boot="before")  # it ended at 1007.5
    for name in (run.marker(1), run.status(1)):
        for start, what in ((1007.0, recovery.ENDED), (1008.0, recovery.INTERRUPTED if name == run.marker(1) else recovery.UNSTARTED)):
            assert look(run, 1, under, here, start).what == what
        assert look(run, 1, {**under, "tick": None}, here, 1008.0).what == recovery.ENDED
        if name == run.marker(1):
            os.replace(run.marker(1), run.status(1))


@pytest.mark.parametrize("tick, start, what", [
    (53.0, 1003.0, recovery.LOST), (53.0, 1002.9, recovery.LOST), (53.0, 1003.5, recovery.UNSTARTED), (None, 1003.5, recovery.LOST)])
def test_a_marker_that_could_not_be_removed_is_not_that_of_the_next_start(
        run: RunDirectory, tick: float | None, start: float, what: str) -> None:
    """As a read-only disk leaves it. The supervisor of the try before is gone; vrm of old wrote no `tick`."""
    here = ManagerPlace.here()
    mark(run, started=1, **({} if tick is None else {"tick": tick}))
    assert look(run, 1, {"host": here.host, "boot": here.boot, "time": 1000.0, "tick": 50.0}, here, start).what == what


def test_the_batch_job_is_known_by_the_environment() -> None:
    assert batch_job({"SLURM_JOB_ID": "17", "PBS_JOBID": ""}) == "slurm 17"
    assert batch_job({"PBS_JOBID": "3.host"}) == "pbs 3.host"
    assert batch_job({"SLURM_JOB_ID": ""}) == ""


@pytest.mark.parametrize("policy", ["compact", "spare", "strip", "pack"])
@given(order=st.permutations(range(5)), procs=st.integers(1, 9), first=st.integers(1, 9))
@settings(max_examples=25, deadline=None)
def test_a_placement_in_another_cluster_is_on_the_same_cores(
        policy: str, order: Any, procs: int, first: int) -> None:
    nodes = [Node(f"n{i}", (4, 2 + i)) for i in range(5)]
    before = Cluster(nodes)
    rule = make_policy(policy, before)
    before.book(Job(0, "a.x", first, 9.0), rule.place(Job(0, "a.x", first, 9.0), before), 0.0)
    job = Job(1, "b.x", procs, 9.0)
    placement = rule.place(job, before)
    now = Cluster([Node("new", (4,)), *(nodes[i] for i in order)])
    there = moved(placement, before, now)
    if not placement or there is None:
        assert not placement
        return
    cores = {(nodes[s.node].name, s.socket, c) for s in placement.slots(nodes) for c in s.cores}
    assert cores == {(now.nodes[s.node].name, s.socket, c) for s in there.slots(now.nodes)
                     for c in s.cores}
    now.book(job, there, 0.0)
    gone = nodes[next(iter(placement.nodes))].name
    assert moved(placement, before, Cluster([n for n in nodes if n.name != gone])) is None
    other = [Node(n.name, (1,)) if n.name == gone else n for n in nodes]
    assert moved(placement, before, Cluster(other)) is None


# The real thing.


@pytest.fixture
def site(site: Site) -> Site:
    """A site that starts its programs directly."""
    configure(site)
    return site


def configure(site: Site, **keys: Any) -> None:
    """Direct programs, on this machine as the only one of whatever batch job."""
    hosts = site.root / "hosts"
    hosts.write_text(os.uname().nodename + "\n")
    site.config(**{"Launcher": {"Kind": "direct"}, "Hosts": {"File": str(hosts)},
                   "End": {"At": "never"}, **keys})


def leave_running(site: Site, **env: str) -> subprocess.Popen[str]:
    """A queue of a job that ends, one that waits for its `.go`, and one behind it; the manager is
    killed while the second runs."""
    site.program("ok.x", LOG)
    site.program("long.x", WAIT)
    site.lines("ok.x 1 9 0", "long.x 1 60 0 after=0", "ok.x 1 9 0 after=any:1")
    manager = site.start(**env)
    wait_until(lambda: started(site) == [0, 1], "the second job runs")
    wait_until(lambda: site.statuses() == {0: "completed"}, "the first is recorded")
    manager.kill()
    manager.wait()
    return manager


def end_everything(site: Site) -> None:
    """What the end of a batch job does to the processes on its nodes."""
    marker = json.loads((site.pids / "1").read_text().splitlines()[0])
    os.kill(marker["pid"], signal.SIGKILL)
    site.kill_processes()
    wait_until(lambda: not site.processes(), "they are gone")


def change_marker(site: Site, **facts: Any) -> None:
    path = site.pids / "1"
    marker = json.loads(path.read_text().splitlines()[0])
    path.write_text(json.dumps({**marker, **facts}) + "\n")


@pytest.mark.parametrize("interrupted", ["requeue", "mark"])
def test_the_jobs_of_an_allocation_that_is_over_are_interrupted(
        site: Site, interrupted: str) -> None:
    configure(site, Interrupted=interrupted)
    leave_running(site, SLURM_JOB_ID="1")
    end_everything(site)
    change_marker(site, host="other")
    (site.bin / "long.x.go").touch()
    done = site.run(SLURM_JOB_ID="2")
    again = interrupted == "requeue"
    assert started(site) == ([0, 1, 1, 2] if again else [0, 1, 2]), done.stdout
    assert site.statuses() == {0: "completed", 1: "completed" if again else "cancelled",
                               2: "completed"}
    assert again or "end of the allocation" in site.rows()[1].reason
    site.nothing_left()


@pytest.mark.parametrize("before, now, status", [("1", "1", "failed"), ("1", "2", "completed")])
def test_a_killed_supervisor_is_a_failure_in_its_allocation_and_an_interruption_after_it(
        site: Site, before: str, now: str, status: str) -> None:
    leave_running(site, SLURM_JOB_ID=before)
    end_everything(site)
    (site.bin / "long.x.go").touch()
    site.run(SLURM_JOB_ID=now)
    assert site.statuses() == {0: "completed", 1: status, 2: "completed"}
    assert started(site).count(1) == (2 if status == "completed" else 1)


def test_a_job_on_another_host_of_the_allocation_is_followed_by_its_files(site: Site) -> None:
    leave_running(site, SLURM_JOB_ID="1")
    change_marker(site, host="other")
    manager = site.start(SLURM_JOB_ID="1")
    wait_until(lambda: "runs under other" in site.said(manager), "it is told")
    (site.bin / "long.x.go").touch()
    site.finish(manager)  # its supervisor, which does live, writes the status
    assert site.statuses() == {0: "completed", 1: "completed", 2: "completed"}
    assert started(site) == [0, 1, 2]


def test_a_job_that_ended_without_a_manager_ended_when_it_did(site: Site) -> None:
    leave_running(site)
    (site.bin / "long.x.go").touch()
    run = RunDirectory(site.log, site.log, site.log / "state")
    wait_until(run.status(1).exists, "its supervisor says how it ended")
    before = time.time()
    site.run()
    row = site.rows()[1]
    assert row.status == "completed" and row.start < row.end < before


def test_a_job_out_of_reach_can_be_given_up(site: Site) -> None:
    leave_running(site, SLURM_JOB_ID="1")
    end_everything(site)
    change_marker(site, host="other")
    (site.bin / "long.x.go").touch()
    manager = site.start(SLURM_JOB_ID="1")
    wait_until(lambda: "runs under other" in site.said(manager), "it is told")
    assert started(site) == [0, 1]
    assert site.run("requeue", "1").returncode == 0
    site.finish(manager)
    assert started(site) == [0, 1, 1, 2] and set(site.statuses().values()) == {"completed"}


def test_other_nodes_than_before(site: Site) -> None:
    """A wide cluster shrinks and gets other names; what ran is recorded with the nodes it had."""
    def on(nodes: int, cores: int) -> None:
        configure(site, Nodes=nodes, Cores=cores, Emulate=True, Allocation={"Policy": "pack"})
    on(4, 2)
    leave_running(site, SLURM_JOB_ID="1")
    rows = (site.log / "jobs.csv").read_text().splitlines(keepends=True)
    (site.log / "jobs.csv").write_text(rows[0])  # the row of job 0 did not reach the disk
    end_everything(site)
    on(1, 1)
    (site.bin / "long.x.go").touch()
    done = site.run(SLURM_JOB_ID="2")
    assert "the nodes have changed" in done.stdout
    assert started(site) == [0, 1, 1, 2] and set(site.statuses().values()) == {"completed"}
    assert site.rows()[0].cores == "n0:0/0"
    assert all(site.rows()[i].cores.endswith(":0/0") and not site.rows()[i].cores.startswith("n0:")
               for i in (1, 2))  # this machine, which needs no emulation


def test_a_job_that_runs_on_nodes_that_are_gone_is_ended(site: Site) -> None:
    """As when a node was left out at the restart: what lives on it cannot be followed."""
    configure(site, Nodes=1, Cores=4, Emulate=True)
    leave_running(site)
    configure(site, Nodes=1, Cores=2, Emulate=True)
    manager = site.start()
    wait_until(lambda: started(site) == [0, 1, 1], "it is ended and runs anew")
    assert "nodes that are missing" in site.said(manager)
    (site.bin / "long.x.go").touch()
    site.finish(manager)
    assert set(site.statuses().values()) == {"completed"}
    site.nothing_left()


def test_a_job_that_runs_on_a_node_that_is_still_there_is_followed(site: Site) -> None:
    configure(site, Nodes=2, Cores=1, Emulate=True)
    leave_running(site)
    wait_until(lambda: len(site.running()) >= 1, "it runs")
    configure(site, Nodes=5, Cores=1, Emulate=True)
    manager = site.start()
    wait_until(lambda: (s := site.state()) and s["manager"]["pid"] == manager.pid
               and len(s["nodes"]) == 5, "the second manager runs")
    jobs = {job["id"]: job for job in site.state()["jobs"]}
    assert jobs[1]["state"] == "running"
    (site.bin / "long.x.go").touch()
    site.finish(manager)
    assert started(site).count(1) == 1 and set(site.statuses().values()) == {"completed"}


def test_a_job_that_has_ended_on_nodes_that_are_gone_keeps_its_exit_code(site: Site) -> None:
    configure(site, Nodes=1, Cores=4, Emulate=True)
    leave_running(site)
    (site.bin / "long.x.go").touch()
    wait_until(lambda: not site.running(), "its supervisor has recorded its end")
    configure(site, Nodes=1, Cores=2, Emulate=True)
    assert site.run().returncode == 0
    assert started(site) == [0, 1, 2] and set(site.statuses().values()) == {"completed"}
    assert site.rows()[1].cores


def test_a_job_that_failed_on_nodes_that_are_gone_was_interrupted(site: Site) -> None:
    """Its node was lost while no manager ran, which is why it failed, as far as anybody can know."""
    configure(site, Nodes=1, Cores=4, Emulate=True)
    leave_running(site)
    site.kill_processes()
    wait_until(lambda: (site.log / "ended" / "1").exists(), "its supervisor has recorded its end")
    configure(site, Nodes=1, Cores=2, Emulate=True)
    (site.bin / "long.x.go").touch()
    done = site.run()
    assert "#1 long.x waits again: interrupted: n0 is missing" in done.stdout
    assert started(site) == [0, 1, 1, 2] and set(site.statuses().values()) == {"completed"}


@pytest.mark.parametrize("said, lost", [
    ("vrm: the connection to n1 was lost\n", ("n1",)), ("text\nvrm: the connection to n1 was lost\n", ("n1",)),
    ("vrm: the connection to n1 was lost\nmpirun noticed it, too\n", ("n1",)), ("so vrm: the connection to n1 was lost\n", ()), ("", ())])
def test_supervisors_and_agents_of_mpirun_name_the_node_that_a_job_lost(
        tmp_path: Path, said: str, lost: Any) -> None:
    (tmp_path / "e").write_text(said)
    assert disconnected(tmp_path / "e") == lost


def test_a_cancelled_job_out_of_reach_is_not_run_again(site: Site) -> None:
    """The command was taken, and the manager killed before the job had ended."""
    site.program("ok.x", LOG)
    site.program("long.x", "trap '' TERM\n" + WAIT)
    site.lines("long.x 1 60 0", "ok.x 1 9 0")
    configure(site, Grace=1000)
    manager = site.start(SLURM_JOB_ID="1")
    wait_until(lambda: started(site) == [0], "the job runs")
    assert site.run("cancel", "0").returncode == 0
    manager.kill()
    manager.wait()
    marker = site.pids / "0"
    facts = json.loads(marker.read_text().splitlines()[0])
    os.kill(facts["pid"], signal.SIGKILL)
    site.kill_processes()
    marker.write_text(json.dumps({**facts, "host": "other"}) + "\n")
    site.run(SLURM_JOB_ID="1")
    assert site.statuses() == {0: "cancelled", 1: "completed"} and started(site) == [0, 1]
