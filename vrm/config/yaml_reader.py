"""Read YAML as plain values with the lines of their keys, and check the values against a model, so that every mistake
is reported with file, line, key and the fix.

The reader returns only text and line numbers. The setting decides what a text means (a number, a path, a choice). So
`Nodes: "8"` and `Nodes: 8` are the same, and `no`, `010` or `1.10` reach a setting that holds text unchanged.
"""

from __future__ import annotations

import difflib
import os
import re
from dataclasses import dataclass, field, replace
from typing import (TYPE_CHECKING, Any, TypeVar, get_args)
from collections.abc import Callable, Iterator, Mapping

import yaml

from vrm.config.problems import ConfigError, Problem

if TYPE_CHECKING:  # imported only where values are checked: many commands just look up paths
    from pydantic import BaseModel

# The keys that lead to a value: ("Scheduling", "Algorithm"); entries of a list count from 0.
Location = tuple[str | int, ...]

# No setting lies deeper than NodeClasses, its number, Energy, Frequencies, its number.
_DEPTH = 5

Model = TypeVar("Model", bound="BaseModel")


@dataclass(frozen=True)
class Source:
    """Where settings were read. Not part of comparisons: settings with equal values are equal, whichever file they
    came from."""

    file: str = field(default="built-in defaults", compare=False)
    directory: str = field(default="", compare=False)  # for relative paths; "" = the current one
    lines: dict[Location, int] = field(default_factory=dict, compare=False)
    depth: int = field(default=_DEPTH, compare=False)  # levels of keys that are read

    def place(self, location: Location) -> str:
        line = self.lines.get(location)
        return self.file if line is None else f"{self.file}:{line}"


def shown(text: str, limit: int = 60) -> str:
    """Return the text so that it is safe for a terminal: control characters escaped, cut to `limit` characters."""
    safe = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return safe if len(safe) <= limit else safe[: limit - 3] + "..."


def found(value: Any) -> str:
    """Return what a message reports as found instead of the expected value."""
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return "a group of keys"
    if isinstance(value, (list, tuple)):
        return "a list" if value else "an empty list"
    return f'"{shown(str(value))}"'


@dataclass(frozen=True)
class Document:
    """A YAML file as mappings, lists, texts and None, with the lines of its keys; to be checked against a model, and
    for reporting mistakes that are found later."""

    mapping: dict[str, Any]
    source: Source
    problems: list[Problem]

    @classmethod
    def read(cls, path: str | os.PathLike[str], depth: int = _DEPTH,
             example: str = "Nodes: 8") -> Document:
        """Read a file; groups of keys are nested at most `depth` levels deep. Raises ConfigError if it is not YAML
        with keys; other mistakes are kept for `checked`."""
        file = os.fsdecode(path)
        root = _composed(_text(file), file)
        directory = os.path.dirname(os.path.abspath(file))
        source = Source(file=file, directory=directory, depth=depth)
        problems: list[Problem] = []
        if root is None or _is_empty(root):
            return cls({}, source, problems)
        if not isinstance(root, yaml.MappingNode):
            kind = "a list" if isinstance(root, yaml.SequenceNode) else "text"
            message, line = f"found {kind}, wanted keys with values", root.start_mark.line + 1
            raise _unreadable(file, message, f"for example {example}", line)
        return cls(_plain(root, (), source, problems), source, problems)

    @classmethod
    def nothing(cls, directory: str) -> Document:
        """Return an empty document for the defaults; relative paths start at `directory`."""
        return cls({}, Source(directory=directory), [])

    def checked(self, model: type[Model]) -> Model:
        """Return the file's values as a model. Raises ConfigError with all mistakes."""
        return validated(model, self.mapping, self.source, self.problems)

    def placed(self, model: type[Model], mapping: dict[str, Any],
               places: Mapping[Location, Location]) -> Model:
        """Return a model of another mapping that was made from this file: `places` maps its keys to their places in
        the file. Relative paths are relative to the file's directory. Raises ConfigError."""
        lines = {key: self.source.lines[place] for key, place in places.items()
                 if place in self.source.lines}
        return validated(model, mapping, replace(self.source, lines=lines), [])

    def problem(self, location: Location, message: str, hint: str = "") -> Problem:
        """Return a problem with the value at a location of the file."""
        return Problem(self.source.file, self.source.lines.get(location), dotted(location),
                       message, hint)


