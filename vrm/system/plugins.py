"""Finds and loads the extensions of vrm, both installed packages and vrm's own: entry points of the groups in GROUPS.

A package declares what it adds in its metadata, for example in pyproject.toml:

    [project.entry-points."vrm.orderings"]
    widest = "my_policies:widest"

vrm's own extensions are declared in a file of the same format, `vrm/ext/entry_points.ini`.

Only these declarations are read at first; a module is imported when what it adds is used. vrm's own names come first,
and no package can replace one. A package in a place where others may write is refused, unless vrm itself is in that
place.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.machinery
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple
from collections.abc import Callable, Container

from vrm import __version__
from vrm.system.trust import distrust
from vrm.system.errors import UserError

GROUPS: dict[str, str] = {
    "vrm.orderings": "ordering", "vrm.dispatchers": "backfilling", "vrm.placements": "placement policy",
    "vrm.eligibilities": "eligibility of nodes", "vrm.node_orders": "node order", "vrm.shares": "share of a node",
    "vrm.estimators": "estimator", "vrm.launchers": "launcher", "vrm.batch_systems": "batch system",
    "vrm.transports": "transport to nodes",
    "vrm.engines": "engine of simulations", "vrm.formats": "workload format", "vrm.workloads": "workload that is drawn",
    "vrm.commands": "command", "vrm.options": "option", "vrm.readers": "reader of measurements",
    "vrm.heatmaps": "heatmap that is made",
    "vrm.speeds": "model of speeds",
    "vrm.parts": "part of the manager", "vrm.dialects": "commands of a batch system", "vrm.fields": "job field",
    "vrm.keys": "configuration key", "vrm.constraints": "constraint on starts", "vrm.columns": "column of jobs.csv",
    "vrm.overviews": "table around a run", "vrm.objectives": "objective of advice"}
"""The groups of entry points, and what one entry of each adds."""

MISSING = ("of vrm's extensions, which are not in this installation (vrm/ext); install vrm again, with all its files "
           "(docs/guide/install.md)")
"""End of the message if one of vrm's own extensions is missing."""

DECLARED = Path(__file__).parents[1] / "ext" / "entry_points.ini"
"""The file that declares vrm's own extensions. Without the file, or without the folder, vrm works without them."""


class PluginError(UserError, ValueError):
    """An extension of a package cannot be used; the text names the package and says why and what to do."""


class Plugin(NamedTuple):
    """A name that an extension adds to a group, and its object, as `module:object`. The `package` of vrm's own
    extensions is vrm."""

    group: str
    name: str
    path: str
    package: str
    version: str

    @property
    def origin(self) -> str:
        """Package, version and object, such as `vrm-example 1.0 (vrm_example:widest)`."""
        return f"{self.package} {self.version} ({self.path})"

    @property
    def foreign(self) -> bool:
        """Whether an installed package adds it, not vrm."""
        return self.package != "vrm"


@functools.cache
def _declared(file: Path) -> dict[str, tuple[Plugin, ...]]:
    """Return the plugins that a file like DECLARED adds, by group, in the order of the file; {} if there is no such
    file."""
    from configparser import ConfigParser

    found = ConfigParser(delimiters=("=",), comment_prefixes=("#",), interpolation=None)
    found.optionxform = str  # type: ignore[assignment,method-assign]
    found.read(file, encoding="utf-8")
    return {group: tuple(Plugin(group, name, path, "vrm", __version__) for name, path in found[group].items())
            for group in found.sections()}


def own(group: str) -> tuple[Plugin, ...]:
    """Return what vrm's own extensions add to a group, in the order of their file."""
    return _declared(DECLARED).get(group, ())


def find_own(group: str, name: str) -> Plugin | None:
    """Return the plugin of vrm's own extensions with this name in a group (upper and lower case are equal); None if
    there is none."""
    return next((plugin for plugin in own(group) if plugin.name.lower() == name.lower()), None)


@functools.cache
def _any_installed() -> bool:
    """Return whether a package may add something: on most machines none does, and to load all metadata takes longer."""
    for place in sys.path:
        try:
            for name in os.listdir(place or "."):
                if name.endswith((".dist-info", ".egg-info")):
                    with contextlib.suppress(OSError), open(f"{place or '.'}/{name}/entry_points.txt", "rb") as file:
                        if b"[vrm." in file.read().replace(b" ", b""):
                            return True
        except NotADirectoryError:
            return True  # an archive, perhaps
        except OSError:
            continue
    return False


