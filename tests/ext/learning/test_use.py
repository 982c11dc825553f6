"""What agents see of running jobs, and what is made of it at their ends."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import wait_until

from vrm.ext.learning.nodes import use as probe
from vrm.ext.learning.job_use import EVERY, LOOKS, USE, JobUses, NodeUse
from vrm.live.launch.direct import DirectLauncher
from vrm.live.manager.records.records import EndedJob
from vrm.live.runner import proc
from vrm.model import Booking, Cluster, Job, JobState
from vrm.model.forms.fields import made
from vrm.model.job import Program
from vrm.scheduling import make_policy
from vrm.workload.grammar import FIELDS

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


def looked(job: int, ends: Sequence[int] = ()) -> dict[str, Any]:
    """What the probe of an agent answers."""
    task = probe.take({"number": 3, "run": RUN, "job": job, "ends": ends, "variables": ["PMI_RANK", "RANK"]}, 0.0)
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
    assert looked(8) == {"number": 3, "cpu": 0.0, "running": 0, "programs": []}


def test_each_program_of_a_coupled_job_is_counted_by_its_ranks() -> None:
    program = "import time\nkept = bytearray({} << 20)\nfor _ in range({}): pass\ntime.sleep(1000)"
    ranks = [("0", 20, 0), ("1", 60, 0), ("2", 0, 10 ** 7), (None, 200, 0), ("3", 0, 0)]
    started = [subprocess.Popen([sys.executable, "-c", program.format(size, turns)], env={
        **os.environ, "VRM_RUN": RUN, "VRM_JOB_ID": "9", **({"RANK": rank} if rank else {})})
        for rank, size, turns in ranks]
    try:
        def programs() -> Any:
            return looked(9, [2, 3])["programs"]

        wait_until(lambda: programs()[0][1] > 60 << 20 and programs()[1][0] > 2 * programs()[0][0], "all have begun")
        assert programs()[0][1] < 100 << 20 and programs()[1][1] < 50 << 20, "mpirun is of no program"
    finally:
        for each in started:
            each.kill()
            each.wait()


# ----------------------------------------------------------------------- what is made of it


class Watch:
    """Nodes that are asked, of which n0 is this machine."""

    def __init__(self, beyond: bool) -> None:
        self.watches, self.here, self._beyond, self.variables = True, "n0", beyond, ("RANK",)
        self.asked: list[tuple[int, set[str]]] = []

    def order(self, order: object, job_id: int, hosts: Mapping[str, Mapping[str, Any]]) -> set[str]:
        assert order is USE
        self.ends = next(iter(hosts.values()))["ends"]
        self.asked.append((job_id, set(hosts)))
        return set(hosts)

    def beyond(self, placement: object) -> bool:
        return self._beyond


def followed(ranks: int, kind: str = "openmpi", script: bool = False, coupled: Job | None = None) -> tuple[JobUses, Watch, Booking]:
    cluster = Cluster.regular(3, 1, 2)
    watch = Watch(ranks > 2)
    live: Any = SimpleNamespace(watch=watch, cluster=cluster, launcher=SimpleNamespace(kind=kind))
    job = coupled or Job(4, "a.x", ranks, 60.0, payload=Program(script=script))
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


@pytest.mark.parametrize("kind, script", [(DirectLauncher.kind, False), ("openmpi", True)])
def test_a_program_that_is_started_alone_counts_on_its_first_node(kind: str, script: bool) -> None:
    uses, _, booking = followed(3, kind, script)
    uses.answered(NodeUse("n1", 4, 10.0, 1), 120.0)
    outcome = ended(booking, 120.0, None)
    uses.complete(outcome)
    assert outcome.cpu == pytest.approx(14.0)


@pytest.mark.parametrize("cpu, seconds", [(None, (22.0, 22.0)), (4.0, (2.0, 2.0))])
def test_what_the_programs_of_a_coupled_job_used_is_put_together(cpu: float | None, seconds: tuple[float, ...]) -> None:
    """The seconds of the whole job are theirs, as they had used them by the last look."""
    job, _ = made({"app": "c", "procs": 4, "walltime": 60.0,
                   "components": FIELDS["coupled"].kind.read("a.x 3 nodes=2 : b.x 1")}, 4, 0.0)
    uses, watch, booking = followed(4, coupled=job)
    uses.ask(105.0)
    assert watch.ends == [3, 4]
    uses.answered(NodeUse("n0", 4, 10.0, 1, ((9.0, 5 << 20), (0.0, 0))), 110.0)
    assert not ended(booking, 120.0, cpu).programs
    uses.answered(NodeUse("n1", 4, 20.0, 1, ((1.0, 7 << 20), (10.0, 3 << 20))), 110.0)
    outcome = ended(booking, 120.0, cpu)
    uses.complete(outcome)
    assert outcome.programs == ((seconds[0], 7 << 20), (seconds[1], 3 << 20))


def test_the_answer_of_an_agent_is_read() -> None:
    assert USE.read("n1", {"job": 4}, {"cpu": 1.5, "running": 2, "programs": [[1, 5]]}) == NodeUse("n1", 4, 1.5, 2, ((1.0, 5),))
    with pytest.raises(KeyError):
        USE.read("n1", {"job": 4}, {"cpu": 1.5})
