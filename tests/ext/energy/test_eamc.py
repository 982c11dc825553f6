"""Energy-aware scheduling on classes of nodes: in which order entries are tried, and who waits for whom."""

from __future__ import annotations

from typing import Any

import pytest
from support.energy_facts import CLASSES, programs

from vrm.model import Job, Node
from vrm.model.measured.energy import MeasuredProgram, PowerClass, Programs
from vrm.model.job import Request
from vrm.scheduling.backfilling.dispatchers import make_backfilling
from vrm.ext.energy.eamc import GOALS
from vrm.scheduling.registry import PolicyError
from vrm.api import Machine, Measurements, Rules, simulate
from vrm.simulation.arguments import by_name
from vrm.simulation.outcome import Outcome
from vrm.workload.submission import Submission


def machine(each: int) -> list[Node]:
    """So many nodes of p1, then of p2, of four cores."""
    return [Node(f"{name}-{at}", (4,), features=frozenset({f"class:{name}"}), power=CLASSES[name])
            for name in ("p1", "p2") for at in range(each)]


def job(number: int, app: str, nodes: int, run: float = 100.0, submit: float = 0.0) -> Submission:
    request = Request.of(nodes, nodes=(nodes, nodes), tasks_per_node=1)
    return Submission(Job(number, app, nodes, 2 * run, submit, request=request), run)


def run(variant: str, jobs: list[Submission], each: int = 2, more: str = "", **how: Any) -> Outcome:
    return simulate(jobs,
                    **by_name(dict(nodes=machine(each), policy="compact", backfill=f"eamc variant={variant} {more}",
                                   energy=programs(), **how)))


class Watched:
    """Where jobs started, and how."""

    def __init__(self) -> None:
        self.places: dict[int, tuple[str, float, float]] = {}

    def booked(self, booking: Any) -> None:
        first = booking.placement.nodes[0]
        self.places[booking.job.id] = ("p1" if first < self.each else "p2", booking.placement.frequency,
                                       booking.start)

    each = 2

    def released(self, booking: Any) -> None: ...

    def revised(self, booking: Any, before: float) -> None: ...

    def nodes_changed(self) -> None: ...


def places(variant: str, jobs: list[Submission], more: str = "") -> dict[int, tuple[str, float, float]]:
    watched = Watched()
    run(variant, jobs, more=more, watchers=[watched])
    return watched.places


def test_each_goes_to_its_best_class_at_its_best_frequency() -> None:
    found = places("priority-inc", [job(1, "lu.C", 1), job(2, "STREAM", 1), job(3, "ep.D", 1)])
    assert found == {1: ("p1", 2.4, 0), 2: ("p2", 1.2, 0), 3: ("p1", 2.5, 0)}
    assert places("priority-inc", [job(1, "lu.C", 1)], "weight=1.5")[1][1] == 2.6
    assert places("min-energy", [job(1, "lu.C", 1)])[1][1] == 1.8
    assert places("min-runtime", [job(1, "lu.C", 1)])[1][1] == 2.7


ORDERS = {  # who is on p1 when two nodes of each are there for: lu.C, lu.C, STREAM x 2 wide, lu.C
    # Job after job: the third lu.C takes p2, since its p1 is full, before the last ones may try theirs.
    "reorder": {1: "p1", 2: "p1", 3: "p2", 4: "p2", 5: None},
    # First choices first: the STREAM behind it has p2 as its first, and gets it; lu.C has to wait.
    "priority-inc": {1: "p1", 2: "p1", 3: None, 4: "p2", 5: "p2"}}


@pytest.mark.parametrize("variant", ORDERS)
def test_the_order_of_the_entries(variant: str) -> None:
    found = places(variant, [job(1, "lu.C", 1), job(2, "lu.C", 1), job(3, "lu.C", 1),
                             job(4, "STREAM", 1), job(5, "STREAM", 1)])
    assert {at: name if start == 0 else None for at, (name, _, start) in sorted(found.items())
            } == ORDERS[variant]


def test_what_is_much_worse_than_the_best_is_tried_last() -> None:
    """sp-mz.C is worse by 25 % on p2, lu-mz.C by 4 %: with a threshold of 10 % lu-mz.C takes it first."""
    jobs = [job(1, "ep.D", 2), job(2, "sp-mz.C", 1), job(3, "lu-mz.C", 2)]
    assert places("priority-inc", jobs)[2][0] == "p2"
    found = places("priority-inc-v", jobs, "threshold=0.1")
    assert found[3][0] == "p2" and found[3][2] == 0 and found[2][2] > 0
    assert places("priority-inc-v", jobs)[2][0] == "p2"  # 35 %: none of them is worse by so much


