"""What a pool asks for: the plan for the jobs that are left, and requests that are taken back."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from conftest import Site, wait_until
from support.pools import Pool, lines, ran
from vrm import cli
from vrm.ext.allocations.pool import planning
from vrm.ext.allocations.pool.journal import PoolError, PoolJournal
from vrm.ext.allocations.pool.planning import PoolPlan
from vrm.ext.allocations.pool.state import PoolDemand, nodes_of


@pytest.fixture
def pool(site: Site) -> Pool:
    return Pool(site)


def journal(tmp_path: Path, **options: Any) -> PoolJournal:
    made = PoolJournal(tmp_path)
    made.create()
    for entry in ({"do": "start", "options": {"config": "vrm.yaml", "max_allocations": 4, **options}},
                  {"do": "add", "lines": ["x 1 9", "y 1 9", "z 1 9"]}):
        assert made.append(entry)
    return made


def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, more: int = 3, **options: Any) -> PoolDemand:
    """What is asked for where `vrm plan` is this shell script."""
    (tmp_path / "plan").write_text(f"#!/bin/sh\n{program}\n")
    (tmp_path / "plan").chmod(0o755)
    monkeypatch.setattr(planning.sys, "executable", str(tmp_path / "plan"))
    return PoolPlan(journal(tmp_path, **options), [0, 2], more, "slurm-7").wish(20.0)


def test_the_best_request_that_the_pool_may_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = json.dumps({"requests": [{"nodes": 8, "at_once": 2, "chain": 3, "seconds": 60.0},
                                    {"nodes": 2, "at_once": 1, "chain": 2, "seconds": 90.0}]})
    program = f"echo \"$@\" >{tmp_path}/words; cat <<'X'\n{said}\nX"
    found = plan(tmp_path / "", monkeypatch, program, partition="p", history="/h")
    assert found == PoolDemand(3, 8, 60.0, 18)
    words = (tmp_path / "words").read_text()
    assert f"plan {tmp_path}/todo.slurm-7 --json --at-once 1,2 --partition p --history /h" in words
    assert (tmp_path / "todo.slurm-7").read_text() == "x 1 9\nz 1 9\n"
    made = PoolJournal(tmp_path)
    made.look()
    for most, wish in (
            (31, PoolDemand(3, 8, 60.0, 9)), (17, PoolDemand(2, 8, 60.0, 9)), (7, PoolDemand(2, 2, 90.0, 9)), (3, PoolDemand(1, 2, 90.0, 9))):
        made.state.options["max_nodes"] = most
        assert PoolPlan(made, [0], 3).wish() == wish
    made.state.options["max_nodes"] = 1
    with pytest.raises(PoolError, match="--max-nodes leaves 1 nodes, and no request with as few runs all jobs"):
        PoolPlan(made, [0], 3).wish()
    for entry in ({"do": "join", "name": "slurm-7", "job": "7", "nodes": 5}, {"do": "ask", "number": 0, "nodes": 2, "seconds": 9.0},
                  {"do": "asked", "number": 0, "job": "8"}, {"do": "join", "name": "slurm-9", "job": "9", "nodes": 4}):
        made.append(entry)
    assert nodes_of(made.state) == 11 and nodes_of(made.state, but="slurm-7") == 6
    made.append({"do": "end", "name": "slurm-9", "done": {}})
    assert nodes_of(made.state) == 7
    del made.state.options["max_nodes"]
    PoolPlan(made, [0], 3).wish()
    assert "--without 8 " in (tmp_path / "words").read_text()  # the request that waits


@pytest.mark.parametrize("program, said", [
    ("echo 'vrm: no request can run job 0: it is too large' >&2; exit 2", "no plan: no request can run job 0: it is too large"),
    ("exit 3", "no plan: vrm plan says nothing")])
def test_a_plan_that_is_not_made_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, said: str) -> None:
    with pytest.raises(PoolError, match=said):
        plan(tmp_path, monkeypatch, program)


def test_a_plan_that_takes_too_long_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plan").write_text("#!/bin/sh\nexec sleep 600\n")
    (tmp_path / "plan").chmod(0o755)
    monkeypatch.setattr(planning.sys, "executable", str(tmp_path / "plan"))
    made = PoolPlan(journal(tmp_path), [0], 1)
    with pytest.raises(PoolError, match=r"it was not made within 0\.1 s"):
        made.wish(0.1)
    assert made._process.returncode == -signal.SIGKILL


# ------------------------------------------------------------------------------------- managers


def test_the_next_allocation_is_planned_for_the_jobs_that_are_left(pool: Pool) -> None:
    """Fifteen jobs of up to ten minutes: several nodes of two cores. The last two need one node for 15 minutes, whatever
    the first allocation was."""
    site = pool.site
    pool.free_site(8)
    site.queue.write_text("".join(f"count.x 1 600 0 args={name}\n" for name in 11 * ["early"] + 2 * ["hold"] + 2 * ["late"]))
    (site.bin / "count.x.hold.hold").touch()
    assert pool.vrm("start", "--max-allocations", "1").returncode == 0
    first = pool.script(0)
    assert "#SBATCH --nodes=1\n" not in first, first
    working = pool.allocation(100, 1200)
    wait_until(lambda: ran(site)["early"] == 11 and ran(site, "log")["hold"] == 2, "two jobs are left")
    working.send_signal(signal.SIGUSR1)
    wait_until(lambda: "the batch system's warning" in site.said(working), "it is warned")
    (site.bin / "count.x.hold.hold").unlink()
    site.finish(working)
    second = pool.script(1)
    assert "#SBATCH --nodes=1\n" in second and "#SBATCH --time=00:15:00\n" in second, second
    site.finish(pool.allocation(101))
    assert pool.status()["ended"] == {"completed": 15} and len([*pool.fake.glob("job.*")]) == 2


def test_without_a_plan_the_next_allocation_is_like_the_one_before(pool: Pool) -> None:
    site = pool.site
    pool.free_site(4)
    site.queue.write_text(lines(6, 600))
    pool.hold(range(6))
    assert pool.vrm("start", "--max-allocations", "1").returncode == 0
    working = pool.allocation(100)
    wait_until(lambda: len(ran(site, "log")) == 2, "two jobs run")
    (site.bin / "count.x.hold.0").unlink()
    wait_until(lambda: ran(site)["0"], "one has ended")
    (pool.fake / "squeue").unlink()
    working.send_signal(signal.SIGUSR1)
    wait_until(lambda: "the batch system's warning" in site.said(working), "it is warned")
    pool.let_go(range(1, 6))
    site.finish(working)
    said = site.said(working)
    assert "no plan: squeue has failed (status 1): squeue: error: Unable to contact slurm controller; another" in said, said
    assert pool.script(1).replace("request-1", "request-0") == pool.script(0)


def test_a_request_is_taken_back_when_no_job_waits(pool: Pool) -> None:
    """Two of three requests have not begun when the last job is taken. One of them begins nevertheless."""
    site = pool.site
    site.queue.write_text(lines(2))
    pool.hold(range(2))
    assert pool.vrm("start", "-N", "1", "-t", "1:00:00", "--max-allocations", "3").returncode == 0
    working = pool.allocation(100)
    cancelled = pool.fake / "cancelled"
    wait_until(lambda: cancelled.exists() and sorted(cancelled.read_text().split()) == ["101", "102"], "both are cancelled")
    assert [each["state"] for each in pool.status()["allocations"]] == ["running"]
    assert "nothing to do" in site.finish(pool.allocation(101))
    assert not (pool.place / "slurm-101").exists()
    site.queue.write_text("count.x 1 60 0 args=more\n")
    pool.vrm("add", str(site.queue))
    pool.let_go(range(2))
    site.finish(working)
    assert ran(site) == {"0": 1, "1": 1, "more": 1}


def test_what_is_too_many_for_the_jobs_that_wait_is_taken_back(pool: Pool) -> None:
    """Two of four jobs run, one is taken, and one waits in the pool: one of two requests is enough for it."""
    site = pool.site
    site.queue.write_text(lines(4))
    pool.hold(range(4))
    assert pool.vrm("start", "-N", "1", "-t", "1:00:00", "--max-allocations", "3").returncode == 0
    working = pool.allocation(100)
    cancelled = pool.fake / "cancelled"
    wait_until(cancelled.exists, "one is cancelled")
    wait_until(lambda: len(PoolJournal(pool.place).look().held_by("slurm-100")) == 3, "it has one that waits")
    assert cancelled.read_text().split() == ["102"] and len(PoolJournal(pool.place).look().free) == 1
    assert "nothing to do" in site.finish(pool.allocation(102)) and not (pool.place / "slurm-102").exists()
    other = pool.allocation(101)
    wait_until(lambda: PoolJournal(pool.place).look().held_by("slurm-101"), "the other one has the last job")
    pool.let_go(range(4))
    site.finish(working)
    site.finish(other)
    assert ran(site) == {str(number): 1 for number in range(4)} and cancelled.read_text().split() == ["102"]


def test_a_plan_that_needs_fewer_has_the_others_taken_back(pool: Pool) -> None:
    """An allocation ends, and twenty jobs of a minute are left: one of three requests of an hour is as much as they need."""
    site = pool.site
    pool.free_site(8)
    site.queue.write_text(lines(22))
    pool.hold(range(22))
    assert pool.vrm("start", "--max-allocations", "1").returncode == 0
    journal = PoolJournal(pool.place)
    for number, job in enumerate("123", 1):
        assert (journal.decide(lambda state, n=number: {"do": "ask", "number": n, "nodes": 1, "seconds": 3600.0})  # type: ignore[misc]
                and journal.decide(lambda state, n=number, job=job: {"do": "asked", "number": n, "job": job}))  # type: ignore[misc]
    assert journal.decide(lambda state: {"do": "start", "options": {**state.options, "max_allocations": 5}})
    assert journal.decide(lambda state: {"do": "wish", "number": 3, "nodes": 1, "seconds": 3600.0, "work": 22 * 60.0})
    working = pool.allocation(100, 1200)
    wait_until(lambda: len(ran(site, "log")) == 2, "two jobs run")
    (site.bin / "count.x.hold.0").unlink()
    wait_until(lambda: ran(site)["0"], "one has ended")
    working.send_signal(signal.SIGUSR1)
    wait_until(lambda: "the batch system's warning" in site.said(working), "it is warned")
    pool.let_go(range(1, 22))
    site.finish(working)
    said = site.said(working)
    assert "requests for allocations taken back: 2; the jobs that are left need fewer" in said, said
    assert sorted((pool.fake / "cancelled").read_text().split()) == ["2", "3"] and len([*pool.fake.glob("job.*")]) == 1


def test_starting_again_takes_back_what_the_plan_does_not_need(pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                              capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "plan").write_text(f"#!/bin/sh\ncat {tmp_path}/said\n")
    (tmp_path / "plan").chmod(0o755)
    monkeypatch.setattr(planning.sys, "executable", str(tmp_path / "plan"))
    monkeypatch.setenv("PATH", pool.site.env["PATH"])
    monkeypatch.setenv("FAKE", str(pool.fake))
    pool.site.queue.write_text(lines(6))

    def start(*words: str, at_once: int) -> str:
        (tmp_path / "said").write_text(json.dumps({"requests": [
            {"nodes": 2, "at_once": at_once, "chain": 1, "seconds": 600.0}]}))
        assert cli.main(["-c", str(pool.site.config_file), "pool", "start", *words]) == 0
        shown = capsys.readouterr()
        return shown.out + shown.err
    assert start("--max-allocations", "3", "--max-nodes", "7", at_once=3).count("asked for 2 nodes") == 3
    said = start(at_once=1)
    assert "taken back, since the plan needs fewer: batch job 102" in said and "are as many as the plan recommends" in said
    assert (pool.fake / "cancelled").read_text().split() == ["102", "101"]
    assert start(at_once=3).count("asked for 2 nodes") == 2
    assert "are as many as the plan recommends" in start("--max-nodes", "6", at_once=4)
