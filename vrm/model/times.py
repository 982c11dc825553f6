"""Times as people write them: `90`, `1.5`, `90m`, `2h`, `1h30m`, `1:30:00`, `1-12:00:00`."""

from __future__ import annotations

import math
import re

FORMS = "seconds, or as 90m, 2h, 1:30:00 or 1-12:00:00"
"""What `seconds_of` reads, for messages."""

_NUMBER = re.compile(r"([0-9]{1,30}\.?[0-9]{0,30}|\.[0-9]{1,30})([eE][+-]?[0-9]{1,3})?")
_UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_WITH_UNITS = re.compile("".join(rf"(?:([0-9]{{1,9}}(?:\.[0-9]{{1,9}})?){unit})?" for unit in _UNITS))
_CLOCK = re.compile(r"(?:([0-9]{1,6})-)?([0-9]{1,6}):([0-5][0-9]):([0-5][0-9])")


def seconds_of(text: str) -> float:
    """The seconds of a time; a bare number is seconds. ValueError for anything else."""
    if _NUMBER.fullmatch(text):
        found = float(text)
    else:
        units = _WITH_UNITS.fullmatch(text)
        clock = _CLOCK.fullmatch(text)
        if units and text:
            found = sum(float(number) * size for number, size in zip(units.groups(), _UNITS.values())
                        if number)
        elif clock:
            days, hours, minutes, seconds = (int(part or 0) for part in clock.groups())
            found = ((days * 24.0 + hours) * 60 + minutes) * 60 + seconds
        else:
            raise ValueError(text)
    if not math.isfinite(found):
        raise ValueError(text)
    return found


def said(seconds: float) -> str:
    """A time for people, as `seconds_of` reads it: `45s`, `22m`, `1h30m`, `2d3h`; whole seconds, and no
    more than the two largest units."""
    left = round(max(0.0, seconds))
    parts = []
    for unit, size in _UNITS.items():
        count, left = divmod(left, int(size))
        parts.append((count, unit))
    first = next((place for place, (count, _) in enumerate(parts) if count), len(parts) - 1)
    return "".join(f"{count}{unit}" for count, unit in parts[first:first + 2] if count) or "0s"
