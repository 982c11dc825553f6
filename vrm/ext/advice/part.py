"""The part that advice adds to a manager."""

from __future__ import annotations

import contextlib
import selectors
import subprocess
import sys

from vrm.config.schema import to_line
from vrm.live.manager.liverun import LiveRun
from vrm.live.manager.part import Part
from vrm.scheduling.orderings.ordering import ADVISED


class AdviserProcess(Part):
    """Runs a process next to the manager that looks for better rules, if the algorithm is `advised`; see
    `vrm.ext.advice.adviser`. The process ends with its manager, however that ends."""

    def __init__(self, live: LiveRun) -> None:
        self.live = live
        self._process: subprocess.Popen[bytes] | None = None

    def begin(self, selector: selectors.BaseSelector) -> None:
        """Start the process."""
        if self.live.settings.rules.algorithm.lower() != ADVISED:
            return
        self._process = process = subprocess.Popen(
            [sys.executable, "-m", "vrm.ext.advice.adviser"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
            start_new_session=True, cwd="/")
        assert process.stdin is not None
        with contextlib.suppress(OSError):  # it has ended already: there is no advice
            process.stdin.write(f"{to_line(self.live.settings)}\n".encode())
            process.stdin.flush()

    def leave(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            with contextlib.suppress(OSError):
                assert process.stdin is not None
                process.stdin.close()
