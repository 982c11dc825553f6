"""Why a job waits: which jobs and rules delay it, and what would let it start earlier.

A reason is a guess until it is tested: the run is replayed without the named job, or with the named estimate.
It is a reason only if the job then starts earlier. The replays are those of forecasts, so the run's own
dispatcher decides what would happen.
"""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import median_low as median
from typing import Any, NamedTuple
from collections.abc import Iterable, Iterator, Sequence

from vrm.ext.forecast.frozen import FrozenRun
from vrm.ext.forecast.replay import Durations, PlannedJob, limits, replay
from vrm.model import Job
from vrm.model.forms.hosts import fold as fold_nodes
from vrm.model.measured.quantile import quantile
from vrm.model.quantities import fold, said
from vrm.results.placement_text import PlacementText
from vrm.run.entry import Entry
from vrm.run.reasons import clock, parked, why_bound
from vrm.scheduling.backfilling.easy import NoBackfilling

MAX_TESTED = 12
"""Number of jobs that are tested one by one; after that, all jobs in the way are tested together."""

MAX_REASONS = 3
"""Greatest number of reasons that are given: those that cost the job the most time."""

TOO_LATE = "does not start before the allocation ends", "would not end before the allocation does"
"""Why a job has to wait for another allocation: without and with the rule that a job must fit before the end."""

EARLIER = 1e-3
"""Least number of seconds that count as an earlier start."""


class Reason(NamedTuple):
    """A reason that keeps a job from starting.

    `kind` is cores (jobs hold what it needs), order (jobs are ahead), reservation (it would delay a reserved
    start), kept (nodes are kept for an advance reservation), bound (it waits for its own advance reservation),
    dependency, held, queue (a limit of its queue), nodes (it cannot run on the present nodes), begin (it is not
    to start earlier), end (of the allocation), interval (decisions are made at intervals) or next (nothing: it
    starts next). `jobs` are those in the way. `what_if` is the change that was tested; with it, the job starts
    at `start` (seconds), `earlier` seconds before its planned start, infinity if it would not start at all
    without the change. `agree` is the fraction of the draws in which it starts earlier; None if nothing was
    drawn.
    """

    kind: str
    text: str
    short: str
    jobs: tuple[int, ...] = ()
    what_if: str = ""
    start: float = math.nan
    earlier: float = 0.0
    agree: float | None = None

    @property
    def checked(self) -> bool:
        """Whether the reason was tested and the job started earlier."""
        return self.earlier > EARLIER


HELD = Reason("held", "it is held (`vrm release` releases it)", "held")
"""The reason of a job that is held."""


class Explanation(NamedTuple):
    """Why a job waits. `start` is its probable start (the median of the draws, if there are any), infinity if
    it does not start in this allocation. `between` are the 10th and the 90th percentile of its starts over the
    draws, if there are enough. The most important reason is first."""

    job: Job
    start: float
    reasons: tuple[Reason, ...]
    between: tuple[float, ...] = ()

    def record(self) -> dict[str, Any]:
        """Return the explanation as JSON values; None replaces infinity and missing values."""
        return {"id": self.job.id, "app": self.job.app, "start": _finite(self.start),
                "between": [_finite(each) for each in self.between],
                "reasons": [{name: _finite(list(value) if isinstance(value, tuple) else value)
                             for name, value in reason._asdict().items()}
                            for reason in self.reasons]}


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


