"""`vrm learned`: what is known from the jobs of earlier runs."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vrm.commands.parsing import command, group
from vrm.commands.shared import CannotRun, settings_of

if TYPE_CHECKING:
    from vrm.ext.learning.learned_jobs import LearnedJob
    from vrm.ext.learning.store import LearnedStore


def add_parsers(commands: Any, shared: argparse.ArgumentParser) -> None:
    """Add the commands."""
    actions = group(commands, "learned", "show or change what is known from the jobs of earlier runs",
                    "vrm learned show\nvrm learned show ft.B.x\nvrm learned nodes\nvrm learned forget ft.B.x\n"
                    "vrm learned import logs\n"
                    "vrm learned export -o jobs.jsonl")
    show = command(actions, "show", shown, "show which programs have run, on how many ranks, and how long", [shared],
                   "vrm learned show")
    show.add_argument("app", metavar="PROGRAM", nargs="?", default="", help="one program, by each number of ranks")
    show.add_argument("--json", action="store_true", help="as JSON")
    nodes = command(actions, "nodes", nodes_shown, "show which nodes fail jobs or slow them, for the help desk",
                    [shared], "vrm learned nodes\nvrm learned nodes --clear n3")
    nodes.add_argument("names", metavar="NODE", nargs="*", help="these nodes (default: all that are suspected)")
    nodes.add_argument("--clear", action="store_true", help="the nodes were repaired: forget what was measured there")
    nodes.add_argument("--json", action="store_true", help="as JSON")
    forget = command(actions, "forget", forgotten, "forget the jobs of a program, or all", [shared],
                     "vrm learned forget ft.B.x\nvrm learned forget --all")
    forget.add_argument("app", metavar="PROGRAM", nargs="?", default="", help="whose jobs")
    forget.add_argument("--all", action="store_true", help="all jobs")
    add = command(actions, "import", imported, "add the jobs of earlier live runs", [shared], "vrm learned import logs",
                  "Managers add the jobs of their runs by themselves. Jobs that are known already are replaced.")
    add.add_argument("directories", metavar="LOG", nargs="+", help="the directory of a run")
    export = command(actions, "export", exported, "print all jobs, one JSON object a line", [shared],
                     "vrm learned export -o jobs.jsonl")
    export.add_argument("-o", dest="out", metavar="FILE", help="write them into this file")


def store_of(arguments: argparse.Namespace, reading: bool = True) -> LearnedStore:
    """Return the opened store of the configuration. Raises CannotRun."""
    from vrm.ext.learning.store import LearnedStore, place

    path = place(settings_of(arguments).extended("Learning.Store"))
    if path is None:
        raise CannotRun("nothing is learned here (Learning: {Store: off}); remove the key, or name a file")
    return LearnedStore(path, reading=reading)


def shown(arguments: argparse.Namespace) -> int:
    """Print what is known; return 0."""
    from vrm.system.printing.output import show

    with store_of(arguments) as store:
        jobs, machines = store.jobs(arguments.app), store.machines()
        path = str(store.path)
    groups: dict[tuple[Any, ...], list[LearnedJob]] = {}
    for job in jobs:
        width = (job.ranks,) if arguments.app else ()
        groups.setdefault((job.app, job.input, machines[job.run], *width), []).append(job)
    found = [_about(key, of) for key, of in sorted(groups.items())]
    show(arguments.json, lambda: {"store": path, "programs": found}, lambda: _text(found, arguments.app, path))
    return 0


def _about(key: tuple[Any, ...], jobs: list[LearnedJob]) -> dict[str, Any]:
    """Return what is known of jobs of one program, input and machine."""
    from statistics import fmean, median

    good = [job for job in jobs if job.status == "completed"]
    used = [job.used / job.cores for job in good if job.used is not None]
    return {"app": key[0], "input": key[1], "machine": key[2], "ranks": sorted({job.ranks for job in jobs}),
            "jobs": len(jobs), "completed": len(good), "seconds": median(job.seconds for job in good) if good else None,
            "busy": fmean(used) if used else None,
            "memory": max((job.memory for job in jobs if job.memory is not None), default=None)}


def _text(found: list[dict[str, Any]], app: str, path: str) -> str:
    from vrm.model.quantities import fold, said
    from vrm.report.tables import shown as printable
    from vrm.system.printing.output import boxed

    if not found:
        return f"no job{f' of {printable(app)}' if app else ''} is known yet ({path})"
    rows = [[printable(each["app"]), printable(each["input"]) or "-", each["machine"], fold(each["ranks"]),
             each["jobs"], each["jobs"] - each["completed"], "-" if each["seconds"] is None else said(each["seconds"]),
             "-" if each["busy"] is None else f"{100 * each['busy']:.0f} %",
             "-" if each["memory"] is None else f"{each['memory'] / 2**20:.0f}M"] for each in found]
    heads = ["program", "input", "machine", "ranks", "jobs", "failed", "median time", "cores busy", "memory"]
    return f"{boxed(heads, rows)}\ninput: the arguments, or where there are none the directory (dir=)\n{path}"


def nodes_shown(arguments: argparse.Namespace) -> int:
    """Print the findings about nodes, or clear some nodes; return 0."""
    from vrm.ext.learning.health.report import cleared, known, text
    from vrm.ext.learning.store import StoreError
    from vrm.system.printing.output import show

    if arguments.clear and not arguments.names:
        raise CannotRun("which nodes were repaired? Name them: vrm learned nodes --clear NODE")
    with store_of(arguments, reading=not arguments.clear) as store:
        try:
            if arguments.clear:
                print(cleared(store, arguments.names))
                return 0
            found, path = known(store, arguments.names), str(store.path)
        except (StoreError, ValueError) as error:
            raise CannotRun(str(error)) from error
    show(arguments.json, lambda: {"store": path, "nodes": [each.facts for each in found]},
         lambda: "\n\n".join(map(text, found)) or f"no node is suspected ({path})")
    return 0


def forgotten(arguments: argparse.Namespace) -> int:
    """Forget jobs; return 0."""
    if bool(arguments.app) == arguments.all:
        raise CannotRun("whose jobs? Give a PROGRAM, or --all")
    with store_of(arguments) as store:
        number = store.forget(arguments.app)
    print(f"{number} job{'s' * (number != 1)} forgotten")
    return 0


def imported(arguments: argparse.Namespace) -> int:
    """Add runs; return 0."""
    from vrm.ext.learning.run_import import import_run

    with store_of(arguments, reading=False) as store:
        for directory in arguments.directories:
            number = import_run(Path(directory), store)
            print(f"{directory}: {number} job{'s' * (number != 1)} known")
    return 0


def exported(arguments: argparse.Namespace) -> int:
    """Print all jobs; return 0."""
    with store_of(arguments) as store:
        jobs, machines = store.jobs(), store.machines()
    try:
        with open(arguments.out, "w", encoding="utf-8") if arguments.out else open(
                sys.stdout.fileno(), "w", encoding="utf-8", closefd=False) as out:
            out.writelines(json.dumps({**dataclasses.asdict(job), "machine": machines[job.run]}) + "\n" for job in jobs)
    except OSError as error:
        raise CannotRun(f"{arguments.out or 'standard output'}: {error.strerror}") from error
    return 0