def _text(file: str) -> str:
    """Return the file's text. Raises ConfigError with the reason if it cannot be read."""
    try:
        with open(file, "rb") as stream:
            content = stream.read()
    except FileNotFoundError:
        raise _unreadable(file, "no such file", _similar_file(file)) from None
    except IsADirectoryError:
        raise _unreadable(file, "is a directory", "name a YAML file inside it") from None
    except PermissionError:
        hint = "make it readable, for example with chmod u+r"
        raise _unreadable(file, "permission denied", hint) from None
    except OSError as error:
        raise _unreadable(file, reason(error), "check the path") from None
    except ValueError:  # a NUL character in it
        raise _unreadable(shown(file), "no file can have this name", "check the path") from None
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        hint = "save the file with the encoding UTF-8"
        raise _unreadable(file, "not UTF-8 text", hint, line) from None


def reason(error: OSError) -> str:
    """Return the system's error message in lower case."""
    return (error.strerror or str(error)).lower()


def _unreadable(file: str, message: str, hint: str, line: int | None = None) -> ConfigError:
    """Return the error of a mistake that prevents further checks."""
    return ConfigError([Problem(file, line, "", message, hint)])


def _similar_file(file: str) -> str:
    folder, name = os.path.split(file)
    try:
        others = [other for other in os.listdir(folder or ".") if other.endswith((".yaml", ".yml"))]
    except OSError:
        return "the directory is not there either; check the path"
    close = difflib.get_close_matches(name, sorted(others), n=1, cutoff=0.5)
    return f"did you mean {os.path.join(folder, close[0])}?" if close else "check the path"


class _Reader(yaml.SafeLoader):
    """PyYAML's reader, extended to accept all tabs that YAML allows: between a value and its comment, and anywhere
    else where they do not indent."""

    def scan_to_next_token(self) -> None:
        super().scan_to_next_token()
        while self.peek() == "\t":
            length = 1
            while self.peek(length) in " \t":
                length += 1
            line_so_far = self.buffer[self.pointer - self.column : self.pointer]
            indents = not self.flow_level and not line_so_far.strip()
            if indents and self.peek(length) not in "#\r\n\0":
                return  # an indenting tab: PyYAML's complaint is right
            self.forward(length)
            super().scan_to_next_token()


# PyYAML's text for a mistake; vrm's text; the fix; whether the mistake begins at PyYAML's context mark.
_SYNTAX = [
    (r"character '\\t'", "a tab is used to indent", "indent with spaces", False),
    (
        r"character '[@`%]'",
        "a value cannot begin with this character",
        "put the value in quotes",
        False,
    ),
    (
        r"mapping values are not allowed",
        "a key and its colon are out of place",
        "indent the keys of a group alike, end every key with a colon, "
        "and put a value that contains ': ' in quotes",
        False,
    ),
    (
        r"found '(\?|-|<block mapping start>)'",
        "this line does not go with the lines above",
        "indent the keys of a group alike; a group is either keys or a list",
        False,
    ),
    (
        r"sequence entries are not allowed",
        "a value cannot begin with '- '",
        "put the value in quotes",
        False,
    ),
    (
        r"undefined alias|while scanning an alias",
        "a value that begins with * is the name of an anchor, and this anchor does not exist",
        "put the value in quotes",
        False,
    ),
    (
        r"quoted scalar.*unexpected end",
        "the quote that opens here is never closed",
        "close it",
        True,
    ),
    (
        r"expected ',' or '[]}]'",
        "the bracket that opens here is never closed",
        "close it, or put the value in quotes",
        True,
    ),
    (
        r"unknown escape character",
        "double quotes give the backslash a meaning, and this one has none",
        "use single quotes",
        False,
    ),
    (r"could not find expected ':'", "a key without a colon", "write Key: value", True),
    (r"single document", "a second document begins here", "keep one, without '---'", False),
    (
        r"found '<scalar>'",
        "there is more behind the end of the value",
        "put the whole value in one pair of quotes",
        False,
    ),
    (
        r"found '[],}:]'",
        "a bracket, comma or colon is where a value should be",
        "put the value in quotes",
        False,
    ),
]


