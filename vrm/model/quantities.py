"""Quantities as texts: times (`90`, `1.5`, `90m`, `1h30m`, `1:30:00`, `1-12:00:00`), sizes of memory (`4G`), and lists
of numbers (`0-8:2,20`). This module has the forms that people write, and the parts that the forms of batch systems are
made from."""

from __future__ import annotations

import math
import re
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple
from collections.abc import Iterable, Sequence

# ---------------------------------------------------------------------------------------------- times

FORMS = "seconds, or as 90m, 2h, 1:30:00 or 1-12:00:00"
"""The forms that `seconds_of` accepts, for messages."""

_UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_SIZES = tuple(reversed(_UNITS.values()))
_NUMBER = re.compile(r"([0-9]{1,30}\.?[0-9]{0,30}|\.[0-9]{1,30})([eE][+-]?[0-9]{1,3})?")
_WITH_UNITS = re.compile("".join(rf"(?:([0-9]{{1,9}}(?:\.[0-9]{{1,9}})?){unit})?" for unit in _UNITS))
_CLOCK = re.compile(r"(?:[0-9]{1,6}-)?[0-9]{1,6}:[0-5][0-9]:[0-5][0-9]")
_PARTS = re.compile(r"(?:([0-9]{1,9})-)?([0-9]{1,9}(?::[0-9]{1,9}){0,3}(?:\.[0-9]{1,9})?)")


def seconds_of(text: str) -> float:
    """Convert a time to seconds; a bare number is seconds. Raises ValueError for anything else."""
    units = _WITH_UNITS.fullmatch(text)
    if _NUMBER.fullmatch(text):
        found = float(text)
    elif units and text:
        found = sum(float(number) * size for number, size in zip(units.groups(), _UNITS.values()) if number)
    elif _CLOCK.fullmatch(text):
        found = seconds_of_parts(text)
    else:
        raise ValueError(text)
    if not math.isfinite(found):
        raise ValueError(text)
    return found


def seconds_of_parts(text: str, alone: float = 1.0) -> float:
    """Convert `[[[D:]H:]M:]S`, as PBS and logs write it, or `D-H[:M[:S]]` to seconds; a bare number is multiplied by
    `alone`. Raises ValueError for anything else."""
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
"""The words that mean "no limit" in Slurm."""


def slurm_seconds(text: str) -> float:
    """Convert a time limit of Slurm to seconds: minutes, `M:S`, `H:M:S`, `D-H`, `D-H:M` or `D-H:M:S`; no limit is
    infinity. Raises ValueError for anything else."""
    if text.upper() in UNLIMITED:
        return math.inf
    if text.count(":") > 2 or "." in text:
        raise ValueError(text)
    return seconds_of_parts(text, 60.0)


def said(seconds: float) -> str:
    """Format seconds for people, in the form of `seconds_of`: `45s`, `22m`, `1h30m`, `2d3h`. Rounds to whole seconds
    and shows at most the two largest units."""
    left = round(max(0.0, seconds))
    parts = []
    for unit, size in _UNITS.items():
        count, left = divmod(left, int(size))
        parts.append((count, unit))
    first = next((place for place, (count, _) in enumerate(parts) if count), len(parts) - 1)
    return "".join(f"{count}{unit}" for count, unit in parts[first:first + 2] if count) or "0s"


def seconds_text(value: float | None) -> str:
    """Format seconds with at most 3 decimals; whole numbers without a point, "" for None."""
    if value is None:
        return ""
    if not isinstance(value, float):
        return str(value)
    if not value.is_integer():
        value = round(value, 3)
        if not value.is_integer():
            return str(value)
    return str(int(value))


def clock(seconds: float, days: bool = False) -> str:
    """Format whole seconds as HH:MM:SS, with as many digits of hours as needed, or, with `days`, as D-HH:MM:SS from
    one day on."""
    day, left = divmod(int(seconds), 86400) if days else (0, int(seconds))
    return f"{day}-" * (day > 0) + f"{left // 3600:02}:{left // 60 % 60:02}:{left % 60:02}"


# ---------------------------------------------------------------------------------------------- memory

class MemoryDialect(NamedTuple):
    """A way to write sizes of memory: a pattern of number, fraction and unit, and the unit of a bare number."""

    pattern: re.Pattern[str]
    alone: str = ""


PEOPLE = MemoryDialect(re.compile(r"([0-9]{1,18})(\.[0-9]{1,9})?([kmgt](?:i?b)?|b)", re.IGNORECASE))
"""`4G`, `4GiB`, `1.5T`: the unit is required."""

SLURM_MEMORY = MemoryDialect(re.compile(r"([0-9]{1,15})()((?:[kmgt]b?)?)", re.IGNORECASE), "m")
"""`4G`, `4000`: a bare number is MiB."""

