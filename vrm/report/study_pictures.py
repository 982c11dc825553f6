"""The pictures of a study, by matplotlib: averages, distributions, and what ran where and when.

Colours are those of Okabe and Ito ("Color universal design", 2008), which any colour vision tells
apart; pairs that matter also differ in line style, hatching or place.
"""

from __future__ import annotations

import io
import math
import re
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

from vrm.model.job import application_kind
from vrm.report.compare import TICKS, figure as short, steps
from vrm.report.density import density, draw as draw_density, natural
from vrm.report.holdings import GPU, parse_devices
from vrm.report.plotting import label_of, pyplot
from vrm.report.study import FIGURES, MAIN, RanJob, Run, Scenario, Study, pooled
from vrm.results.places import parse_cores
from vrm.results.names import Unit, time_text, unit_of
from vrm.results.statistics import CONFIDENCE
from vrm.results.summary import Columns, Moments

BLUE, ORANGE, GREEN, RED, SKY, PINK, YELLOW, GREY = (
    "#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#F0E442", "#999999")
SERIES = (BLUE, ORANGE, GREEN, PINK, SKY, RED)
GROUPS = (BLUE, RED, GREEN, PINK, ORANGE, SKY)
APPS = (BLUE, ORANGE, GREEN, YELLOW, SKY, RED, PINK, GREY)
STYLES = ("-", (0, (4, 1.5)), (0, (1, 1)), (0, (6, 1, 1, 1)))
PALE = 0.45  # share of its colour, the rest white, of a job that has its nodes for itself
CURVES = 10  # that a picture of distributions holds
MANY = 1500  # jobs from which on a picture shows density (as PNG), for boxes would be too many
EDGED = 1.5  # points that the box of a job measures from which on it has an edge

# In a page, ink and paper follow the reader's choice of light or dark.
INK, PAPER = "#1a1b1c", "#fdfefd"


class PictureError(Exception):
    """A picture cannot be drawn; the text says why and what to do."""


@dataclass(frozen=True)
class Picture:
    """A picture: the name of its file, what it shows (also for those who cannot see it), and the
    drawn figure of matplotlib; `heavy` ones are better as PNG."""

    name: str
    title: str
    text: str
    figure: Any
    heavy: bool = False

    @property
    def inches(self) -> float:
        """Its width."""
        return float(self.figure.get_size_inches()[0])

    def save(self, path: Path) -> None:
        """Write it as PNG or SVG, as the name ends. Raises PictureError."""
        kept = {"Date": None} if path.suffix == ".svg" else {}
        try:
            with _style():
                self.figure.savefig(path, dpi=150, metadata=kept, facecolor="white")
        except OSError as error:
            raise PictureError(f"cannot write {path}: {error.strerror}") from error

    def svg(self) -> str:
        """As an element of a page: names in it are its own, ink and paper those of the page, and
        text is text."""
        out = io.StringIO()
        with _style({"svg.fonttype": "none"}):
            self._lay_out()
            self.figure.savefig(out, format="svg", metadata={"Date": None}, transparent=True)
        found = out.getvalue()
        found = found[found.index("<svg"):]
        found = re.sub(r"<metadata>.*?</metadata>", "", found, flags=re.S)
        found = re.sub(r"<!--.*?-->", "", found, flags=re.S)
        found = re.sub(r' (xmlns:xlink|version)="[^"]*"', "", found)
        found = found.replace("xlink:href", "href")
        used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', found))
        found = re.sub(r' id="([^"]*)"', lambda match: f' id="{self.name}-{match.group(1)}"'
                       if match.group(1) in used else "", found)
        found = re.sub(r'(href="#|url\(#)', rf"\g<1>{self.name}-", found)
        found = re.sub(r"font: ([^;']*?)([0-9.]+px) [^;\"]+", r"font: \1\2 var(--font)", found)
        found = re.sub(r"font-family: [^;\"]+", "font-family: var(--font)", found)
        found = re.sub(r' transform="rotate\(-0 [^"]*"', "", found)
        found = re.sub(r"\d+\.\d{3,}", lambda match: f"{float(match.group()):.2f}", found)
        found = re.sub(r"\s*\n\s*", "\n", found)
        found = found.replace(INK, "currentColor").replace(PAPER, "var(--paper)")
        head, _, rest = found.partition(">")
        head = re.sub(r' (width|height)="[^"]*"', "", head)
        return f'{head} aria-hidden="true" focusable="false">{rest}'

    def png(self) -> bytes:
        """As the content of a PNG file."""
        out = io.BytesIO()
        with _style():
            self._lay_out()
            self.figure.savefig(out, format="png", dpi=130, facecolor="white")
        return out.getvalue()

    def _lay_out(self) -> None:
        """Give all parts their places; else saving draws everything twice, once for that alone."""
        engine = self.figure.get_layout_engine()
        if engine is not None:
            engine.execute(self.figure)
            self.figure.set_layout_engine("none")

    def close(self) -> None:
        """Give its memory back."""
        _pyplot().close(self.figure)


