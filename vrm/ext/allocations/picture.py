"""A picture of the forecast of the site's queue with the best request in it, and of the ends of the other
requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from collections.abc import Sequence

from vrm.ext.allocations.compare import RequestForecast, Work, asked, outcome
from vrm.ext.allocations.outer_site import OuterSite
from vrm.ext.forecast.replay import PlannedJob
from vrm.ext.study.report.pictures import BLUE, GREY, RED, SKY
from vrm.ext.study.report.plotting import PictureError, picture
from vrm.model import bits
from vrm.results.names import unit_of

REQUESTS = 12
"""Greatest number of requests that are drawn."""


def middle(work: Work, site: OuterSite, candidate: RequestForecast, cores: int) -> int:
    """Return the draw in which a request ends nearest to the median of the draws."""
    ends = [outcome(work, site, candidate.shape, cores, member).end for member in range(candidate.members)]
    return min(range(len(ends)), key=lambda member: abs(ends[member] - candidate.end.p50))


def draw(path: Path, work: Work, site: OuterSite, found: Sequence[RequestForecast], cores: int) -> None:
    """Write the picture (PNG or SVG). Raises PictureError."""
    best = found[0]
    member = middle(work, site, best, cores)
    asks = asked(work.progress(best.shape, member), work.requests(best.shape))
    jobs = site.played(asks, member)
    shown = [each for each in found[:REQUESTS] if each.end.p50 < float("inf")]
    last = max([60.0, *(value for each in shown for value in (each.end.p50, each.end.p90) if value < float("inf"))])
    unit = unit_of([last])
    nodes = site.frozen.state.cluster.nodes
    with picture(path, PictureError, "leave --plot away", 8.4, 5.6) as figure:
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[3, 2])
        first = site.frozen.state.next_id
        for job_id, job in jobs.items():
            ours = first <= job_id < first + len(asks)
            known = job_id < first
            _bar(upper, site, job, RED if ours else BLUE if known else SKY, unit.seconds, last)
        upper.set(ylim=(len(nodes), 0), ylabel="nodes, or parts of them", title="one draw: no. 1 in orange, the "
                  "jobs of now in blue, later ones pale")
        for at, each in enumerate(shown):
            _span(lower, at, each, unit.seconds, last)
        lower.set(yticks=range(len(shown)), ylim=(len(shown) - 0.5, -0.5), xlim=(0, 1.02 * last / unit.seconds),
                  xlabel=f"{unit.name} from now",
                  title="requests: from the start to the end of all jobs, P10 to P90 and P50")
        lower.set_yticklabels([str(each.shape) for each in shown], fontsize=7)


def _bar(axes: Any, site: OuterSite, job: PlannedJob, colour: str, unit: float, last: float) -> None:
    """Draw a job on its nodes."""
    now = site.frozen.now
    begin, end = max(0.0, job.start - now), min(last, job.end - now)
    if end <= begin:
        return
    nodes = site.frozen.state.cluster.nodes
    for node, _, mask in job.placement.on_nodes(nodes):
        width = sum(nodes[node].sockets)
        cores = list(bits.members(mask))
        axes.barh(node + (min(cores) % width) / width, (end - begin) / unit, len(cores) / width, begin / unit,
                  align="edge", color=colour, edgecolor="white", linewidth=0.2)


def _span(axes: Any, at: int, each: RequestForecast, unit: float, last: float) -> None:
    """Draw the start and the end of a request."""
    colour = RED if at == 0 else GREY
    axes.plot([each.start.p50 / unit, each.end.p50 / unit], [at, at], color=colour, linewidth=1)
    for values, mark in ((each.start, "|"), (each.end, "o")):
        axes.plot([min(value, last) / unit for value in (values.p10, values.p90)], [at, at], color=colour, linewidth=4,
                  alpha=0.35, solid_capstyle="butt")
        axes.plot([values.p50 / unit], [at], mark, color=colour, markersize=5)
