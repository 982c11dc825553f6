"""Times as people write them (`90`, `1.5`, `90m`, `2h`, `1h30m`, `1:30:00`, `1-12:00:00`), and as batch systems do."""

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


_PARTS = re.compile(r"(?:([0-9]{1,9})-)?([0-9]{1,9}(?::[0-9]{1,9}){0,3}(?:\.[0-9]{1,9})?)")
_SIZES = (1.0, 60.0, 3600.0, 86400.0)


def of_parts(text: str, alone: float = 1.0) -> float:
    """The seconds of `[[[D:]H:]M:]S`, as PBS and logs write it, or of `D-H[:M[:S]]`; a number alone counts `alone`
    seconds. ValueError for anything else."""
    found = _PARTS.fullmatch(text)
    if not found:
        raise ValueError(text)
    numbers = [float(part) for part in found[2].split(":")]
    if found[1] is not None:
        numbers = [float(found[1]), *numbers, 0.0, 0.0][:max(4, 1 + len(numbers))]
    elif len(numbers) == 1:
        return numbers[0] * alone
    if len(numbers) > 4:
        raise ValueError(text)
    return sum(number * size for number, size in zip(reversed(numbers), _SIZES))


UNLIMITED = ("UNLIMITED", "INFINITE", "-1")
"""What Slurm calls no limit."""


def of_slurm(text: str) -> float:
    """The seconds of a time limit of Slurm: minutes, `M:S`, `H:M:S`, `D-H`, `D-H:M` or `D-H:M:S`; infinity for none.
    ValueError for anything else."""
    if text.upper() in UNLIMITED:
        return math.inf
    if text.count(":") > 2 or "." in text:
        raise ValueError(text)
    return of_parts(text, 60.0)


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
