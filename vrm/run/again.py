"""Whether a job that ended waits again: one rule for live runs and simulations."""

from __future__ import annotations

from typing import Tuple

from vrm.model import JobState
from vrm.run.book import Entry

NODE_LOSSES = 3
"""How many lost nodes a job may outlive without using a retry: it may be what takes them down."""


def waits_again(entry: Entry, state: JobState, reason: str, intent: str, requeue: bool
                ) -> Tuple[str, bool]:
    """Why a job that ended waits again ("" when it does not), and whether that is a retry.

    `state` and `reason` are how it ended, and `intent` why the manager ended it (see
    `vrm.live.manager.verdict`); `requeue`: jobs that are interrupted run again (the configuration's
    `Interrupted`), unless the job itself says something else (its field `requeue`: yes or no).
    """
    own = entry.details.more.get("requeue", "")
    if own == "no":
        return "", False
    if intent == "requeue":
        return "requeued by its user", False
    requeue = requeue or own == "yes"
    if state is JobState.COMPLETED or intent in ("cancel", "stop"):
        return "", False
    if intent == "interrupted":
        return ("interrupted by the end of the allocation" if requeue else ""), False
    if intent == "pause":
        return "the manager was stopped (OnStop: requeue)", False
    if intent == "node" and requeue and entry.losses < NODE_LOSSES:
        return f"interrupted: {reason}", False
    if entry.tries < entry.details.retries:
        return f"{state.value} ({reason}); retry {entry.tries + 1} of {entry.details.retries}", True
    return "", False
