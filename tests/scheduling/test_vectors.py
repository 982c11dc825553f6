"""Cores, memory, GPUs and licences together: promises of backfilling against brute force on random
mixed machines, devices, and how tasks are spread over nodes."""

from __future__ import annotations

import gc
import itertools
import math
import re
from typing import Any
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.reference import (POLICIES, Place, Reference, different_nodes, jobs, places_of, workloads)

from vrm.model import Cluster, CorePlacement, Infeasible, Job, Node, Placement, Pool, bits
from vrm.model.sharing import devices
from vrm.model.job import Request
from vrm.model.machine import Machine
from vrm.model.node import Device
from vrm.model.sharing.capacity import CapacityLedger
from vrm.scheduling import PolicyError, Scheduler, make_backfilling, make_ordering, make_policy
from vrm.scheduling.placement.spread import spread
from vrm.api import Rules, Submission, simulate

# ------------------------------------------------------------- conservative, by trying all moments

Hold = tuple[Job, list[Place], float]


def at(reference: Reference, holds: Sequence[Hold], moment: float, now: float) -> Reference:
    """The machine at a moment of the future, with what is reserved."""
    later = reference.at(moment, now)
    for job, places, begin in holds:
        if begin <= moment < begin + job.estimate:
            later.start(job, places, begin)
    return later


def common(states: Sequence[Reference]) -> Reference:
    """What is free in all of them."""
    first = states[0].copy()
    for other in states[1:]:
        first.licences = min(first.licences, other.licences)
        for mine, yours in zip(first.nodes, other.nodes):
            for socket, theirs in zip(mine.slots, yours.slots):
                socket[:] = [a if a is not None else b for a, b in zip(socket, theirs)]
            mine.halves = [a if a is not None else b for a, b in zip(mine.halves, yours.halves)]
            mine.left = {name: min(left, yours.left[name]) for name, left in mine.left.items()}
    return first


def earliest(job: Job, reference: Reference, holds: Sequence[Hold], now: float
             ) -> tuple[float, list[Place]]:
    """The first moment from which the job fits for all its estimate, and where."""
    changes = {now, *(max(end, now) for _, _, end in reference.running.values()),
               *(begin for _, _, begin in holds), *(begin + job.estimate for job, _, begin in holds)}
    times = sorted(time for time in changes if time >= now)
    for time in times:
        during = [each for each in times if time <= each < time + job.estimate]
        places = common([at(reference, holds, each, now) for each in during]).find(job)
        if places is not None:
            return time, places
    return math.inf, []


@settings(max_examples=250, deadline=None)
@given(different_nodes(4), workloads(plain=False, most=7), POLICIES)
@pytest.mark.slow
def test_conservative_gives_every_job_the_first_hole(nodes: list[Node], tasks: Any, policy: str
                                                     ) -> None:
    cluster = Cluster(nodes, {"ansys": 2})
    chosen = make_policy(policy, cluster)
    scheduler = Scheduler(make_ordering("FCFS"), make_backfilling("conservative-recomputed"), chosen)
    reference = Reference(nodes, policy, licences=2)
    queue = scheduler.new_queue()
    waiting: dict[int, Job] = {}
    events: list[tuple[float, int, Any]] = [(task.job.submit, 1, task.job) for task in tasks]
    runs = {task.job.id: task.runtime for task in tasks}
    while events:
        now = min(time for time, _, _ in events)
        happening = sorted((e for e in events if e[0] <= now), key=lambda each: each[1])
        events = [e for e in events if e[0] > now]
        for _, _, what in happening:
            if isinstance(what, Job):
                try:
                    scheduler.check(what)
                except Infeasible:
                    continue
                queue.add(what)
                waiting[what.id] = what
            else:
                cluster.release(what)
                reference.end(what)
        holds: list[Hold] = []
        planned: dict[int, float] = {}
        for job in reference.in_order(list(waiting.values()), now):
            planned[job.id], places = earliest(job, reference, holds, now)
            if places:
                holds.append((job, places, planned[job.id]))
        starts = scheduler.step(now, queue, cluster)
        assert {start.job.id for start in starts} == {
            job_id for job_id, time in planned.items() if time <= now}, planned
        for start in starts:
            reference.start(start.job, places_of(start.booking.placement, nodes), now)
            del waiting[start.job.id]
            events.append((now + runs[start.job.id], 0, start.job.id))
        assert scheduler.reservations(now, queue, cluster) == {
            job_id: time for job_id, time in planned.items() if job_id in waiting}
    assert not waiting


