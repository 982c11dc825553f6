"""What has become of the jobs that an allocation took, by the journal of its run."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any, NamedTuple
from collections.abc import Iterable, Mapping

from vrm.ext.allocations.pool.journal import PoolError
from vrm.live.spawn.records import RecordError, read_status
from vrm.model import JobState
from vrm.run.entry import LifeError
from vrm.run.journal.check import JournalError
from vrm.run.journal.files import JournalReader
from vrm.run.journal.past import replay
from vrm.run.state import State

PART, TOOK = "pool", "took"
"""The part of the manager that takes jobs, and its event in the journal of the run."""


class Fate(NamedTuple):
    """How jobs of the pool have ended, by their numbers, and which of them run."""

    done: dict[int, str]
    running: set[int]


def ids_of(events: Iterable[Mapping[str, Any]]) -> dict[int, int]:
    """The ids in the run of the jobs of the pool, by the events that say which a job was to have: an id that nobody got
    then is another's later."""
    jobs: dict[int, int] = {}
    for event in events:
        jobs[event["id"]] = event["job"]
    return {job: job_id for job_id, job in jobs.items()}


def fate(state: State, ids: Mapping[int, int]) -> Fate:
    """What has become of jobs in a run."""
    done, running = {}, set()
    for job, job_id in ids.items():
        try:
            entry = state.entry(job_id)
        except LifeError:
            continue  # its manager died before it was entered
        if entry.state.ended:
            done[job] = entry.state.value
        elif entry.state is JobState.RUNNING:
            running.add(job)
    return Fate(done, running)


def of_run(directory: Path) -> Fate:
    """What the journal of a run says, and what its supervisors have left there for it. PoolError where it cannot be
    read, or is not there: its jobs may have ended."""
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
