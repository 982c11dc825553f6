"""When waiting jobs should start, as a problem of whole numbers: what a planner solves.

The problem knows totals, no nodes: of each resource the machine has so much, running jobs hold some
of it until they are expected to end, and each task wants some for as long as it is expected to run.
Times are whole seconds from now, run times rounded up. A plan gives every task its start; the least
sum of weighted starts is the best (A. Netti, "Development of data-driven dispatching heuristics for
heterogeneous HPC systems", University of Bologna, 2017: the mean wait in proportion to what jobs of
a queue are expected to wait).
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from fractions import Fraction
from typing import Any
from collections.abc import Iterable, Sequence

Amounts = tuple[int, ...]
"""Of each resource of a problem, in its order."""


@dataclass(frozen=True)
class PlanningTask:
    """A job that is to be planned: its run time in seconds, what it wants, and what each second of
    its wait costs."""

    seconds: int
    wants: Amounts
    weight: int


@dataclass(frozen=True)
class PlanningProblem:
    """`capacity` is what the machine has, `running` what jobs hold and for how many seconds more,
    `tasks` the jobs in the order of the queue; all start within `horizon` seconds."""

    capacity: Amounts
    running: tuple[tuple[int, Amounts], ...]
    tasks: tuple[PlanningTask, ...]
    horizon: int

    @property
    def free(self) -> Amounts:
        """What nobody holds now."""
        held = [sum(each) for each in zip(*(wants for _, wants in self.running))]
        return tuple(all_ - some for all_, some in zip(self.capacity, held)) if held \
            else self.capacity

    def cost(self, starts: Sequence[int]) -> int:
        """The sum of the weighted starts of a plan."""
        return sum(task.weight * start for task, start in zip(self.tasks, starts))

    def record(self) -> list[Any]:
        """As plain values, for another process."""
        return [self.capacity, self.running,
                [(task.seconds, task.wants, task.weight) for task in self.tasks], self.horizon]

    @classmethod
    def read(cls, record: Sequence[Any]) -> PlanningProblem:
        """From what `record` gives."""
        capacity, running, tasks, horizon = record
        return cls(tuple(capacity), tuple((seconds, tuple(wants)) for seconds, wants in running),
                   tuple(PlanningTask(seconds, tuple(wants), weight) for seconds, wants, weight in tasks),
                   horizon)


def latest_end(now: float, expected: Iterable[float], remaining: Iterable[float]) -> float:
    """When everything has ended if one job runs after the other, in seconds: no plan need be
    longer. Jobs that should have ended already count as ending now."""
    return now + sum(expected) + sum(max(0.0, left) for left in remaining)


class _Profile:
    """What is free over time: from each of the moments on."""

    def __init__(self, problem: PlanningProblem) -> None:
        self.moments: list[int] = [0]
        self.free: list[list[int]] = [list(problem.free)]
        for seconds, wants in sorted(problem.running):
            at = self._cut(seconds)
            for later in self.free[at:]:
                for name, amount in enumerate(wants):
                    later[name] += amount

    def _cut(self, moment: int) -> int:
        """The place of a moment, made where there is none."""
        at = bisect.bisect_left(self.moments, moment)
        if at == len(self.moments) or self.moments[at] != moment:
            self.moments.insert(at, moment)
            self.free.insert(at, list(self.free[at - 1]))
        return at

    def fits(self, task: PlanningTask, start: int) -> bool:
        """Whether the task can run from then on, up to its end."""
        at = bisect.bisect_right(self.moments, start) - 1
        while at < len(self.moments) and self.moments[at] < start + task.seconds:
            if any(want > free for want, free in zip(task.wants, self.free[at])):
                return False
            at += 1
        return True

    def earliest(self, task: PlanningTask, least: int = 0) -> int:
        """The first moment from which on it can run up to its end."""
        start, at = least, bisect.bisect_right(self.moments, least) - 1
        while at < len(self.moments) and self.moments[at] < start + task.seconds:
            if any(want > free for want, free in zip(task.wants, self.free[at])):
                at += 1
                start = self.moments[at]  # in the end all is free
                continue
            at += 1
        return start

    def take(self, task: PlanningTask, start: int) -> None:
        """Let the task run from then on."""
        first = self._cut(start)
        last = self._cut(start + task.seconds)
        for free in self.free[first:last]:
            for name, amount in enumerate(task.wants):
                free[name] -= amount


def easy_plan(problem: PlanningProblem) -> list[int]:
    """The starts that EASY backfilling gives the tasks, if all run as long as expected: a later one
    starts if it delays the first that waits by nothing."""
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
            # What the head will take from the shadow time on is taken; who fits beside it starts.
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
    """The best of a few quick plans: EASY's, and those that take one task after the other, each as
    early as it can be, by what its wait costs for each second that it runs (Smith's rule, 1956),
    and for each second and share of the machine."""
    by_seconds = [Fraction(-task.weight, task.seconds) for task in problem.tasks]
    by_area = [each / (max((Fraction(want, most) for want, most
                            in zip(task.wants, problem.capacity) if want), default=0) or 1)
               for each, task in zip(by_seconds, problem.tasks)]
    plans = [easy_plan(problem), shifted(problem, by_seconds), shifted(problem, by_area)]
    return min(plans, key=problem.cost)


def shifted(problem: PlanningProblem, starts: Sequence[int | Fraction]) -> list[int]:
    """The same plan with every task, in the order of their starts, as early as it can be."""
    profile = _Profile(problem)
    found = [0] * len(starts)
    for at in sorted(range(len(starts)), key=lambda at: (starts[at], at)):
        found[at] = profile.earliest(problem.tasks[at])
        profile.take(problem.tasks[at], found[at])
    return found


def broken(problem: PlanningProblem, starts: Sequence[int]) -> str:
    """What a plan breaks, "" where it is one: starts within the horizon, and at no moment more of a
    resource than there is."""
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
    """How long a planner may search, and from where.

    `budget` is in seconds of CP-SAT's deterministic clock, `most` is
    that of the last try, where no plan was found with less. `warm`: it begins with EASY's plan, or
    a better one (`first_plan`), and never gives a worse one. `wall`: at most so many seconds of the
    clock for each try; 0: as many as the budget takes.
    """

    budget: float = 0.1
    most: float = 16.0
    warm: bool = True
    wall: float = 0.0

    def record(self) -> list[Any]:
        """Its values, in their order."""
        return [self.budget, self.most, self.warm, self.wall]


def solve(problem: PlanningProblem, effort: Effort) -> list[int] | None:
    """The starts of the best plan that is found; None where none is (never with EASY's to begin
    with)."""
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
            found = shifted(problem, [solver.value(variable) for variable in variables])
            return found if known is None or problem.cost(found) < problem.cost(known) else known
        if known is not None:
            return known
        if limit >= effort.most:
            return None
        limit = min(2 * limit, effort.most)
