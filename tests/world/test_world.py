"""Tests a sample of worlds, with fixed seeds: they pass, a seed makes the same world on any Python and with any order of sets,
and defects are found. `python3 tasks.py world` runs other seeds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("greenlet")

RUN = Path(__file__).with_name("run.py")


def world(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run `run.py` with these arguments and environment variables."""
    return subprocess.run([sys.executable, str(RUN), *words], capture_output=True, text=True, timeout=600, check=False,
                          env={**os.environ, **env})


def told(done: subprocess.CompletedProcess[str]) -> list[Any]:
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


@pytest.mark.slow
def test_worlds_pass() -> None:
    done = world("--first", "1", "--seeds", "60", "--minutes", "5", "--jobs", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\n0 failed" in done.stdout and "(0 crashes" not in done.stdout


@pytest.mark.slow
def test_worlds_pass_whose_users_call_through_the_socket() -> None:
    done = world("--first", "795900000000", "--seeds", "200", "--minutes", "5", "--jobs", "1", "--kind", "socket")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\n0 failed" in done.stdout and "socket 29" in done.stdout


@pytest.mark.slow
def test_those_that_have_failed_pass() -> None:
    done = world("--regressions")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_seed_makes_the_same_world_again() -> None:
    """Independent of the worlds before it and of the order of sets."""
    one, other = (world("--digests", "40,41,42,8681,8716", PYTHONHASHSEED="1"), world("--digests", "8716,42,40,8681,41", PYTHONHASHSEED="2"))
    assert one.returncode == other.returncode == 0, one.stderr + other.stderr
    found = json.loads(one.stdout)
    assert found == json.loads(other.stdout) and len(found) == len(set(found.values())) == 5


@pytest.mark.slow
@pytest.mark.parametrize("mutation", ["the journal is not synced", "a torn line of the journal is not cut",
                                      "records that failed to be written are dropped"])
def test_a_defect_is_found(mutation: str) -> None:
    done = world("--mutation", mutation, "--first", "1", "--seeds", "2000", "--minutes", "5", "--stop", "--worker", "1,1")
    assert any("failed" in each for each in told(done)), done.stdout[-2000:] + done.stderr


def test_mutations_are_of_what_vrm_has() -> None:
    """Each text occurs exactly once: otherwise the defect could not be inserted."""
    from world.mutations import ALL
    root = Path(__file__).parents[2]
    for mutation in ALL:
        for module, old, _ in mutation.changes:
            source = root / (module.replace(".", "/") + ".py")
            assert source.exists() and source.read_text(encoding="utf-8").count(old) == 1, (mutation.name, module, old)


def test_what_worlds_find_seldom_has_a_plain_test() -> None:
    """Such a defect has a test in ELSEWHERE, which `python3 tasks.py world --mutations` runs with the defect."""
    from world.mutations import ALL, ELSEWHERE, recorded
    known = {mutation.name for mutation in ALL}
    assert {*recorded(), *ELSEWHERE} == known
    for name, (_, test) in ELSEWHERE.items():
        file, _, function = test.partition("::")
        assert f"\ndef {function}(" in (Path(__file__).parents[2] / file).read_text(encoding="utf-8"), name


def test_kills_come_between_the_other_faults() -> None:
    """Since DENSE_SINCE: each fault at its own time."""
    from world.plan import DENSE_SINCE, Fault, between, dense, plan_of_emulated
    assert between([Fault(5, "clock"), Fault(5, "full")], [Fault(2, "manager"), Fault(3, "both"), Fault(4, "machine")]) == (
        Fault(2, "manager"), Fault(3, "clock"), Fault(1, "both"), Fault(4, "machine"), Fault(1, "full"))
    for first, least, most in ((DENSE_SINCE - 100, 25, 45), (DENSE_SINCE, 55, 80)):
        plans = [plan_of_emulated(seed) for seed in range(first, first + 100)]
        assert least < sum(len(dense(plan).faults) == len(plan.faults) + 100 for plan in plans) < most


def test_a_failure_is_shrunk() -> None:
    """Only the relevant faults and lines remain."""
    from world.aims import plan_of
    from world.shrinking import shrink
    plan = next(plan for plan in map(plan_of, range(100)) if len(plan.faults) > 20 and len(plan.lines) > 3)
    at = [sum(fault.gap for fault in plan.faults[:number + 1]) for number in range(len(plan.faults))]
    smaller = shrink(plan, lambda tried: {at[3], at[17]} <= {
        sum(fault.gap for fault in tried.faults[:number + 1]) for number in range(len(tried.faults))} and plan.lines[2] in tried.lines)
    assert len(smaller.faults) == 2 and smaller.lines == (plan.lines[2],) and all(act.value == "all" for act in smaller.acts)
