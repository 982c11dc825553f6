"""Machine files: what is read, and what is said of mistakes."""

from __future__ import annotations

from pathlib import Path
from collections.abc import Callable

import pytest

from vrm.config.machine import read_machine
from vrm.config.problems import ConfigError
from vrm.config.schema import dump, load
from vrm.model.machine import Machine, holdings

Write = Callable[[str], str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    monkeypatch.chdir(tmp_path)

    def write(text: str) -> str:
        Path("m.yaml").write_text(text)
        return "m.yaml"

    return write


def complaints(file: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read_machine(file)
    return str(caught.value).split("\n")


def test_classes_become_nodes_in_their_order(write: Write) -> None:
    machine = read_machine(write("""
Classes:
  - {Name: cpu, Count: 2, Sockets: 2, Cores: 8, Memory: 65536M}
  - {Name: gpu, Count: 1, Cores: 4, Memory: 1.5T, Resources: {gpu: 2, ssd: 0.5, mic: 0}, Features: [ib]}
  - {Name: cpu, Count: 1, Cores: 1}
  - {Name: r1, Count: 1, Cores: 1}
Licences: {ansys: 4, none: 0}
"""))
    assert [node.name for node in machine.nodes] == ["cpu0", "cpu1", "gpu0", "cpu2", "r1-0"]
    assert [node.sockets for node in machine.nodes] == [(8, 8), (8, 8), (4,), (1,), (1,)]
    assert machine.nodes[1].resources == {"memory": 64}
    assert machine.nodes[2].resources == {"memory": 1536, "gpu": 2, "ssd": 0.5}
    assert machine.nodes[2].features == {"ib"} and not machine.nodes[3].features
    assert machine.licences == {"ansys": 4, "none": 0}


def test_threads_count_as_cores(write: Write) -> None:
    machine = read_machine(write("Classes: [{Count: 2, Sockets: 2, Cores: 8, Threads: 2}]\n"))
    assert [(node.sockets, node.threads) for node in machine.nodes] == [((16, 16), 2)] * 2
    assert complaints(write("Classes: [{Cores: 8}, {Cores: 8, Threads: 2}]\n")) == [
        "m.yaml:1: Classes.Threads: all nodes of a machine have as many threads on each core; write Threads: 1, as in the first "
        "class"]


def test_the_form_of_accasim(write: Write) -> None:
    machine = read_machine(write(
        '{"system_name": "Seth", "groups": {"g0": {"core": 2, "mem": 4194304},\n'
        '\t"g1": {"core": 16, "mem": "16GB", "gpu": 2, "mic": 0}},\n "resources": {"g0": 2, "g1": 1}}'))
    assert [node.name for node in machine.nodes] == ["g0-0", "g0-1", "g1-0"]
    assert [node.sockets for node in machine.nodes] == [(2,), (2,), (16,)]
    assert [dict(node.resources) for node in machine.nodes] == [
        {"memory": 4}, {"memory": 4}, {"memory": 16, "gpu": 2}]


def test_the_form_of_the_first_version(write: Write) -> None:
    machine = read_machine(write('{"nodes": [{"count": 2, "sockets": 2, "cores": 8, "memory": 64}, '
                                 '{"prefix": "fat", "cores": 8, "gpu": 2}]}'))
    assert [node.name for node in machine.nodes] == ["n0", "n1", "fat0"]
    assert machine.nodes[0].resources == {"memory": 64} and machine.nodes[2].resources == {"gpu": 2}


@pytest.mark.parametrize("text, complaint", [
    ("Clases: []\nClasses: [{Cores: 2}]", "m.yaml:1: Clases: unknown key; did you mean Classes?"),
    ("Licences: {a: 1}", "m.yaml: Classes: this key has no default; write it"),
    ("Classes: []", "m.yaml:1: Classes: found an empty list, wanted a list of node classes"),
    ("Classes:\n- Cores: 2\n- Count: 2", "m.yaml:3: Classes.Cores: this key has no default"),
    ("Classes:\n- Cores: 2\n  Memory: 64", 'm.yaml:3: Classes.Memory: found "64", wanted memory with '
     "its unit, as 64GiB, 64G or 64000M; for example Memory: 64GiB"),
    ("Classes:\n- Cores: 2\n  Resources:\n    memory: 4G", "m.yaml:3: Classes.Resources: memory "
     "has its own key; write Memory: 64GiB"),
    ("Classes:\n- Cores: 2\n  Resources:\n    gpu: -1", 'm.yaml:4: Classes.Resources.gpu: found "-1", '
     "wanted a number, 0 or more"),
    ("Classes:\n- Cores: 2\n  Resources: {gpu: 1.5}", "m.yaml:3: Classes.Resources: gpu: 1.5 is not a "
     "whole number; write gpu: 2"),
    ("Classes: [{Cores: 2}]\nLicences:\n  ansys: -4", 'm.yaml:3: Licences.ansys: found "-4"'),
    ("Classes: [{Cores: 2, Memry: 4G}]", "m.yaml:1: Classes.Memry: unknown key; did you mean Memory?"),
    ("Classes: [{Cores: 2, Name: a b}]", 'm.yaml:1: Classes.Name: found "a b", wanted'),
    ("Classes: [{Cores: 1, Sockets: 9, Count: 999999}]", "m.yaml: its classes have 8999991 sockets"),
    ('{"groups": {"g0": {"core": 1, "mem": 64}},\n "resources": {"g0": 4}}', "m.yaml:1: groups.g0.mem: "
     '64 is 64 KiB of memory for a node; write the unit: "64GiB"'),
    ('{"groups": {"g0": {"core": 1}},\n "resources": {"g1": 4}}', "m.yaml:2: resources.g1: no group has "
     "this name; describe it under groups: g0"),
    ('{"groups": {"g0": {"core": 1}},\n "resources": {"g0": x}}', 'm.yaml:2: Classes.Count: found "x"'),
    ('{"groups": {"g0": {"core": 1}}}', "m.yaml: resources: found nothing; for example"),
    ('{"nodes": [{"cores": 1},\n {"cores": 0}]}', 'm.yaml:2: Classes.Cores: found "0"'),
    ('{"nodes": 4}', 'm.yaml:1: Classes: entry 1: found "4"'),
])
def test_a_mistake_is_told_with_its_place_and_the_fix(write: Write, text: str, complaint: str) -> None:
    found = complaints(write(text))
    assert len(found) == 1 and found[0].startswith(complaint)


def test_a_machine_is_values() -> None:
    assert Machine(()) == Machine((), {})
    assert holdings({"gpu": 2, "memory": 64.0, "mic": 0}, {"ib", "a"}) == "64 GiB, 2 gpu, a, ib"
    assert holdings({}) == ""


# --------------------------------------------------------------- the same words in configurations


def test_node_classes_of_a_configuration_survive_being_written(write: Write) -> None:
    import yaml
    settings = load(write("NodeClasses:\n  - {Hosts: 'n[1-3],m', Memory: 64G, Resources: {ssd: 2}, "
                          "Features: [ib]}\nLicences: {ansys: 4}"))
    assert settings.node_classes[0].names == ["n1", "n2", "n3", "m"]
    assert settings.node_classes[0].amounts() == {"memory": 64, "ssd": 2}
    assert settings.licences == {"ansys": 4}
    write(yaml.safe_dump(dump(settings)))
    again = load("m.yaml")
    assert again.node_classes == settings.node_classes and again.licences == settings.licences


@pytest.mark.parametrize("text, complaint", [
    ("Nodes: 2\nNodeClasses:\n  - {Hosts: 'n[1-3]'}\n  - {Hosts: n2}", "m.yaml:2: NodeClasses: n2 is in "
     "entry 1 and in entry 2; name a host in one of them"),
    ("NodeClasses: [{Hosts: 'n1,n1'}]", "m.yaml:1: NodeClasses: n1 is twice in entry 1"),
    ("NodeClasses: [{Hosts: 'n[1-'}]", "m.yaml:1: NodeClasses.Hosts: `n[1-` has a bracket without"),
    ("NodeClasses:\n- Memory: 4G", "m.yaml:2: NodeClasses.Hosts: this key has no default"),
    ("NodeClasses: [{Hosts: n, Resources: {ssd: -1}}]", "m.yaml:1: NodeClasses.Resources.ssd: found "
     '"-1", wanted a number, 0 or more'),
    ("NodeClasses: {Hosts: n}", "m.yaml:1: NodeClasses: found a group of keys, wanted a list"),
    ("Licences: {ansys: 1.5}", 'm.yaml:1: Licences.ansys: found "1.5", wanted a whole number'),
    ("Licenses: {ansys: 1}", "m.yaml:1: Licenses: unknown key; did you mean Licences?"),
])
def test_a_mistake_in_node_classes(write: Write, text: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(write(text))
    assert str(caught.value).startswith(complaint) and "\n" not in str(caught.value)
