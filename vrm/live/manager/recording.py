"""Records of ended jobs are written when jobs that can start have started, and nobody waits for an answer."""

from __future__ import annotations

import math

from vrm.live.manager.door import Door
from vrm.live.manager.liverun import LiveRun
from vrm.live.manager.part import Part
from vrm.run.past import Past

RECORDING = 0.04
"""Seconds at most that ended jobs are recorded for in one turn of the loop."""


class RecordWriting(Part):
    """Has ended jobs recorded (`vrm.live.manager.records`), and what they left behind ended."""

    def __init__(self, live: LiveRun, door: Door) -> None:
        self.live = live
        self.door = door
        self._more = False  # ends wait to be recorded, for want of time

    def recall(self, past: Past) -> None:
        """Go on with `jobs.csv`."""
        self.live.records.open(past)

    def busy(self) -> bool:
        """Whether ends are to be recorded, or processes to be looked for."""
        return bool(self.live.records.pending) or self.live.records.sweep_at < math.inf

    def deadline(self, now: float) -> float:
        """When there is time to record, or processes are to be looked for."""
        if self._more:
            return now
        waits = self.live.records.pending and self.door.next_call > now
        return min(self.door.next_call if waits else math.inf, self.live.records.sweep_at)

    def tidy(self, now: float) -> None:
        """Record ends that are on disk; the sync for a call that is likely to come serves them, too. Those that the
        disk does not take wait for the next time, and so do those for which there is no time now: jobs and commands
        must not wait for them."""
        live, records = self.live, self.live.records
        if now >= records.sweep_at:
            records.sweep_all(now)
        shared = self.door.has_work or live.journal.pending and now < self.door.next_call
        self._more = False
        if not records.pending or shared or not live.synced():
            return
        until, written = live.clock() + RECORDING, False
        while (records.pending and live.clock() >= live.blocked_until
               and not live.watch.metering(records.pending[0].job.id)):
            if live.clock() >= until or written and self.door.knocked():
                self._more = True
                return
            written = True
            try:
                first = records.pending[0]
                if first.booking is not None and first.joules is None:
                    first.joules, first.frequency = live.watch.metered(first.job.id)
                records.write_next()
            except OSError as error:
                live.block()
                live.disk_trouble(f"{live.run_directory.jobs}: {error.strerror}")
                return
            live.disk_works()