@pytest.mark.parametrize("backfill", ["conservative", "2-kept", "3", "easy-kept"])
@settings(max_examples=50, deadline=None)
@given(different_nodes(4), workloads(plain=False, most=8), POLICIES)
@pytest.mark.slow
def test_kept_promises_hold(backfill: str, nodes: list[Node], tasks: Any, policy: str) -> None:
    """Whoever ends when expected delays nobody whose reservation is kept, and all jobs run."""
    submissions = [Submission(task.job, task.job.estimate) for task in
                   sorted(tasks, key=lambda task: (task.job.submit, task.job.id))]
    promised: dict[int, float] = {}
    cluster = Cluster(nodes, {"ansys": 2})
    scheduler = Scheduler(make_ordering("FCFS"), make_backfilling(backfill),
                          make_policy(policy, cluster))
    queue, running = scheduler.new_queue(), []
    coming = list(submissions)
    now = 0.0
    while coming or running:
        now = min([one.job.submit for one in coming[:1]] + [end for end, _ in running]
                  + ([scheduler.wake(now)] if len(queue) else []))
        for end, job_id in [each for each in running if each[0] <= now]:
            running.remove((end, job_id))
            cluster.release(job_id)
        while coming and coming[0].job.submit <= now:
            try:
                scheduler.check(coming[0].job)
                queue.add(coming[0].job)
            except Infeasible:
                pass
            coming.pop(0)
        for start in scheduler.step(now, queue, cluster):
            running.append((now + start.job.estimate, start.job.id))
            assert now <= promised.get(start.job.id, math.inf)
        if scheduler.dispatcher.name == "conservative" or "kept" in backfill:
            for job_id, time in scheduler.reservations(now, queue, cluster).items():
                assert time <= promised.get(job_id, math.inf)
                promised[job_id] = time
    assert not len(queue)


def test_a_reservation_is_protected_where_it_is_known_not_to_be() -> None:
    """One processor is held, a job of two waits, a long one of one processor must not pass it."""
    jobs_ = [Job(1, "a", 1, 100.0, 10.0), Job(2, "a", 2, 50.0, 11.0), Job(3, "a", 1, 1000.0, 12.0)]
    for memory in ({}, {"resources": {"memory": 1}}):
        asked = [Job(job.id, "a", job.procs, job.walltime, job.submit, **memory) for job in jobs_]
        outcome = simulate([Submission(job, job.walltime) for job in asked],
                           Machine([Node(f"n{i}", (1,), {"memory": 1.5}) for i in range(2)]),
                           Rules(policy="pack", backfill="easy"))
        assert {job.id: job.start for job in outcome.jobs} == {1: 10, 2: 110, 3: 160}


# ----------------------------------------------------------------------------------------- devices


def nearest_are_taken(request: Request, placement: Placement, nodes: Sequence[Node], before: devices.Held) -> None:
    """Each task of a program has as many GPUs as it asked for, the nearest that nobody had `before`; now it has them."""
    for node, slots in itertools.groupby(placement.slots(nodes), key=lambda slot: slot.node):
        places = list(slots)
        mine = placement.devices.get(node, {}).get("gpu", ())
        assert len(mine) == len(set(mine)) == (request.gpus_per_task * len(places)
                                               + request.gpus_per_node)
        free = {each for each in nodes[node].devices["gpu"]
                if each.index not in before.get((node, "gpu"), ())}
        seen = [devices.of_task(request, "gpu", mine, task, len(places))
                for task in range(len(places))]
        for task, slot in enumerate(places):
            own = seen[task][:request.gpus_per_task]
            near = {each.index for each in free if each.socket == slot.socket}
            if not near >= set(own):  # then all that were near are taken by it
                assert near <= set(own)
            free = {each for each in free if each.index not in own}
        assert len({index for each in seen for index in each}) == len(mine)
        before.setdefault((node, "gpu"), set()).update(mine)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 4), st.lists(
    st.integers(-1, 2), max_size=5)), min_size=1, max_size=3), st.lists(jobs(plain=False), max_size=8),
    POLICIES, st.data())
