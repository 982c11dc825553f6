"""Finds the placements of the jobs of a simulation that only counts free units (`vrm.ext.counting.counting`), and
makes their lines of `jobs.csv`."""

from __future__ import annotations

import heapq
from typing import Any, Protocol
from collections.abc import Callable

from vrm.model.cluster import Cluster
from vrm.model.job import Job
from vrm.model.placement import CoreLayout, Placement
from vrm.results.job_columns import TextCells, pattern, places_cell, seconds_texts
from vrm.results.placement_text import PlacementText, Runs
from vrm.scheduling.placement.by_core import CorePolicy
from vrm.scheduling.placement.lanes import LanePolicy
from vrm.simulation.writers import Batch

Countable = LanePolicy | CorePolicy
"""Policies under which the number of free nodes or cores can be enough to decide when a job starts."""

_LINE = pattern(status="completed", exit_code="", app_time="", exclusive="0", binding="unbound", reason="") + "\n"


class FirstFree:
    """Nodes or cores; the first free ones are always taken, as runs of consecutive numbers."""

    def __init__(self, units: int) -> None:
        self._firsts = [0]  # first unit of each free run, a heap; adjacent runs are merged when they are taken
        self._stops = [units] * (units + 1)  # by first unit of a run: the unit after its last one

    def take(self, wanted: int) -> Runs:
        """Take the first `wanted` free units. At least that many must be free."""
        firsts, stops = self._firsts, self._stops
        runs = []
        first = heapq.heappop(firsts)
        stop = stops[first]
        while True:
            last = first + wanted
            while stop < last and firsts and firsts[0] == stop:
                stop = stops[heapq.heappop(firsts)]
            if stop >= last:
                runs.append((first, last))
                if stop > last:
                    stops[last] = stop
                    heapq.heappush(firsts, last)
                return runs
            runs.append((first, stop))
            wanted -= stop - first
            first = heapq.heappop(firsts)
            stop = stops[first]

    def give(self, runs: Runs) -> None:
        """Free units that were taken."""
        for first, stop in runs:
            self._stops[first] = stop
            heapq.heappush(self._firsts, first)


class PlaceColumns(Protocol):
    """Formats a job and its place for `jobs.csv` (see `vrm.simulation.writers.JobLines`)."""

    places: str
    text: PlacementText
    apps: TextCells

    def place(self, placement: Placement) -> tuple[str, str]:
        """Return the columns `nodes` and `cores`."""


class Placer:
    """Finds the placements of the jobs of `vrm.ext.counting.counting`. That simulation only counts free units; here
    the same jobs start again in the same order on an empty cluster, when their lines are written (with many jobs,
    in another process).

    `lines` defines which columns are written, and their format.
    """

    def __init__(self, policy: Countable, cluster: Cluster, lines: PlaceColumns) -> None:
        self._policy, self._cluster, self._lines = policy, cluster, lines
        self._sizes: dict[int, int] = {}
        self._apps: list[str] = []
        self._running: list[tuple[float, int, Any, str]] = []  # end, id, units held, its line; a heap
        self._ended = 0
        self._take: Callable[[int, int], tuple[Any, str, str]] = self._book
        self._give: Callable[[Any], object] = cluster.release
        if lines.places == "none":
            self._take, self._give = lambda job_id, procs: (None, "", ""), lambda held: None
        elif policy.first_free(Job(0, "", 1, 1.0)):
            nodes = isinstance(policy, LanePolicy)
            free = FirstFree(len(cluster.nodes) if nodes else cluster.layout.total)
            self._take, self._give = self._first_free(free, self._text(lines.text, cluster.layout)), free.give

    def _text(self, text: PlacementText, layout: CoreLayout) -> Callable[[Runs, int], tuple[str, str]]:
        """Return the function that formats the columns of a job, from its runs and its number of ranks."""
        if self._lines.places == "full":
            if isinstance(self._policy, LanePolicy):
                share = self._policy.share
                return lambda runs, procs: text.of_nodes(runs, share, procs)
            return lambda runs, procs: text.of_cores(runs, layout)
        if isinstance(self._policy, LanePolicy):
            return lambda runs, procs: (text.folded(runs), "")
        return lambda runs, procs: (text.of_cores(runs, layout)[0], "")

    def _first_free(self, free: FirstFree, columns: Callable[[Runs, int], tuple[str, str]]
                    ) -> Callable[[int, int], tuple[Any, str, str]]:
        """Return a function that takes the first free nodes or cores for a job."""
        def take(job_id: int, procs: int) -> tuple[Any, str, str]:
            size = self._sizes.get(procs)
            if size is None:
                size = self._sizes[procs] = self._policy.size(Job(0, "", procs, 1.0))
            runs = free.take(size)
            return (runs, *columns(runs, procs))
        return take

    def _book(self, job_id: int, procs: int) -> tuple[Any, str, str]:
        """Place a job with the policy; return what it holds and its columns."""
        job = Job(job_id, "", procs, 1.0)
        placement = self._policy.place(job, self._cluster)
        assert placement, "what was counted as free is not free"
        self._cluster.book(job, placement, 0.0)
        return (job_id, *self._lines.place(placement))

    def made(self, batch: Batch, refused: list[str]) -> list[str]:
        """Return the lines of the jobs that have ended since the previous batch; `refused` are the lines of refused
        jobs, in order."""
        import numpy as np
        ended, count, numbers, times, apps = batch
        self._apps += map(self._lines.apps.__getitem__, apps)
        ids, procs, app, how = np.frombuffer(numbers, np.int64).reshape(4, count).tolist()
        columns = np.frombuffer(times).reshape(4, count)
        starts, ends = columns[1].tolist(), columns[2].tolist()
        heads = zip(ids, map(self._apps.__getitem__, app), procs, *map(seconds_texts, columns),
                    ["1" if each else "0" for each in how])
        running, take, give, unwritten = self._running, self._take, self._give, iter(refused)
        made: list[str] = []
        for head, job_id, ranks, start, end, kind in zip(heads, ids, procs, starts, ends, how):
            while running and running[0][0] <= start:
                self._ended += 1
                _, _, held, line = heapq.heappop(running)
                give(held)
                made.append(line)
            if kind < 0:
                made.append(next(unwritten))
                continue
            held, nodes, cores = take(job_id, ranks)
            line = _LINE % (*head, places_cell(nodes), places_cell(cores))
            heapq.heappush(running, (end, job_id, held, line))
        while self._ended < ended:
            self._ended += 1
            _, _, held, line = heapq.heappop(running)
            give(held)
            made.append(line)
        return made

