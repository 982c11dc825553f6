"""Expected run times in live runs: learnt from earlier runs and during the run, corrected while a job
runs, the same after kill -9, shown, and the same as in a simulation."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from conftest import Site, wait_until
from vrm.model import Job
from vrm.results.job_columns import HEADER
from vrm.results.jobs import JobRow, JobWriter, read_jobs
from vrm.run.journal import files as journal
from vrm.run.journal.history import replay
from vrm.api import Machine, Recording, Rules, Submission, simulate

WORK = 'echo "$VRM_JOB_ID" >> "$(dirname "$0")/log"\nexec sleep "$1"\n'
WAIT = 'while [ ! -e "$0.go" ]; do sleep 0.02; done\n'


def configured(site: Site, nodes: int = 2, cores: int = 1, **keys: Any) -> None:
    site.config(Launcher={"Kind": "direct"}, Nodes=nodes, Sockets=1, Cores=cores, Emulate=True, **keys)
    site.program("work", WORK)
    site.program("wait", WAIT)


def past_run(path: Path, *rows: tuple[str, int, float, float]) -> Path:
    """The directory of an earlier run: programs, ranks, walltimes and run times of its jobs."""
    path.mkdir()
    with JobWriter(path / "jobs.csv") as writer:
        for number, (app, procs, walltime, run) in enumerate(rows):
            writer.write(JobRow(number, app, procs, 0.0, 10.0 * number, 10.0 * number + run,
                                walltime, "completed"))
    return path


def expected(site: Site) -> dict[int, Any]:
    """What was expected of each job, as the journal has it; None: as its user says."""
    return {job_id: job.believed for job_id, job in
            replay(journal.read(site.log / "journal")).jobs.items()}


def in_queue(site: Site) -> dict[int, Any]:
    done = site.run("-i", "queue", "--json")
    assert done.returncode == 0, done.stderr
    return {job["id"]: job for job in json.loads(done.stdout)["jobs"]}


def test_earlier_runs_teach_by_program_and_ranks(site: Site) -> None:
    first = past_run(site.root / "first", ("work", 1, 100.0, 4.0), ("work", 1, 100.0, 6.0),
                     ("work", 2, 100.0, 50.0), ("other", 1, 100.0, 90.0))
    # A file of vrm 0.1 has fewer columns.
    second = site.root / "second"
    second.mkdir()
    (second / "jobs.csv").write_text(",".join(HEADER.split(",")[:16])
                                     + "\n0,work,1,0,1000,1010,100,completed,0,,0,0,,,,\n")
    configured(site, 3, 2, Scheduling={"Estimates": "last-two",  # all start at once
                                       "History": [str(first), str(second / "jobs.csv")]})
    site.lines("work 1 100 0 args=0.1", "work 2 100 0 args=0.1", "work 1 7 0 args=0.1")
    assert site.run("--once").returncode == 0
    assert expected(site) == {0: 8.0, 1: None, 2: None}  # the third would be cut to its limit
    assert {job_id: row.expected for job_id, row in site.rows().items()} == {
        0: 8.0, 1: None, 2: None}


def test_what_is_expected_is_learnt_shown_and_survives_a_kill(site: Site) -> None:
    configured(site, Scheduling={"Estimates": "history", "Correction": "doubling",
                                 "Backfilling": "easy", "BackfillOrder": "sjf"},
               Starvation={"Factor": 25})
    site.lines("work 1 100 0 args=1.2", "work 1 100 0 args=1.2", end=False)
    manager = site.start("--wait")
    wait_until(lambda: (site.state() or {"ended": {}})["ended"].get("completed") == 2,
               "two jobs have taught")
    site.append("wait 1 100 0 \nwork 1 100 0 args=300\nwork 1 100 0 args=0.1\nwork 1 90 0 args=0.1\n")
    wait_until(lambda: len((site.state() or {"jobs": ()})["jobs"]) == 4, "four jobs are there")
    before = expected(site)
    assert 1.2 <= before[2] == before[3] == before[4] < 3
    wait_until(lambda: in_queue(site)[3]["expected"] is not None, "it is shown")
    os.kill(manager.pid, signal.SIGKILL)
    manager.wait()
    manager = site.start()
    wait_until(lambda: (site.state() or {}).get("manager", {}).get("pid") == manager.pid
               and len(site.state()["jobs"]) == 4, "another manager goes on")
    assert expected(site) == before
    # A job that runs on is expected longer: twice as long, and again.
    start = next(job["start"] for job in site.state()["jobs"] if job.get("id") == 3)

    def revised() -> bool:
        job = next(job for job in site.state()["jobs"] if job.get("id") == 3)
        times = (job["expected_end"] - start) / before[3]
        return times > 3 and times == pytest.approx(2 ** round(times).bit_length() / 2)

    wait_until(revised, "twice as much, and again")
    table = site.run("-i", "queue").stdout
    assert "Expected" in table and "00:01:" in table.split("Expected")[1]
    # What is submitted now is expected from what the first manager has seen.
    site.append("work 1 100 0 args=0.1\n")
    wait_until(lambda: in_queue(site).get(6, {}).get("expected") == before[3],
               "it has learnt from the journal")
    assert site.run("cancel", "3").returncode == 0
    (site.bin / "wait.go").touch()
    site.append("end\n")
    site.finish(manager)
    assert {job_id: row.status for job_id, row in site.rows().items()} == {
        **dict.fromkeys(range(7), "completed"), 3: "cancelled"}


def test_jobs_that_wait_are_estimated_again_when_one_like_them_ends(site: Site) -> None:
    """A queue that comes at once: nothing is known of it then. kill -9 in between."""
    configured(site, nodes=1, Scheduling={"Estimates": "last-two", "Reestimate": True, "Backfilling": "easy"})
    site.lines("work 1 50 0 args=0.3", "work 1 60 0 args=0.2", "wait 1 70 0", *["work 1 80 0 args=0.1"] * 3)
    manager = site.start()
    wait_until(lambda: expected(site) == {} or len(site.state()["jobs"]) <= 4
               if site.state() else False, "two have ended")
    wait_until(lambda: in_queue(site)[4]["expected"] is not None, "it is shown")
    before = expected(site)
    assert before[2] is None and before[3] == before[4] == before[5] == 1.0
    os.kill(manager.pid, signal.SIGKILL)
    manager.wait()
    manager = site.start()
    wait_until(lambda: (site.state() or {}).get("manager", {}).get("pid") == manager.pid
               and 4 in in_queue(site), "another manager goes on")
    assert in_queue(site)[4]["expected"] == 1.0 and expected(site) == before
    (site.bin / "wait.go").touch()
    site.finish(manager)
    assert {job_id: row.expected for job_id, row in site.rows().items()} == {
        0: None, 1: None, 2: None, 3: 1.0, 4: 1.0, 5: 1.0}


def test_limits_stay_those_of_the_user(site: Site) -> None:
    first = past_run(site.root / "first", *[("work", 1, 100.0, 0.1)] * 2)
    configured(site, Walltime="kill", Scheduling={"Estimates": "last-two",
                                                  "History": [str(first)]})
    site.lines("work 1 4 0 args=2.5", "work 1 2 0 args=60")
    site.run("--once")
    assert site.statuses() == {0: "completed", 1: "timeout"}
    assert expected(site) == {0: 1.0, 1: 1.0}


@pytest.mark.parametrize("keys, said", [
    ({"Estimates": "histroy"}, "Scheduling.Estimates: unknown estimator `histroy`; did you mean history"),
    ({"Estimates": "actual"}, "Scheduling.Estimates: `actual` is what a job really takes"),
    ({"Estimates": "calibrated"}, "name it: Scheduling.Calibrated in the configuration"),
    ({"Events": "published"}, "Scheduling.Events: published is an order of events in simulations"),
    ({"Events": "ours"}, 'Scheduling.Events: found "ours", wanted instant or published'),
    ({"Correction": "double"}, "Scheduling.Correction: unknown correction `double`; did you mean doubling?"),
    ({"BackfillOrder": "shortest"}, "Scheduling.BackfillOrder: unknown ordering `shortest`"),
    ({"Backfilling": "conservative", "BackfillOrder": "sjf"},
     "an order of backfilling works with the backfillings easy and list"),
    ({"Estimates": "last-two", "History": ["nowhere"]}, "Scheduling.History"),
    ({"Estimates": "last-two", "History": ["broken"]},
     "broken/jobs.csv:2: "),
])
def test_bad_settings_are_one_clear_message(site: Site, keys: dict[str, Any], said: str) -> None:
    (site.root / "broken").mkdir()
    (site.root / "broken" / "jobs.csv").write_text(HEADER + "1,work,many\n")
    configured(site, Scheduling=keys)
    site.lines("work 1 100 0 args=0.1")
    done = site.run("--once")
    assert done.returncode != 0 and said in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert not (site.bin / "log").exists()


def test_a_live_run_and_its_replay_expect_and_decide_alike(site: Site) -> None:
    """Jobs that run longer than expected hold the head up, and what is expected of them is
    corrected, at the same moments in both."""
    configured(site, nodes=3, Scheduling={"Estimates": "last-two", "Correction": "doubling",
                                          "Backfilling": "easy", "BackfillOrder": "sjf"})
    jobs: list[tuple[int, float, float]] = [  # ranks, run time, until the next line
        (1, 1.1, 0), (1, 1.2, 0), (1, 1.1, 0.4), (1, 2.9, 1.2), (1, 1.3, 0), (1, 1.6, 0),
        (1, 1.5, 0), (1, 3.2, 0.3), (1, 1.1, 0), (1, 1.2, 0.2), (1, 1.4, 0), (1, 1.1, 0)]
    site.lines(*[f"work {ranks} 9 0 {delay} args={run}" for ranks, run, delay in jobs])
    assert site.run("--fresh").returncode == 0
    past = replay(journal.read(site.log / "journal"))
    first = past.jobs[0].submit
    runs = {job_id: past.ended[job_id]["time"] - past.started[job_id]["time"]
            for job_id in past.jobs}
    submissions = [Submission(Job(job.id, job.app, job.procs, job.walltime, job.submit - first),
                              runs[job.id]) for job in past.jobs.values()]
    out = site.root / "replay"
    simulate(submissions, Machine.of(3),
             Rules(backfill="easy", backfill_order="sjf", estimates="last-two", correction="doubling"),
             record=Recording(out=out))
    again = {row.id: row for row in read_jobs(out / "jobs.csv")}
    outlived = 0
    for job_id, job in past.jobs.items():
        assert again[job_id].start == pytest.approx(past.started[job_id]["time"] - first, abs=2e-3)
        assert again[job_id].expected == (
            None if job.believed is None else pytest.approx(job.believed, abs=2e-3))
        outlived += runs[job_id] > job.expected
    assert outlived >= 3