def test_no_two_jobs_hold_a_device_and_each_has_the_nearest(facts: Any, wishes: Any, policy: str,
                                                            data: Any) -> None:
    nodes = [Node(f"n{i}", (cores,) * sockets, {"gpu": len(gpus), "mem": 4, "memory": 8}, frozenset(
        ["fast", "big"]), {"gpu": tuple(Device(7 - at, socket) for at, socket in enumerate(gpus))})
        for i, (sockets, cores, gpus) in enumerate(facts)]
    cluster = Cluster(nodes, {"ansys": 2})
    chosen = make_policy(policy, cluster)
    held: dict[int, Any] = {}
    for number, wish in enumerate(wishes):
        job = Job(id=number, **wish)
        before = {place: set(indices) for place, indices in cluster.held.items()}
        try:
            chosen.nodes(job)
        except Infeasible:
            continue
        placement = chosen.place(job, cluster)
        if not placement:
            if held and data.draw(st.booleans()):
                gone = data.draw(st.sampled_from(sorted(held)))
                cluster.release(gone)
                del held[gone]
            continue
        placement = cluster.book(job, placement, 0.0).placement
        held[number] = placement.devices
        for request, part in zip(job.request.parts or (job.request,), placement.parts or (placement,)):
            nearest_are_taken(request, part, nodes, before)
        taken = [(node, index) for given_ in held.values() for node, by_name in given_.items()
                 for index in by_name["gpu"]]
        assert len(taken) == len(set(taken))
        assert {(node, index) for (node, _), indices in cluster.held.items()
                for index in indices} == set(taken)
    for job_id in held:
        cluster.release(job_id)
    assert not any(cluster.held.values())
    assert cluster.left == Cluster(nodes).left and cluster.licences == {"ansys": 2000}


def test_devices_that_somebody_holds_cannot_be_given_again() -> None:
    cluster = Cluster([Node("n0", (4,), {"gpu": 2})])
    job = Job(0, "a", 1, 9.0, resources={"gpu": 1})
    policy = make_policy("pack", cluster)
    for number in range(2):
        placement = policy.place(job.but(id=number), cluster)
        assert placement
        booking = cluster.book(job.but(id=number), placement, 0.0)
        assert booking.placement.devices == {0: {"gpu": (number,)}} and not placement.devices
    twin = policy.place(Job(2, "a", 1, 9.0), cluster)
    assert twin is not None
    with pytest.raises(ValueError, match="gpu 1 of node 0 is held"):
        cluster.book(job.but(id=2), twin.but(devices={0: {"gpu": (1,)}}), 0.0)


# ------------------------------------------------------------------------------------------ spread


@pytest.mark.parametrize("rooms, asked, expected", [
    ([8, 8, 8], {"tasks": 10}, [8, 2]),
    ([8, 8, 8], {"tasks": 8, "nodes": (2, 0)}, [4, 4]),
    ([8, 8, 8], {"tasks": 8, "nodes": (3, 3)}, [3, 3, 2]),
    ([1, 8, 8], {"tasks": 9, "nodes": (2, 2)}, [1, 8]),
    ([1, 2, 8], {"tasks": 8, "nodes": (1, 1)}, {2: 8}),
    ([1, 8, 4], {"tasks": 12, "nodes": (2, 2)}, {1: 8, 2: 4}),
    ([1, 8, 4], {"tasks": 13, "nodes": (2, 2)}, None),
    ([8], {"tasks": 2, "nodes": (2, 0)}, None),
])
def test_tasks_are_spread(rooms: list[int], asked: Any, expected: Any) -> None:
    found = spread(list(enumerate(rooms)), Request.of(**asked))
    if isinstance(expected, list):
        expected = dict(enumerate(expected))
    assert (found if found is None else dict(found)) == expected


@pytest.mark.parametrize("asked, part", [
    ({"tasks": 2, "nodes": (3, 0)}, "2 rank.* cannot run on 3 nodes"),
    ({"tasks": 9, "nodes": (1, 2), "tasks_per_node": 4}, "9 ranks do not fit on 2 node"),
    ({"tasks": 1, "resources": {"gpu": 0.5}}, "not a whole number"),
    ({"tasks": 1, "licences": {"a": -1}}, "from 0 on"),
])
def test_requests_that_contradict_themselves(asked: Any, part: str) -> None:
    with pytest.raises(ValueError, match=part):
        Request.of(**asked)


