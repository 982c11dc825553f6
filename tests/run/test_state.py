"""The state of a run: its events make the same state again, and a copy goes its own way."""

from __future__ import annotations

import functools
import json
import math
from typing import Any
from collections.abc import Sequence

import pytest
from hypothesis import given, settings, strategies as st

from vrm.model import Cluster, Dependency, Job, JobState
from vrm.model.job import ANY, FAIL, OK, PLAIN, START, Details, on_ranks
from vrm.model.forms.placement_formats import to_record
from vrm.run.journal import codec
from vrm.run.journal.combined_records import jobs_with_details
from vrm.run.entry import JobStateError
from vrm.run.journal.history import replay
from vrm.run.run import Run
from vrm.run.state import State
from vrm.scheduling import Scheduler, Start, make_backfilling, make_ordering, make_policy
from vrm.simulation.engine import Outage, Simulator
from vrm.workload.submission import Submission

ENDS = [JobState.COMPLETED, JobState.FAILED, JobState.TIMEOUT, JobState.CANCELLED]


def machine(backfilling: str = "easy", nodes: int = 3, policy: str = "compact") -> Run:
    cluster = Cluster.regular(nodes, 1, 2)
    scheduler = Scheduler(make_ordering("FCFS"), make_backfilling(backfilling),
                          make_policy(policy, cluster, None))
    return Run(State(scheduler.new_queue(), cluster), scheduler)


def facts(state: State) -> dict[str, Any]:
    """All that a state says of its jobs."""
    return {
        "jobs": {job_id: (entry.job, entry.details, entry.state, entry.held, entry.tries,
                          entry.losses, entry.missing)
                 for job_id, entry in state.book.entries.items()},
        "queue": sorted(state.queue.jobs), "parked": sorted(state.book.parked),
        "running": sorted(state.running), "intents": state.intents, "losing": state.losing,
        "counts": state.counts, "next": state.next_id, "names": state.names,
        "taken": sorted((job_id, str(to_record(booking.placement)), booking.start)
                        for job_id, booking in state.cluster.bookings.items())}


@functools.lru_cache(None)
def one_of(*these: Any) -> st.SearchStrategy[Any]:
    """One of these. Made once: most of the time went to what hypothesis takes to look at a new strategy."""
    return st.sampled_from(these)


def drive(run: Run, draw: Any) -> list[dict[str, Any]]:
    """Any life that jobs may have, and its events."""
    state = run.state
    records: list[dict[str, Any]] = [
        {"event": "run", "format": 2, "run": "r",
         "nodes": codec.nodes_record(state.cluster.nodes)}]
    state.log = lambda event, **values: records.append(
        json.loads(json.dumps({"event": event, **values})))
    now = 0.0

    def close(dropped: list[Any]) -> None:
        for job, reason in dropped:
            close(state.end(job.id, JobState.CANCELLED, now, reason, exit_code=None))

    for _ in range(draw(st.integers(1, 30))):
        now += draw(one_of(0.0, 1.0, 2.5))
        ids = {name: sorted(i for i, entry in state.book.entries.items() if entry.state in states)
               for name, states in (("any", set(JobState)), ("queued", {JobState.QUEUED}),
                                    ("ended", set(ENDS)))}
        ids["running"] = sorted(state.running)
        what = draw(one_of(
            "submit", "submit", "step", "step", *["end", "again", "back"] * bool(ids["running"]),
            *["hold"] * bool(ids["queued"]), *["once more"] * bool(ids["ended"])))

        def one(kind: str, known: dict[str, list[int]] = ids) -> int:
            return draw(one_of(*known[kind]))

        if what == "submit":
            after = (Dependency.on(one("any"), draw(one_of(OK, ANY, START, FAIL))),) if (
                ids["any"] and draw(st.booleans())) else ()
            details = Details(after, draw(st.integers(0, 1)), held=draw(st.booleans()),
                              name=draw(one_of("", "a", "b")))
            indices = draw(one_of((), (), (4, 7)))
            first = Job(state.next_id, "a.x", draw(st.integers(1, 6)), 5.0, now)
            close(state.submit([first.but(id=first.id + at) for at in range(len(indices) or 1)],
                               details, indices))
        elif what == "step":
            run.step(now)
        elif what == "end":
            job_id = one("running")
            if draw(st.booleans()):
                state.intend(job_id, "cancel", now, now)
            state.release_cores(job_id)
            close(state.end(job_id, draw(one_of(*ENDS)), now, "why", exit_code=0))
        elif what == "again":
            job_id = one("running")
            state.release_cores(job_id)
            close(state.again(job_id, now, "why", retry=draw(st.booleans())))
        elif what == "back":
            close(state.back(one("running")))
        elif what == "hold":
            entry = state.entry(one("queued"))
            (state.release if entry.held else state.hold)(entry.job.id)
        else:
            entry = state.entry(one("ended"))
            if state.book.dependencies.against(entry) is None:
                close(state.again(entry.job.id, now, "asked for"))
    return records


