"""A running job on a cluster: where it is, and when it is expected to end."""

from __future__ import annotations

from typing import NamedTuple

from vrm.model.sharing.core_share import LentCores
from vrm.model.job import Job
from vrm.model.placement import Placement


class Booking(NamedTuple):
    """A running job: its placement, start, and expected end, in seconds. That is the start and the
    expected run time, until the job has outlived it and something else is expected.

    `shares` say from when on it has lent which of its cores; none: it never did. `extra` are the
    seconds by which its walltime is longer, since it ran or runs with fewer cores than it asked for, or slower.
    `until`: how long jobs that borrowed cores of it are expected to run (see `vrm.model.sharing.loans`).
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
        """When its room is expected to be free."""
        return self.expected_end if self.expected_end > self.until else self.until


class Watcher:
    """Hears of every start, end and change on a cluster; a subclass says what it does then.

    `booking` has `job`, `start`, `expected_end` (start + expected run time, s) and `placement`.
    """

    def booked(self, booking: Booking) -> None:
        """A job starts."""

    def released(self, booking: Booking) -> None:
        """A job has ended."""

    def revised(self, booking: Booking, before: float) -> None:
        """A job that runs is expected to end otherwise than `before` (s)."""

    def nodes_changed(self) -> None:
        """Nodes came or went."""
