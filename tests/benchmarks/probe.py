#!/usr/bin/env python3
"""How long it takes to ask the nodes of an allocation what they are, all at the same time.

python tests/benchmarks/probe.py [--nodes 1 8 64] [--rounds 5] [--delay 0.1] [--quick]

The nodes are stand-ins on this machine: a script instead of ssh that waits for DELAY seconds,
as a log-in over a network does, and runs the agent here. So all agents share this machine's
cores, which those of real nodes do not: this measures what vrm can cost, not what nodes do.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from prettytable import PrettyTable

from vrm.live.nodes.agents import probe

GOAL = 3.0
"""Seconds in which 64 stand-ins on 2 cores should have answered."""


def measure(nodes: int, ssh: Path) -> tuple[float, float]:
    """Seconds until so many nodes have answered and their agents have ended, and the CPU
    seconds of this process in that."""
    hosts = [f"node{number}" for number in range(nodes)]
    begin, busy = time.perf_counter(), time.process_time()
    found, failed = probe(hosts, command=(str(ssh),), timeout=30.0)
    took = time.perf_counter() - begin, time.process_time() - busy
    if failed or sorted(found) != sorted(hosts):
        sys.exit(f"not all nodes answered: {failed}")
    return took


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--delay", type=float, default=0.1, help="seconds of a log-in")
    parser.add_argument("--quick", action="store_true", help="two nodes once, for a look")
    options = parser.parse_args()
    if options.quick:
        options.nodes, options.rounds, options.delay = [1, 2], 1, 0.0
    table = PrettyTable(["nodes", "median s", "slowest s", "CPU of vrm, s", "ms for each node",
                         "ratio to one node"], align="r")
    with tempfile.TemporaryDirectory(prefix="vrm-probe-") as folder:
        ssh = Path(folder, "ssh")
        ssh.write_text(f"#!/bin/sh\nsleep {options.delay:g}\nwhile [ $# -gt 2 ]; do shift; done\n"
                       'eval "exec $2"\n')
        ssh.chmod(0o755)
        first = 0.0
        for nodes in options.nodes:
            times: list[tuple[float, float]] = [measure(nodes, ssh)
                                                for _ in range(options.rounds)]
            seconds = statistics.median(took for took, _ in times)
            first = first or seconds
            table.add_row([nodes, f"{seconds:.2f}", f"{max(times)[0]:.2f}",
                           f"{statistics.median(busy for _, busy in times):.2f}",
                           f"{1000 * seconds / nodes:.0f}", f"{seconds / first:.1f}"])
    print(f"stand-in nodes on {len(os.sched_getaffinity(0))} CPUs, {options.delay:g} s to log in; "
          f"the goal for 64 is {GOAL:g} s")
    print(table)


if __name__ == "__main__":
    main()