def _pyplot() -> Any:
    return pyplot(PictureError, "ask for text, csv, markdown or latex")


@contextmanager
def _style(more: Optional[Dict[str, Any]] = None) -> Iterator[Any]:
    plots = _pyplot()
    ink = dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color",
                         "ytick.color"), INK)
    with plots.rc_context({"font.size": 9, "axes.titlesize": 9.5, "axes.titlelocation": "left",
                           "axes.spines.top": False, "axes.spines.right": False,
                           "axes.linewidth": 0.8, "xtick.labelsize": 8, "ytick.labelsize": 8,
                           "legend.fontsize": 8, "legend.frameon": False, "svg.hashsalt": "vrm",
                           "axes.axisbelow": True, "hatch.linewidth": 0.6, **ink, **(more or {})}):
        yield plots


def _grid(axes: Any, axis: str) -> None:
    axes.grid(axis=axis, color=INK, alpha=0.15, linewidth=0.7)


# ------------------------------------------------------------------------------------- averages


def averages(study: Study, queue: Optional[str] = None) -> Picture:
    """Grouped bars of waiting, running and turnaround side by side."""
    with _style() as plots:
        # Three abreast, or three below each other where there are many bars.
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
    return Picture("averages" if queue is None else f"averages-{_word(queue)}",
                   f"Average times{where}", _said(study, MAIN, queue), figure)


def average(study: Study, name: str, queue: Optional[str] = None) -> Picture:
    """Grouped bars of one figure, narrow enough for a phone."""
    with _style() as plots:
        figure, axes = plots.subplots(figsize=(_bars_width(study), 2.9), layout="constrained")
        _bars(axes, study, name, queue)
    title = FIGURES[name].title.capitalize() + (" time" if name in MAIN else "")
    return Picture(f"average-{name}{f'-{_word(queue)}' if queue else ''}",
                   f"{title}{f' on {queue}' if queue else ''}", _said(study, [name], queue), figure)


def _bars_width(study: Study) -> float:
    return max(3.9, 0.8 + 0.42 * len(study.groups) * len(study.series))


