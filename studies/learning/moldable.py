"""Rigid jobs under EASY against the same jobs on the number of ranks that vrm chooses (`Backfilling: moldable`).

    python studies/learning/moldable.py TRACE... [--jobs N] [--load F] [--seed N] [--known] [--estimates NAME]
                                         [--out DIR] [--quick]
    python studies/learning/moldable.py --brute N [--seed N]

A TRACE is a file in the Standard Workload Format whose header says how many processors there are, or lublin:256:5000.
Its jobs are made moldable by Downey's model (1997): the average parallelism of a job is its number of processors times
2**u with u uniform between -1 and 2, and its variation one of 0, 0.5, 1 and 2. It may run on its own number of processors
times a power of two, from a quarter to four times as many, as the machine allows. On its own number it takes as long as in
the trace, on others by the model. Its user's limit is that of its own number.

`rigid` runs each job on its own number under EASY. `moldable` chooses; the curves are learned from the jobs that have
ended: jobs of one user on one number of processors that ask for the same time count as one program and input. With
`--known` the model's curves are known as well. The longest wait shows whether somebody starves.

`--brute N` compares the choice with all choices in three orders, on N machines of 8 cores with 8 jobs each.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
import time
from pathlib import Path
from typing import Any
from collections.abc import Iterable, Sequence

import numpy

from vrm.api import Machine, Outcome, Rules, Submission, simulate
from vrm.ext.learning.list_schedules import backfilled
from vrm.ext.learning.moldable import MAKESPAN, TURNAROUND, Moldable
from vrm.ext.learning.widths import RANKS, SPEEDUP, Downey
from vrm.model.job import Job, Program
from vrm.simulation.inputs import ERRORS, open_workload, processors_of
from vrm.workload.swf import Selection

VARIATIONS = (0.0, 0.5, 1.0, 2.0)
TIMES = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Numbers of processors on which a job may run, as multiples of its own."""


class Hidden(Moldable):
    """The backfilling `moldable`, where only the simulation knows how jobs scale: `curves` by their ids."""

    def __init__(self, curves: dict[int, Downey]) -> None:
        super().__init__()
        self.hidden = curves

    def stretch(self, asked: Job, started: Job) -> float:
        """As the model says."""
        curve = self.hidden[asked.id]
        return curve.time(started.procs) / curve.time(asked.procs)


def moldable(jobs: Iterable[Submission], processors: int, seed: int, known: bool
             ) -> tuple[list[Submission], dict[int, Downey]]:
    """The jobs of a trace with numbers of ranks, and how they scale."""
    chance, found, curves = random.Random(seed), [], {}
    programs: dict[Any, Downey] = {}
    for submission in jobs:
        job = submission.job
        key = job.user, job.procs, job.walltime
        if key not in programs:
            average = max(1.0, job.procs * 2 ** chance.uniform(-1, 2))
            programs[key] = Downey(average, chance.choice(VARIATIONS))
        curve = curves[job.id] = programs[key]
        widths = tuple(sorted({int(job.procs * each) for each in TIMES if 1 <= job.procs * each <= processors}))
        more: dict[str, Any] = {RANKS: widths}
        if known:
            more[SPEEDUP] = curve.average, curve.variation
        payload = Program((str(job.procs), f"{job.walltime:g}"))
        app = f"{job.app}-{job.procs}-{job.walltime:g}"
        found.append(submission._replace(job=job.but(app=app, more=more, payload=payload)))
    return found, curves


def figures(outcome: Outcome) -> dict[str, float]:
    """Means of a schedule, in seconds."""
    columns = outcome.columns()
    wait, run = columns["wait"], columns["run"]
    return {"jobs": len(wait), "turnaround": float((wait + run).mean()), "wait": float(wait.mean()),
            "run": float(run.mean()), "longest wait": float(wait.max()),
            "99 % of waits": float(numpy.quantile(wait, 0.99)), "makespan": float(columns["end"].max())}


