"""How busy the nodes of a run were over time, for runs with too many jobs to draw each one as a box."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any
from collections.abc import Sequence

COLUMNS = 600  # number of time intervals
ROWS = 128  # maximum number of lines; a line shows one node or several
MOST = 10 ** 9  # maximum number of cores of a node

_ranges = re.compile(r"(\d+)/(\d+)(?:-(\d+))?").findall


@dataclass(frozen=True)
class NodeDensity:
    """`shares` is an array (line, time interval) of the share of cores that had a rank, from 0 to 1; `names` are
    the names of some lines with their positions; `lines` and `nodes` are the numbers of lines and nodes."""

    shares: Any
    names: list[tuple[float, str]]
    lines: int
    nodes: int


@dataclass(frozen=True)
class Places:
    """The nodes of many jobs and the cores used on each. `names` are the distinct parts of the column `cores` (one
    part names one node and its cores). `part` and `job` are arrays with one entry per node of each job: the index
    of its part in `names`, and the index of the job."""

    names: Sequence[str]
    part: Any
    job: Any

    @classmethod
    def read(cls, cores: Sequence[str]) -> Places:
        """Read the column `cores` of all jobs."""
        import numpy as np
        texts = {text: number for number, text in enumerate(dict.fromkeys(cores))}  # many are equal
        which = np.fromiter(map(texts.__getitem__, cores), np.int64, len(cores))
        sizes = np.array([text.count(";") + 1 if text else 0 for text in texts], np.int64)
        parts = ";".join(filter(None, texts)).split(";") if sizes.any() else []
        numbers = {part: number for number, part in enumerate(dict.fromkeys(parts))}
        of_texts = np.fromiter(map(numbers.__getitem__, parts), np.int64, len(parts))
        counts = sizes[which]
        begins = (np.cumsum(sizes) - sizes)[which]  # index of each job's first part among the parts of all texts
        before = np.cumsum(counts) - counts
        part = of_texts[np.repeat(begins - before, counts) + np.arange(counts.sum())]
        return cls(list(numbers), part, np.repeat(np.arange(len(cores)), counts))

    def of(self, chosen: Any) -> Places:
        """Return the entries of some jobs only; `chosen` is an array with a boolean per job."""
        import numpy as np
        kept = chosen[self.job]
        used, part = np.unique(self.part[kept], return_inverse=True)
        return Places([self.names[at] for at in used.tolist()], part, self.job[kept])


def density(places: Places, starts: Any, ends: Any, processors: int | None, first: float,
            length: float) -> NodeDensity | None:
    """Return the density of jobs with these starts and ends (arrays; s) over `length` seconds from `first` on; None
    if jobs.csv does not contain the cores of the jobs. Nodes that no job used are unknown and not shown."""
    import numpy as np
    numbers: dict[str, int] = {}
    sizes: list[int] = []
    if not places.names or length <= 0:
        return None
    known = np.array([_part(part, numbers, sizes) for part in places.names], np.int64)
    names = sorted(numbers, key=natural)
    line = np.empty(len(names), np.int64)
    group = -(-len(names) // ROWS)  # nodes per line
    for place, name in enumerate(names):
        line[numbers[name]] = place // group
    lines = -(-len(names) // group)
    largest = max(sizes)
    if processors and processors % len(names) == 0:
        largest = max(largest, processors // len(names))
    capacity = np.bincount(line, minlength=lines) * largest
    rows, weights = line[known[:, 0]][places.part], known[:, 1].astype(float)[places.part]
    starts, ends = (times[places.job] - first for times in (starts, ends))
    width = length / COLUMNS
    busy = _begun(rows, weights, starts, width, lines) - _begun(rows, weights, ends, width, lines)
    step = -(-lines // 16)
    return NodeDensity(np.clip(busy / capacity[:, None], 0, 1),
                       [(at + 0.5, names[at * group]) for at in range(0, lines, step)], lines,
                       len(names))


def _begun(rows: Any, weights: Any, times: Any, width: float, lines: int) -> Any:
    """Return, for each line and time interval, the mean total weight of the entries that have begun: an entry
    counts 0 before the interval of its time, fully after it, and in this interval with the part that remains after
    its time."""
    import numpy as np
    place = np.clip(times / width, 0, COLUMNS)
    stretch = np.minimum(place.astype(np.int64), COLUMNS)
    part = place - stretch
    at = rows * (COLUMNS + 2) + stretch
    change = (np.bincount(at, weights * (1 - part), lines * (COLUMNS + 2))
              + np.bincount(at + 1, weights * part, lines * (COLUMNS + 2)))
    return np.cumsum(change.reshape(lines, COLUMNS + 2), axis=1)[:, :COLUMNS]


def _part(part: str, numbers: dict[str, int], sizes: list[int]) -> tuple[int, int]:
    """Return the index of a node and its number of cores in one part of the column `cores`; update `numbers` and
    `sizes`."""
    name, _, places = part.partition(":")
    number = numbers.setdefault(name, len(numbers))
    if number == len(sizes):
        sizes.append(0)
    ranges = [(int(socket), int(low), int(high or low)) for socket, low, high in _ranges(places)]
    held = min(MOST, sum(high - low + 1 for _, low, high in ranges))
    sizes[number] = max(sizes[number], held, *(min(MOST, high + 1) for _, _, high in ranges))
    return number, held


def natural(name: str) -> list[Any]:
    """Return a sort key that puts n2 before n10."""
    return [(1, int(part), "") if part.isdigit() else (0, 0, part)
            for part in re.split(r"(\d+)", name) if part]


def draw(axes: Any, found: NodeDensity, length: float, colour: str, paper: str) -> None:
    """Draw the density: a darker colour means that more of the cores had a rank."""
    from matplotlib.colors import LinearSegmentedColormap
    shades = LinearSegmentedColormap.from_list("busy", [paper, colour])
    shown = axes.imshow(found.shares, aspect="auto", extent=(0, length, found.lines, 0),
                        cmap=shades, vmin=0, vmax=1, interpolation="nearest")
    axes.set_yticks([place for place, _ in found.names], [name for _, name in found.names])
    axes.tick_params(axis="both", length=0)
    several = math.ceil(found.nodes / found.lines)
    axes.set_ylabel("nodes" if several == 1 else f"nodes, {several} a line")
    bar = axes.figure.colorbar(shown, ax=axes, fraction=0.03, pad=0.01, aspect=30)
    bar.set_ticks([0, 0.5, 1], labels=["0 %", "50 %", "100 %"])
    bar.ax.tick_params(labelsize=7, length=0)
    bar.outline.set_visible(False)
    axes.set_title("share of the cores that had a rank", fontsize=7.5)
