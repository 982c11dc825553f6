"""The grammar of queue files: what a line says.

One line per job, blanks between the columns:

    ft.B.x 8 60 0                  app, ranks, estimated seconds, exclusive (0 or 1)
    ft.B.x 8 1:30:00               times also as 90m, 2h, 1-12:00:00; exclusive is 0 unless given
    ft.B.x 8                       without an estimate an hour is assumed
    is.B.x 32 10 0 4               a recorded line: 4 seconds pass before the next one
    lu.B.x 8 90.5 1 cores=2        after the columns, key=value fields (see FIELDS)
    cg.B.x 4 30 0 name='run 1'     words are quoted as in a shell
    post 1 9 0 after=3 args='-o "a b" out.%i' array=0-9:2 env=TMPDIR=/scratch env=LC_ALL=C
    end                            nothing comes after this line

`#` at the start of a word begins a comment. A line that is wrong is a LineError with the reason,
and the lines after it count.
"""

from __future__ import annotations

import contextlib
import re
import shlex
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, NoReturn, Optional, Tuple

from vrm.model.job import Dependency
from vrm.model.ranges import MOST_JOBS, fold, member_range, numbers
from vrm.model.times import seconds_of
from vrm.system.text import printable

EXAMPLE = "ft.B.x 8 60 0"
LONGEST = 16384
"""Bytes of the longest line that is read."""

UNKNOWN_TIME = 3600.0
"""Seconds that a job without an estimate is taken to run at most."""

LONGEST_TIME = 1_000_000_000
"""Seconds that an estimate or a delay may say: more than 31 years, and a table can show it."""


class LineError(ValueError):
    """A line that names no job as it should; the text says what is there and what is wanted.

    `app` is the program as far as the line names one, `jobs` how many ids the line takes: as many
    as its array has, so that the ids after it are those that its author had counted.
    """

    app = ""
    jobs = 1


@dataclass(frozen=True)
class QueueLine:
    """The job that a line asks for. `seconds` is the estimate (UNKNOWN_TIME is `assumed` where the
    line has none), `delay` the seconds until the next
    line in a recorded queue (None where the column is missing), `fields` the values of the
    `key=value` fields as FIELDS reads them.
    """

    app: str
    procs: int
    seconds: float
    exclusive: bool = False
    delay: Optional[float] = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    assumed: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        """The line of a queue file that says this."""
        words = [self.app, str(self.procs), _plain(self.seconds), str(int(self.exclusive))]
        if self.delay is not None:
            words.append(_plain(self.delay))
        # `#x` would begin a comment; a quoted one does not.
        return " ".join([*map(shlex.quote, words),
                         *(f"{key}={shlex.quote(text)}" for key, value in self.fields.items()
                           for text in FIELDS[key].write(value))])


def _once(value: Any) -> List[str]:
    return [str(value)]


class _Entry(NamedTuple):
    """A column or field: the reader of its text (ValueError when it is wrong), what it wants, and
    the texts that say a value, several where it is `repeated`: then each is read as a pair, and
    the value is a mapping.
    """

    read: Callable[[str], Any]
    wanted: str
    write: Callable[[Any], List[str]] = _once
    repeated: bool = False


