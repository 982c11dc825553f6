"""The outer site: its queue at one moment continues in virtual time, with our allocations in it and with jobs
of others that are submitted later.

The unknown is drawn, equally for every shape: how long the site's jobs take, which jobs arrive later, and, if
the site's priorities do not follow the times of submission, the position of a new job in the queue.
"""

from __future__ import annotations

import contextlib
import itertools
import random
from dataclasses import dataclass, field, replace
from typing import NamedTuple
from collections.abc import Callable, Iterator, Mapping, Sequence

from vrm.ext.advice.assumed_draws import RATIOS, draws as draws_of
from vrm.ext.allocations.arrivals import PastArrival, Stream, again, assumed
from vrm.ext.allocations.shapes import RequestLimits
from vrm.ext.allocations.slots import cores_per_slot, in_slots, slots_of
from vrm.ext.forecast.counted import CountedArrival, CountedReplay, CountedRun, NotCounted, RunSpan
from vrm.ext.forecast.draws import ENOUGH, History
from vrm.ext.forecast.frozen import FrozenRun
from vrm.ext.forecast.replay import Durations, PlannedJob, replay
from vrm.ext.forecast.site.forecast import SiteByNode, parts_of, ranked, with_nodes
from vrm.ext.forecast.site.snapshot import SiteJob, Snapshot, SnapshotError
from vrm.model import Dependency, Job
from vrm.model.job import ANY, Infeasible
from vrm.workload.submission import Submission

FEW = 8
"""Least number of jobs of a site from which later arrivals are assumed."""


class RequestedAllocation(NamedTuple):
    """A requested allocation: nodes, limit and how long it will really last (seconds), and which of the other
    allocations it follows (its index among them)."""

    nodes: int
    limit: float
    lasts: float
    after: int | None = None


class AllocationSpan(NamedTuple):
    """When an allocation begins and ends, in seconds after the time of the site's snapshot."""

    start: float
    end: float


@dataclass
class OuterSite:
    """A site. `job(nodes, limit, id)` returns an allocation as a job of the site, `later_arrivals(member)` the jobs
    that arrive later in a draw. `ranks` are the ranks of its jobs by id, if it has any, and `rank(member, id)`
    returns that of a new job. `said` lists the assumptions as text, `time` is its time in seconds since the
    epoch. There are `members` draws."""

    frozen: FrozenRun
    job: Callable[[int, float, int], Job]
    later_arrivals: Callable[[int], Iterator[Submission]]
    said: tuple[str, ...] = ()
    time: float = 0.0
    ranks: dict[int, float] = field(default_factory=dict)
    rank: Callable[[int, int], float] | None = None
    members: int = 50

    def __post_init__(self) -> None:
        self._draws: list[Durations] = list(draws_of(self.frozen, self.members))
        self._streams: dict[int, Stream[Submission]] = {}
        self._known: dict[int, tuple[CountedReplay, Stream[CountedArrival]]] = {}
        self._counted: CountedRun | None = None
        with contextlib.suppress(NotCounted):
            self._counted = CountedRun(self.frozen)

    def given(self, asks: Sequence[RequestedAllocation], member: int) -> list[AllocationSpan | None]:
        """Return when these allocations begin and end if they are requested now, in one draw; None for one that
        does not begin before the arrivals end."""
        found: Mapping[int, PlannedJob | RunSpan] = self._started(asks, member) if asks else {}
        first, now = self.frozen.state.next_id, self.frozen.now
        return [AllocationSpan(found[each].start - now, found[each].end - now) if each in found else None
                for each in range(first, first + len(asks))]

    def _started(self, asks: Sequence[RequestedAllocation], member: int) -> Mapping[int, PlannedJob | RunSpan]:
        """Return the jobs that run until these allocations have started; cores are only counted if that is
        exact."""
        counted = self._counted
        if counted is None:
            return self.played(asks, member, started=True)
        ours = self._submitted(asks, member)
        if member not in self._known:
            self._known[member] = (counted.draw(self._draws[member]),
                                   Stream(map(counted.coming, self._stream(member))))
        drawn, later = self._known[member]
        try:
            return drawn.copy().go(itertools.chain(map(counted.coming, ours), later), {one.job.id for one in ours},
                                   started=True)
        except NotCounted:
            self._counted = None
            return self.played(asks, member, started=True)

    def played(self, asks: Sequence[RequestedAllocation], member: int, started: bool = False) -> dict[int, PlannedJob]:
        """Return, by id, all jobs that run at the site until these allocations have ended (`started`: have
        started), with their places. The allocations have ids from the next id of the site on."""
        ours = self._submitted(asks, member)
        return replay(self.frozen, self._draws[member], itertools.chain(ours, self._stream(member)),
                      {one.job.id for one in ours}, started)

    def _submitted(self, asks: Sequence[RequestedAllocation], member: int) -> list[Submission]:
        """Return these allocations as jobs of the site that are submitted now."""
        frozen = self.frozen
        first = frozen.state.next_id
        ours = []
        for at, ask in enumerate(asks):
            after = () if ask.after is None else (Dependency.on(first + ask.after, ANY),)
            ours.append(Submission(self.job(ask.nodes, ask.limit, first + at).but(submit=frozen.now), ask.lasts, after))
            if self.rank is not None:
                self.ranks[first + at] = self.rank(member, first)
        return ours

    def _stream(self, member: int) -> Stream[Submission]:
        if member not in self._streams:
            self._streams[member] = Stream(self._ranked(member))
        return self._streams[member]

    def _ranked(self, member: int) -> Iterator[Submission]:
        """Yield the later arrivals of a draw, and note their ranks."""
        for one in self.later_arrivals(member):
            if self.rank is not None:
                self.ranks[one.job.id] = self.rank(member, one.job.id)
            yield one


