"""The simulator: order of things at one instant, published test vectors, and the defects that
other simulators have."""

from __future__ import annotations

import io
import math
import re
from typing import Any
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support import plain_metrics
from vrm.model import Cluster, Dependency, Job, Node
from vrm.model.job import ANY, FAIL, OK, START, Details
from vrm.results.jobs import read_jobs
from vrm.results.placement_text import PlacementText
from vrm.scheduling import Scheduler, make_backfilling, make_ordering, make_policy
from vrm.scheduling.backfilling.profile import CountProfile, PoolProfile, Slot
from vrm.scheduling.backfilling.reservations import Reserving
from vrm.api import Machine, Recording, Rules, Submission, simulate
from vrm.simulation.arguments import by_name
from vrm.simulation.engine import Moment, Simulator
from vrm.simulation.results import Results

Row = tuple[float, int, float]  # submit, procs, run time


def workload(rows: Sequence[Row], estimate: float | None = None) -> list[Submission]:
    """Jobs numbered from 1; the estimate is the run time unless given."""
    return [Submission(Job(number, "app", procs, estimate or run, submit), run)
            for number, (submit, procs, run) in enumerate(rows, 1)]


def starts(submissions: Sequence[Submission], nodes: int, **choices: Any) -> dict[int, float]:
    """Start of each job on one-core nodes."""
    return {row.id: row.start for row in simulate(submissions, **by_name(dict(nodes=nodes, **choices))).jobs}


# ------------------------------------------------------------------------------- test vectors

# Five processors; 1 and 2 run from 0 on, the others wait in this order (cores, seconds).
FIVE = workload([(0, 2, 4), (0, 1, 9), (0, 3, 2), (0, 2, 5), (0, 1, 7), (0, 2, 6)])


@pytest.mark.parametrize("backfill, expected", [
    ("none", {3: 4, 4: 6, 5: 6, 6: 9}),
    ("list", {3: 5, 4: 0, 5: 4, 6: 7}),
    ("easy", {3: 4, 4: 6, 5: 0, 6: 7}),
    ("conservative", {3: 4, 4: 6, 5: 0, 6: 7}),
    ("conservative-recomputed", {3: 4, 4: 6, 5: 0, 6: 7}),
    ("easy-kept", {3: 4, 4: 6, 5: 0, 6: 7}),
    ("2", {3: 4, 4: 6, 5: 0, 6: 7}),
    ("2-kept", {3: 4, 4: 6, 5: 0, 6: 7}),
])
@pytest.mark.parametrize("machine", [(5, 1, 1, "compact"), (1, 1, 5, "pack")])
def test_vectors_of_five_processors(backfill: str, expected: dict[int, float],
                                    machine: tuple[int, int, int, str]) -> None:
    nodes, sockets, cores, policy = machine
    outcome = simulate(FIVE, Machine.of(nodes, sockets, cores), Rules(policy=policy, backfill=backfill))
    found = {row.id: row.start for row in outcome.jobs}
    assert found == {1: 0, 2: 0, **expected}


class Uncounted:
    """A policy that backfilling has to ask, because it does not say that counts are enough."""

    def __init__(self, policy: Any) -> None:
        self.name = policy.name
        self.nodes, self.fits, self.place = policy.nodes, policy.fits, policy.place
        self.similar = policy.similar


def test_reservations_of_cores_take_the_lowest_first(tmp_path: Any) -> None:
    simulate(FIVE, Machine.of(1, cores=5),
             Rules(backfill=Reserving(1, kept=False),
                   policy=lambda cluster, heatmap: Uncounted(make_policy("pack", cluster))),
             record=Recording(out=tmp_path))
    cores = {row.id: row.cores for row in read_jobs(tmp_path / "jobs.csv")}
    assert cores == {1: "n0:0/0-1", 2: "n0:0/2", 3: "n0:0/0-1+0/3", 4: "n0:0/0-1",
                     5: "n0:0/4", 6: "n0:0/3-4"}


