"""Finds room for an urgent job: which running jobs could give cores, and where the urgent job would run.

A running job gives some of its cores (`lend`), or all of them while it is paused (`pause`), or it is ended and requeued
(`requeue`). Free cores are used, too. All functions depend only on a cluster and its jobs, so that the manager,
forecasts and simulations share them. Times are in seconds, memory in bytes, cores in the numbering of the cluster's
layout.
"""

from __future__ import annotations

from functools import reduce
from itertools import combinations
from operator import or_
from typing import NamedTuple
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from vrm.ext.lending.offers import CannotLend, borrowed, offer, reserved
from vrm.ext.urgent.fields import NO_PAUSE
from vrm.model import Booking, Cluster, Job, bits
from vrm.model.amounts import MEMORY
from vrm.model.job import Details
from vrm.model.placement import Lease, Placement
from vrm.model.sharing import core_share
from vrm.scheduling import Scheduler

LEND, PAUSE, REQUEUE = "lend", "pause", "requeue"


class CoreDonor(NamedTuple):
    """A running job that could give cores: how, and which ones."""

    id: int
    how: str
    cores: int


class UrgentPlacement(NamedTuple):
    """The placement of an urgent job, and the jobs that give cores for it."""

    placement: Placement
    core_donors: tuple[CoreDonor, ...]

    def ids(self, how: str) -> list[int]:
        """Return the jobs that give their cores in this way."""
        return [each.id for each in self.core_donors if each.how == how]


MemoryOf = Callable[[int], int | None]
"""Return the most bytes that a running job used on a node, by its id; None if not known."""


def memory_on(job: Job, tasks: int) -> int:
    """Return the bytes that a job requests on a node with `tasks` of its tasks; 0 if it requests no memory."""
    each, once = (dict(amounts).get(MEMORY, 0) for amounts in (job.request.per_task, job.request.per_node))
    return int(each * tasks + once)


def requests_memory(job: Job) -> bool:
    """Return whether a job requests memory."""
    return bool(memory_on(job, 1))


def asking(job: Job, scheduler: Scheduler) -> Job:
    """Return a job with the restrictions of its queue, such as the nodes on which it may run."""
    if not scheduler.queues:
        return job
    return job.but(request=scheduler.queues.queue(job).request(job.request))


def cores_of(cluster: Cluster, booking: Booking) -> int:
    """Return all cores of a running job's ranks."""
    return core_share.held(cluster.loans.ranks(cluster, booking), cluster.layout)


def core_donors(cluster: Cluster, details: Callable[[int], Details], memory: MemoryOf, requeues: bool
            ) -> tuple[list[CoreDonor], dict[int, str]]:
    """Return how running jobs could give cores, and why others cannot be paused, by id. `requeues`: interrupted jobs
    run again unless they exclude it (`Interrupted`)."""
    found: list[CoreDonor] = []
    why: dict[int, str] = {}
    for job_id, booking in sorted(cluster.bookings.items()):
        job, more = booking.job, details(job_id).more
        if (booking.placement.lease is not None or cluster.loans.of_lender(job_id)
                or job_id in cluster.loans.refusing_lenders):
            why[job_id] = ("it runs on cores of other jobs" if booking.placement.lease is not None else
                           "it has given its cores to another job" if cluster.loans.of_lender(job_id) else
                           "it did not leave its cores before")
            continue
        if job.malleable and not job.payload.script:
            try:
                found.append(CoreDonor(job_id, LEND, offer(cluster, job_id).cores))
            except CannotLend:
                pass  # it has only one core for each rank
        cores = cores_of(cluster, booking)
        why[job_id] = _no_pause(cluster, booking, memory)
        if not why[job_id]:
            del why[job_id]
            found.append(CoreDonor(job_id, PAUSE, cores))
        if more.get("requeue") != "no" and (requeues or more.get("requeue") == "yes"):
            found.append(CoreDonor(job_id, REQUEUE, cores))
    return found, why


def _no_pause(cluster: Cluster, booking: Booking, memory: MemoryOf) -> str:
    """Return why a running job must not be paused; "" if it may."""
    job = booking.job
    if job.more.get(NO_PAUSE):
        return "it was submitted with --no-pause"
    if job.exclusive:
        return "it is exclusive: it shares its nodes with no other job"
    if not all(cluster.nodes[node].resources.get(MEMORY) for node in booking.placement.nodes):
        return "the memory of its nodes is not known: NodeClasses says it"
    if not requests_memory(job) and memory(job.id) is None:
        return "its memory is not known: submit jobs with --mem-per-task"
    return ""


