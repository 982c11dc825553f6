"""What forecasts cost, in seconds of CPU.

    python tests/benchmarks/forecast.py [--quick]

The large queue is that of a site in 2012 for which a forecast took 16 to 65 s (C. Karbach, Jülich report
4354): 1,600 jobs that wait and 200 to 300 that run, on 3,290 nodes of 8 cores that are not shared, EASY
with one reservation. Its forecast has the likely and the latest starts, without draws: at most 1 s.
The small one has 200 jobs that wait for 64 nodes: 50 draws in at most 2 s, whatever the order, the
backfilling and the placement. Where they take long, processes share them, as those of `vrm forecast` do:
the last column is what then passes on the clock. Ended jobs took 5 % to 100 % of their limits.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time

from vrm.ext.forecast.draws import History
from vrm.ext.forecast.forecast import Ensemble, forecast
from vrm.ext.forecast.frozen import FrozenRun
from vrm.ext.forecast.parallel import available
from vrm.model import Cluster, Job
from vrm.run.run import Run
from vrm.run.state import State
from vrm.scheduling import Scheduler, make_backfilling, make_ordering, make_policy

LIMITS = [600.0, 1800.0, 3600.0, 7200.0, 14400.0, 28800.0, 43200.0, 86400.0]
"""Walltimes, in seconds."""

CORES = 8
"""Of each node, in two sockets."""

SMALL = [("FCFS", "easy", "compact"), ("SJF", "easy", "compact"), ("WFP3", "easy", "compact"),
         ("FCFS", "list", "compact"), ("FCFS", "easy", "spare"), ("FCFS", "easy", "strip"),
         ("WFP3", "easy", "strip"), ("FCFS", "easy", "pack"), ("FCFS", "conservative", "compact")]


def frozen_run(nodes: int, waiting: int, order: str, backfilling: str, policy: str) -> FrozenRun:
    """A full machine with so many jobs that wait."""
    draw = random.Random(1)
    cluster = Cluster.regular(nodes, 2, CORES // 2)
    scheduler = Scheduler(make_ordering(order), make_backfilling(backfilling),
                          make_policy(policy, cluster, None))
    run = Run(State(scheduler.new_queue(), cluster), scheduler)
    past = History()
    number = 0
    while len(run.state.queue) < waiting:
        size = min(nodes // 4, int(2 ** draw.uniform(0, draw.choice([2, 3, 5, 7]))))
        job = Job(number, f"app{draw.randrange(10)}.x", size * CORES, draw.choice(LIMITS), float(number))
        run.state.submit([job])
        run.step(float(number))
        number += 1
        past.add(job, job.walltime * draw.uniform(0.05, 1.0))
    return FrozenRun(run, float(number), past=past)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small, to see that it works")
    quick = parser.parse_args().quick
    members, waiting, times = (4, 20, 1) if quick else (50, 200, 3)
    print(f"{'':8} {'waiting':>7} {'running':>7}  {'order':5} {'backfilling':12} {'policy':8}  CPU s  shared")
    for order in ("FCFS", "WFP3"):
        frozen = frozen_run(330 if quick else 3290, 160 if quick else 1600, order, "easy", "compact")
        show("likely", frozen, order, "easy", "compact",
             statistics.median(seconds(frozen, 0) for _ in range(times)))
    for order, backfilling, policy in SMALL:
        frozen = frozen_run(64, waiting, order, backfilling, policy)
        show(f"{members} draws", frozen, order, backfilling, policy,
             statistics.median(seconds(frozen, members) for _ in range(times)),
             statistics.median(shared(frozen, members) for _ in range(times)))


def seconds(frozen: FrozenRun, members: int) -> float:
    """CPU seconds of a forecast; with members, of all draws of it, whether they settle earlier or not."""
    begun = time.process_time()
    if members:
        drawn = Ensemble(frozen, list(frozen.waiting()), members, settled=0.0)
        assert len(drawn.starts) == members
    else:
        forecast(frozen, 0)
    return time.process_time() - begun


def shared(frozen: FrozenRun, members: int) -> float:
    """Seconds on the clock for the same draws, shared between the processes that there may be."""
    begun = time.perf_counter()
    Ensemble(frozen, list(frozen.waiting()), members, settled=0.0, processes=available())
    return time.perf_counter() - begun


def show(name: str, frozen: FrozenRun, order: str, backfilling: str, policy: str, found: float,
         passed: float | None = None) -> None:
    """Print a row."""
    print(f"{name:8} {len(frozen.waiting()):7} {len(frozen.state.cluster.bookings):7}  {order:5} "
          f"{backfilling:12} {policy:8} {found:6.2f}" + ("" if passed is None else f" {passed:7.2f}"), flush=True)


if __name__ == "__main__":
    main()
