"""Agents and allocations on the testbed: over ssh and srun, and with nodes that are switched off,
unplugged and plugged in again. vrm's side runs on a node, as in a real allocation.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from collections.abc import Callable, Iterator, Mapping, Sequence

import pytest

from support import testbed as testbed_module
from conftest import LIMIT, wait_until
from support.testbed import Testbed, missing
from vrm.live.nodes.bindings import BindingCheck, compare_affinity
from vrm.live.nodes.topology import read_topology
from vrm.live.relay.boot import MARK
from vrm.model import RankSlot

RUN = f"r1.{os.getpid()}"
"""The mark of these tests' jobs; others may be tested on this machine at the same time."""

# Runs on a node: prints what happens as lines of JSON, and does what it is told on its input.
DRIVER = r"""
import json, os, select, sys, time
from vrm.live.nodes.agents import Agents
from vrm.live.batch.allocation import find_allocation
options = json.loads(sys.argv[1])
def say(kind, **values): print(json.dumps({"kind": kind, **values}), flush=True)
allocation = find_allocation(os.environ)
say("allocation", of=allocation.kind, hosts=allocation.hosts, cores=dict(allocation.cores),
    job=allocation.job, end=allocation.end)
agents = Agents(options.pop("hosts", allocation.hosts), **options)
say("reach", reach=agents.reach)
start = time.monotonic()
found, failed = agents.settle()
say("found", failed=failed, seconds=time.monotonic() - start, nodes={host: dict(
    sockets=f.topology.node.sockets, synthetic=f.topology.synthetic, name=f.topology.host,
    memory=f.memory) for host, f in found.items()})
poll = select.poll()
poll.register(agents.fileno(), select.POLLIN)
poll.register(0, select.POLLIN)
while True:
    now = time.monotonic()
    due = agents.tick(now)
    for event in agents.events():
        kind = type(event).__name__
        values = {k: v for k, v in vars(event).items() if k != "facts"}
        if kind == "Affinity":
            values["ranks"] = {rank: sorted(cpus) for rank, cpus in event.ranks.items()}
        say(kind, **values)
    if (0, select.POLLIN) in poll.poll(1000 * min(max(0, due - now), 1)) or select.select(
            [0], [], [], 0)[0]:
        line = sys.stdin.readline()
        if not line:
            break
        order = json.loads(line)
        getattr(agents, order.pop("call"))(**order)
agents.close()
say("closed")
"""


