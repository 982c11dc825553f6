"""Signals that users request for their scripts: some time before the limit (`sbatch --signal`), or now
(`scancel --signal`)."""

from __future__ import annotations

import math
from typing import NamedTuple

from vrm.live.manager.jobs.live_job import LiveJob
from vrm.model.job import Details
from vrm.system.processes import session_members, signal_process


class Warning(NamedTuple):
    """A signal that is sent `seconds` before the limit: only to the script (`batch`), or to all other processes of the
    job."""

    batch: bool
    number: int
    seconds: float


def warning_of(details: Details) -> Warning | None:
    """Return the signal that a job was submitted with (`B:10@60`), or None."""
    text: str = details.more.get("warning", "")
    if not text:
        return None
    number, _, seconds = text.removeprefix("B:").partition("@")
    return Warning(text.startswith("B:"), int(number), float(seconds))


def due(running: LiveJob, warning: Warning | None) -> float:
    """Return when the signal is due; infinity if there is none."""
    return running.due - warning.seconds if warning is not None else math.inf


def send(running: LiveJob, number: int, batch: bool | None) -> bool:
    """Send a signal to the script of a job (`batch` is True), to what it has started (False), or to both (None). Return
    whether any process received it. The script is the oldest process of a session after its leader."""
    if running.session is None:
        return False
    members = sorted((pid for pid in session_members(running.session, running.leader) if pid != running.session),
                     key=lambda pid: (pid.started, int(pid)))
    chosen = members if batch is None else members[:1] if batch else members[1:]
    return sum(signal_process(pid, number) for pid in chosen) > 0
