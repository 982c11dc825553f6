"""Mistakes in a configuration. Separate from `vrm.config.schema`, whose libraries take a quarter of a second to
import, for programs that may never read a configuration."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """One mistake in a configuration: its place, what is wrong and how to fix it.

    `line` counts from 1 and is None if no line is known; `key` is dotted (`Scheduling.Algorithm`), and empty if the
    mistake belongs to no key.
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
    """A configuration that cannot be used; `problems` are all mistakes in it."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__(problems)
        self.problems = problems

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)
