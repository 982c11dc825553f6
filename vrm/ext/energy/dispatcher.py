"""The backfilling `eamc`, with its parameters."""

from __future__ import annotations

from fractions import Fraction

from vrm.ext.energy.eamc import GOALS, Eamc
from vrm.scheduling.backfilling.dispatcher import Dispatcher
from vrm.scheduling.registry import above_0, reads


def _variant(text: str) -> str:
    if text not in GOALS:
        raise ValueError(text)
    return text


@reads({
    "variant": (_variant, "variant=reorder, priority-inc, priority-inc-v, base, min-runtime or min-energy"),
    "weight": (above_0, "how much more time counts than energy, as weight=1.5"),
    "threshold": (above_0, "from which share above the best a class is tried last, as threshold=0.35"),
})
def eamc(variant: str = "priority-inc-v", weight: Fraction = Fraction(1),
         threshold: Fraction = Fraction("0.35")) -> Dispatcher:
    """The best class of nodes and frequency for each job, by time and energy."""
    return Eamc(variant, float(weight), float(threshold))
