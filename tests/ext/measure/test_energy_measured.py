"""Measurements of energy on a made-up node: counters that wrap, frequencies, perf, and Slurm's accounting."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from collections.abc import Callable

import pytest
from support import warm

from vrm.ext.energy.database import read_programs
from vrm.ext.energy.nodes import power
from vrm.ext.measure import energy
from vrm.ext.measure.bench import MeasureError

ZONE = 262_143_328_850  # where counters begin again


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A node with two packages, memory, and two CPUs from 1.2 to 2.4 GHz, at the schedutil governor."""
    root = tmp_path / "node"
    for zone, name, count in (("intel-rapl:0", "package-0", 1000), ("intel-rapl:1", "package-1", ZONE - 500),
                              ("intel-rapl:0:0", "core", 7), ("intel-rapl:0:1", "dram", 10)):
        folder = root / power.ZONES / zone
        folder.mkdir(parents=True)
        (folder / "name").write_text(name + "\n")
        (folder / "energy_uj").write_text(f"{count}\n")
        (folder / "max_energy_range_uj").write_text(f"{ZONE}\n")
    for cpu in range(2):
        folder = root / power.CPUS / f"cpu{cpu}" / "cpufreq"
        folder.mkdir(parents=True)
        for name, text in {"cpuinfo_min_freq": "1200000", "cpuinfo_max_freq": "2400000",
                           "scaling_governor": "schedutil", "scaling_setspeed": "<unsupported>",
                           "scaling_available_governors": "performance schedutil userspace"}.items():
            (folder / name).write_text(text + "\n")
    monkeypatch.setenv("VRM_POWER", str(root))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return root


def files(node: Path) -> dict[str, tuple[str, str]]:
    """Governor and speed of each CPU."""
    return {folder.name: ((folder / "cpufreq/scaling_governor").read_text().strip(),
                          (folder / "cpufreq/scaling_setspeed").read_text().strip())
            for folder in sorted((node / power.CPUS).iterdir())}


def spend(node: Path, zone: str, count: int) -> None:
    (node / power.ZONES / zone / "energy_uj").write_text(f"{count}\n")


def test_energy_between_two_readings(node: Path) -> None:
    before = power.counters()
    assert set(before) == {"intel-rapl:0", "intel-rapl:1", "intel-rapl:0:1"}  # cores are in their package
    spend(node, "intel-rapl:0", 3_001_000)
    spend(node, "intel-rapl:1", 1_999_500)  # it has begun again
    spend(node, "intel-rapl:0:1", 500_010)
    assert power.joules(before, power.counters()) == pytest.approx(3 + 2 + 0.5)


def test_a_node_without_counters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VRM_POWER", str(tmp_path))
    with pytest.raises(power.PowerError, match="no energy counter"):
        power.counters()
    assert "no governor can be chosen" in power.settable(0)
    with pytest.raises(power.PowerError, match="does not say which frequencies"):
        power.frequencies(0)


def test_frequencies_are_set_and_put_back(node: Path, tmp_path: Path) -> None:
    one = power.CpuFrequencies.of_node()
    assert one.set("a", [0], 1.8) == ""
    assert one.set("b", [1], 2.4) == ""
    assert files(node) == {"cpu0": ("userspace", "1800000"), "cpu1": ("userspace", "2400000")}
    one.restore("a")
    assert files(node)["cpu0"][0] == "schedutil" and files(node)["cpu1"][0] == "userspace"
    one.restore(None)
    assert files(node)["cpu1"][0] == "schedutil" and not Path(one.kept).exists()


def test_what_was_killed_is_put_back_by_the_next(node: Path) -> None:
    code = ("from vrm.ext.energy.nodes import power; import os, signal\n"
            "assert power.CpuFrequencies.of_node().set('a', [0, 1], 1.2) == ''\n"
            "os.kill(os.getpid(), signal.SIGKILL)")
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    assert files(node)["cpu1"] == ("userspace", "1200000")
    alive = power.CpuFrequencies.of_node()
    assert {governor for governor, _ in files(node).values()} == {"schedutil"}
    assert not Path(alive.kept).exists()


def test_one_that_lives_is_left_alone(node: Path) -> None:
    one = power.CpuFrequencies.of_node()
    assert one.set("a", [0], 1.2) == ""
    record = json.loads(Path(one.kept).read_text())
    record["pid"], record["began"] = os.getppid(), power._began(os.getppid())
    Path(one.kept).write_text(json.dumps(record))
    power.CpuFrequencies.of_node()
    assert files(node)["cpu0"] == ("userspace", "1200000")


@pytest.mark.parametrize("change, said", [
    (lambda folder: (folder / "scaling_available_governors").write_text("performance powersave"),
     "there is no governor userspace"),
    (lambda folder: (folder / "cpuinfo_max_freq").write_text("1500000"), "1.8 GHz is not between 1.2 and 1.5"),
    (lambda folder: (folder / "cpuinfo_min_freq").unlink(), "does not say which frequencies")])
