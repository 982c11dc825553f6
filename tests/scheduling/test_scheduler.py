"""Deciding only at ticks of an interval, with a limit of starts: against a plain loop that does
what the docstring of the scheduler says, and what it refuses."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.reference import (ORDERINGS, POLICIES, Place, Reference, Task, pair, places_of, regular_nodes,
                       workloads)
from vrm.config.problems import ConfigError
from vrm.config.schema import load
from vrm.config.policies import make_scheduler
from vrm.model import Booking, Cluster, Job, Placement
from vrm.results.jobs import read_jobs
from vrm.scheduling import PolicyError, Scheduler, make_backfilling, make_ordering, make_policy
from vrm.api import Machine, Rules, Submission, simulate
from vrm.simulation.engine import Simulator
from vrm.simulation.results import Results

Started = dict[int, tuple[float, bool, list[Place]]]


def turn(reference: Reference, now: float, waiting: list[Job],
         starts: int) -> list[tuple[int, bool, list[Place]]]:
    """One turn of the loop: heads up to the limit; backfilling only when a head does not fit."""
    found = []
    order = reference.in_order(waiting, now)
    while order and (not starts or len(found) < starts):
        places = reference.find(order[0])
        if places is None:
            break
        reference.start(order[0], places, now)
        found.append((order.pop(0).id, False, places))
    if not order or (starts and len(found) == starts):
        return found
    # What is left is a queue whose head does not fit: the reference's own step only backfills.
    return found + reference.step(now, order)


def loop(reference: Reference, tasks: Sequence[Task], interval: float, starts: int) -> Started:
    """The loop as one would write it first: look, decide, sleep."""
    coming = [task for task in tasks if reference.nodes_needed(task.job) is not None]
    ends: dict[int, float] = {}
    waiting: dict[int, Task] = {}
    started: Started = {}
    first, turns = (coming[0].job.submit if coming else 0.0), 0
    while coming or waiting:
        now = first + turns * interval
        turns += 1
        for job_id in [job_id for job_id, end in ends.items() if end <= now]:
            reference.end(job_id)
            del ends[job_id]
        while coming and coming[0].job.submit <= now:
            task = coming.pop(0)
            waiting[task.job.id] = task
        for job_id, backfilled, places in turn(
                reference, now, [task.job for task in waiting.values()], starts):
            started[job_id] = now, backfilled, places
            ends[job_id] = now + waiting.pop(job_id).runtime
    return started


class Places(Results):
    """Remembers where jobs ran."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster.nodes)
        self.cluster = cluster
        self.found: Started = {}

    def ended(self, booking: Booking, start: Any, end: float, status: str) -> None:
        super().ended(booking, start, end, status)
        places = places_of(booking.placement, self.cluster.nodes)
        self.found[booking.job.id] = booking.start, start.backfilled, places


@settings(max_examples=300, deadline=None)
@given(tasks=workloads(late=True), nodes=regular_nodes(), policy=POLICIES, ordering=ORDERINGS,
       backfilling=st.sampled_from(["none", "easy", "list"]), heatmap=st.booleans(),
       interval=st.sampled_from([0.5, 1.0, 2.5, 10.0]), starts=st.sampled_from([0, 1, 1, 2, 5]))
@pytest.mark.slow
def test_the_loop_is_imitated(tasks: list[Task], nodes: Any, policy: str, ordering: str,
                              backfilling: str, heatmap: bool, interval: float,
                              starts: int) -> None:
    plain, cluster, reference = pair(nodes, policy, ordering, backfilling, heatmap)
    scheduler = Scheduler(plain.ordering, plain.dispatcher, plain.policy, interval, starts)
    watch = Places(cluster)
    Simulator(scheduler, cluster, watch).run([Submission(job, run) for job, run in tasks])
    assert watch.found == loop(reference, tasks, interval, starts)


@settings(max_examples=60, deadline=None)
@given(tasks=workloads(), interval=st.sampled_from([0.5, 3.0, 10.0]), moved=st.integers(0, 2 ** 31))
@pytest.mark.slow
def test_ticks_count_from_the_first_job_also_since_the_epoch(tasks: list[Task], interval: float,
                                                             moved: int) -> None:
    def run(offset: float) -> list[tuple[int, float, float]]:
        subs = [Submission(Job(job.id, job.app, job.procs, job.estimate, job.submit + offset), run)
                for job, run in tasks]
        rows = simulate(subs, Machine.of(3, sockets=2, cores=4),
                        Rules(policy="pack", backfill="easy", interval=interval, starts_per_interval=1)).jobs
        return [(row.id, round(row.start - offset, 3), round(row.end - offset, 3)) for row in rows]
    assert run(moved + 0.3) == run(0.0)


@settings(max_examples=60, deadline=None)
@given(tasks=workloads(), policy=POLICIES, interval=st.sampled_from([0.5, 3.0]),
       backfilling=st.sampled_from(["conservative", "conservative-recomputed", "3", "easy-kept"]))
@pytest.mark.slow
def test_plans_of_reservations_live_with_an_interval(tasks: list[Task], policy: str,
                                                     interval: float, backfilling: str) -> None:
    cluster = Cluster.regular(3, 2, 4)
    watch = Places(cluster)  # and booking a core twice fails
    scheduler = Scheduler(make_ordering("FCFS"), make_backfilling(backfilling),
                          make_policy(policy, cluster), interval)
    Simulator(scheduler, cluster, watch).run([Submission(job, run) for job, run in tasks])
    assert watch.counts["refused"] + len(watch.found) == len(tasks)
    first = min((job.submit for job, _ in tasks if job.id in watch.found), default=0.0)
    assert all((start - first) % interval == 0 for start, _, _ in watch.found.values())


