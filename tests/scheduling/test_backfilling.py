"""Scheduling steps against the plain reference, and what EASY promises."""

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.reference import (ORDERINGS, POLICIES, SHAPES, UTILITIES, Task, cancels, different_nodes, of_threads, pair,
                               play, regular_nodes, switches, workloads)
from vrm.api import Machine, simulate
from vrm.model import Cluster, Job, Node
from vrm.model.rules import Rules
from vrm.scheduling import PolicyError, Scheduler, make_backfilling, make_ordering, make_policy
from vrm.scheduling.backfilling.shadow import Shadow
from vrm.workload.submission import Submission


def run(moments):
    """When each job started, and where its ranks were."""
    return {job_id: (moment.now, backfilled, places)
            for moment in moments for job_id, backfilled, places in moment.starts}


# ----------------------------------------------------------------------- the same as the reference

BACKFILLINGS = ["none", "easy", "list"]


@pytest.mark.parametrize("backfilling", BACKFILLINGS)
@settings(max_examples=60, deadline=None)
@given(st.data(), POLICIES, ORDERINGS, st.booleans())
@pytest.mark.slow
def test_equal_nodes(backfilling, data, policy, ordering, heatmap):
    nodes = data.draw(regular_nodes())
    for _ in play(*pair(nodes, policy, ordering, backfilling, heatmap), data.draw(workloads()),
                  data.draw(cancels())):
        pass


@pytest.mark.parametrize("backfilling", BACKFILLINGS)
@settings(max_examples=350, deadline=None)
@given(st.data(), POLICIES, ORDERINGS, st.booleans())
@pytest.mark.slow
def test_different_nodes_resources_and_features(backfilling, data, policy, ordering, heatmap):
    nodes = data.draw(st.one_of(different_nodes(), regular_nodes(features=True)))
    for _ in play(*pair(nodes, policy, ordering, backfilling, heatmap, licences=2),
                  data.draw(workloads(plain=False)), data.draw(cancels())):
        pass


