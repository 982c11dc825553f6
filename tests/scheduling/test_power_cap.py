"""A cap on power over time, against the definition in plain loops: no moment has more than the cap, and
EASY and conservative backfilling start what their definitions say."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vrm.model import Cluster, Job, Node
from vrm.model.measured.energy import MeasuredProgram, PowerClass, Programs
from vrm.ext.energy.cap import PowerLimit
from vrm.scheduling.registry import PolicyError
from vrm.api import Machine, Measurements, Rules, Selection, simulate
from vrm.workload.submission import Submission

NODES, STEPS = 4, tuple[tuple[float, float], ...]


class Load(NamedTuple):
    """A job of a workload: submission, nodes, watts, walltime, real run time."""

    submit: float
    nodes: int
    watts: float
    walltime: float
    run: float


class Held(NamedTuple):
    """What a job holds, from a start up to the end of its walltime."""

    load: Load
    start: float

    @property
    def end(self) -> float:
        return self.start + self.load.walltime


def level(steps: STEPS, time: float) -> float:
    """The cap at a time."""
    return [watts for begin, watts in steps if begin <= time or begin == steps[0][0]][-1]


def fits(load: Load, at: float, holds: list[Held], steps: STEPS) -> bool:
    """Whether a job can run from `at` to the end of its walltime beside what is held."""
    moments = [at] + [time for time in ([begin for begin, _ in steps] + [held.start for held in holds])
                      if at < time < at + load.walltime]
    for moment in moments:
        there = [held.load for held in holds if held.start <= moment < held.end]
        if (sum(each.nodes for each in there) + load.nodes > NODES
                or sum(each.watts for each in there) + load.watts > level(steps, moment)):
            return False
    return True


def earliest(load: Load, now: float, holds: list[Held], steps: STEPS) -> float:
    """The first moment at which it fits; infinity where there is none."""
    for time in sorted({now, *(held.end for held in holds), *(begin for begin, _ in steps)}):
        if time >= now and fits(load, time, holds, steps):
            return time
    return math.inf


def easy(loads: list[Load], steps: STEPS) -> dict[int, float]:
    """The starts of EASY backfilling, from its definition."""
    starts: dict[int, float] = {}
    running: list[tuple[int, Held]] = []
    now = 0.0
    while True:
        running = [(at, held) for at, held in running if held.start + held.load.run > now]
        holds = [held for _, held in running]
        waiting = [at for at, load in enumerate(loads) if load.submit <= now and at not in starts]

        def begin(at: int) -> None:
            starts[at] = now
            running.append((at, Held(loads[at], now)))
            holds.append(running[-1][1])

        while waiting and fits(loads[waiting[0]], now, holds, steps):
            begin(waiting.pop(0))
        if waiting:
            head = loads[waiting[0]]
            shadow = earliest(head, now, holds, steps)
            for at in waiting[1:]:
                load = loads[at]
                if fits(load, now, holds, steps) and (
                        now + load.walltime <= shadow
                        or shadow == math.inf
                        or fits(head, shadow, [*holds, Held(load, now)], steps)):
                    begin(at)
        later = [time for time in (*(held.start + held.load.run for _, held in running),
                                   *(load.submit for load in loads), *(begin for begin, _ in steps))
                 if time > now]
        if not later:
            return starts
        now = min(later)


def conservative(loads: list[Load], steps: STEPS) -> dict[int, float]:
    """The starts of conservative backfilling where jobs run as long as they say: each job has the earliest
    hole when it comes, on the first nodes that are free for all of it, and keeps these nodes."""
    holds: list[Held] = []
    on: list[frozenset[int]] = []

    def free(load: Load, at: float) -> list[int]:
        taken = {node for held, nodes in zip(holds, on) for node in nodes
                 if held.start < at + load.walltime and at < held.end}
        return [node for node in range(NODES) if node not in taken]

    for load in loads:
        times = sorted({load.submit, *(held.end for held in holds), *(begin for begin, _ in steps)})
        start = next((time for time in times if time >= load.submit and fits(load, time, holds, steps)
                      and len(free(load, time)) >= load.nodes), math.inf)
        on.append(frozenset(free(load, start)[:load.nodes]))
        holds.append(Held(load, start))
    return {at: held.start for at, held in enumerate(holds) if held.start < math.inf}


def simulated(loads: list[Load], steps: STEPS, backfill: str) -> dict[int, float]:
    jobs = [Submission(Job(at, "a", load.nodes, load.walltime, load.submit, watts=load.watts), load.run)
            for at, load in enumerate(loads)]
    nodes = [Node(f"n{at}", (1,), power=PowerClass("p")) for at in range(NODES)]
    found = simulate(jobs, Machine(nodes), Rules(policy="compact", backfill=backfill, power_cap=str(PowerLimit(steps))),
                     selection=Selection(keep_estimates=True),
                     measured=Measurements(energy=Programs({"other": {"p": MeasuredProgram(1, 1)}})))
    return {row.id: row.start for row in found.results.rows()}


TIMES = st.integers(1, 40).map(float)


@st.composite
def cases(draw: Any, exact: bool = False) -> tuple[list[Load], STEPS]:
    steps = draw(st.lists(st.tuples(st.integers(0, 120).map(float), st.integers(3, 12).map(float)),
                          min_size=1, max_size=4, unique_by=lambda step: step[0]))
    loads = []
    for _ in range(draw(st.integers(1, 9))):
        walltime = draw(TIMES)
        loads.append(Load(float(draw(st.integers(0, 60))), draw(st.integers(1, NODES)),
                          float(draw(st.integers(1, 8))), walltime,
                          walltime if exact else min(walltime, draw(TIMES))))
    last = max(steps)[1]  # what never fits is refused or waits: that is another test
    return (sorted((load._replace(watts=min(load.watts, last)) for load in loads),
                   key=lambda load: load.submit), tuple(sorted(steps)))


def obeyed(loads: list[Load], starts: dict[int, float], steps: STEPS) -> None:
    """No moment has more than the cap, and every job has run."""
    assert sorted(starts) == list(range(len(loads)))
    ends = {at: start + loads[at].run for at, start in starts.items()}
    for moment in [*starts.values(), *(begin for begin, _ in steps)]:
        drawn = sum(loads[at].watts for at, start in starts.items() if start <= moment < ends[at])
        assert drawn <= level(steps, moment), moment


@given(cases())
def test_easy_is_what_its_definition_says(case: tuple[list[Load], STEPS]) -> None:
    starts = simulated(*case, "easy")
    obeyed(case[0], starts, case[1])
    assert starts == easy(*case)


@given(cases(exact=True))
def test_conservative_is_what_its_definition_says(case: tuple[list[Load], STEPS]) -> None:
    starts = simulated(*case, "conservative")
    obeyed(case[0], starts, case[1])
    assert starts == conservative(*case)


@pytest.mark.parametrize("backfill", ["none", "conservative", "3", "easy-kept", "eamc"])
@given(case=cases())
def test_no_dispatcher_goes_beyond_the_cap(backfill: str, case: tuple[list[Load], STEPS]) -> None:
    obeyed(case[0], simulated(*case, backfill), case[1])


def test_a_dip_keeps_long_jobs_back_and_lets_short_ones_go() -> None:
    loads = [Load(0, 1, 80, 100, 100), Load(0, 1, 80, 50, 50), Load(0, 1, 10, 500, 500)]
    steps = ((0.0, 100.0), (60.0, 30.0), (200.0, 200.0))
    # The first would still run in the dip, the second is done by then, and the third fits into it.
    assert simulated(loads, steps, "easy") == {0: 200.0, 1: 0.0, 2: 0.0}


def test_what_draws_more_than_is_ever_left_is_refused() -> None:
    power = PowerClass("p", idle=10, busy=60)
    nodes = [Node(f"n{at}", (4,), power=power) for at in range(2)]
    jobs = [Submission(Job(1, "known", 4, 9.0), 5.0), Submission(Job(2, "other", 8, 9.0), 5.0),
            Submission(Job(3, "said", 4, 9.0, watts=81), 5.0), Submission(Job(4, "half", 2, 9.0), 5.0)]
    programs = Programs({"known": {"p": MeasuredProgram(5, 90)}})
    found = simulate(jobs, Machine(nodes), Rules(policy="compact", power_cap="100"),
                     measured=Measurements(energy=programs))
    # 20 W are those of idle nodes; 80 are left: known adds 80, other 2 x 50, and half a node as a whole.
    assert [row.id for row in found.results.rows()] == [1, 4]
    assert found.results.refusals == {
        "PowerCap: it draws 100 W above idle nodes, at most 80 W are ever left for jobs": 1,
        "PowerCap: it draws 81 W above idle nodes, at most 80 W are ever left for jobs": 1}
    assert found.summary["energy"] == 5 * 90 + 5 * 60 and found.summary["highest_power"] == 90


def test_what_a_job_draws_must_be_known() -> None:
    found = simulate([Submission(Job(1, "cg.B.x", 1, 9.0), 5.0)], Machine.of(2),
                     Rules(policy="compact", power_cap="100"))
    (reason,) = found.results.refusals
    assert reason.startswith("PowerCap: what cg.B.x draws is not known; say watts=N in its line, or Busy")


@pytest.mark.parametrize("cap, said", [
    ("30", "PowerCap: 30 W is less than the 40 W that the 2 nodes draw without a job; give more"),
    ("0=100 50=39", "PowerCap: 39 W is less than the 40 W"),
    ("0=5 0=6", "PowerCap: `0=5 0=6`: the times of a cap ascend, 0 comes after 0; give watts"),
    ("nan", "PowerCap: `nan`: a cap of nan W cannot be")])
def test_caps_that_cannot_be(cap: str, said: str) -> None:
    nodes = [Node(f"n{at}", (1,), power=PowerClass("p", idle=20)) for at in range(2)]
    with pytest.raises(PolicyError) as caught:
        simulate([Submission(Job(1, "a", 1, 9.0, watts=1), 5.0)], Machine(nodes), Rules(power_cap=cap))
    assert str(caught.value).startswith(said)


def test_a_copy_of_a_cluster_keeps_its_own_budget() -> None:
    cluster = Cluster.regular(2, 1, 1)
    from vrm.model.rules import Rules
    from vrm.scheduling.compose import compose
    scheduler = compose(Rules(power_cap="100", policy="compact"), cluster)
    job = Job(1, "a", 1, 10.0, watts=70)
    placement = scheduler.policy.place(job, cluster)
    assert placement
    cluster.book(job, placement, 0.0)
    twin = cluster.copy()
    twin.release(1)
    second = Job(2, "b", 1, 10.0, watts=40)
    assert scheduler.policy.fits(second, twin) and not scheduler.policy.fits(second, cluster)
    assert str(scheduler.policy.place(second, cluster)) == "draws 40 W, 30 W are left under PowerCap"


def test_what_is_backfilled_counts_from_now_to_its_end() -> None:
    """The third job runs past the head's start, and has ended before the cap falls: it may start at once."""
    loads = [Load(0, 3, 1, 10, 10), Load(0, 3, 5, 30, 30), Load(0, 1, 3, 15, 15)]
    steps = ((0.0, 8.0), (20.0, 6.0))
    assert simulated(loads, steps, "easy") == easy(loads, steps) == {0: 0.0, 1: 10.0, 2: 0.0}
    late = [*loads[:2], Load(0, 1, 3, 25, 25)]  # it would still run then
    assert simulated(late, steps, "easy") == easy(late, steps)
    assert simulated(late, steps, "easy")[2] > 0
