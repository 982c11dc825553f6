#!/usr/bin/env python3
"""How soon an urgent job starts for which an MPI job is paused, and how soon that goes on: seconds.

python tests/benchmarks/urgent.py [--mpirun MPIRUN] [--times 10] [--cluster] [--quick]

One machine, with an MPI job on two of its cores; or, as root, two nodes of the test cluster under Slurm, with one on two cores of
each. `vrm submit --urgent --yes` is run again and again. The table has the
median and the largest time from the start of the command to the start of the urgent job, from the promise in the journal
to that start, and from the end of the urgent job until a rank of the other one runs again. --quick: few times, to see
that it works.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from collections.abc import Callable, Iterator

import yaml
from prettytable import PrettyTable

from vrm.ext.lending.nodes.pausing import state_of
from vrm.live.nodes.topology import read_topology
from vrm.run.journal import files as journal

sys.path[:0] = [str(Path(__file__).parents[1])]

from support.testbed import LOGIN, Batch, Testbed  # noqa: E402

ROOT = Path(__file__).parents[2]

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


class Machine:
    """This machine: how programs start where the manager is, and where users type, and what jobs ask for."""

    settings: dict[str, Any] = {"Nodes": 1, "Sockets": 1, "Cores": 2}
    line, ranks = "2 3600 0", ("2",)

    def manager(self, argv: list[str], folder: Path) -> subprocess.Popen[Any]:
        """Start the manager."""
        return subprocess.Popen(argv, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def typed(self, argv: list[str], folder: Path) -> None:
        """A command of a user."""
        subprocess.run(argv, cwd=folder, check=True, stdout=subprocess.DEVNULL)

    def stands_still(self, pid: int) -> bool:
        """Whether a rank of the first node is stopped."""
        return state_of(pid) == b"T"


class TwoNodes(Machine):
    """An allocation of two nodes with this machine's cores; users type on a third one."""

    settings: dict[str, Any] = {"Allocation": {"Policy": "compact"}}

    def __init__(self, testbed: Testbed, batch: Batch) -> None:
        self.testbed, self.batch = testbed, batch
        cores = testbed.sockets * testbed.cores
        self.line, self.ranks = f"{2 * cores} 3600 0", (str(2 * cores),)

    def manager(self, argv: list[str], folder: Path) -> subprocess.Popen[Any]:
        return self.testbed.popen(self.batch.host, argv, env={**self.batch.env, "PYTHONPATH": str(ROOT)}, cwd=folder,
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def typed(self, argv: list[str], folder: Path) -> None:
        self.testbed.exec(LOGIN, argv, env={"PYTHONPATH": str(ROOT)}, cwd=folder, check=True)

    def stands_still(self, pid: int) -> bool:
        return bool(self.testbed.exec(self.batch.host, ["ps", "-o", "stat=", "-p", str(pid)]).stdout.startswith("T"))


@contextlib.contextmanager
def cluster() -> Iterator[Machine]:
    """Two nodes of the test cluster."""
    sockets = read_topology().sockets
    with tempfile.TemporaryDirectory() as name, Testbed(
            2, len(sockets), len(sockets[0]), synthetic=False, directory=Path(name) / "cluster") as testbed, \
            testbed.allocation(2, "--exclusive") as batch:
        yield TwoNodes(testbed, batch)


def measure(machine: Machine, mpirun: str, times: int) -> dict[str, list[float]]:
    """The times, by what they are."""
    took: dict[str, list[float]] = {"command to start": [], "promise to start": [], "end to continuing": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "bin").mkdir()
        (folder / "bin" / "wait.x").write_text(WAIT.format(folder=folder))
        (folder / "bin" / "wait.x").chmod(0o755)
        (folder / "queue").write_text(f"wait.x {machine.line} mem_per_task=100M\n")
        config = folder / "vrm.yaml"
        config.write_text(yaml.safe_dump({
            "Applications": {"Path": str(folder / "bin"), "Queue": str(folder / "queue")}, **machine.settings,
            "Log": str(folder / "log"), "Launcher": {"Mpirun": mpirun, "AllowRoot": os.geteuid() == 0}}))
        vrm = [sys.executable, "-m", "vrm.cli", "-c", str(config)]
        manager = machine.manager([*vrm, "--wait"], folder)

        def last(event: str, job_id: int) -> Any:
            found = journal.read(folder / "log" / "journal") if (folder / "log" / "journal").exists() else []
            return next((each for each in reversed(found) if each["event"] == event and each.get("id") == job_id), None)

        try:
            until(lambda: last("start", 0))
            stopped = int(until(lambda: (folder / "pid.0.1").exists() and (folder / "pid.0.1").read_text()))
            for job_id in range(1, times + 1):
                begun = time.time()
                machine.typed([*vrm, "submit", "wait.x", *machine.ranks, "60", "--mem-per-task", "100M", "--urgent", "--yes"], folder)
                until(lambda: last("start", job_id))
                lent = last("lent", 0)
                took["command to start"].append(lent["time"] - begun)
                promised = [each for each in journal.read(folder / "log" / "journal") if each.get("what") == "promised"]
                took["promise to start"].append(lent["time"] - promised[-1]["time"])
                (folder / f"done.{job_id}").touch()
                end = until(lambda: last("end", job_id))
                until(lambda: not machine.stands_still(stopped))
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
    parser.add_argument("--cluster", action="store_true", help="on two nodes of the test cluster")
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    table = PrettyTable(["urgent job", "median (s)", "largest (s)"])
    with cluster() if given.cluster else contextlib.nullcontext(Machine()) as machine:
        measured = measure(machine, given.mpirun, 2 if given.quick else given.times)
    for what, seconds in measured.items():
        table.add_row([what, f"{statistics.median(seconds):.3f}", f"{max(seconds):.3f}"])
    print(table)


if __name__ == "__main__":
    main()
