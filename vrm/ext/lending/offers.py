"""What running jobs could lend, and where a waiting job would be on it."""

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
    """Cores that a running job could lend: on all its nodes, `per_rank` of each rank."""

    lender: int
    cores: int
    nodes: int
    per_rank: int


class NoOffer(ValueError):
    """A job cannot lend that; the text says why, and what to ask for."""


def ranks_on_a_node(cluster: Cluster, booking: Booking) -> int:
    """The ranks of a running job on the node with the most of them."""
    return max(each.ranks for each in cluster.loans.ranks(cluster, booking))


def width(cluster: Cluster, booking: Booking) -> int:
    """The cores that each rank of a running job has now, where it has the fewest."""
    return round(booking.placement.width * cluster.loans.rate(cluster, booking))


def offer(cluster: Cluster, job_id: int, cores: int = 0, within: bool = False) -> Offer:
    """What a running job lends at so many cores on each node; 0: half of those that it has, rounded
    down. On a node with fewer of its ranks it is less: each rank lends the same number.
    `within`: every rank stays in its socket. NoOffer where it cannot."""
    booking = cluster.bookings[job_id]
    if booking.placement.lease is not None:
        raise NoOffer(f"job {job_id} runs on borrowed cores: it lends none of them")
    if booking.job.exclusive:
        raise NoOffer(f"job {job_id} is exclusive: it shares its nodes with no other job")
    ranks, now = ranks_on_a_node(cluster, booking), width(cluster, booking)
    if now < 2:
        raise NoOffer(f"job {job_id} has {now} core for each of its ranks, and each keeps one: it can "
                      "lend none")
    each = cores // ranks if cores else now // 2
    if cores and (cores < 0 or cores % ranks):
        choices = " or ".join(str(ranks * number) for number in range(1, min(now, 4)))
        raise NoOffer(f"job {job_id} has {ranks} ranks on a node, and each lends the same number "
                      f"of cores: give {choices}, not {cores}")
    if each >= now:
        raise NoOffer(f"job {job_id} has {ranks * now} cores on a node and keeps one for each of its "
                      f"{ranks} ranks: it lends {ranks * (now - 1)} at most, not {cores}")
    here = cluster.loans.ranks(cluster, booking)
    try:
        lent = core_share.choose(here, cluster.loans.lent(job_id), cluster.nodes, cluster.layout,
                                 booking.placement.width, each, within)
    except ValueError as error:
        raise NoOffer(f"job {job_id}: {error}") from error
    return Offer(job_id, lent, booking.placement.node_set, each)


def offers(cluster: Cluster, able: Callable[[Job], bool], share: float = 0.5, within: bool = False
           ) -> Iterator[Offer]:
    """What the running jobs that are `able` to could lend, by id: at most that share of the cores that
    they asked for, of which they have lent some perhaps."""
    for job_id, booking in sorted(cluster.bookings.items()):
        if (booking.placement.lease is not None or job_id in cluster.loans.unwilling
                or not able(booking.job)):
            continue
        asked = booking.placement.width
        each = int(share * asked) - (asked - width(cluster, booking))
        if each > 0:
            try:
                yield offer(cluster, job_id, each * ranks_on_a_node(cluster, booking), within)
            except NoOffer:
                continue


def borrowed(job: Job, cluster: Cluster, lent: Sequence[tuple[int, int]], shrinks: bool = False, free: int = 0
             ) -> Placement | None:
    """Where a job would be on cores that running jobs lend (their ids, with the cores), and on these that are `free`:
    its ranks fill the nodes by number. `shrinks`: with fewer cores for each rank than it asks for, where it does not
    fit else. None where it does not fit."""
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
            return core_share.on_lent(cluster.layout, core_share.together(filled, cluster.layout), job.procs, each,
                                      tuple(lent), sum(some for some, _ in filled))
    return None


class _Able(NamedTuple):
    """Nodes with equal sockets, of each of which the same cores are lent, counted from the first, and the
    most tasks there."""

    nodes: int
    sockets: tuple[int, ...]
    cores: int
    most: int


def _able(job: Job, cluster: Cluster, cores: int, nodes: int) -> Iterator[_Able]:
    """Those of some nodes on which the job finds what it asks for besides cores."""
    request = job.request
    most = request.tasks_per_node or request.tasks
    for members, node in cluster.classes:
        if not request.features <= node.features:
            continue
        for some, here in cluster.layout.patterns(cores, nodes & members):
            if not here:
                continue
            if not request.amounts:
                yield _Able(some, node.sockets, here, most)
                continue
            for each in bits.members(some):
                number = most_tasks(request, most, cluster.left_on(each))
                if number > 0:
                    yield _Able(1 << each, node.sockets, here, number)


def reserved(cluster: Cluster, lent: Sequence[tuple[int, int]], now: float, job: Job | None = None,
             placement: Placement | None = None) -> str:
    """Which advance reservation a lend could reach into, since jobs with fewer cores may run longer, as a
    sentence; "" for none. `lent`: the lenders, with their cores; the `job` that borrows and its place, or None
    where they are lent to the node. A lender that is in a reservation ends by the end of that."""
    calendar, until = cluster.calendar, math.inf
    if not calendar:
        return ""
    said = "with fewer cores than it asked for job {} could run into reservation {}"
    if job is not None and placement is not None:
        slower = placement.slower(job.cores)
        until = now + job.expected * slower
        found = calendar.in_the_way(placement.node_set, now, now + job.walltime * slower)
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
    """Up to so many ranks with `each` cores of a set of a node's cores: the cores that they take, and
    how many they are."""
    at = mine = found = 0
    for count in sockets:
        free = cores & ((1 << count) - 1) << at
        some = min(ranks - found, bits.count(free) // each)
        mine |= bits.lowest(free, some * each)
        found += some
        at += count
    return mine, found


def _filled(job: Job, able: Sequence[_Able], each: int, must: int) -> list[tuple[int, int]]:
    """The nodes that the ranks of a job take, those that it must have first, with so many cores each, by the
    cores that they take there, counted from the first; none where there are too few."""
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
        # Each further node that it must have takes one rank at least.
        mine, found = _ranks_on(cores, sockets, min(most, ranks - max(0, least - nodes - 1)), each)
        if found:
            taken.append((1 << node, mine))
        ranks -= found
        nodes += bool(found)
    return taken if not ranks and nodes >= least else []
