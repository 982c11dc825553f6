"""How a job ended: first by what the manager did to it, then by its exit status. And the verdicts
that are held, because a job that failed may have been interrupted.

| the manager had | and the job ended | it is |
|---|---|---|
| done nothing to it | with exit status 0 | completed |
| done nothing to it | otherwise | failed, or interrupted, see `running.HeldFailure` |
| sent it a signal, because ... | before the signal, with 0 | completed |
| of its walltime | in whatever way, with 0 too | timeout |
| of its memory | the same | failed |
| of `vrm cancel`, of `vrm stop` or a signal at vrm | the same | cancelled |
| of the allocation's end, a lost node, `vrm requeue` | the same | it waits again |
| done nothing to it | before its launcher had started a rank | it waits again |

Exit status 0 after the signal is not a success: a program that catches SIGTERM, writes a checkpoint
and ends well has not done its work.
"""

from __future__ import annotations

import math

from vrm.live.spawn.records import ExitStatus
from vrm.model import JobState

LOST = "the connection to"
"""Beginning of the reason of a job whose launcher's program, or vrm, has lost a node."""

HOLD = 1.0
"""Seconds for which a failure is held: the end of an allocation or of a node reaches the job's processes and vrm at
about the same time, in any order."""


WANTED = ("cancel", "stop", "pause", "interrupted", "requeue")
"""Reasons for which a job that could not be started would have been ended anyhow."""


def verdict(intent: str, status: ExitStatus | None, why: str = "",
            told: float = math.inf) -> tuple[JobState, str]:
    """Return how a job ended, and the reason for people.

    `intent` is why the manager ended it ("": it did not), `why` adds details, and `told` is when it was
    sent the signal to end (by the machine's clock since its boot). `status` is None if its supervisor was killed.
    """
    if status is not None and status.ok and status.before(told) and intent != "node":
        return JobState.COMPLETED, ""
    if status is not None and status.error and intent not in WANTED:
        return JobState.FAILED, status.describe()
    unknown = "its supervisor was killed, so its exit status is not known"
    return {
        "timeout": (JobState.TIMEOUT, "ran longer than its estimate"),
        "cancel": (JobState.CANCELLED, "cancelled by its user"),
        "stop": (JobState.CANCELLED, "the manager was stopped"),
        "pause": (JobState.CANCELLED, "the manager was stopped"),
        "interrupted": (JobState.CANCELLED, "the end of the allocation interrupted it"),
        "requeue": (JobState.CANCELLED, "requeued by its user"),
        "binding": (JobState.FAILED, "its ranks were not where they should be"),
        "memory": (JobState.FAILED, why or "it used more memory than it asked for"),
        "node": (JobState.FAILED, why or "a node of it is down"),
        "unstarted": (JobState.FAILED, why or "its launcher could not start it"),
    }.get(intent, (JobState.FAILED, status.describe() if status else unknown))


def shell_code(status: ExitStatus | None) -> int | None:
    """Return the code that a shell would show: the exit code, or 128 + signal; None without a status."""
    if status is None:
        return None
    return status.code if status.signal is None else 128 + status.signal
