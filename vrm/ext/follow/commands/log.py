"""`vrm log`: shows the output of a job, up to now or until its end."""

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
"""Seconds between two looks. Files may be written on another host, where only polling shows new output."""


def add_parsers(commands: Any, shared: argparse.ArgumentParser) -> None:
    """Add the command to the argument parser."""
    parser = command(
        commands, "log", log, "show what a job has printed", [shared],
        "vrm log 3\nvrm log 3 --follow\nvrm log 3 --err\nvrm log --extract 3 4",
        "The path of the file is shown on a terminal. --follow waits for a job that has not "
        "started, and ends with it. --extract is for runs with Output: {Archive: true}.")
    parser.add_argument("id", metavar="ID", nargs="*", help="a job's id, or its name; several with --extract"
                        ).completer = job_ids  # type: ignore[attr-defined]
    parser.add_argument("-f", "--follow", action="store_true",
                        help="keep printing new output until the job ends")
    parser.add_argument("--err", action="store_true", help="standard error instead of standard "
                        "output")
    parser.add_argument("--extract", action="store_true",
                        help="write what these jobs (default: all) have printed and the archive has, into files of "
                             "their own in this directory")


class FollowedJob:
    """A job as the files of its run show it."""

    def __init__(self, run: Any, wanted: int) -> None:
        self.run = run
        self.id = wanted
        self._seen = 0
        self._snapshot: Mapping[str, Any] = {}

    def look(self) -> Mapping[str, Any] | None:
        """Return the job's entry in the state file; None if it neither runs nor waits."""
        from vrm.results.state import current, read
        try:
            changed = os.stat(self.run.state).st_mtime_ns
            if changed != self._seen:
                self._snapshot = current(read(self.run.state))
                self._seen = changed
            return next((job for job in self._snapshot["jobs"] if job["id"] == self.id), None)
        except FileNotFoundError:
            raise CannotRun(nothing_yet(self.run)) from None
        except (ValueError, KeyError, TypeError) as error:
            raise CannotRun(f"{self.run.state} is not a state that a manager has written") from error

    def row(self) -> Any | None:
        """Return its row in jobs.csv, once it has ended; otherwise None."""
        from vrm.results.jobs import read_jobs
        try:
            return next((row for row in read_jobs(self.run.jobs) if row.id == self.id), None)
        except FileNotFoundError:
            return None

    def over(self) -> bool:
        """Return whether no more output will come: the job has ended, or it waits and no manager runs that could start
        it."""
        if self.run.marker(self.id).exists():
            return bool(self.run.status(self.id).exists())
        return self.look() is None or not self.run.manager_runs()


def log(arguments: argparse.Namespace) -> int:
    """Print the output of a job; return 0. Raises CannotRun (exit status 2) if there is no such job, or if it has
    printed nothing yet."""
    run = run_of(arguments)
    if arguments.extract:
        return extract(run, [id_for(arguments, word) for word in arguments.id])
    if len(arguments.id) != 1:
        raise CannotRun("give the id of one job")
    watched = FollowedJob(run, id_for(arguments, arguments.id[0]))
    found, row = watched.look(), watched.row()
    if found is None and row is None:
        raise CannotRun(f"there is no job {watched.id}")
    app = found["app"] if found is not None else row.app  # type: ignore[union-attr]
    path = output_file(run, app, watched.id, arguments.err)
    archived = found is None and not path.exists() and show_archived(run, row, arguments.err)
    if not archived and not path.exists():
        refuse(watched.id, app, row if found is None else None, arguments.follow)
    if sys.stderr.isatty() and not archived:
        tell(f"==> {path}")
    size = archived or copy(path, watched.over if arguments.follow else lambda: True)
    if arguments.follow:
        report(watched, app, arguments.err, bool(size))
    elif not size and not arguments.err:
        errors = run.errors(app, watched.id)
        if errors.exists() and errors.stat().st_size:
            tell(f"{path} is empty; `vrm log {watched.id} --err` shows standard error")
    return 0


