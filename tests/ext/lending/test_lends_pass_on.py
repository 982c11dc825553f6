"""Lenders that end before their borrowers, live: a borrower has what it left, after `kill -9` of the manager, too;
several borrowers of one lender, and one of several."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import Site, wait_until
from support.lending_site import KILLED, allowed, cores, done, events, lends, prepared, records, runs

from vrm.results import shares
from vrm.api import Machine, Timetable, simulate
from vrm.ext.lending.simulated.recorded_lends import RequestedLend
from vrm.model import Job
from vrm.workload.submission import Submission

MALLEABLE = ("wait.x 1 600 0 cores=2 malleable=1", "wait.x 1 600 0 cores=2 malleable=1")


@pytest.mark.slow
def test_a_borrower_takes_over_the_cores_of_a_lender_that_ends_first(site: Site) -> None:
    """As in a simulation of the same jobs."""
    first, second = cores(2)
    prepared(site, *MALLEABLE)
    manager = site.start()
    wait_until(lambda: allowed(site.root, 0) == first | second, "job 0 has both cores")
    assert site.run("lend", "0", "--to", "1").returncode == 0
    wait_until(lambda: allowed(site.root, 1) == second, "job 1 runs on one core")
    env = Path(f"/proc/{(site.root / 'pid.1.0').read_text().strip()}/environ").read_bytes().split(b"\0")
    assert b"VRM_LENDING_CORES=1/2" in env and b"OMP_NUM_THREADS=2" in env, "its arrays have room for both"
    done(site, 0)
    wait_until(lambda: allowed(site.root, 1) == first | second, "job 1 has both cores")
    done(site, 1)
    site.append("end\n")
    assert site.finish(manager) and manager.returncode == 0
    rows = site.rows()
    assert [row.binding for row in rows.values()] == ["ok", "ok"]
    assert "#1 has 1 more core: its lender has ended" in site.said(manager)
    held = shares.read(site.log / "shares.csv")
    assert [each.cores for each in held if each.job == 1] == ["0/1", "0/0-1"]
    mine = [each for each in held if each.job == 1]
    assert mine[0].end == mine[1].begin and (rows[1].cores, rows[1].changes) == (mine[0].node + ":0/1", 1)
    grown = mine[1].begin - rows[1].start
    assert rows[1].borrowed == pytest.approx(rows[1].end - rows[1].start + mine[1].end - mine[1].begin, abs=0.01)
    assert 0 <= mine[1].begin - rows[0].end < 5

    # The same jobs, with the work that each has done, on a machine that asks nobody.
    begin = rows[0].start
    assert begin is not None and rows[1].start is not None
    work = [rows[0].end - begin - rows[0].lent / 2, rows[1].borrowed / 2]
    outcome = {row.id: row for row in simulate(
        [Submission(Job(number, "wait.x", 1, 600, 0.0, cores=2, malleable=True), work[number]) for number in (0, 1)],
        Machine.of(1, 1, 2), timetable=Timetable(lends=[RequestedLend(rows[1].start - begin, 0, 1, 1)])).jobs}
    assert outcome[0].end == pytest.approx(rows[0].end - begin, abs=0.1)
    # It takes over at the lender's end there, and when nothing of it is left here.
    assert outcome[1].end == pytest.approx(rows[1].end - begin, abs=0.1 + mine[1].begin - rows[0].end)
    assert grown > 0


@pytest.mark.slow
@pytest.mark.parametrize("event, number", [("end", 1), ("grown", 1)])
def test_masks_equal_the_plan_after_a_kill_behind_the_lenders_end(site: Site, event: str, number: int) -> None:
    first, second = cores(2)
    prepared(site, *MALLEABLE)
    killed = subprocess.Popen([sys.executable, "-c", KILLED, event, str(number), "-c", str(site.config_file)],
                              cwd=site.root, env=site.env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                              stderr=subprocess.STDOUT)
    site.started.append(killed)
    wait_until(lambda: allowed(site.root, 0) == first | second, "job 0 has both cores")
    assert site.run("lend", "0", "--to", "1").returncode == 0
    wait_until(lambda: allowed(site.root, 1) == second, "job 1 runs on one core")
    done(site, 0)
    killed.wait(60)
    assert killed.returncode == -9 and events(site)[-1] == event and allowed(site.root, 1) == second
    again = site.start()
    wait_until(lambda: allowed(site.root, 1) == first | second, "job 1 has both cores")
    again.kill()
    again.wait()
    again = site.start()
    wait_until(lambda: "continuing the run" in site.said(again), "the run continues")
    site.append("wait.x 1 60 0\nend\n")
    wait_until(lambda: "| 2 " in site.run("queue").stdout, "job 2 came")
    assert allowed(site.root, 1) == first | second and not allowed(site.root, 2)
    done(site, 1)
    wait_until(lambda: allowed(site.root, 2), "job 2 has a core")
    done(site, 2)
    assert site.finish(again) and again.returncode == 0
    assert events(site).count("grown") == 1
    assert set(site.statuses().values()) == {"completed"}
    held = shares.read(site.log / "shares.csv")
    assert [each.cores for each in held if each.job == 1] == ["0/1", "0/0-1"]


def emulated(site: Site, *lines: str, **keys: Any) -> None:
    """On cores where nobody is bound, so that nobody need be moved."""
    prepared(site, *lines, **{"Emulate": True, "Launcher": {"Kind": "direct"}, **keys})


@pytest.mark.slow
@pytest.mark.parametrize("killed", [False, True])
def test_several_borrowers_of_one_lender(site: Site, killed: bool) -> None:
    """The lender ends first: one of them holds its room for both, also after a restart, and each in turn has
    what the others leave."""
    emulated(site, "wait.x 1 600 0 cores=8 malleable=1", "wait.x 1 300 0 cores=8 malleable=1",
             "wait.x 1 60 0 cores=8 malleable=1", Cores=8)
    manager = site.start()
    runs(site, 0)
    assert site.run("lend", "0", "--to", "1").stdout.startswith("job 0 lends 4 cores")
    runs(site, 0, 1)
    assert site.run("lend", "0", "--to", "2").stdout.startswith("job 0 lends 2 cores")
    runs(site, 0, 1, 2)
    wait_until(lambda: [(each["to"], each["cores"], each["phase"]) for each in lends(site)]
               == [(1, 4, "lent"), (2, 2, "lent")], "both borrow")
    done(site, 0)
    wait_until(lambda: site.statuses() == {0: "completed"}, "job 0 has ended")
    if killed:
        manager.kill()
        manager.wait()
        manager = site.start()
    site.append("wait.x 1 60 0 cores=2\n")
    wait_until(lambda: "| 3 " in site.run("queue").stdout, "job 3 came")
    runs(site, 1, 2)  # what the lender had is theirs
    done(site, 2)  # who held nothing: job 1 has all now
    wait_until(lambda: events(site).count("grown") == 1, "job 1 has all cores")
    runs(site, 1)
    done(site, 1, 3)
    site.append("end\n")
    assert site.finish(manager) and manager.returncode == 0
    rows = site.rows()
    assert set(site.statuses().values()) == {"completed"}
    assert (rows[0].mates, rows[1].mates, rows[2].mates) == ("1,2", "0", "0")
    held = shares.read(site.log / "shares.csv")
    assert [each.cores for each in held if each.job == 0] == ["0/0-7", "0/0-3", "0/0-1"]
    assert [each.cores for each in held if each.job == 1] == ["0/4-7", "0/0-7"]
    assert [each.cores for each in held if each.job == 2] == ["0/2-3"]
    assert min(row.start for row in rows.values() if row.id == 3) >= rows[1].end


@pytest.mark.slow
def test_who_borrows_of_two_takes_over_when_both_have_ended(site: Site) -> None:
    emulated(site, *(["wait.x 1 600 0 cores=4 malleable=1"] * 2), "wait.x 2 60 0 cores=4 malleable=1 nodes=2",
             Nodes=2, Cores=4, Scheduling={"Backfilling": "sd"}, Launcher={})
    manager = site.start()
    runs(site, 0, 1, 2)
    assert sorted((each["id"], each["to"], each["cores"]) for each in lends(site)) == [(0, 2, 2), (1, 2, 2)]
    done(site, 0)
    wait_until(lambda: site.statuses() == {0: "completed"}, "job 0 has ended")
    runs(site, 1, 2)
    assert "grown" not in events(site), "each rank has the same number"
    done(site, 1)
    wait_until(lambda: "grown" in events(site), "job 2 has all cores")
    grown = next(record for record in records(site) if record["event"] == "grown")
    assert (grown["id"], grown["width"], grown["cores"]) == (2, 4, "0xff")
    done(site, 2)
    site.append("end\n")
    assert site.finish(manager) and manager.returncode == 0
    rows = site.rows()
    assert (rows[0].mates, rows[1].mates, rows[2].mates, rows[2].changes) == ("2", "2", "0,1", 1)


@pytest.mark.slow
def test_a_borrower_that_is_requeued_and_starts_elsewhere_gives_back_what_it_had(site: Site) -> None:
    emulated(site, "wait.x 1 600 0 cores=2 malleable=1", "wait.x 1 600 0 cores=2", "wait.x 1 60 0", Nodes=2)
    manager = site.start()
    runs(site, 0, 1)
    assert site.run("lend", "0", "--to", "2").returncode == 0
    runs(site, 0, 1, 2)
    done(site, 1)
    runs(site, 0, 2)
    assert site.run("requeue", "2").returncode == 0
    wait_until(lambda: not lends(site), "job 0 has its core again")
    runs(site, 0, 2)
    done(site, 0, 2)
    site.append("end\n")
    assert site.finish(manager) and manager.returncode == 0
    rows = site.rows()
    assert rows[2].nodes != rows[0].nodes and rows[2].mates == ""
