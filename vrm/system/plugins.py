"""What extensions add to vrm, installed packages and vrm's own: entry points of the groups in GROUPS.

A package names what it adds in its metadata, as in pyproject.toml:

    [project.entry-points."vrm.orderings"]
    widest = "my_policies:widest"

vrm's own extensions do so in a file of the same form, `vrm/ext/entry_points.ini`.

Only these names are read; a module is imported when what it adds is used. vrm's own names come first, and no package
takes the place of one. A package that lies where others may write is refused, unless vrm itself lies there.
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
"""The groups of entry points, and what one of each is."""

MISSING = ("of vrm's extensions, which are not in this installation (vrm/ext); install vrm again, with all its files "
           "(docs/guide/install.md)")
"""What is wrong where something of vrm's own is not there."""

DECLARED = Path(__file__).parents[1] / "ext" / "entry_points.ini"
"""What vrm's own extensions add. A vrm without the file, or without the folder, works and has none of it."""


class PluginError(ValueError):
    """What a package adds cannot be used; the text names the package and says why and what to do."""


class Plugin(NamedTuple):
    """A name that an extension adds to a group, and the `module:object` that it stands for. The `package` of vrm's own
    extensions is vrm."""

    group: str
    name: str
    path: str
    package: str
    version: str

    @property
    def origin(self) -> str:
        """As `vrm-example 1.0 (vrm_example:widest)`."""
        return f"{self.package} {self.version} ({self.path})"


@functools.cache
def _declared(file: Path) -> dict[str, tuple[Plugin, ...]]:
    """What a file as DECLARED adds, by group, in its order; nothing where there is no such file."""
    from configparser import ConfigParser

    found = ConfigParser(delimiters=("=",), comment_prefixes=("#",), interpolation=None)
    found.optionxform = str  # type: ignore[assignment,method-assign]
    found.read(file, encoding="utf-8")
    return {group: tuple(Plugin(group, name, path, "vrm", __version__) for name, path in found[group].items())
            for group in found.sections()}


def own(group: str) -> tuple[Plugin, ...]:
    """What vrm's own extensions add to a group, in the order of their file."""
    return _declared(DECLARED).get(group, ())


def find_own(group: str, name: str) -> Plugin | None:
    """What vrm's own extensions add to a group under a name, in either case; None where none does."""
    return next((plugin for plugin in own(group) if plugin.name.lower() == name.lower()), None)


@functools.cache
def _any_installed() -> bool:
    """Whether a package may add something: most machines have none, and to ask for all takes longer."""
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
    """What packages add to a group, in the order of the names."""
    if not _any_installed():
        return ()
    from importlib.metadata import entry_points  # takes longer than most commands

    return tuple(sorted(Plugin(group, point.name, point.value, point.dist.name, point.dist.version)
                        for point in entry_points(group=group) if point.dist is not None))


def find(group: str, name: str) -> Plugin | None:
    """What an extension adds to a group under a name, in either case; None where none does. vrm's own come first.
    PluginError where two packages do."""
    mine = find_own(group, name)
    if mine is not None:
        return mine
    found = [plugin for plugin in installed(group) if plugin.name.lower() == name.lower()]
    if len(found) > 1:
        raise PluginError(f"the {GROUPS[group]} `{name}` is in two packages, {found[0].origin} and {found[1].origin}; "
                          "uninstall one of them")
    return found[0] if found else None


def load(plugin: Plugin) -> Any:
    """The function or class that a plugin stands for. PluginError where it cannot be had, or is not to be trusted."""
    module, _, name = plugin.path.partition(":")
    reason = _untrusted(module.partition(".")[0])
    if reason:
        raise PluginError(f"{plugin.origin}: {reason}")
    try:
        found = functools.reduce(getattr, name.split("."), import_module(module))
    except Exception as error:  # it is somebody else's program, which may raise anything
        raise failed(plugin, error) from error
    if not callable(found):
        raise PluginError(f"{plugin.origin} is not callable; update or uninstall {plugin.package}")
    return found


def need(group: str, name: str) -> Any:
    """What an extension adds to a group under a name. PluginError where none does, or it cannot be had."""
    plugin = find(group, name)
    if plugin is None:
        raise PluginError(f"the {GROUPS[group]} `{name}` is one {MISSING}")
    return load(plugin)


def use(group: str, taken: Container[str], enter: Callable[[Plugin, Any], object]) -> None:
    """Load and `enter` all that extensions add to a group, vrm's own first, but what has one of the names that are
    `taken`. Of what cannot be used, a line is printed on standard error."""
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
    """Why a name cannot be used: vrm, or another package, has it, too. "" where neither does."""
    if plugin.name.lower() in taken or find_own(plugin.group, plugin.name) not in (None, plugin):
        return (f"{plugin.origin} adds the {GROUPS[plugin.group]} `{plugin.name}`, and vrm has one of that name, which "
                "is used; the package must give it another name")
    try:
        find(plugin.group, plugin.name)
    except PluginError as error:
        return str(error)
    return ""


def failed(plugin: Plugin, error: Exception) -> PluginError:
    """The error for what a package's own program has raised."""
    return PluginError(f"{plugin.origin} failed: {type(error).__name__}: {error}; update or uninstall {plugin.package}")


def _untrusted(package: str) -> str:
    """Why the files of a package are not to be loaded, "" where they may."""
    spec = importlib.machinery.PathFinder.find_spec(package)
    if spec is None:
        return ""  # its import says so
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
