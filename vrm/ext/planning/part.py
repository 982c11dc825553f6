"""The part that planning adds to a manager."""

from __future__ import annotations

import selectors

from vrm.ext.planning.planner import Planner
from vrm.ext.planning.planning_dispatcher import Planning
from vrm.live.manager.liverun import LiveRun
from vrm.live.manager.part import Part


class Plans(Part):
    """Runs a scheduler's planner in another process while the manager runs."""

    def __init__(self, live: LiveRun) -> None:
        self.live = live
        self._dispatcher: Planning | None = None
        self._planner = Planner()

    def begin(self, selector: selectors.BaseSelector) -> None:
        """Start the process, if the scheduler makes plans."""
        dispatcher = self.live.scheduler.dispatcher
        if isinstance(dispatcher, Planning):
            self._dispatcher, dispatcher.aside = dispatcher, self._planner
            self._planner.start()

    def leave(self) -> None:
        """End the process."""
        if self._dispatcher is not None:
            self._dispatcher.aside = None
            self._planner.close()
