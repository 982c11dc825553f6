"""The planning of job starts as an integer problem, and its solution.

The problem has totals, not nodes: the machine has a capacity of each resource, running jobs hold some
of it until their expected ends, and each task requests some for its expected run time.
Times are whole seconds from now, run times rounded up. A plan gives every task its start; the best plan has the
smallest sum of weighted starts (A. Netti, "Development of data-driven dispatching heuristics for
heterogeneous HPC systems", University of Bologna, 2017: the mean wait in proportion to the expected wait of a job's
queue).
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from fractions import Fraction
from typing import Any
from collections.abc import Iterable, Sequence

Amounts = tuple[int, ...]
"""Amounts of each resource of a problem, in its order."""


@dataclass(frozen=True)
class PlanningTask:
    """A job to plan: its run time in seconds, the amounts that it requests, and the cost of each second of
    its wait."""

    seconds: int
    wants: Amounts
    weight: int


@dataclass(frozen=True)
class PlanningProblem:
    """A planning problem. `capacity`: the machine's amounts. `running`: for how many more seconds running jobs hold
    which amounts. `tasks`: the waiting jobs in queue order; all start within `horizon` seconds."""

    capacity: Amounts
    running: tuple[tuple[int, Amounts], ...]
    tasks: tuple[PlanningTask, ...]
    horizon: int

    @property
    def free(self) -> Amounts:
        """The amounts that no job holds now."""
        held = [sum(each) for each in zip(*(wants for _, wants in self.running))]
        return tuple(all_ - some for all_, some in zip(self.capacity, held)) if held \
            else self.capacity

    def cost(self, starts: Sequence[int]) -> int:
        """Return the sum of the weighted starts of a plan."""
        return sum(task.weight * start for task, start in zip(self.tasks, starts))

    def record(self) -> list[Any]:
        """Return the problem as plain values, for another process."""
        return [self.capacity, self.running,
                [(task.seconds, task.wants, task.weight) for task in self.tasks], self.horizon]

    @classmethod
    def read(cls, record: Sequence[Any]) -> PlanningProblem:
        """Return the problem from the values of `record`."""
        capacity, running, tasks, horizon = record
        return cls(tuple(capacity), tuple((seconds, tuple(wants)) for seconds, wants in running),
                   tuple(PlanningTask(seconds, tuple(wants), weight) for seconds, wants, weight in tasks),
                   horizon)


def latest_end(now: float, expected: Iterable[float], remaining: Iterable[float]) -> float:
    """Return the time in seconds at which everything has ended if one job runs after the other; no plan needs to be
    longer. Overdue jobs count as ending now."""
    return now + sum(expected) + sum(max(0.0, left) for left in remaining)


class _Profile:
    """The free amounts over time: `free[i]` from `moments[i]` on."""

    def __init__(self, problem: PlanningProblem) -> None:
        self.moments: list[int] = [0]
        self.free: list[list[int]] = [list(problem.free)]
        for seconds, wants in sorted(problem.running):
            at = self._cut(seconds)
            for later in self.free[at:]:
                for name, amount in enumerate(wants):
                    later[name] += amount

    def _cut(self, moment: int) -> int:
        """Return the index of a moment; insert it if it is missing."""
        at = bisect.bisect_left(self.moments, moment)
        if at == len(self.moments) or self.moments[at] != moment:
            self.moments.insert(at, moment)
            self.free.insert(at, list(self.free[at - 1]))
        return at

    def fits(self, task: PlanningTask, start: int) -> bool:
        """Return whether the task can run from `start` to its end."""
        at = bisect.bisect_right(self.moments, start) - 1
        while at < len(self.moments) and self.moments[at] < start + task.seconds:
            if any(want > free for want, free in zip(task.wants, self.free[at])):
                return False
            at += 1
        return True

    def earliest(self, task: PlanningTask, least: int = 0) -> int:
        """Return the first moment, from `least` on, at which the task can start and run to its end."""
        start, at = least, bisect.bisect_right(self.moments, least) - 1
        while at < len(self.moments) and self.moments[at] < start + task.seconds:
            if any(want > free for want, free in zip(task.wants, self.free[at])):
                at += 1
                start = self.moments[at]  # at the last moment all is free
                continue
            at += 1
        return start

    def take(self, task: PlanningTask, start: int) -> None:
        """Let the task run from `start` on."""
        first = self._cut(start)
        last = self._cut(start + task.seconds)
        for free in self.free[first:last]:
            for name, amount in enumerate(task.wants):
                free[name] -= amount


def easy_plan(problem: PlanningProblem) -> list[int]:
    """Return the starts that EASY backfilling gives the tasks if all run as long as expected: a later task
    starts early only if it does not delay the first waiting one."""
    profile = _Profile(problem)
    starts = [-1] * len(problem.tasks)
    waiting = list(range(len(problem.tasks)))
    now = 0
    while waiting:
        head = waiting[0]
        shadow = profile.earliest(problem.tasks[head], now)
        if shadow == now:
            chosen: int | None = head
        else:
            # The amounts of the head are taken from the shadow time on; a task that fits next to it starts.
            with_head = _copy(profile)
            with_head.take(problem.tasks[head], shadow)
            chosen = next((each for each in waiting[1:]
                           if with_head.fits(problem.tasks[each], now)), None)
        if chosen is not None:
            starts[chosen] = now
            profile.take(problem.tasks[chosen], now)
            waiting.remove(chosen)
            continue
        now = profile.moments[bisect.bisect_right(profile.moments, now)]
    return starts


def _copy(profile: _Profile) -> _Profile:
    twin = _Profile.__new__(_Profile)
    twin.moments, twin.free = list(profile.moments), [list(free) for free in profile.free]
    return twin


def first_plan(problem: PlanningProblem) -> list[int]:
    """Return the best of three quick plans: EASY's, and two that place one task after the other as
    early as possible. These order tasks by the cost of their wait per second of run time (Smith's rule, 1956),
    and per second and share of the machine."""
    by_seconds = [Fraction(-task.weight, task.seconds) for task in problem.tasks]
    by_area = [each / (max((Fraction(want, most) for want, most
                            in zip(task.wants, problem.capacity) if want), default=0) or 1)
               for each, task in zip(by_seconds, problem.tasks)]
    plans = [easy_plan(problem), compacted(problem, by_seconds), compacted(problem, by_area)]
    return min(plans, key=problem.cost)


def compacted(problem: PlanningProblem, starts: Sequence[int | Fraction]) -> list[int]:
    """Return the plan with every task, in the order of `starts`, as early as possible."""
    profile = _Profile(problem)
    found = [0] * len(starts)
    for at in sorted(range(len(starts)), key=lambda at: (starts[at], at)):
        found[at] = profile.earliest(problem.tasks[at])
        profile.take(problem.tasks[at], found[at])
    return found


def broken(problem: PlanningProblem, starts: Sequence[int]) -> str:
    """Return what a plan violates; "" if it is valid: all starts are within the horizon, and no resource is
    exceeded at any moment."""
    if any(not 0 <= start <= problem.horizon for start in starts):
        return "a start is not within the horizon"
    spans = [(0, seconds, wants) for seconds, wants in problem.running]
    spans += [(start, start + task.seconds, task.wants)
              for task, start in zip(problem.tasks, starts)]
    for moment in {begin for begin, _, _ in spans}:
        for name, most in enumerate(problem.capacity):
            if sum(wants[name] for begin, end, wants in spans if begin <= moment < end) > most:
                return f"at {moment} s more than {most} of resource {name} is taken"
    return ""


@dataclass(frozen=True)
class Effort:
    """How long a planner may search, and from which plan.

    `budget`: seconds of CP-SAT's deterministic clock. `most`: the budget of the last try; the budget is doubled up to
    it while no plan is found. `warm`: the search begins with EASY's plan, or a better one (`first_plan`), and never
    returns a worse one. `wall`: maximum seconds of the wall clock for each try; 0: no limit besides the budget.
    """

    budget: float = 0.1
    most: float = 16.0
    warm: bool = True
    wall: float = 0.0

    def record(self) -> list[Any]:
        """Return its values, in their order."""
        return [self.budget, self.most, self.warm, self.wall]


def solve(problem: PlanningProblem, effort: Effort) -> list[int] | None:
    """Return the starts of the best plan found; None if none was found (never with `warm`)."""
    from ortools.sat.python import cp_model

    known = first_plan(problem) if effort.warm else None
    limit = effort.budget
    while True:
        model = cp_model.CpModel()
        variables = [model.new_int_var(0, problem.horizon, "") for _ in problem.tasks]
        tasks = [model.new_fixed_size_interval_var(start, task.seconds, "")
                 for start, task in zip(variables, problem.tasks)]
        held = [model.new_fixed_size_interval_var(0, seconds, "")
                for seconds, _ in problem.running]
        wants = [*(each for _, each in problem.running), *(task.wants for task in problem.tasks)]
        for name, most in enumerate(problem.capacity):
            model.add_cumulative([*held, *tasks], [each[name] for each in wants], most)
        model.minimize(sum(task.weight * start for task, start in zip(problem.tasks, variables)))
        if known is not None:
            for variable, start in zip(variables, known):
                model.add_hint(variable, start)
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.random_seed = 0
        solver.parameters.max_deterministic_time = limit
        if effort.wall:
            solver.parameters.max_time_in_seconds = effort.wall
        status = solver.solve(model)
        if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            found = compacted(problem, [solver.value(variable) for variable in variables])
            return found if known is None or problem.cost(found) < problem.cost(known) else known
        if known is not None:
            return known
        if limit >= effort.most:
            return None
        limit = min(2 * limit, effort.most)
