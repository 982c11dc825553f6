"""Replays a live run in virtual time to measure the error of the simulator.

The replay gets the submissions of the run, its policies and its nodes, but of the jobs only what was known before
they ran: calibrated run times and measured speed-ups. Alternatively it gets the measured run times, to check
whether both make the same decisions.
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
from vrm.ext.study.validation.validation_result import Pair, ValidationResult
from vrm.run.journal import files as journal
from vrm.run.journal.record_checks import JournalError, Record
from vrm.scheduling.estimators import Estimator
from vrm.scheduling.orderings.ordering import ADVISED
from vrm.system.files import read_regular
from vrm.simulation.arguments import Measurements, Timetable
from vrm.simulation.library import simulate
from vrm.ext.study.validation.loan_records import lent_to_no_job, run_time_on_all_cores, recorded
from vrm.ext.lending.simulated.recorded_lends import RequestedLend
from vrm.ext.measured.estimates import Table
from vrm.workload.submission import Submission
from vrm.system.errors import UserError


class ValidationError(UserError, ValueError):
    """A run that cannot be replayed; the text names the place and the remedy."""


class RecordedEstimates(Estimator):
    """Uses the expected run times that the live run recorded when the jobs were submitted."""

    name = "recorded"

    def expected(self, job: Job) -> float:
        return job.expected


def read_rules(state: Path) -> tuple[Rules, tuple[Node, ...]]:
    """Read the rules and the nodes of a run from the state file that it leaves. Raises ValidationError."""
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
    """Return the rules of a run, each with the time (epoch seconds) from which it applied, from its journal at
    `path`; `last` are the rules in its state file. The first entry applies from the beginning. If there is no
    journal, `last` is the only entry. Raises ValidationError for a journal that cannot be read.

    The journal has a record for each change while a manager ran; the record includes the rules in the configuration
    at that time. If these differ from the previous ones, the manager was started with them.
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


def read_lends(path: Path, nodes: Sequence[Node]) -> list[RequestedLend]:
    """Return the loans by running jobs that users requested, from the journal of a run at `path`; empty if there is
    no journal. Raises ValidationError."""
    return recorded(_records(path), Cluster(nodes))


def read_node_lends(path: Path) -> dict[int, float]:
    """Return the core seconds that each job of a run (by id) lent to no job, from its journal at `path`; empty if
    there is no journal. Raises ValidationError."""
    return lent_to_no_job(_records(path))


def _decisive(rules: Rules) -> Rules:
    """Return the rules that start jobs: `advised` is FCFS until the adviser finds a better order."""
    return replace(rules, algorithm="FCFS") if str(rules.algorithm).lower() == ADVISED else rules


def read_rows(path: Path) -> list[JobRow]:
    """Read the jobs of a run that ran, by id. Raises ValidationError if no job completed or an id is repeated."""
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
             lends: Sequence[RequestedLend] = (), to_nodes: Mapping[int, float] | None = None) -> ValidationResult:
    """Replay a run with its rules on its nodes, and compare. `changes` are other rules, each with the time from
    which it applies. `lends` are the loans by running jobs (`vrm lend`); a job is slower in proportion to the cores
    that it lacks. `to_nodes` are the core seconds that jobs lent to no job; they are part of their run times.

    `estimates` are the calibrated run times of each application and number of ranks; their mean is used, because a
    makespan is a sum of run times. With None, the measured run times are used, without speed-ups, because they
    include them. From `measured`, the heatmap orders nodes under strip, and the speed-ups define how fast jobs run
    when they share nodes.

    Raises ValidationError if an estimate is missing.
    """
    if estimates is not None:
        _require(rows, estimates)
    begin = min(row.submit for row in rows)
    submissions = [_submission(row, begin, estimates, (to_nodes or {}).get(row.id, 0.0))
                   for row in sorted(rows, key=lambda row: (row.submit, row.id))]
    if estimates is None or not any(each.policy == "strip" for each in (rules, *(other for _, other in changes))):
        measured = replace(measured, speedups=None)
    if rules.estimates != "requested":
        rules = replace(rules, estimates=RecordedEstimates())
    try:
        replayed = {row.id: row for row in simulate(
            submissions, Machine(nodes), rules, measured=measured, timetable=Timetable(
                lends=[each._replace(time=max(0.0, each.time - begin)) for each in lends],
                changes=[(max(0.0, time - begin), other) for time, other in changes])).jobs}
    except Infeasible as never:  # after a change of rules
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
    return ValidationResult("actual" if estimates is None else "calibrated", tuple(pairs),
                            max(row.end or 0.0 for row in rows) - begin,
                            max(row.end for row in replayed.values()), len(rows) - len(pairs))


def _submission(row: JobRow, begin: float, estimates: Table | None, alone: float) -> Submission:
    """Return a job of the run as it was submitted, with its run time; it lent `alone` core seconds to no job."""
    run = run_time_on_all_cores(row, row.cores_per_task, alone)
    if estimates is not None and row.status == JobState.COMPLETED.value:
        run = estimates[row.app, row.procs].mean
    try:
        job, details = submitted(row, row.submit - begin)
    except ValueError as error:
        raise ValidationError(f"job {row.id} of the run: {error}") from error
    if alone:  # its time limit was extended by the time that it lost
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
