"""Quantiles of a few values, for which importing numpy takes longer than the computation, and of values that may be
infinite, for which numpy gives no quantiles."""

from __future__ import annotations

from collections.abc import Sequence


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the value below which the share `share` (0 to 1) of the values lies; `ordered` is ascending.

    It lies at rank share (n - 1), counted from 0, and is interpolated linearly between two values (type 7 of Hyndman
    and Fan, "Sample quantiles in statistical packages", 1996; numpy's default). It is infinite if the value above is
    infinite.
    """
    rank = share * (len(ordered) - 1)
    below = int(rank)
    part = rank - below
    low = ordered[below]
    high = ordered[below + 1] if part else low
    return low if low == high else low + part * (high - low)
