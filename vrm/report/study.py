"""Runs read together: scenarios, queues and repetitions, and what is computed from them.

A run is a directory with a jobs.csv: of an experiment, of a live manager, or the `--out` of a
simulation. The three figures of the tables are those of a run's closing line: averages over the
completed jobs of waiting, of running (the application's own time where it gave one), and of
turnaround, their sum.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import (Any, Callable, Dict, Iterable, Iterator, List, Optional, Protocol, Sequence,
                    Tuple, cast)

from vrm.model.job import JobState
from vrm.report.compare import CompareError, circumstances
from vrm.report.job_table import JobTable
from vrm.results.jobs import JobFileError, JobRow
from vrm.results.metrics import THRESHOLD, application_time, running
from vrm.results.names import policy_name, time_text
from vrm.results.statistics import Interval, interval
from vrm.results.summary import Columns

Choices = Tuple[Optional[str], Optional[str], Optional[str]]
"""Algorithm, backfilling and policy; None where they are not known."""

POLICY = "Allocation.Policy"
ALGORITHM, BACKFILLING = "Scheduling.Algorithm", "Scheduling.Backfilling"
BASELINE = "compact"
APART = ("compact", "spare")  # placements under which no two jobs share a node
BESIDE = 0.5  # share of its running time that a job must have had a partner to count as beside it

_NAMELESS = re.compile(r"app\d*")
MEASURED = 0.2  # seconds from which on times make a speed-up: programs tell theirs in hundredths


class StudyError(Exception):
    """Directories that cannot be reported on; the text names the place and the mend."""


class RanJob(Protocol):
    """What is read of a job that ran; `JobRow` is one whose times are not None."""

    @property
    def id(self) -> int: ...
    @property
    def app(self) -> str: ...
    @property
    def procs(self) -> int: ...
    @property
    def processors(self) -> int: ...
    @property
    def submit(self) -> float: ...
    @property
    def start(self) -> float: ...
    @property
    def end(self) -> float: ...
    @property
    def status(self) -> str: ...
    @property
    def app_time(self) -> Optional[float]: ...
    @property
    def nodes(self) -> str: ...
    @property
    def cores(self) -> str: ...
    @property
    def devices(self) -> str: ...
    @property
    def exit_code(self) -> Optional[int]: ...


@dataclass(frozen=True)
class Run:
    """A run: its jobs, and what is known of it (`record` is its run.json, if it has one)."""

    directory: Path
    scenario: str
    queue: str
    repetition: int
    table: JobTable
    choices: Choices
    processors: Optional[int]
    record: Dict[str, Any] = field(default_factory=dict)
    threshold: float = THRESHOLD  # of the bounded slowdown, in seconds

    @property
    def rows(self) -> Tuple[JobRow, ...]:
        """The jobs, in the order of the list; `table` has them as columns, which is faster."""
        return self.table.rows

    @property
    def jobs(self) -> List[RanJob]:
        """The jobs that ran, in the order of their starts."""
        return cast(List[RanJob], self.table.jobs)

    @cached_property
    def completed(self) -> List[RanJob]:
        """The jobs that completed."""
        return [row for row in self.jobs if row.status == JobState.COMPLETED]

    @property
    def ran(self) -> int:
        """How many jobs ran."""
        return len(self.table.ran.submit)

    @property
    def done(self) -> int:
        """How many jobs completed."""
        return int(self.table.ran.completed.sum())

    @property
    def span(self) -> Tuple[float, float]:
        """First submission and last end of the jobs that ran, in seconds."""
        return self.table.ran.whole

    @cached_property
    def figures(self) -> Dict[str, Optional[float]]:
        """The run's value of each of FIGURES; None where there is none."""
        jobs, done = self.table.ran, self.table.ran.completed
        waits = _mean(jobs.wait[done].tolist())
        runs = _mean(self.table.app_time[done].tolist())
        used = math.fsum((jobs.cores * (jobs.end - jobs.start)).tolist())
        first, last = self.span
        share = used / (self.processors * (last - first)) if self.processors and last > first \
            else 0.0
        return {
            "waiting": waits, "running": runs,
            "turnaround": None if waits is None or runs is None else waits + runs,
            "slowdown": _mean(jobs.bounded_slowdown(self.threshold).tolist()),
            "makespan": last - first if self.ran else None,
            "utilisation": 100 * share if self.processors and self.ran else None}

    @cached_property
    def _overlaps(self) -> List[Tuple[RanJob, RanJob]]:
        """The pairs of jobs that shared a node for some time, each once."""
        if self.choices[2] in APART:
            return []
        return list(_overlaps(self.jobs))

    @cached_property
    def companions(self) -> Dict[int, Dict[str, float]]:
        """Per job, beside which programs it was on a node, and for which share (0 to 1) of its
        time. A job without an entry had its nodes for itself."""
        found: Dict[int, Dict[str, float]] = {}
        for pair in self._overlaps:
            both = min(row.end for row in pair) - max(row.start for row in pair)
            for row, other in (pair, pair[::-1]):
                shares = found.setdefault(row.id, {})
                shares[other.app] = shares.get(other.app, 0.0) + both / running(row)
        return found

    @cached_property
    def shared(self) -> Dict[int, List[Tuple[float, float]]]:
        """Per job, the stretches of time in which another one was on one of its nodes."""
        stretches: Dict[int, List[Tuple[float, float]]] = {}
        for pair in self._overlaps:
            both = max(row.start for row in pair), min(row.end for row in pair)
            for row in pair:
                stretches.setdefault(row.id, []).append(both)
        return {job: _merged(sorted(found)) for job, found in stretches.items()}


