"""Queues in decisions: who competes, on which nodes, and in which order (PRB)."""

from __future__ import annotations

from typing import Any
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vrm.model import Cluster, Infeasible, Job, Node
from vrm.model.queues import Queues
from vrm.scheduling import Scheduler, make_backfilling, make_ordering, make_policy
from vrm.ext.planning.orderings import Prb
from vrm.api import Machine, Rules, simulate
from vrm.workload.submission import Submission

DISPATCHERS = ["none", "easy", "list", "conservative", "easy-kept", "2", "conservative-recomputed"]


def scheduler(queues: Any, cluster: Cluster, backfill: str = "easy", ordering: str = "FCFS",
              policy: str = "pack") -> Scheduler:
    return Scheduler(make_ordering(ordering), make_backfilling(backfill), make_policy(policy, cluster),
                     queues=Queues.of(queues))


def started(subject: Scheduler, cluster: Cluster, jobs: Iterable[Job], now: float = 0.0,
            queue: Any = None) -> list[int]:
    queue = subject.new_queue() if queue is None else queue
    for job in jobs:
        queue.add(job)
    return [start.job.id for start in subject.step(now, queue, cluster)]


# ------------------------------------------------------------------------------------------- PRB


EURORA = {"debug": {"expected_wait": 3600}, "parallel": {"expected_wait": 6 * 3600},
          "longpar": {"expected_wait": 24 * 3600}}


def test_prb_ranks_by_the_wait_in_proportion_to_the_queue_and_then_by_volume() -> None:
    ordering: Any = make_ordering("PRB").of_queues(Queues.of(EURORA))
    now = 100_000.0
    jobs = [Job(1, "a", 4, 600.0, now - 600, queue="debug", resources={"memory": 2}),
            Job(2, "a", 4, 600.0, now - 3600, queue="parallel", resources={"memory": 1}),
            Job(3, "a", 1, 600.0, now - 14400, queue="longpar", resources={"gpu": 2}),
            Job(4, "a", 1, 60.0, now - 599, queue="debug")]
    assert [ordering.rank(job, now) for job in jobs[:3]] == [-14400, -14400, -14400]
    keys = {job.id: ordering.key(job, now, 1) for job in jobs}
    assert [keys[number][1] for number in (1, 2, 3)] == [600 * 12, 600 * 8, 600 * 3]
    assert sorted(keys, key=keys.__getitem__) == [3, 2, 1, 4]


def test_prb_without_queues_is_first_come_with_the_smallest_first_of_equals() -> None:
    cluster = Cluster.regular(1, 1, 4)
    subject = scheduler({}, cluster, "list", "PRB")
    jobs = [Job(1, "a", 2, 60.0), Job(2, "a", 1, 60.0), Job(3, "a", 3, 60.0, queue="whatever"),
            Job(4, "a", 2, 60.0, submit=-5.0)]
    assert started(subject, cluster, jobs) == [4, 2]


def test_prb_tries_every_job() -> None:
    cluster = Cluster.regular(2, 1, 4)
    subject = scheduler(EURORA, cluster, "list", "PRB")
    jobs = [Job(1, "a", 1, 60.0, queue="debug"), Job(2, "a", 8, 60.0, -50.0, queue="debug"),
            Job(3, "a", 8, 60.0, -40.0, queue="debug"), Job(4, "a", 6, 60.0, queue="parallel"),
            Job(5, "a", 1, 60.0, queue="longpar")]
    queue = subject.new_queue()
    assert started(subject, cluster, jobs[:1], queue=queue) == [1]
    assert started(subject, cluster, jobs[1:], queue=queue) == [5, 4]


def test_the_default_queue_has_the_jobs_that_name_none() -> None:
    queues = Queues.of({"a": {"expected_wait": 100}, "b": {"expected_wait": 200, "default": True}})
    ordering: Any = make_ordering("PRB").of_queues(queues)
    assert ordering.rank(Job(1, "x", 1, 1.0), 50.0) == -50
    assert ordering.rank(Job(1, "x", 1, 1.0, queue="a"), 50.0) == -100
    assert Queues.of({"a": {}, "b": {}}).queue(Job(1, "x", 1, 1.0)).name == "a"
    assert isinstance(ordering, Prb)


# ---------------------------------------------------------------------------------------- limits


