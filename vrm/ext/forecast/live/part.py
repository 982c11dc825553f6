"""The part that forecasts add to a manager: it looks after the process that makes them, and the loop does not wait for
it."""

from __future__ import annotations

import math
import selectors

from vrm.ext.forecast.asked import start_of
from vrm.ext.forecast.live.forecaster import Forecaster
from vrm.live.manager.liverun import LiveRun
from vrm.live.manager.part import Part, Shown


class Forecasts(Part):
    """Lets the forecaster know what happens, whenever that is shown, and says when a job would start that is asked
    about."""

    observes = (Shown,)

    def __init__(self, live: LiveRun) -> None:
        self.live = live
        self.forecaster = Forecaster(live.settings, live.run_directory, math.inf,
                                     lambda text: live.tell("warning", text))
        live.start_of = start_of
        self._first = math.inf  # when it gets its first report even if nothing has changed

    def begin(self, selector: selectors.BaseSelector) -> None:
        """Forecasts are made from now on, unless the settings say otherwise."""
        if self.live.settings.extended("Forecast"):
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
