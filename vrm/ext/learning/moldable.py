"""The backfilling `moldable`: EASY that chooses the number of ranks of a job when it starts, if the job allows several.

Each second on a core delays other jobs: the waiting ones, and future ones, whose number the queue length indicates. So
a core second has a price (`SIGN`), and the best number of ranks has the least sum of run time and price, by the scaling
curve of the program. The load varies the numbers of ranks, so curves are learned without extra runs. If the best number
is not free, a job starts on fewer ranks if that is better than waiting. For the earliest last end (`makespan`), jobs
take the least capacity while many jobs wait. For up to FEW jobs, the best numbers of ranks are searched for by
simulating the queue: under `makespan`, and for the mean of wait and run if no job came after the first decision.

Jobs start under EASY, ordered by the capacity that they take (size times seconds), least first; under `makespan`,
longest first. No job starves: once a job was submitted after the first decision, a job that has waited PATIENCE times
its walltime is ordered before those that have not, in queue order, its number of ranks is then fixed, and later starts
do not delay it.

A job's walltime applies to the number of ranks that it requests. On fewer ranks it is longer in proportion, on more it
is the same: so it is long enough for every program that does not take longer on more ranks. """

from __future__ import annotations

import copy
import itertools
import math
from dataclasses import dataclass
from typing import NamedTuple
from collections.abc import Callable, Iterable, Iterator, Sequence

from vrm.ext.learning.curves import Curves, ExpectedTime, input_key
from vrm.ext.learning.list_schedules import backfilled, finishes
from vrm.ext.learning.widths import RANKS, SPEEDUP, Downey
from vrm.model.cluster import Booking, Cluster
from vrm.model.job import Infeasible, Job, on_ranks
from vrm.model.policies import CountingPolicy
from vrm.scheduling.backfilling.dispatcher import Dispatcher, Starts
from vrm.scheduling.backfilling.easy import Easy, backfill
from vrm.scheduling.orderings.queue import QueueView
from vrm.scheduling.registry import reads

SIGN = 8
"""Number of future jobs, each waiting equally long, that one waiting job indicates."""

PATIENCE = 2
"""A job that has waited this multiple of its walltime is ordered before all younger jobs, if jobs are submitted after
the first decision."""

FEW = 10
"""Maximum number of waiting jobs for which the queue is simulated to choose numbers of ranks."""

EARLIER = 1e-3
"""Weight of a second of the mean end under `makespan`: among plans with the same last end, prefer the one that frees
capacity earlier."""

TRIALS = 5000
"""Maximum number of plans that one search compares; each takes about 0.02 ms."""

TURNAROUND, MAKESPAN, EFFICIENCY = "turnaround", "makespan", "efficiency"
OBJECTIVES = (TURNAROUND, MAKESPAN, EFFICIENCY)
"""Objectives: the least mean of wait plus run time, the earliest last end, or the most ranks with an efficiency of at
least `floor`."""


FORGETS = 0.9995
"""Factor by which earlier queue lengths lose weight at each decision."""


Plan = list[tuple[Job, "RankOption"]]
"""Jobs with the option that is chosen for each."""

Ends = Sequence[tuple[float, int]]
"""Likely ends of running jobs (seconds), with the units that become free then, earliest first."""


class RankOption(NamedTuple):
    """A job on one of its numbers of ranks: its `size` in units of the placement policy, and its `expected` time;
    `seconds` is that time, at least 1 s and at most the walltime."""

    job: Job
    size: int
    expected: ExpectedTime
    seconds: float

    @staticmethod
    def of(job: Job, size: int, expected: ExpectedTime) -> RankOption:
        """Compute `seconds`; return the option."""
        return RankOption(job, size, expected, min(job.walltime, max(1.0, expected.seconds)))

    @property
    def taken(self) -> float:
        """Capacity that the job takes: units times seconds."""
        return self.size * self.seconds


@dataclass(frozen=True)
class WidthChoice:
    """The choice of `ranks` for a job. `options` holds pairs of a number of ranks and the expected seconds on it,
    with their range; `gives` holds, in seconds, run time plus price of each, or if plans were compared the value of the
    objective with each (None: neither)."""

    ranks: int
    options: tuple[tuple[int, ExpectedTime], ...]
    gives: tuple[float, ...] | None
    objective: str


