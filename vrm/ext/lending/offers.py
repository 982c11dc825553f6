"""Determines which cores running jobs could lend, and the placement of a waiting job on them."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple
from collections.abc import Callable, Iterator, Sequence

from vrm.model import bits
from vrm.model.sharing import core_share
from vrm.model.cluster import Booking, Cluster
from vrm.model.sharing.core_share import NOBODY, Loan
from vrm.model.job import Job
from vrm.model.placement import Placement
from vrm.scheduling.placement.spread import most_tasks, named


class Offer(NamedTuple):
    """Cores that a running job could lend: `per_rank` cores of each rank, on all its nodes."""

    lender: int
    cores: int
    nodes: int
    per_rank: int


class CannotLend(ValueError):
    """A job cannot lend what was requested; the text says why, and what to request instead."""


def max_ranks_per_node(cluster: Cluster, booking: Booking) -> int:
    """Return the largest number of ranks of a running job on one node."""
    return max(each.ranks for each in cluster.loans.ranks(cluster, booking))


def width(cluster: Cluster, booking: Booking) -> int:
    """Return how many cores a rank of a running job has now; for ranks with different numbers the smallest."""
    return round(booking.placement.width * cluster.loans.rate(cluster, booking))


def offer(cluster: Cluster, job_id: int, cores: int = 0, within: bool = False) -> Offer:
    """Return the offer of a running job to lend `cores` cores on each node; 0: half of the cores that it has,
    rounded down. Each rank lends the same number, so that a node with fewer of its ranks lends fewer cores.
    `within`: every rank stays in its socket. Raises CannotLend if it is not possible."""
    booking = cluster.bookings[job_id]
    if booking.placement.lease is not None:
        raise CannotLend(f"job {job_id} runs on borrowed cores: it lends none of them")
    if booking.job.exclusive:
        raise CannotLend(f"job {job_id} is exclusive: it shares its nodes with no other job")
    ranks, now = max_ranks_per_node(cluster, booking), width(cluster, booking)
    if now < 2:
        raise CannotLend(f"job {job_id} has {now} core for each of its ranks, and each keeps one: it can "
                         "lend none")
    each = cores // ranks if cores else now // 2
    if cores and (cores < 0 or cores % ranks):
        choices = " or ".join(str(ranks * number) for number in range(1, min(now, 4)))
        raise CannotLend(f"job {job_id} has {ranks} ranks on a node, and each lends the same number "
                         f"of cores: give {choices}, not {cores}")
    if each >= now:
        raise CannotLend(f"job {job_id} has {ranks * now} cores on a node and keeps one for each of its "
                         f"{ranks} ranks: it lends {ranks * (now - 1)} at most, not {cores}")
    here = cluster.loans.ranks(cluster, booking)
    try:
        lent = core_share.choose(here, cluster.loans.lent(job_id), cluster.nodes, cluster.layout,
                                 booking.placement.width, each, within)
    except ValueError as error:
        raise CannotLend(f"job {job_id}: {error}") from error
    return Offer(job_id, lent, booking.placement.node_set, each)


def offers(cluster: Cluster, able: Callable[[Job], bool], share: float = 0.5, within: bool = False
           ) -> Iterator[Offer]:
    """Yield the offers of the running jobs for which `able` is true, by id. A job lends at most the fraction `share`
    of the cores that it requested, including cores that it lends already."""
    for job_id, booking in sorted(cluster.bookings.items()):
        if (booking.placement.lease is not None or job_id in cluster.loans.refusing_lenders
                or not able(booking.job)):
            continue
        asked = booking.placement.width
        each = int(share * asked) - (asked - width(cluster, booking))
        if each > 0:
            try:
                yield offer(cluster, job_id, each * max_ranks_per_node(cluster, booking), within)
            except CannotLend:
                continue


def borrowed(job: Job, cluster: Cluster, lent: Sequence[tuple[int, int]], shrinks: bool = False, free: int = 0
             ) -> Placement | None:
    """Return the placement of a job on cores that running jobs lend (pairs of id and cores) and on the cores `free`;
    its ranks fill the nodes in the order of their numbers. `shrinks`: if it does not fit otherwise, its ranks may
    get fewer cores than requested. None if it does not fit."""
    request = job.request
    if job.exclusive or not cluster.has_licences(job):
        return None
    cores, nodes = free, cluster.layout.nodes_of(free)
    for lender, some in lent:
        cores |= some
        nodes |= cluster.bookings[lender].placement.node_set
    allowed, must = named(request, cluster.nodes)
    able = list(_able(job, cluster, cores, nodes & cluster.up & allowed))
    if must & ~sum(each.nodes for each in able):
        return None
    widest = max((bits.count(each.cores) for each in able), default=0)
    most_each = bits.count(cores) // request.tasks
    for each in range(min(request.cores_per_task, widest, most_each), 0, -1):
        if each < request.cores_per_task and not shrinks:
            return None
        filled = _filled(job, able, each, must)
        if filled and not must & ~sum(some for some, _ in filled):
            return core_share.borrowed_placement(cluster.layout, core_share.together(filled, cluster.layout),
                                                 job.procs, each,
                                                 tuple(lent), sum(some for some, _ in filled))
    return None


class _LendableNodes(NamedTuple):
    """Nodes with equal sockets on which the same cores are lent (numbered from the node's first core), and the
    maximum number of tasks on each."""

    nodes: int
    sockets: tuple[int, ...]
    cores: int
    most: int


def _able(job: Job, cluster: Cluster, cores: int, nodes: int) -> Iterator[_LendableNodes]:
    """Yield the nodes out of `nodes` that have the other resources that the job requests."""
    request = job.request
    most = request.tasks_per_node or request.tasks
    for members, node in cluster.classes:
        if not request.features <= node.features:
            continue
        for some, here in cluster.layout.patterns(cores, nodes & members):
            if not here:
                continue
            if not request.amounts:
                yield _LendableNodes(some, node.sockets, here, most)
                continue
            for each in bits.members(some):
                number = most_tasks(request, most, cluster.left_on(each))
                if number > 0:
                    yield _LendableNodes(1 << each, node.sockets, here, number)


def reserved(cluster: Cluster, lent: Sequence[tuple[int, int]], now: float, job: Job | None = None,
             placement: Placement | None = None) -> str:
    """Return a sentence that names an advance reservation into which a lend could reach, because jobs with fewer
    cores may run longer; "" for none. `lent`: the lenders and their cores. `job` and `placement`: the borrower, or
    None if the cores are lent to no job. A lender inside a reservation must end when the reservation ends."""
    calendar, until = cluster.calendar, math.inf
    if not calendar:
        return ""
    said = "with fewer cores than it asked for job {} could run into reservation {}"
    if job is not None and placement is not None:
        slower = placement.slower(job.cores)
        until = now + job.expected * slower
        found = calendar.blocking_reservation(placement.node_set, now, now + job.walltime * slower)
        if found is not None:
            return said.format(job.id, found.name)
    for lender, cores in lent:
        limit = cluster.loans.limit(cluster, Loan(lender, NOBODY, cores, now, until))
        for each, nodes in calendar.spans:
            if (nodes & cluster.bookings[lender].placement.node_set and each.end > now
                    and limit > (each.limit if each.begin <= now else each.begin)):
                return (f"job {lender} could run longer than reservation {each.name}, in which it is"
                        if each.begin <= now else said.format(lender, each.name))
    return ""


@lru_cache(maxsize=4096)
def _ranks_on(cores: int, sockets: Sequence[int], ranks: int, each: int) -> tuple[int, int]:
    """Return the cores that up to `ranks` ranks with `each` cores use out of `cores` of a node, and the number of
    ranks."""
    at = mine = found = 0
    for count in sockets:
        free = cores & ((1 << count) - 1) << at
        some = min(ranks - found, bits.count(free) // each)
        mine |= bits.lowest(free, some * each)
        found += some
        at += count
    return mine, found


def _filled(job: Job, able: Sequence[_LendableNodes], each: int, must: int) -> list[tuple[int, int]]:
    """Return the nodes that the ranks of a job use with `each` cores per rank, grouped by the cores used there
    (numbered from the node's first core). Nodes in `must` are used first. Empty if the job does not fit."""
    request = job.request
    least, limit = max(request.least_nodes, bits.count(must)), request.nodes[1]
    groups = [(some, *_ranks_on(cores, sockets, most, each)) for some, sockets, cores, most in able]
    number = sum(bits.count(some) for some, _, found in groups if found)
    if (sum(bits.count(some) * found for some, _, found in groups) == request.tasks
            and least <= number and not 0 < limit < number):
        return [(some, mine) for some, mine, found in groups if found]  # all of them are full
    taken: list[tuple[int, int]] = []
    ranks, nodes = request.tasks, 0
    order = sorted((node, group) for group in able for node in bits.members(group.nodes))
    if must:
        order.sort(key=lambda each: not must >> each[0] & 1)
    for node, (_, sockets, cores, most) in order:
        if not ranks or (limit and nodes == limit):
            break
        # Each further node in `must` gets at least one rank.
        mine, found = _ranks_on(cores, sockets, min(most, ranks - max(0, least - nodes - 1)), each)
        if found:
            taken.append((1 << node, mine))
        ranks -= found
        nodes += bool(found)
    return taken if not ranks and nodes >= least else []
