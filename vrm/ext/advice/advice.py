"""Finds rules that would serve the jobs of a run better: orders, dispatchers and placements are each replayed
under the same draws of the jobs' run times.

In a replay, the scheduler sees users' limits or estimates, as in the run; only the draws determine when jobs end. If
users' limits were used instead of draws, the ranking would often be right, but the times far too long.

The predictions are only as good as the draws, which know nothing of jobs that are not submitted yet, and of nodes that
fail.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from statistics import geometric_mean
from typing import Any, NamedTuple
from collections.abc import Callable, Iterable, Mapping, Sequence

from vrm.ext.advice.assumed_draws import draws as draws_of, told
from vrm.ext.forecast.backtest import SHARES, needed, of_queues
from vrm.ext.forecast.calibration import RangeCalibration
from vrm.ext.forecast.frozen import FrozenRun
from vrm.ext.forecast.replay import Durations, PlannedJob, replay
from vrm.ext.forecast.parallel import run_in_processes
from vrm.model import Job
from vrm.model.measured.heatmap import Heatmap
from vrm.model.job import Infeasible
from vrm.model.measured.power import draw
from vrm.model.measured.quantile import quantile
from vrm.model.rules import DEFAULTS, Rules
from vrm.results.metrics import bounded_slowdown
from vrm.results.names import policy_name
from vrm.scheduling import PolicyError
from vrm.scheduling.compose import compose
from vrm.system import plugins

MEMBERS = 50
"""Default number of draws."""

MOST = 12
"""Default maximum number of combinations."""

CLOSE = 0.02
"""Rules whose result is worse by at most this fraction count as equally good."""

EQUAL = 0.005
"""Rules whose mean is worse by at most this fraction count as equal. Among equal rules, today's win if they are one of
them, otherwise those with the smallest mean wait (for the objective mean wait: with the smallest makespan)."""

CONFIDENT = 0.8
"""Minimum fraction of draws in which rules must be the best, or equally good, to be the winner."""

CALIBRATED = "The ranges of times are calibrated with earlier jobs."
UNCALIBRATED = ("The ranges are not calibrated: for that {needed} jobs must have ended (--history "
                "names earlier runs).")
"""Texts about the ranges."""


class Objective(NamedTuple):
    """A goal of advice: its name in words, its unit (s: seconds), and whether more is better.

    If it is a `ratio` (at least 1), which in a few draws can be many times larger than in the others, the best rules
    are those with the smallest geometric mean over the draws; otherwise those with the smallest mean.
    """

    words: str
    unit: str = ""
    more: bool = False
    ratio: bool = False


OBJECTIVES: dict[str, Objective] = {
    "wait": Objective("mean wait", "s"),
    "makespan": Objective("makespan", "s"),
    "slowdown": Objective("mean bounded slowdown", ratio=True),
    "longest": Objective("longest wait", "s"),
    "fits": Objective("jobs done before the end", "jobs", True),
    "energy": Objective("energy of the jobs", "kJ"),
}
"""The objectives by name. The makespan is the time from now until the last job has ended; the bounded slowdown of a
job is max(1, (wait + run) / max(run, 10 s)). A job that does not start in this allocation counts as
if it started at its end. `fits` is used only if the allocation ends, `energy` only if the energy of
programs was measured (docs/how-to/energy.md)."""


class ReplayedJob(NamedTuple):
    """A job in a replay: when it was submitted, started and ended, in seconds."""

    job: Job
    submit: float
    start: float
    end: float


ADDED: dict[str, Callable[[Sequence[ReplayedJob]], float]] = {}
"""The objectives of installed packages (group `vrm.objectives`): by name, the function that computes the value of a
replay. They are in the same order at the end of OBJECTIVES."""


def _enter(plugin: plugins.Plugin, make: Any) -> None:
    """Add an objective of a package: a class with `words`, `value(served)`, and optionally the other attributes of
    `Objective`."""
    found = make()
    name = plugin.name.lower()
    objective = Objective(str(getattr(found, "words", name)), str(getattr(found, "unit", "")),
                          bool(getattr(found, "more", False)), bool(getattr(found, "ratio", False)))

    def value(served: Sequence[ReplayedJob]) -> float:
        try:
            return float(found.value(served))
        except Exception as error:  # a package's code may raise anything
            raise PolicyError(str(plugins.failed(plugin, error))) from error

    if not callable(getattr(found, "value", None)):
        raise TypeError("it has no method `value`")
    OBJECTIVES[name], ADDED[name] = objective, value


plugins.use("vrm.objectives", frozenset(OBJECTIVES), _enter)


class Spread(NamedTuple):
    """Results of the draws: the mean, and the percentiles P10, P50 and P90; P10 and P90 are calibrated if that is
    possible."""

    mean: float
    p10: float
    p50: float
    p90: float


class Combination(NamedTuple):
    """Rules, and their results by the name of the objective; `name` is for people."""

    name: str
    rules: Rules
    gives: Mapping[str, Spread]


class Choice(NamedTuple):
    """The best rules for one objective: those with the best mean over the draws, or with an EQUAL one.

    `best`: index in `Advice.combinations`. `confidence`: fraction of draws in which they are the
    best or within CLOSE of it. `regret`: by how much today's rules are worse (0.1: 10 %). `price`:
    change of the other objectives, as a fraction of their values under today's rules (0.4: 40 % more);
    infinity if today's value is 0.
    """

    objective: str
    best: int
    confidence: float
    regret: float
    price: Mapping[str, float]

    @property
    def clear(self) -> bool:
        """Whether there is a winner."""
        return self.confidence >= CONFIDENT

    @property
    def change(self) -> bool:
        """Whether a change from today's rules is worthwhile."""
        return self.clear and self.best != 0 and self.regret > CLOSE


