"""Finds recorded starts of jobs that cannot be running any more, because other jobs got their cores afterwards."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from vrm.model import Placement
from vrm.model.placement import CoreLayout


class LaterHoldings:
    """What some placements hold together: lanes of nodes, cores, and devices. Cores on loan count as held by the borrower."""

    def __init__(self, layout: CoreLayout) -> None:
        self._layout = layout
        self._lane0 = self._lane1 = self._cores = 0
        self._devices: set[tuple[int, str, int]] = set()

    def add(self, placement: Placement) -> None:
        """Add what a placement holds."""
        lane0, lane1, cores = placement.room
        self._lane0 |= lane0
        self._lane1 |= lane1
        self._cores |= cores | placement.taken
        self._devices.update(_devices(placement))

    def overlaps(self, placement: Placement) -> bool:
        """Return whether a placement holds something of it."""
        lane0, lane1, cores = placement.room
        cores |= placement.taken
        return bool(self._lane0 & lane0 or self._lane1 & lane1 or self._cores & cores
                    or (self._cores and (lane0 | lane1) & self._layout.nodes_of(self._cores))
                    or (cores and (self._lane0 | self._lane1) & self._layout.nodes_of(cores))
                    or not self._devices.isdisjoint(_devices(placement)))


def _devices(placement: Placement) -> Iterable[tuple[int, str, int]]:
    return ((node, name, index) for node, by_name in placement.devices.items() for name, indices in by_name.items()
            for index in indices)


def superseded(placements: dict[int, Placement], borrowers: Mapping[int, Collection[int]], layout: CoreLayout) -> set[int]:
    """Return the jobs that had ended when a later one was started on some of their cores or devices.

    `placements` has the placements by job, in the order of their starts. A job in `borrowers[lender]` borrows from the
    lender, so it may run on cores of the lender, which runs as well.
    """
    found: set[int] = set()
    all_later, later = LaterHoldings(layout), list[int]()
    for job_id in reversed(placements):
        held = all_later
        if borrowers.get(job_id):
            held = LaterHoldings(layout)
            for other in later:
                if other not in borrowers[job_id]:
                    held.add(placements[other])
        if held.overlaps(placements[job_id]):
            found.add(job_id)
        all_later.add(placements[job_id])
        later.append(job_id)
    return found