@pytest.mark.parametrize("backfill", DISPATCHERS)
@pytest.mark.parametrize("limit, expected", [
    ({}, [1, 2, 3, 4, 5]),
    ({"max_running": 2}, [1, 2, 5]),
    ({"max_cores": 3}, [1, 2, 5]),
    ({"max_cores": 2}, [1, 3, 5]),  # 2 is over the limit and blocks nobody
    ({"max_running_per_user": 1}, [1, 3, 5]),
    ({"max_cores_per_user": 3}, [1, 2, 3, 4, 5]),
    ({"max_cores_per_user": 2}, [1, 3, 4, 5]),
])
def test_who_is_over_a_limit_waits_and_blocks_nobody(backfill: str, limit: dict[str, int],
                                                     expected: list[int]) -> None:
    cluster = Cluster.regular(4, 1, 4)
    subject = scheduler({"q": limit, "r": {}}, cluster, backfill)
    jobs = [Job(1, "a", 1, 60.0, queue="q", user="u"), Job(2, "a", 2, 60.0, queue="q", user="u"),
            Job(3, "a", 1, 60.0, queue="q", user="v"), Job(4, "a", 1, 60.0, queue="q", user="v"),
            Job(5, "a", 1, 60.0, queue="r", user="u")]
    queue = subject.new_queue()
    assert started(subject, cluster, jobs, queue=queue) == expected
    assert len(queue) == 5 - len(expected) == len(queue.outside)
    assert queue.competing == 0
    assert started(subject, cluster, (), 1.0, queue) == []
    # Each that ends lets another one in.
    moments = 0
    while cluster.bookings:
        moments += 1
        cluster.release(min(cluster.bookings))
        started(subject, cluster, (), 1.0 + moments, queue)
    assert not len(queue) and moments == 5 and queue.wanted == 0


def test_a_limit_says_what_stands_against_a_job() -> None:
    cluster = Cluster.regular(4, 1, 4)
    subject = scheduler({"q": {"max_running": 1}, "r": {"max_cores_per_user": 2}}, cluster)
    queue = subject.new_queue()
    started(subject, cluster, [Job(1, "a", 1, 60.0, queue="q"), Job(2, "a", 1, 60.0, queue="q"),
                               Job(3, "a", 2, 60.0, queue="r", user="eva"),
                               Job(4, "a", 1, 60.0, queue="r", user="eva")], queue=queue)
    assert queue.why_not_competing(cluster) == {
        2: "queue q: 1 of 1 jobs run or are next",
        4: "queue r: 2 of 2 cores of eva are taken or spoken for"}
    queue.remove(2)
    assert 2 not in queue and list(queue.outside) == [4] and len(queue) == 1


def test_who_competes_keeps_its_turn() -> None:
    """Job 2 is first of the queue and too large now: a smaller one of the queue does not take its
    slot, and its reservation holds."""
    cluster = Cluster.regular(2, 1, 4)
    subject = scheduler({"q": {"max_running": 2}, "r": {}}, cluster)
    queue = subject.new_queue()
    jobs = [Job(1, "a", 2, 100.0, queue="q"), Job(2, "a", 8, 60.0, queue="q"),
            Job(3, "a", 1, 60.0, queue="q"), Job(4, "a", 1, 60.0, queue="r"),
            Job(5, "a", 1, 500.0, queue="r")]
    assert started(subject, cluster, jobs, queue=queue) == [1, 4]
    assert subject.reservations(0.0, queue, cluster) == {2: 100}
    assert list(queue.outside) == [3]


def test_priorities_of_queues_come_before_the_order() -> None:
    cluster = Cluster.regular(1, 1, 1)
    subject = scheduler({"low": {}, "high": {"priority": 5}}, cluster, "none")
    queue = subject.new_queue()
    jobs = [Job(1, "a", 1, 60.0, queue="low"), Job(2, "a", 1, 60.0, queue="high"),
            Job(3, "a", 1, 60.0, queue="low", priority=7), Job(4, "a", 1, 60.0, queue="high")]
    order = []
    for job in jobs:
        queue.add(job)
    for _ in jobs:
        order += [start.job.id for start in subject.step(0.0, queue, cluster)]
        cluster.release(order[-1])
    assert order == [3, 2, 4, 1]


# --------------------------------------------------------------------------- nodes, cores per node


