"""The pictures of a study, drawn by matplotlib: averages and distributions.

The colours are those of Okabe and Ito ("Color universal design", 2008), which can be distinguished with any colour
vision; where the difference is important, line style, hatching or position also differ.
"""

from __future__ import annotations

import math
from typing import Any
from collections.abc import Iterator, Sequence

from vrm.ext.study.report.compare import TICKS, figure as short, steps
from vrm.ext.study.report.pictures import GROUPS, INK, Picture, SERIES, STYLES, grid, plot_style, file_name_part
from vrm.ext.study.report.plotting import chart_label
from vrm.ext.study.report.study import FIGURES, MAIN, ReportScenario, Study, pooled
from vrm.results.names import Unit, time_text, unit_of
from vrm.ext.study.confidence import CONFIDENCE
from vrm.results.summary import JobArrays

MAX_CURVES = 10  # maximum number of curves in a picture of distributions


# ------------------------------------------------------------------------------------- averages


def averages(study: Study, queue: str | None = None) -> Picture:
    """Draw grouped bars of waiting, running and turnaround time in three panels."""
    with plot_style() as plots:
        # Three panels in a row, or in a column if there are many bars.
        abreast = _bars_width(study) <= 5
        figure, axes = plots.subplots(
            *((1, 3) if abreast else (3, 1)), layout="constrained",
            figsize=(max(9.5, 3 * _bars_width(study)), 3.3) if abreast else
            (_bars_width(study), 9))
        whiskers = False
        for panel, name in zip(axes, MAIN):
            whiskers = _bars(panel, study, name, queue, legend=False) or whiskers
            panel.set_title(f"{FIGURES[name].title.capitalize()} time")
        handles, labels = axes[0].get_legend_handles_labels()
        if any(study.series):
            figure.legend(handles, labels, loc="outside upper right", ncol=len(labels))
        if whiskers:
            figure.supxlabel(f"whiskers: {CONFIDENCE:.0%} confidence intervals", fontsize=7.5)
    where = f" on {queue}" if queue else " over the queues" if len(study.queues) > 1 else ""
    return Picture("averages" if queue is None else f"averages-{file_name_part(queue)}",
                   f"Average times{where}", _said(study, MAIN, queue), figure)


def average(study: Study, name: str, queue: str | None = None) -> Picture:
    """Draw grouped bars of one figure, narrow enough for a phone."""
    with plot_style() as plots:
        figure, axes = plots.subplots(figsize=(_bars_width(study), 2.9), layout="constrained")
        _bars(axes, study, name, queue)
    title = FIGURES[name].title.capitalize() + (" time" if name in MAIN else "")
    return Picture(f"average-{name}{f'-{file_name_part(queue)}' if queue else ''}",
                   f"{title}{f' on {queue}' if queue else ''}", _said(study, [name], queue), figure)


def _bars_width(study: Study) -> float:
    return max(3.9, 0.8 + 0.42 * len(study.groups) * len(study.series))


def _bars(axes: Any, study: Study, name: str, queue: str | None, legend: bool = True) -> bool:
    """Draw the bars; return whether any has a confidence interval."""
    count = len(study.series)
    width = 0.8 / count
    whiskers = False
    unit = Unit(FIGURES[name].unit, 1.0)
    if unit.name == "s":
        means = [study.mean(one.name, name, queue) for one in study.scenarios]
        unit = unit_of(mean.mean for mean in means if mean is not None)
    most: float = 0.0
    for index, series in enumerate(study.series):
        places: list[float] = []
        heights: list[float] = []
        errors: list[float] = []
        for place, group in enumerate(study.groups):
            scenario = study.scenario(group, series)
            mean = study.mean(scenario.name, name, queue) if scenario else None
            if mean is None:
                continue
            places.append(place + (index - (count - 1) / 2) * width)
            heights.append(mean.mean / unit.seconds)
            errors.append((mean.half or 0.0) / unit.seconds)
        axes.bar(places, heights, width * 0.92, color=SERIES[index % len(SERIES)],
                 label=chart_label(series), linewidth=0)
        if any(errors):
            whiskers = True
            axes.errorbar(places, heights, errors, fmt="none", ecolor=INK, elinewidth=0.9,
                          capsize=2.5, capthick=0.9)
        tops = [height + error for height, error in zip(heights, errors)]
        most = max([most, *tops])
        for at, height, top in zip(places, heights, tops):
            axes.annotate(_few(height), (at, top), (0, 2.5), textcoords="offset points",
                          ha="center", va="bottom", fontsize=7)
    longest = max(map(len, study.groups))
    long = longest > 9 and longest * len(study.groups) > 30  # characters that fit side by side
    labels = [chart_label(group).replace("\n", " ") for group in study.groups]  # lines of slanted labels would overlap
    axes.set_xticks(range(len(study.groups)), labels,
                    **({"rotation": 20, "ha": "right", "rotation_mode": "anchor"} if long else {}))
    axes.tick_params(axis="x", length=0)
    axes.set_xlim(-0.55, len(study.groups) - 0.45)
    axes.set_ylim(0, most * 1.12 or 1)
    axes.locator_params(axis="y", nbins=6)
    axes.set_ylabel({"s": "seconds", "min": "minutes", "h": "hours"}.get(unit.name, unit.name))
    grid(axes, "y")
    if legend and any(study.series):
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncol=count, borderaxespad=0.2)
    return whiskers