def taken_up(records: list[dict[str, Any]], fresh: Run) -> Run:
    """The run that the events make, on the machine of a fresh one."""
    state = State(fresh.state.queue, fresh.state.cluster, frozen=True)
    past = replay(records, state=state)
    for job, start in past.running:
        placement = codec.placement_of(start["placement"], state.cluster)
        state.running[job.id] = Start(state.cluster.book(job, placement, start["time"]), start["backfilled"])
    state.book.thaw()
    return Run(state, fresh.scheduler)


@st.composite
def lives(draw: Any, backfillings: Sequence[str] = ("easy",)) -> tuple[str, Run, list[dict[str, Any]]]:
    """A kind of backfilling, a run of any life under it, and its events: by a strategy, in which a draw takes half the
    time of one of `st.data()`."""
    backfilling = draw(one_of(*backfillings))
    run = machine(backfilling)
    return backfilling, run, drive(run, draw)


@settings(max_examples=300, deadline=None)
@given(lives())
def test_the_events_of_a_run_make_the_same_state_again(life: Any) -> None:
    _, run, records = life
    state = taken_up(records, machine()).state
    assert facts(state) == facts(run.state)


@settings(max_examples=200, deadline=None)
@given(lives(("none", "easy", "2", "conservative", "2-kept")), st.data())
def test_a_copy_is_the_same_and_goes_its_own_way(life: Any, data: st.DataObject) -> None:
    _, run, _ = life
    before = facts(run.state)
    twin = run.copy()
    assert facts(twin.state) == before
    later = sorted(((booking.job.id, str(booking.placement)) for booking
                    in (start.booking for start in twin.step(100.0))), key=lambda each: each[0])
    drive(twin, data.draw)
    assert facts(run.state) == before
    assert later == sorted(((start.job.id, str(start.booking.placement)) for start in run.step(100.0)),
                           key=lambda each: each[0])


@settings(max_examples=200, deadline=None)
@given(lives(("conservative", "1-kept", "3-kept")))
def test_no_reservation_that_is_kept_is_later_after_a_restart(life: Any) -> None:
    backfilling, run, records = life
    now = max([record.get("time", record.get("submit", 0.0)) for record in records[1:]],
              default=0.0)
    run.step(now)
    promised = {job_id: time for job_id, time in run.scheduler.reservations(
        now, run.state.queue, run.state.cluster).items() if time < math.inf}
    assert run.state.promises == promised
    again = taken_up(records, machine(backfilling))
    state = again.state
    assert state.promises == promised
    again.scheduler.dispatcher.restore(state.promises)
    started = {start.job.id for start in again.step(now)}
    later = again.scheduler.reservations(now, state.queue, state.cluster)
    overdue = any(booking.expected_end <= now for booking in run.state.cluster.running())
    assert overdue or all(job_id in started or later[job_id] <= time
                          for job_id, time in promised.items())


