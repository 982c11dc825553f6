"""The lines of the queue file that were taken, in the order in which they are in the file: a digest of
each, and its jobs. A journal tells them; a few numbers are kept of each line, since there may be
hundreds of thousands."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Sequence

Moved = Sequence[tuple[int, int]]


class Lines:
    """`digests` are those of the lines, 0 where an older vrm has not recorded it."""

    def __init__(self) -> None:
        self.digests = array("Q")
        self._first = array("q")
        self._count = array("q")

    def __len__(self) -> int:
        return len(self.digests)

    def jobs(self, line: int) -> range:
        """The ids of the jobs of a line."""
        return range(self._first[line], self._first[line] + self._count[line])

    def add(self, digest: int, ids: Sequence[int], at: int | None = None) -> None:
        """A line was taken; None: behind all others."""
        if at is None:
            self.digests.append(digest)
            self._first.append(ids[0])
            self._count.append(len(ids))
            return
        for values, value in ((self.digests, digest), (self._first, ids[0]), (self._count, len(ids))):
            values.insert(at, value)

    def change(self, line: int, digest: int) -> None:
        """A line has become another one, with the same ids."""
        self.digests[line] = digest

    def take_out(self, gone: Collection[int], moved: Moved = ()) -> None:
        """These lines are not in the file any more; `moved` ones are in another place, each before the line that
        has that number when those before it are in theirs."""
        again = [(at, self.digests[line], self.jobs(line)) for line, at in moved]
        away = {*gone, *(line for line, _ in moved)}
        for values in (self.digests, self._first, self._count):
            values[:] = array(values.typecode, (each for line, each in enumerate(values) if line not in away))
        for at, digest, ids in again:
            self.add(digest, ids, min(at, len(self)))

    def withdrawn(self, gone: Iterable[int]) -> list[int]:
        """The ids of the jobs of these lines."""
        return [job_id for line in gone for job_id in self.jobs(line)]
