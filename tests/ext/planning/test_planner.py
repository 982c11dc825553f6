"""Plans in a process of its own: what it answers, how it ends, and a live run with it."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
from conftest import Site, descendants, wait_until

from vrm.ext.planning.planner import LONGEST, PATIENCE, Planner
from vrm.ext.planning.planning_problem import Effort, PlanningProblem, PlanningTask, solve

pytest.importorskip("ortools")

PROBLEM = PlanningProblem((4, 2), ((3, (1, 1)),), tuple(
    PlanningTask(5 + 3 * at % 7, (1 + at % 3, at % 2), 1000 + 500 * at) for at in range(12)), 200)


def answered(planner: Planner, now: float = 0.0) -> Any:
    found: list[Any] = [None]

    def there() -> bool:
        found[0] = planner.answer(now)
        return found[0] is not None

    wait_until(there, "an answer")
    return found[0]


def test_the_process_answers_as_the_solver_would_and_again() -> None:
    planner = Planner()
    try:
        planner.ask(PROBLEM, Effort(0.05), 0.0)
        assert planner.answer(0.0) is None  # it has hardly begun
        assert answered(planner) == solve(PROBLEM, Effort(0.05, wall=LONGEST))
        process = planner.process
        planner.ask(PROBLEM, Effort(0.05, warm=False), 1.0)
        found = answered(planner, 1.0)
        assert len(found) == 12 and planner.process is process
    finally:
        planner.close()
    assert planner.answer(2.0) == []


def test_a_process_that_was_killed_gives_no_answer_and_another_one_the_next() -> None:
    planner = Planner()
    try:
        planner.ask(PROBLEM, Effort(0.05), 0.0)
        process = planner.process
        assert process is not None
        process.kill()
        process.wait()
        assert answered(planner) == []
        planner.ask(PROBLEM, Effort(0.05), 5.0)
        assert len(answered(planner, 5.0)) == 12
        planner.ask(PROBLEM, Effort(0.05), 6.0)
        assert planner.answer(6.0 + PATIENCE + 1) == [] and planner.process is None
    finally:
        planner.close()


def planners(manager: int) -> list[psutil.Process]:
    return descendants(manager, "vrm.ext.planning.planner")


@pytest.mark.slow
def test_a_live_run_plans_and_leaves_no_process_behind(site: Site) -> None:
    site.config(Nodes=2, Sockets=1, Cores=4, Emulate=True, Launcher={"Kind": "direct"},
                Scheduling={"Algorithm": "PRB", "Backfilling": "cp budget=0.02"},
                Allocation={"Policy": "pack"},
                Queues={"debug": {"ExpectedWait": "1m"}, "long": {"ExpectedWait": "1h"}})
    gate = site.root / "gate"
    site.program("hold", f"while [ ! -e {gate} ]; do sleep 0.05; done")
    site.program("work", 'sleep "$1"')
    site.lines("hold 3 600 0 nodes=1", *(f"work {2 + number % 2} {5 + number} 0 args=0.2 nodes=1 "
                                 f"queue={'debug' if number % 3 else 'long'}" for number in range(12)))
    manager = site.start("--fresh", "--once")
    wait_until(lambda: bool(planners(manager.pid)), "a plan is asked for")
    child = planners(manager.pid)[0]
    os.kill(manager.pid, signal.SIGKILL)  # nothing of a plan needs to be known again
    manager.wait()
    wait_until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE,
               "the planner ends with its manager")
    again = site.start("--once")
    wait_until(lambda: len(site.rows()) >= 12 if (site.log / "jobs.csv").exists() else False,
               "the others have run")
    left = planners(again.pid)
    gate.write_text("")
    said = site.finish(again)
    assert {row.status for row in site.rows().values()} == {"completed"}, said
    assert len(site.rows()) == 13
    assert not any(each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in left)


def test_without_or_tools_the_configuration_says_what_to_type(site: Site, tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text(
        "import importlib.util as util\n"
        "found = util.find_spec\n"
        "util.find_spec = lambda name, *more: None if name == 'ortools' else found(name, *more)\n")
    site.config(Scheduling={"Backfilling": "cp"}, Launcher={"Kind": "direct"})
    path = os.pathsep.join(filter(None, [str(hidden), site.env.get("PYTHONPATH", "")]))
    done = site.run("check", PYTHONPATH=path)
    text = done.stdout + done.stderr
    assert "Scheduling.Backfilling: backfilling cp needs OR-tools: pip install 'ortools>=9.11,<10'" in text