def test_the_guards_promise_is_the_same_after_a_restart() -> None:
    """At 0 the head could start at 100 by the limits: the guard puts it off to 300 at most. Made again at
    10 the promise would be 280, and a job that may take till 285 would not start."""
    def guarded() -> Run:
        cluster = Cluster.regular(4, 1, 1)
        scheduler = Scheduler(make_ordering("FCFS"), make_backfilling("easy", "queue", 1000.0),
                              make_policy("compact", cluster, None))
        return Run(State(scheduler.new_queue(), cluster), scheduler)

    run = guarded()
    records = [{"event": "run", "format": 2, "run": "r", "nodes": codec.nodes_record(run.state.cluster.nodes)}]
    run.state.log = lambda event, **values: records.append(json.loads(json.dumps({"event": event, **values})))
    run.state.submit([Job(0, "a.x", 2, 100.0, -10.0, expected=20.0)])
    run.step(0.0)
    run.state.submit([Job(1, "a.x", 4, 50.0, 0.0)])
    run.state.submit([Job(2, "a.x", 3, 50.0, 0.0)])  # somebody who could overtake
    run.step(0.0)
    run.state.submit([Job(3, "a.x", 1, 275.0, 10.0, expected=5.0)])
    again = taken_up(records, guarded())
    assert run.state.promises == again.state.promises == {1: 300.0}
    again.scheduler.dispatcher.restore(again.state.promises)
    again.scheduler.dispatcher.recall([10.0])
    assert [start.job.id for start in run.step(10.0)] == [start.job.id for start in again.step(10.0)] == [3]
    # Another head comes first: the promise is over, and the journal says so.
    run.state.submit([Job(4, "a.x", 4, 50.0, 11.0, priority=1)])
    run.step(11.0)
    assert set(run.state.promises) == {4}
    assert taken_up(records, guarded()).state.promises == run.state.promises


def test_a_job_refused_behind_a_refused_one_is_refused_after_a_restart() -> None:
    """Its end says so, and not the dependency, which could not be met either."""
    run = machine()
    records: list[dict[str, Any]] = [{"event": "run", "format": 3, "run": "r",
                                      "nodes": codec.nodes_record(run.state.cluster.nodes)}]
    run.state.log = lambda event, **values: records.append(json.loads(json.dumps({"event": event, **values})))
    for job_id in (0, 1):
        details = Details((Dependency.on(0),)) if job_id else PLAIN
        run.state.submit([Job(job_id, "a.x", 99, 5.0)], details, refused=True)
        run.state.end(job_id, JobState.REFUSED, 1.0, "it has no room", exit_code=None)
    state = taken_up(records, machine()).state
    assert [(entry.state, entry.cause) for entry in state.book.entries.values()] == [(JobState.REFUSED, "")] * 2
    assert state.counts == run.state.counts


def test_a_dependency_on_a_job_that_never_came_is_an_error() -> None:
    state = machine().state
    with pytest.raises(JobStateError, match="it depends on job 7"):
        state.submit([Job(0, "a.x", 1, 5.0)], Details((Dependency.on(7),)))
    with pytest.raises(JobStateError, match="there is no job 3"):
        state.entry(3)


# What only live runs had: the same code has it in virtual time.


class Told:
    """Notes what a simulation tells."""

    def __init__(self) -> None:
        self.ends: list[tuple[int, float, float, str]] = []

    def ended(self, booking: Any, start: Any, end: float, status: str) -> None:
        self.ends.append((booking.job.id, booking.start, end, status))

    def refused(self, job: Job, reason: str) -> None:
        self.ends.append((job.id, -1, -1, "refused"))

    def cancelled(self, job: Job, reason: str, now: float) -> None:
        self.ends.append((job.id, -1, now, "cancelled"))

    def moment(self, state: Any) -> None:
        pass


