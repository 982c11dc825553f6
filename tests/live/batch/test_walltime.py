"""The end of the allocation: what may start, what is interrupted, and what the next `vrm` does."""

from __future__ import annotations

import math
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from conftest import Site, wait_until
from vrm.live.batch.walltime import SPARE, AllocationEnd
from vrm.live.manager.liverun import Clock

LOG = 'echo "$VRM_JOB_ID" >> "$(dirname "$0")/log"\n'
WAIT = LOG + 'while [ ! -e "$0.go" ]; do sleep 0.02; done\n'


@pytest.fixture
def site(site: Site) -> Site:
    """A site that starts its programs directly."""
    configure(site)
    return site


def configure(site: Site, **keys: Any) -> None:
    site.config(**{"Launcher": {"Kind": "direct"}, **keys})


def started(site: Site) -> list[int]:
    """The ids of the jobs in the order of their starts."""
    path = site.bin / "log"
    return [int(line) for line in path.read_text().splitlines()] if path.exists() else []


# When it is.


def test_the_moments_before_the_end() -> None:
    end = AllocationEnd(1000.0, margin=60.0, grace=10.0, start=500.0)
    assert (end.end, end.closing, end.end_jobs_at) == (1500.0, 1440.0, 1500.0 - 10 - SPARE)
    assert AllocationEnd(1000.0, 5.0, 10.0, 500.0).end_jobs_at == 1495.0  # never before the margin
    for never in (AllocationEnd("never", 60, 10, 0, lambda: 3.0), AllocationEnd("auto", 60, 10, 0)):
        assert not never.poll(0.0, wait=5) and never.closing == never.end_jobs_at == math.inf


def test_a_warning_without_a_known_end_leaves_the_margin() -> None:
    end = AllocationEnd("never", 60.0, 10.0, 0.0)
    end.warned(100.0)
    assert end.closing == 100.0 and end.end == 160.0
    known = AllocationEnd(1000.0, 60.0, 10.0, 0.0)
    known.warned(100.0)
    assert known.end == 1000.0


def test_the_batch_system_is_asked_again_and_never_waited_for() -> None:
    answers = [time.time() + 1000, time.time() + 1001, time.time() + 5000, None]
    slow = threading.Event()

    def ask() -> Any:
        slow.wait(30)
        return answers.pop(0)

    end = AllocationEnd("auto", 60.0, 10.0, 0.0, ask)
    assert not end.poll(0.0)  # asked, not answered
    assert end.end == math.inf
    slow.set()
    assert wait_until(lambda: end.poll(1.0), "the answer comes")
    assert end.end == pytest.approx(1001.0, abs=30)
    first = end.end
    assert not end.poll(59.0, wait=30) and len(answers) == 3  # not yet again
    end.poll(60.0, wait=30)
    assert len(answers) == 2
    end.poll(120.0, wait=30)
    assert end.end > first + 3000
    assert end.poll(180.0, wait=30) and end.end == math.inf


def test_a_batch_system_that_fails_is_told_and_asked_again() -> None:
    def ask() -> float:
        raise OSError("no such program")
    end = AllocationEnd("auto", 60.0, 10.0, 0.0, ask)
    assert not end.poll(0.0, wait=30) and "no such program" in end.trouble
    assert end.end == math.inf


