"""Recorded schedules: what starts when and where, under all policies, dispatchers and orders, on workloads that this file
makes. A change of them is a defect, or is said and recorded anew: `python tests/simulation/test_digests.py`."""

from __future__ import annotations

import hashlib
import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest

from vrm.model import Heatmap, Job, Node
from vrm.model.booking import Booking, Watcher
from vrm.model.job import Request
from vrm.model.forms.placement_formats import to_record
from vrm.model.reservation import ReservationRequest
from vrm.api import Submission, simulate
from vrm.simulation.arguments import by_name
from vrm.simulation.engine import Outage

FILE = Path(__file__).with_name("digests.json")
POLICIES = ["compact", "spare", "strip", "pack"]
BACKFILLINGS = ["none", "easy", "list", "conservative", "conservative-recomputed", "easy-kept", "2", "2-kept", "sd"]
ORDERS = ["FCFS", "WFP3", "SJF", "LJF"]
ROWS = """\
bt ep lu sp is cg bt mg ft
cg ep bt lu sp ft mg cg is
ep sp mg lu bt ft is cg ep
ft ep lu cg is mg bt sp ft
"""
Kind = dict[str, Any]


def jobs(seed: int, most: int, gap: float, wishes: bool = False, malleable: bool = False) -> list[Submission]:
    """Sixty jobs that come faster than they are done."""
    draw, now, found = random.Random(seed), 0.0, []
    for number in range(60):
        now += draw.choice([0.0, gap, 2 * gap])
        procs, estimate = draw.randint(1, draw.choice([2, most])), draw.choice([30.0, 300.0, 900.0, 3600.0])
        amounts = {"gpu": draw.randint(0, 1), "memory": draw.choice([0.5, 2])} if wishes and draw.random() < 0.5 else {}
        cores, exclusive = draw.choice([1, 1, 2]), draw.random() < 0.1
        request = Request.of(procs, cores, exclusive, amounts,
                             frozenset(["fast"] if wishes and draw.random() < 0.2 else []), {},
                             {"ansys": draw.choice([0, 0, 1])} if wishes else {})
        job = Job(number, draw.choice(["bt.B", "cg.A", "ep.A", "ft", "zz"]), procs, estimate, now, exclusive, cores=cores,
                  request=request, priority=draw.choice([0] * 9 + [1]) if wishes else 0,
                  malleable=malleable and draw.random() < 0.7)
        found.append(Submission(job, float(draw.randint(1, int(estimate)))))
    return found


def regular(nodes: int, sockets: int, cores: int) -> list[Node]:
    return [Node(f"n{number}", (cores,) * sockets) for number in range(nodes)]


def mixed() -> list[Node]:
    return [Node("g0", (4, 4), {"gpu": 2, "memory": 16}, frozenset(["fast"])),
            Node("g1", (4, 4), {"gpu": 2, "memory": 16}, frozenset(["fast"])),
            *(Node(f"m{number}", (4, 4), {"memory": 8}) for number in range(3)),
            Node("big", (8, 8), {"memory": 64}, frozenset(["fast"])), Node("odd", (3,), {"memory": 4})]


def kinds() -> dict[str, Kind]:
    """The workloads, each with its machine and what else happens."""
    return {
        "equal nodes": {"workload": jobs(1, 24, 60), "nodes": regular(8, 2, 4)},
        "nodes that differ": {"workload": jobs(2, 12, 60, wishes=True), "nodes": mixed(), "licences": {"ansys": 2}},
        "malleable": {"workload": jobs(3, 16, 90, malleable=True), "nodes": regular(6, 2, 4), "kill": True},
        "calendar and outages": {
            "workload": jobs(4, 16, 90), "nodes": regular(6, 2, 4), "kill": True,
            "reservations": [ReservationRequest(2000, 5000, 2), ReservationRequest(9000, 9500, nodes=("n0", "n1", "n2"), name="a")],
            "outages": [Outage(3, 1000, 4000), Outage(4, 2500, 2600)]}}


class Starts(Watcher):
    """What started when and where."""

    def __init__(self) -> None:
        self.made: list[Any] = []

    def booked(self, booking: Booking) -> None:
        self.made.append([booking.job.id, booking.start, to_record(booking.placement)])


def digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def schedule(kind: Kind, policy: str, backfilling: str, order: str) -> str:
    """The digest of one run; the same starts must come out where nobody watches, which may be quicker by other code."""
    seen = Starts()
    given = {**kind, "policy": policy, "backfill": backfilling, "algorithm": order,
             "heatmap": Heatmap.parse(ROWS.splitlines())}
    watched, plain = simulate(**by_name(dict(watchers=[seen], **given))), simulate(**by_name(given))
    rows = [[row.id, row.start, row.end, row.status, row.backfilled] for row in watched.jobs]
    assert sorted(rows) == sorted([row.id, row.start, row.end, row.status, row.backfilled] for row in plain.jobs)
    return digest([sorted(rows), seen.made])


def combinations(name: str) -> list[list[str]]:
    """All policies and dispatchers, each with one order after the other."""
    pairs = [(policy, backfilling) for policy in POLICIES for backfilling in BACKFILLINGS]
    first = list(kinds()).index(name)
    return [[*pair, ORDERS[(first + at + at // len(ORDERS)) % len(ORDERS)]] for at, pair in enumerate(pairs)]


def recorded(name: str) -> dict[str, str]:
    kind = kinds()[name]
    return {" ".join(each): schedule(kind, *each) for each in combinations(name)}


@pytest.mark.parametrize("name", list(kinds()))
def test_schedules_are_those_that_were_recorded(name: str) -> None:
    found, before = recorded(name), json.loads(FILE.read_text())[name]
    assert found == before, sorted(key for key in found if found[key] != before.get(key))


if __name__ == "__main__":
    FILE.write_text(json.dumps({name: recorded(name) for name in kinds()}, indent=1) + "\n")
    sys.exit(0)
