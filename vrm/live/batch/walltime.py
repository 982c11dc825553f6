"""The end of the allocation: until when jobs may start, and when running jobs must end.

The batch system is queried in a thread, because it may answer slowly; the end may move, because administrators extend
jobs.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

Ask = Callable[[], float | None]
"""Query when the allocation ends: epoch seconds of the wall clock, or None if never."""

ASK_EVERY = 60.0
"""Seconds between two queries."""

SPARE = 5.0
"""Seconds kept after the grace time of the last job, for the manager's own records."""


class AllocationEnd:
    """When the allocation ends, on the clock of the manager.

    `at`: the configuration's End.At, which is auto (`ask` is queried), never, or seconds from `start`.
    From `margin` seconds before the end nothing is started, and `grace` plus SPARE seconds before it
    the running jobs are ended. All times are in seconds; `start` and the times passed to the
    methods are of one clock that does not jump.
    """

    def __init__(self, at: str | float, margin: float, grace: float, start: float,
                 ask: Ask | None = None) -> None:
        self.margin = margin
        self.grace = grace
        self.end = start + at if isinstance(at, (int, float)) else math.inf
        self.trouble = ""
        """Why the last query failed; "" if it succeeded."""
        self._ask = ask if at == "auto" else None
        self._asked = -math.inf
        self._answer: float | None = None  # seconds left as of `_answered`
        self._answered = 0.0
        self._thread: threading.Thread | None = None

    @property
    def closing(self) -> float:
        """Time from which nothing starts; infinity if there is no end."""
        return self.end - self.margin

    @property
    def end_jobs_at(self) -> float:
        """When running jobs are sent the signal to end."""
        return max(self.closing, self.end - self.grace - SPARE)

    def warned(self, now: float) -> None:
        """Take note of the batch system's warning. If the end is not known, it is `margin` seconds from now."""
        self.end = min(self.end, now + self.margin) if self.end == math.inf else self.end
        self._ask = None

    def poll(self, now: float, wait: float | None = None) -> bool:
        """Query again if that is due, and take an answer; return whether the end has changed.

        `wait`: seconds to wait for the answer, at the start of a run.
        """
        if self._ask is None:
            return False
        if self._thread is None and now >= self._asked + ASK_EVERY:
            self._asked = now
            self._thread = threading.Thread(target=self._question, daemon=True)
            self._thread.start()
            if wait is not None:
                self._thread.join(wait)
        if self._thread is None or self._thread.is_alive():
            return False
        self._thread = None
        if self.trouble:
            return False
        before = self.end
        self.end = math.inf if self._answer is None else \
            now + self._answer - (time.monotonic() - self._answered)
        # Answers are in whole seconds and take a moment: a smaller difference is the same end.
        if abs(self.end - before) < 2.0:
            self.end = before
        return self.end != before

    def _question(self) -> None:
        assert self._ask is not None
        try:
            end = self._ask()
        except Exception as error:  # report every fault of the batch system's client
            self.trouble = f"{type(error).__name__}: {error}" if str(error) else repr(error)
            return
        self.trouble = ""
        self._answer = None if end is None else end - time.time()
        self._answered = time.monotonic()
