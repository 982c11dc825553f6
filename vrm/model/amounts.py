"""Amounts of countable resources: whole numbers of base units, so that ten times 0.1 is 1, which
floats do not give.

Memory is counted in bytes, everything else in thousandths. What people read and write is GiB of
memory, and pieces of everything else.
"""

from __future__ import annotations

import math
import re
from functools import cache
from collections.abc import Iterable, Mapping

GPU, MEMORY = "gpu", "memory"
"""The resources that vrm knows by itself; any other name is the user's."""

Amounts = tuple[tuple[str, int], ...]
"""Amounts by name, in base units, sorted; none of them is 0."""

_UNITS: Mapping[str, int] = {MEMORY: 1 << 30}

_BYTES: dict[str, int] = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def unit(name: str) -> int:
    """The base units of one of a resource: the bytes of a GiB of memory, else 1000."""
    return _UNITS.get(name, 1000)


@cache
def base(name: str, amount: float) -> int:
    """An amount in base units; what is above 0 is at least one of them. ValueError for less than 0
    and for what is not a number."""
    if not 0 <= amount < math.inf:
        raise ValueError(f"an amount of {name} is a number from 0 on, not {amount!r}")
    return round(amount * unit(name)) or (1 if amount > 0 else 0)


def people(name: str, amount: int) -> float:
    """An amount of base units as people count it: GiB of memory, pieces of everything else."""
    return amount / unit(name)


def amounts(wanted: Mapping[str, float]) -> Amounts:
    """The amounts of people's numbers; ValueError for one that is none."""
    found = ((name, base(name, amount)) for name, amount in wanted.items())
    return tuple(sorted(each for each in found if each[1]))


def total(*parts: Iterable[tuple[str, int]]) -> Amounts:
    """Amounts added by name."""
    sums: dict[str, int] = {}
    for part in parts:
        for name, amount in part:
            sums[name] = sums.get(name, 0) + amount
    return tuple(sorted(each for each in sums.items() if each[1]))


def said(name: str, amount: int) -> str:
    """An amount of base units for people: `4G` of memory, `2` of something else."""
    return memory_text(amount) if name == MEMORY else f"{people(name, amount):g}"


def memory_text(size: int) -> str:
    """Bytes in the largest unit of which they are a whole number, as `4G`, `1536M`."""
    for letter in "tgmk":
        if size and size % _BYTES[letter] == 0:
            return f"{size // _BYTES[letter]}{letter.upper()}"
    return f"{size}B"


_MEMORY = re.compile(r"([0-9]{1,18})(\.[0-9]{1,9})?(?:([kmgt])(?:i?b)?|b)", re.IGNORECASE)


def memory_bytes(text: str) -> int:
    """Bytes of a text such as 4G, 4GiB, 4000M or 1.5T; every unit is a power of 1024, as Slurm and
    PBS count. ValueError for another text, one without a unit, and less than a byte."""
    found = _MEMORY.fullmatch(text)
    if not found:
        raise ValueError(text)
    each = _BYTES.get((found[3] or "").lower(), 1)
    size = int(found[1]) * each + round(float(found[2] or 0) * each)
    if size < 1:
        raise ValueError(text)
    return size
