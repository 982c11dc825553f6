"""Dispatchers of a user's own: EASY and conservative backfilling, written in a few lines, decide as vrm's do."""

from __future__ import annotations

import math
from typing import Any
from collections.abc import Iterator

import pytest
from hypothesis import given, settings, strategies as st

from vrm.api import Cluster, Job, Machine, Outcome, PolicyError, Rules, SchedulingStep, Submission, compose, simulate
from vrm.model.cluster import Cluster as Nodes


class Easy:
    def schedule(self, step: SchedulingStep) -> Iterator[Job]:
        for job in step.waiting:
            if step.fits(job):
                yield job
            elif not step.reserved:
                step.reserve(job)


class Conservative:
    def schedule(self, step: SchedulingStep) -> Iterator[Job]:
        for job in step.waiting:
            if step.reserve(job) <= step.now:
                yield job


class Depth:
    """The first two jobs that do not fit have reservations."""

    def schedule(self, step: SchedulingStep) -> Iterator[Job]:
        for job in step.waiting:
            if step.fits(job):
                yield job
            elif len(step.reserved) < 2:
                step.reserve(job)


class Greedy:
    def schedule(self, step: SchedulingStep) -> Iterator[Job]:
        for job in step.waiting:
            if step.fits(job):
                yield job


class Strict:
    def schedule(self, step: SchedulingStep) -> list[Job]:
        return [job for job in step.waiting[:1] if step.fits(job)]


@st.composite
def workloads(draw: Any) -> list[Submission]:
    """Jobs of up to 8 ranks, which end early as a rule; some ask for memory or licences."""
    jobs, now = [], 0.0
    for number in range(draw(st.integers(2, 16))):
        now += draw(st.sampled_from([0, 0, 1, 7, 30]))
        limit = draw(st.integers(1, 60))
        job = Job(number, "a", draw(st.integers(1, 8)), limit, now, exclusive=draw(st.booleans()))
        jobs.append(Submission(job, draw(st.integers(1, limit))))
    return jobs


def starts(jobs: list[Submission], policy: str, backfill: Any) -> list[tuple[int, float | None, bool]]:
    outcome: Outcome = simulate(jobs, Machine.of(2, cores=4), Rules(policy=policy, backfill=backfill))
    return sorted((row.id, row.start, row.backfilled) for row in outcome.jobs)


@pytest.mark.parametrize("own, ours", [
    (Conservative, "conservative-recomputed"), (Depth, "2"), (Greedy, "list"), (Easy, "easy")])
@pytest.mark.parametrize("policy", ["compact", "spare", "pack", "strip"])
@given(workloads())
@settings(max_examples=25)
def test_a_few_lines_decide_as_vrms_own(own: Any, ours: str, policy: str, jobs: list[Submission]) -> None:
    assert starts(jobs, policy, own()) == starts(jobs, policy, ours)


def step_of(*sizes: tuple[int, float], backfill: Any) -> tuple[list[int], Any, Cluster]:
    """What starts first of jobs of (ranks, limit) on two nodes of four cores."""
    cluster = Nodes.regular(2, 1, 4)
    scheduler = compose(Rules(policy="pack", backfill=backfill), cluster)
    queue = scheduler.new_queue()
    for number, (ranks, limit) in enumerate(sizes):
        queue.add(Job(number, "a", ranks, limit))
    return [start.job.id for start in scheduler.step(10.0, queue, cluster)], (scheduler, queue), cluster


def test_what_a_step_shows() -> None:
    seen: list[Any] = []

    class Looks:
        def schedule(self, step: SchedulingStep) -> Iterator[Job]:
            yield step.waiting[0]
            seen.append((step.now, [job.id for job in step.waiting], step.running, step.nodes, step.free_cores,
                         step.earliest(step.waiting[1]), dict(step.reserved), step.reserve(step.waiting[1]),
                         dict(step.reserved), step.fits(step.waiting[2]), step.fits(step.waiting[3]),
                         step.earliest(step.waiting[1]), step.reserve(step.waiting[1])))

    started, (scheduler, queue), cluster = step_of((6, 50), (4, 20), (2, 51), (2, 50), backfill=Looks())
    assert started == [0]
    now, waiting, running, nodes, free, earliest, before, reserved, after, long, short, again, once_more = seen[0]
    assert (now, waiting, free) == (10.0, [0, 1, 2, 3], 2)
    assert [(each.job.id, each.start, each.end, each.nodes) for each in running] == [(0, 10.0, 60.0, ("n0", "n1"))]
    assert [tuple(node) for node in nodes] == [("n0", 4, 0, True), ("n1", 4, 2, True)]
    assert (before, after) == ({}, {1: 60.0}) and earliest == reserved == again == once_more == 60.0
    assert short and long  # what is kept for job 1 is on other cores
    assert scheduler.reservations(10.0, queue, cluster) == {1: 60.0} and scheduler.wake(10.0) == 60.0


