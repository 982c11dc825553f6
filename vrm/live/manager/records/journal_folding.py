"""Folds the journal while the manager runs, so that the next manager reads few records.

A copy of the manager writes the folded records to the file `journal.new` (`vrm.run.journal.compaction.fold`). The manager
adds the records that were made meanwhile, syncs the file and gives it the journal's name. Until then the journal is
complete, and afterwards the new file is: a death at any point loses nothing.
"""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import signal
from functools import partial

from vrm.live.manager.copies import Copies
from vrm.live.manager.liverun import LiveRun
from vrm.live.manager.part import Part
from vrm.run.journal import compaction
from vrm.run.journal.files import START, JournalPosition
from vrm.run.journal.history import RunHistory

LATER = 60.0
"""Seconds until a fold that failed is tried again."""


class JournalFolding(Part):
    """Folds the records after the folded part when they are many, and as long as that part: the total work is then
    proportional to the number of records. The environment variable VRM_FOLD_AFTER, for tests, replaces
    `vrm.run.journal.compaction.FEWEST`."""

    def __init__(self, live: LiveRun) -> None:
        self.live = live
        self._new = live.run_directory.journal.with_name("journal.new")
        self._copies = Copies(1)
        self._fewest = int(os.environ.get("VRM_FOLD_AFTER", compaction.FEWEST))
        self._since = START  # the end of the folded part
        self._earliest = 0.0
        self._failed = False

    def recall(self, past: RunHistory) -> None:
        """Take in what earlier managers have folded."""
        if past.format < compaction.OLDEST:
            self._earliest = math.inf
        elif past.number - past.folded < self._fewest:
            self._since = past.mark

    def begin(self, selector: selectors.BaseSelector) -> None:
        """Remove what an earlier manager has left."""
        self.leave()

    def tidy(self, now: float) -> None:
        """Begin to fold, if it is time, or finish it."""
        if self._copies.look() or now < self._earliest:
            return
        journal, since = self.live.journal, self._since
        if journal.number - since.number < self._fewest or journal.mark.offset < 2 * since.offset or not self.live.synced():
            return
        try:
            self._begin(since, journal.mark)
        except OSError as error:
            self._end(error.strerror or str(error))

    def _begin(self, since: JournalPosition, until: JournalPosition) -> None:
        self._new.unlink(missing_ok=True)
        file = os.open(self._new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        work = partial(self._fold, since, until, file)
        if not self._copies.begin(work, file, partial(self._swap, until, file)):
            os.close(file)
            self._end("no process")

    def _fold(self, since: JournalPosition, until: JournalPosition, file: int) -> None:
        """In a copy: write the folded records. It has the time that jobs leave to it."""
        signal.alarm(0)
        os.nice(10)
        compaction.fold(self.live.run_directory.journal, since, until, self.live.state.book.entries, file)

    def _swap(self, until: JournalPosition, file: int, fault: str, seconds: float) -> None:
        """Continue in the new file, unless the copy failed."""
        if not fault:
            try:
                end = compaction.folded_end(file)
                self.live.journal.continue_in(self._new, file, end, until)
                self._since = end
            except OSError as error:
                fault = error.strerror or str(error)
        if fault:
            os.close(file)
        self._end(fault)

    def _end(self, fault: str) -> None:
        """Report a fault, once until it works again."""
        if fault:
            self._earliest = self.live.clock() + LATER
            with contextlib.suppress(OSError):
                self._new.unlink(missing_ok=True)
            if not self._failed:
                self.live.tell("warning", f"cannot shorten {self.live.run_directory.journal}: {fault}; the run continues, "
                                          "and it is tried again")
        self._failed = bool(fault)

    def busy(self) -> bool:
        """Return whether a copy folds; a manager that is stopped does not wait for it."""
        return self.live.phase == "running" and self._copies.look()

    def leave(self) -> None:
        """End a copy, and remove the unfinished file."""
        self._copies.stop()
        with contextlib.suppress(OSError):
            self._new.unlink(missing_ok=True)
