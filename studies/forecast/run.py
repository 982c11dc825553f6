"""How good forecasts are: of every k-th job that has to wait in a trace, made when it is submitted.

    python studies/forecast/run.py --trace kth=KTH.swf.gz ctc=CTC.swf.gz --out DIR

The trace is run under FCFS with EASY, on as many one-core nodes as it has processors. When such a job
comes the run is frozen and forecast by the code of `vrm forecast`, which knows what a user would:
limits, jobs that have ended, and no later submission. The truth is what the full run then does.
Ranges are calibrated on the way, from the forecasts that have come true by then. Rows of the
tables:

  limits       all jobs take as long as they may
  NAME         each takes as long as that estimator expects; the limit, once it has run longer
  median       the median ratio of run time to request of the last jobs like it
  ensemble     the median of the draws: what `vrm forecast` shows
  true         the real run times of all jobs but later ones: what nobody can know

A trace without requests has run times times a uniform factor from 1 to 5 in their place (seed 1).
--reservations NAME: of that trace also how long before or after its reservation a job starts, under
EASY and EASY++ (Tsafrir, Etsion and Feitelson, 2007). What is in DIR is not run again; --show only
shows it. A trace takes from one minute to half an hour. One that is stopped leaves its forecasts in a file
*.part of DIR: they are shown, and the same command goes on from there.
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
import sys
import time
from pathlib import Path
from statistics import fmean, median
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Sequence, Tuple

from vrm.ext.forecast.calibration import Calibration
from vrm.ext.forecast.draws import History
from vrm.ext.forecast.forecast import Ensemble, forecast
from vrm.ext.forecast.frozen import freeze_simulation
from vrm.ext.forecast.replay import OVERDUE, replay
from vrm.ext.forecast.score import ScoredForecast, Made, Score, learn
from vrm.model import Cluster, Job
from vrm.model.rules import Rules
from vrm.ext.forecast.report.forecast_score import ComparedWait, draw
from vrm.run.expectations import make_expectations
from vrm.scheduling import Scheduler
from vrm.scheduling.compose import compose
from vrm.scheduling.estimators import Estimator, make_estimator
from vrm.api import Machine, simulate
from vrm.simulation.engine import Simulator
from vrm.simulation.inputs import ERRORS, open_workload, processors_of
from vrm.workload.submission import Submission

ESTIMATORS = ("last-two", "history", "accasim")
"""Estimators whose likely run is compared."""

FACTOR = 5.0
"""By which a request is longer than the run time at the most, where a trace has none."""

PLUS = {"EASY": ("queue", "requested", "request"), "EASY++": ("sjf", "last-two", "stepwise")}
"""Order of backfilling, estimator and correction of the two schedulers whose reservations are compared."""


class Found(NamedTuple):
    """What is known of one forecast: the ensemble's, and the starts (s) that other replays gave."""

    known: ScoredForecast
    others: Dict[str, float]


class Watch:
    """Is told of ends by the simulator, and teaches from them."""

    def __init__(self, pupils: Sequence[Any] = ()) -> None:
        self.starts: Dict[int, float] = {}
        self.pupils = pupils

    def ended(self, booking: Any, start: Any, end: float, status: str) -> None:
        """A job has ended."""
        job = booking.job
        self.starts[job.id] = booking.start
        for pupil in self.pupils:
            pupil(job, end - booking.start)

    def refused(self, *_: Any) -> None:
        """It does not fit on the machine."""

    cancelled = refused

    def moment(self, state: Any) -> None:
        """The state at a moment."""


def jobs_of(path: str) -> Tuple[List[Submission], int]:
    """The jobs of a trace in order, with requests, and the processors of its machine."""
    source = open_workload(path)
    jobs = sorted(source, key=lambda each: (each.job.submit, each.job.id))
    processors = processors_of(source, "put that line in front")
    if all(each.job.walltime == max(1.0, each.run) for each in jobs[:1000]):
        draw = random.Random(1)
        jobs = [each._replace(job=each.job.but(walltime=limit, expected=limit)) for each in jobs
                for limit in [max(1.0, each.run) * draw.uniform(1, FACTOR)]]
    return [each for each in jobs if each.job.procs <= processors], processors


def scheduler_on(cluster: Cluster, order: str = "queue") -> Scheduler:
    """FCFS with EASY."""
    return compose(Rules(policy="compact", backfill_order=order), cluster)


