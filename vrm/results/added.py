"""Columns of `jobs.csv` that extensions add: entry points of the group `vrm.columns`, each a function `(row)` that
gives a text, a number or None of a job that has ended (`vrm.results.jobs.JobRow`)."""

from __future__ import annotations

import re
import sys
from typing import Any
from collections.abc import Callable

from vrm.results.job_columns import COMPUTED, NAMES
from vrm.system import plugins

_NAME = re.compile("[a-z][a-z0-9_]{0,63}")


def load_columns() -> None:
    """Load all columns of extensions. Of what cannot be used, a line is printed on standard error."""
    plugins.use("vrm.columns", frozenset(NAMES), _enter)


def _enter(plugin: plugins.Plugin, column: Callable[[Any], Any]) -> None:
    if not _NAME.fullmatch(plugin.name):
        raise ValueError(f"`{plugin.name}` is not a name of small letters, digits and _")
    COMPUTED.setdefault(plugin.name, _guarded(plugin, column))


def _guarded(plugin: plugins.Plugin, column: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The function, whose value is None from the first time on that it raises something, which is reported once."""
    broken = False

    def value(row: Any) -> Any:
        nonlocal broken
        if broken:
            return None
        try:
            found = column(row)
            if not (found is None or isinstance(found, (str, int, float))):
                raise TypeError(f"it gives {type(found).__name__}, wanted a text, a number or None")
        except Exception as error:  # it is somebody else's program, which may raise anything
            broken = True
            print(f"vrm: {plugins.failed(plugin, error)}; the column is empty from here on", file=sys.stderr)
            return None
        return found
    return value
