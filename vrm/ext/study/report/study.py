"""A study: runs by scenario, queue and repetition, and the figures computed from them.

A run is a directory with a jobs.csv: of an experiment, of a live manager, or the `--out` of a simulation. The three
main figures of the tables equal those of a run's closing line: averages over the completed jobs of the waiting
time, the running time (measured by the application if it reported one) and the turnaround time, which is their sum.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, cast
from collections.abc import Callable, Iterable, Iterator, Sequence

from vrm.model.job import JobState
from vrm.ext.study.report.job_table import JobTable
from vrm.results.energy import PowerSpan
from vrm.results.jobs import JobRow
from vrm.results.metrics import THRESHOLD, application_time, running
from vrm.ext.study.confidence import ConfidenceInterval, interval
from vrm.results.summary import JobArrays, mean
from vrm.system.errors import UserError

Choices = tuple[str | None, str | None, str | None]
"""Algorithm, backfilling and policy; None if unknown."""

POLICY = "Allocation.Policy"
ALGORITHM, BACKFILLING = "Scheduling.Algorithm", "Scheduling.Backfilling"
BASELINE = "compact"
APART = ("compact", "spare")  # placements that never put two jobs on one node
BESIDE = 0.5  # share of its running time that a job must share nodes with a program to count as run with it

_NAMELESS = re.compile(r"app\d*")
MEASURED = 0.2  # shortest time (s) from which a speed-up is computed: programs print hundredths of a second


class StudyError(UserError):
    """Directories that cannot be reported on; the text names the place and the remedy."""


class RanJob(Protocol):
    """The fields of a job that ran; a `JobRow` with a start and an end has them."""

    id: int
    app: str
    procs: int
    processors: int
    submit: float
    start: float
    end: float
    status: str
    app_time: float | None
    nodes: str
    cores: str
    devices: str
    exit_code: int | None
    coupled: str


@dataclass(frozen=True)
class StudyRun:
    """A run: its jobs and its circumstances. `record` is the content of its run.json, empty without that file;
    `processors` is the number of cores of its machine, None if unknown."""

    directory: Path
    scenario: str
    queue: str
    repetition: int
    table: JobTable
    choices: Choices
    processors: int | None
    record: dict[str, Any] = field(default_factory=dict)
    threshold: float = THRESHOLD  # threshold of the bounded slowdown, in seconds

    @property
    def rows(self) -> tuple[JobRow, ...]:
        """The jobs, in the order of jobs.csv; `table` has them as columns, which is faster."""
        return self.table.rows

    @property
    def jobs(self) -> list[RanJob]:
        """The jobs that ran, in the order of their starts."""
        return cast(list[RanJob], self.table.jobs)

    @property
    def drawn(self) -> list[PowerSpan]:
        """The power and energy of its jobs; empty if no job's power is known."""
        return self.table.drawn

    @cached_property
    def completed(self) -> list[RanJob]:
        """The jobs that completed."""
        return [row for row in self.jobs if row.status == JobState.COMPLETED]

    @property
    def ran(self) -> int:
        """The number of jobs that ran."""
        return len(self.table.ran.submit)

    @property
    def done(self) -> int:
        """The number of jobs that completed."""
        return int(self.table.ran.completed.sum())

    @property
    def span(self) -> tuple[float, float]:
        """First submission and last end of the jobs that ran, in seconds."""
        return self.table.ran.whole

    @cached_property
    def figures(self) -> dict[str, float | None]:
        """The run's value of each figure in FIGURES; None if it has none."""
        jobs, done = self.table.ran, self.table.ran.completed
        waits, runs = mean(jobs.wait[done]), mean(self.table.app_time[done])
        first, last = self.span
        return {
            "waiting": waits, "running": runs,
            "turnaround": None if waits is None or runs is None else waits + runs,
            "slowdown": mean(jobs.bounded_slowdown(self.threshold)),
            "makespan": last - first if self.ran else None,
            "utilisation": 100 * jobs.utilisation(self.processors) if self.processors and self.ran else None}

    @cached_property
    def _overlaps(self) -> list[tuple[RanJob, RanJob]]:
        """The pairs of jobs that shared a node at some time, each pair once."""
        if self.choices[2] in APART:
            return []
        return list(_overlaps(self.jobs))

    @cached_property
    def co_running_programs(self) -> dict[int, dict[str, float]]:
        """For each job id, the programs that shared a node with it, and for which share (0 to 1) of its running
        time. A job without an entry shared no node."""
        found: dict[int, dict[str, float]] = {}
        for pair in self._overlaps:
            both = min(row.end for row in pair) - max(row.start for row in pair)
            for row, other in (pair, pair[::-1]):
                shares = found.setdefault(row.id, {})
                shares[other.app] = shares.get(other.app, 0.0) + both / running(row)
        return found

    @cached_property
    def shared(self) -> dict[int, list[tuple[float, float]]]:
        """For each job id, the intervals (s) in which another job used one of its nodes."""
        stretches: dict[int, list[tuple[float, float]]] = {}
        for pair in self._overlaps:
            both = max(row.start for row in pair), min(row.end for row in pair)
            for row in pair:
                stretches.setdefault(row.id, []).append(both)
        return {job: _merged(sorted(found)) for job, found in stretches.items()}


@dataclass(frozen=True)
class Figure:
    """A figure that is averaged: its name in a table, its unit, and whether a smaller value is better."""

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


def _mean(values: Iterable[float]) -> float | None:
    numbers = list(values)
    return math.fsum(numbers) / len(numbers) if numbers else None


# ------------------------------------------------------------------------------------ scenarios


