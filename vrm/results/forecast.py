"""What the file `forecast.json` of a run says: when the waiting jobs of it are likely to start.

It is written beside the manager (`vrm.ext.forecast.live.beside`). Status queries read it as they read the state
file: whatever is in it, none fails because of it.
"""

from __future__ import annotations

import json
import math
import os
from operator import itemgetter
from typing import Any, NamedTuple
from collections.abc import Mapping

from vrm.model.forms import shapes
from vrm.model.forms.shapes import Check, count, flag, line, list_of, maybe, number
from vrm.system.files import read_regular

Record = Mapping[str, Any]

NAME = "forecast.json"

FORMATS = (1,)
"""Of forecasts that are read."""

OLD = 600.0
"""Seconds from which a forecast is too old to be shown where nobody has asked for it."""

AGED = 15.0
"""Seconds from which it is said how old it is: as on cores that are all busy, where it has to wait for its turn."""


class ManagerReport(NamedTuple):
    """What a manager tells besides its journal. `phase` is running, stopping or ended, `end` when
    the allocation ends (epoch seconds), `down` the names of nodes on which nothing starts; `time`:
    as of then."""

    phase: str = "ended"
    end: float = math.inf
    down: frozenset[str] = frozenset()
    time: float = 0.0

    @classmethod
    def of(cls, snapshot: Mapping[str, Any]) -> ManagerReport:
        """What a state file says."""
        end = snapshot["allocation"]["end"]
        return cls(snapshot["manager"]["phase"], math.inf if end is None else end,
                   frozenset(node["name"] for node in snapshot["nodes"]
                             if not node.get("up", True)), snapshot["time"])

    @classmethod
    def read(cls, line: str) -> ManagerReport:
        """What a manager has written with `to_line`."""
        phase, end, down, moment = json.loads(line)
        return cls(phase, math.inf if end is None else end, frozenset(down), moment)

    def to_line(self) -> str:
        """It as a line of text."""
        return json.dumps([self.phase, self.end if math.isfinite(self.end) else None,
                           sorted(self.down), self.time])


def read(path: str | os.PathLike[str]) -> Record:
    """The forecast in a file. OSError when it cannot be read, ValueError when it is none."""
    return parsed(read_regular(path))


def parsed(data: bytes) -> Record:
    """The same of a file's content."""
    try:
        found = json.loads(data)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    wrong = shapes.fault(found, _ALL, {})
    if wrong:
        raise ValueError(wrong)
    if found["format"] not in FORMATS:
        raise ValueError(f"it has format {found['format']!r}, and this vrm reads formats "
                         f"{', '.join(map(str, FORMATS))}")
    return dict(found)


class ByJob(dict[int, Record]):
    """What is forecast of jobs, by their ids; `time`: when, in epoch seconds."""

    time = 0.0


def by_job(state: Mapping[str, Any], path: str | os.PathLike[str]) -> ByJob:
    """The forecasts of the jobs of a state by their ids; none where there are none that belong to it:
    the manager has ended, or makes none, or died long ago."""
    try:
        if state["manager"]["phase"] == "ended":
            return ByJob()
        found = read(path)
    except (OSError, ValueError):
        return ByJob()
    if abs(found["time"] - state["time"]) > OLD:
        return ByJob()
    jobs = ByJob((job["id"], job) for job in found["jobs"])
    jobs.time = found["time"]
    return jobs


# What a forecast must look like.

_MOMENTS = itemgetter("start", "p10", "p90", "end", "end_p10", "end_p90", "latest")
_REST = itemgetter("id", "procs", "app", "nodes", "reason", "running", "chance")


def _job(value: Any) -> bool:
    """Whether it is the forecast of a job; there may be thousands, in each question."""
    try:
        job_id, procs, app, nodes, reason, running, chance = _REST(value)
        return (count(job_id) and count(procs) and line(app) and line(nodes) and line(reason)
                and flag(running) and number(chance) and 0 <= chance <= 1
                and all(each is None or number(each) for each in _MOMENTS(value)))
    except (KeyError, TypeError):
        return False


_ALL: Mapping[str, Check] = {
    "format": count, "time": number, "position": count, "members": count, "calibrated": line,
    "allocation_end": maybe(number), "jobs": list_of(_job)}


# In few words.


def moment(record: Record, name: str) -> float:
    """A time of a job's forecast; infinity where it is not in this allocation."""
    value = record[name]
    return math.inf if value is None else value
