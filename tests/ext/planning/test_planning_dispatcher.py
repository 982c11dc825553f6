"""Planning by constraint programming: every plan is one, none is worse than EASY's, small ones are
the best there is; and what a run makes of plans."""

from __future__ import annotations

import itertools
import subprocess
import sys
from typing import Any
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vrm.model import Cluster, Job, Node
from vrm.model.queues import NO_QUEUES, Queues
from vrm.scheduling import PolicyError, Scheduler, make_backfilling, make_ordering, make_policy
from vrm.ext.planning.planning_problem import (Effort, PlanningProblem, PlanningTask, broken, easy_plan, first_plan, latest_end,
                                 compacted, solve)
from vrm.ext.planning.planning_dispatcher import Planning, problem_of
from vrm.api import Machine, Rules, simulate
from vrm.workload.submission import Submission

pytest.importorskip("ortools")

QUICK = Effort(0.02)


@st.composite
def problems(draw: Any, most: int = 7) -> PlanningProblem:
    kinds = draw(st.integers(1, 3))
    capacity = tuple(draw(st.lists(st.integers(1, 6), min_size=kinds, max_size=kinds)))

    def wants(of: Sequence[int]) -> tuple[int, ...]:
        return tuple(draw(st.integers(0, each)) for each in of)

    running, free = [], list(capacity)
    for _ in range(draw(st.integers(0, 2))):
        held = wants(free)
        free = [some - each for some, each in zip(free, held)]
        running.append((draw(st.integers(1, 9)), held))
    tasks = tuple(PlanningTask(draw(st.integers(1, 9)), wants(capacity), draw(st.sampled_from([1, 4, 1000])))
                  for _ in range(draw(st.integers(1, most))))
    horizon = sum(task.seconds for task in tasks) + sum(seconds for seconds, _ in running)
    return PlanningProblem(capacity, tuple(running), tasks, horizon)


# --------------------------------------------------------------------------------------- plans


def test_the_latest_end_is_that_of_one_job_after_the_other() -> None:
    assert latest_end(1000, [600, 1200], [900 - (1000 - 400)]) == 3100
    assert latest_end(1000, [600], [-50]) == 1600  # one that should have ended counts as ending now


@settings(max_examples=150, deadline=None)
@given(problem=problems())
def test_plans_hold_every_constraint_and_none_is_worse_than_that_of_easy(problem: PlanningProblem) -> None:
    known = easy_plan(problem)
    assert broken(problem, known) == ""
    found = solve(problem, QUICK)
    assert found is not None and broken(problem, found) == ""
    assert problem.cost(found) <= problem.cost(known)
    earlier = compacted(problem, known)
    assert broken(problem, earlier) == "" and all(map(int.__le__, earlier, known))
    cold = solve(problem, Effort(0.02, warm=False))
    assert cold is not None and broken(problem, cold) == ""


def plain_easy(problem: PlanningProblem) -> list[int]:
    """EASY in plain loops over seconds."""
    spans = [(0, seconds, wants) for seconds, wants in problem.running]

    def fits(task: PlanningTask, start: int, more: Sequence[Any] = ()) -> bool:
        return all(sum(wants[name] for begin, end, wants in [*spans, *more] if begin <= second < end)
                   + task.wants[name] <= most
                   for second in range(start, start + task.seconds)
                   for name, most in enumerate(problem.capacity))

    starts = [-1] * len(problem.tasks)
    waiting = list(range(len(problem.tasks)))
    for now in range(problem.horizon + 1):
        while waiting:
            head = problem.tasks[waiting[0]]
            shadow = next(second for second in range(now, problem.horizon + 1) if fits(head, second))
            taken = [(shadow, shadow + head.seconds, head.wants)]
            chosen = next((each for each in waiting if (
                shadow == now if each == waiting[0]
                else fits(problem.tasks[each], now, taken))), None)
            if chosen is None:
                break
            task = problem.tasks[chosen]
            starts[chosen] = now
            spans.append((now, now + task.seconds, task.wants))
            waiting.remove(chosen)
    return starts


