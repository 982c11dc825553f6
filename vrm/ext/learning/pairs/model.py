"""Speed-ups of pairs, from whole runs with changing neighbours; also of pairs that never ran together.

The logarithm of the speed of one load next to another is a sum of terms: what all pairs have in common; what
the program, its class and its ranks suffer (sensitivity); what those of the other load cause (pressure); and
what is particular to this pair. Each term is normal with mean 0 and a size that VARIANCES gives, so speeds of
pairs are a Gaussian process: an observed pair says much about itself, and something about pairs with the same
program on either side.

A run of T seconds does its work at the mean of its speeds, weighted by the seconds in each company, and its
speed is that next to its worst neighbour: log T = log W - log(sum f s). The work W of its program and input is
unknown, too. This is not linear in the logarithms of the speeds, so it is linearised at the present estimate,
up to ITERATIONS times. A job alone on its nodes has speed 1, the reference of all speeds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple
from collections.abc import Hashable, Iterable, Sequence

from vrm.ext.learning.pairs.co_runs import ALONE, CoRun
from vrm.model.job import application_kind

if TYPE_CHECKING:
    import numpy

VARIANCES = {"all": 0.12, "own program": 0.12, "own class": 0.05, "own ranks": 0.07, "its program": 0.12,
             "its class": 0.05, "its ranks": 0.07, "programs": 0.08, "own ranks, its program": 0.04,
             "own program, its ranks": 0.04, "pair": 0.04}
"""Standard deviations of the terms of a logarithm of a speed."""

WORK, NOISES = 3.0, (0.02, 0.05, 0.1, 0.2, 0.4)
"""Standard deviations of the logarithm of a work before it is known, and of that of a run time: the most likely
one of the latter is used."""

ITERATIONS, STEP, CLOSE = 15, 0.6, 2e-3
"""Greatest number of linearisations, the fraction of each step that is taken, and the size of the last step."""

SHARP = 0.02
"""Difference in the logarithm of the speed that makes a worse neighbour count e times as much."""

MOST = 1000
"""Number of runs that count: the last ones."""

COUNTS = 0.1
"""Fraction of a run in a company from which on the pair counts as seen."""

NORMAL = 1.2816
"""Standard deviations from the mean to the 90th percentile of a normal distribution."""

Pair = tuple[str, str]
"""A load, and the load next to which it runs."""


class Speed(NamedTuple):
    """The speed of a load next to another one, relative to its speed alone; the range that holds in 8 of 10
    cases; and the number of runs in which the pair was seen."""

    value: float
    low: float
    high: float
    runs: int


@dataclass(frozen=True)
class _Names:
    """A load by its program, by program and class, and with its ranks."""

    program: str
    short: str
    load: str


def _names(load: str) -> _Names:
    load = load.lower()
    short, _, last = load.rpartition(".")
    return _Names(application_kind(load), short if short and last.isdigit() else load, load)


class PairModel:
    """Learns from runs, and predicts the speeds of any pairs (`speeds`)."""

    def __init__(self, runs: Iterable[CoRun] = ()) -> None:
        self.seen: dict[Pair, int] = {}
        self.loads: dict[str, None] = {}
        self.noise = NOISES[0]
        self._pairs: list[Pair] = []
        self._learn(list(runs)[-MOST:])

    def _learn(self, runs: Sequence[CoRun]) -> None:
        import numpy

        index: dict[Pair, int] = {}
        works: dict[Hashable, int] = {}
        for run in runs:
            self.loads[run.load] = None
            for seconds, company in run.parts:
                for other in company - {ALONE}:
                    index.setdefault((run.load, other), len(index))
                    if seconds >= COUNTS * run.seconds:
                        self.seen[run.load, other] = self.seen.get((run.load, other), 0) + 1
        for run in runs:
            works.setdefault(run.work, len(works))
        self._pairs = [*index]
        self._weights = numpy.zeros(0)
        if not index:
            return
        kernel = _kernel(self._pairs, self._pairs)
        logs = numpy.array([math.log(run.seconds) for run in runs])
        work = numpy.array([works[run.work] for run in runs])
        prior = numpy.array([float(numpy.mean(logs[work == each])) for each in range(len(works))])[work]
        same = (work[:, None] == work[None, :]) * WORK ** 2
        speeds = numpy.zeros(len(index))
        for _ in range(ITERATIONS):
            slopes, means = numpy.zeros((len(runs), len(index))), numpy.zeros(len(runs))
            for row, run in enumerate(runs):
                means[row] = _linear(run, index, speeds, slopes[row])
            # -log T + log W = means + slopes (y - speeds), where y are the logarithms of the speeds.
            target = prior - logs - means + slopes @ speeds
            cross = kernel @ slopes.T
            self._factor, self._weights, self.noise = _likeliest(slopes @ cross + same, target)
            after = cross @ self._weights
            done = float(numpy.abs(after - speeds).max()) < CLOSE
            speeds = speeds + STEP * (after - speeds)
            if done:
                break
        self._slopes = slopes

    def speeds(self, pairs: Sequence[Pair]) -> list[Speed]:
        """Return the speeds of pairs of loads."""
        import numpy

        variance = numpy.full(len(pairs), sum(each ** 2 for each in VARIANCES.values()))
        mean = numpy.zeros(len(pairs))
        if self._pairs and pairs:
            cross = _kernel(pairs, self._pairs) @ self._slopes.T
            mean = cross @ self._weights
            half = numpy.linalg.solve(self._factor, cross.T)
            variance = variance - (half ** 2).sum(axis=0)
        found = []
        for pair, log, spread in zip(pairs, mean, numpy.sqrt(numpy.maximum(variance, 0.0))):
            factor = math.exp(NORMAL * float(spread))
            value = math.exp(float(log))
            found.append(Speed(value, value / factor, value * factor, self.seen.get(pair, 0)))
        return found


def _linear(run: CoRun, index: dict[Pair, int], speeds: numpy.ndarray, slopes: numpy.ndarray) -> float:
    """Return the logarithm of the mean speed of a run at these speeds (logarithms), and write its slopes there
    into `slopes`. Which neighbour is the worst is uncertain, so each counts, and one that is SHARP slower
    counts e times as much."""
    total, parts = 0.0, list[tuple[float, list[int], list[float]]]()
    for seconds, company in run.parts:
        numbers = [index[run.load, other] for other in company if other != ALONE]
        logs = [float(speeds[number]) for number in numbers] + [0.0] * (ALONE in company)
        least = min(logs)
        weights = [math.exp((least - each) / SHARP) for each in logs]
        whole = sum(weights)
        done = seconds * math.exp(sum(weight * each for weight, each in zip(weights, logs)) / whole)
        total += done
        parts.append((done, numbers, [weight / whole for weight in weights]))
    for done, numbers, weights in parts:
        for number, weight in zip(numbers, weights):
            slopes[number] += weight * done / total
    return math.log(total / run.seconds)


def _likeliest(known: numpy.ndarray, target: numpy.ndarray) -> tuple[numpy.ndarray, numpy.ndarray, float]:
    """Return the covariance of the measurements (its Cholesky factor), their weights, and the noise that makes
    the measurements most likely."""
    import numpy

    best: tuple[float, Any] = (-math.inf, None)
    for noise in NOISES:
        factor = numpy.linalg.cholesky(known + numpy.eye(len(target)) * noise ** 2)
        weights = _solve(factor, target)
        likely = float(-target @ weights / 2 - numpy.log(numpy.diag(factor)).sum())
        if likely > best[0]:
            best = likely, (factor, weights, noise)
    found: tuple[numpy.ndarray, numpy.ndarray, float] = best[1]
    return found


def _solve(factor: numpy.ndarray, target: numpy.ndarray) -> numpy.ndarray:
    import numpy

    found: numpy.ndarray = numpy.linalg.solve(factor.T, numpy.linalg.solve(factor, target))
    return found


def _kernel(left: Sequence[Pair], right: Sequence[Pair]) -> numpy.ndarray:
    """Return the covariance of the logarithms of the speeds of pairs."""
    import numpy

    rows, columns = ([(_names(own), _names(other)) for own, other in pairs] for pairs in (left, right))

    def same(side: int, name: str) -> numpy.ndarray:
        here, there = (numpy.array([getattr(pair[side], name) for pair in pairs], dtype=object)
                       for pairs in (rows, columns))
        found: numpy.ndarray = here[:, None] == there[None, :]
        return found

    program, short, load = (same(0, name) for name in ("program", "short", "load"))
    its_program, its_short, its_load = (same(1, name) for name in ("program", "short", "load"))
    terms = {"all": numpy.ones((len(left), len(right)), bool), "own program": program, "own class": short,
             "own ranks": load, "its program": its_program, "its class": its_short, "its ranks": its_load,
             "programs": program & its_program, "own ranks, its program": load & its_program,
             "own program, its ranks": program & its_load, "pair": load & its_load}
    found = numpy.zeros((len(left), len(right)))
    for name, where in terms.items():
        found += VARIANCES[name] ** 2 * where
    return found
