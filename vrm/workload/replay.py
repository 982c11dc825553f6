"""Replaying a recorded queue: each line when it is due, by the delays of the lines before it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from vrm.workload.following import Line, Position, QueueFollower, Raw
from vrm.workload.grammar import LineError


def replay(lines: Iterable[Line], speed: float = 1.0) -> Iterator[tuple[float, Line]]:
    """Each line with the seconds after the first at which it is due. A line's delay comes before
    the next line, `speed` times faster than recorded; lines without one, and bad lines, have 0.
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
    """Gives the lines of a followed queue when they are due; `now` is any clock in seconds.

    The first line (also the first after a restored position) is due at the first call. A line that
    is appended later than its delay asks for is due at once, and those after it count from there.
    A queue without delays is just followed.
    """

    def __init__(self, follower: QueueFollower, speed: float = 1.0) -> None:
        if not speed > 0:
            raise ValueError(f"the speed of a replay must be above 0, not {speed:g}")
        self.follower = follower
        self.speed = speed
        self.position = follower.position
        """The position after the last line that was given, to be stored and continued from."""
        self._waiting: deque[tuple[float, Line]] = deque()  # each with when it was read
        self._next = -math.inf  # when the line after the last one given is due, if it is there by then

    @property
    def ended(self) -> bool:
        """Nothing more will come, and all that came was given."""
        return self.follower.ended and not self._waiting

    @property
    def waiting(self) -> bool:
        """Whether lines have come that are not due yet."""
        return bool(self._waiting)

    def due(self, now: float, rest: bool = False) -> list[Line]:
        """The lines that are due at `now` and were not given yet; reads the file's new lines. With `rest` a last
        line without a newline counts, too."""
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
        """Give these lines again at the next call, the last ones that were given, behind the position `before`."""
        self._waiting.extendleft((now, line) for line in reversed(lines))
        self._next, self.position = -math.inf, before

    def go_to(self, raw: Raw | None) -> None:
        """Read on behind this line of the file (None: from its start); see `QueueFollower.go_to`."""
        self.follower.go_to(raw)
        self.position = self.follower.position
        self._waiting.clear()
