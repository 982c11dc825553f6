"""Planning by constraint programming: which of the first waiting jobs start now is what a plan for
all of them says, and plans are made again whenever something changes.

The plan knows totals, no nodes (`vrm.ext.planning.plan`), so the placement policy may refuse a job
that is to start now: it waits on, and the others start.
"""

from __future__ import annotations

import importlib.util
import itertools
import math
from typing import Protocol
from collections.abc import Callable, Sequence

from vrm.model.cluster import Cluster
from vrm.model.job import Job, Request
from vrm.model.policies import CountingPolicy
from vrm.model.queues import Queues
from vrm.scheduling.backfilling.easy import Easy, backfill
from vrm.scheduling.backfilling.dispatcher import Dispatcher, Starts
from vrm.ext.planning.plan import Amounts, Effort, PlanningProblem, PlanningTask, latest_end, solve
from vrm.scheduling.orderings.queue import Waiting
from vrm.scheduling.registry import PolicyError

JOBS = 100
"""Waiting jobs that are planned."""

EFFORT = Effort()
"""Of a search of which nobody says more."""

_SOON = 0.05
"""Seconds after which it is looked whether a plan is there."""

_LARGEST = 1 << 31
"""Of a capacity: products with times then stay within the solver's whole numbers."""

Solver = Callable[[PlanningProblem], list[int] | None]