def test_reserved_nodes_must_be_the_same_all_the_time() -> None:
    """Job 3 needs one node for 2 s: a count says from 1 on, but node 0 is reserved from 2."""
    cluster = Cluster.regular(2, 1, 1)
    policy = make_policy("compact", cluster)
    for number, end in ((0, 1.0), (1, 2.0)):
        job = Job(number, "app", 1, end)
        cluster.book(job, policy.place(job, cluster), 0.0)
    reserved, third = Job(8, "app", 1, 100.0), Job(9, "app", 1, 2.0)
    on_first = policy.place(reserved, Cluster.regular(2, 1, 1))
    assert on_first.nodes == [0]
    by_count, by_node = (kind(0.0, cluster, policy) for kind in (CountProfile, PoolProfile))
    for profile in (by_count, by_node):
        profile.hold(reserved, Slot(2.0, on_first))
    assert by_count.earliest(third).time == 1
    assert by_node.earliest(third).time == 2
    assert by_node.earliest(third).placement.nodes == [1]


@pytest.mark.parametrize("backfill", ["easy", "conservative", "1", "3-kept"])
def test_a_short_job_fills_the_hole_before_a_reservation(backfill: str) -> None:
    jobs = workload([(0, 2, 5), (0, 4, 20), (0, 3, 4)])
    assert starts(jobs, 5, backfill=backfill) == {1: 0, 2: 5, 3: 0}


def test_all_events_of_an_instant_come_before_the_scheduling_step() -> None:
    jobs = workload([(0, 2, 10), (0, 2, 5), (0, 2, 5), (1, 4, 3), (1, 2, 3)])
    assert starts(jobs, 6) == {1: 0, 2: 0, 3: 0, 4: 5, 5: 8}


# ------------------------------------------------------------- defects of other simulators


@pytest.mark.parametrize("backfill", ["easy", "easy-kept", "2", "conservative",
                                      "conservative-recomputed"])
def test_backfilling_does_not_delay_the_reservation(backfill: str) -> None:
    jobs = workload([(10, 1, 100), (11, 2, 50), (12, 1, 1000)])
    assert starts(jobs, 2, backfill=backfill)[2] == 110


def test_easy_may_use_nodes_that_the_head_leaves_over() -> None:
    jobs = workload([(0, 2, 10), (1, 3, 10), (2, 1, 100), (2, 1, 100)])
    assert starts(jobs, 4, backfill="easy") == {1: 0, 2: 10, 3: 2, 4: 20}


def test_the_real_run_time_is_not_visible() -> None:
    """What is decided before a job ends does not depend on when it will end."""
    def run(last: float) -> dict[int, float]:
        jobs = [Submission(Job(1, "a", 3, 100, 0), last), Submission(Job(2, "a", 4, 10, 1), 10),
                Submission(Job(3, "a", 1, 60, 2), 60), Submission(Job(4, "a", 1, 30, 62), 30),
                Submission(Job(5, "a", 1, 60, 63), 60)]
        return starts(jobs, 4, backfill="easy")
    early, late = run(99), run(100)
    assert {number: early[number] for number in (1, 3, 4)} == {1: 0, 3: 2, 4: 62}
    assert {number: late[number] for number in (1, 3, 4)} == {1: 0, 3: 2, 4: 62}
    assert (early[2], late[2]) == (99, 100)


def test_waiting_times_in_utilities_are_real() -> None:
    """WFP3 prefers who waited long by its estimate: at 100, (100/50)^3 against (10/10)^3."""
    jobs = workload([(0, 1, 100), (0, 1, 50), (90, 1, 10)])
    assert starts(jobs, 1, algorithm="WFP3") == {1: 0, 2: 100, 3: 150}


def test_makespan_counts_from_the_first_submission_at_time_0_too() -> None:
    assert simulate(workload([(0, 1, 7)]), Machine.of(1)).summary["makespan"] == 7


