"""Placement policies: on which nodes a job may run (eligibility), which of them first (node order),
and how much of each it takes (share).

| policy | eligibility | node order | share |
|---|---|---|---|
| compact | `empty`: no job on the node | `number` | `all`: all cores of each socket |
| spare | `empty`, and closed to others then | `number` | `half` of each socket |
| strip | `shared`: at most one other job, not exclusive | `heatmap` rank | `half` |
| pack | `open`: a free core | `first-fit` | `free`: what is free, core by core |

Under `shared` an exclusive job is placed as under `empty`. The order `heatmap` takes empty nodes
first, then those whose job is the better partner; a node whose job does less beside the new one
than the two one after the other (as measured) is not eligible.

Counting: nodes on which a job finds room for equally many ranks are counted and not walked over.
What a job does not ask for costs nothing.
"""

from __future__ import annotations

import copy
import itertools
from dataclasses import dataclass
from typing import (Any, Callable, Dict, Hashable, Iterable, Iterator, List, Mapping, NamedTuple,
                    Optional, Sequence, Tuple)

from vrm.model import bits
from vrm.model.amounts import base, people, said
from vrm.model.cluster import Cluster, Pool
from vrm.model.heatmap import Heatmap
from vrm.model.job import Infeasible, Job, Request
from vrm.model.node import CORES, HALF, WHOLE, Node, lane_of_socket
from vrm.model.placement import CorePlacement, Placement
from vrm.model.rooms import Rooms
from vrm.model.policies import Eligibility, Follower, NodeOrder, PlacementPolicy
from vrm.scheduling.node_orders import AUTO, FIXED, ByNumber, FirstFit
from vrm.scheduling.registry import Registry
from vrm.scheduling.spread import most_on, most_tasks, spread, why_never

POLICIES = Registry("placement policy")
ELIGIBILITIES = Registry("eligibility of nodes")
SHARES = Registry("share of a node")


# ------------------------------------------------------------------------------ the definitions


@ELIGIBILITIES.register("empty")
class Empty:
    """Nodes without a job; a job keeps others off its nodes."""

    def __init__(self, heatmap: Optional[Heatmap]) -> None:
        pass

    def alone(self, job: Job) -> bool:
        """Always."""
        return True

    def nodes(self, job: Job, view: Pool) -> int:
        """The empty nodes."""
        return view.empty


@ELIGIBILITIES.register("shared")
class Shared:
    """Nodes with at most one other job beside which the heatmap does not refuse this one; an
    exclusive job gets empty nodes and keeps others off."""

    def __init__(self, heatmap: Optional[Heatmap]) -> None:
        self._heatmap = heatmap if heatmap is not None and heatmap.refused else None

    def alone(self, job: Job) -> bool:
        """Whether the job is exclusive."""
        return job.exclusive

    def nodes(self, job: Job, view: Pool) -> int:
        """The nodes with a free lane, without refused neighbours.

        In a view of the future a lane that is taken counts as taken by whoever has it now.
        """
        if job.exclusive:
            return view.empty
        if self._heatmap is None:
            return view.up & ~(view.busy0 & view.busy1)
        refused = 0
        for (app, procs), (lane0, lane1) in view.tenants.items():
            if self._heatmap.refuses(job.app, job.procs, app, procs):
                refused |= (lane0 & view.busy0) | (lane1 & view.busy1)
        return view.up & ~(view.busy0 & view.busy1) & ~refused


@ELIGIBILITIES.register("open")
class Open:
    """All nodes that are up: what is free on them is up to the share."""

    def __init__(self, heatmap: Optional[Heatmap]) -> None:
        pass

    def alone(self, job: Job) -> bool:
        """Never: nothing keeps others off a node."""
        return False

    def nodes(self, job: Job, view: Pool) -> int:
        """All that are up."""
        return view.up


