"""Backfilling that passes over many jobs at once starts the same jobs on the same cores as one that looks at each."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vrm.model import Cluster, Heatmap, Job
from vrm.scheduling import Scheduler, make_backfilling, make_ordering, make_policy
from vrm.scheduling.orderings.candidates import Candidates

APPS = ["bt", "cg", "ep"]


def schedule(seed: int, order: str, policy: str, backfilling: str) -> list[tuple[float, int, object, bool]]:
    """Which jobs start when, and where, of more than a plain loop looks at."""
    draw = random.Random(seed)
    heatmap = Heatmap({a: {b: float(draw.randint(1, 8)) for b in APPS} for a in APPS})
    cluster = Cluster.regular(draw.randint(4, 12), 2, draw.choice([2, 4]))
    scheduler = Scheduler(make_ordering(order), make_backfilling(backfilling), make_policy(policy, cluster, heatmap))
    queue, started, number, now = scheduler.new_queue(), [], 0, 0.0

    def come(jobs: int) -> None:
        nonlocal number
        for _ in range(jobs):
            queue.add(Job(number, draw.choice(APPS) + ".B.x", draw.randint(1, 8), float(draw.randint(5, 60)), now,
                          draw.random() < 0.1))
            number += 1

    come(150)
    for _ in range(40):
        for start in scheduler.step(now, queue, cluster):
            started.append((now, start.job.id, start.booking.placement, start.backfilled))
        if not cluster.ends:
            break
        now, first = cluster.ends[0]
        cluster.release(first)
        come(draw.randint(0, 3))
    return started


@given(st.integers(0, 10 ** 6), st.sampled_from(["FCFS", "WFP3"]),
       st.sampled_from(["compact", "strip", "pack", "spare"]), st.sampled_from(["easy", "list"]))
def test_the_same_jobs_start_on_the_same_cores(seed: int, order: str, policy: str, backfilling: str) -> None:
    quick = schedule(seed, order, policy, backfilling)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Candidates, "narrow", lambda *_: None)
        assert repr(schedule(seed, order, policy, backfilling)) == repr(quick)


def test_jobs_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[bool, int] = {}
    given_out = Candidates.__next__
    for narrows in (True, False):
        count = 0

        def counted(candidates: Candidates) -> Job:
            nonlocal count
            job = given_out(candidates)
            count += 1
            return job

        monkeypatch.setattr(Candidates, "__next__", counted)
        if not narrows:
            monkeypatch.setattr(Candidates, "narrow", lambda *_: None)
        schedule(1, "FCFS", "strip", "easy")
        seen[narrows] = count
    assert seen[True] < seen[False] / 2, seen
