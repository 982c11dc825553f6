"""Formats of tables that users choose: `-o "%.18i %j"` of squeue and sinfo, `-O JobID:20,State`, and the named
columns of sacct."""

from __future__ import annotations

import re
from typing import Any, NamedTuple
from collections.abc import Callable, Mapping, Sequence

Value = Callable[[Any], str]
"""Returns the text of a column for a row."""


Known = Mapping[str, tuple[str, Value]]
"""Heading and text function of each column, by its letter or name in a format."""


def index_columns(rows: Sequence[tuple[str, str, str, Value]]) -> tuple[Known, Known]:
    """Return the columns of these rows by letter and by name. A row is (letter, name, heading, text function)."""
    return ({letter: (heading, read) for letter, _, heading, read in rows if letter},
            {name: (heading, read) for _, name, heading, read in rows})


class Column(NamedTuple):
    """A column: its heading, its text function, its width (0: as wide as the text), whether it is right-aligned, and
    the text that follows it."""

    heading: str
    value: Value
    width: int = 0
    right: bool = False
    suffix: str = ""

    def fitted(self, text: str) -> str:
        """Return the text, padded or cut to the width."""
        if not self.width:
            return text + self.suffix
        cut = text[:self.width]
        return (cut.rjust(self.width) if self.right else cut.ljust(self.width)) + self.suffix


class TextTable(NamedTuple):
    """A text that begins each line, the columns that follow it, and the parts of the format that are not known."""

    prefix: str
    columns: list[Column]
    unknown: list[str]

    def complaints(self, command: str) -> str:
        """Return the lines about unknown parts of the format that Slurm prints; it prints the table, too."""
        return "".join(f"{command}: error: Invalid job format specification: {part}\n" for part in self.unknown)

    def lines(self, rows: Sequence[Any], heading: bool) -> str:
        """Return the rows as lines, with the headings first if `heading` is true."""
        found = [self.prefix + "".join(column.fitted(column.heading) for column in self.columns)] if heading else []
        fit = [(column.value, column.fitted) for column in self.columns]
        found += [self.prefix + "".join([fitted(value(row)) for value, fitted in fit]) for row in rows]
        return "".join(f"{line}\n" for line in found)


WIDEST = 100_000
"""Maximum width of a column in characters."""

_LETTER = re.compile(r"(\.?)([0-9]{0,6})([A-Za-z#])(.*)", re.DOTALL)


def letters(text: str, known: Known) -> TextTable:
    """Return the table of a format such as `%.18i %j`: `%`, a `.` for right alignment, a width, a letter, and the
    text that follows the column. `%all` means all letters with `|` between them. Several `%` in a row count as one,
    and what is no column is text, as in Slurm."""
    if text.lower() == "%all":
        text = "|".join(f"%{letter}" for letter in sorted(known, key=str.swapcase))
    first, *parts = re.split(r"%+", text)
    columns, unknown = [], []
    for part in parts:
        if not part:
            continue
        match = _LETTER.fullmatch(part)
        if not match or match[3] not in known or int(match[2] or 0) > WIDEST:
            unknown.append(f"%{part}")
            columns.append(Column("", _nothing, suffix=f"%{part}"))
            continue
        heading, value = known[match[3]]
        columns.append(Column(heading, value, int(match[2] or 0), bool(match[1]), match[4]))
    return TextTable(first, columns, unknown)


_NAMED = re.compile(r"([A-Za-z0-9/_-]+)(?::(\.?)([0-9]{0,6})(.*))?", re.DOTALL)

WIDTH = 20
"""Width of a column of `-O` without a width, in characters."""


def names(text: str, known: Known) -> TextTable:
    """Return the table of a format such as `JobID:20,State`, without what is no column."""
    columns, unknown = [], []
    for part in text.split(","):
        if not part.strip():
            continue
        match = _NAMED.fullmatch(part.strip())
        found = known.get(match[1].lower()) if match else None
        if not match or found is None or int(match[3] or 0) > WIDEST:
            unknown.append(part.partition(":")[0])
            continue
        columns.append(Column(*found, int(match[3] or WIDTH), bool(match[2]), match[4] or ""))
    return TextTable("", columns, unknown)


class SacctField(NamedTuple):
    """A column of sacct: its name, its width (below 0: left-aligned), and its text function (None: always empty)."""

    name: str
    width: int
    value: Value | None


def fields(text: str, known: dict[str, SacctField]) -> list[SacctField]:
    """Return the columns of a list such as `jobid,state%20`. Raises ValueError with the unknown name."""
    found = []
    for part in text.split(","):
        name, percent, width = part.strip().partition("%")
        if not name:
            continue
        field = known.get(name.lower())
        if field is None or (percent and not re.fullmatch(r"-?[0-9]{1,6}", width)):
            raise ValueError(part.strip())
        found.append(field._replace(width=int(width)) if percent and int(width) else field)
    return found


def help_of(names: Sequence[str]) -> str:
    """Return the output of `--helpformat`."""
    return "".join(" ".join(name.ljust(19) for name in names[at:at + 4]).rstrip() + "\n"
                   for at in range(0, len(names), 4))


def table(chosen: Sequence[SacctField], rows: Sequence[Any], given: Mapping[str, str]) -> str:
    """Return the rows as text in the form that these options choose."""
    heading = "noheader" not in given
    if "parsable" in given or "parsable2" in given:
        return parsable(chosen, rows, heading, given.get("delimiter", "|"), "parsable" in given)
    return aligned(chosen, rows, heading)


def parsable(chosen: Sequence[SacctField], rows: Sequence[Any], heading: bool, between: str, behind: bool) -> str:
    """Return the rows with the text `between` between columns, and also after the last column if `behind` is true."""
    last = between * behind + "\n"
    found = [between.join(field.name for field in chosen) + last] if heading else []
    values = [field.value or _nothing for field in chosen]
    found += [between.join([value(row) for value in values]) + last for row in rows]
    return "".join(found)


def aligned(chosen: Sequence[SacctField], rows: Sequence[Any], heading: bool) -> str:
    """Return the rows in columns of fixed widths; longer text is cut and ends with `+`."""
    values = [field.value or _nothing for field in chosen]
    lines = [[field.name for field in chosen], ["-" * abs(field.width) for field in chosen]] if heading else []
    lines += [[value(row) for value in values] for row in rows]
    return "".join(" ".join(_fit(text, field.width) for text, field in zip(line, chosen)) + " \n"
                   for line in lines)


def _nothing(row: Any) -> str:
    return ""


def _fit(text: str, width: int) -> str:
    size = abs(width)
    if len(text) > size:
        text = text[:size - 1] + "+"
    return text.ljust(size) if width < 0 else text.rjust(size)
