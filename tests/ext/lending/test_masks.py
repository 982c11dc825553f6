"""The agents' order `masks`: real processes whose threads the kernel keeps on the cores of an order."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest

from conftest import mpirun_environment
from support.agents import (CPUS, OPEN_MPI, RUN, Jobs, Loop, StandIn, jobs, nodes,  # noqa: F401
                         two_cpus)
from vrm.live.runner import proc
from vrm.ext.lending.orders import MaskReport, confine, set_masks
from vrm.live.nodes.node_watch import NodeWatch
from vrm.live.nodes.agent_events import SweepDone
from vrm.live.nodes.topology import Topology
from vrm.model import Cluster, RankSlot

ONE, BOTH = frozenset(CPUS[:1]), frozenset(CPUS[:2])

pytestmark = two_cpus


def seen(pid: int) -> set[frozenset[int]]:
    """The CPUs that the threads of a process may use, by the kernel's files; nothing when it has ended."""
    found = set()
    for thread in proc.threads(pid):
        try:
            text = Path(f"/proc/{pid}/task/{thread}/status").read_text()
        except OSError:
            continue
        words = text.partition("Cpus_allowed_list:")[2].split()[0]
        found.add(frozenset(cpu for part in words.split(",") for cpu in range(
            int(part.partition("-")[0]), int(part.rpartition("-")[2]) + 1)))
    return found


def order(loop: Loop, epoch: int, tasks: dict[int, frozenset[int]], job: int = 1, **options: Any) -> MaskReport:
    """The answer of the node to an order."""
    set_masks(loop.agents, job, epoch, {"n1": tasks}, options.pop("variables", OPEN_MPI), **options)
    answer: MaskReport = loop.next(MaskReport)
    return answer


def test_every_thread_of_every_rank_moves_and_returns(nodes: StandIn, jobs: Jobs) -> None:
    """A thousand threads, a child of a rank, what belongs to no rank; another job stays where it is."""
    many = ("import threading\nevent = threading.Event()\nthreading.stack_size(65536)\n"
            "for _ in range(1000): threading.Thread(target=event.wait, daemon=True).start()\nwait()")
    bound = f"os.sched_setaffinity(0, {set(BOTH)})\n"
    first = jobs.start(bound + many, OMPI_COMM_WORLD_RANK="0")
    second = jobs.start(bound + "if not os.fork(): wait()\nos.wait(); wait()", OMPI_COMM_WORLD_RANK="1")
    child, = second.children()
    daemon = jobs.start(bound + "wait()")
    other = jobs.start(bound + "wait()", job=2, OMPI_COMM_WORLD_RANK="0")
    loop = nodes.make("n1").start()
    last = frozenset(CPUS[1:2])
    answer = order(loop, 1, {0: ONE, 1: last})
    assert answer == MaskReport("n1", 1, 1, True, {0: 1001, 1: 2}, frozenset())
    assert seen(first.pid) == {ONE} and seen(second.pid) == seen(child.pid) == {last}
    assert seen(daemon.pid) == seen(other.pid) == {BOTH}
    assert order(loop, 2, {0: ONE, 1: ONE}).clear
    assert seen(first.pid) == seen(second.pid) == seen(child.pid) == seen(daemon.pid) == {ONE}
    assert order(loop, 3, {0: BOTH, 1: BOTH}).clear
    assert seen(first.pid) == seen(second.pid) == seen(child.pid) == seen(daemon.pid) == {BOTH}
    assert seen(other.pid) == {BOTH}
    loop.agents.sweep(1)
    assert loop.next(SweepDone).processes == 4


def test_an_older_order_is_answered_with_the_last_one(nodes: StandIn, jobs: Jobs) -> None:
    rank = jobs.start("wait()", OMPI_COMM_WORLD_RANK="0")
    loop = nodes.make("n1").start()
    assert order(loop, 7, {0: ONE}).epoch == 7
    late = order(loop, 6, {0: BOTH})
    assert (late.epoch, late.clear) == (7, True) and seen(rank.pid) == {ONE}
    rank.cpu_affinity(list(BOTH))
    assert order(loop, 7, {0: ONE}).clear and seen(rank.pid) == {ONE}  # the same once more
    loop.agents.sweep(1)
    loop.next(SweepDone)
    again = jobs.start("wait()", OMPI_COMM_WORLD_RANK="0")  # a job that waits again counts from the start
    assert order(loop, 1, {0: ONE}).epoch == 1 and seen(again.pid) == {ONE}


def test_what_makes_processes_all_the_time_does_not_escape(nodes: StandIn, jobs: Jobs) -> None:
    rank = jobs.start("print(flush=True)\nwhile True:\n"
                      "    if not os.fork():\n        time.sleep(0.05); os._exit(0)\n"
                      "    time.sleep(0.002)\n    os.waitpid(-1, os.WNOHANG)", OMPI_COMM_WORLD_RANK="0")
    loop = nodes.make("n1").start()
    assert order(loop, 1, {0: ONE}).clear
    loop.until(lambda: all(seen(process.pid) <= {ONE} for process in [rank, *rank.children()]),
               "what was in the making is found, too")


