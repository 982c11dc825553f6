"""The commands `vrm heatmap measure`, `show` and `convert`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vrm.commands.parsing import command, group
from vrm.commands.shared import CannotRun, count, factor, seconds, settings_of, tell, words

if TYPE_CHECKING:
    from vrm.ext.measured.heatmap_files import HeatmapFile


def add_parsers(commands: Any, shared: argparse.ArgumentParser) -> None:
    """Add the group of commands to the main parser."""
    actions = group(commands, "heatmap", "measure, show and convert co-run heatmaps",
                    "vrm heatmap measure --apps '*.A.x'")
    _add_measure(actions, shared)
    _add_show(actions, shared)
    parser = command(actions, "convert", convert,
                     "write a heatmap in another form", [shared],
                     "vrm heatmap convert pool.json heatmap.csv",
                     "FROM may have any form: ranks, CSV, table or JSON pool. A TO that ends in "
                     ".csv is written as CSV, any other name as ranks.")
    parser.add_argument("source", metavar="FROM")
    parser.add_argument("target", metavar="TO", help="*.csv, or another name for the rank form")
    _add_rows(parser)
    parser.add_argument("--force", action="store_true", help="replace a file that is there")


def _add_rows(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", choices=("own", "partner"), default="own",
                        help="of a table: whose speed the rows are (default: own)")


def _add_measure(actions: Any, shared: argparse.ArgumentParser) -> None:
    parser = command(
        actions, "measure", measure, "measure how fast programs run in pairs", [shared],
        "vrm heatmap measure --apps '*.A.x'\n"
        "vrm heatmap measure --apps cg.B.x,ep.B.x --ranks 16 --out pairs.csv",
        "Runs every pair of programs together, each on half of every socket, and writes the "
        "speed-ups against running alone: compact, and on half the cores. The same command "
        "continues where it was interrupted.")
    add = parser.add_argument
    add("--apps", metavar="LIST", type=words, default=(),
        help="programs in Applications.Path; * and ? match (default: all), as '*.W.x'")
    add("--ranks", metavar="N", type=count,
        help="at most N (default: half the cores); rounded down to what a program allows")
    add("--runs", metavar="N", type=count, default=3,
        help="complete runs of each program in a co-run, at least (default: 3)")
    add("--steady", metavar="PART", type=factor, default=0.05,
        help="a figure is steady when the middle half of the runs lies within this part of their "
             "median (default: 0.05)")
    add("--period", metavar="SECONDS", type=seconds, default=600.0,
        help="end a co-run after this time even if it is not steady (default: 600)")
    add("--limit", metavar="SECONDS", type=seconds, default=3600.0,
        help="a single run that takes longer counts as failed (default: 3600)")
    add("--out", metavar="FILE", default="heatmap.csv",
        help="the CSV; one that exists is completed. The rank file is written with it, ending in "
             ".rank (default: heatmap.csv)")
    add("--redo", metavar="SPREAD", type=factor,
        help="measure figures of the CSV again whose spread is above this, as after a disturbance")
    add("--fresh", action="store_true", help="measure everything again, even if the CSV exists")


def _add_show(actions: Any, shared: argparse.ArgumentParser) -> None:
    parser = command(actions, "show", show, "print a heatmap as a table, and draw it", [shared],
                     "vrm heatmap show heatmap.csv --out heatmap.png")
    add = parser.add_argument
    add("file", nargs="?", metavar="FILE", help="a heatmap of any form, or `learned` (default: the "
        "configuration's Applications.Heatmap)")
    add("--against", choices=("compact", "spare"), default="compact",
        help="what the speed-ups compare with (default: compact)")
    add("--out", metavar="PICTURE", action="append", default=[],
        help="draw it, too: a name ending in .png, .svg or .pdf; may be repeated")
    _add_rows(parser)


def measure(arguments: argparse.Namespace) -> int:
    """Run `vrm heatmap measure`; return 0 if all was measured, 1 if some programs failed, 2 if it is impossible,
    130 if interrupted."""
    from vrm.ext.measure.bench import INTERRUPTED, find_apps
    from vrm.ext.measure.heatmap_measurement import HeatmapMeasurement, MeasurementMethod
    from vrm.live.site.setup import prepare

    settings = settings_of(arguments)
    out = Path(arguments.out)
    ranks = out.with_suffix(".rank")
    if out == ranks:
        raise CannotRun(f"{out}: the CSV cannot end in .rank, which is the rank file's name")
    site = prepare(settings, watch=False)
    method = MeasurementMethod(arguments.runs, arguments.period, arguments.steady, arguments.limit)
    apps = find_apps(settings.applications.path, arguments.apps)
    measurement = HeatmapMeasurement(settings, site, apps, method, out, tell, arguments.ranks,
                                     arguments.fresh, arguments.redo)
    try:
        complete = measurement.run()
        measurement.write_ranks(ranks)
    except KeyboardInterrupt:
        print(f"vrm: interrupted; what was measured is in {out}, the same command "
              "(without --fresh) continues", file=sys.stderr)
        return INTERRUPTED
    print(f"{out}, {ranks}: name one of them under Applications.Heatmap; "
          f"`vrm heatmap show {out}` shows it")
    return 0 if complete else 1


def show(arguments: argparse.Namespace) -> int:
    """Print a heatmap, and draw it if requested."""
    from vrm.model.measured.speedups import SpeedError
    from statistics import median
    from vrm.ext.measure.heatmap_table import draw, grid_of, marked, table
    from vrm.ext.measured.heatmap_files import SPARE

    try:
        found = _found(arguments.file, arguments)
        sources = {(figure.load, figure.partner_load): figure.source for figure in found.figures}
        against = SPARE if any(sources.values()) else arguments.against  # learned speed-ups are relative to spare
        grid = marked(grid_of(found.heatmap, found.speedups, against), found.speedups, sources)
        print(table(grid), end="")
        spreads = [figure.spread for figure in found.figures
                   if figure.spread is not None and figure.partner and not figure.source]
        for source in dict.fromkeys(filter(None, sources.values())):
            ranges = [figure.spread for figure in found.figures if figure.source == source and figure.spread]
            print(f"{source}: {len(ranges)} pairs; 8 of 10 are within {100 * median(ranges) / 2:.0f} % of their value "
                  "(median)")
        if spreads:
            print(f"largest spread of a pair's runs {max(spreads):.1%}")
        machine = next((line for line in found.comments if line.startswith("machine: ")), "")
        for picture in arguments.out:
            draw(grid, Path(picture), machine[len("machine: "):])
            print(f"drawn: {picture}")
    except SpeedError as error:
        raise CannotRun(str(error)) from error
    return 0


def _found(path: Any, arguments: argparse.Namespace) -> HeatmapFile:
    """Return the heatmap of a file, or the learned one. Raises CannotRun and SpeedError."""
    from vrm.ext.measured.heatmap_files import read
    from vrm.system import plugins

    path = path or settings_of(arguments).applications.heatmap
    if path is None:
        raise CannotRun("no heatmap: name a file, or one under Applications.Heatmap")
    made = plugins.find("vrm.heatmaps", str(path))
    shown = getattr(plugins.load(made), "shown", None) if made is not None else None
    if shown is None:
        return read(path, arguments.rows)
    found: HeatmapFile = shown(settings_of(arguments))
    return found


def convert(arguments: argparse.Namespace) -> int:
    """Write a heatmap in another format."""
    from vrm.model.measured.speedups import SpeedError
    from vrm.ext.measured.heatmap_files import csv_text, rank_text

    try:
        found = _found(arguments.source, arguments)
        comments = list(found.comments) or [f"from {Path(arguments.source).name}"]
        to_csv = arguments.target.lower().endswith(".csv")
        text = (csv_text(found.figures, comments) if to_csv
                else rank_text(found.heatmap, comments))
        with open(arguments.target, "w" if arguments.force else "x", encoding="utf-8") as file:
            file.write(text)
    except SpeedError as error:
        raise CannotRun(str(error)) from error
    except FileExistsError as error:
        raise CannotRun(f"{arguments.target} exists; name another file, or replace it "
                        "with --force") from error
    except OSError as error:
        raise CannotRun(f"cannot write {arguments.target}: {error.strerror}") from error
    print(f"{arguments.target}: " + (f"{len(found.figures)} figure(s)" if to_csv
                                     else f"{len(found.heatmap.ranks)} application(s)"))
    return 0
