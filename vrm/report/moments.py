"""Short texts for forecast times."""

from __future__ import annotations

import math
import time
from functools import lru_cache
from types import MappingProxyType
from collections.abc import Iterable, Mapping

from vrm.results.forecast import Record, moment

FORECAST = ("start", "p10", "p90", "end", "end_p10", "end_p90", "latest", "nodes", "chance", "reason")
"""The keys of a job's forecast in JSON output."""

NONE: Mapping[int, Record] = MappingProxyType({})
"""No forecasts."""

LATER = "later"
"""Text for a time after this allocation, or for a job that cannot start as things are, such as a held one."""

_SOON = 600.0
"""A time at most this many seconds from now is shown with seconds."""

_ALL_SOON = 3600.0
"""The limit, in seconds from now, for a whole table, in which all times have one form."""


def when(at: float, now: float, seconds: bool | None = None) -> str:
    """Return a time as short local time: `14:20`, `Tue 14:20`, `24 Nov`; with seconds if `seconds` (default: if the
    time is near)."""
    if not math.isfinite(at):
        return LATER
    there = time.localtime(at)
    if there[:3] == _day(int(now)):
        near = abs(at - now) < _SOON if seconds is None else seconds
        return f"{there[3]:02}:{there[4]:02}" + (f":{there[5]:02}" if near else "")
    return time.strftime("%a %H:%M" if 0 <= at - now < 6 * 86400 else "%d %b", there)


@lru_cache(maxsize=1)
def _day(now: int) -> tuple[int, ...]:
    """Return the date of a time."""
    return time.localtime(now)[:3]


def all_near(jobs: Iterable[Record], now: float) -> bool:
    """Return whether the forecasts of all these jobs are so near that times are shown with seconds."""
    return all(abs(at - now) < _ALL_SOON for job in jobs for at in (
        moment(job, "end"), moment(job, "p90"), moment(job, "latest")) if math.isfinite(at))


def span(job: Record, now: float, seconds: bool | None = None) -> str:
    """Return the range that contains a start with a probability of four in five; empty if both ends are equal."""
    low, high = (max(now, moment(job, name)) for name in ("p10", "p90"))
    if low == high:
        return ""
    return f"{when(low, now, seconds)}-{when(high, now, seconds) if math.isfinite(high) else LATER}"


def brief(job: Record | None, now: float) -> str:
    """Return start and range of a forecast in short form, for a column of the queue; for a running job its end. "" if
    there is no forecast."""
    if job is None:
        return ""
    if job["running"]:
        return f"ends {when(max(now, moment(job, 'end')), now)}"
    at = max(now, moment(job, "start"))
    near = at - now < _SOON
    around = span(job, now, near)
    return f"{when(at, now, near)} ({around})" if around and math.isfinite(at) else when(at, now)
