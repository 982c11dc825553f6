"""Whether a job that ended waits again: one rule for live runs and simulations, and what a later run of the same
directory repeats."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from vrm.model import JobState
from vrm.run.entry import CANCEL, DEPENDENCY, LINE, REMOVED, STOP, Entry

LOSSES = 3
"""How many lost nodes and failed starts of its launcher a job survives without using a retry: it may cause them."""


def waits_again(entry: Entry, state: JobState, reason: str, intent: str, requeue: bool
                ) -> tuple[str, bool]:
    """Why a job that ended waits again ("" when it does not), and whether that is a retry.

    `state` and `reason` are how it ended, and `intent` why the manager ended it (see
    `vrm.live.manager.jobs.verdict`); `requeue`: jobs that are interrupted run again (the configuration's
    `Interrupted`), unless the job itself says something else (its field `requeue`: yes or no).
    """
    own = entry.details.more.get("requeue", "")
    if intent == "unstarted" and entry.losses < LOSSES:  # nothing of it ran
        return f"it was not started: {reason}", False
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
    if intent == "node" and requeue and entry.losses < LOSSES:
        return f"interrupted: {reason}", False
    if entry.tries < entry.details.retries:
        return f"{state.value} ({reason}); retry {entry.tries + 1} of {entry.details.retries}", True
    return "", False


def stopped(entry: Entry) -> bool:
    """Whether a job ended only because the manager was stopped: the next run runs it again."""
    return entry.state is JobState.CANCELLED and entry.cause == STOP


def runs_again(entries: Mapping[int, Entry], entry: Entry) -> bool:
    """Whether the next run runs a job again that has ended: it was stopped, or depends only on such."""
    near, look = {entry.job.id: entry}, [entry]
    while look:
        each = look.pop()
        if each.cause == DEPENDENCY and each.wish is not None:
            found = [entries[job_id] for job_id in each.wish.failed if job_id not in near]
            near.update((other.job.id, other) for other in found)
            look += found
    return entry.state.ended and entry.job.id in with_dependents(near, stopped)


def unsuccessful(entry: Entry) -> bool:
    """Whether a job did not complete, without that its user wanted so: `vrm run --failed` and `vrm requeue
    failed` run it again. A wrong line must be corrected first."""
    return (entry.state.ended and entry.state is not JobState.COMPLETED
            and entry.cause not in (CANCEL, REMOVED, LINE))


def with_dependents(entries: Mapping[int, Entry], wanted: Callable[[Entry], bool]) -> list[int]:
    """The ids of the jobs that are wanted, and of those that were cancelled only since they depend on them; no
    job that depends on others that did not end as it wants."""
    found: set[int] = set()
    chosen = [(job_id, entry) for job_id, entry in entries.items() if entry.cause == DEPENDENCY or wanted(entry)]
    for job_id, entry in sorted(chosen):
        if entry.cause == DEPENDENCY and entry.state.ended:
            if entry.wish is None or found.issuperset(entry.wish.failed):
                found.add(job_id)
        elif wanted(entry):
            found.add(job_id)
    return sorted(found)
