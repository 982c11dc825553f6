#!/usr/bin/env python3
"""What one decision costs on ten thousand nodes with a hundred thousand jobs in the queue.

    python tests/benchmarks/decisions.py [--nodes 10000] [--jobs 100000] [--steps 1000] [--rounds 1] [--only WORDS] [--quick]

A step is what a turn of the manager does between two syncs of the journal: a job ends (`State.release_cores`, `State.end`),
another one comes (`State.submit`), and `Run.turn` decides, under EASY, on nodes of 2 x 64 cores. The jobs ask for 1 to
16,384 cores and end before their estimates. Times of steps are CPU times. Each row is a process of its own: its memory is what the run takes, with
all its jobs. The first step starts all that fits on empty nodes. The last line is what it takes to show such a run:
the manager's state file, of an array that waits and of as many jobs that differ, and `vrm queue` as a whole.
"""

from __future__ import annotations

import argparse
import gc
import heapq
import json
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from prettytable import PrettyTable

from vrm.live.manager.liverun import Clock
from vrm.live.manager.records.snapshot import snapshot
from vrm.model import Cluster, Heatmap, Job, JobState
from vrm.model.rules import Rules
from vrm.run.entry import DroppedJob
from vrm.run.run import Run
from vrm.run.state import State
from vrm.scheduling import Scheduler, Start, make_backfilling, make_ordering, make_policy

APPS = ["bt", "cg", "ep", "ft", "is", "lu", "mg", "sp"]
LARGEST = 14
"""The largest job has two to the power of this many cores."""


