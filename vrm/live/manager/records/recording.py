"""Records of ended jobs are written when jobs that can start have started, and nobody waits for an answer."""

from __future__ import annotations

import math
import selectors

from vrm.live.manager.liverun import LiveRun
from vrm.live.manager.part import Part, RecordPrepared
from vrm.run.journal.past import Past

RECORDING = 0.04
"""Seconds at most that ended jobs are recorded for in one turn of the loop."""


class RecordWriting(Part):
    """Has ended jobs recorded (`vrm.live.manager.records.records`), and what they left behind ended."""

    def __init__(self, live: LiveRun) -> None:
        self.live = live
        self._selector: selectors.BaseSelector | None = None
        self._more = False  # ends wait to be recorded, for want of time

    def recall(self, past: Past) -> None:
        """Go on with `jobs.csv`."""
        self.live.records.open(past)

    def begin(self, selector: selectors.BaseSelector) -> None:
        """Know what the loop waits for."""
        self._selector = selector

    def _likely(self) -> float:
        """Until when somebody is likely to ask something of some part."""
        return max([part.likely() for part in self.live.parts.having("likely")], default=-math.inf)

    def _knocked(self) -> bool:
        """Whether somebody has asked something at a time when people ask all the time, and should not wait."""
        return (self._selector is not None and self.live.clock() < self._likely()
                and bool(self._selector.select(0)))

    def busy(self) -> bool:
        """Whether ends are to be recorded, or processes to be looked for."""
        return bool(self.live.records.pending) or self.live.records.sweep_at < math.inf

    def deadline(self, now: float) -> float:
        """When there is time to record, or processes are to be looked for."""
        if self._more:
            return now
        likely = self._likely() if self.live.records.pending else -math.inf
        return min(likely if likely > now else math.inf, self.live.records.sweep_at)

    def tidy(self, now: float) -> None:
        """Record ends that are on disk; the sync for a call that is likely to come serves them, too. Those that the
        disk does not take wait for the next time, and so do those for which there is no time now: jobs and commands
        must not wait for them."""
        live, records = self.live, self.live.records
        if now >= records.sweep_at:
            records.sweep_all(now)
        likely = self._likely()
        shared = likely == math.inf or (live.journal.pending and now < likely)
        self._more = False
        if not records.pending or shared or not live.synced():
            return
        until, written = live.clock() + RECORDING, False
        while (records.pending and live.clock() >= live.blocked_until
               and not any(part.keeps(records.pending[0].job.id) for part in live.parts.having("keeps"))):
            if live.clock() >= until or (written and self._knocked()):
                self._more = True
                return
            written = True
            try:
                live.notify(RecordPrepared(records.pending[0]))
                records.write_next()
            except OSError as error:
                live.block()
                live.disk_trouble(f"{live.run_directory.jobs}: {error.strerror}")
                return
            live.disk_works()
