"""The mates of a job that starts malleable: which running jobs lend it cores of all of their nodes.

M. D'Amico, A. Jokanovic and J. Corbalan, "Holistic slowdown driven scheduling and resource management for
malleable jobs", ICPP 2019, and the first author's thesis (UPC, 2021). A job that would wait starts at
once on a *share* of the cores of nodes on which others run, its mates, who keep the rest. By the worst
case (a job is as fast as its slowest node) it then runs for its expected time divided by the share, and
each mate loses the share of that time: just the expected time of the new job. The *penalty* of a mate is
the slowdown that it is then expected to have. Of all sets of at most `most` mates whose nodes sum up to
those that the job wants, the one with the least sum of penalties is taken; the sum is met exactly, so that
the job has equally many cores on all its nodes.

Times are in seconds. Plain functions of numbers: they know no cluster and no clock.
"""

from __future__ import annotations

import bisect
import math
from itertools import takewhile
from typing import (NamedTuple, TypeVar)
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

MOST = 2
"""Mates of one job, at most. More have brought nothing (the thesis), and take longer to find."""


_Any = TypeVar("_Any")

_MORE = 1 + 1e-9
"""For rounding."""


class Mate(NamedTuple):
    """A running job that could lend: the penalty of that, its id, and its nodes."""

    penalty: float
    id: int
    nodes: int


def stretched(expected: float, share: float) -> float:
    """How long a job runs on a share of its cores that is expected to take so long on all."""
    return expected / share


def pays(static_start: float, expected: float, now: float, share: float) -> bool:
    """Whether a job that starts now on a share ends before it would if it waited for its static
    start and had all its cores."""
    return static_start + expected > now + stretched(expected, share)


def outlasts(left: float, expected: float, share: float) -> bool:
    """Whether a mate with so much expected work left (s on all its cores) is there, on the cores that it
    keeps, until a job of this expected time ends on the share that it lends."""
    return left * share >= expected * (1 - share)


def penalty(submit: float, expected_end: float, requested: float, expected: float) -> float:
    """The slowdown that a mate is expected to have when it lends to a job of this expected time: its wait,
    what its run takes by now and what it loses, over the run that was requested."""
    return (expected_end - submit + expected) / requested


def bearable(submit: float, expected_end: float, requested: float, limit: float) -> float:
    """No job that is expected to take longer leaves the `penalty` of such a mate below the limit."""
    return limit * requested - (expected_end - submit)


def carries(left: float, most: float, share: float) -> float:
    """No job that is expected to take longer has such a mate: `outlasts`, and at most what is `bearable`."""
    return _MORE * min(left * share / (1 - share), most)


class Reach:
    """How long jobs of so many nodes may take to have mates: at most `most` of those that were added,
    with just so many nodes (`by_nodes`). It is an upper bound where mates have gone since, or have less time left;
    `Carriers` make it exact where they are asked."""

    def __init__(self, most: int = MOST) -> None:
        self._by_number: list[dict[int, float]] = [{} for _ in range(most)]
        self.by_nodes: dict[int, float] = {}

    def copy(self) -> Reach:
        """An independent copy."""
        twin = Reach(0)
        twin._by_number, twin.by_nodes = [dict(sets) for sets in self._by_number], dict(self.by_nodes)
        return twin

    def add(self, nodes: int, longest: float) -> None:
        """A mate with so many nodes, for jobs that take at most so long."""
        for others, sets in zip(self._by_number[-2::-1], self._by_number[:0:-1]):
            for some, other in others.items():
                self._raise(sets, nodes + some, longest if longest < other else other)
        self._raise(self._by_number[0], nodes, longest)

    def _raise(self, sets: dict[int, float], nodes: int, longest: float) -> None:
        for known in (sets, self.by_nodes):
            if longest > known.get(nodes, -math.inf):
                known[nodes] = longest

    def gone(self, nodes: int) -> None:
        """No mate with so many nodes is left."""
        self._by_number[0].pop(nodes, None)

    def alone(self, nodes: int, longest: float) -> None:
        """No one mate with so many nodes carries longer jobs."""
        self._by_number[0][nodes] = longest

    def of(self, nodes: int) -> float:
        """For so many nodes; minus infinity where no set of mates has them."""
        return self.by_nodes.get(nodes, -math.inf)


class Carriers(dict[int, float]):
    """How long jobs may take, by their nodes, that at most `most` of some running jobs could carry; minus infinity
    where no set has as many nodes. `by_nodes`: the running jobs by their nodes and ids, `longest`: how long one alone
    could carry a job. It is looked at only as far as it is asked for, and `reach` knows it from then on."""

    def __init__(self, by_nodes: Mapping[int, Mapping[int, _Any]], longest: Callable[[_Any], float],
                 reach: Reach, most: int = MOST) -> None:
        super().__init__()
        self._sizes = _Longest(by_nodes, longest, reach, most)
        self._order = sorted(by_nodes)
        self._reach, self._most = reach, most

    def __missing__(self, nodes: int) -> float:
        found = max(map(min, _sets(self._sizes, self._order, nodes, self._most)), default=-math.inf)
        self[nodes] = self._reach.by_nodes[nodes] = found
        return found


class _Longest(dict[int, list[float]]):
    """The first ones of each size, the longest first."""

    def __init__(self, by_nodes: Mapping[int, Mapping[int, _Any]], longest: Callable[[_Any], float],
                 reach: Reach, most: int) -> None:
        super().__init__()
        self._by_nodes, self._longest, self._reach, self._most = by_nodes, longest, reach, most

    def __contains__(self, nodes: object) -> bool:
        return nodes in self._by_nodes

    def __missing__(self, nodes: int) -> list[float]:
        found = self[nodes] = sorted(map(self._longest, self._by_nodes[nodes].values()), reverse=True)[:self._most]
        self._reach.alone(nodes, found[0])
        return found


def choose(mates: Iterable[Mate], nodes: int, most: int = MOST) -> tuple[int, ...] | None:
    """The ids of the mates with the least sum of penalties, in rising order, or None where no set of at
    most `most` has just so many nodes.

    Of equal sums, the one with fewer mates, then that of the lower ids.
    """
    sizes: dict[int, list[Mate]] = {}
    for mate in mates:
        if mate.nodes <= nodes:
            best = sizes.setdefault(mate.nodes, [])
            if len(best) < most or mate < best[-1]:  # of one size, only the first `most` can be in
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
    """Sets of at most `most` mates with just so many nodes, whose sizes are in `order` from `first` on;
    of each size, the first ones."""
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
    """Sets of two mates: the size of the smaller one, which is in `order`, says that of the other."""
    for size in takewhile(lambda size: 2 * size <= nodes, order):
        if 2 * size == nodes:
            if len(sizes[size]) > 1:
                yield sizes[size][:2]
        elif nodes - size in sizes:
            yield [sizes[size][0], sizes[nodes - size][0]]
