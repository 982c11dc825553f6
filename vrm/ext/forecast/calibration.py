"""Ranges that hold what they promise: each side is widened (or narrowed) by what the last forecasts
would have needed.

Conformal prediction (Vovk et al., 2005; Romano, Patterson and Candès, 2019): of each forecast that has come
true it is known by how much the truth lay beyond each end of its range, in widths of the range. A
side is moved by the quantile of the last WINDOW of these. Since a queue is not the same all the
time, which quantile follows from the misses so far (Gibbs and Candès, 2021): a miss raises it, a hit
lowers it a little.
"""

from __future__ import annotations

import math
from collections import deque

WINDOW = 200
"""Forecasts that count: the last ones that have come true."""

NEEDED = 40
"""Forecasts that must have come true before ranges are moved."""

MISSES = 0.09
"""Of the forecasts whose truth may lie beyond a side: a little less than the tenth that is promised."""

STEP = 0.01
"""Of the miss that the quantile is moved by."""

LOWEST, HIGHEST = 0.6, 0.995
"""Of the quantiles that are taken."""

NARROWEST = 60.0
"""Seconds that a range is taken to be wide at the least, where widths are a measure."""

UNCALIBRATED = f"uncalibrated: fewer than {NEEDED} forecast jobs have started"
"""What is said of ranges that are as they were drawn."""


class Side:
    """One side of ranges."""

    def __init__(self) -> None:
        self._beyond: deque[float] = deque(maxlen=WINDOW)
        self._level = 1 - MISSES

    def learn(self, beyond: float, missed: float) -> None:
        """The truth of a forecast lay `beyond` the drawn side by so many widths (below 0: within).
        `missed`: 1 if it lay beyond the side that was shown, 0 if not, nan where none was moved."""
        self._beyond.append(beyond)
        if not math.isnan(missed):
            self._level = min(HIGHEST, max(LOWEST, self._level + STEP * (missed - MISSES)))

    @property
    def by(self) -> float:
        """Widths by which the side is moved outwards."""
        ordered = sorted(self._beyond)
        return ordered[min(len(ordered), math.ceil((len(ordered) + 1) * self._level)) - 1]


class Ranges:
    """The calibration of one kind of ranges. Times in seconds."""

    def __init__(self) -> None:
        self.early, self.late = Side(), Side()
        self.known = 0

    @property
    def ready(self) -> bool:
        """Whether ranges are moved."""
        return self.known >= NEEDED

    def widened(self, now: float, p10: float, p50: float, p90: float) -> list[float]:
        """The range of a forecast that is made `now`, with what it is about: the middle is never outside,
        and nothing is before now."""
        if not self.ready or p10 == math.inf:
            return [p10, p50, p90]
        width = _width(p10, p90)
        low = min(p50, max(min(now, p50), p10 - self.early.by * width)) if width < math.inf else p10
        high = max(p50, p90 + self.late.by * width) if width < math.inf else p90
        return [low, p50, high]

    def learn(self, p10: float, p90: float, truth: float, shown: list[float]) -> None:
        """A forecast has come true, of which p10 to p90 was drawn. `shown` are the ends of the range
        that was shown, where they had been calibrated; else []. Ranges without an end teach nothing."""
        width = _width(p10, p90)
        if not width < math.inf:
            return
        self.known += 1
        early, late = (float(truth < shown[0]), float(truth > shown[1])) if shown else (math.nan,) * 2
        self.early.learn((p10 - truth) / width, early)
        self.late.learn((truth - p90) / width, late)


def _width(p10: float, p90: float) -> float:
    return max(NARROWEST, p90 - p10) if p10 < math.inf else math.inf


class Calibration:
    """Of starts and of ends."""

    def __init__(self) -> None:
        self.starts, self.ends = Ranges(), Ranges()

    @property
    def ready(self) -> bool:
        """Whether the ranges of starts are calibrated."""
        return self.starts.ready
