"""`vrm plugins`: lists what can be added to vrm, what is there, and from which package."""

from __future__ import annotations

import argparse
from importlib import import_module
from typing import Any

from vrm.commands.parsing import command

OWN = {
    "vrm.orderings": "vrm.scheduling.orderings.ordering:ORDERINGS",
    "vrm.dispatchers": "vrm.scheduling.backfilling.dispatchers:BACKFILLINGS",
    "vrm.placements": "vrm.scheduling.placement.combining:POLICIES",
    "vrm.eligibilities": "vrm.scheduling.placement.parts:ELIGIBILITIES",
    "vrm.node_orders": "vrm.scheduling.placement.node_orders:NODE_ORDERS",
    "vrm.shares": "vrm.scheduling.placement.parts:SHARES",
    "vrm.estimators": "vrm.scheduling.estimators:ESTIMATORS", "vrm.launchers": "vrm.live.launch.base:LAUNCHERS",
    "vrm.keys": "vrm.config.paths:KEYS", "vrm.columns": "vrm.results.job_columns:NAMES",
    "vrm.objectives": "vrm.ext.advice.keys:OBJECTIVES",
    "vrm.constraints": "vrm.scheduling.placement.constrained:CONSTRAINTS"}
"""Where vrm's own objects of each group are."""


def add_parsers(commands: Any, shared: argparse.ArgumentParser) -> None:
    """Add the command to the parser of vrm."""
    parser = command(
        commands, "plugins", plugins, "list what installed packages add to vrm", [],
        "vrm plugins\nvrm plugins --json",
        "Policies, launchers, batch systems, workload formats, commands, job fields, configuration keys, constraints, "
        "columns and others by their names, those of vrm and those of installed packages, which declare them as entry "
        "points of a group (docs/how-to/extending.md). Exit status: 0, or 1 where something that a package adds cannot "
        "be used.")
    parser.add_argument("--json", action="store_true", help="as JSON")


def names_of_vrm(group: str) -> list[str]:
    """Return the names of vrm's own objects in a group, including those of its extensions."""
    from vrm.system.plugins import own

    added = [plugin.name for plugin in own(group)]
    if group == "vrm.commands":
        from vrm import cli
        return sorted((*cli.OWN, *" ".join(cli.MODULES.values()).split(), *added))
    if group == "vrm.batch_systems":
        from vrm.live.batch.base import systems
        return [name for name, system in systems().items() if type(system).__module__.startswith("vrm.")]
    if group == "vrm.fields":
        from vrm.model.forms.fields import TABLE
        return [*(field.word for field in TABLE if field.word), *added]
    if group not in OWN:
        return added
    module, _, name = OWN[group].partition(":")
    found = getattr(import_module(module), name)
    return list(getattr(found, "names", found))


def found() -> list[dict[str, Any]]:
    """Return a record for each name of each group."""
    from vrm import __version__
    from vrm.system.plugins import GROUPS, PluginError, clash, installed, load

    records = []
    for group, what in GROUPS.items():
        own = names_of_vrm(group)
        records += [{"group": group, "kind": what, "name": name, "package": "vrm", "version": __version__, "object": "",
                     "trouble": ""} for name in own]
        for plugin in installed(group):
            trouble = clash(plugin, own)
            if not trouble:
                try:
                    load(plugin)
                except PluginError as error:
                    trouble = str(error)
            records.append({"group": group, "kind": what, "name": plugin.name, "package": plugin.package,
                            "version": plugin.version, "object": plugin.path, "trouble": trouble})
    return records


def plugins(arguments: argparse.Namespace) -> int:
    """Print all records; exit status 1 if something cannot be used."""
    from vrm.system.printing.output import show

    records = found()
    show(arguments.json, lambda: records, lambda: shown(records))
    return int(any(record["trouble"] for record in records))


def shown(records: list[dict[str, Any]]) -> str:
    """Format a line for each group with vrm's own names, followed by one for each name of a package."""
    from textwrap import fill

    from vrm.system.plugins import GROUPS

    lines = []
    for group, what in GROUPS.items():
        mine = [record["name"] for record in records if record["group"] == group and record["package"] == "vrm"]
        lines.append(fill(", ".join(mine) or "-", 100, initial_indent=f"{what:<22}" + " " * (len(what) >= 22),
                          subsequent_indent=" " * 22, break_on_hyphens=False))
        for record in records:
            if record["group"] == group and record["package"] != "vrm":
                lines.append(f"{'':<22}{record['name']}  from {record['package']} {record['version']} "
                             f"({record['object']})")
                lines += [f"{'':<22}!! {record['trouble']}"] * bool(record["trouble"])
    if all(record["package"] == "vrm" for record in records):
        lines.append("\nNo installed package adds anything; docs/how-to/extending.md explains how one can.")
    return "\n".join(lines)
