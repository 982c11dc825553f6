"""The backfilling `moldable`: EASY, and the number of ranks of each job that allows several is chosen when it starts.

Before each step the waiting jobs get numbers of ranks: those with which a list schedule of the first LOOK jobs, by
the curves of their programs, is best (`OBJECTIVES`); for the turnaround each core second has a price, since jobs that
come later wait for it, too: as many seconds as jobs waited of late, over the cores. One job after the other takes the
number that is best while the others keep theirs, until none changes. Then EASY starts them; of at most FEW jobs those
that start now by the list schedule, unless a running job is late. Behind a head that waits, those are tried first that
take least of the machine. The head never starts later than it was promised for
an earlier choice: nobody starves.

A job's walltime is that of the number of ranks it asks for. On fewer it is longer in proportion, on more it is the
same: so it is right for every program that does not take longer on more ranks. """

from __future__ import annotations

import copy
import itertools
import math
from dataclasses import dataclass
from typing import NamedTuple
from collections.abc import Hashable, Iterator, Sequence

from vrm.ext.learning.curves import Curves, Expected, input_key
from vrm.ext.learning.list_schedules import backfilled, finishes
from vrm.ext.learning.widths import RANKS, SPEEDUP, Downey
from vrm.model.cluster import Booking, Cluster
from vrm.model.job import Infeasible, Job, on_ranks
from vrm.model.policies import CountingPolicy
from vrm.scheduling.backfilling.dispatcher import Dispatcher, Starts
from vrm.scheduling.backfilling.easy import Easy, backfill
from vrm.scheduling.orderings.queue import Waiting
from vrm.scheduling.registry import reads

LOOK = 30
"""Waiting jobs whose ends count when numbers of ranks are chosen."""

FEW = 10
"""Waiting jobs up to which the schedule by which numbers of ranks are chosen has backfilling: of many, others fill the
gaps anyway."""

EARLIER = 1e-3
"""What a second of the mean end counts where the last end is to be early: of plans that end together, the one that
leaves more room."""

LATE = 0.1
"""Seconds after its expected end from which a running job is late: then jobs start that fit, whatever the plan says."""

CHOSEN = 8
"""Of these, the first that are not rigid, whose numbers of ranks are chosen anew at each step."""

PASSES = 4
"""How often at most each of them is looked at."""

EXPLORED = 3
"""Numbers of ranks on which a program is measured before no other one is tried."""

TURNAROUND, MAKESPAN, EFFICIENCY = "turnaround", "makespan", "efficiency"
OBJECTIVES = (TURNAROUND, MAKESPAN, EFFICIENCY)
"""What is sought: the least mean of wait and run, the earliest last end, or the most ranks with an efficiency of
`floor`."""


FORGETS = 0.9995
"""How much of what was seen of the queue before counts after another decision."""


class RankOption(NamedTuple):
    """A job on one of its numbers of ranks, its size in the units of the placement policy, and how long it takes:
    `seconds` are at most its walltime."""

    job: Job
    size: int
    expected: Expected
    seconds: float

    @staticmethod
    def of(job: Job, size: int, expected: Expected) -> RankOption:
        """Return it."""
        return RankOption(job, size, expected, min(job.walltime, max(1.0, expected.seconds)))

    @property
    def taken(self) -> float:
        """What it takes of the machine: units times seconds."""
        return self.size * self.seconds