def _composed(text: str, file: str) -> yaml.Node | None:
    """Return the YAML tree with line marks. Raises ConfigError with line and column if the text is not YAML."""
    try:
        return yaml.compose(text, Loader=_Reader)
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        message = f"character U+{error.character:04X} is not allowed there"
        hint = "remove it"
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        words = ": ".join(part for part in (error.context, error.problem) if part)
        message, hint = words, ""
        for pattern, ours, mend, look_back in _SYNTAX:
            if re.search(pattern, words):
                message, hint = ours, mend
                mark = error.context_mark if look_back and error.context_mark else mark
                break
        line, column = (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)
    except RecursionError:
        hint = "no setting needs more than four levels"
        raise _unreadable(file, "nested too deeply", hint) from None
    raise _unreadable(file, f"not valid YAML at column {column}: {message}", hint, line)


def _is_empty(node: yaml.Node) -> bool:
    """Return whether the node is empty. A lone ~ is not empty: it is the home directory."""
    null = isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null"
    return null and node.value != "~"


def _plain(node: yaml.Node, location: Location, source: Source, problems: list[Problem]) -> Any:
    """Return the node as mappings, lists, texts and None; records the lines of its keys in `source`."""

    def complain(node: yaml.Node, location: Location, message: str, hint: str) -> None:
        line = node.start_mark.line + 1
        problems.append(Problem(source.file, line, dotted(location), message, hint))

    if not node.tag.startswith("tag:yaml.org,2002:"):
        complain(node, location, f"{shown(node.tag)} is a tag, and none has a meaning here",
                 "put the value in quotes, or remove the tag")
    if isinstance(node, yaml.ScalarNode):
        if _is_empty(node):
            return None
        if _unusable(node.value):
            complain(node, location, "contains a character that no path or argument can hold", "remove it")
        return node.value.encode(errors="replace").decode()  # a lone surrogate is not Unicode, and cannot be printed
    if len(location) >= source.depth:
        return {} if isinstance(node, yaml.MappingNode) else []
    if isinstance(node, yaml.SequenceNode):
        entries = []
        for number, entry in enumerate(node.value):
            source.lines[location + (number,)] = entry.start_mark.line + 1
            entries.append(_plain(entry, location + (number,), source, problems))
        return entries
    return _mapping(node, location, source, problems, complain)


def _mapping(node: Any, location: Location, source: Source, problems: list[Problem],
             complain: Callable[[yaml.Node, Location, str, str], None]) -> dict[str, Any]:
    """Return the keys of a mapping with their values."""
    mapping: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = key_node.value
        if not isinstance(key, str) or _unusable(key):
            complain(key_node, location, "a key must be plain text", "write Key: value")
            continue
        at = location + (key,)
        if key in mapping:
            message = f"written twice, first in line {source.lines[at]}"
            complain(key_node, at, message, "keep one of them")
            continue
        source.lines[at] = key_node.start_mark.line + 1
        mapping[key] = _plain(value_node, at, source, problems)
    return mapping


def _unusable(text: str) -> bool:
    return any(c == "\0" or "\ud800" <= c <= "\udfff" for c in text)


def dotted(location: Location) -> str:
    """Return the name of a key with its sections: `Allocation.Policy`."""
    return ".".join(shown(part) for part in location if isinstance(part, str))


# ----------------------------------------------------------------------------------- checking


