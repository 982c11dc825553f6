"""How long programs take on other numbers of ranks: curves that are learned from completed jobs.

A curve is T(n) = a + b / n + c n seconds on n ranks, with a, b and c not negative: Amdahl's law (1967) and an
overhead that grows with the ranks, so a program may also be slower on more ranks. An unknown program has the
shape of Downey's model (1997), with the two parameters that its user gives (`speedup=`), or the mean over
common parameters (`GRID`). Measurements make some of these parameters more probable; the effect is smaller if
times of one program and input scatter more.
"""

from __future__ import annotations

import itertools
import math
import shlex
from statistics import fmean
from typing import NamedTuple
from collections.abc import Callable, Hashable, Mapping, Sequence

from vrm.ext.learning.widths import SPEEDUP, Downey
from vrm.model.job import Job
from vrm.scheduling.estimators import RunTimeRatios

GRID = tuple(itertools.product((0.75, 1.5, 3.0), (0.0, 0.5, 1.0, 2.0)))
"""Downey's parameters of an unknown program, all equally probable: its average parallelism as a multiple of the
ranks that its user requests, and its variation."""

UNLIKELY = 1e-4
"""Shapes whose probability is below this fraction of the most probable one are ignored."""

ALIKE = 20
"""Number of similar jobs, the last ones, whose ratios of run time to limit count for a job with an unknown
input."""

SURE = 0.2
"""Scatter of times (standard deviation of their logarithms) up to which a comparison of two is reliable."""

REMEMBERS = 0.99
"""Factor by which earlier observations of the scatter lose weight at each new one."""

KEPT = 8
"""Number of run times on each number of ranks that count: the last ones."""

UNSURE, LEAST = 0.25, 0.03
"""Standard deviations of the logarithm of a time: of one that was not measured, and the least for any time."""

NOISE, FEW_TIMES = 0.0005, 1
"""Standard deviation of the logarithms of times on one number of ranks that is assumed before a program has run
twice on one number, and the number of times that it counts as: until then times are used as measured."""

DEVIATES = 0.1
"""Standard deviation, among programs, of the difference between the logarithm of a time and the probable shape."""

NORMAL = 1.2816
"""Standard deviations from the mean to the 90th percentile of a normal distribution."""

Shape = Callable[[int], float]
"""Relative run time as a function of the number of ranks."""


class ExpectedTime(NamedTuple):
    """Expected seconds, and the range that holds in 8 of 10 cases."""

    seconds: float
    low: float
    high: float


class ScalingCurve:
    """Run times of one program and input, by number of ranks (seconds, oldest first)."""

    def __init__(self, points: Mapping[int, Sequence[float]] | None = None) -> None:
        self.points: dict[int, tuple[float, ...]] = {ranks: tuple(times) for ranks, times in (points or {}).items()}

    def add(self, ranks: int, seconds: float) -> None:
        """Add the run time of a job, in seconds."""
        self.points[ranks] = (*self.points.get(ranks, ()), seconds)[-KEPT:]

    def copy(self) -> ScalingCurve:
        """Return an independent copy."""
        return ScalingCurve(self.points)

    def expected(self, ranks: int, otherwise: Shape, scatter: float = NOISE) -> ExpectedTime:
        """Return the expected time on `ranks` ranks. `otherwise` is the probable shape, and `scatter` the
        standard deviation of the logarithms of times of other programs. Raises KeyError if nothing was
        measured."""
        level, known, noise = self._judged(otherwise, scatter)
        if ranks in known:
            log, spread = known[ranks], noise
        elif len(known) > 1:
            log, spread = math.log(_fit({n: math.exp(value) for n, value in known.items()})(ranks)), math.hypot(
                noise, UNSURE)
        else:
            log, spread = level + math.log(otherwise(ranks)), math.hypot(noise, UNSURE)
        factor = math.exp(NORMAL * max(spread, LEAST))
        return ExpectedTime(math.exp(log), math.exp(log) / factor, math.exp(log) * factor)

    def _judged(self, otherwise: Shape, scatter: float) -> tuple[float, dict[int, float], float]:
        """Return, as logarithms, the time on one rank by the probable shape and the times on all measured
        numbers of ranks, and the standard deviation of a time. If times on one number of ranks differ much,
        those on another are less reliable: each is drawn towards the probable shape according to its noise (a
        mean of two normal distributions)."""
        logs = {ranks: [math.log(time) for time in times] for ranks, times in self.points.items()}
        means = {ranks: fmean(values) for ranks, values in logs.items()}
        squares = math.fsum((value - means[ranks]) ** 2 for ranks, values in logs.items() for value in values)
        variance = (squares + FEW_TIMES * scatter ** 2) / (sum(len(values) - 1 for values in logs.values()) + FEW_TIMES)
        shape = {ranks: math.log(otherwise(ranks)) for ranks in logs}
        weights = {ranks: 1 / (DEVIATES ** 2 + variance / len(values)) for ranks, values in logs.items()}
        level = (math.fsum(weights[ranks] * (means[ranks] - shape[ranks]) for ranks in logs)
                 / math.fsum(weights.values()))
        known = {ranks: level + shape[ranks] + (means[ranks] - shape[ranks] - level) * weights[ranks] * DEVIATES ** 2
                 for ranks in logs}
        return level, known, math.sqrt(variance)


