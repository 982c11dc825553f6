"""Advance reservations in the state of a run: what stands against one, which nodes it gets, and what a
journal tells of it."""

from __future__ import annotations

import argparse
import time
from typing import Any

import pytest

from vrm.commands.shared import CannotRun
from vrm.ext.reserve.commands import reserve as command
from vrm.model import Cluster, Job
from vrm.model.job import Details
from vrm.model.reservation import Reservation, ReservationError, ReservationRequest
from vrm.run.journal import codec
from vrm.run.journal import files as journal
from vrm.run.entry import JobStateError
from vrm.run.journal.history import replay
from vrm.run.run import Run
from vrm.run.state import State
from vrm.scheduling import Scheduler, make_backfilling, make_ordering, make_policy


def run_of(nodes: int = 4, backfilling: str = "easy") -> Run:
    cluster = Cluster.regular(nodes, 1, 1)
    scheduler = Scheduler(make_ordering("FCFS"), make_backfilling(backfilling),
                          make_policy("compact", cluster))
    return Run(State(scheduler.new_queue(), cluster), scheduler)


def busy() -> State:
    """Job 0 runs on n0 until 600; job 1, of 3 nodes and 900 s, waits; n2 is reserved by a."""
    run = run_of(3)
    run.state.submit([Job(0, "a.x", 1, 600.0)])
    run.step(0.0)
    run.state.submit([Job(1, "b.x", 3, 900.0)])
    run.state.reservations.reserve(ReservationRequest(3600, 7200, nodes=("n2",), name="a"), 0.0)
    return run.state


@pytest.mark.parametrize("wanted, said", [
    (ReservationRequest(0, 100, 4), "4 nodes are asked for, and the run has 3"),
    (ReservationRequest(10, 3000, 3), "2 of 3 nodes are free of other jobs and reservations then: node n0, for one, "
                          "has job 0 until 600 s by its walltime"),
    (ReservationRequest(5000, 9000, nodes=("n1", "n2")), "node n2 is in reservation a from 3600 s to 7200 s"),
    (ReservationRequest(10, 20, nodes=("n9",)), "no node is called n9; the nodes are n0 to n2"),
    (ReservationRequest(10, 20, 3, nodes=("n1",)), "3 node(s) are asked for and 1 are named"),
    (ReservationRequest(10, 20), "how many nodes are to be reserved, or which?"),
    (ReservationRequest(-500, 20, 1), "the begin, -500 s, is in the past: it is 0 s"),
    (ReservationRequest(200, 100, 1), "a reservation ends after it begins, and this one would begin at 200 s"),
    (ReservationRequest(10, 20, 1, name="a"), "there is a reservation a already"),
    (ReservationRequest(10, 20, 1, name="3 x"), "`3 x` is not a name"),
    (ReservationRequest(10, 2000, 2, jobs=(1,)), "job 1 needs 3 nodes, and reservation r2 has 2"),
    (ReservationRequest(700, 800, 3, jobs=(1,)), "job 1 may run for 900 s, and reservation r2 lasts 100 s"),
    (ReservationRequest(10, 20, 1, jobs=(7,)), "there is no job 7"),
    (ReservationRequest(10, 20, 1, jobs=(0,)), "job 0 does not wait: it is running")])
def test_what_stands_against_a_reservation(wanted: ReservationRequest, said: str) -> None:
    state = busy()
    before = dict(state.reservations), dict(state.queue.bound), state.cluster.calendar
    with pytest.raises(ReservationError) as error:
        state.reservations.reserve(wanted, 0.0)
    assert said in str(error.value) and "\n" not in str(error.value)
    assert before == (state.reservations, state.queue.bound, state.cluster.calendar)


def test_a_job_that_fits_nowhere_is_unfit_for_a_reservation_with_the_reason() -> None:
    reservations = busy().reservations
    why = reservations.unfit(Job(9, "b.x", 4, 60.0), reservations.named("a"), 0.0)
    assert why == "4 ranks do not fit on 3 node(s) under compact, which holds at most 3 of them"


def test_nodes_that_are_down_are_not_chosen() -> None:
    state = busy()
    state.cluster.set_up(1, False)
    with pytest.raises(ReservationError, match="node n1 is down"):
        state.reservations.reserve(ReservationRequest(10, 20, nodes=("n1",)), 0.0)
    assert state.reservations.reserve(ReservationRequest(700, 800, 2), 0.0).nodes == ("n0", "n2")


def test_a_begin_that_has_just_passed_is_now() -> None:
    assert busy().reservations.reserve(ReservationRequest(-5, 100, 1), 0.0).begin == 0


def test_a_job_is_bound_to_one_reservation() -> None:
    state = busy()
    state.reservations.reserve(ReservationRequest(8000, 9000, 3, name="b", jobs=(1,)), 0.0)
    with pytest.raises(ReservationError, match="job 1 is bound to reservation b already"):
        state.reservations.reserve(ReservationRequest(10000, 12000, 3, jobs=(1,)), 0.0)
    with pytest.raises(JobStateError, match="there is no reservation c; there are a, b"):
        state.submit([Job(2, "c.x", 1, 9.0)], Details(more={"reservation": "c"}))


