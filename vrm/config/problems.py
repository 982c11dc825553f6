"""What can be wrong with a configuration. Apart from `vrm.config.schema`, whose libraries take a quarter of
a second to import, for programs that may never read a configuration."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """One mistake in a configuration: where it stands, what is wrong and how to mend it.

    `line` counts from 1 and is None where no line can be named; `key` is dotted
    (`Scheduling.Algorithm`) and empty where the mistake belongs to no key.
    """

    file: str
    line: int | None
    key: str
    message: str
    hint: str = ""

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        text = f"{place}: {self.key}: {self.message}" if self.key else f"{place}: {self.message}"
        return f"{text}; {self.hint}" if self.hint else text


class ConfigError(Exception):
    """A configuration that cannot be used; `problems` holds all that is wrong with it."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__(problems)
        self.problems = problems

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)