@dataclass(frozen=True)
class Figure:
    """What is averaged: its name in a table, its unit, and whether less is better."""

    title: str
    unit: str
    less: bool = True

    @property
    def head(self) -> str:
        """Title and unit."""
        return f"{self.title} [{self.unit}]" if self.unit else self.title


FIGURES = {"waiting": Figure("waiting", "s"), "running": Figure("running", "s"),
           "turnaround": Figure("turnaround", "s"), "makespan": Figure("makespan", "s"),
           "utilisation": Figure("utilisation", "%", False),
           "slowdown": Figure("bounded slowdown", "")}
MAIN = ("waiting", "running", "turnaround")


def _mean(values: Iterable[float]) -> Optional[float]:
    numbers = list(values)
    return math.fsum(numbers) / len(numbers) if numbers else None


# ------------------------------------------------------------------------------------ scenarios


@dataclass(frozen=True)
class Scenario:
    """A scenario as it is shown: `group` says what it shares with others (FCFS + EASY), `series`
    what makes the difference within the group (compact, strip; empty where there is but one)."""

    name: str
    group: str
    series: str
    choices: Choices

    @property
    def label(self) -> str:
        """Series and group."""
        return " ".join(filter(None, [self.series, self.group]))


@dataclass(frozen=True)
class Study:
    """Runs and their scenarios, in the order in which they are shown."""

    name: str
    runs: Tuple[Run, ...]
    scenarios: Tuple[Scenario, ...]
    missing: int = 0  # runs that were planned and are not complete

    @cached_property
    def queues(self) -> List[str]:
        """The names of the queues."""
        return list(dict.fromkeys(run.queue for run in self.runs))

    @cached_property
    def averaged(self) -> List[Optional[str]]:
        """Over what figures are averaged: all queues together (None) if there is one, or several
        on machines of one size; else each queue by itself."""
        if len({run.processors for run in self.runs}) > 1 and len(self.queues) > 1:
            return list(self.queues)
        return [None]

    @cached_property
    def groups(self) -> List[str]:
        """The groups of scenarios."""
        return list(dict.fromkeys(one.group for one in self.scenarios))

    @cached_property
    def series(self) -> List[str]:
        """The series; compact first, for it is what the others are measured against."""
        found = list(dict.fromkeys(one.series for one in self.scenarios))
        return sorted(found, key=lambda name: name != BASELINE)

    @cached_property
    def kinds(self) -> List[str]:
        """The applications without their classes, sorted."""
        return sorted(frozenset().union(*(run.table.kinds for run in self.runs)))

    @cached_property
    def repetitions(self) -> int:
        """The largest number of repetitions of a scenario on a queue."""
        return max(Counter((run.scenario, run.queue) for run in self.runs).values())

    def scenario(self, group: str, series: str) -> Optional[Scenario]:
        """The scenario at that place, if there is one."""
        return next((one for one in self.scenarios
                     if (one.group, one.series) == (group, series)), None)

    def of(self, scenario: str, queue: Optional[str] = None) -> List[Run]:
        """The runs of a scenario, on a queue or on all, by repetition."""
        return sorted((run for run in self.runs if run.scenario == scenario
                       and queue in (None, run.queue)), key=lambda run: run.repetition)

    def values(self, scenario: str, figure: str, queue: Optional[str] = None
               ) -> Dict[int, float]:
        """A figure by repetition: on one queue, or averaged over all queues.

        Only repetitions on every queue can be averaged; where the queues have less than two in
        common, their means are averaged into a single value.
        """
        found: List[Dict[int, float]] = []
        for name in self.queues if queue is None else [queue]:
            values = ((run.repetition, run.figures[figure]) for run in self.of(scenario, name))
            found.append({number: value for number, value in values if value is not None})
        if not all(found):
            return {}
        whole = set.intersection(*map(set, found))
        if len(whole) < 2 and max(map(len, found)) > 1:
            return {1: math.fsum(_mean(one.values()) or 0.0 for one in found) / len(found)}
        return {number: math.fsum(one[number] for one in found) / len(found)
                for number in sorted(whole)}

    def mean(self, scenario: str, figure: str, queue: Optional[str] = None) -> Optional[Interval]:
        """A figure over the repetitions; None where there is no value."""
        values = list(self.values(scenario, figure, queue).values())
        return interval(values) if values else None

    def change(self, group: str, series: str, figure: str, queue: Optional[str] = None
               ) -> Optional[Interval]:
        """The change of a figure from the first series to another, in percent of the first.

        The interval is that of the differences within repetitions, which share the state of the
        machine, or the drawn queue.
        """
        one, other = self.scenario(group, self.series[0]), self.scenario(group, series)
        if one is None or other is None:
            return None
        before = self.values(one.name, figure, queue)
        after = self.values(other.name, figure, queue)
        common = sorted(set(before) & set(after))
        start = _mean(before[number] for number in common)
        if not start:
            return None
        found = interval([after[number] - before[number] for number in common])
        return Interval(100 * found.mean / start,
                        None if found.half is None else 100 * found.half / start, found.count)


