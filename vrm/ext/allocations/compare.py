"""Compares requests: which of them ends all jobs first.

Two simulations continue in virtual time, under the same draws for all requests: the user's queue in allocations
of a shape, and the site, which gives these allocations. The draws of the two are independent of each other: the
run times of the user's jobs, and those of the site's jobs.

All shapes are compared on a few draws, then the best of them on many.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any, NamedTuple
from collections.abc import Iterable, Mapping, Sequence

from vrm.ext.advice.advice import CLOSE, Spread, spread
from vrm.ext.allocations.shapes import AT_ONCE, MOST, MOST_CHAIN, MOST_EACH, RequestLimits, AllocationShape, limits
from vrm.ext.allocations.outer_site import RequestedAllocation, AllocationSpan, OuterSite
from vrm.ext.allocations.queue_progress import QueueProgress, draws, makespan, progress
from vrm.ext.forecast.frozen import FrozenRun
from vrm.ext.forecast.replay import Durations
from vrm.ext.forecast.parallel import Part, run_in_processes
from vrm.model.measured.quantile import quantile

MEMBERS = 50
"""Number of draws for the best shapes."""

FIRST = 10
"""Number of draws of the user's run times by which the shapes to be compared are chosen."""

ROUNDS = ((5, 12), (15, 5))
"""Each round has a number of draws and the greatest number of shapes that are kept for the next round: the best
ones, and the best of each width. The shapes that are left after these rounds are compared on all draws."""

WORSE = 0.1
"""A shape is dropped if it ends later than the best one by more than this fraction in each draw so far."""

WIDER, LEAST = 0.15, 30.0
"""The ends of ranges are moved outwards by this fraction of their distance from the median, and at least by
this number of seconds, because more draws do not find what all of them miss. Chosen with the traces KTH and
HPC2N, checked with others (studies/allocations)."""

SURE = 0.9
"""Least chance that all jobs are done of the recommended request, if any request has that chance."""


class PartRequest(NamedTuple):
    """The request for a part of the queue: the part as a run that has not begun, the number of nodes, and the
    seconds."""

    part: FrozenRun
    nodes: int
    seconds: float


@dataclass
class Work:
    """The user's queue as `at_once` parts on a number of nodes: `parts[(nodes, at_once)]`, each part a run that
    has not begun. `longest` is the longest limit of its jobs (seconds). There are `members` draws of their run
    times. `each` has one part for each job, if each job can have its own request."""

    parts: Mapping[tuple[int, int], Sequence[FrozenRun]]
    longest: float
    members: int = MEMBERS
    each: Sequence[PartRequest] = ()

    def __post_init__(self) -> None:
        whole = next(parts[0] for (_, at_once), parts in self.parts.items() if at_once == 1)
        self._draws: list[Durations] = list(draws(whole, self.members))
        self._known: dict[Any, QueueProgress] = {}

    def makespan(self, nodes: int, at_once: int, member: int) -> float:
        """Return the seconds until the last part is done in one draw, if nothing ends the allocations."""
        return max(makespan(part, self._draws[member]) for part in self.parts[nodes, at_once])

    def progress(self, shape: AllocationShape, member: int) -> list[QueueProgress]:
        """Return the progress of each part in a chain of this shape in one draw."""
        found = []
        for at, (part, nodes, seconds) in enumerate(self.requests(shape)):
            key = (nodes, shape.at_once, shape.each, at, seconds, member)
            known = self._known.get(key)
            if known is None or (known.left and len(known.lasts) != shape.chain):
                known = self._known[key] = progress(part, seconds, shape.chain, self._draws[member])
            found.append(known)
        return found

    def requests(self, shape: AllocationShape) -> Sequence[PartRequest]:
        """Return the request of each part of a shape."""
        return self.each if shape.each else [PartRequest(part, shape.nodes, shape.seconds)
                                             for part in self.parts[shape.nodes, shape.at_once]]


class ShapeOutcome(NamedTuple):
    """The result of a shape in one draw: seconds from now until the first allocation begins, and until the last
    job ends (infinity: some jobs are not done); core seconds that are charged, and those that jobs used."""

    start: float
    end: float
    charged: float
    used: float


class RequestForecast(NamedTuple):
    """A shape with its start and the end of all jobs (seconds from now), the `chance` that all are done, the
    mean core hours that are charged, the fraction of them that no job used, and the number of draws."""

    shape: AllocationShape
    start: Spread
    end: Spread
    chance: float
    hours: float
    wasted: float
    members: int

    def record(self) -> dict[str, Any]:
        """Return the forecast as JSON values; None replaces infinity."""
        return {**self.shape._asdict(), "start": _plain(self.start), "end": _plain(self.end), "chance": self.chance,
                "core_hours": self.hours, "wasted": self.wasted, "members": self.members}


