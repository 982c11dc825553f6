"""The forecast of a run: for each job when it is likely to start and to end."""

from __future__ import annotations

import math
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

from vrm.forecast.frozen import Frozen
from vrm.forecast.replay import limits, replay
from vrm.results.places import PlacementText

FORMAT = 1
"""Of what is written."""


class JobForecast(NamedTuple):
    """What is expected of a job. Times in seconds since the epoch (live) or of the trace; infinity:
    not in this allocation.

    `start` and `end` are the likely ones; four starts of five lie in `p10` to `p90`, four ends of
    five in `end_p10` to `end_p90`; `latest` is the start if all jobs take as long as their users
    allow. `nodes` are where it is likely to run. `chance` (0 to 1) is that it starts in this
    allocation. `reason` says in a few words why it waits.
    """

    id: int
    app: str
    procs: int
    running: bool
    start: float
    p10: float
    p90: float
    end: float
    end_p10: float
    end_p90: float
    latest: float
    nodes: str = ""
    chance: float = 1.0
    reason: str = ""


class Forecast(NamedTuple):
    """What is expected of the jobs that run and wait at `time`, after `position` events, from
    `members` draws. `calibrated` is "" or says why ranges are not yet to be believed.
    `allocation_end`: infinity where there is none."""

    time: float
    position: int
    members: int
    calibrated: str
    allocation_end: float
    jobs: Tuple[JobForecast, ...]

    def record(self) -> Dict[str, Any]:
        """It as JSON values; None stands for infinity."""
        return {"format": FORMAT, **{name: _plain(value) for name, value
                                     in zip(self._fields[:-1], self[:-1])},
                "jobs": [{name: _plain(value) for name, value in job._asdict().items()}
                         for job in self.jobs]}

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> Forecast:
        """The forecast of such values, which have been checked (see `vrm.forecast.files`)."""
        jobs = tuple(JobForecast(**{name: _number(value) for name, value in job.items()})
                     for job in record["jobs"])
        return cls(jobs=jobs, **{name: _number(record[name]) for name in cls._fields[:-1]})


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _number(value: Any) -> Any:
    return math.inf if value is None else value


def forecast(frozen: Frozen, members: int = 50, reasons: Optional[Mapping[int, str]] = None) -> Forecast:
    """What is to be expected of a run. The same state gives the same forecast."""
    late = replay(frozen, limits)
    text = PlacementText(frozen.state.cluster.nodes)
    running = {booking.job.id for booking in frozen.state.cluster.running()}
    jobs: List[JobForecast] = []
    every = [booking.job for booking in frozen.state.cluster.running()] + list(frozen.waiting())
    for job in every:
        found = late.get(job.id)
        start, end = (found.start, found.end) if found is not None else (math.inf, math.inf)
        jobs.append(JobForecast(
            job.id, job.app, job.procs, job.id in running, start, start, start, end, end, end, start,
            text.nodes(found.placement) if found is not None else "",
            float(found is not None), (reasons or {}).get(job.id, "")))
    return Forecast(frozen.now, frozen.position, 0, "uncalibrated", frozen.end, tuple(jobs))
