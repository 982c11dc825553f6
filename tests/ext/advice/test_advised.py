"""A running manager changes its rules: `vrm advise --apply`, and the algorithm `advised`. What runs stays
where it is, what is promised stays promised, and a restarted manager goes on with the new rules."""

from __future__ import annotations

import json
import signal
from contextlib import suppress
from typing import Any

import psutil
import pytest
from conftest import Site, descendants, wait_until

from vrm.run import command_files
from vrm.run.journal import files as journal
from vrm.run.rundir import RunDirectory

GATE = "while [ ! -e gate ]; do sleep 0.02; done\n"


def prepare(site: Site, algorithm: str = "FCFS", backfill: str = "none", **more: Any) -> None:
    """One node of two cores: #0 holds one of them, or both, until the gate opens."""
    site.config(Nodes=1, Sockets=1, Cores=2, Emulate=True, Launcher={"Kind": "direct"},
                Allocation={"Policy": "pack"},
                Scheduling={"Algorithm": algorithm, "Backfilling": backfill, **more})
    site.program("hold", GATE)
    site.program("work", "sleep 0.05\n")


def waiting(site: Site, number: int) -> bool:
    """Whether #0 runs and at least so many jobs wait."""
    state = site.state()
    return (state is not None and any(job["state"] == "running" for job in state["jobs"])
            and sum(job["state"] == "queued" for job in state["jobs"]) >= number)


def order(site: Site) -> list[int]:
    """The jobs in the order of their starts."""
    return sorted(site.rows(), key=lambda job_id: site.rows()[job_id].start)


def ask(site: Site, command: dict[str, Any]) -> dict[str, Any]:
    """The manager's answer to a command."""
    run = RunDirectory(site.log, site.log, site.log / "state")
    reply = command_files.wait_reply(run, command_files.send(run, command), 30.0)
    assert reply is not None
    return reply


