"""Moments that are forecast, in few characters."""

from __future__ import annotations

import math
import time
from types import MappingProxyType
from typing import Mapping, Optional

from vrm.results.forecast import Record, moment

FORECAST = ("start", "p10", "p90", "end", "end_p10", "end_p90", "latest", "nodes", "chance", "reason")
"""What programs are told of the forecast of a job."""

NONE: Mapping[int, Record] = MappingProxyType({})
"""No forecasts."""

NEXT = "next allocation"

_SOON = 600.0
"""Seconds from now within which moments are shown with their seconds."""


def when(at: float, now: float, seconds: bool = False) -> str:
    """A moment as the local time, in few characters: `14:20`, `Tue 14:20`, `24 Nov`; with its seconds
    where it is near, or they are wanted."""
    if not math.isfinite(at):
        return NEXT
    there, today = time.localtime(at), time.localtime(now)
    if there[:3] == today[:3]:
        near = seconds or abs(at - now) < _SOON
        return time.strftime("%H:%M:%S" if near else "%H:%M", there)
    return time.strftime("%a %H:%M" if 0 <= at - now < 6 * 86400 else "%d %b", there)


def span(job: Record, now: float) -> str:
    """The range of a start: four of five are in it. Empty where it is one moment."""
    low, high = moment(job, "p10"), moment(job, "p90")
    if low == high:
        return ""
    return f"{when(low, now)}-{when(high, now) if math.isfinite(high) else 'later'}"


def brief(job: Optional[Record], now: float) -> str:
    """Start and range in few characters, for a column of the queue; of a job that runs its end. "" where
    nothing is forecast."""
    if job is None:
        return ""
    if job["running"]:
        return f"ends {when(moment(job, 'end'), now)}"
    start, around = when(max(now, moment(job, "start")), now), span(job, now)
    return f"{start} ({around})" if around and start != NEXT else start