def test_rows_without_waiting_time_or_memory_are_kept(tmp_path: Any) -> None:
    path = tmp_path / "t.swf"
    path.write_text("; MaxProcs: 4\n1 0 -1 10 2 -1 -1 2 20 -1 1 1 1 -1 1 -1 -1 -1\n"
                    "2 1 -1 10 2 -1 0 2 20 0 1 1 1 -1 1 -1 -1 -1\n")
    assert simulate(path).summary["jobs"] == 2


# ------------------------------------------------------------------------- kills and overruns


def test_jobs_are_killed_at_their_wall_time_when_asked() -> None:
    jobs = [Submission(Job(1, "a", 1, 10, 0), 25), Submission(Job(2, "a", 1, 10, 1), 10)]
    kept, killed = simulate(jobs, Machine.of(1)), simulate(jobs, Machine.of(1), Rules(kill=True))
    assert [(row.start, row.end) for row in kept.jobs] == [(0, 25), (25, 35)]
    assert [(row.start, row.end) for row in killed.jobs] == [(0, 10), (10, 20)]
    assert killed.summary["timeout"] == 1 and killed.summary["completed"] == 1
    assert kept.summary["timeout"] == 0


@pytest.mark.parametrize("backfill", ["none", "easy", "easy-kept", "conservative", "2", "2-kept",
                                      "conservative-recomputed", "list"])
def test_jobs_that_outrun_their_estimate_hold_nobody_for_ever(backfill: str) -> None:
    jobs = [Submission(Job(number, "a", 1 + number % 3, 5, number), 5 + 7 * (number % 4))
            for number in range(1, 40)]
    outcome = simulate(jobs, Machine.of(4), Rules(backfill=backfill))
    assert outcome.summary["completed"] == 39


def test_impossible_jobs_are_counted_with_the_reason_and_the_run_goes_on() -> None:
    outcome = simulate(workload([(0, 3, 5), (1, 9, 5), (2, 1, 5)]), Machine.of(4), Rules(policy="compact"))
    assert outcome.summary["refused"] == 1 and outcome.summary["completed"] == 2
    (reason,) = outcome.summary["refusals"]
    assert "9 ranks do not fit on 4 node(s)" in reason


# ------------------------------------------------------------------------------ the whole run

BACKFILLINGS = ["none", "easy", "list", "conservative", "conservative-recomputed", "easy-kept",
                "3", "3-kept"]
MACHINES = [(6, 1, 1, "compact"), (3, 2, 2, "compact"), (3, 2, 2, "spare"), (3, 2, 2, "strip"),
            (3, 2, 2, "pack")]


_GAP = st.sampled_from([0, 0, 1, 2, 5, 9])
_FACTS = {most: st.lists(st.tuples(_GAP, st.integers(1, 12), st.sampled_from([1, 1, 2, 3]),
                                   st.sampled_from(["bt.A", "cg.A"]), st.integers(1, most)), min_size=1, max_size=25)
          for most in (4, 6, 8, 12)}


def workloads(most_procs: int = 6) -> st.SearchStrategy[list[Submission]]:
    """Random jobs, with estimates at or above the run times, many of them at one moment."""
    def made(facts: list[Any]) -> list[Submission]:
        time, found = 0, []
        for index, (gap, run, factor, app, procs) in enumerate(facts, 1):
            time += gap
            found.append(Submission(Job(index, app, procs, run * factor, time), run))
        return found

    return _FACTS[most_procs].map(made)