# -------------------------------------------------------------------------------------- reading


def read_study(directories: Sequence[str], threshold: float = THRESHOLD,
               progress: Callable[[str], None] = lambda text: None) -> Study:
    """The runs below the directories; each is a run, or holds runs. `threshold` (s) is that of
    the bounded slowdown; `progress` is told which run is read. Raises StudyError."""
    found: Dict[Path, None] = {}
    names, planned = [], 0
    orders: Dict[str, int] = {}
    for text in dict.fromkeys(directories):
        directory = Path(text)
        if not directory.is_dir():
            raise StudyError(f"{text} is no directory; name that of a run, or of an experiment")
        below = [directory] if (directory / "jobs.csv").exists() else sorted(
            path.parent for path in [*directory.glob("*/jobs.csv"), *directory.glob("*/*/jobs.csv")]
            if "earlier" not in path.parts)
        if not below:
            raise StudyError(f"{text}: there is no jobs.csv in it, nor in what it holds; name what "
                             "`vrm experiment` or `vrm simulate --out` wrote, or the Log of a live "
                             "run")
        found.update(dict.fromkeys(below))
        name, scenarios, number = _planned(directory)
        planned += number
        names.append(name or directory.resolve().name)
        for scenario in scenarios:
            orders.setdefault(scenario, len(orders))
    read = []
    for number, directory in enumerate(found, 1):
        progress(f"reading run {number} of {len(found)}: {directory.name}")
        one = _read(directory)
        if one is not None:
            read.append(one)
    runs = [replace(run, threshold=threshold) for run in _named(read)]
    if not any(run.ran for run in runs):
        what = f"none of the {_count(planned, 'planned run')} is complete" \
            if planned and not read else "no job ran there"
        raise StudyError(f"{', '.join(directories)}: {what}; there is nothing to report")
    runs = [run for run in runs if run.ran]
    runs.sort(key=lambda run: (orders.get(run.scenario, len(orders)), run.repetition))
    missing = planned - sum(bool(run.record) for run in read)
    return Study(" and ".join(dict.fromkeys(names)), tuple(runs), tuple(_scenarios(runs)),
                 max(0, missing))


