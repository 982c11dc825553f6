"""The metrics of parallel job scheduling, computed from finished jobs; times in seconds.

They compare policies on the same workload. Whoever prints one should print what `summary` has
under `method` beside it: threshold, floor, percentile and trimming differ between tools.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from dataclasses import dataclass
from itertools import accumulate
from operator import sub
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Protocol, Sequence, \
    Tuple, TypeVar

from vrm.model.job import JobState

THRESHOLD = 10.0
"""Run time in seconds below which bounded slowdown no longer divides by it."""


class Times(Protocol):
    """When a job came, began and ended (s)."""

    @property
    def submit(self) -> float: ...
    @property
    def start(self) -> Any: ...
    @property
    def end(self) -> Any: ...


class Finished(Times, Protocol):
    """What a metric reads of a job that ended; `JobRow` is one, a simulation may have its own.

    `processors` is the number of cores that the job held: its ranks, times the cores of each.
    `start` and `end` (s) are None when the job never ran. A `user` attribute is read by
    `fairness` where there is one.
    """

    @property
    def status(self) -> str: ...
    @property
    def processors(self) -> int: ...
    @property
    def app_time(self) -> Optional[float]: ...


Row = TypeVar("Row", bound=Finished)
Window = Tuple[float, float]


def ran(rows: Iterable[Row]) -> List[Row]:
    """The jobs that ran, whatever became of them; only they have times to measure."""
    return [row for row in rows if row.start is not None and row.end is not None]


# ------------------------------------------------------------------------------------- per job


def waiting(row: Times) -> float:
    """Waiting time w = start - submit, in seconds."""
    return row.start - row.submit


def running(row: Times) -> float:
    """Running time r = end - start, in seconds: how long the job held its cores."""
    return row.end - row.start


def application_time(row: Finished) -> float:
    """The run time that the application measured itself, in seconds; else `running`.

    It leaves out the launch of the processes, which the application does not see.
    """
    return running(row) if row.app_time is None else row.app_time


def turnaround(row: Finished) -> float:
    """Turnaround (response) time w + r = end - submit, in seconds."""
    return row.end - row.submit


def slowdown(row: Finished) -> float:
    """Slowdown (w + r) / r, also called stretch; no unit, at least 1.

    A job that ran 0 s has slowdown 1 if it did not wait, else infinity. Feitelson, Rudolph,
    Schwiegelshohn, Sevcik and Wong, "Theory and practice in parallel job scheduling" (1997).
    """
    run = running(row)
    if run > 0:
        return turnaround(row) / run
    return math.inf if waiting(row) > 0 else 1.0


def bounded_slowdown(row: Finished, threshold: float = THRESHOLD) -> float:
    """Bounded slowdown max(1, (w + r) / max(r, threshold)); no unit, at least 1.

    The threshold (s) keeps very short jobs from ruling the mean. Feitelson and others (1997)
    as for `slowdown`; 10 s with the floor of 1 is the form of Feitelson, "Metrics for parallel
    job scheduling and their convergence" (2001). Raises ValueError unless the threshold is
    above 0.
    """
    if threshold <= 0:
        raise ValueError(f"the threshold must be above 0 s, not {threshold:g}")
    return max(1.0, turnaround(row) / max(running(row), threshold))


def per_processor_bounded_slowdown(row: Finished, threshold: float = THRESHOLD) -> float:
    """Bounded slowdown per processor max(1, (w + r) / (p max(r, threshold))); no unit.

    It asks no less patience of a job because it made itself short by using p processors.
    Zotkin and Keleher, "Job-length estimation and performance in backfilling schedulers" (1999).
    """
    if threshold <= 0:
        raise ValueError(f"the threshold must be above 0 s, not {threshold:g}")
    return max(1.0, turnaround(row) / (row.processors * max(running(row), threshold)))


# ------------------------------------------------------------------------------- distributions


@dataclass(frozen=True)
class Distribution:
    """Mean, median, 95th percentile and maximum of `count` values; None when there are none.

    A percentile is interpolated linearly between the two nearest values in order: the q-th lies
    at rank q (count - 1), counted from 0 (type 7 of Hyndman and Fan, "Sample quantiles in
    statistical packages", 1996; what numpy and R do unless told otherwise).
    """

    count: int
    mean: Optional[float]
    median: Optional[float]
    p95: Optional[float]
    maximum: Optional[float]


def distribution(values: Iterable[float]) -> Distribution:
    """The distribution of the values."""
    ordered = sorted(values)
    if not ordered:
        return Distribution(0, None, None, None, None)
    return Distribution(len(ordered), math.fsum(ordered) / len(ordered),
                        percentile(ordered, 0.5), percentile(ordered, 0.95), ordered[-1])


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value below which `share` (0 to 1) of the values lie; see `Distribution`.

    `ordered` is sorted, lowest first. Raises ValueError when it is empty.
    """
    if not ordered:
        raise ValueError("no values have no percentile")
    rank = share * (len(ordered) - 1)
    below = int(rank)
    if rank == below:
        return ordered[below]
    part = rank - below
    return ordered[below] * (1 - part) + ordered[below + 1] * part


# --------------------------------------------------------------------------------- the machine


def span(rows: Iterable[Finished]) -> Window:
    """First submission and last end of the jobs that ran, in seconds; (0, 0) if none ran."""
    jobs = ran(rows)
    if not jobs:
        return 0.0, 0.0
    return min(row.submit for row in jobs), max(row.end for row in jobs)


def makespan(rows: Iterable[Finished]) -> float:
    """Last end less first submission of the jobs that ran, in seconds.

    The convention of Feitelson's archive and of Batsim; some tools count from the first start.
    """
    first, last = span(rows)
    return last - first


def utilisation(rows: Iterable[Finished], processors: int,
                window: Optional[Window] = None) -> float:
    """Share (0 to 1) of the processor time of the window that jobs used: sum(r p) / (P T).

    p is the number of cores that a job held, all cores of each of its ranks.

    The window is the makespan unless given as (begin, end); of jobs that reach over its edges
    the part within counts. Failed and killed jobs count: they held their processors.
    """
    jobs = ran(rows)
    first, last = _window(jobs, processors, window)
    if last <= first:
        return 0.0
    used = math.fsum(row.processors * (min(row.end, last) - max(row.start, first))
                     for row in jobs if row.end > first and row.start < last)
    return used / (processors * (last - first))


class Load(NamedTuple):
    """The state from `time` (s) on: waiting and running jobs, and the processors of each."""

    time: float
    queued: int
    queued_procs: int
    running: int
    busy_procs: int


def load(rows: Iterable[Finished]) -> List[Load]:
    """Queue and machine over time: one entry for each moment at which something happened.

    An entry is what holds after all ends, submissions and starts of its moment. Jobs that never
    ran are left out, for when they left the queue is not known.
    """
    times, states = _moments(ran(rows))
    return [Load(time, state >> 3 * _BITS, state >> 2 * _BITS & _MASK, state >> _BITS & _MASK,
                 state & _MASK) for time, state in zip(times, states)]


# A state is the four counters of Load as parts of one integer, so that a job changes all of them
# with one addition: with half a million moments that is what takes the time.
_BITS = 40
_MASK = (1 << _BITS) - 1
_QUEUED = 1 << 3 * _BITS
_QUEUED_PROCS = 1 << 2 * _BITS
_RUNNING = 1 << _BITS


def _moments(jobs: Iterable[Finished]) -> Tuple[List[float], List[int]]:
    """The moments at which something happened, and the state after each."""
    changes: Dict[float, int] = defaultdict(int)
    for row in jobs:
        waits = _QUEUED + _QUEUED_PROCS * row.processors
        runs = _RUNNING + row.processors
        changes[row.submit] += waits
        changes[row.start] += runs - waits
        changes[row.end] -= runs
    times = sorted(changes)
    return times, list(accumulate(map(changes.__getitem__, times)))


def _spells(jobs: Iterable[Finished], window: Window) -> List[Tuple[float, int]]:
    """Seconds and state of each stretch of the window in which nothing happened."""
    first, last = window
    times, states = _moments(jobs)
    if not times or last <= first:
        return []
    begin, end = bisect_right(times, first), bisect_left(times, last)
    states = [states[begin - 1] if begin else 0, *states[begin:end]]
    times = times[begin:end]
    return list(zip(map(sub, [*times, last], [first, *times]), states))


def queue_length(rows: Iterable[Finished], window: Optional[Window] = None) -> Distribution:
    """Waiting jobs over the time of the window (the makespan unless given).

    Each length weighs as many seconds as it held: the mean is that of time, and the q-th
    percentile the smallest length that was not exceeded for a share q of the time. `count` is
    the number of different stretches.
    """
    jobs = ran(rows)
    return _queue_length(_spells(jobs, window or span(jobs)))


def _queue_length(spells: Sequence[Tuple[float, int]]) -> Distribution:
    held: Dict[int, float] = defaultdict(float)
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


def throughput(rows: Iterable[Finished], window: Optional[Window] = None) -> float:
    """Completed jobs per hour over the window (the makespan unless given); 0 for an empty one."""
    jobs = ran(rows)
    first, last = window or span(jobs)
    if last <= first:
        return 0.0
    done = sum(row.status == JobState.COMPLETED and first <= row.end <= last
               for row in jobs)
    return done * 3600 / (last - first)


def loss_of_capacity(rows: Iterable[Finished], processors: int,
                     window: Optional[Window] = None) -> float:
    """Share (0 to 1) of the machine that idled although waiting jobs wanted it.

    The integral of min(processors wanted by waiting jobs, idle processors) over the window (the
    makespan unless given), divided by processors x window. What is neither used nor lost nobody
    asked for. Krevat, Castanos and Moreira, "Job scheduling for the BlueGene/L system" (JSSPP
    2002); Leung, Sabin and Sadayappan, "Parallel job scheduling policies to improve fairness: a
    case study" (ICPP workshops 2010).
    """
    jobs = ran(rows)
    window = _window(jobs, processors, window)
    return _loss_of_capacity(_spells(jobs, window), processors)


def _loss_of_capacity(spells: Sequence[Tuple[float, int]], processors: int) -> float:
    total = math.fsum(seconds for seconds, _ in spells)
    lost = math.fsum(
        seconds * max(0, min(state >> 2 * _BITS & _MASK, processors - (state & _MASK)))
        for seconds, state in spells if state >= _QUEUED)
    return lost / (processors * total) if total else 0.0


def _window(jobs: Sequence[Finished], processors: int, window: Optional[Window]) -> Window:
    if processors < 1:
        raise ValueError(f"a machine has at least 1 processor, not {processors}")
    return window or span(jobs)


# ------------------------------------------------------------------------------------ fairness


@dataclass(frozen=True)
class Fairness:
    """Jain's index of the users' means (1: all fare alike, 1/n: one bears all), and the means."""

    index: Optional[float]
    means: Dict[str, float]


def jain_index(values: Iterable[float]) -> Optional[float]:
    """Jain's fairness index (sum x)^2 / (n sum x^2), from 1/n to 1; None of no values.

    Jain, Chiu and Hawe, "A quantitative measure of fairness and discrimination for resource
    allocation in shared computer systems" (DEC TR-301, 1984). All 0 is 1: nobody fares worse.
    """
    numbers = list(values)
    if not numbers:
        return None
    largest = max(map(abs, numbers))
    if largest == 0:
        return 1.0
    shares = [number / largest for number in numbers]  # keeps the squares from overflowing
    return math.fsum(shares) ** 2 / (len(shares) * math.fsum(share * share for share in shares))


def fairness(rows: Iterable[Finished],
             metric: Callable[[Any], float] = bounded_slowdown) -> Fairness:
    """How evenly the users fare: the mean of the metric over each user's jobs, and Jain's index
    of these means. Jobs without a `user` are left out."""
    values: Dict[str, List[float]] = {}
    for row in ran(rows):
        user = getattr(row, "user", None)
        if user not in (None, ""):
            values.setdefault(str(user), []).append(metric(row))
    means = {user: math.fsum(own) / len(own) for user, own in sorted(values.items())}
    return Fairness(jain_index(means.values()), means)


# ------------------------------------------------------------------------------------ trimming


def trim(rows: Iterable[Row], warm_up: float = 0.0, cool_down: float = 0.0) -> List[Row]:
    """The jobs submitted no earlier than `warm_up` seconds after the first submission and no
    later than `cool_down` seconds before the last: those that met neither the empty machine of
    the beginning nor the drained queue of the end. Raises ValueError for negative seconds."""
    if not (warm_up >= 0 and cool_down >= 0):
        raise ValueError("warm-up and cool-down are seconds from 0 on")
    rows = list(rows)
    if not rows:
        return rows
    first = min(row.submit for row in rows) + warm_up
    last = max(row.submit for row in rows) - cool_down
    return [row for row in rows if first <= row.submit <= last]


# ------------------------------------------------------------------------------------- results


def summary(rows: Iterable[Finished], processors: int, warm_up: float = 0.0,
            cool_down: float = 0.0, threshold: float = THRESHOLD) -> Dict[str, Any]:
    """All metrics of the rows, by `vrm.results.summary.summarise`, which says more."""
    from vrm.results.summary import Moments, summarise
    rows = list(rows)
    counts = {state.value: 0 for state in JobState if state.ended}
    for row in rows:
        counts[row.status] += 1
    columns = columns_of(ran(rows))
    return summarise(columns, Moments.of(columns), counts, processors, warm_up, cool_down,
                     threshold)


def columns_of(jobs: Sequence[Finished]) -> Any:
    """Jobs that ran, as `vrm.results.summary.Columns`."""
    import numpy as np
    from vrm.results.summary import Columns
    users: Dict[str, int] = {"": 0}
    numbers = [users.setdefault(str(getattr(row, "user", None) or ""), len(users))
               for row in jobs]
    submit, start, end = (np.array([getattr(row, name) for row in jobs], float)
                          for name in ("submit", "start", "end"))
    return Columns(submit, start, end,
                   np.array([row.processors for row in jobs], np.int64),
                   np.array([row.status == JobState.COMPLETED for row in jobs], bool),
                   np.array(numbers, np.int64), tuple(users))


def closing_line(algorithm: str, backfilling: Any, rows: Iterable[Finished]) -> str:
    """The last line of a run: `FCFS(0): (30.05, 44.62, 74.67)`.

    Averages in seconds of waiting, running and turnaround over the completed jobs. As in the
    founding work running is the application's own time where it gave one, and turnaround the sum
    of the two. `backfilling` prints as 0 for none and 1 for EASY, else as it is.
    """
    name = {"none": "0", "false": "0", "easy": "1", "true": "1"}.get(
        str(backfilling).lower(), str(backfilling))
    jobs = [row for row in ran(rows) if row.status == JobState.COMPLETED]
    if not jobs:
        return f"{algorithm}({name}): no job completed"
    return f"{algorithm}({name}): {_means(jobs)}"


def closing_words(rows: Iterable[Finished]) -> str:
    """The figures of the closing line with their names and units; empty where there are none."""
    jobs = [row for row in ran(rows) if row.status == JobState.COMPLETED]
    if not jobs:
        return ""
    waits, runs, both = _means(jobs)
    return (f"mean of {len(jobs)} completed job{'s' * (len(jobs) > 1)}: {waits} s waiting, {runs} "
            f"s running, {both} s from submission to end")


def _means(jobs: Sequence[Finished]) -> Tuple[float, float, float]:
    """Mean seconds of waiting, running and both."""
    waits = math.fsum(map(waiting, jobs)) / len(jobs)
    runs = math.fsum(map(application_time, jobs)) / len(jobs)
    return round(waits, 2), round(runs, 2), round(waits + runs, 2)