OURS = 1000
"""Number of ids that are reserved for our allocations, before those of later arrivals."""

ARRIVAL_IDS = 10 ** 7
"""Number of ids that are reserved for the later arrivals of one draw."""


def of_snapshot(site: Snapshot, bounds: RequestLimits, user: str, history: Sequence[tuple[Job, float]] = (),
                members: int = 50) -> OuterSite:
    """Return the site of a snapshot, for allocations in a partition. `history` are jobs of the site that have
    ended, in order of submission, with their run times (seconds). `members` is the number of draws. Raises
    SnapshotError."""
    if site.manager != "NodeState":
        raise SnapshotError("the snapshot counts amounts of cores alone: requests are planned by nodes")
    said: list[str] = []
    site = with_hidden_jobs(ranked(site), bounds, said)
    grain = cores_per_slot(site, bounds.cores)
    if grain:
        said.append(f"nodes are shared: jobs are counted in {grain} cores, wherever these are free")
    site = in_slots(site, grain)
    name = bounds.partition
    part = _part(site, name)
    near = sorted({each for node in part.nodes for each in node.classes or () if "," not in each} - {name})
    if near:
        said.append(f"partitions {', '.join([name, *near])} share nodes or wait for each other: they are one queue, "
                    "and only the first of their jobs that cannot start has nodes kept for it")
    world = SiteByNode(part)
    past = History()
    for job, run in history:
        past.add(job, run)
    frozen = world.frozen(past)
    first = frozen.state.next_id + OURS

    def made(nodes: int, cores: int, limit: float, job_id: int, whose: str, queue: str) -> Job:
        slots = slots_of(nodes, cores, grain)
        return world.job(SiteJob("", limit, slots, slots, 1, "", whose, queue), job_id)

    queues = {name for node in part.nodes for name in node.classes or ()}
    known = [past for past in _known(history, made, queues, bounds) if _possible(world, past.job)]
    here = [*frozen.waiting(), *(booking.job for booking in frozen.state.cluster.running())]
    busy = sum(booking.job.request.cores for booking in frozen.state.cluster.running())

    def later_arrivals(member: int) -> Iterator[Submission]:
        if known:
            return again(known, f"{site.time} {member}", frozen.now, first + member * ARRIVAL_IDS)
        if len(here) >= FEW and busy:
            return assumed(here, busy, f"{site.time} {member}", frozen.now, first + member * ARRIVAL_IDS)
        return iter(())

    said += _said(frozen, len(known), len(here), busy)
    found = OuterSite(frozen, lambda nodes, limit, job_id: made(nodes, bounds.cores, limit, job_id, user, name),
                      later_arrivals,
                      time=site.time, ranks=world.ranks, members=members)
    _rank(found, part, user, said)
    found.said = tuple(said)
    return found