@dataclass(frozen=True)
class ReportScenario:
    """A scenario in tables and pictures. `group` is what it has in common with other scenarios (FCFS + EASY),
    `series` is the variant within the group (compact, strip; empty if there is only one)."""

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
    """Runs and their scenarios, in display order."""

    name: str
    runs: tuple[StudyRun, ...]
    scenarios: tuple[ReportScenario, ...]
    missing: int = 0  # planned runs that are not complete

    @cached_property
    def queues(self) -> list[str]:
        """The names of the queues."""
        return list(dict.fromkeys(run.queue for run in self.runs))

    @cached_property
    def averaged_queues(self) -> list[str | None]:
        """The queues for which averages are shown: `[None]` (one average over all queues) if there is one queue, or
        if all machines have the same size; else each queue separately."""
        if len({run.processors for run in self.runs}) > 1 and len(self.queues) > 1:
            return list(self.queues)
        return [None]

    @cached_property
    def groups(self) -> list[str]:
        """The groups of scenarios."""
        return list(dict.fromkeys(one.group for one in self.scenarios))

    @cached_property
    def series(self) -> list[str]:
        """The series; compact first, because the others are compared with it."""
        found = list(dict.fromkeys(one.series for one in self.scenarios))
        return sorted(found, key=lambda name: name != BASELINE)

    @cached_property
    def kinds(self) -> list[str]:
        """The applications without their classes, sorted."""
        return sorted(frozenset().union(*(run.table.kinds for run in self.runs)))

    @cached_property
    def repetitions(self) -> int:
        """The largest number of repetitions of a scenario on a queue."""
        return max(Counter((run.scenario, run.queue) for run in self.runs).values())

    def scenario(self, group: str, series: str) -> ReportScenario | None:
        """Return the scenario of this group and series; None if there is none."""
        return next((one for one in self.scenarios
                     if (one.group, one.series) == (group, series)), None)

    def of(self, scenario: str, queue: str | None = None) -> list[StudyRun]:
        """Return the runs of a scenario on one queue, or on all (None), by repetition."""
        return sorted((run for run in self.runs if run.scenario == scenario
                       and queue in (None, run.queue)), key=lambda run: run.repetition)

    def values(self, scenario: str, figure: str, queue: str | None = None
               ) -> dict[int, float]:
        """Return a figure by repetition: on one queue, or averaged over all queues (None).

        The average uses only repetitions that exist on every queue. If the queues have fewer than two repetitions
        in common, the means of the queues are averaged into a single value.
        """
        found: list[dict[int, float]] = []
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

    def mean(self, scenario: str, figure: str, queue: str | None = None) -> ConfidenceInterval | None:
        """Return the mean of a figure over the repetitions; None if there is no value."""
        values = list(self.values(scenario, figure, queue).values())
        return interval(values) if values else None

    def change(self, group: str, series: str, figure: str, queue: str | None = None
               ) -> ConfidenceInterval | None:
        """Return the change of a figure from the first series to `series`, in percent of the first.

        The interval is that of the differences within repetitions, because the runs of one repetition share the
        state of the machine, or the random queue. None if one of the two has no value.
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
        return ConfidenceInterval(100 * found.mean / start,
                                  None if found.half is None else 100 * found.half / start, found.count)


# ------------------------------------------------------------------------------- side by side


def _overlaps(jobs: Sequence[RanJob]) -> Iterator[tuple[RanJob, RanJob]]:
    """Yield the pairs of jobs that used one node at the same time; `jobs` are ordered by start."""
    live: dict[str, list[RanJob]] = {}
    for job in jobs:
        met: dict[int, RanJob] = {}
        for node in _nodes(job):
            here = [other for other in live.get(node, ()) if other.end > job.start]
            met.update((other.id, other) for other in here)
            live[node] = [*here, job]
        if job.end > job.start:
            yield from ((other, job) for other in met.values())


def _merged(stretches: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Merge sorted intervals that touch or overlap."""
    found: list[tuple[float, float]] = []
    for begin, end in stretches:
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((begin, end))
    return found


def _nodes(job: RanJob) -> list[str]:
    if job.cores:
        return [part.partition(":")[0] for part in job.cores.split(";")]
    if not job.nodes:
        return []
    from vrm.results.placement_text import unfold_nodes
    return unfold_nodes(job.nodes)


@dataclass(frozen=True)
class Application:
    """The times of a program with `procs` ranks in one situation: together with the program `beside`, or alone
    (empty) under a policy. `speedup` is relative to the time alone under the first policy; None if that is unknown
    or one of the times is shorter than MEASURED."""

    app: str
    procs: int
    policy: str
    beside: str
    seconds: ConfidenceInterval
    speedup: float | None


def applications(study: Study) -> list[Application]:
    """Return how long each program ran alone, and together with each other program.

    A job is alone if it shared no node at all. It counts as run with a program that shared its nodes for at least
    half of its running time; other jobs that shared nodes are left out. Simulated traces are left out if their
    programs have generated names (`app`, `app7`): such jobs may do different work each time.
    """
    times: dict[tuple[str, int, str, str], list[float]] = {}
    policies = {one.name: one.series or one.choices[2] or "" for one in study.scenarios}
    for run in study.runs:
        policy = policies[run.scenario]
        if run.table.has_generated_names(_NAMELESS):
            continue
        for row in run.completed:
            if row.exit_code is None and _NAMELESS.fullmatch(row.app):
                continue
            shares = run.co_running_programs.get(row.id, {})
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


Value = Callable[[JobArrays], Any]


def pooled(study: Study, scenario: str, value: Value, queue: str | None = None) -> list[float]:
    """Return the values of all jobs of a scenario that ran, on one queue or on all (None), in all repetitions, in
    ascending order."""
    import numpy as np
    values: list[float] = np.sort(np.concatenate(
        [value(run.table.ran) for run in study.of(scenario, queue)])).tolist()
    return values
