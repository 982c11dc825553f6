"""The metrics of parallel job scheduling, computed from finished jobs; times in seconds.

Here are the definitions, and the figures printed at the end of a live run, which does not load numpy;
`vrm.results.summary` computes all metrics of a run at once.
"""

from __future__ import annotations

import math
from typing import Any, Protocol, \
    TypeVar
from collections.abc import Iterable, Sequence

from vrm.model.job import JobState

THRESHOLD = 10.0
"""Run time in seconds below which bounded slowdown no longer divides by it."""


class Times(Protocol):
    """Submission, start and end of a job (s)."""

    @property
    def submit(self) -> float: ...
    @property
    def start(self) -> Any: ...
    @property
    def end(self) -> Any: ...


class Finished(Times, Protocol):
    """The values of an ended job that metrics need; `JobRow` has them, a simulation may have its own class.

    `processors` is the number of cores that the job held: its ranks, times the cores of each. `start` and `end` (s)
    are None if the job never ran. A `user` attribute is read by `fairness` if there is one.
    """

    @property
    def status(self) -> str: ...
    @property
    def processors(self) -> int: ...
    @property
    def app_time(self) -> float | None: ...


Row = TypeVar("Row", bound=Finished)
Window = tuple[float, float]


def ran(rows: Iterable[Row]) -> list[Row]:
    """Return the jobs that ran, whatever their end state; only they have times."""
    return [row for row in rows if row.start is not None and row.end is not None]


# ------------------------------------------------------------------------------------- per job


def waiting(row: Times) -> float:
    """Return the waiting time w = start - submit, in seconds."""
    seconds: float = row.start - row.submit
    return seconds


def running(row: Times) -> float:
    """Return the running time r = end - start, in seconds: how long the job held its cores."""
    seconds: float = row.end - row.start
    return seconds


def application_time(row: Finished) -> float:
    """Return the run time that the application measured itself, in seconds; else `running`.

    It does not include the launch of the processes, which the application cannot measure.
    """
    return running(row) if row.app_time is None else row.app_time


def bounded_slowdown(response: float, run: float, threshold: float = THRESHOLD) -> float:
    """Bounded slowdown max(1, (w + r) / max(r, threshold)); no unit, at least 1. `response` is w + r.

    The threshold (s) keeps very short jobs from ruling the mean. Feitelson, Rudolph, Schwiegelshohn, Sevcik and
    Wong, "Theory and practice in parallel job scheduling" (1997); 10 s with the floor of 1 is the form of Feitelson,
    "Metrics for parallel job scheduling and their convergence" (2001). Raises ValueError unless the threshold is
    above 0.
    """
    if threshold <= 0:
        raise ValueError(f"the threshold must be above 0 s, not {threshold:g}")
    return max(1.0, response / max(run, threshold))


# --------------------------------------------------------------------------------- the machine


def span(rows: Iterable[Finished]) -> Window:
    """Return the first submission and last end of the jobs that ran, in seconds; (0, 0) if none ran."""
    jobs = ran(rows)
    if not jobs:
        return 0.0, 0.0
    return min(row.submit for row in jobs), max(row.end for row in jobs)


def makespan(rows: Iterable[Finished]) -> float:
    """Return the last end minus the first submission of the jobs that ran, in seconds.

    The convention of Feitelson's archive and of Batsim; some tools count from the first start.
    """
    first, last = span(rows)
    return last - first


def mean_cores(row: Finished) -> float:
    """Return the average number of cores that a job used: all cores of its ranks minus those that it had lent; for a
    job that started on borrowed cores, the average of the cores that it had."""
    lent: float = getattr(row, "lent", 0.0)
    borrowed: float = getattr(row, "borrowed", 0.0)
    if borrowed:
        return borrowed / running(row)
    return row.processors - lent / running(row) if lent else row.processors


