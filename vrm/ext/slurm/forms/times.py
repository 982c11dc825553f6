"""Times in the formats of Slurm's commands."""

from __future__ import annotations

import math
import re
import time
from calendar import monthrange
from collections.abc import Mapping

from vrm.model.quantities import clock


def used(seconds: float) -> str:
    """Return a duration in the format of squeue: `0:07`, `1:00:07`, `2-01:00:07`."""
    return elapsed(seconds).removeprefix("00:").removeprefix("0")


def elapsed(seconds: float) -> str:
    """Return a duration in the format of sacct: `00:00:07`, `2-01:00:07`."""
    return clock(max(0, int(seconds)), days=True) if math.isfinite(seconds) else "UNLIMITED"


def cpu(seconds: float) -> str:
    """Return CPU time in the format of sacct: `00:01.504`, from one hour on `01:00:07`."""
    return f"{int(seconds // 60):02}:{seconds % 60:06.3f}" if 0 < seconds < 3599.9995 else elapsed(seconds)


def moment(seconds: float, env: Mapping[str, str], unknown: str = "N/A") -> str:
    """Return a moment (epoch seconds) as local time in the format of SLURM_TIME_FORMAT; `unknown` if it is infinite
    or not positive."""
    from vrm.system.printing.local_times import STANDARD, local_time_text
    if not math.isfinite(seconds) or seconds <= 0:
        return unknown
    form = env.get("SLURM_TIME_FORMAT", "")
    if form in ("", "standard", "relative"):
        form = STANDARD
    try:
        return local_time_text(int(seconds), form)
    except ValueError:
        return local_time_text(int(seconds), STANDARD)


_UNITS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800}
_NAMED = {"midnight": 0, "noon": 12, "elevenses": 11, "fika": 15, "teatime": 16}
_NOW = re.compile(r"now(?:([+-][0-9]{1,9})([a-z]*))?")
_EPOCH = re.compile(r"[0-9]{9,11}(\.[0-9]+)?")
_SEPARATOR = re.compile(r"(?<=[0-9])[t-](?=[0-9]{1,2}:)| ")
_CLOCK = re.compile(r"([0-9]{1,2}):([0-9]{1,2})(?::([0-9]{1,2})(?:\.[0-9]+)?)?\s*([ap]m)?")
_DAYS = (re.compile(r"(?:(?P<year>[0-9]{4})-)?(?P<month>[0-9]{1,2})-(?P<day>[0-9]{1,2})"),
         re.compile(r"(?P<month>[0-9]{1,2})[/.](?P<day>[0-9]{1,2})(?:[/.](?P<year>[0-9]{4}|[0-9]{2}))?"),
         re.compile(r"(?P<month>[0-9]{2})(?P<day>[0-9]{2})(?P<year>[0-9]{2})?"))


def when(text: str, now: float) -> float:
    """Return the moment (epoch seconds) that a value of sacct's -S or -E names: a text as `begin` reads it, but of
    today if it has no day; epoch seconds; or an offset from now such as `-2hours`. Raises ValueError for others."""
    said = text.strip()
    if _EPOCH.fullmatch(said):
        return float(said)
    return _named(f"now{said}" if said[:1] in ("", "+", "-") else said, now)


def begin(text: str, now: float) -> float:
    """Return the moment (epoch seconds) that a value of --begin names: `16:00` (today, or tomorrow if that is past),
    `5:30PM`, `noon`, `tomorrow`, `now+2hours`, `2030-01-20T12:34:00`, `01/20/30-12:00`, `0120`. Raises ValueError
    for others."""
    return _named(text, now, coming=True)


def _named(text: str, now: float, coming: bool = False) -> float:
    """Return a moment. `coming`: a text without a day or year means the next such moment."""
    said = text.strip().lower()
    relative = _NOW.fullmatch(said)
    if relative and coming and (relative[1] or "").startswith("-"):
        raise ValueError(text)
    if relative:
        return now + int(relative[1] or 0) * _unit(relative[2] or "")
    day, _, clock = _SEPARATOR.sub("@", said, count=1).rpartition("@")
    if not day and clock not in _NAMED and not _CLOCK.fullmatch(clock):
        day, clock = clock, ""
    time_of_day = _time_of_day(clock)
    year, month, number = _date(day, now)
    this_year = time.localtime(now)[0]
    at = _moment(year or this_year, month, number, time_of_day)
    if coming and not day and at <= now:
        return _moment(this_year, month, number + 1, time_of_day)
    return _moment(this_year + 1, month, number, time_of_day) if coming and not year and at < now else at


def _unit(name: str) -> int:
    """Return the seconds of a unit, which may be abbreviated: `2h`, `2hours`."""
    found = next((size for unit, size in _UNITS.items() if unit.startswith(name.rstrip("s"))), None)
    if found is None:
        raise ValueError(name)
    return found


def _time_of_day(text: str) -> tuple[int, int, int]:
    """Return hour, minute and second; midnight for ""."""
    if not text or text in _NAMED:
        return _NAMED.get(text, 0), 0, 0
    found = _CLOCK.fullmatch(text)
    if not found:
        raise ValueError(text)
    hour, minute, second = (int(each or 0) for each in found.group(1, 2, 3))
    if found[4]:
        hour = hour % 12 + 12 * (found[4] == "pm") if 1 <= hour <= 12 else 24
    if hour > 23 or minute > 59 or second > 59:
        raise ValueError(text)
    return hour, minute, second


def _date(text: str, now: float) -> tuple[int | None, int, int]:
    """Return year (None: not given), month and day; today for ""."""
    today = time.localtime(now)[:3]
    if text in ("", "today", "tomorrow"):
        return today[0], today[1], today[2] + (text == "tomorrow")
    found = next(filter(None, (form.fullmatch(text) for form in _DAYS)), None)
    if not found:
        raise ValueError(text)
    year = int(found["year"]) + 2000 * (len(found["year"]) == 2) if found["year"] else None
    month, day = int(found["month"]), int(found["day"])
    if not (0 < month < 13 and 0 < day <= monthrange(year or today[0], month)[1]):
        raise ValueError(text)
    return year, month, day


def _moment(year: int, month: int, day: int, time_of_day: tuple[int, int, int]) -> float:
    try:
        return time.mktime((year, month, day, *time_of_day, 0, 0, -1))
    except OverflowError:
        raise ValueError(f"{year}-{month}-{day}") from None
