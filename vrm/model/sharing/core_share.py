"""Which cores of a running job are lent, and how fast the job runs on the rest.

A lender gives the same number of cores of each of its ranks, and each rank keeps at least one. Ranks stay on their
nodes. The cores that they keep are packed into the first sockets of the node, so that whole sockets are lent first (M.
D'Amico, "Scheduling and resource management solutions ...", UPC, 2021: jobs that share a node in separate sockets); or
into the first cores of their own sockets, which is a lane if the job had both lanes. Sets of cores are in the
numbering of the cluster's layout.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple
from collections.abc import Iterable, Iterator, Sequence

from vrm.model import bits
from vrm.model.node import CORES, HALF, Node, lane_of_socket
from vrm.model.placement import CoreLayout, Lease, Placement, RankSlot, in_lane, slots_of

NOBODY = -1
"""The borrower of cores that are lent to the node: no job of the queue starts on them."""

Plan = Sequence[tuple[float, float]]
"""Speeds of a job (1: with all its cores), each with the time (seconds) from which it applies; earliest first."""


class LentCores(NamedTuple):
    """The cores that a job has lent from the time `since` (seconds) on."""

    since: float
    lent: int


class Loan(NamedTuple):
    """Cores that a running job has lent to another job, or to NOBODY; `until` is the time when the loan is expected to
    end (seconds; infinity: unknown)."""

    lender: int
    borrower: int
    cores: int
    since: float
    until: float


def lent_cores(loans: Iterable[Loan]) -> int:
    """Return the cores of all these loans."""
    cores = 0
    for loan in loans:
        cores |= loan.cores
    return cores


class EqualNodes(NamedTuple):
    """Nodes with equal sockets on which a job has the same number of ranks on the same cores (when none is lent),
    counted from the node's first core."""

    nodes: int
    sockets: tuple[int, ...]
    ranks: int
    cores: int


def borrowed_placement(layout: CoreLayout, taken: int, procs: int, width: int, lent: tuple[tuple[int, int], ...],
                       nodes: int = -1) -> Placement:
    """Return a placement on cores that running jobs lend; `lent` has these jobs, each with all cores that it lends.
    `nodes` is the node set of the cores, if it is known."""
    return Placement(CORES, (0, 0, 0), (taken,), procs, width, lease=Lease(lent), layout=layout, nodes=nodes)


def grow(placement: Placement, taken: int, width: int, now: float) -> Placement:
    """Return a placement whose ranks have these cores, on the same nodes, from `now` on."""
    return placement.but(order=(taken,), width=width, lease=Lease(placement.lent, (*placement.grown, (now, placement))))


def periods(placement: Placement, start: float, end: float) -> Iterator[tuple[float, float, Placement]]:
    """Yield the periods from `start` to `end` in which the ranks were in the same place: begin, end, placement."""
    for until, earlier in (*placement.grown, (end, placement)):
        yield start, until, earlier
        start = until