def test_a_tick_at_which_nothing_waits_is_not_made_up_for() -> None:
    """Jobs at 0 and 14: the ticks are 0, 10, 20; the second starts at 20, not at 14."""
    jobs = [Submission(Job(number, "a", 1, 1, submit), 1) for number, submit in enumerate((0, 14))]
    rows = simulate(jobs, Machine.of(2), Rules(interval=10, starts_per_interval=1)).jobs
    assert [row.start for row in rows] == [0, 20]


def test_a_head_that_starts_ends_the_turn_and_backfilled_jobs_do_not_count() -> None:
    """Four nodes. At 0 the head starts, at 10 the next; at 20 the third does not fit, and all the
    small ones behind it start together."""
    sizes = [1, 2, 4, 1, 1]
    jobs = [Submission(Job(number, "a", procs, 15, 0), 100 if number < 2 else 15)
            for number, procs in enumerate(sizes)]
    rows = {row.id: row.start for row in simulate(jobs, Machine.of(5),
                                                  Rules(backfill="list", interval=10, starts_per_interval=1)).jobs}
    assert rows == {0: 0, 1: 10, 2: 110, 3: 20, 4: 20}


def test_waking_is_at_ticks_and_costs_nothing_without_an_interval() -> None:
    cluster = Cluster.regular(1, 1, 1)
    scheduler = Scheduler(make_ordering("FCFS"), make_backfilling("none"),
                          make_policy("compact", cluster), 10)
    queue = scheduler.new_queue()
    assert scheduler.wake(3.0) == math.inf
    queue.add(Job(0, "a", 1, 100, 3.0))
    queue.add(Job(1, "a", 1, 100, 3.0))
    assert [start.job.id for start in scheduler.step(3.0, queue, cluster)] == [0]
    cluster.release(0)
    assert scheduler.wake(3.0) == 13.0 and scheduler.step(5.0, queue, cluster) == []
    assert scheduler.wake(12.9) == 13.0
    assert [start.job.id for start in scheduler.step(13.0, queue, cluster)] == [1]
    assert scheduler.wake(13.0) == 23.0
    always = Scheduler(make_ordering("FCFS"), make_backfilling("none"),
                       make_policy("compact", cluster))
    assert always.wake(3.0) == math.inf


class Never:
    """A placement policy that promises room and gives none."""

    name = "never"

    def nodes(self, job: Job) -> int:
        return 1

    def fits(self, job: Job, pool: Any) -> bool:
        return False

    def place(self, job: Job, cluster: Any, pool: Any = None) -> Placement | None:
        return None

    def similar(self, job: Job) -> None:
        return None


@pytest.mark.parametrize("interval", [0, 10])
def test_a_policy_that_never_places_ends_the_simulation(interval: float) -> None:
    jobs = [Submission(Job(number, "a", 1, 5, 4 * number), 5) for number in range(3)]
    with pytest.raises(PolicyError, match="accepted 3 job.* that it cannot start even on an empty machine"):
        simulate(jobs, Machine.of(2), Rules(policy=lambda cluster, heatmap: Never(), interval=interval))


@pytest.mark.parametrize("interval, starts, backfilling, message", [
    (0, 1, "none", "wants an interval"),
    (10, 1, "conservative", "works with the backfillings none"),
    (10, 2, "3", "works with the backfillings none"),
])
def test_what_makes_no_sense_is_refused(tmp_path: Path, interval: float, starts: int,
                                        backfilling: str, message: str) -> None:
    path = tmp_path / "vrm.yaml"
    path.write_text(f"Scheduling:\n  Backfilling: {backfilling}\n  Interval: {interval}\n"
                    f"  StartsPerInterval: {starts}\n")
    with pytest.raises(ConfigError, match=f"vrm.yaml:4: Scheduling.StartsPerInterval: .*{message}"):
        make_scheduler(load(path), Cluster.regular(1, 1, 1))
    with pytest.raises(PolicyError, match=message):
        simulate([], Machine.of(1), Rules(backfill=backfilling, interval=interval, starts_per_interval=starts))


def test_the_keys_reach_the_scheduler(tmp_path: Path) -> None:
    path = tmp_path / "vrm.yaml"
    path.write_text("Scheduling: {Interval: 2.5, StartsPerInterval: 3}\n")
    scheduler = make_scheduler(load(path), Cluster.regular(1, 1, 1))
    assert (scheduler.interval, scheduler.starts) == (2.5, 3)
    path.write_text("Scheduling: {Interval: -1, StartsPerInterval: some}\n")
    with pytest.raises(ConfigError) as refused:
        load(path)
    assert "seconds, 0 or more" in str(refused.value)
    assert "a whole number, 0 or more" in str(refused.value)


def test_the_command_takes_both_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    from vrm.cli import main
    queue = tmp_path / "queue"
    queue.write_text("a.x 1 5 0 0\n" * 4)
    assert main(["simulate", str(queue), "--nodes", "9", "--interval", "10",
                 "--starts-per-interval", "1", "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "deciding every 10 s (1 start of the queue's head)" in shown
    rows = read_jobs(tmp_path / "jobs.csv")
    assert [row.start for row in rows] == [0, 10, 20, 30]
