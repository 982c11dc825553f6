"""Simulated runs in which running jobs lend cores: against a plain loop over small steps of time."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from support import plain_metrics
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vrm.ext.forecast.frozen import freeze_simulation
from vrm.ext.forecast.replay import replay
from vrm.model import Booking, Cluster, Job, bits
from vrm.scheduling import Scheduler, make_backfilling, make_ordering, make_policy
from vrm.scheduling.backfilling.easy import Easy
from vrm.scheduling.backfilling.dispatcher import Starts
from vrm.ext.lending.offers import borrowed, offers
from vrm.scheduling.orderings.queue import QueueView
from vrm.scheduling.backfilling.shadow import Shadow
from vrm.scheduling.placement.wrapper import PlacementWrapper
from vrm.ext.measured.corun import CoRunning
from vrm.simulation.engine import Outage, Recorder, Simulator
from vrm.simulation.results import Results
from vrm.simulation.outcome import ResultRow
from vrm.workload.submission import Submission


class Lender(Easy):
    """EASY; what does not fit starts on half of the cores of the first running job that has not lent."""

    lends = True

    def decide(self, now: float, waiting: QueueView, view: Cluster, policy: Any, heads: int) -> Starts:
        started = set()
        for job, placement in super().decide(now, waiting, view, policy, heads):
            started.add(job.id)
            yield job, placement
        for job in list(waiting):
            if job.id in started:
                continue
            for found in offers(view, lambda each: True):
                placement = borrowed(job, view, [(found.lender, found.cores)], shrinks=True)
                if placement:
                    yield job, placement
                    break


class Seen(Recorder):
    """What was booked, and when jobs ended and how."""

    def __init__(self) -> None:
        self.begun: list[Booking] = []
        self.ends: dict[int, tuple[float, str]] = {}
        self.most = 0
        self.refusals: list[int] = []
        self.cluster: Cluster | None = None
        self.grew: dict[int, list[tuple[float, int]]] = {}  # when, and to how many cores

    def booked(self, booking: Booking) -> None:
        self.begun.append(booking)

    def released(self, booking: Booking) -> None:
        placement = booking.placement
        if placement.lease is not None:
            cores = [then.cores for _, then in placement.grown[1:]] + [placement.cores]
            self.grew[booking.job.id] = [(until, number) for (until, _), number in zip(placement.grown, cores)]

    def revised(self, booking: Booking, before: float) -> None:
        pass

    def nodes_changed(self) -> None:
        pass

    def refused(self, job: Job, reason: str) -> None:
        self.refusals.append(job.id)

    def ended(self, booking: Booking, start: Any, end: float, status: str) -> None:
        self.ends[booking.job.id] = end, status

    def moment(self, state: Any) -> None:
        assert self.cluster is not None and state[3] == self.cluster.taken_cores
        self.most = max(self.most, len(self.cluster.loans.all))


def machine(policy: str, nodes: int = 2, sockets: int = 2, cores: int = 4) -> tuple[Cluster, Scheduler]:
    cluster = Cluster.regular(nodes, sockets, cores)
    return cluster, Scheduler(make_ordering("FCFS"), Lender(), make_policy(policy, cluster))


def run(policy: str, jobs: list[Submission], ideal: bool = True, kill: bool = False,
        outages: tuple[Outage, ...] = ()) -> tuple[Seen, Cluster]:
    cluster, scheduler = machine(policy)
    seen = Seen()
    seen.cluster = cluster
    cluster.watchers.append(seen)
    Simulator(scheduler, cluster, seen, kill, CoRunning(cluster, ideal=ideal), outages=outages).run(jobs)
    return seen, cluster


def plain(seen: Seen, runs: dict[int, float]) -> dict[int, float]:
    """The ends of jobs that started as they did: an event at a time, each job's work done by the share
    of its cores that it has."""
    left: dict[int, float] = {}
    has: dict[int, float] = {}           # cores of a job now
    lent: dict[int, list[tuple[int, int]]] = {}  # borrower: lenders and numbers of cores
    ends: dict[int, float] = {}
    full = {booking.job.id: booking.job.request.cores for booking in seen.begun}
    now, coming = 0.0, list(seen.begun)
    while coming or left:
        speeds = {i: has[i] / full[i] for i in left}
        due = min([now + left[i] / speeds[i] for i in left], default=math.inf)
        starts = bool(coming) and coming[0].start < due - 1e-6
        time = coming[0].start if starts else due
        for i in left:
            left[i] -= (time - now) * speeds[i]
        now = time
        if not starts:
            for i in [i for i in left if left[i] < 1e-6]:
                ends[i] = now
                del left[i]
                for lender, cores in lent.pop(i, []):
                    if lender in left:
                        has[lender] += cores
            for i in left:
                for time, cores in seen.grew.get(i, []):
                    if abs(time - now) < 1e-6:
                        has[i] = cores
        else:
            booking = coming.pop(0)
            job, placement = booking.job, booking.placement
            left[job.id] = runs[job.id]
            has[job.id] = placement.procs * placement.width
            if placement.lease is not None:
                for lender, cores in placement.lent:
                    has[lender] -= bits.count(cores)
                    lent.setdefault(job.id, []).append((lender, bits.count(cores)))
    return ends


workloads = st.lists(st.tuples(st.integers(1, 4), st.sampled_from([1, 2, 4]), st.integers(1, 40),
                               st.integers(0, 40)), min_size=2, max_size=12)


def submissions(rows: list[tuple[int, int, int, int]]) -> list[Submission]:
    time, found = 0, []
    for number, (ranks, cores, seconds, later) in enumerate(rows, 1):
        time += later
        found.append(Submission(Job(number, "ep.A", ranks, seconds * 1.5, time, cores=cores),
                                float(seconds)))
    return found


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(workloads, st.sampled_from(["compact", "strip", "pack"]), st.booleans())
def test_ends_are_those_of_the_plain_loop(rows: list[tuple[int, int, int, int]], policy: str,
                                          ideal: bool) -> None:
    jobs = submissions(rows)
    seen, cluster = run(policy, jobs, ideal)
    assert {i: end for i, (end, _) in seen.ends.items()} == pytest.approx(
        plain(seen, {one.job.id: one.run for one in jobs}))
    assert len(seen.ends) == len(jobs) - len(seen.refusals) and not cluster.loans and not cluster.bookings
    assert (cluster.busy0, cluster.busy1, cluster.busy_cores) == (0, 0, 0)


def test_lending_is_seen_by_hand_and_in_jobs_csv() -> None:
    """A job on all cores lends half of them to one of 40 s that came at 10: it takes 80, and by then
    40 of the other 90 s are done."""
    jobs = [Submission(Job(1, "ep.A", 4, 200, 0, cores=4), 100),
            Submission(Job(2, "cg.A", 4, 60, 10, cores=4), 40)]
    seen, _ = run("compact", jobs)
    assert seen.most == 1
    assert seen.ends == {2: (90, "completed"), 1: (140, "completed")}
    # Killed at their walltimes, which are longer by what they lost: 60 / (1/2), 200 + 40.
    slow = [Submission(Job(1, "ep.A", 4, 100, 0, cores=4), 500),
            Submission(Job(2, "cg.A", 4, 60, 10, cores=4), 500)]
    seen, _ = run("compact", slow, kill=True)
    assert seen.ends == {2: (130, "timeout"), 1: (160, "timeout")}


def test_a_borrower_that_outlives_its_lender_goes_on_and_a_lost_node_ends_both() -> None:
    jobs = [Submission(Job(1, "ep.A", 4, 200, 0, cores=4), 20),
            Submission(Job(2, "cg.A", 2, 60, 10, cores=4), 50),
            Submission(Job(3, "cg.A", 4, 60, 30, cores=4), 5)]
    seen, _ = run("compact", jobs)
    # 2 borrows of both nodes; 1 has 10 s left at half speed; 3 needs both nodes and half of 2's would
    # not do, so it waits for 2's end.
    assert seen.ends[1] == (30, "completed") and seen.begun[1].job.id == 2
    assert seen.ends[2][1] == seen.ends[3][1] == "completed"
    seen, cluster = run("compact", jobs, outages=(Outage(0, 12.0, 100.0),))
    assert {status for _, status in seen.ends.values()} == {"completed"}  # all have run again
    assert len(seen.ends) == 3 and not cluster.loans


class Uncounted(PlacementWrapper):
    """A policy of which counts say nothing."""

    def exact(self, job: Job) -> bool:
        return False


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(workloads, st.sampled_from(["compact", "strip", "pack"]))
def test_easy_reserves_what_is_free_when_lenders_have_ended(rows: list[tuple[int, int, int, int]],
                                                            policy: str) -> None:
    """At each moment of a run with lends: the head's shadow time is the first end, of those expected,
    after which it fits, with the nodes that borrowers keep taken until they end."""
    cluster, scheduler = machine(policy)
    simulator = Simulator(scheduler, cluster, Recorder(), rate=CoRunning(cluster))
    head = Job(99, "ep.A", 4, 10, cores=4)
    if policy == "strip":
        head = Job(99, "ep.A", 4, 10, cores=2)
    for now in simulator.moments(submissions(rows)):
        there = cluster.copy()
        expected = math.inf
        ends = sorted({max(booking.gives, now) for booking in there.bookings.values()})
        for end in ends:
            for job_id in [i for i, booking in there.bookings.items()
                           if max(booking.gives, now) <= end]:
                there.release(job_id)  # as it would be, with heirs
            if scheduler.policy.fits(head, there):
                expected = end
                break
        if cluster.bookings:
            assert Shadow(head, now, cluster, scheduler.policy).time == expected
            assert Shadow(head, now, cluster, Uncounted(scheduler.policy)).time == expected


def test_a_forecast_goes_on_with_the_lends_of_now() -> None:
    jobs = [Submission(Job(1, "ep.A", 4, 100, 0, cores=4), 100),
            Submission(Job(2, "cg.A", 4, 60, 10, cores=4), 60)]
    cluster, scheduler = machine("compact")
    simulator = Simulator(scheduler, cluster, Recorder(), rate=CoRunning(cluster))
    found = {}
    for now in simulator.moments(jobs):
        if now == 10:
            found = replay(freeze_simulation(simulator), lambda job, ran: job.walltime)
    assert {i: each.end for i, each in found.items()} == pytest.approx({2: 130, 1: 160})


def test_results_of_a_run_with_lends(tmp_path: Any) -> None:
    cluster, scheduler = machine("compact")
    with open(tmp_path / "jobs.csv", "w", encoding="utf-8") as file:
        results = Results(cluster.nodes, file, "full")
        jobs = [Submission(Job(1, "ep.A", 4, 200, 0, cores=4), 100),
                Submission(Job(2, "cg.A", 4, 60, 10, cores=4), 40)]
        Simulator(scheduler, cluster, results, rate=CoRunning(cluster)).run(results.noting(jobs))
        results.flush()
        rows: list[ResultRow] = list(results.rows())
    assert {row.id: row.end for row in rows} == {1: 140, 2: 90}
    assert make_backfilling("easy").lends is False


def test_lends_that_were_asked_for_are_made_again(tmp_path: Any) -> None:
    """A live run of two jobs, of which the first lent half of its cores to the second for 40 s: its replay
    has the same starts and ends, and the machine was full all the time."""
    from vrm.model.rules import Rules
    from vrm.ext.study.report.job_table import JobTable
    from vrm.results.jobs import JobRow
    from vrm.ext.lending.simulated.recorded_lends import RequestedLend
    from vrm.ext.study.validation.replay import validate

    cluster = Cluster.regular(2, 2, 4)
    rows = [JobRow(1, "ep.A", 4, 100.0, 100.0, 220.0, 600.0, "completed", cores="n0:0/0-3+1/0-3;n1:0/0-3+1/0-3",
                   nodes="n[0-1]", cores_per_task=4, malleable=True, mates="2", lent=8 * 40.0, changes=2),
            JobRow(2, "cg.A", 2, 105.0, 110.0, 150.0, 60.0, "completed", cores="n0:1/0-3;n1:1/0-3",
                   nodes="n[0-1]", cores_per_task=4, mates="1", borrowed=8 * 40.0)]
    found = validate(rows, Rules(), cluster.nodes, lends=[RequestedLend(110.0, 1, 2, 4)])
    assert [(pair.id, pair.live_wait, pair.live_run, pair.simulated_wait, pair.simulated_run)
            for pair in found.jobs] == [
        (1, 0, 120, 0, pytest.approx(120)), (2, 5, 40, 5, pytest.approx(40))]
    assert plain_metrics.utilisation(rows, 16) == pytest.approx(1.0)
    assert JobTable.of(rows).ran.utilisation(16) == pytest.approx(1.0)


def test_what_was_lent_to_nobody_is_part_of_how_long_a_job_ran() -> None:
    """Job 1 lends half of its cores to job 2 for 40 s, and then a quarter of them to nobody, for 20 s: it ran for
    125 s, of which it lost 20 and 5. The replay makes the first lend alone."""
    from vrm.model.rules import Rules
    from vrm.results.jobs import JobRow
    from vrm.ext.study.validation.loan_records import lent_to_no_job
    from vrm.ext.lending.simulated.recorded_lends import RequestedLend
    from vrm.ext.study.validation.replay import validate

    records: list[dict[str, Any]] = [
        {"event": "start", "id": 1, "time": 0.0},
        {"event": "lend", "number": 1, "id": 1, "to": None, "cores": "0xf", "time": 1.0, "until": None},
        {"event": "again", "id": 1, "time": 50.0},  # that run does not count
        {"event": "start", "id": 1, "time": 100.0},
        {"event": "lend", "number": 2, "id": 1, "to": 2, "cores": "0xff00", "time": 110.0, "until": 150.0},
        {"event": "lend", "number": 3, "id": 1, "to": None, "cores": "0xf0", "time": 160.0, "until": None},
        {"event": "regain", "number": 3, "id": 1, "time": 180.0, "reason": ""}]
    found = lent_to_no_job(records)
    assert found == {1: 80.0}
    assert lent_to_no_job([*records[:-1], {"event": "end", "id": 1, "time": 200.0}]) == {1: 160.0}
    rows = [JobRow(1, "ep.A", 4, 100.0, 100.0, 225.0, 600.0, "completed", cores="n0:0/0-3+1/0-3;n1:0/0-3+1/0-3",
                   nodes="n[0-1]", cores_per_task=4, malleable=True, mates="2", lent=8 * 40.0 + 80.0, changes=4),
            JobRow(2, "cg.A", 2, 105.0, 110.0, 150.0, 60.0, "completed", cores="n0:1/0-3;n1:1/0-3",
                   nodes="n[0-1]", cores_per_task=4, mates="1", borrowed=8 * 40.0)]
    replayed = validate(rows, Rules(), Cluster.regular(2, 2, 4).nodes, lends=[RequestedLend(110.0, 1, 2, 4)], to_nodes=found)
    assert [(pair.live_run, pair.simulated_run) for pair in replayed.jobs] == [
        (125, pytest.approx(125)), (40, pytest.approx(40))]
    # Its limit of 102 s was 20 s later for the first lend, and 5 s for the second.
    rows[0] = replace(rows[0], walltime=102.0)
    killed = validate(rows, Rules(kill=True), Cluster.regular(2, 2, 4).nodes, lends=[RequestedLend(110.0, 1, 2, 4)],
                      to_nodes=found)
    assert killed.jobs[0].simulated_run == pytest.approx(125)


def test_a_live_run_in_which_two_borrow_of_one_that_ends_first_is_replayed() -> None:
    """Job 0 lends 4 of its 8 cores to job 2 and 2 to job 3, which go on; job 2 holds what was left, and runs on it
    when job 3 has gone, not before. No core is counted twice."""
    from vrm.model.rules import Rules
    from vrm.ext.study.report.job_table import JobTable
    from vrm.ext.study.report.study import StudyRun
    from vrm.results.jobs import JobRow
    from vrm.ext.lending.simulated.recorded_lends import RequestedLend
    from vrm.ext.study.validation.replay import validate

    rows = [JobRow(0, "a", 1, 0.0, 0.0, 20.0, 600.0, "completed", cores="n0:0/0-7", nodes="n0", cores_per_task=8,
                   malleable=True, mates="2,3", lent=4 * 16.0 + 2 * 12.0, changes=2),
            JobRow(2, "a", 1, 0.0, 4.0, 32.0, 300.0, "completed", cores="n0:0/4-7", nodes="n0", cores_per_task=8,
                   malleable=True, mates="0", borrowed=4 * 26.0 + 8 * 2.0, changes=1),
            JobRow(3, "a", 1, 0.0, 8.0, 30.0, 60.0, "completed", cores="n0:0/2-3", nodes="n0", cores_per_task=8,
                   malleable=True, mates="0", borrowed=2 * 22.0)]
    replayed = validate(rows, Rules(), Cluster.regular(1, 1, 8).nodes,
                        lends=[RequestedLend(4.0, 0, 2, 4), RequestedLend(8.0, 0, 3, 2)])
    assert [pair.simulated_run for pair in replayed.jobs] == pytest.approx([20, 28, 22])
    used = 8 * 4 + 8 * 16 + 6 * 10 + 8 * 2  # 0; 0 with the others; 2 and 3; 2
    run = StudyRun(Path("."), "", "", 0, JobTable.of(rows), (None, None, None), 8)
    assert plain_metrics.utilisation(rows, 8) == pytest.approx(used / (8 * 32))
    assert run.figures["utilisation"] == pytest.approx(100 * used / (8 * 32))


@pytest.mark.parametrize("time", [5.0, 10.0, 15.0])
def test_a_recorded_lend_is_left_out_where_nobody_waits_then(time: float) -> None:
    """In the replay the borrower has started at once: there was room for it. The simulation goes on."""
    from vrm.api import Machine, Rules, Timetable, simulate
    from vrm.ext.lending.simulated.recorded_lends import RequestedLend

    def moves(now: float, ended: int, waiting: int) -> None:
        pytest.fail(f"a thousand events, and it is {now} s")

    jobs = [Submission(Job(0, "a", 1, 10, 0.0, malleable=True), 10.0), Submission(Job(1, "a", 1, 10, 0.0), 10.0),
            Submission(Job(2, "a", 1, 10, 20.0), 10.0)]
    outcome = simulate(jobs, Machine.of(2), Rules(), timetable=Timetable(lends=[RequestedLend(time, 0, 1, 1)]), progress=moves)
    assert [row.start for row in sorted(outcome.jobs)] == [0.0, 0.0, 20.0]
