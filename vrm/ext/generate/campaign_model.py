"""Mixed workloads drawn from a model, and models fitted to any workload that can be read.

Jobs of a model are submitted in *campaigns*: one user submits the same thing, under one name, several times in a short
time. A campaign begins at an hour of the week that is drawn with the weight of that hour. Its jobs share user, name,
queue, request and limit; their run times share a level. A later campaign of the user may use an older name again,
mostly with its level, too. So users and names have temporal locality, which is what estimators of run times depend on.

A fitted model keeps, for each class of jobs (by what they request besides cores and memory), queue and band of sizes
(1, up to 8, 64, 512 ... cores): the number of jobs, their requests (jointly), the distribution of run times, the
lengths of campaigns, and the times within them; arrivals by hour of the week; and how uneven users are. It does not
keep how requests and run times are related within these groups, nor the order of campaigns.
"""

from __future__ import annotations

import bisect
import itertools
import math
import random
from collections import Counter
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import Any, NamedTuple
from collections.abc import Iterable, Iterator, Mapping, Sequence

from vrm.model.amounts import MEMORY
from vrm.model.job import Job, Request
from vrm.model.measured.quantile import quantile
from vrm.system.printing.output import aligned
from vrm.workload.submission import Submission

HOURS = 168
"""Hours of a week, from Monday 0:00 on."""

CAMPAIGN = 3600.0
"""A campaign ends after this number of seconds without another such job."""

POINTS = 1001
"""Maximum number of points of a distribution."""

_NORMAL = NormalDist()
_THURSDAY = 3 * 86400
"""Seconds from Monday to Thursday: 1970 began on a Thursday."""


@dataclass(frozen=True)
class Stratum:
    """Jobs of one class in one queue and one band of sizes.

    `shapes` are weights, requests and limits (seconds; 0: from `ratios` of limit to run time). `runs` are run times at
    equally spaced shares of the jobs, from the shortest to the longest; `lengths` of campaigns, and `gaps` (seconds)
    within them, likewise. `users` are the weights of users, `fresh` is the share of campaigns under a new name,
    `locality` is how alike run times within a campaign are (correlation of their ranks, 0 to below 1), `cut` says that
    no job runs longer than its limit, and `hours` are the weights of the hours of a week (empty: those of the model).
    """

    kind: str
    queue: str
    jobs: int
    shapes: tuple[tuple[float, Request, float], ...]
    runs: tuple[float, ...]
    lengths: tuple[float, ...] = (1.0,)
    gaps: tuple[float, ...] = (0.0,)
    users: tuple[float, ...] = (1.0,)
    fresh: float = 0.3
    locality: float = 0.9
    ratios: tuple[float, ...] = (1.0,)
    cut: bool = True
    hours: tuple[float, ...] = ()


@dataclass(frozen=True)
class Period:
    """A span of time, in seconds of the workload, and the number of jobs of each stratum that are submitted in it."""

    begin: float
    end: float
    jobs: tuple[int, ...]


@dataclass(frozen=True)
class Model:
    """Strata, the periods in which their jobs are submitted, and the weights of the hours of a week. `unix_start` is
    the time 0 in seconds since the epoch."""

    strata: tuple[Stratum, ...]
    periods: tuple[Period, ...]
    hours: tuple[float, ...] = (1.0,) * HOURS
    unix_start: int = 0

    @property
    def jobs(self) -> int:
        """The number of jobs."""
        return sum(sum(each.jobs) for each in self.periods)

    def of(self, jobs: int) -> Model:
        """Return the model with another number of jobs, at the same rate: it covers a shorter or a longer time."""
        factor = jobs / self.jobs
        begin = self.periods[0].begin
        periods, left = [], [0.0] * len(self.strata)
        for each in self.periods:
            wanted = []
            for index, count in enumerate(each.jobs):
                left[index] += count * factor
                wanted.append(int(left[index] + 1e-9))
                left[index] -= wanted[-1]
            periods.append(Period(begin + (each.begin - begin) * factor,
                                  begin + (each.end - begin) * factor, tuple(wanted)))
        missing = jobs - sum(sum(each.jobs) for each in periods)
        order = sorted(range(len(left)), key=lambda index: -left[index])[:missing]
        last = periods[-1]
        periods[-1] = replace(last, jobs=tuple(count + (index in order)
                                               for index, count in enumerate(last.jobs)))
        return replace(self, periods=tuple(periods))


def kind_of(request: Request) -> str:
    """Return the class of a request: what it requests besides cores and memory; `standard` if that is nothing."""
    names = {name for name, _ in (*request.per_task, *request.per_node)} - {MEMORY}
    return "+".join(sorted(names)) or "standard"


