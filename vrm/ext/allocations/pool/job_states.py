"""What happened to the jobs that an allocation took, from the journal of its run."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any, NamedTuple
from collections.abc import Iterable, Mapping

from vrm.ext.allocations.pool.journal import PoolError
from vrm.live.spawn.records import RecordError, read_status
from vrm.model import JobState
from vrm.run.entry import JobStateError
from vrm.run.journal.record_checks import JournalError
from vrm.run.journal.files import JournalReader
from vrm.run.journal.history import replay
from vrm.run.state import State

PART, TOOK = "pool", "took"
"""The part of the manager that takes jobs, and its event in the journal of the run."""


class PoolJobStates(NamedTuple):
    """How jobs of the pool have ended, by their numbers, and which of them run."""

    done: dict[int, str]
    running: set[int]


def ids_of(events: Iterable[Mapping[str, Any]]) -> dict[int, int]:
    """Return the ids in the run of the pool's jobs, from the events that record which id a job was to have. An
    id that was not used then is later the id of another job."""
    jobs: dict[int, int] = {}
    for event in events:
        jobs[event["id"]] = event["job"]
    return {job: job_id for job_id, job in jobs.items()}


def fate(state: State, ids: Mapping[int, int]) -> PoolJobStates:
    """Return what has happened to jobs in a run."""
    done, running = {}, set()
    for job, job_id in ids.items():
        try:
            entry = state.entry(job_id)
        except JobStateError:
            continue  # its manager died before the job was entered
        if entry.state.ended:
            done[job] = entry.state.value
        elif entry.state is JobState.RUNNING:
            running.add(job)
    return PoolJobStates(done, running)


def of_run(directory: Path) -> PoolJobStates:
    """Return what the journal of a run, and the records that its supervisors left for it, report. Raises
    PoolError if the journal is missing or cannot be read, because jobs may have ended."""
    path = directory / "journal"
    try:
        os.stat(path)
        past = replay(JournalReader(path), path)
    except OSError as error:
        raise PoolError(f"{path}: {error.strerror}") from error
    except JournalError as error:
        raise PoolError(str(error)) from error
    ids = ids_of(values for event, values in past.parts.get(PART, []) if event == TOOK)
    found = fate(past.state, ids)
    for job in found.running.copy():
        with contextlib.suppress(RecordError):
            status = read_status(directory / "ended" / str(ids[job]), ids[job])
            if status is not None and status.ok:
                found.running.discard(job)
                found.done[job] = JobState.COMPLETED.value
    return found
