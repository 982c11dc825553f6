"""Requests to a batch system: number of nodes, time, number of successive allocations, and number of parallel
chains."""

from __future__ import annotations

import math
from typing import NamedTuple
from collections.abc import Iterator

MOST = 60
"""Greatest number of shapes that are compared."""

SIZES = 5
"""Greatest number of different numbers of nodes that are compared."""

AT_ONCE = (1, 2, 4)
"""Numbers of parallel chains."""

SHARES = (1, 2, 4)
"""Approximate numbers of allocations in a chain."""

MOST_EACH = 100
"""Greatest number of jobs that have a request each: batch systems limit how many a user submits."""

MOST_CHAIN = 8
"""Greatest number of allocations in a chain."""

START_UP = 60.0
"""Seconds of an allocation that vrm itself needs, to begin and to end (`End.Margin`)."""

_STEPS = ((3600.0, 300.0), (4 * 3600.0, 900.0), (12 * 3600.0, 1800.0), (math.inf, 3600.0))


class AllocationShape(NamedTuple):
    """A request: `at_once` parallel chains, each of `chain` successive allocations of `nodes` nodes for
    `seconds` seconds, in a `partition` ("": the default one). `each`: one allocation for each job, with as many
    nodes and as much time as the job needs; `nodes` and `seconds` are then those of the largest."""

    partition: str
    nodes: int
    seconds: float
    chain: int = 1
    at_once: int = 1
    each: bool = False

    def __str__(self) -> str:
        from vrm.model.quantities import clock
        if self.each:
            return f"one for each of {self.at_once} jobs"
        text = f"{self.nodes} node{'s' * (self.nodes > 1)} x {clock(int(self.seconds))}"
        text += f", {self.chain} in turn" * (self.chain > 1)
        return text + f", {self.at_once} at once" * (self.at_once > 1)


class RequestLimits(NamedTuple):
    """Limits of requests in a partition: its number of nodes that are up, the cores of each, the most and the
    fewest nodes of a job, and the longest time limit (seconds)."""

    partition: str
    nodes: int
    cores: int
    most: int
    fewest: int = 1
    longest: float = math.inf


def rounded(seconds: float) -> float:
    """Return a usual time limit of at least `seconds`: whole hours, or parts of an hour if it is short."""
    step = next(step for until, step in _STEPS if seconds <= until)
    return step * max(1, math.ceil(seconds / step - 1e-9))


def sizes(fewest: int, most: int) -> list[int]:
    """Return numbers of nodes, from the fewest that can run every job to the most that are of use, each twice
    the one before. If these are too many, some in between are left out."""
    found = []
    nodes = fewest
    while nodes < most:
        found.append(nodes)
        nodes *= 2
    found.append(max(fewest, most))
    if len(found) > SIZES:
        found = [found[round(at * (len(found) - 1) / (SIZES - 1))] for at in range(SIZES)]
    return found


def limits(whole: float, longest_job: float, longest: float) -> Iterator[float]:
    """Yield time limits for work that takes `whole` seconds: for all of it in one allocation, in two, and in
    four. None is shorter than the longest job needs, and none longer than the site allows."""
    least = longest_job + START_UP
    found = set()
    for share in SHARES:
        seconds = min(rounded(max(whole / share + START_UP, least)), longest)
        if seconds >= least and seconds not in found:
            found.add(seconds)
            yield seconds
