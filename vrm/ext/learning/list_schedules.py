"""Simple list schedules, from sizes and run times only, to compare numbers of ranks."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

Work = list[tuple[int, float]]
"""Sizes and run times (seconds) of jobs, in order."""


def finishes(now: float, free: int, ends: Sequence[tuple[float, int]], work: Work) -> list[float]:
    """Return when jobs end that start in this order, none before an earlier one. `free` units are free at
    `now`, and others become free at the `ends` of running jobs (times and sizes, ascending). Infinity for jobs
    that never start."""
    heap, time = list(ends), now
    found: list[float] = []
    for size, seconds in work:
        while free < size:
            if not heap:
                return [*found, *[math.inf] * (len(work) - len(found))]
            end, size_of = heapq.heappop(heap)
            free += size_of
            time = max(time, end)
        free -= size
        heapq.heappush(heap, (time + seconds, size))
        found.append(time + seconds)
    return found


def backfilled(now: float, free: int, ends: Sequence[tuple[float, int]], work: Work) -> list[float]:
    """Return when jobs end if each starts as early as possible without delaying those before it (conservative
    backfilling). The parameters are those of `finishes`."""
    times, room = [now], [free]  # free amount, and from which time on
    for end, size in ends:
        if end > times[-1]:
            times.append(end)
            room.append(room[-1] + size)
        else:
            room[-1] += size
    found: list[float] = []
    for size, seconds in work:
        at = 0
        while at < len(times):
            end, until = times[at] + seconds, at
            while until < len(times) and times[until] < end and room[until] >= size:
                until += 1
            if until == len(times) or times[until] >= end:
                break
            at = until + 1
        if at == len(times) or room[-1] < size:
            found.append(math.inf)
            continue
        end = times[at] + seconds
        if until == len(times) or times[until] > end:
            times.insert(until, end)
            room.insert(until, room[until - 1])
        for between in range(at, until):
            room[between] -= size
        found.append(end)
    return found