class Watch(Results):
    """Checks the machine at every event."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster.nodes)
        self.cluster = cluster

    def moment(self, state: Moment) -> None:
        held: dict[tuple[int, int, int], int] = {}
        for job_id, booking in self.cluster.bookings.items():
            ranks = 0
            for slot in booking.placement.slots(self.cluster.nodes):
                ranks += 1
                for core in slot.cores:
                    assert core < self.cluster.nodes[slot.node].sockets[slot.socket]
                    assert held.setdefault((slot.node, slot.socket, core), job_id) == job_id
            assert ranks == booking.job.procs
        assert len(held) == self.cluster.taken_cores == state[3]
        super().moment(state)


@pytest.mark.parametrize("backfill", BACKFILLINGS)
@pytest.mark.parametrize("machine", MACHINES)
@settings(max_examples=20, deadline=None)
@given(jobs=workloads(), algorithm=st.sampled_from(["FCFS", "SJF", "WFP3"]))
@pytest.mark.slow
def test_no_core_is_used_twice_and_no_job_is_lost(backfill: str, machine: Any, algorithm: str,
                                                  jobs: list[Submission]) -> None:
    nodes, sockets, cores, policy = machine
    cluster = Cluster.regular(nodes, sockets, cores)
    watch = Watch(cluster)
    scheduler = Scheduler(make_ordering(algorithm), make_backfilling(backfill),
                          make_policy(policy, cluster))
    Simulator(scheduler, cluster, watch).run(jobs)
    assert sorted(row.id for row in watch.rows()) == [job.id for job, *_ in jobs
                                 if job.procs <= 6 or policy != "spare"]
    assert cluster.taken_cores == 0 and not cluster.bookings and not cluster.ends
    for row in watch.rows():
        job, run, *_ = jobs[row.id - 1]
        assert row.submit == job.submit <= row.start and row.end == row.start + run


# ------------------------------------------------------------------- dependencies and holds

KINDS = (OK, ANY, START, FAIL)


@st.composite
def dependent_workloads(draw: Any) -> list[Submission]:
    """Jobs of ids 0, 2, 4, ... that depend on lower ids: on jobs, and on odd ones that are not in
    the workload."""
    time, found = 0, []
    for job_id in range(0, 2 * draw(st.integers(1, 9)), 2):
        time += draw(st.sampled_from([0, 0, 1, 4]))
        after = draw(st.lists(st.builds(
            lambda first, more, kind: Dependency(range(first, min(job_id, first + more)), kind),
            st.integers(0, job_id - 1), st.integers(1, 4), st.sampled_from(KINDS)),
            max_size=2)) if job_id else []
        said = {"begin": draw(st.sampled_from([0, 0, 0, 2, 7])), "deadline": draw(st.sampled_from([0, 0, 0, 4, 7, 11]))}
        found.append(Submission(
            Job(job_id, "app", draw(st.integers(1, 4)), draw(st.integers(1, 6)), time),
            draw(st.integers(1, 8)), tuple(after), draw(st.integers(0, 9)) == 9,
            details=Details(more={key: value for key, value in said.items() if value})))
    return found


def in_plain_words(jobs: list[Submission], procs: int, overtake: bool) -> dict[int, Any]:
    """What becomes of each job, second by second: start and status, or a status alone."""
    state: dict[int, str] = {}
    start: dict[int, int] = {}
    ends: dict[int, int] = {}
    for now in range(300):
        for job, run, *_ in jobs:
            if ends.get(job.id) == now:
                state[job.id] = "timeout" if run > job.estimate else "completed"
            if job.submit == now:
                state[job.id] = "refused" if job.procs > procs else "waiting"
        drop_late(jobs, now - 1, state)  # it would end after its deadline, though there may be room for it
        begun = True
        while begun:  # others may wait for a start
            begun = start_in_plain_words(jobs, procs, overtake, now, state, start, ends) or drop_late(jobs, now, state)
    return {job_id: (start.get(job_id), how) for job_id, how in state.items()}


def drop_late(jobs: list[Submission], now: int, state: dict[int, str]) -> bool:
    """Cancel what had not started by `now` and should have, to end by its deadline; whether there was one."""
    late = [job.id for job, *_, details in jobs if state.get(job.id) == "waiting"
            and now >= job.submit + details.more.get("deadline", 999) - job.walltime]
    state.update(dict.fromkeys(late, "cancelled"))
    return bool(late)


def start_in_plain_words(jobs: list[Submission], procs: int, overtake: bool, now: int, state: dict[int, str],
                         start: dict[int, int], ends: dict[int, int]) -> bool:
    """One look at who may start in a second; whether somebody did."""
    begun, ready = False, []
    for job, _, after, held, _, details in jobs:  # lower ids, on which others may depend, come first
        if state.get(job.id) != "waiting":
            continue
        on = [(state.get(other, "completed"), each.kind) for each in after
              for other in each.ids]
        if any((how in ("timeout", "refused", "cancelled") and kind == OK) or (how == "completed" and kind == FAIL)
               for how, kind in on):
            state[job.id] = "cancelled"
        elif not held and now >= job.submit + details.more.get("begin", 0) and not any(
                how == "waiting" or (how == "running" and kind != START) for how, kind in on):
            ready.append(job)
    for job in ready:
        busy = sum(other.procs for other, *_ in jobs if state.get(other.id) == "running")
        if busy + job.procs <= procs:
            run = next(one.run for one in jobs if one.job is job)
            state[job.id], start[job.id], begun = "running", now, True
            ends[job.id] = now + min(run, job.estimate)
        elif not overtake:
            break
    return begun


@settings(max_examples=300, deadline=None)
@given(jobs=dependent_workloads(), overtake=st.booleans())
@pytest.mark.slow
def test_dependencies_and_holds_as_in_plain_words(jobs: list[Submission], overtake: bool) -> None:
    found: dict[int, Any] = {}

    class Record(Results):
        def ended(self, booking: Any, start: Any, end: float, status: str) -> None:
            found[booking.job.id] = booking.start, status

        def refused(self, job: Job, reason: str) -> None:
            found[job.id] = None, "refused"

        def cancelled(self, job: Job, reason: str, now: float) -> None:
            found[job.id] = None, "cancelled"

    cluster = Cluster.regular(3, 1, 1)
    simulator = Simulator(
        Scheduler(make_ordering("FCFS"), make_backfilling("list" if overtake else "none"),
                  make_policy("compact", cluster)), cluster, Record(cluster.nodes), kill=True)
    simulator.run(jobs)
    expected = in_plain_words(jobs, 3, overtake)
    assert simulator.left == len(jobs) - len(found)
    for job, *_ in jobs:
        found.setdefault(job.id, (None, "waiting"))
    assert found == expected


@settings(max_examples=40, deadline=None)
@given(jobs=workloads(), backfill=st.sampled_from(BACKFILLINGS))
def test_the_same_input_gives_the_same_bytes(jobs: list[Submission], backfill: str) -> None:
    def run() -> str:
        text = io.StringIO()
        cluster = Cluster.regular(3, 2, 2)
        results = Results(cluster.nodes, text)
        scheduler = Scheduler(make_ordering("WFP3"), make_backfilling(backfill),
                              make_policy("strip", cluster))
        Simulator(scheduler, cluster, results).run(jobs)
        results.flush()
        return text.getvalue()
    assert run() == run()


@pytest.mark.parametrize("policy", ["compact", "spare", "strip", "pack"])
@settings(max_examples=30, deadline=None)
@given(jobs=workloads())
@pytest.mark.slow
def test_places_are_written_as_the_live_manager_writes_them(policy: str,
                                                            jobs: list[Submission]) -> None:
    cluster = Cluster.regular(4, 2, 3)
    texts = PlacementText(cluster.nodes)

    class Compare(Results):
        def ended(self, booking: Any, *rest: Any) -> None:
            placement = booking.placement
            nodes, cores = texts.columns(placement)
            assert nodes == texts.nodes(placement)
            found: dict[str, list[str]] = {}
            for slot in placement.slots(cluster.nodes):
                found.setdefault(f"n{slot.node}", []).extend(
                    f"{slot.socket}/{core}" for core in slot.cores)
            spelt: dict[str, list[str]] = {}
            for part in cores.split(";"):
                name, _, places = part.partition(":")
                for place in places.split("+"):
                    socket, _, span = place.partition("/")
                    first, _, last = span.partition("-")
                    spelt.setdefault(name, []).extend(
                        f"{socket}/{core}" for core in range(int(first), int(last or first) + 1))
            assert spelt == found
            assert cores == texts.cores(placement)

    scheduler = Scheduler(make_ordering("FCFS"), make_backfilling("list"),
                          make_policy(policy, cluster))
    Simulator(scheduler, cluster, Compare(cluster.nodes)).run(jobs)


def nearly(a: Any, b: Any) -> bool:
    """Equal but for rounding, in any depth."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(nearly(a[key], b[key]) for key in a)
    return a == b or (isinstance(a, float) and math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9))


