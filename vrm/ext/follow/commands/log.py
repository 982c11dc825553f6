"""`vrm log`: what a job has printed, and what it prints until its end."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any
from collections.abc import Callable, Mapping

from vrm.commands.naming import id_for
from vrm.commands.parsing import command
from vrm.commands.shared import CannotRun, job_ids, nothing_yet, run_of, tell

POLL_SECONDS = 0.2
"""Files may be written on another host: nothing but looking again shows what is new."""


def add_parsers(commands: Any, shared: argparse.ArgumentParser) -> None:
    """Add the command to the program's."""
    parser = command(
        commands, "log", log, "show what a job has printed", [shared],
        "vrm log 3\nvrm log 3 --follow\nvrm log 3 --err",
        "The path of the file is shown on a terminal. --follow waits for a job that has not "
        "started, and ends with it.")
    parser.add_argument("id", metavar="ID", help="a job's id, or its name"
                        ).completer = job_ids  # type: ignore[attr-defined]
    parser.add_argument("-f", "--follow", action="store_true",
                        help="keep printing new output until the job ends")
    parser.add_argument("--err", action="store_true", help="standard error instead of standard "
                        "output")


class Watched:
    """A job as the files of its run show it."""

    def __init__(self, run: Any, wanted: int) -> None:
        self.run = run
        self.id = wanted
        self._seen = 0
        self._snapshot: Mapping[str, Any] = {}

    def look(self) -> Mapping[str, Any] | None:
        """The job as the state shows it; None when it neither runs nor waits."""
        from vrm.results.state import current, read
        try:
            changed = os.stat(self.run.state).st_mtime_ns
            if changed != self._seen:
                self._snapshot = current(read(self.run.state))
                self._seen = changed
            return next((job for job in self._snapshot["jobs"] if job["id"] == self.id), None)
        except FileNotFoundError:
            raise CannotRun(nothing_yet(self.run.state)) from None
        except (ValueError, KeyError, TypeError) as error:
            raise CannotRun(f"{self.run.state} is not a state that a manager has written") from error

    def row(self) -> Any | None:
        """Its line in jobs.csv, once it has ended."""
        from vrm.results.job_columns import JobFileError
        from vrm.results.jobs import read_jobs
        try:
            return next((row for row in read_jobs(self.run.jobs) if row.id == self.id), None)
        except FileNotFoundError:
            return None
        except JobFileError as error:
            raise CannotRun(str(error)) from error

    def over(self) -> bool:
        """Whether nothing more is to come: it has ended, or waits and nobody is there to start
        it."""
        if self.run.marker(self.id).exists():
            return bool(self.run.status(self.id).exists())
        return self.look() is None or not self.run.manager_runs()


def log(arguments: argparse.Namespace) -> int:
    """Print; 0, or 2 when there is no such job or it has printed nothing yet."""
    run = run_of(arguments)
    arguments.id = id_for(arguments, arguments.id)
    watched = Watched(run, arguments.id)
    found, row = watched.look(), watched.row()
    if found is not None:
        app = found["app"]
    elif row is not None:
        app = row.app
    else:
        raise CannotRun(f"there is no job {arguments.id}; `vrm queue --all` shows all jobs")
    place = run.errors if arguments.err else run.output
    path: Path = place(app, arguments.id)
    if not path.exists():
        path = elsewhere(run, arguments.id, arguments.err) or path
    if found is None and row is not None and row.start is None and not path.exists():
        raise CannotRun(f"job {arguments.id} never ran: {row.status}"
                        + f"; {row.reason}" * bool(row.reason))
    if not path.exists() and not arguments.follow:
        raise CannotRun(f"job {arguments.id} ({app}) has not started; `vrm log {arguments.id} "
                        "--follow` waits for it")
    if sys.stderr.isatty():
        tell(f"==> {path}")
    size = copy(path, watched.over if arguments.follow else lambda: True)
    if arguments.follow:
        report(watched, app)
    elif not size and not arguments.err:
        errors = run.errors(app, arguments.id)
        if errors.exists() and errors.stat().st_size:
            tell(f"{path} is empty; `vrm log {arguments.id} --err` shows standard error")
    return 0


def elsewhere(run: Any, job_id: int, err: bool) -> Path | None:
    """The file that the user of a job has chosen for what it prints (`sbatch -o`); None for none."""
    from vrm.live.manager.surroundings import printed
    from vrm.run.journal import files as journals
    from vrm.run.journal.past import replay
    try:
        entry = replay(journals.records(run.journal), run.journal).state.book.entries.get(job_id)
    except ValueError:
        return None  # the manager says what is wrong with the journal
    if entry is None or not entry.job.payload.output:
        return None
    return printed(run, entry.job, entry.details, "")[err]


def copy(path: Path, over: Callable[[], bool]) -> int:
    """Copy a file to standard output, and what is added to it, until it is over; the bytes copied.

    A file that became shorter, as when the job was started again, is shown from its beginning.
    """
    size, file = 0, None
    try:
        while True:
            last = over()  # asked first: what was written before the end is read then
            if file is None and path.exists():
                file = open(path, "rb")
            if file is not None:
                if os.fstat(file.fileno()).st_size < file.tell():
                    file.seek(0)
                while True:
                    data = file.read(1 << 16)
                    if not data:
                        break
                    size += len(data)
                    sys.stdout.buffer.write(data)
                sys.stdout.flush()
            if last:
                return size
            time.sleep(POLL_SECONDS)
    finally:
        if file is not None:
            file.close()


def report(watched: Watched, app: str) -> None:
    """Print on standard error how the job ended."""
    row = watched.row()
    if row is None:
        tell(f"job {watched.id} ({app}) has not ended, but no manager runs; `vrm run` continues it")
    else:
        tell(f"job {watched.id} ({app}): {row.status}" + f", {row.reason}" * bool(row.reason))
