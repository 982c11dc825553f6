"""Timelines of runs: which job had which cores when."""

from __future__ import annotations

import math
from typing import Any, NamedTuple
from collections.abc import Iterator, Sequence

from vrm.model.job import application_kind
from vrm.ext.study.report.density import Places, density, draw as draw_density, natural
from vrm.report.holdings import GPU, parse_devices
from vrm.ext.study.report.pictures import (APPS, BLUE, GREEN, GREY, INK, PAPER, PINK, RED, SKY, Picture,
                                 file_word, grid, styled)
from vrm.ext.study.report.job_table import programs_of
from vrm.ext.study.report.plotting import PictureError, label_of
from vrm.ext.study.report.study import RanJob, StudyRun, Study
from vrm.results.energy import power_over_time
from vrm.results.names import time_text
from vrm.results import shares
from vrm.results.places import parse_cores
from vrm.results.summary import Moments

PALE = 0.45  # share of its colour, the rest white, of a job that has its nodes for itself
MANY = 1500  # jobs from which on a picture shows density (as PNG), for boxes would be too many
EDGED = 1.5  # points that the box of a job measures from which on it has an edge


Window = tuple[float, float]  # seconds after the first submission


def timelines(study: Study, window: Window | None = None) -> Iterator[Picture]:
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


def timeline(study: Study, run: StudyRun, window: Window | None = None) -> Picture:
    """One run over time, or within a window. Where there are more jobs than boxes can show, the
    nodes are drawn as dark as they were busy."""
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
    with styled() as plots:
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
    shared = sum(1 for row in run.jobs if run.companions.get(row.id)) if run.companions else 0
    text = f"{run.ran} jobs in {time_text(last - start)}, {shared} of them with another " \
           f"one on their nodes for some time"
    if count < run.ran:
        text += f"; {count} of the jobs ran in the time that is shown"
    name = file_word(run.directory.name if study.repetitions > 1 else run.scenario)
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


class _Part:
    """A job from one time to another, with the cores that it had then; or a program of a coupled job."""

    def __init__(self, row: RanJob, begin: float, end: float, cores: str, app: str = "") -> None:
        self._row = row
        self.start, self.end, self.cores, self.app = begin, end, cores, app or row.app

    def __getattr__(self, name: str) -> Any:
        return getattr(self._row, name)


class _Held(NamedTuple):
    """Which cores jobs had from when to when: arrays of seconds, the number of the cores, and where they are."""

    begins: Any
    ends: Any
    cores: Any
    places: Places


def _held(run: StudyRun) -> _Held:
    """Those of a run: a core that one job had lent to another is the other's."""
    ran = run.table.ran
    if not _lends(run):
        return _Held(ran.start, ran.end, ran.cores, run.table.places)
    import numpy as np
    parts = list(_parts(run))
    cores = [sum(last - first + 1 for _, ranges in parse_cores(part.cores) for _, first, last in ranges)
             if isinstance(part, _Part) else part.processors for part in parts]
    return _Held(np.array([part.start for part in parts], float), np.array([part.end for part in parts], float),
                 np.array(cores, np.int64), Places.read([part.cores for part in parts]))


def _lends(run: StudyRun) -> list[shares.HeldCores]:
    try:
        return shares.read(run.directory / "shares.csv")
    except (OSError, ValueError):
        return []


def _parts(run: StudyRun) -> Iterator[RanJob]:
    """The jobs of a run; one that has lent cores, or borrowed some, for each time with other cores, and of a coupled
    one each program."""
    parts: dict[int, dict[tuple[float, float], list[str]]] = {}
    for each in _lends(run):
        parts.setdefault(each.job, {}).setdefault((each.begin, each.end), []).append(
            f"{each.node}:{each.cores}")
    for row in run.jobs:
        if row.id not in parts:
            yield from _programs(row) if row.coupled and row.cores else (row,)
        for (begin, end), places in parts.get(row.id, {}).items():
            part: Any = _Part(row, begin, end, ";".join(places))
            if begin < row.end and end > row.start:  # not of an earlier run of the job
                yield part


def _programs(row: RanJob) -> Iterator[RanJob]:
    """The programs of a coupled job, whose cores are listed one after the other."""
    cores = [f"{node}:{socket}/{core}" for node, ranges in parse_cores(row.cores)
             for socket, first, last in ranges for core in range(first, last + 1)]
    at = 0
    for each in programs_of(row.coupled):
        program: Any = _Part(row, row.start, row.end, ";".join(cores[at:at + each.request.cores]), each.app)
        at += each.request.cores
        yield program


