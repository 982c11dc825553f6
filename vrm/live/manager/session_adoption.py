"""Make the processes of jobs part of the batch job in which vrm runs, so that they end with it."""

from __future__ import annotations

import selectors

from vrm.live.manager.liverun import LiveRun
from vrm.live.manager.part import Part
from vrm.live.site.setup import Site


class SessionAdoption(Part):
    """Adds the sessions of jobs, and the session of the relay, to the batch job (`vrm.live.batch.adoption`)."""

    def __init__(self, live: LiveRun, site: Site) -> None:
        self.live = live
        self.adoption, self.relay = site.adoption, site.relay
        self._trouble = ""

    def begin(self, selector: selectors.BaseSelector) -> None:
        """Add the session of the relay, which has started by now."""
        if self.relay is not None and self.relay.pid is not None:
            self.adoption.attach(self.relay.pid)

    def deadline(self, now: float) -> float:
        """Return when the next session must be added."""
        return self.adoption.deadline(now)

    def tidy(self, now: float) -> None:
        """Add the sessions that are due; warn once if that fails."""
        adoption = self.adoption
        if now < adoption.deadline(now) - 0.05:
            return
        adoption.poll(now, {job_id: running.session for job_id, running in self.live.running.items()})
        if adoption.trouble and not self._trouble:
            self.live.tell("warning", "jobs do not belong to the batch job, and would outlive its "
                                      f"end: {adoption.trouble}")
        self._trouble = adoption.trouble or self._trouble
