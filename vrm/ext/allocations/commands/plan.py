"""`vrm plan`: which request to the batch system ends all jobs first."""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vrm.commands.parsing import Parser, command
from vrm.commands.shared import CannotRun, count, counts, default_config, tell
from vrm.system.printing.output import show

if TYPE_CHECKING:
    from vrm.ext.allocations.compare import RequestForecast
    from vrm.ext.allocations.demand import Demand
    from vrm.ext.allocations.shapes import RequestLimits
    from vrm.ext.allocations.table import CommandTemplate
    from vrm.ext.forecast.site.snapshot import Snapshot
    from vrm.model import Job

UNSEEN = ("limits of users, accounts and qualities of service are not known: the site says so when it is asked",
          "memory, GPUs, licences and features are not looked at: all jobs are placed by nodes and cores")
"""What no site shows, as text for users."""

SOURCES = ("site", "slurm", "pbs", "squeue", "qstat")


def add_parsers(commands: Any, shared: argparse.ArgumentParser) -> None:
    """Add the command to the program's commands."""
    parser = command(
        commands, "plan", plan, "say which request to the batch system ends all jobs first", [],
        "vrm plan\nvrm plan my.queue --site --history runs/before\nvrm plan --submit",
        "Runs the QUEUE, or the jobs that wait in the run of the configuration, in requests of several shapes (nodes x "
        "hours x how many one after the other x how many at once), and the queue of the site with these requests in "
        "it, under the same draws of how long all these jobs take and of who comes later.",
        usage="%(prog)s [QUEUE] [options]")
    parser.usual = ("--partition", "--nodes", "--at-once", "--history", "--site-history", "--all", "--json", "--submit",
                    "--squeue", "--site", "--plot")
    parser.later = partial(_add_arguments, parser)


def _add_arguments(parser: Parser) -> None:
    from vrm.commands.simulate import add_choices
    from vrm.ext.forecast.commands.site_forecast import add_sources

    parser.add_argument("queue", metavar="QUEUE", nargs="?",
                        help="a queue file, or any other workload of `vrm simulate`")
    add = parser.add_argument_group("what is asked for").add_argument
    add("--partition", metavar="NAME", default="", help="of this partition (PBS: queue; default: the site's default)")
    add("--at-once", metavar="N,N", type=counts, help="numbers of chains side by side, each with a part of the "
        "queue's lines (default: 1,2,4)")
    add("--members", metavar="N", type=count, help="draws of the best shapes (default: 50)")
    add("--submit", metavar="N", nargs="?", const=1, type=count, help="ask for no. N of the table (default: 1)")
    add("--deal", metavar="N", type=count, help="write N parts of the queue, with a configuration each, and end")
    add("--force", action="store_true", help="with --deal: replace files that exist")
    add("--cores-only", action="store_true", help="ask for the cores of nodes, not for nodes without other jobs")
    add("--all", action="store_true", help="show all requests that were tried")
    add("--json", action="store_true", help="print one JSON object")
    add("--without", metavar="ID,ID", default="", help=argparse.SUPPRESS)  # waiting jobs of the site that are left out
    add("--plot", metavar="FILE", help="draw the site's queue with the best request in it (.svg or .png)")
    add = parser.add_argument_group("the site").add_argument
    add_sources(add)
    add("--limits", metavar="FILE", help="with files: what `scontrol show partition --oneliner` or `qstat -Qf` has "
        "printed")
    add("--site-history", metavar="FILE",
        help="jobs of the site that have ended: a dump of sacct, a log of PBS, a trace")
    add("--user", metavar="NAME", help="who asks (default: you)")
    add_choices(parser, sizes=counts)


def plan(arguments: argparse.Namespace) -> int:
    """Print the result of each request and submit a chosen one; return 0. Raises CannotRun if the site refuses it."""
    from vrm.ext.allocations import compare, shapes, table
    from vrm.ext.allocations.demand import demand
    from vrm.ext.allocations.outer_site import of_snapshot
    from vrm.ext.advice.assumed_draws import told
    from vrm.ext.forecast.commands.site_forecast import me
    from vrm.ext.forecast.parallel import available

    arguments.walltime = None
    given = getattr(arguments, "config", None), arguments.queue
    if arguments.deal is not None:
        _deal(arguments)
        return 0
    name, system, snapshot, limits, restricted = _asked(arguments)
    site = of_snapshot(snapshot, limits, arguments.user or me(), _history(arguments),
                       arguments.members or compare.MEMBERS)
    wanted = demand(arguments, limits)
    tried = compare.shapes(wanted.work, limits, side_by_side=arguments.at_once or shapes.AT_ONCE)
    if not tried:
        raise CannotRun(f"no chain of up to {shapes.MOST_CHAIN} requests does all {wanted.jobs} jobs in time: give "
                        "more nodes (--nodes), or another partition")
    found = compare.compare(wanted.work, site, tried, limits.cores, available())
    typing = table.CommandTemplate(system, *given,
                                   None if system == "slurm" and not arguments.cores_only else limits.cores,
                                   wanted.work.each)
    drawn = told(next(iter(wanted.work.parts.values()))[0])
    said = (f"your jobs: draws {drawn}", *site.said, *restricted, *UNSEEN)
    show(arguments.json, lambda: table.record(found, typing, limits, site.time, wanted.jobs, drawn, said),
         lambda: table.text(_head(name, snapshot, limits, wanted, found), found, typing, site.time, said,
                            arguments.all), indent=None)
    if arguments.plot:
        from vrm.ext.allocations.picture import draw
        draw(Path(arguments.plot), wanted.work, site, found, limits.cores)
    return _submit(arguments, found, typing) if arguments.submit else 0