@pytest.mark.parametrize("policy", ["compact", "spare", "strip", "pack"])
def test_jobs_run_on_the_nodes_of_their_queue(policy: str) -> None:
    queues = Queues.of({"small": {"nodes": ("n2", "n3")}, "rest": {}})
    nodes = queues.marked([Node(f"n{number}.site", (4,)) for number in range(4)])
    cluster = Cluster(nodes)
    subject = scheduler(queues, cluster, "list", policy=policy)
    queue = subject.new_queue()
    for number in range(3):
        queue.add(Job(number, "a", 2, 60.0, queue="small"))
    queue.add(Job(3, "a", 2, 60.0, queue="rest"))
    found = {start.job.id: start.booking.placement.nodes for start in subject.step(0, queue, cluster)}
    assert all(set(found[number]) <= {2, 3} for number in found if number < 3)
    assert len(found) >= 3 and found[3][0] in (0, 1)
    with pytest.raises(Infeasible, match=r"\(queue small runs on 2 node\(s\)\)"):
        subject.check(Job(9, "a", 16, 60.0, queue="small"))


def test_a_queue_gives_a_job_some_cores_of_each_node() -> None:
    cluster = Cluster.regular(4, 2, 4)
    subject = scheduler({"half": {"cores_per_node": 3}, "rest": {}}, cluster)
    placement = subject.policy.place(Job(1, "a", 5, 60.0, queue="half"), cluster)
    assert placement
    assert dict(placement.ranks_by_node(cluster.nodes)) == {0: 3, 1: 2}
    wide = subject.policy.place(Job(1, "a", 2, 60.0, queue="half", cores=2), cluster)
    assert wide is not None and dict(wide.ranks_by_node(cluster.nodes)) == {0: 1, 1: 1}
    with pytest.raises(Infeasible, match="a rank wants 4 cores, queue half gives a job 3 of a node"):
        subject.check(Job(1, "a", 1, 60.0, queue="half", cores=4))
    assert subject.policy.nodes(Job(1, "a", 5, 60.0, queue="half")) == 2
    assert subject.policy.nodes(Job(1, "a", 5, 60.0, queue="rest")) == 1


# ------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize("job, message", [
    (Job(1, "a", 1, 1.0, queue="debg"), "unknown queue `debg`; did you mean debug?"),
    (Job(1, "a", 1, 1.0, queue="x"), "unknown queue `x`; known: debug, long"),
    (Job(1, "a", 9, 1.0, queue="debug"), "it wants 9 cores, queue debug allows 8 at a time"),
    (Job(1, "a", 3, 1.0, queue="long"), "it wants 3 cores, queue long allows a user 2 at a time"),
])
def test_what_a_queue_never_allows_is_refused(job: Job, message: str) -> None:
    cluster = Cluster.regular(4, 1, 4)
    subject = scheduler({"debug": {"max_cores": 8}, "long": {"max_cores_per_user": 2}}, cluster)
    with pytest.raises(Infeasible) as never:
        subject.check(job)
    assert str(never.value) == message
    with pytest.raises(Infeasible):
        subject.new_queue().add(job)


def test_a_simulation_refuses_what_queues_refuse_and_counts_it() -> None:
    jobs = [Submission(Job(1, "a", 1, 60.0, queue="debug"), 10.0),
            Submission(Job(2, "a", 1, 60.0, queue="debgu"), 10.0)]
    outcome = simulate(jobs, Machine.of(1, cores=2), Rules(policy="pack", queues={"debug": {"max_running": 1}}))
    assert outcome.summary["refusals"] == {"unknown queue `debgu`; did you mean debug?": 1}


@pytest.mark.parametrize("queues", [{"debug": {"max": 2}}, {"debug": 3}, {"a": {"max_running": -1}},
                                    {"a": {"default": True}, "b": {"default": True}},
                                    {"a": {"expected_wait": 0}}, ["a"]])
def test_what_are_no_queues_is_one_line(queues: Any) -> None:
    from vrm.scheduling import PolicyError
    with pytest.raises(PolicyError, match="^queues: "):
        simulate([], Machine.of(1), Rules(queues=queues))


# -------------------------------------------------------------------------------- properties


