"""Replay a recorded queue: each line is due after the delays of the lines before it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from vrm.workload.queue_follower import Line, Position, QueueFollower, RawLine
from vrm.workload.grammar import LineError


def replay(lines: Iterable[Line], speed: float = 1.0) -> Iterator[tuple[float, Line]]:
    """Yield each line with the seconds, after the first line, at which it is due. A line's delay comes before the
    next line, divided by `speed`; lines without a delay, and wrong lines, count as 0.
    """
    if not speed > 0:
        raise ValueError(f"the speed of a replay must be above 0, not {speed:g}")
    offset = 0.0
    for line in lines:
        yield offset, line
        offset += _delay(line) / speed


def _delay(line: Line) -> float:
    return 0.0 if isinstance(line.parsed, LineError) else line.parsed.delay or 0.0


class QueueReplay:
    """Returns the lines of a followed queue when they are due; `now` is the time of any clock in seconds.

    The first line (also the first one after a restored position) is due at the first call. A line that is appended
    after its due time is due at once, and later lines count from there. A queue without delays is just followed.
    """

    def __init__(self, follower: QueueFollower, speed: float = 1.0) -> None:
        if not speed > 0:
            raise ValueError(f"the speed of a replay must be above 0, not {speed:g}")
        self.follower = follower
        self.speed = speed
        self.position = follower.position
        """The position after the last returned line, for storing and continuing later."""
        self._waiting: deque[tuple[float, Line]] = deque()  # each line with the time it was read
        self._next = -math.inf  # earliest time at which the next line is due

    @property
    def ended(self) -> bool:
        """Whether all lines were returned and no more will come."""
        return self.follower.ended and not self._waiting

    @property
    def waiting(self) -> bool:
        """Whether lines have been read that are not due yet."""
        return bool(self._waiting)

    def due(self, now: float, rest: bool = False) -> list[Line]:
        """Return the lines that are due at `now` and were not returned yet, after reading the file's new lines.
        `rest`: also accept a last line without newline."""
        follower = self.follower
        self._waiting.extend((now, line) for line in (follower.read_rest() if rest else follower.read_new()))
        lines = []
        while self._waiting and max(self._next, self._waiting[0][0]) <= now:
            came, line = self._waiting.popleft()
            self._next = max(self._next, came) + _delay(line) / self.speed
            lines.append(line)
        if lines:
            self.position = lines[-1].position
        return lines

    def put_back(self, lines: Sequence[Line], before: Position, now: float) -> None:
        """Return these lines, the last ones returned, again at the next call; `before` is the position before
        them."""
        self._waiting.extendleft((now, line) for line in reversed(lines))
        self._next, self.position = -math.inf, before

    def go_to(self, raw: RawLine | None) -> None:
        """Continue reading after this line of the file (None: from its start); see `QueueFollower.go_to`."""
        self.follower.go_to(raw)
        self.position = self.follower.position
        self._waiting.clear()
