"""The commands `vrm check` and `vrm doctor`."""

from __future__ import annotations

import argparse
import os
from typing import Any

from vrm.commands.parsing import command
from vrm.commands.shared import CannotRun, count, default_config

ALL_RUN, SOME_NEVER, UNUSABLE = 0, 1, 2


def add_check(commands: Any, shared: argparse.ArgumentParser) -> None:
    """Add the command `check` to the program's commands."""
    parser = command(
        commands, "check", check, "check the configuration and its queue", [shared],
        "vrm check\nvrm check --deep\nvrm check --estimates estimates.csv\nvrm check --nodes 4 --sockets 2 --cores 16",
        "Shows every line of the queue that can never run, and why: too many ranks, a program that "
        "is missing, a line that is not understood. Starts nothing, except with --deep.\n\n"
        "Exit status: 0 every job can run, 1 some never can, 2 the configuration or this machine cannot be used.")
    add = parser.add_argument
    add("--deep", action="store_true",
        help="also look at this machine: nodes, MPI, programs and files; starts one rank")
    add("--estimates", metavar="FILE",
        help="also compare with measured run times, as `vrm calibrate` writes them")
    for name, what in (("nodes", "nodes"), ("sockets", "sockets per node"),
                       ("cores", "cores per socket")):
        add(f"--{name}", metavar="N", type=count,
            help=f"check for N {what}, instead of what is found here")
    add("--machine", metavar="FILE", help="check for the nodes of a machine file (see "
        "`vrm simulate --machine`)")


def add_doctor(commands: Any, shared: argparse.ArgumentParser) -> None:
    """Add the command `doctor` to the program's commands."""
    command(commands, "doctor", doctor, "look at this machine: what is found, what is wrong", [shared], "vrm doctor",
            "Looks at nodes, MPI, programs and files, and starts one rank. Nothing is changed. "
            "Exit status: 0 jobs can run, 2 they cannot.")


def doctor(arguments: argparse.Namespace) -> int:
    """Print what is found on this machine and what is wrong; return 0 if jobs can run, 2 if they cannot."""
    from vrm.ext.begin.diagnosis import examine
    from vrm.system.printing.text import marked

    findings = examine(getattr(arguments, "config", default_config()))
    for finding in findings:
        print(marked(str(finding)))
    return UNUSABLE if any(finding.wrong for finding in findings) else ALL_RUN


def check(arguments: argparse.Namespace) -> int:
    """Check the configuration and print the findings; return 0, 1 or 2 as `vrm check --help` describes."""
    return max(doctor(arguments), _check(arguments)) if arguments.deep else _check(arguments)


def _check(arguments: argparse.Namespace) -> int:
    from vrm.ext.begin.check import check as examine
    from vrm.system.printing.text import marked
    from vrm.system.trust import distrust

    config = getattr(arguments, "config", default_config())
    if config is not None and not hasattr(arguments, "config") and "VRM_CONFIG" not in os.environ:
        reason = distrust(config, allow="name it with -c")
        if reason:
            raise CannotRun(reason)
    sizes = {name: getattr(arguments, name) for name in ("nodes", "sockets", "cores")
             if getattr(arguments, name) is not None}
    if sizes and arguments.machine:
        raise CannotRun("--machine says which nodes there are; leave out --nodes, --sockets and --cores")
    report = examine(config, os.environ, arguments.estimates, sizes, arguments.machine)
    for finding in report.findings:
        print(marked(str(finding)))
    if not report.usable:
        print("\nvrm cannot run with this configuration: see what is marked `wrong`")
        return UNUSABLE
    if report.never:
        print(f"\n{report.never} of {report.lines} lines can never run: see what is marked `wrong`")
        return SOME_NEVER
    print(f"\nnext: {following(arguments) if report.lines else 'write jobs into the queue'}")
    return ALL_RUN


def following(arguments: argparse.Namespace) -> str:
    """Return what to type next if all jobs can run: on a login node, and for other nodes than those here, the batch
    script."""
    from vrm.live.batch.base import scriptable_systems
    from vrm.live.batch.login import login_node

    config = getattr(arguments, "config", default_config())
    login = login_node(os.environ)
    if login is None and not (arguments.nodes or arguments.sockets or arguments.cores or arguments.machine):
        return "vrm run"
    folder = os.path.dirname(config or "")
    scripts = [(system, os.path.join(folder, f"vrm.{system.name}")) for system in scriptable_systems()
               if login is None or system is login.system]
    for system, script in scripts:
        if os.path.exists(script):
            return f"{system.submit} {script}"
    if login is None:
        return "run it on such nodes, in a batch job: `vrm script --help` explains how to write one"
    system, script = scripts[0]
    size = "--exclusive" if system.whole_nodes else f"--cores {arguments.cores or 'CORES'}"
    named = f" -c {config}" if hasattr(arguments, "config") else ""
    return (f"vrm script --{system.name} -N {arguments.nodes or 1} -t 1:00:00 {size}{named} -o {script}, then "
            f"{system.submit} {script}")
