"""The command `vrm validate`: compares a live run with its replay in virtual time."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vrm.commands.parsing import command
from vrm.commands.shared import CannotRun, default_config, settings_of

if TYPE_CHECKING:
    from vrm.simulation.arguments import Measurements


def add_parsers(commands: Any, shared: argparse.ArgumentParser) -> None:
    """Add the command to the main parser."""
    parser = command(
        commands, "validate", run, "compare a live run with its simulation", [shared],
        "vrm validate logs --known actual\nvrm validate logs --estimates estimates.csv",
        "Simulates a live run that has ended and prints how far the simulation is off. This does "
        "not check a configuration: `vrm check` does.")
    add = parser.add_argument
    add("run", metavar="RUN", nargs="?", type=Path,
        help="the directory of a live run (default: the one that the configuration names)")
    add("--estimates", metavar="FILE", type=Path,
        help="run times known beforehand, as `vrm calibrate` writes them")
    add("--heatmap", metavar="FILE", type=Path,
        help="for strip: how fast programs run with others, as `vrm heatmap measure` writes it")
    add("--known", choices=("calibrated", "actual"), default="calibrated",
        help="which run times the replay has: the calibrated ones, or those of the run itself, so "
             "that only decisions can differ (default: calibrated)")
    add("--out", metavar="PICTURE", action="append", default=[], type=Path,
        help="draw the jobs, live against simulated: a name ending in .png or .svg; may be "
             "repeated")
    add("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Run `vrm validate`: replay the run and print the errors."""
    from vrm.config.own_policies import load_own
    from vrm.ext.study.validation.validation_report import data, draw, table
    from vrm.system.printing.text import printable_lines
    from vrm.ext.study.validation.replay import (read_changes, read_lends, read_node_lends, read_rows, read_rules,
                                                 validate)
    from vrm.model.measured.speedups import SpeedError
    from vrm.ext.measured.estimates import read_estimates

    settings = _settings(arguments)
    directory, state = _places(arguments.run, settings)
    last, nodes = read_rules(state)
    (_, rules), *changes = read_changes(directory / "journal", last)
    for each in (rules, *(other for _, other in changes)):
        for text in each.own().values():
            load_own(text, settings.base if settings is not None else Path.cwd())
    estimates = None
    if arguments.known == "calibrated":
        if arguments.estimates is None:
            raise CannotRun("which run times were known? Name the table that `vrm calibrate` "
                            "wrote with --estimates FILE, or take those of the run with "
                            "--known actual")
        estimates = read_estimates(arguments.estimates)[0]
    try:
        measured = _neighbours(arguments.heatmap, settings, rules.min_throughput)
    except SpeedError as error:
        raise CannotRun(str(error)) from error
    found = validate(read_rows(directory / "jobs.csv"), rules, nodes, estimates, measured, changes,
                     read_lends(directory / "journal", nodes), read_node_lends(directory / "journal"))
    for picture in arguments.out:
        draw(found, picture)
    if arguments.json:
        print(json.dumps(data(found), indent=2))
        return 0
    print(printable_lines(table(found)))
    strip = "strip" in {rules.policy, *(other.policy for _, other in changes)}
    if strip and arguments.known == "calibrated" and measured.speedups is None:
        print("no speed-ups given (--heatmap): jobs that share nodes are taken to run as fast as alone")
    for picture in arguments.out:
        print(f"drawn: {picture}")
    return 0


def _settings(arguments: argparse.Namespace) -> Any:
    """Return the settings of the named configuration; of the default configuration if no run is named either; else
    None."""
    named = getattr(arguments, "config", None)
    if named is None and (arguments.run is not None or default_config() is None):
        return None
    return settings_of(arguments)


def _places(run: Path | None, settings: Any) -> tuple[Path, Path]:
    """Return the run's directory and its state file."""
    if run is not None:
        return run, run / "state"
    if settings is None:
        raise CannotRun("which run? Name its directory, or its configuration with -c FILE")
    return settings.directory, settings.state


def _neighbours(measured: Path | None, settings: Any, least: float) -> Measurements:
    """Return the heatmap that orders nodes (the configuration's if it has one) and the speed-ups."""
    from vrm.simulation.arguments import Measurements
    found = Measurements(measured)
    if settings is not None:
        least = settings.rules.min_throughput
        if settings.applications.heatmap is not None:
            found = Measurements(settings.applications.heatmap, found.pairs(least)[1])
    return Measurements(*found.pairs(least))