def test_neither_the_clock_nor_the_end_jump_with_the_wall_clock(
        monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    before = clock()
    ends = time.time() + 1000
    end = AllocationEnd("auto", 60.0, 10.0, before, lambda: ends)
    end.poll(before, wait=30)
    known = end.end
    for jump in (-1e6, 1e6):
        wall = time.time() + jump
        monkeypatch.setattr(time, "time", lambda: wall)
        assert 0 <= clock() - before < 100
        assert end.end == known


# What it means.


def test_what_would_not_end_before_is_left_to_the_next_allocation(site: Site) -> None:
    configure(site, End={"At": "00:10:00", "Margin": 60})
    site.program("ok.x", LOG)
    site.lines("ok.x 1 541 0",         # 0 too long, and first
               "ok.x 1 30 0",          # 1
               "ok.x 1 9 0 after=0",   # 2 waits for it
               "ok.x 1 100 0")         # 3
    done = site.run()
    assert done.returncode == 1 and started(site) == [1, 3]
    assert done.stdout.count("#0 ok.x waits for another allocation") == 1
    assert "2 job(s) still wait" in done.stdout
    assert [job["late"] for job in site.state()["jobs"]] == [True, False]
    assert "| late " in site.run("-i", "queue").stdout
    configure(site)
    assert site.run().returncode == 0
    assert started(site) == [1, 3, 0, 2] and len(site.rows()) == 4


@pytest.mark.parametrize("backfilling", ["none", "easy", "conservative"])
def test_a_head_that_does_not_fit_blocks_nobody(site: Site, backfilling: str) -> None:
    configure(site, End={"At": 600, "Margin": 60}, Nodes=4, Cores=1, Emulate=True,
              Scheduling={"Backfilling": backfilling})
    first = site.program("first.x", WAIT)
    site.program("ok.x", LOG)
    site.lines("first.x 1 50 0", "ok.x 1 1000 0", "ok.x 1 60 0", "ok.x 1 300 0")
    manager = site.start()
    wait_until(lambda: sorted(started(site)) == [0, 2, 3], "all that fit have run")
    Path(f"{first}.go").touch()
    site.finish(manager)
    assert sorted(started(site)) == [0, 2, 3]


def test_without_fit_a_long_job_starts(site: Site) -> None:
    configure(site, End={"At": 600, "Fit": False})
    site.program("ok.x", LOG)
    site.lines("ok.x 1 10000 0")
    assert site.run().returncode == 0 and started(site) == [0]


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
def test_after_the_warning_nothing_starts_and_running_jobs_use_what_is_left(
        site: Site, number: int) -> None:
    configure(site, End={"Margin": 3600})
    first = site.program("first.x", WAIT)
    site.program("ok.x", LOG)
    site.lines("first.x 1 50 0", "ok.x 1 9 0")
    manager = site.start()
    wait_until(lambda: started(site) == [0], "the first job runs")
    manager.send_signal(number)
    wait_until(lambda: "batch system's warning: starting nothing more" in site.said(manager),
               "the warning is taken")
    assert site.running() == ["0"]
    Path(f"{first}.go").touch()
    assert "1 job(s) still wait" in site.finish(manager)
    assert site.statuses() == {0: "completed"}
    assert site.run().returncode == 0 and started(site) == [0, 1]


@pytest.mark.parametrize("interrupted", ["requeue", "mark"])
def test_running_jobs_are_ended_in_time_and_the_next_vrm_goes_on(
        site: Site, interrupted: str) -> None:
    configure(site, End={"Margin": 1}, Interrupted=interrupted)
    site.program("ok.x", LOG)
    long = site.program("long.x", "trap '' TERM\n" + WAIT)
    site.lines("ok.x 1 9 0", "long.x 1 50 0 retries=0", "ok.x 1 9 0")
    manager = site.start()
    wait_until(lambda: started(site) == [0, 1], "the second job runs")
    manager.send_signal(signal.SIGUSR1)
    site.finish(manager)
    site.nothing_left()
    again = interrupted == "requeue"
    assert site.statuses() == ({0: "completed"} if again else {0: "completed", 1: "cancelled"})
    Path(f"{long}.go").touch()
    site.run()
    assert started(site) == ([0, 1, 1, 2] if again else [0, 1, 2])
    assert site.statuses() == {0: "completed", 1: "completed" if again else "cancelled",
                               2: "completed"}


def test_the_end_comes_by_itself(site: Site) -> None:
    configure(site, End={"At": 10, "Margin": 0, "Fit": False}, Grace=0)
    site.program("long.x", WAIT)
    site.lines("long.x 1 50 0")
    said = site.finish(site.start())
    assert "the allocation ends soon" in said and "interrupted by the end" in said
    assert started(site) == [0] and site.statuses() == {}
    site.nothing_left()


def test_sigterm_after_the_warning_is_the_end_of_the_allocation(site: Site) -> None:
    configure(site, End={"Margin": 3600})
    site.program("long.x", WAIT)
    site.lines("long.x 1 50 0")
    manager = site.start()
    wait_until(lambda: started(site) == [0], "the job runs")
    manager.send_signal(signal.SIGUSR1)
    wait_until(lambda: "the batch system's warning" in site.said(manager),
               "the warning is taken")
    manager.send_signal(signal.SIGTERM)
    said = site.finish(manager)
    assert "waits again: interrupted" in said and site.statuses() == {}
    site.nothing_left()


def test_a_wall_clock_that_jumps_to_and_fro_disturbs_no_run(site: Site) -> None:
    """`vrm` with a `time.time` that is hours off, another way at every call."""
    configure(site, End={"At": 3600}, Walltime="kill")
    site.program("ok.x", LOG)
    site.lines(*["ok.x 1 30 0"] * 20)
    text = ("import itertools, sys, time\nreal = time.time\n"
            "jumps = itertools.cycle([0, 40000, -40000, 9e6, -9e6])\n"
            "time.time = lambda: real() + next(jumps)\n"
            "from vrm.cli import main\nsys.exit(main(sys.argv[1:]))\n")
    done = subprocess.run([sys.executable, "-c", text, "-c", str(site.config_file)],
                          cwd=site.root, env=site.env, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout
    assert started(site) == list(range(20))
    rows = [site.rows()[i] for i in range(20)]
    for row, after in zip(rows, rows[1:]):
        assert row.submit <= row.start <= row.end <= after.start
        assert row.end - row.start < 30
