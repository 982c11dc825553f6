"""The command `vrm init`: writes a configuration, a queue and a batch script for the programs that are here."""

from __future__ import annotations

import argparse
import os
import shutil
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from collections.abc import Sequence

from vrm.commands.parsing import Parser, command
from vrm.ext.begin.commands.script import duration, option_names
from vrm.commands.shared import CannotRun, count

MOST_JOBS = 8
"""The most jobs in a first queue."""

CONFIG = """\
# How vrm runs the jobs of this directory. Every key has a default; `vrm help config` explains
# them. Paths are relative to this file. Output and records are in logs, or in vrm-logs
# where `vrm run -- PROGRAM` starts the run, unless you set Log.
Applications:
  Path: {path}{path_note}
  Queue: queue        # one job per line

Scheduling:
  Algorithm: FCFS     # which job is next: FCFS, SJF, WFP3 ..., an expression, or module:function
  Backfilling: easy   # later jobs may fill gaps, if they do not delay the first one

Allocation:
  Policy: pack        # where ranks go: pack (jobs share nodes), compact, spare or strip
{launcher}"""

QUEUE = """\
# One job per line: program, MPI ranks, estimated seconds, 1 if it shares no node.
# More is possible behind these, for example: args='-n 100' name=first after=0
"""


@dataclass(frozen=True)
class SiteProbe:
    """What was found here: programs in a directory, an MPI or why there is none, the number of cores, batch systems.
    `login` is the batch system for which this is a login node ("": none)."""

    directory: Path
    programs: tuple[str, ...]
    mpi: str
    no_mpi: str
    cores: int
    shape: str
    batch: str
    login: str = ""


def add_parsers(commands: Any, shared: argparse.ArgumentParser) -> None:
    """Add the command `init` to the program's commands."""
    parser = command(
        commands, "init", init, "write a first configuration and queue for this directory", [],
        "vrm init\nvrm init ~/code/solver --ranks 4\nvrm init --slurm -N 4 -t 8:00:00",
        "Looks for programs (in ./bin, else here), MPI, cores and a batch system; writes vrm.yaml, "
        "queue and, on a login node or with --slurm or --pbs, the batch script. Files that exist are "
        "kept as they are.")
    parser.later = partial(_add_arguments, parser)


def _add_arguments(parser: Parser) -> None:
    """Add the arguments, including those of the known batch systems."""
    from vrm.live.batch.base import scriptable_systems

    parser.usage = f"%(prog)s [PROGRAM ...] [--ranks N] [{option_names()}] [options]"
    add = parser.add_argument
    add("programs", metavar="PROGRAM", nargs="*",
        help="your programs, all in one directory (default: those in ./bin, else in ./)")
    add("--ranks", metavar="N", type=count,
        help="MPI ranks of each job (default: as many as a node has cores, 4 at most)")
    systems = parser.add_mutually_exclusive_group()
    for system in scriptable_systems():
        systems.add_argument(f"--{system.name}", dest="system", action="store_const",
                             const=system.name,
                             help=f"also write vrm.{system.name}, for {system.submit} (as is done on a login node)")
    add("-N", "--nodes", metavar="N", type=count, default=1,
        help="nodes that the batch script asks for (default: 1)")
    add("--cores", metavar="N", type=count,
        help="cores of each node, for " + " and ".join(
            f"--{system.name}" for system in scriptable_systems() if not system.whole_nodes)
        + " (default: as many as this machine has)")
    add("-t", "--time", metavar="TIME", default="1:00:00",
        help="how long it asks for them (default: 1:00:00)")


def init(arguments: argparse.Namespace) -> int:
    """Look, write the files that are missing, and print what to type next; return 0."""
    found = look(arguments.programs)
    arguments.system = arguments.system or found.login
    if arguments.system:
        try:
            duration(arguments.time)
        except argparse.ArgumentTypeError as error:
            raise CannotRun(f"-t: {error}") from error
    for what, text in (("nodes", found.shape), ("MPI", found.mpi or found.no_mpi),
                       ("batch system", found.batch), ("programs", _named(found))):
        print(f"found  {what:<13} {text}")
    config, queue = Path("vrm.yaml"), Path("queue")
    _write(config, config_text(found))
    _write(queue, queue_text(found, arguments.ranks or min(4, found.cores)))
    if arguments.system:
        _script(arguments, arguments.cores or found.cores)
    _next(found, arguments)
    return 0


def look(programs: Sequence[str]) -> SiteProbe:
    """Find out what is here; raises CannotRun if a given program is not an executable file."""
    from vrm.config.schema import load
    from vrm.live.launch.base import LaunchError, make_launcher
    from vrm.live.nodes.topology import TopologyError, read_topology

    directory, names = _programs(programs)
    mpi = no_mpi = ""
    try:
        wanted = load(None).launcher
        launcher = make_launcher(wanted.model_copy(update={"allow_root": os.geteuid() == 0}))
        mpi = ", ".join(filter(None, (launcher.version_text, launcher.mpirun)))
    except LaunchError as error:
        no_mpi = str(error)
    try:
        sockets: tuple[int, ...] = read_topology().node.sockets
        shape = (f"this machine: {len(sockets)} socket{'s' * (len(sockets) > 1)} of "
                 f"{'+'.join(map(str, sockets))} cores")
    except TopologyError as error:
        sockets, shape = (1,), str(error)
    return SiteProbe(directory, names, mpi, no_mpi, sum(sockets), shape, *_batch())