@settings(max_examples=50, deadline=None)
@given(jobs=workloads(), trim=st.sampled_from([(0.0, 0.0), (3.0, 2.0)]))
@pytest.mark.slow
def test_metrics_are_those_of_the_report(jobs: list[Submission], trim: tuple[float, float]) -> None:
    users = [Submission(job.but(user=str(job.id % 3 or "")), run) for job, run, *_ in jobs]
    cluster = Cluster.regular(6, 1, 1)
    results = Results(cluster.nodes)
    Simulator(Scheduler(make_ordering("FCFS"), make_backfilling("easy"),
                        make_policy("compact", cluster)), cluster, results).run(users)

    class Finished:
        def __init__(self, row: Any) -> None:
            self.processors, self.submit, self.start, self.end = row[1:5]
            self.user, self.status, self.app_time = row.user, row.status, None

    rows = [Finished(row) for row in results.rows()]
    try:
        expected = plain_metrics.summary(rows, 6, *trim)
    except ValueError as error:
        with pytest.raises(ValueError, match=str(error)[:30]):
            results.summary(*trim)
        return
    found = results.summary(*trim)
    for one in (found, expected):
        one["queue_length"].pop("count")  # equal neighbours may be joined or not
    assert nearly(found, expected)


def test_an_interrupted_run_keeps_what_has_ended(tmp_path: Any) -> None:
    def jobs() -> Any:
        yield from workload([(0, 1, 5), (1, 1, 5), (2, 1, 50)])
        raise KeyboardInterrupt

    outcome = simulate(jobs(), Machine.of(3), record=Recording(out=tmp_path))
    assert outcome.interrupted
    assert [row.id for row in read_jobs(tmp_path / "jobs.csv")] == [row.id for row in outcome.jobs]


