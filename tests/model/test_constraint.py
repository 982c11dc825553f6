"""Constraints on starts: what is counted, against plain loops; one that changes by itself; and ones that are wrong."""

from __future__ import annotations

import contextlib
from typing import Any
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vrm.api import Machine, Rules, simulate
from vrm.model import Cluster, Job
from vrm.model.constraint import Constraint, CountedConstraint
from vrm.scheduling.placement import constrained
from vrm.scheduling.registry import PolicyError, Registry
from vrm.workload.submission import Submission

TOTAL = 5
BACKFILLINGS = ["none", "easy", "conservative", "conservative-recomputed", "2", "3-kept", "list"]


class Tokens(CountedConstraint):
    """Jobs take as many tokens as their priority says."""

    name = "tokens"

    def __init__(self, value: Any, cluster: Cluster) -> None:
        super().__init__(TOTAL)

    def amount(self, job: Job) -> int:
        return job.priority


class Morning(Constraint):
    """Nothing starts before 50 s."""

    def __init__(self, value: Any, cluster: Cluster) -> None:
        self.begin = 50.0

    def allows(self, job: Job, placement: Any, begin: float, end: float) -> bool:
        return begin >= self.begin

    def boundaries(self, after: float) -> list[float]:
        return [self.begin] if after < self.begin else []


@contextlib.contextmanager
def in_force(constraint: type[Any]) -> Iterator[None]:
    """A constraint in the place of the cap on power, whose key rules have."""
    before, constrained.CONSTRAINTS = constrained.CONSTRAINTS, Registry("constraint")
    try:
        constrained.CONSTRAINTS.register("PowerCap")(constraint)
        yield
    finally:
        constrained.CONSTRAINTS = before


def run(jobs: list[tuple[int, ...]], backfill: str) -> list[Any]:
    """The jobs of a simulation on two nodes of two cores; each is given as ranks, seconds, tokens and submission."""
    submissions = [Submission(Job(at, "a", ranks, float(seconds), float(submit), priority=tokens), float(seconds))
                   for at, (ranks, seconds, tokens, submit) in enumerate(sorted(jobs, key=lambda each: each[3]))]
    outcome = simulate(submissions, Machine.of(2, 1, 2), Rules(backfill=backfill, policy="pack", power_cap="1"))
    tokens = {one.job.id: one.job.priority for one in submissions}
    return [(row.start, row.end, tokens[row.id], row.status) for row in outcome.jobs]


@pytest.mark.parametrize("backfill", BACKFILLINGS)
@settings(max_examples=25, deadline=None)
@given(jobs=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 30), st.integers(0, TOTAL), st.integers(0, 40)),
                     min_size=1, max_size=12))
def test_at_no_moment_is_more_taken_than_there_is(backfill: str, jobs: list[tuple[int, ...]]) -> None:
    with in_force(Tokens):
        rows = run(jobs, backfill)
    assert len(rows) == len(jobs) and {status for *_, status in rows} == {"completed"}
    for now, *_ in rows:
        assert sum(tokens for start, end, tokens, _ in rows if start <= now < end) <= TOTAL


@pytest.mark.parametrize("backfill", BACKFILLINGS)
def test_jobs_start_when_a_constraint_changes_by_itself(backfill: str) -> None:
    with in_force(Morning):
        assert [start for start, *_ in run([(4, 10, 0, 0), (1, 10, 0, 0), (1, 10, 0, 55)], backfill)] == [50, 60, 60]


def test_a_job_that_takes_more_than_there_is_is_refused_with_the_reason() -> None:
    cluster = Cluster.regular(1, 1, 1)
    tokens = Tokens("", cluster)
    assert tokens.never(Job(0, "a", 1, 1.0, priority=TOTAL), None) == ""
    assert tokens.never(Job(0, "a", 1, 1.0, priority=TOTAL + 1), None) == "it takes 6 tokens, there are 5"


def test_what_is_no_constraint_and_what_fails_in_one_is_a_policy_error() -> None:
    class Fails(Tokens):
        """A constraint whose program is wrong."""

        def allows(self, job: Job, placement: Any, begin: float, end: float) -> bool:
            return bool(1 / 0)

    with in_force(int), pytest.raises(PolicyError, match="is not a subclass of vrm.model.constraint.Constraint"):
        run([(1, 1, 1, 0)], "easy")
    with in_force(Fails), pytest.raises(PolicyError, match="`PowerCap` failed at .*test_constraint.py:[0-9]+: ZeroDiv"):
        run([(1, 1, 1, 0)], "easy")
