#!/usr/bin/env python3
"""What the shim adds to a parallel region, in nanoseconds, and as a share of a region of 0.5 ms.

    python tests/benchmarks/shim.py [--runs 40] [--regions 200000] [--threads 1,2] [--dlb libdlb.so] [--quick]

An empty region is opened many times in a program without the shim, in one under the shim to which no order was
ever given, and in one that has taken an order, in turns. Each run gives the least time of a region in batches
of 1,000; the table has the least of all runs. Other work on the machine makes regions longer, never shorter.
Regions of several threads are as long as their threads take to meet: look at one thread for the shim's own part.
With --dlb the same is done with DLB's library (`--drom --ompt`), for programs of clang, which it follows.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from prettytable import PrettyTable

from vrm.ext.lending.job_variables import following
from vrm.ext.lending.nodes import lending
from vrm.live.runner import proc

GOAL = 0.02
"""Percent of a region of 0.5 ms that the shim may add."""

REGION = 500_000.0
"""Nanoseconds."""

PROGRAM = r"""
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e9 * t.tv_sec + t.tv_nsec;
}
int main(int argc, char **argv)
{
    long regions = argc > 1 ? atol(argv[1]) : 1000;
    double least = 1e18;
    volatile int seen = 0;
    for (int i = 0; i < 2000; i++)
#pragma omp parallel
        seen = 1;
    printf("ready\n");
    fflush(stdout);
    if (getchar() == EOF)
        return 1;
    for (long batch = 0; batch < regions / 1000; batch++) {
        double start = now();
        for (int i = 0; i < 1000; i++)
#pragma omp parallel
            seen = 1;
        double took = (now() - start) / 1000;
        least = took < least ? took : least;
    }
    printf("%.1f\n", least);
    return !seen;
}
"""


def nanoseconds(program: Path, how: str, threads: int, regions: int, number: int) -> float:
    """The least time of a region in one run."""
    variables: dict[str, str] = {}
    run = f"benchmark-{os.getpid()}"
    if how.startswith("/"):
        variables = {"LD_PRELOAD": how, "DLB_ARGS": f"--drom --ompt --quiet --shm-key={run}"}
    elif how != "none":
        variables, reason = following(program, run, number, {})
        if reason:
            sys.exit(reason)
    place = lending.folder(run, number)
    with subprocess.Popen([program, str(regions)], env={**os.environ, **variables, "OMP_NUM_THREADS": str(threads)},
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdout.readline()
        if how == "order":
            stat = proc.read_stat(process.pid)
            assert stat is not None
            if lending.write_order(place, process.pid, stat[1], 1, os.sched_getaffinity(0), (1, 1)) is None:
                sys.exit("the program has made no file: the shim is not in it")
        output, _ = process.communicate("\n", timeout=300)
    lending.remove(place)
    return float(output)


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=40, help="of each kind, in turns")
    parser.add_argument("--regions", type=int, default=200_000)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--dlb", metavar="LIBRARY", type=os.path.abspath, help="compare with this libdlb.so")
    parser.add_argument("--quick", action="store_true", help="two runs, for a look")
    options = parser.parse_args()
    if options.quick:
        options.runs, options.regions, options.threads = 2, 5000, "1"
    table = PrettyTable(["compiler", "threads", "without, ns", "shim, ns", "after an order, ns", "added, ns",
                         "of a 0.5 ms region, %", f"goal {GOAL} %", "DLB adds, ns", "shim/DLB"], align="r")
    with tempfile.TemporaryDirectory(prefix="vrm-shim-") as folder:
        (Path(folder) / "regions.c").write_text(PROGRAM)
        for compiler in ("gcc", "clang"):
            program = Path(folder) / compiler
            if not shutil.which(compiler) or subprocess.run(
                    [compiler, "-O2", "-fopenmp", Path(folder) / "regions.c", "-o", program],
                    capture_output=True).returncode:
                print(f"{compiler}: not here, or without OpenMP")
                continue
            kinds = ["none", "shim", "order", *[options.dlb] * bool(options.dlb and compiler == "clang")]
            for threads in map(int, options.threads.split(",")):
                found: list[tuple[float, ...]] = [
                    tuple(nanoseconds(program, how, threads, options.regions, number)
                          for how in kinds) for number in range(options.runs)]
                without, shim, order, *others = (min(column) for column in zip(*found))
                added = max(shim, order) - without
                share = 100 * added / REGION
                table.add_row([compiler, threads, *(f"{value:.1f}" for value in (without, shim, order, added)),
                               f"{share:.4f}", "met" if share <= GOAL else "missed",
                               *([f"{others[0] - without:.1f}", f"{added / (others[0] - without):.3f}"]
                                 if others else ["-", "-"])])
    print(table)


if __name__ == "__main__":
    main()
