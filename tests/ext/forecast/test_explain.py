"""Why jobs wait: each reason against a run in which it is gone."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any
from collections.abc import Sequence

import pytest
from hypothesis import given, settings, strategies as st

from vrm.ext.forecast.explain import Explainer, Reason
from vrm.ext.forecast.forecast import forecast
from vrm.ext.forecast.frozen import FrozenRun, of_jobs
from vrm.ext.forecast.replay import limits, replay
from vrm.model import Cluster, Dependency, Job, JobState
from vrm.model.measured.heatmap import Heatmap, Throughput
from vrm.model.job import PLAIN, Details, Request
from vrm.model.node import Node
from vrm.model.reservation import ReservationRequest
from vrm.model.queues import NO_QUEUES, Queues
from vrm.model.quantities import said, seconds_of
from vrm.run.entry import JobStateError
from vrm.scheduling import Scheduler, make_backfilling, make_ordering, make_policy


def frozen_of(jobs: Sequence[Job], nodes: int = 2, cores: int = 2, order: str = "FCFS",
              backfill: str = "easy", policy: str = "compact", heatmap: Any = None,
              queues: Queues = NO_QUEUES, end: float = math.inf,
              cluster: Any = None) -> FrozenRun:
    """These jobs, of which those run at 0 s that can."""
    cluster = cluster or Cluster.regular(nodes, 2 if policy == "strip" else 1, cores)
    scheduler = Scheduler(make_ordering(order), make_backfilling(backfill),
                          make_policy(policy, cluster, heatmap), queues=queues)
    frozen = of_jobs(jobs, scheduler, cluster, end=end)
    frozen.run.state.book.fit(0.0, end)
    run = frozen.run.copy()
    run.step(0.0)
    return replace(frozen, run=run)


def job(number: int, procs: int, limit: float, **more: Any) -> Job:
    return Job(number, more.pop("app", "a.x"), procs, limit, **more)


def why(frozen: FrozenRun, job_id: int, **more: Any) -> tuple[Reason, ...]:
    return Explainer(frozen, **more).of(job_id).reasons


def test_who_holds_what_it_needs_and_until_when() -> None:
    frozen = frozen_of([job(0, 2, 60), job(1, 2, 100), job(2, 4, 30)])
    reason, = why(frozen, 2)
    assert reason.kind == "cores" and reason.jobs == (1,)
    assert "needs 2 empty nodes, 0 empty; #1 a.x holds n1 until about" in reason.text
    assert (reason.start, reason.earlier) == (60, 40) and reason.what_if == "#1 was not there"


def test_who_is_ahead_and_by_which_values() -> None:
    jobs = [job(0, 4, 60), job(1, 4, 30), job(2, 4, 50)]
    shortest = frozen_of(jobs, order="SJF")  # 1 runs
    reasons = why(shortest, 0)
    assert [reason.kind for reason in reasons] == ["order", "cores"]
    assert reasons[0].text == "#2 a.x is ahead by SJF (-50 against -60)"
    assert (reasons[0].start, reasons[0].earlier) == (30, 50)
    came = frozen_of([job(0, 4, 60), job(1, 4, 30, submit=0), job(2, 4, 50, submit=5)])
    assert "was submitted first, at" in why(came, 2)[-1].text + why(came, 2)[0].text
    first = frozen_of([job(0, 4, 60, priority=9), job(1, 4, 30), job(2, 4, 50, priority=3)])
    assert any("#2 a.x is ahead by its priority (3 against 0)" in each.text for each in why(first, 1))


def test_the_reservation_in_the_way_and_the_estimate_that_would_not_delay_it() -> None:
    frozen = frozen_of([job(0, 2, 1000), job(1, 4, 500), job(2, 2, 3600)])
    reason = why(frozen, 2)[0]
    assert reason.kind == "reservation" and reason.jobs == (1,)
    assert "could delay #1 a.x" in reason.text and "at most 16m would start it at once" in reason.text
    assert reason.start == 0 and reason.what_if == "its estimate were 16m" and reason.checked
    limit = seconds_of("16m")
    assert replay(frozen.with_walltimes({2: limit}), limits)[2].start == 0
    assert replay(frozen.with_walltimes({2: 1001.0}), limits)[2].start > 0


def test_partners_that_the_heatmap_refuses() -> None:
    heatmap = Heatmap({}, Throughput({("a.A.2", "b.A.2"): 0.7,
                                      ("b.A.2", "a.A.2"): 0.7}), least=0.9)
    frozen = frozen_of([job(0, 2, 60, app="a.A.x"), job(1, 2, 60, app="b.A.x")], 1, 2,
                       policy="strip", heatmap=heatmap)
    reason, = why(frozen, 1)
    assert reason.kind == "cores" and reason.jobs == (0,) and reason.start == 0
    assert "the jobs there are bad partners for it (heatmap)" in reason.text


def test_dependencies_holds_limits_of_queues_and_missing_nodes() -> None:
    frozen = (frozen_of([job(0, 4, 60)])
              .with_job(job(1, 1, 10), Details(after=(Dependency((0,)),)))
              .with_job(job(2, 1, 10), Details(held=True)))
    reason, = why(frozen, 1)
    assert reason.kind == "dependency" and reason.jobs == (0,) and reason.start == 0
    assert reason.text.startswith("it depends on #0, which should have ended by")
    reason, = why(frozen, 2)
    assert reason.kind == "held" and reason.start == 60 and reason.earlier == math.inf
    debug = Queues.of({"debug": {"max_running": 1}})
    limited = frozen_of([job(0, 1, 60, queue="debug"), job(1, 1, 60, queue="debug")], queues=debug)
    reason, = why(limited, 1)
    assert reason.kind == "queue" and reason.text == "queue debug: 1 of 1 jobs run or are next"
    assert reason.jobs == (0,) and reason.start == 0
    lost = frozen_of([job(0, 2, 60), job(1, 4, 60)])
    lost.state.cluster.set_up(1, False)
    reason, = why(lost, 1)
    assert reason.kind == "nodes" and "down" in reason.text
    with pytest.raises(JobStateError, match="there is no job 9"):
        why(lost, 9)


def test_the_end_of_the_allocation() -> None:
    frozen = frozen_of([job(0, 4, 60), job(1, 4, 60), job(2, 4, 20)], end=100)
    reason, = why(frozen, 1)
    assert reason.kind == "end" and reason.start == 60
    assert "may take 1m, and the allocation ends at" in reason.text
    late = frozen_of([job(0, 4, 60), job(1, 4, 200)], end=100)
    reason, = why(late, 1)
    assert reason.kind == "end" and reason.start == 60 and reason.checked
    full = replace(frozen_of([job(0, 4, 60), job(1, 4, 200), job(2, 4, 20)]), end=100.0, fit=False)
    reason, = why(full, 2)
    assert reason.kind == "end" and reason.start == 260 and reason.checked
    assert "could start at" in reason.text and "nothing starts from" in reason.text
    lost = frozen_of([job(0, 2, 60), job(1, 4, 20)], end=100)
    lost.state.cluster.set_up(1, False)
    reason, = why(lost, 1)  # longer would not help it
    assert reason.kind == "nodes" and "down" in reason.text


def test_gpus_and_licences_are_named() -> None:
    nodes = [Node("n0", (4,), {"gpu": 2}), Node("n1", (4,))]
    on = Cluster(nodes, {"ansys": 1})
    wants = Request.of(1, 1, False, {"gpu": 2})
    frozen = frozen_of([Job(0, "a.x", 1, 60, request=wants), Job(1, "a.x", 1, 60, request=wants)],
                       policy="pack", cluster=on)
    reason, = why(frozen, 1)
    assert "gpu" in reason.text and reason.jobs == (0,)
    licensed = Request.of(1, 1, False, licences={"ansys": 1})
    frozen = frozen_of([Job(0, "a.x", 1, 60, request=licensed), Job(1, "a.x", 1, 60, request=licensed)],
                       policy="pack", cluster=Cluster(nodes, {"ansys": 1}))
    reason, = why(frozen, 1)
    assert "ansys" in reason.text and reason.jobs == (0,)


def test_draws_agree_or_not() -> None:
    frozen = frozen_of([job(0, 2, 60), job(1, 2, 100), job(2, 4, 30)])
    short = [lambda job, ran, part=part: ran + job.walltime * (part if job.id else 1)
             for part in (0.1, 0.2, 1.0, 1.0)]
    reason, = why(frozen, 2, members=short)
    assert reason.agree == 0.5  # in the others #0 ends after #1
    many = [lambda job, ran, part=part: job.walltime * part for part in
            (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4)]
    reason, = why(frozen, 2, members=many)
    assert reason.text.endswith(")") and " to " in reason.text


some_jobs = st.lists(st.tuples(st.integers(1, 8), st.integers(1, 50)), min_size=2, max_size=12)


@settings(max_examples=60, deadline=None)
@given(some_jobs, st.sampled_from(["FCFS", "SJF", "LJF"]),
       st.sampled_from(["none", "easy", "conservative", "list"]), st.sampled_from(["compact", "pack"]))
def test_every_job_has_a_reason_and_without_it_starts_earlier(
        wanted: list[tuple[int, int]], order: str, backfill: str, policy: str) -> None:
    jobs = [job(number, procs, float(limit)) for number, (procs, limit) in enumerate(wanted)]
    frozen = frozen_of(jobs, 4, 2, order, backfill, policy)
    explainer = Explainer(frozen)
    brief = explainer.brief()
    assert sorted(brief) == sorted(one.id for one in frozen.waiting()) and all(brief.values())
    for one in frozen.waiting():
        found = explainer.of(one.id)
        assert found.reasons and found.start == explainer.plan[one.id].start
        for reason in found.reasons:
            assert reason.kind == "next" or reason.checked, reason
            if reason.kind in ("cores", "order") and backfill != "conservative":  # whose plan has a past
                assert starts_without(frozen, set(reason.jobs))[one.id] == reason.start < found.start


def starts_without(frozen: FrozenRun, gone: set) -> dict[int, float]:
    """The starts where these jobs have never been: what runs is there, the others come anew."""
    cluster = Cluster(frozen.state.cluster.nodes)
    old = frozen.run.scheduler
    scheduler = Scheduler(old.ordering, make_backfilling(old.dispatcher.name),
                          make_policy(old.policy.name, cluster, None))
    left = [one for one in frozen.waiting() if one.id not in gone]
    anew = of_jobs(left, scheduler, cluster)
    for booking in frozen.state.cluster.running():
        if booking.job.id not in gone:
            cluster.book(booking.job, booking.placement, booking.start)
            anew.state.book.know(booking.job, PLAIN, JobState.RUNNING)
    return {job_id: one.start for job_id, one in replay(replace(anew, due=True), limits).items()}


@pytest.mark.parametrize("seconds, text", [(0, "0s"), (45, "45s"), (90, "1m30s"), (1320, "22m"),
                                           (5400, "1h30m"), (3661, "1h1m"), (183600, "2d3h")])
def test_times_are_said_as_they_are_read(seconds: float, text: str) -> None:
    assert said(seconds) == text and abs(seconds_of(text) - seconds) < 60


def test_decisions_that_wait_for_a_tick() -> None:
    cluster = Cluster.regular(2, 1, 2)
    scheduler = Scheduler(make_ordering("FCFS"), make_backfilling("none"),
                          make_policy("compact", cluster, None), 10.0, 1)
    run = of_jobs([job(0, 1, 500)], scheduler, cluster).run.copy()
    run.step(0.0)
    run.state.submit([job(1, 1, 60, submit=4.0)])
    frozen = FrozenRun(run, 4.0)
    reason, = why(frozen, 1)
    assert reason.kind == "interval" and (reason.start, reason.earlier) == (4, 6)
    assert reason.text == ("starts are decided every 10 s, at most 1 head of the queue then")
    assert Explainer(frozen).brief() == {1: "decided every 10 s"}


def test_a_forecast_says_why_each_job_waits() -> None:
    frozen = frozen_of([job(0, 2, 60), job(1, 2, 100), job(2, 4, 30), job(3, 4, 30)])
    said_of = {each.id: each.reason for each in forecast(frozen, tries=5).jobs}
    assert said_of[2].startswith("job 1 runs until") and said_of[3] == "behind job 2"
    assert said_of[0] == said_of[1] == ""
    assert not any(each.reason for each in forecast(frozen).jobs)


def test_advance_reservations_in_the_way_and_those_that_a_job_is_bound_to() -> None:
    cluster = Cluster.regular(2, 1, 2)
    frozen = of_jobs([job(0, 4, 60), job(1, 2, 30)], Scheduler(
        make_ordering("FCFS"), make_backfilling("easy"), make_policy("compact", cluster, None)), cluster)
    frozen.state.reservations.reserve(ReservationRequest(20.0, 100.0, nodes=("n1",), name="demo", jobs=(1,)), 0.0)
    reasons = why(frozen, 0)
    assert [reason.kind for reason in reasons] == ["kept"]
    assert reasons[0].text.startswith("node n1 is kept for reservation demo from")
    assert reasons[0].start == 0 and reasons[0].earlier == 100
    reason, = why(frozen, 1)
    assert reason.kind == "bound" and "it waits for reservation demo, which begins" in reason.text
    assert reason.start == 0 and reason.earlier == 20
    brief = Explainer(frozen).brief()
    assert brief[1].startswith("reservation demo, which begins") and brief[0]
