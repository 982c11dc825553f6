"""Amounts of countable resources: whole numbers of thousandths, so that ten times 0.1 is 1, which
floats do not give."""

from __future__ import annotations

import math
from functools import cache

THOUSANDTHS = 1000
"""What one of a resource is counted in."""


@cache
def thousandths(amount: float) -> int:
    """An amount in thousandths; what is above 0 is at least one of them. ValueError for less than 0
    and for what is no number."""
    if not 0 <= amount < math.inf:
        raise ValueError(f"an amount of a resource is a number from 0 on, not {amount!r}")
    return round(amount * THOUSANDTHS) or (1 if amount > 0 else 0)
