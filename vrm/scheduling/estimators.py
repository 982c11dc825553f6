"""How long a job will take: estimators, which learn from jobs that have ended, and what is expected
of a job that has outlived its estimate.

Schedulers go by what is expected, limits by the user's walltime. No estimator expects more than
the walltime.

Whose jobs are alike: those of one user, where the workload says who that is; else those of one
program on one number of ranks, as in a live run, whose jobs are all of one user.
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
"""Seconds that are expected of any job at the least."""

Table = Mapping[tuple[str, int], float]
"""Seconds by program and number of ranks."""


Lesson = tuple[Job, float, JobState]
"""A job that ended, how long it ran in seconds, and how it ended."""


class Estimator:
    """Expects of each job what its user says. Subclasses override `expected` and `learn`."""

    name = "requested"

    @classmethod
    def made(cls, table: Table | None, live: bool) -> Estimator:
        """One for a run: `table` has measured run times, where the configuration names some; `live`: the future is not
        known. Raises PolicyError."""
        return cls()

    def foresee(self, runs: Mapping[int, float]) -> None:
        """Run times of jobs by id, which a simulation knows and may still change."""

    def expected(self, job: Job) -> float:
        """Seconds that a job will take, as far as is known now."""
        return job.walltime

    def learn(self, job: Job, run: float) -> None:
        """A job has ended after `run` seconds: it completed, or reached its walltime."""

    def copy(self) -> Estimator:
        """An independent copy, with all that it has learnt."""
        return copy.deepcopy(self)


def alike(job: Job) -> tuple[Hashable, ...]:
    """Whose jobs this one is like: its user's, or where nobody is named its program's on as many
    ranks."""
    return (job.user,) if job.user else (job.app, job.procs)


def within(job: Job, seconds: float) -> float:
    """The seconds as an expectation: at least LEAST, at most the walltime."""
    return min(job.walltime, max(LEAST, seconds))


class Ratios:
    """Run time / request of the last jobs, at most `memory` of each kind: of jobs alike with the same request; if none
    has ended, of those alike; if there is none of these either, of all."""

    def __init__(self, memory: int) -> None:
        self._memory = memory
        self._known: dict[Hashable, tuple[float, ...]] = {}

    def of(self, job: Job) -> tuple[float, ...]:
        """Those that say the most about a job; nothing until a job has ended."""
        who, known = alike(job), self._known
        return known.get((job.walltime, who)) or known.get(who) or known.get(None, ())

    def add(self, job: Job, run: float) -> None:
        """A job has ended after `run` seconds."""
        who, known, ratio = alike(job), self._known, (run / job.walltime,)
        for key in (job.walltime, who), who, None:
            known[key] = (known.get(key, ()) + ratio)[-self._memory:]

    def copy(self) -> Ratios:
        """An independent copy."""
        twin = Ratios(self._memory)
        twin._known = dict(self._known)
        return twin


LAST = 20
"""How many jobs `Longest` looks at."""

MARGIN = 1.5
"""How many times as long as the longest of them a job is taken to need at the most."""


class Longest:
    """How long jobs take at the most, as far as is known: MARGIN times as much of the request as the longest of the
    last LAST jobs (see `Ratios`). Until a job has ended, and at the most, it is the request."""

    def __init__(self) -> None:
        self._ratios = Ratios(LAST)

    def of(self, job: Job) -> float:
        """Seconds for a job, no less than what is expected of it."""
        ratios = self._ratios.of(job)
        if not ratios:
            return job.walltime
        seconds = MARGIN * max(ratios) * job.walltime
        return min(job.walltime, seconds if seconds > job.expected else job.expected)

    def learn(self, job: Job, run: float) -> None:
        """A job has ended after `run` seconds."""
        self._ratios.add(job, run)

    def copy(self) -> Longest:
        """An independent copy."""
        twin = Longest()
        twin._ratios = self._ratios.copy()
        return twin


ESTIMATORS.register(Estimator.name)(Estimator)


class Own(Estimator):
    """A user's own: an object with `expected(job)` and, if it learns, `learn(job, run)`."""

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
    """The estimator of that name or dotted path. `table` is that of `calibrated`; `live`: the
    future is not known. Raises PolicyError."""
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
"""What is expected from now on of a job of which `first` was expected, that has run for `ran` and
may run for `walltime` (all seconds): more than `ran`, or the walltime."""

STEPS = tuple(60.0 * minutes for minutes in (1, 5, 15, 30, 60, 120, 300, 600, 1200, 3000, 6000))
"""Seconds beyond the first expectation, one after the other (Tsafrir, Etsion and Feitelson, 2007)."""


@CORRECTIONS.register("request")
def request(first: float, ran: float, walltime: float) -> float:
    """The walltime at once."""
    return walltime


@CORRECTIONS.register("stepwise")
def stepwise(first: float, ran: float, walltime: float) -> float:
    """A minute more, then five, and so on: the first of STEPS that is not over."""
    for step in STEPS:
        if first + step > ran:
            return min(first + step, walltime)
    return walltime


@CORRECTIONS.register("doubling")
def doubling(first: float, ran: float, walltime: float) -> float:
    """Twice as much, and again."""
    while first <= ran and first < walltime:
        first *= 2
    return min(first, walltime)


def make_correction(text: str) -> Correction:
    """The correction of that name; PolicyError when there is none."""
    found: Correction | None = CORRECTIONS.get(text)
    if found is None:
        raise PolicyError(CORRECTIONS.unknown(text).replace(" (or module:function for your own)", ""))
    return found
