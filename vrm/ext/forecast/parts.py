"""The parts that forecasts add to a manager: each looks after a process that follows the run, and the loop waits for
neither."""

from __future__ import annotations

import contextlib
import math
import selectors
import subprocess
import sys
from typing import Optional

from vrm.config.schema import to_line
from vrm.ext.forecast.asked import start_of
from vrm.ext.forecast.forecaster import Forecaster
from vrm.live.manager.liverun import LiveRun
from vrm.live.manager.part import Part, Shown
from vrm.scheduling.ordering import ADVISED


class Forecasts(Part):
    """Lets the forecaster know what happens, whenever that is shown, and says when a job would start that is asked
    about."""

    def __init__(self, live: LiveRun) -> None:
        self.live = live
        self.forecaster = Forecaster(live.settings, live.run_directory, math.inf,
                                     lambda text: live.tell("warning", text))
        live.start_of = start_of
        self._first = math.inf  # when it is told something even if nothing has changed

    def begin(self, selector: selectors.BaseSelector) -> None:
        """Forecasts are made from now on, unless the settings say otherwise."""
        if self.live.settings.forecast:
            self._first = self.forecaster.begin(self.live.now)

    def look(self, now: float, files: bool) -> None:
        """Have the state shown when the forecaster is to be told first."""
        if now >= self._first:
            self._first, self.live.dirty = math.inf, True

    def observe(self, event: object) -> None:
        """Tell the forecaster, too, what is shown."""
        live = self.live
        if isinstance(event, Shown) and self.forecaster.awake(live.state, event.time):
            live.journal.show()
            self.forecaster.tell(live.state, live.phase, live.end.end, event.time)

    def leave(self) -> None:
        """End the process."""
        self.forecaster.close()


class Advised(Part):
    """While the manager runs, and if the algorithm is `advised`, a process looks for better rules: see
    `vrm.ext.forecast.adviser`. It ends with its manager, however that ends."""

    def __init__(self, live: LiveRun) -> None:
        self.live = live
        self._process: Optional[subprocess.Popen[bytes]] = None

    def begin(self, selector: selectors.BaseSelector) -> None:
        """Start the process."""
        if self.live.settings.rules.algorithm.lower() != ADVISED:
            return
        self._process = process = subprocess.Popen(
            [sys.executable, "-m", "vrm.ext.forecast.adviser"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
            start_new_session=True, cwd="/")
        assert process.stdin is not None
        with contextlib.suppress(OSError):  # it has ended: nobody advises
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
