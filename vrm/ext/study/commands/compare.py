"""The command `vrm compare`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from vrm.commands.parsing import command
from vrm.system.printing.output import show


def add_parsers(commands: Any, shared: argparse.ArgumentParser) -> None:
    """Add the command to the main parser."""
    parser = command(commands, "compare", compare,
                     "compare runs of one workload: a table, a picture", [],
                     "vrm compare runs/fcfs runs/sjf --out compare.png",
                     "Runs may be live or simulated; all jobs that ran count. The others are "
                     "measured against the first.")
    add = parser.add_argument
    add("directories", metavar="DIR", nargs="+",
        help="the --out of a `vrm simulate`, or the directory of a live run")
    add("--out", metavar="PICTURE", type=Path,
        help="also draw them: a name ending in .png or .svg")
    add("--json", action="store_true", help="print one JSON object")


def compare(arguments: argparse.Namespace) -> int:
    """Run `vrm compare`; return 0 on success, 2 if it is impossible."""
    from vrm.system.printing.text import printable_lines
    from vrm.ext.study.report.compare import data, draw, read_runs, table

    runs = read_runs(arguments.directories)
    if arguments.out is not None:
        draw(runs, arguments.out)
    show(arguments.json, lambda: data(runs), lambda: printable_lines(table(runs)))
    if arguments.out is not None and not arguments.json:
        print(f"drawn: {arguments.out}")
    return 0