# ---------------------------------------------------------------------------------------- fitting


def fit(submissions: Iterable[Submission], unix_start: int | None = None) -> Model:
    """Fit a model to a workload. Raises ValueError if it has no jobs."""
    found = list(submissions)
    if not found:
        raise ValueError("no job to fit a model to")
    groups: dict[tuple[str, str, int], list[Submission]] = {}
    for one in found:
        request = one.job.request
        groups.setdefault((kind_of(request), one.job.queue, _band(request.cores)), []).append(one)
    first, last = found[0].job.submit, found[-1].job.submit
    hours = {kind: [0.0] * HOURS for kind, _, _ in groups}
    for (kind, _, _), jobs in groups.items():
        for each in _campaigns(jobs):
            hours[kind][hour_of(each[0].job.submit, unix_start or 0)] += 1
    begin = math.floor(first / 3600) * 3600.0
    end = max(begin + 3600.0, math.ceil((last + 1) / 3600) * 3600.0)
    seen = [0.0] * HOURS
    for number in range(round((end - begin) / 3600)):
        seen[hour_of(begin + 3600.0 * number, unix_start or 0)] += 1
    strata = tuple(
        replace(_stratum(kind, queue, jobs), hours=tuple(
            count / times if times else 0.0 for count, times in zip(hours[kind], seen)))
        for (kind, queue, _), jobs in sorted(groups.items()))
    return Model(strata, (Period(begin, end, tuple(each.jobs for each in strata)),),
                 unix_start=unix_start or 0)


