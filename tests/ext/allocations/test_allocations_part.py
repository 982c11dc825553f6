"""Managers of a pool: real ones that are killed, under a batch system that is made up, and a real Slurm."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from conftest import Site, permissions_obeyed, wait_until
from support.pools import PACKED, Pool, lines, ran
from support.testbed import LOGIN, Testbed
from vrm.ext.allocations.pool.journal import PoolJournal
from vrm.results.jobs import read_jobs

ROOT = Path(__file__).resolve().parents[3]

@pytest.fixture
def pool(site: Site) -> Pool:
    return Pool(site)


def test_two_allocations_do_a_queue_once(pool: Pool) -> None:
    site = pool.site
    site.queue.write_text(lines(40, 5))
    started = pool.vrm("start", "-N", "1", "-t", "1:00:00", "--max-allocations", "2")
    assert started.returncode == 0, started.stderr
    assert "batch job 100" in started.stdout + started.stderr and "batch job 101" in started.stdout + started.stderr
    script = (pool.fake / "job.0").read_text()
    assert f"pool work --pool {pool.place}" in script and "#SBATCH --nodes=1" in script and "--exclusive" in script
    assert [each["state"] for each in pool.status()["allocations"]] == ["asked for", "asked for"]
    pool.hold(range(40))
    both = [pool.allocation(100), pool.allocation(101)]
    wait_until(lambda: len(ran(site, "log")) == 4, "both work")
    pool.let_go(range(40))
    for process in both:
        site.finish(process)
    assert ran(site) == {str(number): 1 for number in range(40)} == pool.rows()
    status = pool.status()
    assert status["ended"] == {"completed": 40} and status["waiting"] == 0
    assert {each["name"]: each["state"] for each in status["allocations"]} == {"slurm-100": "ended", "slurm-101": "ended"}
    assert "40 completed; 0 wait for an allocation" in pool.vrm("status").stdout
    done = pool.vrm("start")
    assert done.returncode == 0 and "no job of 40 waits" in done.stdout + done.stderr


def test_a_killed_manager_gives_its_jobs_back_when_the_batch_system_says_so(pool: Pool) -> None:
    """Two jobs of the first allocation run when it is killed. While Slurm calls it running, or says nothing, the second
    one leaves them alone; then it runs them."""
    site = pool.site
    site.queue.write_text(lines(12))
    (site.bin / "count.x.hold.2").touch()
    (site.bin / "count.x.hold.3").touch()
    assert pool.vrm("start", "-N", "1", "-t", "1:00:00", "--max-allocations", "1").returncode == 0
    first = pool.allocation(100)
    wait_until(lambda: {"0", "1"} <= ran(site).keys() and {"2", "3"} <= ran(site, "log").keys(), "two jobs run for long")
    pool.kill(first)
    status = pool.status()
    assert status["allocations"][0]["state"] == "running" and status["ended"] == {"completed": 2}
    second = pool.allocation(101)
    site.finish(second)  # it has done what nobody held
    held = PoolJournal(pool.place).look().held_by("slurm-100")
    assert {2, 3} <= {*held} and "2" not in ran(site) and sum(ran(site).values()) == 12 - len(set(held) - {0, 1})
    (pool.fake / "state.100").unlink()  # Slurm does not answer
    assert "no job" in (said := pool.vrm("start", "-N", "1", "-t", "1:00:00")).stdout + said.stderr
    pool.said(100, "NODE_FAIL")
    pool.vrm("start", "-N", "1", "-t", "1:00:00")
    assert PoolJournal(pool.place).look().held_by("slurm-100") == held
    pool.said(100, "CANCELLED")
    assert pool.status()["allocations"][0]["state"] == "died"
    for name in ("2", "3"):
        (site.bin / f"count.x.hold.{name}").unlink()
    third = pool.allocation(102)
    site.finish(third)
    assert "allocation slurm-100 has died" in site.said(third)
    assert ran(site) == {str(number): 1 for number in range(12)}
    assert pool.status()["ended"] == {"completed": 12}


def test_an_allocation_whose_jobs_were_given_away_starts_none_of_them(pool: Pool) -> None:
    """Slurm was wrong: the manager of a job that it calls cancelled goes on. It ends what it runs; a later manager in
    the same allocation starts nothing."""
    site = pool.site
    site.queue.write_text(lines(8))
    pool.hold(range(2))
    assert pool.vrm("start", "-N", "1", "-t", "1:00:00", "--max-allocations", "1").returncode == 0
    first = pool.allocation(100)
    wait_until(lambda: len(ran(site, "log")) == 2, "two jobs run")
    pool.said(100, "CANCELLED")
    pool.vrm("start")
    wait_until(lambda: first.poll() is not None, "it ends")
    assert "the pool has given the jobs of this allocation to others" in site.said(first)
    assert PoolJournal(pool.place).look().held_by("slurm-100") == []
    before = ran(site, "log")
    again = site.start("-c", str(site.root / "vrm.slurm-100.yaml"), waits=False)
    site.finish(again)
    assert "given the jobs of this allocation to others" in site.said(again) and ran(site, "log") == before
    pool.let_go(range(2))
    site.finish(pool.allocation(101))
    assert ran(site) == {str(number): 1 for number in range(8)}


def test_a_manager_goes_on_where_the_one_before_in_its_allocation_was_killed(pool: Pool) -> None:
    """Killed again and again, at any moment; its jobs live on, and the next manager follows them. Twenty of the thirty
    wait for another one."""
    site = pool.site
    site.queue.write_text("".join(f"count.x 1 60 0 args={at}" + f" after={at - 10}" * (at >= 10) + "\n" for at in range(30)))
    assert pool.vrm("start", "-N", "1", "-t", "1:00:00", "--max-allocations", "1").returncode == 0
    for number in range(1, 6):
        process = pool.allocation(100)
        wait_until(lambda: sum(ran(site).values()) >= 4 * number or process.poll() is not None, "some jobs end")
        process.kill()
        process.wait()
    site.finish(pool.allocation(100))
    order = (site.bin / "count.x.ended").read_text().split()
    assert all(order.index(str(at)) > order.index(str(at - 10)) for at in range(10, 30))
    assert ran(site) == {str(number): 1 for number in range(30)} and pool.status()["ended"] == {"completed": 30}


def test_another_allocation_is_asked_for_when_the_time_is_up_and_jobs_are_left(pool: Pool) -> None:
    """The batch system warns of the end; not when somebody ends the allocation, and not where nothing was done."""
    site = pool.site
    site.queue.write_text(lines(6))
    pool.hold(range(6))
    assert pool.vrm("start", "-N", "1", "-t", "1:00:00", "--max-allocations", "1").returncode == 0

    def asked() -> int:
        return len([*pool.fake.glob("job.*")])

    def working(job: int, number: int) -> subprocess.Popen[str]:
        process = pool.allocation(job)
        wait_until(lambda: len(ran(site, "log")) >= number, "jobs run")
        return process

    cancelled = working(100, 2)
    cancelled.terminate()
    site.finish(cancelled)
    assert asked() == 1 and pool.status()["waiting"] == 6
    assert pool.vrm("start", "-N", "1", "-t", "1:00:00").returncode == 0 and asked() == 2
    started = ran(site, "log")
    warned = pool.allocation(101)
    wait_until(lambda: sum((ran(site, "log") - started).values()) == 2, "two jobs run")
    warned.send_signal(signal.SIGUSR1)
    wait_until(lambda: "the batch system's warning" in site.said(warned), "it is warned")
    pool.let_go(range(6))
    site.finish(warned)
    assert asked() == 3 and pool.status()["waiting"] == 4 == 6 - sum(ran(site).values())
    site.finish(pool.allocation(102))
    assert ran(site) == {str(number): 1 for number in range(6)} and asked() == 3


def test_what_an_allocation_has_no_time_for_stays(pool: Pool) -> None:
    """A job of an hour does not start in the last minutes of an allocation."""
    site = pool.site
    site.queue.write_text("count.x 1 20 0 args=short\ncount.x 1 3000 0 args=long\n")
    site.config(Nodes="auto", Cores=2, Launcher={"Kind": "direct"}, **PACKED, End={"Margin": 5})
    assert pool.vrm("start", "-N", "1", "-t", "1:00:00", "--max-allocations", "1").returncode == 0
    site.finish(pool.allocation(100, 120))
    assert ran(site) == {"short": 1} and pool.status()["waiting"] == 1
    site.finish(pool.allocation(101, 120))
    assert ran(site) == {"short": 1} and "No allocation is left" in pool.vrm("status").stdout
    assert pool.vrm("start", "-N", "1", "-t", "1:00:00").returncode == 0
    site.finish(pool.allocation(102))
    assert ran(site) == {"short": 1, "long": 1}


def test_an_allocation_stays_only_for_a_job_that_can_start_in_it(pool: Pool) -> None:
    """The node is reserved until after the allocation's end: the job that is added has the time and the room, and does
    not start. The allocation ends, and leaves it to the next one."""
    site = pool.site
    site.queue.write_text(lines(1))
    pool.hold(range(1))
    assert pool.vrm("start", "-N", "1", "-t", "1:00:00", "--max-allocations", "1").returncode == 0
    working = pool.allocation(100)
    wait_until(lambda: ran(site, "log")["0"], "a job runs")
    reserved = site.run("-c", str(site.root / "vrm.slurm-100.yaml"), "reserve", "-N", "1", "--from", "+70s", "--to", "+2h")
    assert reserved.returncode == 0, reserved.stderr
    site.queue.write_text("count.x 1 600 0 args=more\n")
    assert pool.vrm("add", str(site.queue)).returncode == 0
    pool.let_go(range(1))
    site.finish(working)
    assert ran(site) == {"0": 1} and pool.status()["waiting"] == 1
    site.finish(pool.allocation(101))
    assert ran(site) == {"0": 1, "more": 1}


def test_stopping_and_going_on(pool: Pool) -> None:
    site = pool.site
    site.queue.write_text(lines(6))
    pool.hold(range(2))
    assert pool.vrm("start", "-N", "1", "-t", "1:00:00", "--max-allocations", "2").returncode == 0
    first = pool.allocation(100)
    wait_until(lambda: len(ran(site, "log")) == 2, "two jobs run")
    stopped = pool.vrm("stop", "--now")
    assert "1 allocations end now, 1 requests were taken back" in stopped.stdout + stopped.stderr
    assert (pool.fake / "cancelled").read_text() == "101\n"
    site.finish(first)
    status = pool.status()
    assert status["stopped"] and status["waiting"] + sum(status["ended"].values()) == 6
    late = pool.allocation(103)
    assert "nothing to do" in site.finish(late)
    pool.let_go(range(2))
    site.queue.write_text("count.x 1 60 0 args=6\n")
    assert "1 jobs added" in (added := pool.vrm("add", str(site.queue))).stdout + added.stderr
    assert pool.vrm("start", "-N", "1", "-t", "1:00:00").returncode == 0
    site.finish(pool.allocation(104))
    assert set(ran(site)) >= {"2", "3", "4", "5", "6"} and max(ran(site).values()) == 1
    assert sum(pool.status()["ended"].values()) == 7


@pytest.mark.parametrize("queue, words, said", [
    ("count.x 9 60\n", ["-N", "1", "-t", "1:00:00"], "no allocation can run job 0: it needs 9 cores, and 1 nodes have 2"),
    ("count.x 1 3600\n", ["-N", "1", "-t", "1:00:00"], "no allocation can run job 0: its limit is 3600 s, vrm needs 60 s more"),
    ("count.x one\n", ["-N", "1", "-t", "1:00:00"], "queue:1: "),
    ("count.x 1 60\n", ["-N", "1"], "-N and -t belong together"),
    ("count.x 1 60\n", ["gone"], "gone is not there"),
    ("count.x 1 60\n", [], "no plan: squeue has failed (status 1)")])
def test_what_cannot_be_started(pool: Pool, queue: str, words: list[str], said: str) -> None:
    pool.site.queue.write_text(queue)
    done = pool.vrm("start", *words)
    assert done.returncode == 2 and said in done.stderr, done.stderr
    assert not list(pool.fake.iterdir())


def test_a_batch_system_that_refuses_and_allocations_that_never_start(pool: Pool) -> None:
    site = pool.site
    site.queue.write_text(lines(2))
    assert "there is no pool" in pool.vrm("status").stderr
    (pool.fake / "refuse").write_text("sbatch: error: no account\nsbatch: error: QOSMaxSubmitJobPerUserLimit\n")
    refused = pool.vrm("start", "-N", "1", "-t", "1:00:00")
    assert refused.returncode == 2 and (
        "request: sbatch: error: no account; sbatch: error: QOSMaxSubmitJobPerUserLimit. 0 of 3 allocations") in refused.stderr
    assert "the last request that has failed: the batch system has not taken" in pool.vrm("status").stdout
    (pool.fake / "refuse").unlink()
    assert pool.vrm("start", "-N", "1", "-t", "1:00:00", "--max-allocations", "1").returncode == 0
    again = pool.vrm("start")
    assert "1 allocations run or wait" in again.stdout + again.stderr
    for reason, said in (("Resources", ""), ("PartitionNodeLimit", ": it waits: PartitionNodeLimit\n")):
        pool.said(99 + len(list(pool.fake.glob("job.*"))), "PENDING", f" Reason={reason}")
        assert said in (shown := pool.vrm("status").stdout) and ("it waits" in shown) is bool(said), shown
    pool.said(99 + len(list(pool.fake.glob("job.*"))), "CANCELLED")  # it ended before it had begun
    assert "asked for 1 node" in (more := pool.vrm("start", "-N", "1", "-t", "1:00:00")).stdout + more.stderr
    assert "is a pool already" in pool.vrm("start", str(site.queue)).stderr
    assert "this is no batch job" in pool.vrm("work").stderr


def test_a_pool_that_cannot_be_written(pool: Pool) -> None:
    """An allocation says so once, takes nothing, and goes on when it can be written again."""
    site = pool.site
    site.queue.write_text(lines(4))
    assert pool.vrm("start", "-N", "1", "-t", "1:00:00", "--max-allocations", "1").returncode == 0
    pool.place.chmod(0o500)
    (pool.place / "slurm-100").parent.chmod(0o700)
    (pool.place / "entries").chmod(0o500)
    try:
        with permissions_obeyed():
            site.finish(pool.allocation(100))
    finally:
        (pool.place / "entries").chmod(0o700)
    site.finish(pool.allocation(101))
    assert ran(site) == {str(number): 1 for number in range(4)}


# --------------------------------------------------------------------------- under a real Slurm


@pytest.mark.testbed
def test_three_allocations_of_a_real_slurm(testbed: Testbed, tmp_path: Path) -> None:
    """Sixty jobs, the last of which waits for all others; one of the allocations is cancelled while its jobs run. Each job completes once; what the
    cancelled one interrupted runs again elsewhere."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "count.x").write_text('#!/bin/sh\nsleep 0.5\necho "$1 $SLURM_JOB_ID" >>"$0.ended"\n')
    (programs / "count.x").chmod(0o755)
    (tmp_path / "queue").write_text("".join(f"count.x 1 60 0 args={at}\n" for at in range(59)) +
                                    "count.x 1 60 0 args=59 after=0-58\n")
    config = tmp_path / "vrm.yaml"
    config.write_text(yaml.safe_dump({
        "Applications": {"Path": "bin", "Queue": "queue"}, "Log": "log", "Grace": 1,
        "Launcher": {"AllowRoot": True, "CheckBindings": "ignore"}}))

    def on_login(*words: Any) -> str:
        done = testbed.exec(LOGIN, [*map(str, words)], env={"PYTHONPATH": str(ROOT)}, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        return str(done.stdout) + str(done.stderr)

    def pool(*words: Any) -> str:
        return on_login(sys.executable, "-m", "vrm.cli", "-c", config, "pool", *words)

    def ended() -> list[list[str]]:
        path = programs / "count.x.ended"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    try:
        said = pool("start", "-N", 1, "-t", "00:10:00", "--max-allocations", 3, "--cores", 2)
        jobs = [line.rsplit(" ", 1)[1] for line in said.splitlines() if "batch job" in line]
        assert len(jobs) == 3
        wait_until(lambda: {job for _, job in ended()} == {*jobs}, "all three work", limit=120)
        on_login("scancel", jobs[1])
        wait_until(lambda: not on_login("squeue", "-h", "-o", "%i").split(), "all allocations end", limit=180)
        if json.loads(pool("status", "--json"))["waiting"]:
            pool("start", "-N", 1, "-t", "00:10:00", "--cores", 2)
            wait_until(lambda: not on_login("squeue", "-h", "-o", "%i").split(), "the rest is done", limit=120)
        status = json.loads(pool("status", "--json"))
        assert status["ended"] == {"completed": 60} and status["waiting"] == 0
        completed = [(row.args, path.parent.name.removeprefix("slurm-"))
                     for path in (tmp_path / "log" / "pool").glob("slurm-*/jobs.csv")
                     for row in read_jobs(path) if row.status == "completed"]
        assert Counter(number for number, _ in completed) == {str(number): 1 for number in range(60)}
        assert ended()[-1][0] == "59"  # it waited for all others
        runs = Counter(map(tuple, ended()))
        assert max(runs.values()) == 1 and {*completed} <= runs.keys()
        # Two at most wrote their lines, and were interrupted before their ends were known.
        interrupted = runs.keys() - {*completed}
        assert len(interrupted) <= 2 and {job for _, job in interrupted} <= {jobs[1]}
    finally:
        on_login("scancel", "--user=root")


