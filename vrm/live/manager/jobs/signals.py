"""Signals that users want their scripts to get: some time before their limit (`sbatch --signal`), or now
(`scancel --signal`)."""

from __future__ import annotations

import math
from typing import NamedTuple

from vrm.live.manager.jobs.running import Running
from vrm.model.job import Details
from vrm.system.processes import session_members, signal_process


class Warning(NamedTuple):
    """A signal that comes so many seconds before the limit: to the script alone (`batch`), or to all
    else of the job."""

    batch: bool
    number: int
    seconds: float


def warning_of(details: Details) -> Warning | None:
    """What a job was submitted with, if anything: `B:10@60`."""
    text: str = details.more.get("warning", "")
    if not text:
        return None
    number, _, seconds = text.removeprefix("B:").partition("@")
    return Warning(text.startswith("B:"), int(number), float(seconds))


def due(running: Running, warning: Warning | None) -> float:
    """When it is to come."""
    return running.due - warning.seconds if warning is not None else math.inf


def send(running: Running, number: int, batch: bool | None) -> bool:
    """Send a signal to the script of a job (`batch`), to what it has started, or to both (None); whether
    any process got it. The oldest process of a session behind its leader is the script."""
    if running.session is None:
        return False
    members = sorted((pid for pid in session_members(running.session, running.leader) if pid != running.session),
                     key=lambda pid: (pid.started, int(pid)))
    chosen = members if batch is None else members[:1] if batch else members[1:]
    return sum(signal_process(pid, number) for pid in chosen) > 0
