"""Agents stop and continue the processes of a job: ranks alone where there are some, and what comes later, too."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from collections.abc import Callable, Iterator

import psutil
import pytest
from conftest import wait_until

from vrm.ext.lending.nodes import pausing
from vrm.ext.lending.nodes.pausing import Pauser, state_of, take
from vrm.live.runner import proc

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a process of job 7."""
    begun: list[subprocess.Popen[bytes]] = []

    def one(*argv: str, **env: str) -> subprocess.Popen[bytes]:
        begun.append(subprocess.Popen(argv or ["sleep", "100"], env={
            **os.environ, "VRM_RUN": f"pausing{os.getpid()}", "VRM_JOB_ID": "7", **env}))
        return begun[-1]

    yield one
    for each in begun:
        each.kill()
        each.wait()


def stopped(*processes: subprocess.Popen[bytes]) -> list[bool]:
    """Which of them stand still; all are there."""
    states = [state_of(each.pid) for each in processes]
    assert b"" not in states and b"Z" not in states
    return [state == b"T" for state in states]


def order(epoch: int, stop: bool, **more: object) -> dict[str, object]:
    return {"number": 1, "run": f"pausing{os.getpid()}", "job": 7, "epoch": epoch, "stop": stop, "variables": ["RANK"],
            "patience": 2.0, **more}


@pytest.fixture(autouse=True)
def nothing_before() -> Iterator[None]:
    pausing.forget(f"pausing{os.getpid()}", None)
    yield
    pausing.forget(f"pausing{os.getpid()}", 7)
    assert not Pauser.last


def look(found: Pauser) -> bool:
    """Look once; whether the order is done."""
    for process, environment in proc.marked():
        if all(mark in environment for mark in found.marks):
            found.see(process, environment)
    return found.looked(time.monotonic())


def done(found: Pauser) -> dict[str, object]:
    """Look until the order is done."""
    while not look(found):
        pass
    return found.answer()


def test_ranks_are_stopped_and_their_launcher_is_not(start: Start) -> None:
    launcher, ranks = start(), [start(RANK=str(rank)) for rank in range(2)]
    found = take(order(1, True), time.monotonic())
    assert done(found) == {"number": 1, "job": 7, "epoch": 1, "clear": True, "error": ""}
    assert stopped(launcher, *ranks) == [False, True, True]
    assert done(take(order(2, False), time.monotonic()))["clear"]
    assert stopped(launcher, *ranks) == [False] * 3


SPAWNS = """
import os
os.posix_spawn("/bin/sleep", ["sleep", "100"], os.environ, file_actions=[(os.POSIX_SPAWN_OPEN, 0, "{}", os.O_RDONLY, 0)])
os.wait()
"""
"""A program that waits in vfork for its child, which waits in turn until somebody writes to a pipe."""


def test_a_program_that_is_just_making_a_process_stops_too(start: Start, tmp_path: Path) -> None:
    """Were the child stopped first, its parent would wait for it, and never be seen to stand still."""
    os.mkfifo(tmp_path / "pipe")
    parent = start(sys.executable, "-c", SPAWNS.format(tmp_path / "pipe"), RANK="0")
    wait_until(lambda: state_of(parent.pid) == b"D" and psutil.Process(parent.pid).children(), "it waits in vfork")
    child, = psutil.Process(parent.pid).children()
    found = take(order(1, True), time.monotonic())
    look(found)
    assert state_of(child.pid) == b"S"
    with open(tmp_path / "pipe", "w"):
        assert done(found)["clear"]
    assert state_of(parent.pid) == state_of(child.pid) == b"T"
    child.kill()


def test_without_ranks_all_processes_are_stopped(start: Start) -> None:
    both = start(), start()
    done(take(order(1, True, variables=[]), time.monotonic()))
    assert stopped(*both) == [True, True]
    pausing.pause_here(order(2, False))
    assert stopped(*both) == [False, False]


def test_an_older_order_is_not_carried_out(start: Start) -> None:
    rank = start(RANK="0")
    done(take(order(5, True), time.monotonic()))
    assert done(take(order(4, False), time.monotonic()))["epoch"] == 5
    assert stopped(rank) == [True]


def test_what_comes_later_is_stopped_until_another_order_comes(start: Start) -> None:
    first = start(RANK="0")
    found = take(order(1, True), time.monotonic())
    done(found)
    guard, = found.then(time.monotonic())
    second = start(RANK="1")

    def guarded() -> bool:
        for process, environment in proc.marked():
            if all(mark in environment for mark in guard.marks):
                guard.see(process, environment)
        return guard.looked(time.monotonic())

    wait_until(lambda: not guarded() and stopped(first, second) == [True, True], "the second one is stopped, too")
    assert guard.answer() is None and guard.due > time.monotonic()
    done(take(order(2, False), time.monotonic()))
    assert guarded(), "its order is not the last one any more"
    assert stopped(first, second) == [False, False]


def test_a_process_that_has_gone_is_left_alone(start: Start) -> None:
    process = start(RANK="0")
    stat = proc.read_stat(process.pid)
    assert stat is not None and not pausing.send((process.pid, stat[1] + 1), signal.SIGSTOP), "another one has its number"
    assert stopped(process) == [False] and pausing.send((process.pid, stat[1]), 0)
    process.kill()
    process.wait()
    assert state_of(process.pid) == b"" and not pausing.send((process.pid, stat[1]), signal.SIGSTOP)
