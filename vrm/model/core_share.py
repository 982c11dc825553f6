"""Which cores of a running job are lent, and how fast it runs with the others.

A lender gives the same number of cores for each of its ranks, and each rank keeps at least one. Ranks
stay on their nodes. What they keep is packed into the first sockets of the node, so that whole sockets
are lent first (M. D'Amico, "Scheduling and resource management solutions ...", UPC, 2021: jobs that
share a node in separate sockets); or into the first cores of their own sockets, which is a lane where
they had both. Sets of cores are in the numbering of the cluster's layout.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

from vrm.model import bits
from vrm.model.node import HALF, Node, lane_of_socket
from vrm.model.placement import CoreLayout, CorePlacement, Placement, RankSlot

if TYPE_CHECKING:
    from vrm.model.cluster import Pool

NOBODY = -1
"""The borrower of cores that are lent to the node: no job of the queue starts on them."""

Plan = Sequence[Tuple[float, float]]
"""How fast a job is (1: with all its cores) from which time on, in seconds; earliest first."""


class Share(NamedTuple):
    """From when on (seconds) which of a job's cores are lent."""

    since: float
    lent: int


class Loan(NamedTuple):
    """Cores that one running job has lent to another, or to NOBODY, and until when it is expected to
    last (seconds; infinity: unknown)."""

    lender: int
    borrower: int
    cores: int
    since: float
    until: float


class Grown(NamedTuple):
    """Until when (seconds) each rank had so many cores, and which they were together."""

    until: float
    width: int
    taken: int


class OnNode(NamedTuple):
    """The ranks of a job on one node, and their cores when none is lent, counted from the node's first."""

    node: int
    ranks: int
    cores: int


class Alike(NamedTuple):
    """Nodes with equal sockets on which a job has equally many ranks each, with the same cores when none is
    lent, counted from the node's first."""

    nodes: int
    sockets: Tuple[int, ...]
    ranks: int
    cores: int


