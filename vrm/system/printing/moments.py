"""Moments (epoch seconds) as local times in texts."""

from __future__ import annotations

import time

STANDARD = "%Y-%m-%dT%H:%M:%S"
"""A moment as Slurm and ISO 8601 have it."""


def moment_of(text: str, *forms: str, now: float = 0.0) -> float:
    """The moment (epoch seconds) of a local time in one of these forms of strptime; one without a day is on that of
    `now`. ValueError for anything else."""
    for form in forms:
        try:
            parsed = time.strptime(text, form)
            day = parsed[:3] if "%d" in form else time.localtime(now)[:3]
            return time.mktime((*day, *parsed[3:6], 0, 0, -1))
        except (ValueError, OverflowError):
            continue
    raise ValueError(text)


def moment_text(moment: float, form: str = "%H:%M:%S") -> str:
    """A moment (epoch seconds) as the local time, in a form of strftime."""
    return time.strftime(form, time.localtime(moment))
