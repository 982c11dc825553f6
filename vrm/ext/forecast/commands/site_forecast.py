"""`vrm forecast --site`, `--lml` and related options: when the jobs of a whole site start."""

from __future__ import annotations

import argparse
import getpass
import json
import math
import os
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from collections.abc import Callable, Sequence

from vrm.commands.shared import CannotRun, count, seconds
from vrm.system.printing.output import aligned

if TYPE_CHECKING:
    from vrm.ext.forecast.site.forecast import SiteForecast
    from vrm.ext.forecast.site.snapshot import Snapshot

FILES = (("squeue", "sinfo"), ("qstat", "pbsnodes"))
MANY = 500
"""Number of jobs of a site from which on several processes are used."""

SOURCES = ("site", "slurm", "pbs", "lml", "squeue", "qstat")
"""Options that choose the source of the snapshot."""

SYSTEMS = {"slurm": "Slurm", "pbs": "PBS"}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the site options to those of `vrm forecast`."""
    site = parser.add_argument_group(
        "the whole site", "When will a job of the batch system around vrm start, such as the allocation "
        "that is to run vrm? Its queue is run on in virtual time, by nodes and cores, every job taking "
        "as long as its limit.")
    add = site.add_argument
    add_sources(add)
    add("--lml", metavar="FILE", help="a snapshot of a site in LML, as LLview writes it")
    add("--out", metavar="FILE", help="with --lml: write the snapshot there, with the forecast in it")
    add("--user", metavar="NAME", help="whose jobs are shown (default: yours; all: everybody's)")
    add("--most-jobs", metavar="N", type=count, help="end after N starts")
    add("--most-time", metavar="TIME", type=seconds, help="end at this time from now: 2d")


def add_sources(add: Callable[..., Any]) -> None:
    """Add the options that choose the source of a site's snapshot."""
    add("--site", action="store_true", help="ask the batch system that is here")
    add("--slurm", action="store_true", help="ask Slurm (squeue, sinfo)")
    add("--pbs", action="store_true", help="ask PBS (qstat, pbsnodes)")
    for name in ("squeue", "sinfo", "qstat", "pbsnodes"):
        add(f"--{name}", metavar="FILE", help=argparse.SUPPRESS if name in ("sinfo", "pbsnodes") else
            f"what {name} has printed, with " + ("--sinfo FILE; see docs/how-to/site-forecast.md"
                                                 if name == "squeue" else "--pbsnodes FILE"))
    add("--reservations", metavar="FILE", dest="site_reservations", help="with --squeue: what `scontrol show "
        "reservation --oneliner` has printed")


def wanted(arguments: argparse.Namespace) -> bool:
    """Return whether the options ask for the forecast of a site."""
    return bool(arguments.site or arguments.slurm or arguments.pbs or arguments.lml
                or any(getattr(arguments, name) for pair in FILES for name in pair)
                or arguments.out or arguments.site_reservations)


def run(arguments: argparse.Namespace) -> int:
    """Print the forecast of a site; return 0."""
    from vrm.ext.forecast.parallel import available
    from vrm.ext.forecast.site.forecast import forecast_lml, forecast_site

    source = _source(arguments)
    dates: Callable[[float], str] | None = None  # None: dates of this host's clock
    limits = (arguments.most_jobs or math.inf, arguments.most_time or math.inf)

    def processes(site: Snapshot) -> int:
        return available() if len(site.jobs) >= MANY else 1
    if arguments.lml:
        from vrm.ext.forecast.site.lml import read
        lml = read(arguments.lml)
        found, written = forecast_lml(lml, *limits, processes(lml.snapshot))
        if arguments.out:
            _write(arguments.out, written)
            if arguments.out == "-":
                return 0
        name, site, everybody = arguments.lml, lml.snapshot, arguments.user in (None, "all")
        dates = lml.date_text
    else:
        name, site = snapshot_of(arguments, source)
        found, everybody = forecast_site(site, *limits, processes(site)), arguments.user == "all"
    user = "" if everybody else arguments.user or me()
    _show(name, site, {job.key: found[job.key] for job in site.jobs
                       if job.key in found and (not user or job.user == user)}, user, arguments.json, dates)
    return 0


def _source(arguments: argparse.Namespace) -> str:
    """Return the option that chooses the source of the snapshot. Raises CannotRun if options contradict each
    other."""
    found = source_of(arguments, SOURCES)
    if (arguments.ids or arguments.estimate or arguments.score or arguments.plot or arguments.page
            or arguments.watch):
        raise CannotRun("a forecast of a site takes no IDs, --estimate, --score, --plot, --page or --watch; "
                        "--user chooses jobs")
    if (arguments.out and not arguments.lml) or (arguments.site_reservations and not arguments.squeue):
        raise CannotRun("--out goes with --lml, and --reservations with --squeue")
    return found


