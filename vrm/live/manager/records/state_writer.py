"""Writes the state file, which `vrm queue` and `vrm top` show, without delaying jobs. If many jobs wait, a copy of the
manager writes it."""

from __future__ import annotations

import json
import os
from functools import partial

from vrm.live.manager import copies
from vrm.live.manager.liverun import LiveRun
from vrm.live.manager.part import Part, StateWritten
from vrm.live.manager.records.snapshot import snapshot
from vrm.system.files import write_atomically

HEARTBEAT = 5.0
"""Seconds after which the state is written again even if nothing changed."""

PAUSE = 0.2
"""Average seconds between two writes of the state, while there are many changes."""

AHEAD = 1.0
"""Seconds of such pauses that may be skipped, so that a few changes are shown at once."""

REST = 20
"""The pause after a write is at least this factor times the seconds that the write took."""


class StateWriter(Part):
    """Writes the state file, and notifies other parts when it is written."""

    def __init__(self, live: LiveRun, emulated: bool) -> None:
        self.live = live
        self._emulated = emulated
        self._latest = 0.0      # when a write is due even if nothing has changed
        self._copies = copies.Copies(1)
        self._earliest = 0.0
        self._paid = 0.0
        self._failed = False

    def tidy(self, now: float) -> None:
        """Write the state file if that is due, and notify other parts."""
        if not self.due(now):
            return
        live = self.live
        news = live.clock.news()
        if news:
            live.tell("warning", news)
        self.write(now)
        live.notify(StateWritten(now))

    def due(self, now: float) -> bool:
        """Return whether the state must be written now."""
        return not self._copies.look() and now >= (self._earliest if self.live.dirty else self._latest)

    def write(self, now: float) -> None:
        """Replace the state file, and set the time of the next write (later if writing is slow)."""
        live = self.live
        live.dirty = False
        self._latest = now + HEARTBEAT
        if live.state.waiting > copies.FEW and self._copies.begin(partial(self._put, os.getpid()), then=self._written):
            return
        self.finish()

    def finish(self) -> None:
        """Replace the state file at once, after any copy that is writing it."""
        self._copies.look(wait=True)
        begun, fault = self.live.clock(), ""
        try:
            self._put(os.getpid())
        except OSError as error:
            fault = error.strerror or str(error)
        self._written(fault, self.live.clock() - begun)

    def _put(self, manager: int) -> None:
        """Write the file. A copy writes it only while its manager lives, because a new manager may write it by now."""
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
