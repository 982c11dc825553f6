"""Advance reservations against plain versions of their definitions: nothing overlaps them, bound jobs
run in them, and what was promised beside them holds."""

from __future__ import annotations

import math
from typing import Any, NamedTuple
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vrm.model import Cluster, Job
from vrm.model.reservation import ReservationRequest
from vrm.run.run import Run
from vrm.run.state import State
from vrm.scheduling import Scheduler, make_backfilling, make_ordering, make_policy
from vrm.api import Machine, Recording, Rules, Submission, Timetable, simulate
from vrm.simulation.engine import Simulator
from vrm.simulation.results import Results

MANY = settings(max_examples=100, deadline=None)


class Held(NamedTuple):
    """Nodes that are taken from begin to end."""

    begin: float
    end: float
    nodes: frozenset[int]


class Case(NamedTuple):
    """A machine of one-core nodes, jobs in order of time, and reservations (made at 0)."""

    nodes: int
    jobs: list[Submission]
    reservations: list[tuple[float, float, frozenset[int], tuple[int, ...]]]

    def wanted(self) -> list[ReservationRequest]:
        return [ReservationRequest(begin, end, nodes=tuple(f"n{node}" for node in sorted(nodes)), jobs=jobs)
                for begin, end, nodes, jobs in self.reservations]


@st.composite
def cases(draw: Callable[[Any], Any], early: bool = True) -> Case:
    nodes = draw(st.integers(2, 5))
    count = draw(st.integers(1, 12))
    jobs, time = [], 0.0
    for job_id in range(count):
        time += draw(st.sampled_from([0, 0, 1, 2, 5]))
        walltime = draw(st.integers(1, 8))
        run = draw(st.integers(1, walltime)) if early else walltime
        jobs.append(Submission(Job(job_id, "a.x", draw(st.integers(1, nodes)), float(walltime), time),
                               float(run)))
    found: list[tuple[float, float, frozenset[int], tuple[int, ...]]] = []
    free = set(range(count))
    for _ in range(draw(st.integers(1, 3))):
        begin = float(draw(st.integers(0, 20)))
        end = begin + draw(st.integers(1, 12))
        those = frozenset(draw(st.sets(st.integers(0, nodes - 1), min_size=1)))
        if any(those & other and begin < until and end > since
               for since, until, other, _ in found):
            continue
        bound = tuple(job for job in draw(st.sets(st.sampled_from(sorted(free) or [0]), max_size=3))
                      if job in free and jobs[job].job.procs <= len(those)
                      and jobs[job].job.walltime <= end - begin)
        free -= set(bound)
        found.append((begin, end, those, bound))
    return Case(nodes, jobs, found)


class Plain:
    """The definitions, in loops over all nodes and all times; nothing is clever here."""

    def __init__(self, case: Case, backfilling: str) -> None:
        self.case, self.backfilling = case, backfilling
        self.running: dict[int, Held] = {}
        self.waiting: list[Job] = []
        self.bound = {job: at for at, (*_, jobs) in enumerate(case.reservations) for job in jobs}
        self.starts: dict[int, tuple[float, frozenset[int]]] = {}

    def open(self, job: Job, time: float) -> frozenset[int]:
        """The nodes of no reservation into which the job would reach."""
        return frozenset(range(self.case.nodes)) - frozenset(
            node for begin, end, nodes, _ in self.case.reservations for node in nodes
            if begin < time + job.walltime and end > time)

    def room(self, job: Job, time: float, held: list[Held]) -> frozenset[int] | None:
        """The first nodes that the job may have at a time for all that it may take."""
        free = set(self.open(job, time))
        for each in held:
            if each.begin < time + job.expected and each.end > time:
                free -= each.nodes
        return frozenset(sorted(free)[:job.procs]) if len(free) >= job.procs else None

    def earliest(self, job: Job, now: float, held: list[Held]
                 ) -> tuple[float, frozenset[int] | None]:
        times = {now, *(each.end for each in held),
                 *(end for _, end, _, _ in self.case.reservations)}
        for time in sorted(time for time in times if time >= now):
            room = self.room(job, time, held)
            if room is not None:
                return time, room
        return math.inf, None

    def start(self, job: Job, now: float, nodes: frozenset[int]) -> None:
        self.starts[job.id] = now, nodes
        self.running[job.id] = Held(now, now + job.expected, nodes)
        self.waiting.remove(job)

    def step(self, now: float) -> None:
        for at, (begin, end, nodes, _) in enumerate(self.case.reservations):
            for job in list(self.waiting):
                if self.bound.get(job.id) == at and begin <= now and now + job.walltime <= end:
                    free = sorted(nodes - {node for each in self.running.values()
                                           for node in each.nodes})
                    if len(free) >= job.procs:
                        self.start(job, now, frozenset(free[:job.procs]))
            if end <= now:
                self.bound = {job: other for job, other in self.bound.items() if other != at}
        queue = [job for job in self.waiting if job.id not in self.bound]
        if self.backfilling == "conservative-recomputed":
            held = list(self.running.values())
            for job in queue:
                time, nodes = self.earliest(job, now, held)
                assert nodes is not None
                if time == now:
                    self.start(job, now, nodes)
                held.append(Held(time, time + job.expected, nodes))
            return
        while queue:
            nodes = self.room(queue[0], now, list(self.running.values()))
            if nodes is None:
                break
            self.start(queue.pop(0), now, nodes)
        if not queue or self.backfilling == "none":
            return
        head, shadow = queue[0], math.inf
        if self.backfilling == "easy":
            shadow = self.earliest(head, now, list(self.running.values()))[0]
        for job in queue[1:]:
            nodes = self.room(job, now, list(self.running.values()))
            if nodes is None:
                continue
            mine = Held(now, now + job.expected, nodes)
            if (self.backfilling == "list" or now + job.expected <= shadow
                    or self.room(head, shadow, [*self.running.values(), mine]) is not None):
                self.start(job, now, nodes)

    def run(self) -> dict[int, tuple[float, frozenset[int]]]:
        runs = {job.id: run for job, run, *_ in self.case.jobs}
        to_come = [one.job for one in self.case.jobs]
        boundaries = {time for begin, end, _, _ in self.case.reservations for time in (begin, end)}
        now = -1.0
        while to_come or self.waiting:
            moments = [*(job.submit for job in to_come), *(time for time in boundaries if time > now),
                       *(each.begin + runs[i] for i, each in self.running.items())]
            if self.backfilling.startswith("conservative") and self.waiting:
                held = list(self.running.values())
                for job in (job for job in self.waiting if job.id not in self.bound):
                    time, nodes = self.earliest(job, now, held)
                    assert nodes is not None
                    held.append(Held(time, time + job.expected, nodes))
                    moments.append(time if time > now else math.inf)
            now = min(moments)
            self.running = {i: each for i, each in self.running.items()
                            if each.begin + runs[i] > now}
            self.waiting += [job for job in to_come if job.submit <= now]
            to_come = [job for job in to_come if job.submit > now]
            self.step(now)
        return self.starts