def _asked(arguments: argparse.Namespace) -> tuple[str, str, Snapshot, RequestLimits, list[str]]:
    """Return the site's name, its batch system, its state, the limits of requests, and its further restrictions."""
    from vrm.ext.allocations.bounds import ask, bounds, read, restrictions
    from vrm.ext.forecast.commands.site_forecast import snapshot_of, source_of

    if not any(getattr(arguments, name) for name in (*SOURCES, "sinfo", "pbsnodes")):
        arguments.site = True
    source = source_of(arguments, SOURCES)
    name, snapshot = snapshot_of(arguments, source)
    without = set(arguments.without.split(","))
    snapshot = replace(snapshot, jobs=[job for job in snapshot.jobs if job.start is not None or job.key not in without])
    system = "pbs" if source in ("pbs", "qstat") or name == "PBS" else "slurm"
    text = ""
    if arguments.limits:
        text = Path(arguments.limits).read_bytes().decode(errors="replace")
    elif source in ("site", "slurm", "pbs"):
        text = ask(system)
    known = read(text)
    if arguments.limits and not known:
        raise CannotRun(f"{arguments.limits}: it names no partition; make the file with: scontrol show partition "
                        "--oneliner (PBS: qstat -Qf)")
    limits = bounds(snapshot, arguments.partition, known)
    return name, system, snapshot, limits, restrictions(limits.partition, known)


def _history(arguments: argparse.Namespace) -> list[tuple[Job, float]]:
    """Return the jobs of the site that have ended, in order of submission."""
    from vrm.model.rules import Rules
    from vrm.simulation.library import open_source
    from vrm.workload.swf import Selection

    if not arguments.site_history:
        return []
    try:
        return [(one.job, one.run) for one in open_source(arguments.site_history, Selection(), Rules(), None)]
    except ValueError as error:
        raise CannotRun(str(error)) from None


def _head(name: str, snapshot: Snapshot, limits: RequestLimits, wanted: Demand,
          found: list[RequestForecast]) -> list[str]:
    from vrm.model.quantities import said
    from vrm.run.reasons import clock
    running = sum(job.start is not None for job in snapshot.jobs)
    where = f"partition {limits.partition}" if limits.partition else "the default queue"
    longest = f", {said(limits.longest)}" if limits.longest < math.inf else ""
    return [f"{wanted.jobs} jobs to run. {name} at {clock(snapshot.time, time.time())}: {len(snapshot.jobs) - running} "
            f"jobs wait and {running} run on {len(snapshot.nodes)} nodes. A request in {where}: up to {limits.most} "
            f"node{'s' * (limits.most > 1)} of {limits.cores} cores{longest}. {found[0].members} draws."]


def _deal(arguments: argparse.Namespace) -> list[str]:
    """Write the parts of a queue; return the names of the files."""
    from vrm.ext.advice.commands.advise import take_queue
    from vrm.ext.allocations.queue_parts import deal, lines_of, write

    config = getattr(arguments, "config", default_config())
    take_queue(arguments)
    if config is None or arguments.queue is None:
        raise CannotRun("--deal needs a queue file and a configuration (-c FILE); vrm init writes one")
    lines = lines_of(arguments.queue)
    if lines is None or len(lines) < arguments.deal:
        raise CannotRun(f"{arguments.queue}: it cannot be dealt to {arguments.deal} parts: its lines depend on each "
                        "other, are due at times of their own, or are too few")
    dealt = [[lines[at].text for at in part] for part in deal(lines, arguments.deal)]
    written: list[str] = []
    try:
        for names in write(config, arguments.queue, dealt, arguments.force):
            tell(f"wrote {' and '.join(names)}")
            written += names
    except FileExistsError as error:
        raise CannotRun(f"{error.filename} exists; --force replaces it") from None
    except OSError as error:
        raise CannotRun(f"cannot write {error.filename}: {error.strerror}") from None
    return written


def _submit(arguments: argparse.Namespace, found: list[RequestForecast], typing: CommandTemplate) -> int:
    """Submit a request of the table; return 0. Raises CannotRun if the site refuses it."""
    from vrm.ext.allocations.queue_parts import part_name
    if arguments.submit > len(found):
        raise CannotRun(f"--submit {arguments.submit}: the table has {len(found)} requests")
    shape = found[arguments.submit - 1].shape
    config = getattr(arguments, "config", default_config())
    if config is None:
        raise CannotRun("--submit needs a configuration (-c FILE): vrm init writes one")
    parts, written = [(shape, config, f"plan.{typing.system}")], list[str]()
    if shape.at_once > 1:
        arguments.deal = shape.at_once
        written = _deal(arguments)
        parts = [(chain, part_name(config, number), f"plan.part{number}.{typing.system}")
                 for chain, numbers in typing.chains(shape).items() for number in numbers]
    for number, (chain, name, file) in enumerate(parts):
        words = typing.script(chain, name, file)
        if subprocess.run([sys.executable, "-m", "vrm", *words, "--submit"], check=False).returncode:
            for each in written if not number and not arguments.force else ():
                Path(each).unlink()  # so that the command can be repeated
            rest = "; ".join(typing.lines(shape, number)[1:]) if number else ""
            raise CannotRun(f"the site has not taken the request; what it says is above. {number} of {len(parts)} "
                            f"chains are submitted{rest and f'; when it takes the others: {rest}'}")
    return 0
