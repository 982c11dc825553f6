"""The forecast part of the manager: it supervises the process that makes the forecasts, without ever waiting
for it."""

from __future__ import annotations

import math
import selectors

from vrm.ext.forecast.start import start_of
from vrm.ext.forecast.live.forecaster import Forecaster
from vrm.live.manager.liverun import LiveRun
from vrm.live.manager.part import Part, StateWritten


class Forecasts(Part):
    """Reports each shown state to the forecaster, and provides the run's `start_of`, the start forecast of a
    single job."""

    observes = (StateWritten,)

    def __init__(self, live: LiveRun) -> None:
        self.live = live
        self.forecaster = Forecaster(live.settings, live.run_directory, math.inf,
                                     lambda text: live.tell("warning", text))
        live.start_of = start_of
        self._first = math.inf  # when it gets its first report even if nothing has changed

    def begin(self, selector: selectors.BaseSelector) -> None:
        """Start the forecasts, unless the settings switch them off."""
        if self.live.settings.extended("Forecast"):
            self._first = self.forecaster.begin(self.live.now)

    def look(self, now: float, files: bool) -> None:
        """Have the state shown when the first report to the forecaster is due."""
        if now >= self._first:
            self._first, self.live.dirty = math.inf, True

    def observe(self, event: object) -> None:
        """Report the shown state to the forecaster."""
        live = self.live
        if isinstance(event, StateWritten) and self.forecaster.awake(live.state, event.time):
            live.journal.show()
            self.forecaster.tell(live.state, live.phase, live.end.end, event.time)

    def leave(self) -> None:
        """End the process."""
        self.forecaster.close()
