"""Expected run times against schedules that others have published, and what they are worth.

    python studies/predict/run.py --easy FILE... [--easyplusplus FILE...] [--traces FILE...]
                                  [--settings NAME...] [--draws N] [--requests FACTOR] [--out DIR]

The files are traces in the Standard Workload Format whose header says how many processors there are
(MaxProcs). Those of --easy and --easyplusplus have the waits (field 3) of a published schedule of EASY
with the requested times, and of EASY++ (the mean of the last two, corrected step by step, shortest
jobs backfilled first). How many starts are the same is counted twice: in vrm's own order of what
happens at one instant, and in that of the published schedules (`vrm simulate --events published`).

The traces of --easy, and those of --traces, whose waits do not count, are then run under each of
SETTINGS. Figures of such traces are chaotic: --draws N runs each setting N times more, with every
submission moved by at most 5 seconds, and gives mean and standard deviation. With --requests 10 users
ask for ten times as long as they did. About 8 minutes for
100,000 jobs without draws.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Sequence

from vrm.model.job import Job
from vrm.results.metrics import THRESHOLD
from vrm.scheduling.estimators import Estimator, make_estimator
from vrm.api import Machine, Rules, simulate
from vrm.simulation.inputs import ERRORS, open_workload, processors_of
from vrm.simulation.results import ResultRow
from vrm.workload.submission import Submission

SJBF = {"backfill": "easy", "backfill_order": "sjf"}
SETTINGS: Mapping[str, Dict[str, Any]] = {
    "EASY": {"backfill": "easy"},
    "SJBF": SJBF,
    "EASY++": {**SJBF, "estimates": "last-two", "correction": "stepwise"},
    "last two, to the request": {**SJBF, "estimates": "last-two"},
    "AccaSim's rules": {**SJBF, "estimates": "accasim"},
    "history": {**SJBF, "estimates": "history"},
    "actual": {**SJBF, "estimates": "actual"},
    "history, guarded": {**SJBF, "estimates": "history", "starvation": 25.0},
}
"""What is compared: each by the arguments of `simulate`."""

MOVED = 5
"""Seconds by which submissions are moved to see the scatter."""

PUBLISHED: Mapping[str, str] = {"easy": "EASY", "easyplusplus": "EASY++"}
"""Under which of SETTINGS the published schedules were made."""


class Noting(Estimator):
    """Notes what an estimator expects of each job first."""

    def __init__(self, estimator: Estimator) -> None:
        self.name = estimator.name
        self.estimator = estimator
        self.first: Dict[int, float] = {}

    def expected(self, job: Job) -> float:
        """What it expects."""
        seconds = self.estimator.expected(job)
        self.first.setdefault(job.id, seconds)
        return seconds

    def learn(self, job: Job, run: float) -> None:
        """Have it learn."""
        self.estimator.learn(job, run)


@dataclass(frozen=True)
class Result:
    """A trace under a setting: the mean bounded slowdown, the longest and the mean wait in seconds,
    and the mean absolute error of what was expected at the submission, in seconds."""

    slowdown: float
    longest: float
    mean: float
    error: float


def under(workload: Sequence[Submission], nodes: int, setting: Mapping[str, Any]) -> Result:
    """Run a workload under a setting."""
    how = dict(setting)
    noting = None
    if how.get("estimates") != "actual":  # of that the simulator itself knows all
        noting = how["estimates"] = Noting(make_estimator(how.get("estimates", "requested")))
    outcome = simulate(workload, Machine.of(nodes), Rules(policy="compact", **how))
    error = 0.0
    if noting is not None:
        errors = [abs(noting.first[row.id] - (row.end - row.start)) for row in outcome.jobs]
        error = sum(errors) / len(errors)
    summary = outcome.summary
    return Result(summary["bounded_slowdown"]["mean"], summary["wait"]["maximum"],
                  summary["wait"]["mean"], error)


def moved(jobs: Sequence[Submission], seed: int) -> List[Submission]:
    """The jobs with each submission moved by at most MOVED seconds."""
    draw = random.Random(seed)
    found = [each._replace(job=each.job.but(submit=max(0.0, each.job.submit + draw.randint(-MOVED, MOVED))))
             for each in jobs]
    return sorted(found, key=lambda each: (each.job.submit, each.job.id))


def longer(jobs: Iterable[Submission], factor: float) -> List[Submission]:
    """The jobs with so many times as long requests."""
    return [each._replace(job=each.job.but(walltime=factor * each.job.walltime, expected=factor * each.job.walltime))
            for each in jobs]


def results_of(trace: Path, names: Iterable[str], draws: int, factor: float = 1.0) -> Dict[str, List[Result]]:
    """A trace under each setting: as logged, and with moved submissions; requests are so many times as long."""
    source = open_workload(trace)
    processors = processors_of(source, "put that line in front")
    jobs = longer(source, factor)
    found: Dict[str, List[Result]] = {}
    for name in names:
        found[name] = [under(jobs, processors, SETTINGS[name])]
        for seed in range(draws):
            found[name].append(under(moved(jobs, seed), processors, SETTINGS[name]))
        print(f"{trace.name}: {name} done", file=sys.stderr)
    return found


def waits(trace: Path) -> Dict[int, float]:
    """The waits that a trace tells of, by the ids of the jobs, in seconds."""
    import gzip
    opened = gzip.open if trace.name.endswith(".gz") else open
    with opened(trace, "rt", encoding="ascii", errors="replace") as file:
        rows = (line.split() for line in file if line.strip() and not line.startswith(";"))
        return {int(row[0]): float(row[2]) for row in rows}


def slowdown(jobs: Sequence[ResultRow], starts: Mapping[int, float]) -> float:
    """The mean bounded slowdown of a schedule of these jobs."""
    return sum(max(1.0, (starts[job.id] - job.submit + run) / max(run, THRESHOLD))
               for job, run in ((job, job.end - job.start) for job in jobs)) / len(jobs)


def compared(trace: Path, kind: str) -> Dict[str, Any]:
    """A published schedule against vrm in its own order of events, and in the published one."""
    processors_of(open_workload(trace), "put that line in front")
    before = waits(trace)
    setting = SETTINGS[PUBLISHED[kind]]
    jobs = simulate(trace, rules=Rules(policy="compact", **setting)).jobs
    told = {job.id: job.submit + before[job.id] for job in jobs}
    found = {"trace": trace.name, "schedule": kind, "jobs": len(jobs), "published": slowdown(jobs, told)}
    rules = Rules(policy="compact", events="published", **setting)
    for name, same, rows in (("own order", "same", jobs), (
            "published order", "same then", simulate(trace, rules=rules).jobs)):
        starts = {job.id: job.start for job in rows}
        found[name] = slowdown(jobs, starts)
        found[same] = sum(starts[job_id] == start for job_id, start in told.items())
    return found


def tables(comparisons: Sequence[Dict[str, Any]], results: Mapping[str, Mapping[str, Sequence[Result]]]
           ) -> Iterator[str]:
    """What was found, as tables in Markdown."""
    if comparisons:
        yield ("| published schedule | jobs | its slowdown | vrm, own order of events | same starts | "
               "vrm, its order of events | same starts |")
        yield "|---|---|---|---|---|---|---|"
    for each in comparisons:
        yield (f"| {each['trace']} | {each['jobs']} | {each['published']:.2f} | "
               f"{each['own order']:.2f} | {each['same']} | {each['published order']:.2f} | "
               f"{each['same then']} |")
    for name, found in results.items():
        yield ""
        yield (f"| {name} | mean bounded slowdown | submissions moved | longest wait, h | of EASY's | "
               "submissions moved | mean wait, h | mean error of the first estimate, s |")
        yield "|---|---|---|---|---|---|---|---|"
        easy = found["EASY"]
        for setting, (logged, *drawn) in found.items():
            ratios = [each.longest / base.longest for each, base in zip(drawn, easy[1:])]
            yield (f"| {setting} | {logged.slowdown:.2f} | {_spread([each.slowdown for each in drawn], 1)} | "
                   f"{logged.longest / 3600:.1f} | {logged.longest / easy[0].longest:.2f} | {_spread(ratios, 2)} | "
                   f"{logged.mean / 3600:.2f} | {logged.error:.0f} |")


def _spread(values: Sequence[float], digits: int) -> str:
    """Mean and standard deviation of some values."""
    if len(values) < 2:
        return "-"
    return f"{statistics.mean(values):.{digits}f} ± {statistics.stdev(values):.{digits}f}"


def main(arguments: Sequence[str]) -> int:
    """Run the study: 0, or 2 for a file that cannot be read."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    for kind, text in (("easy", "published schedules of EASY"),
                       ("easyplusplus", "published schedules of EASY++"),
                       ("traces", "further traces, to run under each setting")):
        parser.add_argument(f"--{kind}", nargs="+", type=Path, default=[], metavar="FILE", help=text)
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS), metavar="NAME",
                        help="run these settings, and EASY (default: all)")
    parser.add_argument("--draws", type=int, default=0, metavar="N",
                        help=f"also run each N times with every submission moved by at most {MOVED} s")
    parser.add_argument("--requests", type=float, default=1.0, metavar="FACTOR",
                        help="make requests so many times as long under SETTINGS")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write results.json there")
    args = parser.parse_args(arguments)
    if not (args.easy or args.easyplusplus or args.traces):
        parser.error("name at least one file: --easy FILE, --easyplusplus FILE or --traces FILE")
    try:
        comparisons = [compared(trace, kind) for kind in PUBLISHED
                       for trace in getattr(args, kind)]
        results = {trace.name: results_of(trace, dict.fromkeys(["EASY", *args.settings]), args.draws,
                                          args.requests)
                   for trace in [*args.easy, *args.traces]}
    except (OSError, *ERRORS) as error:
        print(f"run.py: {error}", file=sys.stderr)
        return 2
    lines: List[str] = list(tables(comparisons, results))
    print("\n".join(lines))
    if args.out is not None:
        args.out.mkdir(parents=True, exist_ok=True)
        data = {"published": comparisons, "settings": {
            trace: {name: [vars(result) for result in each] for name, each in found.items()}
            for trace, found in results.items()}}
        (args.out / "results.json").write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
