"""What may happen while a job lends cores, live: either is cancelled or requeued, the allocation ends, a borrower takes
longer than expected, a node is lost, a reservation is in the way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import Site, wait_until
from support.lending_site import allowed, cores, done, events, lends, prepared, records, runs
from support.testbed import Testbed, missing
from support.two_nodes import TwoNodes

from vrm.live.nodes.topology import read_topology
from vrm.live.relay.boot import MARK
from vrm.results import shares
from vrm.run.journal import files as journal
from vrm.run.journal.history import replay

ROOT = Path(__file__).resolve().parent.parent.parent.parent
BOTH = ("wait.x 1 600 0 cores=2 malleable=1", "wait.x 1 400 0 cores=2 malleable=1")


def emulated(site: Site, *lines: str, **keys: Any) -> None:
    """On cores where nobody is bound, so that nobody need be moved."""
    prepared(site, *lines, **{"Emulate": True, "Launcher": {"Kind": "direct"}, **keys})


def jobs(site: Site) -> dict[int, dict[str, Any]]:
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
    assert not replay(records(site)).state.lends.all


@pytest.mark.slow
def test_what_a_job_has_lent_is_known_to_the_next_manager(site: Site) -> None:
    """It has as much more time as it has lost, and its record says what it has lent."""
    emulated(site, *BOTH)
    manager = site.start()
    runs(site, 0)
    assert site.run("lend", "0", "--to", "1").returncode == 0
    runs(site, 0, 1)
    done(site, 1)
    wait_until(lambda: "regain" in events(site) and not lends(site), "job 0 has its core again")
    wait_until(lambda: "extra" in jobs(site)[0], "the state says how much more time it has")
    before = jobs(site)[0]
    manager.kill()
    manager.wait()
    (site.log / "state").unlink()
    manager = site.start()
    wait_until(lambda: (site.log / "state").exists(), "the next manager has written its state")
    after = jobs(site)[0]
    assert before["extra"] > 0 and after["extra"] == pytest.approx(before["extra"], abs=0.01)
    assert after["expected_end"] == pytest.approx(before["expected_end"], abs=0.01)
    done(site, 0)
    site.append("end\n")
    site.finish(manager)
    row, held = site.rows()[0], [each for each in shares.read(site.log / "shares.csv") if each.job == 0]
    assert [each.cores for each in held] == ["0/0-1", "0/0", "0/0-1"] and row.changes == 2
    assert row.lent == pytest.approx(held[1].end - held[1].begin, abs=0.01)


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
    assert not replay(records(site)).state.lends.all
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
    run = TwoNodes(testbed, tmp_path, Sockets=1, Cores=4)
    with run.running():
        run.vrm("lend", "0", "--to", "1")
        wait_until(lambda: run.ran(1) == ["n1"], "job 1 runs on the first")
        testbed.kill("n2")
        wait_until(lambda: ("again", 0) in run.events(), "job 0 waits")
        wait_until(lambda: any(event == "grown" for event, _ in run.events()), "job 1 has all cores of n1")
    assert run.statuses() == {0: "cancelled", 1: "completed"}
    held = shares.read(run.log / "shares.csv")
    assert [(each.node, each.cores) for each in held if each.job == 1] == [("n1", "0/2-3"), ("n1", "0/0-3")]


@pytest.mark.slow
def test_a_node_is_killed_before_it_has_cleared_the_cores_that_are_lent(tmp_path: Path) -> None:
    """Between the records `lend` and `lent`: the borrower does not start on them. It waits behind the lender, and has
    the node that is left for itself."""
    sockets = read_topology().sockets
    reason = missing(slurm=False) or ("" if len(sockets[0]) > 1 else "needs two cores on a socket")
    if reason:
        pytest.skip(reason)
    with Testbed(3, len(sockets), len(sockets[0]), slurm=False, synthetic=False) as testbed:
        run = TwoNodes(testbed, tmp_path, len(sockets[0]))
        with run.running():
            agents = [pid for pid, line in testbed.pids("n2").items() if MARK[:-1] in line]
            assert agents
            testbed.exec("n2", ["kill", "-STOP", *agents])  # it answers no order
            run.vrm("lend", "0", "--to", "1")
            wait_until(lambda: ("lend", 0) in run.events(), "job 0 is to lend")
            testbed.kill("n2")
            wait_until(lambda: ("again", 0) in run.events(), "job 0 waits")
            assert not run.ran(1)
    events = run.events()
    assert ("lent", 0) not in events and events.index(("again", 0)) < events.index(("start", 1))
    assert run.statuses() == {0: "cancelled", 1: "completed"}
    assert not replay(journal.read(run.log / "journal")).state.lends.all
    assert not [each for each in shares.read(run.log / "shares.csv") if each.job == 1], "it has its cores for itself"


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
