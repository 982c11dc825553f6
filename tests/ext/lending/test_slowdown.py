"""SD-policy against its definition in plain loops, and what it promises."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from vrm.model.cluster import Booking, Cluster
from vrm.model.job import Job
from vrm.model.node import Node
from vrm.model.policies import CountingPolicy
from vrm.model.measured.speedups import Speedups
from vrm.scheduling.backfilling.dispatchers import make_backfilling
from vrm.scheduling.backfilling.dispatcher import Starts
from vrm.ext.lending.lenders import LendingTerms
from vrm.scheduling.orderings.queue import QueueView
from vrm.scheduling.registry import PolicyError
from vrm.scheduling.backfilling.shadow import Shadow
from vrm.ext.lending.slowdown import SlowdownDriven
from vrm.ext.lending.slowdown_conservative import SlowdownAll
from vrm.api import Machine, Measurements, Rules, Watcher, simulate
from vrm.simulation.arguments import by_name
from vrm.workload.submission import Submission

from support.plain_sharing import PlainSharing, Task


class Seen(Watcher):
    """Notes starts, with those who lend, and ends."""

    def __init__(self) -> None:
        self.started: dict[int, tuple[float, tuple[int, ...]]] = {}

    def booked(self, booking: Booking) -> None:
        placement = booking.placement
        lent = placement.lent
        self.started[booking.job.id] = booking.start, tuple(sorted(lender for lender, _ in lent))


def submissions(tasks: list[Task], width: int = 2) -> list[Submission]:
    """The tasks as jobs with a rank on each socket of nodes with two."""
    return [Submission(Job(task.id, "a", 2 * task.nodes, task.requested, task.submit, cores=width,
                           malleable=task.malleable), task.run)
            for task in sorted(tasks, key=lambda task: (task.submit, task.id))]


def simulated(tasks: list[Task], nodes: int, backfill: Any, **more: Any) -> tuple[Seen, dict[int, float]]:
    """Starts, and ends by id."""
    seen = Seen()
    outcome = simulate(submissions(tasks),
                       **by_name(dict(nodes=nodes, sockets=2, cores=2, policy="compact", backfill=backfill,
                                      watchers=[seen], **more)))
    return seen, {row.id: row.end for row in outcome.jobs}


@st.composite
def workloads(draw: st.DrawFn) -> tuple[int, list[Task]]:
    """A few nodes, and jobs that wait for them: long ones that could lend and short ones that come
    later."""
    nodes = draw(st.integers(2, 7))
    tasks, time = [], 0
    for job_id in range(draw(st.integers(2, 16))):
        time += draw(st.sampled_from([0, 0, 1, 3, 10]))
        requested = draw(st.sampled_from([2, 4, 8, 40, 100, 400]) | st.integers(1, 60))
        run = requested if draw(st.booleans()) else draw(st.integers(1, requested))
        tasks.append(Task(job_id, time, draw(st.integers(1, nodes)), requested, run,
                          draw(st.integers(0, 3)) > 0))
    return nodes, tasks


LIMITS: list[float | None] = [5.0, 10.0, 50.0, math.inf, None]


@given(workloads(), st.sampled_from(LIMITS), st.integers(1, 3), st.sampled_from(["ideal", "worst"]),
       st.booleans())
@settings(max_examples=200, deadline=None)
def test_starts_mates_and_ends_are_those_of_the_plain_version(
        workload: tuple[int, list[Task]], limit: float | None, most: int, speed: str,
        gain: bool) -> None:
    nodes, tasks = workload
    plain = PlainSharing(nodes, limit, most=most, ideal=speed == "ideal", gain=gain)
    plain.run(tasks)
    seen, ends = simulated(tasks, nodes, SlowdownDriven(limit, most=most, gain=gain), shared_speed=speed)
    assert seen.started == plain.started
    assert ends == pytest.approx(plain.ended)


def drawn(jobs: int, nodes: int, seed: int, malleable: float = 1.0) -> list[Task]:
    """Many short jobs and some long ones, more than the nodes can take."""
    draw = random.Random(seed)
    tasks, time = [], 0.0
    for job_id in range(jobs):
        time += draw.expovariate(1 / 25)
        requested = draw.choice([10, 20, 30, 60, 60, 300, 1000, 2000])
        tasks.append(Task(job_id, int(time), min(nodes, 1 + int(draw.expovariate(0.5))), requested,
                          draw.randint(1, requested), draw.random() < malleable))
    return tasks


@pytest.mark.parametrize("limit", LIMITS)
def test_a_longer_workload_in_which_many_lend(limit: float | None) -> None:
    tasks = drawn(250, 8, seed=3, malleable=0.8)
    plain = PlainSharing(8, limit, ideal=True)
    plain.run(tasks)
    seen, ends = simulated(tasks, 8, SlowdownDriven(limit))
    assert sum(bool(mates) for _, mates in seen.started.values()) > 15
    assert seen.started == plain.started
    assert ends == pytest.approx(plain.ended)


class Watched(SlowdownDriven):
    """Compares the head's reservation before and after each lend."""

    lends_seen = 0

    def decide(self, now: float, waiting: QueueView, view: Cluster, policy: CountingPolicy,
               heads: int) -> Starts:
        started = set()
        for job, placement in super().decide(now, waiting, view, policy, heads):
            head = next(each for each in waiting if each.id not in started)
            guarded = placement.lease is not None and job is not head
            before = Shadow(head, now, view, policy).time if guarded else math.inf
            started.add(job.id)
            yield job, placement
            if guarded:
                self.lends_seen += 1
                assert Shadow(head, now, view, policy).time <= before, (now, job.id, head.id)