@dataclass(frozen=True)
class Share:
    """How much of a node a job takes: a lane of each socket (WHOLE or HALF), or CORES, which are
    all free ones unless `cores(job, view, node)` says which."""

    kind: str
    cores: Optional[Callable[[Job, Pool, int], Any]] = None


SHARES.register("all")(Share(WHOLE))
SHARES.register("half")(Share(HALF))
SHARES.register("free")(Share(CORES))


def combine(eligible: Any, order: Any, share: Any, name: str = ""
            ) -> Callable[..., PlacementPolicy]:
    """A placement policy of three things, each a registered name or a function of your own.

    Eligibility: `mine(job, view, node)` is true where the job may run. Node order:
    `mine(job, view, node)` is a number, lowest first. Share: `mine(job, view, node)` gives the
    cores of the node, by number, that the job may have. `view` is a `vrm.model.Pool`, `node` a
    number below `len(view.nodes)`. The result makes the policy for a cluster, with another node
    order where one is given.
    """
    def make(cluster: Any, heatmap: Optional[Heatmap] = None,
             node_order: Any = order) -> PlacementPolicy:
        from vrm.scheduling.custom import eligibility_of, order_of, share_of
        chosen = share_of(share)
        kind = CorePolicy if chosen.kind == CORES else LanePolicy
        return kind(name or " x ".join(map(_name, (eligible, order, share))),
                    eligibility_of(eligible, heatmap), order_of(node_order, heatmap, cluster.nodes),
                    chosen, cluster.nodes, heatmap,
                    {name: people(name, amount) for name, amount in cluster.all_licences.items()})
    return make


def _name(part: Any) -> str:
    return part if isinstance(part, str) else getattr(part, "__name__", type(part).__name__)


POLICIES.register("compact")(combine("empty", "number", "all", "compact"))
POLICIES.register("spare")(combine("empty", "number", "half", "spare"))
POLICIES.register("strip")(combine("shared", "heatmap", "half", "strip"))
POLICIES.register("pack")(combine("open", "first-fit", "free", "pack"))


# ------------------------------------------------------------------ by lanes: shares all and half


class Shape(NamedTuple):
    """Nodes on each of which a job finds room for equally many ranks when they are empty: `first`
    on lane 0, `second` on lane 1."""

    nodes: int
    first: int
    second: int


class Fit(NamedTuple):
    """How jobs of one wish fit on the nodes: `most` is the largest number of ranks on a node (1
    where there is none), `exact` whether counts of nodes say all. `each` is the number of ranks
    that every node holds on whichever lane, 0 where that differs or depends on what is left."""

    shapes: Tuple[Shape, ...]
    most: int
    exact: bool
    each: int


