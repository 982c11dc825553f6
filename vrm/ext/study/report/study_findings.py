"""Describes the results of a study in sentences."""

from __future__ import annotations

from typing import (Any)
from collections.abc import Iterator

from vrm.ext.study.report.study import MAIN, ReportScenario, Study, applications
from vrm.results.names import policy_name, time_text
from vrm.ext.study.confidence import interval


def findings(study: Study) -> list[str]:
    """Return the results as sentences."""
    jobs = sum(len(run.table) for run in study.runs)
    done = sum(run.done for run in study.runs)
    failed = f"{jobs - done} of {jobs} jobs did not complete and are left out of the averages" \
        if done < jobs else f"all {jobs} jobs completed"
    said = [f"{count(len(study.scenarios), 'scenario')}, {count(len(study.queues), 'queue')}, "
            f"{count(study.repetitions, 'repetition')}: {count(len(study.runs), 'run')}, in "
            f"which {failed}."]
    if study.missing:
        said.append(f"{count(study.missing, 'planned run')} more "
                    f"{'is' if study.missing == 1 else 'are'} not complete.")
    for queue in study.queues:
        said += _best_scenario_sentences(study, queue)
    for series in study.series[1:]:
        said += _change_sentences(study, series)
    said += _backfilling_sentences(study)
    said += _pair_sentences(study)
    said += _different_jobs_sentence(study)
    if study.repetitions < 2:
        said.append("Nothing was repeated, so these figures have no confidence intervals: small "
                    "differences may be chance.")
    return said


def _best_scenario_sentences(study: Study, queue: str) -> Iterator[str]:
    """Yield the scenario with the shortest turnaround on a queue, if it differs by more than the scatter.

    It is compared with each other scenario by the differences within repetitions. Without repetitions the scatter
    is unknown, and the scenarios are only ranked.
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
        shown = [f"{one.label or one.name} {time_text(known[one].mean)}" for one in ranked[:MAX_RANKED]]
        more = f", ...; last {worst.label or worst.name} {time_text(high)}" \
            if len(ranked) > MAX_RANKED else ""
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
        others = ", ".join(one.label or one.name for one in level[:MAX_RANKED])
        more = f" and {len(level) - MAX_RANKED} more" if len(level) > MAX_RANKED else ""
        yield (f"{jobs_were} back after {time_text(low)} on average under {name}, but no "
               f"sooner beyond the scatter of the repetitions than under {others}{more}; latest "
               f"under {worst.label or worst.name}, after {time_text(high)}.")


MAX_RANKED = 3  # number of scenarios that a sentence names


def _beyond(study: Study, one: ReportScenario, other: ReportScenario, queue: str | None) -> bool:
    """Return whether turnaround under two scenarios differs by more than the scatter of the differences within
    repetitions, which share the state of the machine, or the random queue."""
    first = study.values(one.name, "turnaround", queue)
    second = study.values(other.name, "turnaround", queue)
    common = sorted(set(first) & set(second))
    return len(common) > 1 and interval([second[number] - first[number]
                                         for number in common]).excludes_zero


def _percent(large: float, small: float) -> str:
    share = 100 * (1 - small / large) if large > 0 else 0.0
    return f"{share:.0f} %" if share >= 1 else "less than 1 %"


def _different_jobs_sentence(study: Study) -> Iterator[str]:
    """Yield a warning if the scenarios did not run the same jobs on a queue and cannot be compared."""
    first: dict[tuple[str, int], tuple[Any, ...]] = {}
    others = []
    for run in study.runs:
        work = run.table.work
        if first.setdefault((run.queue, run.repetition), work) != work:
            others.append(run.scenario)
    if others:
        yield f"Other jobs than in the first run ran in {', '.join(dict.fromkeys(others))}: " \
              "these cannot be compared."


def count(number: int, what: str) -> str:
    """Return `3 runs`, `1 run`."""
    return f"{number} {what}{'s' * (number != 1)}"


def _change_sentences(study: Study, series: str) -> Iterator[str]:
    base, parts = study.series[0], []
    for name in MAIN:
        changes = [change for change in (study.change(group, series, name, queue)
                                         for queue in study.averaged_queues for group in study.groups)
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
        groups = count(len(study.groups) * len(study.averaged_queues), "pair") + " of scenarios"
        yield f"Under {series}, against {base}, over {groups}: {'; '.join(parts)}."


def _reach(low: float, high: float) -> str:
    """Return a range of changes as text: `-13 to 0 %`."""
    words = [f"{round(value):+d}" if round(value) else "0" for value in (low, high)]
    return f"{' to '.join(dict.fromkeys(words))} %"


def _backfilling_sentences(study: Study) -> Iterator[str]:
    changes = []
    for one in study.scenarios:
        algorithm, _backfilling, _ = one.choices
        plain = study.scenario(policy_name(algorithm), one.series) if algorithm else None
        if plain is None or one.group != policy_name(algorithm, "easy") != plain.group:
            continue
        for queue in study.averaged_queues:
            before, after = (study.mean(each.name, "waiting", queue) for each in (plain, one))
            if before and after and before.mean > 0:
                changes.append(100 * (after.mean / before.mean - 1))
    if changes:
        reach = _reach(min(changes), max(changes))
        yield f"With EASY backfilling against without: waiting {reach}."


def _pair_sentences(study: Study) -> Iterator[str]:
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