@dataclass(frozen=True)
class Advice:
    """The best rules for each objective.

    The first of the `combinations` are today's rules; `left_out`: by name, why others were not tried. `jobs` run or
    wait at `time` (seconds). `ranges`: a text on whether the ranges of times are calibrated.
    """

    time: float
    position: int
    members: int
    drawn: str
    jobs: int
    combinations: tuple[Combination, ...]
    choices: tuple[Choice, ...]
    left_out: Mapping[str, str]
    ranges: str = UNCALIBRATED

    def choice(self, objective: str) -> Choice:
        """Return the choice for an objective. Raises KeyError if it was not computed."""
        return {each.objective: each for each in self.choices}[objective]

    def record(self) -> dict[str, Any]:
        """Return the advice as JSON values; None means infinity."""
        return {
            "format": 1, "time": self.time, "position": self.position, "members": self.members,
            "drawn": self.drawn, "jobs": self.jobs, "ranges": self.ranges,
            "combinations": [{"name": each.name, "rules": each.rules.record(),
                              "gives": {key: spread._asdict() for key, spread in each.gives.items()}}
                             for each in self.combinations],
            "choices": [{"objective": each.objective, "best": each.best,
                         "name": self.combinations[each.best].name,
                         "confidence": each.confidence, "clear": each.clear,
                         "change": each.change, "regret": _plain(each.regret),
                         "price": {key: _plain(value) for key, value in each.price.items()}}
                        for each in self.choices],
            "left_out": dict(self.left_out)}


def _plain(value: float) -> float | None:
    return value if math.isfinite(value) else None


# --------------------------------------------------------------------------- candidate rules

ORDERS: Sequence[tuple[str, str]] = (
    ("FCFS", "queue"), ("SAF", "queue"), ("LJF", "queue"), ("SJF", "queue"), ("LAF", "queue"),
    ("WFP3", "queue"), ("LJF", "LAF"), ("FCFS", "SAF"), ("LJF", "SAF"), ("LAF", "LJF"),
    ("SJF", "SAF"), ("FCFS", "LJF"))
"""Orders, each with the order in which EASY backfills, the most useful first.

They were chosen with static queues of KTH, CTC and HPC2N (20, 24 and 10 windows, real run times): there smallest area
first was mostly the best for the mean wait, and longest first for the makespan. Without backfilling some were as good
in single windows and far worse in the mean; conservative backfilling was seldom the best and takes ten times as long to
replay. These two are tried only if they are named, or if they are today's.
"""


ENERGY = ("eamc variant=priority-inc-v weight=1", "eamc variant=priority-inc-v weight=1.5",
          "eamc variant=min-energy", "eamc variant=min-runtime")
