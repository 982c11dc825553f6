"""Reads the options of Slurm's commands, and answers `--help` and `--version`."""

from __future__ import annotations

from typing import Any, TypeVar
from collections.abc import Callable, Sequence

from vrm.ext.slurm.calls.answers import CallRefused, HelpAnswer
from vrm.ext.steps.options import IGNORED, MAYBE, NOT_HERE, VALUE, CommandOption, OptionReader

VERSION = "slurm 22.05.8"
"""Output of `--version`. Tools choose options by this version, and vrm's options are those of this version."""


_COMMON = ". help n, . usage n help, V version n"
"""Options that all commands have; some commands use their own letters for them."""

_Found = TypeVar("_Found")


class Options(OptionReader):
    """The options of a command. `usage` is the text of `--help` after the command's name. Options with the keys
    `help` and `version` raise HelpAnswer when they are read; errors raise CallRefused."""

    says = {"name": "unrecognized option --{name}; `{command} --help` lists those that vrm knows",
            "letter": "unrecognized option -{name}; `{command} --help` lists those that vrm knows",
            "near": "unrecognized option --{name}: {near}?", "needs": "{name} needs a value",
            "takes": "{name} takes no value", NOT_HERE: "{name} cannot be followed by vrm; leave it out"}

    def __init__(self, command: str, text: str, usage: str = "[options]") -> None:
        super().__init__(command, f"{_COMMON}, {text}")
        self.usage = f"{command} {usage}"

    def error(self, why: str) -> CallRefused:
        """Return the error in this command's format."""
        return CallRefused("\n".join(f"{self.command}: error: {line}" for line in why.splitlines()))

    def checked(self, why: str, how: Callable[..., _Found], *arguments: Any) -> _Found:
        """Return `how(*arguments)`. If it raises ValueError, raise CallRefused with the text `why`, in which `{}` is
        replaced by the text of the error."""
        try:
            return how(*arguments)
        except ValueError as error:
            raise self.error(why.replace("{}", str(error))) from error

    def without(self, words: Sequence[str], *keys: str) -> list[str]:
        """Return the words without the options with these keys, up to the first word that is not an option. Other
        letters in the same word are kept."""
        kept: list[str] = []
        left = list(reversed(words))
        while left and len(left[-1]) > 1 and left[-1].startswith("-") and left[-1] != "--":
            before, values = len(left), {}  # type: int, dict[str, str]
            self._word(left.pop(), left, values)
            if values.keys() & set(keys):
                kept += [f"--{key}" + f"={value}" * bool(value) for key, value in values.items() if key not in keys]
            else:
                kept += words[len(words) - before:len(words) - len(left)]
        return kept + left[::-1]

    def _take(self, option: CommandOption, value: str, values: dict[str, str]) -> None:
        if option.key in ("help", "version"):
            raise HelpAnswer(self.help() if option.key == "help" else f"{VERSION}\n")
        super()._take(option, value, values)

    def help(self) -> str:
        """Return the output of `--help`."""
        lines = [f"Usage: {self.usage}", "", "vrm follows these options:"]
        ordered = sorted(self.all, key=lambda option: option.name)
        for option in ordered:
            if option.key not in (IGNORED, NOT_HERE):
                letter = f"-{option.letter}, " if option.letter else "    "
                lines.append(f"  {letter}--{option.name}" + {VALUE: "=VALUE", MAYBE: "[=VALUE]"}.get(option.takes, ""))
        lines += ["", *(f"{what}: " + " ".join(option.shown for option in ordered if option.key == key)
                        for what, key in (("It takes and ignores", IGNORED), ("It refuses", NOT_HERE))), ""]
        return "\n".join(lines)
