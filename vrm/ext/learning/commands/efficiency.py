"""`vrm efficiency`: what jobs used of the resources that they held, and what to request next time."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any

from vrm.commands.parsing import command
from vrm.commands.shared import CannotRun, ids_of, job_ids, run_of, settings_of

if TYPE_CHECKING:
    from vrm.ext.learning.waste import CoreSeconds, JobUse, RunUse

MOST = 20
"""Number of jobs that are shown if none is named: those that wasted most."""


def add_parsers(commands: Any, shared: argparse.ArgumentParser) -> None:
    """Add the command."""
    parser = command(
        commands, "efficiency", efficiency, "show what jobs used, and what to ask for next time",
        [shared], "vrm efficiency\nvrm efficiency 7\nvrm efficiency 3-9 --json",
        "Of the jobs of the run that have ended. BUSY are CPU seconds over run time: an MPI rank that waits for others "
        f"is busy, too. Without an ID the {MOST} jobs that have left most core time unused.")
    parser.add_argument("ids", nargs="*", metavar="ID", help="a job's id or a range 3-7"
                        ).completer = job_ids  # type: ignore[attr-defined]
    parser.add_argument("--json", action="store_true", help="as JSON, all jobs")


def efficiency(arguments: argparse.Namespace) -> int:
    """Print the use of jobs; return 0."""
    from vrm.commands.naming import ids_for
    from vrm.ext.learning.waste import run_use, use_of
    from vrm.results.job_columns import JobFileError
    from vrm.results.jobs import read_jobs
    from vrm.system.printing.output import show

    run = run_of(arguments)
    try:
        rows = list(read_jobs(run.jobs))
    except FileNotFoundError:
        raise CannotRun(f"no job has ended yet: {run.jobs} is not there; go to the directory in which the run is, or "
                        "name its configuration with -c FILE") from None
    except (OSError, JobFileError) as error:
        raise CannotRun(str(error)) from error
    wanted = ids_of(ids_for(arguments, arguments.ids))
    missing = set(wanted) - {row.id for row in rows if row.start is not None}
    if missing:
        raise CannotRun(f"job {min(missing)} has not run and ended (`vrm queue --all` lists the jobs)")
    work = _work(arguments)
    uses = [use for use in (use_of(row, work) for row in rows if not wanted or row.id in wanted) if use is not None]
    whole = None if wanted else run_use(rows, _cores(run.state))
    show(arguments.json, lambda: {"jobs": [_record(use) for use in uses],
                                  **({"run": dataclasses.asdict(whole)} if whole else {})},
         lambda: _sentences(uses) if wanted else _table(uses, whole))
    return 0


def _work(arguments: argparse.Namespace) -> CoreSeconds:
    """Return what programs needed on other numbers of ranks, as far as that is known."""
    from vrm.ext.learning.store import LearnedStore, StoreError, place
    from vrm.ext.learning.waste import core_seconds

    path = place(settings_of(arguments).extended("Learning.Store"))
    with contextlib.suppress(StoreError):
        if path is not None:
            with LearnedStore(path, 1.0, reading=True) as store:
                return core_seconds(store.jobs())
    return {}


def _cores(state: Any) -> int:
    """Return the number of cores of the run's nodes from its state file; 0 if there is none."""
    from vrm.results.state import read

    try:
        return sum(len(socket) for node in read(state)["nodes"] for socket in node["sockets"])
    except (OSError, ValueError):
        return 0


def _record(use: JobUse) -> dict[str, Any]:
    return {**dataclasses.asdict(use), "wasted": use.wasted}


def _sentences(uses: list[JobUse]) -> str:
    """Return the text about each job."""
    from vrm.model.quantities import memory_text, said
    from vrm.report.tables import shown

    parts = []
    for use in uses:
        busy = "its CPU time is not known" if use.busy is None else f"{use.busy:.1f} of {use.cores} cores busy"
        lines = [f"#{use.id} {shown(use.app)} on {use.ranks} rank{'s' * (use.ranks > 1)}, {said(use.seconds)}: {busy}"]
        lines += ([f"  {finding[0].upper()}{finding[1:]}." for finding in use.findings]
                  or ["  Nothing to save was found."])
        lines[1:1] = [f"  {shown(each.app)} on {each.ranks} rank{'s' * (each.ranks > 1)}: {each.busy:.1f} of "
                      f"{each.cores} cores busy, {memory_text(each.largest)} in its largest process"
                      for each in use.programs]
        if use.ranks > 1 and use.busy is not None:
            lines.append("  (MPI ranks that wait for others count as busy.)")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _table(uses: list[JobUse], whole: RunUse | None) -> str:
    from vrm.ext.learning.waste import request_text
    from vrm.model.quantities import said
    from vrm.report.tables import shown
    from vrm.system.printing.output import aligned

    if not uses:
        return "no job has run"
    rows = [("ID", "APP", "RANKS", "TIME", "CORES", "BUSY", "NEXT TIME")]
    chosen = sorted(uses, key=lambda use: (-use.wasted, use.id))[:MOST]
    rows += [(str(use.id), shown(use.app), str(use.ranks), said(use.seconds), str(use.cores),
              "-" if use.busy is None else f"{use.busy:.1f}",
              " ".join(request_text(name, value) for name, value in use.ask.items()) or "-") for use in chosen]
    lines = [aligned(rows, right=(0, 2, 3, 4, 5))]
    if len(chosen) < len(uses):
        lines.append(f"{len(uses) - len(chosen)} more jobs (--json has all)")
    if whole is not None and whole.text:
        lines += ["", f"{whole.text[0].upper()}{whole.text[1:]}."]
    return "\n".join(lines)