class LikelyShape:
    """The shape of a little-known program: Downey's model with each parameter pair of GRID,
    weighted by how probable it makes the measurements (Bayes). Times scatter by `noise` (standard deviation of
    their logarithms)."""

    def __init__(self, procs: int, points: Mapping[int, Sequence[float]], noise: float) -> None:
        """`procs`: the ranks that the user requests. Without `points`, times are multiples of the time on that
        many ranks."""
        logs = [(ranks, fmean(map(math.log, times)), 1 / (DEVIATES ** 2 + noise ** 2 / len(times)))
                for ranks, times in (points or {procs: [1.0]}).items()]
        whole = math.fsum(precision for *_, precision in logs)
        found: list[tuple[float, float, Shape]] = []
        for factor, variation in GRID:
            shape = Downey(max(1.0, procs * factor), variation).time
            off = [(log - math.log(shape(ranks)), precision) for ranks, log, precision in logs]
            level = math.fsum(each * precision for each, precision in off) / whole
            found.append((-math.fsum((each - level) ** 2 * precision for each, precision in off) / 2, level, shape))
        most = max(likely for likely, *_ in found)
        weights = [math.exp(likely - most) for likely, *_ in found]
        self._terms = [(weight / sum(weights), level, shape) for weight, (_, level, shape) in zip(weights, found)
                       if weight > UNLIKELY]

    def __call__(self, ranks: int) -> float:
        """Return the run time on `ranks` ranks (geometric mean)."""
        return math.exp(math.fsum(weight * (level + math.log(shape(ranks))) for weight, level, shape in self._terms))


def _fit(points: Mapping[int, float]) -> Shape:
    """Fit a, b, c by least squares of the relative errors. With two numbers of ranks no overhead c is fitted."""
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
        self._squares = self._count = 0.0
        self._ratios = RunTimeRatios(ALIKE)

    def copy(self) -> Curves:
        """Return an independent copy."""
        twin = Curves()
        twin._known = {app: {key: curve.copy() for key, curve in of.items()} for app, of in self._known.items()}
        twin.version = self.version
        twin._ratios = self._ratios.copy()
        twin._squares, twin._count = self._squares, self._count
        return twin

    def ended(self, job: Job, seconds: float) -> None:
        """Learn from a completed job which fraction of their limits similar jobs take."""
        if seconds > 0:
            self._ratios.add(job, seconds)

    def learn(self, app: Hashable, key: str, ranks: int, seconds: float) -> None:
        """Learn from a completed job of a program and an input (`input_key`)."""
        if seconds > 0:
            curve = self._known.setdefault(app, {}).setdefault(key, ScalingCurve())
            before = curve.points.get(ranks, ())
            if before:
                off = math.log(seconds) - fmean(map(math.log, before))
                self._squares = REMEMBERS * self._squares + off ** 2 * len(before) / (len(before) + 1)
                self._count = REMEMBERS * self._count + 1
            curve.add(ranks, seconds)
            self.version += 1

    def expected(self, job: Job, ranks: int) -> ExpectedTime:
        """Return the expected time of a job on `ranks` ranks. If its program and input are unknown, the job
        takes the time that is expected of it on its own number of ranks; the shape is then that of the best-known
        input of its program, or of an unknown program."""
        of = self._known.get(_app(job), {})
        otherwise = self._shape(job, of)
        curve = of.get(input_key(job))
        if curve is not None:
            return curve.expected(ranks, otherwise, self.scatter())
        seconds = self._typical(job) * otherwise(ranks) / otherwise(job.procs)
        factor = math.exp(NORMAL * UNSURE)
        return ExpectedTime(seconds, seconds / factor, seconds * factor)

    def _typical(self, job: Job) -> float:
        """Return the seconds of a job with unknown program and input, from the ratios of run time to limit of
        similar jobs."""
        ratios = self._ratios.of(job) if job.expected == job.walltime else ()
        return job.expected * (fmean(ratios) if ratios else 1.0)

    def sure(self, job: Job, ranks: int) -> bool:
        """Return whether the time of a job on `ranks` ranks can be compared reliably with that on its own
        number."""
        if SPEEDUP in job.more:
            return True
        curve = self._known.get(_app(job), {}).get(input_key(job))
        return curve is not None and {ranks, job.procs} <= curve.points.keys() and self.scatter() < SURE

    def _shape(self, job: Job, of: Mapping[str, ScalingCurve]) -> Shape:
        """Return the probable shape if little is known."""
        given = job.more.get(SPEEDUP)
        if given is not None:
            return Downey(*given).time
        curve = of.get(input_key(job))
        if curve is not None and len(curve.points) > 1:
            return LikelyShape(job.procs, curve.points, self.scatter())
        best = max(of.values(), key=lambda curve: len(curve.points), default=None)
        unseen = LikelyShape(job.procs, {}, 1.0)
        if best is None or len(best.points) < 2:
            return unseen
        known = best
        return lambda ranks: known.expected(ranks, unseen).seconds

    def scatter(self) -> float:
        """Return the standard deviation of the logarithms of run times of one program and input on one number
        of ranks."""
        return math.sqrt((self._squares + FEW_TIMES * NOISE ** 2) / (self._count + FEW_TIMES))


def _app(job: Job) -> Hashable:
    return (job.user, job.app, job.request.cores_per_task)


def input_key(job: Job) -> str:
    """Return the key that distinguishes inputs of a program; `vrm.ext.learning.learned_jobs.input_of` makes the
    same from a line of `jobs.csv`."""
    return shlex.join(job.payload.arguments) or job.payload.directory
