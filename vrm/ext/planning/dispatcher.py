"""The backfilling `cp` and its parameters. The solver is loaded when plans are made."""

from __future__ import annotations

from fractions import Fraction

from vrm.ext.planning.planning_problem import Effort
from vrm.ext.planning.planning_dispatcher import Planning
from vrm.scheduling.backfilling.dispatcher import Dispatcher
from vrm.scheduling.registry import positive_number, reads, whole


def _start(text: str) -> str:
    if text not in ("easy", "nothing"):
        raise ValueError(text)
    return text


@reads({
    "jobs": (whole, "a number of waiting jobs from 1 on, as jobs=100"),
    "budget": (positive_number, "seconds of the solver's deterministic clock, as budget=0.1"),
    "start": (_start, "start=easy or start=nothing: with which plan the search begins"),
})
def cp(jobs: int = 100, budget: Fraction = Fraction("0.1"), start: str = "easy") -> Dispatcher:
    """Start jobs as in a plan for the first waiting jobs, made by constraint programming."""
    return Planning(jobs, Effort(float(budget), max(16.0, float(budget)), start == "easy"))
