"""Calibration of forecast ranges: each side of a range is widened or narrowed as the last forecasts would have
needed, so that a range contains as many outcomes as it promises.

The method is conformal prediction (Vovk et al., 2005; Romano, Patterson and Candès, 2019). For each forecast
that has come true, the distance of the truth beyond each end of its range is known, in widths of the range. A
side is moved by a quantile of the last WINDOW distances. Since a queue changes with time, the quantile's level
follows the misses so far (Gibbs and Candès, 2021): a miss raises it, a hit lowers it a little.
"""

from __future__ import annotations

import math
from collections import deque

WINDOW = 200
"""Number of forecasts that count: the last ones that have come true."""

NEEDED = 40
"""Number of forecasts that must have come true before ranges are moved."""

MISSES = 0.09
"""Fraction of forecasts whose truth may lie beyond a side: a little less than the promised tenth."""

STEP = 0.01
"""Factor by which a miss or a hit changes the level of the quantile."""

LOWEST, HIGHEST = 0.6, 0.995
"""Limits of the level of the quantile."""

NARROWEST = 60.0
"""Least width of a range, in seconds, where distances are measured in widths."""

UNCALIBRATED = f"uncalibrated: fewer than {NEEDED} forecast jobs have started"
"""Text about ranges that are not calibrated."""


class RangeSide:
    """One side of the ranges."""

    def __init__(self) -> None:
        self._beyond: deque[float] = deque(maxlen=WINDOW)
        self._level = 1 - MISSES

    def learn(self, beyond: float, missed: float) -> None:
        """Learn from a forecast that has come true. `beyond` is the distance of the truth beyond the drawn
        side, in widths (negative: inside the range). `missed` is 1 if the truth lay beyond the side that was
        shown, 0 if not, and nan if that side was not calibrated."""
        self._beyond.append(beyond)
        if not math.isnan(missed):
            self._level = min(HIGHEST, max(LOWEST, self._level + STEP * (missed - MISSES)))

    @property
    def by(self) -> float:
        """Number of widths by which the side is moved outwards."""
        ordered = sorted(self._beyond)
        return ordered[min(len(ordered), math.ceil((len(ordered) + 1) * self._level)) - 1]


class RangeCalibration:
    """The calibration of one kind of range. Times are in seconds."""

    def __init__(self) -> None:
        self.early, self.late = RangeSide(), RangeSide()
        self.known = 0

    @property
    def ready(self) -> bool:
        """Whether enough forecasts have come true to move ranges."""
        return self.known >= NEEDED

    def widened(self, now: float, p10: float, p50: float, p90: float) -> list[float]:
        """Return [p10, p50, p90] of a forecast made at `now`, calibrated. The median stays inside the range,
        and no end is moved before `now`."""
        if not self.ready or p10 == math.inf:
            return [p10, p50, p90]
        width = _width(p10, p90)
        low = min(p50, max(min(now, p50), p10 - self.early.by * width)) if width < math.inf else p10
        high = max(p50, p90 + self.late.by * width) if width < math.inf else p90
        return [low, p50, high]

    def learn(self, p10: float, p90: float, truth: float, shown: list[float]) -> None:
        """Learn from a forecast that has come true. `p10` and `p90` are the drawn ends, `shown` the ends that
        were shown if they were calibrated, otherwise []. Ranges with an infinite end teach nothing."""
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
    """The calibration of the start times and of the end times of jobs."""

    def __init__(self) -> None:
        self.starts, self.ends = RangeCalibration(), RangeCalibration()

    @property
    def ready(self) -> bool:
        """Whether the ranges of start times are calibrated."""
        return self.starts.ready
