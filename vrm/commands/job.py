"""Requests to a running manager: `vrm submit`, `cancel`, `hold`, `release`, `requeue` and `stop`."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from typing import TYPE_CHECKING, Any
from collections.abc import Callable

from vrm.commands.parsing import command
from vrm.commands.shared import CannotRun, job_ids, extension_option, programs, run_of, seconds, settings_of

if TYPE_CHECKING:
    from vrm.model.forms.fields import Field, Option

REPLY_SECONDS = 10.0

EACH = {"cancel": ("end waiting or running jobs", "vrm cancel 3 7-9"),
        "hold": ("keep waiting jobs from starting until they are released", "vrm hold 3 7-9"),
        "release": ("let held jobs start", "vrm release all"),
        "requeue": ("run jobs again; running ones are ended first", "vrm requeue 3 7-9")}


def add_parsers(commands: Any, shared: argparse.ArgumentParser) -> None:
    """Add the commands."""
    parser = command(
        commands, "submit", submit, "submit a job to a running manager", [shared],
        "vrm submit cg.A.x 4 90m\n"
        "vrm submit solver 8 3600 --after 0 -- --input mesh.dat --steps 100\n"
        "vrm submit cg.A.x 4 90m --wait\n"
        "vrm submit cg.A.x 4 90m --test-only\n"
        "vrm submit solver 16 10m --mem-per-task 2G --urgent --by 5m",
        "Prints the id of the job. What follows `--` goes to the program as it is typed.",
        usage="%(prog)s APP RANKS [TIME] [options] [-- ARGUMENTS]", rest="arguments")
    add = parser.add_argument
    add("app", metavar="APP", help="the program: a file in Applications.Path, such as cg.A.x"
        ).completer = programs  # type: ignore[attr-defined]
    add("procs", metavar="RANKS", help="MPI ranks")
    add("seconds", metavar="TIME", nargs="?",
        help="your estimate of the longest time that it runs, in seconds or as 90m, 2h, 1:30:00 "
             "(default: 1h; a better one lets the job start sooner)")
    add("--exclusive", action="store_true", help="share no node with other jobs")
    add("--test-only", action="store_true",
        help="submit nothing; say when the job would start, with or without a running manager")
    add("--json", action="store_true", help="with --test-only: as JSON")
    add("--urgent", action="store_true",
        help="start it now: other jobs lend cores, are paused or wait again. What that costs them is printed first")
    add("--by", metavar="TIME", type=seconds,
        help="with --urgent: start it within this time (30m); where it does so by itself, no job makes room")
    add("--yes", action="store_true", help="with --urgent: make room without asking")
    add("--wait", action="store_true", help="wait until it has ended; the exit status is the job's")
    parser.usual = ("--exclusive", "--test-only", "--wait", "--urgent", "--cores", "--name", "--after", "--array",
                    "--each", "--dir", "--retries", "--gpus-per-task", "--mem-per-task")
    parser.later = lambda: _add_fields(add)
    for name, (text, example) in EACH.items():
        parser = command(commands, name, each, text, [shared], example)
        parser.add_argument("ids", nargs="+", metavar="ID", help="a job's id or name, a range 3-7, all, or "
                            "failed (those that did not complete, but not those that you cancelled)"
                            ).completer = job_ids  # type: ignore[attr-defined]
    parser = command(commands, "stop", stop, "start no more jobs, and end the manager", [shared],
                     "vrm stop\nvrm stop --now",
                     "Jobs that run may finish; those that wait stay in the queue for the next `vrm run`.")
    parser.add_argument("--now", action="store_true", help="end the running jobs, too")


def _add_fields(add: Callable[..., Any]) -> None:
    """Add the fields of a job as options."""
    for field, option in _options():
        how: dict[str, Any] = {"metavar": option.value} if option.value else {
            "action": "store_const", "const": "1"}
        if field.kind.repeated:
            how["action"] = "append"
        name = f"--{field.word.replace('_', '-')}"
        add(name, help=option.help, **how)
        if "_" in field.word:
            add(f"--{field.word}", **{**how, "help": argparse.SUPPRESS, "dest": name[2:].replace("-", "_")})


def _options() -> list[tuple[Field, Option]]:
    """Return the fields of a job that are options of `vrm submit`."""
    from vrm.model.forms.fields import ADDED, TABLE
    from vrm.workload.extension_fields import load_all
    load_all()
    return [(field, field.option) for field in (*TABLE, *ADDED.values()) if field.option is not None]


def submit(arguments: argparse.Namespace) -> int:
    """Send a job to a running manager; its values are checked like a line of a queue file."""
    from vrm.workload.grammar import parse_line

    if arguments.arguments and arguments.args is not None:
        raise CannotRun("arguments are given twice: by --args and after `--`; choose one")
    if arguments.arguments:
        arguments.args = shlex.join(arguments.arguments)
    line = _line(arguments)
    parse_line(line)
    if arguments.test_only:
        if arguments.wait:
            raise CannotRun("--test-only submits nothing to wait for: leave out --wait")
        return int(extension_option("test-only")(arguments, line))
    if arguments.json:
        raise CannotRun("--json needs --test-only")
    if not arguments.urgent and (arguments.yes or arguments.by is not None):
        raise CannotRun(f"--{'yes' if arguments.yes else 'by'} needs --urgent")
    wait = extension_option("wait") if arguments.wait else None
    granted = extension_option("urgent")(arguments, line) if arguments.urgent else None
    status, name = asked(arguments, {"do": "submit", "line": line})
    if granted is not None and not status:
        status = granted(name)
    return status if status or wait is None else int(wait(run_of(arguments), name))


def _app(arguments: argparse.Namespace) -> str:
    """Return the program as a queue line names it. Raises CannotRun for a path if only names are allowed."""
    app: str = os.path.abspath(arguments.app) if "/" in arguments.app else arguments.app
    known = settings_of(arguments).applications if "/" in arguments.app or arguments.file else None
    if (known is not None and not arguments.file
            and os.path.realpath(os.path.dirname(app)) == os.path.realpath(known.path)):
        return os.path.basename(app)  # `./solver` in Applications.Path is `solver`
    if known is not None and not known.any:
        raise CannotRun(f"{arguments.file or arguments.app} is a path, and jobs may name programs of "
                        f"Applications.Path ({known.path}) only; write Applications: {{Any: true}} to allow any")
    return app


def _line(arguments: argparse.Namespace) -> str:
    """Return the options as a line of a queue file."""
    from vrm.model.forms.field_types import EACH, PATH

    columns = [_app(arguments), arguments.procs]
    if arguments.seconds is not None or arguments.exclusive:
        columns += [arguments.seconds or "1h", str(int(arguments.exclusive))]
    words = list(map(shlex.quote, columns))
    for field, _ in _options():
        given = getattr(arguments, field.word)
        for text in given if isinstance(given, list) else [given]:
            if text is not None:
                if field.kind is PATH:
                    text = os.path.abspath(text)
                if field.kind is EACH:
                    text = "@" * text.startswith("@") + os.path.abspath(text.removeprefix("@"))
                words.append(f"{field.word}={shlex.quote(text)}")
    return " ".join(words)


def each(arguments: argparse.Namespace) -> int:
    """Carry out `cancel`, `hold`, `release` or `requeue` for the named jobs."""
    from vrm.commands.naming import ids_for

    arguments.ids = ids_for(arguments, arguments.ids)
    if arguments.command == "requeue":
        return requeue(arguments)
    return ask(arguments, {"do": arguments.command, "ids": arguments.ids})


def requeue(arguments: argparse.Namespace) -> int:
    """Make jobs wait again: through the running manager, or through the next one if none runs."""
    from vrm.model.quantities import fold

    wanted: dict[str, Any] = {"do": "requeue", "ids": arguments.ids}
    run = run_of(arguments)
    if run.manager_runs():
        return ask(arguments, wanted)
    from vrm.run import command_files
    from vrm.run.journal import files as journals
    from vrm.run.journal.history import replay
    from vrm.run.requeue import ended_unsuccessfully
    from vrm.run.entry import LINE
    try:
        past = replay(journals.records(run.journal), run.journal)
    except ValueError as error:
        damaged = "" if getattr(error, "missing", False) else "the journal is damaged: "
        raise CannotRun(f"{damaged}{error}") from error
    entries = past.state.book.entries
    ended = {job_id for job_id in past.ended if entries[job_id].cause != LINE}
    named, swept = command_files.chosen(wanted, ended,
                                        [job_id for job_id in ended if ended_unsuccessfully(entries[job_id])])
    wrong = [f"job {job_id} " + ("was refused since its line is wrong; correct it in the queue file, or submit the job "
                                 "again" if job_id in past.ended else
                                 "has not ended" if job_id in entries else "is not there")
             for job_id in named if job_id not in ended]
    ids = sorted(ended.intersection({*named, *swept}))
    if wrong or not ids:
        raise CannotRun("; ".join(wrong) or "none of these jobs can be requeued")
    command_files.send(run, {**wanted, "ids": [fold(ids)], "unasked": True})
    print(f"no manager runs; job{'s' * (len(ids) > 1)} {fold(ids)} will wait again when `vrm run` "
          "continues this run")
    return 0


def stop(arguments: argparse.Namespace) -> int:
    """Ask the manager to stop."""
    return ask(arguments, {"do": "stop", "now": arguments.now})


def ask(arguments: argparse.Namespace, wanted: dict[str, Any]) -> int:
    """Send a command to the running manager and print its answer; return 1 if it was refused, else 0."""
    return asked(arguments, wanted)[0]


def asked(arguments: argparse.Namespace, wanted: dict[str, Any]) -> tuple[int, str]:
    """Do what `ask` does, and return its status with the command's name in the journal."""
    from vrm.run import command_files

    directory, stops = run_of(arguments), wanted["do"] == "stop"
    if not directory.manager_runs():
        raise CannotRun(f"no manager runs on {directory.directory}; start one with `vrm run`")
    name = command_files.send(directory, wanted)
    reply = command_files.answered(directory, name, REPLY_SECONDS, 0.0 if stops else command_files.NEXT)
    if reply is None and stops and not directory.manager_runs():
        reply = {"ok": True, "text": "the manager has ended"}
    if reply is None:
        from vrm.model.quantities import fold
        from vrm.run.journal.files import jobs_of_command
        ids = jobs_of_command(directory.journal, name)
        if not ids:
            why = (f"has not answered within {REPLY_SECONDS:g} s" if directory.manager_runs() else
                   "has ended before it answered")
            raise CannotRun(f"the manager {why}; the command was withdrawn"
                            + ("" if wanted["do"] == "submit" else "; `vrm queue` shows what was done before"))
        reply = {"ok": True, "text": f"job{'s' * (len(ids) > 1)} {fold(ids)}: accepted; then the manager ended"}
    print(reply["text"], file=sys.stdout if reply["ok"] else sys.stderr, flush=True)
    return int(not reply["ok"]), name
