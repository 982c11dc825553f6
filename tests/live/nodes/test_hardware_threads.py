"""Hardware threads as cores: topologies, the cluster, and what mpirun maps on a machine that hwloc is shown."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import Site, mpiruns, wait_until
from support.machines import EVEN_ODD_THREADS, machine

from vrm.live.launch.openmpi_output import parse_bindings, parse_map
from vrm.live.nodes.geometry import cluster_geometry
from vrm.live.nodes.topology import NodeFacts, Topology, TopologyError, parse_synthetic, parse_topology

TWO_BY_FOUR_BY_TWO = "pack:2 core:4 pu:2"


@pytest.fixture
def topology(tmp_path: Path) -> Topology:
    """Two sockets of four cores, CPU n and n + 8 on each core, even ones on the first socket."""
    return parse_topology(machine(tmp_path, EVEN_ODD_THREADS), "n0")


def test_the_halves_of_a_socket_are_siblings(topology: Topology) -> None:
    """The logical number of a thread is that of its core twice, and its place there."""
    found = topology.by_thread(2)
    assert [[core.cpus[0] for core in cores] for cores in found.sockets] == [
        [0, 2, 4, 6, 8, 10, 12, 14], [1, 3, 5, 7, 9, 11, 13, 15]]
    assert [[core.number for core in cores] for cores in found.sockets] == [
        [0, 2, 4, 6, 1, 3, 5, 7], [8, 10, 12, 14, 9, 11, 13, 15]]
    for place, core in enumerate(found.all_cores):
        assert core.number == place and core.cpus == (topology.all_cores[place // 2].cpus[place % 2],)
    assert found.node.threads == 2 and found.node.sockets == (8, 8) and topology.by_thread(1) is topology
    with pytest.raises(TopologyError, match="core 0 of n0 has 2 hardware thread"):
        topology.by_thread(4)


def test_a_machine_that_comes_back_is_known(topology: Topology) -> None:
    known = topology.by_thread(2)
    assert known.matches(topology) and topology.matches(topology)
    part = replace(known, sockets=tuple(cores[:2] + cores[4:6] for cores in known.sockets))
    assert part.matches(topology)
    less = replace(topology, sockets=topology.sockets[:1])
    assert known.matches(less) is part.matches(less) is topology.matches(less) is False
    assert not known.matches(Topology.regular("n0", (8, 8)))


def test_a_cluster_of_threads(topology: Topology) -> None:
    """Fewer cores are the first ones with both their threads; a machine with other threads is refused, or emulated."""
    facts = {"n0": NodeFacts(topology)}
    whole = cluster_geometry(["n0"], facts, threads=2)
    assert whole.nodes[0].sockets == whole.granted[0].sockets == (8, 8) and whole.topologies["n0"] == topology.by_thread(2)
    part = cluster_geometry(["n0"], facts, sockets=1, cores=3, threads=2)
    assert part.nodes[0].sockets == (6,) and part.nodes[0].threads == 2
    assert [core.cpus[0] for core in part.topologies["n0"].sockets[0]] == [0, 2, 4, 8, 10, 12]
    assert cluster_geometry(["n0"], facts, granted={"n0": 2}, threads=2).nodes[0].sockets == (4,)
    single = {"n0": NodeFacts(Topology.regular("n0", (2,)))}
    with pytest.raises(TopologyError, match="Threads: 2, but core 0 of n0 has 1 hardware thread"):
        cluster_geometry(["n0"], single, threads=2)
    emulated = cluster_geometry(["n0"], single, nodes=2, threads=2, emulate=True)
    assert emulated.emulated and [node.sockets for node in emulated.nodes] == [(4,), (4,)]


def test_what_mpirun_reports_of_threads() -> None:
    old = ("[n0:1] MCW rank 0 bound to socket 0[core 0[hwt 1]], socket 0[core 3[hwt 0-1]]: [.B/../../BB][../../../..]\n"
           "[n0:1] MCW rank 1 is not bound (or bound to all available processors)\n")
    assert parse_bindings(old, 2) == {0: frozenset({("pu", 1), ("pu", 6), ("pu", 7)}), 1: None}
    new = "[n0:1] Rank 0 bound to package[0][hwt:L0,2] package[1][core:L4]\n"
    assert parse_bindings(new, 2) == {0: frozenset({("pu", 0), ("pu", 2), ("pu", 8), ("pu", 9)})}
    assert parse_map(" Process rank: 2 Bound: socket 1[core 4[hwt 1]]:[../../../..][.B/../../..]\n", 2) == {
        2: frozenset({("pu", 9)})}


QUEUE = ("where 8 60 0 name=first threads=1", "where 8 60 0 name=second", "where 16 60 0 name=all threads=2",
         "where 2 60 0 name=wide threads=1 cores=2", "where 9 60 0 name=beyond threads=1", "where 2 60 0 name=odd threads=3")


@pytest.mark.mpi
@pytest.mark.parametrize("policy", ["strip", "compact"])
@pytest.mark.parametrize("mpirun", mpiruns())
def test_ranks_are_mapped_to_threads(site: Site, mpirun: str, policy: str) -> None:
    """Under strip two jobs have a thread of each core each; `ok` compares the map of mpirun with the threads of each
    rank."""
    site.config(Nodes="auto", Sockets="auto", Cores="auto", Threads=2, Allocation={"Policy": policy},
                Scheduling={"Backfilling": "easy"}, Launcher={"Mpirun": mpirun, "AllowRoot": True, "CheckBindings": "fail"})
    site.program("where", f"echo $VRM_JOB_ID >>{site.root}/started\n"
                 + (f"until [ $(wc -l <{site.root}/started) -ge 16 ]; do sleep 0.02; done" if policy == "strip" else ""))
    site.lines(*QUEUE)
    assert parse_synthetic(TWO_BY_FOUR_BY_TWO, "x") is not None
    done = site.run("--once", HWLOC_SYNTHETIC=TWO_BY_FOUR_BY_TWO)
    assert "of 4+4 cores with 2 threads each" in done.stdout, done.stdout + done.stderr
    rows = {row.name: row for row in site.rows().values()}
    assert {name: row.status for name, row in rows.items()} == {
        **dict.fromkeys(("first", "second", "all", "wide"), "completed"), **dict.fromkeys(("beyond", "odd"), "refused")}
    assert {row.binding for row in rows.values() if row.status == "completed"} == {"ok"}
    where = {name: row.cores.partition(":")[2] for name, row in rows.items()}
    assert (where["first"], where["all"], where["wide"]) == ("0/0-3+1/0-3", "0/0-7+1/0-7", "0/0-3")
    assert where["second"] == ("0/4-7+1/4-7" if policy == "strip" else "0/0-7")
    assert "at most 8 of them" in rows["beyond"].reason and "a job has 1 or 2 of them" in rows["odd"].reason
    rankfile = site.log / "rankfiles" / f"where.{rows['first'].id}.rf"
    assert [line.split("slot=")[1] for line in rankfile.read_text().splitlines()] == [str(2 * core) for core in range(8)]


def test_under_pack_threads_are_any(site: Site) -> None:
    site.config(Nodes=1, Sockets=1, Cores=1, Threads=2, Emulate=True, Allocation={"Policy": "pack"}, Launcher={"Kind": "direct"})
    site.program("say", "true")
    site.lines("say 1 60 0", "say 1 60 0 threads=1")
    site.run("--once")
    assert site.statuses() == {0: "completed", 1: "refused"}
    assert "pack gives any hardware threads" in site.rows()[1].reason


def test_forecasts_of_a_run_know_its_threads(site: Site) -> None:
    """They read the journal: a job waits for the threads that it asks for, and others cannot have them."""
    site.config(Nodes=1, Sockets=1, Cores=2, Threads=2, Emulate=True, Allocation={"Policy": "strip"}, Launcher={"Kind": "direct"},
                Scheduling={"Backfilling": "easy"})
    site.program("stays", f"until [ -e {site.root}/go ]; do sleep 0.02; done")
    site.lines("stays 2 60 0 threads=2", end=False)
    manager = site.start("--wait")
    wait_until(lambda: site.running(), "it runs")
    for threads in ("1", "2"):
        done = site.run("submit", "stays", "2", "60", "--threads", threads, "--test-only", "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        found, = json.loads(done.stdout)
        assert found["start"] > time.time(), "it waits for the one that has all threads"
    done = site.run("submit", "stays", "4", "60", "--threads", "1", "--test-only")
    assert done.returncode and "at most 2 of them" in done.stdout + done.stderr
    (site.root / "go").touch()
    assert site.run("stop").returncode == 0
    site.finish(manager)
