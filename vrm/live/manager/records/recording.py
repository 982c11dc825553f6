"""Records of ended jobs are written when jobs that can start have started, and nobody waits for an answer."""

from __future__ import annotations

import contextlib
import math
import os
import re
import selectors
from collections.abc import Iterator

from vrm.live.manager.liverun import LiveRun
from vrm.live.manager.part import Part, RecordPrepared
from vrm.live.manager.records.records import EndedJob
from vrm.run.journal.archive import ERR, OUT, ArchiveWriter
from vrm.run.journal.past import Past

RECORDING = 0.04
"""Seconds at most that ended jobs are recorded for in one turn of the loop."""


SETTLED = 1.0
"""Seconds at most that files stay which are in the archive."""

FILES = 64
"""Such files at most."""

_OUTPUT = re.compile(r"(.+)\.(\d+)\.[oe]")


class RecordWriting(Part):
    """Has ended jobs recorded (`vrm.live.manager.records.records`), and what they left behind ended."""

    def __init__(self, live: LiveRun) -> None:
        self.live = live
        self._selector: selectors.BaseSelector | None = None
        self._more = False  # ends wait to be recorded, for want of time
        self._archive: ArchiveWriter | None = None
        self._settle_at = math.inf

    def recall(self, past: Past) -> None:
        """Go on with `jobs.csv`, and with the archive: what an earlier manager has not brought there is added."""
        self.live.records.open(past)
        if not self.live.settings.output.archive:
            return
        with self._trouble():
            self._archive = ArchiveWriter(self.live.run_directory.outputs)
            for name in os.listdir(self.live.run_directory.log):
                found = _OUTPUT.fullmatch(name)
                row = self.live.records.rows.get(int(found[2])) if found else None
                if found and row is not None and row.app == found[1]:
                    self._put(row.app, row.id, row.start or 0.0)

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
        return min(likely if likely > now else math.inf, self.live.records.sweep_at, self._settle_at)

    def tidy(self, now: float) -> None:
        """Record ends that are on disk; the sync for a call that is likely to come serves them, too. Those that the
        disk does not take wait for the next time, and so do those for which there is no time now: jobs and commands
        must not wait for them."""
        live, records = self.live, self.live.records
        if now >= records.sweep_at:
            records.sweep_all(now)
        self._settle(now)
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
                outcome = records.pending[0]
                live.notify(RecordPrepared(outcome))
                records.write_next()
            except OSError as error:
                live.block()
                live.disk_trouble(f"{live.run_directory.jobs}: {error.strerror}")
                return
            live.disk_works()
            self._keep(outcome, now)

    # The archive of outputs.

    def _keep(self, outcome: EndedJob, now: float) -> None:
        """Add the outputs of a job to the archive, where there is one; and its rankfile is not needed any more."""
        if self._archive is None or outcome.booking is None or outcome.job.payload.output:
            return
        job = outcome.job
        paths = self.live.run_directory.files(job.app, job.id)
        with self._trouble():
            for path in (paths.rankfile, paths.bindings):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
            self._put(job.app, job.id, outcome.booking.start)
            self._settle_at = min(self._settle_at, now + SETTLED)

    def _put(self, app: str, job_id: int, started: float) -> None:
        """Add the outputs of a job that are there."""
        assert self._archive is not None
        paths = self.live.run_directory.files(app, job_id)
        self._archive.add(job_id, started, [(OUT, paths.output), (ERR, paths.errors)])
        if self._archive.unsettled >= FILES:
            self._archive.settle(self.live.records.rows)

    def _settle(self, now: float) -> None:
        """Remove files that are in the archive, when it is time."""
        if now >= self._settle_at:
            self._settle_at = math.inf
            with self._trouble():
                assert self._archive is not None
                self._archive.settle(self.live.records.rows)

    def leave(self) -> None:
        """Close the archive."""
        if self._archive is not None:
            with self._trouble():
                self._archive.settle(self.live.records.rows)
            self._archive.close()

    @contextlib.contextmanager
    def _trouble(self) -> Iterator[None]:
        """What cannot be archived stays where it is, and the next manager tries it again."""
        try:
            yield
        except OSError as error:
            self.live.tell("warning", f"{error.filename or self.live.run_directory.outputs}: {error.strerror}; outputs "
                                      "stay in their own files, and the next manager of this run archives them")
