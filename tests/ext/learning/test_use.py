"""What agents see of running jobs, and what is made of it at their ends."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import wait_until

from vrm.ext.learning.nodes import use as probe
from vrm.ext.learning.use import EVERY, LOOKS, USE, JobUses, NodeUse
from vrm.live.launch.direct import Direct
from vrm.live.manager.records.records import EndedJob
from vrm.live.runner import proc
from vrm.model import Booking, Cluster, Job, JobState
from vrm.model.job import Program
from vrm.scheduling import make_policy

RUN = "use-of-a-test"


@pytest.fixture
def busy() -> Iterator[subprocess.Popen[bytes]]:
    """A process of a job with three threads, of which two children and it are at work or asleep."""
    program = """
import os, time
for seconds in (0, 0, 1000):
    if not os.fork():
        while not seconds:
            pass
        time.sleep(seconds)
        os._exit(0)
time.sleep(1000)
"""
    process = subprocess.Popen([sys.executable, "-c", program], start_new_session=True,
                               env={**os.environ, "VRM_RUN": RUN, "VRM_JOB_ID": "7"})
    yield process
    os.killpg(process.pid, 9)
    process.wait()


def looked(job: int) -> dict[str, Any]:
    """What the probe of an agent answers."""
    task = probe.take({"number": 3, "run": RUN, "job": job}, 0.0)
    for _ in range(probe.LOOKS):
        for process, environment in proc.marked():
            if all(mark in environment for mark in task.marks):
                task.see(process, environment)
        done = task.looked(0.0)
    assert done
    return task.answer()


@pytest.mark.usefixtures("busy")
def test_threads_that_run_are_counted_and_their_time() -> None:
    wait_until(lambda: looked(7)["running"] == 2, "two processes are at work")
    before = looked(7)["cpu"]
    wait_until(lambda: looked(7)["cpu"] > before + 0.2, "they take time")
    assert looked(8) == {"number": 3, "cpu": 0.0, "running": 0}


# ----------------------------------------------------------------------- what is made of it


class Watch:
    """Nodes that are asked, of which n0 is this machine."""

    def __init__(self, beyond: bool) -> None:
        self.watches, self.here, self._beyond = True, "n0", beyond
        self.asked: list[tuple[int, set[str]]] = []

    def order(self, order: object, job_id: int, hosts: Mapping[str, object]) -> set[str]:
        assert order is USE
        self.asked.append((job_id, set(hosts)))
        return set(hosts)

    def beyond(self, placement: object) -> bool:
        return self._beyond


def followed(ranks: int, kind: str = "openmpi", script: bool = False) -> tuple[JobUses, Watch, Booking]:
    cluster = Cluster.regular(3, 1, 2)
    watch = Watch(ranks > 2)
    live: Any = SimpleNamespace(watch=watch, cluster=cluster, launcher=SimpleNamespace(kind=kind))
    job = Job(4, "a.x", ranks, 60.0, payload=Program(script=script))
    booking = cluster.book(job, make_policy("pack", cluster, None).place(job, cluster), 100.0)
    uses = JobUses(live)
    uses.launched(booking, 100.0)
    return uses, watch, booking


def ended(booking: Booking, end: float, cpu: float | None) -> EndedJob:
    return EndedJob(booking.job, JobState.COMPLETED, booking=booking, end=end, used=(3.0, 1.0, 50 << 20), cpu=cpu)


def test_nodes_are_asked_again_and_again() -> None:
    uses, watch, _ = followed(3)
    times = []
    for second in range(100, 500):
        uses.ask(float(second))
        times += [second - 100] * (len(watch.asked) - len(times))
    assert times == [*LOOKS, *(LOOKS[-1] + EVERY * number for number in (1, 2))]
    assert all(asked == (4, {"n0", "n1"}) for asked in watch.asked)


def test_cpu_time_of_other_nodes_is_added_as_it_was_seen() -> None:
    uses, _, booking = followed(3)
    uses.answered(NodeUse("n1", 4, 10.0, 1), 110.0)
    uses.answered(NodeUse("n0", 4, 99.0, 5), 110.0)  # this machine's is known exactly
    uses.answered(NodeUse("n1", 9, 99.0, 5), 110.0)  # of a job that has ended
    outcome = ended(booking, 120.0, None)
    uses.complete(outcome)
    assert outcome.cpu == pytest.approx(4.0 + 20.0) and outcome.beyond == 3


def test_without_an_answer_the_cpu_time_is_not_known() -> None:
    uses, _, booking = followed(5)
    uses.answered(NodeUse("n1", 4, 10.0, 1), 110.0)  # n2 has not answered
    outcome = ended(booking, 120.0, None)
    uses.complete(outcome)
    assert outcome.cpu is None


def test_what_is_known_exactly_stays() -> None:
    uses, _, booking = followed(2)
    uses.answered(NodeUse("n0", 4, 10.0, 2), 110.0)
    outcome = ended(booking, 120.0, 4.0)
    uses.complete(outcome)
    assert outcome.cpu == 4.0 and outcome.beyond == 0


@pytest.mark.parametrize("kind, script", [(Direct.kind, False), ("openmpi", True)])
def test_a_program_that_is_started_alone_counts_on_its_first_node(kind: str, script: bool) -> None:
    uses, _, booking = followed(3, kind, script)
    uses.answered(NodeUse("n1", 4, 10.0, 1), 120.0)
    outcome = ended(booking, 120.0, None)
    uses.complete(outcome)
    assert outcome.cpu == pytest.approx(14.0)


def test_the_answer_of_an_agent_is_read() -> None:
    assert USE.read("n1", {"job": 4}, {"cpu": 1.5, "running": 2}) == NodeUse("n1", 4, 1.5, 2)
    with pytest.raises(KeyError):
        USE.read("n1", {"job": 4}, {"cpu": 1.5})
