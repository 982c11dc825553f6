"""The command `vrm script`."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import zlib
from functools import partial
from pathlib import Path
from typing import Any
from collections.abc import Sequence

from vrm.commands.parsing import Parser, command
from vrm.commands.shared import CannotRun, count, default_config, tell



def add_parsers(commands: Any, shared: argparse.ArgumentParser) -> None:
    """Add the command `script` to the program's commands."""
    parser = command(
        commands, "script", write, "write the batch script that starts vrm on nodes of its own",
        [shared], "vrm script --slurm -N 4 -t 8:00:00 --exclusive --module openmpi -o job.sh\n"
        "vrm script --pbs -N 4 -t 8h --cores 64 --queue short -o job.pbs")
    parser.later = partial(_add_arguments, parser)


def _add_arguments(parser: Parser) -> None:
    """Add the arguments, including those of the known batch systems."""
    from vrm.live.batch.base import scriptable_systems

    known = scriptable_systems()
    parser.usage = f"%(prog)s ({option_names()}) -N NODES -t TIME [options]"
    systems = parser.add_mutually_exclusive_group(required=True)
    for system in known:
        systems.add_argument(f"--{system.name}", dest="system", action="store_const",
                             const=system.name, help=system.script_help)
    add = parser.add_argument
    add("-N", "--nodes", metavar="N", type=count, required=True, help="how many nodes")
    add("-t", "--time", metavar="TIME", type=duration, required=True,
        help="how long: HH:MM:SS or D-HH:MM:SS, or as 90m, 2h, 1d")
    add("--cores", metavar="N", type=count,
        help="cores of each node (default: Sockets x Cores of the configuration; with Slurm and "
             "--exclusive: all)")
    add("--exclusive", action="store_true", help="whole nodes")
    add("--mem-per-cpu", metavar="SIZE", type=memory,
        help="memory for each core, as 1400M or 2G (default: the site's)")
    add("--account", metavar="NAME", type=name, help="who pays")
    add("--partition", "--queue", dest="queue", metavar="NAME", type=name,
        help="the " + " or ".join(f"{system.queue_word} ({system.title})" for system in known))
    add("--module", metavar="NAME", type=name, action="extend", nargs="+", default=[],
        help="modules to load, such as that of your MPI (default: those that are loaded now; with "
             "this option a loaded Python as well)")
    add("--signal", metavar="SECONDS", type=count,
        help="how long before the end Slurm asks vrm to stop (default: 120)")
    add("--chain", metavar="K", type=count, default=1,
        help="K allocations, one after the other, until the queue is done")
    add("--once", action="store_true", help=argparse.SUPPRESS)  # no effect: vrm always does this
    add("--name", metavar="NAME", type=name,
        help="the batch job's name (default: that of the configuration)")
    add("--directive", metavar="TEXT", action="append", default=[],
        help="a further option of the batch system, as --directive=--qos=long")
    add("--here", action="store_true",
        help="write paths relative to this directory, from which the script is then submitted")
    add("-o", "--out", metavar="FILE", help="write it to a file (default: to standard output)")
    add("--force", action="store_true", help="replace a file that exists")
    add("--submit", action="store_true", help="with -o: submit it, too")


def option_names() -> str:
    """Return the options that name a batch system: `--slurm | --pbs`."""
    from vrm.live.batch.base import scriptable_systems

    return " | ".join(f"--{system.name}" for system in scriptable_systems())