@settings(max_examples=150, deadline=None)
@given(problem=problems())
def test_the_plan_of_easy_is_that_of_its_definition(problem: PlanningProblem) -> None:
    assert easy_plan(problem) == plain_easy(problem)


@settings(max_examples=60, deadline=None)
@given(problem=problems(5))
def test_small_problems_are_solved_to_the_best_plan(problem: PlanningProblem) -> None:
    """The best plan is among those that place the tasks one after the other, each as early as it
    can be, in some order."""
    best = min(problem.cost(compacted(problem, order))
               for order in itertools.permutations(range(len(problem.tasks))))
    found = solve(problem, Effort(5.0))
    assert found is not None and problem.cost(found) == best


def test_the_task_whose_wait_costs_more_is_first() -> None:
    problem = PlanningProblem((2,), (), (PlanningTask(10, (2,), 1000), PlanningTask(10, (2,), 6000)), 20)
    assert solve(problem, QUICK) == [10, 0]
    shorter = PlanningProblem((2,), (), (PlanningTask(10, (2,), 1000), PlanningTask(3, (2,), 1000)), 13)
    assert solve(shorter, QUICK) == [3, 0]


def test_equal_searches_find_equal_plans() -> None:
    tasks = tuple(PlanningTask(7 + 13 * at % 29, (1 + 5 * at % 7, at % 3), 1000 + 500 * (at % 4))
                  for at in range(60))
    problem = PlanningProblem((8, 3), ((5, (3, 1)),), tasks, sum(task.seconds for task in tasks) + 5)
    first = solve(problem, Effort(0.1))
    assert first == solve(problem, Effort(0.1)) == solve(PlanningProblem.read(problem.record()), Effort(0.1))
    assert problem.cost(first or []) < problem.cost(easy_plan(problem))


def test_without_a_plan_to_begin_with_the_search_gets_more_time_until_there_is_one(
        monkeypatch: pytest.MonkeyPatch) -> None:
    from ortools.sat.python import cp_model
    tries: list[float] = []

    def give_up(self: Any, model: Any) -> Any:
        tries.append(self.parameters.max_deterministic_time)
        return cp_model.UNKNOWN

    problem = PlanningProblem((2,), (), (PlanningTask(10, (2,), 1), PlanningTask(10, (1,), 1)), 20)
    monkeypatch.setattr(cp_model.CpSolver, "solve", give_up)
    assert solve(problem, Effort(1.0, 10.0, warm=False)) is None
    assert tries == [1, 2, 4, 8, 10]
    tries.clear()
    assert solve(problem, Effort(1.0, 10.0)) == first_plan(problem) and tries == [1]
    # Then nobody starts, beside a job that runs.
    cluster = Cluster.regular(1, 1, 4)
    scheduler = Scheduler(make_ordering("FCFS"), Planning(effort=Effort(1.0, 1.0, warm=False)),
                          make_policy("pack", cluster))
    queue = scheduler.new_queue()
    queue.add(Job(0, "x", 1, 60.0))
    assert len(scheduler.step(0.0, queue, cluster)) == 1
    for number in (1, 2):
        queue.add(Job(number, "x", 2, 60.0))
    assert scheduler.step(1.0, queue, cluster) == []


# -------------------------------------------------------------------------------- what is planned


def problem(jobs: Sequence[Job], cluster: Cluster, policy: str = "pack", queues: Queues = NO_QUEUES,
            others: float = 0.0, now: float = 0.0) -> PlanningProblem:
    return problem_of(now, jobs, others, cluster, make_policy(policy, cluster), queues)


