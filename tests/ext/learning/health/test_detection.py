"""The tests that find bad nodes: on series without a fault they find none, and a bad node after few runs."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable

import pytest

from vrm.ext.learning.health.findings import sentence
from vrm.ext.learning.health.detection import BAD, SUSPECT, judge
from vrm.ext.learning.health.trials import NodeTrial, at_fault, merged

NODES = 8


def series(seed: int, runs: int, noise: float = 0.05, slow: str = "", speed: float = 0.8, failing: str = "", often: float = 1 / 3,
           elsewhere: float = 0.0, width: int = 1, neighbour: float = 0.0, odd: float = 0.0) -> list[NodeTrial]:
    """Runs of two programs on 8 nodes, `runs` on each in the mean; on the node `slow` at this speed, on `failing` a part of them
    fails. `neighbour`: how often a run takes half more, `odd`: 1.5 to 4 times as long."""
    rng, found = random.Random(seed), []
    names = [f"n{number}" for number in range(NODES)]
    for job in range(runs * NODES // width):
        place = frozenset(rng.sample(names, width))
        app = rng.randrange(2)
        seconds = 60 * (app + 1) * math.exp(rng.gauss(0, noise)) / (speed if slow in place else 1.0)
        seconds *= 1.5 if rng.random() < neighbour else 1.0
        seconds *= rng.uniform(1.5, 4) if rng.random() < odd else 1.0
        fails = rng.random() < (often if failing in place else elsewhere)
        found.append(NodeTrial("r", job, (f"a{app}", "", 4, 1), place, 10.0 * job, seconds, "failed" if fails else "completed"))
    return found


def looks(trials: list[NodeTrial]) -> Iterable[list[NodeTrial]]:
    """What is known after each fourth job."""
    return (trials[:number] for number in range(16, len(trials) + 1, 4))


def runs_until(trials: list[NodeTrial], node: str, evidence: float) -> int:
    """How many runs a node has had when it is found; 99: never."""
    for number in range(1, len(trials) + 1):
        if node in trials[number - 1].nodes and any(
                finding.node == node and finding.evidence >= evidence for finding in judge(trials[:number])):
            return sum(node in trial.nodes for trial in trials[:number])
    return 99


SOUND = [{"noise": 0.03}, {"noise": 0.1}, {"noise": 0.2}, {"neighbour": 0.3}, {"odd": 0.03}, {"elsewhere": 0.01}, {"elsewhere": 0.1},
         {"width": 3}]


@pytest.mark.slow
def test_of_200_series_without_a_fault_at_most_one_has_a_bad_node() -> None:
    wrong = [(seed, finding) for seed in range(200) for known in looks(series(seed, 20, **SOUND[seed % len(SOUND)]))  # type: ignore[arg-type]
             for finding in judge(known) if finding.bad]
    assert len({seed for seed, _ in wrong}) <= 1, wrong


@pytest.mark.parametrize("more", SOUND)
def test_series_without_a_fault(more: dict[str, float]) -> None:
    assert not [finding for seed in range(4) for finding in judge(series(100 + seed, 30, **more)) if finding.bad]  # type: ignore[arg-type]


@pytest.mark.parametrize("noise, often", [(0.02, 19), (0.05, 19), (0.08, 17)])
def test_a_node_at_80_percent_is_found_within_8_runs(noise: float, often: int) -> None:
    found = [runs_until(series(seed, 14, noise, slow="n3"), "n3", SUSPECT) for seed in range(20)]
    assert sum(runs <= 8 for runs in found) >= often, found
    if noise <= 0.05:
        assert sum(runs_until(series(seed, 14, noise, slow="n3"), "n3", BAD) <= 8 for seed in range(20)) >= often


def test_a_node_that_fails_every_third_job_is_found_within_8_runs() -> None:
    for nodes in (4, 8):
        trials = []
        for job in range(14 * nodes):
            fails = job % nodes == 2 and job // nodes % 3 == 2
            trials.append(NodeTrial("r", job, ("a", "", 4, 1), frozenset({f"n{job % nodes}"}), float(job), 10.0,
                                "failed" if fails else "completed"))
        assert runs_until(trials, "n2", SUSPECT) == 6


def test_of_nodes_that_fail_one_in_three_by_chance_most_are_found_within_8_runs() -> None:
    """With a probability of a third, one of five nodes fails at most one of 8 jobs, which shows nothing."""
    found = [runs_until(series(seed, 14, failing="n3"), "n3", SUSPECT) for seed in range(40)]
    assert sum(runs <= 8 for runs in found) >= 28, sorted(found)


def test_figures_of_a_finding() -> None:
    [slow] = judge(series(1, 10, 0.01, slow="n3"))
    assert (slow.node, slow.cause, slow.bad) == ("n3", "slow", True) and slow.speed == pytest.approx(0.8, abs=0.02)
    assert slow.others == {f"n{number}" for number in range(NODES)} - {"n3"}
    assert "at 80 % of the speed" in sentence(slow) and "by chance once in 10,000,000 runs" in sentence(slow)
    [failing] = judge(series(1, 20, failing="n5", often=0.5))
    assert (failing.node, failing.cause, failing.elsewhere_failed) == ("n5", "failing", 0)
    assert failing.failed == sum(trial.outcome == "failed" for trial in failing.trials) >= 4


def test_of_runs_on_several_nodes_only_the_slow_one_is_found() -> None:
    found = judge(series(3, 30, 0.03, slow="n6", width=3))
    assert [finding.node for finding in found] == ["n6"]


def test_nodes_that_always_work_together_are_not_told_apart() -> None:
    trials = [NodeTrial("r", job, ("a", "", 8, 1), frozenset({f"n{job % 4 * 2}", f"n{job % 4 * 2 + 1}"}), 10.0 * job,
                    60.0 / (0.7 if job % 4 == 1 else 1.0), "completed") for job in range(40)]
    [finding] = judge(trials)
    assert {finding.node, *finding.together} == {"n2", "n3"}


def test_what_happens_to_all_nodes_is_the_fault_of_none() -> None:
    """A new version of a program is slower, and for a while all jobs fail."""
    sound, later = series(5, 20), series(6, 20, elsewhere=0.0)
    for number, trial in enumerate(later):
        seconds, outcome = trial.seconds * 1.5, "failed" if number < 40 else "completed"
        later[number] = NodeTrial("r", 1000 + number, trial.key, trial.nodes, 2000.0 + trial.end, seconds, outcome)
    for known in looks([*sound, *later]):
        assert not [finding for finding in judge(known) if finding.bad]


def test_a_job_that_fails_everywhere_is_no_evidence() -> None:
    sound = series(7, 20)
    own = [NodeTrial("r", 5000, ("a0", "", 4, 1), frozenset({node}), 1600.0 + at, 5.0, "failed")
           for at, node in enumerate(("n1", "n2"))]
    assert at_fault(own) == {("r", 5000)}
    same = [NodeTrial("r", 5000, ("a0", "", 4, 1), frozenset({"n1"}), 1600.0 + at, 5.0, "failed") for at in range(6)]
    assert judge([*sound, *own]) == [] == judge([*sound, *same])


def test_a_program_that_has_completed_on_no_other_node_is_no_evidence() -> None:
    """The jobs of a workflow have names of their own, and the first node has most of them."""
    names = [NodeTrial("w", job, (f"task.{job}", "", 2, 1), frozenset({f"n{job % 5 // 4}"}), 10.0 * job, 5.0,
                       "failed" if job % 3 == 0 else "completed") for job in range(90)]
    here = [NodeTrial("x", job, ("broken", "", 2, 1), frozenset({"n2"}), 10.0 * job, 5.0, "failed") for job in range(20)]
    assert judge(names) == [] == judge([*series(7, 20), *here])


def test_a_node_that_was_repaired_begins_anew() -> None:
    trials = series(1, 20, 0.03, slow="n3")
    assert [finding.node for finding in judge(trials)] == ["n3"]
    assert judge(trials, cleared={"n3": trials[-1].end}) == []


def test_nodes_of_several_kinds_are_not_compared() -> None:
    trials = [NodeTrial("r", job, ("a", "", 4, 1), frozenset({f"n{job % 4}"}), float(job), 60.0 if job % 4 < 2 else 90.0, "completed")
              for job in range(80)]
    assert judge(trials)
    assert judge(trials, lambda node: node in ("n0", "n1")) == []
    assert judge(trials, lambda node: None) == []


def test_jobs_that_hang_until_their_limit_count_as_slow() -> None:
    trials = series(2, 10, 0.03)
    hung = [NodeTrial("r", 2000 + at, ("a0", "", 4, 1), frozenset({"n4"}), trials[-1].end + at, 600.0, "timeout") for at in range(4)]
    assert [(finding.node, finding.cause) for finding in judge(sorted([*trials, *hung], key=lambda trial: trial.end))] == [
        ("n4", "slow")]


def test_attempts_are_there_once() -> None:
    first = NodeTrial("r", 1, ("a", "", 1, 1), frozenset("n"), 10.0, 5.0, "failed")
    again = NodeTrial("r", 1, ("a", "", 1, 1), frozenset("m"), 30.0, 5.0, "failed")
    copy = NodeTrial("r", 1, ("a", "", 1, 1), frozenset("n"), 10.2, 0.0, "failed")
    assert merged([again, first, copy], 0.0, 10) == [first, again]
    assert merged([again, first], 10.0, 10) == [again] == merged([again, first], 0.0, 1)
