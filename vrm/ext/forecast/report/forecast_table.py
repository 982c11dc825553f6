"""A forecast as text for people and as JSON for programs. The forecast is what `vrm.results.forecast` reads:
times are epoch seconds, null means `not in this allocation`."""

from __future__ import annotations

import math
import time
from typing import Any
from collections.abc import Collection, Mapping, Sequence

from vrm.report.moments import FORECAST, all_near, span, when
from vrm.report.tables import ago, drop_empty, narrow, shown
from vrm.results.forecast import Record, moment
from vrm.system.printing.output import boxed

UNKNOWN = ("not included: later submissions, failures, lost nodes; a later job of higher priority "
           "delays the others")
"""What a forecast cannot include."""

_STEPS = (("Why", 16), ("Nodes", 8), ("App", 8), ("Why", 4), ("Latest", 0), ("Nodes", 0), ("Chance", 0), ("End", 0),
          ("Why", 0), ("Ranks", 0))


def facts(job: Record, made: Record) -> dict[str, Any]:
    """Return a job's forecast as data, with keys that stay the same from version to version. Times are epoch
    seconds, null: not in this allocation. `status` is running or waiting; `p10` to `p90` is the range of the
    start and `end_p10` to `end_p90` that of the end; `latest` is the start if all jobs take as long as their
    users allow; `chance` (0 to 1) is the probability that it starts in this allocation; `time` is when the
    forecast was made, `members` its number of draws; `calibrated`: the ranges are corrected by the results of
    earlier forecasts."""
    return {"id": job["id"], "app": job["app"], "name": job.get("name", ""), "ranks": job["procs"],
            "status": "running" if job["running"] else "waiting",
            **{key: job[key] for key in FORECAST},
            "time": made["time"], "members": made["members"], "calibrated": not made["calibrated"]}


def chosen(made: Record, ids: Collection[int] = ()) -> list[Record]:
    """Return the jobs of a forecast, or those of them with these ids: running jobs by their ends, then waiting
    jobs by their starts."""
    jobs = [job for job in made["jobs"] if not ids or job["id"] in ids]
    return sorted(jobs, key=lambda job: (not job["running"], moment(job, "end" if job["running"]
                                                                    else "start"), job["id"]))


def head(made: Record, now: float) -> list[str]:
    """Return how old a forecast is and on what it is based."""
    draws = (f"from {made['members']} draws" if made["members"] else
             "by the estimates; there is nothing yet to draw from")
    lines = [f"forecast of {when(made['time'], now, seconds=True)}, "
             f"{ago(max(0.0, now - made['time']))} ago, {draws}"]
    if made["calibrated"]:
        lines.append(shown(made["calibrated"]))
    return lines


def table(made: Record, ids: Collection[int] = (), now: float | None = None,
          width: int | None = None) -> str:
    """Return the forecast as a table, at most `width` columns wide if possible."""
    now = time.time() if now is None else now
    jobs = chosen(made, ids)
    names = ["Id", "App", "Ranks", "State", "Start", "Range", "End", "Latest", "Nodes", "Chance", "Why"]
    near = all_near(jobs, now)
    rows = [_row(job, now, near) for job in jobs]
    drop_empty(names, rows, ("Why", "Chance", "Nodes", "Latest", "Range"))
    if width is not None:
        narrow(names, rows, width, _STEPS)
    return "\n".join([*head(made, now), boxed(names, rows), UNKNOWN] if jobs
                     else [*head(made, now), "no job runs or waits"])


def called(job: Record) -> str:
    """Return the program of a job, followed by the job's name if it has one."""
    return shown(" ".join(filter(None, (job["app"], job.get("name", "")))))


def _row(job: Record, now: float, near: bool) -> list[str]:
    running, start, latest = job["running"], moment(job, "start"), moment(job, "latest")
    return [str(job["id"]), called(job), str(job["procs"]), "R" if running else "Q",
            when(start if running else max(start, now), now, near),
            "" if running else span(job, now, near),
            when(max(now, moment(job, "end")), now, near) if math.isfinite(start) else "-",
            "" if running else when(max(latest, now), now, near),
            shown(job["nodes"]), "" if running or job["chance"] >= 0.995 else f"{job['chance']:.0%}",
            shown(job["reason"])]


def changes(before: Record, after: Record, ids: Sequence[int], now: float) -> list[str]:
    """Return what another assumption changes: a line for each of these jobs, and one for all others."""
    was: Mapping[int, Record] = {job["id"]: job for job in before["jobs"]}
    lines, earlier, later = [], [], []
    for job in chosen(after):
        old = was.get(job["id"])
        if old is None or job["running"]:
            continue
        one, other = moment(old, "start"), moment(job, "start")
        if job["id"] in ids:
            lines.append(f"#{job['id']} would start {when(max(now, other), now)}"
                         + (f" ({span(job, now)})" if span(job, now) else "")
                         + (", as it does now" if one == other else
                            f" instead of {when(max(now, one), now)}"))
        elif other < one:
            earlier.append(job["id"])
        elif other > one:
            later.append(job["id"])
    for what, found in (("earlier", earlier), ("later", later)):
        if found:
            named = ", ".join(f"#{job_id}" for job_id in found[:6]) + ", ..." * (len(found) > 6)
            lines.append(f"{len(found)} other job{'s' * (len(found) > 1)} would start {what}: {named}")
    return lines
