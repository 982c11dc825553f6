"""Facts about the NAS Parallel Benchmarks: allowed rank counts and published run times."""

from __future__ import annotations

import math
from collections.abc import Callable

from vrm.model.job import application_kind

APPS = ("bt", "cg", "ep", "ft", "is", "lu", "mg", "sp")


def _power_of_two(ranks: int) -> bool:
    return ranks & (ranks - 1) == 0


def _square(ranks: int) -> bool:
    return math.isqrt(ranks) ** 2 == ranks


_RULES: dict[str, tuple[str, Callable[[int], bool]]] = {
    **dict.fromkeys(("cg", "ft", "is", "lu", "mg"), ("powers of two", _power_of_two)),
    **dict.fromkeys(("bt", "sp"), ("squares", _square))}


def allows(app: str, ranks: int) -> bool:
    """Return whether a program (`bt`, `bt.A.x`) runs on that number of ranks; unknown programs run on any number.

    An executable of NPB 3.3, such as `bt.A.4`, is made for one number.
    """
    words = app.split(".")
    if application_kind(app) in APPS and len(words) == 3 and words[2].isdigit():
        return ranks == int(words[2])
    return application_kind(app) not in _RULES or _RULES[application_kind(app)][1](ranks)


def rule(app: str) -> str:
    """Describe the rank counts of a program in words."""
    words = app.split(".")
    if application_kind(app) in APPS and len(words) == 3 and words[2].isdigit():
        return f"{words[2]} only"
    return _RULES.get(application_kind(app), ("any number",))[0]


def rank_counts(app: str, most: int) -> list[int]:
    """Return the rank counts to try from 1 to `most`: those that the program allows; for programs that run on any
    number, the powers of two."""
    counts = [ranks for ranks in range(1, most + 1) if allows(app, ranks)]
    if application_kind(app) in _RULES or len(counts) <= 1:
        return counts
    return [ranks for ranks in counts if _power_of_two(ranks)]


_COUNTS = (2, 4, 8, 16, 32, 64, 128)
_SECONDS = {
    "bt": (550, 230, 230, 80, 90, 80, 80),
    "cg": (120, 90, 70, 60, 90, 150, 120),
    "ep": (70, 40, 20, 10, 5, 3, 2),
    "ft": (100, 70, 60, 50, 60, 50, 80),
    "is": (10, 5, 5, 5, 10, 20, 10),
    "lu": (260, 170, 120, 60, 45, 50, 50),
    "mg": (20, 20, 10, 10, 10, 5, 5),
    "sp": (640, 470, 470, 160, 160, 130, 130),
}

CLASS_B: dict[tuple[str, int], float] = {
    (f"{app}.B.x", ranks): float(seconds)
    for app, row in _SECONDS.items() for ranks, seconds in zip(_COUNTS, row)}
"""Seconds of class B by executable and ranks, on nodes of 2 x 4 cores (A. Papavasileiou, diploma thesis, NTUA 2022)."""