"""Dispatchers that choose classes of nodes and frequencies; tried if programs were measured."""


def combinations(today: Rules, heatmap: Heatmap | None = None, measured: bool = False,
                 orders: Sequence[str] = (), dispatchers: Sequence[str] = (),
                 placements: Sequence[str] = (), most: int = MOST, energy: bool = False) -> list[Rules]:
    """Return the rules to compare, today's first: `orders` x `dispatchers` x `placements`, at most `most`. A dispatcher
    may be followed by the order in which it backfills (`easy/SAF`), a placement by the node order (`pack/best-fit`).

    By default the orders of ORDERS are compared, under EASY. Placements other than today's (compact and strip) are
    added only with a `heatmap` of `measured` speed-ups: without these, the speed of jobs that share nodes is not
    known. With `energy` the dispatchers of ENERGY are added.
    """
    where = [_pair(each) for each in placements] or [(today.policy, today.node_order)]
    if not placements and heatmap is not None and measured:
        where += [each for each in (("compact", "auto"), ("strip", "auto")) if each not in where]
    if orders or dispatchers:
        how = [(order, dispatcher, by) for order in orders or (today.algorithm,)
               for dispatcher, by in ([_pair(each, "queue") for each in dispatchers]
                                      or [("easy", "queue")])]
    else:
        how = [(today.algorithm, each, "queue") for each in ENERGY * energy]
        how += [(order, "easy", by) for order, by in ORDERS]
    found = [today]
    for order, dispatcher, by in how:
        for policy, nodes in where:
            easy = dispatcher.strip().lower() in ("easy", "1")
            rules = replace(today, algorithm=order, backfill=dispatcher, backfill_order=by,
                            policy=policy, node_order=nodes,
                            starvation=today.starvation if easy else DEFAULTS["starvation"])
            if not any(_same(rules, each) for each in found):
                found.append(rules)
    return found[:max(most, 1)]


def _pair(text: str, other: str = "auto") -> tuple[str, str]:
    """Split `easy/SAF` into its two parts."""
    word, _, more = text.partition("/")
    return word.strip(), more.strip() or other


def _same(one: Rules, other: Rules) -> bool:
    def told(rules: Rules) -> tuple[Any, ...]:
        by = rules.backfill_order
        if by.lower() == str(rules.algorithm).lower():
            by = "queue"  # a job order that backfills in the same order
        return (str(rules.algorithm).lower(), str(rules.backfill).lower(), by.lower(),
                str(rules.policy).lower(), str(rules.node_order).lower())
    return told(one) == told(other)


def rules_name(rules: Rules, placed: bool = False) -> str:
    """Return rules as text: `LJF + EASY (SAF backfilled first)`, with the placement if `placed`."""
    by = f" ({rules.backfill_order} backfilled first)" if rules.backfill_order != "queue" else ""
    nodes = f"/{rules.node_order}" if rules.node_order != "auto" else ""
    where = f", {rules.policy}{nodes}" if placed else ""
    return f"{policy_name(str(rules.algorithm), str(rules.backfill))}{by}{where}"


# ----------------------------------------------------------------------------------- the replays

Values = tuple[float, ...]
"""Results of a replay, in the order of OBJECTIVES."""


class _Job(NamedTuple):
    """A waiting job and its submission time in seconds."""

    job: Job
    submit: float


