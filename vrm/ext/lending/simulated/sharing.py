"""Statistics of the cores that jobs shared in a run."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Protocol
from collections.abc import Iterable, Iterator, Mapping

from vrm.model.booking import Booking, Watcher
from vrm.results.shares import mates_of
from vrm.results.metrics import THRESHOLD, bounded_slowdown


class TimedRun(Protocol):
    """A job that has run."""

    @property
    def id(self) -> int: ...

    @property
    def submit(self) -> float: ...

    @property
    def start(self) -> float: ...

    @property
    def end(self) -> float: ...


class Slowdowns(NamedTuple):
    """Means over jobs: response time (seconds), slowdown, and bounded slowdown."""

    response: float
    slowdown: float
    bounded: float


def slowdowns(jobs: Iterable[TimedRun], runs: Mapping[int, float], threshold: float = THRESHOLD) -> Slowdowns:
    """Return the mean slowdowns, based on the run times (s) that the jobs have on all their cores, so that a
    stretched run does not improve them. A run time below one second counts as one second. Zeros if no job ran."""
    found: list[tuple[float, float, float]] = []
    for job in jobs:
        response, run = job.end - job.submit, max(1.0, runs[job.id])
        found.append((response, response / run, bounded_slowdown(response, run, threshold)))
    if not found:
        return Slowdowns(0.0, 0.0, 0.0)
    return Slowdowns(*(math.fsum(values) / len(found) for values in zip(*found)))


class Sharing(Watcher):
    """Observer of a cluster that records which jobs borrowed from which, and how long jobs run on all their cores."""

    def __init__(self) -> None:
        self.runs: dict[int, float] = {}
        self.borrowers: dict[int, tuple[int, ...]] = {}

    def noting(self, submissions: Iterable[Any]) -> Iterator[Any]:
        """Yield the same submissions, and record their run times."""
        for one in submissions:
            self.runs[one.job.id] = one.run
            yield one

    def booked(self, booking: Booking) -> None:
        """A job has started: record its lenders."""
        if booking.placement.lease is not None:
            self.borrowers[booking.job.id] = mates_of(booking)

    def summary(self, jobs: Iterable[TimedRun], threshold: float = THRESHOLD) -> dict[str, Any]:
        """Return the number of jobs that started on borrowed cores, the number of lenders, and mean slowdowns based
        on the run times on all cores."""
        lenders: set[int] = set()
        for mates in self.borrowers.values():
            lenders.update(mates)
        means = slowdowns(jobs, self.runs, threshold)
        return {"borrowers": len(self.borrowers), "lenders": len(lenders),
                "average_slowdown_full_cores": means.slowdown,
                "average_bounded_slowdown_full_cores": means.bounded}
