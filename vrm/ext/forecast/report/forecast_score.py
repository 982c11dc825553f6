"""A picture of how good forecasts were: real waits against forecast waits, and the fraction of starts inside
their ranges."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple
from collections.abc import Sequence

from vrm.ext.study.report.plotting import PictureError, picture
from vrm.results.names import unit_of

BLUE, ORANGE, GREY = "#0072B2", "#E69F00", "#999999"
"""Colours of Okabe and Ito, which people with any colour vision can distinguish."""

LATEST = 50
"""Number of forecasts in the moving fraction of starts inside their ranges."""

PROMISED = 0.8
"""Fraction of starts that should lie inside their ranges."""


class ComparedWait(NamedTuple):
    """A forecast wait and the real one, in seconds. `inside`: the start lay in its calibrated range (None: the
    range was not calibrated)."""

    forecast: float
    real: float
    inside: bool | None


def moving_fraction(inside: Sequence[bool], latest: int = LATEST) -> list[float]:
    """Return the fraction of the last `latest` values that are true, from the first position with that many
    values on."""
    return [sum(inside[at - latest:at]) / latest for at in range(latest, len(inside) + 1)]


def draw(waits: Sequence[ComparedWait], path: Path, title: str) -> None:
    """Draw some waits, in the order of their forecasts, into a file (.svg or .png). Raises PictureError."""
    with picture(path, PictureError, "leave --plot away", 8.4, 3.8) as figure:
        left, right = figure.subplots(1, 2)
        figure.suptitle(title, fontsize=10, x=0.01, ha="left")
        unit = unit_of(value for each in waits for value in each[:2])
        least = max(1.0, min(max(each.real, each.forecast, 1.0) for each in waits) / 2)
        most = 2 * max(least, *(value for each in waits for value in each[:2]))
        span = [least / unit.seconds, most / unit.seconds]
        left.fill_between(span, [one / 2 for one in span], [one * 2 for one in span], color=GREY, alpha=0.2,
                          linewidth=0, label="within a factor of 2")
        left.plot(span, span, color=GREY, linewidth=0.8)
        for known, colour, label in ((True, BLUE, "in its range"), (False, ORANGE, "outside"),
                                     (None, GREY, "not calibrated")):
            here = [each for each in waits if each.inside is known]
            if here:
                left.plot([max(each.forecast, least) / unit.seconds for each in here],
                          [max(each.real, least) / unit.seconds for each in here], ".", color=colour,
                          markersize=3 if len(waits) > 300 else 5, alpha=0.7, markeredgewidth=0, label=label)
        left.set(xscale="log", yscale="log", xlim=span, ylim=span, xlabel=f"wait as forecast, {unit.name}",
                 ylabel=f"real wait, {unit.name}")
        left.legend(fontsize=7, frameon=False, loc="upper left")
        shares = moving_fraction([each.inside for each in waits if each.inside is not None])
        right.axhline(PROMISED, color=GREY, linewidth=0.8)
        right.set(ylim=(0, 1.02), xlabel="forecasts with a calibrated range",
                  title=f"starts in their ranges (80 % promised), of the last {LATEST}")
        if shares:
            right.plot(range(LATEST, LATEST + len(shares)), shares, color=BLUE, linewidth=1.2)
        else:
            right.text(0.5, 0.4, f"fewer than {LATEST} yet", ha="center", transform=right.transAxes,
                       fontsize=8, color="0.35")
        right.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
