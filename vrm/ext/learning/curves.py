"""How long programs take on other numbers of ranks: curves, learned from jobs that completed.

A curve is T(n) = a + b / n + c n seconds on n ranks, none of a, b, c negative: Amdahl's law (1967), and an overhead
that grows with the ranks, so a program may also be slower on more of them. Of a program that nobody has seen the
shape is that of Downey's model (1997), by the two parameters that its user gives (`speedup=`), else as if its user
had asked for half of the ranks that it can use. """

from __future__ import annotations

import itertools
import math
import shlex
from statistics import fmean
from typing import NamedTuple
from collections.abc import Callable, Hashable, Mapping, Sequence

from vrm.ext.learning.widths import SPEEDUP, Downey
from vrm.model.job import Job

PARALLELISM, VARIATION = 2.0, 1.0
"""Downey's parameters of a program that nobody has seen: its average parallelism as a multiple of the ranks that its
user asks for, and its variation."""

KEPT = 8
"""Run times on each number of ranks that count: the last ones."""

UNSURE, LEAST = 0.25, 0.03
"""Standard deviations of the logarithm of a time: of one that was not measured, and of any at the least."""

NOISE, FEW_TIMES = 0.05, 1
"""The standard deviation of the logarithms of times on one number of ranks, before there are several, and how many
times it counts as."""

DEVIATES = 0.7
"""How far the logarithm of a time is from the likely shape (standard deviation), among programs."""

NORMAL = 1.2816
"""Standard deviations from the mean to the 90th percentile of a normal distribution."""

Shape = Callable[[int], float]
"""Relative run time by number of ranks."""


class Expected(NamedTuple):
    """Seconds that are expected, and between which they are in 8 of 10 cases."""

    seconds: float
    low: float
    high: float


class ScalingCurve:
    """Run times of one program and input, by number of ranks (seconds, the oldest first)."""

    def __init__(self, points: Mapping[int, Sequence[float]] | None = None) -> None:
        self.points: dict[int, tuple[float, ...]] = {ranks: tuple(times) for ranks, times in (points or {}).items()}

    def add(self, ranks: int, seconds: float) -> None:
        """A job has taken so long."""
        self.points[ranks] = (*self.points.get(ranks, ()), seconds)[-KEPT:]

    def copy(self) -> ScalingCurve:
        """An independent copy."""
        return ScalingCurve(self.points)

    def expected(self, ranks: int, otherwise: Shape) -> Expected:
        """What is expected on so many ranks, where `otherwise` is the shape that is likely. KeyError where nothing was
        measured."""
        level, known, noise = self._judged(otherwise)
        if ranks in known:
            log, spread = known[ranks], noise
        elif len(known) > 1:
            log, spread = math.log(_fit({n: math.exp(value) for n, value in known.items()})(ranks)), math.hypot(
                noise, UNSURE)
        else:
            log, spread = level + math.log(otherwise(ranks)), math.hypot(noise, UNSURE)
        factor = math.exp(NORMAL * max(spread, LEAST))
        return Expected(math.exp(log), math.exp(log) / factor, math.exp(log) * factor)

    def _judged(self, otherwise: Shape) -> tuple[float, dict[int, float], float]:
        """The logarithms of the time on one rank by the likely shape, and of the times on all numbers of ranks that
        were measured, and the standard deviation of a time. Where times on one number of ranks differ much, those on
        another say less: each is drawn to the likely shape, as much as its noise wants (a mean of two normal
        distributions)."""
        logs = {ranks: [math.log(time) for time in times] for ranks, times in self.points.items()}
        means = {ranks: fmean(values) for ranks, values in logs.items()}
        squares = math.fsum((value - means[ranks]) ** 2 for ranks, values in logs.items() for value in values)
        variance = (squares + FEW_TIMES * NOISE ** 2) / (sum(len(values) - 1 for values in logs.values()) + FEW_TIMES)
        shape = {ranks: math.log(otherwise(ranks)) for ranks in logs}
        weights = {ranks: 1 / (DEVIATES ** 2 + variance / len(values)) for ranks, values in logs.items()}
        level = (math.fsum(weights[ranks] * (means[ranks] - shape[ranks]) for ranks in logs)
                 / math.fsum(weights.values()))
        known = {ranks: level + shape[ranks] + (means[ranks] - shape[ranks] - level) * weights[ranks] * DEVIATES ** 2
                 for ranks in logs}
        return level, known, math.sqrt(variance)


def _fit(points: Mapping[int, float]) -> Shape:
    """Fit a, b, c by least squares of the relative errors. Two numbers of ranks leave no overhead to fit."""
    import numpy

    ranks, times = numpy.array([*points], float), numpy.array([*points.values()])
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
    return lambda n: a + b / n + c * n


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
        unseen = Downey(PARALLELISM * job.procs, VARIATION).time
        if best is None or len(best.points) < 2:
            return unseen
        known = best
        return lambda ranks: known.expected(ranks, unseen).seconds


def _app(job: Job) -> Hashable:
    return (job.user, job.app, job.request.cores_per_task)


def input_key(job: Job) -> str:
    """Return what tells apart the inputs of a program, as `vrm.ext.learning.observed.input_of` does for its line."""
    return shlex.join(job.payload.arguments) or job.payload.directory
