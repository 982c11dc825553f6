"""Run times of earlier runs, read from their `jobs.csv`, for estimators to learn from."""

from __future__ import annotations

from pathlib import Path
from collections.abc import Callable, Iterable, Mapping, Sequence

from vrm.model.job import JobState
from vrm.results.job_columns import JobFileError
from vrm.results.jobs import JobRow, read_jobs, submitted
from vrm.scheduling.estimators import ObservedRun


class HistoryError(ValueError):
    """An earlier run cannot be read; the text names the place and the fix."""


Works = Callable[[Path, Sequence[JobRow]], Mapping[int, float]]
"""Function that returns the run times (seconds) to use for jobs of a jobs.csv, by row index, where they differ from
end minus start."""


def lessons(paths: Iterable[str | Path], works: Works = lambda file, rows: {}) -> list[ObservedRun]:
    """Return the jobs that ran in earlier runs, in the order of their ends. Each path is the directory of a run (its
    Log), or a jobs.csv of this or an older version. Raises HistoryError."""
    ran: list[tuple[JobRow, float]] = []
    for path in map(Path, paths):
        file = path / "jobs.csv" if path.is_dir() else path
        try:
            rows = list(read_jobs(file))
            seconds = works(file, rows)
        except OSError as error:
            raise HistoryError(f"{file}: {(error.strerror or str(error)).lower()}; name the "
                               "directory (Log) of an earlier run, or its jobs.csv") from error
        except JobFileError as error:
            raise HistoryError(f"{error}; correct that line, or leave this run out") from error
        ran += [(row, seconds.get(at, row.end - row.start)) for at, row in enumerate(rows)
                if row.start is not None and row.end is not None]
    ran.sort(key=lambda each: (each[0].end, each[0].id))
    found = []
    for row, run in ran:
        try:
            job = submitted(row, row.submit)[0]
        except ValueError:  # the row is not a valid job, so nothing is learnt from it
            continue
        if not row.mates:  # it had fewer cores for some time
            found.append((job, run, JobState(row.status)))
    return found
