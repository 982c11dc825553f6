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
from typing import Dict, Iterable, Iterator, List, NamedTuple, Optional, Tuple

MOST = 2
"""Mates of one job, at most. More have brought nothing (the thesis), and take longer to find."""


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


def carries(left: float, submit: float, expected_end: float, requested: float, limit: float,
            share: float) -> float:
    """No job that is expected to take longer has such a mate: `outlasts` and a `penalty` below the limit."""
    return _MORE * min(left * share / (1 - share), limit * requested - (expected_end - submit))


class Reach:
    """How long jobs of so many nodes may take to have mates: at most `most` of those that were added,
    with just so many nodes. It is an upper bound where mates have gone since, or have less time left."""

    def __init__(self, most: int = MOST) -> None:
        self._by_number: List[Dict[int, float]] = [{} for _ in range(most)]
        self.by_nodes: Dict[int, float] = {}
        self.longest = -math.inf
        """For any number of nodes."""

    def add(self, nodes: int, longest: float) -> None:
        """A mate with so many nodes, for jobs that take at most so long."""
        for others, sets in zip(self._by_number[-2::-1], self._by_number[:0:-1]):
            for some, other in others.items():
                self._raise(sets, nodes + some, min(longest, other))
        self._raise(self._by_number[0], nodes, longest)
        self.longest = max(self.longest, longest)

    def _raise(self, sets: Dict[int, float], nodes: int, longest: float) -> None:
        if longest > sets.get(nodes, -math.inf):
            sets[nodes] = longest
            if longest > self.by_nodes.get(nodes, -math.inf):
                self.by_nodes[nodes] = longest

    def of(self, nodes: int) -> float:
        """For so many nodes; minus infinity where no set of mates has them."""
        return self.by_nodes.get(nodes, -math.inf)


def choose(mates: Iterable[Mate], nodes: int, most: int = MOST) -> Optional[Tuple[int, ...]]:
    """The ids of the mates with the least sum of penalties, in rising order, or None where no set of at
    most `most` has just so many nodes.

    Of equal sums, the one with fewer mates, then that of the lower ids.
    """
    sizes: Dict[int, List[Mate]] = {}
    for mate in mates:
        if mate.nodes <= nodes:
            best = sizes.setdefault(mate.nodes, [])
            if len(best) < most or mate < best[-1]:  # of one size, only the first `most` can be in
                bisect.insort(best, mate)
                del best[most:]
    found: Optional[Tuple[float, int, Tuple[int, ...]]] = None
    for chosen in _sets(sizes, sorted(sizes), nodes, most):
        value = (math.fsum(mate.penalty for mate in chosen), len(chosen),
                 tuple(sorted(mate.id for mate in chosen)))
        if found is None or value < found:
            found = value
    return None if found is None else found[2]


def _sets(sizes: Dict[int, List[Mate]], order: List[int], nodes: int, most: int,
          first: int = 0) -> Iterator[List[Mate]]:
    """Sets of at most `most` mates with just so many nodes, whose sizes are in `order` from `first` on;
    of each size, those with the least penalties."""
    for at in range(first, len(order)):
        size = order[at]
        if size > nodes:
            return
        for number in range(1, min(most, len(sizes[size]), nodes // size) + 1):
            chosen, left = sizes[size][:number], nodes - number * size
            if not left:
                yield chosen
            elif most - number == 1:  # the last one's size is known
                if left > size and left in sizes:
                    yield [*chosen, sizes[left][0]]
            elif number < most:
                for rest in _sets(sizes, order, left, most - number, at + 1):
                    yield [*chosen, *rest]
