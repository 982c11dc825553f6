"""Test jobs that report their process ids, for runs in which jobs lend cores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import Site, wait_until

from vrm.live.nodes.topology import parse_cpu_list, read_topology
from vrm.run.journal import files as journal

PROGRAM = """
echo $$ > "$HERE/pid.$VRM_JOB_ID.${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-0}}"
while [ ! -e "$HERE/done.$VRM_JOB_ID" ]; do sleep 0.05; done
"""
"""Program of a job: writes its process id into a file and runs until the file `done.JOB` exists."""

KILLED = """
import os, signal, sys
from vrm.run.journal import files as journal
append, last, left = journal.Journal.append, sys.argv[1], int(sys.argv[2])
def and_die(self, event, **values):
    global left
    append(self, event, **values)
    if event == last:
        left -= 1
        if not left:
            self.sync()
            os.kill(os.getpid(), signal.SIGKILL)
journal.Journal.append = and_die
sys.argv = ["vrm", *sys.argv[3:]]
from vrm.cli import main
sys.exit(main())
"""
"""Program that runs vrm and kills it as soon as its N-th record of an event is on disk. Arguments: EVENT N WORDS."""


def allowed(root: Path, job: int, rank: int = 0) -> set[int]:
    """Return the CPUs that a rank of a job on this machine may use; empty if it does not run."""
    try:
        pid = (root / f"pid.{job}.{rank}").read_text().strip()
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return set()
    line = next(line for line in status.splitlines() if line.startswith("Cpus_allowed_list:"))
    return set(parse_cpu_list(line.split()[1]))


def cores(number: int) -> list[set[int]]:
    """Return the CPUs of each of the first `number` cores of this machine; skips the test if a socket has fewer."""
    found = [set(core.cpus) for core in read_topology().sockets[0][:number]]
    if len(found) < number:
        pytest.skip(f"needs {number} cores on a socket")
    return found


def prepared(site: Site, *lines: str, **keys: Any) -> None:
    """Write the configuration of a machine with two cores, and a queue."""
    site.env["HERE"] = str(site.root)
    site.program("wait.x", PROGRAM)
    site.config(**{"Nodes": 1, "Sockets": 1, "Cores": 2, "Launcher": {"CheckBindings": "fail"}, **keys})
    site.lines(*(lines or ("wait.x 1 600 0 cores=2 malleable=1", "wait.x 1 60 0")), end=False)


def done(site: Site, *jobs: int) -> None:
    """Let these jobs end."""
    for job in jobs:
        (site.root / f"done.{job}").touch()


def records(site: Site) -> list[dict[str, Any]]:
    """Return the records of the journal."""
    return journal.read(site.log / "journal")


def events(site: Site) -> list[str]:
    """Return the events of the journal."""
    return [record["event"] for record in records(site)]


def runs(site: Site, *jobs: int) -> None:
    """Wait until exactly these jobs run."""
    wait_until(lambda: site.running() == sorted(map(str, jobs)), f"jobs {jobs} run")


def lends(site: Site) -> list[dict[str, Any]]:
    """Return the lends in the state file; a lend that has ended on all nodes is not listed."""
    found: list[dict[str, Any]] = json.loads((site.log / "state").read_text()).get("lends", [])
    return found
