"""Formats a table as text, CSV, Markdown, LaTeX, or cells for HTML."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from collections.abc import Iterable, Sequence

from vrm.results.names import Unit, unit_of
from vrm.ext.study.confidence import ConfidenceInterval
from vrm.system.printing import output

PAGE = 40  # maximum rows of a LaTeX table

Value = str | int | float | ConfidenceInterval | None

SECONDS = "[s]"
"""Marks a column whose numbers are seconds, in its head. CSV keeps seconds; the other formats use the unit that
suits the largest value of the figure."""


@dataclass(frozen=True)
class ReportColumn:
    """A column: its head, the number of decimals (None: chosen from the values), and whether its numbers are
    changes, shown with a sign."""

    head: str
    digits: int | None = None
    signed: bool = False

    @property
    def figure(self) -> str:
        """The head without its unit if the column is in seconds; else empty."""
        what, found, _ = self.head.partition(SECONDS)
        return what if found else ""


@dataclass(frozen=True)
class Table:
    """A table whose cells are still numbers, so that each format can show them in its own way.

    `name` is that of its CSV file; `note` explains the columns.
    """

    name: str
    title: str
    columns: tuple[ReportColumn, ...]
    rows: tuple[tuple[Value, ...], ...]
    note: str = ""

    @cached_property
    def units(self) -> dict[str, Unit]:
        """The unit of each figure that is in seconds: one common unit if all figures are readable in it."""
        times: dict[str, list[float]] = {}
        for column, values in zip(self.columns, zip(*self.rows)):
            if column.figure:
                times.setdefault(column.figure, []).extend(_numbers(values))
        largest = {figure: max(map(abs, values), default=0.0) for figure, values in times.items()}
        common = unit_of(largest.values())
        together = all(most >= 0.05 * common.seconds for most in largest.values() if most)
        return {figure: common if together else unit_of([most])
                for figure, most in largest.items()}

    @cached_property
    def heads(self) -> list[str]:
        """The heads, with the units of times."""
        return [column.head.replace(SECONDS, f"[{self.units[column.figure].name}]")
                if column.figure in self.units else column.head for column in self.columns]

    def words(self, plus_minus: str = "±") -> list[list[str]]:
        """Return the cells as text."""
        scales = [self.units[column.figure].seconds if column.figure in self.units else 1.0
                  for column in self.columns]
        digits = [self._digits(index, scale) for index, scale in enumerate(scales)]
        return [[_word(_scaled(value, scale), places, column.signed, plus_minus)
                 for value, scale, places, column in zip(row, scales, digits, self.columns)]
                for row in self.rows]

    def is_number(self, index: int) -> bool:
        """Return whether a column contains numbers."""
        return any(isinstance(row[index], (int, float, ConfidenceInterval)) for row in self.rows)

    def _digits(self, index: int, scale: float) -> int:
        given = self.columns[index].digits
        if given is not None:
            return given
        numbers = _numbers(row[index] for row in self.rows)
        if all(isinstance(number, int) for number in numbers):
            return 0
        largest = max(map(abs, numbers), default=0.0) / scale
        return 2 if largest < 1000 else 1 if largest < 10000 else 0


def _numbers(values: Iterable[Value]) -> list[float]:
    return [value.mean if isinstance(value, ConfidenceInterval) else value
            for value in values if isinstance(value, (int, float, ConfidenceInterval))]


def _scaled(value: Value, scale: float) -> Value:
    if scale == 1 or value is None or isinstance(value, str):
        return value
    if isinstance(value, ConfidenceInterval):
        half = None if value.half is None else value.half / scale
        return ConfidenceInterval(value.mean / scale, half, value.count)
    return value / scale


def _word(value: Value, digits: int, signed: bool, plus_minus: str) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    if isinstance(value, ConfidenceInterval):
        text = _word(value.mean, digits, signed, plus_minus)
        return text if value.half is None else f"{text} {plus_minus} {value.half:.{digits}f}"
    text = f"{value:{'+' if signed else ''}.{digits}f}"
    return text[1:] if text.strip("+-0.") == "" and text[0] in "+-" else text


def text(table: Table) -> str:
    """Format the table for a terminal."""
    left = [index for index in range(len(table.columns)) if not table.is_number(index)]
    return "\n".join(filter(None, [table.title, output.boxed(table.heads, table.words("+-"), left),
                                   table.note.replace("±", "+-")])) + "\n"


def comma_separated(table: Table) -> str:
    """Format the table as CSV with all digits; an interval has extra columns for its half width and its count."""
    wide = [any(isinstance(row[index], ConfidenceInterval) for row in table.rows)
            for index in range(len(table.columns))]
    heads: list[str] = []
    for column, is_wide in zip(table.columns, wide):
        heads += [column.head, *([f"{column.head} +-", f"{column.head} n"] if is_wide else [])]
    lines = [heads]
    for row in table.rows:
        cells: list[Any] = []
        for value, is_wide in zip(row, wide):
            if isinstance(value, ConfidenceInterval):
                cells += [_plain(value.mean), _plain(value.half), value.count]
            elif is_wide:
                cells += [_plain(value), "", ""]
            else:
                cells.append(_plain(value))
        lines.append(cells)
    return output.comma_separated(lines)


def _plain(value: Any) -> Any:
    if value is None:
        return ""
    return f"{value:.12g}" if isinstance(value, float) else value  # without the noise of binary fractions


def markdown(table: Table) -> str:
    """Format the table as a Markdown pipe table with its title and note."""
    def cell(word: str) -> str:
        return word.replace("\\", "\\\\").replace("|", "\\|")
    lines = [f"**{table.title}**", "",
             "| " + " | ".join(map(cell, table.heads)) + " |",
             "|" + "|".join("--:" if table.is_number(index) else ":--"
                            for index in range(len(table.columns))) + "|"]
    lines += ["| " + " | ".join(map(cell, row)) + " |" for row in table.words()]
    return "\n".join([*lines, *(["", table.note] if table.note else [])]) + "\n"


_LATEX = {"\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
          "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
          "±": r"$\pm$", "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"}
_special = re.compile("[" + re.escape("".join(_LATEX)) + "]")


def _escaped(words: str) -> str:
    found = _special.sub(lambda match: _LATEX[match.group()], words)
    return re.sub(r"(?<![\w}])-(?=\d)", "$-$", found)


def _sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}." if words else ""


def _head(words: str) -> str:
    """Return a column's head for LaTeX; text after the unit is put on a second line."""
    what, unit, which = _escaped(words).partition("] ")
    return rf"\shortstack[r]{{{what}]\\{which}}}" if unit else what


