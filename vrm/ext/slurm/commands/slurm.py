"""`vrm slurm`: runs commands of other batch systems, answered by vrm, and makes the links by which tools find them."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from vrm.commands.parsing import command, meant
from vrm.commands.shared import CannotRun, run_of


def add_parsers(commands: Any, shared: argparse.ArgumentParser) -> None:
    """Add the command."""
    parser = command(
        commands, "slurm", slurm, "sbatch, squeue and other commands of Slurm, for jobs of vrm", [shared],
        "vrm slurm sbatch job.sh\nvrm slurm squeue -l\nvrm slurm link ~/vrm-bin",
        "`vrm slurm link DIR` puts them into a directory: with that first on PATH, and VRM_DIRECTORY naming the "
        "run's directory, tools that speak Slurm give their jobs to vrm. `vrm run -- COMMAND` does both for the "
        "command.")
    parser.add_argument("name", metavar="COMMAND", help="link, or a command such as sbatch")
    parser.add_argument("words", metavar="...", nargs=argparse.REMAINDER, help="what follows it")


def slurm(arguments: argparse.Namespace) -> int:
    """Make the links, or carry out the command."""
    from vrm.ext.slurm.calls import names
    from vrm.ext.slurm.calls.client import main
    from vrm.ext.slurm.calls.wire import DIRECTORY

    name, words = arguments.name, arguments.words
    if name == "link":
        if len(words) != 1:
            raise CannotRun("where to? For example `vrm slurm link ~/vrm-bin`")
        from vrm.ext.slurm.calls import build
        made = build.link(Path(words[0]))
        print(f"{', '.join(sorted(names.everything().answers))} are in {words[0]}"
              + ("" if made else " (as scripts that start Python: there is no C compiler)"))
        return 0
    known = names.dialect(name).answers
    if name not in known:
        raise CannotRun(f"there is no command `{name}`" + (
            meant(name, list(known)) or f"; there are link, {', '.join(sorted(known))}"))
    if not os.environ.get(DIRECTORY):
        os.environ[DIRECTORY] = str(run_of(arguments).directory)
    return main([name, *words])