def chosen(jobs: Sequence[Submission], processors: int, number: int) -> Dict[int, float]:
    """Every k-th job that has to wait, about so many, by id in order of submission: when they start (s)."""
    outcome = simulate(jobs, Machine.of(processors), Rules(backfill="easy", policy="compact"))
    starts = {row.id: row.start for row in outcome.jobs}
    waiting = [each.job.id for each in jobs if starts[each.job.id] > each.job.submit]
    return {job_id: starts[job_id] for job_id in waiting[::max(1, len(waiting) // number)]}


class Replays:
    """A trace as it runs, and what is forecast in it."""

    def __init__(self, jobs: Sequence[Submission], processors: int, members: int) -> None:
        self.runs = {each.job.id: each.run for each in jobs}
        self.members = members
        self.past = History()
        self.estimators = {name: make_estimator(name) for name in ESTIMATORS}
        watch = Watch([self.past.add, *(each.learn for each in self.estimators.values())])
        cluster = Cluster.regular(processors, 1, 1)
        self.simulator = Simulator(scheduler_on(cluster), cluster, watch)
        self.calibration = Calibration()

    def forecasts(self, position: int, truth: Mapping[int, float]) -> List[Found]:
        """Those of these jobs, which wait now; `position` counts the forecasts before."""
        frozen = freeze_simulation(self.simulator, self.past, position)
        found = forecast(frozen, self.members, calibration=self.calibration)
        shown = {each.id: each for each in found.jobs}
        others = {name: replay(frozen, expecting(estimator)) for name, estimator in self.estimators.items()}
        others["true"] = replay(frozen, lambda job, ran: max(self.runs[job.id], ran))
        return [Found(ScoredForecast(Made.of(shown[job_id], found), start),
                      {"limits": shown[job_id].latest, **{name: each[job_id].start for name, each in others.items()},
                       "median": shown[job_id].likely}) for job_id, start in truth.items()]


def forecasts(jobs: Sequence[Submission], processors: int, number: int, members: int, part: Path) -> List[Found]:
    """The forecasts of one trace, in the order in which they were made. They are kept in `part` as soon as they are
    made, and what is there is not made again."""
    truth = chosen(jobs, processors, number)
    by_moment: Dict[float, Dict[int, float]] = {}
    for each in jobs:
        if each.job.id in truth:
            by_moment.setdefault(each.job.submit, {})[each.job.id] = truth[each.job.id]
    kept = {each.known.made.id: each for each in read_part(part)}
    replays = Replays(jobs, processors, members)
    made: List[Found] = []
    waiting: List[Tuple[float, Made]] = []
    begun = time.process_time()
    for now in replays.simulator.moments(jobs):
        wanted = by_moment.get(now)
        if wanted is None:
            continue
        while waiting and waiting[0][0] <= now:  # these have started since
            start, known = heapq.heappop(waiting)
            learn(replays.calibration, known, start)
        if not kept.keys() >= wanted.keys():
            new = replays.forecasts(len(made), wanted)
            kept.update((each.known.made.id, each) for each in new)
            with open(part, "a", encoding="utf-8") as file:
                file.write("".join("\n" + json.dumps(each) for each in record(new)))
        for job_id, start in wanted.items():
            made.append(kept[job_id])
            heapq.heappush(waiting, (start, kept[job_id].known.made))
            if len(made) % 50 == 0:
                print(f"  {len(made)} of {len(truth)}, {time.process_time() - begun:.0f} s", flush=True)
    return made


def expecting(estimator: Estimator) -> Any:
    """How long jobs take as an estimator expects; the limit, once they have run longer."""
    def seconds(job: Job, ran: float) -> float:
        expected = estimator.expected(job)
        return expected if expected > ran else max(job.walltime, ran + OVERDUE)
    return seconds


class Reservations(NamedTuple):
    """Of jobs that had a reservation when they were first in the queue: how many there are; the mean and
    the median of minutes between the first reservation and their start; the same of the last one,
    and of the ensemble's median at the moment of the first; the share that started later than it."""

    jobs: int
    first: Tuple[float, float]
    last: Tuple[float, float]
    forecast: Tuple[float, float]
    late: float


def reservations(jobs: Sequence[Submission], processors: int, how: Tuple[str, str, str], members: int
                 ) -> Reservations:
    """Those of a trace under EASY or EASY++."""
    order, estimates, correction = how
    cluster = Cluster.regular(processors, 1, 1)
    past = History()
    watch = Watch([past.add])
    expectations = make_expectations(Rules(estimates=estimates, correction=correction))
    simulator = Simulator(scheduler_on(cluster, order), cluster, watch, expectations=expectations)
    first: Dict[int, float] = {}
    last: Dict[int, float] = {}
    forecasts: Dict[int, float] = {}
    for now in simulator.moments(jobs):
        if len(simulator.queue):
            for job_id, start in simulator.scheduler.reservations(now, simulator.queue, cluster).items():
                last[job_id] = start
                if job_id not in first:
                    first[job_id] = start
                    frozen = freeze_simulation(simulator, past, len(first))
                    drawn = Ensemble(frozen, [simulator.queue.get(job_id)], members)
                    forecasts[job_id] = median(each[0] for each in drawn.starts)

    def apart(starts: Mapping[int, float]) -> Tuple[float, float]:
        minutes = [abs(watch.starts[job_id] - start) / 60 for job_id, start in starts.items()]
        return fmean(minutes), median(minutes)

    return Reservations(len(first), apart(first), apart(last), apart(forecasts),
                        fmean(watch.starts[job_id] > start for job_id, start in first.items()))


# What is shown.


def record(found: Sequence[Found]) -> List[Dict[str, Any]]:
    """Forecasts as JSON values."""
    return [{"made": json.loads(each.known.made.line()), "truth": each.known.truth, "others": each.others}
            for each in found]


def read(values: Sequence[Mapping[str, Any]]) -> List[Found]:
    """Those of such values."""
    found = []
    for each in values:
        made = Made.read(json.dumps(each["made"]))
        assert made is not None, "DIR has what this study did not write"
        found.append(Found(ScoredForecast(made, each["truth"]), each["others"]))
    return found


def read_part(path: Path) -> List[Found]:
    """The forecasts of a trace that was stopped; a line that was not written to its end is left out."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            found += read([json.loads(line)])
        except ValueError:
            continue
    return found


def rows(found: Sequence[Found]) -> Iterator[Tuple[str, Score]]:
    """The score of each replay."""
    known = [each.known for each in found]
    names = ("limits", *ESTIMATORS, "median", "ensemble", "true")
    for name in names:
        if name == "ensemble":
            yield name, Score.of(known)
        else:
            starts = {each.known.made.id: each.others[name] for each in found}
            yield name, Score.of(known, lambda made, starts=starts: starts[made.id])


def tables(results: Mapping[str, Sequence[Found]]) -> Iterator[str]:
    """What was found, in Markdown."""
    yield ("| trace (forecasts, mean wait) | replay with | mean error, s | median, s | mean error / mean wait | "
           "of the limits' | factor 2 | within 10 min | bias, s |")
    yield "|---|---|---:|---:|---:|---:|---:|---:|---:|"
    for name, found in results.items():
        limits = None
        for row, score in rows(found):
            limits = limits or score.mean
            label = f"{name} ({score.number}; {score.wait:,.0f} s)" if row == "limits" else ""
            yield (f"| {label} | {row} | {score.mean:,.0f} | {score.median:,.0f} | {score.relative:.3f} | "
                   f"{score.mean / limits:.2f} | {score.factor:.1%} | {score.close:.1%} | "
                   f"{score.bias:+,.0f} |")
    yield ""
    yield ("| trace | calibrated ranges | starts in P10-P90 | earlier | later | in P10-P90 as drawn | median width, s (as drawn) | "
           "no later than latest |")
    yield "|---|---:|---:|---:|---:|---:|---:|---:|"
    for name, found in results.items():
        score = Score.of([each.known for each in found])
        ranged = [each.known for each in found if each.known.made.calibrated]
        if not ranged:
            yield f"| {name} | 0 | | | | | | {score.bound:.1%} |"
            continue
        drawn = fmean(each.made.drawn[0] <= each.truth <= each.made.drawn[1] for each in ranged)
        width = median(each.made.p90 - each.made.p10 for each in ranged)
        before = median(each.made.drawn[1] - each.made.drawn[0] for each in ranged)
        yield (f"| {name} | {score.ranged} | {score.coverage:.1%} | {score.early:.1%} | {score.late:.1%} | "
               f"{drawn:.1%} | {width:,.0f} ({before:,.0f}) | {score.bound:.1%} |")


def compared(known: ScoredForecast) -> ComparedWait:
    """A forecast, as pictures show it."""
    made = known.made
    inside = made.p10 <= known.truth <= made.p90 if made.calibrated else None
    return ComparedWait(made.start - made.time, known.wait, inside)


def reserved_table(found: Mapping[str, Mapping[str, Sequence[Any]]]) -> Iterator[str]:
    """That of reservations."""
    yield ("| trace | scheduler | jobs with a reservation | "
           "minutes from the first one to the start, mean (median) | from the last one | from the forecast made with the first | started after the first |")
    yield "|---|---|---:|---:|---:|---:|---:|"
    for name, schedulers in found.items():
        for scheduler, values in schedulers.items():
            one = Reservations(*values)
            pairs = " | ".join(f"{pair[0]:.1f} ({pair[1]:.1f})" for pair in one[1:4])
            yield f"| {name} | {scheduler} | {one.jobs} | {pairs} | {one.late:.1%} |"


def main(arguments: Sequence[str]) -> int:
    """Run what is missing, then show what there is: 0, or 2 for a file that cannot be read."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--trace", nargs="+", default=[], metavar="NAME=FILE", help="traces, or lublin:PROCESSORS:JOBS:SEED")
    add("--reservations", nargs="+", default=[], metavar="NAME",
        help="traces whose reservations are looked at")
    add("--out", required=True, type=Path, metavar="DIR", help="where everything goes")
    add("--forecasts", type=int, default=900, help="about so many a trace (900)")
    add("--members", type=int, default=50, help="draws at the most (50)")
    add("--show", action="store_true", help="only show what is in DIR")
    args = parser.parse_args(arguments)
    args.out.mkdir(parents=True, exist_ok=True)
    stopped = False
    try:
        for each in args.trace if not args.show else ():
            run_trace(args, *each.partition("=")[::2])
    except KeyboardInterrupt:
        stopped = True
    except (OSError, *ERRORS) as error:
        print(f"run.py: {error}", file=sys.stderr)
        return 2
    show(args.out)
    if stopped:
        print("stopped; the same command goes on from here", file=sys.stderr)
    return 130 if stopped else 0


def run_trace(args: Any, name: str, path: str) -> None:
    """Run what is missing of a trace."""
    kept, reserved = args.out / f"{name}.json", args.out / f"{name}.reservations.json"
    part = args.out / f"{name}.{args.forecasts}-{args.members}.part"
    looked_at = name in args.reservations and not reserved.exists()
    if kept.exists() and not looked_at:
        return
    jobs, processors = jobs_of(path)
    print(f"{name}: {len(jobs)} jobs on {processors} processors", flush=True)
    if looked_at:
        reserved.write_text(json.dumps({scheduler: reservations(jobs, processors, how, args.members)
                                        for scheduler, how in PLUS.items()}) + "\n", encoding="utf-8")
    if not kept.exists():
        found = forecasts(jobs, processors, args.forecasts, args.members, part)
        kept.write_text(json.dumps(record(found)) + "\n", encoding="utf-8")
        part.unlink(missing_ok=True)


def show(out: Path) -> None:
    """Print the tables of what there is, and write them and the pictures."""
    lines: List[str] = []
    results: Dict[str, List[Found]] = {}
    reserved_of = {}
    for kept in sorted(out.glob("*.json")):
        values = json.loads(kept.read_text(encoding="utf-8"))
        if kept.name.endswith(".reservations.json"):
            reserved_of[kept.name.split(".")[0]] = values
        else:
            results[kept.stem] = read(values)
    for part in sorted(out.glob("*.part")):
        results[f"{part.name.split('.')[0]} (stopped)"] = read_part(part)
    results = {name: found for name, found in results.items() if found}
    if results:
        lines += tables(results)
        for name, found in results.items():
            draw([compared(each.known) for each in found], out / f"{name}.svg",
                 f"{name}: {len(found)} forecasts")
    if reserved_of:
        lines += ["", *reserved_table(reserved_of)]
    print("\n".join(lines))
    (out / "tables.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