PBS_MEMORY = MemoryDialect(re.compile(r"([0-9]{1,15})()([kmgtp]?[bw]?)", re.IGNORECASE))
"""`4gb`, `500kw`, `2048`: a bare number is bytes; a word (w) is eight bytes."""

LOG_MEMORY = MemoryDialect(re.compile(r"([0-9]+)(\.[0-9]+)?\s*((?:[kmgtp](?:i?b|w)?|b|w)?)", re.IGNORECASE))
"""The forms in logs and tables of several systems: `62.50G`, `4096mb`, `1000 kw`."""


def scale(letter: str) -> int:
    """Return the power of 1024 for k, m, g, t or p, in lower or upper case; 1 for ""."""
    return 1 << 10 * (" kmgtp".index(letter.lower()) if letter else 0)


def memory_text(size: int) -> str:
    """Format bytes in the largest unit that gives a whole number, such as `4G` or `1536M`."""
    for letter in "TGMK":
        if size and size % scale(letter) == 0:
            return f"{size // scale(letter)}{letter}"
    return f"{size}B"


def memory_parts(text: str, dialect: MemoryDialect) -> tuple[str, str, int]:
    """Return the digits, the fraction (`.5`, or ""), and the bytes of the unit; every unit is a power of 1024, as
    Slurm and PBS count. Raises ValueError for any other text."""
    found = dialect.pattern.fullmatch(text)
    if not found:
        raise ValueError(text)
    unit = found[3] or dialect.alone
    return found[1], found[2] or "", scale(unit[:1].strip("bBwW")) * (8 if unit[-1:] in ("w", "W") else 1)


@lru_cache(4096)
def memory_bytes(text: str, dialect: MemoryDialect = PEOPLE) -> int:
    """Convert a text such as 4G, 4GiB, 4000M or 1.5T to bytes. Raises ValueError for any other text and, with PEOPLE,
    for less than a byte."""
    whole, fraction, each = memory_parts(text, dialect)
    size = int(whole) * each + round(float(fraction or 0) * each)
    if size < 1 and dialect is PEOPLE:
        raise ValueError(text)
    return size


# ---------------------------------------------------------------------------------------------- lists of numbers

MOST_JOBS = 100_000
"""Maximum number of jobs that one line may make, or name in a dependency."""

_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9})(?::([1-9][0-9]{0,8}))?)?")


def member_range(text: str) -> range:
    """Parse one part of a list, `7` or `0-8:2`. Raises ValueError for anything else."""
    match = _RANGE.fullmatch(text)
    if match is None:
        raise ValueError(text)
    first, last, step = (int(group) if group else None for group in match.groups())
    assert first is not None
    members = range(first, first + 1 if last is None else last + 1, step or 1)
    if not members or len(members) > MOST_JOBS:
        raise ValueError(text)
    return members


def numbers(text: str) -> tuple[int, ...]:
    """Parse a list of numbers; each number appears once in the result. Raises ValueError for anything else, and for a
    list whose parts have more than MOST_JOBS numbers together, even if they repeat the same ones."""
    parts = []
    total = 0
    for part in text.split(","):
        parts.append(member_range(part))
        total += len(parts[-1])
        if total > MOST_JOBS:
            raise ValueError(text)
    found: dict[int, None] = {}
    for part_numbers in parts:
        found.update(dict.fromkeys(part_numbers))
    return tuple(found)


def fold_range(members: range) -> str:
    """Format a range as `member_range` reads it; two numbers that are not neighbours are written as two parts."""
    if len(members) == 1:
        return str(members[0])
    if len(members) == 2 and members.step > 1:
        return f"{members[0]},{members[1]}"
    return f"{members[0]}-{members[-1]}" + (f":{members.step}" if members.step > 1 else "")


def to_ranges(values: Sequence[int]) -> list[range]:
    """Return the numbers, in their order, as few plain ranges."""
    found, at = [], 0
    while at < len(values):
        step = values[at + 1] - values[at] if at + 1 < len(values) else 0
        stop = at + 1
        while stop < len(values) and step > 0 and values[stop] - values[stop - 1] == step:
            stop += 1
        if stop - at > 2 or (stop - at == 2 and step == 1):
            found.append(range(values[at], values[stop - 1] + 1, step))
            at = stop
        else:
            found.append(range(values[at], values[at] + 1))
            at += 1
    return found


def repeated(values: Iterable[int]) -> str:
    """Format one number for each node as Slurm does: `4(x2),2`."""
    runs = ((value, len(list(same))) for value, same in groupby(values))
    return ",".join(f"{value}(x{times})" if times > 1 else str(value) for value, times in runs)


def fold(values: Sequence[int]) -> str:
    """Return the shortest plain list that `numbers` reads as these values, in their order."""
    return ",".join(map(fold_range, to_ranges(values)))