def test_a_problem_has_totals_of_what_the_tasks_want() -> None:
    nodes = [Node("a", (4, 4), {"memory": 16, "gpu": 2}), Node("b", (4, 4), {"memory": 16, "ssd": 1})]
    cluster = Cluster(nodes, {"ansys": 3})
    from vrm.model.job import Request
    jobs = [Job(1, "x", 2, 99.5, request=Request.of(2, resources={"gpu": 1, "memory": 1.5})),
            Job(2, "x", 3, 60.0, cores=2, request=Request.of(3, 2, licences={"ansys": 2}))]
    queues = Queues.of({"slow": {"expected_wait": 600}, "fast": {"expected_wait": 60}})
    found = problem([jobs[0], jobs[1].but(queue="fast")], cluster, queues=queues, others=100.0)
    assert next(each // found.capacity[0] * 16 if at == 0 else each
            for at, each in enumerate(found.capacity)) == 16
    cores, gpus, memory, ansys = (  # as shares of what there is
        [task.wants[at] / found.capacity[at] for task in found.tasks] for at in range(4))
    assert cores == [2 / 16, 6 / 16] and gpus == [1, 0] and memory == [3 / 32, 0]
    assert ansys == [0, pytest.approx(2 / 3)]
    assert [task.seconds for task in found.tasks] == [100, 60]
    assert [task.weight for task in found.tasks] == [1000, 10000]
    assert found.horizon == 100 + 100 + 60


@pytest.mark.parametrize("policy", ["compact", "spare", "strip", "pack"])
def test_running_jobs_are_fixed_and_overdue_ones_end_in_a_second(policy: str) -> None:
    cluster = Cluster.regular(4, 2, 2)
    running = make_policy(policy, cluster)
    for number in range(2):
        job = Job(number, "x", 4, 50.0 + 100 * number)
        placement = running.place(job, cluster)
        assert placement
        cluster.book(job, placement, 0.0)
    found = problem([Job(5, "x", 4, 10.0)], cluster, policy, now=60.0)
    assert [seconds for seconds, _ in found.running] == [1, 90]
    assert found.horizon == 10 + 91
    assert broken(found, [found.horizon]) == "" and all(some >= 0 for some in found.free)


# --------------------------------------------------------------------------------------- in a run


def step(jobs: Sequence[Job], cluster: Cluster, text: str = "cp", ordering: str = "PRB",
         queues: Any = None, policy: str = "pack") -> list[int]:
    scheduler = Scheduler(make_ordering(ordering), make_backfilling(text),
                          make_policy(policy, cluster), queues=Queues.of(queues or {}))
    queue = scheduler.new_queue()
    for job in jobs:
        queue.add(job)
    return [start.job.id for start in scheduler.step(0.0, queue, cluster)]


def test_only_the_first_waiting_jobs_are_planned() -> None:
    jobs = [Job(number, "x", 4, 60.0) for number in range(3)] + [Job(3, "x", 1, 60.0)]
    assert step(jobs, Cluster.regular(1, 1, 5), ordering="FCFS") == [0, 3]
    assert step(jobs, Cluster.regular(1, 1, 5), "cp jobs=3", "FCFS") == [0]
    many = [Job(number, "x", 1, 60.0) for number in range(120)]
    assert len(step(many, Cluster.regular(1, 1, 128))) == 100


def test_a_job_without_a_place_waits_and_the_others_start() -> None:
    """Cores suffice for all, but not three of one node for job 2."""
    jobs = [Job(1, "x", 2, 60.0, cores=3), Job(2, "x", 1, 60.0, cores=3), Job(3, "x", 1, 60.0)]
    assert step(jobs, Cluster.regular(2, 1, 6), ordering="FCFS") == [1, 2, 3]
    assert step(jobs, Cluster.regular(2, 1, 5), ordering="FCFS") == [1, 3]


def test_who_costs_more_starts_first() -> None:
    queues = {"debug": {"expected_wait": 600}, "long": {"expected_wait": 6000}}
    jobs = [Job(1, "x", 4, 600.0, queue="long"), Job(2, "x", 4, 600.0, queue="debug")]
    assert step(jobs, Cluster.regular(1, 1, 4), ordering="FCFS", queues=queues) == [2]
    assert step(jobs, Cluster.regular(1, 1, 4), ordering="FCFS") == [1]


@pytest.mark.parametrize("text", ["cp", "cp start=nothing budget=0.02", "cp jobs=2"])
@pytest.mark.parametrize("policy, order", [("compact", "auto"), ("strip", "auto"), ("pack", "auto"),
                                           ("pack", "weighted window=3")])