def simulated(case: Case, backfilling: str, policy: str = "compact", sockets: int = 1, cores: int = 1
              ) -> dict[int, tuple[float, float, frozenset[int]]]:
    """Start, end and nodes of each job."""
    found: dict[int, tuple[float, float, frozenset[int]]] = {}

    class Watching:
        def booked(self, booking: Any) -> None:
            found[booking.job.id] = (booking.start, booking.expected_end,
                                     frozenset(booking.placement.nodes))

        def released(self, booking: Any) -> None:
            """Nothing."""

        def revised(self, booking: Any, before: float) -> None:
            """Nothing."""

        def nodes_changed(self) -> None:
            """Nothing."""

    simulate(case.jobs, Machine.of(case.nodes, sockets=sockets, cores=cores),
             Rules(backfill=backfilling, policy=policy), timetable=Timetable(reservations=case.wanted()),
             record=Recording(watchers=[Watching()]))
    return found


@pytest.mark.parametrize("backfilling", ["none", "easy", "list", "conservative-recomputed"])
@MANY
@given(cases())
def test_as_the_definition_says(backfilling: str, case: Case) -> None:
    found = simulated(case, backfilling)
    assert {job: (start, nodes) for job, (start, _, nodes) in found.items()} == Plain(
        case, backfilling).run()


def overlapping(case: Case, found: dict[int, tuple[float, float, frozenset[int]]]) -> list[str]:
    """What is wrong with a schedule."""
    wrong = []
    walltimes = {one.job.id: one.job.walltime for one in case.jobs}
    for begin, end, nodes, jobs in case.reservations:
        for job, (start, _, those) in found.items():
            until = start + walltimes[job]
            if job in jobs and start < end:
                if start < begin or until > end or those - nodes:
                    wrong.append(f"bound job {job} is not within its reservation")
            elif those & nodes and start < end and until > begin:
                wrong.append(f"job {job} overlaps a reservation")
    return wrong


@pytest.mark.parametrize("backfilling", ["conservative", "easy-kept", "3", "3-kept", "easy", "list",
                                         "none", "conservative-recomputed"])
@settings(max_examples=25, deadline=None)
@given(case=cases(), policy=st.sampled_from(["compact", "spare", "strip", "pack"]))
def test_nothing_overlaps_a_reservation(backfilling: str, case: Case, policy: str) -> None:
    found = simulated(case, backfilling, policy, sockets=2, cores=2)
    assert len(found) == len(case.jobs)
    assert not overlapping(case, found)


class Promises:
    """A run of which each promise is remembered and compared with what comes of it."""

    def __init__(self, case: Case, backfilling: str) -> None:
        cluster = Cluster.regular(case.nodes, 1, 1)
        scheduler = Scheduler(make_ordering("FCFS"), make_backfilling(backfilling),
                              make_policy("compact", cluster))
        state = State(scheduler.new_queue(), cluster)
        simulator = Simulator(scheduler, cluster, Results(cluster.nodes, None, "none", None, "w"))
        simulator._start_with(Run(state, scheduler), simulator.executor, simulator.recorder)
        for wanted in case.wanted():
            state.reservations.reserve(wanted, 0.0, foreseen=True)
        self.broken: list[str] = []
        known: dict[int, float] = {}
        bound: set[int] = set()
        for now in simulator.moments(case.jobs):
            if backfilling == "easy" and bound - set(state.queue.bound):
                known.clear()  # a job that was bound competes now, and is perhaps ahead
            bound = {job_id for job_id in state.queue.bound if job_id in state.queue}
            for job_id, time in list(known.items()):
                if job_id not in state.queue:
                    if now > time:
                        self.broken.append(f"job {job_id} was to start at {time}, not {now}")
                    del known[job_id]
            for job_id, time in scheduler.reservations(now, state.queue, cluster).items():
                if time > known.get(job_id, math.inf):
                    self.broken.append(f"job {job_id}: {known[job_id]} became {time} at {now}")
                known[job_id] = min(time, known.get(job_id, math.inf))


@pytest.mark.parametrize("backfilling", ["conservative", "easy-kept", "3-kept", "easy"])
@MANY
@given(cases(early=True))
def test_promises_hold(backfilling: str, case: Case) -> None:
    assert Promises(case, backfilling).broken == []