class LanePolicy:
    """Placement by lanes (see `vrm.model.node`).

    A job takes the first nodes of the order that together hold its ranks. How many a node holds
    depends on its class and the lane alone, but for a job that asks for resources on a node that
    it shares: there, what is left of them.
    """

    def __init__(self, name: str, eligibility: Eligibility, order: NodeOrder, share: Share,
                 nodes: Sequence[Node], heatmap: Optional[Heatmap] = None,
                 licences: Optional[Mapping[str, float]] = None) -> None:
        self.name = name
        self.heatmap = heatmap
        self.eligibility, self.order, self.share = eligibility, order, share.kind
        self._machine = Pool(nodes, licences)
        self._fits: Dict[Hashable, Fit] = {}
        self._needs: Dict[Request, int] = {}
        self._sizes: Dict[Request, int] = {}
        self._counts: Dict[Request, int] = {}
        # On sockets of one core lane 1 has nothing, so such nodes are never shared.
        one_lane = not any(each.node.capacity(HALF, 1, 1) for each in self._machine.classes)
        self._sole = (isinstance(eligibility, Empty)
                      or isinstance(eligibility, Shared) and (one_lane or self.share == WHOLE))
        self._first_fit = self._sole and isinstance(order, FIXED)
        self._refusing = heatmap is not None and bool(heatmap.refused)

    @property
    def follower(self) -> Optional[Follower]:
        """The node order, where that wants to be told each step."""
        return self.order.follower

    def copy(self) -> LanePolicy:
        """An independent copy; itself unless its node order keeps something from step to step."""
        order = self.order.copy()
        if order is self.order:
            return self
        twin = copy.copy(self)
        twin.order = order
        return twin

    # What a job needs.

    def nodes(self, job: Job) -> int:
        """Nodes the job takes on the empty machine; raises Infeasible when it can never run."""
        need = self._needs.get(job.request)
        if need is None:
            placement = self.place(job, self._machine)
            if placement is None:
                raise Infeasible(self._why_never(job))
            need = self._needs[job.request] = placement.size
        return need

    def _why_never(self, job: Job) -> str:
        never = why_never(job.request, self._machine.classes, self._machine.licences,
                          lambda node: max(lane_of_socket(cores, self.share, 0)[1]
                                           for cores in node.sockets), self.name)
        if never:
            return never
        most = sum(ranks * bits.count(here) for here, ranks in
                   self._rooms(job, self._machine, self._machine.up))
        return _too_many(job, self._machine, self.name, most)

    def _fit(self, job: Job) -> Fit:
        """How the job fits on the nodes when they are empty."""
        wish = _wish(job)
        return self._fits.get(wish) or self._fit_of(job, wish)

    def _fit_of(self, job: Job, wish: Hashable) -> Fit:
        alike: Dict[Tuple[int, int], int] = {}
        for members, node in self._machine.classes:
            first, second = (most_on(job.request, node,
                                     node.capacity(self.share, lane, job.cores))
                             for lane in (0, 1))
            if first:
                alike[first, second] = alike.get((first, second), 0) | members
        shapes = tuple(Shape(members, *ranks) for ranks, members in alike.items())
        # All nodes hold equally many ranks, and a job has its nodes for itself.
        exact = (self._sole and len(shapes) == 1 and shapes[0].nodes == self._machine.up
                 and job.request.nodes == (1, 0) and not job.request.licences)
        most = max((shape.first for shape in shapes), default=1)
        alike_all = (len(shapes) == 1 and shapes[0].nodes == self._machine.up
                     and shapes[0].first == shapes[0].second and not job.request.amounts
                     and job.request.nodes == (1, 0) and not job.request.licences)
        fit = self._fits[wish] = Fit(shapes, most, exact, most if alike_all else 0)
        return fit

    # Whether and where it fits.

    def fits(self, job: Job, view: Pool) -> bool:
        """Whether the job could start on the view as it is."""
        eligible = self.eligibility.nodes(job, view)
        each = self._fit(job).each
        if each:
            return each * bits.count(self._with_room(job, view, eligible)) >= job.procs
        if not view.has_licences(job):
            return False
        if job.request.nodes != (1, 0):
            return self._pick_range(job, view) is not None
        left = job.procs
        for here, ranks in self._rooms(job, view, eligible):
            left -= ranks * bits.count(here)
            if left <= 0:
                return True
        return False

    def place(self, job: Job, view: Pool) -> Optional[Placement]:
        """Where the job would start now, or None when it does not fit; takes nothing."""
        need = self._counts.get(job.request)
        if need is None:
            simple = (self._first_fit and self.exact(job) and not job.request.amounts
                      and not job.request.tasks_per_node)
            need = self._counts[job.request] = self.size(job) if simple else 0
        if need:  # any empty nodes will do, and the first ones are taken
            if need > view.count_empty():
                return None
            chosen = bits.lowest(view.empty, need)
            closed = self.share == WHOLE or self.eligibility.alone(job)
            return Placement(self.share, (chosen, chosen if closed else 0), (chosen,), job.procs,
                             job.cores, need)
        if not view.has_licences(job):
            return None
        most: Optional[Dict[int, int]] = None
        if job.request.nodes != (1, 0):
            most = self._pick_range(job, view)
            picked = None if most is None else tuple(1 << node for node in most)
        else:
            picked = self._pick(job, view)
        if picked is None:
            return None
        chosen = 0
        for group in picked:
            chosen |= group
        if self.share == WHOLE or self.eligibility.alone(job):
            claims = (chosen, chosen)
        else:
            claims = (chosen & view.free0, chosen & ~view.free0)
        if most is None and (job.request.amounts or job.request.tasks_per_node):
            most = {index: ranks for here, ranks in self._rooms(job, view, chosen)
                    for index in bits.members(here)}
        return Placement(self.share, claims, picked, job.procs, job.cores, most=most)

    def _pick(self, job: Job, view: Pool) -> Optional[Tuple[int, ...]]:
        """The first nodes of the order that hold all ranks, as sets; None when there are not so
        many."""
        eligible = self.eligibility.nodes(job, view)
        rooms = self._rooms(job, view, eligible)
        picked, left = [], job.procs
        for group in self.order.groups(job, view, eligible, lambda: rooms):
            here = [(nodes & group, ranks) for nodes, ranks in rooms if nodes & group]
            if here:
                chosen, held = _first(here, left)
                picked.append(chosen)
                left -= held
                if left <= 0:
                    return tuple(picked)
        return None

    def _pick_range(self, job: Job, view: Pool) -> Optional[Dict[int, int]]:
        """The nodes of a job that says on how many it runs, with its ranks on each; None when there
        are not so many."""
        eligible = self.eligibility.nodes(job, view)
        rooms = self._rooms(job, view, eligible)
        found = []
        for group in self.order.groups(job, view, eligible, lambda: rooms):
            found += sorted((node, ranks) for nodes, ranks in rooms
                            for node in bits.members(nodes & group))
        chosen = spread(found, job.request)
        return None if chosen is None else dict(chosen)

    def _with_room(self, job: Job, view: Pool, eligible: int) -> int:
        """The eligible nodes on which the share of the job is free."""
        if self.share == WHOLE or self.eligibility.alone(job):
            return eligible & view.empty
        return eligible & view.up & ~(view.busy0 & view.busy1)

    def _rooms(self, job: Job, view: Pool, eligible: int) -> List[Tuple[int, int]]:
        """The eligible nodes that hold ranks of the job, as sets with how many each node holds."""
        eligible = self._with_room(job, view, eligible)
        fit = self._fit(job)
        if fit.each:
            return [(eligible, fit.each)]
        empty, free0 = view.empty, view.free0
        rooms = []
        shared = eligible & ~empty if job.request.amounts else 0
        for nodes, first, second in fit.shapes:
            here = eligible & nodes & ~shared
            if first == second:
                rooms.append((here, first))
            else:
                rooms.append((here & free0, first))
                if second:
                    rooms.append((here & ~free0, second))
        if shared:
            rooms += self._rooms_beside_others(job, view, shared)
        return rooms

    def _rooms_beside_others(self, job: Job, view: Pool, shared: int) -> List[Tuple[int, int]]:
        """The same for nodes where others may have taken of the resources that the job wants."""
        by_ranks: Dict[int, int] = {}
        for index in bits.members(shared):
            node = view.nodes[index]
            if not job.features <= node.features:
                continue
            ranks = most_tasks(job.request, node.capacity(
                self.share, 0 if view.free0 >> index & 1 else 1, job.cores), view.left_on(index))
            if ranks > 0:
                by_ranks[ranks] = by_ranks.get(ranks, 0) | 1 << index
        return [(nodes, ranks) for ranks, nodes in by_ranks.items()]

    # Counting.

    def exact(self, job: Job) -> bool:
        """Whether counts of nodes say all of the job."""
        return self._fit(job).exact

    def size(self, job: Job) -> int:
        """The least number of nodes."""
        size = self._sizes.get(job.request)
        if size is None:
            size = self._sizes[job.request] = max(job.request.nodes[0],
                                                  -(-job.procs // self._fit(job).most))
        return size

    def room(self, view: Pool) -> int:
        """Nodes on which there is room."""
        return view.count_empty() if self._sole else bits.count(view.free0 | view.free1)

    def similar(self, job: Job) -> Optional[Tuple[Hashable, int]]:
        """Jobs of one application that ask for the same; those of all, under an order by number."""
        if not isinstance(self.order, FIXED) or not isinstance(
                self.eligibility, (Empty, Shared)) or job.request.nodes != (1, 0):
            return None
        # Where pairs are refused, on how many ranks they run decides it, too.
        kind = (job.app, job.procs) if self._refusing else job.kind
        return (kind, self.eligibility.alone(job), _wish(job)), job.procs

    def lacks(self, job: Job, view: Pool) -> str:
        """What a job that does not fit needs, and how much of it there is."""
        need = self.nodes(job)
        scarce = _scarce(job, view)
        if scarce:
            return scarce
        if self.share == WHOLE or self.eligibility.alone(job):
            return f"needs {_count(need, 'empty node')}, {bits.count(view.empty)} empty"
        shared = bits.count(view.free0 | view.free1)
        if shared < need:
            return f"needs half of {_count(need, 'node')}, {shared} with room"
        if not self._refusing:
            return "no room"
        return (f"needs half of {_count(need, 'node')}; on {shared} with room the jobs there "
                "are no partners for it (heatmap)")


def _wish(job: Job) -> Hashable:
    """What a rank of the job asks for: jobs of one wish are alike to a node."""
    request = job.request
    return request.cores_per_task if request.plain else request._replace(tasks=0, exclusive=False)


def _too_many(job: Job, machine: Pool, name: str, most: int) -> str:
    request = job.request
    least, limit = request.nodes
    nodes = f"{len(machine.nodes)} node(s)"
    if least > len(machine.nodes):
        return f"it wants {least} nodes, there are {len(machine.nodes)}"
    if limit and most >= job.procs:
        return f"{job.procs} ranks do not fit on {limit} of {nodes} under {name}"
    return (f"{job.procs} ranks do not fit on {nodes} under "
            f"{name}, which holds at most {most} of them")


def _scarce(job: Job, view: Pool) -> str:
    """Which licence, or resource over all nodes, too little is left of for the job; "" if none."""
    request = job.request
    for name, amount in request.licences:
        if view.licences.get(name, 0) < amount:
            return (f"needs {said(name, amount)} licence(s) of {name}, "
                    f"{said(name, view.licences.get(name, 0))} free")
    for name, amount in request.per_task:
        there = sum(left // amount for left in view.left.get(name, ()))
        if there < job.procs:
            return f"needs {job.procs} x {said(name, amount)} of {name}, there is room for {there}"
    return ""


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _first(rooms: Sequence[Tuple[int, int]], ranks: int) -> Tuple[int, int]:
    """The lowest-numbered nodes that together hold so many ranks (all of them when they do not),
    with how many they hold; `rooms` are sets of nodes with what each of their nodes holds."""
    if len(rooms) == 1:
        nodes, each = rooms[0]
        chosen = bits.lowest(nodes, -(-ranks // each))
        return chosen, each * bits.count(chosen)
    every = 0
    for nodes, _ in rooms:
        every |= nodes

    def held(length: int) -> int:
        cut = (1 << length) - 1
        return sum(each * bits.count(nodes & cut) for nodes, each in rooms)

    below, above = 0, every.bit_length()
    if held(above) > ranks:
        while above - below > 1:
            middle = (below + above) // 2
            if held(middle) < ranks:
                below = middle
            else:
                above = middle
    return every & ((1 << above) - 1), held(above)


# ---------------------------------------------------------------------- core by core: share free


class CorePolicy:
    """Jobs share nodes core by core: the first free cores of the first nodes.

    The cores of a rank lie in one socket. Nothing keeps others off a node, so an exclusive job
    is refused.

    Counts of cores say all of a job with ranks of one core that asks for nothing else, and of one
    that asks for amounts of which a core's share is enough (see `_light`), as long as nobody has
    come who asks for more: where no job takes more than its cores' share of a resource, there is
    enough of it wherever a core is free.
    """

    def __init__(self, name: str, eligibility: Eligibility, order: NodeOrder, share: Share,
                 nodes: Sequence[Node], heatmap: Optional[Heatmap] = None,
                 licences: Optional[Mapping[str, float]] = None) -> None:
        self.name = name
        self.heatmap = heatmap
        self.eligibility, self.order, self.cores = eligibility, order, share.cores
        self._machine = Pool(nodes, licences)
        self._needs: Dict[Request, int] = {}
        self._able: Dict[Hashable, int] = {}
        self._lights: Dict[Hashable, bool] = {}
        self._wishes: Dict[Request, Tuple[int, Hashable, int]] = {}
        self._heavy = False  # whether somebody came who asks for more than a core's share
        # Every free core will do for a rank of one core: counts say all.
        self._any_core = isinstance(eligibility, Open) and share.cores is None
        self._sockets: Dict[Tuple[int, ...], Tuple[Tuple[int, int], ...]] = {}
        self._first_fit = self._any_core and isinstance(order, (ByNumber, FirstFit))
        # Orders of users are always asked: they may go by more than the request, or leave nodes out.
        self._keeps = self._any_core and type(order).__module__ == FirstFit.__module__
        classes = self._machine.classes
        same = self._first_fit and len({each.node.sockets for each in classes}) == 1
        self._node_cores = nodes[0].cores if same else 0

    @property
    def follower(self) -> Optional[Follower]:
        """The node order, where that wants to be told each step."""
        return self.order.follower

    def copy(self) -> CorePolicy:
        """An independent copy; itself unless its node order keeps something from step to step."""
        order = self.order.copy()
        if order is self.order:
            return self
        twin = copy.copy(self)
        twin.order = order
        return twin

    def nodes(self, job: Job) -> int:
        """Nodes the job touches on the empty machine; raises Infeasible."""
        if self._plain(job) and self._node_cores and job.cores == 1 \
                and job.procs <= self._machine.layout.total:
            return -(-job.procs // self._node_cores)
        need = self._needs.get(job.request)
        if need is None:
            placement = self.place(job, self._machine)
            if placement is None:
                raise Infeasible(self._why_never(job))
            if not self._plain(job) and not self._light(job):
                self._heavy = True
            need = self._needs[job.request] = len(placement.nodes)
        return need

    @staticmethod
    def _plain(job: Job) -> bool:
        return job.request.plain and not job.exclusive

    def _light(self, job: Job) -> bool:
        """Whether it asks for nothing but cores and amounts for each rank, of which every node has
        as much for each of its cores."""
        request = job.request
        wish = _wish(job)
        light = self._lights.get(wish)
        if light is None:
            light = self._lights[wish] = (
                request._replace(per_task=()).plain and not job.exclusive
                and all(amount * each.node.cores <= request.cores_per_task * base(
                    name, each.node.resources.get(name, 0))
                    for name, amount in request.per_task for each in self._machine.classes))
        return light

    def _why_never(self, job: Job) -> str:
        if job.exclusive:
            return f"{self.name} takes no exclusive jobs"
        never = why_never(job.request, self._machine.classes, self._machine.licences,
                          lambda node: max(node.sockets), self.name)
        if never:
            return never
        most = sum(room for _, room in self._rooms(job, self._machine))
        if job.request.plain:
            return (f"{job.procs} ranks of {job.cores} core(s) do not fit on the "
                    f"{self._machine.layout.total} cores of {len(self._machine.nodes)} node(s)")
        return _too_many(job, self._machine, self.name, most)

    def fits(self, job: Job, view: Pool) -> bool:
        """Whether the job could start on the view as it is."""
        if self.exact(job):
            return self.size(job) <= self.room(view)
        if job.exclusive or not view.has_licences(job):
            return False
        request = job.request
        if not self._keeps or self._first_fit and request.nodes != (1, 0):
            return self.place(job, view) is not None  # the answer is kept
        known, (least, most) = self._known(job, view), request.nodes
        if known.total < job.procs or least > 1 and bits.count(known.some) < least:
            return False
        if not most:
            return True
        # Whatever the order, the nodes with the most room are taken where the first ones are too many.
        each = known.each
        return sum(sorted([each[node] for node in bits.members(known.some)])[-most:]) >= job.procs

    def place(self, job: Job, view: Pool) -> Optional[CorePlacement]:
        """Where the job would start now, or None when it does not fit; takes nothing."""
        if job.exclusive or job.procs * job.cores > view.count_free():
            return None
        if self._first_fit and (job.request.plain or self.exact(job)):
            chosen = _cores(job.procs, job.cores, view.free_cores, view.layout.sockets()) \
                if job.cores > 1 else bits.lowest(view.free_cores, job.procs)
        else:
            chosen = self._by_node(job, view) if view.has_licences(job) else 0
        if not chosen:
            return None
        return CorePlacement(view.layout, chosen, job.procs, job.cores)

    def _by_node(self, job: Job, view: Pool) -> int:
        """The cores for all ranks, node after node in the order; 0 when there are not so many."""
        if not self._keeps:
            return self._chosen(job, view)
        chosen = view.rooms.answer(job.request)
        if chosen is None or chosen and not self._first_fit:
            chosen = self._chosen(job, view) if self._first_fit or self.fits(job, view) else 0
            view.rooms.answered(job.request, chosen)
        return chosen

    def _chosen(self, job: Job, view: Pool) -> int:
        """The same, not known yet."""
        request = job.request
        found: List[Tuple[int, int]] = []
        held, anywhere = 0, request.nodes == (1, 0)
        for node, room in self._rooms(job, view):
            found.append((node, room))
            held += room
            if anywhere and held >= job.procs:
                break
        chosen = 0
        for node, ranks in spread(found, request) or ():
            chosen |= _cores(ranks, job.cores, self._offered(job, view, node),
                             self._sockets_of(view.nodes[node])) << view.layout.node_first[node]
        return chosen

    def _rooms(self, job: Job, view: Pool) -> Iterator[Tuple[int, int]]:
        """The nodes with room for ranks, the first in the order first, and for how many."""
        room: Callable[[int], int]
        if self._any_core:
            known = self._known(job, view)
            eligible, room = known.some, known.each.__getitem__
        else:
            eligible = self.eligibility.nodes(job, view) & view.up & self._able_nodes(job)

            def room(node: int) -> int:
                return self._room(job, view, node)
        # Under pack an empty node comes at its number, not before the others.
        groups = (eligible,) if self._first_fit else self.order.groups(
            job, view, eligible, lambda: _by_size(eligible, room))
        for group in groups:
            for node in bits.members(group):
                here = room(node)
                if here > 0:
                    yield node, here

    def _known(self, job: Job, view: Pool) -> Rooms:
        """The room for ranks on each node, where every free core will do."""
        wish = self._wishes.get(job.request)
        if wish is None:
            wish = self._wishes[job.request] = (id(self), _wish(job), self._able_nodes(job))
        able = wish[2]
        return view.rooms.rooms(wish, lambda node: self._room(job, view, node) if able >> node & 1
                                else 0)

    def _room(self, job: Job, view: Pool, node: int) -> int:
        """How many ranks of the job a node has room for."""
        if not view.up >> node & 1:
            return 0
        here, width = self._offered(job, view, node), job.cores
        if not here:
            return 0
        room = bits.count(here) if width == 1 else sum(
            bits.count(here >> start & ((1 << cores) - 1)) // width
            for start, cores in self._sockets_of(view.nodes[node]))
        return room if job.request.plain else most_tasks(job.request, room, view.left_on(node))

    def _sockets_of(self, node: Node) -> Tuple[Tuple[int, int], ...]:
        """First core, from that of the node on, and number of cores of each socket."""
        found = self._sockets.get(node.sockets)
        if found is None:
            first = itertools.accumulate(node.sockets, initial=0)
            found = self._sockets[node.sockets] = tuple(zip(first, node.sockets))
        return found

    def _able_nodes(self, job: Job) -> int:
        """The nodes that could run ranks of the job when they are empty."""
        if job.request.plain:
            return self._machine.up
        wish = _wish(job)
        able = self._able.get(wish)
        if able is None:
            able = 0
            for members, node in self._machine.classes:
                if most_on(job.request, node, node.cores) > 0:
                    able |= members
            self._able[wish] = able
        return able

    def _offered(self, job: Job, view: Pool, node: int) -> int:
        """The free cores of a node that the job may have, counted from its first."""
        here = view.layout.on_node(view.free_cores, node)
        if self.cores is not None:
            here &= sum(1 << core for core in set(self.cores(job, view, node)))
        return here

    def exact(self, job: Job) -> bool:
        """Whether counts of cores say all: for ranks of one core (see above)."""
        return self._any_core and job.cores == 1 and (
            self._plain(job) or not self._heavy and self._light(job))

    def size(self, job: Job) -> int:
        """Its cores."""
        return job.procs * job.cores

    def room(self, view: Pool) -> int:
        """Free cores."""
        return view.count_free()

    def similar(self, job: Job) -> Optional[Tuple[Hashable, int]]:
        """Jobs that ask for the same by rank are alike under first fit; of those that say on how
        many nodes they run, only equal ones."""
        if not self._first_fit or job.exclusive:
            return None
        request = job.request
        return (_wish(job) if request.nodes == (1, 0) else request), self.size(job)

    def lacks(self, job: Job, view: Pool) -> str:
        """What a job that does not fit needs, and how much of it there is."""
        size, room = self.size(job), self.room(view)
        if size > room:
            return f"needs {_count(size, 'free core')}, {room} free"
        scarce = _scarce(job, view)
        if scarce:
            return scarce
        if self._plain(job):
            return f"needs {job.procs} x {job.cores} free cores of one socket each"
        held = sum(ranks for _, ranks in self._rooms(job, view))
        return f"needs room for {_count(job.procs, 'rank')} with what they ask for, there is room for {held}"


def _by_size(nodes: int, room: Callable[[int], int]) -> List[Tuple[int, int]]:
    """The nodes that have room, as sets with how much each node has."""
    found: Dict[int, int] = {}
    for node in bits.members(nodes):
        here = room(node)
        if here > 0:
            found[here] = found.get(here, 0) | 1 << node
    return [(members, here) for here, members in found.items()]


def _cores(ranks: int, width: int, free: int, sockets: Iterable[Tuple[int, int]]) -> int:
    """The first free cores for so many ranks, each of one socket; 0 when they are too few."""
    chosen = 0
    for start, cores in sockets:
        here = free >> start & ((1 << cores) - 1)
        some = min(ranks, bits.count(here) // width)
        chosen |= bits.lowest(here, some * width) << start
        ranks -= some
        if not ranks:
            return chosen
    return 0


def make_policy(text: str, cluster: Cluster, heatmap: Optional[Heatmap] = None,
                node_order: Any = AUTO) -> PlacementPolicy:
    """The placement policy of that name or dotted path, made for the nodes of a cluster; or three
    parts, as in `empty x my_policies:fewest_free x all` (see `combine`). `node_order` stands in the
    place of that of a registered policy. Raises PolicyError.

    A user's own is what `combine` gives, or a function or class called as `policy(cluster,
    heatmap)` whose result has `nodes(job)` and `place(job, view)`, as
    `vrm.model.policies.PlacementPolicy` has them.
    """
    from vrm.scheduling.custom import policy_of
    return policy_of(text, cluster, heatmap, node_order)