@settings(max_examples=12, deadline=None)
@given(wanted=st.lists(st.tuples(st.integers(1, 8), st.integers(1, 9), st.integers(1, 9),
                                 st.integers(0, 12)), max_size=10))
def test_every_job_runs_and_the_same_twice(text: str, policy: str, order: str,
                                           wanted: list[tuple[int, ...]]) -> None:
    jobs = [Submission(Job(number, "x", procs, float(estimate), float(submit)), float(run))
            for number, (procs, run, estimate, submit) in enumerate(
                sorted(wanted, key=lambda each: each[3]))]
    runs = [simulate(jobs, Machine.of(2, sockets=2, cores=4),
                     Rules(policy=policy, algorithm="PRB", backfill=text, node_order=order)) for _ in range(2)]
    assert next([(row.id, row.start) for row in run.jobs] for run in runs) == [
        (row.id, row.start) for row in runs[1].jobs]
    assert len(list(runs[0].jobs)) + sum(runs[0].summary["refusals"].values()) == len(jobs)


def test_what_a_step_has_decided_is_not_planned_again() -> None:
    asked: list[PlanningProblem] = []

    def solver(problem: PlanningProblem) -> list[int] | None:
        asked.append(problem)
        return easy_plan(problem)

    cluster = Cluster.regular(1, 1, 4)
    scheduler = Scheduler(make_ordering("FCFS"), Planning(solver=solver), make_policy("pack", cluster))
    queue = scheduler.new_queue()
    for number in range(3):
        queue.add(Job(number, "x", 3, 60.0))
    assert len(scheduler.step(0.0, queue, cluster)) == 1 and len(asked) == 1
    assert not scheduler.step(1.0, queue, cluster) and len(asked) == 1
    queue.add(Job(3, "x", 1, 60.0))
    assert [start.job.id for start in scheduler.step(2.0, queue, cluster)] == [3]
    other = cluster.copy()
    twin, waiting = scheduler.copy(other), queue.copy()
    other.release(0)
    assert [start.job.id for start in twin.step(3.0, waiting, other)] == [1]
    assert list(cluster.bookings) == [0, 3]


class Elsewhere:
    """Makes plans when it is told to."""

    def __init__(self) -> None:
        self.asked: list[PlanningProblem] = []
        self.plan: list[int] | None = None

    def ask(self, problem: PlanningProblem, effort: Effort, now: float) -> None:
        self.asked.append(problem)
        self.plan = None

    def answer(self, now: float) -> list[int] | None:
        return self.plan


def elsewhere() -> tuple[Elsewhere, Cluster, Scheduler, Any]:
    """Four cores, one of which is busy for long, and two jobs that want the others."""
    cluster = Cluster.regular(1, 1, 4)
    planning = Planning()
    scheduler = Scheduler(make_ordering("FCFS"), planning, make_policy("pack", cluster))
    queue = scheduler.new_queue()
    queue.add(Job(0, "x", 1, 900.0))
    assert len(scheduler.step(0.0, queue, cluster)) == 1  # for that no plan is needed
    planning.aside = aside = Elsewhere()
    for number in (1, 2):
        queue.add(Job(number, "x", 2, 60.0))
    assert scheduler.step(1.0, queue, cluster) == [] and len(aside.asked) == 1
    assert scheduler.wake(1.0) == pytest.approx(1.05)
    return aside, cluster, scheduler, queue


def ids(starts: Sequence[Any]) -> list[int]:
    return [start.job.id for start in starts]


def test_a_plan_that_is_made_elsewhere_is_used_when_it_is_there() -> None:
    aside, cluster, scheduler, queue = elsewhere()
    assert scheduler.step(1.1, queue, cluster) == []
    aside.plan = [60, 0]
    assert ids(scheduler.step(1.2, queue, cluster)) == [2]
    assert len(aside.asked) == 1 and scheduler.wake(1.2) == float("inf")
    cluster.release(2)
    assert ids(scheduler.step(2.0, queue, cluster)) == [1]  # it alone: no plan is needed


