"""A running job on a cluster: where it runs, and when it is expected to end."""

from __future__ import annotations

from typing import NamedTuple

from vrm.model.sharing.core_share import LentCores
from vrm.model.job import Job
from vrm.model.placement import Placement


class Booking(NamedTuple):
    """A running job: its placement, start and expected end (seconds).

    `expected_end` is the start plus the expected run time, until the job has run longer than that and gets another
    estimate. `shares` lists which of its cores the job lent, and from when on (empty: it never lent any). `extra` is
    the number of seconds by which its walltime is extended, because it ran or runs with fewer cores than it requested,
    or slower. `until` is the time until which jobs that borrowed its cores are expected to run (see
    `vrm.model.sharing.loans`).
    """

    job: Job
    placement: Placement
    start: float
    expected_end: float
    shares: tuple[LentCores, ...] = ()
    extra: float = 0.0
    until: float = 0.0

    @property
    def limit(self) -> float:
        """The end of its walltime."""
        return self.start + self.job.walltime + self.extra

    @property
    def gives(self) -> float:
        """The time at which its capacity is expected to be free."""
        return self.expected_end if self.expected_end > self.until else self.until


class Watcher:
    """Observer of a cluster: is notified of every start, end and change. Subclasses override the methods that they
    need.

    A `booking` has `job`, `start`, `expected_end` (start + expected run time, seconds) and `placement`.
    """

    def booked(self, booking: Booking) -> None:
        """A job started."""

    def released(self, booking: Booking) -> None:
        """A job ended."""

    def revised(self, booking: Booking, before: float) -> None:
        """The expected end of a running job changed; `before` is the previous one (seconds)."""

    def nodes_changed(self) -> None:
        """Nodes came up or went down."""
