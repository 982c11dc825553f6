"""How long jobs take, drawn from how long earlier jobs took.

What is drawn is the ratio of run time to requested time. The ratios are those of the last LAST similar jobs,
from the first of these groups with at least ENOUGH ended jobs. In a live run, whose jobs are all of one user:
same program, number of ranks and arguments; same program and number of ranks; same program; all jobs. If the
workload names users (traces do, and seldom name programs): same user, program and request; same user; all jobs.
There the first group counts only if one of the user's last LAST jobs belongs to it, because users make the same
request for different things.

A request that is far beyond the run times of all the user's last jobs says little while fewer than ENOUGH jobs
with it have ended: users ask for a day by habit. Such jobs mostly take as long as those last jobs did, in
seconds, and all of them take equally long in one draw: a burst of hundreds of jobs is one unknown.

The errors of jobs of one program are correlated, and in ways that their past does not show. So half of the
draws use one percentile for all jobs of a program; and in a quarter of the draws the jobs of a program are
drawn from the next wider group.

A draw depends only on the number of events before the forecast, the number of the draw and the id of the job:
the same job takes equally long under two policies.
"""

from __future__ import annotations

import hashlib
from collections import deque
from typing import TYPE_CHECKING, Any
from collections.abc import Hashable, Iterable, Iterator

from vrm.model import Job

if TYPE_CHECKING:
    import numpy

    from vrm.ext.forecast.frozen import FrozenRun
    from vrm.ext.forecast.replay import Durations

ENOUGH = 8
"""Number of ended jobs that a group needs."""

LAST = 20
"""Number of jobs of a group that count: the last ones."""

WIDER = 0.25
"""Fraction of the draws in which the jobs of a program are drawn from the next wider group; in half of these,
from the group after it."""

KEPT = 4000
"""Number of ended jobs that are kept whole."""

FAR = 4.0
"""Factor by which a request is longer than run times if it is far beyond them."""

SECONDS = 0.75
"""Fraction of the draws in which jobs with such a request take as long as the last jobs of their user."""

OVERDUE = 1.0
"""Seconds that a job is assumed to continue if it should have ended already."""

LEAST = 1.0
"""Least run time of a waiting job, in seconds."""


def _groups(job: Job) -> tuple[Hashable, ...]:
    """Return the groups of jobs similar to `job`, the narrowest first."""
    if job.user:
        return (job.user, job.app, job.walltime), (job.user,), None
    return (job.app, job.procs, job.payload.arguments), (job.app, job.procs), (job.app,), None


class History:
    """The ratios of run time to request of the last jobs of each group. `ended` holds the last KEPT jobs with
    their run times in seconds."""

    def __init__(self) -> None:
        self._ratios: dict[Hashable, deque[float]] = {}
        self._runs: dict[str, deque[float]] = {}  # run times of the last jobs of each user, in seconds
        self._sorted: dict[Hashable, numpy.ndarray] = {}
        self.ended: deque[tuple[Job, float]] = deque(maxlen=KEPT)
        self._number = 0
        self._of_user: dict[str, int] = {}  # number of jobs that have ended
        self._latest: dict[Hashable, int] = {}  # the user's number of ended jobs at the last job of each group

    def __len__(self) -> int:
        """Return how many jobs have ended."""
        return self._number

    def add(self, job: Job, run: float) -> None:
        """Add a job that has ended after `run` seconds, by itself or at its walltime."""
        self._number += 1
        self.ended.append((job, run))
        groups = _groups(job)
        if job.user:
            self._runs.setdefault(job.user, deque(maxlen=LAST)).append(run)
            self._latest[groups[0]] = self._of_user[job.user] = self._of_user.get(job.user, 0) + 1
        for group in groups:
            self._ratios.setdefault(group, deque(maxlen=LAST)).append(run / job.walltime)
            self._sorted.pop(group, None)

    def ratios(self, job: Job) -> list[numpy.ndarray]:
        """Return the ratios of each group that has enough jobs, the narrowest group first, each sorted. There
        is at least one array: until a job has ended, jobs are assumed to use their whole walltime."""
        groups = [group for group in _groups(job) if len(self._ratios.get(group, ())) >= ENOUGH]
        if job.user and groups and self._is_old(groups[0], job.user):
            del groups[0]
        if not groups and None in self._ratios:
            groups = [None]
        return [self._of(group) for group in groups] or [self._of(())]

    def seconds(self, job: Job) -> numpy.ndarray:
        """Return the sorted run times, in seconds, of the last jobs of the job's user, if the job's request is
        far beyond them and no similar jobs are known; otherwise an empty array."""
        import numpy
        group, runs = _groups(job)[0], self._runs.get(job.user, ())
        known = len(self._ratios.get(group, ())) >= ENOUGH and not (job.user and self._is_old(group, job.user))
        far = not known and len(runs) >= ENOUGH and FAR * max(runs) <= job.walltime
        return numpy.array(sorted(runs) if far else [])

    def _is_old(self, group: Hashable, user: str) -> bool:
        """Return whether none of the user's last LAST jobs belongs to the group."""
        return group in self._latest and self._of_user[user] - self._latest[group] >= LAST

    def _of(self, group: Hashable) -> numpy.ndarray:
        found = self._sorted.get(group)
        if found is None:
            import numpy
            found = self._sorted[group] = numpy.array(sorted(self._ratios.get(group, (1.0,))))
        return found