class Driver:
    """A vrm of sorts on a node."""

    def __init__(self, testbed: Testbed, node: str, env: Mapping[str, str] | None = None,
                 **options: Any) -> None:
        self.process = testbed.popen(
            node, [sys.executable, "-c", DRIVER, json.dumps({"run": RUN, **options})], env=env,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        os.set_blocking(self.process.stdout.fileno(), False)
        self.text = b""
        self.seen: list[dict[str, Any]] = []

    def next(self, kind: str, host: str | None = None) -> dict[str, Any]:
        """Wait for such a line, and take it out."""
        def found() -> dict[str, Any] | None:
            data = self.process.stdout.read()
            *lines, self.text = (self.text + (data or b"")).split(b"\n")
            self.seen += map(json.loads, lines)
            if not data and self.process.poll() is not None:
                pytest.fail(f"the driver ended; it said {self.seen}")
            return next((line for line in self.seen if line["kind"] == kind
                         and host in (None, line.get("host"))), None)
        line: dict[str, Any] = wait_until(found, f"{kind} of {host}, not only {self.seen}")
        self.seen.remove(line)
        return line

    def tell(self, call: str, **arguments: Any) -> None:
        """Call a method of the agents."""
        order = json.dumps({"call": call, **arguments}) + "\n"
        self.process.stdin.write(order.encode())
        self.process.stdin.flush()

    def changes(self) -> list[dict[str, Any]]:
        """What was said of nodes that came or went, and has not been taken out."""
        return [line for line in self.seen if line["kind"] in ("NodeUp", "NodeDown")]

    def end(self) -> None:
        """End it as a run ends."""
        self.process.stdin.close()
        self.next("closed")
        assert self.process.wait(LIMIT) == 0


@pytest.fixture
def driver(testbed: Testbed) -> Iterator[Callable[..., Driver]]:
    made: list[Driver] = []

    def make(node: str = "login", env: Mapping[str, str] | None = None, **options: Any
             ) -> Driver:
        made.append(Driver(testbed, node, env, **options))
        return made[-1]

    yield make
    for driver in made:
        driver.process.kill()
        driver.process.wait()
        driver.process.stdout.close()
    wait_until(lambda: not any(runners_on(testbed, node) for node in testbed.nodes if testbed.alive(node)),
               "no runner is left")


def agents_on(testbed: Testbed, nodes: Sequence[str] | None = None) -> list[str]:
    """The nodes on which an agent runs: this machine's, or one that a runner has forked."""
    return [node for node in nodes or testbed.nodes if testbed.alive(node) and (
        any("agent.py" in line for line in testbed.pids(node).values()) or len(runners_on(testbed, node)) > 1)]


def runners_on(testbed: Testbed, node: str) -> list[int]:
    """The runner of a node, and the agent that it has forked."""
    return [pid for pid, line in testbed.pids(node).items() if MARK[:-1] in line and line.split()[0].endswith("/python3")]


def test_all_nodes_answer_over_ssh(testbed: Testbed, driver: Callable[..., Driver]) -> None:
    run = driver(hosts=testbed.nodes)
    assert run.next("allocation")["of"] == "machine"
    assert run.next("reach")["reach"] == "ssh"
    found = run.next("found")
    assert found["failed"] == {} and sorted(found["nodes"]) == list(testbed.nodes)
    for host, facts in found["nodes"].items():
        assert (facts["name"], facts["sockets"], facts["synthetic"]) == (host, [4, 4], True)
        assert facts["memory"] > 0
    assert agents_on(testbed) == list(testbed.nodes)
    run.end()


def test_a_node_off_the_network_is_left_out(testbed: Testbed, driver: Callable[..., Driver]
                                            ) -> None:
    testbed.cut("n2")
    try:
        found = driver(hosts=["n1", "n2"], timeout=3.0).next("found")
        assert list(found["nodes"]) == ["n1"] and list(found["failed"]) == ["n2"]
        assert any(words in found["failed"]["n2"] for words in
                   ("no answer within 3 s", "No route to host", "timed out"))
    finally:
        testbed.join("n2")


def test_inside_slurm_by_srun(testbed: Testbed, driver: Callable[..., Driver]) -> None:
    """The agents' steps take nothing from the job: others start beside them."""
    with testbed.allocation(4, "--exclusive", "-t", "10") as batch:
        before = time.time()
        run = driver(batch.host, batch.env)
        allocation = run.next("allocation")
        assert allocation["of"] == "slurm" and allocation["job"] == batch.job
        assert tuple(allocation["hosts"]) == batch.nodes
        assert allocation["cores"] == dict.fromkeys(batch.nodes, 8)
        assert before + 500 < allocation["end"] < before + 700
        assert run.next("reach")["reach"] == "srun"
        found = run.next("found")
        assert found["failed"] == {}
        assert {host: facts["sockets"] for host, facts in found["nodes"].items()} == (
            dict.fromkeys(batch.nodes, [4, 4]))
        assert agents_on(testbed) == sorted(batch.nodes)
        said = testbed.exec(batch.host, ["srun", "-N4", "-n32", "hostname"], env=batch.env)
        assert sorted(said.stdout.split()) == sorted([*batch.nodes] * 8), said.stderr
        run.tell("sweep", job_id=3)
        assert {run.next("SweepDone")["host"] for _ in batch.nodes} == set(batch.nodes)
        run.tell("drop", hosts=batch.nodes[2:])
        wait_until(lambda: agents_on(testbed) == sorted(batch.nodes[:2]), "two have ended")
        run.end()
        wait_until(lambda: not agents_on(testbed), "the agents have ended")


def test_a_job_over_several_nodes_is_found_and_swept(testbed: Testbed,
                                                     driver: Callable[..., Driver]) -> None:
    """Its ranks on each node by their marks, and nothing is left of it."""
    hosts = ["login", "n0", "n1"]
    run = driver(hosts=hosts)
    assert run.next("found")["failed"] == {}
    job = testbed.popen("login", [
        "mpirun", "-np", "3", "-H", "n0:2,n1:1", "-x", "VRM_RUN", "-x", "VRM_JOB_ID", "sh", "-c",
        "setsid sleep 600 & sleep 600"], env={"VRM_RUN": RUN, "VRM_JOB_ID": "5"},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    run.tell("request_affinity", job_id=5, hosts={"n0": 2, "n1": 1},
             variables=["OMPI_COMM_WORLD_RANK"])
    assert sorted(run.next("Affinity", "n0")["ranks"]) == ["0", "1"]
    assert sorted(run.next("Affinity", "n1")["ranks"]) == ["2"]
    # Each rank is a shell with its two sleeps.
    wait_until(lambda: [sleepers(testbed, node) for node in hosts[1:]] == [4, 2], "all sleep")
    run.tell("sweep", job_id=5, hosts=hosts)
    swept = {host: run.next("SweepDone", host) for host in hosts}
    # The end of mpirun ends its ranks, too, but not what has left their sessions.
    assert swept["n0"]["processes"] >= 2 and swept["n1"]["processes"] >= 1
    assert swept["login"]["processes"] >= 1 and job.wait(LIMIT) != 0
    wait_until(lambda: [sleepers(testbed, node) for node in hosts[1:]] == [0, 0], "none sleeps")
    run.end()


def sleepers(testbed: Testbed, node: str) -> int:
    """How many `sleep 600` there are on a node."""
    return sum(line == "sleep 600" for line in testbed.pids(node).values())


def test_a_node_that_is_switched_off_and_returns(testbed: Testbed, driver: Callable[..., Driver]
                                                 ) -> None:
    run = driver(hosts=["n4", "n5"], timeout=2.0, ping=0.2, pauses=[0.1, 1.0])
    assert run.next("found")["failed"] == {}
    testbed.kill("n5")
    try:
        assert run.next("NodeDown")["host"] == "n5"
        run.tell("sweep", job_id=1)
        assert run.next("SweepDone")["host"] == "n4"
    finally:
        testbed.restart("n5")
    assert run.next("NodeUp")["host"] == "n5"
    assert run.next("SweepDone")["host"] == "n5"
    assert not run.changes()
    run.end()


def test_a_node_that_is_unplugged_and_plugged_in(testbed: Testbed, driver: Callable[..., Driver]
                                                 ) -> None:
    run = driver(hosts=["n4", "n5"], timeout=2.0, ping=0.2, pauses=[0.1, 1.0])
    assert run.next("found")["failed"] == {}
    testbed.cut("n5")
    try:
        down = run.next("NodeDown")
        assert (down["host"], down["reason"]) == ("n5", "no answer to a ping within 2 s")
    finally:
        testbed.join("n5")
    assert run.next("NodeUp")["host"] == "n5"
    run.end()


def test_a_short_cut_goes_by_unnoticed(testbed: Testbed, driver: Callable[..., Driver]) -> None:
    run = driver(hosts=["n4", "n5"], timeout=20.0, ping=0.1)
    assert run.next("found")["failed"] == {}
    testbed.cut("n5")
    run.tell("sweep", job_id=1)
    assert run.next("SweepDone")["host"] == "n4"
    testbed.join("n5")
    assert run.next("SweepDone")["host"] == "n5"
    assert not run.changes()
    run.end()


def test_agents_go_when_their_vrm_is_killed(testbed: Testbed, driver: Callable[..., Driver]
                                            ) -> None:
    run = driver(hosts=["login", "n0", "n1"])
    run.next("found")
    assert agents_on(testbed, ["n0", "n1"]) == ["n0", "n1"]
    run.process.send_signal(signal.SIGKILL)
    wait_until(lambda: not agents_on(testbed, ["login", "n0", "n1"]), "no agent is left")


def test_the_end_of_a_job_that_is_extended(testbed: Testbed) -> None:
    code = ("import os; from vrm.live.batch.allocation import *\n"
            "found = find_allocation(os.environ); input(found.end)\n"
            "print(); print(end_of(found, os.environ))")
    with testbed.allocation(2, "-t", "10") as batch:
        asker = testbed.popen(batch.host, [sys.executable, "-c", code], env=batch.env, text=True,
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        first = float(asker.stdout.read(len("1795276800.0")))
        testbed.exec("login", ["scontrol", "update", f"JobId={batch.job}", "TimeLimit=30"],
                     check=True)
        said, _ = asker.communicate("\n", timeout=LIMIT)
        assert float(said) == first + 1200


def test_the_probe_without_emulation(testbed: Testbed) -> None:
    code = ("from vrm.live.nodes.topology import read_topology; t = read_topology();"
            "print(t.synthetic, t.node.sockets)")
    said = testbed.exec("n0", [sys.executable, "-c", code])
    assert said.stdout == "True (4, 4)\n", said.stderr
    said = testbed.exec("n0", ["env", "-u", "HWLOC_SYNTHETIC", sys.executable, "-c", code])
    assert said.stdout == f"False {read_topology().node.sockets}\n", said.stderr


def test_real_bindings_on_two_nodes(real: Testbed, tmp_path: Path) -> None:
    """Two ranks on cores of real nodes, as wished and exchanged."""
    here = read_topology()
    run = Driver(real, "n0", hosts=["n0", "n1"])
    assert run.next("found")["failed"] == {}
    slots = [RankSlot(0, 0, 0, (0,)), RankSlot(1, 1, 0, (1,))]
    nodes = [replace(here.node, name=name) for name in ("n0", "n1")]
    rankfile = tmp_path / "rankfile"
    rankfile.write_text("rank 0=n0 slot=0:0\nrank 1=n1 slot=0:1\n")
    job = real.popen("n0", ["mpirun", "-np", "2", "-H", "n0:1,n1:1", "-x", "VRM_RUN", "-x",
                            "VRM_JOB_ID", "-rf", rankfile, "sleep", "600"],
                     env={"VRM_RUN": RUN, "VRM_JOB_ID": "1"}, stdout=subprocess.DEVNULL,
                     stderr=subprocess.DEVNULL)
    run.tell("request_affinity", job_id=1, hosts={"n0": 1, "n1": 1},
             variables=["OMPI_COMM_WORLD_RANK"])
    found = {host: {int(rank): frozenset(cpus) for rank, cpus in
                    run.next("Affinity", host)["ranks"].items()} for host in ("n0", "n1")}
    topologies = {name: replace(here, host=name) for name in ("n0", "n1")}
    assert compare_affinity(slots, nodes, topologies, found) == BindingCheck("ok")
    wrong = [replace(slots[0], cores=(1,)), slots[1]]
    check = compare_affinity(wrong, nodes, topologies, found)
    assert check.state == "mismatch" and len(check.differences) == 1
    assert check.differences[0].startswith("rank 0 of n0: may use CPU ")
    run.tell("sweep", job_id=None)
    assert {run.next("SweepDone")["host"], run.next("SweepDone")["host"]} == {"n0", "n1"}
    assert job.wait(LIMIT) != 0
    run.end()
    run.process.stdout.close()


def test_the_doctor_lists_the_nodes_of_a_batch_job(testbed: Testbed, tmp_path: Path) -> None:
    (tmp_path / "vrm.yaml").write_text("Hosts: {Timeout: 3}\n")
    with testbed.allocation(3, "-t", "10") as batch:
        testbed.cut(batch.nodes[2])
        try:
            said = testbed.exec(batch.host, [sys.executable, "-m", "vrm.cli", "-c",
                                             tmp_path / "vrm.yaml", "doctor"],
                                env={**batch.env, "TZ": "UTC"}).stdout
        finally:
            testbed.join(batch.nodes[2])
    assert f"slurm job {batch.job}, 3 node(s): " in said and ", until 20" in said
    for host in batch.nodes[:2]:
        assert f"ok     node          {host}: 2 socket(s) of 4+4 core(s), emulated" in said
    assert f"note   node          {batch.nodes[2]} is left out: " in said
    assert "on 2 nodes of 4+4 cores" in said


@pytest.mark.testbed
def test_agents_take_no_memory_from_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch
                                            ) -> None:
    """Where Slurm counts memory, all of which one step could have."""
    skip = missing()
    if skip:
        pytest.skip(skip)
    conf = testbed_module.SLURM_CONF.replace("=CR_Core\n", "=CR_Core_Memory\nDefMemPerCPU=50\n")
    assert "CR_Core_Memory" in conf
    monkeypatch.setattr(testbed_module, "SLURM_CONF", conf)
    with Testbed(2, directory=tmp_path / "memory") as memory:
        for option in ("--mem=1000", "--mem-per-cpu=100"):
            with memory.allocation(2, option) as batch:
                run = Driver(memory, batch.host, batch.env)
                assert run.next("found")["failed"] == {}
                said = memory.exec(batch.host, ["srun", "-N2", "-n2", "hostname"], env=batch.env)
                assert sorted(said.stdout.split()) == sorted(batch.nodes), said.stderr
                run.end()
                run.process.stdout.close()


def test_slurm_that_binds_its_steps_hides_no_core_from_agents(real: Testbed) -> None:
    """The agent is one task on one core, and tells of all that the job has there."""
    with real.allocation(2) as batch:
        for more in ({}, {"SLURM_CPUS_PER_TASK": "1", "SRUN_CPUS_PER_TASK": "1",
                          "SLURM_CPU_BIND": "cores"}):
            run = Driver(real, batch.host, {**batch.env, **more})
            assert run.next("reach")["reach"] == "srun"
            found = run.next("found")
            assert found["failed"] == {}
            assert {host: tuple(facts["sockets"]) for host, facts in found["nodes"].items()
                    } == dict.fromkeys(batch.nodes, read_topology().node.sockets)
            run.end()
            run.process.stdout.close()
