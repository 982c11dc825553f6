"""Runs client programs of Slurm on Slurm and on vrm."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from support.testbed import Testbed


DRIVE = Path(__file__).parents[1] / "clients" / "drive.py"
ROOT = Path(__file__).resolve().parents[2]
EXPECTED: dict[str, Any] = {
    "snakemake": "0\n1\nthreads 2\n", "parsl": [0, 2, 4, 6], "dask": [1, 4, 9], "jube": ["1,1", "2,4", "3,9", ""],
    "reframe-squeue": {"Hello": ["pass", []], "Stream": ["pass", ["42.5"]], "Wrong": ["fail", []]},
    "reframe-slurm": {"Hello": ["pass", []], "Stream": ["pass", ["42.5"]], "Wrong": ["fail", []]},
    "gridtk": {"states": [["COMPLETED", "(0)"], ["COMPLETED", "(0)"], ["FAILED", "(3)"], ["CANCELLED", "(0:15)"]],
               "report": True},
    "signac": ["5\n", "10\n", ""],
    "executorlib": [1, 4, 9], "submitit": [1, 4, 9, True],
    "hydra": [["1\n", "4\n", "9\n"], 1, True],
    "myqueue": ["1\n1\n", [["fails.sh", "FAILED"], ["one.sh", "done"], ["two.sh", "done"]]],
    "gwf": ["1\n1\n", "wrong\n\n", [["One", "completed"], ["Two", "completed"], ["Fails", "shouldrun"],
                                    ["Never", "shouldrun"], ["Runs", "shouldrun"]], False],
    "pysqa": {"waits": "pending", "names": ["first", "second"], "out": "done\n", "never": False, "deleted": None},
    "maestro": {"good": [0, ["4\n9\n"]], "bad": [2, []]},
    "aiida-engine": {"sum": 3, "status": 0, "errors": "", "state": "COMPLETED", "same": True},
    "psij": {"states": ["COMPLETED", "FAILED", "CANCELED"], "out": "one\n"},
    "clusterfutures": [1, 4, True], "simple_slurm": ["task 0\ntask 1\n", "COMPLETED", "FAILED", "CANCELLED"],
    "aiida": {"title": "calc", "machines": 1, "cpus": 2, "limit": 120, "mine": True, "killed": True, "out": "2\n"},
    "qtoolkit": {"name": "first", "state": "RUNNING", "sub": "SlurmState.RUNNING", "cpus": 2, "nodes": 1, "limit": 120,
                 "cancelled": "SUCCESSFUL", "out": "2\n"},
    "slurmpy": ["second\n", "first\n", "FAILED", 4]}
"""Expected result of each client. Slow clients come first, because some run in parallel."""
ON_VRM = ("gridtk", "signac", "hydra", "myqueue", "gwf", "maestro", "slurmpy")
"""Clients that run on vrm only, to save time. Run by hand, Slurm 22.05 gave the same results except for two: gridtk reads the
output of Slurm 23.11 and later, and gwf's job after a failed one waits forever there."""
CONFIG = """\
Applications: {Any: true, Queue: queue}
Allocation: {Policy: pack}
Slurm: {DefaultTime: 120}
Grace: 1
"""
SCRIPT = """\
#!/bin/sh
exec %(python)s -m vrm.cli -c vrm.yaml run -- %(python)s %(drive)s %(together)d %(clients)s
"""


class Outcome(NamedTuple):
    """Result of a client and the seconds that it took; `found` is None if it did not finish. `said` is the end of its output."""

    found: Any
    seconds: float
    said: str


Results = dict[str, dict[str, Outcome]]
"""Outcomes by system (`slurm` or `vrm`) and client."""


def outcome(folder: Path, client: str, more: str) -> Outcome:
    """Return the outcome of a client that ran in `folder`; `more` is added to its output."""
    log = folder / f"{client}.log"
    said = (log.read_text(errors="replace") if log.exists() else "it was not run")[-6000:] + more[-3000:]
    try:
        return Outcome(*json.loads((folder / client / "result").read_text()), said)
    except FileNotFoundError:
        return Outcome(None, 0.0, said)


class Drives:
    """Runs clients as an ordinary account, in one directory with Slurm and in another with vrm."""

    def __init__(self, testbed: Testbed, python: Path) -> None:
        self.testbed, self.python = testbed, python
        uid = testbed.accounts["alice"]
        home = testbed.home_of("alice")
        self.env = {"HOME": str(home), "XDG_DATA_HOME": str(home / "data"), "USER": "alice", "LOGNAME": "alice",
                    "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(ROOT)}
        self.become = ["setpriv", "--reuid", str(uid), "--regid", str(uid), "--clear-groups"]
        reach = testbed.exec("login", [*self.become, python, "-c", "import vrm.cli, submitit"], self.env)
        if reach.returncode:  # other accounts cannot read this Python or this checkout
            self.become, self.env = [], {**self.env, "USER": "root", "LOGNAME": "root"}
        self.places = {name: testbed.home_of("alice") / name for name in ("slurm", "vrm")}
        for place in self.places.values():
            place.mkdir()
        vrm = self.places["vrm"]
        root = "" if self.become else "Launcher: {AllowRoot: true}\n"
        (vrm / "vrm.yaml").write_text(f"{CONFIG}Log: {vrm}/logs\n{root}")
        (vrm / "queue").write_text("")
        if self.become:
            for path in [*self.places.values(), *vrm.iterdir()]:
                os.chown(path, uid, uid)

    def on_slurm(self, clients: Sequence[str], together: int) -> Callable[[], bool]:
        """Start clients on the cluster's own Slurm; return a function that returns whether they have ended."""
        real = self.testbed.popen("login", [*self.become, str(self.python), str(DRIVE), str(together), *clients], self.env,
                                  cwd=self.places["slurm"], stdout=subprocess.DEVNULL)
        return lambda: real.poll() is not None

    def on_vrm(self, clients: Sequence[str], together: int) -> Callable[[], bool]:
        """Start clients on vrm in one allocation of two nodes; return a function that returns whether they have ended."""
        place = self.places["vrm"]
        (place / "job.sh").write_text(SCRIPT % {"python": self.python, "drive": DRIVE, "clients": " ".join(clients),
                                                "together": together})
        job = self.testbed.exec("login", [*self.become, "sbatch", "--parsable", "-N", 2, "--exclusive",
                                          "--ntasks-per-node=1", "-c", 8, "--time=12", "-o", "out", "job.sh"], self.env, cwd=place,
                                check=True).stdout.strip()
        return lambda: not self.testbed.exec("login", ["squeue", "-h", "-j", job]).stdout.strip()

    def outcomes(self, clients: Sequence[str]) -> Results:
        """Return the outcomes of clients that have ended."""
        said = (self.places["vrm"] / "out").read_text()
        return {name: {client: outcome(place, client, said if name == "vrm" else "") for client in clients}
                for name, place in self.places.items()}


def known() -> list[str]:
    """Return the installed clients."""
    return [name for name in EXPECTED if name != "jube" or shutil.which("jube")]
