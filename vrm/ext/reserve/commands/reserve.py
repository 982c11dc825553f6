"""`vrm reserve`: keeps nodes for some jobs from one time to another."""

from __future__ import annotations

import argparse
import math
import time
from typing import Any

from vrm.commands.parsing import command
from vrm.commands.shared import CannotRun, count, job_ids, run_of

TIMES = "14:30, 2026-11-30T14:30, +2h (from now) or now"
_FORMS = ("%H:%M", "%H:%M:%S", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M",
          "%Y-%m-%d %H:%M:%S")


def add_parsers(commands: Any, shared: argparse.ArgumentParser) -> None:
    """Add the command to the argument parser."""
    parser = command(
        commands, "reserve", reserve, "keep nodes for some jobs from one time to another", [shared],
        "vrm reserve -N 1 --from +1h --to +2h --name demo\n"
        "vrm reserve --nodes n2,n3 --from 14:00 --to 16:00 --jobs 7-9\n"
        "vrm reserve --list\nvrm reserve --cancel demo",
        "No other job starts on these nodes if its time limit reaches into the reservation. Its jobs, "
        "those of --jobs and those that are submitted with --reservation NAME, start there when it has "
        "begun, if they end by its end. The manager must be running, but not for --list.",
        usage="%(prog)s -N NODES --from TIME --to TIME [options]")
    add = parser.add_argument
    add("-N", dest="number", metavar="NODES", type=count, help="how many nodes")
    add("--nodes", metavar="LIST", help="which nodes: n2,n3 or n[2-3]")
    add("--from", dest="begin", metavar="TIME", help=f"when it begins: {TIMES} (default: now)")
    add("--to", dest="end", metavar="TIME", help=f"when it ends: {TIMES}")
    add("--name", metavar="NAME", help="what it is called (default: r1, r2, ...)")
    add("--jobs", metavar="IDS", help="jobs that wait and are to run in it: 7 or 3,5-7"
        ).completer = job_ids  # type: ignore[attr-defined]
    add("--list", action="store_true", help="list the reservations")
    add("--cancel", metavar="NAME", help="end a reservation, by its name or id")
    add("--json", action="store_true", help="with --list: as JSON")


def reserve(arguments: argparse.Namespace) -> int:
    """Make, list or cancel reservations; return 0, or 1 if the manager refused."""
    from vrm.commands.job import ask

    making = [option for option, given in (
        ("-N", arguments.number), ("--nodes", arguments.nodes), ("--from", arguments.begin),
        ("--to", arguments.end), ("--name", arguments.name), ("--jobs", arguments.jobs))
        if given is not None]
    if ((arguments.list or arguments.cancel) and making) or (arguments.list and arguments.cancel):
        raise CannotRun("--list and --cancel make no reservation: give them without other options")
    if arguments.json and not arguments.list:
        raise CannotRun("--json needs --list")
    if arguments.list:
        return _list(arguments)
    if arguments.cancel:
        return ask(arguments, {"do": "unreserve", "which": arguments.cancel})
    if arguments.number is None and arguments.nodes is None:
        raise CannotRun("how many nodes, or which? For example: vrm reserve -N 2 --from 14:00 --to 16:00")
    if arguments.end is None:
        raise CannotRun(f"until when? Give --to TIME: {TIMES}")
    order, ahead = wanted(arguments, time.time()), _ahead(arguments)
    return ask(arguments, {**order, **{key: order[key] - ahead for key in ("begin", "end") if order[key] is not None}})


def _ahead(arguments: argparse.Namespace) -> float:
    """Return the seconds by which this machine's clock is ahead of the run's."""
    from vrm.results.state import read

    try:
        return float(read(run_of(arguments).state).get("ahead", 0.0))
    except (OSError, ValueError):
        return 0.0  # no manager has written the state file yet


def wanted(arguments: argparse.Namespace, now: float) -> dict[str, Any]:
    """Return the command for the manager. Raises CannotRun for invalid arguments."""
    from vrm.model.quantities import numbers
    from vrm.model.forms.hosts import expand

    jobs: list[int] = []
    if arguments.jobs is not None:
        try:
            jobs = list(numbers(arguments.jobs))
        except ValueError:
            raise CannotRun(f"--jobs: `{arguments.jobs}` is not an id or a list such as 3,5-7") from None
    nodes: list[str] = []
    if arguments.nodes is not None:
        try:
            nodes = expand(arguments.nodes)
        except ValueError as error:
            raise CannotRun(f"--nodes: {error}") from None
    begin = None if arguments.begin in (None, "now") else moment(arguments.begin, now, "--from")
    return {"do": "reserve", "begin": begin, "end": moment(arguments.end, now, "--to"),
            "number": arguments.number or 0, "nodes": nodes, "name": arguments.name or "",
            "jobs": jobs}


def moment(text: str, now: float, option: str = "") -> float:
    """Return the time (epoch seconds) of a text that a user wrote; a time of day is a time of today."""
    from vrm.model.quantities import seconds_of
    from vrm.system.printing.local_times import parse_local_time

    if text == "now":
        return now
    try:
        return now + seconds_of(text[1:]) if text.startswith("+") else parse_local_time(text, *_FORMS, now=now)
    except ValueError:
        raise CannotRun(f"{option}: `{text}` is not a time; write {TIMES}".lstrip(": ")) from None


def _list(arguments: argparse.Namespace) -> int:
    from vrm.report.tables import reservation_line
    from vrm.results.state import now, read
    from vrm.system.printing.output import show

    run = run_of(arguments)
    try:
        snapshot = read(run.state)
    except OSError as error:
        raise CannotRun(f"there is no run in {run.directory}: {run.state}: {error.strerror}") from None
    except ValueError as error:
        raise CannotRun(f"{run.state}: {error}") from None
    found = current_ones(snapshot.get("reservations", ()), now(snapshot))
    show(arguments.json, lambda: {"format": 1, "reservations": found},
         lambda: "\n".join(map(reservation_line, found)) or "there are no reservations", indent=None)
    return 0


def current_ones(reservations: Any, now: float | None = None) -> list[dict[str, Any]]:
    """Return the reservations of a state file that have not ended."""
    return [dict(each) for each in reservations if each["end"] > (-math.inf if now is None else now)]