def _bars(axes: Any, study: Study, name: str, queue: Optional[str], legend: bool = True) -> bool:
    """Draw the bars; whether any has a whisker."""
    count = len(study.series)
    width = 0.8 / count
    whiskers = False
    unit = Unit(FIGURES[name].unit, 1.0)
    if unit.name == "s":
        means = [study.mean(one.name, name, queue) for one in study.scenarios]
        unit = unit_of(mean.mean for mean in means if mean is not None)
    most: float = 0.0
    for index, series in enumerate(study.series):
        places: List[float] = []
        heights: List[float] = []
        errors: List[float] = []
        for place, group in enumerate(study.groups):
            scenario = study.scenario(group, series)
            mean = study.mean(scenario.name, name, queue) if scenario else None
            if mean is None:
                continue
            places.append(place + (index - (count - 1) / 2) * width)
            heights.append(mean.mean / unit.seconds)
            errors.append((mean.half or 0.0) / unit.seconds)
        axes.bar(places, heights, width * 0.92, color=SERIES[index % len(SERIES)],
                 label=label_of(series), linewidth=0)
        if any(errors):
            whiskers = True
            axes.errorbar(places, heights, errors, fmt="none", ecolor=INK, elinewidth=0.9,
                          capsize=2.5, capthick=0.9)
        tops = [height + error for height, error in zip(heights, errors)]
        most = max([most, *tops])
        for at, height, top in zip(places, heights, tops):
            axes.annotate(_few(height), (at, top), (0, 2.5), textcoords="offset points",
                          ha="center", va="bottom", fontsize=7)
    long = max(map(len, study.groups)) > 9
    axes.set_xticks(range(len(study.groups)), list(map(label_of, study.groups)),
                    **({"rotation": 20, "ha": "right", "rotation_mode": "anchor"} if long else {}))
    axes.tick_params(axis="x", length=0)
    axes.set_xlim(-0.55, len(study.groups) - 0.45)
    axes.set_ylim(0, most * 1.12 or 1)
    axes.locator_params(axis="y", nbins=6)
    axes.set_ylabel({"s": "seconds", "min": "minutes", "h": "hours"}.get(unit.name, unit.name))
    _grid(axes, "y")
    if legend and any(study.series):
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncol=count, borderaxespad=0.2)
    return whiskers


def _few(value: float) -> str:
    """A number with three digits."""
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f}"


def _said(study: Study, names: Sequence[str], queue: Optional[str]) -> str:
    parts = []
    for name in names:
        for one in study.scenarios:
            mean = study.mean(one.name, name, queue)
            if mean is not None:
                unit = FIGURES[name].unit
                value = time_text(mean.mean) if unit == "s" else f"{short(mean.mean)} {unit}"
                parts.append(f"{FIGURES[name].title} {one.label or one.name} {value}".strip())
    return "; ".join(parts)


def _word(text: str) -> str:
    return re.sub(r"[^\w.+-]+", "_", text) or "run"


# -------------------------------------------------------------------------------- distributions


def distributions(study: Study) -> Iterator[Picture]:
    """The shares of jobs that waited, or were slowed down, at most so much; more curves than can
    be told apart are drawn series by series."""
    parts = {"": list(study.scenarios)}
    if len(study.scenarios) > CURVES and len(study.series) > 1:
        parts = {series: [one for one in study.scenarios if one.series == series]
                 for series in study.series}
    for queue in study.averaged:
        for series, scenarios in parts.items():
            here = [one for one in scenarios if study.of(one.name, queue)]
            if here:
                yield _distribution(study, here, series, queue, "waiting", "waiting time [s]", 0.0)
                yield _distribution(study, here, series, queue, "slowdown",
                                    f"bounded slowdown ({study.runs[0].threshold:g} s)", 1.0)


def _distribution(study: Study, scenarios: Sequence[Scenario], series: str, queue: Optional[str],
                  name: str, label: str, least: float) -> Picture:
    threshold = study.runs[0].threshold

    def value(jobs: Columns) -> Any:
        return jobs.wait if name == "waiting" else jobs.bounded_slowdown(threshold)

    with _style() as plots:
        rows = math.ceil(len(scenarios) / 2)
        figure, axes = plots.subplots(figsize=(4.6, 2.9 + 0.16 * rows), layout="constrained")
        curves = [(one, pooled(study, one.name, value, queue)) for one in scenarios]
        most = max(values[-1] for _, values in curves)
        # Most waits are short and a few long: logarithmic where a linear axis would hide them.
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
                      label=label_of((one.group if series else one.label) or one.name))
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
        axes.set_ylabel("share of jobs with at most so much")
        _grid(axes, "both")
        # Above the panel, where no curve can be.
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncol=2, borderaxespad=0.2,
                    handlelength=2.6, columnspacing=1.2)
    title = "Waiting times" if name == "waiting" else "Bounded slowdown"
    text = "; ".join(f"{one.label or one.name}: half of the jobs at most "
                     f"{short(values[(len(values) - 1) // 2])}, the largest {short(values[-1])}"
                     for one, values in curves)
    which = "".join(f"-{_word(word)}" for word in (series, queue) if word)
    return Picture(f"distribution-{name}{which}",
                   f"{title}, all jobs{f' under {series}' if series else ''}"
                   f"{f' on {queue}' if queue else ''}", text, figure)


