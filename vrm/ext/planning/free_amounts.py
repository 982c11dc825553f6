"""Keeps the free amounts on the nodes of a view, as sets of nodes with equal amounts.

Policies that consider the free amounts query them repeatedly, and little changes between two queries. Therefore only
the nodes that changed since the last query are examined. The answer is
that of a walk over all nodes (tests/ext/planning/test_node_orders.py compares them).
"""

from __future__ import annotations

from collections.abc import Sequence

from vrm.model import bits
from vrm.model.cluster import Pool
from vrm.model.node import Node

Left = tuple[int, ...]
"""The free amounts on a node: free cores, then the amounts (base units) of the machine's resources by
name."""


class FreeAmounts:
    """The amounts on the nodes of one machine. `names`: the countable resources.
    `capacity`: the totals of all nodes: cores, then each of the resources in base units."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        whole = Pool(nodes)
        self.names: tuple[str, ...] = tuple(whole.left)
        self._count = len(nodes)
        self._all: list[Left] = list(zip([node.cores for node in nodes], *whole.left.values()))
        self.capacity: Left = tuple(map(sum, zip(*self._all)))
        self.forget()

    def forget(self) -> None:
        """Reset to an unknown view."""
        # The last view that was queried, and the result.
        self._lanes: tuple[int, int, int] = (0, 0, 0)  # no node is up
        self._cores = 0
        self._amounts: list[list[int]] = [[-1] * self._count for _ in self.names]
        self._here: list[Left | None] = [None] * self._count
        self._alike: dict[Left, int] = {}
        self._used: list[int] = [0] * len(self.capacity)

    def alike(self, view: Pool) -> dict[Left, int]:
        """Return the nodes that are up, by the free amounts on each; do not change the result."""
        self._follow(view)
        return self._alike

    def used(self, view: Pool) -> Sequence[int]:
        """Return the amounts in use on the nodes that are up, in the order of `capacity`."""
        self._follow(view)
        return self._used

    def _follow(self, view: Pool) -> None:
        """Update the nodes that differ from those of the last view."""
        lanes, cores = (view.up, view.busy0, view.busy1), view.busy_cores
        amounts = [view.left[name] for name in self.names]
        changed = 0
        if lanes != self._lanes:
            for before, after in zip(self._lanes, lanes):
                changed |= before ^ after
            self._lanes = lanes
        if cores != self._cores:
            for node, *_ in view.layout.spans(cores ^ self._cores):
                changed |= 1 << node
            self._cores = cores
        for at, (before_there, there) in enumerate(zip(self._amounts, amounts)):
            if before_there != there:
                for node, pair in enumerate(zip(before_there, there)):
                    if pair[0] != pair[1]:
                        changed |= 1 << node
                self._amounts[at] = list(there)
        for node in bits.members(changed):
            self._look(view, node, amounts)

    def _look(self, view: Pool, node: int, amounts: Sequence[list[int]]) -> None:
        known = self._here[node]
        left: Left | None = None
        if view.up >> node & 1:
            left = (view.free_on(node), *[there[node] for there in amounts])
        if left == known:
            return
        used, whole = self._used, self._all[node]
        if known is not None:
            rest = self._alike[known] & ~(1 << node)
            if rest:
                self._alike[known] = rest
            else:
                del self._alike[known]
            for at, amount in enumerate(known):
                used[at] -= whole[at] - amount
        if left is not None:
            self._alike[left] = self._alike.get(left, 0) | 1 << node
            for at, amount in enumerate(left):
                used[at] += whole[at] - amount
        self._here[node] = left
