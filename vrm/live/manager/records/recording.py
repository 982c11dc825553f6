"""Records ended jobs after the jobs that can start have started, at times when no client waits for an answer."""

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
from vrm.run.journal.history import RunHistory

RECORDING = 0.04
"""Maximum seconds for recording ended jobs in one turn of the loop."""


SETTLED = 1.0
"""Maximum seconds for which files stay that are already in the archive."""

FILES = 64
"""Maximum number of such files."""

_OUTPUT = re.compile(r"(.+)\.(\d+)\.[oe]")


class RecordWriting(Part):
    """Records ended jobs (`vrm.live.manager.records.records`), and ends the processes that they left."""

    def __init__(self, live: LiveRun) -> None:
        self.live = live
        self._selector: selectors.BaseSelector | None = None
        self._more = False  # ends wait to be recorded, because there was no time
        self._archive: ArchiveWriter | None = None
        self._settle_at = math.inf

    def recall(self, past: RunHistory) -> None:
        """Continue `jobs.csv` and the archive; add the outputs that an earlier manager has not archived."""
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
        """Keep the selector of the loop."""
        self._selector = selector

    def _likely(self) -> float:
        """Return until when a client is likely to send a request to some part."""
        return max([part.likely() for part in self.live.parts.having("likely")], default=-math.inf)

    def _request_waits(self) -> bool:
        """Return whether a request has arrived at a time when clients send many requests and should not wait."""
        return (self._selector is not None and self.live.clock() < self._likely()
                and bool(self._selector.select(0)))

    def busy(self) -> bool:
        """Return whether ends must be recorded or left processes searched."""
        return bool(self.live.records.pending) or self.live.records.sweep_at < math.inf

    def deadline(self, now: float) -> float:
        """Return when there is time to record, or when left processes must be searched."""
        if self._more:
            return now
        likely = self._likely() if self.live.records.pending else -math.inf
        return min(likely if likely > now else math.inf, self.live.records.sweep_at, self._settle_at)

    def tidy(self, now: float) -> None:
        """Record ends that are in the synced journal. The sync for a call that is likely to come serves the ends, too.
        Ends for which the disk has no space, or for which there is no time now, wait: jobs and commands must not wait
        for them."""
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
            if live.clock() >= until or (written and self._request_waits()):
                self._more = True
                return
            written = True
            try:
                outcome = records.pending[0]
                live.notify(RecordPrepared(outcome))
                records.write_next()
            except OSError as error:
                live.block()
                live.report_disk_error(f"{live.run_directory.jobs}: {error.strerror}")
                return
            live.report_disk_recovery()
            self._keep(outcome, now)

    # The archive of outputs.

    def _keep(self, outcome: EndedJob, now: float) -> None:
        """Add the outputs of a job to the archive, if there is one, and remove its rankfile, which is no longer
        needed."""
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
        """Add the existing outputs of a job to the archive."""
        assert self._archive is not None
        paths = self.live.run_directory.files(app, job_id)
        self._archive.add(job_id, started, [(OUT, paths.output), (ERR, paths.errors)])
        if self._archive.unsettled >= FILES:
            self._archive.settle(self.live.records.rows)

    def _settle(self, now: float) -> None:
        """Remove files that are in the archive, when this is due."""
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
        """Context that turns an OSError into a warning: outputs that cannot be archived stay where they are, and the
        next manager tries again."""
        try:
            yield
        except OSError as error:
            self.live.tell("warning", f"{error.filename or self.live.run_directory.outputs}: {error.strerror}; outputs "
                                      "stay in their own files, and the next manager of this run archives them")
