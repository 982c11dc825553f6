"""Timelines of runs: which job used which cores at what time."""

from __future__ import annotations

import math
from typing import Any, NamedTuple
from collections.abc import Iterator, Sequence

from vrm.model.job import application_kind
from vrm.ext.study.report.node_density import Places, density, draw as draw_density, natural
from vrm.report.node_resources import GPU, parse_devices
from vrm.ext.study.report.pictures import (APPS, BLUE, GREEN, GREY, INK, PAPER, PINK, RED, SKY, Picture,
                                 file_name_part, grid, plot_style)
from vrm.ext.study.report.job_table import programs_of
from vrm.ext.study.report.plotting import PictureError, chart_label
from vrm.ext.study.report.study import RanJob, StudyRun, Study
from vrm.results.energy import power_over_time
from vrm.results.names import time_text
from vrm.results import shares
from vrm.results.placement_text import parse_cores
from vrm.results.summary import Moments

PALE = 0.45  # share of the colour (the rest is white) for a job that shares no node
MANY = 1500  # with more jobs than this a picture shows the density (as PNG) instead of boxes
MIN_EDGED_SIZE = 1.5  # a job's box has an edge if it is larger than this (points)


Window = tuple[float, float]  # seconds after the first submission


def timelines(study: Study, window: Window | None = None) -> Iterator[Picture]:
    """For the first run of each scenario, draw which jobs used which cores, the utilisation, and the number of
    waiting jobs. All have the same time axis: the longest run, or the window.

    Raises PictureError if no run reaches into the window.
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


def timeline(study: Study, run: StudyRun, window: Window | None = None) -> Picture:
    """Draw one run over time, or within a window. With more than MANY jobs, the density of each node is drawn
    instead of boxes."""
    start, last = run.span
    begin, end = window or (0.0, last - start)
    first, length = start + begin, end - begin
    jobs = run.table.ran
    shown = (jobs.end > first) & (jobs.start < first + length)
    count = int(shown.sum())
    heavy = count > MANY
    bars: list[Bar] = []
    names: list[tuple[float, str]] = []
    lines, busy = 0, None
    if heavy:
        begins, ends, _, places = _held(run)
        busy = density(places.of((ends > first) & (begins < first + length)), begins, ends, run.processors,
                       first, length)
        lines = busy.lines if busy is not None else 0
    else:
        bars, names, lines = _places(run, [
            row for row in _parts(run) if row.end > first and row.start < first + length])
    with plot_style() as plots:
        height = min(5.5, max(2.6, (0.03 if heavy else 0.08) * lines)) if lines > 8 or heavy \
            else 0.32 * lines
        panels = [height] * bool(lines) + [0.9] * (3 if run.drawn else 2)
        figure, axes = plots.subplots(
            len(panels), 1, figsize=(8.2, sum(panels) + 1.2 + (0.45 if lines else 0)), sharex=True,
            layout="constrained", height_ratios=panels)
        if busy is not None:
            draw_density(axes[0], busy, length, BLUE, PAPER)
        elif bars:
            _gantt(axes[0], study, run, bars, names, lines, first, length, height)
        busy_at, queued_at = axes[-3:-1] if run.drawn else axes[-2:]
        _usage(busy_at, queued_at, run, first, length)
        if run.drawn:
            _power(axes[-1], run, first, length)
        axes[-1].set_xlim(0, length)
        _clock(axes[-1], length, begin)
    scenario = next(one for one in study.scenarios if one.name == run.scenario)
    where = ", ".join(filter(None, [run.queue, f"repetition {run.repetition}"
                                    if study.repetitions > 1 else ""]))
    label = scenario.label or scenario.name
    shared = sum(1 for row in run.jobs if run.co_running_programs.get(row.id)) if run.co_running_programs else 0
    text = f"{run.ran} jobs in {time_text(last - start)}, {shared} of them with another " \
           f"one on their nodes for some time"
    if count < run.ran:
        text += f"; {count} of the jobs ran in the time that is shown"
    name = file_name_part(run.directory.name if study.repetitions > 1 else run.scenario)
    return Picture(f"timeline-{name}",
                   f"{label}{f' ({where})' if where else ''}", text, figure, heavy)


def _clock(axes: Any, length: float, begin: float = 0.0) -> None:
    """Set ticks in the unit that suits the length (s) of the axis; the axis begins at `begin` (s)."""
    from matplotlib.ticker import MaxNLocator
    unit, name = next((seconds, name) for seconds, name in (
        (86400.0, "days"), (3600.0, "hours"), (1.0, "seconds"))
        if length > 4 * seconds or name == "seconds")
    ticks = [tick for tick in MaxNLocator(8, steps=[1, 2, 5, 10]).tick_values(
        begin / unit, (begin + length) / unit) if 0 <= tick * unit - begin <= length]
    axes.set_xticks([tick * unit - begin for tick in ticks], [f"{tick:g}" for tick in ticks])
    axes.set_xlabel(f"{name} since the first submission")


class _JobPart:
    """A job during an interval in which its cores were constant; or one program of a coupled job."""

    def __init__(self, row: RanJob, begin: float, end: float, cores: str, app: str = "") -> None:
        self._row = row
        self.start, self.end, self.cores, self.app = begin, end, cores, app or row.app

    def __getattr__(self, name: str) -> Any:
        return getattr(self._row, name)


class _HeldIntervals(NamedTuple):
    """Intervals (arrays of seconds) in which jobs held cores, the number of the cores, and their places."""

    begins: Any
    ends: Any
    cores: Any
    places: Places


def _held(run: StudyRun) -> _HeldIntervals:
    """Return the held cores of a run; a core that one job lent to another counts for the borrower."""
    ran = run.table.ran
    if not _lends(run):
        return _HeldIntervals(ran.start, ran.end, ran.cores, run.table.places)
    import numpy as np
    parts = list(_parts(run))
    cores = [sum(last - first + 1 for _, ranges in parse_cores(part.cores) for _, first, last in ranges)
             if isinstance(part, _JobPart) else part.processors for part in parts]
    return _HeldIntervals(np.array([part.start for part in parts], float), np.array([part.end for part in parts],
                                                                                    float),
                          np.array(cores, np.int64), Places.read([part.cores for part in parts]))


def _lends(run: StudyRun) -> list[shares.HeldCores]:
    try:
        return shares.read(run.directory / "shares.csv")
    except (OSError, ValueError):
        return []


def _parts(run: StudyRun) -> Iterator[RanJob]:
    """Yield the jobs of a run. A job that lent or borrowed cores yields one part per interval with constant cores,
    a coupled job one part per program."""
    parts: dict[int, dict[tuple[float, float], list[str]]] = {}
    for each in _lends(run):
        parts.setdefault(each.job, {}).setdefault((each.begin, each.end), []).append(
            f"{each.node}:{each.cores}")
    for row in run.jobs:
        if row.id not in parts:
            yield from _programs(row) if row.coupled and row.cores else (row,)
        for (begin, end), places in parts.get(row.id, {}).items():
            part: Any = _JobPart(row, begin, end, ";".join(places))
            if begin < row.end and end > row.start:  # not of an earlier run of the job
                yield part


def _programs(row: RanJob) -> Iterator[RanJob]:
    """Yield the programs of a coupled job; its cores are listed program after program."""
    cores = [f"{node}:{socket}/{core}" for node, ranges in parse_cores(row.cores)
             for socket, first, last in ranges for core in range(first, last + 1)]
    at = 0
    for each in programs_of(row.coupled):
        program: Any = _JobPart(row, row.start, row.end, ";".join(cores[at:at + each.request.cores]), each.app)
        at += each.request.cores
        yield program


Bar = tuple[RanJob, int, int]  # a job, its first line in the picture, and its number of lines


def _places(run: StudyRun, jobs: Sequence[RanJob]
            ) -> tuple[list[Bar], list[tuple[float, str]], int]:
    """Return the bars of some jobs of a run, the names of its lines with their positions, and the number of lines.
    A line is a core; the lines of a node's GPUs follow those of its cores. Empty if jobs.csv has no cores."""
    sockets: dict[str, dict[int, int]] = {}
    places = [parse_cores(row.cores) if row.cores else [] for row in jobs]
    for placed in places:
        for node, ranges in placed:
            sizes = sockets.setdefault(node, {})
            for socket, _, last in ranges:
                sizes[socket] = max(sizes.get(socket, 0), last + 1)
    if not sockets:
        return [], [], 0
    # Assume that all sockets have the same size, also those that were never full.
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
    bars: list[Bar] = []
    for row, placed in zip(jobs, places):
        taken = sorted(base[node] + order[socket, core] for node, ranges in placed
                       for socket, low, high in ranges for core in range(low, high + 1))
        taken += sorted(base[node] + cores + index for node, held in devices.get(row.id, {}).items()
                        if node in base for index in held.get(GPU, ()))
        for line in taken:
            # Merge adjacent lines into one box, also across nodes if there are many nodes: fewer boxes.
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


