"""Placement core by core: a job takes free cores of nodes that it may share with any other jobs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence

from vrm.model import bits
from vrm.model.amounts import base
from vrm.model.cluster import Pool
from vrm.model.measured.heatmap import Heatmap
from vrm.model.job import Infeasible, Insufficient, Job, Request
from vrm.model.node import Node
from vrm.model.placement import Placement
from vrm.model.policies import Eligibility
from vrm.model.sharing.capacity import TaskCapacity
from vrm.scheduling.placement.node_orders import ByNumber, FirstFit, Order
from vrm.scheduling.backfilling.node_profiles import NodeNeeds
from vrm.scheduling.placement.parts import (
    Open, Ordered, Share, missing_nodes, counted, coupled_infeasible_reason, place_parts, scarce_resource,
    ranks_infeasible_reason, rank_request,
    threads_infeasible_reason)
from vrm.scheduling.placement.spread import most_on, most_tasks, named, spread, infeasible_reason


class CorePolicy(Ordered):
    """Placement policy in which jobs share nodes core by core: a job gets the first free cores of the first nodes.

    The cores of a rank lie in one socket. An exclusive job runs on nodes where no other job has a core, and holds all
    cores of these nodes: for other jobs, none is free there.

    Counting cores is exact for a job with ranks of one core that requests nothing else. It is also exact for a job
    that requests amounts within a core's share of the resource (see `_light`), as long as no job has requested more:
    if no job takes more than its cores' share, enough is left wherever a core is free. Counting is never exact for an
    exclusive job, but it stays exact for other jobs while that runs.
    """

    def __init__(self, name: str, eligibility: Eligibility, order: Order, share: Share,
                 nodes: Sequence[Node], heatmap: Heatmap | None = None,
                 licences: Mapping[str, float] | None = None) -> None:
        self.name = name
        self.heatmap = heatmap
        self.eligibility, self.order, self.cores = eligibility, order, share.cores
        self._machine = Pool(nodes, licences)
        self._needs: dict[Request, int] = {}
        self._sizes: dict[Request, int] = {}
        self._able: dict[Hashable, tuple[int, int]] = {}
        self._lights: dict[Hashable, bool] = {}
        self._wishes: dict[Request, tuple[int, Hashable, int, bool]] = {}
        self._wants: dict[Request, NodeNeeds] = {}
        self._heavy = False  # whether a job has requested more than a core's share
        # Any free core is good for a rank of one core: counting is exact.
        self._any_core = isinstance(eligibility, Open) and share.cores is None
        self._sockets: dict[tuple[int, ...], tuple[tuple[int, int], ...]] = {}
        self._first_fit = self._any_core and isinstance(order, (ByNumber, FirstFit))
        # Users' orders are always called: they may depend on more than the request, or leave nodes out.
        self._keeps = self._any_core and type(order).__module__ == FirstFit.__module__
        self.by_node = self._any_core  # whether `wants` can return something
        classes = self._machine.classes
        same = self._first_fit and len({each.node.sockets for each in classes}) == 1
        self._node_cores = nodes[0].cores if same else 0

    def nodes(self, job: Job) -> int:
        """Return the number of nodes that the job uses on the empty machine. Raises Infeasible if it can never run."""
        if self._plain(job) and self._node_cores and job.cores == 1 \
                and job.procs <= self._machine.layout.total:
            return -(-job.procs // self._node_cores)
        need = self._needs.get(job.request)
        if need is None:
            never = threads_infeasible_reason(job.request, self._machine.nodes[0], False, self.name)
            if never:
                raise Infeasible(never)
            placement = self.place(job, self._machine)
            if not placement:
                raise Infeasible(self._why_never(job))
            for part in job.parts if job.request.parts else ():
                self.nodes(part)
            if not job.exclusive and not self._plain(job) and not self._light(job):
                self._heavy = True
            need = self._needs[job.request] = len(placement.nodes)
        return need

    @staticmethod
    def _plain(job: Job) -> bool:
        return job.request.plain and not job.exclusive

    def _light(self, job: Job) -> bool:
        """Return whether it requests only cores, and for each rank amounts of which every node has at least as much
        per core."""
        request = job.request
        wish = rank_request(job)
        light = self._lights.get(wish)
        if light is None:
            light = self._lights[wish] = (
                request._replace(per_task=()).plain
                and all(amount * each.node.cores <= request.cores_per_task * base(
                    name, each.node.resources.get(name, 0))
                    for name, amount in request.per_task for each in self._machine.classes))
        return light

    def _why_never(self, job: Job) -> str:
        if job.request.parts:
            return coupled_infeasible_reason(self, job, self._machine)
        never = infeasible_reason(job.request, self._machine, lambda node: max(node.sockets), self.name)
        if never:
            return never
        most = sum(room for _, room in self._rooms(job, self._machine))
        if job.request.plain:
            return (f"{job.procs} ranks of {job.cores} core(s) do not fit on the "
                    f"{self._machine.layout.total} cores of {len(self._machine.nodes)} node(s)")
        return ranks_infeasible_reason(job, self._machine, self.name, most)

    def fits(self, job: Job, view: Pool) -> bool:
        """Return whether the job could start on the view as it is."""
        if self.exact(job):
            return self.size(job) <= self.room(view)
        if self.size(job) > view.count_free() or not view.has_licences(job):
            return False
        if not self._keeps or job.request.parts:
            return bool(self.place(job, view))
        known, (least, most), must = self._known(job, view), job.request.nodes, 0
        if job.request.nodelist:
            must = self._must(job)
            least = max(job.request.least_nodes, bits.count(must))
        if known.total < job.procs or (least > 1 and bits.count(known.some) < least) or must & ~known.some:
            return False
        if not most:
            return True
        # In any order, the nodes with the most capacity are taken if the first ones would be too many.
        if not must:
            return sum(sorted(known.each)[-most:]) >= job.procs
        mine = [known.each[node] for node in bits.members(must)]
        others = sorted(known.each[node] for node in bits.members(known.some & ~must))
        return sum(mine) + sum(others[max(0, len(others) - most + len(mine)):]) >= job.procs

    def place(self, job: Job, view: Pool) -> Placement | Insufficient:
        """Return where the job would start now, or why it does not fit. Does not change the view."""
        if self.size(job) > view.count_free():
            return Insufficient(self.lacks, job, view)
        if self._first_fit and (self._plain(job) or self.exact(job)):
            chosen = _cores(job.procs, job.cores, view.free_cores, view.layout.sockets()) \
                if job.cores > 1 else bits.lowest(view.free_cores, job.procs)
        elif job.request.parts and view.has_licences(job):
            return place_parts(self, job, view)
        else:
            chosen = self._by_node(job, view) if view.has_licences(job) else 0
        if not chosen:
            return Insufficient(self.lacks, job, view)
        layout = view.layout
        return Placement.of_cores(layout, chosen, job.procs, job.cores,
                                  layout.cores_of(layout.nodes_of(chosen)) if job.exclusive else 0)

    def _by_node(self, job: Job, view: Pool) -> int:
        """Return the cores for all ranks, node by node in order; 0 if there are not enough."""
        if not self._keeps:
            return self._chosen(job, view)
        chosen = view.rooms.answer(job.request)
        if chosen is None or (chosen and not self._first_fit):
            chosen = self._chosen(job, view) if self._first_fit or self.fits(job, view) else 0
            view.rooms.answered(job.request, chosen)
        return chosen

    def _chosen(self, job: Job, view: Pool) -> int:
        """Compute the answer of `_by_node` without its cache."""
        request = job.request
        found: list[tuple[int, int]] = []
        held, anywhere = 0, request.anywhere
        for node, room in self._rooms(job, view):
            found.append((node, room))
            held += room
            if anywhere and held >= job.procs:
                break
        chosen = 0
        for node, ranks in spread(found, request, self._must(job)) or ():
            chosen |= _cores(ranks, job.cores, self._offered(job, view, node),
                             self._sockets_of(view.nodes[node])) << view.layout.node_first[node]
        return chosen

    def _rooms(self, job: Job, view: Pool) -> Iterator[tuple[int, int]]:
        """Yield the nodes with capacity for ranks, in order, and for how many."""
        room: Callable[[int], int]
        if self._any_core:
            known = self._known(job, view)
            eligible, room = known.some, known.each.__getitem__
        else:
            eligible = self.eligibility.nodes(job, view) & view.up & self._nodes_of(job)[0]

            def room(node: int) -> int:
                return self._room(job, view, node)
        # Under pack, an empty node is taken by its number, not before the others.
        groups = (eligible,) if self._first_fit else self.order.groups(
            job, view, eligible, lambda: _by_size(eligible, room))
        for group in groups:
            for node in bits.members(group):
                here = room(node)
                if here > 0:
                    yield node, here

    def _known(self, job: Job, view: Pool) -> TaskCapacity:
        """Return the capacity for ranks on each node, for policies where any free core is good."""
        wish = self._wish(job)
        able = wish[2] & view.up
        return view.rooms.rooms(wish, lambda node: self._room(job, view, node) if able >> node & 1 else 0)

    def _wish(self, job: Job) -> tuple[int, Hashable, int, bool]:
        """Return the kind of the job's tasks, with the nodes that could run them and whether it needs these alone."""
        wish = self._wishes.get(job.request)
        if wish is None:
            wish = self._wishes[job.request] = (id(self), rank_request(job), self._nodes_of(job)[0], job.exclusive)
        return wish

    def _room(self, job: Job, view: Pool, node: int) -> int:
        """Return for how many ranks of the job a node has capacity."""
        if not view.up >> node & 1:
            return 0
        if job.exclusive and view.layout.on_node(view.busy_cores, node):
            return 0
        return self._room_of(job, view.nodes[node], self._offered(job, view, node), view.left_on(node))

    def _room_of(self, job: Job, node: Node, free: int, left: Callable[[str], int]) -> int:
        """Return for how many ranks a node has capacity with these free cores, counted from its first core, and the
        amounts `left`."""
        if not free:
            return 0
        width = job.cores
        room = bits.count(free) if width == 1 else sum(
            bits.count(free >> start & ((1 << cores) - 1)) // width for start, cores in self._sockets_of(node))
        return room if job.request.plain else most_tasks(job.request, room, left)

    def wants(self, job: Job) -> NodeNeeds | None:
        """Return what the job must find on nodes; None if that cannot be defined for each node by itself."""
        if not self.by_node or job.request.parts:
            return None
        found = self._wants.get(job.request)
        if found is None:
            request, nodes = job.request, self._machine.nodes
            able, must = self._nodes_of(job)
            each = max((self._room(job, self._machine, node) for node in bits.members(able)), default=0) or 1
            least = max(request.least_nodes, bits.count(must), -(-job.procs // each))
            most = request.nodes[1] or job.procs
            found = self._wants[request] = NodeNeeds(
                self._wish(job), able, least, max(1, job.procs - (most - 1) * each),
                lambda node, free, left: 0 if job.exclusive and free != (1 << nodes[node].cores) - 1
                else self._room_of(job, nodes[node], free, left))
        return found

    def _sockets_of(self, node: Node) -> tuple[tuple[int, int], ...]:
        """Return the first core, counted from the node's first core, and the number of cores of each socket."""
        found = self._sockets.get(node.sockets)
        if found is None:
            first = itertools.accumulate(node.sockets, initial=0)
            found = self._sockets[node.sockets] = tuple(zip(first, node.sockets))
        return found

    def _nodes_of(self, job: Job) -> tuple[int, int]:
        """Return the nodes that could run ranks of the job when they are empty, and those that it must have."""
        if job.request.plain:
            return self._machine.up, 0
        wish = rank_request(job)
        found = self._able.get(wish)
        if found is None:
            able = 0
            for members, node in self._machine.classes:
                if most_on(job.request, node, node.cores) > 0:
                    able |= members
            allowed, must = named(job.request, self._machine.nodes)
            found = self._able[wish] = able & allowed, must
        return found

    def _must(self, job: Job) -> int:
        """Return the nodes that the job must have, by name."""
        return self._nodes_of(job)[1] if job.request.nodelist else 0

    def _offered(self, job: Job, view: Pool, node: int) -> int:
        """Return the free cores of a node that the job may have, counted from the node's first core."""
        here = view.layout.on_node(view.free_cores, node)
        if self.cores is not None:
            here &= sum(1 << core for core in set(self.cores(job, view, node)))
        return here

    def exact(self, job: Job) -> bool:
        """Return whether counting cores is exact for the job: only if its ranks have one core (see the class)."""
        return self._any_core and job.cores == 1 and not job.exclusive and (
            job.request.plain or (not self._heavy and self._light(job)))

    def first_free(self, job: Job) -> bool:
        """Return whether any free cores are good for the job, and the first ones are taken."""
        return self._first_fit and job.cores == 1 and (self._plain(job) or self.exact(job))

    def size(self, job: Job) -> int:
        """Return its cores; for an exclusive job, at least all cores of the fewest and smallest nodes that could be
        enough."""
        if job.request.parts:
            return sum(map(self.size, job.parts))
        cores = job.procs * job.cores
        if not job.exclusive:
            return cores
        least = self._sizes.get(job.request)
        if least is None:
            request, machines = job.request, self._machine.classes
            most = max(sum(each // job.cores for each in one.node.sockets) for one in machines) or 1
            nodes = max(request.least_nodes, -(-job.procs // min(most, request.tasks_per_node or most)))
            least = self._sizes[request] = max(cores, nodes * min(one.node.cores for one in machines))
        return least

    def room(self, view: Pool) -> int:
        """Return the number of free cores."""
        return view.count_free()

    def similar(self, job: Job) -> tuple[Hashable, int] | None:
        """Under first fit, return one class for jobs that request the same for each rank; jobs that specify their
        number of nodes are only similar if they are equal. None under other orders."""
        if not self._first_fit:
            return None
        request = job.request
        wish = rank_request(job) if request.anywhere else request
        return ((wish, True) if job.exclusive else wish), request.cores

    def _lacks(self, job: Job, view: Pool) -> str:
        """Return what a job that does not fit needs, and how much of it is available."""
        size, room = self.size(job), self.room(view)
        if size > room and not job.exclusive:
            return f"needs {counted(size, 'free core')}, {room} free"
        scarce = scarce_resource(job, view)
        if scarce:
            return scarce
        if self._plain(job):
            return f"needs {job.procs} x {job.cores} free cores of one socket each"
        rooms = dict(self._rooms(job, view))
        missing = missing_nodes(self._must(job), sum(1 << node for node in rooms), view)
        if missing:
            return missing
        if job.exclusive:
            return f"needs {counted(self.nodes(job), 'empty node')}, {view.count_empty()} empty"
        held = sum(rooms.values())
        return f"needs {counted(job.procs, 'rank')} with their resources; {held} fit now"


def _by_size(nodes: int, room: Callable[[int], int]) -> list[tuple[int, int]]:
    """Group the nodes with capacity into sets, each with the capacity of one node."""
    found: dict[int, int] = {}
    for node in bits.members(nodes):
        here = room(node)
        if here > 0:
            found[here] = found.get(here, 0) | 1 << node
    return [(members, here) for here, members in found.items()]


def _cores(ranks: int, width: int, free: int, sockets: Iterable[tuple[int, int]]) -> int:
    """Return the first free cores for `ranks` ranks, each in one socket; 0 if there are too few."""
    chosen = 0
    for start, cores in sockets:
        here = free >> start & ((1 << cores) - 1)
        some = min(ranks, bits.count(here) // width)
        chosen |= bits.lowest(here, some * width) << start
        ranks -= some
        if not ranks:
            return chosen
    return 0
