"""Advance reservations: nodes that are kept free of other jobs during a span of time.

From `begin` to `end`, the nodes of a reservation belong to the jobs that are bound to it. A job that is bound to no
reservation, or to another one, does not start on these nodes if its walltime reaches into that span. So no job has to
be stopped: every earlier job has ended before the begin, by its walltime. Bound jobs start once the reservation has
begun, on its nodes, and only if they end before its end, by their walltimes: jobs after the reservation are never
delayed by it.

A `Calendar` has the reservations of one cluster. It is a property of a view of the machine
(`vrm.model.cluster.Pool.calendar`), like the nodes; which nodes it closes depends on the time of the view.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple
from collections.abc import Iterable

LATEST = 60.0
"""Maximum delay (seconds) with which a reservation may be opened (by a busy manager) so that its jobs still get their
full time."""


class ReservationError(ValueError):
    """The reservation is impossible; the text says why and what to change."""


@dataclass(frozen=True)
class ReservationRequest:
    """A requested reservation: `number` nodes, or those named in `nodes`, from `begin` to `end` (seconds of the run's
    clock; -inf: from now on), for `jobs` (ids) and for jobs that name it (`name`; "": it gets a name)."""

    begin: float
    end: float
    number: int = 0
    nodes: tuple[str, ...] = ()
    name: str = ""
    jobs: tuple[int, ...] = ()


@dataclass(frozen=True)
class Reservation:
    """An accepted reservation. Times are seconds of the run's clock. `opened` is when its jobs could first start;
    infinity before that."""

    id: int
    name: str
    nodes: tuple[str, ...]
    begin: float
    end: float
    opened: float = math.inf

    @property
    def limit(self) -> float:
        """The time by which a bound job must have ended, by its walltime: the end. If the manager opened the
        reservation up to LATEST seconds late, the limit is later by the same time."""
        late = self.opened - self.begin
        return self.end + late if 0 < late <= LATEST else self.end

    def overlaps(self, begin: float, end: float) -> bool:
        """Return whether it has any time in common with this span."""
        return self.begin < end and self.end > begin


class Span(NamedTuple):
    """A reservation and its nodes, as a set of nodes of the cluster."""

    reservation: Reservation
    nodes: int


class Calendar:
    """The reservations of a cluster, earliest first. Immutable: a change makes another calendar."""

    __slots__ = ("spans",)

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        self.spans = tuple(sorted(spans, key=lambda span: (span.reservation.begin,
                                                           span.reservation.id)))

    def __bool__(self) -> bool:
        return bool(self.spans)

    def closed(self, begin: float, end: float) -> int:
        """Return the nodes on which a job that is bound to no reservation must not run from `begin` to `end`."""
        nodes = 0
        for reservation, those in self.spans:
            if reservation.begin < end and reservation.end > begin:
                nodes |= those
        return nodes

    def boundaries(self, after: float) -> list[float]:
        """Return the begins and ends that are later than `after`, ascending."""
        return sorted({time for reservation, _ in self.spans
                       for time in (reservation.begin, reservation.end) if time > after})

    def next(self, now: float) -> float:
        """Return the first boundary after `now`; infinity if there is none."""
        return min(self.boundaries(now), default=math.inf)

    def open(self, now: float) -> list[Span]:
        """Return the reservations that are open: opened and not ended."""
        return [span for span in self.spans
                if span.reservation.opened <= now < span.reservation.end]

    def of(self, reservation_id: int) -> Span | None:
        """Return the reservation with that id, and its nodes; None if there is none."""
        return next((span for span in self.spans if span.reservation.id == reservation_id), None)

    def covers(self, nodes: int, begin: float, end: float) -> bool:
        """Return whether one reservation has all these nodes during a whole span of time."""
        return any(not nodes & ~those and reservation.begin <= begin and end <= reservation.end
                   for reservation, those in self.spans)

    def blocking_reservation(self, nodes: int, begin: float, end: float) -> Reservation | None:
        """Return the first reservation that has one of these nodes in a span of time; None if there is none."""
        return next((reservation for reservation, those in self.spans
                     if those & nodes and reservation.overlaps(begin, end)), None)


NO_CALENDAR = Calendar()
