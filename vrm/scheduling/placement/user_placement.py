"""Placement policies that users write, adapted to vrm's protocol: an exception or an invalid result becomes a
PolicyError that names the place in the user's file."""

from __future__ import annotations

import re
from typing import Any
from collections.abc import Hashable, Iterator

from vrm.model import bits
from vrm.model.amounts import said
from vrm.model.cluster import Cluster, Pool
from vrm.model.measured.heatmap import Heatmap
from vrm.model.job import Infeasible, Insufficient, Job, Request
from vrm.model.placement import Placement
from vrm.model.policies import PolicyObserver, CountingPolicy
from vrm.scheduling.placement.by_core import CorePolicy
from vrm.scheduling.placement.node_orders import AUTO
from vrm.scheduling.placement.lanes import LanePolicy
from vrm.scheduling.placement.parts import coupled_infeasible_reason, place_parts, scarce_resource
from vrm.scheduling.placement.combining import POLICIES, combine
from vrm.scheduling.registry import (PolicyError, guarded, shortened, where)
from vrm.scheduling.placement.spread import admits, lacking_licence, named, stranger

_PARTS = re.compile(r"\s+x\s+")


def fault_of(job: Job, placement: Any, view: Pool) -> str:
    """Return what is wrong with a user's placement of a job; "" if nothing is."""
    if not isinstance(placement, Placement):
        return f"on {shortened(placement)}, which is not a placement"
    shrunk = placement.lease is not None and job.malleable and placement.width <= job.cores
    if placement.procs != job.procs or (placement.width != job.cores and not shrunk):
        return (f"on a placement for {placement.procs} ranks of {placement.width} core(s); it has "
                f"{job.procs} of {job.cores}")
    if not placement.node_set or placement.node_set >> len(view.nodes):
        return "on nodes that do not exist"
    if view.clashes(placement):
        names = ", ".join(view.nodes[node].name for node in placement.nodes[:4])
        return f"on cores that are taken, or down (nodes {names})"
    held = sum(ranks for _, ranks in placement.ranks_by_node(view.nodes))
    if held < job.procs:
        return f"on nodes that hold {held} of its {job.procs} ranks"
    return "" if job.request.plain else _other_fault(job, placement, view)


def _other_fault(job: Job, placement: Placement, view: Pool) -> str:
    """Return what is wrong with a placement regarding requests besides cores; "" if nothing is."""
    request = job.request
    least, most = request.least_nodes, request.nodes[1]
    tasks_on = [(node, tasks) for node, tasks in placement.ranks_by_node(view.nodes) if tasks]
    if len(tasks_on) < least or 0 < most < len(tasks_on):
        return f"on {len(tasks_on)} node(s); it wants {least}" + (f" to {most}" if most else " or more")
    for node, tasks in tasks_on:
        name, left = view.nodes[node].name, view.left_on(node)
        missing = sorted(request.features - view.nodes[node].features)
        if missing:
            return f"on {name}, which does not offer {', '.join(missing)}"
        if not admits(request, view.nodes[node]):
            return f"on {name}, which is to be left out (exclude)"
        if 0 < request.tasks_per_node < tasks:
            return f"with {tasks} ranks on {name}; it wants at most {request.tasks_per_node} on a node"
        for resource, amount in request.on_node(tasks):
            if left(resource) < amount:
                return (f"on {name}, where it takes {said(resource, amount)} of {resource} and "
                        f"{said(resource, left(resource))} is left")
    if not view.has_licences(job):
        return "without the licences that it wants"
    without = [view.nodes[node].name for node in bits.members(named(request, view.nodes)[1] & ~placement.node_set)]
    return f"without {without[0]}, which it is to have (nodelist)" if without else ""


# -------------------------------------------------------------------------------------- placement


def make_policy(text: str, cluster: Cluster, heatmap: Heatmap | None = None,
                node_order: Any = AUTO) -> CountingPolicy:
    """Return the placement policy with that name or dotted path, for the nodes of a cluster; or a combination of three
    parts, as in `empty x my_policies:fewest_free x all` (see `combine`). `node_order` replaces the order of a
    registered policy. Raises PolicyError.

    A user's own is a result of `combine`, or a function or class that is called as `policy(cluster, heatmap)` and
    whose result has `nodes(job)` and `place(job, view)`, as in `vrm.model.policies.CountingPolicy`.
    """
    known = POLICIES.get(text)
    parts = _PARTS.split(text.strip())
    auto = isinstance(node_order, str) and node_order.strip().lower() == AUTO
    if known is None and not auto:
        raise PolicyError(f"`{text.strip()}` " + (
            f"names a node order, and so does `{node_order}`; leave one out" if len(parts) == 3 else
            f"sets its own order of nodes; NodeOrder works with {', '.join(POLICIES.names)}"))
    if known is not None:
        chosen = {} if auto else {"node_order": node_order}
        made: CountingPolicy = known(cluster, heatmap, **chosen)
        return made
    if len(parts) == 3:
        return combine(*parts)(cluster, heatmap)
    return placement_of(text, guarded(text, POLICIES.find(text))(cluster, heatmap), cluster)


def placement_of(text: str, made: Any, cluster: Cluster, otherwise: str = "") -> CountingPolicy:
    """Return the placement policy for a user's object, on this machine. Raises PolicyError, with the text `otherwise`,
    for an object without `nodes` and `place`."""
    if isinstance(made, (LanePolicy, CorePolicy)):
        return made
    if not (callable(getattr(made, "nodes", None)) and callable(getattr(made, "place", None))):
        raise PolicyError(otherwise or f"`{text.strip()}` makes no placement policy; it must give an object with "
                          "`nodes` and `place`")
    return UserPlacement(text, made, cluster)


