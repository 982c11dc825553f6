"""Kinds of values of job fields (`vrm.model.forms.fields`): how each is written to every form, and read from it."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, replace
from typing import Any
from collections.abc import Callable, Sequence

from vrm.model.forms import hosts
from vrm.model.forms import json_checks
from vrm.model.amounts import GPU, MEMORY, Amounts, amounts, said
from vrm.model.job import ANY, OK, START, Dependency
from vrm.model.quantities import MOST_JOBS, fold, member_range, memory_bytes, memory_text, numbers, seconds_of

EXAMPLE = "ft.B.x 8 60 0"

LONGEST_TIME = 1_000_000_000
"""Maximum seconds of an estimate or a delay: more than 31 years, and a table can still show it."""


class FieldError(ValueError):
    """A field cannot have this value; the message is for people. `{}` in it is a text of the user, which may contain
    characters that a terminal must not get: `said` inserts it."""

    def __init__(self, words: str, *texts: str) -> None:
        super().__init__(words, *texts)
        self._words, self._texts = words, texts

    def said(self, show: Callable[[str], str]) -> str:
        """Return the message with the texts inserted as `show` formats them."""
        return self._words.format(*map(show, self._texts))

    def __str__(self) -> str:
        return self.said(repr)


def same(value: Any) -> Any:
    """Return the value unchanged."""
    return value


def _once(value: Any) -> list[str]:
    return [str(value)]


def _flag_text(text: str) -> bool:
    if text not in ("0", "1", ""):
        raise FieldError("`{}` is neither 0 nor 1", text)
    return text == "1"


def _int_text(text: str) -> int:
    value = int(text)
    if not abs(value) <= 10 ** 15:
        raise FieldError("`{}` is too large", text)
    return value


@dataclass(frozen=True)
class Kind:
    """How the values of a field are written to each form, and read from it.

    In a queue line, values are texts: `write` returns them, several if the kind is `repeated` (then `read` returns a
    pair for each, and the value is a mapping). In a journal, a value is JSON, which `sound` checks. The plain form, a
    number, a text or a flag, is that of the state file and of `jobs.csv`, where `cell` reads it from its text. `read`
    raises ValueError or FieldError for a wrong text; so does `cell`.
    """

    read: Callable[[str], Any]
    sound: json_checks.Check
    write: Callable[[Any], list[str]] = _once
    repeated: bool = False
    to_record: Callable[[Any], Any] = same
    of_record: Callable[[Any], Any] = same
    plain: Callable[[Any], Any] = same
    of_plain: Callable[[Any], Any] = same
    cell: Callable[[str], Any] = same
    plain_sound: json_checks.Check = json_checks.line


def _number(pattern: str, least: int = -LONGEST_TIME) -> Callable[[str], int]:
    """Return a function that reads a number of this form."""
    def read(text: str) -> int:
        if not re.fullmatch(pattern, text) or int(text) < least:
            raise ValueError(text)
        return int(text)
    return read


_count = _number("[0-9]{1,4}")


def _time(text: str) -> float:
    if not 0 < seconds_of(text) <= LONGEST_TIME:
        raise ValueError(text)
    return seconds_of(text)


def _seconds(value: Any) -> bool:
    return json_checks.number(value) and 0 < value <= LONGEST_TIME


def _flag(text: str) -> bool:
    return {"0": False, "1": True}[text]


_LIKE_IDS = re.compile(r"[0-9:,-]+")


_KIND = re.compile(r"(?:(any|start|fail):)?(.*)", re.DOTALL)


def dependencies(text: str) -> tuple[Dependency, ...]:
    """Parse `after=`: ids and ranges of them, or names of jobs, each optionally with the prefix `any:`, `fail:` or
    `start:`; ids after `start:` may have a delay, as `start:3+5m`."""
    found: dict[Dependency, None] = {}
    total = 0
    for part in text.split(","):
        kind, what = _KIND.fullmatch(part).groups(OK)  # type: ignore[union-attr]
        ids, plus, time = what.partition("+") if kind == START else (what, "", "")
        if _LIKE_IDS.fullmatch(ids) or not ids:
            members = member_range(ids)
            found[Dependency(members, kind, delay=_time(time) if plus else 0.0)] = None
            total += len(members)
        else:
            found[Dependency(range(0), kind, _label(what))] = None
        if total > MOST_JOBS:
            raise FieldError(f"after: `{{}}` names more than {MOST_JOBS} jobs", text)
    return tuple(found)


def _after_text(value: Sequence[Dependency]) -> str:
    return ",".join(map(str, value))


def _after_of(record: Any) -> tuple[Dependency, ...]:
    """Read a text as in `after=`, or, as vrm 0.1.0 wrote it, a list of pairs: job id, and whether any end of it is
    enough."""
    if isinstance(record, list):
        return tuple(Dependency.on(job_id, ANY if whatever else OK) for job_id, whatever in record)
    return dependencies(record) if record else ()


def _pair(value: Any) -> bool:
    return (type(value) is list and len(value) == 2 and json_checks.count(value[0])
            and json_checks.flag(value[1]))


def _after_sound(value: Any) -> bool:
    try:
        return json_checks.list_of(_pair)(value) or (
            type(value) is str and all(each.ids for each in dependencies(value)))
    except ValueError:
        return False


_NAME_OF_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not _NAME_OF_VARIABLE.fullmatch(name):
        raise ValueError(text)
    if name.startswith("VRM_"):
        raise FieldError("env: {} is a variable that vrm sets; use a name "
                         "that does not begin with VRM_", name)
    return name, value


def _variables_sound(value: Any) -> bool:
    return type(value) is dict and all(
        _NAME_OF_VARIABLE.fullmatch(name) and not name.startswith("VRM_") and _path_sound(said)
        for name, said in value.items())


def _joined(words: Sequence[str]) -> str:
    """Join words as a shell would quote them, on one line."""
    return json_checks.CONTROL.sub("?", shlex.join(words))


def _arguments(text: str) -> tuple[str, ...]:
    words = tuple(shlex.split(text))
    if ":" in words:
        raise FieldError("args: a `:` alone would begin a second program for mpirun; write it as a "
                         "part of another argument")
    return words


def _directory(text: str) -> str:
    if not 0 < len(text) <= 4096:
        raise ValueError(text)
    return text


def _path_sound(value: Any) -> bool:
    return type(value) is str and "\0" not in value


def _label(text: str) -> str:
    if not text.isprintable() or not 0 < len(text) <= 64:
        raise ValueError(text)
    if _LIKE_IDS.fullmatch(text.replace("%i", "0")) or _KIND.fullmatch(text)[1]:  # type: ignore[index]
        raise FieldError("name: `{}` would be taken for ids in after=; put a letter before it: "
                         "name=run{}", text, text)
    return text


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")


def _word(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise ValueError(text)
    return text


def name_sound(value: Any) -> bool:
    """Return whether it can be the name of a queue, a feature, a resource or a licence."""
    return type(value) is str and bool(_NAME.fullmatch(value))


def _size_sound(value: Any) -> bool:
    return json_checks.size(value) and value > 0


_OWN_FIELD = {GPU: "gpus", "gpus": "gpus", MEMORY: "mem", "mem": "mem"}


def _amounts_text(value: Amounts) -> str:
    return ",".join(f"{name}:{said(name, amount)}" for name, amount in value)


def amounts_of(text: str) -> Amounts:
    """Parse `per_task=ssd:1,scratch:0.5`; a resource without a number counts as 1."""
    found: dict[str, float] = {}
    for part in text.split(","):
        name, colon, number = part.partition(":")
        if name in _OWN_FIELD:
            raise FieldError("`{}` has its own fields: "
                             f"{_OWN_FIELD[name]}_per_task= and {_OWN_FIELD[name]}_per_node=", name)
        if name in found:
            raise FieldError("`{}` is named twice", name)
        if colon and not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,3})?", number):
            raise ValueError(text)
        found[_word(name)] = float(number) if colon else 1.0
        if not found[name]:
            raise ValueError(text)
    return amounts(found)


def _licences_of(text: str) -> Amounts:
    found = amounts_of(text)
    if any(amount % 1000 for _, amount in found):
        raise ValueError(text)
    return found


def _sound_as(read: Callable[[str], Any]) -> json_checks.Check:
    """Return a check for values that are kept as a text which `read` accepts."""
    def sound(value: Any) -> bool:
        try:
            return type(value) is str and (read(value), True)[1]
        except ValueError:
            return False
    return sound


def texts(read: Callable[[str], Any], text: Callable[[Any], str]) -> Kind:
    """Return the kind of values that have the same text in all forms."""
    return Kind(read, _sound_as(read), lambda value: [text(value)], to_record=text, of_record=read, plain=text,
                of_plain=read)


def _features_of(text: str) -> frozenset[str]:
    return frozenset(map(_word, text.split(",")))


def _features_text(value: frozenset[str]) -> str:
    return ",".join(sorted(value))


def _hosts_of(text: str) -> frozenset[str]:
    return frozenset(hosts.expand(text))


_RANGE = re.compile(r"([0-9]{1,7})(?:(-)([0-9]{1,7})?)?")


def _nodes_of(text: str) -> tuple[int, int]:
    found = _RANGE.fullmatch(text)
    if not found:
        raise ValueError(text)
    least = int(found[1])
    most = int(found[3]) if found[3] else 0 if found[2] else least
    if least < 1 or (found[3] and most < least):
        raise ValueError(text)
    return least, most


def _nodes_text(value: tuple[int, int]) -> str:
    least, most = value
    return f"{least}" if least == most else f"{least}-{most or ''}"


def check_app(app: str) -> str:
    """Return the name of a program inside Applications.Path unchanged. Raises FieldError if it leads out of there or
    could be taken for something other than a name."""
    inside = "it must be the name of a file that lies inside Applications.Path"
    if not app or app in (".", ".."):
        raise FieldError(f"app: `{{}}` names no file; {inside}; for example `{EXAMPLE}`", app)
    if "/" in app:
        raise FieldError(f"app: `{{}}` is a path; {inside}, without a slash", app)
    if app.startswith("-"):
        raise FieldError(f"app: `{{}}` begins with `-` and would be read as an option; {inside}",
                         app)
    if not app.isprintable() or len(app) > 200:
        raise FieldError("app: `{}` is longer than 200 characters or holds some that cannot be "
                         f"printed; {inside}", app)
    return app


def _flag_write(value: bool) -> list[str]:
    return [str(int(value))]


APP = Kind(check_app, _sound_as(check_app))
WHOLE = Kind(_number("[0-9]{1,9}", 1), json_checks.positive, cell=_int_text, plain_sound=json_checks.count)
INTEGER = Kind(_number("[+-]?[0-9]{1,9}"), json_checks.whole, cell=_int_text, plain_sound=json_checks.whole)
COUNT = Kind(_count, json_checks.count, cell=_int_text, plain_sound=json_checks.count)
TIME = Kind(_time, _seconds, plain_sound=json_checks.number)
FLAG = Kind(_flag, json_checks.flag, _flag_write, cell=_flag_text, plain_sound=json_checks.flag)
LABEL = Kind(_label, json_checks.line)
PATH = Kind(_directory, _path_sound, plain_sound=json_checks.text)
AFTER = Kind(dependencies, _after_sound, lambda value: [_after_text(value)],
             to_record=_after_text, of_record=_after_of, plain=_after_text, of_plain=_after_of)
ARGUMENTS = Kind(_arguments, json_checks.list_of(_path_sound), lambda value: [shlex.join(value)],
                 to_record=list, of_record=tuple, plain=_joined,
                 of_plain=lambda text: tuple(shlex.split(text)))
VARIABLES = Kind(_variable, _variables_sound,
                 lambda value: [f"{name}={text}" for name, text in value.items()], repeated=True,
                 to_record=dict)
EACH = Kind(_directory, json_checks.list_of(_path_sound), to_record=list, of_record=tuple)
TEXT = Kind(same, json_checks.text, plain_sound=json_checks.text)
INDICES = Kind(numbers, _sound_as(numbers), lambda value: [fold(value)], to_record=fold,
               of_record=numbers)
NAME = Kind(_word, name_sound, plain_sound=name_sound)
MEMORY_SIZE = Kind(memory_bytes, _size_sound, lambda value: [memory_text(value)],
                   plain=lambda size: memory_text(size) if size else "", of_plain=memory_bytes)
AMOUNTS = texts(amounts_of, _amounts_text)
LICENCES = texts(_licences_of, _amounts_text)
FEATURES = texts(_features_of, _features_text)
HOSTS = texts(_hosts_of, hosts.fold)
NODES = replace(texts(_nodes_of, _nodes_text), plain=lambda value: "" if value == (1, 0) else _nodes_text(value))
AMOUNT = Kind(_time, _seconds, cell=float, plain_sound=json_checks.number)
EXPECTED = Kind(_time, json_checks.maybe(_seconds), cell=float, plain_sound=json_checks.maybe(json_checks.number))
INDEX = Kind(_count, json_checks.maybe(json_checks.count), cell=_int_text,
             plain_sound=json_checks.maybe(json_checks.count))