@settings(max_examples=150, deadline=None)
@given(st.data(), st.sampled_from(["compact", "spare", "strip"]), st.sampled_from(BACKFILLINGS), st.sampled_from([2, 4]))
@pytest.mark.slow
def test_hardware_threads(data, policy, backfilling, threads):
    """Jobs that have one, or all, of the hardware threads of each core, next to those that say nothing."""
    sockets = of_threads(data.draw(SHAPES), threads)
    nodes = [Node(f"n{number}", sockets, threads=threads) for number in range(data.draw(st.integers(1, 4)))]
    asked = data.draw(st.lists(st.sampled_from([0, 0, threads // 2, threads]), min_size=14, max_size=14))
    tasks = [task._replace(job=task.job.but(request=task.job.request._replace(threads=each)))
             for task, each in zip(data.draw(workloads()), asked)]
    for _ in play(*pair(nodes, policy, "FCFS", backfilling, True), tasks, data.draw(cancels())):
        pass


@settings(max_examples=80, deadline=None)
@given(st.data(), POLICIES, ORDERINGS)
@pytest.mark.slow
def test_jobs_past_their_estimate_and_nodes_that_go_down_and_return(data, policy, ordering):
    nodes = data.draw(st.one_of(regular_nodes(), different_nodes()))
    for _ in play(*pair(nodes, policy, ordering, "easy"), data.draw(workloads(late=True)),
                  data.draw(switches(len(nodes)))):
        pass


@settings(max_examples=15, deadline=None)
@given(st.data(), POLICIES)
def test_more_nodes_and_wider_jobs(data, policy):
    """Sets of nodes beyond a machine word, jobs of dozens of nodes."""
    nodes = [Node(f"n{i}", (2,)) for i in range(data.draw(st.integers(60, 80)))]
    wide = st.lists(st.tuples(st.integers(1, 160), st.integers(1, 9), st.booleans()),
                    min_size=1, max_size=12)
    tasks = [Task(Job(i, "ft.B.x", procs, estimate, i // 3, exclusive), estimate)
             for i, (procs, estimate, exclusive) in enumerate(data.draw(wide))]
    for _ in play(*pair(nodes, policy, "FCFS", "easy", heatmap=True), tasks):
        pass


@pytest.mark.parametrize("ordering", sorted(UTILITIES))
@settings(max_examples=4, deadline=None)
@given(st.data(), POLICIES, st.sampled_from(["easy", "list"]))
@pytest.mark.slow
def test_queues_long_enough_to_be_seen_through_arrays(ordering, data, policy, backfilling):
    nodes = [Node(f"n{i}", (3, 2)) for i in range(4)]
    many = st.lists(st.tuples(st.integers(1, 12), st.sampled_from([1, 2, 5, 9, 40]),
                              st.integers(0, 4)), min_size=60, max_size=90)
    tasks = [Task(Job(i, "ft.B.x", procs, estimate, submit), estimate)
             for i, (procs, estimate, submit) in enumerate(data.draw(many))]
    for moment in play(*pair(nodes, policy, ordering, backfilling), tasks):
        if moment.now > 30:
            break


# ---------------------------------------------------------------------------------- the promises


@settings(max_examples=100, deadline=None)
@given(st.data(), POLICIES, ORDERINGS, st.sampled_from(["none", "easy"]), st.booleans())
@pytest.mark.slow
def test_a_head_that_fits_starts_and_no_head_is_delayed(data, policy, ordering, backfilling, same):
    """With estimates that hold, a head starts no later than its first reservation promised, as
    long as it stays the head (FCFS: until it starts).
    """
    nodes = data.draw(regular_nodes() if same else different_nodes())
    promised = None  # to the head: id and time
    tasks = data.draw(workloads(plain=same))
    for moment in play(*pair(nodes, policy, ordering, backfilling), tasks):
        heads = [job_id for job_id, backfilled, _ in moment.starts if not backfilled]
        if promised and heads:
            assert heads[0] == promised[0] or ordering != "FCFS"
            assert heads[0] != promised[0] or moment.now <= promised[1]
            promised = None
        if not moment.waiting:
            continue
        head = moment.waiting[0]
        assert moment.reference.find(head) is None
        if not promised or promised[0] != head.id:
            assert not promised or ordering != "FCFS"
            promised = head.id, moment.reference.shadow_time(head, moment.now)
        assert moment.now < promised[1] < math.inf


@settings(max_examples=60, deadline=None)
@given(st.data(), POLICIES, ORDERINGS)
@pytest.mark.slow
def test_the_reservation_shown_is_the_heads(data, policy, ordering):
    nodes = data.draw(st.one_of(regular_nodes(), different_nodes()))
    for moment in play(*pair(nodes, policy, ordering, "easy"), data.draw(workloads(late=True)),
                       data.draw(switches(len(nodes)))):
        shown = moment.scheduler.reservations(moment.now, moment.queue, moment.cluster)
        wanted = {job.id: moment.reference.shadow_time(job, moment.now)
                  for job in moment.waiting[:1]}
        assert shown == {job_id: time for job_id, time in wanted.items() if time < math.inf}


@settings(max_examples=60, deadline=None)
@given(st.data(), POLICIES)
@pytest.mark.slow
def test_without_backfilling_jobs_start_in_the_order_of_the_queue(data, policy):
    nodes = data.draw(regular_nodes())
    tasks = data.draw(workloads())
    starts = run(play(*pair(nodes, policy), tasks))
    order = [task.job.id for task in sorted(tasks, key=lambda t: (t.job.submit, t.job.id))
             if task.job.id in starts]
    assert list(starts) == order
    assert not any(backfilled for _, backfilled, _ in starts.values())


# ------------------------------------------------------------------------------------- examples


def easy_on(nodes, tasks, policy="compact"):
    """Start time and whether backfilled, by id; tasks are (submit, procs, seconds[, runtime])."""
    made = [Task(Job(i, "ft.B.x", procs, seconds, submit), (runtime or [seconds])[0])
            for i, (submit, procs, seconds, *runtime) in enumerate(tasks, 1)]
    starts = run(play(*pair(nodes, policy, backfilling="easy"), made))
    return {job_id: (now, backfilled) for job_id, (now, backfilled, _) in starts.items()}


def single_cores(count):
    return [Node(f"n{i}", (1,)) for i in range(count)]


def test_a_long_job_does_not_take_the_node_that_the_head_needs():
    assert easy_on(single_cores(2), [(10, 1, 100), (11, 2, 50), (12, 1, 1000)]) == {
        1: (10, False), 2: (110, False), 3: (160, False)}


def test_rule_one_ends_by_the_shadow_time():
    tasks = [(10, 1, 100), (11, 2, 50)]
    assert easy_on(single_cores(2), [*tasks, (12, 1, 98)])[3] == (12, True)  # to the second
    assert easy_on(single_cores(2), [*tasks, (12, 1, 98.125)])[3] == (160, False)


def test_rule_two_leaves_the_head_what_it_needs():
    """At 110 three nodes are free and the head needs two: one may be taken for ever, not two."""
    tasks = [(10, 2, 100), (11, 2, 50)]
    assert easy_on(single_cores(3), [*tasks, (12, 1, 1000)])[3] == (12, True)
    starts = easy_on(single_cores(4), [(10, 2, 100), (11, 3, 50), (12, 1, 900), (12, 1, 900)])
    assert starts == {1: (10, False), 2: (110, False), 3: (12, True), 4: (160, False)}


def test_rule_two_counts_what_ends_at_the_shadow_time_itself():
    """Both running jobs end at 110; the head needs one of the three nodes."""
    starts = easy_on(single_cores(3), [(10, 1, 100), (10, 1, 100), (11, 2, 50), (12, 1, 1000)])
    assert starts[4] == (12, True) and starts[3] == (110, False)


def test_the_reservation_is_made_anew_when_a_job_ends_early():
    """Job 1 ends at 30 instead of 110: the head starts at once, though 110 was its reservation."""
    starts = easy_on(single_cores(2), [(10, 1, 100, 20), (11, 2, 50), (12, 1, 18), (13, 1, 80)])
    assert starts == {1: (10, False), 3: (12, True), 2: (30, False), 4: (80, False)}


def test_a_half_taken_node_is_not_free_when_its_first_job_ends():
    """Under strip two jobs share the node; an exclusive head waits for the second."""
    nodes = [Node("n0", (4,))]
    tasks = [Task(Job(1, "ft", 2, 50, 0), 50), Task(Job(2, "cg", 2, 100, 0), 100),
             Task(Job(3, "ep", 2, 10, 1, exclusive=True), 10), Task(Job(4, "bt", 2, 45, 51), 45),
             Task(Job(5, "bt", 2, 60, 51), 60)]
    starts = run(play(*pair(nodes, "strip", backfilling="easy"), tasks))
    assert [starts[i][0] for i in (1, 2, 3, 4, 5)] == [0, 0, 100, 51, 110]


@pytest.mark.parametrize("policy", ["compact", "spare", "strip", "pack"])
@pytest.mark.parametrize("backfilling", ["easy", "conservative", "2", "easy-kept"])
def test_what_ends_on_a_node_that_is_down_is_no_room_for_the_head(policy, backfilling):
    """At 100 only a node that is down gets free, so the head can start at 200, and a job that
    ends at 152 is not in its way.
    """
    cluster = Cluster(single_cores(4))
    scheduler = Scheduler(make_ordering("FCFS"), make_backfilling(backfilling),
                          make_policy(policy, cluster))
    queue = scheduler.new_queue()
    for job in (Job(1, "ft", 1, 100), Job(2, "ft", 2, 200)):
        queue.add(job)
    assert len(scheduler.step(0, queue, cluster)) == 2
    cluster.set_up(0, False)
    for job in (Job(3, "ft", 2, 10, 2), Job(4, "ft", 1, 150, 2)):
        queue.add(job)
    assert [start.job.id for start in scheduler.step(2, queue, cluster)] == [4]
    assert scheduler.reservations(2, queue, cluster) == {3: 200}
    cluster.release(1)
    assert scheduler.step(100, queue, cluster) == []
    cluster.release(4)
    assert scheduler.step(152, queue, cluster) == []
    cluster.set_up(0, True)
    assert [start.job.id for start in scheduler.step(153, queue, cluster)] == [3]


def test_a_head_without_reservation_holds_nobody_back():
    """A node is down and the head can't tell when it will fit; others run meanwhile."""
    cluster = Cluster(single_cores(2))
    cluster.set_up(1, False)
    policy = make_policy("compact", cluster)
    scheduler = Scheduler(make_ordering("FCFS"), make_backfilling("easy"), policy)
    queue = scheduler.new_queue()
    head = Job(1, "ft", 2, 10)
    queue.add(head)
    queue.add(Job(2, "ft", 1, 1000))
    assert [start.job.id for start in scheduler.step(0, queue, cluster)] == [2]
    assert Shadow(head, 0, cluster, policy).time == math.inf
    cluster.set_up(1, True)
    assert scheduler.step(5, queue, cluster) == []
    assert Shadow(head, 5, cluster, policy).time == 1000


def test_reserving_changes_nothing():
    scheduler, cluster, reference = pair(single_cores(2), "compact", backfilling="easy")
    for moment in play(scheduler, cluster, reference, [Task(Job(1, "ft", 2, 10), 10)]):
        before = cluster.busy0, cluster.busy1, cluster.generation, list(cluster.ends)
        Shadow(Job(2, "ft", 2, 5), moment.now, cluster, scheduler.policy)
        assert before == (cluster.busy0, cluster.busy1, cluster.generation, list(cluster.ends))


def test_unknown_names_are_refused_with_a_hint():
    with pytest.raises(PolicyError, match="did you mean easy"):
        make_backfilling("eazy")
    assert make_backfilling(" EASY ").name == "easy"


def test_a_backfilling_of_ones_own(tmp_path, monkeypatch):
    """By dotted path: one that lets every later job start that fits."""
    (tmp_path / "my_backfilling.py").write_text(
        "class Greedy:\n"
        "    name = 'greedy'\n"
        "    def schedule(self, step):\n"
        "        for job in step.waiting:\n"
        "            if step.fits(job):\n"
        "                yield job\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    cluster = Cluster(single_cores(2))
    scheduler = Scheduler(make_ordering("FCFS"), make_backfilling("my_backfilling:Greedy"),
                          make_policy("compact", cluster))
    queue = scheduler.new_queue()
    for job in [Job(1, "ft", 1, 10), Job(2, "ft", 2, 10), Job(3, "ft", 1, 1e9)]:
        queue.add(job)
    starts = scheduler.step(0, queue, cluster)
    assert [(start.job.id, start.backfilled) for start in starts] == [(1, False), (3, True)]


def test_a_step_orders_no_more_of_a_long_queue_than_it_looks_at(monkeypatch: Any) -> None:
    """Under an order that changes with time all keys would cost more than the decision."""
    ordering = make_ordering("WFP3")
    cluster = Cluster.regular(8, 1, 4)
    scheduler = Scheduler(ordering, make_backfilling("easy"), make_policy("compact", cluster, None))
    queue = scheduler.new_queue()
    # One job runs on half of the machine; the head wants all of it, one behind it fits beside.
    queue.add(Job(0, "a.x", 16, 1000.0, 0.0))
    assert [start.job.id for start in scheduler.step(0.0, queue, cluster)] == [0]
    queue.add(Job(1, "a.x", 32, 10.0, 0.0))
    for number in range(2, 2000):
        queue.add(Job(number, "a.x", 32, 10_000.0, 0.0))
    queue.add(Job(2000, "a.x", 4, 10.0, 1.0))
    asked: list[int] = []
    key = queue.key
    monkeypatch.setattr(queue, "key", lambda job, now: asked.append(job.id) or key(job, now))
    starts = scheduler.step(5.0, queue, cluster)
    assert [(start.job.id, start.backfilled) for start in starts] == [(2000, True)]
    assert len(asked) < 100


def test_a_job_that_ends_with_the_reservation_is_backfilled_whatever_is_rounded() -> None:
    """A difference of times is rounded by more than the last digit of what it gives."""
    now, limit = 12936.59588833376, 7200.0
    assert (now + limit) - now < limit
    jobs = [Submission(Job(number, "a", cores, limit, submit=now), limit) for number, cores in enumerate((7, 14, 8))]
    starts = {row.id: row.start for row in simulate(jobs, Machine.of(16), Rules(policy="compact")).jobs}
    assert starts == {0: now, 1: now + limit, 2: now}
