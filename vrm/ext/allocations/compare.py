"""Which of some requests ends all jobs first.

Two things are run on in virtual time under the same draws for all of them: the user's queue, in allocations of this
shape, and the site, which gives these allocations. The draws of the two are independent of each other: what the user's
jobs take and what the site's jobs take.

All shapes are compared on a few draws, then the best of them on many.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any, NamedTuple
from collections.abc import Iterable, Mapping, Sequence

from vrm.ext.advice.advice import CLOSE, Spread, spread
from vrm.ext.allocations.shapes import AT_ONCE, MOST, MOST_CHAIN, MOST_EACH, Bounds, AllocationShape, limits
from vrm.ext.allocations.site import Ask, Given, OuterSite
from vrm.ext.allocations.work import QueueProgress, draws, makespan, progress
from vrm.ext.forecast.frozen import Frozen
from vrm.ext.forecast.replay import Durations
from vrm.ext.forecast.sharing import Part, shared_out
from vrm.model.measured.quantile import quantile

MEMBERS = 50
"""Draws of the best shapes."""

FIRST = 10
"""Draws of how long the user's jobs take, by which shapes are chosen that are worth a try."""

ROUNDS = ((5, 12), (15, 5))
"""On so many draws all shapes are compared; so many are left for the next round at most: the best ones, and the best of
each width. The last ones are compared on all draws."""

WORSE = 0.1
"""A shape that ends later than the best by more than this share in each draw so far is not drawn again."""

WIDER, LEAST = 0.15, 30.0
"""By how much of their distance from the median, and seconds at the least, the ends of ranges are moved outwards: more
draws do not find what all of them miss. Chosen by the traces KTH and HPC2N, checked by others (studies/allocations)."""

SURE = 0.9
"""The chance that all jobs are done which the recommended request has at least, if any has it."""


class PartRequest(NamedTuple):
    """What a part of the queue asks for: the part as a run that has not begun, nodes, and how long (s)."""

    part: Frozen
    nodes: int
    seconds: float


@dataclass
class Work:
    """The user's queue on so many nodes, as `at_once` parts: `parts[(nodes, at_once)]`, each a run that has not begun.
    `longest` is the longest limit of its jobs (s). There are `members` draws of how long these take. `each` has a part
    for each job, where each can have a request of its own."""

    parts: Mapping[tuple[int, int], Sequence[Frozen]]
    longest: float
    members: int = MEMBERS
    each: Sequence[PartRequest] = ()

    def __post_init__(self) -> None:
        whole = next(parts[0] for (_, at_once), parts in self.parts.items() if at_once == 1)
        self._draws: list[Durations] = list(draws(whole, self.members))
        self._known: dict[Any, QueueProgress] = {}

    def makespan(self, nodes: int, at_once: int, member: int) -> float:
        """Seconds until the last part is done, in one draw, if nothing ends the allocations."""
        return max(makespan(part, self._draws[member]) for part in self.parts[nodes, at_once])

    def progress(self, shape: AllocationShape, member: int) -> list[QueueProgress]:
        """How each part goes on in a chain of this shape, in one draw."""
        found = []
        for at, (part, nodes, seconds) in enumerate(self.requests(shape)):
            key = (nodes, shape.at_once, shape.each, at, seconds, member)
            known = self._known.get(key)
            if known is None or (known.left and len(known.lasts) != shape.chain):
                known = self._known[key] = progress(part, seconds, shape.chain, self._draws[member])
            found.append(known)
        return found

    def requests(self, shape: AllocationShape) -> Sequence[PartRequest]:
        """What each part of a shape asks for."""
        return self.each if shape.each else [PartRequest(part, shape.nodes, shape.seconds)
                                             for part in self.parts[shape.nodes, shape.at_once]]


class ShapeOutcome(NamedTuple):
    """What a shape gives in one draw: seconds from now until the first allocation begins, and until the last job ends
    (infinity: some are not done); core seconds charged, and those that jobs had."""

    start: float
    end: float
    charged: float
    used: float