# ------------------------------------------------------------------------------------ over time


Window = Tuple[float, float]  # seconds after the first submission


def timelines(study: Study, window: Optional[Window] = None) -> Iterator[Picture]:
    """For each scenario, its first run: what ran on which cores, how busy they were, and how many
    jobs waited. All have the same axis of time: the longest run, or the window.

    Raises PictureError where no run reaches into the window.
    """
    chosen = [study.of(one.name)[0] for one in study.scenarios]
    longest = max(run.span[1] - run.span[0] for run in chosen)
    begin, end = window or (0.0, longest)
    end = min(end, longest)
    if begin >= end:
        raise PictureError(f"the longest run ends {time_text(longest)} after its first submission; "
                           "choose a window (--from, --to) that begins before that")
    for run in chosen:
        yield timeline(study, run, (begin, end))


def timeline(study: Study, run: Run, window: Optional[Window] = None) -> Picture:
    """One run over time, or within a window. Where there are more jobs than boxes can show, the
    nodes are drawn as dark as they were busy."""
    start, last = run.span
    begin, end = window or (0.0, last - start)
    first, length = start + begin, end - begin
    jobs = run.table.ran
    shown = (jobs.end > first) & (jobs.start < first + length)
    count = int(shown.sum())
    heavy = count > MANY
    bars: List[Bar] = []
    names: List[Tuple[float, str]] = []
    lines, busy = 0, None
    if heavy:
        busy = density(run.table.places.of(shown), jobs.start, jobs.end, run.processors, first,
                       length)
        lines = busy.lines if busy is not None else 0
    else:
        bars, names, lines = _places(run, [
            row for row in run.jobs if row.end > first and row.start < first + length])
    with _style() as plots:
        height = min(5.5, max(2.6, (0.03 if heavy else 0.08) * lines)) if lines > 8 or heavy \
            else 0.32 * lines
        panels = [height, 0.9, 0.9] if lines else [0.9, 0.9]
        figure, axes = plots.subplots(
            len(panels), 1, figsize=(8.2, sum(panels) + 1.2 + (0.45 if lines else 0)), sharex=True,
            layout="constrained", height_ratios=panels)
        if busy is not None:
            draw_density(axes[0], busy, length, BLUE, PAPER)
        elif bars:
            _gantt(axes[0], study, run, bars, names, lines, first, length, height)
        _usage(axes[-2], axes[-1], run, first, length)
        axes[-1].set_xlim(0, length)
        _clock(axes[-1], length, begin)
    scenario = next(one for one in study.scenarios if one.name == run.scenario)
    where = ", ".join(filter(None, [run.queue, f"repetition {run.repetition}"
                                    if study.repetitions > 1 else ""]))
    label = scenario.label or scenario.name
    shared = sum(1 for row in run.jobs if run.companions.get(row.id)) if run.companions else 0
    text = f"{run.ran} jobs in {time_text(last - start)}, {shared} of them with another " \
           f"one on their nodes for some time"
    if count < run.ran:
        text += f"; {count} of the jobs ran in the time that is shown"
    name = _word(run.directory.name if study.repetitions > 1 else run.scenario)
    return Picture(f"timeline-{name}",
                   f"{label}{f' ({where})' if where else ''}", text, figure, heavy)