def _planned(directory: Path) -> Tuple[str, List[str], int]:
    """The name of the experiment in a directory, its scenarios in the order of its file, and how
    many runs it plans."""
    try:
        found = json.loads((directory / "experiment.json").read_text(encoding="utf-8"))
        return (str(found.get("name", "")), [one["name"] for one in found["scenarios"]],
                len(found.get("runs", ())))
    except FileNotFoundError:
        return "", [], 0
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StudyError(f"{directory / 'experiment.json'}: vrm has not written this ({error!r}); "
                         "move it away, or start the experiment again") from error


def _read(directory: Path) -> Optional[Run]:
    """A run; None for one of an experiment that is not complete."""
    path = directory / "run.json"
    record: Dict[str, Any] = {}
    try:
        if path.exists():
            record = json.loads(path.read_text(encoding="utf-8"))
            if not record["complete"]:
                return None
        rules, processors = circumstances(directory)
        choices: Choices = (None, None, None) if rules is None else (
            rules.algorithm, rules.backfill, rules.policy)
        jobs = JobTable.read(directory / "jobs.csv")
    except (JobFileError, CompareError) as error:
        raise StudyError(str(error)) from error
    except OSError as error:
        raise StudyError(f"cannot read {error.filename}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise StudyError(f"{path}: vrm has not written this ({error!r}); remove it, or run "
                         "again") from error
    if record:
        return Run(directory, str(record["scenario"]), str(record["queue"]),
                   int(record["repetition"]), jobs, choices, processors, record)
    return Run(directory, directory.resolve().name, workload_of(directory), 1, jobs, choices,
               processors)


def workload_of(directory: Path) -> str:
    """The name of what was simulated; empty for a live run."""
    try:
        found = json.loads((directory / "summary.json").read_text(encoding="utf-8"))
        return Path(str(found["workload"])).name
    except (OSError, ValueError, KeyError, TypeError):
        return ""  # `circumstances` complains of a file that is there


def _named(runs: Sequence[Run]) -> Iterator[Run]:
    """The runs, those without a record by the paths where two have the same name.

    Simulations of several workloads are a queue each, and then a scenario is what its policies
    are called, so that it can be found on all of them.
    """
    alone = [run for run in runs if not run.record]
    counts = Counter(run.scenario for run in alone)
    several = len({run.queue for run in alone}) > 1
    named = [(run.queue, _policies(run)) for run in alone]
    by_policy = several and len(set(named)) == len(named)
    for run in runs:
        if not run.record:
            if by_policy:
                run = replace(run, scenario=_policies(run))
            elif counts[run.scenario] > 1:
                run = replace(run, scenario=str(run.directory))
            if not several:
                run = replace(run, queue="")
        yield run


def _policies(run: Run) -> str:
    return ", ".join(filter(None, [policy_name(*run.choices[:2]), run.choices[2]])) or run.scenario


def _scenarios(runs: Sequence[Run]) -> List[Scenario]:
    """The scenarios with the place of each. Where not all places are different, each is its own."""
    first: Dict[str, Run] = {}
    for run in runs:
        first.setdefault(run.scenario, run)
    changes = {name: _changes(run) for name, run in first.items()}
    varied = [key for key in dict.fromkeys(key for one in changes.values() for key in one)
              if len({one.get(key) for one in changes.values()}) > 1]
    # Where all have one order and backfilling, these are still what a group is called.
    named = [ALGORITHM, BACKFILLING] if varied == [POLICY] else varied
    found = [Scenario(name, _group({ALGORITHM: "order", **_choices(run), **changes[name]},
                                   named),
                      changes[name].get(POLICY, "") if POLICY in varied else "", run.choices)
             for name, run in first.items()]
    places = {(one.group, one.series) for one in found}
    if len(places) < len(found) or not all(one.label for one in found):
        return [Scenario(one.name, one.name, "", one.choices) for one in found]
    return found


