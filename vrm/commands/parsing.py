"""The argument parser of all commands: after a mistake it prints the command's own usage and a suggestion, each help
page has an example, and words after `--` are kept as typed.
"""

from __future__ import annotations

import argparse
import difflib
import textwrap
from typing import Any, NoReturn
from collections.abc import Callable, Iterable, Iterator, Sequence

Action = Callable[[argparse.Namespace], int]


_SLURM = ("run it with vrm's commands of Slurm and PBS first on PATH: `vrm run -- bash script.sh`, `vrm shell`; "
          "or type `vrm slurm {}` (docs/how-to/slurm.md)")

HINTS: dict[Any, str] = {
    **{name: _SLURM.format(name) for name in ("sbatch", "squeue", "scancel", "sacct", "sinfo", "srun", "salloc", "qsub",
                                              "qstat", "qdel")},
    "start": "`vrm run` starts the manager, and with it the jobs of the queue", "list": "`vrm queue` lists the jobs",
    "ls": "`vrm queue` lists the jobs", "ps": "`vrm queue` lists the jobs", "jobs": "`vrm queue` lists the jobs",
    "kill": "`vrm cancel ID` ends a job, `vrm stop --now` all of them", "delete": "`vrm cancel ID` ends a job",
    "version": "type `vrm --version`",
    **{("vrm submit", option): "the ranks follow the program: `vrm submit PROGRAM 4 TIME`"
       for option in ("-n", "-np", "--ntasks", "--np")}}
"""What to type instead of words known from other programs; keys are words, or pairs of a command and its option."""


class Help(argparse.HelpFormatter):
    """Fills paragraphs to the width of the terminal; indented lines stay unchanged."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n\n".join(
            part if "\n  " in part or part.startswith("  ")
            else textwrap.fill(" ".join(part.split()), width, initial_indent=indent,
                               subsequent_indent=indent)
            for part in text.split("\n\n"))


class Parser(argparse.ArgumentParser):
    """A parser that stores the words after `--` under the name `rest`, if given. Its error messages include the usage
    of the present command and the nearest known word."""

    def __init__(self, *arguments: Any, rest: str = "", **options: Any) -> None:
        self.later: Callable[[], None] | None = None
        """Adds the arguments when they are first needed, if finding them takes time."""
        self.usual: tuple[str, ...] = ()
        """The options, as typed, that the help page shows if there are many; empty: all."""
        super().__init__(*arguments, **{"formatter_class": Help, **options})
        self.rest = rest
        self.set_defaults(parser=self)

    @property
    def _actions(self) -> list[argparse.Action]:
        later, self.later = self.later, None
        if later is not None:
            later()
        return self._all_actions

    @_actions.setter
    def _actions(self, actions: list[argparse.Action]) -> None:
        self._all_actions = actions

    def format_usage(self) -> str:
        """Return argparse's usage, after all arguments were added."""
        self.options()
        return super().format_usage()

    def format_help(self, whole: bool = False) -> str:
        """Return argparse's help of the usual options, or of all options (`whole`)."""
        shown = {*(self.options() if whole or not self.usual else self.usual), "--help", "--config"}
        hidden = {action: action.help for action in self._actions if action.option_strings
                  and action.help != argparse.SUPPRESS and not shown & {*action.option_strings}}
        end = self.epilog
        for action in hidden:
            action.help = argparse.SUPPRESS
        if hidden:
            self.epilog = f"{len(hidden)} more options: vrm help {self.prog.partition(' ')[2]} --all\n\n{end or ''}"
        try:
            return super().format_help()
        finally:
            self.epilog = end
            for action, text in hidden.items():
                action.help = text

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse like argparse, but store the words after the first `--` as a tuple under the name `rest`, and accept an
        optional word also behind options."""
        if not self.rest:
            return self._with_late_words(*super().parse_known_args(args, namespace))
        words = list(args)
        cut = words.index("--") if "--" in words else len(words)
        found, unknown = super().parse_known_args(words[:cut], namespace)
        setattr(found, self.rest, tuple(words[cut + 1:]))
        return found, unknown

    def _with_late_words(self, found: argparse.Namespace, unknown: list[str]) -> tuple[argparse.Namespace, list[str]]:
        """Give words that follow options to optional arguments without a value. Before Python 3.12.7, argparse takes
        these as left out when it reads the words before the options."""
        for action in self._get_positional_actions():
            if unknown and not unknown[0].startswith("-") and action.nargs == "?" and (
                    getattr(found, action.dest, None) is action.default):
                setattr(found, action.dest, self._get_values(action, [unknown.pop(0)]))
        return found, unknown

    def parse_all(self, words: Sequence[str] | None = None) -> argparse.Namespace:
        """Return the arguments; unknown words are refused by the parser of the command that they belong to."""
        known, unknown = self.parse_known_args(words)
        if unknown:
            known.parser.refuse(unknown)
        found: argparse.Namespace = known
        return found

    def refuse(self, unknown: Sequence[str]) -> NoReturn:
        """Exit with an error message about words that no argument accepts."""
        first = unknown[0]
        if first.startswith("-") and first != "-":
            if (self.prog, first) in HINTS:
                self.error(f"unknown option {first}; {HINTS[self.prog, first]}")
            self.error(f"unknown option {first}{meant(first.partition('=')[0], self.options())}")
        self.error(f"`{first}` is one word too many"
                   + (f"; arguments of the program go after `--`: {self.prog} ... -- {first}"
                      if self.rest else ""))

    def error(self, message: str) -> NoReturn:
        """Print the command's own usage and the error, and exit with status 2."""
        usage = self.format_usage()
        self.exit(2, f"{usage}{self.prog}: {message} (`{self.prog} --help` explains)\n")

    def options(self) -> list[str]:
        """Return the options as they are typed."""
        return [word for action in self._actions for word in action.option_strings]

    def commands(self) -> dict[str, Parser]:
        """Return the direct subcommands by name."""
        return {name: parser for action in self._actions
                if isinstance(action, argparse._SubParsersAction)
                for name, parser in action.choices.items()}

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            if self.prog == "vrm" and value in HINTS:
                self.error(f"there is no command `{value}`; {HINTS[value]}")
            if self.prog == "vrm" and value in _of_vrm():
                from vrm.system.plugins import MISSING
                self.error(f"`{value}` is a command {MISSING}")
            close = meant(value, action.choices)
            self.error(f"there is no command `{value}`"
                       + (close or f"; the commands are {', '.join(action.choices)}"))
        super()._check_value(action, value)


