r"""The columns of `jobs.csv`: their names, and the conversion of values to cells and back.

Each job is one physical line, whatever its texts contain: line ends in them are written as `\n`, so that a line torn
by a crash can be recognised and cut off, and `grep` and `tail -f` show whole jobs.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from functools import lru_cache
from operator import attrgetter
from sys import intern
from typing import Any, NamedTuple, Union
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from vrm.model.forms.fields import ADDED, SIMULATED as FIRST_FORM, TABLE, Field
from vrm.model.job import JobState
from vrm.model.forms.field_types import FieldError
from vrm.model.quantities import seconds_text
from vrm.system.printing.text import printable
from vrm.system.errors import UserError

PathLike = Union[str, "os.PathLike[str]"]


class JobFileError(UserError, ValueError):
    """A file that is not a list of jobs, or has an invalid line; the text names the place."""


# ------------------------------------------------------------------------------- a value as a cell


_special = re.compile(r'[,"\\\n\r\0]').search
_ESCAPES = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\0": "\\0"}
_UNESCAPES = {escape: char for char, escape in _ESCAPES.items()}
_to_escape = re.compile(r"[\\\n\r\0]")
_escaped = re.compile(r"\\(?:u[0-9a-f]{4}|.)")


def text_cell(text: str) -> str:
    """Return a text as a cell on one line, quoted if CSV requires it."""
    if not _special(text):
        return text
    if _to_escape.search(text):
        text = _to_escape.sub(lambda found: _ESCAPES[found.group()], text)
    return '"' + text.replace('"', '""') + '"' if "," in text or '"' in text else text


class TextCells(dict[str, str]):
    """A cache of the cells of a few different texts, by text."""

    def __missing__(self, text: str) -> str:
        self[text] = text_cell(text)
        return self[text]


def places_cell(text: str) -> str:
    """Return the cell of a text without quotes and characters to escape: quoted if it has commas."""
    return f'"{text}"' if "," in text else text


def seconds_texts(seconds: Any) -> list[Any]:
    """Return times (a numpy array) as they are written: integers if all are whole, else texts."""
    whole = seconds.astype(int)
    return whole.tolist() if (whole == seconds).all() else list(map(seconds_text, seconds.tolist()))


def cell(value: Any) -> str:
    """Return a text, a time (a float), an integer or a flag as a cell; empty for None."""
    if isinstance(value, str):
        return text_cell(value)
    if value is None or isinstance(value, float):
        return seconds_text(value)
    return str(int(value))


# ------------------------------------------------------------------------------- a cell as a value


MOST = 10 ** 15
"""Largest allowed number, also of seconds."""


def read_text(text: str) -> str:
    """Return the text of a cell that `text_cell` and the file's encoding have made."""
    return _escaped.sub(_unescape, text) if "\\" in text else text


def _unescape(found: re.Match[str]) -> str:
    escape = found.group()
    if len(escape) == 6:  # a byte of a name that is not valid UTF-8; see JobWriter
        return chr(int(escape[2:], 16))
    return _UNESCAPES.get(escape, escape)


def _texts(texts: Sequence[str]) -> Sequence[str]:
    return list(map(intern, map(read_text, texts) if "\\" in "".join(texts) else texts))  # most jobs have equal texts


def _seconds(text: str) -> float:
    value = float(text)
    if not abs(value) < MOST:
        raise ValueError(f"`{printable(text)}` is not a number of seconds")
    return value


def _times(texts: Sequence[str]) -> Sequence[float]:
    values = list(map(float, texts))
    if not (min(values) > -MOST and max(values) < MOST and sum(values) < MOST * MOST):  # the last one excludes nan
        raise ValueError("not a number of seconds")
    return values


def _whole(text: str) -> int:
    value = int(text)
    if not abs(value) <= MOST:
        raise ValueError(f"`{printable(text)}` is too large")
    return value


def _flag(text: str) -> bool:
    if text not in ("0", "1", ""):
        raise ValueError(f"`{printable(text)}` is neither 0 nor 1")
    return text == "1"


_STATUSES = {state.value: state.value for state in JobState if state.ended}


def _status(text: str) -> str:
    if text not in _STATUSES:
        raise ValueError(f"`{printable(text)}` is not one of {', '.join(_STATUSES)}")
    return _STATUSES[text]


def _or(default: Any, read: Callable[[str], Any]) -> Callable[[str], Any]:
    return lambda text: read(text) if text else default


class CsvColumn(NamedTuple):
    """A column of the file: `read` returns the value of a cell, and raises ValueError for an invalid one. `read_many`
    quickly reads the cells of many jobs, or raises ValueError if they must be read one by one."""

    name: str
    read: Callable[[str], Any]
    read_many: Callable[[Sequence[str]], Sequence[Any]] | None = None

    @property
    def default(self) -> Any:
        """The value if a file has no such column; only for columns that may be missing."""
        return self.read("")

    def values(self, texts: Sequence[str]) -> Sequence[Any]:
        """Return the values of cells. Raises ValueError if one is invalid."""
        if self.read_many is not None:
            with suppress(ValueError):
                return self.read_many(texts)
        known = {text: self.read(text) for text in set(texts)}
        return list(map(known.__getitem__, texts))


