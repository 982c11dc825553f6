"""Parts of placement policies besides node orders: on which nodes a job may run (eligibility) and how much of each it
takes (share); and the code that both kinds of policies share."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, TypeVar
from collections.abc import Callable, Hashable, Sequence

from vrm.model import bits
from vrm.model.amounts import said
from vrm.model.cluster import Pool, toggle_tenant
from vrm.model.measured.heatmap import Heatmap
from vrm.model.forms.hosts import fold
from vrm.model.job import Infeasible, Insufficient, Job, Request
from vrm.model.node import CORES, HALF, WHOLE, Node
from vrm.model.placement import Placement
from vrm.model.policies import PolicyObserver, PlacementPolicy
from vrm.scheduling.placement.node_orders import Order
from vrm.scheduling.registry import Registry
from vrm.scheduling.placement.spread import lacking_licence, named

ELIGIBILITIES = Registry("eligibility of nodes", "vrm.eligibilities")
SHARES = Registry("share of a node", "vrm.shares")


@ELIGIBILITIES.register("empty")
class Empty:
    """Nodes without a job; a job keeps other jobs off its nodes."""

    def __init__(self, heatmap: Heatmap | None) -> None:
        pass

    def alone(self, job: Job) -> bool:
        """Return True."""
        return True

    def nodes(self, job: Job, view: Pool) -> int:
        """Return the empty nodes."""
        return view.empty


@ELIGIBILITIES.register("shared")
class Shared:
    """Nodes with at most one other job that the heatmap does not refuse as a partner; an exclusive job gets empty
    nodes and keeps other jobs off them."""

    def __init__(self, heatmap: Heatmap | None) -> None:
        self._heatmap = heatmap if heatmap is not None and heatmap.refused else None

    def alone(self, job: Job) -> bool:
        """Return whether the job is exclusive."""
        return job.exclusive

    def nodes(self, job: Job, view: Pool) -> int:
        """Return the nodes with a free lane and without refused partners.

        In a view of the future, a taken lane counts as taken by the job that has it now.
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
    """All nodes that are up; the share decides what is free on them."""

    def __init__(self, heatmap: Heatmap | None) -> None:
        pass

    def alone(self, job: Job) -> bool:
        """Return False: nothing keeps other jobs off a node."""
        return False

    def nodes(self, job: Job, view: Pool) -> int:
        """Return all nodes that are up."""
        return view.up


@dataclass(frozen=True)
class Share:
    """How much of a node a job takes: a lane of each socket (WHOLE or HALF), or CORES: all free cores, or only those
    that `cores(job, view, node)` returns."""

    kind: str
    cores: Callable[[Job, Pool, int], Any] | None = None


SHARES.register("all")(Share(WHOLE))
SHARES.register("half")(Share(HALF))
SHARES.register("free")(Share(CORES))


def place_parts(policy: PlacementPolicy, job: Job, view: Pool) -> Placement | Insufficient:
    """Return where a coupled job would start: its programs are placed in order, each in what the ones before it have
    left."""
    left = view.what_if()
    left.tenants = {load: list(lanes) for load, lanes in view.tenants.items()}
    found: list[Placement] = []
    for part in job.parts:
        placement = policy.place(part, left)
        if not placement:
            return Insufficient(_lacking, part.app, placement)
        left.take(part, placement)
        if not placement.taken:
            toggle_tenant(left.tenants, part, placement)
        found.append(placement)
    return Placement.together(found)


def _lacking(app: str, why: Insufficient) -> str:
    return f"{app} {why}"


def coupled_infeasible_reason(policy: PlacementPolicy, job: Job, machine: Pool) -> str:
    """Return why a coupled job does not fit on the empty machine."""
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
        """Return what a job that does not fit needs, and how much of it is available."""
        if not job.request.exclude:
            return self._lacks(job, view)
        here = view.what_if()
        here.close(here.up & ~named(job.request, view.nodes)[0])
        return f"{self._lacks(job, here)} (without the nodes of exclude)"

    def _lacks(self, job: Job, view: Pool) -> str:
        """Return the text of `lacks` for a job that may run on all nodes of the view."""
        raise NotImplementedError

    @property
    def follower(self) -> PolicyObserver | None:
        """The node order, if it observes steps; otherwise None."""
        return self.order.follower

    def copy(self: Policy) -> Policy:
        """Return an independent copy; the policy itself unless its node order keeps something between steps."""
        order = self.order.copy()
        if order is self.order:
            return self
        twin = copy.copy(self)
        twin.order = order
        return twin


def rank_request(job: Job) -> Hashable:
    """Return what one rank of the job requests, as a key: a node treats all jobs with the same key alike."""
    request = job.request
    return request.cores_per_task if request.plain else request._replace(tasks=0, exclusive=False)


def threads_infeasible_reason(request: Request, node: Node, lanes: bool, name: str) -> str:
    """Return why a job cannot have the number of hardware threads per core that it requests; "" if it can."""
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


def ranks_infeasible_reason(job: Job, machine: Pool, name: str, most: int) -> str:
    """Return why the ranks of a job do not fit on the empty machine together, although each of them alone would."""
    request = job.request
    least, limit = request.least_nodes, request.nodes[1]
    there = bits.count(named(request, machine.nodes)[0])
    nodes = f"{there} node(s)"
    if there < len(machine.nodes):
        nodes += f" (of {len(machine.nodes)}, without those of exclude)"
    if least > there:
        return f"it wants {least} nodes, there {'is' if there == 1 else 'are'} {nodes.replace(' node(s)', '')}"
    if limit and most >= job.procs:
        return f"{job.procs} ranks do not fit on {limit} of {nodes} under {name}"
    return (f"{job.procs} ranks do not fit on {nodes} under "
            f"{name}, which holds at most {most} of them")


def scarce_resource(job: Job, view: Pool) -> str:
    """Return which licence, or resource summed over all nodes, is too scarce for the job now; "" if none."""
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


def missing_nodes(must: int, rooms: int, view: Pool) -> str:
    """Return which of the nodes `must`, which a job must have by name, are not in `rooms`, the nodes with capacity for
    it; "" if all are."""
    missing = list(bits.members(must & ~rooms))
    if not missing:
        return ""
    down = [each for each in missing if not view.up >> each & 1]
    said_down = "" if not down else ", which is down" if len(missing) == 1 else f"; {_names(down, view)} down"
    return f"waits for node{'s' * (len(missing) > 1)} {_names(missing, view)}{said_down}"


def _names(nodes: Sequence[int], view: Pool) -> str:
    return fold(view.nodes[each].name for each in nodes)


def counted(number: int, what: str) -> str:
    """Format a count with its noun: `1 node`, `2 nodes`."""
    return f"{number} {what}{'' if number == 1 else 's'}"
