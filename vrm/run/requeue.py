"""Decide which ended jobs run again. Live runs, simulations and later runs of the same directory use the same
rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from vrm.model import JobState
from vrm.run.entry import CANCEL, DEPENDENCY, LINE, REMOVED, STOP, Entry

LOSSES = 3
"""Number of lost nodes and failed launcher starts that a job survives without using a retry. The limit exists because
the job itself may cause them."""


def requeue_reason(entry: Entry, state: JobState, reason: str, intent: str, requeue: bool
                   ) -> tuple[str, bool]:
    """Return why an ended job waits again ("" if it does not), and whether this uses one of its retries.

    `state` and `reason` say how it ended, `intent` why the manager ended it (see `vrm.live.manager.jobs.verdict`).
    `requeue`: the configuration's `Interrupted` makes interrupted jobs run again; the job's own field `requeue` (yes
    or no) overrides it.
    """
    own = entry.details.more.get("requeue", "")
    if intent == "unstarted" and entry.losses < LOSSES:  # no process of the job ran
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
    """Return whether a job ended only because the manager was stopped, and may run again: the next run starts it."""
    return entry.state is JobState.CANCELLED and entry.cause == STOP and entry.details.more.get("requeue") != "no"


def runs_again(entries: Mapping[int, Entry], entry: Entry) -> bool:
    """Return whether the next run runs an ended job again: it was stopped, or was dropped because of such jobs."""
    near, look = {entry.job.id: entry}, [entry]
    while look:
        each = look.pop()
        if each.cause == DEPENDENCY and each.wish is not None:
            found = [entries[job_id] for job_id in each.wish.failed if job_id not in near]
            near.update((other.job.id, other) for other in found)
            look += found
    return entry.state.ended and entry.job.id in with_dependents(near, stopped)


def unfinished(entries: Mapping[int, Entry], ids: Iterable[int]) -> list[int]:
    """Return those of these jobs that wait or run, or that the next run runs again."""
    return [job_id for job_id in ids if job_id in entries and (
        not entries[job_id].state.ended or runs_again(entries, entries[job_id]))]


def ended_unsuccessfully(entry: Entry) -> bool:
    """Return whether a job ended without completing, although its user did not want that. `vrm run --failed` and `vrm
    requeue failed` run such jobs again. Jobs of a wrong line are not included: the line must be corrected first."""
    return (entry.state.ended and entry.state is not JobState.COMPLETED
            and entry.cause not in (CANCEL, REMOVED, LINE))


def with_dependents(entries: Mapping[int, Entry], wanted: Callable[[Entry], bool]) -> list[int]:
    """Return the sorted ids of the `wanted` jobs, and of the jobs that were cancelled only because they depend on
    them. A job is left out if it also depends on a failed job that is not in the result."""
    found: set[int] = set()
    chosen = [(job_id, entry) for job_id, entry in entries.items() if entry.cause == DEPENDENCY or wanted(entry)]
    for job_id, entry in sorted(chosen):
        if entry.cause == DEPENDENCY and entry.state.ended:
            if entry.wish is None or found.issuperset(entry.wish.failed):
                found.add(job_id)
        elif wanted(entry):
            found.add(job_id)
    return sorted(found)
