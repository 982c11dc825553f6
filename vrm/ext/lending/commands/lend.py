"""`vrm lend`: a running job lends cores to a waiting one, or to its nodes, and takes them back."""

from __future__ import annotations

import argparse
from typing import Any

from vrm.commands.naming import id_for
from vrm.commands.parsing import command
from vrm.commands.shared import CannotRun, count, job_ids


def add_parsers(commands: Any, shared: argparse.ArgumentParser) -> None:
    """Add the command."""
    parser = command(
        commands, "lend", lend, "let a running job lend cores to one that waits", [shared],
        "vrm lend 3 --to 7\nvrm lend 3 --cores 4 --to 7\nvrm lend 3 --cores 2 --to node\n"
        "vrm lend 3 --back",
        "Job 3 must be malleable (`vrm submit --malleable`): its ranks leave the cores, then the other job "
        "starts there, and when that has ended job 3 has them again. --to node leaves the cores to nobody "
        "until --back. The manager must be running; `vrm -i queue` shows which job lends which cores.",
        usage="%(prog)s ID --to ID|node [--cores N] | ID --back")
    add = parser.add_argument
    add("id", metavar="ID", help="the running job that lends").completer = job_ids  # type: ignore[attr-defined]
    add("--to", metavar="ID|node", help="the waiting job that starts on the cores, or `node` for none")
    add("--cores", metavar="N", type=count,
        help="how many cores on each of its nodes (default: half of those that it has)")
    add("--back", action="store_true",
        help="take back what it lends, except from jobs that run on it")


def lend(arguments: argparse.Namespace) -> int:
    """Send the request to the manager; return 0, or 1 if it was refused."""
    from vrm.commands.job import ask

    if arguments.back:
        if arguments.to is not None or arguments.cores is not None:
            raise CannotRun("--back takes everything back: give it without --to and --cores")
        return ask(arguments, {"do": "lend", "id": id_for(arguments, arguments.id), "back": True})
    if arguments.to is None:
        raise CannotRun("no borrower: give --to ID of a waiting job, or --to node")
    to = None if arguments.to == "node" else id_for(arguments, arguments.to, "--to: ")
    return ask(arguments, {"do": "lend", "id": id_for(arguments, arguments.id), "cores": arguments.cores or 0,
                           "to": to})