def problem_of(now: float, jobs: Sequence[Job], others: float, view: Cluster,
               policy: CountingPolicy, queues: Queues) -> PlanningProblem:
    """What is to be planned at `now`: the `jobs`, beside whatever runs. `others` is the expected
    run time in seconds of the waiting jobs that are not planned, all together."""
    room = policy.room(view)
    names = sorted({name for job in jobs for amounts in (job.request.per_task, job.request.per_node)
                    for name, _ in amounts})
    licences = sorted({name for job in jobs for name, _ in job.request.licences})

    def wants(request: Request, size: int, nodes: int) -> list[int]:
        per_task, per_node = dict(request.per_task), dict(request.per_node)
        of_run = dict(request.licences)
        return [size, *(request.tasks * per_task.get(name, 0) + nodes * per_node.get(name, 0)
                        for name in names), *(of_run.get(name, 0) for name in licences)]

    # Free now; what running jobs hold comes to it. A policy that cannot count has cores.
    free = [view.count_free() if room is None else room,
            *(sum(left for node, left in enumerate(view.left.get(name, ()))
                  if view.up >> node & 1) for name in names),
            *(view.licences.get(name, 0) for name in licences)]
    running = []
    for booking in view.running():
        request, placement = booking.job.request, booking.placement
        size = request.cores if room is None else view.returns(placement)
        left = max(1, math.ceil(booking.gives - now))
        running.append((left, wants(request, size, len(placement.nodes))))
    tasks = [(max(1, math.ceil(job.expected)), wants(
        job.request, job.request.cores if room is None else policy.size(job), job.request.least_nodes))
        for job in jobs]
    capacity = [sum(each) for each in zip(free, *(held for _, held in running))]
    scales = _scales(capacity, [held for _, held in (*running, *tasks)])

    def scaled(amounts: Sequence[int]) -> Amounts:
        return tuple(-(-amount // each) for amount, each in zip(amounts, scales))

    longest = max((queue.expected_wait for queue in queues.all), default=1.0)
    horizon = latest_end(0.0, [others, *(seconds for seconds, _ in tasks)],
                         [seconds for seconds, _ in running])
    small = [(seconds, scaled(held)) for seconds, held in running]
    most = [amount // each for amount, each in zip(capacity, scales)]
    # Rounded up, what runs may seem to take more than there is.
    most = [max(all_, sum(held[name] for _, held in small)) for name, all_ in enumerate(most)]
    return PlanningProblem(tuple(most), tuple(small), tuple(
        PlanningTask(seconds, scaled(amounts), _weight(job, queues, longest))
        for job, (seconds, amounts) in zip(jobs, tasks)), math.ceil(horizon))


def _weight(job: Job, queues: Queues, longest: float) -> int:
    """What a second of its wait costs, in thousandths of a second in the queue whose jobs are
    expected to wait longest."""
    if not queues:
        return 1000
    return max(1, round(1000 * longest / queues.queue(job).expected_wait))


def _scales(capacity: Sequence[int], wanted: Sequence[Sequence[int]]) -> list[int]:
    """By how much amounts are divided so that all are small: without loss where that is enough."""
    found = []
    for name, most in enumerate(capacity):
        common = math.gcd(most, *(each[name] for each in wanted)) or 1
        found.append(common * max(1, -(-(most // common) // _LARGEST)))
    return found


class BackgroundPlanner(Protocol):
    """Who makes plans while the scheduler goes on."""

    def ask(self, problem: PlanningProblem, effort: Effort, now: float) -> None:
        """Begin to look for a plan, at `now` (seconds)."""

    def answer(self, now: float) -> list[int] | None:
        """The starts of that plan; None while it is looked for, [] where there will be none."""


class Planning(Dispatcher):
    """Starts the jobs that a plan for the first `jobs` waiting ones starts now.

    Later starts of the plan are forgotten, but for node orders that look at who will run beside a
    job. Jobs behind those that are planned wait. Where nothing runs and the plan starts nothing,
    the first job that fits does.

    With `aside`, plans are made elsewhere: a step asks for one, and a later step starts what it
    starts now, as far as these jobs still wait and still fit. If anything changes before the answer
    is there, EASY decides that step.
    """

    name = "cp"
    heads_first = False
    plans_aside = True

    def __init__(self, jobs: int = JOBS, effort: Effort = EFFORT,
                 solver: Solver | None = None) -> None:
        super().__init__()
        self.jobs = jobs
        self.effort = effort
        self.solver: Solver = solver or self._solve
        self.aside: BackgroundPlanner | None = None
        self._asked: list[Job] = []  # of which an answer is awaited
        self._meanwhile = False  # whether anything has changed since
        self._easy: Dispatcher = Easy()
        if solver is None and importlib.util.find_spec("ortools") is None:
            raise PolicyError("backfilling cp needs OR-tools: pip install 'ortools>=9.11,<10'")

    def _solve(self, problem: PlanningProblem) -> list[int] | None:
        return solve(problem, self.effort)

    def copy(self, view: Cluster) -> Dispatcher:
        """An independent copy."""
        twin = super().copy(view)
        assert isinstance(twin, Planning)
        if self.solver == self._solve:
            twin.solver = twin._solve
        twin.aside, twin._asked, twin._meanwhile = None, [], False
        twin._easy = self._easy.copy(view)
        return twin

    def decide(self, now: float, waiting: Waiting, view: Cluster, policy: CountingPolicy,
               heads: int) -> Starts:
        """The jobs that the plan starts now and for which there is a place."""
        changed = self._left != (view, view.generation) or bool(waiting.fresh)
        if self._asked:
            assert self.aside is not None
            answer = self.aside.answer(now)
            if answer is None:
                if changed:
                    self._meanwhile = True
                    yield from self._easy.decide(now, waiting, view, policy, heads)
                    self._left = view, view.generation
                return
            jobs, self._asked = self._asked, []
            if answer:
                changed = changed or self._meanwhile
                yield from self._start(now, jobs, answer, waiting, view, policy)
            else:
                yield from self._easy.decide(now, waiting, view, policy, heads)
                changed = False
        if changed:
            yield from self._plan(now, waiting, view, policy)
        self._left = view, view.generation

    def _plan(self, now: float, waiting: Waiting, view: Cluster, policy: CountingPolicy) -> Starts:
        """Make a plan and start what it starts now, or ask for one."""
        jobs = [waiting[at] for at in range(min(self.jobs, len(waiting)))]
        others = sum(waiting[at].expected for at in range(len(jobs), len(waiting)))
        jobs = [job for job in jobs if job.id not in view.bookings]  # started in this very step
        if not jobs:
            return
        problem = problem_of(now, jobs, others, view, policy, waiting.queues)
        starts = self.starts_at_once(problem)
        if starts is None and self.aside is not None:
            self.aside.ask(problem, self.effort, now)
            self._asked, self._meanwhile = jobs, False
            return
        if starts is None:
            starts = self.solver(problem) or [-1] * len(jobs)
        yield from self._start(now, jobs, starts, waiting, view, policy)

    def _start(self, now: float, jobs: Sequence[Job], starts: Sequence[int], waiting: Waiting,
               view: Cluster, policy: CountingPolicy) -> Starts:
        """The jobs of a plan that start now."""
        if policy.follower is not None:
            policy.follower.plans({job.id: (job, now + start) for job, start in zip(jobs, starts)
                                   if start > 0 and waiting.holds(job)})
        yield from backfill([job for job, start in zip(jobs, starts) if start == 0 and waiting.holds(job)
                             and job.id not in view.bookings], now, view, policy)
        if not view.bookings:
            yield from itertools.islice(backfill(waiting, now, view, policy), 1)

    def wake(self, now: float) -> float:
        """Soon, while an answer is awaited."""
        return now + _SOON if self._asked else math.inf

    @staticmethod
    def starts_at_once(problem: PlanningProblem) -> list[int] | None:
        """When the tasks of a problem start, in seconds from now (-1: not now), where that needs no
        search; None where it does."""
        free = problem.free
        now = [all(want <= some for want, some in zip(task.wants, free)) for task in problem.tasks]
        if not any(now):
            return [-1] * len(now)  # whatever the plan says, none of them starts
        together = [sum(each) for each in zip(*(task.wants for task in problem.tasks))]
        if all(want <= some for want, some in zip(together, free)):
            return [0] * len(now)  # no plan is better
        return None

    def reservations(self, now: float, waiting: Waiting, view: Cluster,
                     policy: CountingPolicy) -> dict[int, float]:
        """None: a plan promises nothing."""
        return {}
