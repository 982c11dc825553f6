"""`vrm whatif`: reports how large an allocation to request."""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from vrm.commands.parsing import Parser, command
from vrm.commands.shared import CannotRun, count, counts, default_config, seconds, settings_of
from vrm.system.printing.output import boxed, show

if TYPE_CHECKING:
    from vrm.ext.forecast.frozen import FrozenRun
    from vrm.ext.advice.whatif import WhatIf


def add_parsers(commands: Any, shared: argparse.ArgumentParser) -> None:
    """Add the command to the argument parser."""
    parser = command(
        commands, "whatif", whatif, "say how large an allocation to ask for", [],
        "vrm whatif my.queue --nodes 4,8,16 --cores 16 --walltime 2h --history runs/before\n"
        "vrm whatif",
        "Replays a QUEUE, or without one the jobs that wait in the run of the configuration, on machines of "
        "these sizes (default: half as many nodes as now, as many, and twice as many), "
        "under the same draws of how long the jobs take. Without --walltime it also says "
        "which to ask for: what 90 % of the draws need.",
        usage="%(prog)s [QUEUE] [--nodes N,N] [options]")
    parser.usual = ("--walltime", "--members", "--json", "--policy", "--history", "--nodes", "--sockets", "--cores")
    parser.later = partial(_add_arguments, parser)


def _add_arguments(parser: Parser) -> None:
    from vrm.commands.simulate import add_choices

    parser.add_argument("queue", metavar="QUEUE", nargs="?",
                        help="a queue file, or any other workload of `vrm simulate`")
    add = parser.add_argument_group("what is asked").add_argument
    add("--walltime", metavar="TIME", type=seconds, help="how long the allocation lasts")
    add("--members", metavar="N", type=count, help="draws (default: 50)")
    add("--json", action="store_true", help="print one JSON object")
    add_choices(parser, sizes=counts)


def whatif(arguments: argparse.Namespace) -> int:
    """Print the result for each size; return 0."""
    from vrm.ext.advice import advice
    from vrm.ext.forecast.parallel import processes_for
    from vrm.ext.advice.commands.advise import take_queue
    from vrm.ext.advice.whatif import what_if

    take_queue(arguments)
    if not isinstance(arguments.nodes, tuple):
        arguments.nodes = _around(arguments)
    planned = queues_of(arguments) if arguments.queue is not None else waiting_of(arguments)
    members = arguments.members or advice.MEMBERS
    jobs = len(planned[0].later) + len(planned[0].waiting())
    if not jobs:
        raise CannotRun("no job waits: there is nothing to ask for")
    found = what_if(planned, arguments.walltime, members,
                    processes_for(2 * len(planned) * members * jobs))
    show(arguments.json, found.record, lambda: text(found), indent=None)
    return 0


def _around(arguments: argparse.Namespace) -> tuple[int, ...]:
    """Return half the present number of nodes, that number, and twice that number. Raises CannotRun if it is not
    known."""
    from vrm.results.state import read

    today = arguments.nodes
    if today is None and (hasattr(arguments, "config") or (default_config() and arguments.queue is None)):
        settings = settings_of(arguments)
        try:
            today = settings.nodes if settings.nodes != "auto" else len(read(settings.state)["nodes"])
        except (OSError, ValueError):
            today = None
    if not today:
        raise CannotRun("which sizes? Give them as --nodes 4,8,16")
    return tuple(sorted({max(1, today // 2), today, 2 * today}))


def queues_of(arguments: argparse.Namespace) -> list[FrozenRun]:
    """Return the queue on machines of each size."""
    from vrm.ext.advice.commands.advise import made
    from vrm.ext.advice.planned_run import plan

    sizes, arguments.nodes = arguments.nodes, None
    if arguments.machine is not None:
        raise CannotRun("--machine has a number of nodes of its own: give --nodes with --sockets and "
                        "--cores")
    found = []
    for nodes in sizes:
        arguments.nodes = nodes
        found.append(made(arguments, plan).frozen)
    return found


def waiting_of(arguments: argparse.Namespace) -> list[FrozenRun]:
    """Return the waiting jobs in a new allocation of each size, with nodes like those of the run."""
    from vrm.ext.advice.commands.advise import running
    from vrm.ext.forecast.frozen import of_jobs
    from vrm.model.cluster import Cluster
    from vrm.scheduling.compose import compose
    from vrm.workload.submission import Submission

    sizes, arguments.nodes = arguments.nodes, None
    case = running(arguments)
    nodes = case.frozen.state.cluster.nodes
    now = case.frozen.now
    jobs = tuple(Submission(job.but(submit=now), 0.0) for job in case.frozen.waiting())
    found = []
    for number in sizes:
        cluster = Cluster([replace(nodes[at % len(nodes)], name=f"n{at}") for at in range(number)],
                          case.frozen.state.cluster.all_licences)
        cluster.programs = case.frozen.state.cluster.programs
        scheduler = compose(case.rules, cluster, case.heatmap)
        found.append(replace(of_jobs((), scheduler, cluster, now=now, past=case.frozen.past,
                                     speedups=case.frozen.speedups), later=jobs,
                             position=case.frozen.position, kill=case.frozen.kill))
    return found


def text(found: WhatIf) -> str:
    """Return the sizes as text."""
    from vrm.ext.advice.commands.advise import spread_text
    from vrm.results.names import digits, time_text

    limited = found.walltime is not None
    heads = ["nodes", "cores", "all done after: P50 (P10 to P90)",
             f"done in {time_text(found.walltime)}" if found.walltime is not None else "ask for",
             "chance that all are", "core hours asked", "used"]
    rows = [[size.nodes, size.cores, spread_text("makespan", size.makespan),
             f"{100 * size.done:.0f} %" if limited else time_text(size.walltime),
             f"{100 * size.chance:.0f} %", digits(size.asked),
             f"{digits(size.used)} ({100 * size.used / size.asked:.0f} %)"] for size in found.sizes]
    lines: list[str] = [f"{found.jobs} jobs; {found.members} draws {found.drawn}", "", boxed(heads, rows, left=())]
    lines += [f"on {size.nodes} nodes {size.never} job(s) can never run" for size in found.sizes
              if size.never]
    if found.recommended is not None:
        size = found.sizes[found.recommended]
        lines.append(f"Ask for {size.nodes} node{'s' * (size.nodes > 1)} for {time_text(size.walltime)}: {found.why}.")
    else:
        lines.append(f"{found.why[:1].upper()}{found.why[1:]}.")
    return "\n".join([*lines, found.ranges])