def beyond(ratios: numpy.ndarray, job: Job, ran: float) -> numpy.ndarray:
    """Return those of the sorted ratios with which a job that has run for `ran` seconds has not ended yet."""
    if not ran:
        return ratios
    import numpy
    return ratios[numpy.searchsorted(ratios, ran / job.walltime, "right"):]


def likely(frozen: FrozenRun) -> Durations:
    """Return how long jobs probably take: the run time that the run's estimator expects. If the run has no
    estimator, it is the median of the ratios of the narrowest group. For a running job only values longer than
    its time so far count; if there are none, it uses its whole walltime."""
    expectations = frozen.run.expectations

    def seconds(job: Job, ran: float) -> float:
        limit = max(job.walltime, ran + OVERDUE)
        if expectations is not None:
            found = job.expected if job.expected > ran else limit
        else:
            ratios = beyond(frozen.past.ratios(job)[0], job, ran)
            found = ratios[len(ratios) // 2] * job.walltime if len(ratios) else limit
        found = min(found, limit) if frozen.kill else found
        return float(max(found, ran + OVERDUE if ran else LEAST))

    return seconds


class Draws:
    """Draws of run times: `number` draws, from the `past` of a run at `position`. `of(member)` returns how long
    jobs take in one draw; with `kill` no longer than their walltimes.

    The drawn time of a job in `waiting` follows from its request there, even if the caller passes the job with
    another request.
    """

    def __init__(self, past: History, position: int, number: int, waiting: Iterable[Job] = (), kill: bool = False
                 ) -> None:
        import numpy
        self._past, self._position, self._kill = past, position, kill
        self._members = numpy.arange(number, dtype=numpy.uint64)
        self._walltimes = {job.id: job.walltime for job in waiting}
        self._rows: dict[int, list[float]] = {}

    def of(self, member: int) -> Durations:
        """Return how long jobs take in draw number `member`."""
        rows, kill = self._rows, self._kill

        def seconds(job: Job, ran: float) -> float:
            row = rows.get(job.id)
            if row is None:
                row = rows[job.id] = list(map(float, self.drawn(job, ran)))
            return min(row[member], max(job.walltime, ran + OVERDUE)) if kill else row[member]

        return seconds

    def drawn(self, job: Job, ran: float) -> numpy.ndarray:
        """Return how long a job takes in each draw, in seconds."""
        import numpy
        walltime = self._walltimes.get(job.id, job.walltime)
        if walltime != job.walltime:
            job = job.but(walltime=walltime)
        program = _number(job.user or job.app)
        share = self._uniform(1, job.id)
        share[::2] = self._uniform(2, program)[::2]
        wider = self._uniform(3, program)
        groups = self._past.ratios(job)
        found: numpy.ndarray = numpy.zeros(0)
        for width, ratios in enumerate(groups):
            ratios = beyond(ratios, job, ran)
            here = (ratios[(share * len(ratios)).astype(int)] * walltime if len(ratios)
                    else numpy.full(len(share), max(walltime, ran + OVERDUE)))
            found = here if not width else numpy.where(wider < WIDER / 2 ** (width - 1), here, found)
        runs = self._past.seconds(job)
        runs = runs[numpy.searchsorted(runs, ran, "right"):] if ran else runs
        if len(runs):
            alike = self._uniform(4, _number(f"{job.user} {job.app} {job.walltime!r}"))
            found = numpy.where(self._uniform(5, program) < SECONDS, runs[(alike * len(runs)).astype(int)], found)
        longer: numpy.ndarray = numpy.maximum(found, ran + OVERDUE if ran else LEAST)
        return longer

    def _uniform(self, what: int, of: int) -> Any:
        """Return numbers from 0 to below 1, one for each draw. They depend only on the run's position, on what
        is drawn and for whom."""
        import numpy
        seed = (self._position * 0x9E3779B97F4A7C15 + what * 0xD1B54A32D192ED03
                + of * 0x8CB92BA72F3D8DD7) % 2 ** 64
        mixed = self._members * numpy.uint64(0xA0761D6478BD642F) + numpy.uint64(seed)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            mixed = (mixed ^ (mixed >> numpy.uint64(shift))) * numpy.uint64(factor)
        mixed ^= mixed >> numpy.uint64(31)
        return (mixed >> numpy.uint64(11)) / 2.0 ** 53


def _number(name: str) -> int:
    """Return a number for a name, the same on every machine."""
    return int.from_bytes(hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


def draws_of(frozen: FrozenRun, number: int) -> Draws:
    """Return `number` draws for a run."""
    return Draws(frozen.past, frozen.position, number, frozen.waiting(), frozen.kill)


def members(frozen: FrozenRun, number: int) -> Iterator[Durations]:
    """Return `number` draws of how long the jobs of a run take. Equal states give equal draws, under any
    policy."""
    draws = draws_of(frozen, number)
    return (draws.of(member) for member in range(number))
