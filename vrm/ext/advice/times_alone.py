"""Computes how long the jobs of earlier runs would have taken without neighbours. If speeds next to neighbours were
measured, replays apply them; the effect of a job's own neighbours on its run time must then not count twice."""

from __future__ import annotations

from pathlib import Path
from collections.abc import Sequence

from vrm.model import Cluster
from vrm.model.cluster import Booking
from vrm.model.node import HALF
from vrm.model.placement import Placement
from vrm.model.measured.speedups import Speedups
from vrm.results.jobs import JobRow, submitted
from vrm.results.placement_text import unfold_nodes
from vrm.ext.measured.corun import CoRunning
from vrm.ext.study.validation.replay import ValidationError, read_rules

HALVES = ("strip", "spare")
"""Placements under which jobs have half of each socket (exclusive jobs, too; the other half stays
free). Speeds are measured for this case."""


def works(file: Path, rows: Sequence[JobRow], speedups: Speedups) -> dict[int, float]:
    """Return the work of the rows of a run's jobs.csv, by index, in seconds alone on full nodes: how long each job ran
    at which speed, depending on its neighbours at the time. Empty if the state file next to it, which has the placement
    rules, is missing or shows that no job ran on halves."""
    try:
        rules, nodes = read_rules(file.parent / "state")
    except ValidationError:
        return {}
    if rules.policy not in HALVES:
        return {}
    number = {node.name: at for at, node in enumerate(nodes)}
    cluster = Cluster(nodes)
    speeds = CoRunning(cluster, speedups)
    most = max(1.0, *(value for row in speedups.pairs.values() for value in row.values()),
               *speedups.spare.values())
    bookings: dict[int, Booking] = {}
    moments: list[tuple[float, bool, int]] = []
    for at, row in enumerate(rows):
        if row.start is None or row.end is None or not row.start < row.end or not row.nodes:
            continue
        there = unfold_nodes(row.nodes)
        if all(name in number for name in there):
            mask = sum(1 << number[name] for name in there)
            try:
                job = submitted(row, row.submit)[0].but(id=at)
            except ValueError:  # invalid values for a job
                continue
            bookings[at] = Booking(job, Placement(HALF, (mask, 0), (mask,), row.procs), row.start, row.end)
            moments += [(row.start, True, at), (row.end, False, at)]
    found = {}
    for now, starts, at in sorted(moments):  # ends come first
        booking = bookings[at]
        work = (booking.expected_end - booking.start) * most  # more than it can have done
        if starts:
            cluster.bookings[at] = booking
            speeds.started(booking, work, now)
        else:
            found[at] = work - speeds.remaining(at, now)
            speeds.ended(cluster.bookings.pop(at), now)
    return found
