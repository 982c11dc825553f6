"""A cap on power over time."""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Cap:
    """The most watts that the machine may draw, as steps of time (seconds) and watts. Before the first
    step its watts count, after the last one the last's."""

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
    def of(cls, text: str) -> Cap:
        """That of a text as `5000`, or `0=5000 28800=3000`. ValueError for another."""
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
        """The highest cap that there ever is."""
        return max(watts for _, watts in self.steps)

    @property
    def least(self) -> float:
        """The lowest cap that there ever is."""
        return min(watts for _, watts in self.steps)

    def at(self, time: float) -> float:
        """The cap at a time."""
        return self.steps[max(0, bisect.bisect_right(self.steps, (time, math.inf)) - 1)][1]

    def after(self, time: float) -> list[float]:
        """The times of later steps."""
        return [step for step, _ in self.steps if step > time]