class RequestForecast(NamedTuple):
    """A shape, when it begins and when all jobs are done (seconds from now), the `chance` that they are, the core hours
    that it is charged (the mean), the share of these that no job had, and from how many draws that is known."""

    shape: AllocationShape
    start: Spread
    end: Spread
    chance: float
    hours: float
    wasted: float
    members: int

    def record(self) -> dict[str, Any]:
        """It as JSON values; None stands for infinity."""
        return {**self.shape._asdict(), "start": _plain(self.start), "end": _plain(self.end), "chance": self.chance,
                "core_hours": self.hours, "wasted": self.wasted, "members": self.members}


def _plain(values: Spread) -> dict[str, float | None]:
    return {name: value if math.isfinite(value) else None for name, value in values._asdict().items()}


def shapes(work: Work, bounds: Bounds, members: int = FIRST, side_by_side: Sequence[int] = AT_ONCE
           ) -> list[AllocationShape]:
    """Requests that are worth a try, by a few draws of how long the jobs take on so many nodes; with so many chains
    side by side. The last one is one for each job, where the work knows these."""
    found: list[AllocationShape] = []
    members = min(members, work.members)
    for at_once in side_by_side:
        for nodes in sorted({nodes for nodes, number in work.parts if number == at_once}):
            if nodes * at_once > bounds.nodes:
                continue
            whole = quantile(sorted(work.makespan(nodes, at_once, member) for member in range(members)), SURE)
            for seconds in limits(whole, work.longest, bounds.longest):
                shape = AllocationShape(bounds.partition, nodes, seconds, MOST_CHAIN, at_once)
                chain = _chain(work, shape, members)
                if chain:
                    found.append(shape._replace(chain=chain))
    if 1 < len(work.each) <= MOST_EACH:
        largest = max((one.nodes, one.seconds) for one in work.each)
        found[MOST - 1:] = [AllocationShape(bounds.partition, *largest, 1, len(work.each), each=True)]
    return found[:MOST]


def _chain(work: Work, shape: AllocationShape, members: int) -> int:
    """How many allocations one after the other are enough in all of some draws, of as many as is SURE at the least: one
    that is not needed ends at once. 0: MOST_CHAIN are not enough."""
    needed = [max(len(part.lasts) for part in parts) for parts in (
        work.progress(shape, member) for member in range(members)) if not any(part.left for part in parts)]
    return max(needed) if len(needed) >= SURE * members else 0


def outcome(work: Work, site: OuterSite, shape: AllocationShape, cores: int, member: int) -> ShapeOutcome:
    """What a shape gives in one draw."""
    parts = work.progress(shape, member)
    requests = work.requests(shape)
    given = site.given(asked(parts, requests), member)
    return combined(parts, given, [one.nodes * cores for one in requests])


def asked(parts: Sequence[QueueProgress], requests: Sequence[PartRequest]) -> list[Ask]:
    """The allocations of each part, one part after the other."""
    found: list[Ask] = []
    for part, (_, nodes, seconds) in zip(parts, requests):
        for at, lasts in enumerate(part.lasts):
            found.append(Ask(nodes, seconds, lasts, len(found) - 1 if at else None))
    return found


def combined(parts: Sequence[QueueProgress], given: Sequence[Given | None], cores: Sequence[int]) -> ShapeOutcome:
    """The outcome of parts whose allocations were given so, with so many cores in those of each part."""
    last = [given[end - 1] for end in itertools.accumulate(len(part.lasts) for part in parts) if end]
    done = not any(part.left for part in parts) and all(last)
    starts = [each.start for each in given if each]
    charged = sum(sum(part.lasts) * number for part, number in zip(parts, cores))
    return ShapeOutcome(min(starts, default=math.inf), max(each.end for each in last if each) if done else math.inf,
                   charged, sum(part.used for part in parts))


def _tried(work: Work, site: OuterSite, tried: Sequence[AllocationShape], cores: int, members: range, part: Part
           ) -> list[list[ShapeOutcome]]:
    first, step = part
    return [[outcome(work, site, shape, cores, member) for shape in tried] for member in members[first::step]]