def source_of(arguments: argparse.Namespace, names: Sequence[str]) -> str:
    """Return the one option of `names` that is given. Raises CannotRun if none or several are given, or only
    half of a pair of files."""
    for first, second in FILES:
        if bool(getattr(arguments, first)) != bool(getattr(arguments, second)):
            raise CannotRun(f"--{first} and --{second} need each other: one lists the jobs, the other "
                            "which nodes there are")
    sources = [name for name in names if getattr(arguments, name)]
    if len(sources) != 1:
        raise CannotRun("which site? Give one of --site, --slurm, --pbs, --squeue with --sinfo, --qstat "
                        "with --pbsnodes" + ", or --lml" * ("lml" in names))
    return sources[0]


def me() -> str:
    """Return the name of this user, or the number if the user has no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # the user number has no name
        return str(os.getuid())


def _write(where: str, content: bytes) -> None:
    from vrm.system.files import write_atomically
    if where == "-":
        sys.stdout.buffer.write(content)
        sys.stdout.flush()
    else:
        write_atomically(Path(where), content.decode("utf-8"))


def snapshot_of(arguments: argparse.Namespace, source: str) -> tuple[str, Snapshot]:
    """Return the name of the source and the snapshot of the site."""
    from vrm.ext.forecast.site import outer_pbs, outer_slurm
    if source == "site":
        source = next((system for system, program in (("slurm", "squeue"), ("pbs", "qstat"))
                       if shutil.which(program)), "")
        if not source:
            raise CannotRun("there is no squeue and no qstat here: ask on a login node of the cluster, "
                            "or give what they printed there (--squeue FILE --sinfo FILE)")
    if source in ("slurm", "pbs"):
        return SYSTEMS[source], (outer_slurm if source == "slurm" else outer_pbs).ask(time.time())
    first, second = next(pair for pair in FILES if source in pair)
    paths = [Path(getattr(arguments, name)) for name in (first, second)]
    texts = [path.read_bytes().decode(errors="replace") for path in paths]
    now = paths[0].stat().st_mtime
    if source == "squeue":
        more = (Path(arguments.site_reservations).read_bytes().decode(errors="replace")
                if arguments.site_reservations else "")
        return str(paths[0]), outer_slurm.parse(texts[0], texts[1], now, more)
    return str(paths[0]), outer_pbs.parse(texts[0], texts[1], now)


def _show(name: str, site: Snapshot, found: dict[str, SiteForecast], user: str, as_json: bool,
          dates: Callable[[float], str] | None) -> None:
    from vrm.model.forms.hosts import fold as fold_nodes
    from vrm.run.reasons import clock

    def at(seconds: float) -> str:
        """Return the text of a time that is `seconds` after the snapshot."""
        return dates(seconds) if dates else clock(site.time + seconds, time.time())

    jobs = {job.key: job for job in site.jobs}
    rows: list[dict[str, Any]] = []
    for key, each in found.items():
        job = jobs[key]
        starts = each.start < math.inf
        rows.append({"id": key, "name": job.name, "user": job.user, "queue": job.queue,
                     "nodes_wanted": job.nodes or None, "cores": job.total,
                     "start": site.time + each.start if starts else None,
                     "end": site.time + each.end if starts else None,
                     "nodes": fold_nodes(site.nodes[node].name for node, _ in each.places)
                     if each.places else "", "reason": each.reason})
    if as_json:
        print(json.dumps({"format": 1, "time": site.time, "unknown": list(site.unknown), "jobs": rows},
                         indent=2))
        return
    running = sum(job.start is not None for job in site.jobs)
    print(f"{name} at {at(0)}: {len(site.jobs) - running} jobs wait and {running} "
          f"run on {len(site.nodes)} nodes")
    if not rows:
        print(f"no job{f' of {user}' * bool(user)} waits" + " (--user all: everybody's)" * bool(user))
    else:
        from vrm.model.quantities import said
        table = [("Id", "Name", "Queue", "Nodes", "Cores", "Start", "In", "Where, or why not")]
        table += [(row["id"], row["name"], row["queue"], str(row["nodes_wanted"] or ""),
                   str(row["cores"]),
                   *(("-", "-") if row["start"] is None else
                     (at(row["start"] - site.time), said(row["start"] - site.time))),
                   row["nodes"] or row["reason"]) for row in rows]
        from vrm.system.printing.text import printable
        print(aligned([[printable(cell, 60) for cell in row] for row in table]))
    if site.unknown:
        print("\nThis is what follows from the queue as it is. Not known are:")
        for what in site.unknown:
            print(f"- {what}")

