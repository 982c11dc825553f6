"""Reads and writes files that describe how applications run together, in all formats.

| form | a line is | holds |
|---|---|---|
| ranks | an application, then all partners from the best to the worst | an order |
| CSV | one figure: an application under a placement, or with a partner | measured values |
| table | a load and its speed-ups; the first line names the columns | speed-ups |
| JSON pool | one object, as the tools of the ELiSE group write it | run times |

Blank lines and `#` comments are ignored. The format of a file is detected from its content.
"""

from __future__ import annotations

import csv
import json
import math
from dataclasses import dataclass, fields, replace
from pathlib import Path
from statistics import median, quantiles
from typing import Any
from collections.abc import Iterable, Sequence

from vrm.model.measured.heatmap import Heatmap
from vrm.model.job import application_kind
from vrm.model.measured.speedups import SpeedError, Speedups, load_name
from vrm.system.printing.output import comma_separated

COMPACT, SPARE, STRIP = "compact", "spare", "strip"


@dataclass(frozen=True)
class HeatmapLine:
    """A line of the CSV form: how long an application ran, alone or with a partner.

    `placement` is compact or spare for a run alone, strip for one with a partner. `seconds` is the median of `runs`
    complete runs; `spread` is their interquartile range divided by the median (see `spread`); `overlap` is the
    share of the time in which the partner computed, and was not being launched. `speedup_compact` and
    `speedup_spare` are the times alone divided by this one. `rank` is the partner's position in the order of
    speed-ups against compact; 1 is the best. `source` is empty for measured values, `learned` or `guessed` for
    values derived from ordinary runs.
    """

    placement: str
    app: str
    procs: int | None = None
    partner: str = ""
    partner_procs: int | None = None
    rank: float | None = None
    speedup_compact: float | None = None
    speedup_spare: float | None = None
    seconds: float | None = None
    spread: float | None = None
    runs: int | None = None
    overlap: float | None = None
    source: str = ""

    @property
    def load(self) -> str:
        """The application's load, such as `bt.D.256`."""
        return load_name(self.app, self.procs)

    @property
    def partner_load(self) -> str:
        """The partner's load; empty if there is none."""
        return load_name(self.partner, self.partner_procs) if self.partner else ""


COLUMNS = tuple(field.name for field in fields(HeatmapLine))
CSV_HEAD = "seconds = median, spread = the middle half of the runs by the median"
RANK_HEAD = "an application, then all from its best to its worst partner"
"""The first line (a comment) of a file in this form, which explains the form."""
_WHOLE = ("procs", "partner_procs", "runs")
_TEXT = ("placement", "app", "partner", "source")


@dataclass(frozen=True)
class HeatmapFile:
    """The content of a file: the order of partners, the speed-ups if it has any, and its figures.

    `comments` are its comment lines, without the `#` and without the line that explains the form.
    """

    heatmap: Heatmap
    speedups: Speedups | None
    figures: tuple[HeatmapLine, ...]
    comments: tuple[str, ...] = ()


def spread(times: Sequence[float]) -> float:
    """Return the interquartile range of the times divided by their median; 0 for fewer than two times."""
    if len(times) < 2:
        return 0.0
    low, middle, high = quantiles(times, n=4, method="inclusive")
    return (high - low) / middle if middle > 0 else 0.0


# ---------------------------------------------------------------------------------- reading