def _few(value: float) -> str:
    """Return a number with about three digits."""
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f}"


def _said(study: Study, names: Sequence[str], queue: str | None) -> str:
    parts = []
    for name in names:
        for one in study.scenarios:
            mean = study.mean(one.name, name, queue)
            if mean is not None:
                unit = FIGURES[name].unit
                value = time_text(mean.mean) if unit == "s" else f"{short(mean.mean)} {unit}"
                parts.append(f"{FIGURES[name].title} {one.label or one.name} {value}".strip())
    return "; ".join(parts)


# -------------------------------------------------------------------------------- distributions


def distributions(study: Study) -> Iterator[Picture]:
    """Yield the distributions of waiting time and bounded slowdown over the jobs; with more than CURVES scenarios,
    one picture per series."""
    parts = {"": list(study.scenarios)}
    if len(study.scenarios) > MAX_CURVES and len(study.series) > 1:
        parts = {series: [one for one in study.scenarios if one.series == series]
                 for series in study.series}
    for queue in study.averaged_queues:
        for series, scenarios in parts.items():
            here = [one for one in scenarios if study.of(one.name, queue)]
            if here:
                yield _distribution(study, here, series, queue, "waiting", "waiting time [s]", 0.0)
                yield _distribution(study, here, series, queue, "slowdown",
                                    f"bounded slowdown ({study.runs[0].threshold:g} s)", 1.0)


def _distribution(study: Study, scenarios: Sequence[ReportScenario], series: str, queue: str | None,
                  name: str, label: str, least: float) -> Picture:
    threshold = study.runs[0].threshold

    def value(jobs: JobArrays) -> Any:
        return jobs.wait if name == "waiting" else jobs.bounded_slowdown(threshold)

    with plot_style() as plots:
        rows = math.ceil(len(scenarios) / 2)
        figure, axes = plots.subplots(figsize=(4.6, 2.9 + 0.16 * rows), layout="constrained")
        curves = [(one, pooled(study, one.name, value, queue)) for one in scenarios]
        most = max(values[-1] for _, values in curves)
        # Most waits are short and a few long: use a logarithmic axis if a linear one would hide the short ones.
        spread = sorted(number for _, values in curves for number in values)
        wide = most > 12 * max(spread[len(spread) // 2], 1.0) and most > 20
        right = max(most * (1.25 if wide else 1.04), 1.5 * least) or 1.0
        for one, values in curves:
            times, shares = steps(values)
            group = study.groups.index(one.group)
            style = study.series.index(one.series) if len(study.series) > 1 and not series \
                else group // len(GROUPS)
            axes.step([least, *times, right], [0, *shares, 1], where="post", linewidth=1.5,
                      color=GROUPS[group % len(GROUPS)], linestyle=STYLES[style % len(STYLES)],
                      label=chart_label((one.group if series else one.label) or one.name))
        if wide:
            axes.set_xscale("symlog", linthresh=1, linscale=0.5)
            axes.minorticks_off()
            if name == "waiting":
                ticks = [(at, word) for at, word in TICKS if at <= right]
                label = "waiting time, logarithmic from 1 s on"
            else:
                ticks = [(at, f"{at}") for at in (1, 10, 100, 1000, 10000, 100000) if at <= right]
                label += ", logarithmic"
            axes.set_xticks([at for at, _ in ticks], [word for _, word in ticks],
                            rotation=30 if len(ticks) > 6 else 0)
        axes.set_xlim(least, right)
        axes.set_ylim(0, 1.02)
        axes.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", "25 %", "50 %", "75 %", "100 %"])
        axes.set_xlabel(label)
        axes.set_ylabel("share of jobs with this value or less")
        grid(axes, "both")
        # Above the panel, where it hides no curve.
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncol=2, borderaxespad=0.2,
                    handlelength=2.6, columnspacing=1.2)
    title = "Waiting times" if name == "waiting" else "Bounded slowdown"
    text = "; ".join(f"{one.label or one.name}: half of the jobs at most "
                     f"{short(values[(len(values) - 1) // 2])}, the largest {short(values[-1])}"
                     for one, values in curves)
    which = "".join(f"-{file_name_part(word)}" for word in (series, queue) if word)
    return Picture(f"distribution-{name}{which}",
                   f"{title}, all jobs{f' under {series}' if series else ''}"
                   f"{f' on {queue}' if queue else ''}", text, figure)