class UserPlacement:
    """Wraps a user's object with `nodes` and `place`, and with any other methods of a CountingPolicy. The object is
    only asked about jobs whose licences are available. For a job that names nodes, it sees only the nodes where that
    may run: first only those of its nodelist, then all that it does not exclude."""

    follower: PolicyObserver | None = None

    def copy(self) -> UserPlacement:
        """Return itself: a user's placement policy keeps nothing between steps."""
        return self

    def __init__(self, text: str, own: Any, cluster: Cluster) -> None:
        self.name = str(getattr(own, "name", text.strip()))
        self._machine = Cluster(cluster.nodes)
        self._licences = cluster.all_licences
        self.heatmap: Heatmap | None = getattr(own, "heatmap", None)
        self._text, self._own = text.strip(), own
        self._nodes, self._place = guarded(text, own.nodes), guarded(text, own.place)
        self._has = {name: guarded(text, getattr(own, name)) for name in (
            "fits", "similar", "exact", "size", "room")
            if callable(getattr(own, name, None))}

    def nodes(self, job: Job) -> int:
        """Return the number of nodes from the user's object. Raises Infeasible, and PolicyError for an invalid
        number."""
        request = job.request
        lacks = lacking_licence(request, self._licences) or stranger(request.nodelist, self._machine.nodes)
        if lacks:
            raise Infeasible(lacks)
        if request.parts:
            placement = place_parts(self, job, self._machine)
            if not placement:
                raise Infeasible(coupled_infeasible_reason(self, job, self._machine))
            return len(placement.nodes)
        if request.nodelist or request.exclude:
            placement = self._among_named(job, self._machine)
            if not placement:
                raise Infeasible(f"{self.name} finds no place for it on the nodes that it names and leaves")
            return len(placement.nodes)
        found = self._nodes(job)
        if not isinstance(found, int) or found < 1:
            raise PolicyError(f"`{self._text}`{where(self._own.nodes)} gives {shortened(found)} as the "
                              f"nodes of job {job.id}; give a number from 1 on, or raise "
                              "vrm.model.Infeasible(reason)")
        return found

    def place(self, job: Job, view: Pool) -> Placement | Insufficient:
        """Return the placement from the user's object, after checking it."""
        if not view.has_licences(job):
            return Insufficient(scarce_resource, job, view)
        if job.request.parts:
            return place_parts(self, job, view)
        if job.request.nodelist or job.request.exclude:
            return self._among_named(job, view)
        return self._checked(job, view)

    def _among_named(self, job: Job, view: Pool) -> Placement | Insufficient:
        """Place a job that names nodes (see the class)."""
        able, must = named(job.request, view.nodes)
        for allowed in (must if bits.count(must) >= job.request.nodes[0] else 0, able):
            if allowed:
                here = view.what_if()
                here.close(here.up & ~allowed)
                found = self._checked(job, here, anywhere=True)
                if found and not must & ~found.node_set:
                    return found
        return Insufficient(lambda: "no room")

    def _checked(self, job: Job, view: Pool, anywhere: bool = False) -> Placement | Insufficient:
        """Return the placement from the user's object, after checking it; with `anywhere`, the nodelist is not
        checked."""
        found = self._place(job, view)
        if found is None or isinstance(found, Insufficient):
            return found or Insufficient(lambda: "no room")
        judged = job.but(request=job.request._replace(nodelist=frozenset())) if anywhere else job
        fault = fault_of(judged, found, view)
        if fault:
            raise PolicyError(f"`{self._text}`{where(self._own.place)} puts job {job.id} {fault}")
        placement: Placement = found
        return placement

    def fits(self, job: Job, view: Pool) -> bool:
        """Return the answer of the user's object; without its `fits`, whether it finds a placement."""
        if "fits" in self._has and _is_simple_request(job.request):
            return view.has_licences(job) and bool(self._has["fits"](job, view))
        return bool(self.place(job, view))

    def similar(self, job: Job) -> tuple[Hashable, int] | None:
        """Return the class from the user's object; without its `similar`, None."""
        if "similar" not in self._has or not _is_simple_request(job.request):
            return None
        found: tuple[Hashable, int] | None = self._has["similar"](job)
        return found

    def exact(self, job: Job) -> bool:
        """Return the answer of the user's object, if it can count; otherwise False."""
        return ({"room", "size", "exact"} <= set(self._has)
                and not job.request.licences and _is_simple_request(job.request) and bool(self._has["exact"](job)))

    def size(self, job: Job) -> int:
        """Return the size from the user's object; without its `size`, the number of nodes."""
        return max(int(self._has.get("size", self._nodes)(part)) for part in job.parts)

    def room(self, view: Pool) -> int | None:
        """Return the count from the user's object; without its `room`, None."""
        if "room" not in self._has:
            return None
        found: int | None = self._has["room"](view)
        return found


def _is_simple_request(request: Request) -> bool:
    """Return whether the user's object sees everything that such a job requests: it has one program, and names no
    nodes."""
    return not (request.nodelist or request.exclude or request.parts)


def parts_of(text: str) -> Iterator[str]:
    """Yield the names in a setting: three for `empty x my_policies:first x all`, otherwise one."""
    parts = _PARTS.split(text.strip())
    yield from parts if len(parts) == 3 else [text]
