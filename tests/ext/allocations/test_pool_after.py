"""Jobs of a pool that wait for others, and that have deadlines."""

from __future__ import annotations

import pytest

from conftest import Site, wait_until
from support.pools import Pool, lines, ran
from vrm.ext.allocations.pool.journal import PoolJournal


@pytest.fixture
def pool(site: Site) -> Pool:
    made = Pool(site)
    site.program("count.x", 'echo "$1" >>"$0.log"; while [ -e "$0.hold.$1" ]; do sleep 0.02; done; echo "$1" >>"$0.ended"; '
                 '[ "$1" != fails ]\n')
    return made


def started(pool: Pool, queue: str, allocations: int = 1) -> None:
    pool.site.queue.write_text(queue)
    done = pool.vrm("start", "-N", "1", "-t", "1:00:00", "--max-allocations", str(allocations))
    assert done.returncode == 0, done.stderr


def order(site: Site) -> list[str]:
    return (site.bin / "count.x.ended").read_text().split()


def test_one_allocation_runs_jobs_in_the_order_in_which_they_wait(pool: Pool) -> None:
    site = pool.site
    started(pool, "count.x 1 60 0 args=fails name=first\ncount.x 1 60 0 args=never after=first\n"
            "count.x 1 60 0 args=still after=any:first\ncount.x 1 60 0 args=instead after=fail:0,2\n"
            "count.x 1 60 0 args=neither after=1\n")
    site.finish(pool.allocation(100))
    assert order(site) == ["fails", "still", "instead"]
    status = pool.status()
    assert status["ended"] == {"failed": 1, "completed": 2, "cancelled": 2} and (status["later"], status["unmet"]) == (0, 2)
    assert "cancelled, since a job that they wait for has not ended as wanted: 2" in pool.vrm("status").stdout
    assert "no job of 5 waits" in (said := pool.vrm("start")).stdout + said.stderr


def test_a_job_runs_elsewhere_than_the_one_that_it_waits_for(pool: Pool) -> None:
    """The first allocation is full, and has one that waits: the second one, which has a free core, takes what has become
    ready."""
    site = pool.site
    held = ("0", "1", "next", "idle")
    for name in held:
        (site.bin / f"count.x.hold.{name}").touch()
    started(pool, lines(2) + "count.x 1 60 0 args=next\ncount.x 1 60 0 args=last after=0\ncount.x 1 60 0 args=idle\n", 2)
    first = pool.allocation(100)
    wait_until(lambda: len(PoolJournal(pool.place).look().held_by("slurm-100")) == 3, "it is full")
    second = pool.allocation(101)
    wait_until(lambda: ran(site, "log")["idle"], "the other one works")
    assert "waiting for other jobs of the pool: 1" in pool.vrm("status").stdout
    (site.bin / "count.x.hold.0").unlink()
    wait_until(lambda: ran(site)["last"], "it has run")
    assert 3 in PoolJournal(pool.place).look().held_by("slurm-101")
    for name in held[1:]:
        (site.bin / f"count.x.hold.{name}").unlink()
    for process in (first, second):
        site.finish(process)
    assert ran(site) == dict.fromkeys((*held, "last"), 1) and pool.status()["ended"] == {"completed": 5}


def test_a_manager_that_is_killed_before_it_says_that_a_job_has_ended(pool: Pool) -> None:
    """The next one in the allocation says so, and the job that waits runs."""
    site = pool.site
    (site.bin / "count.x.hold.0").touch()
    started(pool, lines(1) + "count.x 1 60 0 args=last after=0\n")
    first = pool.allocation(100)
    wait_until(lambda: ran(site, "log")["0"], "it runs")
    first.kill()
    first.wait()
    (site.bin / "count.x.hold.0").unlink()
    wait_until(lambda: ran(site)["0"], "it ends while nobody looks")
    site.finish(pool.allocation(100))
    assert order(site) == ["0", "last"]


def test_an_allocation_that_died_leaves_what_its_jobs_made_possible(pool: Pool) -> None:
    site = pool.site
    (site.bin / "count.x.hold.1").touch()
    started(pool, lines(2) + "count.x 1 60 0 args=last after=0-1\n")
    first = pool.allocation(100)
    wait_until(lambda: ran(site)["0"] and ran(site, "log")["1"], "one has ended, one runs")
    pool.kill(first)
    pool.said(100, "CANCELLED")
    (site.bin / "count.x.hold.1").unlink()
    assert pool.vrm("start").returncode == 0
    site.finish(pool.allocation(101))
    assert order(site) == ["0", "1", "last"] and pool.status()["ended"] == {"completed": 3}


def test_deadlines_are_counted_from_the_submission_to_the_pool(pool: Pool) -> None:
    """One is over before an allocation begins: the job is cancelled. The other one's is far away."""
    site = pool.site
    started(pool, "count.x 1 60 0 args=late deadline=61\ncount.x 1 60 0 args=soon deadline=2h\n")
    entries = sorted((pool.place / "entries").iterdir())
    text = entries[0].read_text()
    at = PoolJournal(pool.place).look().added[0]
    entries[0].write_text(text.replace(str(at), str(at - 3600)))
    site.finish(pool.allocation(100))
    assert ran(site, "log") == {"soon": 1} and pool.status()["ended"] == {"completed": 1, "cancelled": 1}
