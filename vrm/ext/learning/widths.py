"""Fields of a job that may run on several numbers of ranks: `ranks`, and `speedup`, the user's description of
how it scales."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any
from collections.abc import Callable

from vrm.model.forms.fields import NO_COLUMN, Field, Option
from vrm.model.forms.field_types import FieldError, Kind

RANKS, SPEEDUP = "ranks", "speedup"

MOST = 256
"""Greatest number of numbers of ranks that a job may name."""

LARGEST = 10_000_000
"""Greatest number of ranks of a job."""

FORMS = "ranks=2..16, ranks=2..16,powers, ranks=4..64,squares or ranks=4,9,16"

_RANGE = re.compile(r"(\d{1,8})\.\.(\d{1,8})(?:,(powers|squares))?")


def widths_of(text: str) -> tuple[int, ...]:
    """Return the numbers of ranks in a text, ascending: `2..16`, `2..16,powers` (of two), `4..64,squares`, or
    `4,9,16`, also in braces. Raises FieldError with the reason."""
    found = _RANGE.fullmatch(text)
    if found:
        low, high, which = int(found[1]), int(found[2]), found[3]
        if low > high:
            raise FieldError(f"`{{}}` has its larger end first; write {high}..{low}", text)
        if not which and high - low >= MOST:
            raise FieldError(f"`{{}}` names more than {MOST} numbers of ranks; add ,powers, or name some", text)
        named = _between(low, high, which or "")
    else:
        inside = text[1:-1] if text.startswith("{") and text.endswith("}") else text
        if not re.fullmatch(r"\d{1,8}(,\d{1,8})*", inside):
            raise FieldError(f"`{{}}` is not a choice of numbers of ranks; write {FORMS}", text)
        named = sorted({int(word) for word in inside.split(",")})
    if not named:
        raise FieldError("`{}` names no number of ranks", text)
    if named[0] < 1 or named[-1] > LARGEST or len(named) > MOST:
        raise FieldError(f"`{{}}` does not name 1 to {MOST} numbers of ranks from 1 to {LARGEST}", text)
    return tuple(named)


def text_of(widths: tuple[int, ...]) -> str:
    """Return the shortest text for these numbers of ranks."""
    low, high = widths[0], widths[-1]
    for which in ("", "powers", "squares") if len(widths) > 2 else ():
        if (which or high - low < MOST) and _between(low, high, which) == [*widths]:
            return f"{low}..{high}" + f",{which}" * bool(which)
    return ",".join(map(str, widths))


def _between(low: int, high: int, which: str) -> list[int]:
    """Return the numbers from `low` to `high`: all, the powers of two, or the squares."""
    if which == "powers":
        return [2 ** power for power in range(24) if low <= 2 ** power <= high]
    if which == "squares":
        return [root ** 2 for root in range(1, 3163) if low <= root ** 2 <= high]
    return list(range(low, high + 1))


def _numbers(text: str) -> tuple[float, float]:
    words = text.split(":")
    try:
        average, variation = float(words[0]), float(words[1]) if len(words) > 1 else 0.0
        if not (len(words) <= 2 and 1 <= average <= 1e7 and 0 <= variation <= 1e3):
            raise ValueError(text)
    except ValueError:
        raise FieldError("`{}` is not the average parallelism (1 or more) and its variation (0 or more), as 12:0.5",
                         text) from None
    return average, variation


def _kind(read: Callable[[str], Any], write: Callable[[Any], str]) -> Kind:
    """Return the kind of values that have the same text in all formats."""
    def sound(value: Any) -> bool:
        try:
            return isinstance(value, str) and bool(read(value))
        except ValueError:
            return False
    return Kind(read, sound, lambda value: [write(value)], to_record=write, of_record=read, plain=write, of_plain=read)


def ranks() -> Field:
    """The numbers of ranks on which a job may run."""
    return Field(RANKS, _kind(widths_of, text_of), f"numbers of ranks, as {FORMS}", column=NO_COLUMN, option=Option(
        "CHOICE", f"numbers of ranks on which it may run, under Backfilling: moldable; {FORMS}"))


def speedup() -> Field:
    """How a job scales: Downey's average parallelism and its variation."""
    return Field(SPEEDUP, _kind(_numbers, lambda value: f"{value[0]:g}:{value[1]:g}"),
                 "average parallelism and its variation (Downey's model), as 12:0.5", column=NO_COLUMN, option=Option(
                     "A:SIGMA", "how it scales, where nothing was measured: average parallelism and its variation "
                     "(Downey's model)"))


@dataclass(frozen=True)
class Downey:
    """Speed-up of a program from its average parallelism and the variation of that (A. Downey, "A model for
    speedup of parallel programs", 1997)."""

    average: float
    variation: float

    def speedup(self, ranks: int) -> float:
        """Return the speed on `ranks` ranks divided by that on one."""
        a, s, n = self.average, self.variation, ranks
        if s <= 1:
            if n <= a:
                return a * n / (a + s / 2 * (n - 1))
            if n <= 2 * a - 1:
                return a * n / (s * (a - 0.5) + n * (1 - s / 2))
            return a
        if n <= a + a * s - s:
            return n * a * (s + 1) / (s * (n + a - 1) + a)
        return a

    def time(self, ranks: int) -> float:
        """Return the run time on `ranks` ranks divided by that on one."""
        return 1.0 / self.speedup(ranks)
