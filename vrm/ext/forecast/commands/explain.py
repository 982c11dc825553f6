"""`vrm explain`: why jobs wait, and what would let them start earlier."""

from __future__ import annotations

import argparse
import json
import math
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from collections.abc import Mapping

from vrm.commands.parsing import command
from vrm.commands.shared import CannotRun, ids_of, job_ids, settings_of
from vrm.system.printing.output import aligned, show

if TYPE_CHECKING:
    from vrm.ext.forecast.explain import Explainer, Explanation, Reason
    from vrm.ext.forecast.frozen import FrozenRun
    from vrm.model import Job

DRAWS = 20
"""Number of draws in which each reason is tested."""

LONG = 5000
"""Number of jobs in a run from which on the command answers at once: a held job is explained without testing
when it would start if released, and for a job that does not wait only its state is printed."""

FEW = 10
"""Greatest number of jobs that are read one by one from the journal."""

WIDTH = 100
"""Width of the text, in columns."""


def add_parsers(commands: Any, shared: argparse.ArgumentParser) -> None:
    """Add the command."""
    parser = command(
        commands, "explain", explain, "why a job waits, and what would let it start earlier", [shared],
        "vrm explain 7\nvrm explain\nvrm explain 7 --json",
        "Each reason was tested: the queue was simulated without the job that is named, or "
        "with the estimate that is named, and the job started earlier. Reads the files of a run; no "
        "manager needs to run. Without an ID it prints a short reason for every waiting job.")
    parser.add_argument("ids", nargs="*", metavar="ID", help="a job's id or a range 3-7"
                        ).completer = job_ids  # type: ignore[attr-defined]
    parser.add_argument("--json", action="store_true", help="as JSON")


def explain(arguments: argparse.Namespace) -> int:
    """Print why jobs wait; return 0."""
    from vrm.commands.naming import ids_for
    from vrm.ext.forecast.draws import likely, members
    from vrm.ext.forecast.explain import Explainer
    from vrm.ext.forecast.files import RunFiles

    files = RunFiles(settings_of(arguments))
    ids = ids_of(ids_for(arguments, arguments.ids))
    widths = _widths(files.run_directory.journal, ids)
    known = _known(files.run_directory.journal, ids)
    if known is not None:
        return _shown(*known, time.time(), arguments.json, widths)
    files.read_new()
    frozen = files.frozen(files.told())
    explainer = Explainer(frozen, likely(frozen), tuple(members(frozen, DRAWS)) if ids else ())
    if not ids:
        _all(explainer, arguments.json)
        return 0
    waiting = {job.id for job in frozen.waiting()}
    others = [files.about(job_id) for job_id in ids if job_id not in waiting]
    found = [explainer.of(job_id) for job_id in ids if job_id in waiting]
    return _shown(found, others, {each.job.id: called(frozen, each.job) for each in found}, frozen.now, arguments.json,
                  widths)


def _known(path: Path, ids: list[int]) -> tuple[list[Explanation], list[str], dict[int, str]] | None:
    """Return what is known, without tests and without building the run, about held, running and ended jobs of a
    long run: explanations of the held ones, lines about the others, and the names of the held ones. Testing
    would take minutes there. None if other jobs are among `ids`."""
    from vrm.ext.forecast.explain import HELD, Explanation
    from vrm.ext.forecast.files import over
    from vrm.run.journal import single_job

    found, others, names = [], [], {}
    for job_id in ids:
        one = single_job.alone(path, job_id) if len(ids) <= FEW else None
        if one is None or one.came < LONG or (one.waits and not one.held):
            return None
        if not one.waits:
            others.append(over(one.job, one.end))
            continue
        found.append(Explanation(one.job, math.inf, (HELD,)))
        names[job_id] = f"{one.job.app} {one.details.name}".rstrip()
    return (found, others, names) if ids else None