def idle_while_waiting(rows: Iterable[Finished], processors: int, window: Window | None = None) -> float:
    """Return the share (0 to 1) of the processor time of the window that was idle although waiting jobs requested it.

    At each time the smaller one of the idle cores and the requested cores counts, as for the loss of capacity of
    `vrm.results.summary`. A job that had to wait for another reason (`after`, `begin`, `hold`) does not count as
    waiting. The window is the makespan unless given as (begin, end).
    """
    jobs = ran(rows)
    first, last = window or span(jobs)
    if window:
        jobs = [row for row in jobs if row.end > first]
    changes: dict[float, list[float]] = {}
    for row in jobs:
        wanted = 0 if any(getattr(row, name, None) for name in ("after", "begin", "hold")) else row.processors
        for time, wants, uses in ((row.submit, wanted, 0.0), (row.start, -wanted, mean_cores(row)),
                                  (row.end, 0, -mean_cores(row))):
            change = changes.setdefault(min(max(time, first), last), [0.0, 0.0])
            change[0] += wants
            change[1] += uses
    times, waits, used = sorted(changes), 0.0, 0.0
    lost: list[float] = []
    for time, later in zip(times, times[1:]):
        waits += changes[time][0]
        used += changes[time][1]
        lost.append((later - time) * max(0.0, min(waits, processors - used)))
    return math.fsum(lost) / (processors * (last - first)) if last > first else 0.0


# ------------------------------------------------------------------------------------ fairness


def jain_index(values: Iterable[float]) -> float | None:
    """Return Jain's fairness index (sum x)^2 / (n sum x^2), from 1/n to 1; None if there are no values.

    Jain, Chiu and Hawe, "A quantitative measure of fairness and discrimination for resource allocation in shared
    computer systems" (DEC TR-301, 1984). If all values are 0 it is 1: no value is worse than another.
    """
    numbers = list(values)
    if not numbers:
        return None
    largest = max(map(abs, numbers))
    if largest == 0:
        return 1.0
    shares = [number / largest for number in numbers]  # prevents overflow of the squares
    return math.fsum(shares) ** 2 / (len(shares) * math.fsum(share * share for share in shares))


# ------------------------------------------------------------------------------------- results


def closing_line(algorithm: str, backfilling: Any, rows: Iterable[Finished]) -> str:
    """Return the last line of a run: `FCFS(0): (30.05, 44.62, 74.67)`.

    Averages in seconds of waiting, running and turnaround over the completed jobs. As in the original work, running
    is the application's own measurement if there is one, and turnaround the sum of the two. `backfilling` is shown as
    0 for none and 1 for EASY, else unchanged.
    """
    name = {"none": "0", "false": "0", "easy": "1", "true": "1"}.get(
        str(backfilling).lower(), str(backfilling))
    jobs = [row for row in ran(rows) if row.status == JobState.COMPLETED]
    if not jobs:
        return f"{algorithm}({name}): no job completed"
    return f"{algorithm}({name}): {_means(jobs)}"


def closing_figures(rows: Iterable[Finished]) -> str:
    """Return the figures of the closing line with their names and units; empty if there are none."""
    jobs = [row for row in ran(rows) if row.status == JobState.COMPLETED]
    if not jobs:
        return ""
    waits, runs, both = _means(jobs)
    return (f"mean of {len(jobs)} completed job{'s' * (len(jobs) > 1)}: {waits} s waiting, {runs} "
            f"s running, {both} s from submission to end")


IDLE = 0.2
"""Share of the core time that was idle while jobs waited, above which a line about it is printed."""


def idle_text(share: float, policy: str, vrm: str) -> str:
    """Return the message at a run's end about core time that was idle while jobs waited, with what to type; empty if
    the share is at most IDLE."""
    if share <= IDLE:
        return ""
    what = (f"`{vrm} advise` compares other rules" if policy == "pack" else
            f"`Policy: pack` lets jobs share nodes, `{vrm} advise --placements {policy},pack` compares")
    return f"{100 * share:.0f} % of the core time was idle while jobs waited: {what}"


def _means(jobs: Sequence[Finished]) -> tuple[float, float, float]:
    """Return the mean seconds of waiting, of running and of both together."""
    waits = math.fsum(map(waiting, jobs)) / len(jobs)
    runs = math.fsum(map(application_time, jobs)) / len(jobs)
    return round(waits, 2), round(runs, 2), round(waits + runs, 2)
