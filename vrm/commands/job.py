"""`vrm submit`, `cancel`, `hold`, `release`, `requeue` and `stop`: what a running manager is asked."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from typing import Any, Dict, Tuple

from vrm.commands.shared import CannotRun, command, settings_of

REPLY_SECONDS = 10.0

EACH = {"cancel": "end waiting or running jobs",
        "hold": "let waiting jobs wait until they are released",
        "release": "let held jobs start again",
        "requeue": "let jobs run anew: running ones are ended first"}

OPTIONS: Tuple[Tuple[str, str, str], ...] = (
    ("--cores", "N", "cores of each rank"),
    ("--name", "TEXT", "a label"),
    ("--after", "IDS", "start only when these jobs have completed: 3,5-7; any:3 for whatever end"),
    ("--priority", "N", "jobs of a higher priority come first (default 0)"),
    ("--retries", "N", "try again so often if it fails (default: Retries of the configuration)"),
    ("--args", "'A B'", "arguments of the program, quoted as a whole; %%i is the array's index"),
    ("--array", "0-9:2", "a job for each index, which it finds in VRM_ARRAY_INDEX"))


def add_parsers(commands: Any, shared: argparse.ArgumentParser) -> None:
    """Add the commands."""
    parser = command(commands, "submit", submit, "give a running manager a job", [shared])
    parser.add_argument("app", help="a file in Applications.Path, such as cg.A.x")
    parser.add_argument("procs", help="MPI ranks")
    parser.add_argument("seconds", help="estimate of the wall time")
    parser.add_argument("--exclusive", action="store_true", help="share no node")
    for option, what, text in OPTIONS:
        parser.add_argument(option, metavar=what, help=text)
    parser.add_argument("--env", metavar="NAME=VALUE", action="append", default=[],
                        help="a variable for the job (may be given several times)")
    parser.add_argument("--dir", help="the directory to run in (default: the manager's)")
    parser.add_argument("--hold", action="store_true", help="wait for `vrm release`")
    for name, text in EACH.items():
        parser = command(commands, name, each, text, [shared])
        parser.add_argument("ids", nargs="+", metavar="ID", help="a job's id, a range 3-7, or all")
    parser = command(commands, "stop", stop, "let the manager start nothing more and end", [shared])
    parser.add_argument("--now", action="store_true", help="end the running jobs, too")


def submit(arguments: argparse.Namespace) -> int:
    """Give a running manager a job; the words are checked as a line of a queue file is."""
    from vrm.workload.queue_file import LineError, parse_line

    columns = [arguments.app, arguments.procs, arguments.seconds, str(int(arguments.exclusive))]
    fields = [(option[2:], getattr(arguments, option[2:])) for option, _, _ in OPTIONS]
    fields += [("env", text) for text in arguments.env]
    if arguments.dir is not None:
        fields.append(("dir", os.path.abspath(arguments.dir)))
    if arguments.hold:
        fields.append(("hold", "1"))
    line = " ".join([*map(shlex.quote, columns), *(f"{name}={shlex.quote(text)}"
                                                   for name, text in fields if text is not None)])
    try:
        parse_line(line)
    except LineError as error:
        raise CannotRun(str(error)) from error
    return ask(arguments, {"do": "submit", "line": line})


def each(arguments: argparse.Namespace) -> int:
    """Do to jobs what the command is called."""
    from vrm.live.control import chosen
    try:
        chosen({"ids": arguments.ids}, ())
    except ValueError as error:
        raise CannotRun(f"`{error}` is no id, no range as 3-7, and not `all`") from error
    return ask(arguments, {"do": arguments.command, "ids": arguments.ids})


def stop(arguments: argparse.Namespace) -> int:
    """Let the manager end."""
    return ask(arguments, {"do": "stop", "now": arguments.now})


def ask(arguments: argparse.Namespace, wanted: Dict[str, Any]) -> int:
    """Send a command to the running manager and print its answer; 1 when it was not done."""
    from vrm.live import control
    from vrm.live.setup import run_directory

    directory = run_directory(settings_of(arguments))
    if not directory.manager_runs():
        raise CannotRun(f"no manager runs on {directory.directory}; start one with `vrm -c FILE`")
    name = control.send(directory, wanted)
    reply = control.wait_reply(directory, name, REPLY_SECONDS)
    if reply is None:
        taken = not control.withdraw(directory, name)
        raise CannotRun(f"the manager has not answered within {REPLY_SECONDS:g} s"
                        + ("" if taken else "; the command was taken back"))
    print(reply["text"], file=sys.stdout if reply["ok"] else sys.stderr)
    return int(not reply["ok"])