def _band(cores: int) -> int:
    """Return the band of a size: 1 core, up to 8, up to 64 cores, and so on."""
    return -(-(cores - 1).bit_length() // 3)


def hour_of(time: float, unix_start: int) -> int:
    """Return the hour of the week of a time."""
    return int((time + unix_start + _THURSDAY) // 3600) % HOURS


def _campaigns(jobs: Sequence[Submission]) -> list[list[Submission]]:
    """Return the campaigns of a stratum, in the order of their first jobs."""
    open_ones: dict[Any, list[Submission]] = {}
    found: list[list[Submission]] = []
    for one in jobs:
        job = one.job
        key = job.user, job.app, job.request, job.walltime if not job.user else 0
        last = open_ones.get(key)
        if last is not None and job.submit - last[-1].job.submit < CAMPAIGN:
            last.append(one)
        else:
            open_ones[key] = [one]
            found.append(open_ones[key])
    return found


def _stratum(kind: str, queue: str, jobs: list[Submission]) -> Stratum:
    limits = len({one.job.walltime for one in jobs})
    own = limits > max(50, len(jobs) / 4)  # nearly every job has its own limit
    shapes = Counter((one.job.request, 0.0 if own else one.job.walltime) for one in jobs)
    campaigns = _campaigns(jobs)
    gaps = [later.job.submit - one.job.submit for each in campaigns
            for one, later in itertools.pairwise(each)]
    users = Counter(one.job.user for one in jobs)
    known = len(users) > 1 or "" not in users
    names = len({(one.job.user, one.job.app) for one in jobs})
    return Stratum(
        kind, queue, len(jobs),
        tuple((float(count), request, limit) for (request, limit), count in shapes.most_common()),
        points([one.run for one in jobs]), points([float(len(each)) for each in campaigns]),
        points(gaps) if gaps else (0.0,),
        tuple(float(count) for _, count in users.most_common()) if known else zipf(30),
        min(1.0, names / len(campaigns)) if known else 0.3, _locality(jobs, campaigns),
        points([one.job.walltime / one.run for one in jobs]) if own else (1.0,),
        all(one.run <= one.job.walltime for one in jobs))


def points(values: Iterable[float], most: int = POINTS) -> tuple[float, ...]:
    """Reduce a distribution to at most `most` values at equally spaced shares."""
    ordered = sorted(values)
    if len(ordered) <= most:
        return tuple(ordered)
    return tuple(ordered[round(index * (len(ordered) - 1) / (most - 1))] for index in range(most))


def zipf(users: int) -> tuple[float, ...]:
    """Return weights of users: the n-th user has 1/n of the first one's jobs."""
    return tuple(1.0 / rank for rank in range(1, users + 1))


def _locality(jobs: Sequence[Submission], campaigns: Sequence[Sequence[Submission]]) -> float:
    """Return the correlation of normal scores of successive run times in a campaign."""
    ordered = sorted(one.run for one in jobs)

    def score(run: float) -> float:
        middle = (bisect.bisect_left(ordered, run) + bisect.bisect_right(ordered, run)) / 2
        return _NORMAL.inv_cdf(min(max(middle / len(ordered), 1e-6), 1 - 1e-6))

    pairs = [(score(one.run), score(later.run)) for each in campaigns
             for one, later in itertools.pairwise(each)]
    squares = sum(a * a + b * b for a, b in pairs) / 2
    if len(pairs) < 10 or squares <= 0:
        return 0.5
    return min(0.98, max(0.0, sum(a * b for a, b in pairs) / squares))


# ---------------------------------------------------------------------------------------- drawing


class _DrawnJob(NamedTuple):
    """A drawn job without its run time; `score` is its rank (as a normal score) among the run times of its stratum."""

    submit: float
    score: float
    shape: int
    user: int
    name: str


def draw(model: Model, seed: int) -> list[Submission]:
    """Draw the workload of a seed, in order of time; it never changes. Users and names are made up.

    The run times of a stratum are assigned to its jobs in the order of their scores, so their distribution is that of
    the model, even with few campaigns.
    """
    rng = random.Random(seed)
    drawn: list[Submission] = []
    for index, stratum in enumerate(model.strata):
        state = _UserNames(stratum, index)
        hours = stratum.hours or model.hours
        plan = [(begin, length, period.end) for period in model.periods for begin, length in _plan(
            stratum, period.jobs[index], _Clock(period, hours, model.unix_start), rng)]
        shapes = _assign_shapes([length for _, length, _ in plan], stratum, rng)
        wanted = [one for (begin, length, end), shape in zip(plan, shapes)
                  for one in state.campaign(begin, length, end, shape, rng)]
        order = sorted(range(len(wanted)), key=lambda number: wanted[number].score)
        for place, number in enumerate(order):
            one = wanted[number]
            _, request, limit = stratum.shapes[one.shape]
            run = max(1, round(quantile(stratum.runs, (place + 0.5) / len(order))))
            limit = limit or math.ceil(run * quantile(stratum.ratios, rng.random()))
            drawn.append(Submission(
                Job(number, one.name, request.tasks, limit, one.submit, request.exclusive,
                    request.cores_per_task, user=f"u{one.user + 1}", queue=stratum.queue,
                    request=request), float(min(run, limit) if stratum.cut else run)))
    drawn.sort(key=lambda one: (one.job.submit, one.job.queue, one.job.app, one.job.id))
    return [one._replace(job=one.job.but(id=number)) for number, one in enumerate(drawn, 1)]


class _Clock:
    """Draws beginnings of campaigns in a period, by the weights of hours."""

    def __init__(self, period: Period, hours: Sequence[float], unix_start: int) -> None:
        self.begin, self.end = period.begin, period.end
        number = max(1, round((period.end - period.begin) / 3600))
        weights = [hours[hour_of(self.begin + 3600.0 * hour, unix_start)] for hour in range(number)]
        if not any(weights):
            weights = [1.0] * number
        self._sums = list(itertools.accumulate(weights))

    def moment(self, rng: random.Random) -> float:
        """Draw a beginning."""
        hour = _place(self._sums, rng)
        return min(self.begin + 3600.0 * (hour + rng.random()), self.end - 1)


def _plan(stratum: Stratum, jobs: int, clock: _Clock, rng: random.Random) -> list[tuple[float, int]]:
    """Draw beginnings and lengths of campaigns with `jobs` jobs together, in order of time."""
    found = []
    while jobs > 0:
        length = min(jobs, max(1, round(quantile(stratum.lengths, rng.random()))))
        found.append((clock.moment(rng), length))
        jobs -= length
    return sorted(found)


class _UserNames:
    """The users of a stratum and the names that they have used so far."""

    KEEP = 0.8
    """The share of campaigns under an old name that also have its level."""

    def __init__(self, stratum: Stratum, index: int) -> None:
        self.stratum, self.index = stratum, index
        self._users = list(itertools.accumulate(stratum.users))
        self._names: dict[int, list[tuple[int, str, float]]] = {}
        self._count = 0

    def campaign(self, begin: float, length: int, end: float, shape: int, rng: random.Random
                 ) -> Iterator[_DrawnJob]:
        """Yield the jobs of a campaign."""
        names = self._names.setdefault(shape, [])
        level = rng.gauss(0, 1)
        if names and rng.random() >= self.stratum.fresh:
            place = max(0, len(names) - 1 - int(rng.expovariate(0.7)))  # mostly one of the latest
            user, name, old = names.pop(place)
            level = old if rng.random() < self.KEEP else level
        else:
            self._count += 1
            user = _place(self._users, rng)
            name = f"{self.stratum.kind.replace('+', '_')}{self.index}_{self._count}"
        names.append((user, name, level))
        del names[:-20]
        time, rho = begin, self.stratum.locality
        noise = math.sqrt(1 - rho * rho)
        for _ in range(length):
            yield _DrawnJob(float(int(min(time, end - 1))), rho * level + noise * rng.gauss(0, 1), shape,
                            user, name)
            time += quantile(self.stratum.gaps, rng.random())


def _assign_shapes(lengths: Sequence[int], stratum: Stratum, rng: random.Random) -> list[int]:
    """Assign a shape to each campaign, so that each shape has its share of the jobs (systematic sampling: the
    campaigns are put in random order, end to end)."""
    sums = list(itertools.accumulate(weight for weight, _, _ in stratum.shapes))
    order = list(range(len(lengths)))
    rng.shuffle(order)
    found = [0] * len(lengths)
    total, done = sum(lengths), 0
    for number in order:
        place = (done + lengths[number] / 2) / total * sums[-1]
        found[number] = min(bisect.bisect_right(sums, place), len(sums) - 1)
        done += lengths[number]
    return found


def _place(sums: Sequence[float], rng: random.Random) -> int:
    return min(bisect.bisect_right(sums, rng.random() * sums[-1]), len(sums) - 1)


# --------------------------------------------------------------------------------------- comparing


@dataclass
class Figures:
    """Values of a workload that are compared; times in seconds."""

    jobs: int = 0
    runs: list[float] = field(default_factory=list)
    cores: list[int] = field(default_factory=list)
    work: float = 0.0  # core seconds
    late: float = 0.0  # sum of limit less run time

    def row(self, all_jobs: int) -> list[str]:
        """Return the cells of a table row; `all_jobs` is the number of jobs of all classes."""
        ordered = sorted(self.runs)
        mean = math.fsum(ordered) / self.jobs
        return [f"{self.jobs}", f"{100 * self.jobs / all_jobs:.1f}", f"{mean:.0f}",
                f"{quantile(ordered, 0.5):.0f}", f"{quantile(ordered, 0.95):.0f}", f"{ordered[-1]:.0f}",
                f"{sum(self.cores) / self.jobs:.1f}", f"{self.work / 3600:.0f}",
                f"{self.late / self.jobs / 60:.0f}"]


COMPARED = ("jobs", "%", "mean run", "median", "95 %", "max", "cores", "core hours", "limit off [min]")


def figures(submissions: Iterable[Submission]) -> Mapping[str, Figures]:
    """Return the figures of each class, and of `all`."""
    found: dict[str, Figures] = {"all": Figures()}
    for one in submissions:
        request = one.job.request
        for name in ("all", kind_of(request)):
            each = found.setdefault(name, Figures())
            each.jobs += 1
            each.runs.append(one.run)
            each.cores.append(request.cores)
            each.work += request.cores * one.run
            each.late += one.job.walltime - one.run
    return found


def compared(original: Sequence[Submission], drawn: Sequence[Submission], unix_start: int = 0) -> str:
    """Return a table of both workloads: classes, run times, sizes; and how similar arrivals and repetitions are."""
    sides = [("original", original), ("drawn", drawn)]
    table = [["class", "", *COMPARED]]
    known = {name: figures(jobs) for name, jobs in sides if jobs}
    for kind in dict.fromkeys(kind for each in known.values() for kind in each):
        for name, each in known.items():
            if kind in each:
                table.append([kind, name, *each[kind].row(each["all"].jobs)])
    lines = [aligned(table, right=range(2, len(table[0])))]
    for name, jobs in sides:
        if jobs:
            lines.append(f"{name}: {_rhythm(jobs, unix_start)}")
    return "\n".join(lines)


def _rhythm(jobs: Sequence[Submission], unix_start: int) -> str:
    """Describe arrivals and repetitions in words."""
    hours = Counter(hour_of(one.job.submit, unix_start) for one in jobs)
    weekend = sum(count for hour, count in hours.items() if hour >= 120) / len(jobs)
    office = sum(count for hour, count in hours.items() if 8 <= hour % 24 < 20) / len(jobs)
    again, errors = 0, []
    last: dict[Any, float] = {}
    for one in jobs:
        key = one.job.user, one.job.app, one.job.request
        if key in last:
            again += 1
            errors.append(abs(one.run - last[key]))
        last[key] = one.run
    days = (jobs[-1].job.submit - jobs[0].job.submit) / 86400
    ends = f", {100 * weekend:.0f} % at weekends" if unix_start else ""
    repeated = 100 * again / len(jobs)
    off = math.fsum(errors) / max(1, len(errors)) / 60
    return (f"{days:.1f} days; {100 * office:.0f} % of jobs come between 8 and 20 h{ends}; {repeated:.0f} % "
            f"repeat an earlier job (user, program, request), whose run time is off by {off:.0f} min on "
            "average")