def _clock(axes: Any, length: float, begin: float = 0.0) -> None:
    """Ticks in the unit that suits the length (s) of the axis, which begins so late (s)."""
    from matplotlib.ticker import MaxNLocator
    unit, name = next((seconds, name) for seconds, name in (
        (86400.0, "days"), (3600.0, "hours"), (1.0, "seconds"))
        if length > 4 * seconds or name == "seconds")
    ticks = [tick for tick in MaxNLocator(8, steps=[1, 2, 5, 10]).tick_values(
        begin / unit, (begin + length) / unit) if 0 <= tick * unit - begin <= length]
    axes.set_xticks([tick * unit - begin for tick in ticks], [f"{tick:g}" for tick in ticks])
    axes.set_xlabel(f"{name} since the first submission")


Bar = Tuple[RanJob, int, int]  # a job, its lowest line of the picture and how many it takes


def _places(run: Run, jobs: Sequence[RanJob]
            ) -> Tuple[List[Bar], List[Tuple[float, str]], int]:
    """The bars of some jobs of a run, the names of its lines with their places, and how many lines there are:
    a line is a core, or a node where jobs.csv has no cores; below the cores of a node are its GPUs."""
    sockets: Dict[str, Dict[int, int]] = {}
    places = {row.id: parse_cores(row.cores) for row in jobs if row.cores}
    for placed in places.values():
        for node, ranges in placed:
            sizes = sockets.setdefault(node, {})
            for socket, _, last in ranges:
                sizes[socket] = max(sizes.get(socket, 0), last + 1)
    if not sockets:
        return [], [], 0
    # A socket that was never full is as large as the others.
    size = max(max(sizes.values()) for sizes in sockets.values())
    most = 1 + max(max(sizes) for sizes in sockets.values())
    if run.processors and run.processors % (len(sockets) * most) == 0:
        size = max(size, run.processors // (len(sockets) * most))
    cores = most * size
    devices = {row.id: parse_devices(row.devices) for row in jobs if row.devices}
    gpus = max((index + 1 for here in devices.values() for held in here.values()
                for index in held.get(GPU, ())), default=0)
    every = cores + gpus
    nodes = sorted(sockets, key=natural)
    base = {node: number * every for number, node in enumerate(nodes)}
    order = _lines(most, size, len(nodes) > 1)
    bars: List[Bar] = []
    for row in jobs:
        taken = sorted(base[node] + order[socket, core] for node, ranges in places.get(row.id, ())
                       for socket, low, high in ranges for core in range(low, high + 1))
        taken += sorted(base[node] + cores + index for node, held in devices.get(row.id, {}).items()
                        if node in base for index in held.get(GPU, ()))
        for line in taken:
            # One box for what touches: on a machine of many nodes there are fewer of them.
            if bars and bars[-1][0] is row and bars[-1][1] + bars[-1][2] == line \
                    and (line % every not in (0, cores) or len(nodes) > 16):
                bars[-1] = (row, bars[-1][1], bars[-1][2] + 1)
            else:
                bars.append((row, line, 1))
    if len(nodes) == 1 and every <= 16:
        names = [(line + 0.5, f"core {line}" if line < cores else f"GPU {line - cores}")
                 for line in range(every)]
    else:
        step = math.ceil(len(nodes) / 16)
        names = [(base[node] + every / 2, node) for node in nodes[::step]]
    return bars, names, every * len(nodes)


def _lines(sockets: int, size: int, halves: bool) -> Dict[Tuple[int, int], int]:
    """The line of each socket and core of a node. With `halves` the first halves of all sockets
    come first, so that two jobs that share the sockets are two boxes and not a comb."""
    half = max(1, size // 2)
    cores = sorted(((socket, core) for socket in range(sockets) for core in range(size)),
                   key=lambda place: (place[1] // half if halves else 0, place))
    return {place: line for line, place in enumerate(cores)}


def _gantt(axes: Any, study: Study, run: Run, bars: Sequence[Bar],
           names: Sequence[Tuple[float, str]], lines: int, first: float, length: float,
           inches: float) -> None:
    from matplotlib.patches import Patch
    kinds = _coloured(study)
    whole: Dict[Tuple[str, bool], List[Box]] = {}
    plain = not any(other.companions for other in study.runs)  # no need to tell apart then
    for row, line, count in bars:
        colour = _colour(kinds, row)
        for begin, end, together in _stretches(run, row):
            together = together or plain
            whole.setdefault((colour, together), []).append(
                (begin - first, line, end - begin, count))
    for (colour, together), boxes in whole.items():
        _boxes(axes, boxes, facecolor=colour if together else _pale(colour), linewidth=0)
    wide, tall = 500 / length if length else 0, 72 * inches / lines  # points of 1 s, of a line
    _boxes(axes, [(row.start - first, line, row.end - row.start, count)
                  for row, line, count in bars  # a narrower one would be all edge
                  if min((row.end - row.start) * wide, count * tall) > EDGED],
           facecolor="none", edgecolor=PAPER, linewidth=0.7 if len(bars) < 400 else 0.3)
    _label(axes, run, bars, kinds, (first, first + length), wide, tall, plain)
    if not names[0][1].startswith("core ") and len(names) > 1:
        spaced = names[1][0] - names[0][0]
        for line in range(1, len(names)):
            axes.axhline(line * spaced, color=INK, alpha=0.5, linewidth=0.6)
    axes.set_ylim(lines, 0)
    axes.set_yticks([place for place, _ in names], [label_of(name) for _, name in names])
    if not names[0][1].startswith("core "):
        axes.set_ylabel("nodes, their cores" + " and GPUs" * any(row.devices for row, _, _ in bars))
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", length=0)
    shown = run.table.kinds
    keys: List[Any] = [Patch(color=kinds[kind], label=label_of(kind))
                       for kind in kinds if kind in shown]
    if any(kind not in kinds for kind in shown):
        keys.append(Patch(color=GREY, label="others"))
    if any(other.companions for other in study.runs):
        axes.set_xlabel("full colour: with another job on its node; pale: alone there",
                        fontsize=7.5, loc="right")
    if len(kinds) == 1:
        axes.set_title("each colour is used for many jobs: it only separates neighbours",
                       fontsize=7.5)
        return
    axes.legend(handles=keys, loc="lower left", bbox_to_anchor=(0, 1), ncol=min(len(keys), 10),
                borderaxespad=0.2, handlelength=1, handleheight=0.9, columnspacing=1.0,
                handletextpad=0.5)


def _pale(colour: str) -> str:
    parts = [int(colour[at:at + 2], 16) for at in (1, 3, 5)]
    return "#" + "".join(f"{round(255 - PALE * (255 - part)):02x}" for part in parts)


Box = Tuple[float, float, float, float]  # left, lowest line, width, lines


def _boxes(axes: Any, boxes: Sequence[Box], **look: Any) -> None:
    """Draw many boxes of one look as one path, which keeps files small."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path as Line
    if not boxes:
        return
    points, codes = [], []
    for left, low, width, count in boxes:
        right, high = left + width, low + count
        points += [(left, low), (right, low), (right, high), (left, high), (left, low)]
        codes += [Line.MOVETO, Line.LINETO, Line.LINETO, Line.LINETO, Line.CLOSEPOLY]
    # As an artist: the limits of the axes are set, and need not be found from all the points.
    boxes_path = PathPatch(Line(points, codes), **look)
    boxes_path.set_in_layout(False)
    axes.add_artist(boxes_path)


def _label(axes: Any, run: Run, bars: Sequence[Bar], kinds: Dict[str, str],
           shown: Tuple[float, float], points: float, tall: float, plain: bool) -> None:
    """Write on each job, where there is room, its number and program, once. A second is `points`
    wide and a line `tall` points high; with `plain` all jobs have their full colours."""
    widest: Dict[int, Bar] = {}
    for bar in bars:
        if bar[0].id not in widest or bar[2] > widest[bar[0].id][2]:
            widest[bar[0].id] = bar
    for row, line, count in widest.values():
        if tall * count < 7.5:
            continue
        program = row.app.removesuffix(".x")
        begin, end, together = max(_stretches(run, row), key=lambda one: one[1] - one[0],
                                   default=(0.0, 0.0, False))
        begin, end = max(begin, shown[0]), min(end, shown[1])
        for words in (f"{row.id} {program}", str(row.id)):
            if (end - begin) * points > 4.1 * len(words) + 2:
                colour = _colour(kinds, row)
                dark = colour in (BLUE, GREEN, RED) and (together or plain)
                axes.text((begin + end) / 2 - shown[0], line + count / 2, label_of(words),
                          ha="center", va="center", fontsize=6.5, clip_on=True,
                          color="white" if dark else "black")
                break


def _coloured(study: Study) -> Dict[str, str]:
    """The colours of applications: one each for the eight that ran longest."""
    kinds = study.kinds
    if len(kinds) > len(APPS):
        seconds: Dict[str, float] = {}
        for run in study.runs:
            for row in run.jobs:
                kind = application_kind(row.app)
                seconds[kind] = seconds.get(kind, 0.0) + row.processors * (row.end - row.start)
        kinds = sorted(sorted(kinds, key=lambda kind: -seconds[kind])[:len(APPS) - 1])
    return dict(zip(kinds, APPS))


def _colour(kinds: Dict[str, str], row: RanJob) -> str:
    """The colour of a job: of its application, or where all are of one kind, of its number."""
    if len(kinds) == 1:
        return APPS[row.id % len(APPS)]
    return kinds.get(application_kind(row.app), GREY)


def _stretches(run: Run, row: RanJob) -> Iterator[Tuple[float, float, bool]]:
    """The parts of a job's time, and whether another job was on one of its nodes in each."""
    begin = row.start
    for start, end in run.shared.get(row.id, ()):
        if start > begin:
            yield begin, start, False
        yield start, end, True
        begin = end
    if row.end > begin:
        yield begin, row.end, False


def _usage(busy: Any, queue: Any, run: Run, first: float, length: float) -> None:
    moments = Moments.of(run.table.ran)
    whole = 100 / run.processors if run.processors else 1.0
    times, used = _thinned(moments.times - first, moments.busy, length)
    busy.fill_between(times, [value * whole for value in used], step="post", color=SKY, linewidth=0)
    if run.processors:
        busy.set_ylim(0, 105)
        busy.set_yticks([0, 50, 100])
        busy.set_ylabel("cores with\nranks [%]")
    else:
        busy.set_ylim(bottom=0)
        busy.set_ylabel("cores\nin use")
    times, waiting_jobs = _thinned(moments.times - first, moments.queued, length)
    queue.fill_between(times, waiting_jobs, step="post", color=PINK, linewidth=0)
    queue.set_ylim(0, max(1, *waiting_jobs, 1) * 1.08)
    queue.locator_params(axis="y", nbins=4, integer=True)
    queue.set_ylabel("jobs\nwaiting")
    for axes in (busy, queue):
        _grid(axes, "both")


SHOWN = 800  # stretches of time that a curve has room for


def _thinned(times: Any, values: Any, length: float) -> Tuple[List[float], List[float]]:
    """Times (s) and the values from each on, over the length. Where they are more than can be
    seen, the mean over each stretch of time."""
    import numpy as np
    if len(times) <= SHOWN or length <= 0:
        return times.tolist(), values.tolist()
    edges = np.linspace(0, length, SHOWN + 1)
    passed = np.concatenate([[0], np.cumsum(values[:-1] * np.diff(times))])  # its integral
    means = np.diff(np.interp(edges, times, passed)) / np.diff(edges)
    return edges.tolist(), [*means.tolist(), 0.0]
