"""The command line: reads arguments, calls the rooms, prints; nothing is decided here."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Optional, Sequence

from vrm import __version__
from vrm.commands.calibrate import add_parsers as add_calibrate
from vrm.commands.compare import add_parsers as add_compare
from vrm.commands.experiment import add_parsers as add_experiment
from vrm.commands.generate import add_parsers as add_generate
from vrm.commands.heatmap import add_parsers as add_heatmap
from vrm.commands.job import add_parsers as add_job
from vrm.commands.npb import add_parsers as add_npb
from vrm.commands.report import add_parsers as add_report
from vrm.commands.script import add_parsers as add_script
from vrm.commands.shared import CannotRun, command, default_config, seconds, settings_of
from vrm.commands.simulate import add_parsers as add_simulate
from vrm.commands.top import add_parsers as add_top
from vrm.commands.validate import add_parsers as add_validate

OK, SOME_FAILED, COULD_NOT_RUN, INTERRUPTED = 0, 1, 2, 130


def parser() -> argparse.ArgumentParser:
    """The command line's grammar."""
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("-c", "-config", "--config", metavar="FILE", default=argparse.SUPPRESS,
                        help="the configuration (default: $VRM_CONFIG, else ./vrm.yaml if it is "
                             "there, else every key's default)")
    running = argparse.ArgumentParser(add_help=False)
    running.add_argument("--once", action="store_true",
                         help="end when the jobs now in the queue file are done")
    running.add_argument("--fresh", action="store_true",
                         help="start anew where an earlier run was stopped (its records are kept "
                              "under earlier/)")
    running.add_argument("--continue", dest="go_on", action="store_true",
                         help="where the earlier run was finished, end at once instead of starting "
                              "anew (for chained allocations)")
    top = argparse.ArgumentParser(
        prog="vrm", parents=[shared, running], formatter_class=argparse.RawDescriptionHelpFormatter,
        description="A virtual resource manager: runs your queue of MPI jobs on the cores you "
                    "have, by your order, backfilling and placement.",
        epilog="exit status: 0 all jobs succeeded, 1 some did not or a line of the queue was not "
               "understood, 2 could not run")
    top.add_argument("--version", action="version", version=f"vrm {__version__}")
    top.add_argument("-i", "-info", "--info", choices=("queue", "state"),
                     help="show the queue or the cores of a running manager and exit")
    top.add_argument("--json", action="store_true", help="with -i: as JSON")
    top.add_argument("--watch", metavar="SECONDS", nargs="?", type=seconds, const=2.0,
                     help="with -i: again and again (default: every 2 s), until Ctrl-C")
    commands = top.add_subparsers(dest="command", metavar="COMMAND")
    command(commands, "run", run, "run the queue (the same as `vrm -c FILE`)", [shared, running])
    add_simulate(commands)
    for add in (add_compare, add_job, add_top, add_script, add_npb, add_generate, add_calibrate,
                add_heatmap, add_experiment, add_report, add_validate):
        add(commands, shared)
    command(commands, "doctor", doctor,
            "tell what is found on this machine, what is wrong, and the mend", [shared])
    return top


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run the command line; the exit status."""
    from vrm.problems import ConfigError
    from vrm.live.rundir import RunError

    try:
        arguments = parser().parse_args(argv)
        status = info(arguments) if arguments.info else getattr(arguments, "act", run)(arguments)
        sys.stdout.flush()
        return status
    except ConfigError as error:
        print(error, file=sys.stderr)
    except (RunError, CannotRun) as error:
        print(f"vrm: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _give_up_output()
        return 128 + signal.SIGPIPE
    except OSError as error:
        _give_up_output()
        where = f"{error.filename}: " if error.filename is not None else ""
        print(f"vrm: {where}{error.strerror or error}", file=sys.stderr)
    return COULD_NOT_RUN


def _give_up_output() -> None:
    """Let what standard output does not take go to nobody: Python would try again at its end."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def run(arguments: argparse.Namespace) -> int:
    """Run the queue to its end."""
    from vrm.live.manager import Manager
    from vrm.live.setup import describe, prepare, run_directory
    from vrm.report.metrics import closing_line
    from vrm.scheduling import PolicyError

    if arguments.json or arguments.watch is not None:
        raise CannotRun("--json and --watch go with `-i queue` or `-i state`")
    if not (arguments.command or hasattr(arguments, "config") or default_config()):
        raise CannotRun("which configuration? Name it with -c FILE, or call it vrm.yaml; `vrm run` "
                        "takes every key's default, `vrm --help` tells the commands")
    settings = settings_of(arguments)
    directory = run_directory(settings)
    if arguments.go_on and not arguments.fresh and finished(directory.journal):
        say(f"the run in {near(settings.directory)} is finished: nothing to do (--fresh starts "
            "anew)")
        return OK
    site = prepare(settings)
    manager = Manager(settings, site, directory, narrate, once=arguments.once,
                      fresh=arguments.fresh)
    say(f"{describe(settings, site.cluster.nodes, site.emulated)}; "
        f"{site.launcher.version_text}")
    try:
        succeeded = manager.run()
    except PolicyError as error:  # the user's own policy, which failed on the way
        raise CannotRun(f"{error}; running jobs go on, and the same command takes them up again "
                        "when that is mended") from error
    ended = [f"{count} {status}" for status, count in manager.counts.items() if count]
    ended = ended or ["no job ended"]
    if manager.bad_lines:
        ended.append(f"{manager.bad_lines} line(s) of the queue file not understood")
    say(f"{', '.join(ended)}; everything is in {near(settings.directory)}")
    say(closing_line(settings.scheduling.algorithm, settings.scheduling.backfilling,
                     manager.records.rows))
    return OK if succeeded else SOME_FAILED


