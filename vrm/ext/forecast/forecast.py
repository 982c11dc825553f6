"""The forecast of a run: for each job when it will probably start and end."""

from __future__ import annotations

import math
import time
from typing import Any, NamedTuple
from collections.abc import Iterable, Iterator, Mapping, Sequence

from vrm.ext.forecast.calibration import UNCALIBRATED, Calibration
from vrm.ext.forecast import draws
from vrm.ext.forecast.backtest import SHARES
from vrm.ext.forecast.explain import Explainer
from vrm.ext.forecast.frozen import FrozenRun
from vrm.ext.forecast.replay import limits, replay
from vrm.ext.forecast.parallel import run_in_processes
from vrm.model import Job
from vrm.model.measured.quantile import quantile
from vrm.results.placement_text import PlacementText

FORMAT = 1
"""Version of the written format."""


class JobForecast(NamedTuple):
    """The forecast of one job. Times are in seconds since the epoch (live) or of the trace. Infinity means: not
    in this allocation, at whose end running jobs are interrupted.

    `start` and `end` are the medians of the draws, which have the smallest error; four of five starts lie in
    `p10` to `p90`, four of five ends in `end_p10` to `end_p90`. `latest` is the start if all jobs take as long
    as their users allow. `chance` (0 to 1) is the probability that it starts in this allocation. `reason` says
    in a few words why it waits. `likely` is the start, and `nodes` the place, if each job takes its probable
    time. `drawn` are p10, p90, end_p10 and end_p90 before calibration.
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
    """The forecast of all jobs that run and wait at `time`, after `position` events, from `members` draws.
    `calibrated` is "" or the reason why the ranges are not reliable yet. `allocation_end` is infinity if the
    allocation has no end."""

    time: float
    position: int
    members: int
    calibrated: str
    allocation_end: float
    jobs: tuple[JobForecast, ...]

    def record(self) -> dict[str, Any]:
        """Return the forecast as JSON values; None replaces infinity."""
        return {"format": FORMAT, **{name: _plain(value) for name, value
                                     in zip(self._fields[:-1], self[:-1])},
                "jobs": [{name: _plain(value) for name, value in job._asdict().items()}
                         for job in self.jobs]}

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> Forecast:
        """Return the forecast with these JSON values, which were checked before (see `vrm.ext.forecast.files`)."""
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
"""Number of draws between two tests of whether more are needed, and the least number of draws."""

SETTLED = 0.05
"""Greatest relative movement of a range's end between two tests that counts as settled: a fraction of its
distance from now."""

SHORT = 60.0
"""Least distance from now that is used for that fraction, in seconds."""


WORTH = 0.5
"""Seconds that the remaining draws must take in one process before they are distributed to several."""


class Ensemble:
    """The starts and ends of the jobs of a run in each draw, in seconds; infinity if a job does not start in
    this allocation. There are at most `most` draws; drawing stops earlier when the ends of ranges move by at
    most `settled` (see SETTLED). Draws that take long are distributed to up to `processes` processes; the
    result is the same."""

    def __init__(self, frozen: FrozenRun, jobs: Sequence[Job], most: int, settled: float = SETTLED,
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
        """Draw until there are `until` draws."""
        begun, number = time.perf_counter(), len(self.starts)
        self._keep([self._row(number)])
        number += 1
        seconds = (time.perf_counter() - begun) * (until - number)
        processes = min(self._processes, until - number) if seconds >= WORTH else 1
        self._keep(run_in_processes(lambda part: [self._row(member) for member in range(number + part[0], until,
                                                                                        part[1])],
                                    processes))

    def _row(self, member: int) -> list[tuple[float, float]]:
        """Return when each job starts and ends in draw number `member`."""
        found = replay(self._frozen, self._draws.of(member))
        return [found[job_id][:2] if job_id in found else _NEVER for job_id in self._ids]

    def _keep(self, rows: Sequence[Sequence[tuple[float, float]]]) -> None:
        for row in rows:
            self.starts.append([each[0] for each in row])
            self.ends.append([each[1] for each in row])

    def _settled(self, before: Iterable[Sequence[float]], now: Iterable[Sequence[float]]) -> bool:
        """Return whether no end of a range has moved too far."""
        return all(old[side] == new[side] or abs(new[side] - old[side])
                   <= self._moves * max(min(old[side], new[side]) - self._frozen.now, SHORT)
                   for old, new in zip(before, now) for side in (0, 2))


def quantiles(values: Sequence[Sequence[float]]) -> Iterator[list[float]]:
    """Return P10, P50 and P90 of each column of a table, which may contain infinity."""
    return ([quantile(column, share) for share in SHARES] for column in map(sorted, zip(*values)))


def forecast(frozen: FrozenRun, members: int = 50, calibration: Calibration | None = None,
             tries: int = 0, processes: int = 1) -> Forecast:
    """Return the forecast of a run. Equal states with equal calibrations give equal forecasts. With `members`
    0, starts are those of the probable run, and ranges have no width. `tries` is the number of replays made to
    find out why jobs wait; with 0 no reasons are given. Draws that take long are distributed to up to
    `processes` processes."""
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