def _whole(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < 1:
        raise ValueError(text)
    return int(text)


def _number(text: str) -> float:
    if len(text) > 40 or not re.fullmatch(r"([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", text):
        raise ValueError(text)
    if float(text) > LONGEST_TIME:
        raise ValueError(text)
    return float(text)


def _time(text: str) -> float:
    if not 0 < seconds_of(text) <= LONGEST_TIME:
        raise ValueError(text)
    return seconds_of(text)


def _flag(text: str) -> bool:
    return {"0": False, "1": True}[text]


def _count(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,4}", text):
        raise ValueError(text)
    return int(text)


def _integer(text: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,9}", text):
        raise ValueError(text)
    return int(text)


_LIKE_IDS = re.compile(r"[0-9:,-]+")


def dependencies(text: str) -> tuple[Dependency, ...]:
    """What `after=` names: ids and ranges of them, or names of jobs, each perhaps behind `any:`."""
    found: Dict[Dependency, None] = {}
    total = 0
    for part in text.split(","):
        whatever = part.startswith("any:")
        what = part[4:] if whatever else part
        if _LIKE_IDS.fullmatch(what) or not what:
            ids = member_range(what)
            found[Dependency(ids, whatever)] = None
            total += len(ids)
        else:
            found[Dependency(range(0), whatever, _label(what))] = None
        if total > MOST_JOBS:
            raise LineError(f"after: `{show(text)}` names more than {MOST_JOBS} jobs")
    return tuple(found)


def _variable(text: str) -> Tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ValueError(text)
    if name.startswith("VRM_"):
        raise LineError(f"env: {show(name)} is one of the variables by which vrm knows its jobs; "
                        "take a name that does not begin with VRM_")
    return name, value


def _arguments(text: str) -> Tuple[str, ...]:
    words = tuple(shlex.split(text))
    if ":" in words:
        raise LineError("args: a `:` alone would begin a second program for mpirun; write it as a "
                        "part of another argument")
    return words


def _directory(text: str) -> str:
    if not 0 < len(text) <= 4096:
        raise ValueError(text)
    return text


def _label(text: str) -> str:
    if not text.isprintable() or not 0 < len(text) <= 64:
        raise ValueError(text)
    if _LIKE_IDS.fullmatch(text) or text.startswith("any:"):
        raise LineError(f"name: `{show(text)}` would be taken for ids in after=; put a letter "
                        f"before it: name=run{show(text)}")
    return text


def check_app(app: str) -> str:
    """The name of a program inside Applications.Path, unchanged; LineError when it leads out of
    there or could be taken for something else than a name.
    """
    inside = "it must be the name of a file that lies inside Applications.Path"
    if not app or app in (".", ".."):
        raise LineError(f"app: `{app}` names no file; {inside}; for example `{EXAMPLE}`")
    if "/" in app:
        raise LineError(f"app: `{show(app)}` is a path; {inside}, without a slash")
    if app.startswith("-"):
        raise LineError(f"app: `{show(app)}` begins with `-` and would be read as an option; "
                        f"{inside}")
    if not app.isprintable() or len(app) > 200:
        raise LineError(f"app: `{show(app)}` is longer than 200 characters or holds some that "
                        f"cannot be printed; {inside}")
    return app


COLUMNS: Dict[str, _Entry] = {
    "app": _Entry(check_app, "the name of a program"),
    "procs": _Entry(_whole, "a whole number of ranks, 1 or more"),
    "seconds": _Entry(_time, "the estimated run time above 0, a number of seconds (at most "
                      f"{LONGEST_TIME}) or as 90m, 2h, 1:30:00 or 1-12:00:00"),
    "exclusive": _Entry(_flag, "0 (may share its nodes) or 1 (may not)"),
    "delay": _Entry(_number, "the seconds until the next line, 0 or more and at most "
                    f"{LONGEST_TIME}"),
}

FIELDS: Dict[str, _Entry] = {
    "cores": _Entry(_whole, "the cores of each rank, a whole number, 1 or more"),
    "name": _Entry(_label, "a label of at most 64 printable characters"),
    "after": _Entry(dependencies, "the ids or the names of jobs that must have completed before, as "
                    "3,5-7 or prep, or any:3 however it ends",
                    lambda value: [",".join(map(str, value))]),
    "priority": _Entry(_integer, "a whole number; the jobs of a higher one come first"),
    "retries": _Entry(_count, "how often the job is tried again when it fails, 0 or more"),
    "env": _Entry(_variable, "a variable as NAME=VALUE (env= may be given several times)",
                  lambda value: [f"{name}={text}" for name, text in value.items()], repeated=True),
    "args": _Entry(_arguments, "arguments, quoted as a whole: args='-n 3'",
                   lambda value: [shlex.join(value)]),
    "dir": _Entry(_directory, "the directory to run in"),
    "array": _Entry(numbers, f"the indices of at most {MOST_JOBS} jobs, as 0-9:2,20",
                    lambda value: [fold(value)]),
    "hold": _Entry(_flag, "1 (the job waits for `vrm release`) or 0",
                   lambda value: [str(int(value))]),
}
"""The `key=value` fields: a new one is one line here."""


def parse_line(text: str) -> QueueLine:
    """The job that a line asks for; LineError when it is wrong, blank or only a comment."""
    words = words_of(text)
    if not words:
        raise LineError(f"the line names no job; a job is for example `{EXAMPLE}`")
    return job_of_words(words)


def job_of_words(words: List[str]) -> QueueLine:
    """The job that the words of a line ask for; LineError when they are wrong."""
    try:
        return _understood(words)
    except LineError as error:
        with contextlib.suppress(LineError):
            error.app = check_app(words[0])
        for word in words[1:]:
            with contextlib.suppress(ValueError):
                error.jobs = len(numbers(word[6:])) if word.startswith("array=") else error.jobs
        raise


def _understood(words: List[str]) -> QueueLine:
    entries = list(COLUMNS.items())
    values: Dict[str, Any] = {"delay": None}
    fields: Dict[str, Any] = {}
    for index, word in enumerate(words):
        key, is_field, value = word.partition("=")
        if index > 0 and (is_field or fields):
            if index < 2:
                break
            if not is_field:
                raise LineError(f"`{show(word)}` is after the key=value fields and is none; "
                                f"quote a value with blanks: name='run 1'")
            if key not in FIELDS:
                _refuse_field(key)
            read = _read(key, value, FIELDS[key])
            if FIELDS[key].repeated:
                name, value = read
                if name in fields.setdefault(key, {}):
                    raise LineError(f"{key}: `{show(name)}` is given twice")
                fields[key][name] = value
            elif key in fields:
                raise LineError(f"`{key}` is given twice")
            else:
                fields[key] = read
        elif index == len(entries):
            raise LineError(f"`{show(word)}` is one column too many; there are {_names()}, for "
                            f"example `{EXAMPLE}`, and then key=value fields")
        else:
            column, entry = entries[index]
            values[column] = _read(column, word, entry)
    if "procs" not in values:
        missing = [column for column in list(COLUMNS)[:2] if column not in values]
        raise LineError(f"{', '.join(missing)} missing; the columns are {_names()}, for example "
                        f"`{EXAMPLE}`")
    assumed = "seconds" not in values
    return QueueLine(fields=fields, assumed=assumed, **{"seconds": UNKNOWN_TIME, **values})


def _read(name: str, text: str, entry: _Entry) -> Any:
    try:
        return entry.read(text)
    except LineError:
        raise
    except (ValueError, KeyError):
        found = f"`{show(text)}`" if text else "nothing"
        raise LineError(f"{name}: found {found}, wanted {entry.wanted}; for example `{EXAMPLE}`"
                        ) from None


def _refuse_field(key: str) -> NoReturn:
    close = get_close_matches(key, FIELDS, 1)
    hint = f"did you mean `{close[0]}`?" if close else f"known are {', '.join(FIELDS)}"
    raise LineError(f"unknown field `{show(key)}`; {hint}")


def _names() -> str:
    return "app, procs and, if given, seconds, exclusive and delay"


# Blanks, a comment at the start of a word, a word; a lone quote or backslash is left to shlex.
_PART = re.compile(r"""[ \t]+|(#)|(?:'[^']*'|"(?:\\.|[^"\\])*"|\\.|[^ \t'"\\])+|.""", re.DOTALL)
_BLANKS = re.compile(r"[ \t]+")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]")
_QUOTING = re.compile(r"['\"\\]")


def words_of(text: str) -> List[str]:
    """The words of a line without its comment. LineError for open quotes and control characters."""
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
        return [word for word in _BLANKS.split(text) if word]  # the same, and much faster
    try:
        return shlex.split(text)
    except ValueError:
        raise LineError("a quote is not closed, or a backslash is at the end of the line"
                        ) from None


def show(text: str, longest: int = 60) -> str:
    """The text as a message may show it: short, and without what a terminal would obey."""
    return printable(text, longest)


def _plain(seconds: float) -> str:
    return str(int(seconds)) if float(seconds).is_integer() else repr(float(seconds))