def _own(placement: Placement, nodes: Sequence[Node], layout: CoreLayout) -> Iterator[EqualNodes]:
    """Yield the capacity that passed from ended lenders to the ranks, on their nodes."""
    lane0, lane1, own = placement.room
    for sockets, members in by_sockets(nodes, placement.node_set, layout):
        for some, mine in layout.patterns(placement.taken, members):
            for first, second in ((0, 0), (1, 0), (0, 1), (1, 1)):
                here = some & (lane0 if first else ~lane0) & (lane1 if second else ~lane1)
                lanes = _lanes(sockets, first, second)
                for group, more in layout.patterns(own, here):
                    yield EqualNodes(group, sockets, bits.count(mine) // placement.width, lanes | more)


def mean_width(placement: Placement, nodes: Sequence[Node], most: int) -> float:
    """Return the mean number of cores that a rank would have, up to `most`, if ranks used the cores that ended lenders
    left on their nodes."""
    if not any(placement.room):
        return placement.width
    return sum(each.ranks * bits.count(each.nodes)
               * max(placement.width, widest(each.cores, each.sockets, each.ranks, most))
               for each in _own(placement, nodes, placement.layout)) / placement.procs


def wider(placement: Placement, nodes: Sequence[Node], most: int, now: float) -> Placement | None:
    """Give each rank more of the cores that passed to the job from ended lenders, up to `most`, from `now` on. Returns
    None if there are not enough for every rank."""
    here = list(_own(placement, nodes, placement.layout))
    width = min(widest(each.cores, each.sockets, each.ranks, most) for each in here)
    if width <= placement.width:
        return None
    return grow(placement, together(((each.nodes, _keep(each.cores, each.sockets, each.ranks, width, 0))
                                     for each in here), placement.layout), width, now)


@lru_cache(maxsize=4096)
def _lanes(sockets: Sequence[int], first: int, second: int) -> int:
    """Return the cores of no lane, one lane or both lanes of a node, counted from its first core."""
    cores = at = 0
    for count in sockets:
        if first and second:
            cores |= ((1 << count) - 1) << at
        elif first or second:
            begin, length = lane_of_socket(count, HALF, int(not first))
            cores |= ((1 << length) - 1) << at + begin
        at += count
    return cores


def by_sockets(nodes: Sequence[Node], among: int, layout: CoreLayout) -> Iterator[tuple[tuple[int, ...], int]]:
    """Group a set of nodes by the core counts of their sockets."""
    while among:
        sockets = nodes[(among & -among).bit_length() - 1].sockets
        here = layout.shapes[sockets] & among
        yield sockets, here
        among ^= here


def alike(placement: Placement, nodes: Sequence[Node], layout: CoreLayout) -> list[EqualNodes]:
    """Return the ranks and cores of a placement, with equal nodes grouped (see `Placement.on_nodes`)."""
    if placement.share != CORES and placement.most is None:
        found = _alike(placement, nodes, layout)
        if found:
            return found
    sets: dict[tuple[tuple[int, ...], int, int], int] = {}
    for node, ranks, cores in placement.on_nodes(nodes):
        key = nodes[node].sockets, ranks, cores
        sets[key] = sets.get(key, 0) | 1 << node
    return [EqualNodes(here, *key) for key, here in sets.items()]


def _alike(placement: Placement, nodes: Sequence[Node], layout: CoreLayout) -> list[EqualNodes]:
    """Return the groups of `alike` for ranks that fill all nodes except perhaps the last one; empty if they do not."""
    share, width, last = placement.share, placement.width, placement.order[-1].bit_length() - 1
    found, left = [], placement.procs
    for lane, members in ((0, placement.room[0]), (1, placement.room[1] & ~placement.room[0])):
        for sockets, here in by_sockets(nodes, members & ~(1 << last), layout):
            ranks = nodes[(here & -here).bit_length() - 1].capacity(share, lane, width)
            left -= ranks * bits.count(here)
            if ranks:
                found.append(EqualNodes(here, sockets, ranks, in_lane(sockets, share, lane, width, ranks)))
    lane, sockets = placement.lane(last), nodes[last].sockets
    if not 0 < left <= nodes[last].capacity(share, lane, width):
        return []
    cores = in_lane(sockets, share, lane, width, left)
    for at, each in enumerate(found):
        if each[1:] == (sockets, left, cores):
            found[at] = each._replace(nodes=each.nodes | 1 << last)
            return found
    return [*found, EqualNodes(1 << last, sockets, left, cores)]


def together(parts: Iterable[tuple[int, int]], layout: CoreLayout) -> int:
    """Return the set of cores from pairs: a set of nodes, and cores on each of them, counted from its first core."""
    found = 0
    for nodes, cores in parts:
        found |= layout.spread(nodes, cores)
    return found


def _of_sockets(cores: int, sockets: Sequence[int]) -> Iterator[int]:
    """Split a set of cores of a node, counted from its first core, by socket."""
    at = 0
    for count in sockets:
        yield cores & ((1 << count) - 1) << at
        at += count


@lru_cache(maxsize=4096)
def widest(cores: int, sockets: Sequence[int], ranks: int, most: int) -> int:
    """Return the most cores, up to `most`, that each of `ranks` ranks can have from a set of cores of a node, if all
    get the same number and each has its cores in one socket; 0 if there is not one for each."""
    counts = [bits.count(each) for each in _of_sockets(cores, sockets)]
    for width in range(min(most, max(counts)), 0, -1):
        if sum(count // width for count in counts) >= ranks:
            return width
    return 0


@lru_cache(maxsize=4096)
def _keep(cores: int, sockets: Sequence[int], ranks: int, width: int, now: int) -> int:
    """Return the cores that ranks keep, `width` each, of a node's set of cores. With `now`, the number of cores that
    each has now, they stay in their sockets."""
    kept = 0
    for each in _of_sockets(cores, sockets):
        here = min(ranks, bits.count(each) // (now or width))
        kept |= bits.lowest(each, here * width)
        ranks -= here
    return kept


def choose(here: Iterable[EqualNodes], lent: int, nodes: Sequence[Node], layout: CoreLayout,
           width: int, per_rank: int, within: bool = False) -> int:
    """Choose the cores that ranks lend, `per_rank` each, in addition to those already `lent`. `width` is the number of
    cores of each when none is lent. With `within`, each rank stays in its socket. Raises ValueError if a rank would
    keep no core."""
    chosen = []
    for each in here:
        for some, gone in layout.patterns(lent, each.nodes):
            mine = each.cores & ~gone
            now = widest(mine, each.sockets, each.ranks, width)
            if now <= per_rank:
                first = nodes[(some & -some).bit_length() - 1]
                raise ValueError(f"each rank on {first.name} has {now} core(s), and keeps one")
            chosen.append((some, mine & ~_keep(mine, each.sockets, each.ranks, now - per_rank,
                                               now if within else 0)))
    return together(chosen, layout)


def slots(placement: Placement, lent: int, nodes: Sequence[Node], layout: CoreLayout) -> Iterator[RankSlot]:
    """Yield the place of every rank, in rank order, while some cores are lent; nothing for a job that has lent all its
    cores."""
    if not (lent and lent & cores_of(placement, nodes, layout)):
        return placement.slots(nodes)
    lent_on = layout.split(lent)
    left = [each._replace(cores=each.cores & ~lent_on(each.node)) for each in placement.on_nodes(nodes)]
    if not any(each.cores for each in left):
        return iter(())
    return slots_of(((each, widest(each.cores, nodes[each.node].sockets, each.ranks, placement.width))
                     for each in left), nodes)


def cores_of(placement: Placement, nodes: Sequence[Node], layout: CoreLayout) -> int:
    """Return the cores of all ranks of a placement."""
    return placement.taken or held(alike(placement, nodes, layout), layout)


def held(here: Iterable[EqualNodes], layout: CoreLayout) -> int:
    """Return all cores of these ranks."""
    return together(((each.nodes, each.cores) for each in here), layout)


def rate(here: Sequence[EqualNodes], lent: int, layout: CoreLayout, width: int, ideal: bool = False) -> float:
    """Return the speed of a job; 1 is the speed with all its cores. It is that of its slowest rank, by the share of
    its cores that the rank has (the worst case), or, with `ideal`, the share of all cores that the job has."""
    if not lent:
        return 1.0
    widths = [(each.ranks * bits.count(some), widest(each.cores & ~gone, each.sockets, each.ranks, width)
               if each.cores & gone else width)
              for each in here for some, gone in layout.patterns(lent, each.nodes)]
    if ideal:
        return sum(ranks * now for ranks, now in widths) / (width * sum(ranks for ranks, _ in widths))
    return min(now for _, now in widths) / width


def work(plan: Plan, begin: float, end: float) -> float:
    """Return the work done from `begin` to `end`, in seconds at full speed."""
    done = 0.0
    for at, (since, speed) in enumerate(plan):
        until = plan[at + 1][0] if at + 1 < len(plan) else end
        done += speed * max(0.0, min(until, end) - max(since, begin))
    return done


def finish(plan: Plan, now: float, left: float) -> float:
    """Return the time when the work that is `left` at `now` is done; infinity if the job is stopped for an unknown
    time."""
    for at, (since, speed) in enumerate(plan):
        begin = max(since, now)
        until: float | None = plan[at + 1][0] if at + 1 < len(plan) else None
        if until is not None and until <= begin:
            continue
        if speed and (until is None or begin + left / speed <= until):
            return begin + left / speed
        if until is None:
            return math.inf  # the job is stopped for an unknown time
        left -= (until - begin) * speed
    raise AssertionError("a plan has no end")
