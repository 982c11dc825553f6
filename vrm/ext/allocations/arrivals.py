"""Later arrivals: jobs of others that are not in the site's queue yet, and that will be submitted before ours
are done.

With a history of the site, its own submissions are drawn: a stretch of it, which begins a whole number of days
ago, is assumed to repeat. Without a history, jobs like those in the queue are assumed to keep arriving, so that
the site stays about as full as it is (see `vrm.ext.allocations.outer_site`).
"""

from __future__ import annotations

import bisect
import itertools
import random
from statistics import fmean
from typing import Generic, NamedTuple, TypeVar
from collections.abc import Iterator, Sequence

from vrm.ext.advice.assumed_draws import RATIOS
from vrm.model import Job
from vrm.workload.submission import Submission

DAY = 86400.0

HORIZON = 60 * DAY
"""Seconds from now after which no more jobs arrive."""

PACES = (0.5, 0.7, 1.0, 1.3, 1.5)
"""Without a history: ratios of arriving jobs to as many as keep the site as full as it is, all equally
probable."""


class PastArrival(NamedTuple):
    """A job of the history, when it was submitted, and how long it ran (seconds)."""

    job: Job
    submit: float
    run: float


Made = TypeVar("Made")


class Stream(Generic[Made]):
    """An iterable of items that are made when they are first needed, and kept."""

    def __init__(self, made: Iterator[Made]) -> None:
        self._made = made
        self._had: list[Made] = []

    def __iter__(self) -> Iterator[Made]:
        at = 0
        while True:
            if at == len(self._had):
                one = next(self._made, None)
                if one is None:
                    return
                self._had.append(one)
            yield self._had[at]
            at += 1


def again(known: Sequence[PastArrival], seed: str, now: float, first_id: int) -> Iterator[Submission]:
    """Yield the submissions of a stretch of the history from `now` on; at its end another stretch follows.
    `known` is the history in order of time."""
    draw = random.Random(seed)
    times = [each.submit for each in known]
    begun, ended = times[0], times[-1]
    days = int((ended - begun) // DAY)
    number, passed = first_id, 0.0
    while passed < HORIZON:
        back = DAY * draw.randint(1, days) if days else draw.random() * (ended - begun)
        since = ended - back
        for each in known[bisect.bisect_right(times, since):]:
            time = now + passed + each.submit - since
            if time > now + HORIZON:
                return
            yield Submission(each.job.but(id=number, submit=time), each.run)
            number += 1
        passed += max(back, 1.0)


def assumed(jobs: Sequence[Job], work: float, seed: str, now: float, first_id: int) -> Iterator[Submission]:
    """Yield jobs like `jobs`, as many as cause `work` core seconds per second. A job with a long limit stays in
    a queue for long, so short jobs arrive more often. The fraction of its limit that each takes is drawn from
    RATIOS."""
    draw = random.Random(seed)
    weights = [*itertools.accumulate(1 / job.walltime for job in jobs)]
    mean = fmean(RATIOS) * sum(job.request.cores for job in jobs) / weights[-1]
    pace = work * draw.choice(PACES) / mean
    number, time = first_id, now
    while True:
        time += draw.expovariate(pace)
        if time > now + HORIZON:
            return
        job = draw.choices(jobs, cum_weights=weights)[0]
        yield Submission(job.but(id=number, submit=time), job.walltime * draw.choice(RATIOS))
        number += 1
