"""Urgent jobs, live: other jobs stand still for them and go on, whatever happens to the urgent job and to the manager."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import Site, wait_until
from support.lending_site import KILLED, done, events, prepared, records

from vrm.ext.lending.nodes.pausing import state_of

TIMES = int(os.environ.get("VRM_TEST_KILLS", "4"))
"""Kills of the manager at random moments."""

URGENT = ("submit", "wait.x", "1", "60", "--mem-per-task", "100M", "--urgent")


def state(root: Path, job: int, rank: int = 0) -> bytes:
    """The state of a rank's process, as in /proc: T where it stands still; nothing where it is not there."""
    try:
        return state_of(int((root / f"pid.{job}.{rank}").read_text()))
    except (OSError, ValueError):
        return b""


def runs(root: Path, job: int) -> bool:
    return state(root, job) in (b"S", b"R", b"D")


def stopped(root: Path, job: int) -> bool:
    return state(root, job) == b"T"


def begun(site: Site, *lines: str, **keys: Any) -> subprocess.Popen[str]:
    """A machine of two cores, with a job on both of them."""
    prepared(site, *(lines or ("wait.x 1 600 0 cores=2 mem_per_task=100M",)), **keys)
    manager = site.start()
    wait_until(lambda: runs(site.root, 0), "job 0 runs")
    return manager


def urgent(site: Site, *more: str) -> subprocess.CompletedProcess[str]:
    return site.run(*URGENT, *more)


def over(site: Site, manager: subprocess.Popen[str]) -> None:
    """The jobs end, and so does the run."""
    done(site, *range(12))
    site.append("end\n")
    site.finish(manager)
    assert manager.returncode == 0, site.said(manager)


@pytest.mark.slow
@pytest.mark.parametrize("keys", [{}, {"Emulate": True, "NodeClasses": [{"Hosts": "n0", "Memory": "4G"}]}],
                         ids=["agents", "emulated"])
def test_a_job_is_paused_for_an_urgent_one_and_goes_on(site: Site, keys: dict[str, Any]) -> None:
    manager = begun(site, **keys)
    said = urgent(site)
    assert said.returncode and "--yes makes room without asking" in said.stderr and "is paused" in said.stdout, said
    assert runs(site.root, 0) and events(site).count("job") == 1, "nothing was done"
    said = urgent(site, "--yes")
    assert said.returncode == 0 and said.stdout.endswith("job 1 starts when job 0 has stopped\n"), said
    wait_until(lambda: runs(site.root, 1), "the urgent job runs")
    assert stopped(site.root, 0)
    wait_until(lambda: "is paused for 1" in site.run("queue").stdout, "the queue shows it")
    second = urgent(site, "--yes")
    assert second.returncode and "it has given its cores to another job" in second.stderr, second
    done(site, 1)
    wait_until(lambda: runs(site.root, 0), "job 0 goes on")
    over(site, manager)
    rows = site.rows()
    assert {row.status for row in rows.values()} == {"completed"} and len(rows) == 2
    found = events(site)
    assert found.index("part") < found.index("lend") < found.index("lent") < len(found) - found[::-1].index("start")
    assert [record["cores"] for record in records(site) if record["event"] == "lend"] == ["0x3"]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["cancel", "requeue", "killed", "failed"])
def test_the_pause_ends_however_the_urgent_job_does(site: Site, how: str) -> None:
    manager = begun(site)
    assert urgent(site, "--yes").returncode == 0
    wait_until(lambda: runs(site.root, 1) and stopped(site.root, 0), "job 0 stands still")
    if how in ("cancel", "requeue"):
        assert site.run(how, "1").returncode == 0
    else:
        os.kill(int((site.root / "pid.1.0").read_text()), 9 if how == "killed" else 15)
    wait_until(lambda: runs(site.root, 0), "job 0 goes on")
    site.run("stop", "--now")
    site.finish(manager)
    assert not runs(site.root, 0) and not stopped(site.root, 0)


@pytest.mark.slow
def test_a_paused_job_is_cancelled_and_nothing_of_it_is_left(site: Site) -> None:
    manager = begun(site)
    assert urgent(site, "--yes").returncode == 0
    wait_until(lambda: runs(site.root, 1) and stopped(site.root, 0), "job 0 stands still")
    assert site.run("cancel", "0").returncode == 0
    wait_until(lambda: not state(site.root, 0), "nothing of job 0 is left")
    assert runs(site.root, 1)
    done(site, 1)
    site.append("end\n")
    site.finish(manager)
    assert [row.status for row in site.rows().values()].count("completed") == 1


@pytest.mark.slow
def test_the_time_in_which_a_job_stands_still_does_not_count(site: Site) -> None:
    """Its limit is 3 s, and it would be ended: the pause is longer."""
    manager = begun(site, "wait.x 1 3 0 cores=2 mem_per_task=100M", Walltime="kill")
    assert urgent(site, "--yes").returncode == 0
    wait_until(lambda: runs(site.root, 1) and stopped(site.root, 0), "job 0 stands still")
    begun_at = records(site)[-1]["time"]
    wait_until(lambda: time.time() > begun_at + 4, "4 s have passed")
    done(site, 1)
    wait_until(lambda: runs(site.root, 0), "job 0 goes on")
    over(site, manager)
    assert {row.status for row in site.rows().values()} == {"completed"}


