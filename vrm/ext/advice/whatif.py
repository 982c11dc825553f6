"""Computes how large an allocation to request: the same queue on machines of several sizes."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple
from collections.abc import Sequence

from vrm.ext.advice.advice import MEMBERS, Spread, ranges_of, said_of, spread
from vrm.ext.advice.assumed_draws import draws as draws_of, told
from vrm.ext.forecast.calibration import RangeCalibration
from vrm.ext.forecast.frozen import FrozenRun
from vrm.ext.forecast.replay import Durations, replay
from vrm.ext.forecast.parallel import Part, run_in_processes
from vrm.results.names import digits, time_text

SURE = 0.9
"""Probability with which all jobs must be done in the recommended allocation."""

DEAR = 1.25
"""Without a walltime, the largest size is recommended whose core hours are at most this factor times the smallest core
hours."""

ROUND = 300.0
"""Seconds; walltimes are rounded up to a multiple of this."""


class Size(NamedTuple):
    """Results of an allocation of `nodes` nodes with `cores` cores in total.

    `makespan` (seconds): the time until all jobs would be done without an end of the allocation. `walltime`: the time
    to request, which is the given one, otherwise P90 of the makespan, rounded up. Within it, `done` of the jobs (0 to
    1, the mean) are done, and with probability `chance` all are; jobs use `used` of the `asked` core hours. `never`:
    number of jobs that can never run on this many nodes.
    """

    nodes: int
    cores: int
    makespan: Spread
    walltime: float
    done: float
    chance: float
    asked: float
    used: float
    never: int


class WhatIf(NamedTuple):
    """The `sizes` in order, the index of the recommended one, and why. `ranges`: a text on whether the ranges of
    makespans are calibrated."""

    jobs: int
    members: int
    drawn: str
    walltime: float | None
    sizes: tuple[Size, ...]
    recommended: int | None
    why: str
    ranges: str = ""

    def record(self) -> dict[str, Any]:
        """Return the results as JSON values."""
        return {"format": 1, "jobs": self.jobs, "members": self.members, "drawn": self.drawn,
                "walltime": self.walltime,
                "sizes": [{**size._asdict(), "makespan": size.makespan._asdict()} for size in self.sizes],
                "recommended": None if self.recommended is None else self.sizes[self.recommended].nodes,
                "why": self.why, "ranges": self.ranges}


def what_if(planned: Sequence[FrozenRun], walltime: float | None = None, members: int = MEMBERS,
            processes: int = 1) -> WhatIf:
    """Compare runs that have not begun, of the same jobs on machines of several sizes; `walltime` in
    seconds. The draws are the same for all."""
    values = run_in_processes(lambda part: _replayed(planned, walltime, members, part), processes)
    jobs = max((len(frozen.later) + len(frozen.waiting()) for frozen in planned), default=0)
    ranges = [ranges_of(frozen, jobs, members) for frozen in planned]
    sizes = tuple(_size(frozen, jobs, walltime, [draw[at] for draw in values], ranges[at])
                  for at, frozen in enumerate(planned))
    recommended, why = recommend(sizes, walltime)
    return WhatIf(jobs, members, told(planned[0]), walltime, sizes, recommended, why, said_of(ranges[0], jobs))


class _Played(NamedTuple):
    """Results of a draw on a machine: the makespan (s), the number of jobs done in time, the number of jobs that
    could run at all, and the core seconds that jobs used in time."""

    makespan: float
    done: int
    ran: int
    used: float


def _replayed(planned: Sequence[FrozenRun], walltime: float | None, members: int, part: Part
              ) -> list[list[_Played]]:
    first, step = part
    return [[_played(frozen, walltime, durations) for frozen in planned]
            for number, durations in enumerate(draws_of(planned[0], members)) if number % step == first]


def _played(frozen: FrozenRun, walltime: float | None, durations: Durations) -> _Played:
    whole = within = replay(replace(frozen, end=math.inf), durations)
    makespan = max((job.end for job in whole.values()), default=frozen.now) - frozen.now
    closing = math.inf if walltime is None else frozen.now + walltime
    if frozen.now + makespan > closing:  # jobs whose limits would exceed the end do not start
        within = replay(replace(frozen, end=closing), durations)
    cores = {job.id: job.request.cores for job in
             [*frozen.waiting(), *(one.job for one in frozen.later)]}
    used = math.fsum(cores[job_id] * (min(job.end, closing) - job.start)
                     for job_id, job in within.items())
    return _Played(makespan, sum(job.end <= closing for job in within.values()), len(whole), used)


def _size(frozen: FrozenRun, jobs: int, walltime: float | None, draws: Sequence[_Played],
          ranges: RangeCalibration) -> Size:
    cluster, number = frozen.state.cluster, len(draws)
    makespan = spread([draw.makespan for draw in draws], ranges)
    ran = max(draw.ran for draw in draws)
    if walltime is None:
        asked = math.ceil(makespan.p90 / ROUND) * ROUND
        in_time = [draw.ran if draw.makespan <= asked else 0 for draw in draws]
        done = ran / jobs
    else:
        asked = walltime
        in_time = [draw.done for draw in draws]
        done = sum(in_time) / number / jobs
    return Size(len(cluster.nodes), cluster.cores, makespan, asked, done,
                sum(each == jobs for each in in_time) / number, cluster.cores * asked / 3600,
                math.fsum(draw.used for draw in draws) / number / 3600, jobs - ran)


def recommend(sizes: Sequence[Size], walltime: float | None) -> tuple[int | None, str]:
    """Return the index of the size to request, and why; None if no size suffices."""
    able = [at for at, size in enumerate(sizes) if not size.never]
    if not able:
        most = max(range(len(sizes)), key=lambda at: -sizes[at].never)
        return None, (f"{sizes[most].never} job(s) need more than {sizes[most].nodes} nodes: ask for more")
    if walltime is None:
        least = min(sizes[at].asked for at in able)
        best = max((at for at in able if sizes[at].asked <= DEAR * least),
                   key=lambda at: sizes[at].nodes)
        return best, (f"the largest whose core hours are at most {DEAR:g} times the least "
                      f"({digits(least)})")
    sure = [at for at in able if sizes[at].chance >= SURE]
    if not sure:
        best = max(able, key=lambda at: (sizes[at].chance, sizes[at].done, -sizes[at].nodes))
        return None, (f"with none of these sizes are all jobs done in {time_text(walltime)} with a chance of "
                      f"{100 * SURE:.0f} %; with {sizes[best].nodes} nodes it is "
                      f"{100 * sizes[best].chance:.0f} %, and 90 % of the draws take at most "
                      f"{time_text(sizes[best].makespan.p90)}: ask for longer, or for more nodes")
    best = min(sure, key=lambda at: sizes[at].asked)
    return best, (f"the smallest on which all jobs are done in {time_text(walltime)} with a chance of at "
                  f"least {100 * SURE:.0f} %")