# ----------------------------------------------------------------------- what users can put in


def test_a_users_own_ordering_backfilling_and_placement() -> None:
    def smallest_area(job: Job, now: float, nodes: int) -> float:
        return -job.estimate * nodes

    class Lucky:
        """Backfills the last job of the queue if it fits."""

        def schedule(self, step: Any) -> Any:
            for job in step.waiting:
                if not step.fits(job):
                    break
                yield job
            else:
                return
            if step.fits(step.waiting[-1]):
                yield step.waiting[-1]

    def from_the_top(cluster: Cluster, heatmap: Any) -> Any:
        from vrm.model import Infeasible, Placement

        class Top:
            def nodes(self, job: Job) -> int:
                if job.procs > len(cluster.nodes):
                    raise Infeasible("too large")
                return job.procs

            def fits(self, job: Job, pool: Any) -> bool:
                return pool.empty.bit_count() >= job.procs

            def place(self, job: Job, cluster: Cluster, pool: Any = None) -> Any:
                chosen = 0
                for node in reversed(range(len(cluster.nodes))):
                    if (pool or cluster).empty >> node & 1 and (chosen).bit_count() < job.procs:
                        chosen |= 1 << node
                fits = (chosen).bit_count() == job.procs
                return Placement("whole", (chosen, chosen), (chosen,), job.procs) if fits else None

            def similar(self, job: Job) -> None:
                return None

        return Top()

    jobs = workload([(0, 3, 5), (1, 4, 5), (1, 3, 4), (1, 1, 9)])
    for backfill in (Lucky(), "easy", "conservative", "3-kept", "list", "none"):
        outcome = simulate(jobs, Machine.of(4), Rules(algorithm=smallest_area, backfill=backfill, policy=from_the_top))
        assert outcome.summary["completed"] == 4
        assert outcome.summary["algorithm"] == "smallest_area"
    found = {row.id: row.start for row in
             simulate(jobs, Machine.of(4), Rules(backfill=Lucky(), policy=from_the_top)).jobs}
    assert found[4] == 1


