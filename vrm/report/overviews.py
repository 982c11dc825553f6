"""Overviews of a run from extensions: tables that `vrm status` and `vrm top` show besides that of the nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple
from collections.abc import Collection, Mapping, Sequence

from vrm.system import plugins
from vrm.system.printing.output import boxed

GROUP = "vrm.overviews"
"""The entry points of functions that return an overview of a run, or None."""


class Overview(NamedTuple):
    """A table: a line above it, the names of its columns and its rows, the columns `left` that are left-aligned, and
    lines below it. `record` has all of it as JSON values. `command` shows it, too."""

    head: str
    names: Sequence[str]
    rows: Sequence[Sequence[str]]
    record: Mapping[str, Any]
    left: Collection[int] = ()
    below: Sequence[str] = ()
    command: str = ""

    def text(self) -> str:
        """Return the overview as text."""
        table = ["", boxed(self.names, self.rows, left=self.left)] if self.rows else []
        return "\n".join([self.head, *table, *self.below])

    def lines(self) -> list[str]:
        """Return the overview as lines, without borders around the table."""
        cells = [list(self.names), *map(list, self.rows)] if self.rows else []
        widths = [max(map(len, column)) for column in zip(*cells)]
        return [self.head, *("  ".join(cell.ljust(width) if at in self.left else cell.rjust(width)
                                       for at, (cell, width) in enumerate(zip(row, widths))).rstrip()
                             for row in cells), *self.below]


def overviews(directory: Path, log: Path) -> dict[str, Overview]:
    """Return the overviews of extensions by name, for the run in a `directory`, and the directory Log of its
    configuration. They only read files. For an extension that cannot be used, the overview is the reason."""
    found: dict[str, Overview] = {}
    for plugin in (*plugins.own(GROUP), *plugins.installed(GROUP)):
        try:
            shown = _of(plugin, directory, log)
        except plugins.PluginError as error:
            shown = Overview(str(error), (), (), {"trouble": str(error)})
        if shown is not None:
            found.setdefault(plugin.name, shown)
    return found


def _of(plugin: plugins.Plugin, directory: Path, log: Path) -> Overview | None:
    made = plugins.load(plugin)
    try:
        shown: Overview | None = made(directory, log)
    except Exception as error:  # foreign code, which may raise anything
        raise plugins.failed(plugin, error) from error
    return shown
