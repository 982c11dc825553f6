"""Storage of the jobs of a queue: sorted for a fixed order, otherwise in slots; with parallel columns for what is
computed for all jobs at once."""

from __future__ import annotations

import bisect
import copy
import math
from array import array
from typing import TYPE_CHECKING, Any
from collections.abc import Callable, Hashable, Sequence

from vrm.model.job import Job
from vrm.scheduling.orderings.candidates import JobClasses, Similar

if TYPE_CHECKING:
    import numpy

Columns = tuple["array[float]", "array[int]", "array[int]"]
"""Estimates, sizes and nodes."""


class SortedJobs:
    """Jobs that are kept sorted: each of the `entries` has the parts of the sort key, then the job. `first` is the
    index of the head, so that removing it does not move all others."""

    def __init__(self, nodes_of: Callable[[Job], int], size_of: Callable[[Job], int]) -> None:
        self._nodes_of, self._size_of = nodes_of, size_of
        self.entries: list[tuple[Any, ...]] = []
        self.first = 0
        self._columns: Columns | None = None
        self._kinds: ClassColumns | None = None

    def copy(self) -> SortedJobs:
        """Return an independent copy."""
        twin = copy.copy(self)
        twin.entries = list(self.entries)
        if self._columns is not None:
            estimates, sizes, nodes = self._columns
            twin._columns = estimates[:], sizes[:], nodes[:]
        twin._kinds = self._kinds and self._kinds.copy()
        return twin

    def prepend(self, part: float) -> None:
        """Insert a part in front of all keys."""
        self.entries = [(part, *entry) for entry in self.entries[self.first:]]
        self.first = 0

    def add(self, key: tuple[float, ...], job: Job, nodes: int) -> None:
        """Add a job, which needs `nodes` nodes."""
        entries, entry = self.entries, (*key, job)
        if self.first == len(entries):
            entries.clear()
            self.first = 0
        at = len(entries) if not entries or entry > entries[-1] else bisect.bisect(entries, entry, self.first)
        entries.insert(at, entry)
        if self._columns is not None:
            for column, value in zip(self._columns, (job.expected, self._size_of(job), nodes)):
                column.insert(at - self.first, value)  # type: ignore[attr-defined]
        if self._kinds is not None:
            self._kinds.insert(at - self.first, job)

    def remove(self, key: tuple[float, ...], job: Job) -> None:
        """Remove a job."""
        at = bisect.bisect_left(self.entries, (*key, job), self.first)
        if at == self.first:
            self.remove_first()
            return
        del self.entries[at]
        for column in (*(self._columns or ()), *(self._kinds.columns if self._kinds else ())):
            del column[at - self.first]

    def remove_first(self) -> None:
        """Remove the head."""
        for column in (*(self._columns or ()), *(self._kinds.columns if self._kinds else ())):
            del column[0]
        self.entries[self.first] = None  # type: ignore[call-overload]  # release the reference to the job
        self.first += 1
        if self.first > 1000 and self.first * 2 > len(self.entries):
            del self.entries[:self.first]
            self.first = 0

    def columns(self) -> Columns:
        """Return the estimates, sizes and nodes of the jobs; kept up to date from the first call on."""
        if self._columns is None:
            jobs = [entry[-1] for entry in self.entries[self.first:]]
            self._columns = (array("d", [job.expected for job in jobs]), array("q", map(self._size_of, jobs)),
                             array("q", map(self._nodes_of, jobs)))
        return self._columns

    def kinds(self, similar: Similar | None) -> JobClasses:
        """Return the classes of the jobs; kept up to date from the first call on."""
        if self._kinds is None:
            self._kinds = ClassColumns(similar, [entry[-1] for entry in self.entries[self.first:]])
        return self._kinds.arrays()


class ClassColumns:
    """The classes of jobs (see `Similar`) as columns: the numbers of the classes, and the sizes in them."""

    def __init__(self, similar: Similar | None, jobs: Sequence[Job]) -> None:
        self._similar = similar
        self._numbers: dict[Hashable, int] = {}
        self.columns = array("q"), array("q")
        for job in jobs:
            self.insert(len(self.columns[0]), job)

    def copy(self) -> ClassColumns:
        """Return an independent copy."""
        twin = copy.copy(self)
        twin._numbers = dict(self._numbers)
        twin.columns = self.columns[0][:], self.columns[1][:]
        return twin

    def insert(self, at: int, job: Job) -> None:
        """Insert a job at an index."""
        found = self._similar(job) if self._similar is not None else None
        kind, weight = (-1, 0) if found is None else (self._numbers.setdefault(found[0], len(self._numbers)), found[1])
        for column, value in zip(self.columns, (kind, weight)):
            column.insert(at, value)

    def arrays(self) -> JobClasses:
        """Return the columns as arrays; they are valid until the next change."""
        import numpy
        kinds, weights = (numpy.frombuffer(column, numpy.int64) for column in self.columns)
        return JobClasses(kinds, weights, self._numbers)


class SlottedJobs:
    """Jobs without an order, in `slots`, with columns of the values from which utilities are computed."""

    def __init__(self) -> None:
        self.slots: list[Job] = []
        self._slot_of: dict[int, int] = {}
        self._kinds: ClassColumns | None = None
        self._take((array("d"), array("d"), array("q"), array("q"), array("q"), array("q")))

    def _take(self, columns: tuple[Any, ...]) -> None:
        self._columns = columns
        self.estimates, self.submits, self.sizes, self.nodes, self.procs, self.ids = columns

    def copy(self) -> SlottedJobs:
        """Return an independent copy."""
        twin = copy.copy(self)
        twin.slots, twin._slot_of = list(self.slots), dict(self._slot_of)
        twin._take(tuple(column[:] for column in self._columns))
        twin._kinds = self._kinds and self._kinds.copy()
        return twin

    def slot_of(self, job: Job) -> int:
        """Return the slot of a job."""
        return self._slot_of[job.id]

    def kinds(self, similar: Similar | None) -> JobClasses:
        """Return the classes of the jobs; kept up to date from the first call on."""
        if self._kinds is None:
            self._kinds = ClassColumns(similar, self.slots)
        return self._kinds.arrays()

    def add(self, job: Job, size: int, nodes: int) -> None:
        """Add a job."""
        self._slot_of[job.id] = len(self.slots)
        self.slots.append(job)
        for column, value in zip(self._columns, (job.expected, job.submit, size, nodes, job.procs, job.id)):
            column.append(value)
        if self._kinds is not None:
            self._kinds.insert(len(self.slots) - 1, job)

    def remove(self, job: Job) -> None:
        """Remove a job; the last one takes its slot."""
        slot, last = self._slot_of.pop(job.id), self.slots[-1]
        for column in (self.slots, *self._columns, *(self._kinds.columns if self._kinds else ())):
            column[slot] = column[-1]
            column.pop()
        if last is not job:
            self._slot_of[last.id] = slot

    def utilities(self, vector: Callable[[Any], Any], now: float) -> numpy.ndarray:
        """Return the utilities of the slots, computed with an ordering's `vector`; minus infinity for what is not a
        number."""
        import numpy
        submit = numpy.frombuffer(self.submits)
        with numpy.errstate(all="ignore"):
            whole = [numpy.frombuffer(column, numpy.int64).astype(float)
                     for column in (self.nodes, self.procs, self.ids)]
            found = vector((now - submit, numpy.frombuffer(self.estimates), whole[0], whole[1], submit, whole[2]))
        found = numpy.array(found, dtype=float)  # a copy, because it is changed below
        found[numpy.isnan(found)] = -math.inf
        return found
