"""The end of the allocation: until when jobs may start, and when the running ones must end.

The batch system is asked in a thread, since it may be slow to answer; administrators extend jobs.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

Ask = Callable[[], float | None]
"""Asks when the allocation ends: epoch seconds of the wall clock, or None when it never does."""

ASK_EVERY = 60.0
"""Seconds between two questions."""

SPARE = 5.0
"""Seconds kept after the grace time of the last job, for the manager's own records."""


class AllocationEnd:
    """When the allocation ends, on the clock of the manager.

    `at` is the configuration's End.At: auto (what `ask` tells), never, or seconds from `start`.
    `margin` seconds before the end nothing is started any more, and `grace` plus SPARE before it
    the running jobs are ended. All times are in seconds; `start` and the moments given to the
    methods are of one clock that does not jump.
    """

    def __init__(self, at: str | float, margin: float, grace: float, start: float,
                 ask: Ask | None = None) -> None:
        self.margin = margin
        self.grace = grace
        self.end = start + at if isinstance(at, (int, float)) else math.inf
        self.trouble = ""
        """Why the last question was not answered; empty when it was."""
        self._ask = ask if at == "auto" else None
        self._asked = -math.inf
        self._answer: float | None = None  # seconds that are left, and when that was known
        self._answered = 0.0
        self._thread: threading.Thread | None = None

    @property
    def closing(self) -> float:
        """From when on nothing starts; infinity when there is no end."""
        return self.end - self.margin

    @property
    def last_call(self) -> float:
        """When running jobs are told to end."""
        return max(self.closing, self.end - self.grace - SPARE)

    def warned(self, now: float) -> None:
        """The batch system has sent its warning; without a known end it is `margin` from now."""
        self.end = min(self.end, now + self.margin) if self.end == math.inf else self.end
        self._ask = None

    def poll(self, now: float, wait: float | None = None) -> bool:
        """Ask again if it is time, and take an answer; whether the end has changed.

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
        # Answers are whole seconds and need a moment: what differs less is the same end.
        if abs(self.end - before) < 2.0:
            self.end = before
        return self.end != before

    def _question(self) -> None:
        assert self._ask is not None
        try:
            end = self._ask()
        except Exception as error:  # whatever the batch system's client does wrong is told
            self.trouble = f"{type(error).__name__}: {error}" if str(error) else repr(error)
            return
        self.trouble = ""
        self._answer = None if end is None else end - time.time()
        self._answered = time.monotonic()
