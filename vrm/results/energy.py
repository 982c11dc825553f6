"""Energy and power of jobs that have run: columns of `jobs.csv`, figures of a run, and the power of all jobs over
time. Idle nodes are left out, as in the definition of the EAMC experiments (M. D'Amico, PhD thesis, UPC, 2021,
chapter 6)."""

from __future__ import annotations

import math
from typing import Any, NamedTuple
from collections.abc import Iterable, Sequence

MOST = 1e30
"""Larger numbers are not accepted as a power in watts or an energy in joules."""


class PowerSpan(NamedTuple):
    """Start and end of a job (seconds), its mean power in watts (0: unknown) and its frequency in GHz (0: the nodes'
    default)."""

    start: float
    end: float
    watts: float
    frequency: float = 0.0

    @property
    def joules(self) -> float:
        """Its energy in joules."""
        return self.watts * (self.end - self.start)


def columns_of(drawn: PowerSpan) -> dict[str, float]:
    """Return the columns of `jobs.csv`: `frequency` (GHz), `energy` (J) and `power` (mean W)."""
    return {"frequency": drawn.frequency, "energy": round(drawn.joules, 3), "power": round(drawn.watts, 3)}


def power_of_rows(rows: Iterable[Any]) -> list[PowerSpan]:
    """Return the power of the jobs of a list (`vrm.results.jobs.JobRow`) that ran. Invalid numbers in the list count
    as unknown."""
    return [PowerSpan(row.start, row.end, _known(row.power) or (
        _known(row.energy) / (row.end - row.start) if row.end > row.start else 0.0), _known(row.frequency))
        for row in rows if row.start is not None and row.end is not None]


def _known(value: float | None) -> float:
    return value if value is not None and 0 < value < MOST else 0.0


def energy_of(jobs: Sequence[PowerSpan]) -> dict[str, Any]:
    """Return figures of a run: `energy` of the jobs in J, their mean power over the makespan (W), the highest power
    at any time (W), the mean frequency (GHz), weighted by run time, of jobs that have one, and the number of jobs of
    unknown power. Empty if the power of no job is known."""
    known = [job for job in jobs if job.watts]
    if not known:
        return {}
    joules = math.fsum(job.joules for job in known)
    span = max(job.end for job in jobs) - min(job.start for job in jobs)
    seconds = math.fsum(job.end - job.start for job in jobs if job.frequency)
    return {"energy": joules, "mean_power": joules / span if span > 0 else 0.0,
            "highest_power": max((watts for _, watts in power_over_time(known)), default=0.0),
            **({"average_frequency": math.fsum(job.frequency * (job.end - job.start) for job in jobs)
                / seconds} if seconds > 0 else {}),
            "jobs_of_unknown_power": len(jobs) - len(known)}


def power_over_time(jobs: Iterable[PowerSpan]) -> list[tuple[float, float]]:
    """Return the total power of all jobs as pairs: a time (seconds), and the watts from then on."""
    changes: dict[float, list[float]] = {}
    for job in jobs:
        if job.watts and job.end > job.start:
            changes.setdefault(job.start, []).append(job.watts)
            changes.setdefault(job.end, []).append(-job.watts)
    found: list[tuple[float, float]] = []
    total = 0
    for time in sorted(changes):  # whole microwatts: an end subtracts exactly what the start added
        total += sum(round(each * 1e6) for each in changes[time])
        found.append((time, total / 1e6))
    return found