def limit_on(job: Job, ranks: int) -> float:
    """Return the walltime (seconds) of a job on `ranks` ranks."""
    return job.walltime * max(1.0, job.procs / ranks)


class QueueLength:
    """Mean over time of the number of jobs that wait after a decision; recent values weigh most (`FORGETS`)."""

    def __init__(self) -> None:
        self._sum = self._seconds = 0.0
        self._last = (math.nan, 0)

    def mean(self, now: float) -> float:
        """Return the mean at `now` (seconds)."""
        since, number = self._last
        if now > since:
            self._sum = FORGETS * self._sum + number * (now - since)
            self._seconds = FORGETS * self._seconds + now - since
            self._last = now, number
        return self._sum / self._seconds if self._seconds else 0.0

    def left(self, now: float, number: int) -> None:
        """Record that `number` jobs wait from `now` on."""
        self.mean(now)
        self._last = now, number


class Moldable(Easy):
    """EASY for jobs that may run on several numbers of ranks (`ranks=`)."""

    name = "moldable"
    learns = True

    def __init__(self, objective: str = TURNAROUND, floor: float = 0.5) -> None:
        super().__init__()
        self.objective, self.floor = objective, floor
        self.curves = Curves()
        self.choices: dict[int, WidthChoice] = {}  # of started jobs, by id
        self._old: tuple[int, RankOption, float] | None = None  # a head that waited long: id, option, latest start
        self._options: dict[int, tuple[int, list[RankOption]]] = {}  # by job: version of the curves, options
        self._queued = QueueLength()
        self._begun = math.inf  # first decision; jobs submitted by then indicate no future ones
        self._running: dict[int, float] = {}  # likely run times of running jobs (seconds), by id
        self._asked: dict[int, Job] = {}  # running jobs as they were submitted
        self._known_ends: tuple[float, int, Ends] = math.nan, 0, ()  # time, generation of the cluster, likely ends
        self._arrivals = False  # whether a job was submitted after the first decision
        self._gives: dict[int, tuple[float, ...]] = {}  # by job: the objective with each option, if compared
        self._prices = True  # whether the price of a core determines the numbers of ranks
        self._units = 1  # size of the whole machine
        self._price = 0.0  # seconds that one unit taken for one second costs other jobs

    # The numbers of ranks of a job.

    def options(self, job: Job, policy: CountingPolicy) -> list[RankOption]:
        """Return a job on each of its numbers of ranks that the machine can hold; a rigid job unchanged."""
        version, found = self._options.get(job.id, (-1, []))
        if version == self.curves.version:
            return found
        found = list[RankOption]()
        own = self.curves.expected(job, job.procs).seconds
        for ranks in () if job.request.parts else job.more.get(RANKS) or ():  # a coupled job is rigid
            seconds = self.curves.expected(job, ranks)
            limit = limit_on(job, ranks)
            ratio = seconds.seconds / own
            if ranks > job.procs and not self.curves.sure(job, ranks):
                ratio = max(ratio, 1.0)
            shaped = job if ranks == job.procs else on_ranks(
                job, ranks, limit, min(limit, max(1.0, job.expected * ratio)))
            try:
                policy.nodes(shaped)
            except Infeasible:
                continue
            found.append(RankOption.of(shaped, policy.size(shaped), seconds))
        if not found:
            found = [RankOption.of(job, policy.size(job), self.curves.expected(job, job.procs))]
        self._options[job.id] = self.curves.version, found
        return found

    def learn(self, job: Job, run: float) -> None:
        """Learn from a completed job, which took `run` seconds."""
        asked = self._asked.pop(job.id, None)
        if asked is not None:
            self.curves.ended(asked, run * self.curves.expected(asked, asked.procs).seconds
                              / self.curves.expected(asked, job.procs).seconds)
        self.curves.learn((job.user, job.app, job.request.cores_per_task), input_key(job), job.procs, run)

    def stretch(self, asked: Job, started: Job) -> float:
        """Return the ratio of the run times on the ranks of `started` and of `asked`, from the user's speed-up or
        else from the learned curves."""
        given = asked.more.get(SPEEDUP)
        if given is not None:
            curve = Downey(*given)
            return curve.time(started.procs) / curve.time(asked.procs)
        return self.curves.expected(asked, started.procs).seconds / self.curves.expected(asked, asked.procs).seconds

    # Starting jobs.

    def idle(self, waiting: QueueView, view: Cluster, policy: CountingPolicy) -> bool:
        """Return whether nothing is free."""
        return policy.room(view) == 0

    def decide(self, now: float, waiting: QueueView, view: Cluster, policy: CountingPolicy, heads: int) -> Starts:
        """Yield the jobs that start now, each on its best number of ranks."""
        jobs = list(waiting)
        if not any(job.more.get(RANKS) for job in jobs):
            yield from super().decide(now, waiting, view, policy, heads)
            return
        self._kept = (None, -1)  # EASY's own reservation may be of another job
        self._begun = min(self._begun, now)
        self._units = _whole(view, policy)
        mean, later = self._queued.mean(now), self._later(jobs)
        self._arrivals = self._arrivals or later > 0
        self._prices = self.objective == TURNAROUND and (self._arrivals or len(jobs) > FEW)
        self._set_price(mean, len(jobs), later)
        waits = {job.id for job in jobs}
        self._options = {job_id: known for job_id, known in self._options.items() if job_id in waits}
        if self._old is not None and self._old[0] not in waits:
            self._old = None
        plan = self._plan(now, jobs, view, policy)
        for at, (job, option) in enumerate(plan[:heads]):
            if self._prices:  # each start reduces the number of waiting jobs
                self._set_price(mean, len(jobs) - at, later)
                option = self._pick(job, policy)
            chosen = self._chosen(now, job, option, self._allowed(job, policy), view, policy)
            placement = policy.place(chosen.job, view)
            if not placement:
                yield from self._behind(now, job, option, plan[at + 1:], view, policy)
                break
            self._asked[job.id] = job
            yield chosen.job, placement
            later -= self._later([job])
        self._queued.left(now, self._later(job for job in jobs if job.id not in view.bookings))

    def reservations(self, now: float, waiting: QueueView, view: Cluster, policy: CountingPolicy) -> dict[int, float]:
        """Return the reservation of a head that has waited long; other heads have none and may be overtaken."""
        if not any(job.more.get(RANKS) for job in waiting):
            return super().reservations(now, waiting, view, policy)
        return {self._old[0]: self._old[2]} if self._old is not None and self._old[2] < math.inf else {}

    def _is_old(self, now: float, job: Job) -> bool:
        """Return whether a job has waited PATIENCE times its walltime, so that no younger job is ordered before it;
        False as long as no job was submitted after the first decision: then none can starve."""
        return self._arrivals and now - job.submit >= PATIENCE * job.walltime

    def _set_price(self, mean: float, waiting: int, later: int) -> None:
        """Set the price from the numbers of `waiting` jobs and of those submitted `later` than the first decision, both
        including the job that starts, and the `mean` queue length."""
        self._price = (waiting - 1 + (SIGN - 1) * max(0, later - 1) + SIGN * mean) / self._units

    def _later(self, jobs: Iterable[Job]) -> int:
        """Return how many of these jobs were submitted after the first decision."""
        return sum(job.submit > self._begun for job in jobs)

    def _likely_ends(self, now: float, view: Cluster, policy: CountingPolicy) -> Ends:
        """Return the likely ends of running jobs: a job takes the expected time of its program; one that has run longer
        is assumed to run on for as long as it is late. No end is later than the walltime."""
        if self._known_ends[:2] == (now, view.generation):
            return self._known_ends[2]
        bookings, found = view.bookings, list[tuple[float, int]]()
        self._running = {job_id: seconds for job_id, seconds in self._running.items() if job_id in bookings}
        self._asked = {job_id: job for job_id, job in self._asked.items() if job_id in bookings}
        for _, job_id in view.ends:
            booking = bookings[job_id]
            job = booking.job
            seconds = self._running.get(job_id)
            if seconds is None:
                seconds = self._running[job_id] = max(1.0, self.curves.expected(job, job.procs).seconds)
            ran = now - booking.start
            more = max(0.0, min(job.walltime - ran, abs(seconds - ran)))
            found.append((now + more, _held(booking, view, policy)))
        self._known_ends = now, view.generation, sorted(found)
        return self._known_ends[2]

    def _behind(self, now: float, head: Job, option: RankOption, plan: Plan, view: Cluster,
                policy: CountingPolicy) -> Starts:
        """Yield the jobs behind a head that does not fit that start now without delaying it."""
        reserved = self.reserve(option.job, now, view, policy)
        if self._is_old(now, head):
            self._old = head.id, option, reserved[-1].time

        def candidates() -> Iterator[Job]:
            for job, best in plan:
                room, (longest, beside) = _room(view, policy), reserved[-1].window(now)
                may = [each for each in self._allowed(job, policy)
                       if each.size <= room and (each.size <= beside or each.job.expected <= longest)]
                if may:
                    chosen = self._chosen(now, job, best, may, view, policy)
                    if chosen in may:
                        self._asked[job.id] = job
                        yield chosen.job

        yield from backfill(candidates(), now, view, policy, reserved)

    # Choosing the best number of ranks.

    def _cost(self, option: RankOption) -> float:
        """Return the cost of an option: run time plus price (seconds); under `makespan`, units times seconds. It is
        rounded, so that among options of equal cost the first one, with the fewest ranks, is chosen."""
        if self.objective == MAKESPAN:
            return round(option.taken, 6)
        return round((1 + self._price * option.size) * option.seconds, 6)

    def _chosen(self, now: float, job: Job, best: RankOption, may: Sequence[RankOption], view: Cluster,
                policy: CountingPolicy) -> RankOption:
        """Return the option, one of `may`, on which a job starts now; `best` if it is better to wait for that."""
        room = _room(view, policy)
        options = [option for option in may if option.size <= room]
        chosen = best
        if self._prices and options and best not in options:
            other = min(options, key=self._cost)
            start = finishes(now, room, self._likely_ends(now, view, policy), [(best.size, 0.0)])[0]
            chosen = other if self._cost(other) < start - now + self._cost(best) else best
        every = self.options(job, policy)
        if chosen in options and len(every) > 1:
            self.choices[job.id] = WidthChoice(
                chosen.job.procs, tuple((option.job.procs, option.expected) for option in every),
                tuple(map(self._cost, every)) if self._prices else self._gives.get(job.id), self.objective)
        return chosen

    def _plan(self, now: float, jobs: Sequence[Job], view: Cluster, policy: CountingPolicy) -> Plan:
        """Return the waiting jobs on their best numbers of ranks, in the order in which they are to start."""
        plan, self._gives = [(job, self._pick(job, policy)) for job in jobs], {}
        if len(jobs) <= FEW and self.objective != EFFICIENCY and not self._prices:
            plan = self._improved(now, plan, view, policy)
        return self._ordered(now, plan)

    def _allowed(self, job: Job, policy: CountingPolicy) -> list[RankOption]:
        """Return the options on which a job may start; only one if its number of ranks is fixed."""
        return [self._old[1]] if self._old is not None and self._old[0] == job.id else self.options(job, policy)

    def _pick(self, job: Job, policy: CountingPolicy) -> RankOption:
        """Return the best option of a job, independently of what is free now."""
        options = self._allowed(job, policy)
        return self._efficient(options) if self.objective == EFFICIENCY else min(options, key=self._cost)

    def _ordered(self, now: float, plan: Plan) -> Plan:
        """Sort by priority, then jobs that have waited long in unchanged order, then the others by the capacity that
        they take (`makespan`: longest first)."""
        longest = self.objective == MAKESPAN
        return sorted(plan, key=lambda each: (
            -each[0].priority,
            -math.inf if self._is_old(now, each[0]) else -each[1].seconds if longest else each[1].taken))

    def _improved(self, now: float, plan: Plan, view: Cluster, policy: CountingPolicy) -> Plan:
        """Return the best of two plans that are improved by simulating the queue: the given one, and each job on its
        fastest number of ranks."""
        free, ends = _room(view, policy), self._likely_ends(now, view, policy)

        def value(plan: Plan) -> float:
            work = [(option.size, option.seconds) for _, option in self._ordered(now, plan)]
            found = backfilled(now, free, ends, work)
            mean = sum(found) / len(found) - now
            return mean if self.objective == TURNAROUND else max(found) - now + EARLIER * mean

        every = [self._allowed(job, policy) for job, _ in plan]
        fastest = [(job, min(options, key=lambda option: option.seconds)) for (job, _), options in zip(plan, every)]
        best = min((self._climbed(each, every, value) for each in (plan, fastest)), key=value)
        self._gives = {job.id: tuple(value([*best[:at], (job, option), *best[at + 1:]]) for option in
                                     self.options(job, policy)) for at, (job, _) in enumerate(best)}
        return best

    @staticmethod
    def _climbed(plan: Plan, every: Sequence[Sequence[RankOption]], value: Callable[[Plan], float]) -> Plan:
        """Improve a plan by changing the numbers of ranks of one or two jobs at a time, while that helps, with at most
        TRIALS plans."""
        best, before, left = value(plan), math.inf, TRIALS
        while best < before and left:
            before = best
            for change in itertools.islice(_changes(every), left):
                trial = list(plan)
                for at, option in change:
                    trial[at] = plan[at][0], option
                found, left = value(trial), left - 1
                if found < best - 1e-9:
                    best, plan = found, trial
        return plan

    def _efficient(self, options: Sequence[RankOption]) -> RankOption:
        """Return the option with the most ranks whose efficiency, relative to the fewest ranks, is at least `floor`."""
        first = options[0]
        least = first.expected.seconds * first.job.procs
        return max((option for option in options
                    if least >= self.floor * option.expected.seconds * option.job.procs),
                   key=lambda option: option.job.procs)

    def copy(self, view: Cluster) -> Moldable:
        """Return an independent copy, with everything that was learned."""
        twin = super().copy(view)
        assert isinstance(twin, Moldable)
        twin.curves, twin.choices, twin._queued = self.curves.copy(), {}, copy.copy(self._queued)
        twin._options = dict(self._options)
        twin._running, twin._asked = dict(self._running), dict(self._asked)
        twin._known_ends = math.nan, 0, ()
        return twin


