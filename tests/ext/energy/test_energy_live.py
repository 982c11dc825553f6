"""A live run on a made-up node: frequencies are set for jobs and put back, also after kill -9, and the energy
that its counters show is in jobs.csv."""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import Site, wait_until

from vrm.ext.energy.nodes import power
from vrm.live.nodes.topology import read_topology

pytestmark = [pytest.mark.mpi, pytest.mark.slow]

COUNTER = "sys/class/powercap/intel-rapl:0/energy_uj"
WAIT = f"""exec {sys.executable} -c '
import os, sys, time
open("began", "w").write(os.environ.get("SLURM_CPU_FREQ_REQ", ""))
while not os.path.exists("go"):
    time.sleep(0.02)
with open(sys.argv[1], "r+") as counter:
    value = int(counter.read()) + 7000000
    counter.seek(0)
    counter.write(str(value))
' "$@"
"""


@pytest.fixture
def node(site: Site, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A node with RAPL and cpufreq, and a program that spends 7 J of it when a file `go` is there."""
    if read_topology().synthetic:
        pytest.skip("nobody follows processes on a machine that is made up")
    root = site.root / "node"
    zone = root / Path(COUNTER).parent
    zone.mkdir(parents=True)
    for name, text in (("name", "package-0"), ("energy_uj", "1000"), ("max_energy_range_uj", "262143328850")):
        (zone / name).write_text(text)
    for cpu in range(os.cpu_count() or 1):
        folder = root / power.CPUS / f"cpu{cpu}" / "cpufreq"
        folder.mkdir(parents=True)
        for name, text in {"cpuinfo_min_freq": "1200000", "cpuinfo_max_freq": "2400000",
                           "scaling_governor": "schedutil", "scaling_setspeed": "<unsupported>",
                           "scaling_available_governors": "schedutil userspace"}.items():
            (folder / name).write_text(text)
    site.env.update(VRM_POWER=str(root), XDG_RUNTIME_DIR=str(site.root))
    site.program("wait.x", WAIT)
    (site.root / "t.csv").write_text("from_ghz,to_ghz,A,B,C,D,E,F\n2.4,1.2,.3,0,0,1,0,-.4\n2.4,2.4,1,0,0,1,0,0\n")
    (site.root / "db.yaml").write_text(
        "Programs: {wait.x: {here: {Seconds: 10, Watts: 100, CPI: 1, Frequency: 2.4}}}\n")
    return root


def config(site: Site, **keys: Any) -> None:
    site.config(Nodes="auto", Sockets="auto", Cores="auto", Launcher={"Kind": "direct"},
                Scheduling={"Backfilling": "eamc weight=0.001"}, Energy={"Database": "db.yaml"},
                NodeClasses=[{"Hosts": socket.gethostname(), "Energy": {
                    "Name": "here", "Idle": 20, "Coefficients": "t.csv"}}], **keys)


def governors(node: Path) -> set[str]:
    return {file.read_text().strip() for file in node.glob(power.CPUS + "/cpu*/cpufreq/scaling_governor")}


def test_a_job_has_its_frequency_and_energy(site: Site, node: Path) -> None:
    config(site)
    site.lines(f"wait.x 1 600 0 args={node / COUNTER}")
    process = site.start("--once")
    wait_until(lambda: "userspace" in governors(node), "its cores are set")
    wait_until(lambda: "1200000" in {file.read_text() for file in node.glob(power.CPUS + "/cpu*/cpufreq/scaling_setspeed")},
               "their speed, too")  # which is written after the governor
    wait_until(lambda: any(began.read_text() for began in site.root.rglob("began")), "it runs")
    for began in site.root.rglob("began"):
        assert began.read_text() == "1200000"  # what srun takes for --cpu-freq
        (began.parent / "go").touch()
    said = site.finish(process)
    assert process.returncode == 0, said
    row = site.rows()[0]
    assert row.frequency == 1.2 and row.energy == pytest.approx(7, abs=0.01)
    assert row.power == pytest.approx(7 / (row.end - row.start), rel=0.01)
    wait_until(lambda: governors(node) == {"schedutil"}, "they are as before")


def test_after_kill_they_are_as_before(site: Site, node: Path) -> None:
    config(site)
    site.lines(f"wait.x 1 600 0 args={node / COUNTER}")
    process = site.start("--once")
    wait_until(lambda: "userspace" in governors(node) and list(site.root.rglob("began")), "its cores are set")
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    wait_until(lambda: governors(node) == {"schedutil"}, "they are as before")
    for began in site.root.rglob("began"):
        (began.parent / "go").touch()
    again = site.start("--once")
    said = site.finish(again)
    assert again.returncode == 0, said
    assert site.statuses() == {0: "completed"}


def test_where_it_cannot_be_set_it_is_said_once(site: Site, node: Path) -> None:
    for file in node.glob(power.CPUS + "/cpu*/cpufreq/scaling_available_governors"):
        file.write_text("performance powersave")
    config(site)
    (site.root / "go").touch()
    site.lines(f"wait.x 1 600 0 args={node / COUNTER}", f"wait.x 1 600 0 args={node / COUNTER}")
    process = site.start("--once")
    said = site.finish(process)
    assert process.returncode == 0, said
    assert said.count("the frequency of cores is not set on") == 1
    assert "there is no governor userspace; jobs run at the nodes' own" in said
    assert {row.frequency for row in site.rows().values()} == {0.0}


def test_jobs_keep_to_the_cap(site: Site) -> None:
    """Two nodes, and power for one job at a time; what draws more than the cap is refused."""
    site.program("short.x", "exec sleep 0.3\n")
    site.config(Nodes=2, Emulate=True, Scheduling={"Backfilling": "easy"}, PowerCap=100,
                Launcher={"Kind": "direct"})
    site.lines("short.x 1 60 0 watts=60", "short.x 1 60 0 watts=60", "short.x 1 60 0 watts=40",
               "short.x 1 60 0 watts=101", "short.x 1 60 0")
    process = site.start("--once")
    said = site.finish(process)
    rows = site.rows()
    assert {at: row.status for at, row in rows.items()} == {
        0: "completed", 1: "completed", 2: "completed", 3: "refused", 4: "refused"}, said
    assert rows[1].start >= rows[0].end  # and the third had its place beside one of them
    assert "draws 101 W above idle nodes, at most 100 W are ever left" in rows[3].reason
    assert "what short.x draws is not known; say watts=N" in rows[4].reason
    assert rows[0].power == 60 and rows[0].watts == 60
