"""The command line: reads arguments, calls other packages and prints; it makes no decisions of its own."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
import time
from contextlib import nullcontext, redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any
from collections.abc import Sequence

from vrm import __version__
from vrm.commands.parsing import Parser, command
from vrm.commands.shared import ON, CannotRun, default_config, extension_option, seconds, settings_of
from vrm.system.printing.text import coloured, printable_lines

if TYPE_CHECKING:
    from vrm.config.schema import Settings
    from vrm.live.manager.manager import Manager
    from vrm.live.site.setup import Site

MODULES = {
    "job": "submit cancel hold release requeue stop", "status": "queue status", "simulate": "simulate", "guide": "help"}
"""The modules of `vrm.commands` with their commands; only the module of the requested command is loaded."""

OWN = ("run", "shell")
"""The commands of this module."""

PROGRAM = "`-- PROGRAM`"
"""Name, in messages, of the option that is a program after `--`."""

OK, SOME_FAILED, COULD_NOT_RUN, INTERRUPTED = 0, 1, 2, 130


class MainParser(Parser):
    """The parser of the whole program; its help is the overview of all commands."""

    def format_help(self, whole: bool = False) -> str:
        from vrm.commands.guide import overview
        return overview(self, whole)


def is_remote(words: Sequence[str]) -> bool:
    """Return whether the command line is to run on another machine."""
    return words[:1] == [ON] or (bool(words) and words[0].startswith(f"{ON}="))


def command_in(words: Sequence[str]) -> str:
    """Return the command of a command line; "" if there is none."""
    left = list(words)
    while left:
        word = left.pop(0)
        if word in ("-c", "-config", "--config", "-i", "-info", "--info"):
            del left[:1]
        elif word not in ("--version", "--json", "--once", "--continue", "--wait", "--fresh", "--failed", "--changed",
                          "--strict", "--here"):
            return word
    return ""


def modules_of(words: Sequence[str]) -> Sequence[str]:
    """Return the modules that a command line needs: the one of its command if that is known, all of them if it is
    not, and none for a command of this module or of one of vrm's own extensions."""
    word = command_in(words)
    found = [name for name, commands in MODULES.items() if word in commands.split()]
    return found or ([] if word in ("", *OWN) or extension(word) else list(MODULES))


def extension(word: str) -> Any:
    """Return the command that one of vrm's own extensions adds under this name (`vrm.system.plugins.Plugin`), or
    None."""
    from vrm.system import plugins
    return next((plugin for plugin in plugins.own("vrm.commands") if plugin.name == word), None)


def add_extension(word: str, commands: Any, shared: argparse.ArgumentParser) -> None:
    """Add an extension's command to the program's."""
    from vrm.system import plugins
    plugins.load(extension(word))(commands, shared)