def outcomes(work: Work, site: OuterSite, tried: Sequence[AllocationShape], cores: int, members: range,
             processes: int = 1) -> list[list[ShapeOutcome]]:
    """What each of these shapes gives in each of these draws: a list of the draws."""
    return shared_out(lambda part: _tried(work, site, tried, cores, members, part), min(processes, len(members)))


def judged(shape: AllocationShape, outcomes: Sequence[ShapeOutcome]) -> RequestForecast:
    """What the draws give."""
    charged, used = (sum(values) for values in zip(*(each[2:] for each in outcomes)))
    return RequestForecast(shape, widened(each.start for each in outcomes), widened(each.end for each in outcomes),
                     sum(each.end < math.inf for each in outcomes) / len(outcomes),
                     charged / len(outcomes) / 3600, 1 - used / charged if charged else 0.0, len(outcomes))


def widened(values: Iterable[float]) -> Spread:
    """The spread of some times, with a range that also holds what no draw has found."""
    found = spread(values)
    low, high = (WIDER * abs(found.p50 - end) if end != found.p50 else 0.0 for end in (found.p10, found.p90))
    return found._replace(p10=max(min(0.0, found.p50), found.p10 - max(low, LEAST)), p90=found.p90 + max(high, LEAST))


def best(found: Iterable[RequestForecast]) -> list[RequestForecast]:
    """The candidates, the best first: those that are SURE to do all jobs, by the mean of the end; then the others by
    their chance. Of those that are within CLOSE of the first the cheapest is first, where each request costs as much as
    CLOSE of the core hours."""
    ranked = sorted(found, key=_worth)
    if not ranked:
        return ranked
    least = ranked[0]
    equal = [each for each in ranked if each.chance >= SURE and _mean(each) <= (1 + CLOSE) * _mean(least)]
    first = min(equal, key=lambda each: each.hours * (1 + CLOSE * each.shape.chain * each.shape.at_once), default=least)
    return [first, *(each for each in ranked if each is not first)]


def _worth(candidate: RequestForecast) -> tuple[bool, float, float]:
    sure = candidate.chance >= SURE
    return not sure, 0.0 if sure else -candidate.chance, _mean(candidate)


def _mean(candidate: RequestForecast) -> float:
    """The mean end where there is one, else the median."""
    end = candidate.end
    return end.mean if end.mean < math.inf else end.p50


def compare(work: Work, site: OuterSite, tried: Sequence[AllocationShape], cores: int, processes: int = 1
            ) -> list[RequestForecast]:
    """The shapes, the best first: those of the last of the ROUNDS, behind them those of the rounds before."""
    rows: dict[AllocationShape, list[ShapeOutcome]] = {shape: [] for shape in tried}
    kept, out, done = list(rows), list[RequestForecast](), 0
    for until, number in (*ROUNDS, (work.members, 0)):
        members = range(done, min(until, work.members))
        done = max(done, members.stop)
        for shape, more in zip(kept, zip(*outcomes(work, site, kept, cores, members, processes))):
            rows[shape] += more
        found = best(judged(shape, rows[shape]) for shape in kept)
        if number:
            near = [each for each in found if not _clearly_worse(rows[each.shape], rows[found[0].shape])]
            kept = list(dict.fromkeys(each.shape for each in [*near[:number // 2], *widths(near)]))[:number]
            out = [*(each for each in found if each.shape not in kept), *out]
    return [*found, *out]


def _clearly_worse(rows: Sequence[ShapeOutcome], best: Sequence[ShapeOutcome]) -> bool:
    """Whether each draw says so."""
    return all(ours.end > (1 + WORSE) * theirs.end for ours, theirs in zip(rows, best))


def widths(found: Iterable[RequestForecast]) -> list[RequestForecast]:
    """The best of each number of nodes and of chains side by side, of requests the best of which are first."""
    firsts: dict[tuple[int, int], RequestForecast] = {}
    for each in found:
        firsts.setdefault((each.shape.nodes, each.shape.at_once), each)
    return list(firsts.values())
