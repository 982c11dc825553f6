"""Energy and power of jobs that have run: columns of `jobs.csv`, figures of a run, and the power of all
jobs over time. Idle nodes are left out, as in the definition of the EAMC experiments (M. D'Amico, PhD
thesis, UPC, 2021, chapter 6)."""

from __future__ import annotations

import math
from typing import Any, NamedTuple
from collections.abc import Iterable, Sequence

MOST = 1e30
"""What is more is not a power in watts, and no energy in joules."""


class Drawn(NamedTuple):
    """When a job ran (seconds), its mean watts (0: not known) and frequency in GHz (0: the nodes' own)."""

    start: float
    end: float
    watts: float
    frequency: float = 0.0

    @property
    def joules(self) -> float:
        """Its energy."""
        return self.watts * (self.end - self.start)


def columns_of(drawn: Drawn) -> dict[str, float]:
    """The columns of `jobs.csv`: `frequency` (GHz), `energy` (J) and `power` (mean W)."""
    return {"frequency": drawn.frequency, "energy": round(drawn.joules, 3), "power": round(drawn.watts, 3)}


def drawn_of(rows: Iterable[Any]) -> list[Drawn]:
    """What the jobs of a list (`vrm.results.jobs.JobRow`) have drawn, of those that ran. What is not a number there is
    not known."""
    return [Drawn(row.start, row.end, _known(row.power) or (
        _known(row.energy) / (row.end - row.start) if row.end > row.start else 0.0), _known(row.frequency))
        for row in rows if row.start is not None and row.end is not None]


def _known(value: float | None) -> float:
    return value if value is not None and 0 < value < MOST else 0.0


def energy_of(jobs: Sequence[Drawn]) -> dict[str, Any]:
    """Figures of a run: `energy` of the jobs in J, their mean power over the makespan (W), the most at a
    moment (W), the mean frequency (GHz) by run time of those that have one, and how many are `unknown`."""
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


def power_over_time(jobs: Iterable[Drawn]) -> list[tuple[float, float]]:
    """The power of all jobs together: from each time (seconds) on, so many watts."""
    changes: dict[float, list[float]] = {}
    for job in jobs:
        if job.watts and job.end > job.start:
            changes.setdefault(job.start, []).append(job.watts)
            changes.setdefault(job.end, []).append(-job.watts)
    found: list[tuple[float, float]] = []
    total = 0
    for time in sorted(changes):  # whole microwatts: what ends takes exactly what it brought
        total += sum(round(each * 1e6) for each in changes[time])
        found.append((time, total / 1e6))
    return found
