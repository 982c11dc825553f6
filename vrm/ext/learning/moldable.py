"""The backfilling `moldable`: EASY, and the number of ranks of each job that allows several is chosen when it starts.

A second on a core makes others wait: those that wait now, and those that come later, of which the queue is a sign. So
it has a price (`SIGN`), and the number of ranks is best on which run time and price are least, by the curve of the
program. The load changes numbers of ranks, so curves are learned, and no job runs only for that. Where that many are
not free, a job starts on fewer if that is better than to wait for them. For the earliest last end (`makespan`) jobs
take least of the machine while many wait, and of FEW those numbers of ranks are taken that are best by a list schedule.

Jobs start by one rule: EASY, in the order of what they take of the machine, the least first (for the earliest last
end the longest first). Nobody starves: a job that has waited PATIENCE times its walltime is before those that have
not, in the order of the queue, keeps its number of ranks from then on, and what starts does not delay it.

A job's walltime is that of the number of ranks it asks for. On fewer it is longer in proportion, on more it is the
same: so it is right for every program that does not take longer on more ranks. """

from __future__ import annotations

import copy
import itertools
import math
from dataclasses import dataclass
from typing import NamedTuple
from collections.abc import Iterable, Iterator, Sequence

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
"""For how many jobs that come later, and wait as long, one that waits is a sign."""

PATIENCE = 2
"""How often its walltime a job waits at most before it is before all younger ones."""

FEW = 10
"""Waiting jobs of which a list schedule says the numbers of ranks with the earliest last end."""

EARLIER = 1e-3
"""What a second of the mean end counts where the last end is to be early: of plans that end together, the one that
leaves more room."""

PASSES = 4
"""How often at most each of them is looked at."""

TURNAROUND, MAKESPAN, EFFICIENCY = "turnaround", "makespan", "efficiency"
OBJECTIVES = (TURNAROUND, MAKESPAN, EFFICIENCY)
"""What is sought: the least mean of wait and run, the earliest last end, or the most ranks with an efficiency of
`floor`."""


FORGETS = 0.9995
"""How much of what was seen of the queue before counts after another decision."""


Ends = Sequence[tuple[float, int]]
"""When running jobs are likely to end, and how much is free then."""


class RankOption(NamedTuple):
    """A job on one of its numbers of ranks, its size in the units of the placement policy, and how long it takes:
    `seconds` are at most its walltime."""

    job: Job
    size: int
    expected: ExpectedTime
    seconds: float

    @staticmethod
    def of(job: Job, size: int, expected: ExpectedTime) -> RankOption:
        """Return it."""
        return RankOption(job, size, expected, min(job.walltime, max(1.0, expected.seconds)))

    @property
    def taken(self) -> float:
        """What it takes of the machine: units times seconds."""
        return self.size * self.seconds


@dataclass(frozen=True)
class WidthChoice:
    """Why a job starts on so many ranks: `options` are pairs of a number of ranks and the seconds that are expected
    there, with an interval; `gives` run time and price of each, in seconds (None: something else is sought)."""

    ranks: int
    options: tuple[tuple[int, ExpectedTime], ...]
    gives: tuple[float, ...] | None
    objective: str


def limit_on(job: Job, ranks: int) -> float:
    """Return the walltime of a job on another number of ranks (seconds)."""
    return job.walltime * max(1.0, job.procs / ranks)


