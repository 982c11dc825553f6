"""Expected run times: estimators, which learn from jobs that have ended, and corrections, for jobs that run longer
than estimated.

Schedulers use the expected run time, limits the user's walltime. No estimator expects more than the walltime.

Jobs are alike if they are of one user, where the workload names users; otherwise (as in a live run, whose jobs are all
of one user) if they run the same program on the same number of ranks.
"""

from __future__ import annotations

import copy
import math
from typing import Any
from collections.abc import Callable, Hashable, Mapping

from vrm.model.job import Job, JobState
from vrm.scheduling.registry import PolicyError, Registry, guarded, where

ESTIMATORS = Registry("estimator", "vrm.estimators")
CORRECTIONS = Registry("correction")

LEAST = 1.0
"""Minimum expected run time of any job, in seconds."""

Table = Mapping[tuple[str, int], float]
"""Seconds by program and number of ranks."""


ObservedRun = tuple[Job, float, JobState]
"""A job that ended, how long it ran in seconds, and how it ended."""


class Estimator:
    """Expects the user's walltime for each job. Subclasses override `expected` and `learn`."""

    name = "requested"

    @classmethod
    def made(cls, table: Table | None, live: bool) -> Estimator:
        """Return an estimator for a run. `table` has measured run times, if the configuration names some; `live` means
        that the future is unknown. Raises PolicyError."""
        return cls()

    def foresee(self, runs: Mapping[int, float]) -> None:
        """Receive the run times of jobs by id, which a simulation knows and may still change."""

    def expected(self, job: Job) -> float:
        """Return the expected run time of a job in seconds."""
        return job.walltime

    def learn(self, job: Job, run: float) -> None:
        """Learn that a job ran for `run` seconds and completed or reached its walltime."""

    def copy(self) -> Estimator:
        """Return an independent copy, with everything that it has learnt."""
        return copy.deepcopy(self)


def alike(job: Job) -> tuple[Hashable, ...]:
    """Return the key of the jobs that are like this one: its user, or, without a user, its program and number of
    ranks."""
    return (job.user,) if job.user else (job.app, job.procs)


def within(job: Job, seconds: float) -> float:
    """Limit an expected run time: at least LEAST, at most the walltime."""
    return min(job.walltime, max(LEAST, seconds))


class RunTimeRatios:
    """Ratios of run time to request of the last jobs, at most `memory` for each kind of job."""

    def __init__(self, memory: int) -> None:
        self._memory = memory
        self._known: dict[Hashable, tuple[float, ...]] = {}

    def of(self, job: Job) -> tuple[float, ...]:
        """Return the most relevant ratios for a job: of like jobs with the same request; if none has ended, of like
        jobs; otherwise of all jobs. Empty until a job has ended."""
        who, known = alike(job), self._known
        return known.get((job.walltime, who)) or known.get(who) or known.get(None, ())

    def add(self, job: Job, run: float) -> None:
        """Add a job that ended after `run` seconds."""
        who, known, ratio = alike(job), self._known, (run / job.walltime,)
        for key in (job.walltime, who), who, None:
            known[key] = (known.get(key, ()) + ratio)[-self._memory:]

    def copy(self) -> RunTimeRatios:
        """Return an independent copy."""
        twin = RunTimeRatios(self._memory)
        twin._known = dict(self._known)
        return twin


LAST = 20
"""Number of jobs that `LongestRunTimes` uses."""

MARGIN = 1.5
"""Factor by which a job may run longer than the longest of these jobs."""


class LongestRunTimes:
    """Upper estimate of run times: MARGIN times the largest ratio of run time to request of the last LAST jobs (see
    `RunTimeRatios`), times the request. It is at most the request, and the request until a job has ended."""

    def __init__(self) -> None:
        self._ratios = RunTimeRatios(LAST)

    def of(self, job: Job) -> float:
        """Return seconds for a job, at least its expected run time."""
        ratios = self._ratios.of(job)
        if not ratios:
            return job.walltime
        seconds = MARGIN * max(ratios) * job.walltime
        return min(job.walltime, seconds if seconds > job.expected else job.expected)

    def learn(self, job: Job, run: float) -> None:
        """Learn that a job ended after `run` seconds."""
        self._ratios.add(job, run)

    def copy(self) -> LongestRunTimes:
        """Return an independent copy."""
        twin = LongestRunTimes()
        twin._ratios = self._ratios.copy()
        return twin


ESTIMATORS.register(Estimator.name)(Estimator)


class Own(Estimator):
    """A user's estimator: an object with `expected(job)` and, if it learns, `learn(job, run)`."""

    def __init__(self, text: str, own: Any) -> None:
        self.name = text.strip()
        self._own = own

    def expected(self, job: Job) -> float:
        value = guarded(self.name, self._own.expected)(job)
        try:
            seconds = float(value)
        except (TypeError, ValueError):
            seconds = math.nan
        if math.isnan(seconds):
            raise PolicyError(f"`{self.name}`{where(self._own.expected)} expects {value!r} of job "
                              f"{job.id}; an estimator gives seconds")
        return within(job, seconds)

    def learn(self, job: Job, run: float) -> None:
        learn = getattr(self._own, "learn", None)
        if learn is not None:
            guarded(self.name, learn)(job, run)


def make_estimator(text: str, table: Table | None = None, live: bool = False) -> Estimator:
    """Return the estimator with that name or dotted path. `table` is for `calibrated`; `live` means that the future is
    unknown. Raises PolicyError."""
    mine = ESTIMATORS.own(text)
    if mine is not None:
        own = guarded(text, mine)()
        if not callable(getattr(own, "expected", None)):
            raise PolicyError(f"`{text}` makes no estimator: give a class or function without "
                              "arguments that makes an object with `expected(job)`")
        return Own(text, own)
    estimator: Estimator = ESTIMATORS.find(text).made(table, live)
    return estimator


# ------------------------------------------------------------------------------- corrections

Correction = Callable[[float, float, float], float]
"""Function (first, ran, walltime), all in seconds: the new expected run time of a job that was expected to run for
`first`, has run for `ran` and may run for `walltime`. It is more than `ran`, or the walltime."""

STEPS = tuple(60.0 * minutes for minutes in (1, 5, 15, 30, 60, 120, 300, 600, 1200, 3000, 6000))
"""Successive extensions of the first expectation, in seconds (Tsafrir, Etsion and Feitelson, 2007)."""


@CORRECTIONS.register("request")
def request(first: float, ran: float, walltime: float) -> float:
    """Return the walltime immediately."""
    return walltime


@CORRECTIONS.register("stepwise")
def stepwise(first: float, ran: float, walltime: float) -> float:
    """Extend by a minute, then by five, and so on: the first of STEPS that is not over yet."""
    for step in STEPS:
        if first + step > ran:
            return min(first + step, walltime)
    return walltime


@CORRECTIONS.register("doubling")
def doubling(first: float, ran: float, walltime: float) -> float:
    """Double the expected run time until it is more than `ran`."""
    while first <= ran and first < walltime:
        first *= 2
    return min(first, walltime)


def make_correction(text: str) -> Correction:
    """Return the correction with that name. Raises PolicyError if there is none."""
    found: Correction | None = CORRECTIONS.get(text)
    if found is None:
        raise PolicyError(CORRECTIONS.unknown(text).replace(" (or module:function for your own)", ""))
    return found
