"""Queues in live runs: limits, nodes and priorities hold, also after a crash; `vrm queue` says why a
job waits; and the simulator decides alike."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest
from conftest import Site, wait_until

from vrm.model import Node
from vrm.results.jobs import JobRow, read_jobs
from vrm.run.journal import files as journal
from vrm.run.journal.history import replay
from vrm.api import Machine, Recording, Rules, Submission, simulate

QUEUES = {"debug": {"Priority": 5, "MaxRunning": 1}, "small": {"Nodes": "n0", "CoresPerNode": 2},
          "long": {"MaxCores": 5, "ExpectedWait": "2h", "Default": True}}


def millionths(seconds: float) -> int:
    """Seconds as whole microseconds."""
    return round(1e6 * seconds)


def most_at_a_time(rows: list[JobRow], weight: Any) -> int:
    """The largest sum of the weights of jobs that run together."""
    return max((sum(weight(other) for other in rows if other.start <= row.start < other.end)
                for row in rows), default=0)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm, backfill, order", [
    ("FCFS", "easy", "auto"), ("PRB", "list", "weighted"), ("SJF", "conservative", "best-fit")])
def test_limits_hold_and_the_simulator_decides_alike(site: Site, algorithm: str, backfill: str,
                                                     order: str) -> None:
    site.config(Nodes=3, Sockets=1, Cores=4, Emulate=True, Launcher={"Kind": "direct"},
                Scheduling={"Algorithm": algorithm, "Backfilling": backfill},
                Allocation={"Policy": "pack", "NodeOrder": order}, Queues=QUEUES)
    site.program("work", 'sleep "$1"')
    draw = random.Random(3)
    wanted = [draw.choice(["debug", "debug", "small", "long", ""]) for _ in range(24)]
    site.lines(*(f"work {draw.choice([1, 2])} {draw.choice([5, 9, 20])} 0 {draw.choice([0, 0, 0.1])} "
                 f"args={draw.choice([0.1, 0.2, 0.4])} nodes=1"
                 + f" queue={queue}" * bool(queue) for queue in wanted))
    done = site.run("--fresh", "--once", limit=120)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = site.rows()
    assert len(rows) == len(wanted) and {row.status for row in rows.values()} == {"completed"}
    by_queue: dict[str, list[JobRow]] = {}
    for number, row in rows.items():
        by_queue.setdefault(wanted[number] or "long", []).append(row)
    assert most_at_a_time(by_queue["debug"], lambda row: 1) == 1
    assert most_at_a_time(by_queue["long"], lambda row: row.procs) <= 5
    assert {row.nodes for row in by_queue["small"]} == {"n0"}
    # The same in virtual time, to the microsecond.
    past = replay(journal.read(site.log / "journal"))
    first = past.jobs[0].submit
    submissions, live = [], {}
    for job in past.jobs.values():
        submit, start, end = (millionths(time - first) for time in (
            job.submit, past.started[job.id]["time"], past.ended[job.id]["time"]))
        twin = job.but(submit=submit, walltime=millionths(job.walltime),
                       expected=millionths(job.expected))
        submissions.append(Submission(twin, end - start))
        live[job.id] = (start, rows[job.id].nodes, rows[job.id].cores)
    queues = {"debug": {"priority": 5, "max_running": 1},
              "small": {"nodes": ["n0"], "cores_per_node": 2},
              "long": {"max_cores": 5, "expected_wait": 7200, "default": True}}
    simulate(submissions, Machine([Node(f"n{number}", (4,)) for number in range(3)]),
             Rules(algorithm=algorithm, backfill=backfill, policy="pack", node_order=order, queues=queues),
             record=Recording(out=site.root / "again", places="full"))
    again = {row.id: (int(row.start or 0), row.nodes, row.cores)
             for row in read_jobs(site.root / "again" / "jobs.csv")}
    assert again == live
    validated = site.run("validate", "--known", "actual", str(site.log))
    assert validated.returncode == 0, validated.stdout + validated.stderr


def waits(site: Site) -> dict[int, str]:
    """Why jobs wait, by id."""
    state = site.state()
    return {job["id"]: job["why"] for job in (state or {"jobs": []})["jobs"]
            if job["state"] == "queued" and "id" in job}


def test_a_limit_is_the_reason_that_is_shown_and_holds_after_a_crash(site: Site) -> None:
    site.config(Nodes=2, Sockets=1, Cores=2, Emulate=True, Launcher={"Kind": "direct"},
                Allocation={"Policy": "pack"}, Queues=QUEUES)
    gate = site.root / "gate"
    site.program("hold", f"while [ ! -e {gate} ]; do sleep 0.05; done")
    site.lines("hold 1 60 0 queue=debug", "hold 1 50 0 queue=debug", "hold 1 60 0 queue=debgu",
               "hold 9 60 0 queue=long", "hold 1 60 0 queue=long")
    manager = site.start("--fresh", "--once")
    why = "queue debug: 1 of 1 jobs run or are next"
    wait_until(lambda: waits(site).get(1) == why, "the reason is shown")
    assert why in site.run("queue").stdout
    os.kill(manager.pid, signal.SIGKILL)
    manager.wait()
    again = site.start("--once")
    wait_until(lambda: "running" in {job["state"] for job in (site.state() or {"jobs": []})["jobs"]}
               and waits(site).get(1) == why, "the next manager shows it, too")
    gate.write_text("")
    said = site.finish(again)
    rows = site.rows()
    assert {number: row.status for number, row in rows.items()} == {
        0: "completed", 1: "completed", 2: "refused", 3: "refused", 4: "completed"}, said
    assert rows[2].reason == "unknown queue `debgu`; did you mean debug?"
    assert rows[3].reason == "it wants 9 cores, queue long allows 5 at a time"
    assert rows[1].start is not None and rows[0].end is not None and rows[1].start >= rows[0].end


def test_mistakes_in_queues_are_said_with_their_place(site: Site, tmp_path: Path) -> None:
    site.config(Queues={"debug": {"MaxJobs": 3}})
    done = site.run("check")
    assert "Queues.debug.MaxJobs: unknown key" in done.stdout + done.stderr
    site.config(Queues={"debug": {"MaxCores": 2, "Nodes": "n[0-9]"}}, Cores=4, Emulate=True, Launcher={"Kind": "direct"})
    site.program("work", "true")
    site.lines("work 1 5 0 queue=debgu", "work 4 5 0 queue=debug", "work 2 5 0 queue=debug")
    done = site.run("check")
    text = done.stdout + done.stderr
    assert "unknown queue `debgu`; did you mean debug?" in text
    assert "Queues: debug: n1 and 8 other(s) are no node of this run" in text
    assert "it wants 4 cores, queue debug allows 2 at a time" in text
