"""Finds out what became of the jobs that an earlier manager had started.

That manager may have run on another host, before a reboot, or in a batch job that is over. Then its jobs are over,
too, although no file shows how they ended.
"""

from __future__ import annotations

import math
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vrm.model.forms.json_checks import number
from vrm.live.spawn.records import ExitStatus, Marker, RecordError, read_status
from vrm.run.journal.record_checks import Record
from vrm.run.rundir import RunDirectory
from vrm.system.hosts import boot_id

UNSTARTED, RUNNING, ELSEWHERE, ENDED, LOST, INTERRUPTED = (
    "unstarted", "running", "elsewhere", "ended", "lost", "interrupted")
"""What became of a job: it was never launched; its supervisor lives, here or on another host of
this allocation; its exit status is known; its supervisor was killed; its host or allocation is
gone."""

SOON = 0.001
"""Seconds by which a marker must be older than a start to belong to an earlier one."""


@dataclass(frozen=True)
class ManagerPlace:
    """Where a manager runs: its host, the host's boot id, and the allocation ("": none)."""

    host: str
    boot: str
    allocation: str

    @classmethod
    def here(cls, allocation: str = "") -> ManagerPlace:
        """Return the place of this process, in a batch job such as `slurm 4711`."""
        return cls(socket.gethostname(), boot_id(), allocation)

    def record(self) -> dict[str, Any]:
        """Return the place as values of a journal record."""
        return {"host": self.host, "boot": self.boot, "allocation": self.allocation}


@dataclass(frozen=True)
class Recovered:
    """What became of a job: `status` if known, `trouble` if a file is damaged; `gone`: the batch job in which it was
    started is over."""

    what: str
    marker: Marker | None = None
    status: ExitStatus | None = None
    trouble: str = ""
    gone: bool = False


def look(run: RunDirectory, job_id: int, under: Record, here: ManagerPlace, start: float = -math.inf) -> Recovered:
    """Return what became of a job that an earlier manager started; `under` is that manager's `run` record, `start` the
    time of the job's start (seconds on that manager's clock)."""
    gone = _gone(under, here)
    marker = None
    try:
        marker = _of_this_start(run.marker(job_id), job_id, under, start)
        # In this order: the files of a job do not change after its supervisor is dead.
        alive = marker.alive() if marker else False
        status = _status_in(run.status(job_id), job_id, under, start)
        if status is None and marker is not None and (alive is False or (alive is None and gone)):
            status = _status_in(run.marker(job_id), job_id, under, start)  # written, but not yet renamed
    except RecordError as error:
        # Files are written whole or not at all: only the crash of a machine leaves a part.
        return Recovered(INTERRUPTED, marker, trouble=str(error), gone=gone)
    if status is not None:
        return Recovered(ENDED, marker, status, gone=gone)
    if marker is None:
        return Recovered(UNSTARTED)
    if alive:
        return Recovered(RUNNING, marker)
    if alive is None:
        return Recovered(INTERRUPTED if gone else ELSEWHERE, marker, gone=gone)
    return Recovered(INTERRUPTED if gone or marker.boot != here.boot else LOST, marker, gone=gone)


def _of_this_start(path: Path, job_id: int, under: Record, start: float) -> Marker | None:
    """Return the marker in a job's file; None if there is none, or if it belongs to an earlier start.

    There are two ways to find a marker of an earlier start. A machine that crashes may bring back a removed file: then
    its supervisor ran in an earlier boot of the host. Or the disk did not let the file be removed: then it was written
    before this start was decided.
    """
    marker = Marker.read(path, job_id)
    if marker is not None and marker.host == under.get("host") and (
            marker.boot != under.get("boot", marker.boot) or _before(marker.tick, under, start - SOON)):
        return None
    return marker


def _before(tick: float | None, under: Record, start: float) -> bool:
    """Return whether `tick`, on the monotonic clock of the manager's host, is before the time `start` of that manager's
    clock."""
    time, at = under.get("time"), under.get("tick")
    return tick is not None and number(time) and number(at) and tick < start - float(time) + float(at)  # type: ignore[arg-type]


def _status_in(path: Path, job_id: int, under: Record, start: float) -> ExitStatus | None:
    """Return the status in a job's file; None if there is none, or if it belongs to an earlier start, including one in
    the same boot of the host."""
    marker = _of_this_start(path, job_id, under, start)
    status = read_status(path, job_id) if marker is not None else None
    if status is None or marker is None or marker.host != under.get("host") or not _before(status.tick, under, start):
        return status
    return None


def _gone(under: Record, here: ManagerPlace) -> bool:
    """Return whether the earlier manager ran in another batch job than this one. That batch job is over, because the
    lock of the directory is free."""
    before = under.get("allocation", "")
    return bool(before and here.allocation) and before != here.allocation
