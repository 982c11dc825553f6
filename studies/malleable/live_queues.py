"""A live queue of short jobs, static (FCFS with EASY) against SD-policy (`Backfilling: sd`), in pairs.

    python studies/malleable/live_queues.py --bin DIR --out DIR [--cluster N] [--repeat N] [--for SECONDS] [--quick]

`--bin`: the programs of `vrm npb build --apps ep-omp --classes S,W,A,B --out DIR`. Each pair has a queue of its own,
drawn from its number by what is fixed below and printed before anything is measured: sizes, the time between two
jobs (exponential), and estimates, which are about twice the run time. All jobs are malleable and want all cores.
Both ways run each queue, in alternation. live_queues.csv has each job; what is there is not run again, so the study
can be made in pieces (`--for`: no run begins after so many seconds; `--quiet`: as for live.py). live_queues.md has
the changes of the pairs with 95 % intervals, next to what the simulator gives for the same jobs, which have the times
of the static run and are as fast as their share of the cores. `--cluster N`: on N nodes of tests/support/testbed.py (as
root), which share this machine's cores. `--quick`: one pair of three short jobs.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Callable, Dict, List, NamedTuple, Tuple

from bench import Bench, Failure, Table, put_into
from live import percent, text

from vrm.model import Job
from vrm.results.jobs import read_jobs
from vrm.ext.study.confidence import interval
from vrm.api import Machine, Recording, Rules, simulate
from vrm.workload.submission import Submission

WAYS = {"static": "easy", "sd": "sd"}
SIZES = {"W": (0.25, 2.0), "A": (0.5, 4.0), "B": (0.25, 20.0)}
"""Classes of ep-omp, each with its share of the jobs, and their estimate in seconds."""
QUICK = {"S": (0.5, 2.0), "A": (0.5, 20.0)}
JOBS, BETWEEN = 12, 2.0
"""Of a queue, and mean seconds from one to the next."""

VALUES = ["submit", "start", "end", "estimate", "lent", "borrowed", "others"]


class Row(NamedTuple):
    """A job that ended, seconds from the first one's coming; core seconds that it lent and borrowed."""

    submit: float
    start: float
    end: float
    estimate: float
    lent: float
    borrowed: float


def drawn(number: int, quick: bool) -> List[Tuple[str, float, float]]:
    """Class, estimate and seconds until the next job comes, of the jobs of a queue."""
    draw, sizes = random.Random(number), QUICK if quick else SIZES
    found = []
    for _ in range(3 if quick else JOBS):
        size = draw.choices(list(sizes), [share for share, _ in sizes.values()])[0]
        found.append((size, sizes[size][1], draw.expovariate(1 / (0.2 if quick else BETWEEN))))
    if quick:  # so that there is something to lend
        found = [("A", *found[0][1:]), ("S", *found[1][1:]), ("S", *found[2][1:])]
    return found


def live(bench: Bench, jobs: List[Tuple[str, float, float]], way: str) -> List[Row]:
    """Run a queue."""
    lines = [bench.line(f"ep-omp.{size}.x", estimate=estimate, delay=round(between, 2))
             for size, estimate, between in jobs]
    with bench.start([*lines, "end"], Scheduling={"Algorithm": "FCFS", "Backfilling": WAYS[way]}) as run:
        run.finish(len(jobs))
        rows = sorted(read_jobs(run.here / "log" / "jobs.csv"), key=lambda row: row.id)
    begun = rows[0].submit
    return [Row(row.submit - begun, (row.start or 0.0) - begun, (row.end or 0.0) - begun, row.walltime,
                float(row.lent or 0.0), float(row.borrowed or 0.0)) for row in rows]


def simulated(static: List[Row], way: str, nodes: int, cores: int) -> List[Row]:
    """What exact arithmetic gives: the same jobs, which take alone what they took in the static run."""
    jobs = [Submission(Job(number, "ep", nodes, row.estimate, row.submit, cores=cores, malleable=True),
                       row.end - row.start) for number, row in enumerate(static)]
    folder = Path(tempfile.mkdtemp(prefix="vrm-lend-"))
    try:
        simulate(jobs, Machine.of(nodes, sockets=1, cores=cores),
                 Rules(algorithm="FCFS", backfill=WAYS[way], policy="compact"), record=Recording(out=folder))
        rows = sorted(read_jobs(folder / "jobs.csv"), key=lambda row: row.id)
    finally:
        shutil.rmtree(folder)
    return [Row(row.submit, row.start or 0.0, row.end or 0.0, row.walltime,
                float(row.lent or 0.0), float(row.borrowed or 0.0)) for row in rows]


def response(rows: List[Row], alone: List[Row]) -> float:
    """The mean seconds from coming to end."""
    return statistics.fmean(row.end - row.submit for row in rows)


def slowdown(rows: List[Row], alone: List[Row]) -> float:
    """The mean of these by what the jobs take on all cores."""
    return statistics.fmean((row.end - row.submit) / (each.end - each.start) for row, each in zip(rows, alone))


def total(rows: List[Row], alone: List[Row]) -> float:
    """Until the last end."""
    return max(row.end for row in rows)


Value = Callable[[List[Row], List[Row]], float]
"""Of the jobs of a run, and of the same ones in the static run."""

COLUMNS: Dict[str, Value] = {
    "mean response, s": response, "mean slowdown": slowdown, "total, s": total}


