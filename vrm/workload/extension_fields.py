"""Job fields that extensions add: entry points of the group `vrm.fields`. Each is a function without arguments that
returns a `vrm.model.forms.fields.Field` of the same name. A field is loaded when a line, an option or a journal uses
its name."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from vrm.model.forms.fields import ADDED, JOB, NO_COLUMN, TABLE, Field, Option
from vrm.system import plugins

TAKEN = frozenset(name.lower() for each in TABLE
                  for name in (each.word, each.at, each.record, each.shown, each.column) if name)
"""Names that no extension may use."""

_WORD = re.compile("[a-z][a-z0-9_]{0,63}")


def added(word: str) -> Field | None:
    """Return the field that an extension adds under this name; None if there is none. Raises PluginError."""
    if word in ADDED or not _WORD.fullmatch(word):
        return ADDED.get(word)
    plugin = plugins.find("vrm.fields", word)
    if plugin is None or plugin.name != word:
        return None
    if word in TAKEN:
        raise plugins.PluginError(plugins.clash(plugin, TAKEN))
    made = plugins.load(plugin)
    try:
        return _enter(plugin, made)
    except Exception as error:  # foreign code, which may raise anything
        raise plugins.failed(plugin, error) from error


def load_all() -> None:
    """Load all fields of extensions. For each one that cannot be used, print a line on standard error."""
    plugins.use("vrm.fields", TAKEN, _enter)


def _enter(plugin: plugins.Plugin, make: Any) -> Field:
    if plugin.name in ADDED:
        return ADDED[plugin.name]
    field = make()
    if not isinstance(field, Field) or field.word != plugin.name or not _WORD.fullmatch(field.word):
        raise TypeError(f"it gives no vrm.model.forms.fields.Field whose word is `{plugin.name}`, of letters, digits, "
                        "_")
    if field.kind.repeated:
        raise TypeError("the kind of its values is one that a line may give several times")
    word = field.word
    ADDED[word] = found = replace(
        field, kept=JOB, attribute="", always=False, record=word, shown=word,
        column="" if field.column == NO_COLUMN else word,
        option=field.option or Option("VALUE", field.wanted), package=plugin.package)
    return found
