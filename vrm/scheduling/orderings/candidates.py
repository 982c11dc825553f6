"""The jobs that backfilling tries, in order. Those that cannot start are passed over many at once."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping

from vrm.model.job import Job

if TYPE_CHECKING:
    import numpy

Similar = Callable[[Job], tuple[Hashable, int] | None]
"""As `vrm.model.policies.CountingPolicy.similar`."""

FIRST, MOST = 64, 8192
"""Jobs that are looked at together: few behind a change, since there may be another one soon."""


class Kinds(NamedTuple):
    """The classes of jobs and their sizes in them (`Similar`), by place: the number of each class, which `numbers` has,
    or -1 for none."""

    kinds: numpy.ndarray
    weights: numpy.ndarray
    numbers: Mapping[Hashable, int]


class Candidates(Iterator[Job]):
    """The jobs at some places, in this order. With `narrow` those that are still to come become fewer, or more again.
    `similar` says of which classes they are."""

    def __init__(self, job_at: Callable[[int], Job], places: numpy.ndarray, estimates: numpy.ndarray,
                 sizes: numpy.ndarray, kinds: Callable[[], Kinds], similar: Similar | None) -> None:
        """`estimates` and `sizes` are those at the places, `kinds` has those of all places."""
        self.similar = similar
        self._job_at, self._places, self._estimates, self._sizes, self._kinds = job_at, places, estimates, sizes, kinds
        self._room, self._window, self._beside = math.inf, math.inf, 0
        self._refused: list[tuple[float, numpy.ndarray]] = []
        self._known: Kinds | None = None
        self._chunk: list[int] = []  # which of the places are next
        self._at = self._end = 0     # the next of these, and what is behind the chunk
        self._length = MOST

    def __next__(self) -> Job:
        while self._at == len(self._chunk):
            if self._end >= len(self._places):
                raise StopIteration
            self._look()
        self._at += 1
        return self._job_at(int(self._places[self._chunk[self._at - 1]]))

    def narrow(self, room: float, window: float, beside: int,
               refused: Iterable[tuple[float, Mapping[Hashable, int]]] = ()) -> None:
        """Of those to come only such as need at most `room`, and take at most `window` seconds or need at most
        `beside`; and for each of `refused` such as take at most these seconds, or are in their class smaller than the
        size that it has."""
        if self._at:
            self._end, self._length = self._chunk[self._at - 1] + 1, FIRST
            self._chunk, self._at = [], 0
        self._room, self._window, self._beside = room, window, beside
        self._refused = [(seconds, self._limits(sizes)) for seconds, sizes in refused if sizes]

    def _limits(self, sizes: Mapping[Hashable, int]) -> numpy.ndarray:
        """The smallest refused size of each class, by its number."""
        import numpy
        if self._known is None:
            kinds, weights, numbers = self._kinds()
            self._known = Kinds(kinds[self._places], weights[self._places], numbers)
        limits = numpy.full(len(self._known.numbers) + 1, math.inf)  # the last one is that of no class
        for kind, size in sizes.items():
            if kind in self._known.numbers:
                limits[self._known.numbers[kind]] = size
        return limits

    def _look(self) -> None:
        """Find the next ones."""
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
