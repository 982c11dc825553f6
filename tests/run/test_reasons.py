"""Why jobs wait, in words, under every policy; and that finding it is bounded work."""

from __future__ import annotations

import re
from typing import Any

import pytest

from vrm.model import Cluster, Dependency, Heatmap, Job, JobState
from vrm.model.measured.heatmap import Throughput
from vrm.model.job import Details, Request
from vrm.run.job_book import JobBook
from vrm.run.reasons import MOST, STOPPING, WaitReasons, parked
from vrm.scheduling import Scheduler, make_backfilling, make_ordering, make_policy

NOW = 1_700_000_000.0


def why(cluster: Cluster, policy: str, backfilling: str, running: list[Job], waiting: list[Job],
        heatmap: Heatmap | None = None, phase: str = "running", interval: float = 0.0
        ) -> dict[int, str]:
    """The reasons of the waiting jobs when the others have been started; times are `T`."""
    scheduler = Scheduler(make_ordering("FCFS"), make_backfilling(backfilling),
                          make_policy(policy, cluster, heatmap), interval)
    queue = scheduler.new_queue()
    for job in running:
        queue.add(job)
        assert scheduler.step(NOW, queue, cluster) or interval, job
    for job in waiting:
        queue.add(job)
    scheduler.step(NOW, queue, cluster)
    reasons = WaitReasons(NOW + 1, queue.in_order(NOW + 1), cluster, scheduler,
                          scheduler.reservations(NOW + 1, queue, cluster), phase)
    return {job.id: re.sub(r"\d\d:\d\d:\d\d", "T", reasons.of(job)) for job in queue.in_order(NOW)}


def job(number: int, procs: int, estimate: float = 100.0, app: str = "a.x", **more: Any) -> Job:
    return Job(number, app, procs, estimate, NOW + number, **more)


@pytest.mark.parametrize("policy, backfilling, running, waiting, expected", [
    ("compact", "none", [job(0, 4)], [job(1, 8), job(2, 4)],
     {1: "needs 2 empty nodes, 1 empty; next T", 2: "behind job 1"}),
    ("compact", "easy", [job(0, 4)], [job(1, 8), job(2, 4, 500.0), job(3, 8, 500.0)],
     {1: "needs 2 empty nodes, 1 empty; starts by T", 2: "would delay job 1",
      3: "needs 2 empty nodes, 1 empty"}),
    ("compact", "conservative", [job(0, 8)], [job(1, 8), job(2, 4)],
     {1: "needs 2 empty nodes, 0 empty; starts by T", 2: "needs 1 empty node, 0 empty; starts by T"}),
    ("pack", "none", [job(0, 6)], [job(1, 3)], {1: "needs 3 free cores, 2 free; next T"}),
    ("spare", "none", [job(0, 2)], [job(1, 4)], {1: "needs 2 empty nodes, 1 empty; next T"}),
    ("compact", "none", [job(0, 4)], [job(1, 4, request=Request.of(4, nodelist=["n0"]))], {1: "waits for node n0; next T"}),
    ("pack", "easy", [job(0, 6)], [job(1, 2, request=Request.of(2, nodelist=["n0", "n1"]))],
     {1: "waits for node n0; starts by T"}),
    ("compact", "none", [job(0, 4)], [job(1, 4, request=Request.of(4, exclude=["n1"]))],
     {1: "needs 1 empty node, 0 empty (without the nodes of exclude); next T"}),
    ("strip", "none", [job(0, 4), job(1, 2)], [job(2, 4)],
     {2: "needs half of 2 nodes, 1 free; next T"}),
])
def test_what_a_job_lacks(policy: str, backfilling: str, running: list[Job], waiting: list[Job],
                          expected: dict[int, str]) -> None:
    assert why(Cluster.regular(2, 2, 2), policy, backfilling, running, waiting) == expected


def test_ticks_and_a_manager_that_stops_are_reasons() -> None:
    assert why(Cluster.regular(2, 2, 2), "compact", "none", [job(0, 4)], [job(1, 4)],
               interval=10.0) == {1: "decided every 10 s"}
    assert set(why(Cluster.regular(2, 2, 2), "compact", "none", [job(0, 8)], [job(1, 4)],
                   phase="stopping").values()) == {STOPPING}


def test_jobs_that_are_parked() -> None:
    scheduler = Scheduler(make_ordering("FCFS"), make_backfilling("none"),
                          make_policy("compact", Cluster.regular(1, 1, 1)))
    book = JobBook(scheduler.new_queue())
    for number in range(7):
        book.enter(job(number, 1))
    for number, details in enumerate((
            Details(held=True), Details((Dependency(range(1, 4)),)),
            Details((Dependency(range(0, 7, 2)), Dependency.on(5))), Details()), 7):
        book.enter(job(number, 1), details)
    book.queue.remove(2)
    book.ended(2, JobState.COMPLETED, 0.0)
    book.fit(NOW, NOW + 10)
    assert [parked(book.entries[number], book.entries, 0.0) for number in range(7, 11)] == [
        "held", "after 1,3", "after 0,4-6", "would not end before the allocation does"]


def test_the_policy_is_asked_a_bounded_number_of_times() -> None:
    cluster = Cluster.regular(64, 2, 4)
    scheduler = Scheduler(make_ordering("FCFS"), make_backfilling("easy"),
                          make_policy("compact", cluster))
    queue = scheduler.new_queue()
    for number in range(2000):
        queue.add(job(number, 512 - number % 500))
    scheduler.step(NOW, queue, cluster)
    asked = []
    for name in ("fits", "place"):
        ask = getattr(scheduler.policy, name)
        setattr(scheduler.policy, name, lambda *of, ask=ask: asked.append(of) or ask(*of))
    reasons = WaitReasons(NOW, queue.in_order(NOW), cluster, scheduler, {})
    said = [reasons.of(each) for each in queue.in_order(NOW)]
    assert len(said) == 1999 and all(said)
    assert len(reasons._known) == MOST and len(asked) <= 3 * MOST


def test_a_partner_that_the_heatmap_refuses_is_named_as_the_reason() -> None:
    heatmap = Heatmap({}, Throughput({("bt.D.4", "cg.D.4"): 0.8, ("cg.D.4", "bt.D.4"): 0.8}), 1.0)
    assert why(Cluster.regular(2, 2, 2), "strip", "none", [job(0, 4, app="bt.D.x")],
               [job(1, 4, app="cg.D.x")], heatmap) == {
        1: "needs half of 2 nodes; on 2 with free cores the jobs there are bad partners for it (heatmap); next T"}
