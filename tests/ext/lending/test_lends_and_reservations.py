"""Lends and advance reservations: no job runs into one since it lends or has fewer cores than it asked for."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from vrm.model import Booking, Cluster, Job
from vrm.model.reservation import Calendar, Reservation, Span, ReservationRequest
from vrm.scheduling import make_policy
from vrm.ext.lending.offers import borrowed, offer, reserved
from vrm.ext.lending.slowdown import SlowdownDriven
from vrm.api import Machine, Recording, Rules, Timetable, Watcher, simulate
from vrm.workload.submission import Submission

Rows = list[tuple[int, int, int, float]]


def submissions(rows: Rows) -> list[Submission]:
    """Jobs (seconds until the next one, nodes, walltime, the share of it that they take) with a rank of two cores
    on each socket."""
    time, found = 0, []
    for number, (later, nodes, walltime, part) in enumerate(rows):
        time += later
        found.append(Submission(Job(number, "a", 2 * nodes, walltime, time, cores=2, malleable=True), walltime * part))
    return found


class Placed(Watcher):
    """The nodes of jobs."""

    def __init__(self) -> None:
        self.nodes: dict[int, tuple[int, ...]] = {}

    def booked(self, booking: Booking) -> None:
        self.nodes[booking.job.id] = tuple(booking.placement.nodes)


def ran(rows: Rows, wanted: list[ReservationRequest], placed: Placed | None = None) -> dict[int, Any]:
    outcome = simulate(submissions(rows), Machine.of(4, sockets=2, cores=2),
                       Rules(backfill=SlowdownDriven(math.inf, always=True)), timetable=Timetable(reservations=wanted),
                       record=Recording(watchers=[placed] if placed else []))
    return {row.id: row for row in outcome.jobs}


jobs = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 4), st.integers(2, 300), st.sampled_from([0.5, 1.0])),
                min_size=2, max_size=12)
spans = st.lists(st.tuples(st.integers(1, 200), st.integers(1, 200), st.integers(1, 4)), min_size=1, max_size=3)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(jobs, spans)
def test_nobody_is_on_reserved_nodes(rows: Rows, spans: list[tuple[int, int, int]]) -> None:
    """Though each node has as many jobs as it can, by lends whether they pay or not."""
    wanted, begin, closed = [], 0.0, []
    for later, length, nodes in spans:
        begin += later
        wanted.append(ReservationRequest(begin, begin + length, nodes=tuple(f"n{node}" for node in range(nodes))))
        closed.append((begin, begin + length, nodes))
        begin += length
    placed = Placed()
    for row in ran(rows, wanted, placed).values():
        for begin, end, nodes in closed:
            assert not (min(placed.nodes[row.id]) < nodes and row.start < end - 1e-6 and row.end > begin + 1e-6), (row, begin, end)


def test_who_would_reach_into_one_does_not_borrow_and_nobody_lends_to_it() -> None:
    rows = [(0, 4, 200, 1.0), (10, 4, 40, 1.0)]
    free = ran(rows, [])
    assert (free[1].start, free[1].end, free[0].end) == (10, 90, 240)
    # The lender would end at 240 at the latest; the borrower has left long before.
    late, early = [ReservationRequest(240, 300, number=1)], [ReservationRequest(239, 300, number=1)]
    assert ran(rows, late)[1].start == 10
    assert ran(rows, early)[1].start == 300 and ran(rows, early)[0].end == 200


@pytest.mark.parametrize("begin, end, opened, why", [
    (149, 900, math.inf, "with fewer cores than it asked for job 0 could run into reservation r"),
    (95, 900, math.inf, "with fewer cores than it asked for job 1 could run into reservation r"),
    (-5, 130, 0, "with fewer cores than it asked for job 1 could run into reservation r"),
    (150, 900, math.inf, ""),
])
def test_the_reason_is_said(begin: float, end: float, opened: float, why: str) -> None:
    """Job 0 of 100 s lends half of its cores to job 1 of 50 s, which takes 100: it ends at 150."""
    cluster = Cluster.regular(1, 1, 4)
    policy = make_policy("compact", cluster)
    lender, other = (Job(number, "a", 1, walltime, 0.0, cores=4, malleable=True)
                     for number, walltime in ((0, 100), (1, 50)))
    placed = policy.place(lender, cluster)
    assert placed
    cluster.book(lender, placed, 0.0)
    cluster.set_calendar(Calendar([Span(Reservation(1, "r", ("n0",), begin, end, opened), 1)]))
    lent = [(0, offer(cluster, 0).cores)]
    placement = borrowed(other, cluster, lent, shrinks=True)
    assert placement
    assert reserved(cluster, lent, 0.0, other, placement) == why
    if begin < 0:  # its own: whoever comes behind it is never late for it
        assert reserved(cluster, lent, 0.0) == "job 0 could run longer than reservation r, in which it is"
    else:
        assert bool(reserved(cluster, lent, 0.0)) == (begin < 200)