QUEUES = st.fixed_dictionaries({"a": st.fixed_dictionaries({}, optional={
    "max_running": st.integers(1, 3), "max_cores": st.integers(4, 8),
    "max_running_per_user": st.integers(1, 2), "max_cores_per_user": st.integers(4, 6),
    "priority": st.integers(-1, 1)}), "b": st.fixed_dictionaries({}, optional={
        "max_running": st.integers(1, 3), "cores_per_node": st.integers(2, 4)})})
JOBS = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 9), st.integers(1, 9), st.integers(0, 12),
                          st.sampled_from(["a", "b", ""]), st.sampled_from(["u", "v"])), max_size=14)


@pytest.mark.parametrize("backfill", DISPATCHERS)
@settings(max_examples=60, deadline=None)
@given(queues=QUEUES, wanted=JOBS, ordering=st.sampled_from(["FCFS", "SJF", "WFP3", "PRB"]))
def test_limits_hold_at_every_moment_and_all_jobs_end(
        backfill: str, queues: dict[str, dict[str, int]], wanted: list[tuple[Any, ...]],
        ordering: str) -> None:
    queues["a"]["default"] = True
    jobs = [Submission(Job(number, "x", procs, float(estimate), float(submit), queue=queue, user=user),
                       float(min(run, estimate)))
            for number, (procs, run, estimate, submit, queue, user) in enumerate(
                sorted(wanted, key=lambda each: each[3]))]
    outcome = simulate(jobs, Machine.of(2, cores=4),
                       Rules(policy="pack", algorithm=ordering, backfill=backfill, queues=queues))
    rows = {row.id: row for row in outcome.jobs}
    assert len(rows) == len(jobs)
    for row in rows.values():
        extra = [jobs[other.id].job for other in rows.values()
                  if other.start <= row.start < other.end]
        for name, keys in queues.items():
            mine = [job for job in extra if (job.queue or "a") == name]
            for most_jobs, most_cores, group in (
                    (keys.get("max_running"), keys.get("max_cores"), mine),
                    *((keys.get("max_running_per_user"), keys.get("max_cores_per_user"),
                       [job for job in mine if job.user == user]) for user in "uv")):
                assert most_jobs is None or len(group) <= most_jobs
                assert most_cores is None or sum(job.procs for job in group) <= most_cores


@settings(max_examples=60, deadline=None)
@given(queues=QUEUES, wanted=JOBS)
def test_kept_reservations_hold_beside_limits(queues: dict[str, dict[str, int]],
                                              wanted: list[tuple[Any, ...]]) -> None:
    """Under conservative backfilling with exact estimates nobody starts after its reservation."""
    cluster = Cluster.regular(2, 1, 4)
    subject = scheduler({name: {key: value for key, value in keys.items() if key != "cores_per_node"}
                         for name, keys in queues.items()}, cluster, "conservative")
    queue = subject.new_queue()
    coming = [Job(number, "x", procs, float(run), float(submit), queue=name, user=user)
              for number, (procs, run, _, submit, name, user) in enumerate(
                  sorted(wanted, key=lambda each: each[3]))]
    promised: dict[int, float] = {}
    while coming or len(queue) or cluster.bookings:
        times = [job.submit for job in coming[:1]]
        times += [booking.expected_end for booking in cluster.bookings.values()]
        now = min(times)
        for booking in list(cluster.bookings.values()):
            if booking.expected_end <= now:
                cluster.release(booking.job.id)
        while coming and coming[0].submit <= now:
            queue.add(coming.pop(0))
        for start in subject.step(now, queue, cluster):
            assert now <= promised.get(start.job.id, now)
        for job_id, time in subject.reservations(now, queue, cluster).items():
            assert time <= promised.get(job_id, time)
            promised[job_id] = time


def test_a_copied_queue_goes_on_by_itself() -> None:
    cluster = Cluster.regular(1, 1, 4)
    subject = scheduler({"q": {"max_running": 1}}, cluster)
    queue = subject.new_queue()
    started(subject, cluster, [Job(number, "a", 1, 60.0) for number in range(3)], queue=queue)
    other = cluster.copy()
    twin, waiting = subject.copy(other), queue.copy()
    other.release(0)
    assert started(twin, other, (), 1.0, waiting) == [1]
    assert list(queue.outside) == [1, 2] and list(waiting.outside) == [2]
    node: Node | None = cluster.nodes[0]
    assert node is not None and list(cluster.bookings) == [0]
