"""Scheduling by constraint programming: a plan for the first waiting jobs determines which of them start now, and a new
plan is made whenever something changes.

The plan knows totals, not nodes (`vrm.ext.planning.planning_problem`). Therefore the placement policy may refuse a job
that should start now; this job continues to wait, and the others start.
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
from vrm.ext.planning.planning_problem import Amounts, Effort, PlanningProblem, PlanningTask, latest_end, solve
from vrm.scheduling.orderings.queue import QueueView
from vrm.scheduling.registry import PolicyError

JOBS = 100
"""Default number of waiting jobs to plan."""

EFFORT = Effort()
"""Default effort of a search."""

_SOON = 0.05
"""Seconds between two checks for an answer."""

_LARGEST = 1 << 31
"""Maximum of a capacity, so that products with times stay within the solver's integers."""

Solver = Callable[[PlanningProblem], list[int] | None]


def problem_of(now: float, jobs: Sequence[Job], others: float, view: Cluster,
               policy: CountingPolicy, queues: Queues) -> PlanningProblem:
    """Return the planning problem of `jobs` at `now`, with the running jobs. `others`: the sum of the expected
    run times (seconds) of the waiting jobs that are not planned."""
    room = policy.room(view)
    names = sorted({name for job in jobs for amounts in (job.request.per_task, job.request.per_node)
                    for name, _ in amounts})
    licences = sorted({name for job in jobs for name, _ in job.request.licences})

    def wants(request: Request, size: int, nodes: int) -> list[int]:
        per_task, per_node = dict(request.per_task), dict(request.per_node)
        of_run = dict(request.licences)
        return [size, *(request.tasks * per_task.get(name, 0) + nodes * per_node.get(name, 0)
                        for name in names), *(of_run.get(name, 0) for name in licences)]

    # Free amounts now; those of running jobs are added below. For a policy that cannot count, cores are used.
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
    # Because of rounding up, running jobs may seem to take more than the capacity.
    most = [max(all_, sum(held[name] for _, held in small)) for name, all_ in enumerate(most)]
    return PlanningProblem(tuple(most), tuple(small), tuple(
        PlanningTask(seconds, scaled(amounts), _weight(job, queues, longest))
        for job, (seconds, amounts) in zip(jobs, tasks)), math.ceil(horizon))


def _weight(job: Job, queues: Queues, longest: float) -> int:
    """Return the cost of a second of its wait, relative to the queue with the longest expected wait (1000)."""
    if not queues:
        return 1000
    return max(1, round(1000 * longest / queues.queue(job).expected_wait))


def _scales(capacity: Sequence[int], wanted: Sequence[Sequence[int]]) -> list[int]:
    """Return the divisors of the amounts that make them small enough, without loss if possible."""
    found = []
    for name, most in enumerate(capacity):
        common = math.gcd(most, *(each[name] for each in wanted)) or 1
        found.append(common * max(1, -(-(most // common) // _LARGEST)))
    return found


class BackgroundPlanner(Protocol):
    """Makes plans while the scheduler continues."""

    def ask(self, problem: PlanningProblem, effort: Effort, now: float) -> None:
        """Start the search for a plan, at `now` (seconds)."""

    def answer(self, now: float) -> list[int] | None:
        """Return the starts of that plan; None during the search, [] if there will be no plan."""


class Planning(Dispatcher):
    """Makes a plan for the first `jobs` waiting jobs, and starts those that the plan starts now.

    Later starts of the plan are forgotten, except by node orders that consider which jobs will run at the same time.
    Jobs that are not planned wait. If nothing runs and the plan starts nothing, the first job that fits starts.

    With `aside`, another process makes the plans: a step requests one, and a later step starts the jobs that the plan
    starts now, if these jobs still wait and still fit. If anything changes before the answer
    arrives, EASY decides that step.
    """

    name = "cp"
    heads_first = False
    plans_in_background = True

    def __init__(self, jobs: int = JOBS, effort: Effort = EFFORT,
                 solver: Solver | None = None) -> None:
        super().__init__()
        self.jobs = jobs
        self.effort = effort
        self.solver: Solver = solver or self._solve
        self.aside: BackgroundPlanner | None = None
        self._asked: list[Job] = []  # jobs of the requested plan
        self._meanwhile = False  # whether anything has changed since
        self._easy: Dispatcher = Easy()
        if solver is None and importlib.util.find_spec("ortools") is None:
            raise PolicyError("backfilling cp needs OR-tools: pip install 'ortools>=9.11,<10'")

    def _solve(self, problem: PlanningProblem) -> list[int] | None:
        return solve(problem, self.effort)

    def copy(self, view: Cluster) -> Dispatcher:
        """Return an independent copy."""
        twin = super().copy(view)
        assert isinstance(twin, Planning)
        if self.solver == self._solve:
            twin.solver = twin._solve
        twin.aside, twin._asked, twin._meanwhile = None, [], False
        twin._easy = self._easy.copy(view)
        return twin

    def decide(self, now: float, waiting: QueueView, view: Cluster, policy: CountingPolicy,
               heads: int) -> Starts:
        """Yield the jobs that the plan starts now and that fit."""
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

    def _plan(self, now: float, waiting: QueueView, view: Cluster, policy: CountingPolicy) -> Starts:
        """Make a plan and start its first jobs, or request a plan."""
        jobs = [waiting[at] for at in range(min(self.jobs, len(waiting)))]
        others = sum(waiting[at].expected for at in range(len(jobs), len(waiting)))
        jobs = [job for job in jobs if job.id not in view.bookings]  # without those started in this step
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

    def _start(self, now: float, jobs: Sequence[Job], starts: Sequence[int], waiting: QueueView,
               view: Cluster, policy: CountingPolicy) -> Starts:
        """Yield the jobs of a plan that start now."""
        if policy.follower is not None:
            policy.follower.plans({job.id: (job, now + start) for job, start in zip(jobs, starts)
                                   if start > 0 and waiting.holds(job)})
        yield from backfill([job for job, start in zip(jobs, starts) if start == 0 and waiting.holds(job)
                             and job.id not in view.bookings], now, view, policy)
        if not view.bookings:
            yield from itertools.islice(backfill(waiting, now, view, policy), 1)

    def wake(self, now: float) -> float:
        """Return when to check for an awaited answer; infinity if none is awaited."""
        return now + _SOON if self._asked else math.inf

    @staticmethod
    def starts_at_once(problem: PlanningProblem) -> list[int] | None:
        """Return the starts of the tasks in seconds from now (-1: not now) if that needs no
        search; otherwise None."""
        free = problem.free
        now = [all(want <= some for want, some in zip(task.wants, free)) for task in problem.tasks]
        if not any(now):
            return [-1] * len(now)  # none of them can start under any plan
        together = [sum(each) for each in zip(*(task.wants for task in problem.tasks))]
        if all(want <= some for want, some in zip(together, free)):
            return [0] * len(now)  # no plan is better
        return None

    def reservations(self, now: float, waiting: QueueView, view: Cluster,
                     policy: CountingPolicy) -> dict[int, float]:
        """Return no reservations: a plan promises nothing."""
        return {}
