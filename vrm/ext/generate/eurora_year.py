"""A synthetic workload like that of Eurora (CINECA) from April 2014 to May 2015, defined by parameters: the real one
is not public.

Numbers of jobs, mean and longest run times by class, queues, and the jobs of five months are those of A. Netti,
"Development of data-driven dispatching heuristics for heterogeneous HPC systems" (master's thesis, Bologna, 2017;
table 3.2, sections 3 and 6.3). The thesis does not give the following, which are chosen here: requests and lengths of
campaigns (from five days of the real machine: PA-HPC-SIM's traces, rounded); the spread of run times (log-normal, cut
at the longest); queues, users and names; the hours of a day. The months without data share the remaining jobs.
"""

from __future__ import annotations

import math
from datetime import datetime, timezone
from functools import cache
from statistics import NormalDist
from collections.abc import Iterable

from vrm.model.job import Request
from vrm.ext.generate.campaign_model import HOURS, POINTS, Model, Period, Stratum, zipf

STANDARD, MIC, GPU = "standard", "mic", "gpu"

JOBS = {STANDARD: 85046, MIC: 2500, GPU: 284774}
"""Number of jobs of each class in the whole period."""

MEAN = {STANDARD: 2856.0, MIC: 3388.0, GPU: 383.0}
LONGEST = {STANDARD: 62918.0, MIC: 29546.0, GPU: 84834.0}
"""Mean and longest run times in seconds."""

SPREAD = {STANDARD: 2.2, MIC: 1.9, GPU: 1.9}
"""Standard deviations of the logarithm of run times, before they are cut."""

MONTHS: dict[tuple[int, int], tuple[int, int, int]] = {
    (2014, 5): (1519, 20, 3393), (2014, 6): (534, 25, 5646), (2014, 8): (7099, 192, 40676),
    (2014, 9): (8868, 622, 68296), (2015, 1): (2993, 94, 43681)}
"""Numbers of standard, MIC and GPU jobs in the months for which they are known."""

QUEUES = {"debug": 1800.0, "parallel": 21600.0, "longpar": 86400.0}
"""Queues with their limits (seconds); a queue has the jobs whose run times it allows."""

SHARES = {STANDARD: (0.45, 0.50, 0.05), MIC: (0.40, 0.55, 0.05), GPU: (0.15, 0.84, 0.01)}
"""Shares of the jobs of a class in the queues debug, parallel and longpar."""

_UNITS = {STANDARD: ((1, 95.2), (2, 2.9), (4, 0.5), (6, 0.3), (8, 0.6), (11, 0.3), (16, 0.15), (32, 0.05)),
          MIC: ((1, 84.4), (2, 12.5), (4, 2.0), (6, 1.1)),
          GPU: ((1, 96.5), (2, 1.1), (4, 1.4), (8, 0.8), (16, 0.15), (32, 0.05))}
_CORES = {STANDARD: ((1, 63.0), (4, 1.9), (8, 23.0), (12, 1.5), (14, 1.3), (16, 9.3)),
          MIC: ((1, 3.1), (2, 12.5), (8, 25.0), (16, 59.4)),
          GPU: ((1, 56.3), (2, 15.0), (6, 4.1), (8, 5.8), (16, 18.8))}
_DEVICES = {MIC: ((1, 90.0), (2, 10.0)), GPU: ((1, 61.9), (2, 38.1))}
_MEMORY = {STANDARD: ((1, 23.3), (2, 1.8), (4, 55.4), (8, 9.2), (12, 4.0), (14, 6.3)),
           MIC: ((1, 9.4), (2, 9.4), (7, 28.1), (14, 53.1)),
           GPU: ((1, 67.2), (2, 5.3), (4, 13.4), (8, 3.3), (12, 3.4), (14, 7.4))}
"""Distributions, in per cent: the units of a job (each unit runs on one node), and of each unit the cores, devices and
GiB."""

MOST_UNITS = {"debug": 2, "parallel": 32, "longpar": 16}