def test_what_is_reserved_is_not_taken() -> None:
    class All:
        def schedule(self, step: SchedulingStep) -> Iterator[Job]:
            head, other, short = step.waiting
            assert step.reserve(head) == step.now and step.earliest(other) == 30 and not step.fits(other)
            assert step.fits(head) and not step.fits(short)
            yield head
            assert step.reserve(other) == 30.0 and step.earliest(short) == 50.0

    assert step_of((8, 20), (8, 20), (1, 5), backfill=All())[0] == [0]


def test_what_is_asked_again_is_answered_as_it_is_now() -> None:
    class Asks:
        def schedule(self, step: SchedulingStep) -> Iterator[Job]:
            one, other, head = step.waiting
            assert step.fits(one) and step.fits(other) and step.fits(one)
            yield one
            assert not step.fits(other)
            assert step.reserve(head) == 35.0
            with pytest.raises(ValueError, match="job 0 starts in this step"):
                step.reserve(one)

    class Reserves:
        def schedule(self, step: SchedulingStep) -> Iterator[Job]:
            one, other, _head = step.waiting
            assert step.fits(other) and step.reserve(one) == step.now and not step.fits(other)
            yield one
            assert dict(step.reserved) == {}

    assert step_of((6, 25), (6, 20), (8, 5), backfill=Asks())[0] == [0]
    assert step_of((6, 25), (6, 20), (8, 5), backfill=Reserves())[0] == [0]


def test_a_job_that_can_never_run_here_is_not_awaited() -> None:
    class Waits:
        def schedule(self, step: SchedulingStep) -> Iterator[Job]:
            assert step.reserve(step.waiting[0]) == math.inf and not step.fits(step.waiting[0])
            yield from ()

    cluster = Nodes.regular(2, 1, 4)
    scheduler = compose(Rules(policy="pack", backfill=Waits()), cluster)
    queue = scheduler.new_queue()
    queue.add(Job(0, "a", 8, 10))
    cluster.close(1)
    assert scheduler.step(0.0, queue, cluster) == [] and scheduler.wake(0.0) == math.inf


def test_wake_may_be_its_own() -> None:
    class Timed(Strict):
        def wake(self, now: float) -> float:
            return now + 5

    assert step_of((1, 1), backfill=Timed())[1][0].wake(10.0) == 15.0


@pytest.mark.parametrize("time", [3.0, 10.0, math.nan])
def test_wake_gives_a_later_time(time: float) -> None:
    class Stuck(Strict):
        def wake(self, now: float) -> float:
            return time

    with pytest.raises(PolicyError, match=r"test_user_dispatcher.py:\d+ gives \S+ as the time of the next step, at 10.0"):
        step_of((1, 1), backfill=Stuck())[1][0].wake(10.0)


@pytest.mark.parametrize("made, said", [
    (5, "give a name, a number of reservations, or an object with"), (object(), "or an object with `schedule(step)`"),
    (type("Former", (), {"fill": lambda self, *_: ()})(), "`Former` has `fill`, which vrm no longer calls")])
def test_what_is_none(made: Any, said: str) -> None:
    with pytest.raises(PolicyError) as error:
        compose(Rules(backfill=made if made != 5 else 5.0), Nodes.regular(2, 1, 4))
    assert said in str(error.value)


def test_a_job_that_does_not_fit_is_refused() -> None:
    class Hasty:
        def schedule(self, step: SchedulingStep) -> Iterator[Job]:
            yield from step.waiting

    with pytest.raises(PolicyError, match=r"test_user_dispatcher.py:\d+ starts job 1, which does not fit now; ask `step.fits"):
        step_of((8, 20), (8, 20), backfill=Hasty())


@pytest.mark.parametrize("started", [[], None], ids=["nothing", "None"])
def test_a_dispatcher_that_starts_nothing_is_named_not_the_placement(started: Any) -> None:
    class Nothing:
        def schedule(self, step: SchedulingStep) -> Any:
            return started

    with pytest.raises(PolicyError, match="the backfilling `Nothing` starts none of the 2 job.s. that wait on an empty "
                                          "machine, although job 1 fits; `schedule` yields"):
        simulate([Submission(Job(number, "a", 1, 5.0), 5.0) for number in (1, 2)], Machine.of(2), Rules(backfill=Nothing()))