@given(workloads(), st.sampled_from(LIMITS), st.booleans())
@settings(max_examples=150, deadline=None)
def test_no_lend_moves_the_reservation_of_the_head(workload: tuple[int, list[Task]],
                                                   limit: float | None, always: bool) -> None:
    nodes, tasks = workload
    simulated(tasks, nodes, Watched(limit, always=always))


@pytest.mark.parametrize("features", [False, True])
def test_nor_in_a_longer_workload(features: bool) -> None:
    """Also where counts do not say all, since jobs ask for a feature that half of the nodes have."""
    tasks = drawn(200, 8, seed=5)
    watched = Watched(math.inf)
    nodes = [Node(f"n{at}", (2, 2), features=frozenset(["ib"] if at < 5 else [])) for at in range(8)]
    jobs = [each._replace(job=Job(each.job.id, "a", min(10, each.job.procs), each.job.walltime,
                                  each.job.submit, cores=2, malleable=True,
                                  features=frozenset(["ib"] if each.job.id % 3 == 0 and features
                                                     else []))) for each in submissions(tasks)]
    simulate(jobs, Machine(nodes), Rules(policy="compact", backfill=watched))
    assert watched.lends_seen > 5


class Promised(SlowdownAll):
    """Keeps the first reservation that each job had."""

    def __init__(self, limit: float | None, **more: Any) -> None:
        super().__init__(LendingTerms(limit, **more))
        self.first: dict[int, float] = {}

    def decide(self, now: float, waiting: QueueView, view: Cluster, policy: CountingPolicy,
               heads: int) -> Starts:
        yield from super().decide(now, waiting, view, policy, heads)
        for job_id, time in self.reservations(now, waiting, view, policy).items():
            assert time <= self.first.setdefault(job_id, time) + 1e-6, (now, job_id)


def check_promises(tasks: list[Task], nodes: int, limit: float | None, speed: str, **more: Any) -> int:
    """Nobody starts later than first promised; how many borrowed."""
    promised = Promised(limit, **more)
    seen, ends = simulated(tasks, nodes, promised, shared_speed=speed)
    assert len(ends) == len(tasks)
    for job_id, (start, _) in seen.started.items():
        assert start <= promised.first.get(job_id, start) + 1e-6
    return sum(bool(mates) for _, mates in seen.started.values())


@given(workloads(), st.sampled_from(LIMITS), st.sampled_from(["ideal", "worst"]),
       st.sampled_from(["always", "gain", "earlier"]))
@settings(max_examples=200, deadline=None)
def test_with_all_reservations_nobody_starts_later_for_a_lend(
        workload: tuple[int, list[Task]], limit: float | None, speed: str, when: str) -> None:
    nodes, tasks = workload
    check_promises(tasks, nodes, limit, speed, **({when: True} if when != "earlier" else {}))


