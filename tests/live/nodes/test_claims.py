"""Two batch jobs on one node, each granted a number of its cores: they take different ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from collections.abc import Iterator

import pytest

from conftest import Site, wait_until
from vrm.live.runner import agent
from vrm.live.runner import claims as claims_of
from vrm.live.nodes.agents import Agents
from vrm.live.nodes.topology import Topology, TopologyError, claimed, read_topology

WAIT = 'grep Cpus_allowed_list /proc/self/status\nwhile [ ! -e "$0.go" ]; do sleep 0.02; done\n'

pytestmark = pytest.mark.skipif(read_topology().synthetic or read_topology().cores < 2,
                                reason="needs two real cores")


@pytest.fixture
def alone() -> Iterator[list[str]]:
    """What starts a program in a network of its own, where the claims of other tests are not."""
    holder = subprocess.Popen(["unshare", "--net", "sh", "-c",
                               "ip link set lo up; echo ready; exec sleep 600"],
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        if holder.stdout is None or holder.stdout.readline() != "ready\n":
            pytest.skip("needs namespaces (root)")
        yield ["nsenter", "-t", str(holder.pid), "--net"]
    finally:
        holder.kill()
        holder.wait()


def claims(alone: list[str], wishes: str) -> list[dict[str, Any]]:
    """What agents get who wish one after the other, in one process each, and all live; in a wish,
    {} is what the first one got."""
    program = ("import json, subprocess, sys\n"
               "started, first = [], None\n"
               "for wish in sys.argv[2:]:\n"
               "    wish = wish.format(','.join(map(str, first or ())))\n"
               "    started.append(subprocess.Popen([sys.executable, '-I', '-S', sys.argv[1], '60',"
               " wish], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))\n"
               "    line = next(line for line in started[-1].stdout if line.strip())\n"
               "    facts = json.loads(line)['facts']\n"
               "    first = first or facts.get('claimed')\n"
               "    print(json.dumps([facts.get('claimed'), facts.get('shared')]), flush=True)\n")
    done = subprocess.run([*alone, sys.executable, "-c", program, agent.__file__, *wishes.split()],
                          stdout=subprocess.PIPE, text=True, check=True, timeout=60)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_each_takes_what_is_free_and_none_is_taken_twice(alone: list[str]) -> None:
    number = read_topology().cores
    found = claims(alone, " ".join(["1"] * number) + " 1")
    taken = [tuple(cpus) for cpus, _ in found[:-1]]
    assert len(set(taken)) == number and all(taken)
    cpus, trouble = found[-1]
    assert cpus == [] and f"{number} are taken by other vrm" in trouble
    (all_of_them, _), = claims(alone, str(number))
    assert all_of_them is None  # the whole node: nothing to choose, nothing to claim


def test_a_claim_is_held_again_by_the_next_agent_of_a_node(alone: list[str]) -> None:
    """Of which the one before may still be there, cut off from vrm."""
    (first, _), (again, trouble), (other, _) = claims(alone, "1 cpus:{} 1")
    assert len(first) == 1 and again == first and not trouble and other != first


def test_a_core_to_which_somebody_is_bound_is_taken_last(alone: list[str]) -> None:
    first = read_topology().sockets[0][0].cpus
    bound = subprocess.Popen(["sleep", "60"], preexec_fn=lambda: os.sched_setaffinity(0, first))
    try:
        found = claims_of.bound_cpus(os.sched_getaffinity(0))
        assert set(first) <= set(found) and all(text.startswith("process ")
                                                for text in found.values())
    finally:
        bound.kill()
        bound.wait()


def test_a_node_without_a_free_core_is_none() -> None:
    machine = Topology.regular("n0", (2, 2))
    assert [len(cores) for cores in claimed(machine, [1, 2]).sockets] == [1, 1]
    assert claimed(machine, [2, 3]).node.sockets == (2,)
    assert claimed(machine, [2, 3]).all_cores == machine.all_cores  # what launchers count
    with pytest.raises(TopologyError, match="taken by other vrm; wait for their end"):
        claimed(machine, [])


def test_two_batch_jobs_of_one_node_run_on_different_cores(
        site: Site, tmp_path: Path, alone: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each was granted one core: the second takes another one, and a third finds none."""
    if read_topology().cores != 2:
        pytest.skip("counts on two cores")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {" ".join(alone)} {sys.executable} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    other = Site(tmp_path / "other")
    third = Site(tmp_path / "third")
    (tmp_path / "nodes").write_text(f"{os.uname().nodename}\n")
    env = {"PBS_NODEFILE": str(tmp_path / "nodes"), "NCPUS": "1", "PBS_CONF_FILE": "/none"}
    for each in (site, other, third):
        each.config(Nodes="auto", Sockets="auto", Cores="auto")  # its bindings are asked for
        each.program("where.x", WAIT)
        each.lines("where.x 1 60 0")
    places = []
    try:
        for number, each in enumerate((site, other)):
            each.start(PBS_JOBID=f"{number}.login", **env)
            output = each.log / "where.x.0.o"
            wait_until(lambda: output.exists() and output.read_text(), "it runs")
            places.append(output.read_text().split()[-1])
            wait_until(lambda: [job["binding"] for job in (each.state() or {"jobs": []})["jobs"]] == ["ok"], "its binding is checked")
        assert len(set(places)) == 2, places
        refused = third.run(PBS_JOBID="3.login", **env)
        assert refused.returncode == 2
        assert "all of its cores are taken by other vrm" in refused.stderr
    finally:
        for each in (site, other):
            (each.bin / "where.x.go").touch()
            assert "is down" not in "".join(map(each.finish, each.started))
            each.close()
    assert site.statuses() == other.statuses() == {0: "completed"}


def test_agents_claim_what_is_granted(alone: list[str]) -> None:
    """The wish goes to the agent, and after a loss that for the same cores."""
    agents = Agents(["far"], env=dict(os.environ), timeout=30, granted={"far": 1},
                    command=[*alone, "/bin/sh", "-c", 'eval "exec $1"'])
    try:
        found, _ = agents.settle()
        assert found["far"].topology.cores == 1
        cpus = found["far"].topology.sockets[0][0].cpus
        assert agents._wishes == {"far": "cpus:" + ",".join(map(str, cpus))}
    finally:
        agents.close()