def _lines(sockets: int, size: int, halves: bool) -> dict[tuple[int, int], int]:
    """Return the line of each (socket, core) of a node. With `halves` the first halves of all sockets come first,
    so that two jobs that share the sockets are two boxes instead of stripes."""
    half = max(1, size // 2)
    cores = sorted(((socket, core) for socket in range(sockets) for core in range(size)),
                   key=lambda place: (place[1] // half if halves else 0, place))
    return {place: line for line, place in enumerate(cores)}


def _gantt(axes: Any, study: Study, run: StudyRun, bars: Sequence[Bar],
           names: Sequence[tuple[float, str]], lines: int, first: float, length: float,
           inches: float) -> None:
    from matplotlib.patches import Patch
    kinds = _application_colours(study)
    whole: dict[tuple[str, bool], list[Box]] = {}
    plain = not any(other.co_running_programs for other in study.runs)  # no job shares a node: full colours for all
    for row, line, count in bars:
        colour = _colour(kinds, row)
        for begin, end, together in _stretches(run, row):
            together = together or plain
            whole.setdefault((colour, together), []).append(
                (begin - first, line, end - begin, count))
    for (colour, together), boxes in whole.items():
        _boxes(axes, boxes, facecolor=colour if together else _pale(colour), linewidth=0)
    wide, tall = 500 / length if length else 0, 72 * inches / lines  # points per second, points per line
    _boxes(axes, [(row.start - first, line, row.end - row.start, count)
                  for row, line, count in bars  # a smaller box would show only its edge
                  if min((row.end - row.start) * wide, count * tall) > MIN_EDGED_SIZE],
           facecolor="none", edgecolor=PAPER, linewidth=0.7 if len(bars) < 400 else 0.3)
    _label(axes, run, bars, kinds, (first, first + length), wide, tall, plain)
    if not names[0][1].startswith("core ") and len(names) > 1:
        spaced = names[1][0] - names[0][0]
        for line in range(1, len(names)):
            axes.axhline(line * spaced, color=INK, alpha=0.5, linewidth=0.6)
    axes.set_ylim(lines, 0)
    axes.set_yticks([place for place, _ in names], [chart_label(name) for _, name in names])
    if not names[0][1].startswith("core "):
        axes.set_ylabel("nodes, their cores" + " and GPUs" * any(row.devices for row, _, _ in bars))
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", length=0)
    shown = run.table.kinds
    keys: list[Any] = [Patch(color=kinds[kind], label=chart_label(kind))
                       for kind in kinds if kind in shown]
    if any(kind not in kinds for kind in shown):
        keys.append(Patch(color=GREY, label="others"))
    if any(other.co_running_programs for other in study.runs):
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


Box = tuple[float, float, float, float]  # left, first line, width, lines


def _boxes(axes: Any, boxes: Sequence[Box], **look: Any) -> None:
    """Draw many boxes of the same style as one path, which keeps files small."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path as Line
    if not boxes:
        return
    points, codes = [], []
    for left, low, width, count in boxes:
        right, high = left + width, low + count
        points += [(left, low), (right, low), (right, high), (left, high), (left, low)]
        codes += [Line.MOVETO, Line.LINETO, Line.LINETO, Line.LINETO, Line.CLOSEPOLY]
    # Added as an artist: the limits of the axes are set already, so they are not computed from all points.
    boxes_path = PathPatch(Line(points, codes), **look)
    boxes_path.set_in_layout(False)
    axes.add_artist(boxes_path)


def _label(axes: Any, run: StudyRun, bars: Sequence[Bar], kinds: dict[str, str],
           shown: tuple[float, float], points: float, tall: float, plain: bool) -> None:
    """Write its number and program on each job that has enough space, once per program. One second is `points` wide
    and one line is `tall` points high; with `plain` all jobs have their full colours."""
    widest: dict[tuple[int, str], Bar] = {}
    for bar in bars:
        key = bar[0].id, bar[0].app
        if key not in widest or bar[2] > widest[key][2]:
            widest[key] = bar
    for row, line, count in widest.values():
        if tall * count < 7.5:
            continue
        program = row.app.removesuffix(".x") if row.app != "app" else ""  # of a trace that does not say programs
        begin, end, together = max(_stretches(run, row), key=lambda one: one[1] - one[0],
                                   default=(0.0, 0.0, False))
        begin, end = max(begin, shown[0]), min(end, shown[1])
        for words in (f"{row.id} {program}".rstrip(), str(row.id)):
            if (end - begin) * points > 4.1 * len(words) + 2:
                colour = _colour(kinds, row)
                dark = colour in (BLUE, GREEN, RED) and (together or plain)
                axes.text((begin + end) / 2 - shown[0], line + count / 2, chart_label(words),
                          ha="center", va="center", fontsize=6.5, clip_on=True,
                          color="white" if dark else "black")
                break


def _application_colours(study: Study) -> dict[str, str]:
    """Return the colours of applications. If there are more applications than colours, only those with the most
    core seconds have their own."""
    kinds = study.kinds
    if len(kinds) > len(APPS):
        seconds: dict[str, float] = {}
        for run in study.runs:
            for row in run.jobs:
                kind = application_kind(row.app)
                seconds[kind] = seconds.get(kind, 0.0) + row.processors * (row.end - row.start)
        kinds = sorted(sorted(kinds, key=lambda kind: -seconds[kind])[:len(APPS) - 1])
    return dict(zip(kinds, APPS))


def _colour(kinds: dict[str, str], row: RanJob) -> str:
    """Return the colour of a job: that of its application; if all jobs are of one application, chosen by its
    number."""
    if len(kinds) == 1:
        return APPS[row.id % len(APPS)]
    return kinds.get(application_kind(row.app), GREY)


def _stretches(run: StudyRun, row: RanJob) -> Iterator[tuple[float, float, bool]]:
    """Yield the intervals of a job's time, each with whether another job used one of its nodes."""
    begin = row.start
    for start, end in run.shared.get(row.id, ()):
        start, end = max(start, begin), min(end, row.end)
        if end <= start:
            continue
        if start > begin:
            yield begin, start, False
        yield start, end, True
        begin = end
    if row.end > begin:
        yield begin, row.end, False


def _usage(busy: Any, queue: Any, run: StudyRun, first: float, length: float) -> None:
    moments = Moments.of(run.table.ran, _held(run)[:3])
    whole = 100 / run.processors if run.processors else 1.0
    times, used = _averaged_steps(moments.times - first, moments.busy, length)
    busy.fill_between(times, [value * whole for value in used], step="post", color=SKY, linewidth=0)
    if run.processors:
        busy.set_ylim(0, 105)
        busy.set_yticks([0, 50, 100])
        busy.set_ylabel("cores with\nranks [%]")
    else:
        busy.set_ylim(bottom=0)
        busy.set_ylabel("cores\nin use")
    times, waiting_jobs = _averaged_steps(moments.times - first, moments.queued, length)
    queue.fill_between(times, waiting_jobs, step="post", color=PINK, linewidth=0)
    queue.set_ylim(0, max(1, *waiting_jobs, 1) * 1.08)
    queue.locator_params(axis="y", nbins=4, integer=True)
    queue.set_ylabel("jobs\nwaiting")
    for axes in (busy, queue):
        grid(axes, "both")


def _power(axes: Any, run: StudyRun, first: float, length: float) -> None:
    """Draw the power of all jobs together."""
    import numpy as np
    steps = power_over_time(run.drawn)
    times, watts = _averaged_steps(np.array([time - first for time, _ in steps]),
                                   np.array([watts for _, watts in steps]), length)
    kilo = max(watts, default=0.0) >= 10000
    axes.fill_between(times, [value / (1000 if kilo else 1) for value in watts], step="post", color=GREEN, linewidth=0)
    axes.set_ylim(bottom=0)
    axes.locator_params(axis="y", nbins=4)
    axes.set_ylabel(f"power of\njobs [{'kW' if kilo else 'W'}]")
    grid(axes, "both")


SHOWN = 800  # maximum number of time intervals of a curve


def _averaged_steps(times: Any, values: Any, length: float) -> tuple[list[float], list[float]]:
    """Return times (s) and the values from each on, over the length. With more than SHOWN times, return the mean of
    each of SHOWN intervals."""
    import numpy as np
    if len(times) <= SHOWN or length <= 0:
        return times.tolist(), values.tolist()
    edges = np.linspace(0, length, SHOWN + 1)
    passed = np.concatenate([[0], np.cumsum(values[:-1] * np.diff(times))])  # the integral of the values
    means = np.diff(np.interp(edges, times, passed)) / np.diff(edges)
    return edges.tolist(), [*means.tolist(), 0.0]
