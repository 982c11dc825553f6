"""Moments that are forecast, in few characters."""

from __future__ import annotations

import math
import time
from functools import lru_cache
from types import MappingProxyType
from collections.abc import Iterable, Mapping

from vrm.results.forecast import Record, moment

FORECAST = ("start", "p10", "p90", "end", "end_p10", "end_p90", "latest", "nodes", "chance", "reason")
"""What programs are told of the forecast of a job."""

NONE: Mapping[int, Record] = MappingProxyType({})
"""No forecasts."""

LATER = "later"
"""Not in this allocation, or not as things are: a job that is held."""

_SOON = 600.0
"""Seconds from now within which a moment is shown with its seconds."""

_ALL_SOON = 3600.0
"""The same for a whole table, where all moments are in one form."""


def when(at: float, now: float, seconds: bool | None = None) -> str:
    """A moment as the local time, in few characters: `14:20`, `Tue 14:20`, `24 Nov`; with its seconds
    where they are wanted (default: where it is near)."""
    if not math.isfinite(at):
        return LATER
    there = time.localtime(at)
    if there[:3] == _day(int(now)):
        near = abs(at - now) < _SOON if seconds is None else seconds
        return f"{there[3]:02}:{there[4]:02}" + (f":{there[5]:02}" if near else "")
    return time.strftime("%a %H:%M" if 0 <= at - now < 6 * 86400 else "%d %b", there)


@lru_cache(maxsize=1)
def _day(now: int) -> tuple[int, ...]:
    """The day of a moment."""
    return time.localtime(now)[:3]


def all_near(jobs: Iterable[Record], now: float) -> bool:
    """Whether the forecasts of all these jobs are so near that moments have their seconds."""
    return all(abs(at - now) < _ALL_SOON for job in jobs for at in (
        moment(job, "end"), moment(job, "p90"), moment(job, "latest")) if math.isfinite(at))


def span(job: Record, now: float, seconds: bool | None = None) -> str:
    """The range of a start: four of five are in it. Empty where it is one moment."""
    low, high = (max(now, moment(job, name)) for name in ("p10", "p90"))
    if low == high:
        return ""
    return f"{when(low, now, seconds)}-{when(high, now, seconds) if math.isfinite(high) else LATER}"


def brief(job: Record | None, now: float) -> str:
    """Start and range in few characters, for a column of the queue; of a job that runs its end. "" where
    nothing is forecast."""
    if job is None:
        return ""
    if job["running"]:
        return f"ends {when(max(now, moment(job, 'end')), now)}"
    at = max(now, moment(job, "start"))
    near = at - now < _SOON
    around = span(job, now, near)
    return f"{when(at, now, near)} ({around})" if around and math.isfinite(at) else when(at, now)
