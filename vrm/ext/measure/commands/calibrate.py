"""The command `vrm calibrate`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from vrm.commands.parsing import command
from vrm.commands.shared import count, counts, seconds, settings_of, tell, words


def add_parsers(commands: Any, shared: argparse.ArgumentParser) -> None:
    """Add the command to the main parser."""
    parser = command(
        commands, "calibrate", calibrate, "measure how long programs run", [shared],
        "vrm calibrate --apps '*.A.x' --ranks 1,2,4",
        "Runs each program alone with each number of ranks, placed as the configuration says, and "
        "writes a table of estimates for `vrm generate` and `vrm validate`. The same command "
        "continues where it was interrupted.")
    add = parser.add_argument
    add("--apps", metavar="LIST", type=words, default=(),
        help="programs in Applications.Path; * and ? match (default: all), as '*.W.x,cg.A.x'")
    add("--ranks", metavar="LIST", type=counts, default=(),
        help="rank counts (default: all that the programs allow and that fit)")
    add("--repetitions", metavar="N", type=count, default=3,
        help="runs of each program with each number of ranks (default: 3)")
    add("--limit", metavar="SECONDS", type=seconds, default=3600.0,
        help="end a run that takes longer, and continue with the next (default: 3600)")
    add("--out", metavar="FILE", default="estimates.csv",
        help="the table; one that exists is completed (default: estimates.csv)")
    add("--fresh", action="store_true", help="measure everything again, even if the table exists")


def calibrate(arguments: argparse.Namespace) -> int:
    """Run `vrm calibrate`; return 0 if all was measured, 1 if some programs failed, 2 if it is impossible, 130 if
    interrupted."""
    from vrm.ext.measure import calibrate as live
    from vrm.ext.measure.bench import INTERRUPTED, find_apps
    from vrm.live.site.setup import prepare

    settings = settings_of(arguments)
    site = prepare(settings, watch=False)
    table = Path(arguments.out)
    plan = live.CalibrationPlan(tuple(find_apps(settings.applications.path, arguments.apps)),
                     arguments.ranks, arguments.repetitions, arguments.limit, table)
    try:
        complete = live.calibrate(settings, site, plan, tell, arguments.fresh)
    except KeyboardInterrupt:
        print(f"vrm: interrupted; what was measured is in {table}, the same command "
              "(without --fresh) continues", file=sys.stderr)
        return INTERRUPTED
    if table.exists():
        print(f"{table}: give it to `vrm generate --estimates {table}`")
    return 0 if complete else 1
