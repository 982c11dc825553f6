"""How well a site's queue is forecast, by the method of C. Karbach (Jülich report 4354, 2012, chapter 7).

    python studies/forecast/snapshots.py --lml FIRST.xml SECOND.xml ... LAST.xml
    python studies/forecast/snapshots.py --trace FILE [--spans 8] [--hours 4] [--interval 0]

The snapshots of a span are merged into one as of the first: what ran then runs; jobs that are seen
later come at their queue dates; jobs that were seen to end take as long as they did, in the place of
their limits. It is forecast by the code of `vrm forecast --lml`, and what starts in the span is
compared. An error is the real start minus the forecast one: negative when it was forecast too late.
Jobs that started in the span and are forecast to start behind it are dropped, and counted.

From a trace snapshots are made of spans (drawn with seed 1) of vrm's own run of it under FCFS with
EASY, every so many seconds, or (0) whenever something happens. Three times:

  true limits    the scheduler knows true run times, and so does the forecast: no error is allowed
  limits x 2     the same run; the forecast takes all jobs to run twice as long as they do
  requests       the scheduler knows requests; the forecast, as the method has it, true run times of
                 the jobs that end in the span

One version is better than another if mean error and sigma have both become smaller (`improved`).
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median, pstdev, quantiles
from typing import Any, Dict, Iterator, List, NamedTuple, Sequence, Tuple

from vrm.ext.forecast.site.forecast import forecast_site
from vrm.model import Cluster
from vrm.model.rules import Rules
from vrm.scheduling.compose import compose
from vrm.simulation.engine import Simulator
from vrm.simulation.inputs import ERRORS, open_workload, processors_of
from vrm.ext.forecast.site import lml
from vrm.ext.forecast.site.snapshot import SiteJob, SiteNode, Snapshot, SnapshotError
from vrm.workload.submission import Submission

LEAST = 1.0
"""Seconds that a job takes at the least."""


class Merged(NamedTuple):
    """A span: the snapshot as of its beginning, its length in seconds, and when jobs really started,
    in seconds from the beginning, by key."""

    snapshot: Snapshot
    length: float
    starts: Dict[str, float]


def merged(series: Sequence[Snapshot]) -> Merged:
    """The snapshots of a span, in order of time, as one. SnapshotError for none, or another order."""
    if not series:
        raise SnapshotError("there is no snapshot")
    first = series[0]
    jobs: Dict[str, SiteJob] = {}
    starts: Dict[str, float] = {}
    ends: Dict[str, float] = {}
    for before, now in zip(series, series[1:]):
        if now.time < before.time:
            raise SnapshotError("the snapshots are not in the order of their times")
    for snapshot in series:
        moment = snapshot.time - first.time
        there = set()
        for job in snapshot.jobs:
            there.add(job.key)
            jobs.setdefault(job.key, replace(job, submit=job.submit + moment) if snapshot is first else
                            replace(job, submit=job.submit + moment, start=None, places=()))
            ends.pop(job.key, None)
            if job.start is not None:
                starts[job.key] = job.start + moment
        for key in starts.keys() - there:
            ends.setdefault(key, moment)
    known = [replace(job, wall=max(LEAST, ends[key] - starts[key])) if key in ends else job
             for key, job in jobs.items()]
    ran = {job.key for job in first.jobs if job.start is not None}
    return Merged(replace(first, jobs=known), series[-1].time - first.time,
                  {key: start for key, start in starts.items() if key not in ran})


class Row(NamedTuple):
    """The errors of a span, or of several, in seconds; `length` of the spans, `jobs` that count, `dropped`
    ones. All but these are nan where no job counts."""

    length: float
    jobs: int
    mean: float
    median: float
    least: float
    most: float
    sigma: float
    lower: float
    upper: float
    dropped: int

    @classmethod
    def of(cls, length: float, errors: Sequence[float], dropped: int) -> Row:
        """That of some errors."""
        if not errors:
            return cls(length, 0, *[math.nan] * 7, dropped)
        quarters = quantiles(errors, n=4, method="inclusive") if len(errors) > 1 else [errors[0]] * 3
        return cls(length, len(errors), fmean(errors), median(errors), min(errors), max(errors),
                   pstdev(errors), quarters[0], quarters[2], dropped)

    def improved(self, before: Row) -> bool:
        """Whether it is better than that of an earlier version: mean and sigma are both smaller."""
        return abs(self.mean) < abs(before.mean) and self.sigma < before.sigma


def errors(span: Merged) -> Tuple[List[float], int]:
    """The errors of a span, and how many jobs are dropped."""
    found = forecast_site(span.snapshot)
    kept, dropped = [], 0
    for key, start in span.starts.items():
        if not 0 <= start <= span.length:
            continue
        if found[key].start > span.length:
            dropped += 1
        else:
            kept.append(start - found[key].start)
    return kept, dropped


# Snapshots of vrm's own runs.


class Nobody:
    """Is told what happens, and keeps nothing."""

    def ended(self, *_: Any) -> None:
        """A job ended."""

    refused = cancelled = moment = ended


def spans(jobs: Sequence[Submission], processors: int, number: int, length: float, interval: float
          ) -> Iterator[List[Snapshot]]:
    """The snapshots of so many spans (s) of a run of these jobs under FCFS with EASY."""
    draw = random.Random(1)
    last = jobs[-1].job.submit
    begins = sorted(draw.uniform(jobs[0].job.submit, last) for _ in range(number))
    cluster = Cluster.regular(processors, 1, 1)
    simulator = Simulator(compose(Rules(), cluster), cluster, Nobody())
    nodes = [SiteNode(node.name, 1) for node in cluster.nodes]
    series: List[Snapshot] = []
    begin, due = begins.pop(0), 0.0
    for now in simulator.moments(jobs):
        if series and now > series[0].time + length:
            yield series
            series = []
            begin = next((each for each in begins if each > now), math.inf)
        if now >= begin and (not series or now >= due) and (series or len(simulator.queue)):
            series.append(snapshot(simulator, nodes, now))
            due = now + interval
    if series:
        yield series


def snapshot(simulator: Simulator, nodes: List[SiteNode], now: float) -> Snapshot:
    """What a run is at this moment."""
    found = [SiteJob(f"{job.id:012}", job.walltime, job.procs, submit=job.submit - now, start=start - now,
                     places=tuple((node, None) for node in placement.nodes))
             for job, placement, start, *_ in simulator.cluster.running()]
    found += [SiteJob(f"{job.id:012}", job.walltime, job.procs, submit=job.submit - now)
              for job in simulator.queue.in_order(now)]
    return Snapshot(now, nodes, found)


def compared(jobs: Sequence[Submission], processors: int, number: int, length: float, interval: float
             ) -> Dict[str, List[Tuple[float, List[float], int]]]:
    """Length, errors and dropped jobs of each span, in each of the three ways."""
    known = [each._replace(job=each.job.but(walltime=run, expected=run), run=run) for each in jobs
             for run in [max(LEAST, each.run)]]
    found: Dict[str, List[Tuple[float, List[float], int]]] = {
        "true limits": [], "limits x 2": [], "requests": []}
    for name, made in (("true limits", known), ("requests", jobs)):
        for series in spans(made, processors, number, length, interval):
            span = merged(series)
            found[name].append((span.length, *errors(span)))
            if name == "true limits":
                longer = replace(span.snapshot, jobs=[replace(job, wall=2 * job.wall)
                                                      for job in span.snapshot.jobs])
                found["limits x 2"].append((span.length, *errors(span._replace(snapshot=longer))))
    return found


def table(rows: Sequence[Tuple[str, Row]]) -> Iterator[str]:
    """Rows with their names, in Markdown."""
    yield "| span | length, h | jobs | mean, s | median, s | min, s | max, s | sigma, s | quartiles, s | dropped |"
    yield "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
    for name, row in rows:
        yield (f"| {name} | {row.length / 3600:.2f} | {row.jobs} | {row.mean:.1f} | {row.median:.0f} | "
               f"{row.least:.0f} | {row.most:.0f} | {row.sigma:.1f} | {row.lower:.0f}, {row.upper:.0f} | "
               f"{row.dropped} |")


def main(arguments: Sequence[str]) -> int:
    """Print the table: 0, or 2 for a file that cannot be read."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--lml", nargs="+", metavar="FILE", help="the snapshots of one span, in order of time")
    which.add_argument("--trace", metavar="FILE", help="a trace (SWF, also .gz)")
    add("--spans", type=int, default=8, help="of a trace: how many (8)")
    add("--hours", type=float, default=4.0, help="of a trace: hours of each (4)")
    add("--interval", type=float, default=0.0, help="of a trace: seconds between snapshots (0: each event)")
    args = parser.parse_args(arguments)
    rows: List[Tuple[str, Row]] = []
    try:
        if args.lml:
            span = merged([lml.read(Path(name)).snapshot for name in args.lml])
            rows.append((Path(args.lml[0]).name, Row.of(span.length, *errors(span))))
        else:
            source = open_workload(args.trace)
            jobs = sorted(source, key=lambda each: (each.job.submit, each.job.id))
            processors = processors_of(source, "put that line in front")
            if not jobs:
                raise SnapshotError(f"{args.trace}: no jobs")
            found = compared([each for each in jobs if each.job.procs <= processors],
                             processors, args.spans, 3600 * args.hours, args.interval)
            for name, each in found.items():
                rows += [(f"{name} {number}", Row.of(*one)) for number, one in enumerate(each, 1)]
                rows.append((f"**{name}**", Row.of(sum(one[0] for one in each),
                                                   [error for one in each for error in one[1]],
                                                   sum(one[2] for one in each))))
    except (OSError, SnapshotError, *ERRORS) as error:
        print(f"snapshots.py: {error}", file=sys.stderr)
        return 2
    print("\n".join(table(rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
