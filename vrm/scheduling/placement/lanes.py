"""Placement by lanes (core shares): a job takes all or half of each socket of its nodes."""

from __future__ import annotations

from typing import NamedTuple
from collections.abc import Hashable, Mapping, Sequence

from vrm.model import bits
from vrm.model.cluster import Pool
from vrm.model.measured.heatmap import Heatmap
from vrm.model.job import Infeasible, Insufficient, Job, Request
from vrm.model.node import HALF, WHOLE, Node, lane_of_socket
from vrm.model.placement import Placement
from vrm.model.policies import Eligibility
from vrm.scheduling.placement.node_orders import FIXED, Order
from vrm.scheduling.placement.parts import (
    Empty, Ordered, Share, Shared, missing_nodes, counted, coupled_infeasible_reason, place_parts, scarce_resource,
    ranks_infeasible_reason, rank_request,
    threads_infeasible_reason)
from vrm.scheduling.placement.spread import most_on, most_tasks, named, spread, infeasible_reason


class Shape(NamedTuple):
    """Nodes that, when empty, have capacity for equally many ranks of a job: `first` on lane 0, `second` on lane 1."""

    nodes: int
    first: int
    second: int


class Fit(NamedTuple):
    """How jobs with one kind of request fit on the nodes. `most` is the largest number of ranks on a node (1 if no
    node fits), `exact` says whether counting nodes is exact. `each` is the number of ranks that every node holds on
    either lane; 0 if that differs or depends on what is left. `able` are the nodes of all shapes, `must` those that a
    job must have."""

    shapes: tuple[Shape, ...]
    most: int
    exact: bool
    each: int
    able: int
    must: int


