"""The commands `vrm queue` and `vrm status`. They only read files, so they work on any node that sees these files."""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any
from collections.abc import Iterator, Mapping, Sequence

from vrm.commands.parsing import command
from vrm.commands.naming import ids_for
from vrm.commands.shared import CannotRun, count, ids_of, job_ids, nothing_yet, run_of, seconds

if TYPE_CHECKING:
    from vrm.report.overviews import Overview
    from vrm.results.jobs import JobRow
    from vrm.run.rundir import RunDirectory

ROWS = 1000
"""Default maximum of rows of waiting jobs in a table."""


def add_parsers(commands: Any, shared: argparse.ArgumentParser) -> None:
    """Add the commands to the program's."""
    parser = command(
        commands, "queue", show, "show the jobs of a run", [shared],
        "vrm queue\nvrm queue --limit 20\nvrm queue --all\nvrm queue --watch 5\nvrm queue first 3-7\nvrm queue failed",
        "Shows running and waiting jobs, and after the end of the run those that ended. With IDs it shows these jobs, "
        "also ended ones.")
    parser.add_argument("ids", nargs="*", metavar="ID", help="a job's id or name, a range 3-7, or failed (jobs that "
                        "failed, ran too long or were refused)").completer = job_ids  # type: ignore[attr-defined]
    parser.add_argument("--all", action="store_true",
                        help="also all jobs that have ended, and each waiting job of an array on a row")
    parser.add_argument("--limit", metavar="N", type=count, default=ROWS,
                        help=f"show at most N rows of waiting jobs (default: {ROWS}); not with --all or --json")
    _add_forms(parser)
    parser.set_defaults(info="queue")
    parser = command(
        commands, "status", show, "show the nodes and cores of a run", [shared],
        "vrm status\nvrm status --json",
        "Shows which job is on which core, and after the end of the run the jobs that ended.")
    _add_forms(parser)
    parser.set_defaults(info="state")


def _add_forms(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.add_argument("--watch", metavar="SECONDS", nargs="?", type=seconds, const=2.0,
                        help="repeat it (default: every 2 s) until Ctrl-C")


def show(arguments: argparse.Namespace) -> int:
    """Show the jobs or the cores, once or repeatedly until the manager has ended; return 0."""
    return info(arguments)


def info(arguments: argparse.Namespace) -> int:
    """Do the work of `show`, also for `vrm -i queue` and `vrm -i state`."""
    from vrm.report.overviews import overviews
    from vrm.results import state
    from vrm.system.printing.text import marked

    run = run_of(arguments)
    path = run.state
    wanted = ids_for(arguments, getattr(arguments, "ids", ()))  # `vrm -i queue` has none
    ended = threading.Event()

    def render() -> Iterator[str]:
        try:
            around = overviews(run.directory, run.log) if arguments.info == "state" else {}
            if around and not path.exists():
                return _alone(around, arguments)
            snapshot = state.read(path)
            if snapshot["manager"]["phase"] == "ended":
                ended.set()
            return _text({**snapshot, **_now(run, snapshot["manager"])}, run.directory, arguments, around, wanted)
        except FileNotFoundError:
            raise ValueError(nothing_yet(run)) from None
        except OSError as error:
            raise ValueError(f"cannot read {path}: {error.strerror}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is not a state that a manager has written ({error}); correct "
                             "State or Directory in the configuration") from error

    if arguments.watch is not None:
        from vrm.report.watching import watch
        watch(lambda: "".join(render()), arguments.watch, stop=ended)
        return 0
    try:
        parts = render()
    except ValueError as error:
        raise CannotRun(str(error)) from error
    sys.stdout.writelines(parts if arguments.json else map(marked, parts))
    print()
    return 0


def _now(run: RunDirectory, manager: Mapping[str, Any]) -> dict[str, Any]:
    """Return what has changed since the manager wrote its state: `dead`, whether it is known to have died, and
    `unread`, the number of commands that wait for the next manager, such as those of `vrm requeue`."""
    ended, dead = manager["phase"] == "ended", False
    try:
        dead = not ended and manager["host"] == socket.gethostname() and not run.manager_runs()
        unread = sum(not name.startswith(".") for name in os.listdir(run.commands)) if ended or dead else 0
    except OSError:  # no permission, or no locks here: the state's age must do
        unread = 0
    return {"dead": dead, "unread": unread}


def _alone(around: Mapping[str, Overview], arguments: argparse.Namespace) -> Iterator[str]:
    """Return the output of extensions if no manager has written a state."""
    from vrm.system.printing.output import json_text

    if arguments.json:
        return iter([json_text({name: each.record for name, each in around.items()}, None if arguments.watch else 2)])
    return iter(["\n\n".join(each.text() for each in around.values())])


def _text(snapshot: Mapping[str, Any], directory: Path, arguments: argparse.Namespace,
          around: Mapping[str, Overview], wanted: Sequence[str]) -> Iterator[str]:
    """Return, in parts, the output for a snapshot, for the ended jobs if requested, and of extensions."""
    from vrm.report import tables
    from vrm.results import forecast, state
    from vrm.report.ended_jobs import ended_json, ended_table
    from vrm.system.printing.output import json_parts

    everything = getattr(arguments, "all", False) or bool(wanted)
    over = snapshot["manager"]["phase"] == "ended"
    rows = _rows(directory / "jobs.csv") if everything or over else None
    only = (lambda job_id: True) if not wanted or "all" in wanted else _chosen(wanted, rows or []).__contains__
    if rows is not None:
        rows = [row for row in rows if only(row.id)]
    queue = arguments.info == "queue"
    forecasts = forecast.by_job(snapshot, directory / forecast.NAME) if queue else forecast.ByJob()
    if arguments.json:
        data = tables.queue_json(snapshot, forecasts=forecasts) if queue else tables.state_json(snapshot)
        if wanted:
            data["jobs"] = (job for job in data["jobs"] if only(job["id"]))
        if rows is not None and queue:
            data["ended_jobs"] = ended_json(rows)
        data.update((name, each.record) for name, each in around.items())
        return json_parts(data, "" if arguments.watch else "\n")
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    now = state.now(snapshot)
    parts = []
    there = any(only(job["id"]) for job in state.jobs_of(snapshot))
    if ((rows and over) or wanted) and not there:  # nothing runs or waits: avoid an empty table
        parts.append(tables.head_text(snapshot, now, width))
    else:
        most = None if everything else getattr(arguments, "limit", ROWS)  # `vrm -i queue` lacks this option
        parts.append(tables.queue_table(snapshot, now, width, most, forecasts, everything, only) if queue
                     else tables.state_table(snapshot, now, width))
    if wanted and not there and not rows:
        parts.append("there is no such job in this run; `vrm queue --all` shows the jobs")
    if rows:
        parts.append(ended_table(rows, width, everything))
    parts += [f"\n{each.text()}" for each in around.values()]
    return iter(["\n".join(parts)])


def _chosen(wanted: Sequence[str], rows: Sequence[JobRow]) -> set[int]:
    """Return the ids that the words name."""
    failed = [row.id for row in rows if row.status in ("failed", "timeout", "refused")] if "failed" in wanted else ()
    return {*failed, *ids_of([word for word in wanted if word != "failed"])}


def _rows(path: Path) -> list[Any] | None:
    """Return the ended jobs; None if there is no list of them, or it cannot be read."""
    from vrm.results.job_columns import JobFileError
    from vrm.results.jobs import read_jobs

    try:
        return list(read_jobs(path))
    except (OSError, JobFileError):
        return None
