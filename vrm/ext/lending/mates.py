"""The mates of a job that starts malleable: the running jobs that lend it cores on all of their nodes.

M. D'Amico, A. Jokanovic and J. Corbalan, "Holistic slowdown driven scheduling and resource management for malleable
jobs", ICPP 2019, and the first author's thesis (UPC, 2021). A job that would wait starts at once on a *share* of the
cores of nodes on which other jobs run, its mates, which keep the rest. In the worst case (a job is as fast as its
slowest node) it then runs for its expected time divided by the share, and each mate loses the share of that time,
which is exactly the expected time of the new job. The *penalty* of a mate is the slowdown that it is then expected
to have. Of all sets of at most `most` mates whose numbers of nodes sum up to the number of nodes of the job, the set
with the smallest sum of penalties is chosen. The number of nodes must be equal, so that the job has the same number
of cores on all its nodes.

Times are in seconds. These are plain functions of numbers: they know no cluster and no clock."""

from __future__ import annotations

import bisect
import math
from itertools import takewhile
from typing import (NamedTuple, TypeVar)
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

MOST = 2
"""Maximum number of mates of one job. More mates have brought no improvement (the thesis), and take longer to find."""


_Any = TypeVar("_Any")

_MORE = 1 + 1e-9
"""Tolerance factor for rounding."""


class Mate(NamedTuple):
    """A running job that could lend: the penalty of lending, its id, and its number of nodes."""

    penalty: float
    id: int
    nodes: int


def stretched(expected: float, share: float) -> float:
    """Return the run time of a job on a share of its cores; `expected` is its run time on all of them."""
    return expected / share


def pays(static_start: float, expected: float, now: float, share: float) -> bool:
    """Return whether a job that starts now on a share of its cores ends before it would if it waited for its static
    start and had all its cores."""
    return static_start + expected > now + stretched(expected, share)


def outlasts(left: float, expected: float, share: float) -> bool:
    """Return whether a mate, on the cores that it keeps, still runs when a job with this expected time ends on the
    share that the mate lends. `left`: the remaining run time of the mate in seconds on all its cores."""
    return left * share >= expected * (1 - share)


def penalty(submit: float, expected_end: float, requested: float, expected: float) -> float:
    """Return the slowdown that a mate is expected to have if it lends to a job with this expected time: its waiting
    time, its expected run time and the time that it loses, divided by its requested run time."""
    return (expected_end - submit + expected) / requested


def longest_bearable(submit: float, expected_end: float, requested: float, limit: float) -> float:
    """Return the longest expected time of a job for which the `penalty` of such a mate stays below the limit."""
    return limit * requested - (expected_end - submit)


def longest_carried(left: float, most: float, share: float) -> float:
    """Return the longest expected time of a job that can have such a mate: limited by `outlasts`, and by `most`, the
    value of `longest_bearable`."""
    return _MORE * min(left * share / (1 - share), most)


class MateLimits:
    """The longest expected time of a job that can have mates, by its number of nodes (`by_nodes`): at most `most` of
    the mates that were added, with exactly as many nodes in total. It is an upper bound if mates have gone or have
    less time left since; `CarryLimits` make it exact for the numbers of nodes that are looked up."""

    def __init__(self, most: int = MOST) -> None:
        self._by_number: list[dict[int, float]] = [{} for _ in range(most)]
        self.by_nodes: dict[int, float] = {}

    def copy(self) -> MateLimits:
        """Return an independent copy."""
        twin = MateLimits(0)
        twin._by_number, twin.by_nodes = [dict(sets) for sets in self._by_number], dict(self.by_nodes)
        return twin

    def add(self, nodes: int, longest: float) -> None:
        """Add a mate with this number of nodes, for jobs that take at most `longest` seconds."""
        for others, sets in zip(self._by_number[-2::-1], self._by_number[:0:-1]):
            for some, other in others.items():
                self._raise(sets, nodes + some, longest if longest < other else other)
        self._raise(self._by_number[0], nodes, longest)

    def _raise(self, sets: dict[int, float], nodes: int, longest: float) -> None:
        for known in (sets, self.by_nodes):
            if longest > known.get(nodes, -math.inf):
                known[nodes] = longest

    def gone(self, nodes: int) -> None:
        """No mate with this number of nodes is left."""
        self._by_number[0].pop(nodes, None)

    def alone(self, nodes: int, longest: float) -> None:
        """Set the bound for single mates with this number of nodes."""
        self._by_number[0][nodes] = longest

    def of(self, nodes: int) -> float:
        """Return the bound for this number of nodes; minus infinity if no set of mates has as many."""
        return self.by_nodes.get(nodes, -math.inf)