def parser(words: Sequence[str] | None = None) -> Parser:
    """Return the parser of the command line: complete, or only what these words need."""
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("-c", "--config", metavar="FILE", default=argparse.SUPPRESS,
                        help="the configuration (default: $VRM_CONFIG, else ./vrm.yaml if it "
                             "exists, else every key's default)")
    shared.add_argument("-config", dest="config", default=argparse.SUPPRESS,
                        help=argparse.SUPPRESS)
    running = argparse.ArgumentParser(add_help=False)
    running.add_argument("--failed", action="store_true",
                         help="also run again the jobs that failed or were refused; completed jobs are not repeated")
    running.add_argument("--changed", action="store_true",
                         help="also run, as new jobs, lines that were changed after their jobs ran")
    running.add_argument("--fresh", action="store_true",
                         help="forget the earlier run and run all lines again (its records are kept "
                              "under earlier/)")
    running.add_argument("--wait", action="store_true",
                         help="when all jobs have ended, wait for more lines of the queue, until an `end` "
                              "line or `vrm stop`")
    for old in ("--once", "--continue"):  # old options: vrm always does this now
        running.add_argument(old, action="store_true", help=argparse.SUPPRESS)
    running.add_argument("--strict", action="store_true",
                         help="with a program behind `--`: exit status 1 if a job fails, even if the program succeeds")
    running.add_argument("--here", action="store_true",
                         help="on a login node: run the jobs on this machine, outside of a batch job")
    top = MainParser(prog="vrm", parents=[shared, running],
                     usage="vrm [-c FILE] [COMMAND] [options]")
    top.add_argument("--version", action="version", version=f"vrm {__version__}")
    top.add_argument(ON, metavar="HOST",
                     help="as the first word: run the command on another machine, by ssh (`vrm --on --help`)")
    top.add_argument("-i", "--info", choices=("queue", "state"),
                     help="the same as `vrm queue` and `vrm status`")
    top.add_argument("-info", dest="info", choices=("queue", "state"), help=argparse.SUPPRESS)
    top.add_argument("--json", action="store_true", help="with -i: as JSON")
    top.add_argument("--watch", metavar="SECONDS", nargs="?", type=seconds, const=2.0,
                     help="with -i: again and again (default: every 2 s), until Ctrl-C")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", prog="vrm",
                                  parser_class=Parser)
    command(commands, "run", run, "run the queue", [shared, running],
            "vrm run\nvrm run --failed\nvrm -c vrm.yaml\nvrm run -- ./give-jobs.sh",
            "`vrm -c FILE` is the same as `vrm run -c FILE`. A run always continues the earlier one: it runs "
            "new lines of the queue and what was interrupted, and repeats nothing (docs/guide/running.md has a table). "
            "It ends when all jobs have ended and no program writes the queue. Ctrl-C ends it; the same command "
            "continues it.\n\n"
            "What follows `--` is a program that is run meanwhile and gives jobs by `vrm submit`; the "
            "run ends when it and its jobs have ended.\n\n"
            "Exit status: 0 all jobs succeeded; 1 some did not, or a line of the queue was not "
            "understood; 2 could not run. With a program behind `--` it is that of the program, which knows "
            "what failing jobs mean (with --strict 1 if it is 0 and a job failed).",
            usage="%(prog)s [options] [-- PROGRAM ARGUMENTS]", rest="client")
    within = command(
        commands, "shell", shell, "start a shell, and run the jobs that are submitted in it", [shared, running],
        "vrm shell\nvrm shell --fresh\nvrm shell 7",
        "Starts your shell, in which sbatch, squeue, srun and mpirun are vrm's, and runs what is submitted; the "
        "run ends when you have left it and the jobs have ended. What happens is written to vrm.out in the "
        "run's directory.\n\n"
        "With the id of a job that runs: a shell on the job's first node and cores, next to its ranks.")
    within.add_argument("id", metavar="ID", nargs="?", type=int, help="a job that runs")
    needed = list(MODULES) if words is None else modules_of(words)
    for name in needed:
        import_module(f"vrm.commands.{name}").add_parsers(commands, shared)
    word = command_in(words or ())
    if word and not needed and word not in OWN:
        add_extension(word, commands, shared)
    if len(needed) == len(MODULES):  # not a command of vrm, or all commands are needed
        from vrm.system import plugins
        taken = {*OWN, *" ".join(MODULES.values()).split()}
        plugins.use("vrm.commands", taken, lambda plugin, add: add(commands, shared))
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    from vrm.config.problems import ConfigError
    from vrm.system.errors import UserError

    try:
        if "_ARGCOMPLETE" in os.environ:  # the shell requests completions
            typed = os.environ.get("COMP_LINE", "")[:int(os.environ.get("COMP_POINT") or 0)]
            before = typed[:typed.rfind(" ") + 1].split()[1:]
            asked = parser(before if command_in(before) not in ("", *OWN) else None)
            extension_option("completion", "completion in a shell")(asked)
        words = list(sys.argv[1:] if argv is None else argv)
        if is_remote(words):
            return int(extension_option("on")(words))
        mine = words[:words.index("--")] if "--" in words else words
        if ON in mine and words[0] != "slurm":  # its commands pass words to programs
            raise CannotRun(f"{ON} HOST must be before all other words")
        arguments = parser(words).parse_all(words)
        status = look(arguments) if arguments.info else getattr(arguments, "act", run)(arguments)
        sys.stdout.flush()
        return status
    except ConfigError as error:
        print(printable_lines(str(error)), file=sys.stderr)
    except UserError as error:
        print(printable_lines(f"vrm: {error}"), file=sys.stderr)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _give_up_output()
        return 128 + signal.SIGPIPE
    except OSError as error:
        _give_up_output()
        where = f"{error.filename}: " if error.filename is not None else ""
        print(printable_lines(f"vrm: {where}{error.strerror or error}"), file=sys.stderr)
    return COULD_NOT_RUN