@pytest.mark.slow
def test_rules_are_changed_and_shown_and_a_restarted_manager_goes_on_with_them(site: Site) -> None:
    prepare(site)
    site.lines("hold 2 60 0", "work 2 50 0", "work 2 5 0", "work 2 20 0")
    site.start()
    wait_until(lambda: waiting(site, 3), "three jobs wait")
    before = site.state()["jobs"][0]["nodes"]
    refused = site.run("advise", "--apply", "7", "--orders", "SJF")
    assert refused.returncode == 2 and "combinations are 0 to 1" in refused.stderr
    done = site.run("advise", "--orders", "SJF", "--dispatchers", "none", "--apply", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "from now on SJF, pack, instead of FCFS" in done.stdout
    wait_until(lambda: site.state()["scheduling"]["algorithm"] == "SJF", "the state file says so")
    assert "SJF" in site.run("queue").stdout
    assert site.state()["jobs"][0]["nodes"] == before
    again = site.run("advise", "--orders", "FCFS,SJF", "--dispatchers", "none", "--json")
    assert json.loads(again.stdout)["combinations"][0]["rules"]["algorithm"] == "SJF"
    site.started[0].send_signal(signal.SIGKILL)
    site.started[0].wait()
    second = site.start()
    wait_until(lambda: "SJF, pack, as changed before" in site.said(second),
               "the next manager goes on with the rules")
    (site.root / "gate").touch()
    assert "from now on" not in site.finish(second)
    assert order(site) == [0, 2, 3, 1]
    assert [record["rules"]["algorithm"] for record in journal.read(site.log / "journal")
            if record["event"] == "rules"] == ["SJF"]


@pytest.mark.slow
def test_an_edited_configuration_counts_more_than_a_change_before(site: Site) -> None:
    prepare(site)
    site.lines("hold 2 10 0", "work 2 50 0", "work 2 5 0", "work 2 20 0")
    site.start()
    wait_until(lambda: waiting(site, 3), "three jobs wait")
    assert ask(site, {"do": "rules", "rules": {"algorithm": "SJF"}, "reason": "a test"})["ok"]
    site.started[0].send_signal(signal.SIGKILL)
    site.started[0].wait()
    prepare(site, "LJF")
    second = site.start()
    wait_until(lambda: "the configuration is used" in site.said(second), "it says so")
    (site.root / "gate").touch()
    site.finish(second)
    assert order(site) == [0, 1, 3, 2]
    # The replay goes through the same rules: under LJF alone #1 would have been the first.
    done = site.run("validate", "--known", "actual", "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["turnaround"]["mape"] < 0.01, done.stdout + done.stderr


@pytest.mark.slow
def test_what_cannot_be_changed_is_refused_and_nothing_changes(site: Site) -> None:
    prepare(site, backfill="easy-kept")
    site.lines("hold 1 60 0", "work 2 50 0", "work 1 20 0 hold=1", "hold 1 30 0")
    process = site.start()
    wait_until(lambda: waiting(site, 2), "two jobs wait")
    wait_until(lambda: any(record["event"] == "promise" for record in
                           journal.read(site.log / "journal")), "a start is promised")

    def refused(text: str, **rules: Any) -> None:
        reply = ask(site, {"do": "rules", "rules": rules, "reason": "a test"})
        assert not reply["ok"] and text in reply["text"], reply

    refused("starts that were promised", backfilling="easy")
    refused("cannot be changed", interval=5.0)
    refused("unknown ordering", algorithm="nobody")
    refused("interval is", interval="often")
    refused("a process that a manager starts in the beginning", backfilling="cp")
    refused("not understood", algorithm=["SJF"])
    reply = ask(site, {"do": "rules", "rules": {"algorithm": "SJF"}, "reason": "a test",
                       "instead": {"algorithm": "LJF"}})
    assert not reply["ok"] and "in the meantime" in reply["text"]
    for command in ({"do": "rules"}, {"do": "rules", "rules": 7, "reason": ""},
                    {"do": "rules", "rules": {}, "reason": 7}):
        assert "not understood" in ask(site, command)["text"]
    assert "these are the rules already" in ask(site, {"do": "rules", "rules": {}, "reason": ""})["text"]
    # Others that keep promises are taken, and the promise stays.
    promised = site.state()["jobs"]
    assert ask(site, {"do": "rules", "rules": {"algorithm": "SJF", "backfilling": "conservative"},
                      "reason": "a test"})["ok"]
    wait_until(lambda: site.state()["scheduling"]["algorithm"] == "SJF", "the state says so")
    assert [job.get("expected_start") for job in site.state()["jobs"] if job["id"] == 1] == [
        job.get("expected_start") for job in promised if job["id"] == 1]
    ask(site, {"do": "release", "id": 2})
    (site.root / "gate").touch()
    site.finish(process)
    assert set(site.statuses().values()) == {"completed"}


@pytest.mark.slow
def test_advised_changes_the_rules_by_itself_and_its_process_ends_with_its_manager(site: Site) -> None:
    prepare(site, "advised", "easy", Objective="wait")
    site.lines("hold 2 60 0", "work 2 3000 0", *["work 2 5 0"] * 8)
    process = site.start()
    adviser, = wait_until(lambda: descendants(process.pid, "vrm.ext.advice.adviser"), "the process is there")

    def changed() -> list[dict[str, Any]]:
        with suppress(psutil.AccessDenied):  # it yields to all others: with busy tests around it would take minutes
            adviser.nice(0)
        path = site.log / "journal"
        return [record for record in (journal.read(path) if path.exists() else ())
                if record["event"] == "rules"]

    record = wait_until(changed, "the rules are changed", limit=240)[0]
    assert record["was"]["algorithm"] == "advised" and "mean wait" in record["reason"]
    wait_until(lambda: site.state()["scheduling"]["algorithm"] in ("SJF", "SAF"), "it is shown")
    asked = site.run("simulate", str(site.queue), "-c", str(site.config_file))
    assert asked.returncode == 2 and "advised chooses in a live run" in asked.stderr

    process.send_signal(signal.SIGKILL)
    process.wait()
    wait_until(lambda: not adviser.is_running(), "the process ends with its manager")
    second = site.start()
    wait_until(lambda: "as changed before (advised: " in site.said(second), "the next one goes on")
    (site.root / "gate").touch()
    site.finish(second)
    assert order(site)[-1] == 1
    done = site.run("validate", "--known", "actual", "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["turnaround"]["mape"] < 0.01, done.stdout + done.stderr
