"""Formats output of commands and files: rows and columns as text in two styles or as CSV, and data as JSON."""

from __future__ import annotations

import csv
import io
import json
from typing import Any
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence


def show(as_json: bool, record: Callable[[], Any], text: Callable[[], str], indent: int | None = 2) -> None:
    """Print a result: as one JSON value, or as text for people."""
    print(json_text(record(), indent) if as_json else text())


def json_text(record: Any, indent: int | None = None) -> str:
    """Return a value as JSON."""
    return json.dumps(record, indent=indent)


def json_parts(data: Mapping[str, Any], between: str) -> Iterator[str]:
    """Yield the JSON text of an object in parts, one for each key and each element of a list, with `between` before
    each: the whole text of a long list is never in memory."""
    before = "{"
    for key, value in data.items():
        yield f"{before}{between}{json.dumps(key)}: "
        before = ", "
        if isinstance(value, (list, Iterator)):
            opening = "["
            for each in value:
                yield f"{opening}{between}{json.dumps(each)}"
                opening = ", "
            yield "[]" if opening == "[" else "]"
        else:
            yield json.dumps(value)
    yield "}"


def boxed(heads: Sequence[str], rows: Sequence[Sequence[Any]], left: Collection[int] | None = None,
          line_above_last: bool = False) -> str:
    """Return a table with lines around it; the columns `left` (None: all) are aligned to the left, the others to the
    right. `line_above_last`: a line is drawn above the last row, which is the sum of the others."""
    cells = [list(map(str, row)) for row in (heads, *rows)]
    if left is None and rows and all(cell.isascii() and "\n" not in cell for row in cells for cell in row):
        return _plain(*cells)
    from prettytable import PrettyTable  # not at the top: most tables have plain cells and do not need it

    unique = [f"{head}{' ' * heads[:at].count(head)}" for at, head in enumerate(heads)]  # the names must differ
    table = PrettyTable(unique)
    for at, head in enumerate(unique):
        table.align[head] = "l" if left is None or at in left else "r"
    for number, row in enumerate(rows):
        table.add_row(list(row), divider=line_above_last and number == len(rows) - 2)
    return str(table.get_string())


def _plain(heads: Sequence[str], *rows: Sequence[str]) -> str:
    """Return a table of plain cells, aligned to the left: PrettyTable takes five times as long for the same text."""
    widths = [max(map(len, column)) for column in zip(heads, *rows)]
    edge = f"+{'+'.join('-' * (width + 2) for width in widths)}+"
    form = f"| {' | '.join(f'%-{width}s' for width in widths)} |"
    return "\n".join([edge, form % tuple(heads), edge, *(form % tuple(row) for row in rows), edge])


def aligned(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> str:
    """Return rows without lines around them, two blanks between columns; the columns `right` are aligned to the
    right."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join("  ".join(cell.rjust(width) if at in right else cell.ljust(width)
                               for at, (cell, width) in enumerate(zip(row, widths))).rstrip() for row in rows)


def comma_separated(rows: Iterable[Iterable[Any]], comments: Iterable[str] = ()) -> str:
    """Return rows as CSV, the first row holds the heads; the comments are above them."""
    out = io.StringIO()
    out.writelines(f"# {comment}\n" for comment in comments)
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()