@functools.cache
def installed(group: str) -> tuple[Plugin, ...]:
    """Return what packages add to a group, ordered by name."""
    if not _any_installed():
        return ()
    from importlib.metadata import entry_points  # this import takes longer than most commands

    return tuple(sorted(Plugin(group, point.name, point.value, point.dist.name, point.dist.version)
                        for point in entry_points(group=group) if point.dist is not None))


def find(group: str, name: str) -> Plugin | None:
    """Return the plugin with this name in a group (upper and lower case are equal); None if there is none. vrm's own
    come first. Raises PluginError if two packages have one."""
    mine = find_own(group, name)
    if mine is not None:
        return mine
    found = [plugin for plugin in installed(group) if plugin.name.lower() == name.lower()]
    if len(found) > 1:
        raise PluginError(f"the {GROUPS[group]} `{name}` is in two packages, {found[0].origin} and {found[1].origin}; "
                          "uninstall one of them")
    return found[0] if found else None


def load(plugin: Plugin) -> Any:
    """Return the function or class of a plugin. Raises PluginError if it cannot be loaded, or if its place is not
    trusted."""
    module, _, name = plugin.path.partition(":")
    reason = _untrusted(module.partition(".")[0])
    if reason:
        raise PluginError(f"{plugin.origin}: {reason}")
    try:
        found = functools.reduce(getattr, name.split("."), import_module(module))
    except Exception as error:  # a package's program may raise anything
        raise failed(plugin, error) from error
    if not callable(found):
        raise PluginError(f"{plugin.origin} is not callable; update or uninstall {plugin.package}")
    return found


def need(group: str, name: str) -> Any:
    """Return the function or class with this name in a group. Raises PluginError if there is none, or if it cannot be
    loaded."""
    plugin = find(group, name)
    if plugin is None:
        raise PluginError(f"the {GROUPS[group]} `{name}` is one {MISSING}")
    return load(plugin)


def use(group: str, taken: Container[str], enter: Callable[[Plugin, Any], object]) -> None:
    """Load everything that extensions add to a group, vrm's own first, and call `enter` for each; names that are
    `taken` are refused. For each plugin that cannot be used a line is printed on standard error."""
    for plugin in (*own(group), *installed(group)):
        try:
            trouble = clash(plugin, taken)
            if trouble:
                raise PluginError(trouble)
            made = load(plugin)
            try:
                enter(plugin, made)
            except Exception as error:
                raise failed(plugin, error) from error
        except PluginError as error:
            print(f"vrm: {error}", file=sys.stderr)


def clash(plugin: Plugin, taken: Container[str]) -> str:
    """Return why a name cannot be used: vrm, or another package, has it, too; "" if neither has."""
    if plugin.name.lower() in taken or find_own(plugin.group, plugin.name) not in (None, plugin):
        return (f"{plugin.origin} adds the {GROUPS[plugin.group]} `{plugin.name}`, and vrm has one of that name, which "
                "is used; the package must give it another name")
    try:
        find(plugin.group, plugin.name)
    except PluginError as error:
        return str(error)
    return ""


def failed(plugin: Plugin, error: Exception) -> PluginError:
    """Return the error for an exception that a package's own program has raised."""
    return PluginError(f"{plugin.origin} failed: {type(error).__name__}: {error}; update or uninstall {plugin.package}")


def _untrusted(package: str) -> str:
    """Return why the files of a package must not be loaded, "" if they may."""
    spec = importlib.machinery.PathFinder.find_spec(package)
    if spec is None:
        return ""  # its import reports that
    folders = [Path(place) for place in spec.submodule_search_locations or ()]
    places = [place for folder in folders for place in (folder.parent, folder)]
    if spec.origin is not None and not folders:
        places.append(Path(spec.origin).parent)
    if Path(__file__).parents[2] in places:
        return ""
    places += [place / "__pycache__" for place in places]
    allow = "install the package elsewhere"
    reasons = [distrust(spec.origin, allow=allow)] if spec.origin is not None else []
    reasons += [distrust(place, allow=allow, home=True) for place in places]
    return next(filter(None, reasons), "")
