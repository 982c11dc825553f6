#!/usr/bin/env python3
"""What a queue of MPI jobs on two nodes each costs the centre, on real Slurm:

    python tests/benchmarks/load.py [--jobs 100] [--nodes 4] [--quick]      # as root, on the test cluster

The same jobs (mpirun of a program that ends at once, on 2 nodes of 8 cores) are run in one batch job each: by vrm; by
vrm with a step for each job (`Hosts: {Steps: each}`); and by shell loops that have as many mpiruns, or sruns, under way as fit.
Prints a table: steps of the batch job, requests that slurmctld got (sdiag), files that the run left, seconds.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1])]

from support.testbed import LOGIN, Batch, Testbed  # noqa: E402

ROOT = Path(__file__).parents[2]
LOOP = """\
export SLURM_OVERLAP=1 SLURM_TASKS_PER_NODE='8(x{nodes})' OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
seq {jobs} | xargs -P {pairs} -I JOB sh -c 'k=$((JOB % {pairs} * 2)); set -- {hosts}; shift $k
{command} /bin/true >{folder}/JOB.out 2>{folder}/JOB.err'
"""
COMMANDS = {"mpirun": "mpirun -H $1:8,$2:8 -np 16 --bind-to none",
            "srun": "env -u SLURM_TASKS_PER_NODE srun -N2 -n16 -c1 -w $1,$2 --quiet"}


def by_vrm(steps: str) -> Callable[[Testbed, Batch, Path, int], int]:
    """A run of vrm with this value of `Hosts.Steps`; gives its exit status."""
    def run(testbed: Testbed, batch: Batch, folder: Path, jobs: int) -> int:
        (folder / "queue").write_text("true 16 60 0\n" * jobs + "end\n")
        (folder / "vrm.yaml").write_text(
            f"Applications: {{Path: /bin, Queue: {folder}/queue}}\nAllocation: {{Policy: compact}}\n"
            f"Launcher: {{Kind: openmpi, AllowRoot: true}}\nHosts: {{Steps: {steps}}}\nLog: {folder}/log\n")
        return testbed.exec(batch.host, [sys.executable, "-m", "vrm.cli", "-c", folder / "vrm.yaml"],
                            env={**batch.env, "PYTHONPATH": str(ROOT)}, cwd=folder, timeout=3600).returncode
    return run


def by_loop(program: str) -> Callable[[Testbed, Batch, Path, int], int]:
    """A shell loop of one of COMMANDS; gives its exit status."""
    def run(testbed: Testbed, batch: Batch, folder: Path, jobs: int) -> int:
        script = LOOP.format(jobs=jobs, folder=folder, hosts=" ".join(batch.nodes), nodes=len(batch.nodes),
                             pairs=len(batch.nodes) // 2, command=COMMANDS[program])
        return testbed.exec(batch.host, ["bash", "-c", script], env=batch.env, timeout=3600).returncode
    return run


def steps_of(testbed: Testbed, batch: Batch) -> int:
    """How many steps a batch job has had: they are numbered."""
    return int(testbed.exec(batch.host, ["srun", "--overlap", "-N1", "-n1", "-w", batch.host, "printenv",
                                         "SLURM_STEP_ID"], env=batch.env, check=True).stdout)


def requests(testbed: Testbed) -> int:
    """The requests that slurmctld got since its counters were reset."""
    said = testbed.exec(LOGIN, ["sdiag"], check=True).stdout
    return sum(map(int, re.findall(r"^\t(?:REQUEST|MESSAGE)_\S+ +\( *\d+\) count:(\d+)", said, re.MULTILINE)))


def main() -> None:
    """Run all in turns, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--quick", action="store_true", help="four jobs, for a look")
    options = parser.parse_args()
    if options.quick:
        options.jobs = 4
    folder = Path(tempfile.mkdtemp(prefix="vrm-load-"))
    print("| | steps | requests to slurmctld | files left | s |\n|---|---|---|---|---|")
    try:
        with Testbed(options.nodes, directory=folder / "cluster") as testbed:
            for name, run in (("vrm", by_vrm("shared")), ("vrm, a step for each job", by_vrm("each")),
                              ("a loop of mpirun", by_loop("mpirun")), ("a loop of srun", by_loop("srun"))):
                place = folder / name.replace(" ", "-").replace(",", "")
                place.mkdir()
                with testbed.allocation(options.nodes, "--exclusive") as batch:
                    testbed.exec(LOGIN, ["sdiag", "-r"], check=True)
                    start = time.monotonic()
                    code = run(testbed, batch, place, options.jobs)
                    seconds, asked = time.monotonic() - start, requests(testbed)
                    files = sum(len(names) for _, _, names in os.walk(place))
                    row = f"{steps_of(testbed, batch)} | {asked} | {files} | {seconds:.1f} |"
                print(f"| {name}{f' (exit status {code})' * bool(code)} | {row}", flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
