"""A pool under PBS from end to end: a made-up PBS keeps its queue in a folder, and starts the scripts that it was given."""

from __future__ import annotations

import json

import pytest

from conftest import Site, wait_until
from support.pools import Pool, lines, ran
from vrm.ext.allocations.pool.journal import PoolJournal


@pytest.fixture
def pool(site: Site) -> Pool:
    return Pool(site, "pbs")


def test_a_plan_by_what_pbs_says(pool: Pool) -> None:
    pool.free_site(4)
    pool.site.queue.write_text(lines(20, 600))
    done = pool.site.run("plan", "--json", "--members", "10")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["partition"]["nodes"] == 4 and found["partition"]["cores"] == 2 and found["jobs"] == 20
    assert found["requests"][0]["type"][-1].startswith(("qsub ", "for p in "))


def test_twenty_jobs_in_three_allocations_of_which_one_dies(pool: Pool) -> None:
    """Each job has one record that says completed, and ran to its end once."""
    site = pool.site
    site.queue.write_text(lines(20))
    pool.hold(range(20))
    done = pool.vrm("start", "-N", "1", "-t", "1:00:00", "--max-allocations", "3")
    assert done.returncode == 0 and "batch job 102" in done.stdout + done.stderr, done.stderr
    assert "#PBS -l select=1:ncpus=2" in pool.script(0) and "#PBS -l walltime=01:00:00" in pool.script(0)
    for job in (100, 101, 102):
        pool.said(job, "Q")
    assert [each["state"] for each in pool.status()["allocations"]] == 3 * ["asked for"]
    first, second = pool.script_begins(100), pool.script_begins(101)
    wait_until(lambda: len(ran(site, "log")) == 4, "two jobs run in each")
    journal = PoolJournal(pool.place)
    lost = journal.look().held_by("pbs-100")
    refused = pool.vrm("gone", "pbs-100")
    assert refused.returncode == 2 and "end it first (qdel 100)" in refused.stderr
    pool.kill(first, 100)
    pool.vrm("start")
    assert journal.look().held_by("pbs-100") == lost  # PBS calls the job a running one still
    pool.said(100, "F")
    said = pool.vrm("start")
    assert "allocation pbs-100 has died" in said.stdout + said.stderr
    assert not journal.look().held_by("pbs-100")
    third = pool.script_begins(102)
    pool.let_go(range(20))
    for process in (second, third):
        site.finish(process)
    assert pool.rows() == {str(number): 1 for number in range(20)}
    assert pool.status()["ended"] == {"completed": 20}
    assert ran(site) == {str(number): 1 for number in range(20)}


def test_requests_are_taken_back_by_qdel(pool: Pool) -> None:
    site = pool.site
    site.queue.write_text(lines(2))
    pool.hold(range(2))
    assert pool.vrm("start", "-N", "1", "-t", "1:00:00", "--max-allocations", "3").returncode == 0
    working = pool.script_begins(100)
    wait_until(lambda: len(ran(site, "log")) == 2, "both run")
    cancelled = pool.fake / "cancelled"
    wait_until(lambda: cancelled.exists() and sorted(cancelled.read_text().split()) == ["101", "102"], "both are cancelled")
    late = pool.script_begins(101)  # it begins nevertheless
    site.finish(late)
    assert not (pool.place / "pbs-101").exists()
    done = pool.vrm("stop", "--now")
    assert "1 allocations end now" in done.stdout + done.stderr
    site.finish(working)
    assert not PoolJournal(pool.place).look().held_by("pbs-100") and not ran(site)
