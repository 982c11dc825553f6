"""Ended jobs as observations: what is kept of a line of `jobs.csv`, and which jobs were neighbours."""

from __future__ import annotations

import heapq
import math
import re
from dataclasses import dataclass
from typing import Any
from collections.abc import Collection, Iterable, Iterator, Sequence

from vrm.model.quantities import memory_bytes
from vrm.results.job_columns import JobFileError
from vrm.results.jobs import JobRow
from vrm.results.placement_text import unfold_nodes

NEIGHBOURS = 8
"""Number of neighbours of a job that are kept: those with the longest overlaps."""


@dataclass(frozen=True)
class LearnedJob:
    """A job that ran and has ended. `run` names its run, `job` is its id there. `input` distinguishes the
    inputs of a program (see `input_of`). `cores` is the number of cores that it held, `nodes` their nodes,
    folded. `start` and `end` are seconds since the epoch, `walltime` is its limit (seconds). `cpu` are the CPU
    seconds of all its processes. `memory` is the peak in bytes on one node, or of its largest process if no
    memory was requested. `cpu` and `memory` are None if unknown. `steady`: its cores were the same from start
    to end."""

    run: str
    job: int
    app: str
    input: str
    ranks: int
    cores: int
    nodes: str
    start: float
    end: float
    walltime: float
    status: str
    exit_code: int | None = None
    cpu: float | None = None
    memory: int | None = None
    exclusive: bool = False
    steady: bool = True

    @property
    def seconds(self) -> float:
        """The run time in seconds."""
        return self.end - self.start

    @property
    def used(self) -> float | None:
        """The average number of busy cores of those that it held; None if its CPU time is unknown."""
        return None if self.cpu is None or self.seconds <= 0 else self.cpu / self.seconds


@dataclass(frozen=True)
class Overlap:
    """The `seconds` for which two jobs of a run, given by their ids, were on the same node."""

    job: int
    other: int
    seconds: float


def input_of(row: JobRow) -> str:
    """Return what distinguishes the inputs of a program: its arguments, or, if there are none, its working
    directory. The index of an array's job is replaced by `%i`."""
    text: str = row.args or row.dir
    if row.index is not None and text:
        text = re.sub(rf"(?<!\d){row.index}(?!\d)", "%i", text)
    return text


def learned(row: JobRow, run: str) -> LearnedJob | None:
    """Return a line of `jobs.csv` as an observation; None for a job that never ran."""
    if row.start is None or row.end is None or row.end < row.start:
        return None
    return LearnedJob(run, row.id, row.app, input_of(row), row.procs, row.processors, row.nodes, row.start, row.end,
                      row.walltime, row.status, row.exit_code, row.cpu_time or None, memory_in(row),
                      row.exclusive, not row.mates)


def memory_in(row: JobRow) -> int | None:
    """Return the peak memory of a job on a node in bytes, or else that of its largest process; None if both are
    unknown."""
    text = row.memory_peak or row.largest_process
    try:
        return int(memory_bytes(text)) if text else None
    except ValueError:
        return None


def machine_of(nodes: Iterable[Sequence[Any]]) -> str:
    """Return the name of a machine: for each kind of node the prefix of its names and the cores of its sockets,
    as `node 20+20`. Run times of other machines say little."""
    kinds = {f"{prefix_of(name)} {'+'.join(map(str, sockets))}" for name, sockets, *_ in nodes}
    return ", ".join(sorted(kinds))


def prefix_of(node: str) -> str:
    """Return the prefix of a node's name: the part before the first digit."""
    return re.sub(r"[0-9].*", "", node.partition(".")[0]) or node


def overlaps(batch: Collection[int], rows: Collection[JobRow]) -> Iterator[Overlap]:
    """Yield the overlaps of the jobs of a batch with other jobs on a node, in both directions, the NEIGHBOURS
    longest of each. `rows` are all ended jobs."""
    since = min((row.start for row in rows if row.id in batch and row.start is not None), default=math.inf)
    by_node: dict[str, list[tuple[float, float, int]]] = {}
    for row in rows:
        if row.start is not None and row.end is not None and row.end > max(since, row.start):
            for node in _nodes(row.nodes):
                by_node.setdefault(node, []).append((row.start, row.end, row.id))
    found: dict[int, dict[int, float]] = {}
    for job, other, seconds in (each for times in by_node.values() for each in _together(times)):
        for one, mate in ((job, other), (other, job)):
            if one in batch:
                found.setdefault(one, {})[mate] = seconds
    for job, mates in found.items():
        for mate in sorted(mates, key=mates.__getitem__, reverse=True)[:NEIGHBOURS]:
            yield Overlap(job, mate, mates[mate])
            yield Overlap(mate, job, mates[mate])


def _together(times: Iterable[tuple[float, float, int]]) -> Iterator[tuple[int, int, float]]:
    """Yield pairs of jobs of a node, and for how long both ran, from their starts and ends."""
    there: list[tuple[float, int]] = []  # ends and ids of jobs that still run when the next one starts
    for start, end, job in sorted(times):
        while there and there[0][0] <= start:
            heapq.heappop(there)
        for others_end, other in there:
            yield job, other, min(end, others_end) - start
        heapq.heappush(there, (end, job))


def _nodes(text: str) -> list[str]:
    try:
        return unfold_nodes(text)
    except JobFileError:
        return []
