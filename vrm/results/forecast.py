"""Read the file `forecast.json` of a run: the likely start times of its waiting jobs.

A process of its own next to the manager writes it (`vrm.ext.forecast.live.process`). Status queries read it like the
state file: whatever its content is, no query fails because of it.
"""

from __future__ import annotations

import json
import math
import os
from operator import itemgetter
from typing import Any, NamedTuple
from collections.abc import Mapping

from vrm.model.forms import json_checks
from vrm.model.forms.json_checks import Check, count, flag, line, list_of, maybe, number
from vrm.system.files import read_regular

Record = Mapping[str, Any]

NAME = "forecast.json"

FORMATS = (1,)
"""Formats of forecasts that are read."""

OLD = 600.0
"""Seconds after which a forecast is too old to be shown, unless it was requested."""

AGED = 15.0
"""Seconds after which the age of a forecast is shown. Forecasts get so old when all cores are busy and their process
has to wait."""


class ManagerReport(NamedTuple):
    """Facts from a manager that are not in its journal. `phase` is running, stopping or ended, `end` the end of the
    allocation (epoch seconds), `down` the names of nodes on which nothing starts; `time` is when this was so."""

    phase: str = "ended"
    end: float = math.inf
    down: frozenset[str] = frozenset()
    time: float = 0.0

    @classmethod
    def of(cls, snapshot: Mapping[str, Any]) -> ManagerReport:
        """Return the report that a state file contains."""
        end = snapshot["allocation"]["end"]
        return cls(snapshot["manager"]["phase"], math.inf if end is None else end,
                   frozenset(node["name"] for node in snapshot["nodes"]
                             if not node.get("up", True)), snapshot["time"])

    @classmethod
    def read(cls, line: str) -> ManagerReport:
        """Return the report that a manager has written with `to_line`."""
        phase, end, down, moment = json.loads(line)
        return cls(phase, math.inf if end is None else end, frozenset(down), moment)

    def to_line(self) -> str:
        """Return the report as one line of text."""
        return json.dumps([self.phase, self.end if math.isfinite(self.end) else None,
                           sorted(self.down), self.time])


def read(path: str | os.PathLike[str]) -> Record:
    """Return the forecast in a file. Raises OSError if it cannot be read, ValueError if it is not a forecast."""
    return parsed(read_regular(path))


def parsed(data: bytes) -> Record:
    """Return the forecast in the content of a file. Raises ValueError if it is not a forecast."""
    try:
        found = json.loads(data)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    wrong = json_checks.fault(found, _ALL, {})
    if wrong:
        raise ValueError(wrong)
    if found["format"] not in FORMATS:
        raise ValueError(f"it has format {found['format']!r}, and this vrm reads formats "
                         f"{', '.join(map(str, FORMATS))}")
    return dict(found)


class ByJob(dict[int, Record]):
    """Forecasts of jobs by id; `time` is when they were made, in epoch seconds."""

    time = 0.0


def by_job(state: Mapping[str, Any], path: str | os.PathLike[str]) -> ByJob:
    """Return the forecasts of a state's jobs by id. Empty if there are none that match the state: the manager has
    ended, makes no forecasts, or died long ago."""
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


# Checks of a forecast's form.

_MOMENTS = itemgetter("start", "p10", "p90", "end", "end_p10", "end_p90", "latest")
_REST = itemgetter("id", "procs", "app", "nodes", "reason", "running", "chance")


def _job(value: Any) -> bool:
    """Return whether this is the forecast of a job. Fast, because a query may have thousands of them."""
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


# Access to values.


def moment(record: Record, name: str) -> float:
    """Return a time of a job's forecast; infinity if it is not in this allocation."""
    value = record[name]
    return math.inf if value is None else value
