"""The heatmap that is learned while jobs run, against the full one.

    python studies/learning/pairs.py POOL [--jobs N] [--nodes N] [--seeds N] [--test N] [--ranks N]
                                     [--order NAME] [--quick]

POOL is a pool of measured loads (the JSON of the ELiSE group), or another heatmap of measured speed-ups, such as a table. Its
loads are drawn with equal chance. They run under FCFS, EASY and strip, in virtual time, at the speeds of the pool; the
only thing that is learned from are the lines of `jobs.csv`: when which job ran where.

First N jobs run with a heatmap that is learned anew after each 20 of them. Then other jobs run with what was learned, and
the same jobs with the full heatmap, with no heatmap (and no order of partners), and under compact, which shares no nodes. Printed are the mean error of the
speed-ups of all pairs of the pool, of those that were seen and of others, how many of them lie within their interval of 80 %, and the makespans.

What the runs can show at all: a run is one equation, and each seen pair and each load's time alone is an unknown one. Printed is the
mean error if each load had run alone as well, and if the speed-ups of all seen pairs were known exactly.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any

from vrm.api import Machine, Measurements, Recording, Rules, Submission, simulate
from vrm.ext.learning.learned_jobs import LearnedJob, learned
from vrm.ext.learning.pairs.co_runs import ALONE, CoRun, co_runs
from vrm.ext.learning.pairs.heatmap import speedups_of
from vrm.ext.learning.pairs.model import PairModel
from vrm.ext.measured.heatmap_files import read
from vrm.model.job import Job
from vrm.model.measured.heatmap import Heatmap
from vrm.model.measured.speedups import SpeedError, Speedups
from vrm.results.jobs import read_jobs

BATCH = 20
"""Jobs after which is learned anew."""

SAME_TIME = 600.0
"""Seconds that a load takes alone, where the pool does not say it."""

RANKS = 256
"""On which loads run, where the pool does not say it."""

SOCKETS, CORES = 2, 10
"""Of each node, as of the machine on which the ARIS pool was measured."""


def of_ranks(pool: Speedups, ranks: int) -> Speedups:
    """The pool with the loads of one number of ranks alone."""
    def wanted(load: str) -> bool:
        return load.endswith(f".{ranks}")

    return Speedups({load: {other: speed for other, speed in row.items() if wanted(other)}
                     for load, row in pool.pairs.items() if wanted(load)}, pool.spare, pool.compact)


def complete(pool: Speedups) -> Speedups:
    """The pool with loads of which all pairs were measured, both ways: in a simulation others would run at speed 1. What lacks
    most pairs is left out first."""
    loads = sorted(load for load in pool.pairs if load in pool.compact)

    def lacks(load: str) -> int:
        return sum(other not in pool.pairs[load] or load not in pool.pairs[other] for other in loads)

    while loads and max(map(lacks, loads)):
        loads.remove(max(loads, key=lacks))
    return Speedups({load: {other: pool.pairs[load][other] for other in loads} for load in loads}, pool.spare, pool.compact)


def workload(pool: Speedups, number: int, seed: int) -> list[Submission]:
    """Jobs of loads that have a compact time, all at the begin."""
    chance, found = random.Random(seed), []
    loads = sorted(load for load in pool.pairs if load in pool.compact)
    for job_id in range(number):
        app, _, ranks = chance.choice(loads).rpartition(".")
        run = pool.compact[f"{app}.{ranks}"]
        found.append(Submission(Job(job_id, f"{app}.x", int(ranks), 2 * run, 0.0), run))
    return found


def run(jobs: list[Submission], pool: Speedups, heatmap: Heatmap | None, nodes: int, policy: str, name: str,
        order: str = "partners") -> tuple[list[LearnedJob], Any]:
    """Run jobs; their lines, and the outcome."""
    with tempfile.TemporaryDirectory() as folder:
        outcome = simulate(jobs, Machine.of(nodes, SOCKETS, CORES), Rules(
            policy=policy, min_throughput=0.0, node_order=order),
                           measured=Measurements(heatmap=heatmap, speedups=pool if policy == "strip" else None),
                           record=Recording(out=folder))
        rows = list(read_jobs(Path(folder) / "jobs.csv"))
    return [job for job in (learned(row, name) for row in rows) if job is not None], outcome


def observed(pool: Speedups, number: int, nodes: int, seed: int, order: str = "partners") -> list[CoRun]:
    """The runs of so many jobs: the manager learns anew after each BATCH that has come."""
    jobs, known = workload(pool, number, seed), list[LearnedJob]()
    model = PairModel()
    for begin in range(0, number, BATCH):
        heatmap = speedups_of(model).heatmap() if model.loads else Heatmap({})
        known += run(jobs[begin:begin + BATCH], pool, heatmap, nodes, "strip", f"run{begin}", order)[0]
        model = PairModel(co_runs(known))
    return co_runs(known)


def learn(pool: Speedups, number: int, nodes: int, seed: int, order: str = "partners") -> PairModel:
    """What is known after so many jobs."""
    return PairModel(observed(pool, number, nodes, seed, order))


def bounds(runs: list[CoRun], model: PairModel, pool: Speedups) -> dict[str, float]:
    """The number of unknowns, and the errors if more were known than the runs show."""
    alone = {run.load: CoRun(run.load, run.work, ((sum(seconds * min(
        pool.pairs[run.load][other] if other else 1.0 for other in company) for seconds, company in run.parts),
        frozenset({ALONE})),)) for run in runs}
    exact = [CoRun(load, load, ((SAME_TIME / speed, frozenset({other})),)) for load, other, speed in (
        *((load, ALONE, 1.0) for load in model.loads), *((*pair, pool.pairs[pair[0]][pair[1]]) for pair in model.seen))]
    return {"runs": len(runs), "unknown": len(model.seen) + len({run.work for run in runs}),
            "error, alone known": errors(PairModel([*alone.values(), *runs]), pool)["error"],
            "error, seen known": errors(PairModel(exact), pool)["error"]}


def errors(model: PairModel, pool: Speedups) -> dict[str, float]:
    """Mean errors of speed-ups, relative, of pairs of loads that have run."""
    pairs = [(load, other) for load, row in pool.pairs.items() for other in row
             if load in model.loads and other in model.loads]
    found = model.speeds(pairs)
    off = [abs(each.value / pool.pairs[load][other] - 1) for (load, other), each in zip(pairs, found)]
    inside = [each.low <= pool.pairs[load][other] <= each.high for (load, other), each in zip(pairs, found)]
    seen = [error for error, each in zip(off, found) if each.runs]
    rest = [error for error, each in zip(off, found) if not each.runs]
    guess = fmean(pool.pairs[load][other] for load, other in pairs)
    return {"pairs": len(pairs), "seen": len(seen), "error": fmean(off), "error seen": fmean(seen) if seen else 0.0,
            "error guessed": fmean(rest) if rest else 0.0, "inside": fmean(inside),
            "error of the mean": fmean(abs(guess / pool.pairs[load][other] - 1) for load, other in pairs)}


def study(pool: Speedups, arguments: argparse.Namespace, seed: int) -> dict[str, Any]:
    """One seed: errors, and makespans of other jobs."""
    runs = observed(pool, arguments.jobs, arguments.nodes, seed, arguments.order)
    model = PairModel(runs)
    jobs, found = workload(pool, arguments.test, 1000 + seed), {**errors(model, pool), **bounds(runs, model, pool)}
    least = arguments.least
    for name, heatmap, policy, order in (("learned", speedups_of(model).heatmap(least), "strip", arguments.order),
                                         ("full", pool.heatmap(least), "strip", arguments.order),
                                         ("none", Heatmap({}), "strip", "auto"), ("compact", None, "compact", "auto")):
        ran, outcome = run(jobs, pool, heatmap, arguments.nodes, policy, "test", order)
        found[name] = outcome.summary["makespan"]
        alone = {job.job.id: job.run for job in jobs}
        slower = [job.seconds / alone[job.job] for job in ran]
        found[f"{name} worst"], found[f"{name} run"] = max(slower), fmean(slower)
        found[f"{name} turnaround"] = fmean(job.end for job in ran)
    return found


def main() -> int:
    """Print the tables; 0 done, 2 could not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("pool", metavar="POOL")
    add("--jobs", metavar="N", type=int, default=100, help="jobs from which is learned (default: 100)")
    add("--test", metavar="N", type=int, default=300, help="jobs that run with what was learned (default: 300)")
    add("--nodes", metavar="N", type=int, default=426, help="of 2 x 10 cores (default: 426, as ARIS)")
    add("--seeds", metavar="N", type=int, default=5, help="repetitions with other jobs (default: 5)")
    add("--ranks", metavar="N", type=int, help="the loads of this number of ranks alone (default: all loads)")
    add("--least", metavar="F", type=float, default=0.0,
        help="pairs whose mean speed-up is below this do not share nodes (MinThroughput; default: all may)")
    add("--order", metavar="NAME", default="partners", help="the node order where there is a heatmap (default: partners)")
    add("--json", action="store_true", help="as JSON")
    add("--quick", action="store_true", help="a few jobs, to see that it runs")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments = argparse.Namespace(**{**vars(arguments), "jobs": 20, "test": 20, "seeds": 1})
    try:
        pool = read(arguments.pool).speedups
        if pool is None:
            raise SpeedError(f"{arguments.pool}: it has no speed-ups")
        if not any(load.rpartition(".")[2].isdigit() for load in pool.pairs):
            pool = Speedups({f"{load}.{RANKS}": {f"{other}.{RANKS}": speed for other, speed in row.items()}
                             for load, row in pool.pairs.items()})
        pool = pool if pool.compact else Speedups(pool.pairs, pool.spare, dict.fromkeys(pool.pairs, SAME_TIME))
        pool = complete(of_ranks(pool, arguments.ranks) if arguments.ranks else pool)
        print(f"loads: {' '.join(pool.pairs)}", file=sys.stderr)
    except SpeedError as error:
        print(f"pairs: {error}", file=sys.stderr)
        return 2
    rows = [study(pool, arguments, seed) for seed in range(arguments.seeds)]
    if arguments.json:
        print(json.dumps(rows, indent=1))
        return 0
    for name in rows[0]:
        values = [row[name] for row in rows]
        print(f"{name:20} {fmean(values):10.4g}   {min(values):10.4g} to {max(values):.4g}")
    for name in ("full", "none", "compact"):
        changes = [100 * (row["learned"] / row[name] - 1) for row in rows]
        print(f"makespan learned against {name:8} {fmean(changes):+6.2f} %   {min(changes):+.2f} to {max(changes):+.2f} %")
    for name in ("learned", "full", "none"):
        jobs, ends = (100 * (fmean(row["compact" + what] / row[name + what] for row in rows) - 1)
                      for what in ("", " turnaround"))
        runs = 100 * (fmean(row[f"{name} run"] for row in rows) - 1)
        worst = 100 * (max(row[f"{name} worst"] for row in rows) - 1)
        print(f"strip, {name:7} against exclusive compact: throughput {jobs:+.1f} %, mean turnaround "
              f"{100 / (1 + ends / 100) - 100:+.1f} %, run of a job {runs:+.1f} % on average, {worst:+.0f} % the worst")
    return 0



if __name__ == "__main__":
    sys.exit(main())