def write(arguments: argparse.Namespace) -> int:
    """Write the script and print how to submit it; return 0. Raises ConfigError or CannotRun."""
    from vrm.config.schema import load
    from vrm.ext.begin import batch_script as wrappers
    from vrm.live.batch.base import BatchScript

    given = getattr(arguments, "config", default_config())
    if given is None:
        raise CannotRun("which configuration is vrm to run with? Give -c FILE")
    settings = load(given)
    wrapper = BatchScript(
        command=vrm_command(given, arguments), nodes=arguments.nodes, walltime=arguments.time,
        name=arguments.name or batch_name(given, alone=arguments.chain > 1),
        cores=arguments.cores or cores_of(settings), memory=arguments.mem_per_cpu,
        exclusive=arguments.exclusive, account=arguments.account or "",
        queue=arguments.queue or "",
        modules=modules(arguments.module, os.environ.get("LOADEDMODULES", "")),
        warning=arguments.signal, chain=arguments.chain,
        file=arguments.out or "FILE", directives=tuple(map(directive, arguments.directive)))
    text = wrappers.script(arguments.system, wrapper)
    warn(settings, arguments)
    if arguments.out is None and arguments.submit:
        raise CannotRun("--submit needs -o FILE: the batch system may read the script later")
    if arguments.out is None:
        print(text, end="")
        return 0
    try:
        with open(arguments.out, "w" if arguments.force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise CannotRun(f"{arguments.out} exists; --force replaces it") from error
    except OSError as error:
        raise CannotRun(f"cannot write {arguments.out}: {error.strerror}") from error
    if getattr(arguments, "quiet", False):  # `vrm init` says what to type next
        return 0
    lines = wrappers.submit_commands(arguments.system, wrapper)
    if arguments.submit:
        return subprocess.run(["sh", "-ec", "\n".join(lines)], check=False).returncode and 1
    tell("submit it with:")
    for line in lines:
        tell(f"  {line}")
    return 0


def warn(settings: Any, arguments: argparse.Namespace) -> None:
    """Print what in the configuration does not match the script."""
    if settings.emulate:
        tell("vrm: the configuration has Emulate: true; on real nodes leave it out")
    if settings.nodes != "auto" and settings.nodes != arguments.nodes:
        tell(f"vrm: the configuration says Nodes: {settings.nodes}, the script asks for "
             f"{arguments.nodes}; `Nodes: auto` takes what there is")
    for problem in settings.check_files():
        tell(f"vrm: {problem}")


def vrm_command(config: str, arguments: argparse.Namespace) -> tuple[str, ...]:
    """Return the argument list that runs this vrm with this configuration, from any directory."""
    beside = Path(sys.executable).with_name("vrm")
    start = [str(beside)] if os.access(beside, os.X_OK) else [sys.executable, "-m", "vrm.cli"]
    path = os.path.relpath if arguments.here else os.path.abspath
    words = [path(start[0]), *start[1:], "-c", path(config)]
    return tuple(words)


def cores_of(settings: Any) -> int | None:
    """Return the cores of a node in the configuration; None if the configuration leaves them to be found."""
    if settings.emulate or "auto" in (settings.sockets, settings.cores):
        return None
    return int(settings.sockets * settings.cores)


def batch_name(config: str, alone: bool = False) -> str:
    """Return a name for the batch job, with characters that batch systems allow: that of the configuration, or of its
    directory if the file is a vrm.yaml. `alone`: configurations of the same name in other places get other names,
    since Slurm runs one job of a name at a time in a chain."""
    path = Path(os.path.abspath(config))
    named = path.stem if path.stem != "vrm" else path.parent.name
    mark = f"-{zlib.crc32(os.fsencode(path)) & 0xffff:04x}" if alone else ""
    return "vrm-" + (re.sub(r"[^A-Za-z0-9_.-]+", "-", named).strip("-.") or "run") + mark


def modules(wanted: Sequence[str], loaded: str) -> tuple[str, ...]:
    """Return the modules that the script loads: the modules that are `loaded` now (in the format of LOADEDMODULES),
    which this vrm needs; or the `wanted` ones, together with the loaded Python under vrm."""
    now = [module for module in loaded.split(":")
           if re.fullmatch(r"[A-Za-z0-9_][\w.+:/@=,-]*", module, re.ASCII)]
    if not wanted:
        return tuple(now)
    named = {module.partition("/")[0] for module in wanted}
    return (*(module for module in now if module.partition("/")[0] not in named
              and re.match(r"(?i)(cray-)?(python|(ana|mini)?conda)", module)), *wanted)


# ------------------------------------------------------------- values on the command line, checked


def duration(text: str) -> int:
    """Return a time such as `2:00:00`, `1-12:00:00`, `90m`, `2h` or `1d` in seconds."""
    from vrm.model.quantities import seconds_of
    try:
        seconds = int(seconds_of(text))
        if text.replace(".", "").isdigit():
            raise ValueError(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"`{text}` is not a time such as 2:00:00, 1-12:00:00, 90m or 2h (a bare number is minutes "
            "to Slurm and seconds to PBS)") from None
    if seconds < 1:
        raise argparse.ArgumentTypeError(f"`{text}` is not a time")
    return seconds


def memory(text: str) -> int:
    """Return a size such as `1400`, `1400M` or `2G` in MiB."""
    from vrm.model.quantities import SLURM_MEMORY, memory_bytes
    try:
        size = memory_bytes(text, SLURM_MEMORY) >> 20
    except ValueError:
        size = 0
    if not 0 < size < 1 << 50:
        raise argparse.ArgumentTypeError(f"`{text}` is not a size such as 1400M or 2G")
    return size


def name(text: str) -> str:
    """Return the text if it is a valid name of an account, partition or module; otherwise raise ArgumentTypeError."""
    if not re.fullmatch(r"[A-Za-z0-9_][\w.+:/@=,-]*", text, re.ASCII):
        raise argparse.ArgumentTypeError(
            f"`{text}` is not a name: letters, digits and _ . + : / @ = , - are allowed")
    return text


def directive(text: str) -> str:
    """Return an option of the batch system if it is one line that begins with a dash; otherwise raise CannotRun."""
    if not text.startswith("-") or not text.isprintable():
        raise CannotRun(f"--directive: `{text}` is not an option of a batch system; for example "
                        "--directive=--qos=long")
    return text
