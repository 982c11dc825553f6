"""How long programs take on other numbers of ranks: curves, learned from jobs that completed.

A curve is T(n) = a + b / n + c n seconds on n ranks, none of a, b, c negative: Amdahl's law (1967), and an overhead
that grows with the ranks, so a program may also be slower on more of them. Of a program that nobody has seen the
shape is Amdahl's with PARALLEL of its time parallel, or Downey's (1997) where its user gives his two parameters. """

from __future__ import annotations

import itertools
import math
import shlex
from statistics import fmean, median
from typing import NamedTuple
from collections.abc import Callable, Hashable, Mapping, Sequence

from vrm.ext.learning.widths import SPEEDUP, Downey
from vrm.model.job import Job

PARALLEL = 0.95
"""The part of the time on one rank that is taken to be parallel, of a program that nobody has seen."""

KEPT = 8
"""Run times on each number of ranks that count: the last ones."""

UNSURE, LEAST = 0.25, 0.03
"""Standard deviations of the logarithm of a time: of one that was not measured, and of any at the least."""

NORMAL = 1.2816
"""Standard deviations from the mean to the 90th percentile of a normal distribution."""

Shape = Callable[[int], float]
"""Relative run time by number of ranks."""


class Expected(NamedTuple):
    """Seconds that are expected, and between which they are in 8 of 10 cases."""

    seconds: float
    low: float
    high: float


def amdahl(ranks: int, parallel: float = PARALLEL) -> float:
    """Return the run time on so many ranks, as a multiple of that on one."""
    return 1.0 - parallel + parallel / ranks


class ScalingCurve:
    """Run times of one program and input, by number of ranks (seconds, the oldest first)."""

    def __init__(self, points: Mapping[int, Sequence[float]] | None = None) -> None:
        self.points: dict[int, tuple[float, ...]] = {ranks: tuple(times) for ranks, times in (points or {}).items()}
        self._fitted: tuple[Shape, float] | None = None

    def add(self, ranks: int, seconds: float) -> None:
        """A job has taken so long."""
        self.points[ranks] = (*self.points.get(ranks, ()), seconds)[-KEPT:]
        self._fitted = None

    def copy(self) -> ScalingCurve:
        """An independent copy."""
        return ScalingCurve(self.points)

    def expected(self, ranks: int, otherwise: Shape) -> Expected:
        """What is expected on so many ranks: the median of what was measured there, else by the fit; `otherwise` is the
        shape where only one number of ranks was measured. KeyError where nothing was."""
        shape, spread = self._fit(otherwise)
        times = self.points.get(ranks)
        seconds = median(times) if times else shape(ranks)
        if times:
            spread = _spread(times, seconds) if len(times) > 2 else max(spread, LEAST)
        else:
            spread = math.hypot(spread, UNSURE)
        factor = math.exp(NORMAL * max(spread, LEAST))
        return Expected(seconds, seconds / factor, seconds * factor)

    def _fit(self, otherwise: Shape) -> tuple[Shape, float]:
        """The shape of the curve, and the standard deviation of the logarithms of the times around it."""
        if len(self.points) == 1:
            (ranks, times), = self.points.items()
            level = median(times) / otherwise(ranks)
            return lambda n: level * otherwise(n), _spread(times, median(times))
        if self._fitted is None:
            self._fitted = _fit(self.points)
        return self._fitted


def _spread(times: Sequence[float], center: float) -> float:
    return math.sqrt(fmean(math.log(time / center) ** 2 for time in times))


def _fit(points: Mapping[int, Sequence[float]]) -> tuple[Shape, float]:
    """Fit a, b, c by least squares of the relative errors. Two numbers of ranks leave no overhead to fit."""
    import numpy

    ranks = numpy.array([n for n, times in points.items() for _ in times], float)
    times = numpy.array([time for each in points.values() for time in each])
    terms = numpy.stack([numpy.ones_like(ranks), 1 / ranks, ranks], axis=1) / times[:, None]
    best, found = math.inf, numpy.zeros(3)
    usable = (0, 1, 2) if len(points) > 2 else (0, 1)
    for size in range(1, len(usable) + 1):
        for chosen in itertools.combinations(usable, size):
            values = numpy.linalg.lstsq(terms[:, chosen], numpy.ones_like(times), rcond=None)[0]
            error = float(((terms[:, chosen] @ values - 1) ** 2).sum())
            if (values >= 0).all() and error < best - 1e-12:
                best, found = error, numpy.zeros(3)
                found[list(chosen)] = values
    a, b, c = map(float, found)
    free = max(1, len(times) - len(usable))
    return lambda n: a + b / n + c * n, math.sqrt(best / free)


class Curves:
    """The curves of all programs and inputs."""

    def __init__(self) -> None:
        self._known: dict[Hashable, dict[str, ScalingCurve]] = {}
        self.version = 0

    def copy(self) -> Curves:
        """An independent copy."""
        twin = Curves()
        twin._known = {app: {key: curve.copy() for key, curve in of.items()} for app, of in self._known.items()}
        twin.version = self.version
        return twin

    def learn(self, app: Hashable, key: str, ranks: int, seconds: float) -> None:
        """A job of a program and an input (`input_key`) has completed."""
        if seconds > 0:
            self._known.setdefault(app, {}).setdefault(key, ScalingCurve()).add(ranks, seconds)
            self.version += 1

    def measured(self, job: Job) -> dict[int, int]:
        """How often the program and input of a job has completed, by number of ranks."""
        curve = self._known.get(_app(job), {}).get(input_key(job))
        return {} if curve is None else {ranks: len(times) for ranks, times in curve.points.items()}

    def expected(self, job: Job, ranks: int, shape: Shape | None = None) -> Expected:
        """What is expected of a job on so many ranks. Where its program and input was never seen it takes on its own
        number of ranks what is expected of it, and the shape is that of the input of its program that is known best, or
        `shape`, by default that of an unknown program."""
        of = self._known.get(_app(job), {})
        otherwise = shape or self._shape(job, of)
        curve = of.get(input_key(job))
        if curve is not None:
            return curve.expected(ranks, otherwise)
        seconds = job.expected * otherwise(ranks) / otherwise(job.procs)
        factor = math.exp(NORMAL * UNSURE)
        return Expected(seconds, seconds / factor, seconds * factor) if ranks != job.procs else Expected(
            job.expected, job.expected / factor, job.expected)

    @staticmethod
    def _shape(job: Job, of: Mapping[str, ScalingCurve]) -> Shape:
        """The shape that is likely where little is known."""
        given = job.more.get(SPEEDUP)
        if given is not None:
            return Downey(*given).time
        best = max(of.values(), key=lambda curve: len(curve.points), default=None)
        if best is None or len(best.points) < 2:
            return amdahl
        known = best
        return lambda ranks: known.expected(ranks, amdahl).seconds


def _app(job: Job) -> Hashable:
    return (job.user, job.app, job.request.cores_per_task)


def input_key(job: Job) -> str:
    """Return what tells apart the inputs of a program, as `vrm.ext.learning.observed.input_of` does for its line."""
    return shlex.join(job.payload.arguments) or job.payload.directory
