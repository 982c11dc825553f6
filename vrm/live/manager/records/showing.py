"""The state file, which `vrm queue` and `vrm top` show: it is kept up to date, and delays nothing that runs. Where many
jobs wait, a copy of the manager writes it."""

from __future__ import annotations

import json
import os
from functools import partial

from vrm.live.manager import copies
from vrm.live.manager.liverun import LiveRun
from vrm.live.manager.part import Part, Shown
from vrm.live.manager.records.snapshot import snapshot
from vrm.system.files import write_atomically

HEARTBEAT = 5.0
"""Seconds after which the state is written anew even if nothing changed."""

PAUSE = 0.2
"""Seconds between two states written, on an average of many changes."""

AHEAD = 1.0
"""Seconds of such pauses that may be left out, so that what follows a few changes is shown at once."""

REST = 20
"""Times the seconds that one has taken until the next one."""


class Showing(Part):
    """Writes the state file, and lets other parts know that it is written."""

    def __init__(self, live: LiveRun, emulated: bool) -> None:
        self.live = live
        self._emulated = emulated
        self._latest = 0.0      # when it is due even if nothing has changed
        self._copies = copies.Copies(1)
        self._earliest = 0.0
        self._paid = 0.0
        self._failed = False

    def tidy(self, now: float) -> None:
        """Bring the state file up to date, and what other parts know."""
        if not self.due(now):
            return
        live = self.live
        news = live.clock.news()
        if news:
            live.tell("warning", news)
        self.write(now)
        live.notify(Shown(now))

    def due(self, now: float) -> bool:
        """Whether the state is to be written now."""
        return not self._copies.look() and now >= (self._earliest if self.live.dirty else self._latest)

    def write(self, now: float) -> None:
        """Replace the state file; rarely when that is slow."""
        live = self.live
        live.dirty = False
        self._latest = now + HEARTBEAT
        if live.state.waiting > copies.FEW and self._copies.begin(partial(self._put, os.getpid()), then=self._written):
            return
        self.finish()

    def finish(self) -> None:
        """Replace the state file at once; no copy does so later."""
        self._copies.look(wait=True)
        begun, fault = self.live.clock(), ""
        try:
            self._put(os.getpid())
        except OSError as error:
            fault = error.strerror or str(error)
        self._written(fault, self.live.clock() - begun)

    def _put(self, manager: int) -> None:
        """Write the file; a copy does so as long as its manager is there: another one may write it by now."""
        text = json.dumps(snapshot(self.live, manager, self._emulated), separators=(",", ":"))
        if manager in (os.getpid(), os.getppid()):
            write_atomically(self.live.run_directory.state, text)

    def _written(self, fault: str, seconds: float) -> None:
        live, least = self.live, REST * seconds
        if fault and not self._failed:
            live.tell("warning", f"cannot write {live.run_directory.state}: {fault}")
        self._failed = bool(fault)
        done = live.clock()
        self._paid = max(self._paid, done) + max(PAUSE, least)
        self._earliest = max(done + least, self._paid - AHEAD)
