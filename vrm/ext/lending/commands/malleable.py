"""`vrm malleable`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from vrm.commands.parsing import command, group
from vrm.commands.shared import CannotRun, count, seconds, settings_of, tell

EXIT = {"malleable": 0, "affinity": 0, "not malleable": 1, "unchecked": 2}


def add_parsers(commands: Any, shared: argparse.ArgumentParser) -> None:
    """Add the group to the program's commands."""
    actions = group(commands, "malleable", "programs that lend cores while they run",
                    "vrm malleable check ep-omp.A.x -n 2")
    parser = command(
        actions, "check", check, "whether a program can lend cores while it runs", [shared],
        "vrm malleable check ep-omp.A.x -n 2\nvrm malleable check solver --threads 8 -- --input small.dat",
        "Runs the program twice as it is, and then under random changes of its cores and threads, on this "
        "machine. It must end right each time: verified if it verifies itself, else with the same output. What "
        "passes may run with malleable=1, or be named in Applications: {Malleable: [...]}.",
        usage="%(prog)s APP [-n RANKS] [--threads N] [options] [-- ARGUMENTS]", rest="arguments")
    add = parser.add_argument
    add("app", metavar="APP", help="a program of Applications.Path, or the path of one")
    add("-n", "--ranks", metavar="N", type=count, default=1, help="ranks (default: 1)")
    add("--threads", metavar="N", type=count, default=0,
        help="threads of each rank (default: its share of the cores of this machine, at least 2)")
    add("--changes", metavar="N", type=count, default=100, help="random changes (default: 100)")
    add("--limit", metavar="SECONDS", type=seconds, default=3600.0,
        help="end the program when it takes longer as it is (default: 3600)")
    add("--seed", metavar="N", type=count, default=1, help="of the random changes (default: 1)")
    add("--tolerance", metavar="X", type=float, default=1e-6,
        help="how much numbers of the output may differ, as a part of them (default: 1e-6)")
    command(actions, "files", files, "where the header for C and the module for Python are", [],
            "vrm malleable files",
            "Prints the directory of vrm_lending.h and vrm_lending.py, as for cc -I $(vrm malleable files) "
            "solver.c: for programs that follow their cores by themselves (docs/reference/lending-protocol.md).")


def check(arguments: argparse.Namespace) -> int:
    """Check a program; return 0 (malleable), 1 (not malleable) or 2 (could not be checked)."""
    from vrm.live.launch.base import LaunchError, make_launcher
    from vrm.ext.lending import check as checking
    from vrm.live.nodes.topology import TopologyError, read_topology
    from vrm.model import RankSlot

    settings = settings_of(arguments)
    program = (Path(arguments.app) if "/" in arguments.app else settings.applications.program(arguments.app))
    if not os.access(program, os.X_OK) or not program.is_file():
        raise CannotRun(f"{program} is not a program that may be run; build it, or name its path")
    try:
        topology = read_topology()
        launcher = make_launcher(settings.launcher, topologies={topology.host: topology})
        slots = _slots(topology.node.sockets, arguments.ranks, RankSlot)
        threads = arguments.threads or max(2, len(slots[0].cores))
        tell(f"running {program.name} as it is, then under {arguments.changes} changes, with {arguments.ranks} "
             f"rank(s) of {threads} threads")
        verdict = checking.check(checking.Trial(
            launcher, program.absolute(), tuple(arguments.arguments), slots, [topology.node],
            {"OMP_NUM_THREADS": str(threads)}, arguments.changes, arguments.tolerance, arguments.limit,
            arguments.seed))
    except (LaunchError, TopologyError) as error:
        raise CannotRun(str(error)) from error
    names = {"affinity": "malleable by affinity alone"}
    print(f"{program.name}: {names.get(verdict.kind, verdict.kind)}: {verdict.reason}")
    if verdict.kind in ("malleable", "affinity"):
        print(f"let its jobs lend cores: malleable=1 in a line, or Applications: {{Malleable: [{program.name}]}}")
    return EXIT[verdict.kind]


def _slots(sockets: Any, ranks: int, slot: Any) -> Any:
    """Return equal shares of this machine's cores, each inside one socket."""
    each = min(max(1, sum(sockets) // ranks), max(sockets))
    found = [slot(0, 0, socket, tuple(range(first, first + each))) for socket, cores in enumerate(sockets)
             for first in range(0, cores - each + 1, each)]
    if len(found) < ranks:
        raise CannotRun(f"{ranks} ranks do not fit on this machine's {sum(sockets)} cores; name fewer with -n")
    return [slot(rank, 0, one.socket, one.cores) for rank, one in enumerate(found[:ranks])]


def files(arguments: argparse.Namespace) -> int:
    """Print the directory of the files."""
    from vrm.ext.lending.build import HERE

    print(HERE)
    return 0
