"""Options as Slurm's commands read them: `-n4`, `-n 4`, `--ntasks=4`, `--ntasks 4`, unique beginnings of long
names, several short ones in a word."""

from __future__ import annotations

from dataclasses import dataclass
from collections.abc import Sequence

from vrm.ext.slurm.calls.answers import Refused, HelpAnswer

VERSION = "slurm 22.05.8"
"""What `--version` says: tools look for options by it, and these are those of that version."""

VALUE, NONE, MAYBE = "value", "none", "maybe"
"""What follows an option: a value, nothing, or a value that is written with it (`--wait=3`)."""

IGNORED, NOT_HERE = "-", "!"
"""What is done with an option: nothing, since it changes nothing of the outcome; or it is refused."""


@dataclass(frozen=True)
class CommandOption:
    """An option: the letter and the long name ("": it has none), what follows, and the key under which
    its value is found, or IGNORED or NOT_HERE."""

    letter: str
    name: str
    takes: str
    key: str

    @property
    def shown(self) -> str:
        """As people write it."""
        return f"--{self.name}" if self.name else f"-{self.letter}"


class Options:
    """The options of a command.

    Each line of the text is an option: its letter (`.`: none), its long name, what follows it (v, n or
    m: VALUE, NONE, MAYBE), and the key (`-`, `!`: see above; left out: the long name), which may be followed by
    the value that it stands for, as `requeue=no`. `usage` is what
    `--help` shows of the words. Those of the keys `help` and `version` are answered as they are met.
    """

    def __init__(self, command: str, text: str, usage: str = "[options]") -> None:
        self.command = command
        self.usage = f"{command} {usage}"
        self.all: list[CommandOption] = []
        for line in text.split("\n"):
            words = line.split()
            if words:
                letter, name, takes, *key = words
                self.all.append(CommandOption(letter.strip("."), name, {"v": VALUE, "n": NONE, "m": MAYBE}[takes],
                                       key[0] if key else name))
        self._letters = {option.letter: option for option in self.all if option.letter}
        self._names = {option.name: option for option in self.all}

    def error(self, why: str) -> Refused:
        """What is wrong, as this command says it."""
        return Refused("\n".join(f"{self.command}: error: {line}" for line in why.splitlines()))

    def parse(self, words: Sequence[str], mixed: bool = True) -> tuple[dict[str, str], list[str]]:
        """The values by their keys, the last of each option, and the other words. `mixed`: options may
        come behind these; else the first of them ends the options. Refused for what is not an option, for
        one without its value, and for one that vrm cannot follow; Told by `--help` and `--version`."""
        values: dict[str, str] = {}
        rest: list[str] = []
        left = list(reversed(words))
        while left:
            word = left.pop()
            if word == "--":
                rest += reversed(left)
                break
            if word.startswith("--"):
                self._long(word[2:], left, values)
            elif len(word) > 1 and word.startswith("-"):
                self._short(word[1:], left, values)
            elif mixed:
                rest.append(word)
            else:
                rest += [word, *reversed(left)]
                break
        return values, rest

    def without(self, words: Sequence[str], *keys: str) -> list[str]:
        """The words without the options of these keys, up to the first that is none; those that stand in one
        word with them keep their meaning."""
        kept: list[str] = []
        left = list(reversed(words))
        while left and len(left[-1]) > 1 and left[-1].startswith("-") and left[-1] != "--":
            before, values = len(left), {}  # type: int, dict[str, str]
            word = left.pop()
            if word.startswith("--"):
                self._long(word[2:], left, values)
            else:
                self._short(word[1:], left, values)
            if values.keys() & set(keys):
                kept += [f"--{key}" + f"={value}" * bool(value) for key, value in values.items() if key not in keys]
            else:
                kept += words[len(words) - before:len(words) - len(left)]
        return kept + left[::-1]

    def _long(self, word: str, left: list[str], values: dict[str, str]) -> None:
        name, equals, value = word.partition("=")
        option = self._names.get(name)
        if option is None:
            near = [each for key, each in self._names.items() if name and key.startswith(name)]
            if len(near) != 1:
                raise self.error(f"unrecognized option --{name}" + (
                    f": {', '.join(each.shown for each in near)}?" if near else
                    f"; `{self.command} --help` lists those that vrm knows"))
            option = near[0]
        if option.takes == NONE and equals:
            raise self.error(f"{option.shown} takes no value")
        if option.takes == VALUE and not equals:
            value = self._next(option, left)
        self._take(option, value, values)

    def _short(self, word: str, left: list[str], values: dict[str, str]) -> None:
        while word:
            option = self._letters.get(word[0])
            if option is None:
                raise self.error(f"unrecognized option -{word[0]}; `{self.command} --help` lists those "
                                 "that vrm knows")
            word = word[1:]
            if option.takes != NONE:
                if option.takes == VALUE and not word:
                    word = self._next(option, left)
                self._take(option, word.removeprefix("="), values)
                return
            self._take(option, "", values)

    def _next(self, option: CommandOption, left: list[str]) -> str:
        if not left:
            raise self.error(f"{option.shown} needs a value")
        return left.pop()

    def _take(self, option: CommandOption, value: str, values: dict[str, str]) -> None:
        if option.key == NOT_HERE:
            raise self.error(f"{option.shown} cannot be followed by vrm; leave it out")
        if option.key == "help":
            raise HelpAnswer(self.help())
        if option.key == "version":
            raise HelpAnswer(f"{VERSION}\n")
        if "=" in option.key:
            key, _, value = option.key.partition("=")
            values[key] = value
        elif option.key != IGNORED:
            values.pop(option.key, None)  # the last one counts, also for the order
            values[option.key] = value

    def help(self) -> str:
        """What `--help` prints."""
        lines = [f"Usage: {self.usage}", "", "vrm follows these options:"]
        for option in self.all:
            if option.key not in (IGNORED, NOT_HERE):
                letter = f"-{option.letter}, " if option.letter else "    "
                lines.append(f"  {letter}--{option.name}" + {VALUE: "=VALUE", MAYBE: "[=VALUE]"}.get(option.takes, ""))
        ignored = [option.shown for option in self.all if option.key == IGNORED]
        refused = [option.shown for option in self.all if option.key == NOT_HERE]
        lines += ["", "It takes and ignores: " + " ".join(ignored), "It refuses: " + " ".join(refused), ""]
        return "\n".join(lines)
