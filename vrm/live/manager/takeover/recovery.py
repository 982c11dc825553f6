"""Going on where an earlier manager stopped: what became of the jobs that it had started.

It may have run on another host, before a reboot, or in a batch job that is over: then its jobs
are over, too, although nothing tells how they ended.
"""

from __future__ import annotations

import math
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vrm.model.forms.shapes import number
from vrm.live.spawn.records import ExitStatus, Marker, RecordError, read_status
from vrm.run.journal.check import Record
from vrm.run.rundir import RunDirectory
from vrm.system.hosts import boot_id

UNSTARTED, RUNNING, ELSEWHERE, ENDED, LOST, INTERRUPTED = (
    "unstarted", "running", "elsewhere", "ended", "lost", "interrupted")
"""What became of a job: it was never launched; its supervisor lives, here or on another host of
this allocation; its exit status is known; its supervisor was killed; its host or allocation is
gone."""

SOON = 0.001
"""Seconds by which a marker must be older than a start to be of another one."""


@dataclass(frozen=True)
class Place:
    """Where a manager runs: its host, the host's boot, and the allocation (empty: none)."""

    host: str
    boot: str
    allocation: str

    @classmethod
    def here(cls, allocation: str = "") -> Place:
        """Where this process runs, in a batch job such as `slurm 4711`."""
        return cls(socket.gethostname(), boot_id(), allocation)

    def record(self) -> dict[str, Any]:
        """As journal values."""
        return {"host": self.host, "boot": self.boot, "allocation": self.allocation}


@dataclass(frozen=True)
class Recovered:
    """What became of a job; `status` where it is known, `trouble` where a file is damaged; `gone`:
    the batch job in which it was started is over."""

    what: str
    marker: Marker | None = None
    status: ExitStatus | None = None
    trouble: str = ""
    gone: bool = False


def look(run: RunDirectory, job_id: int, under: Record, here: Place, start: float = -math.inf) -> Recovered:
    """What became of a job that a manager started; `under` is that manager's `run` record, `start` when that was (seconds,
    by the manager's clock)."""
    gone = _gone(under, here)
    marker = None
    try:
        marker = _of_this_start(run.marker(job_id), job_id, under, start)
        # In this order: once its supervisor is dead, the files of a job change no more.
        alive = marker.alive() if marker else False
        status = _status_in(run.status(job_id), job_id, under, start)
        if status is None and marker is not None and (alive is False or (alive is None and gone)):
            status = _status_in(run.marker(job_id), job_id, under, start)  # written, and not renamed any more
    except RecordError as error:
        # Written whole or not at all: only the death of a machine leaves a part.
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
    """The marker in a job's file; None where there is none, or where it is of an earlier start: a machine that dies may
    bring back a file that was removed, and its supervisor ran before that boot of the host; or the disk did not let it
    be removed, and it was made before this start was decided."""
    marker = Marker.read(path, job_id)
    if marker is not None and marker.host == under.get("host") and (
            marker.boot != under.get("boot", marker.boot) or _before(marker.tick, under, start - SOON)):
        return None
    return marker


def _before(tick: float | None, under: Record, start: float) -> bool:
    """Whether it was earlier than this time of the manager's clock, by the monotonic clock of its host."""
    time, at = under.get("time"), under.get("tick")
    return tick is not None and number(time) and number(at) and tick < start - float(time) + float(at)  # type: ignore[arg-type]


def _status_in(path: Path, job_id: int, under: Record, start: float) -> ExitStatus | None:
    """The status in a job's file; None where there is none, or where it is of an earlier start, also in the same boot of the
    host."""
    marker = _of_this_start(path, job_id, under, start)
    status = read_status(path, job_id) if marker is not None else None
    if status is None or marker is None or marker.host != under.get("host") or not _before(status.tick, under, start):
        return status
    return None


def _gone(under: Record, here: Place) -> bool:
    """Whether the batch job of an earlier manager is another than this one: as the directory's
    lock is free, it is over."""
    before = under.get("allocation", "")
    return bool(before and here.allocation) and before != here.allocation