def _text_column(name: str) -> CsvColumn:
    return CsvColumn(name, read_text, _texts)


def _number_column(name: str, least: int, what: str) -> CsvColumn:
    def read(text: str) -> int:
        value = _whole(text)
        if value < least:
            raise ValueError(f"`{printable(text)}` is not a {what}")
        return value

    def read_many(texts: Sequence[str]) -> Sequence[int]:
        values = list(map(int, texts))
        if not least <= min(values) <= max(values) <= MOST:
            raise ValueError(what)
        return values
    return CsvColumn(name, read, read_many)


def _maybe_time(name: str) -> CsvColumn:
    return CsvColumn(name, _or(None, _seconds), _times)


REQUIRED = (_number_column("id", 0, "job's id"), _text_column("app"), _number_column("procs", 1, "number of ranks"),
            CsvColumn("submit", _seconds, _times), _maybe_time("start"), _maybe_time("end"),
            CsvColumn("walltime", _seconds, _times), CsvColumn("status", _status))
FIRST = (*REQUIRED, CsvColumn("exit_code", _or(None, _whole)), _maybe_time("app_time"), CsvColumn("exclusive", _flag),
         CsvColumn("backfilled", _flag), *map(_text_column, ("nodes", "cores", "binding", "reason")))
"""The columns of vrm 0.1, and of a simulation whose jobs have no further data."""

MORE: tuple[Field, ...] = tuple(sorted(
    (each for each in TABLE if each.column and each.form > FIRST_FORM), key=attrgetter("form")))
"""The fields of a job that have columns after `reason`."""

COLUMNS = (*FIRST, *(_text_column(each.column) if isinstance(each.plain_default, str) else
                     CsvColumn(each.column, _or(each.plain_default, each.kind.cell)) for each in MORE))
NAMES = tuple(column.name for column in COLUMNS)
HEADER = ",".join(NAMES) + "\n"
SIMULATED = ",".join(NAMES[:len(FIRST)]) + "\n"
"""The first line of a file that has only the columns of FIRST."""


COMPUTED: dict[str, Callable[[Any], Any]] = {}
"""The loaded columns of extensions (`vrm.results.extension_columns`), after all others: by name, the function that
returns the value for a row."""


def added_names() -> list[str]:
    """Return the names of the columns of extensions, in their order in a new file."""
    return [*(name for name, field in ADDED.items() if field.column), *COMPUTED]


def header() -> str:
    """Return the first line of a file with all columns."""
    return ",".join((*NAMES, *added_names())) + "\n"


# ------------------------------------------------------------------------------- writing


def pattern(**same: str) -> str:
    """Return the pattern (for `%`) of a line with the columns of FIRST, without line end. `same` are cells that are
    equal in all lines; the others are filled in order, as cells."""
    return ",".join([same.get(column.name, "%s") for column in FIRST])


def first_cells(values: Iterable[Any]) -> str:
    """Return the columns of FIRST, from their values in order."""
    return ",".join(map(cell, values))


_DEFAULTS = [(each.column, each.plain_default) for each in MORE]
_SAID = frozenset(each.column for each in MORE)


def more_cells(values: Mapping[str, Any]) -> str:
    """Return the columns of MORE, each with a comma before it; a default or missing value is an empty cell."""
    return _more_cells(tuple([each for each in values.items() if each[0] in _SAID]))


@lru_cache(maxsize=256)
def _more_cells(said: tuple[tuple[str, Any], ...]) -> str:
    """Return these columns; cached, because consecutive jobs often have equal ones."""
    values = dict(said)
    return "".join([f",{cell(value)}" if (value := values.get(column, default)) != default else ","
                    for column, default in _DEFAULTS])


# ------------------------------------------------------------------------------- reading


_BLOCK = 1 << 16
"""Number of characters that are read at a time, plus the rest of a line."""

Values = dict[str, Sequence[Any]]
"""The values of some jobs by column, without columns in which all cells are empty; these have their defaults."""


def _added_column(name: str) -> CsvColumn:
    """Return the column of an extension."""
    return CsvColumn(name, _or(None, ADDED[name].kind.cell)) if name in ADDED else _text_column(name)


