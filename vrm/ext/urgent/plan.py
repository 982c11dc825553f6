"""Computes what an urgent job costs other jobs, from forecasts of the same run with room for it and without it.

The draws are paired: in one draw each job takes equally long in both forecasts, so that all differences are caused by
the urgent job. Among the choices of `vrm.ext.urgent.donors`, the best one delays other jobs least: the sum of their
delays, averaged over the draws, is smallest. All choices are compared by a few draws first, and the best of these by
all draws. Times are in seconds.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple
from collections.abc import Iterable, Mapping, Sequence

from vrm.ext.forecast.draws import Draws, draws_of
from vrm.ext.forecast.frozen import FrozenRun
from vrm.ext.forecast.replay import PlannedJob, replay
from vrm.ext.urgent.donors import (REQUEUE, CoreDonor, MemoryOf, UrgentPlacement, asking, core_donors,
                                   requests_memory, rooms)
from vrm.model import Job
from vrm.model.job import Details
from vrm.model.measured.quantile import quantile
from vrm.run.run import Run
from vrm.scheduling import Start

MEMBERS, FIRST, BEST = 30, 3, 4
"""Number of draws; number of draws by which all choices are compared; number of choices that are compared by all
draws."""

SAID = 60.0
"""Minimum seconds by which a job must end later, on average, to be listed."""


class Loss(NamedTuple):
    """How much later a job ends because of the urgent one: mean, P10 and P90 of the draws. `how`: how it gives cores;
    "" if it gives none."""

    id: int
    app: str
    how: str
    mean: float
    p10: float
    p90: float


class UrgentPlan(NamedTuple):
    """What must be done for an urgent job.

    `start`: P10 and P90 of its start without room. `room`: the room to make; None if the job starts in time by itself
    (`alone`), or cannot (`why`). `losses`: of all other jobs that lose or gain, the largest first; `total` is their
    sum.
    """

    start: tuple[float, float]
    alone: bool = False
    room: UrgentPlacement | None = None
    losses: tuple[Loss, ...] = ()
    total: float = 0.0
    why: str = ""

    @property
    def said(self) -> list[Loss]:
        """The losses to list: of jobs that give cores, and of jobs that end more than a minute later."""
        return [each for each in self.losses if each.how or each.mean > SAID]


def grant(run: Run, job: Job, details: Details, found: UrgentPlacement, now: float) -> Start:
    """Start an urgent job in the room made for it, in a run that is a forecast or a simulation."""
    state = run.state
    if job.id not in state.book.entries:
        state.submit([job if run.expectations is None else run.expectations.of(job)], details)
    job = state.entry(job.id).job
    booking = state.cluster.book(job, found.placement, now)
    state.queue.remove_started([job])
    for loan in state.cluster.loans.of_borrower(job.id):
        state.lending.lent(state.lending.lend(loan).number, now)
    start = Start(booking, True)
    state.started(start, now)
    for job_id in found.ids(REQUEUE):
        state.release_cores(job_id)
        state.again(job_id, now, f"it made room for job {job.id}")
    return start


def with_room(frozen: FrozenRun, job: Job, details: Details, found: UrgentPlacement) -> FrozenRun:
    """Return the frozen run as if room were made for an urgent job now."""
    run = frozen.run.copy()
    grant(run, job, details, found, frozen.now)
    return replace(frozen, run=run, due=True)


class Costs:
    """Delays of other jobs by different choices of room for a job, all from the same draws."""

    def __init__(self, frozen: FrozenRun, job: Job, details: Details, members: int = MEMBERS) -> None:
        self.frozen, self.job, self.details = frozen, job, details
        self.draws: Draws = draws_of(frozen, members)
        self.members = members
        self._without: list[Mapping[int, PlannedJob]] = []
        self._jobs = {each.id: each for each in (*(booking.job for booking in frozen.state.cluster.running()),
                                                 *frozen.waiting(), *(one.job for one in frozen.later))}

    def without(self, member: int) -> Mapping[int, PlannedJob]:
        """Return the jobs of a draw without the urgent job. This must be replayed first: the draw of a running job is
        kept for its run time if it starts again."""
        while len(self._without) <= member:
            self._without.append(replay(self.frozen, self.draws.of(len(self._without))))
        return self._without[member]

    def of(self, found: UrgentPlacement, members: int) -> dict[int, list[float]]:
        """Return how much later each job ends, for each draw."""
        later: dict[int, list[float]] = {job_id: [] for job_id in self._jobs}
        asked = with_room(self.frozen, self.job, self.details, found)
        for member in range(members):
            before = self.without(member)
            after = replay(asked, self.draws.of(member))
            for job_id, losses in later.items():
                runs = job_id in after or job_id in before
                losses.append(self._end(after, job_id) - self._end(before, job_id) if runs else 0.0)
        return later

    def _end(self, planned: Mapping[int, PlannedJob], job_id: int) -> float:
        """Return the end of a job. A job that does not run in this allocation counts as if it ran right after the
        allocation."""
        found = planned.get(job_id)
        return found.end if found is not None else self.frozen.end + self._jobs[job_id].walltime

    def total(self, found: UrgentPlacement, members: int) -> float:
        """Return the sum of the delays of all jobs, averaged over the draws."""
        return math.fsum(math.fsum(losses) / members for losses in self.of(found, members).values())

    def losses(self, found: UrgentPlacement) -> tuple[Loss, ...]:
        """Return the losses of the jobs that lose, gain, or give cores, the largest first."""
        how = {each.id: each.how for each in found.core_donors}
        made = []
        for job_id, losses in self.of(found, self.members).items():
            if any(losses) or job_id in how:
                ordered = sorted(losses)
                made.append(Loss(job_id, self._jobs[job_id].app, how.get(job_id, ""), math.fsum(losses) / len(losses),
                                 quantile(ordered, 0.1), quantile(ordered, 0.9)))
        return tuple(sorted(made, key=lambda each: (-each.mean, each.id)))

    def starts(self) -> list[float]:
        """Return the starts of the job if it waits like any other job, one per draw, sorted."""
        asked = self.frozen.with_job(self.job, self.details)
        found = (replay(asked, self.draws.of(member), until={self.job.id}).get(self.job.id)
                 for member in range(self.members))
        return sorted(math.inf if each is None else each.start for each in found)


def best(costs: Costs, choices: Iterable[UrgentPlacement]) -> UrgentPlacement | None:
    """Return the choice that delays other jobs least; among equal ones the one with the fewest jobs that give cores.
    None if there are no choices."""
    first = sorted(((costs.total(each, min(FIRST, costs.members)), len(each.core_donors), at, each)
                    for at, each in enumerate(choices)))[:BEST]
    if len(first) < 2:
        return first[0][3] if first else None
    return min((costs.total(each, costs.members), number, at, each) for _, number, at, each in first)[3]


def plan(frozen: FrozenRun, job: Job, details: Details, memory: MemoryOf, requeues: bool, by: float | None = None,
         members: int = MEMBERS) -> UrgentPlan:
    """Plan how a job that is not yet in the run can start now, or `by` a time. Raises Infeasible if it can never run,
    and JobStateError if it depends on a job that does not exist."""
    costs = Costs(frozen, job, details, members)
    starts = costs.starts()
    start = quantile(starts, 0.1), quantile(starts, 0.9)
    if start[1] <= (frozen.now if by is None else by):
        return UrgentPlan(start, alone=True)
    cluster = frozen.state.cluster
    able, not_paused = core_donors(cluster, lambda job_id: frozen.state.entry(job_id).details, memory, requeues)
    found = best(costs, rooms(asking(job, frozen.run.scheduler), cluster, able, memory, frozen.now))
    if found is None:
        return UrgentPlan(start, why=reason(job, able, not_paused))
    losses = costs.losses(found)
    return UrgentPlan(start, room=found, losses=losses, total=math.fsum(each.mean for each in losses))


def reason(job: Job, able: Sequence[CoreDonor], not_paused: Mapping[int, str]) -> str:
    """Return why no room can be made for a job."""
    if job.request.parts:
        return "a job of several programs is not started on cores of others"
    if job.exclusive:
        return "an exclusive job shares its nodes with no other, and not with a paused one"
    if not requests_memory(job):
        return ("it does not say how much memory it needs (--mem-per-task), so no job can be paused for it, and those "
                "that may run again do not hold enough cores")
    few = "".join(f"; job {job_id} is not paused: {why}" for job_id, why in list(not_paused.items())[:4])
    return f"the {len({each.id for each in able})} running job(s) that could give cores do not have enough of them{few}"
