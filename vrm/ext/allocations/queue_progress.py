"""How far the user's jobs get in successive allocations, and how long the jobs may take."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple
from collections.abc import Iterator, Mapping

from vrm.ext.advice.assumed_draws import draws as draws_of
from vrm.ext.allocations.shapes import START_UP
from vrm.ext.forecast.counted import CountedRun, NotCounted, RunSpan
from vrm.ext.forecast.draws import OVERDUE
from vrm.ext.forecast.frozen import FrozenRun
from vrm.ext.forecast.replay import Durations, PlannedJob, replay
from vrm.workload.submission import Submission


DOUBT = 4
"""In one of this many draws, the user's jobs are not like earlier ones."""

UNLIKE_FRACTIONS = (0.65, 0.1, 0.9, 0.35, 1.0, 0.05, 0.8, 0.2, 0.5)
"""Fractions of their limits that all jobs take in those draws: `vrm.ext.advice.assumed_draws.RATIOS`, in an order in
which the first few are as wide as all."""


def draws(frozen: FrozenRun, members: int) -> Iterator[Durations]:
    """Yield `members` draws of how long the user's jobs take: mostly as earlier ones did. A queue has one
    unknown more than its jobs: with other input, all jobs of a program may take times that its jobs have never
    taken."""
    for member, durations in enumerate(draws_of(frozen, members)):
        turn, rest = divmod(member, DOUBT)
        yield durations if rest < DOUBT - 1 else _alike(UNLIKE_FRACTIONS[turn % len(UNLIKE_FRACTIONS)])


def _alike(share: float) -> Durations:
    return lambda job, ran: max(share * job.walltime, ran + OVERDUE)


class QueueProgress(NamedTuple):
    """Progress in successive allocations: how long each lasts (seconds; the last one, and one in which nothing
    more fits, ends with its last job), the core seconds that jobs used, and the number of jobs that are not
    done."""

    lasts: tuple[float, ...]
    used: float
    left: int


def _replayed(frozen: FrozenRun, durations: Durations) -> Mapping[int, PlannedJob | RunSpan]:
    """Return, by id, when the jobs of a queue that has not begun start and end; cores are only counted if that
    is exact."""
    try:
        run = CountedRun(frozen)
        return run.draw(durations).go([run.coming(one._replace(run=durations(one.job, 0.0))) for one in frozen.later])
    except NotCounted:
        return replay(frozen, durations)


def makespan(frozen: FrozenRun, durations: Durations) -> float:
    """Return the seconds until all jobs are done if nothing ends the allocation."""
    return max((job.end for job in _replayed(frozen, durations).values()), default=frozen.now) - frozen.now


def progress(frozen: FrozenRun, seconds: float, most: int, durations: Durations) -> QueueProgress:
    """Return how a queue that has not begun progresses in at most `most` allocations of `seconds` seconds. Jobs
    that are not done in one allocation are run again by the next, from their beginning."""
    now, closing = frozen.now, frozen.now + seconds
    cores = {one.job.id: one.job.request.cores for one in frozen.later}
    lasts: list[float] = []
    todo, used = frozen, 0.0
    while todo.later and len(lasts) < most:
        planned = _replayed(replace(todo, end=closing - min(START_UP, seconds / 2)), durations)
        done = {job_id for job_id, job in planned.items() if job.end <= closing}
        if not done:
            break  # the next allocation would do nothing either
        used += sum(cores[job_id] * (min(job.end, closing) - job.start) for job_id, job in planned.items())
        lasts.append(min(seconds, max(job.end for job in planned.values()) - now))
        todo = replace(todo, later=tuple(_shift_submission(one, now, lasts[-1]) for one in todo.later
                                         if one.job.id not in done))
    return QueueProgress(tuple(lasts), used, len(todo.later))


def _shift_submission(one: Submission, now: float, seconds: float) -> Submission:
    """Return a later job as it is after an allocation of `seconds` seconds."""
    submit = max(now, one.job.submit - seconds)
    return one if submit == one.job.submit else one._replace(job=one.job.but(submit=submit))