def test_nor_where_many_wait() -> None:
    assert check_promises(drawn(250, 8, seed=3), 8, 10.0, "worst") > 10


def test_with_all_reservations_a_job_starts_at_once_on_two_mates_and_moves_nobody() -> None:
    """Two jobs hold a node each until 1,000 s and 500 s. A rigid one, which wants both, has its reservation at
    1,000 s: a job of 100 s on one node borrows of the job that nobody waits for so long that it matters."""
    tasks = [Task(0, 0, 1, 1000, 1000, True), Task(1, 0, 1, 500, 500, True), Task(2, 0, 2, 50, 50, False),
             Task(3, 10, 1, 700, 700, False), Task(4, 20, 1, 100, 100, True)]
    seen, ends = simulated(tasks, 2, "sd reservations=all")
    assert seen.started == {0: (0, ()), 1: (0, ()), 2: (1000, ()), 3: (1050, ()), 4: (20, (1,))}
    assert ends[1] == 600


@pytest.mark.parametrize("text, plain", [("sd", "easy"), ("sd reservations=all", "conservative")])
def test_without_malleable_jobs_it_is_plain_backfilling(text: str, plain: str) -> None:
    tasks = drawn(300, 8, seed=7, malleable=0.0)
    assert simulated(tasks, 8, text)[0].started == simulated(tasks, 8, plain)[0].started


def test_a_rigid_job_neither_lends_nor_borrows() -> None:
    tasks = drawn(300, 8, seed=9, malleable=0.5)
    rigid = {task.id for task in tasks if not task.malleable}
    seen, _ = simulated(tasks, 8, "sd")
    lent = {job_id: mates for job_id, (_, mates) in seen.started.items() if mates}
    assert lent and not rigid & set(lent) and not rigid & {mate for mates in lent.values()
                                                           for mate in mates}


LONG = Task(0, 0, 2, 1000, 1000, True)


@pytest.mark.parametrize("text, starts", [
    ("sd", 10), ("sd max_slowdown=1.1", 1000), ("sd max_slowdown=1.5", 10), ("sd share=0.4", 1000),
    ("sd max_slowdown=dynamic", 1000), ("sd max_slowdown=inf", 10), ("easy", 1000)])
def test_when_a_short_job_starts_behind_a_long_one(text: str, starts: float) -> None:
    """A job of 100 s on both nodes comes at 10 s, when the long one has 990 s left: its penalty is 1.1.
    At a share of 0.4 no rank has one of its 2 cores to spare."""
    seen, _ = simulated([LONG, Task(1, 10, 2, 100, 100, True)], 2, text)
    assert seen.started[1] == (starts, (0,) if starts == 10 else ())


@pytest.mark.parametrize("text, requested, starts", [
    ("sd", 489, 10), ("sd", 490, 500), ("sd when=always", 990, 10), ("sd when=always", 991, 500),
    ("sd when=gain", 244, 10), ("sd when=gain", 245, 500)])
def test_it_shares_only_where_it_ends_earlier_than_by_waiting(text: str, requested: float,
                                                              starts: float) -> None:
    """At 10 s one job has 990 s left and would lend; another one, which has 490 s left, would not: by
    waiting for it the job starts at 500 s. With 245 s on all its cores it ends 245 s earlier, which its mate
    loses."""
    two = [Task(0, 0, 1, 1000, 1000, True), Task(1, 0, 1, 500, 500, False),
           Task(2, 10, 1, requested, requested, True)]
    assert simulated(two, 2, text)[0].started[2][0] == starts


@pytest.mark.parametrize("text, words", [
    ("sd max_slowdown=1", "max_slowdown is `1`; give a number above 1, inf or dynamic"),
    ("sd max_slowdown=soon", "max_slowdown is `soon`"), ("sd share=1", "share is `1`"),
    ("sd mates=0", "mates is `0`"), ("sd when=never", "give when=earlier, when=always or when=gain"),
    ("sd reservations=two", "give reservations=head or reservations=all"),
    ("sd slowdown=3", "did you mean max_slowdown")])
def test_what_is_said_about_parameters(text: str, words: str) -> None:
    with pytest.raises(PolicyError, match=words):
        make_backfilling(text)


