"""Converts times (epoch seconds) to and from local times in texts."""

from __future__ import annotations

import time

STANDARD = "%Y-%m-%dT%H:%M:%S"
"""Format of a time in Slurm and ISO 8601."""


def parse_local_time(text: str, *forms: str, now: float = 0.0) -> float:
    """Return the time (epoch seconds) of a local time in one of these formats of strptime; a time without a day is on
    the day of `now`. Raises ValueError for anything else."""
    for form in forms:
        try:
            parsed = time.strptime(text, form)
            day = parsed[:3] if "%d" in form else time.localtime(now)[:3]
            return time.mktime((*day, *parsed[3:6], 0, 0, -1))
        except (ValueError, OverflowError):
            continue
    raise ValueError(text)


def local_time_text(moment: float, form: str = "%H:%M:%S") -> str:
    """Return a time (epoch seconds) as local time, in a format of strftime."""
    return time.strftime(form, time.localtime(moment))