def _give_up_output() -> None:
    """Discard output that standard output does not take: Python would otherwise try again when it exits."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def look(arguments: argparse.Namespace) -> int:
    """Carry out `vrm -i`."""
    from vrm.commands.status import info
    return info(arguments)


def _prepared(arguments: argparse.Namespace) -> tuple[Settings, Site, Any, Manager]:
    """Return the parts of a run: its settings, nodes, the program of `vrm run --` (or None) and the manager."""
    from vrm.live.manager.manager import Manager
    from vrm.live.site.setup import prepare
    from vrm.run.rundir import RunDirectory

    settings = settings_of(arguments)
    directory = RunDirectory.of(settings)
    if arguments.strict and not getattr(arguments, "client", ()):
        raise CannotRun("--strict needs a program after `--`: without one a job that fails gives exit status 1")
    if arguments.fresh and (arguments.failed or arguments.changed):
        raise CannotRun("--failed and --changed continue the earlier run, and --fresh starts a new one; choose one")
    refuse_login_node(arguments, settings)
    site = prepare(settings)
    client = client_of(arguments, settings, directory)
    manager = Manager(settings, site, directory, print_event, wait=arguments.wait, changed=arguments.changed,
                      feeder=client.name if client else "", further=[client] if client else [])
    return settings, site, client, manager


def run(arguments: argparse.Namespace) -> int:
    """Run the queue to its end and return the exit status."""
    from vrm.system.memory import no_collections, rare_collections

    if arguments.json or arguments.watch is not None:
        raise CannotRun("--json and --watch need `vrm queue` or `vrm status`")
    if not (arguments.command or hasattr(arguments, "config") or default_config()):
        if any((arguments.once, arguments.wait, arguments.fresh, arguments.failed, arguments.changed)):
            raise CannotRun("no configuration: give one with -c FILE, or name it vrm.yaml; "
                            "`vrm run` takes every key's default")
        from vrm.commands.guide import short
        print(short())
        return COULD_NOT_RUN
    with no_collections():
        settings, site, client, manager = _prepared(arguments)

    from vrm.live.site.setup import describe
    from vrm.results.metrics import closing_line, closing_figures, idle_while_waiting, idle_text
    from vrm.scheduling import PolicyError

    say(f"{describe(settings, site.cluster.nodes, site.emulated)}; "
        f"{site.launcher.version_text}")
    say(f"jobs run in {settings.workplace}, unless they have a dir= of their own; "
        f"their output goes to {near(settings.log)}")
    begun = time.time()
    try:
        with client or nullcontext(), rare_collections():
            succeeded = manager.run(arguments.fresh, arguments.failed)
    except PolicyError as error:  # the user's own policy failed during the run
        raise CannotRun(f"{error}; running jobs continue. Fix it and type the same command: it "
                        "continues the run") from error
    ended = [f"{count} {status}" for status, count in manager.live.state.counts.items() if count] or ["no job ended"]
    if manager.intake.bad_lines:
        ended.append(f"{manager.intake.bad_lines} line(s) of the queue file not understood")
    say(f"{', '.join(ended)}; everything is in {near(settings.directory)}")
    rows = list(manager.live.records.rows.values())
    idle = idle_while_waiting(rows, sum(node.cores for node in site.cluster.nodes),
                              (begun, max(begun, time.time())))
    for line in filter(None, (closing_figures(rows), idle_text(idle, manager.live.rules.policy, command_of(arguments)),
                              following(arguments, settings, rows, manager.live.state.waiting))):
        say(line)
    say(closing_line(settings.rules.algorithm, settings.rules.backfill, rows))
    if client is not None and client.status != 0:
        say(f"!! {client.trouble or f'{client.name} has ended with status {client.status}'}"
            if client.status is not None else f"{client.name} was ended with the run")
        return SOME_FAILED if client.status is None else client.status
    return OK if succeeded or (client is not None and not arguments.strict) else SOME_FAILED


def refuse_login_node(arguments: argparse.Namespace, settings: Any) -> None:
    """Raise CannotRun if jobs would run on a login node without the option --here."""
    from vrm.live.batch.login import login_node

    found = None if arguments.here or settings.hosts.file else login_node(os.environ)
    if found is None:
        return
    name, submit = found.system.name, found.system.submit
    script = f"vrm.{name}"
    first = "" if (settings.base / script).exists() else f"`vrm init` writes {script}; "
    raise CannotRun(f"this is a login node of {found.system.title} ({found.file}), and the jobs would run here. Submit "
                    f"the run: {first}`{submit} {script}`; or add --here to run them on this machine")


def shell(arguments: argparse.Namespace) -> int:
    """Run a shell, and the jobs that are submitted in it."""
    from vrm.system.files import open_own

    extension_option("program", "`vrm shell`")
    if arguments.id is not None:
        return shell_in(arguments)
    arguments.client = [os.environ.get("SHELL") or "/bin/sh"]
    path = settings_of(arguments).directory / "vrm.out"
    path.parent.mkdir(parents=True, exist_ok=True)
    say(f"sbatch, squeue, srun and mpirun are now vrm's; `exit` leaves this shell. The log is {near(path)}")
    own = open_own(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with open(own, "w", encoding="utf-8") as file, redirect_stdout(file):
        return run(arguments)


def shell_in(arguments: argparse.Namespace) -> int:
    """Replace this process by a shell in a running job."""
    from vrm.commands.shared import run_of
    directory = run_of(arguments)
    srun = directory.programs / "srun"
    if not srun.exists():
        raise CannotRun(f"no manager has run in {near(directory.directory)}: there is no job {arguments.id}")
    env = {**os.environ, "VRM_DIRECTORY": str(directory.directory)}
    shown = os.environ.get("SHELL") or "/bin/sh"
    os.execve(srun, ["srun", "--overlap", f"--jobid={arguments.id}", "--pty", shown], env)


def client_of(arguments: argparse.Namespace, settings: Any, directory: Any) -> Any:
    """Return the program that submits jobs to the manager (`vrm run -- PROGRAM`); None if there is none."""
    if not getattr(arguments, "client", ()):
        return None
    config = getattr(arguments, "config", default_config())
    env = {} if config is None else {"VRM_CONFIG": os.path.abspath(config)}
    return extension_option("program", PROGRAM)(arguments.client, directory, settings.applications.queue, env)


def command_of(arguments: argparse.Namespace) -> str:
    """Return how vrm was called, for advice on what to type next."""
    named = getattr(arguments, "config", None)
    return "vrm" if named is None else f"vrm -c {shlex.quote(named)}"


def following(arguments: argparse.Namespace, settings: Any, rows: Sequence[Any], left: int) -> str:
    """Return what to type after a run; `left`: the number of jobs that still wait."""
    from vrm.live.batch.base import around
    vrm, here = command_of(arguments), " --here" * arguments.here
    if left:
        again = "this batch script, submitted again," if around(os.environ) else f"`{vrm} run{here}`"
        return f"next: {again} continues with the {left} job(s) that wait"
    failed = [row.id for row in rows if row.status in ("failed", "timeout")]
    if failed:
        again = (f"`{vrm} requeue failed`, and then this batch script or `vrm run`," if around(os.environ)
                 else f"`{vrm} run --failed{here}`")
        return (f"next: `{vrm} log {failed[0]} --err` shows the error output of job {failed[0]}, "
                f"`{vrm} queue --all` all jobs, and {again} runs those again that did not complete")
    if not rows:
        return ""
    ran = any(row.start is not None for row in rows)
    return (f"next: `{vrm} queue --all` shows the jobs"
            + f", `vrm report {near(settings.directory)}` their figures" * ran)


def print_event(kind: str, text: str) -> None:
    """Print an event as one line; warnings and failures are highlighted."""
    colour = {"warning": "yellow", "failure": "red"}.get(kind)
    line = f"{time.strftime('%H:%M:%S')} {'!!' if colour else '  '} {text}"
    say(coloured(line, colour) if colour else line)


def near(path: Path) -> str:
    """Return the path as it would be typed here: relative if it is below the current directory."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def say(text: str) -> None:
    """Print a line; a closed terminal or pipe does not end the run."""
    try:
        print(f"{text}\n", end="", flush=True)  # a single write even if output is not buffered
    except OSError:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