def read(path: str | Path, rows_are: str = "own", least: float = 0.0) -> HeatmapFile:
    """Read a file of any form. Raises SpeedError with the location of the mistake.

    `rows_are` applies to a table: `own` if a row is the application that is sped up, else `partner`. `least` is the
    combined throughput below which the heatmap refuses a pair (0: none).
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise SpeedError(f"{path}: {(error.strerror or str(error)).lower()}") from error
    except UnicodeDecodeError as error:
        raise SpeedError(f"{path}: byte {error.start + 1} is not UTF-8; is this a heatmap?"
                         ) from error
    if rows_are not in ("own", "partner"):
        raise SpeedError(f"the rows of a table are `own` or `partner`, not `{rows_are}`")
    lines = [(number, line.partition("#")[0].strip())
             for number, line in enumerate(text.splitlines(), 1)]
    lines = [(number, line) for number, line in lines if line]
    comments = tuple(comment for comment in (
        line.lstrip()[1:].strip() for line in text.splitlines() if line.lstrip().startswith("#"))
                     if comment not in (CSV_HEAD, RANK_HEAD))
    if not lines:
        raise SpeedError(f"{path}: empty; a line of the simplest form is an application and then "
                         "all from its best to its worst partner: `ep cg bt ep`")
    if text.lstrip().startswith("{"):
        figures = _pool(path, text)
    elif lines[0][1].replace(" ", "").startswith("placement,"):
        figures = _csv(path, lines)
    elif len(lines) > 1 and any(_is_number(word) for word in lines[1][1].split()[1:2]):
        figures = _table(path, lines, rows_are)
    else:
        try:
            heatmap = Heatmap.parse(text.splitlines())
        except ValueError as error:
            raise SpeedError(f"{path}: {error}") from error
        return HeatmapFile(heatmap, None, _figures_of_ranks(heatmap), comments)
    speedups = _speedups(path, figures)
    if speedups.pairs or speedups.compact or speedups.spare:
        return HeatmapFile(speedups.heatmap(least), speedups, tuple(figures), comments)
    return HeatmapFile(_heatmap_of_ranks(figures), None, tuple(figures), comments)


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _speedups(path: Path, figures: Iterable[HeatmapLine]) -> Speedups:
    pairs: dict[str, dict[str, float]] = {}
    alone: dict[str, dict[str, float]] = {SPARE: {}, COMPACT: {}}
    for figure in figures:
        if figure.placement == STRIP:
            if figure.speedup_compact is not None:
                pairs.setdefault(figure.load, {})[figure.partner_load] = figure.speedup_compact
        elif figure.placement == SPARE and figure.speedup_compact is not None:
            alone[SPARE][figure.load] = figure.speedup_compact
        elif figure.placement == COMPACT and figure.seconds is not None:
            alone[COMPACT][figure.load] = figure.seconds
    try:
        return Speedups(pairs, alone[SPARE], alone[COMPACT])
    except SpeedError as error:
        raise SpeedError(f"{path}: {error}") from error


def _csv(path: Path, lines: Sequence[tuple[int, str]]) -> list[HeatmapLine]:
    header = next(csv.reader([lines[0][1]]))
    unknown = [name for name in header if name not in COLUMNS]
    missing = [name for name in ("placement", "app", "partner") if name not in header]
    if unknown or missing:
        what = f"unknown column `{unknown[0]}`" if unknown else f"no column `{missing[0]}`"
        raise SpeedError(f"{path}:{lines[0][0]}: {what}; the columns are {','.join(COLUMNS)}")
    figures = []
    for number, line in lines[1:]:
        words = next(csv.reader([line]))
        place = f"{path}:{number}"
        if len(words) != len(header):
            raise SpeedError(f"{place}: {len(words)} values for {len(header)} columns")
        figures.append(_figure(place, dict(zip(header, words))))
    return figures


def _figure(place: str, words: dict[str, str]) -> HeatmapLine:
    values: dict[str, Any] = {}
    for name, word in words.items():
        word = word.strip()
        if name in _TEXT:
            values[name] = word
            continue
        try:
            value: Any = None if not word else int(word) if name in _WHOLE else float(word)
        except ValueError:
            raise SpeedError(f"{place}: {name}: `{word}` is not a number") from None
        if value is not None and not 0 <= value < math.inf:
            raise SpeedError(f"{place}: {name}: {word} is below 0, or not finite")
        values[name] = value
    figure = HeatmapLine(**values)
    if figure.placement not in (COMPACT, SPARE, STRIP) or not figure.app:
        raise SpeedError(f"{place}: a line has a placement (compact, spare or strip) and an app, "
                         f"not `{figure.placement}` and `{figure.app}`")
    if (figure.placement == STRIP) != bool(figure.partner):
        raise SpeedError(f"{place}: a partner belongs to the placement strip, and only to it")
    return figure


def _table(path: Path, lines: Sequence[tuple[int, str]], rows_are: str) -> list[HeatmapLine]:
    columns = lines[0][1].split()
    figures = []
    for number, line in lines[1:]:
        row, *words = line.split()
        if len(words) != len(columns):
            raise SpeedError(f"{path}:{number}: {len(words)} speed-ups for {len(columns)} columns")
        for column, word in zip(columns, words):
            if not _is_number(word):
                raise SpeedError(f"{path}:{number}: `{word}` is not a speed-up")
            value = float(word)
            if column == SPARE:
                figures.append(HeatmapLine(SPARE, row, speedup_compact=value))
                continue
            app, partner = (row, column) if rows_are == "own" else (column, row)
            figures.append(HeatmapLine(STRIP, app, partner=partner, speedup_compact=value))
    return ranked(figures)


def _pool(path: Path, text: str) -> list[HeatmapLine]:
    """Return the figures of a pool: `{"loads": [...]}`; each load is JSON text (or an object) with `load_name`,
    `compact_timelogs` and `coscheduled_timelogs` {partner: [[s, ...], ...]}."""
    figures: list[HeatmapLine] = []
    try:
        for packed in json.loads(text)["loads"]:
            load = json.loads(packed) if isinstance(packed, str) else packed
            name, compact = load["load_name"], load["compact_timelogs"]
            app, procs = split_load(name)
            if not compact:
                continue
            alone = _timed(HeatmapLine(COMPACT, app, procs), compact)
            figures.append(alone)
            spare = load.get("spare_timelogs") or []
            if spare:
                figures.append(against(_timed(HeatmapLine(SPARE, app, procs), spare), alone, None))
            for partner, copies in load.get("coscheduled_timelogs", {}).items():
                times = [run for copy in copies for run in copy]
                if times:
                    other, count = split_load(partner)
                    pair = _timed(HeatmapLine(STRIP, app, procs, other, count), times)
                    figures.append(against(pair, alone, figures[-1] if spare and figures[
                        -1].placement == SPARE else _spare_of(figures, app, procs)))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SpeedError(f"{path}: not a pool of measured loads ({error!r}); it is a JSON object "
                         "with `loads`, each with load_name and compact_timelogs") from error
    return ranked(figures)


def _spare_of(figures: Iterable[HeatmapLine], app: str, procs: int | None) -> HeatmapLine | None:
    return next((figure for figure in figures if figure.placement == SPARE
                 and (figure.app, figure.procs) == (app, procs)), None)


def split_load(name: str) -> tuple[str, int | None]:
    """Split `bt.D.256` into application `bt.D` and 256 ranks; a name of another form has no ranks (None)."""
    words = name.split(".")
    if len(words) == 3 and words[2].isdigit():
        return ".".join(words[:2]), int(words[2])
    return name, None


def _timed(figure: HeatmapLine, times: Sequence[float]) -> HeatmapLine:
    return replace(figure, seconds=median(times), spread=round(spread(times), 4), runs=len(times))


# ----------------------------------------------------------------------- figures and their order


def against(figure: HeatmapLine, compact: HeatmapLine | None, spare: HeatmapLine | None) -> HeatmapLine:
    """Return the figure with its speed-ups against the times alone."""
    def speedup(alone: HeatmapLine | None) -> float | None:
        if alone is None or not alone.seconds or not figure.seconds:
            return None
        return alone.seconds / figure.seconds
    return replace(figure, speedup_compact=speedup(compact), speedup_spare=speedup(spare))


def ranked(figures: Iterable[HeatmapLine]) -> list[HeatmapLine]:
    """Return the figures with the rank of every partner among those of its load."""
    figures = list(figures)
    order: dict[tuple[str, str], float] = {}
    for load in {figure.load for figure in figures}:
        row = [figure for figure in figures if figure.placement == STRIP and figure.load == load
               and figure.speedup_compact is not None]
        row.sort(key=lambda figure: (-(figure.speedup_compact or 0), figure.partner_load))
        for rank, figure in enumerate(row, 1):
            order[load, figure.partner_load] = float(rank)
    return [replace(figure, rank=order.get((figure.load, figure.partner_load), figure.rank))
            if figure.placement == STRIP else figure for figure in figures]


def _figures_of_ranks(heatmap: Heatmap) -> tuple[HeatmapLine, ...]:
    return tuple(HeatmapLine(STRIP, app, partner=partner, rank=rank)
                 for app, row in heatmap.ranks.items() for partner, rank in row.items())


def _heatmap_of_ranks(figures: Iterable[HeatmapLine]) -> Heatmap:
    ranks: dict[str, dict[str, float]] = {}
    for figure in figures:
        if figure.placement == STRIP and figure.rank is not None:
            row = ranks.setdefault(application_kind(figure.app).lower(), {})
            row[application_kind(figure.partner).lower()] = figure.rank
    return Heatmap(ranks)


# ---------------------------------------------------------------------------------- writing


def csv_text(figures: Iterable[HeatmapLine], comments: Iterable[str] = ()) -> str:
    """Return the text of a file in CSV form."""
    return comma_separated([COLUMNS, *([_word(getattr(figure, name)) for name in COLUMNS] for figure in figures)],
                           (CSV_HEAD, *comments))


def _word(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def rank_text(heatmap: Heatmap, comments: Iterable[str] = ()) -> str:
    """Return the text of a file in rank form: an application, then all partners from the best to the worst."""
    lines = [f"# {comment}\n" for comment in (RANK_HEAD, *comments)]
    for app, row in heatmap.ranks.items():
        if row:
            lines.append(" ".join([app, *sorted(row, key=lambda name: (row[name], name))]) + "\n")
    return "".join(lines)
