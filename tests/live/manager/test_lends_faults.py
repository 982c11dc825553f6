"""What may happen while a job lends cores, live: either is cancelled or requeued, the allocation ends, a borrower takes
longer than expected, a node is lost, a reservation is in the way."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List

import pytest
import yaml
from conftest import Site, wait_until
from lending_site import allowed, cores, done, events, lends, prepared, records, runs
from testbed import Testbed

from vrm.results import shares
from vrm.results.jobs import read_jobs
from vrm.run import journal

ROOT = Path(__file__).resolve().parent.parent.parent.parent
BOTH = ("wait.x 1 600 0 cores=2 malleable=1", "wait.x 1 400 0 cores=2 malleable=1")


def emulated(site: Site, *lines: str, **keys: Any) -> None:
    """On cores where nobody is bound, so that nobody need be moved."""
    prepared(site, *lines, **{"Emulate": True, "Launcher": {"Kind": "direct"}, **keys})


def jobs(site: Site) -> Dict[int, Dict[str, Any]]:
    """What the state file says of the jobs that wait or run."""
    return {job["id"]: job for job in json.loads((site.log / "state").read_text())["jobs"]}


@pytest.mark.slow
def test_who_is_cancelled_or_requeued_leaves_its_cores_to_the_other(site: Site) -> None:
    first, second = cores(2)
    prepared(site, *BOTH)
    manager = site.start()
    wait_until(lambda: allowed(site.root, 0) == first | second, "job 0 has both cores")
    assert site.run("lend", "0", "--to", "1").returncode == 0
    wait_until(lambda: (allowed(site.root, 0), allowed(site.root, 1)) == (first, second), "job 1 borrows")
    assert site.run("requeue", "1").returncode == 0
    wait_until(lambda: allowed(site.root, 0) == first | second, "job 0 has its core again")
    wait_until(lambda: not lends(site), "and that is over")
    assert site.run("lend", "0", "--to", "1").returncode == 0
    wait_until(lambda: allowed(site.root, 1) == second, "job 1 borrows again")
    assert site.run("requeue", "0").returncode == 0
    wait_until(lambda: allowed(site.root, 1) == first | second, "job 1 has both cores, and job 0 waits")
    assert site.run("cancel", "1").returncode == 0
    wait_until(lambda: allowed(site.root, 0) == first | second, "job 0 runs again")
    done(site, 0)
    site.append("end\n")
    site.finish(manager)
    assert site.statuses() == {0: "completed", 1: "cancelled"}
    rows = site.rows()
    assert (rows[0].mates, rows[0].lent, rows[1].mates, rows[1].changes) == ("", 0, "0", 1)
    assert not journal.replay(records(site)).state.lends.all


@pytest.mark.slow
def test_the_allocation_ends_while_a_job_lends(site: Site) -> None:
    """Both are interrupted, and wait for the next allocation, in which nothing is lent."""
    emulated(site, *BOTH, Grace=0.5, End={"At": "never"})
    manager = site.start()
    runs(site, 0)
    assert site.run("lend", "0", "--to", "1").returncode == 0
    runs(site, 0, 1)
    manager.kill()
    manager.wait()
    emulated(site, *BOTH, Grace=0.5, End={"At": 6, "Margin": 1, "Fit": False})  # to be closed about at once
    manager = site.start()
    manager.wait(60)
    assert not site.running() and events(site).count("again") == 2
    assert not journal.replay(records(site)).state.lends.all
    emulated(site, *BOTH, End={"At": "never"})
    manager = site.start()
    runs(site, 0)
    done(site, 0, 1)
    site.append("end\n")
    assert site.finish(manager) and set(site.statuses().values()) == {"completed"}
    assert {row.mates for row in site.rows().values()} == {""}


@pytest.mark.slow
def test_the_lender_does_not_pay_for_a_borrower_that_takes_longer_than_expected(site: Site) -> None:
    emulated(site, "wait.x 1 600 0 cores=2 malleable=1", "wait.x 1 1 0")
    manager = site.start()
    runs(site, 0)
    assert site.run("lend", "0", "--to", "1").returncode == 0
    runs(site, 0, 1)
    wait_until(lambda: jobs(site)[0].get("extra", 0.0) > 1.0, "the limit of job 0 moves")
    done(site, 1)
    wait_until(lambda: not lends(site), "job 0 has its core again")
    begin, end = (next(record["time"] for record in records(site) if record["event"] == event)
                  for event in ("lend", "regain"))
    wait_until(lambda: abs(jobs(site)[0]["extra"] - (end - begin) / 2) < 0.01, "it has that much more time")
    done(site, 0)
    site.append("end\n")
    assert site.finish(manager)
    ended = next(record for record in records(site) if record["event"] == "end" and record["id"] == 0)
    assert ended["slower"] == pytest.approx((end - begin) / 2, abs=0.01), "nothing is learnt from what it lost"


@pytest.mark.slow
def test_no_lend_reaches_into_a_reservation(site: Site) -> None:
    emulated(site, *BOTH)
    manager = site.start()
    runs(site, 0)
    made = site.run("reserve", "-N", "1", "--from", "+11m", "--to", "+20m", "--name", "demo")
    assert made.returncode == 0, made.stderr
    for to in ("1", "node"):  # job 1 takes 800 s on a core, and job 0 would end by 1000 s, or by 1200
        refused = site.run("lend", "0", "--to", to)
        assert refused.returncode == 1 and "could run into reservation demo" in refused.stderr, refused
    assert "lend" not in events(site)
    assert site.run("reserve", "--cancel", "demo").returncode == 0
    assert site.run("lend", "0", "--to", "1").returncode == 0
    runs(site, 0, 1)
    refused = site.run("reserve", "-N", "1", "--from", "+11m", "--to", "+20m", "--name", "demo")
    assert refused.returncode == 1 and "by its walltime" in refused.stderr
    done(site, 0, 1)
    site.append("end\n")
    assert site.finish(manager)


@pytest.mark.slow
def test_a_node_is_killed_while_a_job_lends_there(testbed: Testbed, tmp_path: Path) -> None:
    """Its lender runs on two nodes, and one is lost: it waits again. The borrower on the other one goes on,
    and has all cores there."""
    program = tmp_path / "bin" / "wait"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\ntouch "{tmp_path}/ran.$VRM_JOB_ID.$(hostname).$$"\n'
                       f'until [ -e "{tmp_path}/done.$VRM_JOB_ID" ]; do sleep 0.05; done\n')
    program.chmod(0o755)
    (tmp_path / "hosts").write_text("n[1-2]\n")
    (tmp_path / "queue").write_text("wait 2 600 0 cores=4 malleable=1 nodes=2\nwait 1 60 0 cores=4 malleable=1\n")
    config = tmp_path / "vrm.yaml"
    config.write_text(yaml.safe_dump({
        "Applications": {"Path": "bin", "Queue": "queue"}, "Sockets": 1, "Cores": 4, "Log": "log", "Grace": 0.5,
        "Launcher": {"Kind": "openmpi", "AllowRoot": True, "Transport": "tcp"},
        "Hosts": {"File": "hosts", "Reach": "ssh", "Timeout": 4}}))

    def vrm(*words: str) -> "subprocess.CompletedProcess[str]":
        return testbed.exec("n0", [sys.executable, "-m", "vrm.cli", "-c", config, *words],
                            env={"PYTHONPATH": str(ROOT)}, cwd=tmp_path)

    def ran(job: int) -> List[str]:
        return sorted(path.name.split(".")[2] for path in tmp_path.glob(f"ran.{job}.*"))

    def found() -> List[Dict[str, Any]]:
        return journal.read(tmp_path / "log" / "journal")

    with open(tmp_path / "said", "w") as said:
        manager = testbed.popen("n0", [sys.executable, "-m", "vrm.cli", "-c", config],
                                env={"PYTHONPATH": str(ROOT)}, cwd=tmp_path, stdout=said, stderr=said)
        try:
            wait_until(lambda: ran(0) == ["n1", "n2"], "job 0 runs on both nodes")
            asked = vrm("lend", "0", "--to", "1")
            assert asked.returncode == 0, asked.stderr
            wait_until(lambda: ran(1) == ["n1"], "job 1 runs on the first")
            testbed.kill("n2")
            wait_until(lambda: any(each["event"] == "again" and each["id"] == 0 for each in found()), "job 0 waits")
            wait_until(lambda: any(each["event"] == "grown" for each in found()), "job 1 has all cores of n1")
            assert vrm("cancel", "0").returncode == 0
            (tmp_path / "done.1").touch()
            with open(tmp_path / "queue", "a") as file:
                file.write("end\n")
            manager.wait(60)
        finally:
            manager.kill()
            manager.wait()
            if not testbed.alive("n2"):
                testbed.restart("n2")
    assert {row.id: row.status for row in read_jobs(tmp_path / "log" / "jobs.csv")} == {0: "cancelled", 1: "completed"}
    held = shares.read(tmp_path / "log" / "shares.csv")
    assert [(each.node, each.cores) for each in held if each.job == 1] == [("n1", "0/2-3"), ("n1", "0/0-3")]


@pytest.mark.slow
def test_a_script_says_that_it_lends_nothing(site: Site) -> None:
    emulated(site, *BOTH[:1])
    site.program("job.sh", f'until [ -e "{site.root}/done.1" ]; do sleep 0.05; done\n')
    manager = site.start()
    runs(site, 0)
    done(site, 0)
    wait_until(lambda: site.statuses() == {0: "completed"}, "job 0 has ended")
    said = site.run("submit", "job.sh", "1", "60", "--script", "--cores", "2", "--malleable")
    assert said.returncode == 0, said.stderr
    runs(site, 1)
    assert "#1 job.sh: malleable=1 is for programs; a script lends no cores" in site.said(manager)
    refused = site.run("lend", "1", "--to", "node")
    assert refused.returncode == 1 and "job 1 is a script, and scripts lend no cores" in refused.stderr
    done(site, 1)
    site.append("end\n")
    assert site.finish(manager)