def test_base_never_leaves_the_best_class() -> None:
    found = places("base", [job(1, "lu.C", 2), job(2, "lu.C", 1)])
    assert found[2] == ("p1", 2.7, pytest.approx(100.0))


def test_a_job_runs_slower_at_a_lower_frequency_and_its_limits_know_it() -> None:
    known = programs()
    pace = known.pace("ep.D", CLASSES["p1"], 2.5)
    assert pace > 1
    found = run("priority-inc", [job(1, "ep.D", 2, 100.0)], kill=True)
    (row,) = found.results.rows()
    assert row.end == pytest.approx(100 * pace) and row.status == "completed"
    there = known.at("ep.D", CLASSES["p1"], 2.5)
    assert there is not None
    assert found.summary["energy"] == pytest.approx(2 * there.watts * 100 * pace)
    assert found.summary["average_frequency"] == 2.5


def test_the_head_of_a_class_is_not_delayed() -> None:
    """Job 2 waits for both nodes of p1; the long job 3 would delay it there, the short one 4 does not."""
    found = places("base", [job(1, "lu.C", 1, 100), job(2, "lu.C", 2, 50), job(3, "lu.C", 1, 500),
                            job(4, "lu.C", 1, 10), job(5, "STREAM", 2, 500)])
    assert found[2][2] == pytest.approx(100) and found[4][2] == 0 and found[5][2] == 0
    assert found[3][2] >= found[2][2]


def test_who_may_not_start_takes_nothing_of_what_is_reserved() -> None:
    """Job 2 waits for three of four nodes. Job 3 would take two of them; job 4 takes the one that is left."""
    found = run("base", [job(1, "lu.C", 2, 100), job(2, "lu.C", 3, 50), job(3, "lu.C", 2, 500),
                         job(4, "lu.C", 1, 500)], each=4)
    starts = {row.id: row.start for row in found.results.rows()}
    assert starts[1] == 0 and starts[2] == pytest.approx(100) and starts[4] == 0
    assert starts[3] > starts[2]


def test_unknown_programs_run_at_the_default_wherever_there_is_room() -> None:
    found = places("priority-inc", [job(1, "other", 3), job(2, "lu.C", 1)])
    assert found[1][1:] == (0.0, 0) and found[2][0] == "p2"


def test_a_wide_job_goes_where_it_fits_at_all() -> None:
    nodes = machine(2) + [Node("p2-9", (4,), features=frozenset({"class:p2"}), power=CLASSES["p2"])]
    found = simulate([job(1, "lu.C", 3)], Machine(nodes), Rules(policy="compact", backfill="eamc"),
                     measured=Measurements(energy=programs()))
    assert [row.id for row in found.results.rows()] == [1]


def test_on_other_machines_and_dispatchers_time_counts_too() -> None:
    slow = PowerClass("slow", idle=5)
    known = Programs({"a": {"fast": MeasuredProgram(10, 100), "slow": MeasuredProgram(30, 50)}})
    found = simulate([Submission(Job(1, "a", 1, 100.0), 10.0)], Machine([Node("n", (1,), power=slow)]),
                     Rules(policy="compact", backfill="easy"), measured=Measurements(energy=known))
    assert found.summary["energy"] == 50 * 30 and found.summary["makespan"] == 30


@pytest.mark.parametrize("variant", GOALS)
def test_the_same_again(variant: str) -> None:
    jobs = [job(at, app, 1 + at % 2, 50 + 7 * at, 10.0 * at)
            for at, app in enumerate([*programs()] * 4)]
    first, second = (run(variant, jobs) for _ in range(2))
    assert first.summary["start_hash"] == second.summary["start_hash"]
    assert first.summary["energy"] == second.summary["energy"] > 0
    assert len(list(first.results.rows())) == len(jobs)


@pytest.mark.parametrize("text, said", [
    ("eamc variant=best", "backfilling `eamc variant=best`: variant is `best`; give variant=reorder, "),
    ("eamc weight=-1", "backfilling `eamc weight=-1`: weight is `-1`; give how much more time counts"),
    ("eamc wait=1", "backfilling `eamc wait=1`: eamc has no parameter `wait`; did you mean weight?")])
def test_wrong_parameters(text: str, said: str) -> None:
    with pytest.raises(PolicyError) as caught:
        make_backfilling(text)
    assert str(caught.value).startswith(said)