@pytest.mark.parametrize("speed, end", [("ideal", 153.0), ("worst", 158.0)])
def test_when_one_of_two_mates_ends_the_borrower_is_as_fast_as_the_model_of_speed_says(
        speed: str, end: float) -> None:
    """At half its speed until 90 s it has done 40 s of 98; then it has all cores on one of two nodes: 3/4 or
    still 1/2 of its speed until its other mate ends at 110 s, and all cores on both from then on."""
    two = [Task(0, 0, 1, 1000, 50, True), Task(1, 0, 1, 1000, 60, True), Task(2, 10, 2, 98, 98, True)]
    _, ends = simulated(two, 2, "sd", shared_speed=speed)
    assert ends == {0: 90.0, 1: 110.0, 2: end}


def test_measured_speed_ups_apply_to_who_shares_and_as_long_as_it_does() -> None:
    """The short job has half of its cores and is 1.6 times as fast next to the long one: its 100 s take 125,
    in which the long one does 125 * 0.5 * 0.8 = 50 s of its work. What was not measured is counted."""
    speedups = Speedups({"long": {"short": 0.8}, "short": {"long": 1.6}})
    jobs = [Submission(Job(number, app, 4, run, submit, cores=2, malleable=True), run)
            for number, app, run, submit in ((0, "long", 1000.0, 0.0), (1, "short", 100.0, 10.0))]
    outcome = simulate(jobs, Machine.of(2, sockets=2, cores=2), Rules(policy="compact", backfill="sd"),
                       measured=Measurements(speedups=speedups))
    assert {row.id: row.end for row in outcome.jobs} == {0: 1075.0, 1: 135.0}
    assert outcome.summary["unmatched_speeds"] == {"beside": {}, "alone": {}}
    unknown = simulate(jobs, Machine.of(2, sockets=2, cores=2), Rules(policy="compact", backfill="sd"),
                       measured=Measurements(speedups=Speedups({"short": {"long": 1.6}})))
    assert {row.id: row.end for row in unknown.jobs} == {0: 1062.5, 1: 135.0}
    assert unknown.summary["unmatched_speeds"]["beside"] == {"long.4": 1}


@pytest.mark.parametrize("speed", ["ideal", "worst"])
def test_who_outlives_its_mate_has_the_cores_that_it_leaves(speed: str) -> None:
    """It has done half of its 100 s when its mate, slower since it lends, ends at 110 s."""
    _, ends = simulated([LONG._replace(run=60), Task(1, 10, 2, 100, 100, True)], 2, "sd",
                        shared_speed=speed)
    assert ends == {0: 110.0, 1: 160.0}


def test_lends_do_not_put_off_the_queue_where_much_waits() -> None:
    """A load at the limit of the machine, on which lends whose price nobody paid made responses 6 % longer than EASY's."""
    found = {text: simulate("lublin:4096:2000:1", Machine.of(256, sockets=2, cores=8),
                            Rules(malleable=1.0, backfill=text, policy="compact")).summary for text in ("easy", "sd")}
    assert found["sd"]["borrowers"] > 300
    assert found["sd"]["average_turnaround"] < found["easy"]["average_turnaround"]
    assert found["sd"]["average_bounded_slowdown"] < found["easy"]["average_bounded_slowdown"]


def test_who_borrows_pays_for_those_ahead_of_it() -> None:
    """Job 1 has two of four nodes until 3000, job 2 the others until 1900 s; rigid jobs that want all four are ahead of
    the last one. By mates it ends 1800 s earlier; each of those ahead loses 100 * 2 / 4 s, so 35 may be ahead."""
    def borrows(ahead: int) -> bool:
        rows = [(2, 3000.0), (2, 1900.0), *[(4, 2.0)] * ahead, (2, 100.0)]
        jobs = [Submission(Job(at, "a", 2 * nodes, run, cores=2, malleable=nodes == 2), run)
                for at, (nodes, run) in enumerate(rows, 1)]
        outcome = simulate(jobs, Machine.of(4, sockets=2, cores=2), Rules(backfill="sd"))
        return next(row.start for row in outcome.jobs if row.id == len(rows)) == 0
    assert borrows(1) and borrows(35) and not borrows(36)