class QueueLength:
    """The mean number of jobs that wait after a decision, the last ones weigh most."""

    def __init__(self) -> None:
        self._sum = self._seconds = 0.0
        self._last = (math.nan, 0)

    def mean(self, now: float) -> float:
        """It, at this time (seconds)."""
        since, number = self._last
        if now > since:
            self._sum = FORGETS * self._sum + number * (now - since)
            self._seconds = FORGETS * self._seconds + now - since
            self._last = now, number
        return self._sum / self._seconds if self._seconds else 0.0

    def left(self, now: float, number: int) -> None:
        """So many wait from now on."""
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
        self.choices: dict[int, WidthChoice] = {}  # of jobs that were started
        self._old: tuple[int, RankOption, float] | None = None  # a head that waited long, and its latest start
        self._options: dict[int, tuple[int, list[RankOption]]] = {}  # by job, and for which state of the curves
        self._queued = QueueLength()
        self._begun = math.inf  # when it decided first: jobs that are there then are no sign that others will come
        self._running: dict[int, float] = {}  # seconds that running jobs are likely to take
        self._asked: dict[int, Job] = {}  # running jobs as they were submitted
        self._known_ends: tuple[float, int, Ends] = math.nan, 0, ()  # likely ends, and when and for which state
        self._units = 1  # of room, of the whole machine
        self._price = 0.0  # seconds that a unit of room, taken for a second, costs other jobs

    # What jobs may do.

    def options(self, job: Job, policy: CountingPolicy) -> list[RankOption]:
        """A job on each of its numbers of ranks that some nodes can hold; a rigid one as it is."""
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
        """A job has completed."""
        asked = self._asked.pop(job.id, None)
        if asked is not None:
            self.curves.ended(asked, run * self.curves.expected(asked, asked.procs).seconds
                              / self.curves.expected(asked, job.procs).seconds)
        self.curves.learn((job.user, job.app, job.request.cores_per_task), input_key(job), job.procs, run)

    def stretch(self, asked: Job, started: Job) -> float:
        """How many times as long it takes: by its speed-up where that is given, else by the curves."""
        given = asked.more.get(SPEEDUP)
        if given is not None:
            curve = Downey(*given)
            return curve.time(started.procs) / curve.time(asked.procs)
        return self.curves.expected(asked, started.procs).seconds / self.curves.expected(asked, asked.procs).seconds

    # What starts.

    def idle(self, waiting: QueueView, view: Cluster, policy: CountingPolicy) -> bool:
        """Whether nothing is free."""
        return policy.room(view) == 0

    def decide(self, now: float, waiting: QueueView, view: Cluster, policy: CountingPolicy, heads: int) -> Starts:
        """The jobs that start now, each on the number of ranks that is best."""
        jobs = list(waiting)
        if not any(job.more.get(RANKS) for job in jobs):
            yield from super().decide(now, waiting, view, policy, heads)
            return
        self._kept = (None, -1)  # EASY's own reservations are of other jobs
        self._begun = min(self._begun, now)
        self._units = _whole(view, policy)
        mean, later = self._queued.mean(now), self._later(jobs)
        self._set_price(mean, len(jobs), later)
        waits = {job.id for job in jobs}
        self._options = {job_id: known for job_id, known in self._options.items() if job_id in waits}
        if self._old is not None and self._old[0] not in waits:
            self._old = None
        plan = self._plan(now, jobs, view, policy)
        for at, (job, option) in enumerate(plan[:heads]):
            if self.objective == TURNAROUND:  # the more have started the fewer wait
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
        """That of a head that has waited long: others before it may be overtaken."""
        if not any(job.more.get(RANKS) for job in waiting):
            return super().reservations(now, waiting, view, policy)
        return {self._old[0]: self._old[2]} if self._old is not None and self._old[2] < math.inf else {}

    def _set_price(self, mean: float, waiting: int, later: int) -> None:
        """By how many jobs wait, and how many of them came later than the first ones, without the one that starts, and
        how many waited on average."""
        self._price = (waiting - 1 + (SIGN - 1) * max(0, later - 1) + SIGN * mean) / self._units

    def _later(self, jobs: Iterable[Job]) -> int:
        """How many of these have come later than the first ones."""
        return sum(job.submit > self._begun for job in jobs)

    def _likely_ends(self, now: float, view: Cluster, policy: CountingPolicy) -> Ends:
        """When running jobs are likely to end, and how much is free then: each takes what its program took, and one
        that has taken longer takes as long again as it is late."""
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

    def _behind(self, now: float, head: Job, option: RankOption, plan: Sequence[tuple[Job, RankOption]], view: Cluster,
                policy: CountingPolicy) -> Starts:
        """The jobs behind a head that does not fit, which start now without delaying it."""
        reserved = self.reserve(option.job, now, view, policy)
        if _old(now, head):
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

    # Which numbers of ranks are best.

    def _cost(self, option: RankOption) -> float:
        """What it costs: for its own turnaround and that of others, or of the machine (seconds). Rounded: of numbers of
        ranks that cost the same the first is taken, the least."""
        if self.objective == MAKESPAN:
            return round(option.taken, 6)
        return round((1 + self._price * option.size) * option.seconds, 6)

    def _chosen(self, now: float, job: Job, best: RankOption, may: Sequence[RankOption], view: Cluster,
                policy: CountingPolicy) -> RankOption:
        """How a job starts now, which `may` do so in some ways; `best` where it is better to wait for that."""
        room = _room(view, policy)
        options = [option for option in may if option.size <= room]
        chosen = best
        if self.objective == TURNAROUND and options and best not in options:
            other = min(options, key=self._cost)
            start = finishes(now, room, self._likely_ends(now, view, policy), [(best.size, 0.0)])[0]
            chosen = other if self._cost(other) < start - now + self._cost(best) else best
        every = self.options(job, policy)
        if chosen in options and len(every) > 1:
            self.choices[job.id] = WidthChoice(
                chosen.job.procs, tuple((option.job.procs, option.expected) for option in every),
                tuple(map(self._cost, every)) if self.objective == TURNAROUND else None, self.objective)
        return chosen

    def _plan(self, now: float, jobs: Sequence[Job], view: Cluster, policy: CountingPolicy
              ) -> list[tuple[Job, RankOption]]:
        """Waiting jobs on the numbers of ranks that are best, in the order in which they are to start."""
        plan = [(job, self._pick(job, policy)) for job in jobs]
        if self.objective == MAKESPAN and len(jobs) <= FEW:
            plan = self._improved(now, plan, view, policy)
        return self._ordered(now, plan)

    def _allowed(self, job: Job, policy: CountingPolicy) -> list[RankOption]:
        """A job on the numbers of ranks on which it may start."""
        return [self._old[1]] if self._old is not None and self._old[0] == job.id else self.options(job, policy)

    def _pick(self, job: Job, policy: CountingPolicy) -> RankOption:
        """A job on the number of ranks that is best for itself."""
        options = self._allowed(job, policy)
        return self._efficient(options) if self.objective == EFFICIENCY else min(options, key=self._cost)

    def _ordered(self, now: float, plan: Sequence[tuple[Job, RankOption]]) -> list[tuple[Job, RankOption]]:
        """Jobs of one priority that have waited long, as they are; then the others."""
        longest = self.objective == MAKESPAN
        return sorted(plan, key=lambda each: (
            -each[0].priority, -math.inf if _old(now, each[0]) else -each[1].seconds if longest else each[1].taken))

    def _improved(self, now: float, plan: list[tuple[Job, RankOption]], view: Cluster, policy: CountingPolicy
                  ) -> list[tuple[Job, RankOption]]:
        """The plan, of which no single job and no two would end earlier on other numbers of ranks."""
        free, ends = _room(view, policy), self._likely_ends(now, view, policy)

        def value(plan: list[tuple[Job, RankOption]]) -> float:
            work = [(option.size, option.seconds) for _, option in self._ordered(now, plan)]
            found = backfilled(now, free, ends, work)
            return max(found) - now + EARLIER * (sum(found) / len(found) - now)

        every = [self._allowed(job, policy) for job, _ in plan]
        best = value(plan)
        for number in (1, 1, 2) * PASSES:
            before = best
            for places in itertools.combinations(range(len(plan)), number):
                for chosen in itertools.product(*(every[at] for at in places)):
                    trial = list(plan)
                    for at, option in zip(places, chosen):
                        trial[at] = plan[at][0], option
                    found = value(trial)
                    if found < best - 1e-9:
                        best, plan = found, trial
            if number == 2 and best == before:
                break
        return plan

    def _efficient(self, options: Sequence[RankOption]) -> RankOption:
        """The most ranks of which at least the part `floor` does as much as on the fewest."""
        first = options[0]
        least = first.expected.seconds * first.job.procs
        return max((option for option in options
                    if least >= self.floor * option.expected.seconds * option.job.procs),
                   key=lambda option: option.job.procs)

    def copy(self, view: Cluster) -> Moldable:
        """An independent copy, with all that was learned."""
        twin = super().copy(view)
        assert isinstance(twin, Moldable)
        twin.curves, twin.choices, twin._queued = self.curves.copy(), {}, copy.copy(self._queued)
        twin._options = dict(self._options)
        twin._running, twin._asked = dict(self._running), dict(self._asked)
        twin._known_ends = math.nan, 0, ()
        return twin


def _old(now: float, job: Job) -> bool:
    """Whether it has waited so long that no younger one is before it."""
    return now - job.submit >= PATIENCE * job.walltime


def _room(view: Cluster, policy: CountingPolicy) -> int:
    """What is free, in the units of the placement policy, or in cores where a count does not say all."""
    room = policy.room(view)
    return view.count_free() if room is None else room


def _whole(view: Cluster, policy: CountingPolicy) -> int:
    """All that there is, in the units of the placement policy, as `_room`."""
    return _room(view, policy) + sum(_held(booking, view, policy) for booking in view.bookings.values()) or 1


def _held(booking: Booking, view: Cluster, policy: CountingPolicy) -> int:
    """What a running job has of it, as `_room`."""
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
    """EASY, and the best number of ranks for each job that allows several."""
    return Moldable(objective, floor)
