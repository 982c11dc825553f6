"""The machine as the kernel shows it: built trees, hwloc and lscpu as judges, and this machine."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vrm.ext.begin.quota import cpu_quota
from vrm.live.nodes.geometry import cluster_geometry, geometry
from vrm.live.nodes.topology import (NodeFacts, Topology, TopologyError, fold, parse_cpu_list,
                                     parse_synthetic, parse_topology, read_topology)
from vrm.model import Node
from support.machines import Cores, EVEN_ODD_THREADS, TWO_BY_FOUR, listed, machine, write


SUB_NUMA = [[(0,), (4,), (8,), (12,), (2,), (6,), (10,), (14,)],
            [(1,), (5,), (9,), (13,), (3,), (7,), (11,), (15,)]]
SUB_NUMA_NODES = [{0, 4, 8, 12}, {2, 6, 10, 14}, {1, 5, 9, 13}, {3, 7, 11, 15}]


def shape(topology: Topology) -> list[list[tuple[int, ...]]]:
    return [[core.cpus for core in cores] for cores in topology.sockets]


CUTS = {
    "2 x 4": (TWO_BY_FOUR, {}, {}, TWO_BY_FOUR),
    "2 x 4, old names of the files": (TWO_BY_FOUR, {"old_names": True}, {}, TWO_BY_FOUR),
    "threads, even CPUs on the first socket": (EVEN_ODD_THREADS, {}, {}, EVEN_ODD_THREADS),
    "the socket with CPU 0 is the first": (
        [[(4,), (5,)], [(0,), (1,)]], {}, {}, [[(0,), (1,)], [(4,), (5,)]]),
    "CPUs switched off": (
        EVEN_ODD_THREADS, {"online": set(range(16)) - {0, 8, 10, 3}}, {},
        [[(1, 9), (5, 13), (7, 15), (11,)], [(2,), (4, 12), (6, 14)]]),
    "a cpuset with two cores of the first socket": (
        TWO_BY_FOUR, {}, {"cpuset": {1, 3, 4, 5, 6, 7}}, [[(1,), (3,)], [(4,), (5,), (6,), (7,)]]),
    "a cpuset without the first socket": (
        TWO_BY_FOUR, {}, {"cpuset": {4, 5, 6, 7}}, [[(4,), (5,), (6,), (7,)]]),
    "a mask": (TWO_BY_FOUR, {}, {"mask": {2, 6, 7}}, [[(2,)], [(6,), (7,)]]),
    "a mask with one thread of a core": (EVEN_ODD_THREADS, {}, {"mask": {10, 1}},
                                         [[(2, 10)], [(1, 9)]]),
    "cores by NUMA node": (SUB_NUMA, {"numa": SUB_NUMA_NODES}, {}, SUB_NUMA),
    "cores by cache": ([[(0,), (1,), (2,), (3,)]], {"caches": [{0, 2}, {1, 3}]}, {},
                       [[(0,), (2,), (1,), (3,)]]),
    "every socket is called -1": (TWO_BY_FOUR, {"package_id": -1}, {}, TWO_BY_FOUR),
    "no lists of a socket's CPUs": (TWO_BY_FOUR, {"without": ("package_cpus_list",)}, {},
                                    TWO_BY_FOUR),
    "nothing of sockets": (
        TWO_BY_FOUR, {"without": ("package_cpus_list", "physical_package_id")}, {},
        [[(cpu,) for cpu in range(8)]]),
    "nothing of threads": (
        [[(0, 1), (2, 3)]], {"without": ("core_cpus_list",)}, {}, [[(0,), (1,), (2,), (3,)]]),
}


@pytest.mark.parametrize("case", CUTS)
def test_sockets_and_cores(case: str, tmp_path: Path) -> None:
    sockets, built, cut, expected = CUTS[case]
    topology = parse_topology(machine(tmp_path, sockets, **built), "n0", **cut)
    assert shape(topology) == [[tuple(core) for core in cores] for cores in expected]
    assert topology.node == Node("n0", tuple(map(len, expected)))
    assert topology.cores == sum(map(len, expected))


def test_a_container_that_hides_sys(tmp_path: Path) -> None:
    topology = parse_topology(tmp_path, "n0", cpuset={0, 2, 5}, mask={2, 5})
    assert shape(topology) == [[(2,), (5,)]]
    assert [core.number for core in topology.all_cores] == [0, 1, 2]


def test_nothing_usable(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match="no CPU that this process may use"):
        parse_topology(tmp_path, "n0")


def test_a_garbled_file_is_named(tmp_path: Path) -> None:
    machine(tmp_path, TWO_BY_FOUR)
    broken = tmp_path / "sys/devices/system/cpu/cpu3/topology/core_cpus_list"
    broken.write_text("three\n")
    with pytest.raises(TopologyError, match=f"{broken}: `three` is not a list"):
        parse_topology(tmp_path, "n0")


def test_numbers_count_what_a_launcher_sees(tmp_path: Path) -> None:
    """Open MPI counts all of the cpuset and does not keep to an affinity mask."""
    topology = parse_topology(machine(tmp_path, EVEN_ODD_THREADS), "n0",
                              cpuset=set(range(16)) - {0, 8}, mask={4, 12, 6, 14, 3, 11})
    assert topology.node.sockets == (2, 1)
    assert [(c.number, c.socket, c.index) for cores in topology.sockets for c in cores] == [
        (1, 0, 1), (2, 0, 2), (4, 1, 1)]
    assert topology.core(1, 0).cpus == (3, 11)
    assert topology.threads and not topology.even


@pytest.mark.parametrize("cpuset, even", [
    (range(8), True), ({0, 1, 4, 5}, True), ({0, 4, 5}, False), ({4, 5, 6, 7}, False)])
def test_even_sockets(cpuset: Iterable[int], even: bool, tmp_path: Path) -> None:
    topology = parse_topology(machine(tmp_path, TWO_BY_FOUR), "n0", cpuset=cpuset)
    assert topology.even is even
    assert not topology.threads


def test_a_regular_machine_equals_the_parsed_one(tmp_path: Path) -> None:
    assert Topology.regular("n0", (4, 4)) == parse_topology(machine(tmp_path, TWO_BY_FOUR), "n0")


# ------------------------------------------------------------------------------------- judges


def random_machine(seed: int) -> tuple[Sequence[Cores], Any, set[int] | None]:
    """Sockets, what else the kernel shows, and a cpuset (None for none)."""
    dice = random.Random(seed)
    threads, cores, packages = dice.choice((1, 2)), dice.choice((2, 4, 6)), dice.choice((1, 2, 3))
    cpus = list(range(threads * cores * packages))
    if dice.random() < 0.6:
        dice.shuffle(cpus)
    numbers = iter(cpus)
    sockets = [[tuple(next(numbers) for _ in range(threads)) for _ in range(cores)]
               for _ in range(packages)]
    groups = [{cpu for core in part for cpu in core}
              for socket in sockets for part in (socket[:cores // 2], socket[cores // 2:])]
    kind = dice.choice(("caches", "numa", ""))
    extra: Any = {kind: groups} if kind else {}
    online = set(cpus)
    if dice.random() < 0.4:
        online -= set(dice.sample(cpus, len(cpus) // 4))
        extra["online"] = online
    cpuset = set(dice.sample(sorted(online), 2 * len(online) // 3)) if dice.random() < 0.5 else None
    return sockets, extra, cpuset


def hwloc_order(root: Path) -> list[list[tuple[int, ...]]]:
    """Sockets and cores as hwloc orders them, without the empty ones that it keeps if they have
    memory."""
    done = subprocess.run(
        ["lstopo-no-graphics", "--of", "xml", "--no-io"], check=True, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={"PATH": os.environ["PATH"], "HWLOC_FSROOT": str(root),
             "HWLOC_COMPONENTS": "linux,stop"})

    def inside(thing: ElementTree.Element, kind: str) -> list[ElementTree.Element]:
        return [found for found in thing.iter("object") if found.get("type") == kind]

    packages = [[tuple(sorted(int(pu.get("os_index", "")) for pu in inside(core, "PU")))
                 for core in inside(package, "Core") if inside(core, "PU")]
                for package in inside(ElementTree.fromstring(done.stdout), "Package")]
    return [cores for cores in packages if cores]


@pytest.mark.skipif(not shutil.which("lstopo-no-graphics"), reason="no lstopo-no-graphics (hwloc)")
@pytest.mark.parametrize("seed", range(30))
def test_order_is_the_one_of_hwloc(seed: int, tmp_path: Path) -> None:
    sockets, extra, cpuset = random_machine(seed)
    machine(tmp_path, sockets, **extra)
    if cpuset is not None:
        write(tmp_path / "proc/mounts", "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n")
        write(tmp_path / "proc/self/cgroup", "0::/job\n")
        write(tmp_path / "sys/fs/cgroup/cgroup.controllers", "cpuset cpu\n")
        write(tmp_path / "sys/fs/cgroup/job/cpuset.cpus.effective", listed(cpuset))
        write(tmp_path / "sys/fs/cgroup/job/cpuset.mems.effective", "0-7\n")
    assert shape(parse_topology(tmp_path, "n0", cpuset=cpuset)) == hwloc_order(tmp_path)


@pytest.mark.skipif(not shutil.which("lscpu"), reason="no lscpu")
def test_this_machine_as_lscpu_sees_it() -> None:
    said = subprocess.run(["lscpu", "-p=CPU,CORE,SOCKET"], check=True, stdout=subprocess.PIPE,
                          text=True).stdout
    wanted = os.sched_getaffinity(0)
    rows = [tuple(map(int, line.split(","))) for line in said.splitlines()
            if not line.startswith("#") and int(line.split(",")[0]) in wanted]
    topology = read_topology()
    assert topology.cores == len({core for _, core, _ in rows})
    assert sorted(topology.node.sockets) == sorted(
        len({core for _, core, place in rows if place == socket})
        for socket in {place for _, _, place in rows})
    assert wanted <= {cpu for cores in topology.sockets for core in cores for cpu in core.cpus}


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs 2 CPUs")
def test_an_affinity_mask_hides_cores_from_us_and_not_from_launchers() -> None:
    here = read_topology()
    last = max(os.sched_getaffinity(0))
    code = ("import os; from vrm.live.nodes.topology import read_topology\n"
            f"os.sched_setaffinity(0, [{last}]); t = read_topology()\n"
            "print(t.cores, len(t.all_cores), t.core(0, 0).cpus, os.sched_getaffinity(0))")
    said = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE,
                          text=True).stdout
    own = next(core for core in here.all_cores if last in core.cpus)
    assert said == f"1 {len(here.all_cores)} {own.cpus} {{{last}}}\n"


@given(st.sets(st.integers(0, 300), min_size=1))
def test_cpu_lists_are_read_back(cpus: set[int]) -> None:
    text = ""
    for cpu in sorted(cpus):  # the kernel's form, written with no cleverness
        first = cpu not in {c + 1 for c in cpus}
        last = cpu not in {c - 1 for c in cpus}
        text += ("," if first and text else "") + (str(cpu) if first else f"-{cpu}" if last else "")
    assert parse_cpu_list(text + "\n") == cpus == parse_cpu_list(fold(cpus))
    assert all(f"{cpu + 1}-" not in fold(cpus).split(",") for cpu in cpus)


@pytest.mark.parametrize("text", ["x", "1,,2", "3-", "-1", "1 2"])
def test_what_is_no_cpu_list(text: str) -> None:
    with pytest.raises(ValueError):
        parse_cpu_list(text)


# ----------------------------------------------------------------------------------- synthetic


@pytest.mark.parametrize("text, sockets, threads", [
    ("pack:2 core:4 pu:1", (4, 4), 1),
    ("Package:2 L3:1 L2:4 Core:1 PU:2", (4, 4), 2),
    ("numa:2 pack:1 core:3 pu:1", (3, 3), 1),
    ("Machine:1 sock:2 [NUMANode(memory=16GB)] die:2 core:2 pu:2", (4, 4), 2),
    ("pack:1 core:2 pu:4(indexes=0,4,1,5)", (2,), 4),
    (" pack:1\tcore:1 pu:1 ", (1,), 1),
])
def test_synthetic_machines(text: str, sockets: tuple[int, ...], threads: int) -> None:
    topology = parse_synthetic(text, "n0")
    assert topology is not None and topology.synthetic and topology.even
    assert topology.node == Node("n0", sockets)
    assert [cpu for core in topology.all_cores for cpu in core.cpus] == list(
        range(threads * sum(sockets)))
    if threads == 1:
        assert topology.sockets == Topology.regular("n0", sockets).sockets


@pytest.mark.parametrize("text", [
    "", "2 4 1", "core:4 pu:1", "pack:2 pu:4", "pack:2 core:4", "core:2 pack:2 pu:1",
    "pack:0 core:4 pu:1", "pack:2 core:4 pu:1 core:2", "pack:2 robot:1 core:4 pu:1",
    "/machine.xml", "pack:2core:", "pack:999999 core:999999 pu:1", "pack:2 core:4 pu:1)"])
def test_synthetic_machines_that_are_not_understood(text: str) -> None:
    assert parse_synthetic(text, "n0") is None


@pytest.mark.skipif(not shutil.which("lstopo-no-graphics"), reason="no hwloc")
@pytest.mark.parametrize("text", ["pack:2 core:4 pu:1", "numa:2 pack:1 l3:2 core:3 pu:2"])
def test_synthetic_machines_as_hwloc_shows_them(text: str) -> None:
    said = subprocess.run(["lstopo-no-graphics", "--of", "xml", "-i", text], check=True,
                          stdout=subprocess.PIPE, text=True).stdout
    root = ElementTree.fromstring(said)
    expected = [[tuple(int(pu.get("os_index", "")) for pu in core.iter("object")
                       if pu.get("type") == "PU")
                 for core in package.iter("object") if core.get("type") == "Core"]
                for package in root.iter("object") if package.get("type") == "Package"]
    topology = parse_synthetic(text, "n0")
    assert topology is not None and shape(topology) == expected


def test_the_environment_chooses_the_synthetic_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HWLOC_SYNTHETIC", "pack:2 core:4 pu:1")
    assert read_topology().node.sockets == (4, 4) and read_topology().synthetic
    monkeypatch.setenv("HWLOC_SYNTHETIC", "nonsense")
    assert not read_topology().synthetic


# -------------------------------------------------------------------------------------- quota

QUOTAS = {
    "no control groups": ({}, None),
    "version 2": ({"proc/self/cgroup": "0::/job\n", "sys/fs/cgroup/job/cpu.max": "150000 100000\n"},
                  1.5),
    "version 2, the group above is the narrow one": (
        {"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "max 100000\n",
         "sys/fs/cgroup/a/cpu.max": "200000 100000\n"}, 2.0),
    "version 2, no limit": ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"},
                            None),
    "version 1": ({"proc/self/cgroup": "5:cpu,cpuacct:/job\n1:name=systemd:/job\n",
                   "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us": "50000\n",
                   "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us": "100000\n"}, 0.5),
    "version 1 in a container, which sees its group as the root": (
        {"proc/self/cgroup": "5:cpu:/docker/abc\n",
         "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "300000\n",
         "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"}, 3.0),
    "version 1, no limit": (
        {"proc/self/cgroup": "5:cpu:/\n", "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
         "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"}, None),
    "another controller's files": (
        {"proc/self/cgroup": "5:cpuset:/\n", "sys/fs/cgroup/cpuset/cpu.max": "1 2\n"}, None),
}


@pytest.mark.parametrize("case", QUOTAS)
def test_cpu_quota(case: str, tmp_path: Path) -> None:
    files, expected = QUOTAS[case]
    for name, text in files.items():
        write(tmp_path / name, text)
    assert cpu_quota(tmp_path) == expected


# ----------------------------------------------------------------------------------- geometry

EIGHT = Topology.regular("host", (4, 4))
UNEVEN = Topology.regular("host", (2, 4))


@pytest.mark.parametrize("topology, sizes, emulate, nodes, emulated", [
    (EIGHT, ("auto", "auto", "auto"), False, [Node("host", (4, 4))], False),
    (EIGHT, ("auto", "auto", "auto"), True, [Node("host", (4, 4))], False),
    (EIGHT, (1, 2, 4), True, [Node("host", (4, 4))], False),
    (EIGHT, (1, 1, 1), False, [Node("host", (1,))], False),
    (EIGHT, ("auto", 1, "auto"), False, [Node("host", (4,))], False),
    (EIGHT, ("auto", "auto", 3), False, [Node("host", (3, 3))], False),
    (UNEVEN, ("auto", "auto", "auto"), False, [Node("host", (2, 4))], False),
    (UNEVEN, (1, 1, "auto"), False, [Node("host", (2,))], False),
    (UNEVEN, (1, 2, 2), False, [Node("host", (2, 2))], False),
    (UNEVEN, (1, 2, 4), True, [Node("n0", (4, 4))], True),
    (UNEVEN, (1, 3, "auto"), True, [Node("n0", (2, 4, 4))], True),
    (EIGHT, (2, 2, 4), True, [Node("n0", (4, 4)), Node("n1", (4, 4))], True),
    (EIGHT, (2, "auto", "auto"), True, [Node("n0", (4, 4)), Node("n1", (4, 4))], True),
    (EIGHT, (1, 1, 64), True, [Node("n0", (64,))], True),
])
def test_geometry(topology: Topology, sizes: tuple[Any, Any, Any], emulate: bool,
                  nodes: list[Node], emulated: bool) -> None:
    assert geometry(*sizes, emulate, topology) == (nodes, emulated)


@pytest.mark.parametrize("topology, sizes, asked, there", [
    (EIGHT, (8, 2, 4), "8 node(s) of 2 x 4 cores", "1 node of 2 x 4 usable cores"),
    (EIGHT, (1, 1, 5), "1 node(s) of 1 x 5 cores", "1 node of 2 x 4 usable cores"),
    (UNEVEN, (1, 2, 3), "1 node(s) of 2 x 3 cores", "1 node of 2+4 usable cores"),
])
def test_a_larger_geometry_must_be_asked_for(topology: Topology, sizes: tuple[int, int, int],
                                             asked: str, there: str) -> None:
    with pytest.raises(TopologyError) as caught:
        geometry(*sizes, False, topology)
    assert asked in str(caught.value) and there in str(caught.value)
    assert "add `Emulate: true` to run the ranks oversubscribed" in str(caught.value)


@pytest.mark.parametrize("sizes", [(0, 1, 1), (1, -1, 1), (1, 1, "many")])
def test_sizes_that_are_none(sizes: tuple[Any, Any, Any]) -> None:
    with pytest.raises(TopologyError, match="wanted auto or a whole number"):
        geometry(*sizes, True, EIGHT)


def test_geometry_of_this_machine() -> None:
    nodes, emulated = geometry()
    assert nodes == [read_topology().node] and not emulated
    assert nodes[0].name == os.uname().nodename.partition(".")[0]


# ------------------------------------------------------------------------------- several nodes

FOUR = ("n0", "n1", "n2", "n3")


def answers(*sockets: tuple[int, ...], hosts: Sequence[str] = FOUR) -> Any:
    return {host: NodeFacts(Topology.regular(host, shape))
            for host, shape in zip(hosts, sockets) if shape}


def shapes(nodes: Sequence[Node]) -> list[tuple[str, tuple[int, ...]]]:
    return [(node.name, node.sockets) for node in nodes]


def test_nodes_may_differ() -> None:
    found = cluster_geometry(FOUR, answers((4, 4), (2,), (4, 2), (4, 4)))
    assert shapes(found.nodes) == [("n0", (4, 4)), ("n1", (2,)), ("n2", (4, 2)), ("n3", (4, 4))]
    assert list(found.topologies) == list(FOUR) and not found.warnings and not found.emulated
    assert found.topologies["n1"].host == "n1"


def test_smaller_numbers_take_the_first() -> None:
    found = cluster_geometry(FOUR, answers((4, 4), (2, 2, 2), (8, 4), (1,)), 3, 1, 2)
    assert shapes(found.nodes) == [("n0", (2,)), ("n1", (2,)), ("n2", (2,))]
    assert list(found.topologies) == ["n0", "n1", "n2"]
    assert found.topologies["n2"].node.sockets == (8, 4)  # whole, for the launcher


@pytest.mark.parametrize("nodes, expected", [
    ("auto", ["n0", "n2", "n3"]), (4, ["n0", "n2", "n3"]), (2, ["n0", "n2"])])
def test_a_node_without_an_answer_is_left_out(nodes: Any, expected: list[str]) -> None:
    found = cluster_geometry(FOUR, answers((4,), (), (4,), (4,)), nodes,
                             failed={"n1": "no answer within 10 s"})
    assert [node.name for node in found.nodes] == expected
    assert found.warnings == ("n1 is left out: no answer within 10 s",)


def test_no_node_answers() -> None:
    with pytest.raises(TopologyError, match="no node .* answers: n0: refused; n1: not asked"):
        cluster_geometry(("n0", "n1"), {}, failed={"n0": "refused"}, emulate=True)


@pytest.mark.parametrize("sizes, asked, there", [
    ((5, "auto", "auto"), "5 node(s) of 2 x 4 cores", "the allocation has 4 nodes"),
    ((4, 2, 4), "4 node(s) of 2 x 4 cores", "n1 has 1 x 4 usable cores"),
    (("auto", "auto", 5), "4 node(s) of 2 x 5 cores", "n0 has 2 x 4 usable cores"),
])
def test_more_than_there_is(sizes: tuple[Any, Any, Any], asked: str, there: str) -> None:
    facts = answers((4, 4), (4,), (4, 4), (4, 4))
    with pytest.raises(TopologyError) as caught:
        cluster_geometry(FOUR, facts, *sizes)
    assert asked in str(caught.value) and there in str(caught.value)
    found = cluster_geometry(FOUR, facts, *sizes, emulate=True)
    assert found.emulated and found.topologies == {}
    assert [node.name for node in found.nodes] == [f"n{i}" for i in range(len(found.nodes))]
    assert len(found.nodes) == (4 if sizes[0] == "auto" else sizes[0])


@pytest.mark.parametrize("cores, sockets", [
    (8, (4, 4)), (16, (4, 4)), (6, (4, 2)), (4, (4,)), (1, (1,))])
def test_fewer_cores_may_be_granted_than_are_seen(cores: int, sockets: tuple[int, ...]) -> None:
    found = cluster_geometry(("n0",), answers((4, 4)), granted={"n0": cores})
    assert shapes(found.nodes) == [("n0", sockets)]
    assert found.warnings == (() if cores >= 8 else (
        f"n0: {cores} of the 8 cores that are seen there are granted to this job, and the first "
        "ones are used",))


def test_what_a_node_says_of_itself_is_handed_on() -> None:
    facts = {"n0": NodeFacts(Topology.regular("n0", (2,)), warning="odd")}
    assert cluster_geometry(("n0",), facts).warnings == ("n0: odd",)