class Measure:
    """Computes the results of a replay. All jobs that wait or are known to come count, except held jobs, whose starts
    are unknown; of the running jobs the ends count."""

    def __init__(self, frozen: FrozenRun) -> None:
        entries = frozen.state.book.entries
        self.cluster = frozen.state.cluster
        self.now, self.end = frozen.now, frozen.end
        self.jobs = [_Job(job, job.submit) for job in frozen.waiting()
                     if not (job.id in entries and entries[job.id].held)]
        self.jobs += [_Job(one.job, one.job.submit) for one in frozen.later
                      if not (one.held or one.refused)]

    def values(self, planned: Mapping[int, PlannedJob], durations: Durations) -> Values:
        """Return the mean wait (s), makespan (s), mean bounded slowdown, longest wait (s), number of jobs done before
        the allocation ends, the known energy of jobs that start in it (kJ), and the values of ADDED."""
        served: list[ReplayedJob] = []
        closing = self.end
        total = slowdown = longest = 0.0
        number = done = 0
        last = max((found.end for found in planned.values()), default=self.now)
        for job, submit in self.jobs:
            found = planned.get(job.id)
            if found is not None:
                start, end = found.start, found.end
            elif closing < math.inf:
                start = closing
                end = start + durations(job, 0.0)
                last = max(last, end)
            else:
                continue  # it waits for a held job
            served.append(ReplayedJob(job, submit, start, end))
            wait, run = start - submit, end - start
            total += wait
            longest = max(longest, wait)
            slowdown += bounded_slowdown(wait + run, run)
            number += 1
        if closing < math.inf:
            done = sum(found.end <= closing for found in planned.values())
        number = number or 1
        return (total / number, last - self.now, slowdown / number, longest, float(done),
                self._energy(planned), *(value(served) for value in ADDED.values()))

    def _energy(self, planned: Mapping[int, PlannedJob]) -> float:
        cluster = self.cluster
        if not cluster.programs:
            return 0.0
        joules = 0.0
        for job, _ in self.jobs:
            found = planned.get(job.id)
            if found is not None:
                watts = draw(job, found.placement, cluster.nodes, cluster.programs)
                joules += (watts or 0.0) * (found.end - found.start)
        return joules / 1000


def replayed(frozen: FrozenRun, candidates: Sequence[FrozenRun], members: int, part: tuple[int, int] = (0, 1),
             draws: Callable[[FrozenRun, int], Iterable[Durations]] = draws_of) -> list[list[Values]]:
    """Replay each of the candidates, which are this run under other rules, under each of `members` draws. Return a list
    of draws, each with the values of all candidates.

    `part` (first, step) selects draws: (0, 2) are every second draw, beginning with the first.
    """
    measure = Measure(frozen)
    first, step = part
    found = []
    for number, durations in enumerate(draws(frozen, members)):
        if number % step == first:
            found.append([measure.values(replay(each, durations), durations) for each in candidates])
    return found


def under_rules(frozen: FrozenRun, rules: Iterable[Rules], heatmap: Heatmap | None = None
                ) -> tuple[list[tuple[Rules, FrozenRun]], dict[str, str]]:
    """Return the run under each of these rules, and the rules under which it cannot continue, by name, with the
    reason."""
    found, wrong = [], {}
    for each in rules:
        try:
            found.append((each, frozen.under(partial(compose, each, heatmap=heatmap))))
        except (Infeasible, PolicyError) as error:
            wrong[rules_name(each, True)] = str(error)
    return found, wrong


def without_plans(frozen: FrozenRun, rules: Rules, heatmap: Heatmap | None = None
                  ) -> tuple[FrozenRun, Rules]:
    """Return the run with EASY instead of a dispatcher that plans, because replaying its search hundreds of times would
    take hours. Another run is returned unchanged."""
    if not frozen.run.scheduler.dispatcher.plans_in_background:
        return frozen, rules
    instead = replace(rules, backfill="easy")
    return frozen.under(partial(compose, instead, heatmap=heatmap)), instead


def advise(frozen: FrozenRun, rules: Sequence[Rules], heatmap: Heatmap | None = None,
           members: int = MEMBERS, processes: int = 1, calibrate: bool = True) -> Advice:
    """Compare rules, the first of which are those of the run, by `members` draws. The same state
    gives the same advice, on any number of processes. Raises PolicyError if the first rules are not possible. Callers
    that need no ranges pass a false `calibrate` to save time."""
    tried, wrong = under_rules(frozen, rules[1:], heatmap)
    candidates = [frozen, *(each for _, each in tried)]
    known = [rules[0], *(each for each, _ in tried)]
    values = run_in_processes(lambda part: replayed(frozen, candidates, members, part), processes)
    placed = len({(each.policy, each.node_order) for each in known}) > 1
    ranges = ranges_of(frozen, len(Measure(frozen).jobs), members) if calibrate else None
    return judged(frozen, [rules_name(each, placed) for each in known], known, values, wrong, ranges)


def ranges_of(frozen: FrozenRun, jobs: int, members: int) -> RangeCalibration:
    """Return the calibration for a queue of `jobs` jobs, from the jobs that have ended."""
    return of_queues(list(frozen.past.ended), jobs, frozen.state.cluster.cores, members)


