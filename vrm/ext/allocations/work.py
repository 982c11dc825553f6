"""How far the user's jobs come in allocations that follow one another, and how long they may take."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple
from collections.abc import Iterator, Mapping

from vrm.ext.advice.assumed import draws as draws_of
from vrm.ext.allocations.shapes import START_UP
from vrm.ext.forecast.counted import CountedRun, NotCounted, RunSpan
from vrm.ext.forecast.draws import OVERDUE
from vrm.ext.forecast.frozen import Frozen
from vrm.ext.forecast.replay import Durations, Planned, replay
from vrm.workload.submission import Submission


DOUBT = 4
"""In one draw of so many the user's jobs are not like those before."""

DOUBTED = (0.65, 0.1, 0.9, 0.35, 1.0, 0.05, 0.8, 0.2, 0.5)
"""There all of them take such a share of their limits: `vrm.ext.advice.assumed.RATIOS` in an order in which the first
few are as wide as all."""


def draws(frozen: Frozen, members: int) -> Iterator[Durations]:
    """So many draws of how long the user's jobs take: mostly as those before. A queue is one unknown more than its jobs
    are: with other input all jobs of a program take other times than its jobs have ever taken."""
    for member, durations in enumerate(draws_of(frozen, members)):
        turn, rest = divmod(member, DOUBT)
        yield durations if rest < DOUBT - 1 else _alike(DOUBTED[turn % len(DOUBTED)])


def _alike(share: float) -> Durations:
    return lambda job, ran: max(share * job.walltime, ran + OVERDUE)


class QueueProgress(NamedTuple):
    """Of allocations one after the other: how long each lasts (s; the last one, and one in which nothing more fits,
    ends with its last job), the core seconds that jobs had, and how many jobs are not done."""

    lasts: tuple[float, ...]
    used: float
    left: int


def _replayed(frozen: Frozen, durations: Durations) -> Mapping[int, Planned | RunSpan]:
    """When the jobs of a queue that has not begun start and end, by id: by counts, if these say all."""
    try:
        run = CountedRun(frozen)
        return run.draw(durations).go([run.coming(one._replace(run=durations(one.job, 0.0))) for one in frozen.later])
    except NotCounted:
        return replay(frozen, durations)


def makespan(frozen: Frozen, durations: Durations) -> float:
    """Seconds in which all jobs are done if nothing ends the allocation."""
    return max((job.end for job in _replayed(frozen, durations).values()), default=frozen.now) - frozen.now


def progress(frozen: Frozen, seconds: float, most: int, durations: Durations) -> QueueProgress:
    """How a queue that has not begun goes on in at most so many allocations of so many seconds. What is not done in one
    is run by the next, from its beginning."""
    now, closing = frozen.now, frozen.now + seconds
    cores = {one.job.id: one.job.request.cores for one in frozen.later}
    lasts: list[float] = []
    todo, used = frozen, 0.0
    while todo.later and len(lasts) < most:
        planned = _replayed(replace(todo, end=closing - min(START_UP, seconds / 2)), durations)
        done = {job_id for job_id, job in planned.items() if job.end <= closing}
        if not done:
            break  # and it would be so in the next one
        used += sum(cores[job_id] * (min(job.end, closing) - job.start) for job_id, job in planned.items())
        lasts.append(min(seconds, max(job.end for job in planned.values()) - now))
        todo = replace(todo, later=tuple(_earlier(one, now, lasts[-1]) for one in todo.later
                                         if one.job.id not in done))
    return QueueProgress(tuple(lasts), used, len(todo.later))


def _earlier(one: Submission, now: float, seconds: float) -> Submission:
    """A job that comes, after an allocation of so many seconds."""
    submit = max(now, one.job.submit - seconds)
    return one if submit == one.job.submit else one._replace(job=one.job.but(submit=submit))
