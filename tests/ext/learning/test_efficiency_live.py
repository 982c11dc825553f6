"""`vrm efficiency` on 50 programs of known use, which say themselves what they used, and on MPI ranks."""

from __future__ import annotations

import json
import math
import sys

import pytest
from conftest import Site, mpiruns

from vrm.ext.learning.waste import FEW_BUSY, ROUNDING

pytestmark = [pytest.mark.mpi, pytest.mark.slow]

PROGRAM = f"""exec {sys.executable} -c '
import os, sys, threading, time
cpu, seconds, mebibytes, processes = map(float, sys.argv[1:])
began = time.monotonic()
data = bytearray(int(mebibytes) << 20)
children = []
for _ in range(int(processes) - 1):
    pid = os.fork()
    if not pid:
        break
    children.append(pid)
else:
    pid = 1
while time.process_time() < cpu:
    pass
time.sleep(max(0.0, began + seconds - time.monotonic()))
if not pid:
    os._exit(0)
for child in children:
    os.waitpid(child, 0)
used = sum(os.times()[:4])
print(used, time.monotonic() - began)
' "$@"
"""

JOBS = [*((cores, 0.9, 1.2, 0, 1) for cores in (1, 2, 2, 3, 4, 4, 8) for _ in range(2)),   # one of some is busy
        *((cores, 0.0, 1.2, 0, 1) for cores in (1, 2, 3, 4, 4, 8) for _ in range(2)),     # sleepers
        *((cores, 0.4, 1.3, 0, 1) for cores in (1, 2, 4, 4, 8)),                          # busy for a part of the time
        *((cores, 0.5, 1.2, 0, number) for cores in (2, 3, 4, 8) for number in (2, 3)),   # several processes
        *((1, 0.1, 1.2, size, 1) for size in (20, 40, 90, 150, 220, 300, 400, 420, 450, 470, 480))]  # of 512M
"""Of 50 programs: cores, CPU seconds of each process, seconds, MiB, processes."""


def test_it_is_right_on_50_programs(site: Site) -> None:
    site.program("use.x", PROGRAM)
    site.config(Launcher={"Kind": "direct"}, Nodes=1, Sockets=1, Cores=16, Emulate=True, Allocation={"Policy": "pack"},
                NodeClasses=[{"Hosts": "n[0-9]", "Memory": "64G"}])
    site.lines(*(f"use.x 1 10 0 cores={cores} args='{cpu} {seconds} {size} {processes}'"
                 + " mem_per_node=512M" * bool(size) for cores, cpu, seconds, size, processes in JOBS))
    assert len(JOBS) == 50
    done = site.run("--once", limit=120)
    assert done.returncode == 0, done.stdout
    uses = {use["id"]: use for use in json.loads(site.run("efficiency", "--json").stdout)["jobs"]}
    assert len(uses) == 50
    for number, (cores, cpu, _, size, processes) in enumerate(JOBS):
        use = uses[number]
        used, wall = map(float, (site.log / f"use.x.{number}.o").read_text().split())
        assert used >= 0.85 * cpu * processes
        busy = used / wall
        assert use["cores"] == cores and use["busy"] == pytest.approx(busy, abs=0.12), number  # its Python starts, too
        clear = abs(busy - round(busy)) > 0.15 and abs(busy - FEW_BUSY * cores) > 0.15
        wanted = max(1, math.ceil(busy - ROUNDING))
        if clear or not cpu:
            assert use["ask"].get("cores") == (wanted if busy < FEW_BUSY * cores and wanted < cores else None), number
        if size:
            peak = use["memory"] / 2**20
            assert size <= peak <= size + 30, number
            asked = use["ask"].get("mem_per_node")
            assert (asked is None) == (0.5 <= peak / 512 <= 0.9), (number, peak)
            if asked:
                assert 1.15 * peak <= float(asked[:-1]) <= 1.2 * peak + 10


@pytest.mark.parametrize("mpirun", mpiruns())
def test_the_ranks_of_an_mpi_job_count_together(site: Site, mpirun: str) -> None:
    site.program("rank.x", PROGRAM)
    site.config(Nodes="auto", Sockets="auto", Cores="auto", Launcher={"Kind": "openmpi", "Mpirun": mpirun},
                Allocation={"Policy": "pack"})
    site.lines("rank.x 2 60 0 args='0.5 1.2 0 1'")
    done = site.run("--once")
    assert done.returncode == 0, done.stdout
    use, = json.loads(site.run("efficiency", "--json").stdout)["jobs"]
    assert 1.0 <= use["busy"] * use["seconds"] <= 1.0 + 1.2
    assert "(MPI ranks that wait for others count as busy.)" in site.run("efficiency", "0").stdout


@pytest.mark.parametrize("mpirun", mpiruns())
def test_each_program_of_a_coupled_job_counts_by_itself(site: Site, mpirun: str) -> None:
    """One is busy for 2 s, the other has much memory; the agents look after 5 s."""
    for name in ("ocean.x", "atmos.x"):
        site.program(name, PROGRAM)
    site.config(Nodes="auto", Sockets="auto", Cores="auto", Launcher={"Kind": "openmpi", "Mpirun": mpirun},
                Allocation={"Policy": "pack"})
    site.lines("model 2 60 0 coupled='ocean.x 1 args=\"2 9 5 1\" : atmos.x 1 args=\"0 9 90 1\"'")
    done = site.run("--once")
    assert done.returncode == 0, done.stdout
    use, = json.loads(site.run("efficiency", "--json").stdout)["jobs"]
    ocean, atmos = use["programs"]
    assert (ocean["app"], ocean["ranks"], ocean["cores"], atmos["app"]) == ("ocean.x", 1, 1, "atmos.x")
    seconds = [each["busy"] * use["seconds"] for each in (ocean, atmos)]
    assert sum(seconds) == pytest.approx(use["busy"] * use["seconds"], abs=0.01)
    assert seconds[0] >= 1.9 and seconds[0] > 3 * seconds[1]
    assert ocean["largest"] < 60 << 20 and 90 << 20 <= atmos["largest"] < 150 << 20
    said = site.run("efficiency", "0").stdout
    assert "\n  ocean.x on 1 rank: " in said and "\n  atmos.x on 1 rank: 0." in said and " in its largest process\n" in said
