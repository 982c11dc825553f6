"""Amounts of countable resources: whole numbers of base units, so that ten times 0.1 is 1, which
floats do not give.

Memory is counted in bytes, everything else in thousandths. What people read and write is GiB of
memory, and pieces of everything else.
"""

from __future__ import annotations

import math
from functools import cache
from collections.abc import Iterable, Mapping

from vrm.model.quantities import memory_text

GPU, MEMORY = "gpu", "memory"
"""The resources that vrm knows by itself; any other name is the user's."""

Amounts = tuple[tuple[str, int], ...]
"""Amounts by name, in base units, sorted; none of them is 0."""

_UNITS: Mapping[str, int] = {MEMORY: 1 << 30}


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
