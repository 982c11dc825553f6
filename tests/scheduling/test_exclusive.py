"""Exclusive jobs among others that share nodes core by core: plans with reservations against a plain
definition, and what a job of an earlier placement policy keeps."""

from __future__ import annotations

import math
from typing import Any, NamedTuple
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.reference import Place, Reference, places_of, regular_nodes
from vrm.model import Cluster, Job, Node
from vrm.model.booking import Watcher
from vrm.scheduling import Scheduler, make_backfilling, make_ordering, make_policy
from vrm.api import Machine, Recording, Rules, Submission, simulate


class Held(NamedTuple):
    """What a job has from begin to end."""

    job: Job
    begin: float
    end: float
    places: list[Place]


def earliest(job: Job, now: float, held: Sequence[Held], nodes: Sequence[Node]) -> Held | None:
    """The first place where the job finds the same cores for all its estimate: every end is tried."""
    for begin in sorted({now, *(each.end for each in held if each.end > now)}):
        end, machine = begin + job.estimate, Reference(nodes, "pack")
        for other in held:
            if other.begin < end and begin < other.end:
                for index, socket, cores in other.places:
                    for core in cores:
                        machine.nodes[index].slots[socket][core] = other.job.id
                    if other.job.exclusive:
                        machine.nodes[index].halves = [other.job, other.job]
        places = machine.find(job)
        if places:
            return Held(job, begin, end, places)
    return None


def plain(jobs: Sequence[Submission], nodes: Sequence[Node], depth: float, kept: bool
          ) -> dict[int, tuple[float, list[Place]]]:
    """Start and places of every job, first come first served, by the definition; nothing is clever here."""
    running: dict[int, tuple[float, Held]] = {}  # real end, and what is expected
    waiting: list[Job] = []
    slots: dict[int, Held] = {}
    starts: dict[int, tuple[float, list[Place]]] = {}
    runs = {job.id: run for job, run, *_ in jobs}
    to_come = [job for job, *_ in jobs]
    while to_come or running or waiting:
        now = min([job.submit for job in to_come] + [end for end, _ in running.values()]
                  + [slot.begin for slot in slots.values()])
        early = False
        for job_id in [i for i, (end, _) in running.items() if end == now]:
            early |= running.pop(job_id)[1].end > now
        fresh = [job for job in to_come if job.submit <= now]
        to_come = to_come[len(fresh):]
        waiting += fresh

        def found(job: Job) -> Held:
            others = [slot for job_id, slot in slots.items() if job_id != job.id]
            slot = earliest(job, now, [each for _, each in running.values()] + others, nodes)
            assert slot is not None
            return slot

        def start(job: Job) -> None:
            slot = found(job)
            assert slot.begin == now
            slots.pop(job.id, None)
            waiting.remove(job)
            starts[job.id] = now, slot.places
            running[job.id] = now + runs[job.id], slot

        if not kept:
            slots.clear()
        elif early:
            for job in [job for job in waiting if job.id in slots]:
                better = found(job)
                if better.begin < slots[job.id].begin:
                    slots[job.id] = better
        if kept:
            for job in fresh:
                slots[job.id] = found(job)
            for job in list(waiting):
                if slots[job.id].begin <= now:
                    start(job)
        for job in list(waiting):
            if job.id not in slots:
                slot = found(job)
                if slot.begin == now:
                    start(job)
                elif len(slots) < depth:
                    slots[job.id] = slot
    return starts


@st.composite
def cases(draw: Any) -> tuple[list[Node], list[Submission]]:
    """A machine, and jobs that fit on it, some of them exclusive; many end early."""
    nodes = draw(regular_nodes(4))
    machine = Cluster(nodes)
    policy = make_policy("pack", machine)
    time, found = 0, []
    for number in range(1, draw(st.integers(2, 14))):
        time += draw(st.sampled_from([0, 0, 1, 1, 2, 5]))
        estimate = draw(st.integers(1, 15))
        job = Job(number, "a", draw(st.integers(1, machine.cores)), estimate, time,
                  draw(st.sampled_from([False, False, True])), draw(st.sampled_from([1, 1, 1, 2])))
        if policy.place(job, machine):
            found.append(Submission(job, draw(st.integers(1, estimate))))
    return nodes, found