class Layout:
    """The positions of the columns in the lines of a file, from its first line; `name` is the file's name in
    messages. Raises JobFileError if a column of REQUIRED is missing."""

    def __init__(self, name: str, header: str) -> None:
        self._name, names = name, _cells(header)
        missing = [column.name for column in REQUIRED if column.name not in names]
        if missing:
            raise JobFileError(f"{name}:1: this is not a list of jobs: the first line names no column"
                               f" {', '.join(f'`{column}`' for column in missing)}")
        self._width = len(names)
        self._places = [(column, names.index(column.name)) for column in COLUMNS if column.name in names]
        self._added = [(_added_column(name), at) for at, name in enumerate(names) if name in added_names()]

    def values(self, lines: Sequence[str]) -> Values:
        """Return the values of lines. Raises ValueError or IndexError if one is invalid, or if an unusual line is not
        alone."""
        cells = list(zip(*self._rows(lines)))
        found = {column.name: column.values(cells[at]) for column, at in self._places
                 if any(cells[at]) or column in REQUIRED}
        added = [[(column.name, value) if text else None for text, value in zip(cells[at], column.values(cells[at]))]
                 for column, at in self._added if any(cells[at])]
        if added:
            found["more"] = [tuple(filter(None, each)) for each in zip(*added)]
        return found

    def _rows(self, lines: Sequence[str]) -> Sequence[Sequence[str]]:
        """Return the cells of lines. The csv module is fast, but it would refuse a cell of more than 128 KiB (`cores`
        of a job on ten thousand nodes is that large), and a stray quote would make it swallow the lines after it."""
        if len(lines) > 1 and '"' in "".join(lines):
            import csv
            with suppress(csv.Error):
                rows = list(csv.reader(lines, strict=True))
                if len(rows) == len(lines) and set(map(len, rows)) == {self._width}:
                    return rows
        return list(map(_cells, lines))

    def careful(self, lines: Sequence[str], first: int) -> Iterator[Values]:
        """Yield the values of each line separately; `first` is the number of the first line. Raises JobFileError for
        an invalid one."""
        for number, line in enumerate(lines, first):
            try:
                values = self.values([line])
            except (ValueError, IndexError) as error:
                raise JobFileError(f"{self._name}:{number}: {self._fault(line)}") from error
            yield values

    def _fault(self, line: str) -> str:
        cells = _cells(line)
        for column, at in (*self._places, *self._added):
            if at >= len(cells):
                return f"the line ends before `{column.name}`"
            try:
                column.read(cells[at])
            except FieldError as error:
                return f"{column.name}: {error.said(printable)}"
            except ValueError as error:
                return f"{column.name}: {printable(str(error), 200)}"
        raise AssertionError("no column of the line is wrong")


def _cells(line: str) -> list[str]:
    """Return the cells of a line."""
    line = line.rstrip("\r\n")
    if '"' not in line:
        return line.split(",")
    parts = line.split('"')
    parts[1::2] = [quoted.replace(",", "\0") for quoted in parts[1::2]]
    return [_unquoted(text) if '"' in text else text for text in '"'.join(parts).split(",")]


def _unquoted(text: str) -> str:
    if len(text) > 1 and text[0] == text[-1] == '"':
        text = text[1:-1].replace('""', '"')
    return text.replace("\0", ",")


_CELL = re.compile(rb'((?:[^,"]|"(?:[^"]|"")*")*),')


def cells_of(line: bytes) -> list[bytes]:
    """Return the cells of a line without its line end, in their written form."""
    return _CELL.findall(line + b",") if b'"' in line else line.split(b",")


def read_values(path: PathLike) -> Iterator[Values]:
    """Yield the jobs of a list, a block at a time, so that memory does not grow with the list.

    Columns are found by the names in the first line; those from `exit_code` on may be missing, and unknown ones are
    ignored. A last line without line end is being written and is left out. Raises JobFileError with the place of an
    invalid line, OSError like `open`.
    """
    with open(path, encoding="utf-8", errors="backslashreplace", newline="\n") as file:
        header = file.readline()
        if not header.endswith("\n"):
            return
        layout, number = Layout(os.fspath(path), header), 2
        while lines := file.readlines(_BLOCK):
            torn = not lines[-1].endswith("\n")
            lines = lines[:-1] if torn else lines
            try:
                found: Iterable[Values] = [layout.values(lines)] if lines else []
            except (ValueError, IndexError):
                found = layout.careful(lines, number)
            yield from found
            if torn:
                return
            number += len(lines)


def read_last(path: PathLike, count: int) -> Iterator[Values]:
    """Yield the last jobs of a list, in its order; none if there is no such file, or it is not a list. Reads only the
    end of the file. Invalid lines are skipped."""
    with suppress(FileNotFoundError, JobFileError), open(path, "rb") as file:
        header, begin = file.readline(), file.tell()
        tail = max(begin, file.seek(0, os.SEEK_END) - _BLOCK)
        file.seek(tail)
        lines = file.read().decode("utf-8", "backslashreplace").split("\n")
        lines = lines[tail > begin:-1][-count:]  # the first line may be incomplete, the last is being written
        layout = Layout(os.fspath(path), header.decode("utf-8", "backslashreplace"))
        try:
            found = [layout.values(lines)] if lines else []
        except (ValueError, IndexError):
            found = []
            for line in lines:
                with suppress(ValueError, IndexError):
                    found.append(layout.values([line]))
        yield from found
