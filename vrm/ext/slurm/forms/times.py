"""Times as Slurm's commands read and write them."""

from __future__ import annotations

import math
import re
import time
from calendar import monthrange
from collections.abc import Mapping

STANDARD = "%Y-%m-%dT%H:%M:%S"


def used(seconds: float) -> str:
    """A duration as squeue has it: `0:07`, `1:00:07`, `2-01:00:07`."""
    if not math.isfinite(seconds):
        return "UNLIMITED"
    left = max(0, int(seconds))
    days, left = divmod(left, 86400)
    hours, left = divmod(left, 3600)
    minutes, left = divmod(left, 60)
    if days:
        return f"{days}-{hours:02}:{minutes:02}:{left:02}"
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"


def elapsed(seconds: float) -> str:
    """A duration as sacct has it: `00:00:07`, `2-01:00:07`."""
    if not math.isfinite(seconds):
        return "UNLIMITED"
    left = max(0, int(seconds))
    days, left = divmod(left, 86400)
    return (f"{days}-" if days else "") + time.strftime("%H:%M:%S", time.gmtime(left))


def cpu(seconds: float) -> str:
    """CPU time as sacct has it: `00:01.504`, from an hour on `01:00:07`."""
    return f"{int(seconds // 60):02}:{seconds % 60:06.3f}" if 0 < seconds < 3599.9995 else elapsed(seconds)


def moment(seconds: float, env: Mapping[str, str], unknown: str = "N/A") -> str:
    """A moment (epoch seconds) in local time, in the form that SLURM_TIME_FORMAT says."""
    if not math.isfinite(seconds) or seconds <= 0:
        return unknown
    form = env.get("SLURM_TIME_FORMAT", "")
    if form in ("", "standard", "relative"):
        form = STANDARD
    try:
        return time.strftime(form, time.localtime(int(seconds)))
    except ValueError:
        return time.strftime(STANDARD, time.localtime(int(seconds)))


_DAY = re.compile(r"(?:(\d{4})-)?(\d{2})-(\d{2})|(\d{2})[/.](\d{2})(?:[/.](\d{2}|\d{4}))?|(\d{2})(\d{2})(\d{2})?|"
                  r"(today|tomorrow)")
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?\s*([ap]m)?|(midnight|noon|elevenses|fika|teatime)")
_NAMED = {"midnight": 0, "noon": 12, "elevenses": 11, "fika": 15, "teatime": 16}
_NOW = re.compile(r"now(?:\+(\d{1,9})([a-z]*))?")


def begin(text: str, now: float) -> float:
    """The moment that --begin names, in epoch seconds: `16:00` (today, or tomorrow if that is past), `5:30PM`,
    `noon`, `tomorrow`, `now+2hours`, `2030-01-20T12:34:00`, `01/20/30-12:00`, `0120`. ValueError for others."""
    said = text.strip().lower()
    relative = _NOW.fullmatch(said)
    if relative:
        unit = (relative[2] or "second").rstrip("s") or "second"
        unit = next((each for each in _UNITS if each.startswith(unit)), "")
        if not unit:
            raise ValueError(text)
        return now + int(relative[1] or 0) * _UNITS[unit]
    day, _, clock = re.sub(r"(?<=\d)[t-](?=\d{1,2}:)| ", "@", said, count=1).rpartition("@")
    if not day and not _CLOCK.fullmatch(clock):
        day, clock = clock, ""
    today = time.localtime(now)
    year, month, number = today[:3]
    hour = minute = second = 0
    if clock:
        found = _CLOCK.fullmatch(clock)
        if not found:
            raise ValueError(text)
        hour, minute, second = ((_NAMED[found[5]], 0, 0) if found[5] else
                                (int(found[1]), int(found[2]), int(found[3] or 0)))
        if found[4]:
            if not 1 <= hour <= 12:
                raise ValueError(text)
            hour = hour % 12 + 12 * (found[4] == "pm")
    of_day = _DAY.fullmatch(day) if day else None
    if day and not of_day:
        raise ValueError(text)
    dated = of_day and next((each for each in (of_day.groups()[:3], (of_day[6], *of_day.groups()[3:5]),
                                               (of_day[9], *of_day.groups()[6:8])) if each[1]), None)
    if dated:
        month, number = int(dated[1] or 0), int(dated[2] or 0)
        year = year if not dated[0] else int(dated[0]) + 2000 * (len(dated[0]) == 2)

    def moment(year: int, number: int) -> float:
        if hour > 23 or minute > 59 or second > 59:
            raise ValueError(text)
        try:
            return time.mktime((year, month, number, hour, minute, second, 0, 0, -1))
        except OverflowError:
            raise ValueError(text) from None
    if not (0 < month < 13 and 0 < number <= monthrange(year, month)[1]):
        raise ValueError(text)
    tomorrow = of_day is not None and of_day[10] == "tomorrow"
    at = moment(year, number + tomorrow)
    if at <= now and not day:
        return moment(year, number + 1)
    if at < now and dated and not dated[0]:
        return moment(year + 1, number)
    return at


_UNITS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800}
_RELATIVE = re.compile(r"(?:now)?([+-])([0-9]{1,9})([a-z]*)")
_FORMS = ("%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M", "%Y-%m-%d %H:%M:%S", "%Y-%m-%d", "%m/%d/%y-%H:%M:%S",
          "%m/%d/%y-%H:%M", "%m/%d/%y", "%m/%d/%Y", "%Y-%m-%dT%H:%M:%S.%f")
_TODAY = ("%H:%M:%S", "%H:%M", "%I:%M%p")


def when(text: str, now: float) -> float:
    """The moment that sacct's -S and -E name, in epoch seconds. ValueError for what it cannot be."""
    said = text.strip()
    if said in ("now", ""):
        return now
    today = time.localtime(now)
    midnight = time.mktime((*today[:3], 0, 0, 0, 0, 0, -1))
    named = {"today": midnight, "midnight": midnight, "noon": midnight + 43200, "fika": midnight + 54000,
             "teatime": midnight + 57600, "tomorrow": midnight + 86400}
    if said.lower() in named:
        return named[said.lower()]
    relative = _RELATIVE.fullmatch(said.lower())
    if relative:
        unit = relative[3].rstrip("s") or "second"
        if unit not in _UNITS:
            raise ValueError(text)
        return now + int(relative[1] + relative[2]) * _UNITS[unit]
    if re.fullmatch(r"[0-9]{9,11}(\.[0-9]+)?", said):
        return float(said)
    for form in _FORMS:
        try:
            return time.mktime(time.strptime(said, form)[:8] + (-1,))
        except (ValueError, OverflowError):
            continue
    for form in _TODAY:
        try:
            found = time.strptime(said.upper(), form)
        except ValueError:
            continue
        return midnight + found.tm_hour * 3600 + found.tm_min * 60 + found.tm_sec
    raise ValueError(text)