def _of_vrm() -> set[str]:
    """Return the commands of a complete vrm with all its extensions."""
    from vrm.commands.guide import GROUPS
    return {name for _, names in GROUPS for name in names}


def meant(word: str, known: Iterable[str]) -> str:
    """Return `; did you mean X?` for the nearest known word, or ""."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else ""


def group(commands: Any, name: str, text: str, example: str) -> Any:
    """Add a command that has subcommands; return the object to which they are added."""
    parser = commands.add_parser(name, help=text, description=sentence(text),
                                 epilog=examples(example))
    actions = parser.add_subparsers(dest=f"{name}_command", metavar="COMMAND")
    actions.required = True
    return actions


def command(commands: Any, name: str, act: Action, text: str,
            parents: list[argparse.ArgumentParser], example: str, more: str = "",
            **options: Any) -> Parser:
    """Add a command with its action. `text` describes it in one line, `more` has further information, `example` has
    command lines, one per line."""
    parser: Parser = commands.add_parser(
        name, help=text, description="\n\n".join(filter(None, (sentence(text), more))),
        parents=parents, epilog=examples(example), **options)
    parser.set_defaults(act=act)
    return parser


def sentence(text: str) -> str:
    """Return the text with a capital letter and a full stop."""
    return f"{text[0].upper()}{text[1:]}." if text else ""


def examples(lines: str) -> str:
    """Return the end of a help page: the examples."""
    found = lines.splitlines()
    return "\n".join([f"example{'s' * (len(found) > 1)}:", *(f"  {line}" for line in found)])


def every(parser: Parser) -> Iterator[tuple[Parser, bool]]:
    """Yield all commands below a parser, each with whether it has an action of its own (no subcommands)."""
    for inner in parser.commands().values():
        below = inner.commands()
        yield inner, not below
        yield from every(inner)