Bar = tuple[RanJob, int, int]  # a job, its lowest line of the picture and how many it takes


def _places(run: StudyRun, jobs: Sequence[RanJob]
            ) -> tuple[list[Bar], list[tuple[float, str]], int]:
    """The bars of some jobs of a run, the names of its lines with their places, and how many lines there are:
    a line is a core, or a node where jobs.csv has no cores; below the cores of a node are its GPUs."""
    sockets: dict[str, dict[int, int]] = {}
    places = [parse_cores(row.cores) if row.cores else [] for row in jobs]
    for placed in places:
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
    bars: list[Bar] = []
    for row, placed in zip(jobs, places):
        taken = sorted(base[node] + order[socket, core] for node, ranges in placed
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


def _lines(sockets: int, size: int, halves: bool) -> dict[tuple[int, int], int]:
    """The line of each socket and core of a node. With `halves` the first halves of all sockets
    come first, so that two jobs that share the sockets are two boxes and not a comb."""
    half = max(1, size // 2)
    cores = sorted(((socket, core) for socket in range(sockets) for core in range(size)),
                   key=lambda place: (place[1] // half if halves else 0, place))
    return {place: line for line, place in enumerate(cores)}


def _gantt(axes: Any, study: Study, run: StudyRun, bars: Sequence[Bar],
           names: Sequence[tuple[float, str]], lines: int, first: float, length: float,
           inches: float) -> None:
    from matplotlib.patches import Patch
    kinds = _coloured(study)
    whole: dict[tuple[str, bool], list[Box]] = {}
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
    keys: list[Any] = [Patch(color=kinds[kind], label=label_of(kind))
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


Box = tuple[float, float, float, float]  # left, lowest line, width, lines


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


def _label(axes: Any, run: StudyRun, bars: Sequence[Bar], kinds: dict[str, str],
           shown: tuple[float, float], points: float, tall: float, plain: bool) -> None:
    """Write on each job, where there is room, its number and program, once for each program. A second is `points`
    wide and a line `tall` points high; with `plain` all jobs have their full colours."""
    widest: dict[tuple[int, str], Bar] = {}
    for bar in bars:
        key = bar[0].id, bar[0].app
        if key not in widest or bar[2] > widest[key][2]:
            widest[key] = bar
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


def _coloured(study: Study) -> dict[str, str]:
    """The colours of applications: one each for the eight that ran longest."""
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
    """The colour of a job: of its application, or where all are of one kind, of its number."""
    if len(kinds) == 1:
        return APPS[row.id % len(APPS)]
    return kinds.get(application_kind(row.app), GREY)


def _stretches(run: StudyRun, row: RanJob) -> Iterator[tuple[float, float, bool]]:
    """The parts of a job's time, and whether another job was on one of its nodes in each."""
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
        grid(axes, "both")


def _power(axes: Any, run: StudyRun, first: float, length: float) -> None:
    """What all jobs together draw."""
    import numpy as np
    steps = power_over_time(run.drawn)
    times, watts = _thinned(np.array([time - first for time, _ in steps]),
                            np.array([watts for _, watts in steps]), length)
    kilo = max(watts, default=0.0) >= 10000
    axes.fill_between(times, [value / (1000 if kilo else 1) for value in watts], step="post", color=GREEN, linewidth=0)
    axes.set_ylim(bottom=0)
    axes.locator_params(axis="y", nbins=4)
    axes.set_ylabel(f"power of\njobs [{'kW' if kilo else 'W'}]")
    grid(axes, "both")


SHOWN = 800  # stretches of time that a curve has room for


def _thinned(times: Any, values: Any, length: float) -> tuple[list[float], list[float]]:
    """Times (s) and the values from each on, over the length. Where they are more than can be
    seen, the mean over each stretch of time."""
    import numpy as np
    if len(times) <= SHOWN or length <= 0:
        return times.tolist(), values.tolist()
    edges = np.linspace(0, length, SHOWN + 1)
    passed = np.concatenate([[0], np.cumsum(values[:-1] * np.diff(times))])  # its integral
    means = np.diff(np.interp(edges, times, passed)) / np.diff(edges)
    return edges.tolist(), [*means.tolist(), 0.0]
