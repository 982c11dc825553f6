"""Means over repetitions with their confidence intervals (Student's t)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from collections.abc import Sequence

CONFIDENCE = 0.95


@dataclass(frozen=True)
class ConfidenceInterval:
    """A mean of `count` values and the half width of its confidence interval: the true mean is within `half` of
    `mean` with the confidence CONFIDENCE, if the values are normally distributed. `half` is None for one value."""

    mean: float
    half: float | None
    count: int

    @property
    def excludes_zero(self) -> bool:
        """Return whether the sign of the mean is significant (with CONFIDENCE)."""
        return self.half is not None and abs(self.mean) > self.half


def interval(values: Sequence[float]) -> ConfidenceInterval:
    """Return the mean and its confidence interval. Raises ValueError if there are no values."""
    count = len(values)
    if not count:
        raise ValueError("no values have no mean")
    mean = math.fsum(values) / count
    if count < 2:
        return ConfidenceInterval(mean, None, count)
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    return ConfidenceInterval(mean, t_quantile(count - 1) * math.sqrt(variance / count), count)


@cache
def t_quantile(freedom: int, confidence: float = CONFIDENCE) -> float:
    """Return the two-sided quantile t of Student's distribution with `freedom` degrees of freedom: P(|T| <= t) =
    `confidence`.

    For whole degrees of freedom this probability is a finite sum (Abramowitz and Stegun, "Handbook of mathematical
    functions", 26.7.3 and 26.7.4), which is inverted by bisection. Raises ValueError below 1 degree of freedom.
    """
    if freedom < 1 or not 0 < confidence < 1:
        raise ValueError(f"{freedom} degrees of freedom, confidence {confidence:g}")
    low, high = 0.0, math.pi / 2
    while True:
        middle = (low + high) / 2
        if middle in (low, high):
            return math.sqrt(freedom) * math.tan(middle)
        if _within(middle, freedom) < confidence:
            low = middle
        else:
            high = middle


def _within(angle: float, freedom: int) -> float:
    """P(|T| <= sqrt(freedom) tan(angle))."""
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term = cosine if odd else 1.0
    total = 0.0
    for step in range(1 + odd, freedom, 2):
        total += term
        term *= cosine * cosine * step / (step + 1)
    return 2 / math.pi * (angle + sine * total) if odd else sine * total
