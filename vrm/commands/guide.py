"""The command `vrm help` and the overview of all commands."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from vrm.commands.parsing import Parser, command, meant
from vrm.commands.shared import extension_option

GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Begin", ("init", "check", "doctor", "npb")),
    ("Run", ("run", "shell", "script", "submit", "cancel", "hold", "release", "requeue", "wait", "lend", "reserve",
             "slurm", "stop")),
    ("Look", ("queue", "status", "forecast", "explain", "efficiency", "log", "top")),
    ("Measure", ("calibrate", "heatmap", "energy", "malleable", "generate", "learned")),
    ("Ahead", ("plan", "pool", "advise", "whatif")),
    ("Study", ("simulate", "compare", "experiment", "report", "validate")),
    ("Help", ("help", "docs", "completion", "plugins")))

EVERYDAY: tuple[tuple[str, str], ...] = (
    ("Begin", "init check"), ("Run", "run submit cancel requeue script stop"),
    ("Look", "queue status log top forecast"), ("Decide", "advise simulate report"), ("Help", "help"))
"""The commands that `vrm --help` shows, in groups."""

FORMER = {"doctor": "check --deep", "explain": "forecast ID --why", "whatif": "advise --sizes"}
"""Commands that are the same as another command with an option; both forms work."""

SHORT = """vrm runs your own queue of MPI jobs on the cores you have, in your order.

  vrm init                 write vrm.yaml and a queue for this directory
  vrm check                check them
  vrm run                  run the queue
  vrm queue                show its jobs
  vrm help                 all commands

There is no vrm.yaml here. With -c FILE a configuration elsewhere is used."""


def short() -> str:
    """Return the text that `vrm` prints where there is nothing to run."""
    return SHORT


def overview(parser: Parser, whole: bool = False) -> str:
    """Return the everyday commands in groups, or all commands and the options of a run (`whole`)."""
    known = parser.commands()
    parts = [parser.format_usage().strip(), SHORT.partition("\n")[0]]
    helps = {action.dest: action.help for every in parser._actions
             if isinstance(every, argparse._SubParsersAction)
             for action in every._choices_actions}
    ours = {name for _, names in GROUPS for name in names}
    added = ("From installed packages", tuple(name for name in known if name not in ours))
    groups = GROUPS if whole else tuple((title, tuple(names.split())) for title, names in EVERYDAY)
    for title, names in (*groups, added):
        rows = [f"  {name:<12}{helps[name]}" for name in names if name in known]
        if rows:
            parts.append("\n".join([f"{title}:", *rows]))
    formatter = parser._get_formatter()
    formatter.start_section("options")
    formatter.add_arguments(action for action in parser._actions[:-1]
                            if whole or {"--help", "--config", "--version", "--on"} & {*action.option_strings})
    formatter.end_section()
    parts.append(formatter.format_help().strip())
    former = [f"`vrm {name}` is the same as `vrm {other}`." for name, other in FORMER.items() if name in known]
    parts.append("\n".join([*(former if whole else ["`vrm help --all` shows all commands and options."]),
                            "`vrm help COMMAND` explains a command and has an example.",
                            "`vrm help config` explains the keys of the configuration.",
                            "`vrm docs` shows the documentation, `man vrm` the manual page.",
                            "`vrm` alone runs ./vrm.yaml."]))
    return "\n\n".join(parts) + "\n"


def add_parsers(commands: Any, shared: argparse.ArgumentParser) -> None:
    """Add the `help` command to the program's."""
    parser = command(
        commands, "help", show, "explain vrm or one of its commands", [],
        "vrm help submit\nvrm help --all\nvrm help simulate --all\nvrm help config\nvrm help --man > vrm.1",
        "pip installs the manual page, except with -e: with vrm on PATH `man vrm` shows it. --man prints it, or that "
        "of one command; `man ./vrm.1` shows such a file.")
    parser.add_argument("words", metavar="COMMAND", nargs="*", help="a command, or `config`: every key of the "
                        "configuration with its default (default: all of vrm)")
    parser.add_argument("--all", action="store_true", help="all commands, or all options of the command")
    parser.add_argument("--man", action="store_true", help="print a manual page, in roff")


def show(arguments: argparse.Namespace) -> int:
    """Print the help of the named command; return 0."""
    from vrm.cli import parser as whole

    if arguments.words == ["config"]:
        from vrm.scheduling.extension_keys import described
        print(reference() + described(), end="")
        return 0
    found = whole()
    for word in arguments.words:
        below = found.commands()
        if word not in below:
            arguments.parser.error(f"there is no command `{' '.join(arguments.words)}`"
                                   + meant(word, list(below)))
        found = below[word]
    print(extension_option("man")(found) if arguments.man else found.format_help(arguments.all), end="")
    return 0


def reference() -> str:
    """Return the reference configuration: every key, its default and its meaning."""
    inside = Path(__file__).parent.parent / "config" / "reference.yaml"  # in a wheel, setup.py puts it there
    return (inside if inside.exists() else inside.parents[2] / "config" / "reference.yaml").read_text(encoding="utf-8")