def test_a_machine_of_different_nodes() -> None:
    nodes = [Node("a0", (2, 2)), Node("a1", (4,)), Node("b0", (1,))]
    outcome = simulate(workload([(0, 6, 5), (1, 1, 5), (1, 9, 5), (1, 10, 5)]), Machine(nodes),
                       Rules(backfill="conservative"))
    assert outcome.summary["completed"] == 3 and outcome.summary["refused"] == 1


def test_no_geometry_is_an_error_that_says_what_to_give() -> None:
    with pytest.raises(ValueError, match="give a machine, as Machine.of"):
        simulate(workload([(0, 1, 1)]))


@pytest.mark.parametrize("choices, told", [
    ({"backfill": None}, "backfill=None: give a name"),
    ({"policy": lambda cluster, heatmap: None}, "an object with `nodes` and `place`"),
    ({"interval": -3.0}, "interval=-3.0: give seconds"),
    ({"run": math.nan}, "job 1 comes at 5 s and runs for nan s"),
    ({"submit": 0}, "job 1 comes at 0 s and runs for 1.0 s; give submissions in order"),
])
def test_what_the_library_cannot_use_is_told(choices, told):
    """And not simulated for ever."""
    second = Submission(Job(1, "a", 1, 9, choices.pop("submit", 5)), choices.pop("run", 1.0))
    with pytest.raises(ValueError, match=re.escape(told)):
        simulate([Submission(Job(0, "a", 1, 9, 5), 1.0), second], **by_name(dict(nodes=1, **choices)))


# ----------------------------------------- a small workload with known results, kept in the tests

# Start hash, mean wait and mean bounded slowdown of 300 jobs, made by the rule below, on 16
# one-core nodes; computed by plain loops like those of test_reservations.py, not by the simulator.
SMALL = {
    ("FCFS", "none"): ("1e17135d91520a00", 11974.7667, 70.206),
    ("SJF", "none"): ("5b984976a2b0fef7", 7256.5567, 12.9092),
    ("WFP3", "none"): ("a1a011dc2080d416", 10939.7967, 23.6426),
    ("FCFS", "easy"): ("05e5ae4c85c7d5d6", 5495.0433, 35.4102),
    ("SJF", "easy"): ("6a2a0b36e9fbadb4", 4157.3133, 8.2847),
    ("WFP3", "easy"): ("91703605867c4a6c", 4873.73, 11.4558),
    ("FCFS", "conservative"): ("96c11c2421c0cb90", 4778.01, 16.8978),
    ("FCFS", "3"): ("f2e489e1f4e9a112", 5738.9967, 33.9374),
}


def small_workload() -> list[Submission]:
    """300 jobs by a linear congruential generator, so that they are the same everywhere."""
    state, time, found = 12345, 0, []

    def draw(below: int) -> int:
        nonlocal state
        state = (1103515245 * state + 12345) % 2 ** 31
        return (state >> 8) % below

    for number in range(1, 301):
        time += draw(120)
        run = 1 + draw(900)
        estimate = run * (1 + draw(4))
        found.append(Submission(Job(number, "app", 1 + draw(12) * (draw(3) == 0) + draw(3),
                                    estimate, time), run))
    return found


@pytest.mark.parametrize("policy", list(SMALL))
@pytest.mark.slow
def test_results_of_a_small_workload(policy: tuple[str, str]) -> None:
    algorithm, backfill = policy
    summary = simulate(small_workload(), Machine.of(16), Rules(algorithm=algorithm, backfill=backfill)).summary
    assert (summary["start_hash"], round(summary["average_wait"], 4),
            round(summary["average_bounded_slowdown"], 4)) == SMALL[policy]
