"""Shows heatmaps: as a table for the terminal, and as a picture (PNG, SVG, PDF) with matplotlib.

Colours: blue if sharing is faster, red if it is slower, white at 1. This scale can be distinguished with any colour
vision, and every cell shows its number.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from collections.abc import Mapping, Sequence

from vrm.model.measured.heatmap import Heatmap
from vrm.model.measured.speedups import Speedups
from vrm.ext.study.report.plotting import PictureError, pyplot
from vrm.system.printing.output import aligned

FORMATS = (".png", ".svg", ".pdf")
ALONE = "alone"
SPARE = "spare"


@dataclass(frozen=True)
class HeatmapGrid:
    """The values to show: `values[row][column]`, None if unknown, with labels of rows and columns.

    `neutral` is the value without gain or loss; `better` is +1 if larger values are better (speed-ups), -1 if
    smaller ones are (ranks). `note` is printed below. `marks` are printed after values, by row and column.
    """

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...]
    title: str
    note: str
    neutral: float
    better: int
    digits: int
    marks: Mapping[tuple[int, int], str] = field(default_factory=dict)


def grid_of(heatmap: Heatmap, speedups: Speedups | None, against: str = "compact") -> HeatmapGrid:
    """Return the speed-ups (against compact or spare) as a grid, or the ranks if there are no speed-ups.

    A row is the application whose speed is shown, a column its partner. Against compact, an extra column `alone`
    has the spare speed-ups, if known.
    """
    if speedups is None:
        return _ranks(heatmap)
    values: Mapping[str, Mapping[str, float]] = speedups.pairs
    title = "Speed-up with a partner (1: as fast as alone, compact)"
    if against == "spare":
        values = speedups.against_spare()
        title = "Speed-up with a partner (1: as fast as alone on half the cores)"
    rows = _in_order(values)
    partners = {partner: None for row in rows for partner in values[row]}
    columns = [row for row in rows if row in partners] + _in_order(
        {name: None for name in partners if name not in rows})
    cells = [[values[row].get(column) for column in columns] for row in rows]
    short = _short([*rows, *columns])
    labels = [short[column] for column in columns]
    if against == "compact" and any(row in speedups.spare for row in rows):
        labels.append(ALONE)
        for line, row in zip(cells, rows):
            line.append(speedups.spare.get(row))
    known = [value for line in cells for value in line[:len(columns)] if value is not None]
    note = f"row: the one that is sped up, column: its partner; above 1 sharing helps; mean " \
           f"{sum(known) / len(known):.2f} of {len(known)} pairs" if known else "no pairs known"
    return HeatmapGrid(tuple(short[row] for row in rows), tuple(labels), tuple(map(tuple, cells)), title,
                       note, 1.0, +1, 2)


def marked(grid: HeatmapGrid, speedups: Speedups | None, sources: Mapping[tuple[str, str], str]) -> HeatmapGrid:
    """Mark the sources of the values in the grid: `~` after a learned value, `?` after a guessed one."""
    if speedups is None or not any(sources.values()):
        return grid
    rows = _in_order(speedups.pairs)
    partners = {partner: None for row in rows for partner in speedups.pairs[row]}
    columns = [row for row in rows if row in partners] + _in_order(
        {name: None for name in partners if name not in rows})
    signs = {"": " ", "learned": "~", "guessed": "?"}
    marks = {(at, column): signs[sources.get((row, partner), "")] for at, row in enumerate(rows)
             for column, partner in enumerate(columns)}
    return replace(grid, marks=marks, note=f"{grid.note}\n~ learned from ordinary runs, ? guessed from other pairs, "
                                           "others measured")


def _ranks(heatmap: Heatmap) -> HeatmapGrid:
    rows = list(heatmap.ranks)
    partners = {partner: None for row in heatmap.ranks.values() for partner in row}
    columns = [row for row in rows if row in partners] + [name for name in sorted(partners)
                                                          if name not in rows]
    cells = tuple(tuple(heatmap.ranks[row].get(column) for column in columns) for row in rows)
    largest = max((value for row in cells for value in row if value is not None), default=1.0)
    return HeatmapGrid(tuple(rows), tuple(columns), cells, "Rank of the partner",
                       "row: an application, column: its partner; 1 is the best", (largest + 1) / 2, -1, 0)


def _in_order(names: Mapping[str, object]) -> list[str]:
    """Sort by application and class, then by ranks as numbers: `cg.D.64` before `cg.D.256`."""
    def key(name: str) -> tuple[str, int, str]:
        head, _, tail = name.rpartition(".")
        return (head, int(tail), "") if tail.isdigit() else (name, 0, tail)
    return sorted(names, key=key)


def _short(names: Sequence[str]) -> dict[str, str]:
    """Return shortened names: without the ranks if all have the same rank count and the names stay distinct."""
    words = {name: name.split(".") for name in names}
    width = max((len(part) for part in words.values()), default=1)
    for drop in (2, 1):
        tails = {tuple(part[drop:]) for part in words.values()}
        if width == 3 and len(tails) == 1 and all(len(part) == 3 for part in words.values()):
            short = {name: ".".join(part[:drop]) for name, part in words.items()}
            if len(set(short.values())) == len(set(names)) and drop == 2:
                return short
    return {name: name for name in names}


def table(grid: HeatmapGrid) -> str:
    """Return the grid as text."""
    def word(value: float | None) -> str:
        return "-" if value is None else f"{value:.{grid.digits}f}"
    lines = [["", *grid.columns]]
    lines += [[row, *(word(value) + grid.marks.get((at, column), "") for column, value in enumerate(values))]
              for at, (row, values) in enumerate(zip(grid.rows, grid.values))]
    return "\n".join([grid.title, aligned(lines, right=range(1, len(lines[0]))), grid.note]) + "\n"


def draw(grid: HeatmapGrid, path: Path, machine: str = "") -> None:
    """Draw the grid into a file whose suffix is the format. Raises PictureError if that fails."""
    if path.suffix.lower() not in FORMATS:
        raise PictureError(f"{path}: a picture ends in {', '.join(FORMATS)}")
    if not grid.rows:
        raise PictureError("there is nothing to draw: the heatmap has no pairs")
    plots = pyplot(PictureError, "leave --out away for the table")
    from matplotlib import colormaps
    from matplotlib.colors import TwoSlopeNorm
    from matplotlib.ticker import MaxNLocator
    known = [value for row in grid.values for value in row if value is not None]
    # A symmetric range around the neutral value, with a minimum width, so that noise does not look like a result.
    least = 0.1 if grid.better > 0 else 0.5
    reach = max(least, max(abs(value - grid.neutral) for value in known)) if known else least
    norm = TwoSlopeNorm(vmin=grid.neutral - reach, vcenter=grid.neutral, vmax=grid.neutral + reach)
    colours = colormaps["RdBu" if grid.better > 0 else "RdBu_r"].with_extremes(
        bad="0.9")
    numbers = [[math.nan if value is None else value for value in row] for row in grid.values]
    rows, columns = len(grid.rows), len(grid.columns)
    # Size in inches: text of 8 points needs cells of 0.52 x 0.42 inches.
    width, height = 0.52 * columns + 2.4, 0.42 * rows + 1.8
    figure, axes = plots.subplots(figsize=(max(width, 5.0), max(height, 3.0)),
                                   layout="constrained")
    try:
        image = axes.imshow(numbers, cmap=colours, norm=norm, aspect="auto")
        axes.set_xticks(range(columns), grid.columns, fontsize=9,
                        rotation=90 if max(map(len, grid.columns)) > 5 else 0)
        axes.set_yticks(range(rows), grid.rows, fontsize=9)
        axes.xaxis.tick_top()
        axes.xaxis.set_label_position("top")
        axes.set_xlabel("partner on the same node", fontsize=9)
        axes.tick_params(length=0)
        axes.set_xticks([column - 0.5 for column in range(1, columns)], minor=True)
        axes.set_yticks([row - 0.5 for row in range(1, rows)], minor=True)
        axes.grid(which="minor", color="white", linewidth=1)
        axes.tick_params(which="minor", length=0)
        if ALONE in grid.columns:
            axes.axvline(grid.columns.index(ALONE) - 0.5, color="0.3", linewidth=1.5)
        for spine in axes.spines.values():
            spine.set_visible(False)
        for row, values in enumerate(grid.values):
            for column, value in enumerate(values):
                if value is None:
                    continue
                strong = abs(value - grid.neutral) > 0.6 * reach
                axes.text(column, row, f"{value:.{grid.digits}f}", ha="center", va="center",
                          fontsize=8, color="white" if strong else "black")
        bar = figure.colorbar(image, ax=axes, shrink=0.9, pad=0.02,
                              ticks=MaxNLocator(integer=grid.digits == 0))
        bar.ax.tick_params(labelsize=8)
        bar.outline.set_visible(False)
        if grid.better < 0:
            bar.ax.invert_yaxis()
        figure.suptitle(grid.title, fontsize=10)
        figure.supxlabel("\n".join(filter(None, [grid.note, machine])), fontsize=7, color="0.35")
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise PictureError(f"cannot write {path}: {error.strerror}") from error