def simulated(submissions: list[Submission], nodes: int = 3, **options: Any
              ) -> tuple[list[tuple[int, float, float, str]], Simulator]:
    cluster, told = Cluster.regular(nodes, 1, 2), Told()
    scheduler = Scheduler(make_ordering("FCFS"), make_backfilling("easy"),
                          make_policy("compact", cluster, None))
    simulator = Simulator(scheduler, cluster, told, **options)
    simulator.run(submissions)
    return told.ends, simulator


def test_a_job_that_starts_on_other_ranks_asks_for_its_own_when_it_waits_again() -> None:
    run, records = machine(policy="pack"), [{"event": "run", "format": 2, "run": "r"}]
    state = run.state
    records[0]["nodes"] = codec.nodes_record(state.cluster.nodes)
    state.log = lambda event, **values: records.append({"event": event, **values})
    asked = job(0, 2, 60.0)
    state.submit([asked])
    state.queue.remove(0)
    placed = on_ranks(asked, 4, 30.0, 20.0)
    state.started(Start(state.cluster.book(placed, run.scheduler.policy.place(placed, state.cluster), 1.0), False), 1.0)
    assert records[-1]["as"] == {"procs": 4, "walltime": 30.0, "expected": 20.0}
    assert list(jobs_with_details(records[-1])) == [0] and not jobs_with_details({**records[-2], "event": "job"})  # it is not folded
    twin = taken_up(json.loads(json.dumps(records)), machine(policy="pack")).state
    assert facts(twin) == facts(state) and twin.running[0].job.procs == 4 and twin.entry(0).copy().asked == asked
    for each in (state, twin):
        each.release_cores(0)
        each.again(0, 5.0)
        assert each.entry(0).job == asked and each.entry(0).asked is None
    start = next(dict(record) for record in records if record["event"] == "start")
    start["as"] = {"procs": 3, "walltime": 30.0, "expected": 20.0}
    with pytest.raises(ValueError, match="ranks|placement"):
        replay([*records[:2], start],
               state=State(machine().state.queue, Cluster.regular(3, 1, 2), frozen=True))


def job(job_id: int, tasks: int, estimate: float, submit: float = 0.0) -> Job:
    return Job(job_id, "a.x", tasks, estimate, submit)


def test_a_job_that_is_killed_uses_its_retries_and_then_fails_those_behind_it() -> None:
    ends, _ = simulated([Submission(job(0, 2, 10.0), 12.0, details=Details(retries=1)),
                         Submission(job(1, 2, 5.0), 3.0, (Dependency.on(0),)),
                         Submission(job(2, 2, 5.0), 3.0, (Dependency.on(0, ANY),))], kill=True)
    assert ends == [(0, 10.0, 20.0, "timeout"), (1, -1, 20.0, "cancelled"),
                    (2, 20.0, 23.0, "completed")]


def test_jobs_of_a_lost_node_run_again_elsewhere_or_later() -> None:
    ends, simulator = simulated(
        [Submission(job(0, 4, 10.0), 10.0), Submission(job(1, 2, 10.0), 10.0),
         Submission(job(2, 1, 9.0, 6.0), 1.0)],
        outages=[Outage(0, 5.0, 20.0)])
    # Two nodes are left at 5: job 0 needs both, of which job 1 has one until 10.
    assert ends == [(1, 0.0, 10.0, "completed"), (0, 10.0, 20.0, "completed"),
                    (2, 20.0, 21.0, "completed")]
    assert simulator.left == 0


def test_what_would_not_end_with_the_allocation_is_left_for_the_next() -> None:
    ends, simulator = simulated(
        [Submission(job(0, 6, 10.0), 8.0), Submission(job(1, 6, 30.0), 1.0),
         Submission(job(2, 6, 10.0), 5.0), Submission(job(3, 6, 12.0), 5.0)], end=20.0)
    assert ends == [(0, 0.0, 8.0, "completed"), (2, 8.0, 13.0, "completed")]
    assert simulator.left == 2 and simulator.state.entry(1).state is JobState.QUEUED


def test_details_that_say_nothing_are_the_plain_ones() -> None:
    assert Details() == PLAIN
