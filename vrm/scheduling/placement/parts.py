"""What placement policies are made of, besides node orders: on which nodes a job may run
(eligibility), and how much of each it takes (share); and what the two kinds of policies share.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, TypeVar
from collections.abc import Callable, Hashable, Sequence

from vrm.model import bits
from vrm.model.amounts import said
from vrm.model.cluster import Pool, move_in
from vrm.model.measured.heatmap import Heatmap
from vrm.model.forms.hosts import fold
from vrm.model.job import Infeasible, Insufficient, Job, Request
from vrm.model.node import CORES, HALF, WHOLE, Node
from vrm.model.placement import Placement
from vrm.model.policies import Follower, PlacementPolicy
from vrm.scheduling.placement.node_orders import Order
from vrm.scheduling.registry import Registry
from vrm.scheduling.placement.spread import lacking_licence, named

ELIGIBILITIES = Registry("eligibility of nodes", "vrm.eligibilities")
SHARES = Registry("share of a node", "vrm.shares")


@ELIGIBILITIES.register("empty")
class Empty:
    """Nodes without a job; a job keeps others off its nodes."""

    def __init__(self, heatmap: Heatmap | None) -> None:
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

    def __init__(self, heatmap: Heatmap | None) -> None:
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

    def __init__(self, heatmap: Heatmap | None) -> None:
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
    cores: Callable[[Job, Pool, int], Any] | None = None


SHARES.register("all")(Share(WHOLE))
SHARES.register("half")(Share(HALF))
SHARES.register("free")(Share(CORES))


def place_parts(policy: PlacementPolicy, job: Job, view: Pool) -> Placement | Insufficient:
    """Where a coupled job would start: its programs one after the other, each on what those before it have left."""
    left = view.what_if()
    left.tenants = {load: list(lanes) for load, lanes in view.tenants.items()}
    found: list[Placement] = []
    for part in job.parts:
        placement = policy.place(part, left)
        if not placement:
            return Insufficient(_lacking, part.app, placement)
        left.take(part, placement)
        if not placement.taken:
            move_in(left.tenants, part, placement)
        found.append(placement)
    return Placement.together(found)


def _lacking(app: str, why: Insufficient) -> str:
    return f"{app} {why}"


def never_together(policy: PlacementPolicy, job: Job, machine: Pool) -> str:
    """Why a coupled job finds no place on the empty machine."""
    for part in job.parts:
        try:
            policy.nodes(part)
        except Infeasible as never:
            return f"{part.app}: {never}"
    return (lacking_licence(job.request, machine.licences) or
            f"its {len(job.parts)} programs do not fit at one time on {counted(len(machine.nodes), 'node')} under "
            f"{policy.name}")


Policy = TypeVar("Policy", bound="Ordered")


class Ordered:
    """A placement policy with a node order."""

    order: Order

    def lacks(self, job: Job, view: Pool) -> str:
        """What a job that does not fit needs, and how much of it there is."""
        if not job.request.exclude:
            return self._lacks(job, view)
        here = view.what_if()
        here.close(here.up & ~named(job.request, view.nodes)[0])
        return f"{self._lacks(job, here)} (without the nodes of exclude)"

    def _lacks(self, job: Job, view: Pool) -> str:
        """The same of a job that may be on all nodes."""
        raise NotImplementedError

    @property
    def follower(self) -> Follower | None:
        """The node order, where that wants to be told each step."""
        return self.order.follower

    def copy(self: Policy) -> Policy:
        """An independent copy; itself unless its node order keeps something from step to step."""
        order = self.order.copy()
        if order is self.order:
            return self
        twin = copy.copy(self)
        twin.order = order
        return twin


def wish_of(job: Job) -> Hashable:
    """What a rank of the job asks for: jobs of one wish are alike to a node."""
    request = job.request
    return request.cores_per_task if request.plain else request._replace(tasks=0, exclusive=False)


def wrong_threads(request: Request, node: Node, lanes: bool, name: str) -> str:
    """Why a job cannot have as many hardware threads of each core as it asks for; "" where it can."""
    asked, there = request.threads, node.threads
    if not asked or (there == 1 and asked == 1):
        return ""
    if there == 1:
        return (f"threads={asked}: cores count as one here; set Threads: {asked} in the configuration, if each has "
                f"{asked} hardware threads")
    if not lanes:
        return f"threads={asked}: {name} gives any hardware threads; use compact, spare or strip, or leave threads out"
    if asked not in (there, there // 2):
        return f"threads={asked}: cores have {there} hardware threads here; a job has {there // 2} or {there} of them"
    return ""


def too_many(job: Job, machine: Pool, name: str, most: int) -> str:
    """Why the ranks of a job do not fit on the empty machine, of which each alone could."""
    request = job.request
    least, limit = request.least_nodes, request.nodes[1]
    there = bits.count(named(request, machine.nodes)[0])
    nodes = f"{there} node(s)"
    if there < len(machine.nodes):
        nodes += f" (of {len(machine.nodes)}, without those of exclude)"
    if least > there:
        return f"it wants {least} nodes, there are {nodes.replace(' node(s)', '')}"
    if limit and most >= job.procs:
        return f"{job.procs} ranks do not fit on {limit} of {nodes} under {name}"
    return (f"{job.procs} ranks do not fit on {nodes} under "
            f"{name}, which holds at most {most} of them")


def scarce_now(job: Job, view: Pool) -> str:
    """Which licence, or resource over all nodes, too little is left of for the job; "" if none."""
    request = job.request
    for name, amount in request.licences:
        if view.licences.get(name, 0) < amount:
            return (f"needs {said(name, amount)} licence(s) of {name}, "
                    f"{said(name, view.licences.get(name, 0))} free")
    for name, amount in request.per_task:
        there = sum(left // amount for left in view.left.get(name, ()))
        if there < job.procs:
            return f"needs {job.procs} x {said(name, amount)} of {name}; {there} fit now"
    return ""


def awaited(must: int, rooms: int, view: Pool) -> str:
    """Which of the nodes that a job must have by their names have no room for it, and are in no `rooms`; ""
    where all have."""
    missing = list(bits.members(must & ~rooms))
    if not missing:
        return ""
    down = [each for each in missing if not view.up >> each & 1]
    said_down = "" if not down else ", which is down" if len(missing) == 1 else f"; {_names(down, view)} down"
    return f"waits for node{'s' * (len(missing) > 1)} {_names(missing, view)}{said_down}"


def _names(nodes: Sequence[int], view: Pool) -> str:
    return fold(view.nodes[each].name for each in nodes)


def counted(number: int, what: str) -> str:
    """As `1 node`, `2 nodes`."""
    return f"{number} {what}{'' if number == 1 else 's'}"