def test_easy_goes_on_while_a_plan_is_made() -> None:
    aside, cluster, scheduler, queue = elsewhere()
    queue.add(Job(3, "x", 1, 20.0))
    assert ids(scheduler.step(1.1, queue, cluster)) == [1, 3]
    aside.plan = [60, 0]  # job 2 fits no more
    assert ids(scheduler.step(1.2, queue, cluster)) == []
    queue.remove(2)
    cluster.release(1)
    assert scheduler.step(1.3, queue, cluster) == [] and scheduler.wake(1.3) == float("inf")


def test_a_plan_that_comes_too_late_starts_what_it_still_can_and_another_one_is_made() -> None:
    aside, cluster, scheduler, queue = elsewhere()
    queue.remove(1)
    queue.add(Job(3, "x", 3, 500.0))
    queue.add(Job(4, "x", 2, 500.0))
    aside.plan = [0, 60]  # job 1 is there no more
    assert scheduler.step(1.2, queue, cluster) == [] and len(aside.asked) == 2
    aside.plan = [60, 0, 600]
    assert ids(scheduler.step(1.3, queue, cluster)) == [3]


def test_without_an_answer_easy_decides() -> None:
    aside, cluster, scheduler, queue = elsewhere()
    aside.plan = []
    assert ids(scheduler.step(1.2, queue, cluster)) == [1]
    assert scheduler.wake(1.2) == float("inf")


def test_a_copy_plans_by_itself() -> None:
    aside, cluster, scheduler, queue = elsewhere()
    other = cluster.copy()
    twin, waiting = scheduler.copy(other), queue.copy()
    waiting.add(Job(5, "x", 1, 10.0))
    assert len(twin.step(1.1, waiting, other)) == 2 and len(aside.asked) == 1
    assert scheduler.wake(1.1) < float("inf") and len(cluster.bookings) == 1


def test_without_or_tools_there_is_one_line_that_says_what_to_type(
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(PolicyError) as error:
        make_backfilling("cp")
    assert str(error.value) == "backfilling cp needs OR-tools: pip install 'ortools>=9.11,<10'"


@pytest.mark.parametrize("text, message", [
    ("cp job=3", "backfilling `cp job=3`: cp has no parameter `job`; did you mean jobs?"),
    ("cp budget=0", "budget is `0`; give seconds of the solver's deterministic clock"),
    ("cp start=hot", "start is `hot`; give start=easy or start=nothing"),
    ("easy jobs=3", "easy has no parameter `jobs`; it has none"),
])
def test_what_cp_does_not_take_is_one_line(text: str, message: str) -> None:
    with pytest.raises(PolicyError) as error:
        make_backfilling(text)
    assert message in str(error.value)


def test_nobody_who_does_not_plan_loads_or_tools() -> None:
    program = ("import sys, vrm.ext.planning.planning_dispatcher, vrm.scheduling as s\n"
               "s.make_backfilling('easy'); print('ortools' in sys.modules)")
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"


@pytest.mark.parametrize("seconds, started", [(40.0, [2]), (50.0, [2]), (80.0, [])])
def test_easy_reserves_nodes_for_the_head_and_starts_who_ends_by_then(seconds: float,
                                                                     started: list[int]) -> None:
    """Three nodes of four cores; two are busy until 100 and 50. The first job gets its nodes at 50;
    the second may start if it ends by then, and the third would take one of them."""
    cluster = Cluster.regular(3, 1, 4)
    policy = make_policy("compact", cluster)
    for node, end in ((0, 100.0), (1, 50.0)):
        job = Job(10 + node, "x", 4, end)
        placement = policy.place(job, cluster)
        assert placement and placement.nodes == [node]
        cluster.book(job, placement, 0.0)
    jobs = [Job(1, "x", 8, 60.0), Job(2, "x", 4, seconds), Job(3, "x", 2, 200.0)]
    assert easy_plan(problem(jobs, cluster, "compact"))[0] == 50
    scheduler = Scheduler(make_ordering("FCFS"), make_backfilling("easy"), policy)
    queue = scheduler.new_queue()
    for job in jobs:
        queue.add(job)
    assert [start.job.id for start in scheduler.step(0.0, queue, cluster)] == started
    assert scheduler.reservations(0.0, queue, cluster) == {1: 50.0}