def _changes(run: Run) -> Dict[str, str]:
    """The keys of a run's scenario."""
    if run.record.get("changes"):
        return {key: str(value) for key, value in run.record["changes"].items()}
    return _choices(run)


def _choices(run: Run) -> Dict[str, str]:
    keys = zip((ALGORITHM, BACKFILLING, POLICY), run.choices)
    return {key: value for key, value in keys if value is not None}


def _group(changes: Dict[str, str], varied: Sequence[str]) -> str:
    """What a scenario is called beside its placement: `WFP3 + EASY`, and `Key=value` for other
    keys."""
    algorithm = changes[ALGORITHM] if ALGORITHM in varied or BACKFILLING in varied else ""
    backfilling = changes.get(BACKFILLING, "") if BACKFILLING in varied else ""
    words = [policy_name(algorithm, backfilling)] if algorithm or backfilling else []
    words += [f"{key.split('.')[-1]}={changes.get(key, '-')}" for key in varied
              if key not in (ALGORITHM, BACKFILLING, POLICY)]
    return " ".join(words)


# ------------------------------------------------------------------------------- side by side


def _overlaps(jobs: Sequence[RanJob]) -> Iterator[Tuple[RanJob, RanJob]]:
    """The pairs of jobs (given by start) that were on one node at the same time."""
    live: Dict[str, List[RanJob]] = {}
    for job in jobs:
        met: Dict[int, RanJob] = {}
        for node in _nodes(job):
            here = [other for other in live.get(node, ()) if other.end > job.start]
            met.update((other.id, other) for other in here)
            live[node] = [*here, job]
        if job.end > job.start:
            yield from ((other, job) for other in met.values())


def _merged(stretches: Sequence[Tuple[float, float]]) -> List[Tuple[float, float]]:
    """Sorted stretches of time, those that touch made one."""
    found: List[Tuple[float, float]] = []
    for begin, end in stretches:
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((begin, end))
    return found


def _nodes(job: RanJob) -> List[str]:
    if job.cores:
        return [part.partition(":")[0] for part in job.cores.split(";")]
    if not job.nodes:
        return []
    from vrm.results.places import unfold_nodes
    return unfold_nodes(job.nodes)


@dataclass(frozen=True)
class Application:
    """How a program on so many ranks fared in one company: `beside` a program, or alone (empty)
    under a policy. `speedup` is against alone under the first policy; None where that is not
    known, or shorter than MEASURED."""

    app: str
    procs: int
    policy: str
    beside: str
    seconds: Interval
    speedup: Optional[float]


def applications(study: Study) -> List[Application]:
    """How long each program ran alone, and beside which other one.

    A job is alone when it shared no node at all, and beside a program when that was there for at
    least half of its running time; jobs between are left out. So are the `app` and `app7` of
    simulated traces, of which nobody knows whether they do the same work each time.
    """
    times: Dict[Tuple[str, int, str, str], List[float]] = {}
    policies = {one.name: one.series or one.choices[2] or "" for one in study.scenarios}
    for run in study.runs:
        policy = policies[run.scenario]
        if run.table.nameless(_NAMELESS):
            continue
        for row in run.completed:
            if row.exit_code is None and _NAMELESS.fullmatch(row.app):
                continue
            shares = run.companions.get(row.id, {})
            beside = max(shares, key=lambda app: shares[app]) if shares else ""
            if beside and shares[beside] < BESIDE:
                continue
            key = (row.app, row.procs, policy, beside)
            times.setdefault(key, []).append(application_time(row))
    order = {name: index for index, name in enumerate(dict.fromkeys(
        sorted(policies.values(), key=lambda name: name != BASELINE)))}
    found = []
    for (app, procs, policy, beside), values in sorted(
            times.items(), key=lambda item: (item[0][:2], order[item[0][2]], item[0][3])):
        alone = next((times[app, procs, name, ""] for name in order
                      if (app, procs, name, "") in times), None)
        mean = interval(values)
        base = _mean(alone) if alone else None
        told = base and min(base, mean.mean) >= MEASURED
        found.append(Application(app, procs, policy, beside, mean,
                                 base / mean.mean if base and told else None))
    return found