@pytest.mark.slow
@pytest.mark.parametrize("event, number", [("part", 1), ("lend", 1), ("lent", 1), ("start", 2), ("end", 1),
                                               ("regain", 1), ("regained", 1)])
def test_a_manager_is_killed_behind_a_record_of_a_pause(site: Site, event: str, number: int) -> None:
    """The next one makes room for what was promised, and nothing stays stopped."""
    prepared(site, "wait.x 1 600 0 cores=2 mem_per_task=100M")
    killed = subprocess.Popen([sys.executable, "-c", KILLED, event, str(number), "-c", str(site.config_file), "--wait"],
                              cwd=site.root, env=site.env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                              stderr=subprocess.STDOUT)
    site.started.append(killed)
    wait_until(lambda: runs(site.root, 0), "job 0 runs")
    asked = subprocess.Popen([sys.executable, "-m", "vrm.cli", "-c", str(site.config_file), *URGENT, "--yes"],
                             cwd=site.root, env=site.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    site.started.append(asked)
    if event in ("end", "regain", "regained"):
        wait_until(lambda: runs(site.root, 1) and stopped(site.root, 0), "job 0 stands still")
        done(site, 1)
    killed.wait(60)
    assert killed.returncode == -9 and events(site)[-1] == event
    again = site.start()
    asked.wait(60)
    if event not in ("end", "regain", "regained"):
        wait_until(lambda: runs(site.root, 1) and stopped(site.root, 0), "the urgent job runs, and job 0 stands still")
        done(site, 1)
    wait_until(lambda: runs(site.root, 0), "job 0 goes on")
    over(site, again)
    rows = site.rows()
    assert {row.status for row in rows.values()} == {"completed"} and sorted(rows) == [0, 1]


@pytest.mark.slow
@pytest.mark.parametrize("keys", [{}, {"Emulate": True, "NodeClasses": [{"Hosts": "n0", "Memory": "4G"}]}],
                         ids=["agents", "emulated"])
def test_memory_that_nobody_has_said_is_looked_up(site: Site, keys: dict[str, Any]) -> None:
    manager = begun(site, "wait.x 1 600 0 cores=2", Interrupted="mark", **keys)
    small = urgent(site, "--mem-per-task", "1000G", "--yes")
    assert small.returncode == 2 and events(site).count("job") == 1, small
    assert urgent(site, "--yes").returncode == 0
    wait_until(lambda: runs(site.root, 1) and stopped(site.root, 0), "job 0 stands still")
    over(site, manager)


@pytest.mark.slow
@pytest.mark.parametrize("said", ["y", "n"])
def test_on_a_terminal_people_are_asked(site: Site, said: str) -> None:
    manager = begun(site)
    ours, theirs = pty.openpty()
    asking = subprocess.Popen([sys.executable, "-m", "vrm.cli", "-c", str(site.config_file), *URGENT], cwd=site.root,
                              env=site.env, stdin=theirs, stdout=theirs, stderr=theirs)
    site.started.append(asking)  # type: ignore[arg-type]
    os.close(theirs)
    text = b""
    while b"[y/N]" not in text:
        text += os.read(ours, 4096)
    os.write(ours, f"{said}\n".encode())
    assert asking.wait(60) == (0 if said == "y" else 2), text
    os.close(ours)
    if said == "y":
        wait_until(lambda: runs(site.root, 1) and stopped(site.root, 0), "job 0 stands still")
    else:
        assert events(site).count("job") == 1 and runs(site.root, 0)
    over(site, manager)


@pytest.mark.slow
def test_a_promise_by_a_time_is_kept(site: Site) -> None:
    """The forecast says that job 0 ends in time by its limit, and it does not."""
    manager = begun(site, "wait.x 1 5 0 cores=2 mem_per_task=100M", Walltime="ignore")
    said = urgent(site, "--by", "8")
    assert said.returncode == 0 and "by itself" in said.stdout, said
    promised = records(site)[-1]["time"]
    wait_until(lambda: runs(site.root, 1), "the urgent job runs")
    start = next(each["time"] for each in reversed(records(site)) if each["event"] == "start")
    assert stopped(site.root, 0) and start <= promised + 8
    over(site, manager)


@pytest.mark.slow
def test_a_run_that_starts_again_leaves_nothing_stopped(site: Site) -> None:
    """`vrm run --fresh` after a manager that was killed while a job stood still."""
    manager = begun(site)
    assert urgent(site, "--yes").returncode == 0
    wait_until(lambda: runs(site.root, 1) and stopped(site.root, 0), "job 0 stands still")
    before = [int((site.root / f"pid.{job}.0").read_text()) for job in (0, 1)]
    manager.kill()
    manager.wait()
    again = site.start("run", "--fresh", "--wait")
    wait_until(lambda: again.poll() is not None or len(events(site)) < 5, "it begins anew, or says why not")
    done(site, 0, 1)
    if again.poll() is not None:
        assert "run" in site.said(again)
        again = site.start()
    wait_until(lambda: not any(state_of(pid) == b"T" for pid in before), f"nothing is stopped: {site.said(again)}")
    site.append("end\n")
    site.finish(again)