def _programs(given: Sequence[str]) -> tuple[Path, tuple[str, ...]]:
    """Return the directory of the programs, and their names."""
    if not given:
        for place, helpers in ((Path("bin"), ()), (Path("."), (".sh", ".py"))):  # usually no jobs
            names = tuple(sorted(entry.name for entry in os.scandir(place) if _is_program(Path(entry.path))
                                 and not entry.name.endswith(helpers))) if place.is_dir() else ()
            if names:
                return place, names
        return Path("bin"), ()
    paths = [Path(os.path.abspath(os.path.expanduser(name))) for name in given]
    for path in paths:
        if not (path.is_file() and os.access(path, os.X_OK)):
            raise CannotRun(f"{path} is not an executable file; build it, or chmod +x it")
    directories = {path.parent for path in paths}
    if len(directories) > 1:
        raise CannotRun("the programs are in several directories: "
                        f"{', '.join(map(str, sorted(directories)))}; name those of one here, and "
                        "the others in vrm.yaml: Applications: {Programs: {NAME: PATH}}")
    return Path(os.path.relpath(paths[0].parent)), tuple(path.name for path in paths)


def _is_program(path: Path) -> bool:
    from vrm.live.batch.base import systems

    return (path.is_file() and os.access(path, os.X_OK) and not path.name.startswith(".")
            and path.suffix not in (".so", *(f".{name}" for name in systems())))


def _batch() -> tuple[str, str]:
    """Return a text on the batch system, and the name of the one for which this is a login node ("": none)."""
    from vrm.live.batch.allocation import batch_system
    from vrm.live.batch.base import scriptable_systems
    from vrm.live.batch.login import login_node

    around = batch_system(os.environ)
    if around:
        return f"inside a job of {around}", ""
    login = login_node(os.environ)
    if login:
        return f"{login.system.title} ({login.system.submit}, {login.file}): this is a login node", login.system.name
    installed = [system.submit for system in scriptable_systems() if shutil.which(system.submit)]
    there = f" ({' and '.join(installed)} installed, but not configured)" if installed else ""
    return f"none{there}; jobs run on this machine", ""


def _named(found: SiteProbe) -> str:
    if not found.programs:
        return "none yet; vrm npb build makes some, or put yours into ./bin"
    shown = ", ".join(found.programs[:6])
    more = len(found.programs) - 6
    return f"{len(found.programs)} in {found.directory}: {shown}" + f" and {more} more" * (more > 0)


def config_text(found: SiteProbe) -> str:
    """Return the text of the configuration."""
    import yaml

    lines: list[str] = []
    if found.no_mpi:
        lines += ["  Kind: direct        # no MPI was found: programs run without mpirun"]
    if os.geteuid() == 0:
        lines += ["  AllowRoot: true     # you are root; Open MPI refuses that by default"]
    path = yaml.safe_dump(str(found.directory).replace("$", "$$"), width=10000).splitlines()[0]
    return CONFIG.format(
        path=path, path_note=" " * max(1, 14 - len(path)) + "# directory of the programs",
        launcher="\n".join(["", "Launcher:", *lines, ""] if lines else []))


def queue_text(found: SiteProbe, ranks: int) -> str:
    """Return the text of the queue: a job for each program, or an example to be changed."""
    import shlex

    from vrm.ext.generate.npb import rank_counts

    jobs = []
    for program in found.programs[:MOST_JOBS]:
        allowed = [each for each in rank_counts(program, ranks) if each <= ranks] or [1]
        jobs.append(f"{shlex.quote(program)} {allowed[-1] if found.mpi else 1} 600 0")
    return QUEUE + "\n".join(jobs or ["# cg.A.x 4 60 0"]) + "\n"


def _write(path: Path, text: str) -> None:
    """Write a file that does not exist yet."""
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        print(f"kept   {path} (it exists)")
        return
    except OSError as error:
        raise CannotRun(f"cannot write {path}: {error.strerror}") from error
    print(f"wrote  {path}")


def _script(arguments: argparse.Namespace, cores: int) -> None:
    """Write the batch script, as `vrm script` does."""
    from vrm.cli import parser
    from vrm.live.batch.base import systems

    path = f"vrm.{arguments.system}"
    if os.path.lexists(path):
        print(f"kept   {path} (it exists)")
        return
    words = ["script", f"--{arguments.system}", "-N", str(arguments.nodes), "-t", arguments.time,
             "--here", "-c", "vrm.yaml", "-o", path]
    words += ["--exclusive"] if systems()[arguments.system].whole_nodes else ["--cores", str(cores)]
    wanted = parser().parse_all(words)
    wanted.quiet = True
    wanted.act(wanted)
    print(f"wrote  {path}")


def _next(found: SiteProbe, arguments: argparse.Namespace) -> None:
    """Print what to type next."""
    from vrm.live.batch.base import systems

    print("\nnext:")
    steps = [] if found.programs else [("vrm npb build", "or put your programs into ./bin")]
    steps.append(("$EDITOR queue", "say what is to run"))
    if arguments.system:
        about = systems()[arguments.system]
        script, cores = f"vrm.{arguments.system}", f" --sockets 1 --cores {arguments.cores}" if arguments.cores else ""
        steps += [(f"$EDITOR {script}", f"nodes, time, account and {about.queue_word}"),
                  (f"vrm check --nodes {arguments.nodes}{cores}", "can all of it run on as many nodes?"),
                  (f"{about.submit} {script}", "run it")]
    else:
        steps += [("vrm check", "can all of it run?"), ("vrm run", "run it")]
    for typed, why in steps:
        print(f"  {typed:<18} # {why}")
