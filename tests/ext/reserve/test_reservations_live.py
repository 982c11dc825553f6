"""Advance reservations in a live run: they are kept over a kill of the manager, nothing overlaps them,
bound jobs run in them, and what cannot be is said."""

from __future__ import annotations

import json
from typing import Any

import pytest

from conftest import Site, wait_until
from vrm.run.journal import files as journal


def reservations(site: Site) -> list[dict[str, Any]]:
    return json.loads(site.run("reserve", "--list", "--json").stdout)["reservations"]


def why(site: Site) -> dict[int, str]:
    """Why each job waits that does."""
    jobs = json.loads(site.run("-i", "queue", "--json").stdout)["jobs"]
    return {job["id"]: job["why"] for job in jobs if job["state"] == "queued"}


@pytest.mark.slow
def test_a_reservation_from_its_making_to_its_end(site: Site) -> None:
    """No step of it needs to be quick: a machine under load is only slower."""
    site.config(Nodes=3, Sockets=1, Cores=2, Emulate=True, Launcher={"Kind": "direct"},
                Scheduling={"Algorithm": "FCFS", "Backfilling": "easy"})
    site.program("work", 'sleep "$1"')
    site.lines("work 2 36000 args=600", end=False)  # job 0, on n0
    manager = site.start()
    wait_until(lambda: site.running() == ["0"], "job 0 runs")
    made = site.run("reserve", "-N", "2", "--from", "+1h", "--to", "+2h", "--name", "demo")
    assert made.stdout.startswith("reservation demo: n[1-2] from "), made.stderr
    for words in (["work", "2", "2h", "--args", "0"],  # 1: would reach into it
                  ["work", "2", "9", "--reservation", "demo", "--args", "0"],  # 2: is to run in it
                  ["work", "2", "60", "--args", "0"]):  # 3: ends before it
        assert site.run("submit", *words).returncode == 0
    wait_until(lambda: 3 in site.rows(), "job 3 was backfilled")
    wait_until(lambda: set(why(site)) == {1, 2}, "the others wait")
    assert why(site)[2].startswith("reservation demo, which begins ")
    for words in (["-i", "queue"], ["-i", "state"], ["top"]):
        assert "reservation demo: n[1-2] from" in site.run(*words).stdout
    assert json.loads(site.run("-i", "state", "--json").stdout)["reservations"][0]["jobs"] == "2"

    manager.kill()
    manager.wait()
    manager = site.start()
    wait_until(lambda: "continuing the run" in site.said(manager), "the run continues")
    assert [each["name"] for each in reservations(site)] == ["demo"]
    cancelled = site.run("reserve", "--cancel", "demo")
    assert cancelled.stdout == ("reservation demo is cancelled; job 2 competes with the others again\n")
    rows = wait_until(lambda: site.rows() if {1, 2} <= set(site.rows()) else None, "both have run")
    soon = site.run("reserve", "--nodes", "n1", "--from", "+1", "--to", "+1h", "--name", "soon")
    assert soon.returncode == 0, soon.stderr
    begin = wait_until(lambda: [each["begin"] for each in reservations(site) if each["name"] == "soon"], "it is shown")[0]
    for words in (["work", "2", "50m", "--reservation", "soon", "--args", "0"],  # 4
                  ["work", "4", "2h", "--nodes", "2", "--args", "0"]):  # 5: two nodes, which there are not beside it
        assert site.run("submit", *words).returncode == 0
    rows = wait_until(lambda: site.rows() if 4 in site.rows() else None, "job 4 has run")
    assert rows[4].nodes == "n1" and rows[4].start >= round(begin, 3)  # as jobs.csv has it
    wait_until(lambda: set(why(site)) == {5}, "job 5 waits")
    assert site.run("reserve", "--cancel", "1").returncode == 1  # that was demo
    assert site.run("reserve", "--cancel", "2").stdout == "reservation soon is cancelled\n"
    rows = wait_until(lambda: site.rows() if 5 in site.rows() else None, "job 5 was started")
    assert rows[5].nodes == "n[1-2]" and rows[5].start >= rows[4].end
    assert {rows[number].status for number in (1, 2, 3, 4)} == {"completed"}
    assert site.run("stop", "--now").returncode == 0
    site.finish(manager)
    events = [record["event"] for record in journal.read(site.log / "journal")]
    assert events.count("reserve") == events.count("unreserve") == 2


@pytest.mark.slow
def test_what_cannot_be_reserved(site: Site) -> None:
    """The other reasons are in tests/run/test_run_reservations.py."""
    site.config(Nodes=3, Sockets=1, Cores=1, Emulate=True, Launcher={"Kind": "direct"})
    site.program("work", 'sleep "$1"')
    site.lines("work 1 10h args=600", end=False)
    manager = site.start()
    wait_until(lambda: site.running() == ["0"], "job 0 runs")
    for words, said in (
            (["reserve", "-N", "3", "--from", "+1h", "--to", "+2h"],
             "2 of 3 nodes are free of other jobs and reservations then: node n0, for one, has job 0"),
            (["reserve", "--cancel", "b"], "there is no reservation b; none is made"),
            (["submit", "work", "1", "60", "--reservation", "b"],
             "job 1 refused: there is no reservation b; none is made")):
        done = site.run(*words)
        assert done.returncode and said in done.stderr and done.stderr.count("\n") == 1, (words, done)
    assert site.run("stop", "--now").returncode == 0
    site.finish(manager)