# ------------------------------------------------------------------------------------ in words


def findings(study: Study) -> List[str]:
    """What was found, in sentences."""
    jobs = sum(len(run.table) for run in study.runs)
    done = sum(run.done for run in study.runs)
    failed = f"{jobs - done} of {jobs} jobs did not complete and are left out of the averages" \
        if done < jobs else f"all {jobs} jobs completed"
    said = [f"{_count(len(study.scenarios), 'scenario')}, {_count(len(study.queues), 'queue')}, "
            f"{_count(study.repetitions, 'repetition')}: {_count(len(study.runs), 'run')}, in "
            f"which {failed}."]
    if study.missing:
        said.append(f"{_count(study.missing, 'planned run')} more "
                    f"{'is' if study.missing == 1 else 'are'} not complete.")
    for queue in study.queues:
        said += _said_of_best(study, queue)
    for series in study.series[1:]:
        said += _said_of_change(study, series)
    said += _said_of_backfilling(study)
    said += _said_of_pairs(study)
    said += _said_of_other_jobs(study)
    if study.repetitions < 2:
        said.append("Nothing was repeated, so these figures have no confidence intervals: small "
                    "differences may be chance.")
    return said


def _said_of_best(study: Study, queue: str) -> Iterator[str]:
    """Under which scenario jobs were back soonest on a queue, if that is beyond the scatter.

    It is compared with each other scenario by the differences within repetitions. Without
    repetitions no scatter is known, and the scenarios are ranked without naming a best one.
    """
    means = {one: study.mean(one.name, "turnaround", queue) for one in study.scenarios}
    known = {one: mean for one, mean in means.items() if mean is not None}
    several = len(study.queues) > 1
    jobs_were = f"On {queue}, jobs were" if several else "Jobs were"
    if len(known) == 1 and not several:
        (only,) = known
        values = [study.mean(only.name, name) for name in (*MAIN, "makespan")]
        waits, runs, turnarounds, whole = (time_text(value.mean) for value in values if value)
        yield (f"Jobs waited {waits} on average and ran {runs}, so that they were back after "
               f"{turnarounds}; the makespan was {whole}.")
    if len(known) < 2:
        return
    ranked = sorted(known, key=lambda one: known[one].mean)
    best, worst = ranked[0], ranked[-1]
    low, high = known[best].mean, known[worst].mean
    if low == high:
        yield f"{jobs_were} back after {time_text(low)} on average in every scenario."
        return
    if known[best].half is None:
        shown = [f"{one.label or one.name} {time_text(known[one].mean)}" for one in ranked[:RANKED]]
        more = f", ...; last {worst.label or worst.name} {time_text(high)}" \
            if len(ranked) > RANKED else ""
        yield f"{jobs_were} back, on average, after: {', '.join(shown)}{more} (one run each)."
        return
    level = [one for one in ranked[1:] if not _beyond(study, best, one, queue)]
    name = best.label or best.name
    if not level:
        second = ranked[1]
        yield (f"{jobs_were} back soonest under {name}, after {time_text(low)} on average, "
               f"{_percent(known[second].mean, low)} sooner than under "
               f"{second.label or second.name}: beyond the scatter of the repetitions.")
    elif len(level) == len(ranked) - 1:
        yield (f"{jobs_were} back after {time_text(low)} ({name}) to {time_text(high)} "
               f"({worst.label or worst.name}) on average: no difference beyond the scatter of the "
               "repetitions.")
    else:
        others = ", ".join(one.label or one.name for one in level[:RANKED])
        more = f" and {len(level) - RANKED} more" if len(level) > RANKED else ""
        yield (f"{jobs_were} back after {time_text(low)} on average under {name}, but no "
               f"sooner beyond the scatter of the repetitions than under {others}{more}; latest "
               f"under {worst.label or worst.name}, after {time_text(high)}.")


RANKED = 3  # scenarios that a sentence names


