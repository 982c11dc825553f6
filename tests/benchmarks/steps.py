#!/usr/bin/env python3
"""How much later a step of a script job starts than the same program without srun: milliseconds.

python tests/benchmarks/steps.py [--mpirun MPIRUN ...] [--times 40] [--quick]

A script job starts programs one after the other, in turns with `srun` and without: `true` alone
(against a plain start), and `true` as an MPI program of two ranks (`srun -n 2` against `mpirun -n 2`).
The table has medians of the whole time, the difference, and what `srun --version` takes, which is how
long it takes to load. --mpirun names launchers; without it, vrm's choice. --quick: few times, to see
that it works.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml
from prettytable import PrettyTable

SCRIPT = """#!{python}
import json, statistics, subprocess, sys, time
times, mpirun = int(sys.argv[1]), sys.argv[2]
kinds = {{"plain": ["true"], "srun": ["srun", "-n", "1", "true"], "version": ["srun", "--version"],
         "mpirun": [mpirun, "-n", "2", "true"], "srun mpi": ["srun", "-n", "2", "true"]}}
took = {{name: [] for name in kinds}}
for _ in range(times):
    for name, words in kinds.items():
        begun = time.perf_counter()
        subprocess.run(words, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        took[name].append((time.perf_counter() - begun) * 1000)
print(json.dumps({{name: statistics.median(each) for name, each in took.items()}}))
"""


def measure(mpirun: str, times: int) -> dict[str, Any]:
    """The medians, in milliseconds."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "bin").mkdir()
        script = folder / "bin" / "bench.py"
        script.write_text(SCRIPT.format(python=sys.executable))
        started = "mpirun" if mpirun == "auto" else mpirun
        (folder / "queue").write_text(f"bench.py 2 600 script=1 args='{times} {started}'\nend\n")
        config = folder / "vrm.yaml"
        config.write_text(yaml.safe_dump({
            "Applications": {"Path": str(folder / "bin"), "Queue": str(folder / "queue")}, "Nodes": 1,
            "Sockets": 1, "Cores": 2, "Log": str(folder / "log"), "Allocation": {"Policy": "pack"},
            "Launcher": {"Mpirun": mpirun, "AllowRoot": os.geteuid() == 0}}))
        done = subprocess.run([sys.executable, "-m", "vrm.cli", "-c", str(config), "--once"], text=True,
                              capture_output=True, cwd=folder, check=False)
        found = next((folder / "log").glob("bench.py.*.o"), None)
        if done.returncode or found is None:
            sys.exit(done.stdout + done.stderr + "".join(p.read_text() for p in (folder / "log").glob("*.e")))
        result: dict[str, Any] = json.loads(found.read_text())
        return result


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--mpirun", nargs="+", default=["auto"])
    parser.add_argument("--times", type=int, default=40)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    table = PrettyTable(["launcher", "true", "srun -n1 true", "later by", "mpirun -n2 true", "srun -n2 true",
                         "later by ", "srun --version"])
    for mpirun in arguments.mpirun:
        took = measure(mpirun, 3 if arguments.quick else arguments.times)
        table.add_row([mpirun, *(f"{value:.1f}" for value in (
            took["plain"], took["srun"], took["srun"] - took["plain"], took["mpirun"], took["srun mpi"],
            took["srun mpi"] - took["mpirun"], took["version"]))])
    print(table)


if __name__ == "__main__":
    main()
