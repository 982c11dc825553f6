"""How many tasks of one kind each node has room for, kept up to date as jobs come and go.

To ask all nodes of a machine each time a job is tried costs most where most jobs wait. What is
known of a node stays true until something changes there, so only those nodes are asked again. The
same knowledge serves the copies that are made of a pool for questions about the future.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

from vrm.model import bits

MOST = 64
"""Kinds of tasks that a pool knows of at a time."""

MOST_ANSWERS = 1000
"""Requests of which it knows what they found."""


class Rooms:
    """Of one kind of tasks: the room on `each` node, the `total`, the set of nodes with `some`.
    `stale` are the nodes where something has changed since."""

    __slots__ = ("each", "total", "some", "stale")

    def __init__(self, each: list[int], total: int, some: int, stale: int) -> None:
        self.each = each
        self.total = total
        self.some = some
        self.stale = stale

    def update(self, room: Callable[[int], int]) -> None:
        """Ask the nodes where something has changed."""
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


class Ledger:
    """The rooms of a pool, by kind of tasks, and what requests were answered. `of` is the ledger of
    the pool of which this one's was copied, `all` the set of all nodes.

    Of the other ledger only what it knows and the count of its changes are kept, not what that one
    was copied of: a plan makes copies of copies for as long as it lasts.
    """

    __slots__ = ("all", "_changes", "_freed", "_answers", "_kinds", "_of", "_of_changes", "_touched")

    def __init__(self, all_nodes: int, of: Ledger | None = None) -> None:
        self.all = all_nodes
        self._changes = [0]
        self._freed = 0  # changes after which there may be more room
        self._answers: dict[Hashable, tuple[int, int, int]] = {}
        self._kinds: dict[Hashable, Rooms] = {}
        self._of = (of._kinds, of._changes) if of is not None else None
        self._of_changes = of._changes[0] if of is not None else 0
        self._touched = 0

    @property
    def used(self) -> bool:
        """Whether anybody has asked, here or where it was copied from."""
        return bool(self._kinds) or self._of is not None

    def touch(self, nodes: int, freed: bool = True) -> None:
        """Something has changed on these nodes; if not `freed`, there is no more room than before."""
        self._changes[0] += 1
        self._freed += freed
        self._touched |= nodes
        for rooms in self._kinds.values():
            rooms.stale |= nodes

    def rooms(self, kind: Hashable, room: Callable[[int], int]) -> Rooms:
        """The rooms for a kind of tasks; `room` tells that of a node."""
        found = self._kinds.get(kind)
        if found is None:
            found = self._copied(kind) or Rooms([0] * self.all.bit_length(), 0, 0, self.all)
            self.know(kind, found)
        if found.stale:
            found.update(room)
        return found

    def know(self, kind: Hashable, rooms: Rooms) -> None:
        """Keep the rooms for a kind of tasks."""
        if len(self._kinds) >= MOST:
            self._kinds.clear()
        self._kinds[kind] = rooms

    def _copied(self, kind: Hashable) -> Rooms | None:
        """What the other ledger knew when this was copied of it; None where it has changed since."""
        if self._of is None or self._of[1][0] != self._of_changes:
            return None
        known = self._of[0].get(kind)
        if known is None:
            return None
        return Rooms(list(known.each), known.total, known.some, known.stale | self._touched)

    def answer(self, request: Hashable) -> int | None:
        """The cores that a request was given, if nothing has changed since; 0 if it found no room,
        and nothing was freed since. None: it has to be asked."""
        chosen, changes, freed = self._answers.get(request, (0, -1, -1))
        return chosen if changes == self._changes[0] or (not chosen and freed == self._freed) else None

    def answered(self, request: Hashable, chosen: int) -> None:
        """Keep the answer to a request."""
        if len(self._answers) >= MOST_ANSWERS:
            self._answers.clear()
        self._answers[request] = chosen, self._changes[0], self._freed