class Driver:
    """The loop around a run: what has started ends by the clock of this process."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.ends: list[tuple[float, int]] = []

    def start(self, start: Start, now: float) -> None:
        """It ends some time before its estimate is over."""
        heapq.heappush(self.ends, (now + start.job.walltime * self.draw.uniform(0.2, 1.0), start.job.id))

    def drop(self, dropped: Sequence[DroppedJob], cause: str) -> None:
        """There is none."""
        raise AssertionError(dropped)

    def postpone(self, jobs: Sequence[Job], now: float) -> None:
        """There is no end of an allocation."""
        raise AssertionError(jobs)


def measure(nodes: int, jobs: int, steps: int, order: str, policy: str) -> dict[str, Any]:
    """The seconds of the steps by CPU time, as others use this machine, too; and the memory."""
    draw = random.Random(1)
    before = resident()
    heatmap = Heatmap({a: {b: float(draw.randint(1, 8)) for b in APPS} for a in APPS})
    cluster = Cluster.regular(nodes, 2, 64)
    scheduler = Scheduler(make_ordering(order), make_backfilling("easy"), make_policy(policy, cluster, heatmap))
    run, driver = Run(State(scheduler.new_queue(), cluster), scheduler), Driver(draw)
    largest = min(LARGEST, (nodes * 64).bit_length() - 1)  # strip shares sockets

    def come(job_id: int, now: float) -> None:
        run.state.submit([Job(job_id, f"{draw.choice(APPS)}.B.x", 2 ** draw.randint(0, largest),
                              round(draw.uniform(60, 86400)), now)])

    empty = resident()
    for job_id in range(jobs):
        come(job_id, draw.uniform(-1000, 0))
    queued = resident()
    gc.collect()
    gc.freeze()
    times: list[float] = []
    now, next_id = 0.0, jobs
    begin = time.process_time()
    run.turn(now, driver)
    first = time.process_time() - begin
    for job_id in range(next_id, next_id + jobs - len(run.state.queue)):  # as many wait as before
        come(job_id, now)
        next_id += 1
    run.turn(now, driver)
    for _ in range(steps):
        now, ended = heapq.heappop(driver.ends)
        begin = time.process_time()
        run.state.release_cores(ended)
        run.state.end(ended, JobState.COMPLETED, now)
        come(next_id, now)
        next_id += 1
        run.turn(now, driver)
        times.append(time.process_time() - begin)
    times.sort()
    return {"first": first, "times": times, "memory": resident(), "running": len(run.state.running),
            "waiting": run.state.waiting, "job": (queued - empty) / jobs, "node": (empty - before) / nodes}


def show(nodes: int, jobs: int, array: bool) -> tuple[float, float, float]:
    """Seconds and MB of the state file of a run with so many waiting jobs, and the seconds of `vrm queue`."""
    cluster = Cluster.regular(nodes, 2, 64)
    scheduler = Scheduler(make_ordering("FCFS"), make_backfilling("easy"), make_policy("compact", cluster, None))
    run = Run(State(scheduler.new_queue(), cluster), scheduler)
    run.state.submit([Job(0, "all.x", nodes * 128, 3600.0, 0.0)])
    run.turn(0.0, Driver(random.Random(1)))
    coming = [Job(number, "x" if array else f"app{number}.x", 16, 60.0 if array else 60.0 + number, 0.0)
              for number in range(1, jobs + 1)]
    for each in ([coming] if array else [[job] for job in coming]):
        run.state.submit(each, indices=range(len(each)) if array else ())
    live: Any = SimpleNamespace(
        clock=Clock(), state=run.state, cluster=cluster, scheduler=scheduler, phase="running", start_time=time.time(),
        end=SimpleNamespace(end=float("inf")), rules=Rules(), drained={}, running={0: SimpleNamespace(
            job=coming[0], booking=cluster.bookings[0], former=None, binding="ok")})
    with tempfile.TemporaryDirectory(prefix="vrm-bench-") as name:
        folder = Path(name)
        (folder / "queue").touch()
        (folder / "vrm.yaml").write_text(f"Applications: {{Queue: {folder}/queue}}\nLog: {folder}/log\n")
        (folder / "log").mkdir()
        begin = time.perf_counter()
        (folder / "log" / "state").write_text(json.dumps(snapshot(live, 1, False), separators=(",", ":")))
        took, size = time.perf_counter() - begin, (folder / "log" / "state").stat().st_size / 1e6
        begin = time.perf_counter()
        subprocess.run([sys.executable, "-m", "vrm.cli", "-c", folder / "vrm.yaml", "queue"], check=True,
                       stdout=subprocess.DEVNULL)
        return took, size, time.perf_counter() - begin


def resident() -> int:
    """Bytes of memory of this process."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def main() -> None:
    """Measure all in turns, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", default="", help="rows that have this in their name, such as `WFP3 strip`")
    parser.add_argument("--quick", action="store_true", help="few of all, for a look")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.quick:
        options.nodes, options.jobs, options.steps = 20, 200, 20
    if options.one:
        print(json.dumps(measure(options.nodes, options.jobs, options.steps, *options.one)))
        return
    table = PrettyTable(["order, placement", "running", "first step s", "median ms", "99th percentile ms", "slowest ms",
                         "MiB", "bytes per queued job", "bytes per node"], align="r")
    rows: dict[str, list[dict[str, Any]]] = {}
    for _ in range(options.rounds):
        for order in ("FCFS", "WFP3"):
            for policy in ("compact", "strip", "pack"):
                name = f"{order} {policy}"
                if options.only in name:
                    done = subprocess.run([sys.executable, __file__, "--one", order, policy, *(
                        f"--{key}={getattr(options, key)}" for key in ("nodes", "jobs", "steps"))],
                        stdout=subprocess.PIPE, check=True)
                    rows.setdefault(name, []).append(json.loads(done.stdout))
    for name, found in rows.items():
        middle = {key: statistics.median(each[key] for each in found)
                  for key in ("running", "first", "memory", "job", "node")}
        at = [statistics.median(1e3 * each["times"][min(len(each["times"]) - 1, int(share * len(each["times"])))]
                                for each in found) for share in (0.5, 0.99, 1.0)]
        table.add_row([name, f"{middle['running']:.0f}", f"{middle['first']:.2f}", *(f"{each:.2f}" for each in at),
                       f"{middle['memory'] / 2**20:.0f}", f"{middle['job']:.0f}", f"{middle['node']:.0f}"])
    print(f"{options.nodes} nodes of 2 x 64 cores, {options.jobs} jobs wait, EASY, {options.steps} steps, "
          f"medians of {options.rounds} rounds")
    print(table)
    for array, what in ((True, "an array"), (False, "jobs that differ")):
        took, size, queue = show(options.nodes, options.jobs, array)
        print(f"{options.jobs} jobs wait, {what}: state file {took:.2f} s, {size:.1f} MB; vrm queue {queue:.2f} s")


if __name__ == "__main__":
    main()
