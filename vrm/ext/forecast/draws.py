"""How long jobs take, drawn from how long those before them took.

What is drawn is the ratio of run time to request. The ratios are those of the last LAST jobs like it, from
the first of these groups in which ENOUGH have ended: in a live run, whose jobs are all of one user,
of the same program on as many ranks with the same arguments, of the same program on as many ranks,
of the same program, all. Where the workload names users (as traces do, which seldom name programs):
of the user with the same program and request, of the user, all. There the first group counts only
while one of the user's last LAST jobs was of it: users ask for the same for different things.

A request far beyond all that its user's last jobs took, of which nothing is known yet, says little: users ask
for a day by habit. Such jobs mostly take as long as those last jobs did, in seconds, and all of them take
equally long in a draw: a burst of hundreds is one unknown.

Jobs of one program err together, and in ways that their past does not show. So half of the draws
share one percentile for all jobs of a program; and in a quarter of the draws the jobs of a program
are as those of the next wider group.

A draw depends on the number of events behind the forecast, the number of the draw and the id of
the job, and on nothing else: under two policies the same job takes equally long.
"""

from __future__ import annotations

import hashlib
from collections import deque
from typing import TYPE_CHECKING, Any
from collections.abc import Hashable, Iterable, Iterator

from vrm.model import Job

if TYPE_CHECKING:
    import numpy

    from vrm.ext.forecast.frozen import Frozen
    from vrm.ext.forecast.replay import Durations

ENOUGH = 8
"""Ended jobs that a group needs."""

LAST = 20
"""Jobs of a group that count: the last ones."""

WIDER = 0.25
"""Share of the draws in which the jobs of a program are as those of the next wider group; in half of
these, of the group after the next."""

KEPT = 4000
"""Jobs that have ended which are kept as they were."""

FAR = 4.0
"""A request is far beyond run times that are shorter by this factor."""

SECONDS = 0.75
"""Share of the draws in which jobs with such a request take as long as the last ones of their user."""

OVERDUE = 1.0
"""Seconds that a job is taken to run on which should have ended by now."""

LEAST = 1.0
"""Seconds that a waiting job takes at the least."""


def _groups(job: Job) -> tuple[Hashable, ...]:
    """The groups of jobs like this one, the narrowest first."""
    if job.user:
        return (job.user, job.app, job.walltime), (job.user,), None
    return (job.app, job.procs, job.payload.arguments), (job.app, job.procs), (job.app,), None


class History:
    """Run time over request of the last jobs of each group. `ended` are the last KEPT jobs, with their run times
    (s)."""

    def __init__(self) -> None:
        self._ratios: dict[Hashable, deque[float]] = {}
        self._runs: dict[str, deque[float]] = {}  # seconds of the last jobs of a user
        self._sorted: dict[Hashable, numpy.ndarray] = {}
        self.ended: deque[tuple[Job, float]] = deque(maxlen=KEPT)
        self._number = 0
        self._of_user: dict[str, int] = {}  # jobs that have ended
        self._latest: dict[Hashable, int] = {}  # the number of its user's jobs at the last one of a group

    def __len__(self) -> int:
        """How many jobs have ended."""
        return self._number

    def add(self, job: Job, run: float) -> None:
        """A job has ended after `run` seconds, by itself or at its walltime."""
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
        """Those of the groups that have enough, the narrowest first, each sorted; at least one. Until a
        job has ended, jobs are taken to run as long as they may."""
        groups = [group for group in _groups(job) if len(self._ratios.get(group, ())) >= ENOUGH]
        if job.user and groups and self._is_old(groups[0], job.user):
            del groups[0]
        if not groups and None in self._ratios:
            groups = [None]
        return [self._of(group) for group in groups] or [self._of(())]

    def seconds(self, job: Job) -> numpy.ndarray:
        """How long the last jobs of its user took, sorted, where its request is far beyond that and no such jobs are
        known; else nothing."""
        import numpy
        group, runs = _groups(job)[0], self._runs.get(job.user, ())
        known = len(self._ratios.get(group, ())) >= ENOUGH and not (job.user and self._is_old(group, job.user))
        far = not known and len(runs) >= ENOUGH and FAR * max(runs) <= job.walltime
        return numpy.array(sorted(runs) if far else [])

    def _is_old(self, group: Hashable, user: str) -> bool:
        """Whether none of the user's last LAST jobs was of the group."""
        return group in self._latest and self._of_user[user] - self._latest[group] >= LAST

    def _of(self, group: Hashable) -> numpy.ndarray:
        found = self._sorted.get(group)
        if found is None:
            import numpy
            found = self._sorted[group] = numpy.array(sorted(self._ratios.get(group, (1.0,))))
        return found


def beyond(ratios: numpy.ndarray, job: Job, ran: float) -> numpy.ndarray:
    """Those of sorted ratios with which a job that has run for `ran` seconds has not ended yet."""
    if not ran:
        return ratios
    import numpy
    return ratios[numpy.searchsorted(ratios, ran / job.walltime, "right"):]


def likely(frozen: Frozen) -> Durations:
    """How long jobs are likely to take: as long as the run's estimator expects; where that is what users
    say, the median of the ratios of the narrowest group. Of a running job only what is longer than it
    has run counts; where nothing is, it takes as long as it may."""
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
    """Draws by the `past` of a run at a `position`, `number` of them. `of(member)` says how long jobs take in one of
    them; with `kill` no longer than they may.

    How long a job of `waiting` takes follows from its request there, also where it is asked about it with
    another one.
    """

    def __init__(self, past: History, position: int, number: int, waiting: Iterable[Job] = (), kill: bool = False
                 ) -> None:
        import numpy
        self._past, self._position, self._kill = past, position, kill
        self._members = numpy.arange(number, dtype=numpy.uint64)
        self._walltimes = {job.id: job.walltime for job in waiting}
        self._rows: dict[int, list[float]] = {}

    def of(self, member: int) -> Durations:
        """How long jobs take in this draw."""
        rows, kill = self._rows, self._kill

        def seconds(job: Job, ran: float) -> float:
            row = rows.get(job.id)
            if row is None:
                row = rows[job.id] = list(map(float, self.drawn(job, ran)))
            return min(row[member], max(job.walltime, ran + OVERDUE)) if kill else row[member]

        return seconds

    def drawn(self, job: Job, ran: float) -> numpy.ndarray:
        """How long a job takes, draw by draw."""
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
        """Numbers from 0 to below 1, one a draw, that follow from the run's position, from what is drawn
        and of whom."""
        import numpy
        seed = (self._position * 0x9E3779B97F4A7C15 + what * 0xD1B54A32D192ED03
                + of * 0x8CB92BA72F3D8DD7) % 2 ** 64
        mixed = self._members * numpy.uint64(0xA0761D6478BD642F) + numpy.uint64(seed)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            mixed = (mixed ^ (mixed >> numpy.uint64(shift))) * numpy.uint64(factor)
        mixed ^= mixed >> numpy.uint64(31)
        return (mixed >> numpy.uint64(11)) / 2.0 ** 53


def _number(name: str) -> int:
    """A number for a name, the same on every machine."""
    return int.from_bytes(hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


def draws_of(frozen: Frozen, number: int) -> Draws:
    """So many draws for a run."""
    return Draws(frozen.past, frozen.position, number, frozen.waiting(), frozen.kill)


def members(frozen: Frozen, number: int) -> Iterator[Durations]:
    """So many draws of how long the jobs of a run take. The same state gives the same draws, under
    whatever policy."""
    draws = draws_of(frozen, number)
    return (draws.of(member) for member in range(number))
