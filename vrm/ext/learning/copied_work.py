"""Long computations in a forked copy of the manager; the result comes back as JSON."""

from __future__ import annotations

import json
import os
import tempfile
from typing import Any
from collections.abc import Callable

from vrm.live.manager.copies import Copies

LOOK = 0.5
"""Seconds between two checks whether a copy has ended."""


class CopiedWork:
    """Runs at most one copy at a time; `working` while there is one."""

    def __init__(self) -> None:
        self._copies = Copies(1)
        self.working = False

    def begin(self, work: Callable[[], Any], then: Callable[[Any, float], None]) -> None:
        """Start `work`, which must not change anything, in a copy. `look` later calls `then` with its result
        (None if it failed) and the seconds that it took. If no copy can be started, the work is done at once."""
        file = tempfile.TemporaryFile()

        def write() -> None:
            data = json.dumps(work()).encode()
            while data:
                data = data[os.write(file.fileno(), data):]

        def done(why: str, seconds: float) -> None:
            self.working = False
            with file:
                file.seek(0)
                then(None if why else json.loads(file.read()), seconds)

        self.working = self._copies.begin(write, file.fileno(), done)
        if not self.working:
            write()
            done("", 0.0)

    def look(self, wait: bool = False) -> None:
        """Fetch the result if the copy has ended; with `wait`, wait for it."""
        if self.working:
            self._copies.look(wait)