def room(job: Job, cluster: Cluster, chosen: Iterable[CoreDonor], memory: MemoryOf,
         now: float) -> UrgentPlacement | None:
    """Return where a job would run on free cores and on the cores that `chosen` jobs give; None if it does not fit, or
    if a reservation or another constraint prevents its start. A job that requests no memory gets cores only from
    requeued jobs, because the other jobs keep their memory."""
    chosen = [each for each in chosen if each.how == REQUEUE or requests_memory(job)]
    if job.request.parts or job.exclusive:
        return None
    twin = _without(job, cluster, chosen, memory)
    gone = {each.id for each in chosen if each.how != LEND}
    free = cluster.layout.cores_of(cluster.up & ~_nodes(cluster, gone))
    if cluster.busy_cores:  # jobs share nodes by cores
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
    return UrgentPlacement(placement, used)


def _nodes(cluster: Cluster, gone: Collection[int] = ()) -> int:
    """Return the nodes of the running jobs, except the jobs `gone`."""
    kept = (booking.placement.node_set for job_id, booking in cluster.bookings.items() if job_id not in gone)
    return reduce(or_, kept, 0)


def _without(job: Job, cluster: Cluster, chosen: Sequence[CoreDonor], memory: MemoryOf) -> Cluster:
    """Return a copy of the cluster as an urgent job finds it: requeued jobs release their memory, and memory that
    paused jobs keep but did not request is taken."""
    twin = cluster.copy()
    devices = any(name != MEMORY for name, _ in (*job.request.per_task, *job.request.per_node))
    for each in chosen:
        booking = cluster.bookings[each.id]
        if each.how == REQUEUE:
            for node, tasks in booking.placement.ranks_by_node(cluster.nodes) if not devices else ():
                _keep(twin, node, -memory_on(booking.job, tasks))
        elif not requests_memory(booking.job):
            for node in booking.placement.nodes:
                _keep(twin, node, memory(each.id) or 0)
    return twin


def _keep(cluster: Cluster, node: int, amount: int) -> None:
    """Reduce the free memory of a node of a copy by `amount` bytes."""
    if MEMORY in cluster.left:
        left = cluster.left[MEMORY] = list(cluster.left[MEMORY])
        left[node] -= amount


def cheapest(job: Job, cluster: Cluster, able: Sequence[CoreDonor], memory: MemoryOf, now: float,
             price: Callable[[CoreDonor], float]) -> UrgentPlacement | None:
    """Find room by a greedy choice: add jobs in the order of their price per core until the urgent job fits; then
    remove jobs that turn out not to be needed, the most expensive first. Each job gives cores in one way only."""
    chosen: list[CoreDonor] = []
    found = room(job, cluster, (), memory, now)
    for each in sorted(able, key=lambda each: (price(each) / bits.count(each.cores), each.id)):
        if found is not None:
            break
        if all(other.id != each.id for other in chosen):
            chosen.append(each)
            found = room(job, cluster, chosen, memory, now)
    if found is None:
        return None
    kept = list(found.core_donors)
    for each in sorted(found.core_donors, key=price, reverse=True):
        less = room(job, cluster, [other for other in kept if other != each], memory, now)
        if less is not None:
            found, kept = less, list(less.core_donors)
    return found


def prices(cluster: Cluster, job: Job, now: float) -> Callable[[CoreDonor], float]:
    """Return a function that estimates how many seconds later a job ends if it gives cores to an urgent one from now
    on. A paused job loses the urgent job's time, a lending job its share of that, and a requeued job also the work it
    has done."""
    def price(giver: CoreDonor) -> float:
        booking = cluster.bookings[giver.id]
        if giver.how == LEND:
            return job.expected * bits.count(giver.cores) / booking.placement.cores
        return job.expected + (now - booking.start if giver.how == REQUEUE else 0.0)
    return price


ALONE, FEW = 8, 8
"""Maximum number of jobs that are tried as the only one to give cores; maximum number of ways to give cores for which
all combinations are tried."""


def rooms(job: Job, cluster: Cluster, able: Sequence[CoreDonor], memory: MemoryOf,
          now: float) -> Iterator[UrgentPlacement]:
    """Yield choices of jobs that give cores, each once; none contains a job that is not needed.

    With few ways to give cores, all combinations are tried. Otherwise these are tried: greedy choices among all ways,
    among each way alone, and without each of the jobs chosen first; and single jobs.
    """
    price = prices(cluster, job, now)
    known: set[frozenset[CoreDonor]] = set()
    if len(able) <= FEW:
        tries = [room(job, cluster, some, memory, now) for number in range(len(able) + 1)
                 for some in combinations(able, number) if len({each.id for each in some}) == number]
    else:
        ways = [able, *([each for each in able if each.how == how] for how in (LEND, PAUSE, REQUEUE))]
        tries = [cheapest(job, cluster, way, memory, now, price) for way in ways]
        for first in tries[0].core_donors[:ALONE] if tries[0] is not None else ():
            others = [each for each in able if each.id != first.id]
            tries.append(cheapest(job, cluster, others, memory, now, price))
        tries += [room(job, cluster, [each], memory, now) for each in sorted(able, key=price)[:ALONE]]
    for found in tries:
        if found is not None and not any(less <= frozenset(found.core_donors) for less in known):
            known.add(frozenset(found.core_donors))
            yield found