_LENGTHS = (1, 1, 1, 1, 1, 1, 2, 3, 5, 9, 20, 60, 170, 490)
"""Lengths of campaigns at equally spaced shares: half of them are single jobs, and the mean is about 50."""

_GAPS = (0, 0, 0, 0, 1, 1, 2, 10, 97, 540)

_HOURS = tuple((1.0 if hour // 24 < 5 else 0.4)
               * (0.35 + 0.65 * max(0.0, math.sin(math.pi * (hour % 24 - 7) / 14))) for hour in range(HOURS))
"""Working days from 7 to 21 h, and quieter weekends."""


@cache
def model() -> Model:
    """Return the model of 372,320 jobs."""
    begin, months = datetime(2014, 4, 1, tzinfo=timezone.utc), []
    strata: list[Stratum] = []
    kinds: list[tuple[str, float]] = []
    for kind in (STANDARD, MIC, GPU):
        runs = _runs(kind)
        shortest = 0
        for queue, share in zip(QUEUES, SHARES[kind]):
            part = runs[shortest:shortest + round(share * len(runs))]
            shortest += len(part)
            strata.append(Stratum(kind, queue, round(share * JOBS[kind]), tuple(_shapes(kind, queue)), part,
                                  _LENGTHS, _GAPS, zipf(40), 0.25, 0.9))
            kinds.append((kind, share))
    every = [(2014 + (3 + number) // 12, (3 + number) % 12 + 1) for number in range(14)]
    left = {kind: JOBS[kind] - sum(month[index] for month in MONTHS.values())
            for index, kind in enumerate((STANDARD, MIC, GPU))}
    unknown = [month for month in every if month not in MONTHS]
    for year, month in every:
        first = datetime(year, month, 1, tzinfo=timezone.utc)
        after = datetime(year + month // 12, month % 12 + 1, 1, tzinfo=timezone.utc)
        counts = dict(zip((STANDARD, MIC, GPU), MONTHS[year, month])) if (year, month) in MONTHS else {
            kind: _part(left[kind], unknown.index((year, month)), len(unknown)) for kind in left}
        jobs = [round(share * counts[kind]) for kind, share in kinds]
        for index in range(0, len(kinds), 3):  # for each class: the second queue gets the rounding remainder
            jobs[index + 1] += counts[kinds[index][0]] - sum(jobs[index:index + 3])
        months.append(Period((first - begin).total_seconds(), (after - begin).total_seconds(), tuple(jobs)))
    return Model(tuple(strata), tuple(months), _HOURS, int(begin.timestamp()))


def _part(count: int, number: int, parts: int) -> int:
    return count * (number + 1) // parts - count * number // parts


def _runs(kind: str) -> tuple[float, ...]:
    """Return run times at equally spaced shares: a log-normal distribution with the mean of the class, cut at the
    longest. The shortest are those of debug, the longest those of longpar, and none is above its queue's limit."""
    size = 20 * POINTS
    scores = [NormalDist().inv_cdf((index + 0.5) / size) for index in range(size)]
    limits = [min(LONGEST[kind], limit) for limit, share in zip(QUEUES.values(), SHARES[kind])
              for _ in range(round(share * size))]
    low, high = 0.0, math.log(LONGEST[kind])
    for _ in range(60):
        middle = (low + high) / 2
        runs = tuple(min(max(1.0, math.exp(middle + SPREAD[kind] * score)), limit)
                     for score, limit in zip(scores, limits))
        low, high = (middle, high) if math.fsum(runs) < MEAN[kind] * size else (low, middle)
    return runs


def _shapes(kind: str, queue: str) -> Iterable[tuple[float, Request, float]]:
    """Yield the requests of jobs with weights: (weight, request, limit in seconds)."""
    for units, often in _UNITS[kind]:
        if units > MOST_UNITS[queue]:
            continue
        for cores, share in _CORES[kind]:
            for devices, part in _DEVICES.get(kind, ((0, 100.0),)):
                for memory, rest in _MEMORY[kind]:
                    amounts = {"memory": float(memory), **({kind: float(devices)} if devices else {})}
                    yield (often * share * part * rest,
                           Request.of(units, cores, False, amounts), QUEUES[queue])
