"""Expected run times against schedules that others have published, and what they are worth.

    python studies/predict/run.py --easy FILE... [--easyplusplus FILE...] [--traces FILE...]
                                  [--out DIR]

The files are traces in the Standard Workload Format whose header says how many processors there are
(MaxProcs). Those of --easy and --easyplusplus have the waits (field 3) of a published schedule of EASY
with the requested times, and of EASY++ (the mean of the last two, corrected step by step, shortest
jobs backfilled first). How many starts are the same is counted twice: in vrm's own order of what
happens at one instant, and in that of the published schedules (studies/predict/ties.py).

The traces of --easy, and those of --traces, whose waits do not count, are then run under each of
SETTINGS; the last one is the setting that docs/estimates.md recommends. About 8 minutes for
100,000 jobs.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Sequence

sys.path.insert(0, str(Path(__file__).parent))  # for `ties`, from wherever it is started

from ties import starts  # noqa: E402

from vrm.model.job import Job  # noqa: E402
from vrm.results.metrics import THRESHOLD  # noqa: E402
from vrm.scheduling.estimators import Estimator, make_estimator  # noqa: E402
from vrm.simulation import simulate  # noqa: E402
from vrm.simulation.inputs import ERRORS, open_workload  # noqa: E402
from vrm.workload.submission import Submission  # noqa: E402

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

PUBLISHED: Mapping[str, Dict[str, str]] = {"easy": {}, "easyplusplus": {
    "order": "sjf", "correction": "stepwise"}}
"""How the published schedules were made, as arguments of `starts`."""


class Noting(Estimator):
    """Notes what an estimator expects of each job first."""

    def __init__(self, estimator: Estimator) -> None:
        self.name = estimator.name
        self.learns = type(estimator) is not Estimator and estimator.learns
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


def under(trace: Path, setting: Mapping[str, Any]) -> Result:
    """Run a trace under a setting."""
    how = dict(setting)
    noting = None
    if how.get("estimates") == "actual":
        pass  # the simulator itself tells it
    else:
        noting = how["estimates"] = Noting(make_estimator(how.get("estimates", "requested")))
    outcome = simulate(trace, **how)
    error = 0.0
    if noting is not None:
        errors = [abs(noting.first[row.id] - (row.end - row.start)) for row in outcome.jobs]
        error = sum(errors) / len(errors)
    summary = outcome.summary
    return Result(summary["bounded_slowdown"]["mean"], summary["wait"]["maximum"],
                  summary["wait"]["mean"], error)


def waits(trace: Path) -> Dict[int, float]:
    """The waits that a trace tells of, by the ids of the jobs, in seconds."""
    import gzip
    opened = gzip.open if trace.name.endswith(".gz") else open
    with opened(trace, "rt", encoding="ascii", errors="replace") as file:
        rows = (line.split() for line in file if line.strip() and not line.startswith(";"))
        return {int(row[0]): float(row[2]) for row in rows}


def slowdown(jobs: Sequence[Submission], found: Mapping[int, float]) -> float:
    """The mean bounded slowdown of a schedule."""
    return sum(max(1.0, (found[job.id] - job.submit + run) / max(run, THRESHOLD))
               for job, run in ((each.job, each.run) for each in jobs)) / len(jobs)


def compared(trace: Path, kind: str) -> Dict[str, Any]:
    """A published schedule against vrm in its own order of ties, and in the published one."""
    source = open_workload(trace)
    jobs = sorted(source, key=lambda each: (each.job.submit, each.job.id))
    assert source.processors is not None
    before = waits(trace)
    told = {each.job.id: each.job.submit + before[each.job.id] for each in jobs}
    ours = {row.id: row.start for row in simulate(trace, **SETTINGS[
        "EASY" if kind == "easy" else "EASY++"]).jobs}
    theirs = starts(jobs, source.processors, **PUBLISHED[kind])
    return {"trace": trace.name, "schedule": kind, "jobs": len(jobs),
            "published": slowdown(jobs, told),
            "own order": slowdown(jobs, ours), "same": sum(
                ours[job_id] == start for job_id, start in told.items()),
            "published order": slowdown(jobs, theirs), "same then": sum(
                theirs[job_id] == start for job_id, start in told.items())}


def tables(comparisons: Sequence[Dict[str, Any]], results: Mapping[str, Mapping[str, Result]]
           ) -> Iterator[str]:
    """What was found, as tables in Markdown."""
    if comparisons:
        yield ("| published schedule | jobs | its slowdown | vrm, own order of ties | same starts | "
               "vrm, its order of ties | same starts |")
        yield "|---|---|---|---|---|---|---|"
    for each in comparisons:
        yield (f"| {each['trace']} | {each['jobs']} | {each['published']:.2f} | "
               f"{each['own order']:.2f} | {each['same']} | {each['published order']:.2f} | "
               f"{each['same then']} |")
    for name, found in results.items():
        yield ""
        yield (f"| {name} | mean bounded slowdown | longest wait, h | of EASY's | mean wait, h | "
               "mean error of the first estimate, s |")
        yield "|---|---|---|---|---|---|"
        for setting, result in found.items():
            yield (f"| {setting} | {result.slowdown:.2f} | {result.longest / 3600:.1f} | "
                   f"{result.longest / found['EASY'].longest:.2f} | {result.mean / 3600:.2f} | "
                   f"{result.error:.0f} |")


def main(arguments: Sequence[str]) -> int:
    """Run the study: 0, or 2 for a file that cannot be read."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    for kind, text in (("easy", "published schedules of EASY"),
                       ("easyplusplus", "published schedules of EASY++"),
                       ("traces", "further traces, to run under each setting")):
        parser.add_argument(f"--{kind}", nargs="+", type=Path, default=[], metavar="FILE", help=text)
    parser.add_argument("--out", type=Path, metavar="DIR", help="write results.json there")
    args = parser.parse_args(arguments)
    if not (args.easy or args.easyplusplus or args.traces):
        parser.error("name at least one file: --easy FILE, --easyplusplus FILE or --traces FILE")
    try:
        comparisons = [compared(trace, kind) for kind in PUBLISHED
                       for trace in getattr(args, kind)]
        results: Dict[str, Dict[str, Result]] = {}
        for trace in [*args.easy, *args.traces]:
            results[trace.name] = {name: under(trace, setting)
                                   for name, setting in SETTINGS.items()}
    except (OSError, *ERRORS) as error:
        print(f"run.py: {error}", file=sys.stderr)
        return 2
    lines: List[str] = list(tables(comparisons, results))
    print("\n".join(lines))
    if args.out is not None:
        args.out.mkdir(parents=True, exist_ok=True)
        data = {"published": comparisons, "settings": {
            trace: {name: vars(result) for name, result in found.items()}
            for trace, found in results.items()}}
        (args.out / "results.json").write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
