"""Queries the batch system around vrm for all its jobs and nodes: `outer_slurm` and `outer_pbs` parse what its
programs print, and `output_of` runs the programs."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence

from vrm.system.printing.text import printable
from vrm.ext.forecast.site.snapshot import Place, SnapshotError

SECONDS = 30.0
"""Time limit of a program of the batch system, in seconds."""

UNKNOWN = (
    "later submissions, and those of a higher priority among them",
    "how priorities change while jobs wait (age, fair share)",
    "limits of users, groups and qualities of service",
    "memory, GPUs, licences and features: jobs are placed by nodes and cores alone",
    "jobs that end before their limits: starts are those if none does, so most come earlier")
"""What no snapshot of a batch system contains, as text for users."""


def output_of(argv: Sequence[str], seconds: float = SECONDS) -> str:
    """Return what a program prints. Raises SnapshotError, with advice, if it is missing, fails or hangs."""
    name = argv[0]
    try:
        program = subprocess.Popen(
            argv, env={**os.environ, "SLURM_TIME_FORMAT": "standard", "LC_ALL": "C"},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True)
    except FileNotFoundError:
        raise SnapshotError(f"{name} is not there: ask on a login node of the cluster, or give what it "
                            "printed there in a file (vrm help forecast)") from None
    except OSError as error:
        raise SnapshotError(f"{name} cannot be started: {error.strerror}") from None
    try:
        found, wrong = program.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(program.pid, signal.SIGKILL)  # with its child processes
        program.communicate()
        raise SnapshotError(f"{name} has not answered within {seconds:g} s; try again later") from None
    if program.returncode:
        said = wrong.decode(errors="replace").strip().splitlines()
        raise SnapshotError(f"{name} has failed (status {program.returncode})"
                            + (f": {printable(said[-1], 200)}" if said else ""))
    return found.decode(errors="replace")


class NodeNames:
    """Maps names of nodes to their numbers."""

    def __init__(self, names: Sequence[str]) -> None:
        self.number: dict[str, int] = {}
        for number, name in enumerate(names):
            self.number.setdefault(name, number)
            self.number.setdefault(name.partition(".")[0], number)

    def places(self, names: Sequence[str]) -> tuple[Place, ...]:
        """Return places on these nodes, with unknown cores; unknown nodes are left out."""
        known: list[int] = [self.number[name] for name in dict.fromkeys(names) if name in self.number]
        return tuple((number, None) for number in sorted(known))


