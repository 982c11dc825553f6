"""Amounts of countable resources, as integers of base units: ten times 0.1 is then exactly 1, unlike with floats.

The base unit of memory is a byte, of everything else a thousandth. People read and write GiB of memory, and pieces of
everything else.
"""

from __future__ import annotations

import math
from functools import cache
from collections.abc import Iterable, Mapping

from vrm.model.quantities import memory_text

GPU, MEMORY = "gpu", "memory"
"""The resources that vrm itself knows; any other name is defined by the user."""

Amounts = tuple[tuple[str, int], ...]
"""Pairs of resource name and amount in base units, sorted by name, without zero amounts."""

_UNITS: Mapping[str, int] = {MEMORY: 1 << 30}


def unit(name: str) -> int:
    """Return how many base units one unit of a resource has: 2**30 bytes for a GiB of memory, otherwise 1000."""
    return _UNITS.get(name, 1000)


@cache
def base(name: str, amount: float) -> int:
    """Convert an amount to base units; a positive amount becomes at least 1. Raises ValueError if it is negative or
    not finite."""
    if not 0 <= amount < math.inf:
        raise ValueError(f"an amount of {name} is a number from 0 on, not {amount!r}")
    return round(amount * unit(name)) or (1 if amount > 0 else 0)


def people(name: str, amount: int) -> float:
    """Convert base units to the unit that people use: GiB of memory, pieces of everything else."""
    return amount / unit(name)


def amounts(wanted: Mapping[str, float]) -> Amounts:
    """Convert amounts in people's units to base units. Raises ValueError for an invalid amount."""
    found = ((name, base(name, amount)) for name, amount in wanted.items())
    return tuple(sorted(each for each in found if each[1]))


def total(*parts: Iterable[tuple[str, int]]) -> Amounts:
    """Add amounts by resource name."""
    sums: dict[str, int] = {}
    for part in parts:
        for name, amount in part:
            sums[name] = sums.get(name, 0) + amount
    return tuple(sorted(each for each in sums.items() if each[1]))


def said(name: str, amount: int) -> str:
    """Format an amount of base units for people: `4G` of memory, `2` of anything else."""
    return memory_text(amount) if name == MEMORY else f"{people(name, amount):g}"
