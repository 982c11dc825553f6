"""What the study of live lends compares its measurements with."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

STUDY = runpy.run_path(str(Path(__file__).resolve().parent.parent / "studies/malleable/live.py"))


@pytest.mark.parametrize("way", ["serial", "beside", "lend"])
@pytest.mark.parametrize("first, second, come", [(90.0, 20.0, 30.0), (60.0, 60.0, 20.0), (30.0, 80.0, 10.0)])
def test_what_exact_arithmetic_allows_is_that_of_small_steps(way: str, first: float, second: float,
                                                             come: float) -> None:
    left, more, time, step = first, second, 0.0, 0.001
    ends = [0.0, 0.0]
    while left > 0 or more > 0:
        both = left > 0 and more > 0 and time >= come
        if left > 0:
            left -= step * (0.5 if both and way != "serial" else 1.0)
            ends[0] = time + step
        if more > 0 and time >= come and not (way == "serial" and both):
            kept = way == "lend" or both and way == "beside"  # a borrower never has more than it began with
            more -= step * (0.5 if kept else 1.0)
            ends[1] = time + step
        time += step
    found = STUDY["allowed"](first, second, come, way)
    assert (found.first, found.second, found.total) == pytest.approx(
        (ends[0], ends[1] - come, max(ends)), abs=0.01)