def said_of(ranges: RangeCalibration, jobs: int) -> str:
    """Return a text on whether the ranges of a queue of `jobs` jobs are calibrated."""
    return CALIBRATED if ranges.ready else UNCALIBRATED.format(needed=needed(jobs))


def judged(frozen: FrozenRun, names: Sequence[str], rules: Sequence[Rules], values: Sequence[Sequence[Values]],
           left_out: Mapping[str, str] | None = None, ranges: RangeCalibration | None = None) -> Advice:
    """Return the advice that follows from the values of the draws."""
    ranges, jobs = ranges or RangeCalibration(), len(Measure(frozen).jobs)
    there = {"fits": frozen.end < math.inf, "energy": bool(frozen.state.cluster.programs)}
    asked = [name for name in OBJECTIVES if there.get(name, True)]
    places = list(OBJECTIVES)
    found = tuple(
        Combination(name, each, {objective: spread(
            [draw[at][places.index(objective)] for draw in values],
            ranges if OBJECTIVES[objective].unit == "s" else None) for objective in asked})
        for at, (name, each) in enumerate(zip(names, rules)))
    return Advice(frozen.now, frozen.position, len(values), told(frozen), jobs
                  + len(frozen.state.cluster.bookings), found,
                  tuple(choose(objective, found, [[each[places.index(objective)] for each in draw]
                                                  for draw in values]) for objective in asked),
                  dict(left_out or {}), said_of(ranges, jobs))


def choose(objective: str, found: Sequence[Combination], draws: Sequence[Sequence[float]]) -> Choice:
    """Return the choice for an objective; each of the draws has the values of all rules."""
    sign = -1.0 if OBJECTIVES[objective].more else 1.0
    means = [geometric_mean(max(1.0, draw[at]) for draw in draws) if OBJECTIVES[objective].ratio else
             each.gives[objective].mean for at, each in enumerate(found)]
    least = min(sign * mean for mean in means)
    equal = [at for at, mean in enumerate(means) if sign * mean - least <= EQUAL * abs(least)]
    second = "makespan" if objective == "wait" else "wait"
    best = 0 if 0 in equal else min(equal, key=lambda at: found[at].gives[second].mean)
    near = sum(close(draw[best], draw, sign) for draw in draws)
    return Choice(objective, best, near / len(draws), abs(against(means[0], means[best])), {
        other: against(found[best].gives[other].mean, found[0].gives[other].mean)
        for other in found[best].gives if other != objective})


def close(value: float, values: Sequence[float], sign: float = 1.0) -> bool:
    """Return whether a value is the best of these, or within CLOSE of it. With the `sign` -1 the largest is the
    best."""
    best = min(values, key=lambda each: sign * each)
    return sign * (value - best) <= CLOSE * abs(best)


def against(value: float, other: float) -> float:
    """Return by which fraction a value exceeds another; infinity if the other is 0."""
    if value == other:
        return 0.0
    return value / other - 1 if other else math.inf


def reason(advice: Advice, choice: Choice) -> str:
    """Return a sentence on why rules are chosen for an objective, or why not."""
    words, name = OBJECTIVES[choice.objective].words, advice.combinations[choice.best].name
    sure = f"{name} is the best for the {words}, or within 2 % of it, in {100 * choice.confidence:.0f} %"
    if not choice.clear:
        return f"there is no clear winner for the {words}: {sure} of {advice.members} draws"
    if not choice.change:
        return f"today's rules are the best for the {words}, or as good"
    worse = ("worse" if choice.regret == math.inf else f"{100 * choice.regret:.0f} % worse" if
             choice.regret < 2 else f"{choice.regret + 1:.1f} times as much")
    return f"{sure} of {advice.members} draws; the rules until now are {worse}"


def spread(values: Iterable[float], ranges: RangeCalibration | None = None) -> Spread:
    """Return mean and percentiles (interpolated); with `ranges`, the range of a time is calibrated."""
    ranked = sorted(values)
    found = [quantile(ranked, share) for share in SHARES]
    return Spread(math.fsum(ranked) / len(ranked), *(ranges.widened(0.0, *found) if ranges is not None else found))
