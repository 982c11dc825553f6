"""Examines the run's directory before the manager does anything there: it holds an earlier run to continue, a run to
archive, or something that cannot be continued.

A copy of a directory is another run: the jobs whose markers are in it belong to the original and are not touched. A
copy is recognized by the inode of the directory, which is the same on all hosts that share the file system; the device
number is not.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable

from vrm.live.manager.records.records import Reporter
from vrm.live.spawn.records import Marker, RecordError
from vrm.results.job_columns import header
from vrm.run.journal import files as journals
from vrm.run.journal.record_checks import JournalError, Record
from vrm.run.journal.history import RunHistory, replay
from vrm.run.rundir import RunDirectory
from vrm.run.state import State
from vrm.system.errors import RunError
from vrm.system.memory import rare_collections



def identity(run: RunDirectory) -> Record:
    """Return the values of a `run` record that identify the directory, so that a copy of it is recognized."""
    return {"path": os.path.realpath(run.directory), "inode": run.directory.stat().st_ino}


def read_earlier_run(run: RunDirectory, fresh: bool, tell: Reporter, new_state: Callable[[], State]) -> RunHistory:
    """Return what an earlier manager left in the directory; with `fresh`, archive it. `new_state` makes a frozen state.

    Raises RunError if jobs may be running that nobody could follow afterwards, or if the journal is damaged.
    """
    try:
        reader = journals.JournalReader(run.journal)
        with rare_collections():
            past = replay(reader, run.journal, new_state())
        past.mark = reader.mark
    except JournalError as error:
        past = _without_damaged(run, fresh, error, new_state)
    if not past.run:
        return _without_journal(run, fresh, tell, new_state)
    original = copied_from(run, past)
    if original and not fresh:
        return _as_separate_run(run, past, original, tell)
    if past.running and fresh and not original:
        raise RunError(f"{len(past.running)} job(s) of the run before may still be running; "
                       "start without --fresh to follow them to their end first")
    if fresh:
        outputs = [path for job in past.jobs.values()
                   for path in (run.output(job.app, job.id), run.errors(job.app, job.id))]
        tell("note", f"the records of the run before are in {run.archive(outputs)}")
        return RunHistory(new_state())
    if "home" not in past.runs[-1] and not markers(run):
        past.run = uuid.uuid4().hex[:12]  # a copy of a run of 0.1.0 has the same id, and its jobs may run
    return past


def _without_damaged(run: RunDirectory, fresh: bool, error: JournalError,
                     new_state: Callable[[], State]) -> RunHistory:
    """With `fresh`, return a run of unknown content, if no job of it can be running; otherwise raise RunError."""
    if error.missing:
        raise RunError(f"{error}; nothing was started or changed") from error
    damage = f"the journal is damaged: {error}"
    if not fresh:
        raise RunError(f"{damage}; nothing was started or changed. Put a copy of the file back, or "
                       "use --fresh to put it aside and begin again") from error
    if markers(run):
        raise RunError(f"{damage}, and jobs of that run may still be running; end them, remove the "
                       f"files in {run.pids}, and try again") from error
    past = RunHistory(new_state())
    past.run = "damaged"
    return past


def _without_journal(run: RunDirectory, fresh: bool, tell: Reporter,
                     new_state: Callable[[], State]) -> RunHistory:
    """Return a new run; raise RunError if markers belong to jobs of which there is no record any more."""
    found = markers(run)
    alive = _perhaps_alive(found)
    if alive:
        raise RunError(f"{run.journal} has no records, and jobs of an earlier run may still be "
                       f"running: {', '.join(alive)}. Put the journal back to follow them, or end "
                       f"them, remove the files in {run.pids}, and start again")
    if found and not fresh:
        raise RunError(f"{run.journal} has no records, and {run.pids} has the markers of "
                       f"{len(found)} job(s) that ended unseen. Put the journal back to continue, "
                       "or use --fresh to begin again")
    for name in found:
        (run.pids / name).unlink(missing_ok=True)
    if run.jobs.exists() and run.jobs.stat().st_size > len(header()):
        tell("note", f"the records of a run without a journal are in {run.archive([])}")
    return RunHistory(new_state())


def copied_from(run: RunDirectory, past: RunHistory) -> str:
    """Return the path of the directory of which this one is a copy; "" if it is not a copy, or if the journal is of vrm
    0.1.0, which did not record the path."""
    told = past.runs[-1].get("home") if past.runs else None
    if told is None:
        return ""
    here = run.directory.stat()
    if told["inode"] != here.st_ino:
        return str(told["path"])
    try:
        other = os.stat(told["path"])
    except OSError:
        return ""
    # A copy on another file system, whose inode happens to have the same number.
    same_number = other.st_ino == here.st_ino and other.st_dev != here.st_dev
    return told["path"] if same_number else ""


def _as_separate_run(run: RunDirectory, past: RunHistory, original: str, tell: Reporter) -> RunHistory:
    """Turn the jobs of a copy into a run of its own: jobs that ran in the original wait here. Raises RunError if jobs
    of the original may still be running."""
    found = markers(run)
    alive = _perhaps_alive(found)
    if alive:
        raise RunError(f"{run.directory} is a copy of {original}, and jobs of the original may "
                       f"still be running: {', '.join(alive)}. They are not touched from here. "
                       f"Continue with vrm there; or remove the files in {run.pids} to run these "
                       "jobs here, too; or begin again here with --fresh")
    for name in found:
        (run.pids / name).unlink(missing_ok=True)
    past.run = uuid.uuid4().hex[:12]
    tell("note", f"{run.directory} is a copy of {original}, or was moved from another file system: "
                 "it is now a separate run"
                 + (f", and {len(found)} job(s) whose ends are not recorded wait again"
                    if found else ""))
    return past


def markers(run: RunDirectory) -> dict[str, Marker | None]:
    """Return the markers of jobs by file name; None for a damaged one."""
    found: dict[str, Marker | None] = {}
    for name in sorted(os.listdir(run.pids)):
        if not name.startswith("."):
            try:
                found[name] = Marker.read(run.pids / name)
            except RecordError:
                found[name] = None
    return found


def _perhaps_alive(found: dict[str, Marker | None]) -> list[str]:
    """Return texts about the jobs whose supervisors live, or may live on another host."""
    return [f"{name} (process {marker.pid} on {marker.host})" if marker else f"{name} (unreadable)"
            for name, marker in found.items() if marker is None or marker.alive() is not False]
