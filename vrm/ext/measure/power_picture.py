"""The power of all jobs over time, as a picture."""

from __future__ import annotations

import itertools
from pathlib import Path
from collections.abc import Sequence

from vrm.ext.study.report.compare import COLOURS
from vrm.ext.study.report.plotting import PictureError, picture

Series = tuple[str, Sequence[tuple[float, float]]]
"""A label, and the power steps: (time in seconds, watts from then on); see `vrm.results.energy.power_over_time`."""


def draw_power(path: Path, series: Sequence[Series], cap: Series | None = None) -> None:
    """Draw a picture (PNG or SVG) of the power of some runs, with a power cap if given. Raises PictureError."""
    starts = [steps[0][0] for _, steps in series if steps]
    begin = min(starts, default=0.0)
    last = max((steps[-1][0] for _, steps in series if steps), default=1.0)
    unit, name = next(((unit, name) for unit, name in ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes"))
                       if last - begin > 3 * unit), (1.0, "seconds"))
    with picture(path, PictureError, "ask for the table alone", 7.0, 3.2) as figure:
        axes = figure.subplots()
        for (label, steps), colour in zip(series, itertools.cycle(COLOURS)):
            axes.step([(time - begin) / unit for time, _ in steps], [watts for _, watts in steps],
                      where="post", linewidth=0.8, color=colour, label=label)
        if cap is not None:
            before = [watts for time, watts in cap[1] if time <= begin] or [cap[1][0][1]]
            inside = [(begin, before[-1]), *(step for step in cap[1] if begin < step[0] < last)]
            inside.append((last, inside[-1][1]))
            axes.step([(time - begin) / unit for time, _ in inside], [watts for _, watts in inside],
                      where="post", linewidth=1.2, color="black", linestyle="--", label=cap[0])
        axes.set_xlabel(f"{name} since the first start")
        axes.set_ylabel("power of all running jobs [W]")
        axes.set_ylim(bottom=0)
        if len(series) + (cap is not None) > 1:
            axes.legend(frameon=False)