class Explainer:
    """Explains why the jobs of a frozen run wait. `durations` returns how long jobs run; `members` are further
    such functions, in which reasons are tested, too."""

    def __init__(self, frozen: FrozenRun, durations: Durations = limits,
                 members: Sequence[Durations] = ()) -> None:
        self.frozen = frozen
        self._durations = durations
        self._members = members
        self.plan = replay(frozen, durations)
        self.order = list(frozen.state.queue.in_order(frozen.now))
        self._place = {job.id: place for place, job in enumerate(self.order)}
        self._later = {one.job.id for one in frozen.later}  # not submitted yet, so they are not named
        self._text = PlacementText(frozen.state.cluster.nodes)
        self._without: dict[tuple[int, ...], dict[int, PlannedJob]] = {}
        self._drawn: dict[tuple[int, ...], list[dict[int, PlannedJob]]] = {}

    def of(self, job_id: int) -> Explanation:
        """Explain why job `job_id`, which waits, does not run. Raises JobStateError if it does not exist."""
        state = self.frozen.state
        entry = state.entry(job_id)
        job = entry.job
        start = self._start(self.plan, job_id)
        if job_id in state.book.parked:
            return Explanation(job, start, (self._parked(entry),))
        bound = state.reservations.of_job(job_id)
        if bound is not None:
            text = why_bound(bound, self.frozen.now)
            reason = Reason("bound", f"it waits for {text}", text,
                            what_if="it were in no reservation")
            return Explanation(job, start, (self._tried(reason, job, self.frozen.unbound(job_id)),))
        if job_id in state.queue.outside:
            return Explanation(job, start, tuple(self._limited(job)))
        if start <= self.frozen.now + EARLIER:
            return Explanation(job, start, (Reason("next", "it starts next", "starts next"),))
        if start == math.inf:
            return Explanation(job, start, (self._too_late(job),))
        reserved = self._reserved(job, start)
        found = [] if reserved is None else [reserved]
        found += self._reservation_reasons(job, start)
        named = {each.jobs for each in found if each.jobs}
        found += [each for each in self._blocking_jobs(job, start) if each.jobs not in named]
        if not found:
            found.append(self._interval_reason(job))
        if self._members:
            start = median(self._start(plan, job.id) for plan in self._drawn_plans(()))
        return Explanation(job, start, tuple(found[:MAX_REASONS]), self._range(job))

    def brief(self, tries: int = 20, most: int = 200) -> dict[int, str]:
        """Return a few words for each waiting job, by id. At most `tries` replays are made; the other jobs get
        the nearest reason, untested. Jobs after the first `most` that could start are only reported as behind
        the first one."""
        frozen, state = self.frozen, self.frozen.state
        found = {job_id: parked(entry, state.book.entries, self.frozen.now)
                 for job_id, entry in state.book.parked.items()}
        if state.queue.outside:
            found.update(state.queue.why_not_competing(state.cluster))
            for job_id in state.queue.outside:
                bound = state.reservations.of_job(job_id)
                if bound is not None:
                    found[job_id] = why_bound(bound, frozen.now)
        for place, job in enumerate(self.order):
            start = self._start(self.plan, job.id)
            if start == math.inf:
                found[job.id] = ("never, as things are" if frozen.end == math.inf else
                                 TOO_LATE[frozen.fit])
            elif start <= frozen.now + EARLIER:
                found[job.id] = "starts next"
            elif place >= most:
                found[job.id] = f"behind job {self.order[0].id}"
            else:
                found[job.id] = self._nearest(job, start, tries)
        return found

    def _nearest(self, job: Job, start: float, tries: int) -> str:
        """Return, in a few words, the first suspect without which the job would start earlier."""
        suspects = self._suspects(job, start)
        for other in suspects:
            if (other,) in self._without or len(self._without) < tries:
                tried = self._try(job, start, (other,))
                if tried is not None:
                    return tried.short
        untried = [other for other in suspects if (other,) not in self._without]
        interval = self.frozen.run.scheduler.interval
        if untried:
            return self._said(job, (untried[0],))[2]
        if interval:
            return f"decided every {interval:g} s"
        return f"behind {len(suspects)} jobs" if len(suspects) > 1 else "its turn comes"

    # What a job lacks other than free cores.

    def _parked(self, entry: Entry) -> Reason:
        job, state, now = entry.job, self.frozen.state, self.frozen.now
        text = parked(entry, state.book.entries, now)
        if entry.late:
            return self._too_late(job)
        if entry.held:
            return self._tried(HELD._replace(what_if="it were released"), job, self.frozen.released(job.id))
        if entry.missing:
            assert entry.wish is not None
            ids = tuple(sorted({job_id for each in entry.wish.after for job_id in each.ids
                                if state.entry(job_id).open_for(each)}))
            last = max((self._end(job_id) for job_id in ids), default=math.inf)
            until = f", which should have ended by {clock(last, now)}" if last < math.inf else \
                ", which will not end in this allocation"
            return self._tried(Reason("dependency", f"it depends on {_jobs(ids)}{until}", text, ids,
                                      f"{_jobs(ids)} had ended"), job, self.frozen.without(ids))
        if entry.early:
            return Reason("begin", f"it is not to start before {clock(entry.begin, now)}", text)
        return Reason("nodes", f"it cannot run on the nodes that there are now: {text}", text)

    def _limited(self, job: Job) -> Iterator[Reason]:
        """Return the limit of the job's queue, and the job that uses it up."""
        state = self.frozen.state
        text = state.queue.why_not_competing(state.cluster).get(job.id, "a limit of its queue")
        others = [one.id for one in self._others() if one.queue == job.queue and one.id != job.id]
        found = self._first_blocking_job(job, self._start(self.plan, job.id), others)
        yield Reason("queue", text, text) if found is None else found._replace(
            kind="queue", text=text, short=text)

    def _too_late(self, job: Job) -> Reason:
        """Return why the job does not start in this allocation."""
        frozen = self.frozen
        short = TOO_LATE[frozen.fit]
        reason = self._tried(Reason("end", "", short, what_if="the allocation lasted longer"), job,
                             frozen.until(math.inf))
        if reason.start == math.inf:
            return Reason("nodes", "it never starts as things are: nodes that it needs are down, or jobs "
                          "before it never end", "never, as things are")
        ready = (f"it could start at {clock(reason.start, frozen.now)} at the earliest and "
                 if reason.start > frozen.now + EARLIER else "it ")
        if not frozen.fit:
            return reason._replace(text="its turn does not come in this allocation: it could start at "
                                        f"{clock(reason.start, frozen.now)} at the earliest, and nothing "
                                        f"starts from {clock(frozen.end, frozen.now)} on")
        return reason._replace(text=f"{ready}may take {said(job.walltime)}, and the allocation ends "
                                    f"at {clock(frozen.end, frozen.now)}")

    # Capacity: which jobs have it, which get it.

    def _interval_reason(self, job: Job) -> Reason:
        """Return the reason of a job that waits only because decisions are made at intervals."""
        scheduler = self.frozen.run.scheduler
        if not scheduler.interval:
            return Reason("next", "its turn comes", "its turn comes")
        text = f"starts are decided every {scheduler.interval:g} s"
        if scheduler.starts:
            text += f", at most {scheduler.starts} head{'s' * (scheduler.starts > 1)} of the queue then"
        return self._tried(Reason("interval", text, f"decided every {scheduler.interval:g} s",
                                  what_if="starts were decided at every event"), job,
                           self.frozen.without_interval())

    def _reserved(self, job: Job, start: float) -> Reason | None:
        """Return the reason of a job that would fit now but must not delay another one; None if this is not the
        reason."""
        frozen, run = self.frozen, self.frozen.run
        head = self.order[0]
        policy = run.scheduler.policy_on(frozen.state.cluster, frozen.now)
        if job is head or not policy.fits(job, frozen.state.cluster):
            return None
        limit = self._longest(job)
        held = run.scheduler.reservations(frozen.now, frozen.state.queue, frozen.state.cluster)
        ahead = [one for one in self.order[:self._place[job.id]] if one.id in held] or [head]
        found = self._first_blocking_job(job, start, [one.id for one in ahead[:MAX_TESTED]])
        if found is None and not limit:
            return None
        whose = found.jobs[0] if found is not None else ahead[0].id
        when = held.get(whose, math.inf)
        at = f" at {clock(when, frozen.now)}" if frozen.now < when < math.inf else ""
        if isinstance(run.scheduler.dispatcher, NoBackfilling):
            text = f"it would fit now, but no job overtakes {self._named(whose)} (backfilling none)"
            short = f"behind job {whose}"
        else:
            text = f"it would fit now, but could delay {self._named(whose)}, which is to start{at}"
            short = f"would delay job {whose}"
        if limit:
            short += f"; an estimate of {said(limit)} would not"
            text += f"; an estimate of at most {said(limit)} would start it at once"
            reason = Reason("reservation", text, short, (whose,), f"its estimate were {said(limit)}")
            return self._tried(reason, job, frozen.with_walltimes({job.id: limit}))
        assert found is not None
        return found._replace(kind="reservation", text=text, short=short)

    def _reservation_reasons(self, job: Job, start: float) -> list[Reason]:
        """Return the advance reservations that keep nodes free of the job."""
        frozen, found = self.frozen, []
        for reservation, _ in frozen.state.cluster.calendar.spans:
            if reservation.begin < start + job.walltime:
                several = len(reservation.nodes) > 1
                text = (f"node{'s' * several} {fold_nodes(reservation.nodes)} {'are' if several else 'is'} "
                        f"kept for reservation {reservation.name} from "
                        f"{clock(reservation.begin, frozen.now)} to {clock(reservation.end, frozen.now)}")
                reason = self._tried(Reason("kept", text, f"reservation {reservation.name}", (),
                                            f"reservation {reservation.name} was not there"), job,
                                     frozen.without_reservation(reservation.id))
                found += [reason] * reason.checked
        return found

    def _longest(self, job: Job) -> float:
        """Return the longest estimate with which the job would start now, in seconds; 0 if there is none."""
        def starts(seconds: float) -> bool:
            run = self.frozen.with_walltimes({job.id: seconds}).run
            return any(start.job.id == job.id for start in run.step(self.frozen.now))

        if self.frozen.run.scheduler.interval or not starts(1.0):
            return 0.0
        below, above = 1, math.ceil(job.walltime)
        while above - below > max(1, below // 100):
            middle = (below + above) // 2
            if starts(float(middle)):
                below = middle
            else:
                above = middle
        round_to = 3600 if below >= 36000 else 60 if below >= 120 else 1
        return float(below // round_to * round_to)

    def _blocking_jobs(self, job: Job, start: float) -> list[Reason]:
        """Return the jobs without which, one by one, it would start earlier, the most effective first. If there
        is none, return a group of jobs without which together it would."""
        found = []
        for other in self._suspects(job, start):
            tried = self._try(job, start, (other,))
            if tried is not None:
                found.append(tried)
        found.sort(key=lambda reason: -reason.earlier)
        if self._members:
            drawn = [self._judge_over_draws(reason, job) for reason in found[:MAX_REASONS + 2]]
            found = sorted((each for each in drawn if (each.agree or 0) >= 0.5),
                           key=lambda reason: -reason.earlier) or found[:1]
        lacks = self._lacks(job)
        holding = [at for at, reason in enumerate(found) if lacks and reason.text.startswith(lacks)]
        for at in holding[1:]:  # what the job needs is printed once
            found[at] = found[at]._replace(text=found[at].text[len(lacks) + 2:])
        if not found:
            ahead = [one.id for one in self.order[:self._place[job.id]]]
            held = [booking.job.id for booking in self.frozen.state.cluster.running()]
            for group in (ahead, held, ahead + held):
                tried = self._try(job, start, tuple(sorted(group))) if group else None
                if tried is not None:
                    return [tried]
            if self.frozen.later:
                reason = self._tried(Reason("order", "later jobs of the queue file start before it",
                                            "behind later jobs of the queue file", what_if="they were not submitted"),
                                     job, replace(self.frozen, later=()))
                return [reason] * reason.checked
        return found

    def _suspects(self, job: Job, start: float) -> list[int]:
        """Return the jobs that could be in the way: those whose end lets it start, those that run where it will
        run, and those that are ahead."""
        mine = self.plan[job.id].placement.node_set
        before = [(one_id, one) for one_id, one in self.plan.items()
                  if one_id != job.id and one.start < start and one_id not in self._later]
        near = sorted((one for one in before if one[1].placement.node_set & mine
                       and one[1].end <= start + EARLIER), key=lambda one: -one[1].end)
        ahead = [one.id for one in reversed(self.order[:self._place[job.id]])]
        running = sorted((one for one in before if one[0] not in self._place),
                         key=lambda one: -one[1].end)
        some = [one_id for one_id, _ in near[:MAX_TESTED // 2]]
        for listed in ([self.order[0].id], ahead, [one_id for one_id, _ in running]):
            some += [one for one in listed[:MAX_TESTED // 3] if one != job.id]
        return list(dict.fromkeys(some))[:MAX_TESTED]

    # Tests.

    def _start(self, plan: dict[int, PlannedJob], job_id: int) -> float:
        return plan[job_id].start if job_id in plan else math.inf

    def _end(self, job_id: int) -> float:
        return self.plan[job_id].end if job_id in self.plan else math.inf

    def _others(self) -> Iterable[Job]:
        for booking in self.frozen.state.cluster.running():
            yield booking.job
        yield from self.order

    def _first_blocking_job(self, job: Job, start: float, others: Sequence[int]) -> Reason | None:
        for other in others[:MAX_TESTED]:
            found = self._try(job, start, (other,))
            if found is not None:
                return found
        return None

    def _try(self, job: Job, start: float, others: tuple[int, ...]) -> Reason | None:
        """Return the reason that these jobs are in the way; None if the job would not start earlier without
        them."""
        if others not in self._without:
            self._without[others] = replay(self.frozen.without(others), self._durations)
        then = self._start(self._without[others], job.id)
        if not start - then > EARLIER:
            return None
        without = f"{_jobs(others)} {'was' if len(others) == 1 else 'were'} not there"
        return Reason(*self._said(job, others), others, without, then, start - then)

    def _tried(self, reason: Reason, job: Job, frozen: FrozenRun) -> Reason:
        """Return a reason with the result of replaying the changed run `frozen`."""
        then = self._start(replay(frozen, self._durations), job.id)
        start = self._start(self.plan, job.id)
        agree = None
        if self._members:
            agree = _share(
                self._start(base, job.id) > self._start(replay(frozen, each), job.id) + EARLIER
                for base, each in zip(self._drawn_plans(()), self._members))
        return reason._replace(start=then, earlier=start - then if then < math.inf else 0.0,
                               agree=agree)

    def _judge_over_draws(self, reason: Reason, job: Job) -> Reason:
        """Return a reason with its values over the draws: the median start, how much earlier that is, and the
        fraction of draws in which it is earlier."""
        base, without = ([self._start(plan, job.id) for plan in self._drawn_plans(others)]
                         for others in ((), reason.jobs))
        then = median(without)
        agree = _share(then < before - EARLIER for before, then in zip(base, without))
        return reason._replace(start=then, earlier=max(median(base) - then, 0.0), agree=agree)

    def _drawn_plans(self, without: tuple[int, ...]) -> list[dict[int, PlannedJob]]:
        """Return the replay of each draw without these jobs."""
        if without not in self._drawn:
            frozen = self.frozen.without(without)
            self._drawn[without] = [replay(frozen, each) for each in self._members]
        return self._drawn[without]

    # Texts.

    def _said(self, job: Job, others: tuple[int, ...]) -> tuple[str, str, str]:
        """Return kind, text and short text of the jobs that are in the way."""
        now, state = self.frozen.now, self.frozen.state
        if len(others) > 1:
            running = sum(other in state.cluster.bookings for other in others)
            who = " and ".join(f"{count} that {verb}" for count, verb in (
                (running, "run"), (len(others) - running, "are ahead")) if count)
            return "cores", (f"no single job is in its way: together the {len(others)} jobs are, {who}"
                             ), f"behind {len(others)} jobs"
        other, = others
        named = self._named(other)
        if other in state.cluster.bookings:
            place = self._text.nodes(state.cluster.bookings[other].placement)
            end = clock(self._end(other), now)
            return "cores", (f"{self._lacks(job) or 'it is not its turn'}; {named} holds {place} until "
                             f"about {end}{self._between(other)}"), f"job {other} runs until {end}"
        why = self._ahead(job, state.entry(other).job)
        return "order", f"{named} {why}", f"behind job {other}"

    def _range(self, job: Job) -> tuple[float, ...]:
        return _p10_and_p90([self._start(plan, job.id) for plan in self._drawn_plans(())])

    def _between(self, job_id: int) -> str:
        """Return the range of a running job's end over the draws, in brackets."""
        ends = _p10_and_p90([plan[job_id].end for plan in self._drawn_plans(())])
        if not ends:
            return ""
        low, high = ends
        return f" ({clock(low, self.frozen.now)} to {clock(high, self.frozen.now)})"

    def _lacks(self, job: Job) -> str:
        cluster = self.frozen.state.cluster
        policy = self.frozen.run.scheduler.policy_on(cluster, self.frozen.now)
        placement = policy.place(job, cluster)
        return "" if placement else str(placement)

    def _named(self, job_id: int) -> str:
        return f"#{job_id} {self.frozen.state.entry(job_id).job.app}"

    def _ahead(self, job: Job, other: Job) -> str:
        """Return why another waiting job comes first."""
        queue, now = self.frozen.state.queue, self.frozen.now
        if queue.key(other, now) > queue.key(job, now):
            return "is to be backfilled before it"
        mine, theirs = queue.priority(job), queue.priority(other)
        if mine != theirs:
            return f"is ahead by its priority ({theirs} against {mine})"
        if queue.ordering.name == "FCFS":
            return f"was submitted first, at {clock(other.submit, now)}, this one at " \
                   f"{clock(job.submit, now)}" if other.submit != job.submit else \
                   "was submitted first"
        values = [queue.ordering.key(one, now, queue.nodes_of(one))[0] for one in (other, job)]
        high, low = (f"{-value:.4g}" for value in values)
        if high == low:
            return f"is ahead: equal by {queue.ordering.name} ({high}), and it was submitted first"
        return f"is ahead by {queue.ordering.name} ({high} against {low})"


def _p10_and_p90(values: Sequence[float]) -> tuple[float, ...]:
    """Return the 10th and the 90th percentile; () if there are too few values."""
    ordered = sorted(values)
    return tuple(quantile(ordered, share) for share in (0.1, 0.9)) if len(ordered) >= 10 else ()


def _jobs(ids: Sequence[int]) -> str:
    return f"#{fold(sorted(ids))}"


def _share(agree: Iterable[bool]) -> float:
    votes = list(agree)
    return sum(votes) / len(votes)