def test_a_request_that_found_no_room_finds_some_once_something_is_freed() -> None:
    """Until then nobody looks again; another cluster, and a view of the future, are looked at."""
    cluster = Cluster([Node("a", (4,), {"gpu": 2}), Node("b", (4,))])
    policy = make_policy("pack", cluster)
    first = Job(1, "x", 1, 10.0, resources={"gpu": 2})
    second, third = (Job(number, "x", 1, 10.0, resources={"gpu": 1}) for number in (2, 3))
    placement = policy.place(first, cluster)
    assert placement
    cluster.book(first, placement, 0.0)
    assert not policy.place(second, cluster) and not policy.place(third, cluster)
    later = cluster.what_if()
    later.give(first, placement)
    assert policy.place(second, later) and not policy.place(second, cluster)
    other = cluster.copy()
    other.release(1)
    assert policy.copy().place(second, other) and not policy.place(second, cluster)
    cluster.release(1)
    found = policy.place(second, cluster)
    assert found is not None and list(found.nodes) == [0]
    cluster.book(second, found, 1.0)
    cluster.set_up(0, False)
    assert not policy.place(third, cluster)
    cluster.set_up(0, True)
    assert policy.place(third, cluster)


def test_copies_of_copies_do_not_keep_what_they_were_copied_of() -> None:
    """A plan makes copies of copies for as long as it lasts."""
    pool: Pool = Cluster([Node("a", (4,), {"gpu": 2})])
    job = Job(1, "x", 1, 10.0, resources={"gpu": 1})
    policy = make_policy("pack", pool)
    for _ in range(50):
        assert policy.fits(job, pool)
        pool = pool.what_if()
    gc.collect()
    assert sum(type(each) is CapacityLedger and each.all == pool.rooms.all
               for each in gc.get_objects()) < 20


# ------------------------------------------------------------------------------- policies of users


class Careless:
    """Puts every job on the first node, whatever is left there."""

    def nodes(self, job: Job) -> int:
        return 1

    def place(self, job: Job, view: Pool) -> Any:
        free = view.free_cores
        cores = bits.lowest(free, job.procs)
        return CorePlacement(view.layout, cores, job.procs) if bits.count(cores) == job.procs else None


@pytest.mark.parametrize("asked, said", [
    ({"resources": {"gpu": 2}}, "puts job 1 on n0, where it takes 2 of gpu and 1 is left"),
    ({"per_node": {"memory": 3}}, "puts job 1 on n0, where it takes 3G of memory and 2G is left"),
    ({"features": frozenset(["ib"])}, "puts job 0 on n0, which does not offer ib"),
    ({"nodes": (2, 2), "tasks": 2}, "puts job 0 on 1 node(s); it wants 2 to 2"),
    ({"tasks": 2, "tasks_per_node": 1}, "puts job 0 with 2 ranks on n0; it wants at most 1 on a node"),
])
def test_a_policy_of_ones_own_that_gives_what_is_not_there_is_reported(asked: Any, said: str) -> None:
    jobs_ = [Job(number, "a", asked.get("tasks", 1), 10.0, request=Request.of(
        **{"tasks": 1, **asked})) for number in range(2)]
    machine = [Node("n0", (4,), {"gpu": 3, "memory": 5}), Node("n1", (4,))]
    with pytest.raises(PolicyError, match=re.escape(said)):
        simulate([Submission(job, 10.0) for job in jobs_], Machine(machine),
                 Rules(policy=lambda cluster, heatmap: Careless()))


def test_jobs_under_a_policy_of_ones_own_wait_for_licences() -> None:
    jobs_ = [Job(number, "a", 1, 10.0, request=Request.of(1, licences={"ansys": wanted}))
             for number, wanted in enumerate((2, 1, 3))]
    outcome = simulate([Submission(job, 10.0) for job in jobs_],
                       rules=Rules(policy=lambda cluster, heatmap: Careless(), backfill="easy"),
                       machine=Machine((Node("n0", (4,)),), {"ansys": 2}))
    assert {job.id: job.start for job in outcome.jobs} == {0: 0, 1: 10}
    assert outcome.summary["refusals"] == {
        "the job wants 3 licence(s) of ansys, the run has 2": 1}
