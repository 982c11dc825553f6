"""Conservative backfilling and depth n against plain versions of their definitions, and their
promises on every kind of machine."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vrm.model import Cluster, Job
from vrm.scheduling import Scheduler, make_backfilling, make_ordering, make_policy
from vrm.scheduling.compose import compose
from vrm.scheduling.backfilling.reservations import Reserving
from vrm.api import Rules, Submission
from vrm.ext.counting.compiled import compiled
from vrm.simulation.engine import Moment, Simulator
from vrm.simulation.results import Results

MANY = settings(max_examples=150, deadline=None)


class Held(NamedTuple):
    """Units taken from begin to end."""

    begin: float
    end: float
    units: int


def free(held: list[Held], moment: float, total: int) -> int:
    return total - sum(h.units for h in held if h.begin <= moment < h.end)


def earliest(job: Job, now: float, held: list[Held], total: int) -> float:
    """The first moment from which the job fits for all its estimate: every end is tried."""
    for begin in sorted({now, *(h.end for h in held if h.end > now)}):
        inside = [begin, *(h.begin for h in held if begin < h.begin < begin + job.estimate)]
        if all(free(held, moment, total) >= job.procs for moment in inside):
            return begin
    return math.inf


def in_order(algorithm: str, waiting: list[Job], now: float) -> list[Job]:
    def key(job: Job) -> tuple[float, float, int]:
        utility = {"FCFS": -job.submit, "SJF": -job.estimate,
                   "WFP3": ((now - job.submit) / job.estimate) ** 3 * job.procs}[algorithm]
        return -utility, job.submit, job.id
    return sorted(waiting, key=key)


def plain(jobs: list[Submission], total: int, depth: float, kept: bool,
          algorithm: str = "FCFS") -> dict[int, float]:
    """The start of every job on one-core nodes, by the definition; nothing is clever here."""
    running: dict[int, tuple[float, Held]] = {}  # real end, and what is expected
    waiting: list[Job] = []
    slots: dict[int, float] = {}
    starts: dict[int, float] = {}
    runs = {job.id: run for job, run, *_ in jobs}
    to_come = list(jobs)
    while to_come or running or waiting:
        moments = [submission.job.submit for submission in to_come]
        moments += [end for end, _ in running.values()] + list(slots.values())
        now = min(moments)
        early = False
        for job_id in [i for i, (end, _) in running.items() if end == now]:
            early |= running.pop(job_id)[1].end > now
        fresh = [one.job for one in to_come if one.job.submit <= now]
        to_come = to_come[len(fresh):]
        waiting += fresh

        def held(without: int | None = None) -> list[Held]:
            by_id = {job.id: job for job in waiting}
            return [h for _, h in running.values()] + [
                Held(time, time + by_id[i].estimate, by_id[i].procs)
                for i, time in slots.items() if i != without]

        def start(job: Job) -> None:
            slots.pop(job.id, None)
            waiting.remove(job)
            starts[job.id] = now
            running[job.id] = now + runs[job.id], Held(now, now + job.estimate, job.procs)

        if not kept:
            slots.clear()
        elif early:
            for job in in_order(algorithm, waiting, now):
                if job.id in slots:
                    slots[job.id] = min(slots[job.id],
                                        earliest(job, now, held(job.id), total))
        if kept:
            if depth == math.inf:
                for job in in_order(algorithm, fresh, now):
                    slots[job.id] = earliest(job, now, held(), total)
            for job in in_order(algorithm, waiting, now):
                if slots.get(job.id, math.inf) <= now:
                    start(job)
        for job in in_order(algorithm, waiting, now):
            if job.id not in slots:
                time = earliest(job, now, held(), total)
                if time == now:
                    start(job)
                elif len(slots) < depth:
                    slots[job.id] = time
    return starts


_GAP = st.sampled_from([0, 0, 1, 1, 2, 5])
_APP = st.sampled_from(["bt.A", "cg.A"])
_FACTS = {most: st.lists(st.tuples(_GAP, st.integers(1, 15), st.integers(0, 14), _APP, st.integers(1, most)),
                         min_size=1, max_size=20) for most in (6, 12)}


def workloads(most: int = 6) -> st.SearchStrategy[list[Submission]]:
    """Random jobs that often end early."""
    def made(facts: list[Any]) -> list[Submission]:
        time, found = 0, []
        for index, (gap, estimate, less, app, procs) in enumerate(facts, 1):
            time += gap
            found.append(Submission(Job(index, app, procs, estimate, time), max(1, estimate - less)))
        return found

    return _FACTS[most].map(made)


def starts(jobs: list[Submission], backfill: Any, **choices: Any) -> dict[int, float]:
    """As `simulate` says; its summary, which nobody looks at here, would take as long as the rest."""
    cluster = Cluster.regular(6, 1, 1)
    record = Results(cluster.nodes)
    Simulator(compose(Rules(backfill=backfill, **choices), cluster), cluster, record).run(jobs)
    return {row.id: row.start for row in record.rows()}


@pytest.mark.parametrize("algorithm", ["FCFS", "SJF", "WFP3"])
@MANY
@given(jobs=workloads())
@pytest.mark.slow
def test_conservative_equals_its_definition(algorithm: str, jobs: list[Submission]) -> None:
    assert starts(jobs, "conservative", algorithm=algorithm) == plain(jobs, 6, math.inf, True,
                                                                      algorithm)


@pytest.mark.parametrize("algorithm", ["FCFS", "SJF", "WFP3"])
@pytest.mark.parametrize("depth", [1, 2, 3, math.inf])
@MANY
@given(jobs=workloads())
@pytest.mark.slow
def test_recomputed_reservations_equal_their_definition(depth: float, algorithm: str,
                                                        jobs: list[Submission]) -> None:
    backfill = "conservative-recomputed" if depth == math.inf else Reserving(int(depth), False)
    expected = plain(jobs, 6, depth, False, algorithm)
    assert starts(jobs, backfill, algorithm=algorithm) == expected
    if depth == 1:
        assert starts(jobs, "easy", algorithm=algorithm) == expected


@pytest.mark.parametrize("depth", [1, 2, 3])
@MANY
@given(jobs=workloads())
@pytest.mark.slow
def test_kept_reservations_equal_their_definition(depth: int, jobs: list[Submission]) -> None:
    assert starts(jobs, f"{depth}-kept") == plain(jobs, 6, depth, True)


@MANY
@given(jobs=workloads())
@pytest.mark.slow
def test_arrays_and_loops_find_the_same(jobs: list[Submission]) -> None:
    """Long plans and queues are seen through arrays; here short ones are made to be."""
    from vrm.scheduling.backfilling import compression
    from vrm.scheduling.backfilling import profile
    from vrm.scheduling.orderings import queue
    expected = {how: starts(jobs, how) for how in ("conservative", "easy", "3", "2-kept")}
    wfp3 = starts(jobs, "easy", algorithm="WFP3")
    in_c = compiled()
    limits = profile._SHORT, queue._FEW, compression._FEW
    try:
        profile._SHORT, queue._FEW, compression._FEW = 0, 0, 0
        for compress in (compression.compress, in_c or compression.compress):
            compression._taken[:] = [compress]
            assert {how: starts(jobs, how) for how in expected} == expected
        assert starts(jobs, "easy", algorithm="WFP3") == wfp3
    finally:
        profile._SHORT, queue._FEW, compression._FEW = limits
        compression._taken.clear()


class Promises(Results):
    """Notes the first reservation of every job, and that none is ever moved to a later time."""

    def __init__(self, cluster: Cluster, scheduler: Scheduler) -> None:
        super().__init__(cluster.nodes)
        self.scheduler = scheduler
        self.simulator: Any = None
        self.promised: dict[int, float] = {}

    def moment(self, state: Moment) -> None:
        now = state[0]
        planned = self.scheduler.reservations(now, self.simulator.queue, self.simulator.cluster)
        assert set(planned) <= {job.id for job in self.simulator.queue}
        for job_id, time in planned.items():
            assert now < time <= self.promised.get(job_id, math.inf)
            self.promised[job_id] = time
        super().moment(state)


@pytest.mark.parametrize("backfill", ["conservative", "easy-kept", "2-kept"])
@pytest.mark.parametrize("policy", ["compact", "spare", "strip", "pack"])
@settings(max_examples=40, deadline=None)
@given(jobs=workloads())
@pytest.mark.slow
def test_nobody_starts_after_the_reservation(policy: str, backfill: str,
                                             jobs: list[Submission]) -> None:
    cluster = Cluster.regular(3, 2, 2)
    scheduler = Scheduler(make_ordering("FCFS"), make_backfilling(backfill),
                          make_policy(policy, cluster))
    record = Promises(cluster, scheduler)
    record.simulator = Simulator(scheduler, cluster, record)
    record.simulator.run(jobs)
    for row in record.rows():
        assert row.start <= record.promised.get(row.id, math.inf)


def test_a_cancelled_job_gives_its_reservation_back() -> None:
    cluster = Cluster.regular(2, 1, 1)
    scheduler = Scheduler(make_ordering("FCFS"), make_backfilling("conservative"),
                          make_policy("compact", cluster))
    queue = scheduler.new_queue()
    for job in (Job(1, "a", 2, 10), Job(2, "a", 2, 10), Job(3, "a", 1, 5)):
        queue.add(job)
    assert [start.job.id for start in scheduler.step(0, queue, cluster)] == [1]
    assert scheduler.reservations(0, queue, cluster) == {2: 10, 3: 20}
    assert scheduler.wake(0) == 10
    queue.remove(2)
    assert scheduler.step(1, queue, cluster) == []
    assert scheduler.reservations(1, queue, cluster) == {3: 10}


def test_no_start_is_later_since_another_job_was_cancelled() -> None:
    cluster = Cluster.regular(1, 1, 1)
    scheduler = Scheduler(make_ordering("SJF"), make_backfilling("conservative"),
                          make_policy("compact", cluster))
    queue = scheduler.new_queue()
    for job in (Job(1, "a", 1, 10), Job(2, "a", 1, 20), Job(3, "a", 1, 30)):
        queue.add(job)
        scheduler.step(0, queue, cluster)
    queue.add(Job(4, "a", 1, 5))  # shorter, but the others have their starts already
    scheduler.step(0, queue, cluster)
    assert scheduler.reservations(0, queue, cluster) == {2: 10, 3: 30, 4: 60}
    queue.remove(3)
    scheduler.step(1, queue, cluster)
    assert scheduler.reservations(1, queue, cluster) == {2: 10, 4: 30}


def test_nodes_that_go_down_and_come_back() -> None:
    cluster = Cluster.regular(3, 1, 1)
    scheduler = Scheduler(make_ordering("FCFS"), make_backfilling("conservative"),
                          make_policy("compact", cluster))
    queue = scheduler.new_queue()
    cluster.set_up(1, False)
    queue.add(Job(1, "a", 3, 10))
    queue.add(Job(2, "a", 2, 10))
    assert [start.job.id for start in scheduler.step(0, queue, cluster)] == [2]
    assert scheduler.reservations(0, queue, cluster) == {1: math.inf}
    cluster.set_up(1, True)
    scheduler.step(1, queue, cluster)
    assert scheduler.reservations(1, queue, cluster) == {1: 10}


def test_a_number_of_reservations_by_name() -> None:
    assert make_backfilling("1").name == "easy" and make_backfilling("0").name == "none"
    assert (make_backfilling("4").depth, make_backfilling("4").kept) == (4, False)
    assert (make_backfilling("4-kept").depth, make_backfilling("4-kept").kept) == (4, True)
