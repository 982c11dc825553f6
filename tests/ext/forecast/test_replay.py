"""A frozen run, and what it would do: against what the run then does."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from vrm.ext.forecast.frozen import FrozenRun, of_jobs, freeze_simulation
from vrm.ext.forecast.replay import PlannedJob, limits, replay
from vrm.model import Cluster, Job
from vrm.model.forms.placement_formats import to_record
from vrm.scheduling import Scheduler, make_backfilling, make_ordering, make_policy
from vrm.simulation.engine import Simulator
from vrm.workload.submission import Submission


def scheduler_on(cluster: Cluster, order: str = "FCFS", backfill: str = "easy",
                 policy: str = "compact", interval: float = 0.0) -> Scheduler:
    return Scheduler(make_ordering(order), make_backfilling(backfill),
                     make_policy(policy, cluster, None), interval)


class Starts:
    """Notes when and where jobs start and end."""

    def __init__(self) -> None:
        self.found: dict[int, tuple[float, float, Any]] = {}

    def ended(self, booking: Any, start: Any, end: float, status: str) -> None:
        self.found[booking.job.id] = booking.start, end, to_record(booking.placement)

    def refused(self, *_: Any) -> None:
        raise AssertionError("no job is refused")

    cancelled = refused

    def moment(self, state: Any) -> None:
        pass


jobs_of = st.lists(st.tuples(st.integers(1, 8), st.integers(1, 40), st.integers(1, 40),
                             st.integers(0, 60)), min_size=1, max_size=25)


@settings(max_examples=100, deadline=None)
@given(jobs_of, st.sampled_from(["FCFS", "SJF", "WFP3"]),
       st.sampled_from(["none", "easy", "conservative", "2", "list"]),
       st.sampled_from(["compact", "strip", "pack"]), st.sampled_from([0.0, 7.0]), st.data())
def test_with_true_run_times_a_replay_is_what_then_happens(
        jobs: list[tuple[int, int, int, int]], order: str, backfill: str, policy: str,
        interval: float, data: st.DataObject) -> None:
    submissions = sorted((Submission(Job(number, f"a{number % 3}.x", procs, float(run + more),
                                         float(at)), float(run))
                          for number, (procs, run, more, at) in enumerate(jobs)),
                         key=lambda each: each.job.submit)
    cluster = Cluster.regular(4, 2, 2)
    real = Starts()
    simulator = Simulator(scheduler_on(cluster, order, backfill, policy, interval), cluster, real)
    moments = [*range(2 * len(jobs))]
    stop = data.draw(st.sampled_from(moments))
    frozen, later = None, []
    for number, now in enumerate(simulator.moments(submissions)):
        if number == stop:
            later = [one for one in submissions if one.job.submit > now]
            frozen = freeze_simulation(simulator)
    if frozen is None:
        return
    runs = {one.job.id: one.run for one in submissions}
    frozen = FrozenRun(frozen.run, frozen.now, later=tuple(later))
    found = replay(frozen, lambda job, ran: runs[job.id])
    ahead = {job_id: each for job_id, each in real.found.items() if each[1] > frozen.now}
    assert plain(found) == ahead
    assert plain(replay(frozen, lambda job, ran: runs[job.id])) == ahead  # it is as it was


def plain(found: dict[int, PlannedJob]) -> dict[int, tuple[float, float, Any]]:
    return {job_id: (each.start, each.end, to_record(each.placement))
            for job_id, each in found.items()}


def queue(*sizes: tuple[int, float], backfill: str = "easy", end: float = math.inf) -> FrozenRun:
    """A queue of jobs (ranks, limit) on two nodes of two cores; the first ones run."""
    cluster = Cluster.regular(2, 1, 2)
    frozen = of_jobs([Job(number, "a.x", procs, limit) for number, (procs, limit)
                      in enumerate(sizes)], scheduler_on(cluster, backfill=backfill), cluster, end=end)
    run = frozen.run.copy()
    run.step(0.0)
    return FrozenRun(run, 0.0, end)


def starts(frozen: FrozenRun) -> dict[int, float]:
    return {job_id: each.start for job_id, each in sorted(replay(frozen, limits).items())}


def test_what_would_be_if() -> None:
    frozen = queue((4, 10), (4, 5), (2, 8))
    assert starts(frozen) == {0: 0, 1: 10, 2: 15}
    assert starts(frozen.without([0])) == {1: 0, 2: 5}
    assert starts(frozen.without([1])) == {0: 0, 2: 10}
    assert starts(frozen.with_walltimes({1: 2})) == {0: 0, 1: 10, 2: 12}
    assert starts(frozen.with_job(Job(7, "b.x", 2, 3.0))) == {0: 0, 1: 10, 2: 15, 7: 15}
    assert starts(frozen.under(lambda cluster: scheduler_on(cluster, "procs"))) == starts(frozen)
    assert starts(frozen.under(lambda cluster: scheduler_on(cluster, "-procs"))) \
        == {0: 0, 1: 18, 2: 10}
    assert starts(frozen) == {0: 0, 1: 10, 2: 15}


def test_what_would_not_end_in_the_allocation_does_not_start() -> None:
    frozen = queue((4, 10), (4, 5), (4, 8), (4, 1), end=19.0)
    assert starts(frozen) == {0: 0, 1: 10, 3: 15}
    long = replay(frozen, lambda job, ran: 3 * job.walltime)
    assert {job_id: each[:2] for job_id, each in long.items()} == {0: (0, 30)}


@pytest.mark.parametrize("policy", ["compact", "strip"])
def test_jobs_that_run_go_on_under_another_placement(policy: str) -> None:
    frozen = queue((2, 10), (2, 5), (2, 8))
    found = starts(frozen.under(lambda cluster: scheduler_on(cluster, policy=policy)))
    assert found[0] == found[1] == 0 and found[2] >= 5