def output_file(run: Any, app: str, job_id: int, err: bool) -> Path:
    """Return the file of a job's output or errors."""
    path: Path = (run.errors if err else run.output)(app, job_id)
    return path if path.exists() else elsewhere(run, job_id, err) or path


def refuse(job_id: int, app: str, ended: Any, follow: bool) -> None:
    """Raise CannotRun for a job without an output file, unless the caller waits for the file."""
    if ended is not None and ended.start is None:
        raise CannotRun(f"job {job_id} never ran: {ended.status}" + f"; {ended.reason}" * bool(ended.reason))
    if not follow:
        raise CannotRun(f"job {job_id} ({app}) has not started; `vrm log {job_id} --follow` waits for it")


def show_archived(run: Any, row: Any, err: bool) -> bool:
    """Print the archived output of an ended job; return whether its output is in the archive or is known to be
    empty."""
    from vrm.run.journal.archive import ERR, OUT, Archive
    archive = Archive(run.outputs)
    frame = archive.find(row.id, ERR if err else OUT)
    if frame is None:
        if row.start is None or not archive.path.exists():
            return False
        if not err and archive.find(row.id, ERR) is not None:
            tell(f"job {row.id} has printed nothing on standard output; `vrm log {row.id} --err` shows standard error")
        return True
    if sys.stderr.isatty():
        tell(f"==> {archive.path}")
    for part in archive.parts(frame):
        sys.stdout.buffer.write(part)
    sys.stdout.flush()
    return True


def extract(run: Any, ids: list[int]) -> int:
    """Write the archived outputs of these jobs, or of all jobs, into the working directory; return 0. Raises CannotRun
    if some are missing."""
    from vrm.results.jobs import read_jobs
    from vrm.run.journal.archive import OUT, Archive
    archive = Archive(run.outputs)
    frames = [frame for frame in archive.all() if not ids or frame.job_id in ids]
    missing = set(ids) - {frame.job_id for frame in frames}
    apps = {row.id: row.app for row in read_jobs(run.jobs)} if frames else {}
    for frame in frames:
        path = Path(f"{apps.get(frame.job_id, 'job')}.{frame.job_id}.{'o' if frame.output == OUT else 'e'}")
        with open(path, "wb") as file:
            file.writelines(archive.parts(frame))
    tell(f"{len(frames)} file(s) of {len({frame.job_id for frame in frames})} job(s) written")
    if missing:
        from vrm.model.quantities import fold
        raise CannotRun(f"{archive.path} has nothing of {fold(sorted(missing))}")
    return 0


def elsewhere(run: Any, job_id: int, err: bool) -> Path | None:
    """Return the output file that the user of a job chose (`sbatch -o`); None if there is none."""
    from vrm.live.manager.job_environment import printed
    from vrm.run.journal import files as journals
    from vrm.run.journal.history import replay
    try:
        entry = replay(journals.records(run.journal), run.journal).state.book.entries.get(job_id)
    except ValueError:
        return None  # the manager reports what is wrong with the journal
    if entry is None or not entry.job.payload.output:
        return None
    return printed(run, entry.job, entry.details, "")[err]


def copy(path: Path, over: Callable[[], bool]) -> int:
    """Copy a file to standard output, including what is added to it until `over` is true; return the number of bytes.

    A file that became shorter, for instance because the job was started again, is shown from its beginning.
    """
    size, file = 0, None
    try:
        while True:
            last = over()  # checked first: output that was written before the end is still read
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


def report(watched: FollowedJob, app: str, err: bool, shown: bool) -> None:
    """Print on standard error how the job ended; print its archived output first if nothing was `shown` yet."""
    row = watched.row()
    if row is not None and not shown:
        show_archived(watched.run, row, err)
    if row is None:
        tell(f"job {watched.id} ({app}) has not ended, but no manager runs; `vrm run` continues it")
    else:
        tell(f"job {watched.id} ({app}): {row.status}" + f", {row.reason}" * bool(row.reason))
