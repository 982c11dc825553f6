"""The grammar of queue files.

One line per job, columns separated by blanks:

    ft.B.x 8 60 0                  app, ranks, estimated seconds, exclusive (0 or 1)
    ft.B.x 8 1:30:00               times also as 90m, 2h, 1-12:00:00; exclusive is 0 unless given
    ft.B.x 8                       without an estimate, one hour is assumed
    is.B.x 32 10 0 4               a recorded line: 4 seconds pass before the next one
    lu.B.x 8 90.5 1 cores=2        after the columns, key=value fields (see FIELDS)
    cg.B.x 4 30 0 name='run 1'     words are quoted as in a shell
    post 1 9 0 after=3 args='-o "a b" out.%i' array=0-9:2 env=TMPDIR=/scratch env=LC_ALL=C
    end                            nothing comes after this line

`#` at the start of a word begins a comment. A wrong line becomes a LineError with the reason; the lines after it are
still read.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn
from collections.abc import Mapping

from vrm.model.forms import json_checks
from vrm.model.forms.fields import REQUEST, TABLE, Field, asked_of
from vrm.model.forms.field_types import EXAMPLE, LONGEST_TIME, FieldError, Kind, check_app
from vrm.model.quantities import numbers
from vrm.system.plugins import PluginError
from vrm.system.printing.text import printable
from vrm.workload.extension_fields import added
from vrm.system.errors import UserError

LONGEST = 16384
"""Maximum length in bytes of a line."""

UNKNOWN_TIME = 3600.0
"""Assumed maximum run time in seconds of a job without an estimate."""


class LineError(UserError, ValueError):
    """A line that does not describe a job correctly; the text says what was found and what is expected.

    `app` is the program, if the line names one. `jobs` is the number of ids that the line uses: the size of its
    array, so that later jobs get the ids that the author of the file expects.
    """

    app = ""
    jobs = 1


@dataclass(frozen=True)
class QueueLine:
    """The job that a line requests. `seconds` is the estimate (UNKNOWN_TIME if the line has none; then `assumed` is
    True), `delay` the seconds until the next line in a recorded queue (None if the column is missing), `fields` the
    values of the `key=value` fields as FIELDS reads them. `items` are the items of `each=`, by array index (see
    `vrm.workload.each_field`).
    """

    app: str
    procs: int
    seconds: float
    exclusive: bool = False
    delay: float | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    assumed: bool = field(default=False, compare=False)
    items: tuple[str, ...] = ()

    @property
    def values(self) -> dict[str, Any]:
        """The values of the line, by the attributes of a job that keep them (see `vrm.model.forms.fields.made`)."""
        return {"app": self.app, "procs": self.procs, "walltime": self.seconds,
                "exclusive": self.exclusive,
                **{field_of(key).at: value for key, value in self.fields.items() if key != "each"},
                **({"each": self.items} if self.items else {})}

    def values_at(self, directory: str | Path) -> dict[str, Any]:
        """Return `values` with the paths in the line taken relative to this directory."""
        found = self.values
        for name in ("directory", "file"):
            if found.get(name):
                found[name] = os.path.normpath(os.path.join(directory, found[name]))
        if "components" in found:
            found["components"] = tuple(each._replace(file=os.path.normpath(os.path.join(directory, each.file)))
                                        if each.file else each for each in found["components"])
        return found

    def __str__(self) -> str:
        """Return the line in the form of a queue file."""
        words = [self.app, str(self.procs), _plain(self.seconds), str(int(self.exclusive))]
        if self.delay is not None:
            words.append(_plain(self.delay))
        # `#x` would begin a comment; a quoted one does not.
        return " ".join([*map(shlex.quote, words),
                         *(f"{key}={shlex.quote(text)}" for key, value in self.fields.items()
                           if not (self.items and key == "array") for text in field_of(key).kind.write(value))])


def _number(text: str) -> float:
    if len(text) > 40 or not re.fullmatch(r"([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", text):
        raise ValueError(text)
    if float(text) > LONGEST_TIME:
        raise ValueError(text)
    return float(text)


COLUMNS: dict[str, Field] = {
    **{field.word: field for field in TABLE if field.word and field.option is None},
    "delay": Field("delay", Kind(_number, json_checks.number), "the seconds until the next line, 0 or "
                   f"more and at most {LONGEST_TIME}")}
"""The first words of a line, in this order: the fields of the table for which `vrm submit` has no option, and the
delay of a recorded line."""

_COLUMNS = tuple(COLUMNS.items())

_OF_ONE = frozenset(("cores", "args", "file", "script", "malleable"))
"""Fields that a coupled job cannot have."""

_OF_APP = frozenset(("file",))
"""Fields that the first column can set."""

FIELDS: dict[str, Field] = {field.word: field for field in TABLE if field.option is not None}
"""The `key=value` fields."""


def parse_line(text: str) -> QueueLine:
    """Return the job that a line requests. Raises LineError if the line is wrong, blank or only a comment."""
    words = words_of(text)
    if not words:
        raise LineError(f"the line names no job; a job is for example `{EXAMPLE}`")
    return job_of_words(words)


def job_of_words(words: list[str]) -> QueueLine:
    """Return the job that the words of a line request. Raises LineError if they are wrong."""
    try:
        return _understood(words)
    except LineError as wrong:
        error = wrong
        if os.path.basename(words[0]) in _LAUNCHERS and words[1:2] and words[1].startswith("-"):
            error = LineError(f"vrm calls {words[0]} itself: write the program and its ranks, as `{_bare(words)}`")
        with contextlib.suppress(FieldError):
            error.app = check_app(words[0])
        for word in words[1:]:
            with contextlib.suppress(ValueError):
                error.jobs = len(numbers(word[6:])) if word.startswith("array=") else error.jobs
        raise error from None


_LAUNCHERS = ("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun", "srun", "aprun", "ibrun", "jsrun")


def _bare(words: list[str]) -> str:
    """Return a correct line for a line that calls a launcher: the program with its ranks and arguments."""
    rest, ranks = list(words[1:]), "1"
    while len(rest) > 1 and rest[0].startswith("-"):
        option, equals, value = rest.pop(0).partition("=")
        if option in ("-n", "-np", "-c", "--n", "--np", "--ntasks"):
            ranks = value if equals else rest.pop(0)
    arguments = f" args={shlex.quote(shlex.join(rest[1:]))}" if rest[1:] else ""
    return show(" ".join(map(shlex.quote, [*rest[:1], ranks])) + f" 600{arguments}", 200)


def _understood(words: list[str]) -> QueueLine:
    entries = _COLUMNS
    values: dict[str, Any] = {"delay": None}
    fields: dict[str, Any] = {}
    for index, word in enumerate(words):
        key, is_field, value = word.partition("=")
        if index > 0 and (is_field or set(fields) - _OF_APP):
            if index < 2:
                break
            if not is_field:
                raise LineError(f"`{show(word)}` is after the key=value fields, but is not one; "
                                f"quote a value with blanks: name='run 1'")
            _take(fields, key, value)
        elif index == len(entries):
            raise LineError(f"`{show(word)}` is one column too many; the columns are {_names()}, for "
                            f"example `{EXAMPLE}`, and then key=value fields")
        else:
            column, entry = entries[index]
            if index == 0 and "/" in word:  # a program given by its path; its name is the last part
                fields["file"] = _read("file", word, FIELDS["file"])
                word = word.rsplit("/", 1)[1]
            values[column] = _read(column, word, entry)
    if "procs" not in values:
        missing = [column for column in list(COLUMNS)[:2] if column not in values]
        raise LineError(f"{', '.join(missing)} missing; the columns are {_names()}, for example "
                        f"`{EXAMPLE}`")
    asked = {FIELDS[key].at: value for key, value in fields.items() if key in FIELDS and FIELDS[key].kept == REQUEST}
    try:
        asked_of({"procs": values["procs"], "cores": fields.get("cores", 1)}, asked, fields.get("coupled", ()))
    except ValueError as error:
        raise LineError(str(error)) from None
    if "coupled" in fields and fields.keys() & _OF_ONE:
        raise LineError(f"coupled: `{min(fields.keys() & _OF_ONE)}` is for a job of one program; write cores= and "
                        "args= behind the ranks of each program")
    assumed = "seconds" not in values
    return QueueLine(fields=fields, assumed=assumed, **{"seconds": UNKNOWN_TIME, **values})


def _take(fields: dict[str, Any], key: str, value: str) -> None:
    """Read a field and add it to the fields of the line."""
    field = field_of(key)
    read = _read(key, value, field)
    if field.kind.repeated:
        name, value = read
        if name in fields.setdefault(key, {}):
            raise LineError(f"{key}: `{show(name)}` is given twice")
        fields[key][name] = value
    elif key in fields:
        raise LineError(f"`{key}` is given twice")
    else:
        fields[key] = read


def _read(name: str, text: str, entry: Field) -> Any:
    try:
        return entry.kind.read(text)
    except FieldError as error:
        raise LineError(error.said(show)) from None
    except (ValueError, KeyError):
        found = f"`{show(text)}`" if text else "nothing"
        raise LineError(f"{name}: found {found}, wanted {entry.wanted}; for example `{EXAMPLE}`"
                        ) from None


def field_of(key: str) -> Field:
    """Return the field of this name, of vrm or of an extension. Raises LineError if there is none."""
    field = FIELDS.get(key)
    if field is None:
        try:
            field = added(key)
        except PluginError as error:
            raise LineError(str(error)) from error
    if field is None:
        _refuse_field(key)
    return field


def _refuse_field(key: str) -> NoReturn:
    close = get_close_matches(key, FIELDS, 1) or [name for name in FIELDS if name.startswith(f"{key}_")]
    hint = f"did you mean `{close[0]}`?" if close else (
        "`vrm docs job-fields` lists them; if a package adds it, install that (`vrm plugins` lists these)")
    raise LineError(f"unknown field `{show(key)}`; {hint}")


def _names() -> str:
    return "app, procs and, if given, seconds, exclusive and delay"


# Blanks, a comment at the start of a word, a word; a lone quote or backslash is left to shlex.
_PART = re.compile(r"""[ \t]+|(#)|(?:'[^']*'|"(?:\\.|[^"\\])*"|\\.|[^ \t'"\\])+|.""", re.DOTALL)
_BLANKS = re.compile(r"[ \t]+")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]")
_QUOTING = re.compile(r"['\"\\]")


def words_of(text: str) -> list[str]:
    """Return the words of a line without its comment. Raises LineError for open quotes and control characters."""
    text = text.rstrip("\r\n")
    for part in _PART.finditer(text) if "#" in text else ():
        if part.group(1):
            text = text[:part.start()]
            break
    control = _CONTROL.search(text)
    if control:
        raise LineError(f"the line holds the control character 0x{ord(control.group()):02x} at "
                        f"place {control.start() + 1}; a queue file is plain text, for example "
                        f"`{EXAMPLE}`")
    if not _QUOTING.search(text):
        return [word for word in _BLANKS.split(text) if word]  # same result as shlex, much faster
    try:
        return shlex.split(text)
    except ValueError:
        raise LineError("a quote is not closed, or a backslash is at the end of the line"
                        ) from None


def show(text: str, longest: int = 60) -> str:
    """Return the text for use in a message: shortened, and without characters that would control a terminal."""
    return printable(text, longest)


def _plain(seconds: float) -> str:
    return str(int(seconds)) if float(seconds).is_integer() else repr(float(seconds))
