"""Creates the backfilling `eamc` from its parameters."""

from __future__ import annotations

from fractions import Fraction

from vrm.ext.energy.eamc import GOALS, Eamc
from vrm.scheduling.backfilling.dispatcher import Dispatcher
from vrm.scheduling.registry import positive_number, reads


def _variant(text: str) -> str:
    if text not in GOALS:
        raise ValueError(text)
    return text


@reads({
    "variant": (_variant, "variant=reorder, priority-inc, priority-inc-v, base, min-runtime or min-energy"),
    "weight": (positive_number, "how much more time counts than energy, as weight=1.5"),
    "threshold": (positive_number, "from which share above the best a class is tried last, as threshold=0.35"),
})
def eamc(variant: str = "priority-inc-v", weight: Fraction = Fraction(1),
         threshold: Fraction = Fraction("0.35")) -> Dispatcher:
    """Choose the best class of nodes and frequency for each job, by time and energy."""
    return Eamc(variant, float(weight), float(threshold))