def test_a_journal_tells_of_reservations() -> None:
    run = run_of()
    records: list[dict[str, Any]] = [{"event": "run", "run": "a", "format": 2,
                                      "nodes": codec.nodes_record(run.state.cluster.nodes)}]
    run.state.log = lambda event, **values: records.append({"event": event, **values})
    state = run.state
    state.submit([Job(0, "a.x", 2, 50.0)])
    state.reservations.reserve(ReservationRequest(100, 200, 2, name="demo"), 0.0)
    state.reservations.reserve(ReservationRequest(300, 400, 3, name="gone"), 0.0)
    state.submit([Job(1, "a.x", 2, 50.0), Job(2, "a.x", 2, 50.0)],
                 Details(more={"reservation": "demo"}), indices=(0, 1))
    run.step(0.0)
    state.reservations.cancel(2, 5.0, "cancelled")
    past = replay(records).state
    assert past.reservations == state.reservations and past.queue.bound == {1: 1, 2: 1}
    assert past.reservations.next_id == state.reservations.next_id == 3
    for broken in ({"event": "unreserve", "reservation": 2, "time": 1.0, "reason": ""},
                   {**records[2], "time": 9.0}, {**records[2], "reservation": 7, "jobs_bound": [-1]}):
        with pytest.raises(journal.JournalError):
            replay([*records, broken])
    # Another state of the same jobs, as forecasts make it, goes on as this one does.
    twin = run.copy()
    for each in (run, twin):
        starts = {start.job.id: now for now in (50.0, 100.0, 150.0) for start in _step(each, now)}
        assert starts == {1: 100.0, 2: 150.0}
    assert state.reservations[1] == Reservation(1, "demo", ("n2", "n3"), 100, 200, 100.0)


def _step(run: Run, now: float) -> list[Any]:
    """End what has ended, and decide."""
    for _, job_id in [each for each in run.state.cluster.ends if each[0] <= now]:
        run.state.release_cores(job_id)
    return run.step(now)


def test_jobs_that_were_not_started_compete_again_when_it_is_over() -> None:
    run = run_of()
    run.state.reservations.reserve(ReservationRequest(0, 100, 4, name="demo"), 0.0)
    run.state.submit([Job(0, "a.x", 4, 80.0)], Details(more={"reservation": "demo"}))
    run.state.submit([Job(1, "a.x", 4, 80.0)], Details(more={"reservation": "demo"}))
    assert [start.job.id for start in _step(run, 0.0)] == [0]
    assert _step(run, 80.0) == [] and run.wake(80.0) == 100.0  # 20 s are left of it
    assert [start.job.id for start in _step(run, 100.0)] == [1]
    assert not run.state.reservations and not run.state.queue.bound and not run.state.cluster.calendar


def test_a_reservation_that_is_opened_late_is_as_long_for_its_jobs() -> None:
    run = run_of()
    run.state.reservations.reserve(ReservationRequest(100, 200, 4, name="demo"), 0.0)
    run.state.submit([Job(0, "a.x", 4, 100.0)], Details(more={"reservation": "demo"}))
    assert [start.job.id for start in _step(run, 100.25)] == [0]


@pytest.mark.parametrize("text, seconds", [
    ("now", 0.0), ("+90m", 5400.0), ("12:30", 1800.0), ("2026-11-22T13:00", 3600.0),
    ("2026-11-23 12:00:05", 86405.0)])
def test_times_as_people_write_them(text: str, seconds: float) -> None:
    noon = time.mktime((2026, 11, 22, 12, 0, 0, 0, 0, -1))
    assert command.moment(text, noon) == noon + seconds


@pytest.mark.parametrize("words, said", [
    ({"end": "+1h"}, "how many nodes, or which?"), ({"number": 1}, "until when? Give --to TIME"),
    ({"number": 1, "end": "soon"}, "--to: `soon` is not a time; write 14:30"),
    ({"number": 1, "end": "+1h", "jobs": "x"}, "--jobs: `x` is not an id or a list"),
    ({"nodes": "n[1", "end": "+1h"}, "--nodes: `n[1` has a bracket without its other one"),
    ({"number": 1, "list": True}, "--list and --cancel make no reservation"),
    ({"number": 1, "end": "+1h", "json": True}, "--json needs --list")])
def test_words_that_are_no_reservation(words: dict[str, Any | None], said: str) -> None:
    given = {"number": None, "nodes": None, "begin": None, "end": None, "name": None, "jobs": None,
             "list": False, "cancel": None, "json": False, **words}
    with pytest.raises(CannotRun) as error:
        command.reserve(argparse.Namespace(**given))
    assert said in str(error.value)
