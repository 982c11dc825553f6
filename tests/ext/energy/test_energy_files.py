"""Files about power: node classes, coefficients, databases of programs and caps, and what is said of mistakes."""

from __future__ import annotations

from pathlib import Path
from collections.abc import Callable

import pytest

from vrm.ext.energy.keys import read_cap, read_coefficients
from vrm.ext.energy.database import read_programs
from vrm.ext.measure.energy_files import write_program
from vrm.config.machine import read_machine
from vrm.config.policies import make_scheduler
from vrm.config.problems import ConfigError
from vrm.config.schema import dump, load
from vrm.live.site.classes import declared
from vrm.model import Cluster, Node
from vrm.model.measured.energy import Coefficients, MeasuredProgram

HEAD = "from_ghz,to_ghz,A,B,C,D,E,F\n"
Write = Callable[..., None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    monkeypatch.chdir(tmp_path)

    def write(**files: str) -> None:
        for name, text in files.items():
            Path(name.replace("_", ".")).write_text(text)
    return write


def test_a_machine_with_power(write: Write) -> None:
    write(p1_csv=HEAD + "2,1,.5,0,1,1,0,0\n2,2,1,0,0,1,0,0\n2,1.5,0,0,0,0,0,0\n", m_yaml="""
Classes:
  - {Name: a, Count: 2, Cores: 4, Energy: {Name: p1, Idle: 90, Busy: 300, Coefficients: p1.csv}}
  - {Name: b, Cores: 4, Energy: {Name: p2, Frequencies: [1.2, 2.5]}}
  - {Name: c, Cores: 4}
""")
    first, second, third, last = read_machine("m.yaml").nodes
    assert first.power is not None and second.power == first.power and last.power is None
    assert (first.power.name, first.power.idle, first.power.busy) == ("p1", 90, 300)
    assert first.power.frequencies == (1.0, 2.0)  # the line of zeros: that one cannot be had
    assert first.power.coefficients[2, 1] == Coefficients(.5, 0, 1, 1, 0, 0)
    assert third.power is not None and third.power.frequencies == (1.2, 2.5)
    assert "class:p1" in first.features and "class:p2" in third.features and not last.features


CLASS = "Classes:\n- Cores: 4\n  Energy: "


@pytest.mark.parametrize("text, said", [
    ("{Idle: 9}", "m.yaml:3: Classes.Energy.Name: this key has no default"),
    ("{Name: p1, Idle: -9}", "m.yaml:3: Classes.Energy.Idle: found \"-9\", wanted watts, 0 or more"),
    ("{Name: p1, Ilde: 9}", "m.yaml:3: Classes.Energy.Ilde: unknown key; did you mean Idle?"),
    ("{Name: p1, Frequencies: [2, 1]}", "m.yaml:3: Classes.Energy.Frequencies: the frequencies do not ascend"),
    ("{Name: p1, Frequencies: [2000]}", "m.yaml:3: Classes.Energy.Frequencies: entry 1: found \"2000\", wanted a frequency"),
    ("{Name: p1, Coefficients: none.csv}", "m.yaml:3: Classes.Energy.Coefficients: "),
    ("{Name: p1, Coefficients: bad.csv}", "m.yaml:3: Classes.Energy.Coefficients: "),
    ("p1", "m.yaml:3: Classes.Energy: found \"p1\", wanted a group of keys")])
def test_mistakes_in_a_machine(write: Write, text: str, said: str) -> None:
    write(m_yaml=CLASS + text + "\n", bad_csv=HEAD + "1,2,3\n")
    with pytest.raises(ConfigError) as caught:
        read_machine("m.yaml")
    assert str(caught.value).startswith(said), caught.value
    if "bad.csv" in text:
        assert "bad.csv:2: the line does not have eight numbers; write from_ghz" in str(caught.value)
    if "none.csv" in text:
        assert "none.csv: no such file or directory; correct the path" in str(caught.value)


@pytest.mark.parametrize("text, said", [
    ("", "t.csv:1: this is not a table of coefficients; its first line is from_ghz"),
    (HEAD + "1,2,1,1,1,1,1,1\n1,2,1,1,1,1,1,1\n", "t.csv:3: 1 to 2 GHz is there twice"),
    (HEAD + "1,2,1,1,1,1,1,nan\n", "t.csv:2: the line does not have eight numbers"),
    (HEAD + "1000,2,1,1,1,1,1,1\n", "t.csv:2: 1000 to 2 are not frequencies in GHz")])
def test_mistakes_in_coefficients(write: Write, text: str, said: str) -> None:
    write(t_csv=text)
    with pytest.raises(ConfigError) as caught:
        read_coefficients("t.csv")
    assert str(caught.value).startswith(said)


def test_a_database_is_written_and_read(write: Write) -> None:
    write_program("db.yaml", "lu.C", "p1", MeasuredProgram(52.4929, 386.44, 0.6693, 19.5747, 2.7))
    write_program("db.yaml", "628.pot3d_s", "p1", MeasuredProgram(10, 100))
    write_program("db.yaml", "lu.C", "p2", MeasuredProgram(57.4, 367))
    write_program("db.yaml", "lu.C", "p1", MeasuredProgram(52.5, 386, 0.67, 19.6, 2.7))
    found = read_programs("db.yaml")
    assert dict(found.of("lu.C")) == {"p1": MeasuredProgram(52.5, 386, 0.67, 19.6, 2.7), "p2": MeasuredProgram(57.4, 367)}
    assert list(found.of("lu.C")) == ["p1", "p2"]
    assert found.of("628.pot3d_s")["p1"].watts == 100


@pytest.mark.parametrize("text, said", [
    ("Programs: {a: {p1: {Seconds: 0, Watts: 9}}}", "d.yaml:1: Programs.a.p1.Seconds: found \"0\", wanted"),
    ("Programs: {a: {p1: {Seconds: 1}}}", "d.yaml:1: Programs.a.p1.Watts: this key has no default"),
    ("Programs:\n  a:\n    p1: {Seconds: 1, Watts: 1, Wats: 2}", "d.yaml:3: Programs.a.p1.Wats: unknown key"),
    ("Programs: {a: {}}", "d.yaml:1: Programs.a: "),
    ("Programs: {a: 5}", "d.yaml:1: Programs.a: found \"5\", wanted classes with measurements"),
    ("- 5", "d.yaml:1: found a list, wanted keys with values"),
    ("Programs: {a: {p1: {Seconds: 1", "d.yaml:1: ")])
def test_a_damaged_database(write: Write, text: str, said: str) -> None:
    write(d_yaml=text + "\n")
    with pytest.raises(ConfigError) as caught:
        read_programs("d.yaml")
    assert str(caught.value).startswith(said), caught.value
    with pytest.raises(ConfigError):  # nor is it written over
        write_program("d.yaml", "b", "p1", MeasuredProgram(1, 1))
    assert Path("d.yaml").read_text() == text + "\n"


def test_a_cap_of_a_file(write: Write) -> None:
    write(cap_csv="# at night more\ntime,watts\n0,5000\n\n28800,3000\n", c_yaml="PowerCap: cap.csv\n",
          d_yaml="PowerCap: 4500\n", dates_csv="2026-11-23 08:00,3000\n2026-11-23 20:00,5000\n")
    assert str(read_cap("cap.csv")) == "0=5000 28800=3000"
    (first, _), (second, _) = read_cap("dates.csv").steps
    assert second - first == 12 * 3600
    settings = load("c.yaml")
    assert settings.rules.power_cap == "0=5000 28800=3000"
    assert load("d.yaml").rules.power_cap == "4500"
    assert dump(settings)["PowerCap"] == "0=5000 28800=3000"


@pytest.mark.parametrize("cap, said", [
    ("no.csv", "c.yaml:1: PowerCap: "), ("-5", "c.yaml:1: PowerCap: a cap of -5 W cannot be; give watts"),
    ("late.csv", "late.csv:2: the times of a cap ascend, 3 comes after 5; write a line"),
    ("words.csv", "words.csv:2: this is not a step of a cap; write a line"),
    ("empty.csv", "empty.csv: it has no step")])
def test_mistakes_in_a_cap(write: Write, cap: str, said: str) -> None:
    write(late_csv="5,100\n3,100\n", words_csv="5,100\n6;200\n", empty_csv="# nothing\n",
          c_yaml=f"PowerCap: {cap}\n")
    with pytest.raises(ConfigError) as caught:
        load("c.yaml")
    assert said in str(caught.value) and str(caught.value).startswith("c.yaml:1: PowerCap: ")


def test_a_live_run_knows_its_classes_and_programs(write: Write) -> None:
    write(db_yaml="Programs: {a: {p1: {Seconds: 10, Watts: 150}}}\n", c_yaml="""
NodeClasses: [{Hosts: "n[1-2]", Energy: {Name: p1, Idle: 100}}]
Energy: {Database: db.yaml}
PowerCap: 250
""")
    settings = load("c.yaml")
    nodes, warnings = declared(settings, [Node("n1.site", (2,)), Node("n2", (2,)), Node("n3", (2,))])
    assert [node.power and node.power.name for node in nodes] == ["p1", "p1", None] and not warnings
    cluster = Cluster(nodes)
    make_scheduler(settings, cluster)
    cap, = cluster.constraints
    assert cap.most() == 50_000 and cluster.programs
    with pytest.raises(ConfigError) as caught:
        make_scheduler(settings.model_copy(update={"power_cap": "150"}), Cluster(nodes))
    assert str(caught.value).startswith("c.yaml:4: PowerCap: 150 W is less than the 200 W that the 3 nodes")


@pytest.mark.parametrize("text, said", [
    ("NodeClasses: [{Hosts: n, Energy: {Name: p2}}]\nEnergy: {Database: db.yaml}",
     "c.yaml:2: Energy.Database: Energy: the nodes are of the class(es) p2, the database has p1: correct Name"),
    ("Nodes: 1\nEnergy: {Database: db.yaml}", "c.yaml:2: Energy.Database: Energy: no node has a class, the database"),
    ("Nodes: 1\nScheduling: {Backfilling: eamc}", "c.yaml:2: Scheduling.Backfilling: backfilling eamc goes by what"),
    ("Nodes: 1\nScheduling: {Backfilling: eamc variant=x}", "c.yaml:2: Scheduling.Backfilling: backfilling `eamc")])
def test_classes_that_do_not_go_together(write: Write, text: str, said: str) -> None:
    write(db_yaml="Programs: {a: {p1: {Seconds: 10, Watts: 150}}}\n", c_yaml=text + "\n")
    settings = load("c.yaml")
    with pytest.raises(ConfigError) as caught:
        make_scheduler(settings, Cluster(declared(settings, [Node("n", (2,))])[0]))
    assert str(caught.value).startswith(said), caught.value


def test_a_login_node_is_of_no_class(write: Write) -> None:
    write(db_yaml="Programs: {a: {p1: {Seconds: 10, Watts: 150}}}\n", c_yaml="""
NodeClasses: [{Hosts: "n[1-2]", Energy: {Name: p1, Idle: 100}}]
Energy: {Database: db.yaml}
Scheduling: {Backfilling: eamc}
""")
    make_scheduler(load("c.yaml"), Cluster([Node("login", (2,))]))


def test_a_database_that_is_not_there(write: Write) -> None:
    write(c_yaml="Energy: {Database: none.yaml}\n")
    settings = load("c.yaml")
    assert next(str(each) for each in settings.check_files() if "Energy" in each.key).startswith(
        "c.yaml:1: Energy.Database: ")
    with pytest.raises(ConfigError) as caught:
        make_scheduler(settings, Cluster([Node("n", (2,))]))
    assert "none.yaml: no such file" in str(caught.value)
