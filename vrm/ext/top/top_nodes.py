"""The nodes in `vrm top`: each core shows the mark of its job."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any
from collections.abc import Mapping, Sequence

from vrm.ext.top.cells import Glyphs, Line, pad, columns
from vrm.report.tables import follows, shown
from vrm.model.forms.hosts import fold as fold_nodes

COLOURS = 6
"""Number of styles job0, job1 ... that distinguish jobs."""
MARKS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def mark(job_id: int) -> str:
    """Return the letter of a job on its cores; it never changes."""
    return MARKS[job_id % len(MARKS)]


def colour(job_id: int) -> str:
    """Return the style of a job: jobs with the same letter have different styles."""
    return f"job{(job_id + job_id // len(MARKS)) % COLOURS}"


_plain_name = re.compile(r"\w[\w.-]*", re.ASCII).fullmatch


@lru_cache(maxsize=4096)
def fold(nodes: tuple[str, ...]) -> str:
    """Return the names of nodes as one short text."""
    if not nodes or not all(map(_plain_name, nodes)):  # ClusterShell would interpret special characters
        return shown(",".join(nodes))
    return fold_nodes(nodes)


_GPUS = "GPU "


@dataclass(frozen=True)
class _Cell:
    """Nodes with the same jobs on the same cores, drawn as one."""

    label: str
    marks: list[list[int | None]]  # by socket
    up: bool
    gpus: list[int | None]  # the job that has each


def draw_nodes(nodes: Sequence[Mapping[str, Any]], width: int, rows: int, selected: int | None,
           glyphs: Glyphs) -> list[Line]:
    """Return the nodes with the letter of a job on every core, in a heading and at most `rows` lines.

    If there is not enough room, neighbours with the same jobs are drawn once; then one mark
    represents several cores; then the last nodes are left out.
    """
    if rows < 1 or not nodes:
        return []
    most = max((len(slots) for node in nodes for slots in node["sockets"]), default=1)
    # Coarser marks than half a socket would hide that two jobs share it.
    scales = [2 ** power for power in range(max(1, most // 2).bit_length())]
    every, folded = _cells(nodes, fold=False), _cells(nodes, fold=True)
    for scale in scales:
        for cells in (every, folded):
            label, marks, across = _measures(cells, width, scale)
            fits = label + 1 + marks <= width
            if fits and math.ceil(len(cells) / across) <= rows:
                return _drawn(nodes, cells, cells, scale, width, selected, glyphs)
    across = _measures(folded, width, scales[-1])[2]
    return _drawn(nodes, folded, folded[:rows * across], scales[-1], width, selected, glyphs)


def _cells(nodes: Sequence[Mapping[str, Any]], fold: bool) -> list[_Cell]:
    groups: list[list[Mapping[str, Any]]] = []
    for node in nodes:
        before = groups[-1][-1] if groups else None
        if (fold and before is not None and node["up"] == before["up"]
                and node["sockets"] == before["sockets"] and node["gpus"] == before["gpus"]
                and follows(node["name"], before["name"])):
            groups[-1].append(node)
        else:
            groups.append([node])
    return [_Cell(shown(group[0]["name"]) + (f"-{shown(group[-1]['name'])}" if group[1:] else ""),
                  group[0]["sockets"], group[0]["up"], group[0]["gpus"]) for group in groups]


def _measures(cells: Sequence[_Cell], width: int, scale: int) -> tuple[int, int, int]:
    """Return the columns of the longest label and of the widest node, and how many nodes fit side by side."""
    label = min(max(columns(cell.label) for cell in cells), max(4, width // 2))
    marks = max(4, max(sum(math.ceil(len(slots) / scale) + 1 for slots in cell.marks) - 1
                       + (len(_GPUS) + 1 + len(cell.gpus)) * bool(cell.gpus) for cell in cells))
    return label, marks, max(1, (width + 3) // (label + 1 + marks + 3))


def _drawn(nodes: Sequence[Mapping[str, Any]], every: Sequence[_Cell], cells: Sequence[_Cell],
           scale: int, width: int, selected: int | None, glyphs: Glyphs) -> list[Line]:
    label, marks, across = _measures(every, width, scale)
    title = f"Nodes ({len(nodes)})"
    notes = [f"a mark is {scale} cores"] if scale > 1 else []
    if len(cells) < len(every):
        notes.append(f"{len(every) - len(cells)} more are not shown (n shows all)")
    lines: list[Line] = [[(pad(f"{title}  {', '.join(notes)}", width, glyphs), "heading")]]
    for start in range(0, len(cells), across):
        line: Line = []
        for cell in cells[start:start + across]:
            if line:
                line.append(("   ", "plain"))
            line.append((pad(cell.label, label, glyphs) + " ", "plain" if cell.up else "bad"))
            line += _marks(cell, scale, marks, selected, glyphs)
        lines.append(line)
    return lines


def _marks(cell: _Cell, scale: int, width: int, selected: int | None,
           glyphs: Glyphs) -> Line:
    if not cell.up:
        return [(pad("down", width, glyphs), "bad")]
    line: Line = []
    used = 0
    parts = [[_most(slots[at:at + scale]) for at in range(0, len(slots), scale)]
             for slots in cell.marks] + [cell.gpus] * bool(cell.gpus)
    for number, seen in enumerate(parts):
        before = glyphs.divider * bool(number) + _GPUS * (number == len(cell.marks))
        line += [(before, "dim")] * bool(number)
        used += len(seen) + len(before)
        for job, run in groupby(seen):
            count = len(list(run))
            if job is None:
                line.append((glyphs.free * count, "dim"))
            else:
                reverse = "reverse " if job == selected else ""
                line.append((mark(job) * count, reverse + colour(job)))
    return [*line, (" " * max(0, width - used), "plain")]


def _most(slots: Sequence[int | None]) -> int | None:
    """Return the job that has most of these cores; None only if all are free."""
    there = [job for job in slots if job is not None]
    return max(dict.fromkeys(there), key=there.count) if there else None
