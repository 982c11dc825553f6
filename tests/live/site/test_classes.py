"""What a configuration declares of nodes, put together with what was found."""

from __future__ import annotations

from pathlib import Path

import pytest

from vrm.config.schema import Settings, load
from vrm.live.site.classes import declared, described
from vrm.model import Node

CLASSES = """Nodes: 2
NodeClasses:
  - {Hosts: "n[1-2]", Memory: 64G, Resources: {gpu: 2, ssd: 1}, Features: [ib]}
  - {Hosts: "far[1-9]", Memory: 4G}
"""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "vrm.yaml").write_text(CLASSES)
    return load(tmp_path / "vrm.yaml")


def test_the_smaller_amount_counts_and_unknown_hosts_are_told(settings: Settings, tmp_path: Path) -> None:
    found = [Node("n1.site", (4,), {"memory": 32.0, "gpu": 4, "mic": 1}), Node("n2", (4,)),
             Node("n3", (4,), {"memory": 8.0})]
    nodes, told = declared(settings, found)
    assert [dict(node.resources) for node in nodes] == [
        {"memory": 32, "gpu": 2, "mic": 1, "ssd": 1}, {"memory": 64, "gpu": 2, "ssd": 1}, {"memory": 8}]
    assert [set(node.features) for node in nodes] == [{"ib"}, {"ib"}, set()]
    assert told == ("n1.site: 64 memory by NodeClasses, 32 found: 32 are used",
                    f"{tmp_path / 'vrm.yaml'}:4: NodeClasses: entry 2: none of far[1-9] is a node of "
                    "this run, which has n[2-3],n1.site")
    assert described(nodes) == (", 1 with 32 GiB, 2 gpu, 1 mic, 1 ssd, ib, 1 with 64 GiB, 2 gpu, 1 ssd, ib"
                                ", 1 with 8 GiB")


def test_many_kinds_of_nodes_are_not_all_listed() -> None:
    nodes = [Node(f"n{number}", (2,), {"memory": 60 + number}) for number in range(6)]
    assert described([*nodes, nodes[5]]) == (
        ", 2 with 65 GiB, 1 with 60 GiB, 1 with 61 GiB, 1 with 62 GiB, 2 with other amounts")
    assert described([Node("a", (2,))]) == ""


def test_nothing_declared_changes_nothing(tmp_path: Path) -> None:
    nodes = (Node("a", (2,)), Node("b", (2,), {"gpu": 1}))
    assert declared(load(None), nodes) == (nodes, ())
