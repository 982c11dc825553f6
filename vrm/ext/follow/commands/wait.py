"""`vrm wait`: waits until jobs have ended; also used by `vrm submit --wait` for the submitted job."""

from __future__ import annotations

import argparse
import math
import time
from typing import TYPE_CHECKING, Any
from collections.abc import Iterable, Mapping

from vrm.commands.parsing import command
from vrm.commands.shared import CannotRun, job_ids, nothing_yet, run_of

if TYPE_CHECKING:
    from vrm.run.rundir import RunDirectory

POLL_SECONDS = 0.2
"""Seconds between two looks. The journal may be written on another host, where only polling shows new records."""

SHOWN = 10
"""Maximum number of jobs that did not complete and are listed separately."""


def add_parsers(commands: Any, shared: argparse.ArgumentParser) -> None:
    """Add the command to the argument parser."""
    parser = command(
        commands, "wait", wait, "wait until jobs have ended", [shared],
        "vrm wait\nvrm wait 3 7-9\nvrm wait 3 && vrm log 3",
        "Without ids: all jobs that the run has now. Later submissions are not waited for.\n\n"
        "Exit status: 0 all of them completed, otherwise the largest of their exit statuses, or 1; 2 when the manager "
        "has ended and no other one starts within 10 s.")
    parser.add_argument("ids", nargs="*", metavar="ID", help="a job's id, a range 3-7, or all (default)"
                        ).completer = job_ids  # type: ignore[attr-defined]


def wait(arguments: argparse.Namespace) -> int:
    """Wait for jobs; return the exit status that follows from theirs."""
    from vrm.commands.naming import ids_for
    from vrm.run.command_files import chosen
    run = run_of(arguments)
    ends = EndWatch(run)
    ends.look()
    try:
        if "failed" in arguments.ids:  # failed jobs have ended already
            raise ValueError("failed")
        arguments.ids = ids_for(arguments, arguments.ids)
        named, swept = chosen({"ids": arguments.ids or ["all"]}, ends.apps)
    except ValueError as error:
        raise CannotRun(f"`{error}` is not an id, a range such as 3-7, or `all`") from error
    unknown = [job_id for job_id in named if job_id not in ends.apps]
    if unknown:
        raise CannotRun(f"there is no job {unknown[0]}; `vrm queue --all` shows all jobs")
    return until_ended(run, ends, {*named, *swept})


def submitted(run: RunDirectory, name: str) -> int:
    """Wait until the jobs have ended that the command of this name submitted; return the exit status."""
    from vrm.run.journal.files import jobs_of_command
    return until_ended(run, EndWatch(run), jobs_of_command(run.journal, name))


def until_ended(run: RunDirectory, ends: EndWatch, wanted: Iterable[int]) -> int:
    """Wait until these jobs have ended, print how they ended, and return the exit status: 0 if all completed. Raises
    CannotRun if no manager runs."""
    from vrm.model.quantities import fold
    from vrm.run.command_files import NEXT
    wanted, gone = sorted(wanted), math.inf
    while True:
        alive = run.manager_runs()  # checked before the last records are read
        ends.look()
        left = [job_id for job_id in wanted if job_id not in ends.ended]
        if not left:
            break
        gone = math.inf if alive else min(gone, time.monotonic())
        if time.monotonic() > gone + NEXT:
            several = len(left) > 1
            raise CannotRun(f"job{'s' * several} {fold(left)} {'have' if several else 'has'} not ended, but no "
                            "manager runs; `vrm run` continues the run")
        time.sleep(POLL_SECONDS)
    return said(ends, wanted)


def said(ends: EndWatch, wanted: list[int]) -> int:
    """Print how jobs ended; return the exit status."""
    failed = [job_id for job_id in wanted if ends.ended[job_id]["state"] != "completed"]
    for job_id in wanted if len(wanted) == 1 else failed[:SHOWN]:
        end = ends.ended[job_id]
        print(f"job {job_id} ({ends.apps[job_id]}): {end['state']}" + f", {end['reason']}" * bool(end.get("reason")))
    if len(wanted) != 1:
        print(f"{len(wanted) - len(failed)} of {len(wanted)} jobs completed")
    return max((ends.ended[job_id].get("exit_code") or 1 for job_id in failed), default=0)


class EndWatch:
    """The jobs of a run and the records of their ends, read from the journal while it is written."""

    def __init__(self, run: RunDirectory) -> None:
        from vrm.run.journal.follower import JournalFollower
        self._run, self._follower = run, JournalFollower(run.journal)
        self.apps: dict[int, str] = {}
        self.ended: dict[int, Mapping[str, Any]] = {}

    def look(self) -> None:
        """Read the new records. Raises CannotRun if the journal cannot be read."""
        from vrm.run.journal.codec import jobs_of
        from vrm.run.journal.combined_records import unfolded
        try:
            another, records = self._follower.read_new()
        except FileNotFoundError:
            raise CannotRun(nothing_yet(self._run)) from None
        except OSError as error:
            raise CannotRun(f"cannot read {self._run.journal}: {error.strerror}") from error
        if another:
            self.apps, self.ended = {}, {}
        for record in unfolded(records):
            if record["event"] == "job":
                self.apps.update((job.id, job.app) for job in jobs_of(record)[0])
            elif record["event"] == "end":
                self.ended[record["id"]] = record
            elif record["event"] == "again":
                self.ended.pop(record["id"], None)
