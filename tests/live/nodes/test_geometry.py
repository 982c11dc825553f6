"""Nodes of a run with their memory and GPUs: what is found, what is granted, and emulated ones."""

from __future__ import annotations

from typing import Any
from collections.abc import Sequence

import pytest

from vrm.live.nodes.geometry import MEMORY_STEP, cluster_geometry, usable_memory
from vrm.live.nodes.topology import Gpu, NodeFacts, Topology
from vrm.model import Cluster
from vrm.model.node import Device, node_classes

GIB = 1 << 30
TWO = (Gpu("nvidia", 2, "GPU-c", "GPU-c", 1), Gpu("nvidia", 3, "GPU-d", "GPU-d"))


def facts(memory: int = 64 * GIB, sockets: Sequence[int] = (4, 4), **more: Any) -> NodeFacts:
    return NodeFacts(Topology.regular("x", sockets), memory, **more)


@pytest.mark.parametrize("kernel, limit, granted, wanted", [
    (64 * GIB, 0, 0, 64 * GIB), (64 * GIB, 16 * GIB, 0, 16 * GIB), (64 * GIB, 16 * GIB, 8 * GIB, 8 * GIB),
    (64 * GIB, 0, 128 * GIB, 64 * GIB), (64 * GIB + 5, 0, 0, 64 * GIB), (0, 0, 0, 0),
    # What is granted counts to the byte: who asks for just that gets it.
    (64 * GIB, 0, 4000 << 20, 4000 << 20)])
def test_the_least_memory_counts(kernel: int, limit: int, granted: int, wanted: int) -> None:
    assert usable_memory(facts(kernel, limit=limit), granted) == wanted


def test_nodes_of_a_kind_are_alike_although_they_differ_by_a_few_pages() -> None:
    found = {f"n{i}": facts(64 * GIB + MEMORY_STEP // 2 + 4096 * i) for i in range(5)}
    nodes = cluster_geometry(list(found), found).nodes
    assert len(node_classes(nodes)) == 1 and nodes[0].resources == {"memory": 64}


def test_a_node_has_its_gpus_by_index() -> None:
    found = {"n0": facts(gpus=TWO), "n1": facts()}
    made = cluster_geometry(["n0", "n1"], found, memory={"n1": 8 * GIB})
    assert made.nodes[0].resources == {"memory": 64, "gpu": 2}
    assert made.nodes[0].devices == {"gpu": (Device(2, 1, "GPU-c"), Device(3, -1, "GPU-d"))}
    assert made.nodes[1].resources == {"memory": 8} and not made.nodes[1].devices
    assert made.gpus == {"n0": TWO, "n1": ()}
    assert Cluster(made.nodes).nodes == made.nodes
    # A node of which only the first socket is used has no GPU on the second.
    one, = cluster_geometry(["n0"], found, sockets=1).nodes
    assert [each.socket for each in one.devices["gpu"]] == [-1, -1]


def test_what_is_granted_and_not_found_is_promised() -> None:
    """Jobs that could run with it wait instead of being refused."""
    found = {"n0": facts(gpus=TWO[:1], lacking="nvidia3 is held by another vrm")}
    made = cluster_geometry(["n0"], found, gpus={"n0": 2})
    assert made.nodes[0].resources["gpu"] == 1 and made.granted[0].resources["gpu"] == 2
    assert made.warnings == ("n0: nvidia3 is held by another vrm",)
    assert cluster_geometry(["n0"], found, gpus={"n0": 1}).granted == made.nodes


def test_emulated_nodes_share_the_memory_and_have_the_gpus_that_stand_there() -> None:
    def stand_ins(host: str) -> Sequence[Gpu]:
        return TWO if host == "n1" else ()

    found = {"here": facts(gpus=TWO)}
    made = cluster_geometry(["here"], found, nodes=4, emulate=True, stand_ins=stand_ins)
    assert [node.resources for node in made.nodes] == [
        {"memory": 16}, {"memory": 16, "gpu": 2}, {"memory": 16}, {"memory": 16}]
    described = cluster_geometry(["here"], found, nodes=4, emulate=True, described=True)
    assert [node.resources for node in described.nodes] == [{"memory": 64}] * 4
