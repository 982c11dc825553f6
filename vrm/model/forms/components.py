"""The programs of a coupled job, as people write them: `ocean.x 8 : atmos.x 16 cores=2 args='-n 3'`.

After its name, each program has its number of ranks, and then fields of its own, as in a line of a queue file.
"""

from __future__ import annotations

import shlex
from itertools import groupby
from typing import Any
from collections.abc import Mapping, Sequence

from vrm.model.forms.field_types import FieldError, Kind, check_app, texts
from vrm.model.job import Component, Request, together

Fields = Mapping[str, Any]
"""The fields that a program may have (`vrm.model.forms.fields.Field`), by their words."""


def kind(fields: Fields) -> Kind:
    """Return the kind for the programs of a coupled job."""
    return texts(lambda text: _read(text, fields), lambda components: _written(components, fields))


def whole(ranks: int, exclusive: bool, asked: Mapping[str, Any], components: Sequence[Component]) -> Request:
    """Return the request of a coupled job with `ranks` ranks. Raises ValueError if its line does not agree with its
    programs, or requests something that must be requested for each program."""
    there = sum(each.request.tasks for each in components)
    if there != ranks:
        raise ValueError(f"coupled: its programs have {there} ranks in all, and the line says {ranks}")
    for name, value in asked.items():
        if value not in (0, (), frozenset(), _ANY_NODES) and name != "licences":
            raise ValueError(f"coupled: `{name}` is to be said of each program, behind its ranks")
    parts = [each.request._replace(exclusive=exclusive or each.request.exclusive) for each in components]
    return together(parts, asked.get("licences", ()))


def _read(text: str, fields: Fields) -> tuple[Component, ...]:
    words = shlex.split(text)
    groups = [list(each) for colon, each in groupby(words, lambda word: word == ":") if not colon]
    if len(groups) < 2 or len(groups) != words.count(":") + 1:
        raise FieldError("coupled: `{}` are not two programs or more with a colon between them, such as "
                         "'ocean.x 8 : atmos.x 16 cores=2'", text)
    return tuple(_component(words, fields) for words in groups)


def _component(words: Sequence[str], fields: Fields) -> Component:
    app, *rest = words
    file = app if "/" in app else ""
    app = check_app(app.rpartition("/")[2])
    if not rest or "=" in rest[0]:
        raise FieldError("coupled: the ranks of `{}` are missing; write for example `ocean.x 8`", app)
    ranks = _value("procs", rest[0], app, fields)
    values: dict[str, Any] = {}
    for word in rest[1:]:
        name, equals, value = word.partition("=")
        if not equals or name not in fields or name == "procs":
            known = ", ".join(each for each in fields if each != "procs")
            raise FieldError(f"coupled: `{{}}` of `{{}}` is none of {known}", word, app)
        if name in values:
            raise FieldError(f"coupled: `{{}}` has {name} twice", app)
        values[name] = _value(name, value, app, fields)
    arguments = values.pop("args", ())
    cores, exclusive = values.pop("cores", 1), values.pop("exclusive", False)
    try:
        request = Request.of_fields(ranks, cores, exclusive, {fields[name].at: value for name, value in values.items()})
    except ValueError as error:
        raise FieldError(f"coupled: `{{}}`: {error}", app) from None
    return Component(app, request, arguments, file)


def _value(name: str, text: str, app: str, fields: Fields) -> Any:
    try:
        return fields[name].kind.read(text)
    except FieldError:
        raise
    except (ValueError, KeyError):
        raise FieldError(f"coupled: {name} of `{{}}` is `{{}}`, wanted {fields[name].wanted}", app, text) from None


_ANY_NODES = (1, 0)

_AT = {"procs": "tasks", "cores": "cores_per_task"}
"""The names in a request of what has another name in a job."""


def _written(components: Sequence[Component], fields: Fields) -> str:
    return " : ".join(shlex.join(_words(each, fields)) for each in components)


def _words(component: Component, fields: Fields) -> list[str]:
    request = component.request
    words = [component.file or component.app, str(request.tasks)]
    for word, field in fields.items():
        value = component.arguments if word == "args" else getattr(request, _AT.get(word, field.at))
        if word != "procs" and value != field.default:
            words += [f"{word}={text}" for text in field.kind.write(value)]
    return words