def test_it_is_not_clear_before_every_rank_is_there(nodes: StandIn, jobs: Jobs) -> None:
    jobs.start("wait()", OMPI_COMM_WORLD_RANK="0")
    loop = nodes.make("n1").start()
    answer = order(loop, 1, {0: ONE, 1: ONE}, patience=0.2)
    assert not answer.clear and answer.error == "no process of rank 1 was found"
    assert answer.threads == {0: 1, 1: 0}
    jobs.start("wait()", OMPI_COMM_WORLD_RANK="1")
    assert order(loop, 1, {0: ONE, 1: ONE}).clear
    answer = order(loop, 2, {0: ONE}, patience=0.2)
    assert not answer.clear and "rank 1 runs here" in answer.error
    nothing = order(loop, 1, {0: ONE}, job=5, patience=0.0)
    assert not nothing.clear and nothing.error == "no process of rank 0 was found"
    with pytest.raises(ValueError, match="job 1 would have no core on n1"):
        set_masks(loop.agents, 1, 3, {"n1": {0: frozenset()}}, OPEN_MPI)


def test_a_core_that_is_not_there_is_named(nodes: StandIn, jobs: Jobs) -> None:
    rank = jobs.start("wait()", OMPI_COMM_WORLD_RANK="0")
    loop = nodes.make("n1").start()
    answer = order(loop, 1, {0: frozenset([1000])}, patience=0.0)
    assert not answer.clear and f"process {rank.pid} cannot be moved to CPU 1000: " in answer.error


def test_a_job_without_ranks_is_one_process(nodes: StandIn, jobs: Jobs) -> None:
    job = jobs.start("if not os.fork(): wait()\nos.wait()")
    loop = nodes.make("n1").start()
    assert order(loop, 1, {0: ONE}, variables=()).threads == {0: 2}
    assert seen(job.pid) == seen(job.children()[0].pid) == {ONE}
    loop.agents.sweep(1)
    loop.next(SweepDone)


def test_what_escapes_later_is_caught(nodes: StandIn, jobs: Jobs) -> None:
    """As a thread does that the kernel was making when the masks were set."""
    rank = jobs.start("wait()", OMPI_COMM_WORLD_RANK="0")
    loop = nodes.make("n1").start()
    assert order(loop, 1, {0: ONE}).clear
    rank.cpu_affinity(list(BOTH))
    loop.until(lambda: seen(rank.pid) == {ONE}, "the agent has looked again")


def test_an_order_survives_its_agent(nodes: StandIn, jobs: Jobs) -> None:
    rank = jobs.start("wait()", OMPI_COMM_WORLD_RANK="0")
    loop = nodes.make("n1").start()
    set_masks(loop.agents, 1, 4, {"n1": {0: ONE, 1: ONE}}, OPEN_MPI)
    loop.until(lambda: seen(rank.pid) == {ONE}, "the order has come")
    os.kill(nodes.pids("n1")[-1], 9)
    jobs.start("wait()", OMPI_COMM_WORLD_RANK="1")
    answer = loop.next(MaskReport)
    assert answer.clear and answer.epoch == 4 and nodes.tries("n1") == 2


def test_ranks_that_mpirun_has_bound(nodes: StandIn) -> None:
    mpirun = shutil.which("mpirun")
    if not mpirun:
        pytest.skip("no mpirun")
    process = subprocess.Popen([mpirun, "-np", "2", "--bind-to", "core", "sleep", "600"],
                               env={**mpirun_environment(), "VRM_RUN": RUN, "VRM_JOB_ID": "1"},
                               start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        loop = nodes.make("n1").start()
        ranks: list[int] = []
        for epoch, cpus in ((1, BOTH), (2, ONE), (3, BOTH)):
            assert order(loop, epoch, {0: cpus, 1: cpus}, patience=30.0).clear
            ranks = [child.pid for child in psutil.Process(process.pid).children(recursive=True)
                     if child.name() == "sleep"]
            assert len(ranks) == 2 and all(seen(pid) == {cpus} for pid in ranks)
            assert seen(process.pid) == {cpus}
        loop.agents.sweep(1)
        loop.next(SweepDone)
    finally:
        process.kill()
        process.wait()


class Orders:
    """Agents that note which CPUs the ranks of a job are to use."""

    def __init__(self) -> None:
        self.begun = True
        self.tasks: list[dict[str, dict[int, list[int]]]] = []

    def order(self, order: Any, job_id: int, hosts: Any) -> set[str]:
        self.tasks = [{host: values[name] for host, values in hosts.items()} for name in ("tasks", "own")]
        return set(hosts)


def test_a_job_whose_ranks_nobody_can_tell_apart_is_one_process() -> None:
    cluster, shape = Cluster.regular(1, 1, 4), Topology.regular("n0", [4])
    slots = [RankSlot(0, 0, 0, (0, 1)), RankSlot(1, 0, 0, (3,))]
    own = [RankSlot(0, 0, 0, (0, 1)), RankSlot(1, 0, 0, (2, 3))]
    for variables, tasks, wide in ((("OMPI_COMM_WORLD_RANK",), {0: [0, 1], 1: [3]}, {0: [0, 1], 1: [2, 3]}),
                                   ((), {0: [0, 1, 3]}, {0: [0, 1, 2, 3]})):
        agents: Any = Orders()
        watch = NodeWatch(agents, cluster, {"n0": shape}, variables, "n0")
        assert confine(watch, 1, 1, slots, own) == {"n0": set(tasks)}
        assert agents.tasks == [{"n0": tasks}, {"n0": wide}]
    assert confine(NodeWatch(None, cluster, {"n0": shape}, ()), 1, 1, slots, own) == {}
