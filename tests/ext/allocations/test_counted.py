"""Replays by counts give what whole replays give, job for job."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from typing import Any
from collections.abc import Sequence

import pytest
from hypothesis import given, settings, strategies as st

from vrm.ext.allocations.shapes import RequestLimits
from vrm.ext.allocations.outer_site import RequestedAllocation, OuterSite, of_snapshot
from vrm.ext.forecast.counted import CountedRun, NotCounted
from vrm.ext.forecast.frozen import FrozenRun, of_jobs
from vrm.ext.forecast.replay import replay
from vrm.ext.forecast.site.snapshot import SiteJob, SiteNode, Snapshot
from vrm.model import Cluster, Dependency, Job, Node
from vrm.model.job import ANY
from vrm.model.rules import Rules
from vrm.scheduling.compose import compose
from vrm.workload.submission import Submission

LIMITS = (600.0, 1800.0, 3600.0, 7200.0)


def site(draw: random.Random) -> OuterSite:
    """Nodes of one core, some down, with jobs that run (some beyond their limits), wait, wait for others, or are held."""
    nodes = draw.choice([4, 8, 16, 40])
    free, jobs = draw.sample(range(nodes), nodes), list[SiteJob]()
    while free and draw.random() < 0.9:
        wall, places = draw.choice(LIMITS), [free.pop() for _ in range(min(len(free), draw.choice([1, 1, 2, 3, 8])))]
        jobs.append(SiteJob(f"r{len(jobs)}", wall, len(places), len(places), 1, user=draw.choice("ab"), queue="p", submit=-9e3,
                            start=-draw.uniform(0, 1.1) * wall, places=tuple((node, None) for node in sorted(places))))
    for at in range(draw.randint(0, 30)):
        width = draw.randint(1, nodes)
        jobs.append(SiteJob(f"w{at}", draw.choice(LIMITS), width, width, 1, user=draw.choice("ab"), queue="p", submit=10.0 * at - 1e3,
                            rank=draw.randint(0, 50) if nodes == 8 else -at, stuck="held" if draw.random() < 0.05 else "",
                            after=(draw.choice(jobs).key,) if jobs and draw.random() < 0.1 else ()))
    down = set(free[:len(free) // 2]) if draw.random() < 0.3 else set()
    there = Snapshot(float(draw.randint(0, 10 ** 6)), [SiteNode(f"n{at}", 1, {"p": 1}, at not in down) for at in range(nodes)], jobs)
    return of_snapshot(there, RequestLimits("p", nodes, 1, nodes, 1, 1e6), "me", (), 4)


@pytest.mark.parametrize("seed", range(40))
def test_when_allocations_are_given(seed: int) -> None:
    draw = random.Random(seed)
    there = site(draw)
    width = len(there.frozen.state.cluster.nodes) // 2
    for member in range(3):
        asks = [RequestedAllocation(draw.randint(1, width), limit, limit * draw.random(), draw.randrange(at) if at and draw.random() < 0.5 else None)
                for at in range(draw.randint(1, 6)) for limit in [draw.choice(LIMITS)]]
        counted, there._counted = there.given(asks, member), None
        assert counted == there.given(asks, member)
        there._counted = CountedRun(there.frozen)


def queue(jobs: Sequence[Submission], **rules: Any) -> FrozenRun:
    cluster = Cluster.regular(3, 1, 4)
    frozen = of_jobs((), compose(Rules(**{"policy": "pack", **rules}), cluster), cluster)
    return replace(frozen, later=tuple(jobs))


@pytest.mark.parametrize("seed", range(40))
def test_a_queue_in_an_allocation(seed: int) -> None:
    """Jobs that outlive their limits, are ended there, or would outlive the allocation."""
    draw = random.Random(seed)
    jobs = [Submission(Job(at, "a", draw.randint(1, 12), draw.choice(LIMITS), submit=50.0 * max(0, at - 12)), 0.0,
                       (Dependency.on(draw.randrange(at), ANY),) if at and draw.random() < 0.2 else ()) for at in range(30)]
    takes = {one.job.id: one.job.walltime * draw.uniform(0.1, 1.3) for one in jobs}
    frozen = replace(queue(jobs), kill=draw.random() < 0.5, fit=draw.random() < 0.7,
                     end=draw.choice([float("inf"), 5000.0, 15000.0]))
    whole = replay(frozen, lambda job, ran: takes[job.id])
    run = CountedRun(frozen)
    drawn = run.draw(lambda job, ran: takes[job.id])
    assert drawn.go([run.coming(one._replace(run=takes[one.job.id])) for one in frozen.later]) == {
        job_id: planned[:2] for job_id, planned in whole.items()}


def test_features_in_turns_that_no_job_needs() -> None:
    """Such nodes are not counted by their features, and need not be."""
    cluster = Cluster([Node(f"n{at}", (4,), features=frozenset("ab"[at % 2])) for at in range(4)])
    run = CountedRun(of_jobs((), compose(Rules(policy="pack"), cluster), cluster))
    assert run.coming(Submission(Job(0, "a", 9, 5.0), 5.0)).job.size == 9
    with pytest.raises(NotCounted):
        run.coming(Submission(Job(1, "a", 4, 5.0, features=frozenset("a")), 5.0))


@pytest.mark.parametrize("rules", [{"backfill": "conservative"}, {"algorithm": "WFP3"}, {"backfill_order": "sjf"}, {"interval": 10.0}])
def test_rules_under_which_counts_do_not_say_all(rules: dict[str, Any]) -> None:
    with pytest.raises(NotCounted):
        CountedRun(queue((), **rules)).coming(Submission(Job(0, "a", 2, 9.0), 9.0))


@pytest.mark.parametrize("one", [
    Submission(Job(1, "a", 2, 9.0, exclusive=True), 9.0), Submission(Job(1, "a", 99, 9.0), 9.0),
    Submission(Job(1, "a", 2, 9.0), 9.0, (Dependency.on(0),)), Submission(Job(1, "a", 2, 9.0, priority=3), 9.0),
    Submission(Job(1, "a", 2, 9.0), 9.0, held=True)])
def test_jobs_of_which_counts_do_not_say_all(one: Submission) -> None:
    with pytest.raises(NotCounted):
        CountedRun(queue(())).coming(one)


def partitioned(draw: random.Random) -> tuple[OuterSite, int]:
    """Nodes in two to four partitions that share nodes or have their own, in any order, with jobs that run and wait there; and
    the number of nodes of partition p."""
    nodes, names, share = draw.choice([4, 8, 16]), "pqrs"[:draw.randint(2, 4)], draw.random() < 0.7
    of_node = [draw.sample(names, draw.randint(1, 2) if share else 1) for _ in range(nodes)]
    of_node[0] = ["p"]
    free, jobs = set(range(nodes)), list[SiteJob]()
    for at in range(draw.randint(0, 40)):
        name, wall = draw.choice(names), draw.choice(LIMITS)
        width = draw.randint(1, max(1, sum(name in each for each in of_node)))
        places = sorted(node for node in free if name in of_node[node])[:width] if at < 8 else []
        free -= set(places)
        jobs.append(SiteJob(f"j{at}", wall, width, width, 1, user=draw.choice("ab"), queue=name, submit=10.0 * at - 1e4,
                            rank=draw.randint(0, 9), start=-draw.uniform(0, 1.1) * wall if places else None,
                            places=tuple((node, None) for node in places)))
    width = sum("p" in each for each in of_node)
    there = of_snapshot(Snapshot(float(draw.randint(0, 10 ** 6)), [SiteNode(f"n{at}", 1, dict.fromkeys(each, 1), draw.random() < 0.9 or not at)
                                                                    for at, each in enumerate(of_node)], jobs),
                        RequestLimits("p", width, 1, width, 1, 1e6), "me", (), 4)
    arrivals = there.later_arrivals
    there.later_arrivals = lambda member: itertools.islice(arrivals(member), 20)
    return there, width


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10 ** 9))
def test_partitions_with_nodes_of_their_own_and_with_the_same_nodes(seed: int) -> None:
    draw = random.Random(seed)
    there, width = partitioned(draw)
    asks = [RequestedAllocation(draw.randint(1, width), limit, limit * draw.random(), draw.randrange(at) if at and draw.random() < 0.5 else None)
            for at in range(draw.randint(1, 5)) for limit in [draw.choice(LIMITS)]]
    counted = there.given(asks, seed % 4)
    assert there._counted is not None
    there._counted = None
    assert counted == there.given(asks, seed % 4)
