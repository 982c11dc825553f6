"""`vrm --on HOST COMMAND`: runs the command line on another machine, reached by ssh."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any
from collections.abc import Iterator, Sequence

from vrm.commands.parsing import Parser, command
from vrm.commands.shared import ON, CannotRun, tell

TEXT = ("vrm --on HOST COMMAND runs a command of vrm on another machine, such as the login node of a cluster. HOST is "
        "a name that `ssh HOST` knows, also user@HOST; HOST:DIRECTORY runs it in a directory there (else in the home "
        "directory). Without COMMAND it reads commands, a line each, and runs all of them on one connection.")


def on(words: list[str]) -> int:
    """Run the words as a command on another machine; return its exit status."""
    name = words[0].partition("=")[2] if "=" in words[0] else (words[1:2] or [""])[0]
    rest = words[1:] if "=" in words[0] else words[2:]
    if name in ("", "-h", "--help"):
        print(own(f"vrm {ON} HOST").format_help(), end="")
        return 0 if name else 2
    from vrm.ext.remote.host import Host, target

    host, directory = target(name)
    parser = own(f"vrm {ON} {name}")
    arguments = parser.parse_all(rest) if rest[:1] and rest[0] in parser.commands() else None
    there = Host(host, directory)
    try:
        if rest:
            return one(there, rest, arguments)
        return several(there, parser)
    finally:
        there.close()


def own(prog: str) -> Parser:
    """Return the parser of the commands that run here; all others run on the other machine."""
    parser = Parser(prog=prog, description=TEXT, usage=f"{prog} [COMMAND ...]",
                    epilog=f"example:\n  {prog} setup\n  {prog} queue\n  {prog} fetch logs")
    commands = parser.add_subparsers(metavar="COMMAND", parser_class=Parser, prog=prog)
    setup = command(commands, "setup", _setup, "install vrm there, or update it, in a directory of its own", [],
                    f"{prog} setup\n{prog} setup --wheelhouse wheelhouse",
                    "Installs the vrm that you type this with. Runs continue with the version that started them.")
    setup.add_argument("--wheelhouse", metavar="DIR", default="",
                       help="a directory of wheels to install from, where the other machine has no internet")
    setup.add_argument("--python", metavar="PATH", default="", help="the Python to use there, 3.10 or newer")
    fetch = command(commands, "fetch", _fetch, "copy the results of a run: only what is new or has changed", [],
                    f"{prog} fetch logs\n{prog} fetch logs --to results")
    fetch.add_argument("run", metavar="RUN", help="the directory of the run there (Log in its configuration)")
    fetch.add_argument("--to", metavar="DIR", help="where to put it (default: a directory of its name, here)")
    return parser


def one(host: Any, words: Sequence[str], arguments: Any, keys: bool = True) -> int:
    """Carry out one command; return its exit status."""
    if arguments is None:
        return int(host.vrm(words, keys))
    arguments.host = host
    return int(arguments.act(arguments))


def several(host: Any, parser: Parser) -> int:
    """Run commands from standard input, one per line, on one connection; return the status of the last one that
    failed."""
    from vrm.system.errors import UserError

    status = 0
    typed = sys.stdin.isatty()
    for line in lines(f"vrm on {host.name}> " if typed else ""):
        try:
            words = shlex.split(line, comments=True)
            words = words[1:] if words[:1] == ["vrm"] else words
            if words in (["exit"], ["quit"]):
                return status
            if words:
                arguments = parser.parse_all(words) if words[0] in parser.commands() else None
                status = one(host, words, arguments, keys=typed) or status
        except (ValueError, UserError) as error:
            tell(f"vrm: {error}")
            status = 2
        except SystemExit as error:  # a wrong command line
            status = int(error.code or 0) or status
    return status


def lines(prompt: str) -> Iterator[str]:
    """Yield the lines that are typed or come from a file. Ctrl-C discards a line."""
    if not prompt:
        yield from sys.stdin
        return
    while True:
        try:
            yield input(prompt)
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            print()


def _setup(arguments: argparse.Namespace) -> int:
    from vrm.ext.remote.installing import setup

    setup(arguments.host, arguments.wheelhouse, arguments.python, tell)
    return 0


def _fetch(arguments: argparse.Namespace) -> int:
    from vrm.ext.remote.fetching import fetch

    host = arguments.host
    name = arguments.run.rstrip("/").rpartition("/")[2]
    if arguments.to is None and name in ("", ".", "..", "~"):
        raise CannotRun(f"{arguments.run} has no name for a directory here; give --to DIR")
    target = Path(arguments.to or name)
    status, said, _ = host.said(f"cd -- {host.there()} && cd -- {host.there(arguments.run)} && pwd && date +%s")
    lines = said.splitlines()[-2:]
    if status or len(lines) < 2:
        raise CannotRun(f"there is no directory {arguments.run} on {host.name}; name that of a run (Log in its "
                        "configuration)")
    show = sys.stderr.isatty()

    def progress(files: int, of: int, size: int, total: int) -> None:
        if show:
            print(f"\r{files} of {of} files, {size / 1e6:.1f} of {total / 1e6:.1f} MB\x1b[K", end="", file=sys.stderr,
                  flush=True)

    done = fetch(host.files(), lines[0], target, float(lines[1]), progress)
    if show:
        print("\r\x1b[K", end="", file=sys.stderr)
    for text in done.refused:
        tell(f"not fetched: {text}")
    tell(f"{done.files} file{'s' * (done.files != 1)} fetched to {target} ({done.bytes / 1e6:.1f} MB), "
         f"{done.same} unchanged")
    return 1 if done.refused else 0
