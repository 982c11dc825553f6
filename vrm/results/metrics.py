"""The metrics of parallel job scheduling, computed from finished jobs; times in seconds.

They compare policies on the same workload. Whoever prints one should print what `summary` has
under `method` beside it: threshold, floor, percentile and trimming differ between tools.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Iterable, List, Optional, Protocol, Sequence, \
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
    if not len(ordered):
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

    p is the number of cores that a job held, all cores of each of its ranks, less what it had lent on
    average; of one that started on borrowed cores those that it had on average.

    The window is the makespan unless given as (begin, end); of jobs that reach over its edges
    the part within counts. Failed and killed jobs count: they held their processors.
    """
    jobs = ran(rows)
    first, last = _window(jobs, processors, window)
    if last <= first:
        return 0.0
    used = math.fsum(_mean_cores(row) * (min(row.end, last) - max(row.start, first))
                     for row in jobs if row.end > first and row.start < last)
    return used / (processors * (last - first))


def _mean_cores(row: Finished) -> float:
    lent: float = getattr(row, "lent", 0.0)
    borrowed: float = getattr(row, "borrowed", 0.0)
    if borrowed:
        return borrowed / (row.end - row.start)
    return row.processors - lent / (row.end - row.start) if lent else row.processors


def _window(jobs: Sequence[Finished], processors: int, window: Optional[Window]) -> Window:
    if processors < 1:
        raise ValueError(f"a machine has at least 1 processor, not {processors}")
    return window or span(jobs)


# ------------------------------------------------------------------------------------ fairness


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


# ------------------------------------------------------------------------------------- results


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