def _part(site: Snapshot, name: str) -> Snapshot:
    """Return the part of the site that a partition belongs to: its nodes, and those of partitions that share nodes with
    it. Nodes of the same partitions follow each other, so that they can be counted."""
    part = next((each for each, _ in parts_of(replace(site, per_queue=True)) if not name or any(
        name in (node.classes or ()) for node in each.nodes)), site)
    firsts: dict[frozenset[str], int] = {}
    alike = [firsts.setdefault(frozenset(node.classes or ()), at) for at, node in enumerate(part.nodes)]
    return with_nodes(replace(part, per_queue=site.per_queue), sorted(range(len(alike)), key=alike.__getitem__))


def _possible(world: SiteByNode, job: Job) -> bool:
    with contextlib.suppress(Infeasible):
        world.scheduler.check(job)
        return True
    return False


def _known(history: Sequence[tuple[Job, float]], made: Callable[..., Job], queues: set[str], bounds: RequestLimits
           ) -> Iterator[PastArrival]:
    """Yield the history as jobs of this part of the site; jobs of queues that it does not have are left out."""
    for job, run in history:
        if job.queue and queues and job.queue not in queues:
            continue
        cores = job.request.cores
        nodes = -(-cores // bounds.cores)
        if nodes <= bounds.nodes:
            queue = job.queue if job.queue in queues else bounds.partition
            yield PastArrival(made(nodes, -(-cores // nodes), job.walltime, 0, job.user, queue), job.submit, run)


def _said(frozen: FrozenRun, known: int, here: int, busy: int) -> list[str]:
    """Return the assumptions about run times and later arrivals as text."""
    low, high = (round(100 * ratio) for ratio in (RATIOS[0], RATIOS[-1]))
    times = (f"the site's jobs take as much of their limits as {len(frozen.past)} that have ended"
             if len(frozen.past) >= ENOUGH else
             f"the site's jobs take {low} to {high} % of their limits (--site-history says how much they take)")
    if known:
        return [times, f"others come as they did before: {known} jobs of the history"]
    if here >= FEW and busy:
        share = busy / max(1, frozen.state.cluster.cores)
        return [times, "jobs like those in the queue keep coming, half as many to one and a half times as many as "
                       f"keep the site {100 * share:.0f} % full (--site-history says who comes)"]
    return [times, "nobody comes later: there are too few jobs to see who does (--site-history)"]


def with_hidden_jobs(site: Snapshot, bounds: RequestLimits, said: list[str]) -> Snapshot:
    """Return the site with a job on each node that it calls busy and on which no job is visible."""
    seen = {node for job in site.jobs if job.start is not None for node, _ in job.places}
    hidden = [at for at, node in enumerate(site.nodes) if node.busy and node.up and at not in seen]
    if not hidden:
        return site
    wall = bounds.longest if bounds.longest < 365 * DAY else DAY
    said.append(f"{len(hidden)} nodes are busy with jobs that you may not see: each has one that began now, with a "
                f"limit of {wall / 3600:g} hours; how many of them wait is not known")
    jobs = [SiteJob(f"hidden {site.nodes[at].name}", wall, site.nodes[at].cores, 1, site.nodes[at].cores, "", "?",
                    next(iter(site.nodes[at].classes or ("",))), 0.0, 0.0, ((at, None),)) for at in hidden]
    return replace(site, jobs=[*site.jobs, *jobs])


DAY = 86400.0


def _rank(found: OuterSite, part: Snapshot, user: str, said: list[str]) -> None:
    """Set the ranks of new jobs: their positions in the queue."""
    waiting = [job for job in part.jobs if job.start is None and not job.stuck]
    ranks = [job.rank for job in sorted(waiting, key=lambda job: job.submit)]
    least = min((job.rank for job in part.jobs), default=0.0) - 1
    if all(one >= other for one, other in zip(ranks, ranks[1:])):
        found.rank = lambda member, job_id: least
        said.append("new jobs are behind those that wait")
        return
    mine = [job.rank for job in waiting if job.user == user]
    first = found.frozen.state.next_id

    def rank(member: int, job_id: int) -> float:
        draw = random.Random(f"rank {part.time} {member} {job_id}")
        return draw.choice(mine if mine and job_id < first + OURS else ranks)

    found.rank = rank
    said.append(f"priorities do not follow the times of submission: that of a new job is drawn from those that wait "
                f"({f'yours from your {len(mine)}' if mine else 'yours, too'})")