def finished(journal: Path) -> bool:
    """Whether the run that wrote this journal came to its end."""
    from vrm.live import journal as journals

    try:
        return journals.replay(journals.read(journal)).finished
    except ValueError:
        return False  # the manager tells what is wrong with it


def narrate(kind: str, text: str) -> None:
    """Print what happens, a line each; warnings and failures stand out."""
    mark = {"warning": "!! ", "failure": "!! "}.get(kind, "   ")
    say(f"{time.strftime('%H:%M:%S')} {mark}{text}")


def near(path: Path) -> str:
    """The path as one would type it here: relative when it lies below this directory."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def say(text: str) -> None:
    """Print a line; a terminal or reader that is gone does not end the run."""
    try:
        print(text, flush=True)
    except OSError:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")


def info(arguments: argparse.Namespace) -> int:
    """Show the queue or the state, once or again and again until the manager has ended."""
    from vrm.report import tables

    path = settings_of(arguments).state
    ended = threading.Event()

    def render() -> str:
        try:
            snapshot = json.loads(path.read_text(encoding="utf-8"))
            if snapshot["manager"]["phase"] == "ended":
                ended.set()
            if arguments.json:
                shown = tables.queue_json if arguments.info == "queue" else tables.state_json
                return json.dumps(shown(snapshot), indent=None if arguments.watch else 2)
            table = tables.queue_table if arguments.info == "queue" else tables.state_table
            width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
            return table(snapshot, time.time(), width=width)
        except FileNotFoundError:
            raise ValueError(f"no manager has written {path} yet; is this the config that it runs "
                             "with?") from None
        except OSError as error:
            raise ValueError(f"cannot read {path}: {error.strerror}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is no state that a manager has written; correct State or "
                             "Directory in the configuration") from error

    if arguments.watch is not None:
        tables.watch(render, arguments.watch, stop=ended)
        return OK
    try:
        text = render()
    except ValueError as error:
        raise CannotRun(str(error)) from error
    print(text)
    return OK


def doctor(arguments: argparse.Namespace) -> int:
    """Tell what is found and what is wrong."""
    from vrm.live.doctor import examine
    findings = examine(getattr(arguments, "config", default_config()))
    for finding in findings:
        print(finding)
    return COULD_NOT_RUN if any(finding.wrong for finding in findings) else OK


if __name__ == "__main__":
    sys.exit(main())
