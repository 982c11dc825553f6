"""Adds runs that have ended, or that another manager has started, to the store from their `jobs.csv` and
journal."""

from __future__ import annotations

from pathlib import Path

from vrm.ext.learning.learned_jobs import learned, machine_of, overlaps
from vrm.ext.learning.store import LearnedStore
from vrm.results.job_columns import JobFileError
from vrm.results.jobs import read_jobs
from vrm.run.journal import files as journal
from vrm.run.journal.record_checks import JournalError
from vrm.system.errors import UserError


class ImportFault(UserError, ValueError):
    """A run that cannot be imported; the text names the place and the fix."""


def import_run(directory: Path, store: LearnedStore) -> int:
    """Add the jobs of a live run, given its directory (its Log); return how many jobs ran. Raises ImportFault
    and StoreError."""
    jobs, record = directory / "jobs.csv", directory / "journal"
    try:
        begun = next(each for each in journal.records(record) if each["event"] == "run")
        rows = list(read_jobs(jobs))
    except OSError as error:
        raise ImportFault(f"{error.filename or directory}: {(error.strerror or str(error)).lower()}; name the "
                          "directory (Log) of a live run") from error
    except StopIteration:
        raise ImportFault(f"{record} names no run; name the directory (Log) of a live run") from None
    except (JobFileError, JournalError) as error:
        raise ImportFault(f"{error}; correct that line, or leave this run out") from error
    rows.sort(key=lambda row: row.end or 0.0)
    run = str(begun["run"])
    found = [job for job in (learned(row, run) for row in rows) if job is not None]
    store.add(run, str(directory.resolve()), machine_of(begun.get("nodes", ())), found,
              overlaps({job.job for job in found}, rows))
    return len(found)
