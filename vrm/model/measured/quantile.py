"""Quantiles of a few values, where numpy takes longer to load than all of them to compute, and of values that may be
infinite, which numpy gives none of."""

from __future__ import annotations

from collections.abc import Sequence


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value below which that share (0 to 1) of the values lies; these are in order, the lowest first.

    It lies at rank share (n - 1), counted from 0, and between two values in proportion (type 7 of Hyndman and Fan,
    "Sample quantiles in statistical packages", 1996; numpy's own). It is infinite where the value above is.
    """
    rank = share * (len(ordered) - 1)
    below = int(rank)
    part = rank - below
    low = ordered[below]
    high = ordered[below + 1] if part else low
    return low if low == high else low + part * (high - low)