def compare(trace: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """A trace, rigid and moldable."""
    source = open_workload(trace, Selection(jobs=arguments.jobs, load=arguments.load))
    processors = processors_of(source, "take a trace whose header has MaxProcs")
    rigid = list(source)
    jobs, curves = moldable(rigid, processors, arguments.seed, arguments.known)
    found: dict[str, Any] = {"trace": Path(trace).name, "processors": processors}
    for name, workload, backfill in (("rigid", rigid, "easy"), ("moldable", jobs, Hidden(curves))):
        begun = time.perf_counter()
        outcome = simulate(workload, Machine.of(processors, 1, 1), Rules(
            backfill=backfill, policy="pack", estimates=arguments.estimates))
        found[name] = {**figures(outcome), "took": time.perf_counter() - begun}
        if name == "moldable":
            asked = {each.job.id: each.job.procs for each in jobs}
            found["narrower"] = float(numpy.mean([job.procs < asked[job.id] for job in outcome.jobs]))
            found["wider"] = float(numpy.mean([job.procs > asked[job.id] for job in outcome.jobs]))
    found["change"] = found["moldable"]["turnaround"] / found["rigid"]["turnaround"] - 1
    return found


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The comparison as a table of Markdown, times in hours."""
    heads = ("trace", "jobs", "turnaround rigid", "moldable", "change", "wait rigid", "moldable", "longest wait rigid",
             "moldable", "narrower", "wider")
    lines = [heads, ("---",) * len(heads)]
    for row in rows:
        one, two = row["rigid"], row["moldable"]
        hours = [f"{each[name] / 3600:.2f}" for name in ("turnaround", "wait", "longest wait") for each in (one, two)]
        lines.append((row["trace"], str(one["jobs"]), *hours[:2], f"{100 * row['change']:+.1f} %", *hours[2:],
                      f"{100 * row['narrower']:.0f} %", f"{100 * row['wider']:.0f} %"))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def picture(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Mean wait and run of each trace, rigid and moldable."""
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(rows), figsize=(3 * len(rows), 3), squeeze=False)
    for axis, row in zip(axes[0], rows):
        names = "rigid", "moldable"
        waits, runs = ([row[name][kind] / 3600 for name in names] for kind in ("wait", "run"))
        axis.bar(names, waits, color="0.75", label="wait")
        axis.bar(names, runs, bottom=waits, color="C0", label="run")
        axis.set_title(row["trace"].partition("-")[0], fontsize=9)
        axis.set_ylabel("hours (mean)")
    axes[0][0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


# ------------------------------------------------------------------------------------ brute force

CORES, QUEUED = 8, 8


def brute(number: int, seed: int) -> dict[str, Any]:
    """The choice against the best of all choices, as EASY carries them out: by how much it is worse."""
    found: dict[str, Any] = {}
    for objective in (TURNAROUND, MAKESPAN):
        chance, regrets = random.Random(seed), []
        for _ in range(number):
            jobs = []
            for job_id in range(QUEUED):
                widths = tuple(sorted(chance.sample((1, 2, 4, 8), 3)))
                curve = chance.uniform(2, 16), chance.choice(VARIATIONS)
                run = chance.uniform(20, 200)
                jobs.append(Submission(Job(job_id, f"p{job_id}", chance.choice(widths), run, 0.0,
                                           more={RANKS: widths, SPEEDUP: curve}), run))
            value = _value(simulate(jobs, Machine.of(CORES, 1, 1), Rules(
                backfill=f"moldable objective={objective}", policy="pack")), objective)
            regrets.append(value / _best(jobs, objective) - 1)
        found[objective] = {"mean": float(numpy.mean(regrets)), "worst": max(regrets)}
    return found


def _value(outcome: Outcome, objective: str) -> float:
    ends = [job.end for job in outcome.jobs]
    return max(ends) if objective == MAKESPAN else sum(ends)


def _best(jobs: Sequence[Submission], objective: str) -> float:
    """The best of all choices: by conservative backfilling in the order of the queue, of areas or of run times, or, of
    the 20 that are best so, as EASY carries them out."""
    options = []
    for each in jobs:
        curve = Downey(*each.job.more[SPEEDUP])
        options.append([(ranks, each.run * curve.time(ranks) / curve.time(each.job.procs))
                        for ranks in each.job.more[RANKS]])

    take = max if objective == MAKESPAN else sum

    def planned(choice: Sequence[tuple[int, float]]) -> float:
        orders = (choice, sorted(choice, key=lambda each: each[0] * each[1]), sorted(choice, key=lambda each: -each[1]))
        return min(take(backfilled(0.0, CORES, [], list(order))) for order in orders)

    best = sorted(itertools.product(*options), key=planned)[:20]
    return min(planned(best[0]), *(_value(simulate(
        [Submission(Job(each.job.id, each.job.app, ranks, run, 0.0), run) for each, (ranks, run) in zip(jobs, choice)],
        Machine.of(CORES, 1, 1), Rules(backfill="easy", policy="pack")), objective) for choice in best))


def main() -> int:
    """Print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("traces", metavar="TRACE", nargs="*")
    add("--jobs", metavar="N", type=int, help="the first N jobs of each trace")
    add("--load", metavar="F", type=float, default=1.0, help="divide the times between submissions by F")
    add("--seed", metavar="N", type=int, default=1)
    add("--estimates", metavar="NAME", default="requested", help="how long jobs are expected to take, also under EASY")
    add("--known", action="store_true", help="the model's curves are known")
    add("--brute", metavar="N", type=int, help="compare with all choices, on N machines")
    add("--out", metavar="DIR", type=Path, help="write moldable.json and moldable.png there")
    add("--quick", action="store_true", help="300 jobs, or 1 machine")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.jobs, arguments.brute = 300, arguments.brute and 1
    if arguments.brute:
        for objective, regret in brute(arguments.brute, arguments.seed).items():
            print(f"{objective}: {100 * regret['mean']:.1f} % worse than the best choice on average, "
                  f"{100 * regret['worst']:.1f} % at most")
    try:
        rows = []
        for trace in arguments.traces:
            rows.append(compare(trace, arguments))
            print(table(rows[-1:]) if len(rows) == 1 else table(rows[-1:]).splitlines()[-1], flush=True)
    except ERRORS as error:
        print(error, file=sys.stderr)
        return 2
    if rows and arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / "moldable.json").write_text(json.dumps(rows, indent=1))
        picture(rows, arguments.out / "moldable.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
