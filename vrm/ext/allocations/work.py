"""How far the user's jobs come in allocations that follow one another."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from vrm.ext.allocations.shapes import START_UP
from vrm.ext.forecast.frozen import Frozen
from vrm.ext.forecast.replay import Durations, replay
from vrm.workload.submission import Submission


class QueueProgress(NamedTuple):
    """Of allocations one after the other: how long each lasts (s; the last one, and one in which nothing more fits,
    ends with its last job), the core seconds that jobs had, and how many jobs are not done."""

    lasts: tuple[float, ...]
    used: float
    left: int


def makespan(frozen: Frozen, durations: Durations) -> float:
    """Seconds in which all jobs are done if nothing ends the allocation."""
    return max((job.end for job in replay(frozen, durations).values()), default=frozen.now) - frozen.now


def progress(frozen: Frozen, seconds: float, most: int, durations: Durations) -> QueueProgress:
    """How a queue that has not begun goes on in at most so many allocations of so many seconds. What is not done in one
    is run by the next, from its beginning."""
    now, closing = frozen.now, frozen.now + seconds
    cores = {one.job.id: one.job.request.cores for one in frozen.later}
    lasts: list[float] = []
    todo, used = frozen, 0.0
    while todo.later and len(lasts) < most:
        planned = replay(replace(todo, end=closing - min(START_UP, seconds / 2)), durations)
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
