"""How the tasks of a job are spread over nodes, and why no nodes can ever run a job.

A job takes the first nodes of the order that together hold its tasks, as many tasks on each as fit. A job that says on
how many nodes it runs gets that number, the first ones, and its tasks are spread over them as evenly as their capacity
allows; if the first ones would be too many, the nodes with the most capacity are taken. Nodes that it must have by
name come before the first ones, and its tasks are then spread evenly, too.
"""

from __future__ import annotations

from difflib import get_close_matches
from collections.abc import Callable, Iterable, Mapping, Sequence

from vrm.model import bits
from vrm.model.amounts import base, said, total
from vrm.model.cluster import Pool
from vrm.model.forms.hosts import fold
from vrm.model.job import Request
from vrm.model.node import Node

Rooms = Sequence[tuple[int, int]]
"""Nodes by number, in order, with how many tasks each has capacity for (above 0)."""


def spread(rooms: Rooms, request: Request, must: int = 0) -> list[tuple[int, int]] | None:
    """Return the nodes of a job and its tasks on each, in the order of `rooms`; None if they are not enough. `must` is
    the set of nodes that must all be among them."""
    least, most = request.least_nodes, request.nodes[1]
    places: Sequence[int] = range(len(rooms))
    if must:
        places = sorted(places, key=lambda at: not must >> rooms[at][0] & 1)
        named = bits.count(must)
        least = max(least, named)
        if not all(must >> rooms[at][0] & 1 for at in places[:named]) or len(rooms) < named:
            return None
    number = _first(rooms, places, request.tasks, least)
    if most and number > most:
        places = sorted(places, key=lambda at: (not must >> rooms[at][0] & 1, -rooms[at][1]))
        number = _first(rooms, places, request.tasks, least)
    if not number or (most and number > most):
        return None
    chosen = [rooms[at] for at in sorted(places[:number])]
    return _filled(chosen, request.tasks) if request.anywhere else _even(chosen, request.tasks)


def _first(rooms: Rooms, places: Sequence[int], tasks: int, least: int) -> int:
    """Return how many of the rooms at these indices hold the tasks, at least `least`; 0 if all together do not."""
    held = 0
    for number, at in enumerate(places, 1):
        held += rooms[at][1]
        if held >= tasks and number >= least:
            return number
    return 0


def _filled(rooms: Rooms, tasks: int) -> list[tuple[int, int]]:
    found = []
    for node, room in rooms:
        here = min(room, tasks)
        found.append((node, here))
        tasks -= here
    return found


def _even(rooms: Rooms, tasks: int) -> list[tuple[int, int]]:
    """Return the result of giving each task to the node that has the fewest so far, the first of several such nodes."""
    below, above = 1, tasks + 1  # bounds of the largest number that each node with enough capacity can get
    while above - below > 1:
        middle = (below + above) // 2
        if sum(min(room, middle) for _, room in rooms) <= tasks:
            below = middle
        else:
            above = middle
    more = tasks - sum(min(room, below) for _, room in rooms)
    found = []
    for node, room in rooms:
        one = room > below and more > 0
        more -= one
        found.append((node, min(room, below) + one))
    return found


# ------------------------------------------------------------------------------------ nodes by name


def admits(request: Request, node: Node) -> bool:
    """Return whether a node may be one of a job's: it offers the requested features and is not excluded."""
    return request.features <= node.features and not (request.exclude and node.called(request.exclude))


def named(request: Request, nodes: Sequence[Node]) -> tuple[int, int]:
    """Return the set of nodes that a job may have according to the names in its request, and the set of those that it
    must have. The first set is empty if a node that it must have does not exist."""
    every = (1 << len(nodes)) - 1
    if not (request.nodelist or request.exclude):
        return every, 0
    must = _called(request.nodelist, nodes)
    return 0 if stranger(request.nodelist, nodes) else every & ~_called(request.exclude, nodes), must


def _called(names: frozenset[str], nodes: Sequence[Node]) -> int:
    return sum(1 << at for at, node in enumerate(nodes) if node.called(names)) if names else 0


def stranger(names: frozenset[str], nodes: Sequence[Node]) -> str:
    """Return which of the names matches no node, with the nearest match; "" if all match."""
    if not names:
        return ""
    known = {name for node in nodes for name in (node.name, node.name.partition(".")[0])}
    missing = sorted(names - known)
    if not missing:
        return ""
    there = fold(node.name for node in nodes)
    return f"there is no node {missing[0]}" + (_close(missing[0], known) or f"; there are {there}" * (len(there) < 100))


# ---------------------------------------------------------------------------- what is left of nodes