def _beyond(study: Study, one: Scenario, other: Scenario, queue: Optional[str]) -> bool:
    """Whether turnaround under two scenarios differs by more than the scatter: that of the
    differences within repetitions, which share the state of the machine, or the drawn queue."""
    first = study.values(one.name, "turnaround", queue)
    second = study.values(other.name, "turnaround", queue)
    common = sorted(set(first) & set(second))
    return len(common) > 1 and interval([second[number] - first[number]
                                         for number in common]).excludes_zero


def _percent(large: float, small: float) -> str:
    share = 100 * (1 - small / large) if large > 0 else 0.0
    return f"{share:.0f} %" if share >= 1 else "less than 1 %"


def _said_of_other_jobs(study: Study) -> Iterator[str]:
    """What hinders comparing: on one queue, the same jobs should run in all scenarios."""
    first: Dict[Tuple[str, int], frozenset] = {}
    others = []
    for run in study.runs:
        work = run.table.work
        if first.setdefault((run.queue, run.repetition), work) != work:
            others.append(run.scenario)
    if others:
        yield f"Not the same jobs as in the first run ran in {', '.join(dict.fromkeys(others))}: " \
              "these cannot be compared."


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _said_of_change(study: Study, series: str) -> Iterator[str]:
    base, parts = study.series[0], []
    for name in MAIN:
        changes = [change for change in (study.change(group, series, name, queue)
                                         for queue in study.averaged for group in study.groups)
                   if change is not None]
        if not changes:
            continue
        values = [change.mean for change in changes]
        low, high = min(values), max(values)
        if name == "running" and not any(values):
            parts.append("running the same, for without measured speed-ups (a heatmap of them) "
                         "simulated jobs are as fast with others as alone")
            continue
        if max(map(abs, values)) < 0.5:
            parts.append(f"{name} less than 1 % apart")
            continue
        reach = _reach(low, high)
        sure = sum(change.excludes_zero for change in changes)
        known = any(change.half is not None for change in changes)
        parts.append(f"{name} {reach}" + (
            f" (the sign is sure in {sure} of {len(changes)})" if known else ""))
    if parts:
        groups = _count(len(study.groups) * len(study.averaged), "pair") + " of scenarios"
        yield f"Under {series}, against {base}, over {groups}: {'; '.join(parts)}."


def _reach(low: float, high: float) -> str:
    """Changes from one to another: `-13 to 0 %`."""
    words = [f"{round(value):+d}" if round(value) else "0" for value in (low, high)]
    return f"{' to '.join(dict.fromkeys(words))} %"


def _said_of_backfilling(study: Study) -> Iterator[str]:
    changes = []
    for one in study.scenarios:
        algorithm, backfilling, _ = one.choices
        plain = study.scenario(policy_name(algorithm), one.series) if algorithm else None
        if plain is None or one.group != policy_name(algorithm, "easy") != plain.group:
            continue
        for queue in study.averaged:
            before, after = (study.mean(each.name, "waiting", queue) for each in (plain, one))
            if before and after and before.mean > 0:
                changes.append(100 * (after.mean / before.mean - 1))
    if changes:
        reach = _reach(min(changes), max(changes))
        yield f"With EASY backfilling against without: waiting {reach}."


def _said_of_pairs(study: Study) -> Iterator[str]:
    pairs = [one for one in applications(study) if one.beside and one.speedup is not None
             and one.seconds.count > 1]
    if not pairs:
        return
    best = max(pairs, key=lambda one: one.speedup or 0)
    worst = min(pairs, key=lambda one: one.speedup or 0)
    if (best.speedup or 0) - (worst.speedup or 0) < 0.01:
        return
    text = f"Side by side, {best.app} ran best with {best.beside} (speed-up " \
           f"{best.speedup:.2f} against alone)"
    yield f"{text} and {worst.app} worst with {worst.beside} ({worst.speedup:.2f})."


Value = Callable[[Columns], Any]


def pooled(study: Study, scenario: str, value: Value, queue: Optional[str] = None) -> List[float]:
    """The values of all jobs of a scenario that ran, on one queue or on all, in all repetitions,
    lowest first."""
    import numpy as np
    values: List[float] = np.sort(np.concatenate(
        [value(run.table.ran) for run in study.of(scenario, queue)])).tolist()
    return values
