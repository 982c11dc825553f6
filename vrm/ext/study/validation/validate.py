"""The replay of a live run in virtual time, which tells how far off the simulator is.

The replay gets the submissions of the run, its policies and its nodes, and of the jobs only what
was known before they ran: calibrated run times and measured speed-ups (or, to see whether both
decide alike, the run times as they were).
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any
from collections.abc import Mapping, Sequence

from vrm.model.cluster import Cluster
from vrm.model.job import Infeasible, Job, JobState
from vrm.model.machine import Machine
from vrm.model.node import Node
from vrm.model.rules import Rules
from vrm.results import metrics
from vrm.results.job_columns import JobFileError
from vrm.results.jobs import JobRow, read_jobs, submitted
from vrm.results.state import read
from vrm.ext.study.validation.result import Pair, Validation
from vrm.run.journal import files as journal
from vrm.run.journal.check import JournalError, Record
from vrm.scheduling.estimators import Estimator
from vrm.scheduling.orderings.ordering import ADVISED
from vrm.system.files import read_regular
from vrm.simulation.arguments import Measurements, Timetable
from vrm.simulation.library import simulate
from vrm.ext.study.validation.lends import lent_to_nodes, on_all_cores, recorded
from vrm.ext.lending.simulated.recorded_lends import AskedLend
from vrm.ext.measured.estimates import Table
from vrm.workload.submission import Submission


class ValidationError(ValueError):
    """A run that cannot be replayed; the text names the place and the mend."""


class Recorded(Estimator):
    """What the run itself had expected of its jobs when they came."""

    name = "recorded"

    def expected(self, job: Job) -> float:
        return job.expected


def read_rules(state: Path) -> tuple[Rules, tuple[Node, ...]]:
    """How a run was scheduled, and on which nodes, from the state file that it leaves. Raises
    ValidationError."""
    try:
        found = read(state, ("scheduling", "nodes"))
        nodes = tuple(Node(node["name"], tuple(len(socket) for socket in node["sockets"]))
                      for node in found["nodes"])
        return Rules.read(found["scheduling"]), nodes
    except FileNotFoundError as error:
        raise ValidationError(f"{state}: not there; name the directory (Log) of a live run, or its "
                              "configuration with -c") from error
    except OSError as error:
        raise ValidationError(f"cannot read {state}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ValidationError(f"{state}: vrm has not written this ({error!r})") from error


def _records(path: Path) -> list[Record]:
    try:
        return journal.parsed(read_regular(path), path)
    except FileNotFoundError:
        return []
    except JournalError as error:
        raise ValidationError(str(error)) from error
    except OSError as error:
        raise ValidationError(f"cannot read {path}: {error.strerror}") from error


def read_changes(path: Path, last: Rules) -> list[tuple[float, Rules]]:
    """By which rules a run has scheduled, each with the time (epoch seconds) from which on they were in
    force, from its journal at `path`; `last` are those that its state file says. The first ones are
    those from the beginning on. Raises ValidationError for a journal that cannot be read; where there
    is none, the last rules are all that is known.

    A journal has a record of each change while a manager ran, which says what the configuration was
    then. Where that is another one than before, the manager has started with it.
    """
    records = _records(path)
    found: list[tuple[float, Any]] = []
    configured, began = None, -math.inf
    for record in records:
        if record["event"] == "run" and found:
            began = record["time"]
        elif record["event"] == "rules":
            if record["was"] != configured:
                configured = record["was"]
                found.append((began, configured))
            found.append((record["time"], record["rules"]))
    if not found or found[-1][1] != last.record():
        found.append((began if found else -math.inf, last.record()))
    return [(time, _decisive(replace(Rules.read(rules), queues=last.queues))) for time, rules in found]


def read_lends(path: Path, nodes: Sequence[Node]) -> list[AskedLend]:
    """What running jobs lent since somebody asked for it, from the journal of a run at `path`; nothing where
    there is none. Raises ValidationError."""
    return recorded(_records(path), Cluster(nodes))


def read_node_lends(path: Path) -> dict[int, float]:
    """The core seconds that jobs of a run lent to no job, by id, from its journal at `path`; nothing where there is
    none. Raises ValidationError."""
    return lent_to_nodes(_records(path))


def _decisive(rules: Rules) -> Rules:
    """Rules by which jobs are started: `advised` is FCFS until something better is found."""
    return replace(rules, algorithm="FCFS") if str(rules.algorithm).lower() == ADVISED else rules


def read_rows(path: Path) -> list[JobRow]:
    """The jobs of a run that ran, by id. Raises ValidationError when there is none."""
    try:
        rows = [row for row in metrics.ran(read_jobs(path)) if metrics.running(row) > 0]
    except OSError as error:
        raise ValidationError(f"{path}: {(error.strerror or str(error)).lower()}; name the "
                              "directory (Log) of a live run") from error
    except JobFileError as error:
        raise ValidationError(str(error)) from error
    twice = [row_id for row_id, count in Counter(row.id for row in rows).items() if count > 1]
    if twice:
        raise ValidationError(f"{path}: job {twice[0]} is in it more than once")
    if not any(row.status == JobState.COMPLETED.value for row in rows):
        raise ValidationError(f"{path}: no job of it completed; there is nothing to compare")
    return sorted(rows, key=lambda row: row.id)


def validate(rows: Sequence[JobRow], rules: Rules, nodes: Sequence[Node],
             estimates: Table | None = None, measured: Measurements = Measurements(),
             changes: Sequence[tuple[float, Rules]] = (),
             lends: Sequence[AskedLend] = (), to_nodes: Mapping[int, float] | None = None) -> Validation:
    """Replay a run by its rules on its nodes, and compare. `changes`: other rules from these times on.
    `lends`: what running jobs lent by `vrm lend`; jobs run slower by the share of the cores that they lack.
    `to_nodes`: the core seconds that they lent to no job, which are part of how long they run.

    `estimates`: the calibrated run times of each application and number of ranks, of which the
    mean is taken (a makespan is a sum of run times); None takes the run times as measured, and no
    speed-ups, which are in them already. Of what was `measured` the heatmap orders nodes under strip, and the
    speed-ups say how fast jobs run there beside others.

    Raises ValidationError when an estimate is missing.
    """
    if estimates is not None:
        _require(rows, estimates)
    begin = min(row.submit for row in rows)
    submissions = [_submission(row, begin, estimates, (to_nodes or {}).get(row.id, 0.0))
                   for row in sorted(rows, key=lambda row: (row.submit, row.id))]
    if estimates is None or not any(each.policy == "strip" for each in (rules, *(other for _, other in changes))):
        measured = replace(measured, speedups=None)
    if rules.estimates != "requested":
        rules = replace(rules, estimates=Recorded())
    try:
        replayed = {row.id: row for row in simulate(
            submissions, Machine(nodes), rules, measured=measured, timetable=Timetable(
                lends=[each._replace(time=max(0.0, each.time - begin)) for each in lends],
                changes=[(max(0.0, time - begin), other) for time, other in changes])).jobs}
    except Infeasible as never:  # after a change
        raise ValidationError(f"a job that ran does not fit on the nodes of the replay under the rules of the run: "
                              f"{never}") from never
    pairs = []
    for row in rows:
        again = replayed.get(row.id)
        if again is None:
            raise ValidationError(f"job {row.id} ({row.app}) ran, but does not fit on the nodes of the "
                                  "replay; are these the nodes of the run?")
        if row.status == JobState.COMPLETED.value:
            pairs.append(Pair(row.id, row.app, row.procs, metrics.waiting(row),
                              metrics.running(row), metrics.waiting(again),
                              metrics.running(again)))
    return Validation("actual" if estimates is None else "calibrated", tuple(pairs),
                      max(row.end or 0.0 for row in rows) - begin,
                      max(row.end for row in replayed.values()), len(rows) - len(pairs))


def _submission(row: JobRow, begin: float, estimates: Table | None, alone: float) -> Submission:
    """A job of the run as it was submitted, with how long it ran; it lent `alone` core seconds to no job."""
    run = on_all_cores(row, row.cores_per_task, alone)
    if estimates is not None and row.status == JobState.COMPLETED.value:
        run = estimates[row.app, row.procs].mean
    try:
        job, details = submitted(row, row.submit - begin)
    except ValueError as error:
        raise ValidationError(f"job {row.id} of the run: {error}") from error
    if alone:  # its limit was later, too, by what it lost so
        job = job.but(walltime=job.walltime + alone / row.processors)
    return Submission(job, run, details.after, details=details)


def _require(rows: Sequence[JobRow], estimates: Table) -> None:
    """Raise ValidationError unless every job that completed has an estimate."""
    missing = dict.fromkeys(f"{row.app} on {row.procs}" for row in rows
                            if row.status == JobState.COMPLETED.value
                            and (row.app, row.procs) not in estimates)
    if missing:
        raise ValidationError("the table of estimates has no line for "
                              f"{', '.join(missing)} rank(s); `vrm calibrate` measures them")