class Borrowed(CorePlacement):
    """Ranks on cores that running jobs lend: `lent` are these jobs, each with all that it lends to this
    one. It takes no room of its own, since the lenders hold it: `hold`, sets of nodes by lane and of
    cores, is what passed to it from lenders that have ended. `grown`: what its ranks had before they got
    more of that. `nodes`: those of its cores, where they are known."""

    __slots__ = ("lent", "hold", "grown")

    def __init__(self, layout: CoreLayout, taken: int, procs: int, width: int,
                 lent: Tuple[Tuple[int, int], ...], hold: Tuple[int, int, int] = (0, 0, 0),
                 grown: Tuple[Grown, ...] = (), nodes: int = 0) -> None:
        super().__init__(layout, taken, procs, width)
        self.lent = lent
        self.hold = hold
        self.grown = grown
        self.size = bits.count(hold[0] | hold[1]) + bits.count(hold[2])
        self._nodes = nodes

    @property
    def nodes(self) -> List[int]:
        """Node indices in the order in which ranks fill them."""
        return list(bits.members(self.node_set))

    def ranks_by_node(self, nodes: Sequence[Node]) -> Iterator[Tuple[int, int]]:
        """Pairs of node index and ranks there, in rank order."""
        here = self.layout.split(self.taken)
        return ((node, bits.count(here(node)) // self.width) for node in bits.members(self.node_set))

    def holding(self, hold: Tuple[int, int, int]) -> Borrowed:
        """The same ranks with more room of their own."""
        lane0, lane1, cores = (mine | more for mine, more in zip(self.hold, hold))
        return self._but(self.taken, self.width, (lane0, lane1, cores), self.grown)

    def _but(self, taken: int, width: int, hold: Tuple[int, int, int], grown: Tuple[Grown, ...]) -> Borrowed:
        twin = Borrowed(self.layout, taken, self.procs, width, self.lent, hold, grown, self._nodes)
        twin.devices, twin.frequency, twin.pace = self.devices, self.frequency, self.pace
        return twin

    def take(self, pool: "Pool") -> None:
        """Mark the room of its own as taken."""
        pool.busy0 |= self.hold[0]
        pool.busy1 |= self.hold[1]
        pool.busy_cores |= self.hold[2]

    def give(self, pool: "Pool") -> None:
        """Undo `take`."""
        pool.busy0 &= ~self.hold[0]
        pool.busy1 &= ~self.hold[1]
        pool.busy_cores &= ~self.hold[2]

    def clashes(self, pool: "Pool") -> bool:
        """Whether one of its nodes is down."""
        return bool(self.taken & ~pool.up_cores)

    def size_on(self, pool: "Pool") -> int:
        """What it has of its own, on nodes that are up."""
        return (bits.count((self.hold[0] | self.hold[1]) & pool.up)
                + bits.count(self.hold[2] & pool.up_cores))

    @property
    def cores(self) -> int:
        """Cores in use by the ranks."""
        return self.procs * self.width

    def grow(self, taken: int, width: int, now: float) -> Borrowed:
        """The same ranks with these cores from `now` on."""
        return self._but(taken, width, self.hold, (*self.grown, Grown(now, self.width, self.taken)))

    def _own(self, nodes: Sequence[Node]) -> Iterator[Alike]:
        """The room of its own on its nodes."""
        lane0, lane1, own = self.hold
        for sockets, members in by_sockets(nodes, self.node_set, self.layout):
            for some, mine in self.layout.patterns(self.taken, members):
                for first, second in ((0, 0), (1, 0), (0, 1), (1, 1)):
                    here = some & (lane0 if first else ~lane0) & (lane1 if second else ~lane1)
                    lanes = _lanes(sockets, first, second)
                    for group, more in self.layout.patterns(own, here):
                        yield Alike(group, sockets, bits.count(mine) // self.width, lanes | more)

    def mean_width(self, nodes: Sequence[Node], most: int) -> float:
        """The cores that a rank could have on an average, at most so many, if ranks on nodes that lenders
        have left took the cores there."""
        if not any(self.hold):
            return self.width
        return sum(each.ranks * bits.count(each.nodes)
                   * max(self.width, widest(each.cores, each.sockets, each.ranks, most))
                   for each in self._own(nodes)) / self.procs

    def wider(self, nodes: Sequence[Node], most: int, now: float) -> Optional[Borrowed]:
        """The same ranks on the same nodes with more cores each from `now` on, at most so many, on the room
        of its own; None where that has no more for every rank."""
        here = list(self._own(nodes))
        width = min(widest(each.cores, each.sockets, each.ranks, most) for each in here)
        if width <= self.width:
            return None
        return self.grow(together(((each.nodes, _keep(each.cores, each.sockets, each.ranks, width, 0))
                                   for each in here), self.layout), width, now)

    @property
    def at_start(self) -> Borrowed:
        """The ranks on the cores on which they started."""
        if not self.grown:
            return self
        _, width, taken = self.grown[0]
        return self._but(taken, width, self.hold, ())

    def lost(self, start: float, now: float, cores: int) -> float:
        """The seconds that the ranks have lost by now, each of which asked for so many cores."""
        return sum((until - since) * (1 - width / cores) for since, until, width, _ in self.periods(start, now))

    def periods(self, start: float, end: float) -> Iterator[Tuple[float, float, int, int]]:
        """From when to when each rank had how many cores, and which they were together."""
        for until, width, taken in (*self.grown, Grown(end, self.width, self.taken)):
            yield start, until, width, taken
            start = until


AnyOf = Union[Placement, CorePlacement]


def room_on(placement: AnyOf, chosen: int, layout: CoreLayout) -> Tuple[int, int, int]:
    """What a placement holds of some nodes: sets of nodes by lane, and of cores."""
    if isinstance(placement, Borrowed):
        lane0, lane1, cores = placement.hold
    elif isinstance(placement, CorePlacement):
        lane0, lane1, cores = 0, 0, placement.held
    else:
        lane0, lane1, cores = (*placement.claims, 0)
    return lane0 & chosen, lane1 & chosen, cores and cores & layout.cores_of(chosen)


@lru_cache(maxsize=4096)
def _lanes(sockets: Sequence[int], first: int, second: int) -> int:
    """All cores of no, one or both lanes of a node, counted from its first."""
    cores = at = 0
    for count in sockets:
        if first and second:
            cores |= ((1 << count) - 1) << at
        elif first or second:
            begin, length = lane_of_socket(count, HALF, int(not first))
            cores |= ((1 << length) - 1) << at + begin
        at += count
    return cores


@lru_cache(maxsize=4096)
def _in_lane(sockets: Sequence[int], share: str, lane: int, width: int, ranks: int) -> int:
    """The cores of so many ranks in a lane of a node, counted from its first."""
    cores = at = 0
    for count in sockets:
        first, length = lane_of_socket(count, share, lane)
        here = min(ranks, length // width)
        cores |= ((1 << here * width) - 1) << at + first
        ranks -= here
        at += count
    return cores


def on_nodes(placement: AnyOf, nodes: Sequence[Node], layout: CoreLayout) -> List[OnNode]:
    """The ranks and cores of a placement node by node, in rank order."""
    if isinstance(placement, Placement):
        share, width = placement.share, placement.width
        return [OnNode(node, ranks, _in_lane(nodes[node].sockets, share, placement.lane(node), width, ranks))
                for node, ranks in placement.ranks_by_node(nodes) if ranks]
    found: Dict[int, List[int]] = {}
    for slot in placement.slots(nodes):
        here = found.setdefault(slot.node, [0, 0])
        here[0] += 1
        at = sum(nodes[slot.node].sockets[:slot.socket])
        for core in slot.cores:
            here[1] |= 1 << at + core
    return [OnNode(node, ranks, cores) for node, (ranks, cores) in found.items()]


def by_sockets(nodes: Sequence[Node], among: int, layout: CoreLayout) -> Iterator[Tuple[Tuple[int, ...], int]]:
    """A set of nodes, by the cores of their sockets."""
    while among:
        sockets = nodes[(among & -among).bit_length() - 1].sockets
        here = layout.shapes[sockets] & among
        yield sockets, here
        among ^= here


def alike(placement: AnyOf, nodes: Sequence[Node], layout: CoreLayout) -> List[Alike]:
    """The ranks and cores of a placement, equal nodes together (see `on_nodes`)."""
    if isinstance(placement, Placement) and placement.most is None:
        found = _alike(placement, nodes, layout)
        if found:
            return found
    sets: Dict[Tuple[Tuple[int, ...], int, int], int] = {}
    for node, ranks, cores in on_nodes(placement, nodes, layout):
        key = nodes[node].sockets, ranks, cores
        sets[key] = sets.get(key, 0) | 1 << node
    return [Alike(here, *key) for key, here in sets.items()]


def _alike(placement: Placement, nodes: Sequence[Node], layout: CoreLayout) -> List[Alike]:
    """That of ranks which fill all nodes but perhaps the last one; none where they do not."""
    share, width, last = placement.share, placement.width, placement.order[-1].bit_length() - 1
    found, left = [], placement.procs
    for lane, members in ((0, placement.claims[0]), (1, placement.claims[1] & ~placement.claims[0])):
        for sockets, here in by_sockets(nodes, members & ~(1 << last), layout):
            ranks = nodes[(here & -here).bit_length() - 1].capacity(share, lane, width)
            left -= ranks * bits.count(here)
            if ranks:
                found.append(Alike(here, sockets, ranks, _in_lane(sockets, share, lane, width, ranks)))
    lane, sockets = placement.lane(last), nodes[last].sockets
    if not 0 < left <= nodes[last].capacity(share, lane, width):
        return []
    cores = _in_lane(sockets, share, lane, width, left)
    for at, each in enumerate(found):
        if each[1:] == (sockets, left, cores):
            found[at] = each._replace(nodes=each.nodes | 1 << last)
            return found
    return [*found, Alike(1 << last, sockets, left, cores)]


def together(parts: Iterable[Tuple[int, int]], layout: CoreLayout) -> int:
    """The set of cores that has these on each of these nodes: pairs of nodes, and cores counted from the
    first of each."""
    found = 0
    for nodes, cores in parts:
        found |= layout.spread(nodes, cores)
    return found


def _of_sockets(cores: int, sockets: Sequence[int]) -> Iterator[int]:
    """A set of cores of a node, counted from its first, socket by socket."""
    at = 0
    for count in sockets:
        yield cores & ((1 << count) - 1) << at
        at += count


@lru_cache(maxsize=4096)
def widest(cores: int, sockets: Sequence[int], ranks: int, most: int) -> int:
    """The most cores, up to `most`, that each of so many ranks has of a set of cores of a node, when all
    have the same number and each has its own in one socket; 0 where there is not one for each."""
    counts = [bits.count(each) for each in _of_sockets(cores, sockets)]
    for width in range(min(most, max(counts)), 0, -1):
        if sum(count // width for count in counts) >= ranks:
            return width
    return 0


@lru_cache(maxsize=4096)
def _keep(cores: int, sockets: Sequence[int], ranks: int, width: int, now: int) -> int:
    """What ranks of `width` cores keep of a node's set of cores; with `now` in the sockets in which they
    are with so many cores each."""
    kept = 0
    for each in _of_sockets(cores, sockets):
        here = min(ranks, bits.count(each) // (now or width))
        kept |= bits.lowest(each, here * width)
        ranks -= here
    return kept


def choose(here: Iterable[Alike], lent: int, nodes: Sequence[Node], layout: CoreLayout,
           width: int, per_rank: int, within: bool = False) -> int:
    """The cores that ranks lend, `per_rank` each, beyond those that they have `lent`. `width`: the cores
    of each when none is lent. `within`: each rank stays in its socket. ValueError where a rank would
    keep none."""
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


def slots(placement: AnyOf, lent: int, nodes: Sequence[Node], layout: CoreLayout
          ) -> Iterator[RankSlot]:
    """The place of every rank, in rank order, while some cores are lent."""
    if not lent & cores_of(placement, nodes, layout):
        yield from placement.slots(nodes)
        return
    rank, lent_on = 0, layout.split(lent)
    for node, ranks, cores in on_nodes(placement, nodes, layout):
        sockets = nodes[node].sockets
        mine = cores & ~lent_on(node)
        width = widest(mine, sockets, ranks, placement.width)
        stop, at = rank + ranks, 0
        for socket, each in enumerate(_of_sockets(mine, sockets)):
            found = [core - at for core in bits.members(each)]
            for first in range(0, len(found) - width + 1, width):
                if rank < stop:
                    yield RankSlot(rank, node, socket, tuple(found[first:first + width]))
                    rank += 1
            at += sockets[socket]


def cores_of(placement: AnyOf, nodes: Sequence[Node], layout: CoreLayout) -> int:
    """The cores of all ranks of a placement."""
    if isinstance(placement, CorePlacement):
        return placement.taken
    return held(alike(placement, nodes, layout), layout)


def held(here: Iterable[Alike], layout: CoreLayout) -> int:
    """All cores of some ranks."""
    return together(((each.nodes, each.cores) for each in here), layout)


def rate(here: Sequence[Alike], lent: int, layout: CoreLayout, width: int, ideal: bool = False) -> float:
    """How fast a job runs, 1 with all its cores: as its slowest rank, by the share of its cores that
    it has (the worst case), or `ideal`: by the share of all cores."""
    if not lent:
        return 1.0
    widths = [(each.ranks * bits.count(some), widest(each.cores & ~gone, each.sockets, each.ranks, width)
               if each.cores & gone else width)
              for each in here for some, gone in layout.patterns(lent, each.nodes)]
    if ideal:
        return sum(ranks * now for ranks, now in widths) / (width * sum(ranks for ranks, _ in widths))
    return min(now for _, now in widths) / width


def work(plan: Plan, begin: float, end: float) -> float:
    """The work that is done from one time to another, in seconds at full speed."""
    done = 0.0
    for at, (since, speed) in enumerate(plan):
        until = plan[at + 1][0] if at + 1 < len(plan) else end
        done += speed * max(0.0, min(until, end) - max(since, begin))
    return done


def finish(plan: Plan, now: float, left: float) -> float:
    """When so much work is done that is left at `now`."""
    for at, (since, speed) in enumerate(plan):
        begin = max(since, now)
        until: Optional[float] = plan[at + 1][0] if at + 1 < len(plan) else None
        if until is not None and until <= begin:
            continue
        if until is None or begin + left / speed <= until:
            return begin + left / speed
        left -= (until - begin) * speed
    raise AssertionError("a plan has no end")
