#!/usr/bin/env python3
"""How long the workflows of tests/clients take on real Slurm and on vrm, and how many jobs a second that is:

    python tests/benchmarks/clients.py .venv-clients [--rounds 3] [--only CLIENT ...]   # as root, on the test cluster

Each client runs alone, on Slurm and then on vrm, which is in an allocation of the same cluster. A client's time is that
of its workflow, from the client's start until it has its results; vrm's start is not part of it. Prints rows of the
table in docs/reference/slurm-commands.md: medians of the rounds.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "clients")]

from support.clients import EXPECTED, ON_VRM, Drives, known  # noqa: E402

from conftest import wait_until  # noqa: E402
from support.testbed import Testbed  # noqa: E402

JOBS = {"snakemake": 3, "parsl": 1, "dask": 2, "jube": 1, "reframe-squeue": 3, "reframe-slurm": 3, "executorlib": 1,
        "submitit": 4, "pysqa": 2, "psij": 3, "aiida": 2, "aiida-engine": 1, "qtoolkit": 2,
        "clusterfutures": 3, "simple_slurm": 5, "hydra": 4, "signac": 4, "myqueue": 4, "gwf": 5, "maestro": 5, "slurmpy": 4}
"""How many jobs the workflow of each client submits."""


def main() -> None:
    """Run all in turns, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("environment", type=Path, help="the virtual environment with the clients")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", default=[client for client in known() if client not in ON_VRM], metavar="CLIENT")
    options = parser.parse_args()
    times: dict[tuple[str, str], list[float]] = {}
    folder = Path(tempfile.mkdtemp(prefix="vrm-clients-"))
    folder.chmod(0o755)
    try:
        with Testbed(5, accounting=True, directory=folder / "cluster", accounts=["alice"]) as testbed:
            drives = Drives(testbed, options.environment.absolute() / "bin" / "python")
            for _ in range(options.rounds):
                for client in options.only:
                    for name, start in (("slurm", drives.on_slurm), ("vrm", drives.on_vrm)):
                        shutil.rmtree(drives.places[name] / client, ignore_errors=True)
                        wait_until(start([client], 1), f"{client} has ended on {name}", limit=300)
                    for name, outcomes in drives.outcomes([client]).items():
                        outcome = outcomes[client]
                        if outcome.found != EXPECTED[client]:
                            raise SystemExit(f"{client} on {name} found {outcome.found}: {outcome.said}")
                        times.setdefault((client, name), []).append(outcome.seconds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print("| client | jobs | Slurm, s | vrm, s | Slurm, jobs/s | vrm, jobs/s |\n|---|---|---|---|---|---|")
    for client in options.only:
        slurm, vrm = (statistics.median(times[client, name]) for name in ("slurm", "vrm"))
        jobs = JOBS[client]
        print(f"| {client} | {jobs} | {slurm:.1f} | {vrm:.1f} | {jobs / slurm:.2f} | {jobs / vrm:.2f} |")


if __name__ == "__main__":
    main()
