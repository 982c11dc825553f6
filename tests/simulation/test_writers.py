"""The lines of many jobs are written by a process of their own: the same ones, and its errors count."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any
from collections.abc import Iterator

import psutil
import pytest

from vrm.model import Job
from vrm.api import Machine, Recording, Rules, simulate
from vrm.simulation.results import BATCH, MANY
from vrm.simulation.writers import WriterProcess, JobLines
from vrm.workload.submission import Submission

JOBS = BATCH * (MANY + 3) + 7


def many(count: int = JOBS) -> Iterator[Submission]:
    """Jobs of all sizes, some with times that are not whole and one that is too large."""
    for number in range(count):
        yield Submission(Job(number, "a,b" if number % 7 else 'q"', 1 + number % 12,
                             50 + number % 3 * 0.25, number * 11.5), 20 + number % 37)
    yield Submission(Job(count, "x", 100, 1, count * 11.5), 1)


@pytest.fixture
def forks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The processes that were made; none of them is left."""
    made: list[int] = []
    fork = os.fork

    def noted() -> int:
        made.append(fork())
        return made[-1]

    monkeypatch.setattr(os, "fork", noted)
    yield made
    assert not set(made) & {child.pid for child in psutil.Process().children()}


@pytest.mark.parametrize("policy", ["compact", "strip", "pack"])
@pytest.mark.parametrize("places", ["full", "nodes", "none"])
@pytest.mark.slow
def test_the_same_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forks: list[int],
                        policy: str, places: str) -> None:
    for name, possible in (("aside", True), ("here", False)):
        monkeypatch.setattr(WriterProcess, "possible", staticmethod(lambda answer=possible: answer))
        simulate(many(), Machine.of(4, sockets=2, cores=4), Rules(policy=policy),
                 record=Recording(places=places, out=tmp_path / name))
        assert len(forks) == 1
    text = (tmp_path / "aside" / "jobs.csv").read_bytes()
    assert text == (tmp_path / "here" / "jobs.csv").read_bytes()
    assert text.count(b"\n") == JOBS + 2
    assert b",refused," in text


def test_few_jobs_need_no_process(tmp_path: Path, forks: list[int]) -> None:
    simulate(many(BATCH * MANY - 1), Machine.of(4, cores=4), record=Recording(out=tmp_path))
    assert not forks


def test_a_full_disk_is_told(forks: list[int]) -> None:
    with open("/dev/full", "w", 1 << 16) as full:
        aside = WriterProcess(Quiet([], full, "none"))
        with pytest.raises(OSError) as raised:
            for _ in range(1000):
                aside.write(["x" * 10_000])
            aside.flush()
    assert raised.value.errno == errno.ENOSPC


def test_a_run_that_fails_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                            forks: list[int]) -> None:
    monkeypatch.setattr(WriterProcess, "possible", staticmethod(lambda: True))

    def failing() -> Iterator[Submission]:
        for number in range(JOBS):
            yield Submission(Job(number, "a", 1, 50, number * 10), 10)
        raise RuntimeError("the workload ends badly")

    with pytest.raises(RuntimeError, match="ends badly"):
        simulate(failing(), Machine.of(4, cores=4), record=Recording(out=tmp_path))
    assert len(forks) == 1


class Quiet(JobLines):
    """Lines without a header."""

    def __init__(self, nodes: Any, out: Any, places: str) -> None:
        self._out = out
