"""A Gantt chart of running and forecast jobs for `vrm top`, as lines of text: one line per job, time
to the right."""

from __future__ import annotations

import math
from typing import Any, Protocol
from collections.abc import Callable, Mapping, Sequence

from vrm.report.moments import LATER, when
from vrm.results.forecast import Record, moment
from vrm.system.printing.text import printable

Line = list[tuple[str, str]]
"""Texts with their styles, as in `vrm.ext.top.top`."""

TICK = 14
"""Minimum columns between two times on the axis."""

SHORTEST = 60.0
"""Minimum seconds that the chart covers."""


class Marks(Protocol):
    """The characters used for drawing (`vrm.ext.top.top.Glyphs`)."""

    @property
    def full(self) -> str: ...
    @property
    def rest(self) -> str: ...
    @property
    def free(self) -> str: ...
    @property
    def divider(self) -> str: ...


def gantt(jobs: Sequence[Mapping[str, Any]], now: float, end: float, size: tuple[int, int],
          glyphs: Marks, colour: Callable[[int], str], first: int = 0) -> list[Line]:
    """Return the jobs that have a forecast, starting with number `first`, in at most `size[1]` lines of `size[0]`
    columns. A bar goes from the likely start to the likely end. Before it are dots from the early start (P10), after it
    a thin line to the late end (P90). `end` is the end of the allocation."""
    width, rows = size
    known = [job for job in jobs if job.get("forecast")]
    if not known:
        return [[("no forecast: it is not made yet, or Forecast is off in the configuration", "dim")]]
    shown = known[first:first + max(0, rows - 2)]
    found = [job["forecast"] for job in shown]
    last = max([now + SHORTEST, *(at for each in found for at in (moment(each, "end"),
                                                                  moment(each, "end_p90"))
                                  if math.isfinite(at))])
    if math.isfinite(end):
        last = max(min(last, end + 0.05 * (end - now)), now + SHORTEST)
    ids = max([2, *(len(str(job["id"])) for job in shown)])
    app = max(4, min(16, width // 5))
    area = width - ids - app - 3
    if area < 8:
        return [[("the screen is too narrow for this picture", "dim")]]
    scale = area / (last - now)
    lines: list[Line] = [_axis(now, last, area, ids + app + 3)]
    for job, each in zip(shown, found):
        name = printable(job["app"])[:app]
        lines.append([(f"{job['id']:>{ids}} {name:<{app}}  ", "plain"),
                      *_bar(each, now, end, area, scale, glyphs, colour(job["id"]))])
    if len(shown) < len(known):
        lines.append([(f"{first + 1}-{first + len(shown)} of {len(known)}", "dim")])
    return lines


def _axis(now: float, last: float, area: int, margin: int) -> Line:
    """Return the line of times above the chart."""
    count = max(1, area // TICK)
    text = " " * margin
    for at in range(count):
        column = margin + at * area // count
        text = text.ljust(column) + when(now + (last - now) * at / count, now,
                                         seconds=last - now < 3600)
    return [(text[:margin + area].ljust(margin + area), "heading")]


def _bar(each: Record, now: float, end: float, area: int, scale: float, glyphs: Marks, style: str
         ) -> Line:
    """Return the bar of a job."""
    def column(at: float) -> int:
        return area if at == math.inf else max(0, min(area, round((at - now) * scale)))

    if not math.isfinite(moment(each, "start")):
        return [(LATER[:area], "dim")]
    running = each["running"]
    early = 0 if running else column(moment(each, "p10"))
    start = 0 if running else column(moment(each, "start"))
    stop = max(start + 1, column(moment(each, "end")))
    late = max(stop, column(moment(each, "end_p90")))
    text = " " * min(early, start) + glyphs.free * max(0, start - early) + glyphs.full * (stop - start)
    text = (text + glyphs.rest * (late - stop))[:area].ljust(area)
    if math.isfinite(end) and column(end) < area:
        at = column(end)
        text = text[:at] + glyphs.divider + text[at + 1:]
    return [(text.rstrip(), style)]