@dataclass(frozen=True)
class WidthChoice:
    """Why a job starts on so many ranks: `options` are pairs of a number of ranks and the seconds that are expected
    there, with an interval; `gives` the objective for each, in seconds (None: it was not needed). `gain`: it is to be
    measured there, and so many seconds later jobs may gain by that; 0 where it is not tried."""

    ranks: int
    options: tuple[tuple[int, Expected], ...]
    gives: tuple[float, ...] | None
    objective: str
    gain: float = 0.0

    @property
    def explores(self) -> bool:
        """Whether it is a try."""
        return self.gain > 0


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
        self._planned: dict[int, int] = {}  # numbers of ranks of waiting jobs
        self._promised: tuple[int, float] | None = None  # the head, and when it starts at the latest
        self._options: dict[int, tuple[int, list[RankOption]]] = {}  # by job, and for which state of the curves
        self._queued = QueueLength()
        self._begun = math.inf  # when it decided first: jobs that are there then are no sign that others will come
        self._running: dict[int, float] = {}  # seconds that running jobs are likely to take
        self._asked: dict[int, Job] = {}  # running jobs as they were submitted
        self._tries: dict[Hashable, dict[int, int]] = {}  # by program and input: numbers of ranks, and who tries them
        self._late = False  # whether a running job takes longer than was expected of it
        self._due = math.inf  # when the next running job is late, where the plan holds jobs until one ends
        self._units = 1  # of room, of the whole machine
        self._price = 0.0  # seconds that a unit of room, taken for a second, costs the jobs that come later

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

    def idle(self, waiting: Waiting, view: Cluster, policy: CountingPolicy) -> bool:
        """Whether nothing is free."""
        return policy.room(view) == 0

    def wake(self, now: float) -> float:
        """When a running job is late on whose end the plan relies."""
        return self._due if self._due > now else math.inf

    def decide(self, now: float, waiting: Waiting, view: Cluster, policy: CountingPolicy, heads: int) -> Starts:
        """The jobs that start now, each on the number of ranks that is best."""
        jobs = list(waiting)
        if not any(job.more.get(RANKS) for job in jobs):
            yield from super().decide(now, waiting, view, policy, heads)
            return
        self._kept = (None, -1)  # EASY's own reservations are of other jobs
        self._begun, self._due = min(self._begun, now), math.inf
        self._units = _whole(view, policy)
        self._price = self._queued.mean(now) / self._units
        self._forget({job.id for job in jobs})
        plan = self._plan(now, jobs, view, policy)
        for at, job in enumerate(jobs[:heads]):
            option = plan[at] if at < len(plan) else self._default(job, policy)
            placement = policy.place(option.job, view)
            if not placement:
                yield from self._behind(now, option, jobs[at + 1:], plan[at + 1:], view, policy)
                break
            self._asked[job.id] = job
            yield option.job, placement
        self._queued.left(now, sum(job.submit > self._begun and job.id not in view.bookings for job in jobs))

    def _forget(self, waiting: set[int]) -> None:
        """Drop what was known of jobs that have started or ended."""
        for known in (self._planned, self._options):
            for job_id in [job_id for job_id in known if job_id not in waiting]:
                del known[job_id]

    def _likely_ends(self, now: float, view: Cluster, policy: CountingPolicy) -> list[tuple[float, int]]:
        """When running jobs are likely to end, and how much is free then: each takes what its program took, and one
        that has taken longer takes as long again as it is late."""
        bookings, found = view.bookings, []
        self._late = False
        self._running = {job_id: seconds for job_id, seconds in self._running.items() if job_id in bookings}
        self._asked = {job_id: job for job_id, job in self._asked.items() if job_id in bookings}
        for _, job_id in view.ends:
            booking = bookings[job_id]
            job = booking.job
            seconds = self._running.get(job_id)
            if seconds is None:
                seconds = self._running[job_id] = max(1.0, self.curves.expected(job, job.procs).seconds)
            ran = now - booking.start
            self._late = self._late or ran > seconds + LATE
            more = max(0.0, min(job.walltime - ran, abs(seconds - ran)))
            found.append((now + more, _held(booking, view, policy)))
        return sorted(found)

    def _default(self, job: Job, policy: CountingPolicy) -> RankOption:
        """A job as it was planned last, at first on the number of ranks nearest to what it asks for."""
        options = self.options(job, policy)
        wanted = self._planned.get(job.id, job.procs)
        return min(options, key=lambda option: abs(option.job.procs - wanted))

    def _behind(self, now: float, head: RankOption, jobs: Sequence[Job], plan: Sequence[RankOption], view: Cluster,
                policy: CountingPolicy) -> Starts:
        """The jobs behind a head that does not fit, which start now without delaying it."""
        reserved = self.reserve(head.job, now, view, policy)
        self._promised = head.job.id, reserved[-1].time

        ends, few = self._likely_ends(now, view, policy), len(plan) < FEW
        planned = (backfilled if few else finishes)(now, _room(view, policy), ends, [
            (option.size, option.seconds) for option in (head, *plan)])[1:]
        few = few and not self._late

        known = [*plan, *(self._default(job, policy) for job in jobs[len(plan):])]

        def candidates() -> Iterator[Job]:
            for at in sorted(range(len(jobs)), key=lambda at: known[at].taken):
                job, options = jobs[at], [known[at]]
                room = _room(view, policy)
                longest, beside = reserved[-1].window(now)
                if few and planned[at] - plan[at].seconds > now + 1e-6:
                    self._due = min((end for end, _ in ends if end > now), default=math.inf) + 2 * LATE
                    continue  # by the plan it starts later: now it would delay others
                if not few and at < len(plan):  # on other ranks, where it ends sooner than planned and takes no more
                    options += sorted((option for option in self.options(job, policy)
                                       if now + option.seconds <= planned[at] and option.taken <= plan[at].taken),
                                      key=lambda option: option.seconds)
                for option in options:
                    if option.size <= room and (option.size <= beside or option.seconds <= longest):
                        self._asked[job.id] = job
                        yield option.job
                        break

        yield from backfill(candidates(), now, view, policy, reserved)

    # Which numbers of ranks are best.

    def _plan(self, now: float, jobs: Sequence[Job], view: Cluster, policy: CountingPolicy) -> list[RankOption]:
        """The first LOOK jobs on the numbers of ranks that are best; what starts by that is in `choices`."""
        waiting, jobs = jobs, jobs[:LOOK]
        free, ends = _room(view, policy), self._likely_ends(now, view, policy)
        plan = [self._default(job, policy) for job in jobs]
        free_to_choose = [at for at, job in enumerate(jobs) if len(self.options(job, policy)) > 1][:CHOSEN]
        if self.objective == EFFICIENCY:
            for at in free_to_choose:
                plan[at] = self._efficient(self.options(jobs[at], policy))
        else:
            plan = self._improved(now, jobs, plan, free_to_choose, free, ends, policy)
        for at in free_to_choose:
            self._planned[jobs[at].id] = plan[at].job.procs
        self._note(now, waiting, plan, free_to_choose, free, ends, policy)
        return plan

    def _cost(self, now: float, free: int, ends: Sequence[tuple[float, int]], plan: Sequence[RankOption]) -> float:
        """The objective for numbers of ranks, in seconds from now."""
        schedule = backfilled if len(plan) <= FEW else finishes
        found = schedule(now, free, ends, [(option.size, option.seconds) for option in plan])
        if self.objective == MAKESPAN:
            return max(found) - now + EARLIER * (sum(found) / len(found) - now)
        taken = sum([option.taken for option in plan])
        return sum(found) - now * len(found) + self._price * taken

    def _improved(self, now: float, jobs: Sequence[Job], plan: list[RankOption], chosen: Sequence[int], free: int,
                  ends: Sequence[tuple[float, int]], policy: CountingPolicy) -> list[RankOption]:
        """The plan, of which no single job would do better on another number of ranks; from some beginnings the
        best."""
        every = [self.options(job, policy) for job in jobs]
        allowed = [self._in_time(now, jobs[0], every[0], free, ends), *every[1:]]
        beginnings = [plan]
        beginnings += [[pick(options, key=lambda option: option.size) if at in chosen else plan[at]
                        for at, options in enumerate(allowed)] for pick in (min, max)]
        best, found = math.inf, plan
        for begin in beginnings:
            begin = [option if option in allowed[at] else allowed[at][0] for at, option in enumerate(begin)]
            cost = self._cost(now, free, ends, begin)
            for _ in range(PASSES):
                before = cost
                for at in chosen:
                    for option in allowed[at]:
                        trial = [*begin[:at], option, *begin[at + 1:]]
                        value = self._cost(now, free, ends, trial)
                        if value < cost - 1e-9:
                            cost, begin = value, trial
                if cost == before and len(plan) <= FEW:
                    cost, begin = self._pairs(now, free, ends, cost, begin, chosen, allowed)
                if cost == before:
                    break
            if cost < best - 1e-9:
                best, found = cost, begin
        return found

    def _pairs(self, now: float, free: int, ends: Sequence[tuple[float, int]], cost: float, plan: list[RankOption],
               chosen: Sequence[int], allowed: Sequence[Sequence[RankOption]]) -> tuple[float, list[RankOption]]:
        """The first two jobs that do better when both take other numbers of ranks, with what that gives; else the same
        plan."""
        for one, two in itertools.combinations(chosen, 2):
            for first, second in itertools.product(allowed[one], allowed[two]):
                trial = list(plan)
                trial[one], trial[two] = first, second
                value = self._cost(now, free, ends, trial)
                if value < cost - 1e-9:
                    return value, trial
        return cost, plan

    def _in_time(self, now: float, head: Job, options: list[RankOption], free: int, ends: Sequence[tuple[float, int]]
                 ) -> list[RankOption]:
        """The options of the head with which it starts when it was promised to, or as early as it can."""
        if self._promised is None or self._promised[0] != head.id:
            return options
        starts = [finishes(now, free, ends, [(option.size, 0.0)])[0] for option in options]
        latest = max(self._promised[1], min(starts))
        return [option for option, start in zip(options, starts) if start <= latest + 1e-6]

    def _efficient(self, options: Sequence[RankOption]) -> RankOption:
        """The most ranks of which at least the part `floor` does as much as on the fewest."""
        first = options[0]
        least = first.expected.seconds * first.job.procs
        return max((option for option in options
                    if least >= self.floor * option.expected.seconds * option.job.procs),
                   key=lambda option: option.job.procs)

    def _note(self, now: float, jobs: Sequence[Job], plan: list[RankOption], chosen: Sequence[int], free: int,
              ends: Sequence[tuple[float, int]], policy: CountingPolicy) -> None:
        """Keep why the jobs get these numbers of ranks that may start now; what is hardly known is measured, where that
        costs little."""
        for at in chosen:
            if plan[at].size > free:
                continue
            job, options = jobs[at], self.options(jobs[at], policy)
            gives = None
            gain = 0.0
            if self.objective != EFFICIENCY:
                gives = tuple(self._cost(now, free, ends, [*plan[:at], option, *plan[at + 1:]])
                              for option in options)
                gain = self._explore(at, plan, jobs, options, gives, free)
            self.choices[job.id] = WidthChoice(
                plan[at].job.procs, tuple((option.job.procs, option.expected) for option in options), gives,
                self.objective, gain)

    def _explore(self, at: int, plan: list[RankOption], jobs: Sequence[Job], options: Sequence[RankOption],
                 gives: Sequence[float], free: int) -> float:
        """Let a job start where its program was not measured, if jobs that run later gain more by that than it costs;
        return what they gain (seconds), 0 where it does not. As many run later as wait, and as have completed."""
        job, known = jobs[at], self.curves.measured(jobs[at])
        tries = self._tries.setdefault((job.user, job.app, input_key(job)), {})
        for ranks in [ranks for ranks, job_id in tries.items() if job_id == job.id]:
            del tries[ranks]
        known = dict.fromkeys(tries, 0) | known
        if SPEEDUP in job.more or len(known) >= EXPLORED or not known or plan[at].job.procs not in known:
            return 0.0
        least, likely, scatter = min(gives), self.curves.likely(job), self.curves.scatter()
        price, later = max(self._price, len(jobs) / self._units), sum(known.values()) + self._like(job, jobs)
        worth = [(option.job.procs, self._worth(option.size, price)) for option in options]
        most, best = 0.0, (plan[at], 0.0)
        for number, (option, value) in enumerate(zip(options, gives)):
            if option.job.procs not in known and option.size <= free:
                gain = later * likely.gain(worth, number, scatter)
                if gain - (value - least) > most:
                    most, best = gain - (value - least), (option, gain)
        plan[at], gain = best
        if gain:
            tries[plan[at].job.procs] = job.id
        self._planned[job.id] = plan[at].job.procs
        return gain

    def _worth(self, size: int, price: float) -> float:
        """What a second on so much room counts for the objective."""
        return size / self._units if self.objective == MAKESPAN else 1 + price * size

    @staticmethod
    def _like(job: Job, jobs: Sequence[Job]) -> int:
        """How many others of these have the same program and input."""
        key = input_key(job)
        return sum(other.app == job.app and other.user == job.user and input_key(other) == key for other in jobs) - 1

    def copy(self, view: Cluster) -> Moldable:
        """An independent copy, with all that was learned."""
        twin = super().copy(view)
        assert isinstance(twin, Moldable)
        twin.curves, twin.choices, twin._queued = self.curves.copy(), {}, copy.copy(self._queued)
        twin._planned, twin._options = dict(self._planned), dict(self._options)
        twin._tries = {program: dict(tries) for program, tries in self._tries.items()}
        twin._running, twin._asked = dict(self._running), dict(self._asked)
        return twin


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