def test_where_it_cannot_be_set_nothing_is(node: Path, change: Callable[[Path], None], said: str) -> None:
    change(node / power.CPUS / "cpu1" / "cpufreq")
    agent = power.NodePower()
    answer = agent.take({"number": 1, "run": "r", "job": 3, "begin": True, "cpus": [0, 1], "frequency": 1.8})
    assert said in answer["error"]
    assert files(node)["cpu0"][0] == "schedutil"
    assert agent.take({"number": 2, "run": "r", "job": 3, "begin": False})["error"] == ""


def test_the_order_of_an_agent(node: Path) -> None:
    agent = power.NodePower()
    assert agent.take({"number": 1, "run": "r", "job": 3, "begin": True, "cpus": [1], "frequency": 1.2}
                      ) == {"number": 1, "energy": None, "error": ""}
    assert files(node)["cpu1"] == ("userspace", "1200000")
    spend(node, "intel-rapl:0", 5_001_000)
    assert agent.take({"number": 2, "run": "r", "job": 3, "begin": False}) == {
        "number": 2, "energy": 5.0, "error": ""}
    assert files(node)["cpu1"][0] == "schedutil"
    # Of a job of which it knows no beginning nothing is said.
    assert agent.take({"number": 3, "run": "r", "job": 4, "begin": False})["energy"] is None


def program(tmp_path: Path, name: str, text: str) -> None:
    folder = tmp_path / "bin"
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("#!/bin/sh\n" + text)
    (folder / name).chmod(stat.S_IRWXU)


PERF = """out=/dev/stderr
while [ "$1" != -- ]; do [ "$1" = -o ] && out=$2; shift; done; shift
"$@"; code=$?
printf '2000000,,cycles:u,1,100.00,,\\n1000000,,instructions:u,1,100.00,,\\n5000,,cache-misses,1,100.00,,\\n' > $out
exit $code
"""


def test_a_program_is_measured(node: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, "perf", PERF)
    program(tmp_path, "solver", f"echo 90001000 > {node / power.ZONES}/intel-rapl:0/energy_uj\n")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    found = energy.measure([str(tmp_path / "bin" / "solver")])
    assert found.measured.watts * found.measured.seconds == pytest.approx(90)
    assert (found.measured.cpi, found.measured.tpi) == (2.0, 5.0)
    assert found.sources == ("energy of 3 zone(s) of powercap", "cycles and cache misses by perf")


@pytest.mark.parametrize("perf", [PERF, "exit 1\n"], ids=["with perf", "without"])
def test_what_cannot_be_measured_is_not_written(node: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                perf: str) -> None:
    program(tmp_path, "perf", perf)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    with pytest.raises(MeasureError, match=r"false ended with 1: nothing is written"):
        energy.measure(["false"])
    with pytest.raises(MeasureError, match="the counters show no energy"):
        energy.measure(["true"])
    with pytest.raises(MeasureError, match="ran longer than 0.05 s"):
        energy.measure(["sleep", "9"], limit=0.05)
    with pytest.raises(MeasureError, match="nothing: no such file"):
        energy.measure([str(tmp_path / "nothing")])


@pytest.mark.parametrize("said, wanted", [("100|36000|2|", (100, 180)), ("100|0|2", None), ("", None)])
def test_slurms_accounting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str,
                           wanted: tuple[float, float] | None) -> None:
    program(tmp_path, "sacct", f"echo '{said}'\n")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    if wanted is None:
        with pytest.raises(MeasureError, match=r"12\.0"):
            energy.slurm_seconds("12.0")
    else:
        assert energy.slurm_seconds("12.0").measured[:2] == wanted


@pytest.mark.slow
def test_the_command(node: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, "perf", "exit 1\n")  # on some machines it counts
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")

    def vrm(*words: str) -> subprocess.CompletedProcess[str]:
        return warm.run(["energy", *words], cwd=tmp_path, timeout=60)

    said = vrm("check")
    assert "energy: 3 zone(s) of powercap can be read" in said.stdout
    assert "frequencies: 1.2 to 2.4 GHz" in said.stdout
    done = vrm("measure", "a", "--class", "p1", "--watts", "90", "--db", "e.yaml", "--", "true")
    assert done.returncode == 0 and "90.0 W (power as given" in done.stdout, done.stderr
    assert vrm("add", "a", "--class", "p2", "--db", "e.yaml", "--seconds", "2", "--watts", "50").returncode == 0
    assert set(read_programs(tmp_path / "e.yaml").of("a")) == {"p1", "p2"}
    said = vrm("predict", "--db", "e.yaml")
    assert said.returncode == 0 and said.stdout.splitlines()[0].startswith("program  class  best GHz")
    assert [line.split()[2] for line in said.stdout.splitlines()[1:]] == ["own", "own"]
    assert vrm("predict", "b", "--db", "e.yaml").returncode == 1
    said = vrm("add", "a", "--db", "e.yaml", "--seconds", "2", "--watts", "50")
    assert said.returncode == 2 and "name its class (--class NAME)" in said.stderr
    said = vrm("measure", "a", "--class", "p1", "--db", "e.yaml")
    assert said.returncode == 2 and "nothing to run" in said.stderr
    said = vrm("show", "none")
    assert said.returncode == 2 and "Traceback" not in said.stderr