def most_tasks(request: Request, room: int, left: Callable[[str], int]) -> int:
    """Return how many tasks fit on a node whose cores hold `room` of them and that has `left(name)` of each
    resource."""
    for name, amount in request.per_node:
        if left(name) < amount:
            return 0
    node = dict(request.per_node)
    for name, amount in request.per_task:
        room = min(room, (left(name) - node.get(name, 0)) // amount)
    cap = request.tasks_per_node
    return min(room, cap) if cap else room


def most_on(request: Request, node: Node, room: int) -> int:
    """Return how many tasks fit on an empty node whose cores hold `room` of them; 0 if it lacks a feature."""
    if not request.features <= node.features:
        return 0
    return most_tasks(request, room, lambda name: base(name, node.resources.get(name, 0)))


# ------------------------------------------------------------------------------------- why never


def infeasible_reason(request: Request, machine: Pool, room: Callable[[Node], int], policy: str) -> str:
    """Return what no node can provide of a request, or what the run has too little of; "" if nothing. `room` returns
    how wide a rank can be on an empty node. Of several kinds of nodes, the text names the nearest: the one that lacks
    the fewest things, and then the smallest part of them."""
    fault = lacking_licence(request, machine.licences) or stranger(request.nodelist, machine.nodes)
    if fault:
        return fault
    able, must = named(request, machine.nodes)
    for at in bits.members(must):
        lacks = _lacks(request, machine.nodes[at], room(machine.nodes[at]), policy)
        if lacks:
            return f"it is to run on {machine.nodes[at].name}: {'; '.join(lacks)}"
    classes = [each for each in machine.classes if each.members & able]
    if not classes:
        return "exclude leaves none of the nodes"
    offered = frozenset[str]().union(*(each.node.features for each in classes))
    unknown = sorted(request.features - offered)
    if unknown:
        left = " of those that exclude leaves" if request.exclude else ""
        return f"no node{left} offers {', '.join(unknown)}" + (
            _close(unknown[0], offered) if offered else "; NodeClasses in the configuration says what nodes offer")
    names = {name for each in classes for name in each.node.resources}
    hint = "".join(_close(name, names) for name, _ in (*request.per_task, *request.per_node)
                   if name not in names)
    found = [(_lacks(request, each.node, room(each.node), policy), each) for each in classes]
    lacks, nearest = min(found, key=lambda each: (len(each[0]), _shortfall(request, each[1].node)))
    if not lacks or len(classes) == 1:
        return "; ".join(lacks) + hint
    alike = bits.count(nearest.members & able) - 1
    name = machine.nodes[next(bits.members(nearest.members & able))].name
    return (f"no node can; the nearest, {name}"
            + f" and {alike} like it" * bool(alike) + f": {'; '.join(lacks)}{hint}")


def lacking_licence(request: Request, licences: Mapping[str, int]) -> str:
    """Return a message about the licence of which the run has fewer than a job requests; "" if there is none."""
    for name, amount in request.licences:
        if licences.get(name, 0) < amount:
            there = said(name, licences[name]) if name in licences else "none"
            return (f"the job wants {said(name, amount)} licence(s) of {name}, the run has {there}"
                    + _close(name, licences) * (name not in licences))
    return ""


def _close(name: str, known: Iterable[str]) -> str:
    close = get_close_matches(name, known, 1)
    return f"; did you mean `{close[0]}`?" if close else ""


def _shortfall(request: Request, node: Node) -> float:
    """Return the sum of the parts that an empty node lacks of what a rank and the job request there."""
    wanted = total(request.per_task, request.per_node)
    return sum(max(0.0, 1 - base(name, node.resources.get(name, 0)) / amount)
               for name, amount in wanted)


def _lacks(request: Request, node: Node, widest: int, policy: str) -> list[str]:
    """Return what a rank, or the job on one node, requests that an empty node does not have."""
    found = []
    missing = sorted(request.features - node.features)
    if missing:
        found.append(f"it does not offer {', '.join(missing)}")
    for_all = dict(request.per_node)
    for name in sorted({*for_all, *dict(request.per_task)}):
        each, shared = dict(request.per_task).get(name, 0), for_all.get(name, 0)
        there = base(name, node.resources.get(name, 0))
        if each + shared > there:
            wants = [f"a rank wants {said(name, each)} of {name}"] * bool(each) + [
                f"the job{' wants' * (not each)} {said(name, shared)} of {name} on each node"] * bool(shared)
            found.append(f"{' and '.join(wants)}, a node has at most {said(name, there)}")
    if request.cores_per_task > widest:
        found.append(f"a rank wants {request.cores_per_task} cores of one socket, {policy} gives a "
                     f"job at most {widest}")
    return found