def latex(table: Table) -> str:
    """Format the table as floating LaTeX tables for the packages booktabs and adjustbox, which makes wide ones fit;
    a table with more than PAGE rows is split into several."""
    align = "".join("r" if table.is_number(index) else "l" for index in range(len(table.columns)))
    rows = table.words()
    parts = [rows[first:first + PAGE] for first in range(0, len(rows), PAGE)]
    found = []
    for number, part in enumerate(parts, 1):
        title = _escaped(table.title) + (f" ({number} of {len(parts)})" if len(parts) > 1 else "")
        found += [
            r"\begin{table}", r"  \centering\small",
            rf"  \caption{{{title}. {_escaped(_sentence(table.note))}}}",
            rf"  \label{{tab:{table.name}{f'-{number}' * (number > 1)}}}",
            rf"  \begin{{adjustbox}}{{max width=\linewidth}}\begin{{tabular}}{{{align}}}",
            r"    \toprule", "    " + " & ".join(map(_head, table.heads))
            + r" \\", r"    \midrule",
            *("    " + " & ".join(map(_escaped, row)) + r" \\" for row in part),
            r"    \bottomrule", r"  \end{tabular}\end{adjustbox}", r"\end{table}"]
    return "\n".join(found) + "\n"


FORMATS = {"text": (text, ".txt"), "markdown": (markdown, ".md"), "latex": (latex, ".tex")}


def joined(tables: Sequence[Table], name: str) -> str:
    """Return the tables one after another, in a format of FORMATS."""
    write, _ = FORMATS[name]
    head = "% The preamble wants \\usepackage{booktabs,adjustbox}\n\n" if name == "latex" else ""
    return head + "\n".join(map(write, tables))
