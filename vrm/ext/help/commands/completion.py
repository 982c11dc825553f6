"""`vrm completion`: makes a shell complete commands, options, job ids and files.

The library argcomplete does the work: the shell starts vrm, which answers with the words that are possible there.
"""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from vrm.commands.parsing import Parser, command
from vrm.commands.shared import CannotRun

PLACES = {
    "bash": "~/.local/share/bash-completion/completions/vrm",
    "zsh": "a file _vrm in a directory of $fpath, before compinit",
    "fish": "~/.config/fish/completions/vrm.fish"}


def add_parsers(commands: Any, shared: argparse.ArgumentParser) -> None:
    """Add the command to the parser of vrm."""
    parser = command(
        commands, "completion", write, "complete commands, job ids and files in your shell", [],
        "eval \"$(vrm completion bash)\"\n"
        "vrm completion fish > ~/.config/fish/completions/vrm.fish",
        "Prints the code that the shell needs. The first example is for this shell only; to keep "
        "it, write the output to\n\n"
        + "\n".join(f"  {shell:<6}{place}" for shell, place in PLACES.items()))
    parser.add_argument("shell", metavar="SHELL", choices=tuple(PLACES), help=", ".join(PLACES))


def library() -> Any:
    """Return argcomplete. Raises CannotRun if it is missing."""
    try:
        import argcomplete
    except ImportError as error:
        raise CannotRun("the library argcomplete is missing; install it with `pip install "
                        "argcomplete`") from error
    return argcomplete


def write(arguments: argparse.Namespace) -> int:
    """Print the code for a shell; exit status 0."""
    print(library().shellcode(["vrm"], shell=arguments.shell).strip())
    print(f"# To keep this, write it to {PLACES[arguments.shell]}")
    return 0


def complete(parser: Parser) -> NoReturn:
    """Answer the shell and exit."""
    library().autocomplete(parser, always_complete_options=False)
    raise SystemExit(0)
