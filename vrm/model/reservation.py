"""Advance reservations: nodes that are kept free of other jobs from one time to another.

A reservation has its nodes from `begin` to `end` for the jobs that are bound to it. A job that is
bound to none, or to another, does not start on them where its walltime reaches into that span. So
nobody has to leave: whoever was there has ended by the begin, by its walltime. Bound jobs start when
the reservation has begun, on its nodes, and only if they end by its end, by their walltimes: whoever
comes behind the reservation is never delayed by it.

A `Calendar` are the reservations of one cluster. It is a fact that a view of the machine has
(`vrm.model.cluster.Pool.calendar`), like its nodes; what it closes depends on the time of the view.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple
from collections.abc import Iterable

LATEST = 60.0
"""Seconds by which a reservation may be opened late (a busy manager) without loss to its jobs."""


class ReservationError(ValueError):
    """A reservation that cannot be; the text says why and what to change."""


@dataclass(frozen=True)
class ReservationRequest:
    """A reservation that somebody asks for: `number` nodes, or those named in `nodes`, from `begin`
    to `end` (seconds of the run's clock; -inf: from now on), for `jobs` (ids) and for those that
    name it (`name`, "": it gets one)."""

    begin: float
    end: float
    number: int = 0
    nodes: tuple[str, ...] = ()
    name: str = ""
    jobs: tuple[int, ...] = ()


@dataclass(frozen=True)
class Reservation:
    """A reservation that was made. Times are seconds of the run's clock. `opened` is when its jobs
    could start for the first time, infinity before that."""

    id: int
    name: str
    nodes: tuple[str, ...]
    begin: float
    end: float
    opened: float = math.inf

    @property
    def limit(self) -> float:
        """By when a bound job must have ended, by its walltime: the end. Where the manager opened the
        reservation a moment late, its jobs have as much time as if it had not."""
        late = self.opened - self.begin
        return self.end + late if 0 < late <= LATEST else self.end

    def overlaps(self, begin: float, end: float) -> bool:
        """Whether it has any time in common with this span."""
        return self.begin < end and self.end > begin


class Span(NamedTuple):
    """A reservation and its nodes, as a set of nodes of the cluster."""

    reservation: Reservation
    nodes: int


class Calendar:
    """The reservations of a cluster, earliest first; never changed, a change makes another one."""

    __slots__ = ("spans",)

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        self.spans = tuple(sorted(spans, key=lambda span: (span.reservation.begin,
                                                           span.reservation.id)))

    def __bool__(self) -> bool:
        return bool(self.spans)

    def closed(self, begin: float, end: float) -> int:
        """The nodes on which a job that is bound to none must not be from `begin` to `end`."""
        nodes = 0
        for reservation, those in self.spans:
            if reservation.begin < end and reservation.end > begin:
                nodes |= those
        return nodes

    def boundaries(self, after: float) -> list[float]:
        """The begins and ends that are later, in order."""
        return sorted({time for reservation, _ in self.spans
                       for time in (reservation.begin, reservation.end) if time > after})

    def next(self, now: float) -> float:
        """The first of these; infinity where there is none."""
        return min(self.boundaries(now), default=math.inf)

    def open(self, now: float) -> list[Span]:
        """The reservations that have begun and not ended."""
        return [span for span in self.spans
                if span.reservation.opened <= now < span.reservation.end]

    def of(self, reservation_id: int) -> Span | None:
        """The reservation of that id, and its nodes."""
        return next((span for span in self.spans if span.reservation.id == reservation_id), None)

    def covers(self, nodes: int, begin: float, end: float) -> bool:
        """Whether one reservation has all these nodes for all of a span of time."""
        return any(not nodes & ~those and reservation.begin <= begin and end <= reservation.end
                   for reservation, those in self.spans)

    def in_the_way(self, nodes: int, begin: float, end: float) -> Reservation | None:
        """The first reservation that has one of these nodes in a span of time."""
        return next((reservation for reservation, those in self.spans
                     if those & nodes and reservation.overlaps(begin, end)), None)


NO_CALENDAR = Calendar()