def validated(model: type[Model], mapping: dict[str, Any], source: Source,
               problems: list[Problem]) -> Model:
    """Return a model of plain values. Raises ConfigError with `problems` and all mistakes found here."""
    from pydantic import ValidationError

    try:
        settings = model.model_validate(mapping, context=source)
    except ValidationError as error:
        # A default that depends on a wrong value is not a separate mistake.
        problems += [_problem(part, source, model)
                     for part in error.errors(include_url=False, include_input=False)
                     if part["type"] != "default_factory_not_called"]
    if problems:
        raise ConfigError(sorted(problems, key=lambda problem: problem.line or 0))
    return settings


def _problem(error: Any, source: Source, model: type[BaseModel]) -> Problem:
    """Return one validation error as a problem with its line."""
    location: Location = error["loc"]
    in_key = location[-1:] == ("[key]",) and location not in source.lines
    if in_key:  # pydantic's mark for the name itself, in a mapping that takes any name
        location = location[:-1]
    context = error.get("ctx", {})
    line, key = source.lines.get(location), dotted(location)
    if error["type"] == "missing":
        line = next((source.lines[location[:length]] for length in range(len(location), 0, -1)
                     if location[:length] in source.lines), None)
        return Problem(source.file, line, key, "this key has no default", "write it")
    if error["type"] == "extra_forbidden":
        return Problem(source.file, line, key, *_unknown(location, model))
    message = context.get("message", error["msg"])
    hint = context.get("hint", "")
    if "example" in context:
        names = [part for part in location if isinstance(part, str)]
        name = names[-2] if in_key else names[-1]
        hint = f"for example {shown(name)}: {context['example']}"
    if isinstance(location[-1], int):
        message = f"entry {location[-1] + 1}: {message}"
    return Problem(source.file, line, key, message, hint)


def keys(model: Any) -> list[str]:
    """Return the names of a section's keys, as users write them."""
    return [info.alias for info in model.model_fields.values()]


def _levels(model: type[BaseModel], name: str = "") -> Iterator[tuple[str, list[str]]]:
    """Yield the name of every section (the top level is "") and its keys."""
    yield name, keys(model)
    for info in model.model_fields.values():
        inner = _section(info.annotation)
        if inner is not None:
            yield from _levels(inner, info.alias or "")


def _section(annotation: Any) -> type[BaseModel] | None:
    """Return the model of a section, also for a list of them; None if there is none."""
    from pydantic import BaseModel

    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_section, get_args(annotation))), None)


def _unknown(location: Location, model: type[BaseModel]) -> tuple[str, str]:
    """Return what is wrong with an unknown key, and the fix."""
    from vrm.config.paths import OF_EXTENSIONS

    name = str(location[-1])
    extension = next((each for key, each in OF_EXTENSIONS.items() if name == key.rpartition(".")[2]), "")
    if not extension or any(name in keys for _, keys in _levels(model)):
        return "unknown key", _meant(location, model)
    return (f"the extension {extension} of vrm, which adds it, is not in this installation (vrm/ext)",
            "install vrm again, with all its files (docs/guide/install.md)")


def _meant(location: Location, model: type[BaseModel]) -> str:
    """Return a hint for an unknown key: the right spelling, the right place, or the list of keys."""
    wrong = str(location[-1]).lower()
    levels = dict(_levels(model))
    # In a mapping that accepts any name, the mapping's own name determines the keys.
    here = next((part for part in reversed(location[:-1]) if part in levels), "")
    spelling = {key.lower(): key for key in levels[here]}
    if wrong in spelling:
        return f"upper and lower case matter: write {spelling[wrong]}"
    for level, keys in levels.items():
        if str(location[-1]) in keys:
            return f"it belongs under {level}" if level else "it belongs at the top level"
    close = difflib.get_close_matches(wrong, spelling, n=1, cutoff=0.7)
    if close:
        return f"did you mean {spelling[close[0]]}?"
    elsewhere = {
        key.lower(): f"{level}.{key}" if level else key
        for level, keys in levels.items()
        for key in keys
    }
    close = difflib.get_close_matches(wrong, elsewhere, n=1, cutoff=0.7)
    if close:
        return f"did you mean {elsewhere[close[0]]}?"
    return f"the keys {'of ' + here if here else 'at the top level'} are {', '.join(levels[here])}"
