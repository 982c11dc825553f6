"""Room for an urgent job: which running jobs could give their cores, and where it would be on them.

A running job gives some of its cores (`lend`), or all of them while it stands still (`pause`), or it is ended and waits
again (`requeue`). Free cores count, too. Plain functions of a cluster and its jobs, the same for the manager, for
forecasts and for simulations. Times are in seconds, memory in bytes, cores in the numbering of the cluster's layout.
"""

from __future__ import annotations

from functools import reduce
from itertools import combinations
from operator import or_
from typing import NamedTuple
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from vrm.ext.lending.offers import NoOffer, borrowed, offer, reserved
from vrm.ext.urgent.fields import NO_PAUSE
from vrm.model import Booking, Cluster, Job, bits
from vrm.model.amounts import MEMORY
from vrm.model.job import Details
from vrm.model.placement import Lease, Placement
from vrm.model.sharing import core_share
from vrm.scheduling import Scheduler

LEND, PAUSE, REQUEUE = "lend", "pause", "requeue"


class Giver(NamedTuple):
    """A running job that could give cores, how, and which."""

    id: int
    how: str
    cores: int


class UrgentRoom(NamedTuple):
    """Where an urgent job would run, and the jobs of which it has cores there."""

    placement: Placement
    givers: tuple[Giver, ...]

    def ids(self, how: str) -> list[int]:
        """The jobs that give their cores in this way."""
        return [each.id for each in self.givers if each.how == how]


MemoryOf = Callable[[int], int | None]
"""The most bytes that a running job had on a node, by its id; None where nobody knows."""


def memory_on(job: Job, tasks: int) -> int:
    """The bytes that a job asks for on a node with so many of its tasks; 0: it does not say."""
    each, once = (dict(amounts).get(MEMORY, 0) for amounts in (job.request.per_task, job.request.per_node))
    return int(each * tasks + once)


def says_memory(job: Job) -> bool:
    """Whether a job says how much memory it needs."""
    return bool(memory_on(job, 1))


def asking(job: Job, scheduler: Scheduler) -> Job:
    """A job with what its queue demands, as the nodes on which it may run."""
    if not scheduler.queues:
        return job
    return job.but(request=scheduler.queues.queue(job).request(job.request))


def cores_of(cluster: Cluster, booking: Booking) -> int:
    """All cores of a running job's ranks."""
    return core_share.held(cluster.loans.ranks(cluster, booking), cluster.layout)


def givers(cluster: Cluster, details: Callable[[int], Details], memory: MemoryOf, requeues: bool
            ) -> tuple[list[Giver], dict[int, str]]:
    """What running jobs could give, and of those that cannot be paused, by id, why not. `requeues`: interrupted jobs
    run again, unless they say otherwise (`Interrupted`)."""
    found: list[Giver] = []
    why: dict[int, str] = {}
    for job_id, booking in sorted(cluster.bookings.items()):
        job, more = booking.job, details(job_id).more
        if booking.placement.lease is not None or cluster.loans.of_lender(job_id) or job_id in cluster.loans.unwilling:
            why[job_id] = ("it runs on cores of other jobs" if booking.placement.lease is not None else
                           "it has given its cores to another job" if cluster.loans.of_lender(job_id) else
                           "it did not leave its cores before")
            continue
        if job.malleable and not job.payload.script:
            try:
                found.append(Giver(job_id, LEND, offer(cluster, job_id).cores))
            except NoOffer:
                pass  # it has one core for each rank
        cores = cores_of(cluster, booking)
        why[job_id] = _no_pause(cluster, booking, memory)
        if not why[job_id]:
            del why[job_id]
            found.append(Giver(job_id, PAUSE, cores))
        if more.get("requeue") != "no" and (requeues or more.get("requeue") == "yes"):
            found.append(Giver(job_id, REQUEUE, cores))
    return found, why


def _no_pause(cluster: Cluster, booking: Booking, memory: MemoryOf) -> str:
    """Why a running job must not stand still, "" where it may."""
    job = booking.job
    if job.more.get(NO_PAUSE):
        return "it was submitted with --no-pause"
    if job.exclusive:
        return "it is exclusive: it shares its nodes with no other job"
    if not all(cluster.nodes[node].resources.get(MEMORY) for node in booking.placement.nodes):
        return "the memory of its nodes is not known: NodeClasses says it"
    if not says_memory(job) and memory(job.id) is None:
        return "its memory is not known: submit jobs with --mem-per-task"
    return ""