class Starts(Watcher):
    """What started when, and where."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = nodes
        self.starts: dict[int, tuple[float, list[Place]]] = {}

    def booked(self, booking: Any) -> None:
        self.starts[booking.job.id] = booking.start, places_of(booking.placement, self.nodes)


@pytest.mark.parametrize("backfill, depth, kept", [
    ("conservative", math.inf, True), ("conservative-recomputed", math.inf, False), ("2", 2, False)])
@settings(max_examples=60, deadline=None)
@given(case=cases())
@pytest.mark.slow
def test_plans_equal_their_definition(backfill: str, depth: float, kept: bool,
                                      case: tuple[list[Node], list[Submission]]) -> None:
    nodes, jobs = case
    found = Starts(nodes)
    simulate(list(jobs), Machine(nodes), Rules(policy="pack", backfill=backfill), record=Recording(watchers=[found]))
    assert found.starts == plain(jobs, nodes, depth, kept)


def test_nothing_else_comes_on_its_nodes() -> None:
    """Four nodes of 4 cores: a job of one core, an exclusive one on two nodes, and what is left."""
    cluster = Cluster.regular(4, 2, 2)
    policy = make_policy("pack", cluster)

    def place(number: int, tasks: int, alone: bool = False, **more: Any) -> list[int] | None:
        job = Job(number, "a", tasks, 10, exclusive=alone, **more)
        placement = policy.place(job, cluster)
        assert policy.fits(job, cluster) == bool(placement)
        if not placement:
            return None
        cluster.book(job, placement, 0)
        return placement.nodes

    assert place(1, 1) == [0]
    assert place(2, 5, alone=True) == [1, 2]
    assert (cluster.count_free(), cluster.taken_cores, cluster.count_empty()) == (7, 6, 1)
    assert [cluster.free_on(node) for node in range(4)] == [3, 0, 0, 4]
    assert place(3, 6) == [0, 3]  # its last core is next to the exclusive job's
    waits = Job(4, "a", 5, 10, exclusive=True)
    assert place(4, 5, alone=True) is None and policy.nodes(waits) == 2
    assert str(policy.place(waits, cluster)) == "needs 2 empty nodes, 0 empty"
    assert str(policy.place(Job(5, "a", 2, 10), cluster)) == "needs 2 free cores, 1 free"
    assert not policy.exact(waits) and policy.exact(Job(5, "a", 2, 10))
    cluster.release(2)
    assert cluster.count_free() == 9 and place(5, 5, alone=True) == [1, 2]


def test_a_node_that_was_lost_gives_nothing_back() -> None:
    """The head counts on the exclusive job's node that is up, and on no more."""
    cluster = Cluster.regular(2, 1, 4)
    scheduler = Scheduler(make_ordering("FCFS"), make_backfilling("easy"), make_policy("pack", cluster))
    queue = scheduler.new_queue()
    queue.add(Job(1, "a", 5, 10, exclusive=True))
    assert [start.job.id for start in scheduler.step(0, queue, cluster)] == [1]
    cluster.set_up(1, False)
    for number, cores in ((2, 4), (3, 5)):
        queue.add(Job(number, "a", cores, 10, submit=number))
    assert scheduler.step(3, queue, cluster) == [] and scheduler.reservations(3, queue, cluster) == {2: 10}
    cluster.release(1)
    assert [start.job.id for start in scheduler.step(4, queue, cluster)] == [2]
    assert scheduler.reservations(4, queue, cluster) == {}


@pytest.mark.parametrize("backfill", ["none", "easy", "conservative"])
def test_jobs_of_a_policy_by_lanes_keep_their_nodes_under_pack(backfill: str) -> None:
    """As where somebody has changed the configuration while jobs run."""
    cluster = Cluster.regular(3, 2, 2)
    for number, policy in enumerate(("compact", "strip")):
        job = Job(number, "a", 2, 10)
        placement = make_policy(policy, cluster).place(job, cluster)
        assert placement
        cluster.book(job, placement, 0)
    scheduler = Scheduler(make_ordering("FCFS"), make_backfilling(backfill), make_policy("pack", cluster))
    queue = scheduler.new_queue()
    assert cluster.count_free() == 4
    for number, (tasks, alone) in enumerate(((3, False), (1, True), (9, False)), 2):
        queue.add(Job(number, "a", tasks, 10, exclusive=alone, submit=1))

    def step(now: float) -> Iterator[tuple[int, list[int]]]:
        return ((start.job.id, start.booking.placement.nodes) for start in scheduler.step(now, queue, cluster))

    assert list(step(1)) == [(2, [2])]
    cluster.release(0)
    assert list(step(2)) == [(3, [0])] and cluster.count_free() == 1
    for job_id in (1, 2, 3):
        cluster.release(job_id)
    assert list(step(3)) == [(4, [0, 1, 2])]