class CarryLimits(dict[int, float]):
    """The longest expected time of a job that at most `most` of some running jobs could carry, by the job's number
    of nodes; minus infinity if no set has as many nodes. `by_nodes`: the running jobs by number of nodes and id;
    `longest`: how long a job may be that one of them could carry alone. A value is computed when it is first used,
    and then stored in `reach`."""

    def __init__(self, by_nodes: Mapping[int, Mapping[int, _Any]], longest: Callable[[_Any], float],
                 reach: MateLimits, most: int = MOST) -> None:
        super().__init__()
        self._sizes = _Longest(by_nodes, longest, reach, most)
        self._order = sorted(by_nodes)
        self._reach, self._most = reach, most

    def __missing__(self, nodes: int) -> float:
        found = max(map(min, _sets(self._sizes, self._order, nodes, self._most)), default=-math.inf)
        self[nodes] = self._reach.by_nodes[nodes] = found
        return found


class _Longest(dict[int, list[float]]):
    """For each number of nodes the `most` longest times, in falling order."""

    def __init__(self, by_nodes: Mapping[int, Mapping[int, _Any]], longest: Callable[[_Any], float],
                 reach: MateLimits, most: int) -> None:
        super().__init__()
        self._by_nodes, self._longest, self._reach, self._most = by_nodes, longest, reach, most

    def __contains__(self, nodes: object) -> bool:
        return nodes in self._by_nodes

    def __missing__(self, nodes: int) -> list[float]:
        found = self[nodes] = sorted(map(self._longest, self._by_nodes[nodes].values()), reverse=True)[:self._most]
        self._reach.alone(nodes, found[0])
        return found


def choose(mates: Iterable[Mate], nodes: int, most: int = MOST) -> tuple[int, ...] | None:
    """Return the ids of the mates with the smallest sum of penalties, in rising order; None if no set of at most
    `most` mates has exactly this number of nodes.

    Of sets with equal sums, the one with fewer mates is chosen, then the one with lower ids."""
    sizes: dict[int, list[Mate]] = {}
    for mate in mates:
        if mate.nodes <= nodes:
            best = sizes.setdefault(mate.nodes, [])
            if len(best) < most or mate < best[-1]:  # of one size, only the best `most` can be chosen
                bisect.insort(best, mate)
                del best[most:]
    found: tuple[float, int, tuple[int, ...]] | None = None
    for chosen in _sets(sizes, sorted(sizes), nodes, most):
        value = (math.fsum(mate.penalty for mate in chosen), len(chosen),
                 tuple(sorted(mate.id for mate in chosen)))
        if found is None or value < found:
            found = value
    return None if found is None else found[2]


def _sets(sizes: Mapping[int, list[_Any]], order: list[int], nodes: int, most: int,
          first: int = 0) -> Iterator[list[_Any]]:
    """Yield sets of at most `most` mates with exactly `nodes` nodes, with sizes in `order` from the position `first`
    on; of each size, the best ones."""
    if nodes in sizes:
        yield sizes[nodes][:1]
    if most == 1:
        return
    if most == 2:
        yield from _pairs(sizes, order[first:], nodes)
        return
    for at in range(first, len(order)):
        size = order[at]
        if 2 * size > nodes:
            return
        for number in range(1, min(most, len(sizes[size]), nodes // size) + 1):
            left = nodes - number * size
            if not left:
                yield sizes[size][:number]
            elif left > size and number < most:
                for rest in _sets(sizes, order, left, most - number, at + 1):
                    yield [*sizes[size][:number], *rest]


def _pairs(sizes: Mapping[int, list[_Any]], order: Sequence[int], nodes: int) -> Iterator[list[_Any]]:
    """Yield sets of two mates: the size of the smaller one, which is in `order`, determines the size of the other."""
    for size in takewhile(lambda size: 2 * size <= nodes, order):
        if 2 * size == nodes:
            if len(sizes[size]) > 1:
                yield sizes[size][:2]
        elif nodes - size in sizes:
            yield [sizes[size][0], sizes[nodes - size][0]]