def room(job: Job, cluster: Cluster, chosen: Iterable[Giver], memory: MemoryOf, now: float) -> UrgentRoom | None:
    """Where a job would be on the cores that these jobs give and on free ones; None where it does not fit, or something
    else keeps it from starting. A job that does not say its memory gets no cores of jobs that keep theirs."""
    chosen = [each for each in chosen if each.how == REQUEUE or says_memory(job)]
    if job.request.parts or job.exclusive:
        return None
    twin = _without(job, cluster, chosen, memory)
    gone = {each.id for each in chosen if each.how != LEND}
    free = cluster.layout.cores_of(cluster.up & ~_nodes(cluster, gone))
    if cluster.busy_cores:  # jobs share nodes core by core
        free |= cluster.free_cores
    given = [(each.id, each.cores) for each in chosen]
    found = borrowed(job, twin, given, free=free)
    if found is None or found.width < job.cores:
        return None
    used = tuple(each for each in chosen if cluster.bookings[each.id].placement.node_set & found.node_set
                 and (each.cores & found.taken or each.how != LEND))
    own = found.taken & ~reduce(or_, (each.cores for each in used), 0)
    beyond = 0 if cluster.busy_cores else cluster.layout.nodes_of(own)
    placement = found.but(lease=Lease(tuple((each.id, each.cores) for each in used)), room=(
        beyond & cluster.free0, beyond & cluster.free1, own & cluster.free_cores if cluster.busy_cores else 0))
    if reserved(cluster, placement.lent, now, job, placement) or not all(
            each.allows(job, placement, now, now + job.walltime) for each in cluster.constraints):
        return None
    return UrgentRoom(placement, used)


def _nodes(cluster: Cluster, gone: Collection[int] = ()) -> int:
    """The nodes of the running jobs but these."""
    kept = (booking.placement.node_set for job_id, booking in cluster.bookings.items() if job_id not in gone)
    return reduce(or_, kept, 0)


def _without(job: Job, cluster: Cluster, chosen: Sequence[Giver], memory: MemoryOf) -> Cluster:
    """The cluster as an urgent job finds it: without what is ended, and with the memory taken that paused jobs keep and
    have not asked for."""
    twin = cluster.copy()
    devices = any(name != MEMORY for name, _ in (*job.request.per_task, *job.request.per_node))
    for each in chosen:
        booking = cluster.bookings[each.id]
        if each.how == REQUEUE:
            for node, tasks in booking.placement.ranks_by_node(cluster.nodes) if not devices else ():
                _keep(twin, node, -memory_on(booking.job, tasks))
        elif not says_memory(booking.job):
            for node in booking.placement.nodes:
                _keep(twin, node, memory(each.id) or 0)
    return twin


def _keep(cluster: Cluster, node: int, amount: int) -> None:
    """Less memory is left on a node of a copy."""
    if MEMORY in cluster.left:
        left = cluster.left[MEMORY] = list(cluster.left[MEMORY])
        left[node] -= amount


def cheapest(job: Job, cluster: Cluster, able: Sequence[Giver], memory: MemoryOf, now: float,
             price: Callable[[Giver], float]) -> UrgentRoom | None:
    """Room by a greedy choice: jobs are asked in the order of their price for each core that they give, until there is
    room, and those without which there is room still are left out again, the dearest first. Each job gives once."""
    chosen: list[Giver] = []
    found = room(job, cluster, (), memory, now)
    for each in sorted(able, key=lambda each: (price(each) / bits.count(each.cores), each.id)):
        if found is not None:
            break
        if all(other.id != each.id for other in chosen):
            chosen.append(each)
            found = room(job, cluster, chosen, memory, now)
    if found is None:
        return None
    kept = list(found.givers)
    for each in sorted(found.givers, key=price, reverse=True):
        less = room(job, cluster, [other for other in kept if other != each], memory, now)
        if less is not None:
            found, kept = less, list(less.givers)
    return found


def prices(cluster: Cluster, job: Job, now: float) -> Callable[[Giver], float]:
    """How much later a job ends at about, in seconds, if it gives cores to an urgent one from now on: that one's time
    where it stands still, its share of it where it lends, and what it has done where it starts again."""
    def price(giver: Giver) -> float:
        booking = cluster.bookings[giver.id]
        if giver.how == LEND:
            return job.expected * bits.count(giver.cores) / booking.placement.cores
        return job.expected + (now - booking.start if giver.how == REQUEUE else 0.0)
    return price


ALONE, FEW = 8, 8
"""Jobs that are tried as the only one that gives cores; ways to give cores of which all sets are tried."""


def rooms(job: Job, cluster: Cluster, able: Sequence[Giver], memory: MemoryOf, now: float) -> Iterator[UrgentRoom]:
    """Choices of jobs that give cores, each once; none has a job without which there is room. Where there are few ways
    to give, all of them; else the greedy ones: among all ways, among each alone, and without each of those that were
    chosen first; and those with one job."""
    price = prices(cluster, job, now)
    known: set[frozenset[Giver]] = set()
    if len(able) <= FEW:
        tries = [room(job, cluster, some, memory, now) for number in range(len(able) + 1)
                 for some in combinations(able, number) if len({each.id for each in some}) == number]
    else:
        ways = [able, *([each for each in able if each.how == how] for how in (LEND, PAUSE, REQUEUE))]
        tries = [cheapest(job, cluster, way, memory, now, price) for way in ways]
        for first in tries[0].givers[:ALONE] if tries[0] is not None else ():
            others = [each for each in able if each.id != first.id]
            tries.append(cheapest(job, cluster, others, memory, now, price))
        tries += [room(job, cluster, [each], memory, now) for each in sorted(able, key=price)[:ALONE]]
    for found in tries:
        if found is not None and not any(less <= frozenset(found.givers) for less in known):
            known.add(frozenset(found.givers))
            yield found