def _plain(values: Spread) -> dict[str, float | None]:
    return {name: value if math.isfinite(value) else None for name, value in values._asdict().items()}


def shapes(work: Work, bounds: RequestLimits, members: int = FIRST, side_by_side: Sequence[int] = AT_ONCE
           ) -> list[AllocationShape]:
    """Return the requests that are worth comparing, by a few draws of the run times on each number of nodes;
    `side_by_side` are the numbers of parallel chains. The last one has a request for each job, if `work` has
    these."""
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
    """Return the greatest number of successive allocations that a draw needs (one that is not needed ends at once).
    Draws in which MOST_CHAIN are not enough do not count; 0 if these are more than SURE allows."""
    needed = [max(len(part.lasts) for part in parts) for parts in (
        work.progress(shape, member) for member in range(members)) if not any(part.left for part in parts)]
    return max(needed) if len(needed) >= SURE * members else 0


def outcome(work: Work, site: OuterSite, shape: AllocationShape, cores: int, member: int) -> ShapeOutcome:
    """Return the result of a shape in one draw."""
    parts = work.progress(shape, member)
    requests = work.requests(shape)
    given = site.given(asked(parts, requests), member)
    return combined(parts, given, [one.nodes * cores for one in requests])


def asked(parts: Sequence[QueueProgress], requests: Sequence[PartRequest]) -> list[RequestedAllocation]:
    """Return the allocations of all parts, one part after the other."""
    found: list[RequestedAllocation] = []
    for part, (_, nodes, seconds) in zip(parts, requests):
        for at, lasts in enumerate(part.lasts):
            found.append(RequestedAllocation(nodes, seconds, lasts, len(found) - 1 if at else None))
    return found


def combined(parts: Sequence[QueueProgress], given: Sequence[AllocationSpan | None],
             cores: Sequence[int]) -> ShapeOutcome:
    """Return the result of parts whose allocations were `given` like this; `cores` is the number of cores in
    the allocations of each part."""
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
    """Return the results of the shapes in the draws: for each draw a list."""
    return run_in_processes(lambda part: _tried(work, site, tried, cores, members, part), min(processes, len(members)))


def judged(shape: AllocationShape, outcomes: Sequence[ShapeOutcome]) -> RequestForecast:
    """Return the forecast of a shape from its results in the draws."""
    charged, used = (sum(values) for values in zip(*(each[2:] for each in outcomes)))
    return RequestForecast(shape, widened(each.start for each in outcomes), widened(each.end for each in outcomes),
                     sum(each.end < math.inf for each in outcomes) / len(outcomes),
                     charged / len(outcomes) / 3600, 1 - used / charged if charged else 0.0, len(outcomes))


def widened(values: Iterable[float]) -> Spread:
    """Return the spread of some times, with a range that also allows for what no draw has found."""
    found = spread(values)
    low, high = (WIDER * abs(found.p50 - end) if end != found.p50 else 0.0 for end in (found.p10, found.p90))
    return found._replace(p10=max(min(0.0, found.p50), found.p10 - max(low, LEAST)), p90=found.p90 + max(high, LEAST))


def best(found: Iterable[RequestForecast]) -> list[RequestForecast]:
    """Return the candidates, the best first: those that do all jobs with the chance SURE, by the mean end, then
    the others by their chance. Among those within CLOSE of the first, the cheapest is first; each request costs
    an additional CLOSE of the core hours."""
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
    """Return the mean end if there is one, else the median."""
    end = candidate.end
    return end.mean if end.mean < math.inf else end.p50


def compare(work: Work, site: OuterSite, tried: Sequence[AllocationShape], cores: int, processes: int = 1
            ) -> list[RequestForecast]:
    """Return the shapes, the best first: those of the last round, then those of the rounds before."""
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
    """Return whether the shape is clearly worse than the best one in each draw."""
    return all(ours.end > (1 + WORSE) * theirs.end for ours, theirs in zip(rows, best))


def widths(found: Iterable[RequestForecast]) -> list[RequestForecast]:
    """Return the best request of each number of nodes and of parallel chains. `found` has the best requests
    first."""
    firsts: dict[tuple[int, int], RequestForecast] = {}
    for each in found:
        firsts.setdefault((each.shape.nodes, each.shape.at_once), each)
    return list(firsts.values())