def _widths(path: Path, ids: list[int]) -> dict[int, Mapping[str, Any]]:
    """Return, for the jobs among `ids` that allow several numbers of ranks, why they started on theirs."""
    from vrm.ext.learning.width_explanation import width_of
    found = {job_id: width_of(path, job_id) for job_id in ids[:FEW]} if path.exists() else {}
    return {job_id: width for job_id, width in found.items() if width is not None}


def _shown(found: list[Explanation], others: list[str], names: Mapping[int, str], now: float, as_json: bool,
           widths: Mapping[int, Mapping[str, Any]]) -> int:
    """Print the explanations; return 0. Raises CannotRun if the only thing known is that the jobs do not wait."""
    from vrm.ext.learning.width_explanation import sentences

    if not found and not widths:
        raise CannotRun("\n".join(others))
    show(as_json, lambda: [*(each.record() for each in found),
                           *({"id": job_id, "width": width} for job_id, width in widths.items())],
         lambda: "\n\n".join([*others, *(_text(each, names[each.job.id], now) for each in found),
                              *(f"#{job_id}: {sentences(width)}" for job_id, width in widths.items())]))
    return 0


def _all(explainer: Explainer, as_json: bool) -> None:
    """Print a short reason for each waiting job."""
    from vrm.report.tables import shown
    from vrm.run.reasons import clock

    now, brief = explainer.frozen.now, explainer.brief()
    jobs = explainer.frozen.waiting()
    if as_json:
        print(json.dumps([{"id": job.id, "app": job.app, "start": _finite(_start(explainer, job.id)),
                           "reason": brief[job.id]} for job in jobs], indent=2))
        return
    if not jobs:
        print("no job waits")
        return
    rows = [("ID", "APP", "START", "WHY IT WAITS")]
    for job in jobs:
        start = _start(explainer, job.id)
        rows.append((str(job.id), shown(called(explainer.frozen, job)), clock(start, now) if start < math.inf else "-",
                     brief[job.id]))
    print(aligned(rows, right=(0,)))


def called(frozen: FrozenRun, job: Job) -> str:
    """Return the program of a job, followed by the job's name if it has one."""
    entry = frozen.state.book.entries.get(job.id)
    return f"{job.app} {entry.details.name}" if entry is not None and entry.details.name else job.app


def _start(explainer: Explainer, job_id: int) -> float:
    planned = explainer.plan.get(job_id)
    return planned.start if planned is not None else math.inf


def _finite(value: float) -> Any:
    return value if math.isfinite(value) else None


def _text(found: Explanation, name: str, now: float) -> str:
    """Return a job and its reasons as text."""
    from vrm.report.tables import shown
    from vrm.run.reasons import clock

    job = found.job
    when = ("it does not start in this allocation" if found.start == math.inf else
            f"it is likely to start at {clock(found.start, now)}")
    if found.between and found.start < math.inf:
        low, high = (clock(each, now) if each < math.inf else "never in this allocation"
                     for each in found.between)
        when += f" ({low} to {high})"
    lines = [f"#{job.id} {shown(name)} on {job.procs} rank{'s' * (job.procs > 1)} waits since "
             f"{clock(job.submit, now)}; {when}"]
    for number, reason in enumerate(found.reasons, 1):
        mark = f"  {number}. " if len(found.reasons) > 1 else "  "
        lines.append(textwrap.fill(_sentences(reason, now), WIDTH, initial_indent=mark,
                                   subsequent_indent=" " * len(mark)))
    return "\n".join(lines)


def _sentences(reason: Reason, now: float) -> str:
    """Return a reason as sentences, with the result of its test."""
    from vrm.model.quantities import said
    from vrm.report.tables import shown
    from vrm.run.reasons import clock

    text = shown(reason.text[:1].upper() + reason.text[1:]) + "."
    if not reason.checked:
        return text
    earlier = f", {said(reason.earlier)} earlier" if math.isfinite(reason.earlier) else ""
    agree = "" if reason.agree is None else f" ({100 * reason.agree:.0f} % of the draws agree)"
    then = "now" if reason.start <= now else f"at {clock(reason.start, now)}"
    return f"{text} If {reason.what_if}, it would start {then}{earlier}{agree}."
