"""Reference implementation of the metrics, from their definitions, with loops over jobs. Tests compare
`vrm.results.summary`, which uses arrays, with it.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from dataclasses import dataclass
from itertools import accumulate
from operator import sub
from typing import Any, NamedTuple
from collections.abc import Callable, Iterable, Sequence

from vrm.model import JobState
from vrm.results import metrics
from vrm.results.metrics import THRESHOLD, Finished, Row, Window, jain_index, mean_cores, ran, running, span, waiting
from vrm.results.summary import Distribution

# A state holds the four counters of Load as parts of one integer, so that one addition changes all of
# them: with half a million moments these additions dominate the run time.
_BITS = 40
_MASK = (1 << _BITS) - 1
_QUEUED = 1 << 3 * _BITS
_QUEUED_PROCS = 1 << 2 * _BITS
_RUNNING = 1 << _BITS


def turnaround(row: Finished) -> float:
    """Turnaround (response) time w + r = end - submit, in seconds."""
    return row.end - row.submit


def bounded_slowdown(row: Finished, threshold: float = THRESHOLD) -> float:
    """See `vrm.results.metrics.bounded_slowdown`."""
    return metrics.bounded_slowdown(turnaround(row), running(row), threshold)


def slowdown(row: Finished) -> float:
    """Slowdown (w + r) / r, also called stretch; no unit, at least 1.

    A job that ran 0 s has slowdown 1 if it did not wait, else infinity. Feitelson, Rudolph,
    Schwiegelshohn, Sevcik and Wong, "Theory and practice in parallel job scheduling" (1997).
    """
    run = running(row)
    if run > 0:
        return turnaround(row) / run
    return math.inf if waiting(row) > 0 else 1.0


def per_processor_bounded_slowdown(row: Finished, threshold: float = THRESHOLD) -> float:
    """Bounded slowdown per processor max(1, (w + r) / (p max(r, threshold))); no unit.

    A job that is short only because it uses p processors is not treated as a short job.
    Zotkin and Keleher, "Job-length estimation and performance in backfilling schedulers" (1999).
    """
    if threshold <= 0:
        raise ValueError(f"the threshold must be above 0 s, not {threshold:g}")
    return max(1.0, turnaround(row) / (row.processors * max(running(row), threshold)))


class Load(NamedTuple):
    """The state from `time` (s) on: waiting and running jobs, and the processors of each."""

    time: float
    queued: int
    queued_procs: int
    running: int
    busy_procs: int


def load(rows: Iterable[Finished]) -> list[Load]:
    """Queue and machine over time: one entry for each moment at which something happened.

    An entry is the state after all ends, submissions and starts of its moment. Jobs that never
    ran are left out, because it is unknown when they left the queue.
    """
    times, states = _moments(ran(rows))
    return [Load(time, state >> 3 * _BITS, state >> 2 * _BITS & _MASK, state >> _BITS & _MASK,
                 state & _MASK) for time, state in zip(times, states)]


def _moments(jobs: Iterable[Finished]) -> tuple[list[float], list[int]]:
    """Return the moments at which something happened, and the state after each."""
    changes: dict[float, int] = defaultdict(int)
    for row in jobs:
        waits = _QUEUED + _QUEUED_PROCS * row.processors
        runs = _RUNNING + row.processors
        changes[row.submit] += waits
        changes[row.start] += runs - waits
        changes[row.end] -= runs
    times = sorted(changes)
    return times, list(accumulate(map(changes.__getitem__, times)))


def _spells(jobs: Iterable[Finished], window: Window) -> list[tuple[float, int]]:
    """Return duration (seconds) and state of each interval of the window between two events."""
    first, last = window
    times, states = _moments(jobs)
    if not times or last <= first:
        return []
    begin, end = bisect_right(times, first), bisect_left(times, last)
    states = [states[begin - 1] if begin else 0, *states[begin:end]]
    times = times[begin:end]
    return list(zip(map(sub, [*times, last], [first, *times]), states))


def queue_length(rows: Iterable[Finished], window: Window | None = None) -> Distribution:
    """Waiting jobs over the time of the window (the makespan unless given).

    Each length is weighted by its duration: the mean is over time, and the q-th percentile is the
    smallest length that was not exceeded for a fraction q of the time. `count` is the number of
    intervals between events.
    """
    jobs = ran(rows)
    return _queue_length(_spells(jobs, window or span(jobs)))


def _queue_length(spells: Sequence[tuple[float, int]]) -> Distribution:
    held: dict[int, float] = defaultdict(float)
    for seconds, state in spells:
        held[state >> 3 * _BITS] += seconds
    if not held:
        return Distribution(0, None, None, None, None)
    lengths = sorted(held)
    passed = list(accumulate(held[length] for length in lengths))

    def reached(share: float) -> int:
        return lengths[bisect_left(passed, share * passed[-1])]

    average = math.fsum(length * held[length] for length in lengths) / passed[-1]
    return Distribution(len(spells), average, reached(0.5), reached(0.95), lengths[-1])


def utilisation(rows: Iterable[Finished], processors: int,
                window: Window | None = None) -> float:
    """Share (0 to 1) of the processor time of the window that jobs used: sum(r p) / (P T).

    p is the number of cores that a job held: all cores of each of its ranks, minus what it had lent on
    average; for a job that started on borrowed cores, the cores that it had on average.

    The window is the makespan unless given as (begin, end); jobs that cross its edges count with the
    part inside. Failed and killed jobs count: they held their processors.
    """
    jobs = ran(rows)
    first, last = _window(jobs, processors, window)
    if last <= first:
        return 0.0
    used = math.fsum(mean_cores(row) * (min(row.end, last) - max(row.start, first))
                     for row in jobs if row.end > first and row.start < last)
    return used / (processors * (last - first))


def _window(jobs: Sequence[Finished], processors: int, window: Window | None) -> Window:
    if processors < 1:
        raise ValueError(f"a machine has at least 1 processor, not {processors}")
    return window or span(jobs)


def throughput(rows: Iterable[Finished], window: Window | None = None) -> float:
    """Completed jobs per hour over the window (the makespan unless given); 0 for an empty one."""
    jobs = ran(rows)
    first, last = window or span(jobs)
    if last <= first:
        return 0.0
    done = sum(row.status == JobState.COMPLETED and first <= row.end <= last
               for row in jobs)
    return done * 3600 / (last - first)


def loss_of_capacity(rows: Iterable[Finished], processors: int,
                     window: Window | None = None) -> float:
    """Share (0 to 1) of the machine that idled although waiting jobs wanted it.

    The integral of min(processors wanted by waiting jobs, idle processors) over the window (the
    makespan unless given), divided by processors x window. Capacity that is neither used nor lost
    was not requested. Krevat, Castanos and Moreira, "Job scheduling for the BlueGene/L system" (JSSPP
    2002); Leung, Sabin and Sadayappan, "Parallel job scheduling policies to improve fairness: a
    case study" (ICPP workshops 2010).
    """
    jobs = ran(rows)
    window = _window(jobs, processors, window)
    return _loss_of_capacity(_spells(jobs, window), processors)


def _loss_of_capacity(spells: Sequence[tuple[float, int]], processors: int) -> float:
    total = math.fsum(seconds for seconds, _ in spells)
    lost = math.fsum(
        seconds * max(0, min(state >> 2 * _BITS & _MASK, processors - (state & _MASK)))
        for seconds, state in spells if state >= _QUEUED)
    return lost / (processors * total) if total else 0.0


@dataclass(frozen=True)
class Fairness:
    """Jain's index of the users' means (1: all are equal; 1/n: one user has everything), and the means."""

    index: float | None
    means: dict[str, float]


def fairness(rows: Iterable[Finished],
             metric: Callable[[Any], float] = bounded_slowdown) -> Fairness:
    """Return the mean of the metric over each user's jobs, and Jain's index of these means. Jobs without
    a `user` are left out."""
    values: dict[str, list[float]] = {}
    for row in ran(rows):
        user = getattr(row, "user", None)
        if user not in (None, ""):
            values.setdefault(str(user), []).append(metric(row))
    means = {user: math.fsum(own) / len(own) for user, own in sorted(values.items())}
    return Fairness(jain_index(means.values()), means)


def trim(rows: Iterable[Row], warm_up: float = 0.0, cool_down: float = 0.0) -> list[Row]:
    """Return the jobs submitted at least `warm_up` seconds after the first submission and at least
    `cool_down` seconds before the last: without those that saw the empty machine of the beginning or
    the drained queue of the end. Raises ValueError for negative seconds."""
    if not (warm_up >= 0 and cool_down >= 0):
        raise ValueError("warm-up and cool-down are seconds from 0 on")
    rows = list(rows)
    if not rows:
        return rows
    first = min(row.submit for row in rows) + warm_up
    last = max(row.submit for row in rows) - cool_down
    return [row for row in rows if first <= row.submit <= last]


def summary(rows: Iterable[Finished], processors: int, warm_up: float = 0.0,
            cool_down: float = 0.0, threshold: float = THRESHOLD) -> dict[str, Any]:
    """Return all metrics of the rows from `vrm.results.summary.summarise`; see there."""
    from vrm.results.summary import Moments, summarise
    rows = list(rows)
    counts = {state.value: 0 for state in JobState if state.ended}
    for row in rows:
        counts[row.status] += 1
    columns = columns_of(ran(rows))
    return summarise(columns, Moments.of(columns), counts, processors, warm_up, cool_down,
                     threshold)


def columns_of(jobs: Sequence[Finished]) -> Any:
    """Return jobs that ran as `vrm.results.summary.JobArrays`."""
    import numpy as np
    from vrm.results.summary import JobArrays
    users: dict[str, int] = {"": 0}
    numbers = [users.setdefault(str(getattr(row, "user", None) or ""), len(users))
               for row in jobs]
    submit, start, end = (np.array([getattr(row, name) for row in jobs], float)
                          for name in ("submit", "start", "end"))
    return JobArrays(submit, start, end,
                   np.array([row.processors for row in jobs], np.int64),
                   np.array([row.status == JobState.COMPLETED for row in jobs], bool),
                   np.array(numbers, np.int64), tuple(users))
