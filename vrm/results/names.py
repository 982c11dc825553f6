"""Names of policies and texts of times in reports: the same in every table and figure."""

from __future__ import annotations

from typing import NamedTuple
from collections.abc import Iterable

_PLAIN = ("", "none", "0", "false")
_EASY = ("easy", "1", "true")


def policy_name(algorithm: str | None, backfilling: str | int | None = None) -> str:
    """Return an ordering with its backfilling: `FCFS`, `FCFS + EASY`, `WFP3 + conservative`, `FCFS + 2`
    (reservations)."""
    how = str(backfilling or "").strip()
    if how.lower() in _PLAIN:
        return algorithm or ""
    return f"{algorithm or 'order'} + {'EASY' if how.lower() in _EASY else how}"


class Unit(NamedTuple):
    """A unit of time and its length in seconds."""

    name: str
    seconds: float

    def text(self, seconds: float | None) -> str:
        """Return a time in this unit, with the significant digits, without the unit's name."""
        return "-" if seconds is None else digits(seconds / self.seconds)


UNITS = (Unit("days", 86400.0), Unit("h", 3600.0), Unit("min", 60.0), Unit("s", 1.0))
LEAST = {"days": 3.0, "h": 3.0, "min": 10.0}
"""Minimum value of the largest time in a unit for which this unit is used."""


def unit_of(times: Iterable[float | None]) -> Unit:
    """Return the unit in which times (s) are easy to read, by the largest of them."""
    largest = max((abs(time) for time in times if time is not None), default=0.0)
    return next(unit for unit in UNITS if largest >= LEAST.get(unit.name, 0.0) * unit.seconds)


def digits(value: float) -> str:
    """Return a number with its significant digits: `0.04`, `12.3`, `1029965`."""
    size = abs(value)
    return f"{value:.{2 if size < 10 else 1 if size < 100 else 0}f}"


def time_text(seconds: float) -> str:
    """Return a time with its unit: `12.3 s`, `5.20 h`, `11.9 days`."""
    unit = unit_of([seconds])
    return f"{unit.text(seconds)} {unit.name}"


def unmatched_text(found: dict[str, dict[str, int]]) -> list[str]:
    """Return the result of `vrm.simulation.executor.SpeedModel.unmatched` as text: how many jobs, and the most frequent
    loads."""
    lines = []
    for where, text in (("beside", "ran with others at speed 1: the heatmap has no such pair"),
                        ("alone", "were alone on half a node at speed 1: the heatmap has no spare time")):
        loads = found.get(where, {})
        if loads:
            most = sorted(loads, key=lambda load: (-loads[load], load))[:3]
            named = ", ".join(f"{load} ({loads[load]})" for load in most)
            more = f" and {len(loads) - 3} more" if len(loads) > 3 else ""
            lines.append(f"{sum(loads.values())} jobs {text}: {named}{more}")
    return lines
