"""Columns of `jobs.csv` that extensions add: entry points of the group `vrm.columns`. Each is a function `(row)` that
returns a text, a number or None for an ended job (`vrm.results.jobs.JobRow`)."""

from __future__ import annotations

import re
import sys
from typing import Any
from collections.abc import Callable

from vrm.results.job_columns import COMPUTED, NAMES
from vrm.system import plugins

_NAME = re.compile("[a-z][a-z0-9_]{0,63}")


def load_columns() -> None:
    """Load all columns of extensions. For each one that cannot be used, print a line on standard error."""
    plugins.use("vrm.columns", frozenset(NAMES), _enter)


def _enter(plugin: plugins.Plugin, column: Callable[[Any], Any]) -> None:
    if not _NAME.fullmatch(plugin.name):
        raise ValueError(f"`{plugin.name}` is not a name of small letters, digits and _")
    COMPUTED.setdefault(plugin.name, _guarded(plugin, column))


def _guarded(plugin: plugins.Plugin, column: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return the function with protection: after its first exception, which is reported once, its value is None."""
    broken = False

    def value(row: Any) -> Any:
        nonlocal broken
        if broken:
            return None
        try:
            found = column(row)
            if not (found is None or isinstance(found, (str, int, float))):
                raise TypeError(f"it gives {type(found).__name__}, wanted a text, a number or None")
        except Exception as error:  # foreign code, which may raise anything
            broken = True
            print(f"vrm: {plugins.failed(plugin, error)}; the column is empty from here on", file=sys.stderr)
            return None
        return found
    return value
