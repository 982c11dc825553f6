"""The backfilling policy `sd` and its parameters."""

from __future__ import annotations

from fractions import Fraction

from vrm.ext.lending.lenders import LendingTerms
from vrm.ext.lending.slowdown import SlowdownDriven
from vrm.ext.lending.slowdown_conservative import SlowdownAll
from vrm.scheduling.backfilling.dispatcher import Dispatcher
from vrm.scheduling.registry import positive_number, reads, whole


def _max_slowdown(text: str) -> float | None:
    if text == "dynamic":
        return None
    if not float(text) > 1:
        raise ValueError(text)
    return float(text)


def _below_1(text: str) -> Fraction:
    if positive_number(text) >= 1:
        raise ValueError(text)
    return positive_number(text)


def _when(text: str) -> str:
    if text not in ("earlier", "always", "gain"):
        raise ValueError(text)
    return text


def _reservations(text: str) -> str:
    if text not in ("head", "all"):
        raise ValueError(text)
    return text


@reads({
    "max_slowdown": (_max_slowdown, "a number above 1, inf or dynamic, as max_slowdown=10"),
    "share": (_below_1, "a share of a job's cores above 0 and below 1, as share=0.5"),
    "mates": (whole, "a number of jobs that lend to one, as mates=2"),
    "when": (_when, "when=earlier, when=always or when=gain: whether a job must end earlier than by waiting, and "
             "if so by more than its mates lose"),
    "reservations": (_reservations, "reservations=head or reservations=all: whose start no lend delays"),
})
def sd(max_slowdown: float | None = 10.0, share: Fraction = Fraction("0.5"), mates: int = 2,
       when: str = "earlier", reservations: str = "head") -> Dispatcher:
    """EASY or conservative backfilling in which jobs that would wait too long start on cores that running jobs lend."""
    if reservations == "all":
        return SlowdownAll(LendingTerms(max_slowdown, float(share), mates, when == "always", when == "gain"))
    return SlowdownDriven(max_slowdown, float(share), mates, when == "always", when == "gain")