class LanePolicy(Ordered):
    """Placement by lanes (see `vrm.model.node`).

    A job takes the first nodes of the order that together hold its ranks. How many a node holds depends only on its
    class and the lane; but for a job that requests resources on a shared node, also on what is left of them.
    """

    def __init__(self, name: str, eligibility: Eligibility, order: Order, share: Share,
                 nodes: Sequence[Node], heatmap: Heatmap | None = None,
                 licences: Mapping[str, float] | None = None) -> None:
        self.name = name
        self.heatmap = heatmap
        self.eligibility, self.order, self.share = eligibility, order, share.kind
        self._machine = Pool(nodes, licences)
        self._threads = nodes[0].threads if nodes else 1
        self._fits: dict[Hashable, Fit] = {}
        self._needs: dict[Request, int] = {}
        self._sizes: dict[Request, int] = {}
        self._counts: dict[Request, int] = {}
        # In sockets of one core, lane 1 is empty, so such nodes are never shared.
        one_lane = not any(each.node.capacity(HALF, 1, 1) for each in self._machine.classes)
        self._sole = (isinstance(eligibility, Empty)
                      or (isinstance(eligibility, Shared) and (one_lane or self.share == WHOLE)))
        self._first_fit = self._sole and isinstance(order, FIXED)
        self._refusing = heatmap is not None and bool(heatmap.refused)

    def nodes(self, job: Job) -> int:
        """Return the number of nodes that the job takes on the empty machine. Raises Infeasible if it can never run."""
        need = self._needs.get(job.request)
        if need is None:
            placement = self.place(job, self._machine)
            if not placement:
                raise Infeasible(self._why_never(job))
            need = self._needs[job.request] = placement.size
        return need

    def _why_never(self, job: Job) -> str:
        if job.request.parts:
            return coupled_infeasible_reason(self, job, self._machine)
        never = threads_infeasible_reason(job.request, self._machine.nodes[0], True, self.name) or infeasible_reason(
            job.request, self._machine, lambda node: max(
                lane_of_socket(cores, self._share(job), 0)[1] for cores in node.sockets), self.name)
        if never:
            return never
        most = sum(ranks * bits.count(here) for here, ranks in
                   self._rooms(job, self._machine, self._machine.up))
        return ranks_infeasible_reason(job, self._machine, self.name, most)

    def _share(self, job: Job) -> str:
        """Return how much of each node the job takes: where cores are hardware threads, half of them is one thread of
        each physical core."""
        threads = job.request.threads
        if not threads or self._threads == 1:
            return self.share
        return WHOLE if threads == self._threads else HALF

    def _closed(self, job: Job) -> bool:
        """Return whether the job keeps other jobs off its nodes."""
        return WHOLE in (self.share, self._share(job)) or self.eligibility.alone(job)

    def _fit(self, job: Job) -> Fit:
        """Return how the job fits on the nodes when they are empty."""
        wish = rank_request(job)
        return self._fits.get(wish) or self._fit_of(job, wish)

    def _fit_of(self, job: Job, wish: Hashable) -> Fit:
        request = job.request
        alike: dict[tuple[int, int], int] = {}
        able, must = named(request, self._machine.nodes)
        share = self._share(job)
        if threads_infeasible_reason(request, self._machine.nodes[0], True, self.name):
            able = 0
        for members, node in self._machine.classes:
            first, second = (most_on(request, node, node.capacity(share, lane, job.cores)) for lane in (0, 1))
            if first and members & able:
                alike[first, second] = alike.get((first, second), 0) | members & able
        shapes = tuple(Shape(members, *ranks) for ranks, members in alike.items())
        # All nodes hold equally many ranks, and a job has its nodes to itself.
        exact = (self._sole and len(shapes) == 1 and shapes[0].nodes == self._machine.up
                 and request.anywhere and not request.licences)
        most = max((shape.first for shape in shapes), default=1)
        alike_all = (len(shapes) == 1 and shapes[0].nodes == self._machine.up
                     and shapes[0].first == shapes[0].second and not request.amounts
                     and request.anywhere and not request.licences)
        fit = self._fits[wish] = Fit(shapes, most, exact, most if alike_all else 0,
                                     sum(shape.nodes for shape in shapes), must)
        return fit

    # Whether and where a job fits.

    def fits(self, job: Job, view: Pool) -> bool:
        """Return whether the job could start on the view as it is."""
        eligible = self.eligibility.nodes(job, view)
        each = self._fit(job).each
        if each:
            return each * bits.count(self._with_room(job, view, eligible)) >= job.procs
        if not view.has_licences(job):
            return False
        if not job.request.anywhere:
            return bool(self.place(job, view)) if job.request.parts else self._pick_range(job, view) is not None
        left = job.procs
        for here, ranks in self._rooms(job, view, eligible):
            left -= ranks * bits.count(here)
            if left <= 0:
                return True
        return False

    def place(self, job: Job, view: Pool) -> Placement | Insufficient:
        """Return where the job would start now, or why it does not fit. Does not change the view."""
        need = self._counts.get(job.request)
        if need is None:
            need = self._counts[job.request] = self.size(job) if self.first_free(job) else 0
        if need:
            if need > view.count_empty():
                return Insufficient(self.lacks, job, view)
            chosen = bits.lowest(view.empty, need)
            return Placement(self._share(job), (chosen, chosen if self._closed(job) else 0), (chosen,), job.procs,
                             job.cores, need)
        if not view.has_licences(job):
            return Insufficient(self.lacks, job, view)
        if job.request.parts:
            return place_parts(self, job, view)
        return self._picked(job, view)

    def _picked(self, job: Job, view: Pool) -> Placement | Insufficient:
        """Place a job on the first nodes of the order that hold it."""
        most: dict[int, int] | None = None
        if not job.request.anywhere:
            most = self._pick_range(job, view)
            picked = None if most is None else tuple(1 << node for node in most)
        else:
            picked = self._pick(job, view)
        if picked is None:
            return Insufficient(self.lacks, job, view)
        chosen = 0
        for group in picked:
            chosen |= group
        claims = (chosen, chosen) if self._closed(job) else (chosen & view.free0, chosen & ~view.free0)
        if most is None and (job.request.amounts or job.request.tasks_per_node):
            most = {index: ranks for here, ranks in self._rooms(job, view, chosen)
                    for index in bits.members(here)}
        return Placement(self._share(job), claims, picked, job.procs, job.cores, most=most)

    def _pick(self, job: Job, view: Pool) -> tuple[int, ...] | None:
        """Return the first nodes of the order that hold all ranks, as sets; None if there are not enough."""
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

    def _pick_range(self, job: Job, view: Pool) -> dict[int, int] | None:
        """Return the nodes, with the ranks on each, of a job that says on how many or on which nodes it runs; None if
        there are not enough."""
        eligible = self.eligibility.nodes(job, view)
        rooms = self._rooms(job, view, eligible)
        found = []
        for group in self.order.groups(job, view, eligible, lambda: rooms):
            found += sorted((node, ranks) for nodes, ranks in rooms
                            for node in bits.members(nodes & group))
        chosen = spread(found, job.request, self._fit(job).must)
        return None if chosen is None else dict(chosen)

    def _awaited(self, job: Job, view: Pool) -> str:
        """Return which of the nodes that it must have it waits for; "" if none."""
        must, rooms = self._fit(job).must, 0
        if must:
            for here, _ in self._rooms(job, view, self.eligibility.nodes(job, view)):
                rooms |= here
        return missing_nodes(must, rooms, view)

    def _with_room(self, job: Job, view: Pool, eligible: int) -> int:
        """Return the eligible nodes on which the share of the job is free."""
        if self._closed(job):
            return eligible & view.empty
        return eligible & view.up & ~(view.busy0 & view.busy1)

    def _rooms(self, job: Job, view: Pool, eligible: int) -> list[tuple[int, int]]:
        """Return the eligible nodes that can hold ranks of the job, as sets with how many each node holds."""
        eligible = self._with_room(job, view, eligible)
        fit = self._fit(job)
        if fit.each:
            return [(eligible, fit.each)]
        empty, free0 = view.empty, view.free0
        rooms = []
        shared = eligible & ~empty & fit.able if job.request.amounts else 0
        for nodes, first, second in fit.shapes:
            here = eligible & nodes & ~shared
            if first == second:
                rooms.append((here, first))
            else:
                rooms.append((here & free0, first))
                if second:
                    rooms.append((here & ~free0, second))
        if shared:
            rooms += self._capacity_on_shared(job, view, shared)
        return rooms

    def _capacity_on_shared(self, job: Job, view: Pool, shared: int) -> list[tuple[int, int]]:
        """Return the sets of `_rooms` for nodes where other jobs may have taken resources that the job requests."""
        by_ranks: dict[int, int] = {}
        for index in bits.members(shared):
            ranks = most_tasks(job.request, view.nodes[index].capacity(
                self._share(job), 0 if view.free0 >> index & 1 else 1, job.cores), view.left_on(index))
            if ranks > 0:
                by_ranks[ranks] = by_ranks.get(ranks, 0) | 1 << index
        return [(nodes, ranks) for ranks, nodes in by_ranks.items()]

    # Counting.

    def exact(self, job: Job) -> bool:
        """Return whether counting nodes is exact for the job."""
        return self._fit(job).exact

    def first_free(self, job: Job) -> bool:
        """Return whether any empty nodes are good for the job, and the first ones are taken."""
        return (self._first_fit and self.exact(job) and not job.request.amounts
                and not job.request.tasks_per_node)

    def size(self, job: Job) -> int:
        """Return the smallest number of nodes that the job needs."""
        size = self._sizes.get(job.request)
        if size is None:
            size = self._sizes[job.request] = (
                max(map(self.size, job.parts)) if job.request.parts else
                max(job.request.least_nodes, -(-job.procs // self._fit(job).most)))
        return size

    def room(self, view: Pool) -> int:
        """Return the number of nodes with free capacity."""
        return view.count_empty() if self._sole else bits.count(view.free0 | view.free1)

    def similar(self, job: Job) -> tuple[Hashable, int] | None:
        """Return one class for jobs that request the same and, if there is a heatmap, are of one application. None
        under orders that are not FIXED, under users' eligibilities, and for jobs that restrict their nodes."""
        if not isinstance(self.order, FIXED) or not isinstance(
                self.eligibility, (Empty, Shared)) or not job.request.anywhere:
            return None
        # Whether a pair is refused also depends on the numbers of ranks.
        kind: Hashable = None if self.heatmap is None else job.kind
        return ((job.app, job.procs) if self._refusing else kind, self.eligibility.alone(job),
                rank_request(job)), job.procs

    def _lacks(self, job: Job, view: Pool) -> str:
        """Return what a job that does not fit needs, and how much of it is available."""
        need = self.nodes(job)
        scarce = scarce_resource(job, view) or self._awaited(job, view)
        if scarce:
            return scarce
        if self._closed(job):
            return f"needs {counted(need, 'empty node')}, {bits.count(view.empty)} empty"
        shared = bits.count(view.free0 | view.free1)
        if shared < need:
            return f"needs half of {counted(need, 'node')}, {shared} free"
        if not self._refusing:
            return "no room"
        return (f"needs half of {counted(need, 'node')}; on {shared} with free cores the jobs there "
                "are bad partners for it (heatmap)")


def _first(rooms: Sequence[tuple[int, int]], ranks: int) -> tuple[int, int]:
    """Return the lowest-numbered nodes that together hold `ranks` ranks (all nodes if they do not), and how many they
    hold. `rooms` are sets of nodes with the number that each node of the set holds."""
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
