"""Many short jobs on a cluster of 8 namespaced nodes under Slurm: does anything leak, and how
quickly does one job follow another? As root, on a machine with what tests/support/testbed.py wants.

    python tests/benchmarks/soak.py [--jobs 1000] [--mpirun PATH | --direct] [--quick]

Half of the jobs have one rank, the others two to eight on one or two nodes; all are `true`, so that
mpirun's own start is what takes the time. With --direct they are tasks without MPI, one core each.
The last rows compare the second half of the run with the first.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import yaml

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))

from support.testbed import Testbed, missing  # noqa: E402  (a module of the tests)

from vrm.run.journal.files import read  # noqa: E402
from vrm.results.jobs import read_jobs  # noqa: E402

PAUSE = 2.0
"""Seconds between two looks at the manager."""


def write_site(root: Path, jobs: int, mpirun: str, direct: bool) -> Path:
    """Programs, queue and configuration; the configuration's path."""
    (root / "bin").mkdir()
    program = root / "bin" / "true"
    program.write_text("#!/bin/sh\nexit 0\n")
    program.chmod(0o755)
    draw = random.Random(1)
    sizes = [1 if direct or draw.random() < 0.5 else draw.choice([2, 4, 8]) for _ in range(jobs)]
    (root / "queue").write_text("".join(f"true {size} 5 0\n" for size in sizes) + "end\n")
    config = root / "vrm.yaml"
    config.write_text(yaml.safe_dump({
        "Applications": {"Path": "bin", "Queue": "queue"}, "Log": "log",
        "Scheduling": {"Backfilling": "easy"},
        "Allocation": {"Policy": "pack" if direct else "strip"},
        "Launcher": {"Kind": "direct"} if direct else
        {"AllowRoot": True, "Transport": "tcp", "Mpirun": mpirun}}))
    return config


def use(manager: psutil.Process) -> tuple[float, int, int]:
    """Memory (MB), open files and child processes of the manager now."""
    return (manager.memory_info().rss / 2**20, manager.num_fds(),
            len(manager.children(recursive=True)))


def watch(process: subprocess.Popen[bytes], log: Path, pause: float
          ) -> list[tuple[int, float, int, int]]:
    """The manager's use every few seconds, with the number of jobs that had ended."""
    manager = psutil.Process(process.pid)
    found = []
    while True:
        try:
            process.wait(pause)
            return found
        except subprocess.TimeoutExpired:
            pass
        jobs = log / "jobs.csv"
        ended = len(list(read_jobs(jobs))) if jobs.exists() else 0
        try:
            found.append((ended, *use(manager)))
        except psutil.NoSuchProcess:
            return found


def gaps(journal: Path) -> list[float]:
    """Milliseconds from the end of each mpirun to the first start of another after it, where one
    started within a second (by then a job was waiting)."""
    ran = [record["ran"] for record in read(journal)
           if record["event"] == "end" and record["ran"] is not None]
    starts = sorted(start for start, _ in ran)
    found, at = [], 0
    for end in sorted(end for _, end in ran):
        while at < len(starts) and starts[at] < end:
            at += 1
        if at < len(starts) and starts[at] - end < 1:
            found.append(1000 * (starts[at] - end))
    return found


def processes(testbed: Testbed) -> dict[str, int]:
    """How many processes each node has."""
    return {node: len(testbed.pids(node)) for node in testbed.nodes}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--mpirun", default="auto")
    parser.add_argument("--direct", action="store_true")
    parser.add_argument("--quick", action="store_true", help="20 jobs, for a look")
    arguments = parser.parse_args()
    pause = PAUSE
    if arguments.quick:
        arguments.jobs, pause = 20, 0.1
    reason = missing()
    if reason:
        raise SystemExit(f"soak.py: {reason}")
    with tempfile.TemporaryDirectory() as folder, Testbed(8) as testbed:
        root = Path(folder)
        config = write_site(root, arguments.jobs, arguments.mpirun, arguments.direct)
        before = processes(testbed)
        with testbed.allocation(8, "--exclusive") as batch:
            begun = time.perf_counter()
            process = testbed.popen(
                batch.host, [sys.executable, "-m", "vrm.cli", "-c", config],
                env={**batch.env, "PYTHONPATH": str(TESTS.parent)}, cwd=root,
                stdout=open(root / "said", "w"), stderr=subprocess.STDOUT)
            found = watch(process, root / "log", pause)
            seconds = time.perf_counter() - begun
        testbed.wait_for_slurm(testbed.nodes)
        rows = list(read_jobs(root / "log" / "jobs.csv"))
        completed = sum(row.status == "completed" for row in rows)
        after = processes(testbed)
        left = list((root / "log" / "pids").iterdir())
        half = next((one for one in found if one[0] >= len(rows) // 2), found[-1])
        times = sorted(gaps(root / "log" / "journal"))
        print(f"{os.cpu_count()} cores, 8 nodes of 2x4, "
              + ("tasks without MPI" if arguments.direct else "strip, EASY"))
        for name, value in (
                ("jobs completed", f"{completed} of {len(rows)}"),
                ("jobs a second", f"{len(rows) / seconds:.1f}"),
                ("from an end to the next start, median", f"{statistics.median(times):.1f} ms"),
                ("the same, 95th percentile", f"{times[int(0.95 * len(times))]:.1f} ms"),
                ("markers left", len(left)),
                ("processes left on the nodes", sum(after.values()) - sum(before.values())),
                ("memory after a half and at the end", f"{half[1]:.1f}, {found[-1][1]:.1f} MB "
                                                       f"(ratio {found[-1][1] / half[1]:.3f})"),
                ("open files after a half and at the end", f"{half[2]}, {found[-1][2]}")):
            print(f"{name:<42}{value}")
        for row in rows:
            if row.status != "completed":
                errors = root / "log" / f"{row.app}.{row.id}.e"
                print(f"\n#{row.id} {row.status}, {row.reason}, on {row.cores}:\n"
                      f"{errors.read_text(errors='replace')[:1500]}")


if __name__ == "__main__":
    main()
