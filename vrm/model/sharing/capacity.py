"""Cache of how many tasks of one kind fit on each node, kept up to date as jobs start and end.

Asking all nodes of a machine each time a job is tried is most expensive when most jobs wait. What is known of a node
stays valid until something changes there, so only changed nodes are asked again. Copies of a pool, made for questions
about the future, use the same knowledge.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

from vrm.model import bits

MOST = 64
"""Maximum number of kinds of tasks that a pool caches at a time."""

MOST_ANSWERS = 1000
"""Maximum number of requests whose answers are cached."""


class TaskCapacity:
    """The capacity for one kind of tasks: how many fit on `each` node, the `total`, and `some`, the set of nodes where
    one or more fit. `stale` are the nodes that have changed since."""

    __slots__ = ("each", "total", "some", "stale")

    def __init__(self, each: list[int], total: int, some: int, stale: int) -> None:
        self.each = each
        self.total = total
        self.some = some
        self.stale = stale

    def update(self, room: Callable[[int], int]) -> None:
        """Compute the stale nodes again; `room` gives the capacity of a node."""
        each = self.each
        for node in bits.members(self.stale):
            now = max(0, room(node))
            before = each[node]
            if now != before:
                each[node] = now
                self.total += now - before
                if not now or not before:
                    self.some ^= 1 << node
        self.stale = 0


class CapacityLedger:
    """The cached capacities of a pool, by kind of tasks, and the answers to requests. `of` is the ledger of the pool
    that this one's pool was copied from, `all_nodes` the set of all nodes.

    Of the other ledger, only its knowledge and its count of changes are kept, not what that one was copied from: a
    plan makes copies of copies for as long as it lasts.
    """

    __slots__ = ("all", "_changes", "_freed", "_answers", "_kinds", "_of", "_of_changes", "_touched")

    def __init__(self, all_nodes: int, of: CapacityLedger | None = None) -> None:
        self.all = all_nodes
        self._changes = [0]
        self._freed = 0  # changes after which more may fit
        self._answers: dict[Hashable, tuple[int, int, int]] = {}
        self._kinds: dict[Hashable, TaskCapacity] = {}
        self._of = (of._kinds, of._changes) if of is not None else None
        self._of_changes = of._changes[0] if of is not None else 0
        self._touched = 0

    @property
    def used(self) -> bool:
        """Whether anything was cached, here or where it was copied from."""
        return bool(self._kinds) or self._of is not None

    def touch(self, nodes: int, freed: bool = True) -> None:
        """Note a change on these nodes; without `freed`, nothing more fits than before."""
        self._changes[0] += 1
        self._freed += freed
        self._touched |= nodes
        for rooms in self._kinds.values():
            rooms.stale |= nodes

    def rooms(self, kind: Hashable, room: Callable[[int], int]) -> TaskCapacity:
        """Return the capacities for a kind of tasks; `room` gives that of a node."""
        found = self._kinds.get(kind)
        if found is None:
            found = self._copied(kind) or TaskCapacity([0] * self.all.bit_length(), 0, 0, self.all)
            self.know(kind, found)
        if found.stale:
            found.update(room)
        return found

    def know(self, kind: Hashable, rooms: TaskCapacity) -> None:
        """Store the capacities for a kind of tasks."""
        if len(self._kinds) >= MOST:
            self._kinds.clear()
        self._kinds[kind] = rooms

    def _copied(self, kind: Hashable) -> TaskCapacity | None:
        """Return what the other ledger knew when this one was copied from it; None if that has changed since."""
        if self._of is None or self._of[1][0] != self._of_changes:
            return None
        known = self._of[0].get(kind)
        if known is None:
            return None
        return TaskCapacity(list(known.each), known.total, known.some, known.stale | self._touched)

    def answer(self, request: Hashable) -> int | None:
        """Return the cores that a request was given, if nothing has changed since; 0 if nothing fitted, and nothing
        was freed since. None: no cached answer is valid."""
        chosen, changes, freed = self._answers.get(request, (0, -1, -1))
        return chosen if changes == self._changes[0] or (not chosen and freed == self._freed) else None

    def answered(self, request: Hashable, chosen: int) -> None:
        """Store the answer to a request."""
        if len(self._answers) >= MOST_ANSWERS:
            self._answers.clear()
        self._answers[request] = chosen, self._changes[0], self._freed
