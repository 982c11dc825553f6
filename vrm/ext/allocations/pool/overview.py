"""The overview of a pool: its allocations, until when they last, what runs there, and what waits."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any
from collections.abc import Iterable

from vrm.ext.allocations.pool.state import WITHDRAWN

if TYPE_CHECKING:
    from vrm.ext.allocations.pool.batch import BatchAnswers
    from vrm.ext.allocations.pool.journal import PoolJournal
    from vrm.ext.allocations.pool.state import PoolAllocation, PoolState
    from vrm.report.overviews import Overview

MEMBER = "pool.json"
"""The file in the directory of a run that names its pool and its allocation."""

HANGS = "the batch system does not answer: which allocations have died is not known"
"""Text that is printed if the batch system hangs."""

LAST = ("asked for", "never began", "ended")
"""States of allocations that do not work, in the order in which they are shown."""

PROGRAMS = 3
"""Greatest number of programs that are named for jobs that run or wait."""


def around(directory: Path, log: Path) -> Overview | None:
    """Return the overview of the pool that a run belongs to, or that was begun with its configuration; None if
    there is none. The batch system is not queried."""
    try:
        place = Path(json.loads((directory / MEMBER).read_text())["pool"])
    except (OSError, ValueError, KeyError, TypeError):
        place = log / "pool"
    try:
        pool = _journal(place, os.stat(place / "entries").st_ino)
    except OSError:
        return None
    return of(pool, asks=False)


@functools.lru_cache(maxsize=4)
def _journal(place: Path, _inode: int) -> PoolJournal:
    """Return a pool's journal, cached: another look in the same process reads only what is new."""
    from vrm.ext.allocations.pool.journal import PoolJournal
    return PoolJournal(place)


def of(pool: PoolJournal, asks: bool) -> Overview:
    """Return the present overview of a pool. `asks`: query the batch system for allocations that have died."""
    from vrm.ext.allocations.pool.journal import PoolError
    from vrm.report.overviews import Overview
    try:
        state = pool.look()
    except PoolError as error:
        return Overview(f"pool {pool.directory}: {error}", (), (), {"pool": str(pool.directory), "trouble": str(error)})
    return table(record(pool, asks), state)


def record(pool: PoolJournal, asks: bool) -> dict[str, Any]:
    """Return the overview as JSON values."""
    from vrm.ext.allocations.pool.batch import BatchAnswers
    state, done = pool.state, dict(pool.state.done)
    answers = BatchAnswers(state.options.get("system", ""), asks)
    allocations = [_allocation(pool, each, done, answers) for each in state.allocations.values()]
    none: dict[str, Any] = {"until": None, "done": 0, "running": 0, "waiting": 0, "trouble": "", "programs": {}}
    allocations += [{"name": f"{answers.system}-{request.job}", "nodes": request.nodes, **none,
                     "state": "never began" if answers.ended(request.job) else "asked for",
                     "trouble": f"it waits: {answers.reason}" if answers.reason else ""}
                    for request in state.pending()]
    allocations.sort(key=_place)
    return {"pool": str(pool.directory), "jobs": len(state.lines), "ended": dict(Counter(done.values())),
            "waiting": len(state.free), "later": len(state.later), "unmet": len(state.unmet),
            "programs": _programs(state, state.free), "stopped": bool(state.stopped), "allocations": allocations,
            "trouble": HANGS if answers.hangs else "",
            "refused": [each.over for each in state.requests.values() if each.over and each.over != WITHDRAWN]}


def _allocation(pool: PoolJournal, one: PoolAllocation, done: dict[int, str], answers: BatchAnswers) -> dict[str, Any]:
    """Return an allocation as JSON values; add the ends of its jobs to `done`."""
    from vrm.ext.allocations.pool.journal import PoolError
    from vrm.ext.allocations.pool.job_states import PoolJobStates, of_run

    trouble, state = "", "ended" if one.ended else "running"
    if not one.ended:
        if _silent(pool.directory / one.name / "state"):
            state = "silent"
        if answers.ended(one.job):
            state = "died"
    try:
        now = PoolJobStates(one.done, set()) if one.ended else of_run(pool.directory / one.name)
    except PoolError as error:
        now, trouble = PoolJobStates({}, set()), str(error)
    done.update(now.done)
    running = now.running & one.held.keys()
    waiting = sum(job not in now.done for job in one.held) - len(running)
    return {"name": one.name, "state": state, "nodes": one.nodes, "until": one.until, "done": len(now.done),
            "running": len(running), "waiting": waiting, "trouble": trouble, "programs": _programs(pool.state, running)}


def _place(allocation: dict[str, Any]) -> tuple[int, list[int]]:
    """Return the sort key: working allocations first, then requested ones, then those that have ended, which
    are left out if space is short. Within a state, the earliest request is first."""
    return (LAST.index(allocation["state"]) + 1 if allocation["state"] in LAST else 0,
            [*map(int, re.findall(r"\d+", allocation["name"]))])


def _silent(path: Path) -> bool:
    """Return whether the manager that writes this state file has not done so for long."""
    from vrm.report.tables import STALE_AFTER
    with contextlib.suppress(OSError):
        return time.time() - path.stat().st_mtime > STALE_AFTER
    return False


def _programs(state: PoolState, jobs: Iterable[int]) -> dict[str, int]:
    """Return the number of these jobs for each program, the largest number first."""
    return dict(Counter(state.lines[job].partition(" ")[0] for job in sorted(jobs)).most_common())


def _named(programs: dict[str, int]) -> str:
    """Return the programs and their numbers of jobs as text."""
    some = [f"{number} {program}" for program, number in programs.items()][:PROGRAMS]
    return ", ".join([*some, *["..."] * (len(programs) > PROGRAMS)])


def table(found: dict[str, Any], state: PoolState) -> Overview:
    """Return the overview as a table."""
    from vrm.report.overviews import Overview
    from vrm.run.reasons import clock
    now = time.time()
    rows = [[each["name"], each["state"], str(each["nodes"]),
             clock(each["until"], now) if each["until"] and each["state"] != "ended" else "",
             str(each["done"]), str(each["waiting"]), _named(each["programs"])]
            for each in found["allocations"]]
    said = ", ".join(f"{number} {how}" for how, number in sorted(found["ended"].items())) or "none has ended"
    waits = f" ({_named(found['programs'])})" if found["waiting"] else ""
    below = [f"{each['name']}: {each['trouble']}" for each in found["allocations"] if each["trouble"]]
    if found["later"]:
        below.append(f"waiting for other jobs of the pool: {found['later']}")
    if found["unmet"]:
        below.append(f"cancelled, since a job that they wait for has not ended as wanted: {found['unmet']}")
    below += [found["trouble"]] * bool(found["trouble"])
    below += [f"the last request that has failed: {why}" for why in found["refused"][-1:]]
    if found["stopped"]:
        below.append("The pool is stopped; `vrm pool start` continues it.")
    elif (found["waiting"] or state.holder) and not state.living():
        below.append("No allocation is left; `vrm pool start` asks for more.")
    waits = f"{found['waiting']} wait for an allocation{waits}"
    return Overview(f"{found['jobs']} jobs: {said}; {waits}; pool {found['pool']}",
                    ("allocation", "state", "nodes", "until", "done", "waiting", "running"), rows, found,
                    (0, 1, 6), below, "vrm pool status")
