"""Requests to a batch system: how many nodes, for how long, how many one after the other, how many side by side."""

from __future__ import annotations

import math
from typing import NamedTuple
from collections.abc import Iterator

MOST = 60
"""Shapes that are tried at most."""

SIZES = 5
"""Numbers of nodes that are tried at most."""

AT_ONCE = (1, 2, 4)
"""Numbers of chains side by side."""

SHARES = (1, 2, 4)
"""A chain is to have about so many allocations."""

MOST_EACH = 100
"""Jobs that have a request each at most: batch systems limit how many a user submits."""

MOST_CHAIN = 8
"""Allocations of a chain at most."""

START_UP = 60.0
"""Seconds that vrm itself needs of an allocation, to begin and to end (`End.Margin`)."""

_STEPS = ((3600.0, 300.0), (4 * 3600.0, 900.0), (12 * 3600.0, 1800.0), (math.inf, 3600.0))


class AllocationShape(NamedTuple):
    """A request: `at_once` chains side by side, each of `chain` allocations one after the other, of `nodes` nodes for
    `seconds`, in a `partition` ("": that of jobs which name none). `each`: one allocation for each job, of as many
    nodes and as long as the job needs; `nodes` and `seconds` are those of the largest."""

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


class Bounds(NamedTuple):
    """What requests in a partition may be: its nodes that are up, the cores of each, the most and the fewest nodes of a
    job, and the longest limit (s)."""

    partition: str
    nodes: int
    cores: int
    most: int
    fewest: int = 1
    longest: float = math.inf


def rounded(seconds: float) -> float:
    """A time limit of at least so many seconds, as people ask for: whole hours, or parts of them if it is short."""
    step = next(step for until, step in _STEPS if seconds <= until)
    return step * max(1, math.ceil(seconds / step - 1e-9))


def sizes(fewest: int, most: int) -> list[int]:
    """Numbers of nodes from the fewest that can run every job to the most that are of use: each twice the one
    before; where these are too many, some between are left out."""
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
    """Time limits for work that takes so many seconds on so many nodes: for all of it in one allocation, in two, in
    four; none shorter than the longest job needs, none longer than the site allows."""
    least = longest_job + START_UP
    found = set()
    for share in SHARES:
        seconds = min(rounded(max(whole / share + START_UP, least)), longest)
        if seconds >= least and seconds not in found:
            found.add(seconds)
            yield seconds
