"""Reads the runs of a study from their directories."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import (Any)
from collections.abc import Callable, Iterator, Sequence

from vrm.ext.study.report.compare import CompareError, rules_and_cores
from vrm.ext.study.report.job_table import JobTable
from vrm.ext.study.report.study import (ALGORITHM, BACKFILLING, Choices, POLICY, ReportScenario, Study, StudyError,
                                         StudyRun)
from vrm.ext.study.report.study_findings import count
from vrm.results.job_columns import JobFileError
from vrm.results.metrics import THRESHOLD
from vrm.results.names import policy_name


def read_study(directories: Sequence[str], threshold: float = THRESHOLD,
               progress: Callable[[str], None] = lambda text: None) -> Study:
    """Read the runs in the directories; each directory is a run, or contains runs. `threshold` (s) is that of the
    bounded slowdown; `progress` is called with the name of the run being read. Raises StudyError."""
    found: dict[Path, None] = {}
    names, planned = [], 0
    orders: dict[str, int] = {}
    for text in dict.fromkeys(directories):
        directory = Path(text)
        if not directory.is_dir():
            raise StudyError(f"{text} is not a directory; name that of a run, or of an experiment")
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
        what = f"none of the {count(planned, 'planned run')} is complete" \
            if planned and not read else "no job ran there"
        raise StudyError(f"{', '.join(directories)}: {what}; there is nothing to report")
    runs = [run for run in runs if run.ran]
    runs.sort(key=lambda run: (orders.get(run.scenario, len(orders)), run.repetition))
    missing = planned - sum(bool(run.record) for run in read)
    return Study(" and ".join(dict.fromkeys(names)), tuple(runs), tuple(_scenarios(runs)),
                 max(0, missing))


def _planned(directory: Path) -> tuple[str, list[str], int]:
    """Return the name of the experiment in a directory, its scenarios in the order of its file, and the number of
    runs that it plans."""
    try:
        found = json.loads((directory / "experiment.json").read_text(encoding="utf-8"))
        return (str(found.get("name", "")), [one["name"] for one in found["scenarios"]],
                len(found.get("runs", ())))
    except FileNotFoundError:
        return "", [], 0
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StudyError(f"{directory / 'experiment.json'}: vrm has not written this ({error!r}); "
                         "move it away, or start the experiment again") from error


def _read(directory: Path) -> StudyRun | None:
    """Return a run; None if it belongs to an experiment and is not complete."""
    path = directory / "run.json"
    record: dict[str, Any] = {}
    try:
        if path.exists():
            record = json.loads(path.read_text(encoding="utf-8"))
            if not record["complete"]:
                return None
        rules, processors = rules_and_cores(directory)
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
        return StudyRun(directory, str(record["scenario"]), str(record["queue"]),
                   int(record["repetition"]), jobs, choices, processors, record)
    return StudyRun(directory, directory.resolve().name, workload_of(directory), 1, jobs, choices,
               processors)


def workload_of(directory: Path) -> str:
    """Return the name of the simulated workload; empty for a live run."""
    try:
        found = json.loads((directory / "summary.json").read_text(encoding="utf-8"))
        return Path(str(found["workload"])).name
    except (OSError, ValueError, KeyError, TypeError):
        return ""  # `rules_and_cores` reports a damaged file


def _named(runs: Sequence[StudyRun]) -> Iterator[StudyRun]:
    """Yield the runs; those without a record are named after their paths if two have the same name.

    Simulations of several workloads are one queue per workload. A scenario is then named after its policies, so
    that it can be found on all queues.
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


def _policies(run: StudyRun) -> str:
    return ", ".join(filter(None, [policy_name(*run.choices[:2]), run.choices[2]])) or run.scenario


def _scenarios(runs: Sequence[StudyRun]) -> list[ReportScenario]:
    """Return the scenarios with their groups and series. If two have the same group and series, or one has neither,
    each scenario is its own group."""
    first: dict[str, StudyRun] = {}
    for run in runs:
        first.setdefault(run.scenario, run)
    changes = {name: _changes(run) for name, run in first.items()}
    varied = [key for key in dict.fromkeys(key for one in changes.values() for key in one)
              if len({one.get(key) for one in changes.values()}) > 1]
    # If all have the same order and backfilling, the group is still named after these.
    named = [ALGORITHM, BACKFILLING] if varied == [POLICY] else varied
    found = [ReportScenario(name, _group({ALGORITHM: "order", **_choices(run), **changes[name]},
                                   named),
                      changes[name].get(POLICY, "") if POLICY in varied else "", run.choices)
             for name, run in first.items()]
    places = {(one.group, one.series) for one in found}
    if len(places) < len(found) or not all(one.label for one in found):
        return [ReportScenario(one.name, one.name, "", one.choices) for one in found]
    return found


def _changes(run: StudyRun) -> dict[str, str]:
    """Return the keys of a run's scenario."""
    if run.record.get("changes"):
        return {key: str(value) for key, value in run.record["changes"].items()}
    return _choices(run)


def _choices(run: StudyRun) -> dict[str, str]:
    keys = zip((ALGORITHM, BACKFILLING, POLICY), run.choices)
    return {key: value for key, value in keys if value is not None}


def _group(changes: dict[str, str], varied: Sequence[str]) -> str:
    """Return the name of a scenario without its placement: `WFP3 + EASY`, and `Key=value` for other keys."""
    algorithm = changes[ALGORITHM] if ALGORITHM in varied or BACKFILLING in varied else ""
    backfilling = changes.get(BACKFILLING, "") if BACKFILLING in varied else ""
    words = [policy_name(algorithm, backfilling)] if algorithm or backfilling else []
    words += [f"{key.split('.')[-1]}={changes.get(key, '-')}" for key in varied
              if key not in (ALGORITHM, BACKFILLING, POLICY)]
    return " ".join(words)