def _changes(every: Sequence[Sequence[RankOption]]) -> Iterator[Sequence[tuple[int, RankOption]]]:
    """Yield changes of a plan, as places and their options: of one job (twice), then of two."""
    for number in (1, 1, 2):
        for places in itertools.combinations(range(len(every)), number):
            for chosen in itertools.product(*(every[at] for at in places)):
                yield [*zip(places, chosen)]


def _room(view: Cluster, policy: CountingPolicy) -> int:
    """Return what is free, in units of the placement policy; in cores if it cannot be counted in units."""
    room = policy.room(view)
    return view.count_free() if room is None else room


def _whole(view: Cluster, policy: CountingPolicy) -> int:
    """Return the size of the whole machine, in the units of `_room`."""
    return _room(view, policy) + sum(_held(booking, view, policy) for booking in view.bookings.values()) or 1


def _held(booking: Booking, view: Cluster, policy: CountingPolicy) -> int:
    """Return what a running job holds, in the units of `_room`."""
    return booking.job.request.cores if policy.room(view) is None else booking.placement.size


def _objective(text: str) -> str:
    if text not in OBJECTIVES:
        raise ValueError(text)
    return text


def _share(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1:
        raise ValueError(text)
    return value


@reads({
    "objective": (_objective, "objective=turnaround, makespan or efficiency"),
    "floor": (_share, "the least efficiency under objective=efficiency, as floor=0.5"),
})
def moldable(objective: str = TURNAROUND, floor: float = 0.5) -> Dispatcher:
    """EASY with the best number of ranks for each job that allows several."""
    return Moldable(objective, floor)
