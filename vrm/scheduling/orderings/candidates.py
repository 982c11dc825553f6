"""The jobs that backfilling tries, in order. Jobs that cannot start are skipped in bulk."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping

from vrm.model.job import Job

if TYPE_CHECKING:
    import numpy

Similar = Callable[[Job], tuple[Hashable, int] | None]
"""The type of `vrm.model.policies.CountingPolicy.similar`."""

FIRST, MOST = 64, 8192
"""Smallest and largest number of jobs that are checked together: few after a change, because another one may follow
soon."""


class JobClasses(NamedTuple):
    """The classes of jobs and their sizes in them (see `Similar`), by index: the number of each class (`numbers` maps
    classes to numbers; -1: no class), and the size."""

    kinds: numpy.ndarray
    weights: numpy.ndarray
    numbers: Mapping[Hashable, int]


class Candidates(Iterator[Job]):
    """The jobs at some indices, in this order. `narrow` changes which of the remaining ones are skipped. `similar`
    defines their classes."""

    def __init__(self, job_at: Callable[[int], Job], places: numpy.ndarray, estimates: numpy.ndarray,
                 sizes: numpy.ndarray, kinds: Callable[[], JobClasses], similar: Similar | None) -> None:
        """`estimates` and `sizes` are those at the `places`; `kinds` returns those of all jobs."""
        self.similar = similar
        self._job_at, self._places, self._estimates, self._sizes, self._kinds = job_at, places, estimates, sizes, kinds
        self._room, self._window, self._beside = math.inf, math.inf, 0
        self._refused: list[tuple[float, numpy.ndarray]] = []
        self._known: JobClasses | None = None
        self._chunk: list[int] = []  # indices into the places that come next
        self._at = self._end = 0     # the next index, and the end of the chunk
        self._length = MOST

    def __next__(self) -> Job:
        while self._at == len(self._chunk):
            if self._end >= len(self._places):
                raise StopIteration
            self._look()
        self._at += 1
        return self._job_at(int(self._places[self._chunk[self._at - 1]]))

    def narrow(self, room: float, window: float, extra: int,
               refused: Iterable[tuple[float, Mapping[Hashable, int]]] = ()) -> None:
        """Restrict the remaining jobs to those that need at most `room` and take at most `window` seconds or need at
        most `extra`, and that for each entry of `refused` take at most its seconds or are smaller than its size for
        their class."""
        if self._at:
            self._end, self._length = self._chunk[self._at - 1] + 1, FIRST
            self._chunk, self._at = [], 0
        self._room, self._window, self._beside = room, window, extra
        self._refused = [(seconds, self._limits(sizes)) for seconds, sizes in refused if sizes]

    def _limits(self, sizes: Mapping[Hashable, int]) -> numpy.ndarray:
        """Return the smallest refused size of each class, by the number of the class."""
        import numpy
        if self._known is None:
            kinds, weights, numbers = self._kinds()
            self._known = JobClasses(kinds[self._places], weights[self._places], numbers)
        limits = numpy.full(len(self._known.numbers) + 1, math.inf)  # the last entry is for jobs without a class
        for kind, size in sizes.items():
            if kind in self._known.numbers:
                limits[self._known.numbers[kind]] = size
        return limits

    def _look(self) -> None:
        """Find the next chunk of jobs."""
        begin, self._end = self._end, self._end + self._length
        self._length = min(2 * self._length, MOST)
        here = slice(begin, self._end)
        sizes, seconds = self._sizes[here], self._estimates[here]
        fits = sizes <= self._room
        if self._window < math.inf:
            fits &= (seconds <= self._window) | (sizes <= self._beside)
        for most, limits in self._refused:
            assert self._known is not None
            fits &= (seconds <= most) | (self._known.weights[here] < limits[self._known.kinds[here]])
        self._chunk, self._at = (fits.nonzero()[0] + begin).tolist(), 0
