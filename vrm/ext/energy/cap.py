"""A cap on power that changes over time."""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass


@dataclass(frozen=True)
class PowerLimit:
    """The most watts that the machine may draw, as steps of time (seconds) and watts. Each step is valid until the
    next one; before the first step its watts are valid, too."""

    steps: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        for _, watts in self.steps:
            if not 0 <= watts <= 1e12:
                raise ValueError(f"a cap of {watts:g} W cannot be")
        for (one, _), (other, _) in zip(self.steps, self.steps[1:]):
            if not one < other:
                raise ValueError(f"the times of a cap ascend, {other:g} comes after {one:g}")
        if not self.steps or not all(0 <= time < 1e15 for time, _ in self.steps):
            raise ValueError("a cap has steps, at times of 0 s or more")

    @classmethod
    def of(cls, text: str) -> PowerLimit:
        """Return the cap of a text such as `5000`, or `0=5000 28800=3000` (seconds=watts). Raises ValueError for
        another text."""
        steps = []
        for word in str(text).split():
            time, equals, watts = word.rpartition("=")
            if equals and not time:
                raise ValueError(word)
            steps.append((float(time or 0), float(watts)))
        return cls(tuple(steps))

    def __str__(self) -> str:
        if len(self.steps) == 1:
            return f"{self.steps[0][1]:.12g}"
        return " ".join(f"{time:.15g}={watts:.12g}" for time, watts in self.steps)

    @property
    def most(self) -> float:
        """The highest cap over all time, in watts."""
        return max(watts for _, watts in self.steps)

    @property
    def least(self) -> float:
        """The lowest cap over all time, in watts."""
        return min(watts for _, watts in self.steps)

    def at(self, time: float) -> float:
        """Return the cap (watts) at a time."""
        return self.steps[max(0, bisect.bisect_right(self.steps, (time, math.inf)) - 1)][1]

    def after(self, time: float) -> list[float]:
        """Return the times of later steps."""
        return [step for step, _ in self.steps if step > time]
