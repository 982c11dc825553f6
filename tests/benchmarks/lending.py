"""What SD-policy costs against EASY: CPU time of simulations of the same hybrid jobs.

    python tests/benchmarks/lending.py [--data DIR] [--jobs N] [--quick]

DIR holds `swf/` with the published traces (default: $VRM_REFERENCE_DATA, else `../shared/data` of the checkout's
parent); rows whose trace is missing are left out. `--jobs`: that many of each (default: 5000). Each row is the
median of three pairs of runs. --quick: one pair of 300 drawn jobs on 64 nodes, to see that it works.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from pathlib import Path
from typing import Any

from vrm.api import Machine, Rules, simulate
from vrm.simulation.inputs import open_workload, processors_of
from vrm.ext.generate.lublin import Lublin
from vrm.workload.submission import Submission

ROOT = Path(__file__).resolve().parents[2]


class Jobs(list[Submission]):
    """Jobs of a machine with so many processors."""

    processors = 0


def cost(jobs: Jobs, nodes: int, backfill: str) -> tuple[float, Any]:
    """CPU seconds of one run, and its summary."""
    begun = time.process_time()
    outcome = simulate(jobs, Machine.of(nodes, sockets=2, cores=8), Rules(malleable=1.0, backfill=backfill))
    return time.process_time() - begun, outcome.summary


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get(
        "VRM_REFERENCE_DATA", ROOT.parent / "shared" / "data")))
    parser.add_argument("--jobs", type=int, default=5000)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    cases: list[tuple[str, Jobs, int]] = []
    for name, nodes in (() if args.quick else (("KTH-SP2-1996-2.1-cln.swf.gz", 100),
                                               ("HPC2N-2002-2.1-cln.swf.gz", 120))):
        path = args.data / "swf" / name
        if path.exists():
            source = open_workload(path)
            found = Jobs(sorted(source, key=lambda each: (each.job.submit, each.job.id))[:args.jobs])
            found.processors = processors_of(source, "the benchmark needs it")
            cases.append((name.partition("-")[0], found, nodes))
    for nodes, number in (((64, 300),) if args.quick else ((256, args.jobs), (5040, args.jobs // 5))):
        drawn = Jobs(Lublin(16 * nodes, load=1.4).jobs(number, 1))
        drawn.processors = 16 * nodes
        cases.append((f"Lublin, {nodes} nodes", drawn, nodes))
    print(f"{'':<22}{'jobs':>7}{'EASY, s':>9}{'SD, s':>9}{'ratio':>7}{'borrowed':>10}")
    for name, jobs, nodes in cases:
        pairs = [(cost(jobs, nodes, "easy")[0], *cost(jobs, nodes, "sd"))
                 for _ in range(1 if args.quick else 3)]
        easy, shared = (statistics.median(pair[at] for pair in pairs) for at in (0, 1))
        print(f"{name:<22}{len(jobs):>7}{easy:>9.2f}{shared:>9.2f}"
              f"{statistics.median(pair[1] / pair[0] for pair in pairs):>7.1f}"
              f"{pairs[0][2]['borrowers']:>10}", flush=True)


if __name__ == "__main__":
    main()