def page(where: str, nodes: int, cores: int, pairs: Dict[str, Dict[str, List[Row]]], others: List[float]) -> str:
    """The tables of whole pairs."""
    exact = {number: {way: simulated(pair["static"], way, nodes, cores) for way in WAYS}
             for number, pair in pairs.items()}
    lines = [f"{where}: {len(pairs)} queues of {len(next(iter(pairs.values()))['sd'])} jobs; at most "
             f"{max(others, default=0.0):.2f} other processes wanted to run. Means with 95 % intervals; in brackets "
             "what the simulator gives for the same jobs.", "",
             "| | " + " | ".join(COLUMNS) + " | borrowed |", "|---|" + "---|" * (len(COLUMNS) + 1)]

    def borrowers(found: Dict[str, Dict[str, List[Row]]], way: str) -> int:
        return sum(row.borrowed > 0 for each in found.values() for row in each[way])

    def values(found: Dict[str, Dict[str, List[Row]]], way: str, value: Value) -> List[float]:
        return [value(each[way], pairs[number]["static"]) for number, each in found.items()]

    def gains(found: Dict[str, Dict[str, List[Row]]], value: Value) -> List[float]:
        return [100 * (sd / static - 1) for sd, static in zip(values(found, "sd", value),
                                                              values(found, "static", value))]

    lines += [f"| {way} | " + " | ".join(
        f"{text(interval(values(pairs, way, value)))} ({statistics.fmean(values(exact, way, value)):.2f})"
        for value in COLUMNS.values()) + f" | {borrowers(pairs, way)} ({borrowers(exact, way)}) |" for way in WAYS]
    cells = [percent(interval(gains(pairs, value)), statistics.fmean(gains(exact, value)))
             for value in COLUMNS.values()]
    lines += [f"| change | {' | '.join(cells)} | |", "",
              "| queue | static response, s | sd, s | change | exact | borrowed | exact |", "|---|" + "---|" * 6]
    ours, theirs = gains(pairs, response), gains(exact, response)
    lines += [f"| {number} | {response(pair['static'], []):.2f} | {response(pair['sd'], []):.2f} | {gain:+.1f} % | "
              f"{ideal:+.1f} % | {borrowers({number: pair}, 'sd')} | "
              f"{borrowers({number: exact[number]}, 'sd')} |"
              for (number, pair), gain, ideal in zip(pairs.items(), ours, theirs)]
    return "\n".join([*lines, ""])


def pages(table: Table, cores: int) -> str:
    """All that is there."""
    found = []
    for where in dict.fromkeys(key[0] for key in table.rows):
        pairs: Dict[str, Dict[str, List[Row]]] = {}
        others: List[float] = []
        for (place, number, way, _), row in sorted(table.rows.items(), key=lambda each: int(each[0][3])):
            if place == where:
                pairs.setdefault(number, {}).setdefault(way, []).append(Row(*(row[name] for name in Row._fields)))
                others.append(row["others"])
        whole = {number: pair for number, pair in sorted(pairs.items()) if len(pair) == len(WAYS)}
        nodes = int(where[len("cluster"):]) if where.startswith("cluster") else 1
        found += [page(where, nodes, cores, whole, others)] if whole else []
    return "\n".join(found)


def main() -> int:
    """Measure what is missing, and write what was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--bin", type=Path, required=True, help="the directory of the programs")
    parser.add_argument("--out", type=Path, default=Path("."), help="where live_queues.csv and live_queues.md go")
    parser.add_argument("--cluster", type=int, default=0, metavar="N", help="on N nodes of the test cluster")
    parser.add_argument("--repeat", type=int, default=6, help="pairs (default: 6)")
    parser.add_argument("--for", type=float, default=math.inf, dest="seconds", metavar="SECONDS",
                        help="begin no run after so many seconds")
    parser.add_argument("--quiet", type=float, default=math.inf, metavar="N",
                        help="runs in which more other processes wanted to run, on an average, do not count")
    parser.add_argument("--quick", action="store_true", help="one pair of three short jobs")
    parser.add_argument("--docs", type=Path, metavar="FILE",
                        help="also put the tables into this page, between its comments for them")
    options = parser.parse_args()
    until = time.monotonic() + options.seconds
    queues = {str(number): drawn(number, options.quick) for number in range(1 if options.quick else options.repeat)}
    try:
        table = Table(options.out, "live_queues", ["where", "number", "way", "job"], VALUES,
                      {"sizes": QUICK if options.quick else SIZES, "jobs": JOBS, "between": BETWEEN})
        root = Path(tempfile.mkdtemp(prefix="vrm-lend-"))
        with Bench(root, options.bin, options.cluster) as bench:
            cores = bench.cores
            for number, jobs in queues.items():
                print(f"queue {number} (class, estimate, until the next):", json.dumps(
                    [[size, estimate, round(between, 2)] for size, estimate, between in jobs]))
            for number, jobs in queues.items():
                ways = list(WAYS) if int(number) % 2 == 0 else list(WAYS)[::-1]
                for way in ways:
                    if (bench.where, number, way, "0") in table.rows or time.monotonic() > until:
                        continue
                    with bench.others() as others:
                        rows = live(bench, jobs, way)
                    if others.mean <= options.quiet:
                        for job, row in reversed(list(enumerate(rows))):  # the first one's is there: all are
                            table.add((bench.where, number, way, job), {**row._asdict(), "others": others.mean})
                    print(number, way, f"others {others.mean:.2f}",
                          "" if others.mean <= options.quiet else "does not count", flush=True)
        shutil.rmtree(root)
    except Failure as error:
        print(f"live_queues.py: {error}", file=sys.stderr)
        return 1
    said = pages(table, cores)
    (options.out / "live_queues.md").write_text(said, encoding="utf-8")
    print(said)
    if options.docs:
        put_into(options.docs, "live_queues.py", said)
    return 0


if __name__ == "__main__":
    sys.exit(main())
