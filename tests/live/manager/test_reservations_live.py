"""Advance reservations in a live run: they are kept over a kill of the manager, nothing overlaps them,
bound jobs run in them, and what cannot be is said."""

from __future__ import annotations

import json
import time
from typing import Any, Dict, List

import pytest

from conftest import Site, wait_until
from vrm.run import journal


def reservations(site: Site) -> List[Dict[str, Any]]:
    return json.loads(site.run("reserve", "--list", "--json").stdout)["reservations"]


def why(site: Site) -> Dict[int, str]:
    """Why each job waits that does."""
    jobs = json.loads(site.run("-i", "queue", "--json").stdout)["jobs"]
    return {job["id"]: job["why"] for job in jobs if job["state"] == "queued"}


@pytest.mark.slow
def test_a_reservation_from_its_making_to_its_end(site: Site) -> None:
    site.config(Nodes=3, Sockets=1, Cores=1, Emulate=True, Launcher={"Kind": "direct"},
                Scheduling={"Algorithm": "FCFS", "Backfilling": "easy"})
    site.program("work", 'sleep "$1"')
    site.lines("work 1 60 args=30", end=False)  # job 0, on n0
    manager = site.start()
    wait_until(lambda: site.running() == ["0"], "job 0 runs")
    asked = time.time()
    made = site.run("reserve", "-N", "2", "--from", "+5", "--to", "+60", "--name", "demo")
    assert made.stdout.startswith("reservation demo: n[1-2] from "), made.stderr
    begin = reservations(site)[0]["begin"]
    assert asked + 5 <= begin <= time.time() + 5
    for words in (["work", "2", "50", "--args", "0.1"],  # 1: would reach into it
                  ["work", "2", "9", "--reservation", "demo", "--args", "0.1"],  # 2: is to run in it
                  ["work", "1", "1", "--args", "0.1"]):  # 3: ends before it
        assert site.run("submit", *words).returncode == 0
    wait_until(lambda: site.rows().get(3) is not None, "job 3 was backfilled")
    wait_until(lambda: set(why(site)) == {1, 2}, "the others wait")
    assert why(site)[2].startswith("reservation demo, which begins ")
    for what in ("queue", "state"):
        assert "reservation demo: n[1-2] from" in site.run("-i", what).stdout
    assert json.loads(site.run("-i", "state", "--json").stdout)["reservations"][0]["jobs"] == "2"

    manager.kill()
    manager.wait()
    manager = site.start()
    wait_until(lambda: "continuing the run" in site.said(manager), "the run continues")
    assert [each["name"] for each in reservations(site)] == ["demo"]
    rows = wait_until(lambda: site.rows() if 2 in site.rows() else None, "job 2 has run")
    assert rows[2].nodes == "n[1-2]" and begin <= rows[2].start < begin + 2
    assert rows[3].end <= begin and 1 not in rows
    cancelled = site.run("reserve", "--cancel", "demo")
    assert cancelled.stdout == "reservation demo is cancelled\n"
    rows = wait_until(lambda: site.rows() if 1 in site.rows() else None, "job 1 has run")
    assert rows[1].start >= rows[2].end and rows[1].nodes == "n[1-2]"
    assert site.run("stop", "--now").returncode == 0
    site.finish(manager)
    events = [record["event"] for record in journal.read(site.log / "journal")]
    assert events.count("reserve") == events.count("unreserve") == 1


@pytest.mark.slow
def test_what_cannot_be_reserved(site: Site) -> None:
    site.config(Nodes=3, Sockets=1, Cores=1, Emulate=True, Launcher={"Kind": "direct"})
    site.program("work", 'sleep "$1"')
    site.lines("work 1 600 args=30", "work 3 900", end=False)
    manager = site.start()
    wait_until(lambda: site.running() == ["0"], "job 0 runs")
    assert site.run("reserve", "--nodes", "n2", "--from", "+1h", "--to", "+2h", "--name", "a",
                    ).returncode == 0
    for words, said in (
            (["-N", "4", "--to", "+1h"], "4 nodes are asked for, and the run has 3"),
            (["-N", "3", "--to", "+50m"], "2 of 3 nodes are free of other jobs and reservations then: "
                                         "node n0, for one, has job 0 until"),
            (["--nodes", "n1,n2", "--from", "+90m", "--to", "+3h"],
             "node n2 is in reservation a from "),
            (["--nodes", "n9", "--to", "+1h"], "no node is called n9; the nodes are n0 to n2"),
            (["-N", "1", "--from", "2001-01-01T10:00", "--to", "+1h"], "is in the past: it is"),
            (["-N", "1", "--from", "+2h", "--to", "+1h"], "a reservation ends after it begins"),
            (["-N", "1", "--from", "+2h", "--to", "+3h", "--name", "a"],
             "there is a reservation a already"),
            (["-N", "1", "--to", "+3h", "--name", "3 x"], "`3 x` is no name"),
            (["-N", "2", "--to", "+50m", "--jobs", "1"],
             "job 1 needs 3 nodes, and reservation r2 has 2"),
            (["-N", "2", "--from", "+5m", "--to", "+6m", "--jobs", "1"], "job 1 may run for 900 s"),
            (["-N", "1", "--to", "+1h", "--jobs", "7"], "there is no job 7"),
            (["-N", "1", "--to", "+1h", "--jobs", "0"], "job 0 does not wait: it is running"),
            (["--cancel", "b"], "there is no reservation b; there is a"),
            (["--to", "+1h"], "how many nodes, or which?"),
            (["-N", "1"], "until when? Give --to TIME"),
            (["-N", "1", "--to", "soon"], "--to: `soon` is no time; write 14:30"),
            (["-N", "1", "--to", "+1h", "--list"], "--list and --cancel stand alone")):
        done = site.run("reserve", *words)
        assert done.returncode and said in done.stderr, (words, done.stdout, done.stderr)
        assert done.stderr.count("\n") == 1
    refused = site.run("submit", "work", "1", "60", "--reservation", "b")
    assert "job 2 refused: there is no reservation b; there is a" in refused.stderr
    assert [each["name"] for each in reservations(site)] == ["a"]
    assert site.run("stop", "--now").returncode == 0
    site.finish(manager)
