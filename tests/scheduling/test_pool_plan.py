"""A plan of pools, with all that makes it fast, against plain loops: every step is tried as a start, every job
is taken out of the plan to be moved, and no step is forgotten."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vrm.model import Job, Node
from vrm.model.booking import Watcher
from vrm.model.cluster import Pool
from vrm.model.measured.energy import MeasuredProgram, PowerClass, Programs
from vrm.model.job import Request
from vrm.scheduling.backfilling.profile import PoolProfile, Slot
from vrm.simulation.engine import Outage
from vrm.api import Machine, Measurements, Recording, Rules, Timetable, simulate
from vrm.workload.submission import Submission

NODES = tuple(Node(f"n{at}", (2, 2), {"memory": 8.0, "gpu": float(at % 2)}, power=PowerClass("p", idle=5, busy=20))
              for at in range(4))
PROGRAMS = Programs({"a": {"p": MeasuredProgram(5, 30)}, "b": {"p": MeasuredProgram(5, 12)}})


class Plain(PoolProfile):
    """The definition."""

    def _free_throughout(self, job: Job, first: int) -> Pool | None:
        pool, end = self.pools[first], self.times[first] + job.expected
        if not self.policy.fits(job, pool):
            return None
        pool = pool.what_if()
        for at in range(first + 1, len(self.times)):
            if self.times[at] >= end:
                break
            pool.keep_common(self.pools[at])
            if not self.policy.fits(job, pool):
                return None
        return pool

    def earliest(self, job: Job) -> Slot:
        for first, time in enumerate(self.times):
            pool = self._free_throughout(job, first)
            if pool is not None:
                return Slot(time, self.policy.place(job, pool))
        return Slot(float("inf"))

    def compress(self, job: Job, slot: Slot) -> Slot:
        self.give(job, slot)
        earlier = self.earliest(job)
        slot = earlier if earlier.time < slot.time else slot
        self.hold(job, slot)
        return slot

    def tidy(self) -> None:
        pass


class Seen(Watcher):
    """What started when, and where."""

    def __init__(self) -> None:
        self.starts: list[tuple[Any, ...]] = []

    def booked(self, booking: Any) -> None:
        self.starts.append((booking.job.id, booking.start, booking.placement.room,
                            tuple(booking.placement.slots(NODES))))


@st.composite
def workloads(draw: Any) -> list[Submission]:
    found, time = [], 0.0
    for number in range(1, draw(st.integers(4, 22))):
        time += draw(st.sampled_from([0, 0, 1, 2, 5]))
        nodes = draw(st.integers(1, 3))
        tasks = draw(st.integers(nodes, 4 * nodes))
        per_node = draw(st.sampled_from([{}, {"memory": 3.0}, {"memory": 6.0}, {"gpu": 1.0}]))
        request = draw(st.sampled_from([
            Request.of(tasks), Request.of(tasks, resources={"memory": 1.0}),
            Request.of(tasks, nodes=(nodes, nodes), tasks_per_node=-(-tasks // nodes), per_node=per_node),
            Request.of(tasks, nodes=(1, nodes), per_node=per_node),
            Request.of((tasks + 1) // 2, 2), Request.of(nodes, 2, nodes=(nodes, nodes), resources={"memory": 2.0}),
            Request.of(tasks, exclude=["n2"]), Request.of(tasks, nodelist=["n1"], resources={"memory": 2.0})]))
        request = request._replace(exclusive=draw(st.sampled_from([False, False, True])))
        walltime = float(draw(st.integers(1, 30)))
        found.append(Submission(
            Job(number, draw(st.sampled_from("abc")), request.tasks, walltime, time, request=request,
                cores=request.cores_per_task, watts=float(draw(st.sampled_from([0, 3, 10, 25])))), draw(st.sampled_from([1.0, walltime]))))
    return found


@pytest.mark.parametrize("policy", ["pack", "strip"])
@pytest.mark.parametrize("backfill", ["conservative", "3"])
@settings(max_examples=25, deadline=None)
@given(jobs=workloads(), cap=st.sampled_from(["", "80", "0=70 20=50 60=90"]), order=st.sampled_from(["FCFS", "SJF"]),
       outages=st.sampled_from([(), (), (Outage(1, 6.0, 40.0), Outage(2, 9.0, 15.0))]))
def test_all_starts_are_those_of_the_plain_plan(backfill: str, policy: str, jobs: list[Submission], cap: str,
                                                order: str, outages: tuple[Outage, ...]) -> None:
    found = []
    for kind in (PoolProfile, Plain):
        watcher = Seen()
        with mock.patch("vrm.scheduling.backfilling.reservation_plan.PoolProfile", kind):
            simulate(list(jobs), Machine(NODES),
                     Rules(policy=policy, backfill=backfill, algorithm=order, power_cap=cap),
                     measured=Measurements(energy=PROGRAMS), timetable=Timetable(outages=outages),
                     record=Recording(watchers=[watcher]))
        found.append(watcher.starts)
    assert found[0] == found[1]
