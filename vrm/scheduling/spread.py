"""How the tasks of a job are spread over nodes, and why no nodes will ever do.

A job takes the first nodes of the order that together hold its tasks, as many on each as there is
room for. A job that says on how many nodes it runs gets so many, the first ones, and its tasks are
spread over them as evenly as their room allows; where the first ones would be too many, those with
the most room are taken.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Callable, Iterable, List, Mapping, Optional, Sequence, Tuple

from vrm.model import bits
from vrm.model.amounts import base, said, total
from vrm.model.job import Request
from vrm.model.node import Node, NodeClass

Rooms = Sequence[Tuple[int, int]]
"""Nodes by number, the first in the order first, with how many tasks each has room for (above 0)."""


def spread(rooms: Rooms, request: Request) -> Optional[List[Tuple[int, int]]]:
    """The nodes of a job and its tasks on each, in the order of the rooms; None when they do not
    suffice."""
    least, most = request.nodes
    chosen = _first(rooms, request.tasks, least)
    if chosen is not None and most and len(chosen) > most:
        largest = sorted(range(len(rooms)), key=lambda at: -rooms[at][1])
        found = _first([rooms[at] for at in largest], request.tasks, least)
        assert found is not None
        chosen = [rooms[at] for at in sorted(largest[:len(found)])]
    if chosen is None or most and len(chosen) > most:
        return None
    return _filled(chosen, request.tasks) if (least, most) == (1, 0) else _even(chosen,
                                                                                request.tasks)


def _first(rooms: Rooms, tasks: int, least: int) -> Optional[Rooms]:
    """The first nodes that hold the tasks, at least so many."""
    held = 0
    for at, (_, room) in enumerate(rooms, 1):
        held += room
        if held >= tasks and at >= least:
            return rooms[:at]
    return None


def _filled(rooms: Rooms, tasks: int) -> List[Tuple[int, int]]:
    found = []
    for node, room in rooms:
        here = min(room, tasks)
        found.append((node, here))
        tasks -= here
    return found


def _even(rooms: Rooms, tasks: int) -> List[Tuple[int, int]]:
    """As if each task went to the node that has the fewest so far, the first of several."""
    below, above = 1, tasks + 1  # the most that all can have who have room for it: from, to before
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


# ---------------------------------------------------------------------------- what is left of nodes


def most_tasks(request: Request, room: int, left: Callable[[str], int]) -> int:
    """How many tasks find room on a node whose cores hold `room` of them and that has `left(name)`
    of each resource."""
    for name, amount in request.per_node:
        if left(name) < amount:
            return 0
    node = dict(request.per_node)
    for name, amount in request.per_task:
        room = min(room, (left(name) - node.get(name, 0)) // amount)
    cap = request.tasks_per_node
    return min(room, cap) if cap else room


def most_on(request: Request, node: Node, room: int) -> int:
    """The same of an empty node; 0 where it lacks a feature."""
    if not request.features <= node.features:
        return 0
    return most_tasks(request, room, lambda name: base(name, node.resources.get(name, 0)))


# ------------------------------------------------------------------------------------- why never


def why_never(request: Request, classes: Sequence[NodeClass], licences: Mapping[str, int],
              room: Callable[[Node], int], policy: str) -> str:
    """What of a request no node can give, or the run has too few of; "" when nothing is. `room`
    says how wide a rank can be on an empty node. Of several kinds of nodes it names the nearest:
    that which lacks the fewest of them, and of these the smallest part."""
    unlicensed = lacking_licence(request, licences)
    if unlicensed:
        return unlicensed
    offered = frozenset[str]().union(*(each.node.features for each in classes))
    unknown = sorted(request.features - offered)
    if unknown:
        return f"no node offers {', '.join(unknown)}" + _close(unknown[0], offered)
    names = {name for each in classes for name in each.node.resources}
    hint = "".join(_close(name, names) for name, _ in (*request.per_task, *request.per_node)
                   if name not in names)
    found = [(_lacks(request, each.node, room(each.node), policy), each) for each in classes]
    lacks, nearest = min(found, key=lambda each: (len(each[0]), _shortfall(request, each[1].node)))
    if not lacks or len(classes) == 1:
        return "; ".join(lacks) + hint
    alike = bits.count(nearest.members) - 1
    return (f"no node can; the nearest, {nearest.node.name}"
            + f" and {alike} like it" * bool(alike) + f": {'; '.join(lacks)}{hint}")


def lacking_licence(request: Request, licences: Mapping[str, int]) -> str:
    """The licence of which the run has fewer than a job wants; "" when there is none."""
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
    """The parts that an empty node lacks of what a rank and the job want there, added up."""
    wanted = total(request.per_task, request.per_node)
    return sum(max(0.0, 1 - base(name, node.resources.get(name, 0)) / amount)
               for name, amount in wanted)


def _lacks(request: Request, node: Node, widest: int, policy: str) -> List[str]:
    """What a rank, or the job on one node, wants that an empty node has not."""
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
                f"the job {said(name, shared)} of {name} on each node"] * bool(shared)
            found.append(f"{' and '.join(wants)}, a node has at most {said(name, there)}")
    if request.cores_per_task > widest:
        found.append(f"a rank wants {request.cores_per_task} cores of one socket, {policy} gives a "
                     f"job at most {widest}")
    return found
