"""The forecast of a run: for each job when it is likely to start and to end."""

from __future__ import annotations

import math
import time
from typing import Any, NamedTuple
from collections.abc import Iterable, Iterator, Mapping, Sequence

from vrm.ext.forecast.calibration import UNCALIBRATED, Calibration
from vrm.ext.forecast import draws
from vrm.ext.forecast.backtest import SHARES
from vrm.ext.forecast.explain import Explainer
from vrm.ext.forecast.frozen import Frozen
from vrm.ext.forecast.replay import limits, replay
from vrm.ext.forecast.sharing import shared_out
from vrm.model import Job
from vrm.model.measured.quantile import quantile
from vrm.results.places import PlacementText

FORMAT = 1
"""Of what is written."""


class JobForecast(NamedTuple):
    """What is expected of a job. Times in seconds since the epoch (live) or of the trace; infinity:
    not in this allocation, with whose end jobs are interrupted.

    `start` and `end` are the medians of the draws, which miss least; four starts of five lie in `p10`
    to `p90`, four ends of five in `end_p10` to `end_p90`; `latest` is the start if all jobs take as
    long as their users allow. `chance` (0 to 1) is that it starts in this allocation. `reason` says in a
    few words why it waits. `likely` is the start, and `nodes` where it runs, if each job takes as
    long as it is likely to. `drawn` are p10, p90, end_p10 and end_p90 before they were calibrated.
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
    likely: float = math.inf
    drawn: tuple[float, ...] = ()


class Forecast(NamedTuple):
    """What is expected of the jobs that run and wait at `time`, after `position` events, from
    `members` draws. `calibrated` is "" or says why ranges are not yet to be believed.
    `allocation_end`: infinity where there is none."""

    time: float
    position: int
    members: int
    calibrated: str
    allocation_end: float
    jobs: tuple[JobForecast, ...]

    def record(self) -> dict[str, Any]:
        """It as JSON values; None stands for infinity."""
        return {"format": FORMAT, **{name: _plain(value) for name, value
                                     in zip(self._fields[:-1], self[:-1])},
                "jobs": [{name: _plain(value) for name, value in job._asdict().items()}
                         for job in self.jobs]}

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> Forecast:
        """The forecast of such values, which have been checked (see `vrm.ext.forecast.files`)."""
        jobs = tuple(JobForecast(**{name: _number(value) for name, value in job.items()})
                     for job in record["jobs"])
        return cls(jobs=jobs, **{name: _number(record[name]) for name in cls._fields[:-1]})


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _number(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_number(each) for each in value)
    return math.inf if value is None else value


_NEVER = math.inf, math.inf

BATCH, FEWEST = 10, 20
"""Draws from one look whether more are needed to the next, and at the least."""

SETTLED = 0.05
"""Of the distance from now that an end of a range may move by from one look to the next."""

SHORT = 60.0
"""Seconds from now below which the distance is not a measure."""


WORTH = 0.5
"""Seconds of one process that draws must take to be shared out."""


class Ensemble:
    """The starts and ends of the jobs of a run in one draw after the other, in seconds; infinity where
    a job does not start in this allocation. There are `most` draws, or as many as it takes until
    the ends of ranges move by no more than `settled` (see SETTLED). Where they take long, up to
    `processes` share them; what they find is the same."""

    def __init__(self, frozen: Frozen, jobs: Sequence[Job], most: int, settled: float = SETTLED,
                 processes: int = 1) -> None:
        self._frozen = frozen
        self._moves = settled
        self._ids = [job.id for job in jobs]
        self._draws = draws.draws_of(frozen, most)
        self._processes = processes
        self.starts: list[list[float]] = []
        self.ends: list[list[float]] = []
        while len(self.starts) < most:
            self._add(min(most, max(len(self.starts), FEWEST) + BATCH) if settled else most)
            number = len(self.starts)
            if number < most and self._settled(quantiles(self.starts[:number - BATCH]), quantiles(self.starts)):
                break

    def _add(self, until: int) -> None:
        """Draw until there are so many."""
        begun, number = time.perf_counter(), len(self.starts)
        self._keep([self._row(number)])
        number += 1
        seconds = (time.perf_counter() - begun) * (until - number)
        processes = min(self._processes, until - number) if seconds >= WORTH else 1
        self._keep(shared_out(lambda part: [self._row(member) for member in range(number + part[0], until, part[1])],
                              processes))

    def _row(self, member: int) -> list[tuple[float, float]]:
        """When the jobs start and end in a draw."""
        found = replay(self._frozen, self._draws.of(member))
        return [found[job_id][:2] if job_id in found else _NEVER for job_id in self._ids]

    def _keep(self, rows: Sequence[Sequence[tuple[float, float]]]) -> None:
        for row in rows:
            self.starts.append([each[0] for each in row])
            self.ends.append([each[1] for each in row])

    def _settled(self, before: Iterable[Sequence[float]], now: Iterable[Sequence[float]]) -> bool:
        """Whether no end of a range has moved too far."""
        return all(old[side] == new[side] or abs(new[side] - old[side])
                   <= self._moves * max(min(old[side], new[side]) - self._frozen.now, SHORT)
                   for old, new in zip(before, now) for side in (0, 2))


def quantiles(values: Sequence[Sequence[float]]) -> Iterator[list[float]]:
    """P10, P50 and P90 of each column of a table, infinite values among them."""
    return ([quantile(column, share) for share in SHARES] for column in map(sorted, zip(*values)))


def forecast(frozen: Frozen, members: int = 50, calibration: Calibration | None = None,
             tries: int = 0, processes: int = 1) -> Forecast:
    """What is to be expected of a run. The same state, with the same calibration, gives the same
    forecast. Without `members` starts are those of the likely run, and ranges have no width. `tries`:
    how many replays are made for the reasons why jobs wait; 0: none is given. Up to `processes` share
    draws that take long."""
    late = replay(frozen, limits)
    explainer = Explainer(frozen, draws.likely(frozen))
    plan, reasons = explainer.plan, explainer.brief(tries) if tries else {}
    text = PlacementText(frozen.state.cluster.nodes)
    running = {booking.job.id for booking in frozen.state.cluster.running()}
    every = [booking.job for booking in frozen.state.cluster.running()] + list(frozen.waiting())
    drawn = Ensemble(frozen, every, members, processes=processes)
    number = len(drawn.starts)
    if every and not number:
        planned = [plan.get(job.id, _NEVER) for job in every]
        drawn.starts, drawn.ends = [[each[0] for each in planned]], [[each[1] for each in planned]]
    starts, ends = list(quantiles(drawn.starts)), list(quantiles(drawn.ends))
    ends = [[time if time <= frozen.cut else math.inf for time in row] for row in ends]
    jobs = []
    for at, job in enumerate(every):
        start, end = starts[at], ends[at]
        raw = start[0], start[2], end[0], end[2]
        found = plan.get(job.id) or late.get(job.id)
        if calibration is not None and job.id not in running:
            start = calibration.starts.widened(frozen.now, *start)
            end = calibration.ends.widened(frozen.now, *end)
            end = [max(pair) for pair in zip(start, end)]
        chance = sum(row[at] < math.inf for row in drawn.starts) / len(drawn.starts)
        jobs.append(JobForecast(
            job.id, job.app, job.procs, job.id in running, start[1], start[0], start[2], end[1], end[0],
            end[2], late[job.id].start if job.id in late else math.inf,
            text.nodes(found.placement) if found is not None else "", chance,
            reasons.get(job.id, ""),
            plan[job.id].start if job.id in plan else math.inf, raw))
    known = calibration is not None and calibration.ready
    return Forecast(frozen.now, frozen.position, number, "" if known else UNCALIBRATED, frozen.end,
                    tuple(jobs))
