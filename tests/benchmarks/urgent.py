#!/usr/bin/env python3
"""How soon an urgent job starts for which an MPI job is paused, and how soon that goes on: seconds.

python tests/benchmarks/urgent.py [--mpirun MPIRUN] [--times 10] [--quick]

One machine, with an MPI job on two of its cores. `vrm submit --urgent --yes` is run again and again. The table has the
median and the largest time from the start of the command to the start of the urgent job, from the promise in the journal
to that start, and from the end of the urgent job until a rank of the other one runs again. --quick: few times, to see
that it works.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from collections.abc import Callable

import yaml
from prettytable import PrettyTable

from vrm.ext.lending.nodes.pausing import state_of
from vrm.run.journal import files as journal

WAIT = """#!/bin/sh
echo $$ > "{folder}/pid.$VRM_JOB_ID.$OMPI_COMM_WORLD_RANK"
while [ ! -e "{folder}/done.$VRM_JOB_ID" ]; do sleep 0.02; done
"""


def until(condition: Callable[[], Any]) -> Any:
    """The first true value of a condition."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.005)
    sys.exit("nothing happened for a minute")


def measure(mpirun: str, times: int) -> dict[str, list[float]]:
    """The times, by what they are."""
    took: dict[str, list[float]] = {"command to start": [], "promise to start": [], "end to continuing": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "bin").mkdir()
        (folder / "bin" / "wait.x").write_text(WAIT.format(folder=folder))
        (folder / "bin" / "wait.x").chmod(0o755)
        (folder / "queue").write_text("wait.x 2 3600 0 mem_per_task=100M\n")
        config = folder / "vrm.yaml"
        config.write_text(yaml.safe_dump({
            "Applications": {"Path": str(folder / "bin"), "Queue": str(folder / "queue")}, "Nodes": 1, "Sockets": 1,
            "Cores": 2, "Log": str(folder / "log"), "Launcher": {"Mpirun": mpirun, "AllowRoot": os.geteuid() == 0}}))
        vrm = [sys.executable, "-m", "vrm.cli", "-c", str(config)]
        manager = subprocess.Popen([*vrm, "--wait"], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

        def last(event: str, job_id: int) -> Any:
            found = journal.read(folder / "log" / "journal") if (folder / "log" / "journal").exists() else []
            return next((each for each in reversed(found) if each["event"] == event and each.get("id") == job_id), None)

        try:
            until(lambda: last("start", 0))
            stopped = int(until(lambda: (folder / "pid.0.1").exists() and (folder / "pid.0.1").read_text()))
            for job_id in range(1, times + 1):
                begun = time.time()
                subprocess.run([*vrm, "submit", "wait.x", "2", "60", "--mem-per-task", "100M", "--urgent", "--yes"],
                               cwd=folder, check=True, stdout=subprocess.DEVNULL)
                until(lambda: last("start", job_id))
                lent = last("lent", 0)
                took["command to start"].append(lent["time"] - begun)
                promised = [each for each in journal.read(folder / "log" / "journal") if each.get("what") == "promised"]
                took["promise to start"].append(lent["time"] - promised[-1]["time"])
                (folder / f"done.{job_id}").touch()
                end = until(lambda: last("end", job_id))
                until(lambda: state_of(stopped) != b"T")
                took["end to continuing"].append(time.time() - end["time"])
        finally:
            (folder / "done.0").touch()
            manager.terminate()
            manager.wait()
    return took


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mpirun", default="auto")
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    table = PrettyTable(["urgent job", "median (s)", "largest (s)"])
    for what, seconds in measure(given.mpirun, 2 if given.quick else given.times).items():
        table.add_row([what, f"{statistics.median(seconds):.3f}", f"{max(seconds):.3f}"])
    print(table)


if __name__ == "__main__":
    main()
