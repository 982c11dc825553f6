"""The accepted lines of the queue file, in file order: a digest of each, and its jobs. They are recorded in the
journal. Only a few numbers are kept for each line, since there may be hundreds of thousands."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Sequence

Moved = Sequence[tuple[int, int]]


class Lines:
    """`digests` holds the digest of each line, 0 if an older vrm did not record it."""

    def __init__(self) -> None:
        self.digests = array("Q")
        self._first = array("q")
        self._count = array("q")

    def __len__(self) -> int:
        return len(self.digests)

    def jobs(self, line: int) -> range:
        """Return the ids of a line's jobs."""
        return range(self._first[line], self._first[line] + self._count[line])

    def add(self, digest: int, ids: Sequence[int], at: int | None = None) -> None:
        """Add an accepted line at position `at`; None: at the end."""
        if at is None:
            self.digests.append(digest)
            self._first.append(ids[0])
            self._count.append(len(ids))
            return
        for values, value in ((self.digests, digest), (self._first, ids[0]), (self._count, len(ids))):
            values.insert(at, value)

    def change(self, line: int, digest: int) -> None:
        """Record that a line was edited; its jobs keep their ids."""
        self.digests[line] = digest

    def take_out(self, gone: Collection[int], moved: Moved = ()) -> None:
        """Remove the lines `gone`, and move each `moved` line, given as (line, new position), to its new position, in
        this order."""
        again = [(at, self.digests[line], self.jobs(line)) for line, at in moved]
        away = {*gone, *(line for line, _ in moved)}
        for values in (self.digests, self._first, self._count):
            values[:] = array(values.typecode, (each for line, each in enumerate(values) if line not in away))
        for at, digest, ids in again:
            self.add(digest, ids, min(at, len(self)))

    def withdrawn(self, gone: Iterable[int]) -> list[int]:
        """Return the ids of the jobs of these lines."""
        return [job_id for line in gone for job_id in self.jobs(line)]
