"""`vrm submit --urgent`: prints what room for the job costs other jobs, and makes room when the user confirms."""

from __future__ import annotations

import argparse
import math
import sys
import time
from typing import TYPE_CHECKING, Any
from collections.abc import Callable, Mapping

from vrm.commands.job import REPLY_SECONDS, ask
from vrm.commands.shared import CannotRun, run_of, settings_of
from vrm.results.names import time_text

if TYPE_CHECKING:
    from vrm.ext.urgent.plan import UrgentPlan

MEASURING = 5.0
"""Maximum seconds to wait until the nodes report how much memory jobs use."""

_PAUSE = 0.25

HOW = {"lend": "lends half of its cores", "pause": "is paused", "requeue": "is ended and waits again",
       "": "starts later"}


def urgent(arguments: argparse.Namespace, line: str) -> Callable[[str], int]:
    """Find out what room for a job costs, and ask the user whether to make it.

    Return the function to call when the job is submitted: it takes the name of the submit command, makes the room and
    returns the exit status. Raises CannotRun with the reason if room cannot be made or is not wanted; then nothing is
    submitted.
    """
    from vrm.ext.forecast.commands.forecast import current_run
    from vrm.ext.urgent.plan import plan
    from vrm.model import Infeasible
    from vrm.run.entry import JobStateError

    settings = settings_of(arguments)
    memory = _memory(arguments)
    files, frozen = current_run(settings)
    by = None if arguments.by is None else frozen.now + arguments.by
    try:
        jobs, details = files.submitted(line, frozen.now)
        if len(jobs) > 1:
            raise ValueError("an array is not urgent as a whole: submit the jobs that are")
        found = plan(frozen, jobs[0], details[0], lambda job_id: memory.get(str(job_id)),
                     settings.interrupted == "requeue", by)
    except (Infeasible, JobStateError, ValueError) as never:
        raise CannotRun(f"it would be refused: {never}") from None
    when = "now" if arguments.by is None else f"within {time_text(arguments.by)}"
    print("\n".join(_lines(found, frozen.now, when)), flush=True)
    if found.why:
        raise CannotRun(f"it cannot start {when}: {found.why}. Nothing is submitted")
    if found.room is not None and found.room.core_donors and not arguments.yes:
        _confirm()
    return lambda name: _make(arguments, name, found, by)


def _memory(arguments: argparse.Namespace) -> Mapping[str, int]:
    """Return the most bytes that running jobs were seen to use on a node, by job id, as far as this is known."""
    from vrm.run import command_files

    directory, end = run_of(arguments), time.monotonic() + MEASURING
    if not directory.manager_runs():
        raise CannotRun(f"no manager runs on {directory.directory}; start one with `vrm run`")
    while True:
        reply = command_files.answered(directory, command_files.send(directory, {"do": "urgent", "ask": True}),
                                       REPLY_SECONDS)
        if reply is None or not reply["ok"]:
            raise CannotRun("the manager does not say what it knows of its jobs: "
                            + (reply["text"] if reply else f"no answer within {REPLY_SECONDS:g} s"))
        if reply["known"] or time.monotonic() > end:
            memory: Mapping[str, int] = reply["memory"]
            return memory
        time.sleep(_PAUSE)


def _lines(found: UrgentPlan, now: float, when: str) -> list[str]:
    """Return the text that the user reads before room is made."""
    soon, late = (time_text(max(0.0, each - now)) if each < math.inf else "never" for each in found.start)
    waits = f"as any other job it would start in {soon} to {late} (P10 to P90)"
    if found.alone:
        return [f"it starts {when} by itself: {waits}"]
    if found.room is None:
        return [waits]
    rows = [("JOB", "PROGRAM", "WHAT IT DOES", "ENDS LATER BY", "P10 TO P90")]
    rows += [(str(each.id), each.app, HOW[each.how], _signed(each.mean), f"{_signed(each.p10)} to {_signed(each.p90)}")
             for each in found.said]
    widths = [max(map(len, column)) for column in zip(*rows)]
    table = ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths)).rstrip() for row in rows]
    rest = len(found.losses) - len(found.said)
    if len(rows) == 1:
        table = []
    return [waits, f"it starts {when} {'if others make room' if found.room.core_donors else 'on free cores'}:", *table,
            f"no other job ends more than a minute later ({rest} end up to a minute later, or earlier); "
            f"all together end {_signed(found.total)} later"]


def _signed(seconds: float) -> str:
    return f"-{time_text(-seconds)}" if seconds < 0 else time_text(seconds) if seconds < math.inf else "never"


def _confirm() -> None:
    """Ask the user on a terminal. Raises CannotRun if the answer is not yes, or if there is no terminal."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise CannotRun("nothing is submitted: --yes makes room without asking")
    try:
        said = input("Submit it and make room? [y/N] ")
    except (EOFError, KeyboardInterrupt):
        said = ""
    if said.strip().lower() not in ("y", "yes"):
        raise CannotRun("nothing is submitted")


def _make(arguments: argparse.Namespace, name: str, found: UrgentPlan, by: float | None) -> int:
    """Have the manager make room for the job that the command of this name submitted; return the exit status."""
    from vrm.run.journal.files import jobs_of_command

    ids = jobs_of_command(run_of(arguments).journal, name)
    if not ids or (found.alone and by is None):
        return 0  # it has started, as the forecast says
    wanted: dict[str, Any] = {"do": "urgent", "id": ids[0], "by": by}
    for each in found.room.core_donors if found.room is not None else ():
        wanted.setdefault(each.how, []).append(each.id)
    return ask(arguments, wanted)
