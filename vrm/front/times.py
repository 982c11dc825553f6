"""Times as Slurm's commands read and write them."""

from __future__ import annotations

import math
import re
import time
from typing import Mapping

_LIMIT = re.compile(r"(?:([0-9]{1,6})-)?([0-9]{1,9})(?::([0-9]{1,6}))?(?::([0-9]{1,6}))?")

UNLIMITED = ("UNLIMITED", "INFINITE", "-1")

STANDARD = "%Y-%m-%dT%H:%M:%S"


def limit(text: str) -> float:
    """The seconds of a time limit: minutes, M:S, H:M:S, D-H, D-H:M or D-H:M:S; infinity for none.
    ValueError for anything else."""
    if text.upper() in UNLIMITED:
        return math.inf
    found = _LIMIT.fullmatch(text)
    if not found:
        raise ValueError(text)
    days, *parts = (None if part is None else int(part) for part in found.groups())
    first, second, third = parts
    assert first is not None
    if days is not None:
        hours, minutes, seconds = first, second or 0, third or 0
    elif second is None:
        hours, minutes, seconds = 0, first, 0
    elif third is None:
        hours, minutes, seconds = 0, first, second
    else:
        hours, minutes, seconds = first, second, third
    return ((days or 0) * 24.0 + hours) * 3600 + minutes * 60 + seconds


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
