"""What earlier runs teach about how long jobs take: the rows of their `jobs.csv`."""

from __future__ import annotations

from pathlib import Path
from typing import Iterable, List, Tuple, Union

from vrm.model.job import Job, JobState
from vrm.results.jobs import JobFileError, JobRow, read_jobs, submitted


class HistoryError(ValueError):
    """An earlier run that cannot be read; the text names the place and the fix."""


Lesson = Tuple[Job, float, JobState]
"""A job that ended, how long it ran in seconds, and how it ended."""


def lessons(paths: Iterable[Union[str, Path]]) -> List[Lesson]:
    """The jobs that ran in earlier runs, in the order of their ends. Each path is the directory of a
    run (its Log), or a jobs.csv of this or an older version. Raises HistoryError."""
    rows: List[JobRow] = []
    for path in map(Path, paths):
        file = path / "jobs.csv" if path.is_dir() else path
        try:
            rows += read_jobs(file)
        except OSError as error:
            raise HistoryError(f"{file}: {(error.strerror or str(error)).lower()}; name the "
                               "directory (Log) of an earlier run, or its jobs.csv") from error
        except JobFileError as error:
            raise HistoryError(f"{error}; correct that line, or leave this run out") from error
    ran = [row for row in rows if row.start is not None and row.end is not None]
    ran.sort(key=lambda row: (row.end, row.id))
    found = []
    for row in ran:
        assert row.start is not None and row.end is not None
        try:
            job = submitted(row, row.submit)[0]
        except ValueError:  # what no job can have: nothing is learnt from it
            continue
        found.append((job, row.end - row.start, JobState(row.status)))
    return found
