"""The formats in which a placement is kept: plain values for another process, a JSON record for files.

Both are read for the same nodes for which they were made: `layout` is that of their cluster. The form for people is in
`vrm.results.placement_text`.
"""

from __future__ import annotations

import itertools
import re
from functools import reduce
from operator import or_
from typing import Any
from collections.abc import Mapping, Sequence

from vrm.model import bits
from vrm.model.forms import json_checks
from vrm.model.job import Job, Request
from vrm.model.node import CORES, HALF, WHOLE, Node
from vrm.model.placement import CoreLayout, Lease, Placement

Values = tuple[Any, ...]
"""A placement as numbers, texts and tuples of them."""


def to_values(placement: Placement) -> Values:
    """Return the placement as values that `marshal` accepts."""
    return (placement.share, placement.room, placement.order, placement.procs, placement.width, placement.size,
            placement.most, placement.devices, placement.frequency, placement.pace,
            None if placement.lease is None else placement.lease.lent, tuple(map(to_values, placement.parts)))


def of_values(values: Values, layout: CoreLayout) -> Placement:
    """Return the placement with these values."""
    lent, parts = values[-2:]
    return Placement(*(*values[:-2], None if lent is None else Lease(lent), layout,
                       tuple(of_values(part, layout) for part in parts)))


def width_of(values: Values) -> int:
    """Return the number of cores of each rank."""
    width: int = values[4]
    return width


def to_record(placement: Placement) -> dict[str, Any]:
    """Return the placement as JSON values; sets of nodes or cores are hexadecimal."""
    if placement.parts:
        return {"parts": [to_record(part) for part in placement.parts]}
    lane0, lane1, held = placement.room
    ranks = {"procs": placement.procs, "width": placement.width}
    record: dict[str, Any]
    if placement.share == CORES:
        record = {"taken": hex(placement.taken), **ranks}
        if placement.lease is not None:
            record["lent"] = [[lender, hex(cores)] for lender, cores in placement.lent]
            if any(placement.room):
                record["room"] = list(map(hex, placement.room))
        elif held != placement.taken:
            record["held"] = hex(held)
    else:
        most = placement.most
        record = {"share": placement.share, "claims": [hex(lane0), hex(lane1)],
                  "order": [hex(group) for group in placement.order], **ranks,
                  "most": most and {str(node): ranks for node, ranks in most.items()}}
    record.update((name, getattr(placement, name)) for name, default in _PACE.items()
                  if getattr(placement, name) != default)
    if placement.devices:
        record["devices"] = {str(node): {name: list(indices) for name, indices in here.items()}
                             for node, here in placement.devices.items()}
    return record


def of_record(record: Mapping[str, Any], layout: CoreLayout) -> Placement:
    """Return the placement of a record that `fault` accepts."""
    if "parts" in record:
        return Placement.together([of_record(part, layout) for part in record["parts"]])
    lease = Lease(tuple((lender, int(cores, 16)) for lender, cores in record["lent"])) if "lent" in record else None
    most = record.get("most")
    if "taken" in record:
        share, order = CORES, [record["taken"]]
        claims = record.get("room", ["0x0"] * 3) if lease else ["0x0", "0x0", record.get("held", record["taken"])]
    else:
        share, order, claims = record["share"], record["order"], [*record["claims"], "0x0"]
    lane0, lane1, held = (int(claim, 16) for claim in claims)
    return Placement(share, (lane0, lane1, held), tuple(int(group, 16) for group in order), record["procs"],
                     record["width"], most=most and {int(node): ranks for node, ranks in most.items()},
                     devices={int(node): {name: tuple(indices) for name, indices in here.items()}
                              for node, here in record.get("devices", {}).items()},
                     lease=lease, layout=layout, **_pace(record))


def moved(placement: Placement, before: tuple[Sequence[Node], CoreLayout], now: tuple[Sequence[Node], CoreLayout]
          ) -> Placement | None:
    """Renumber a placement for another list of nodes; returns None if a node is missing there, or has other sockets."""
    if placement.parts:
        parts = [found for part in placement.parts if (found := moved(part, before, now)) is not None]
        return Placement.together(parts) if len(parts) == len(placement.parts) else None
    (old_nodes, old), (nodes, layout) = before, now
    index = {node.name: number for number, node in enumerate(nodes)}
    new: dict[int, int] = {}
    for number in bits.members(placement.node_set):
        node = old_nodes[number]
        other = index.get(node.name)
        if other is None or nodes[other].sockets != node.sockets:
            return None
        new[number] = other

    def set_of(some: int) -> int:
        return sum(1 << new[number] for number in bits.members(some))

    def there(cores: int) -> int:
        return sum(old.on_node(cores, number) << layout.node_first[other] for number, other in new.items())

    lane0, lane1, held = placement.room
    # One set for each node: the ranks keep their order although the node numbers change.
    order = ([there(placement.taken)] if placement.share == CORES else [1 << new[number] for number in placement.nodes])
    return Placement(placement.share, (set_of(lane0), set_of(lane1), there(held)), tuple(order), placement.procs,
                     placement.width, most=placement.most and {new[n]: most for n, most in placement.most.items()},
                     frequency=placement.frequency, pace=placement.pace, layout=layout,
                     lease=placement.lease and Lease(tuple((lender, there(cores)) for lender, cores in placement.lent)))


def moved_cores(cores: int, before: tuple[Sequence[Node], CoreLayout], now: tuple[Sequence[Node], CoreLayout]
                ) -> int:
    """Renumber a set of cores for another list of nodes, without the cores of nodes that are missing there or have
    other sockets."""
    (old_nodes, old), (nodes, layout) = before, now
    index = {node.name: number for number, node in enumerate(nodes)}
    found = 0
    for number in bits.members(old.nodes_of(cores)):
        other = index.get(old_nodes[number].name)
        if other is not None and nodes[other].sockets == old_nodes[number].sockets:
            found |= old.on_node(cores, number) << layout.node_first[other]
    return found


def fault(record: Mapping[str, Any], job: Job, nodes: Sequence[tuple[str, Sequence[int]]]) -> str:
    """Return why a record cannot be the job's placement on `nodes` (names with the core counts of their sockets); ""
    if it can."""
    wrong = ""
    if job.request.parts:
        parts = record.get("parts")
        if not (type(parts) is list and len(parts) == len(job.request.parts)
                and all(type(each) is dict for each in parts)):
            return "placement: it is that of another job"
        faults = [fault(each, part, nodes) for each, part in zip(parts, job.parts)]
        return next(filter(None, faults), "") or _overlap_fault(parts)
    if not _of_job(record, job.request):
        wrong = "it is that of another job"
    elif "devices" in record and not _devices_sound(record["devices"], len(nodes)):
        wrong = "its devices are wrong"
    elif not all(json_checks.number(each) and 0 <= each < 1e6 for each in _pace(record).values()):
        wrong = "its frequency or pace is wrong"
    elif "taken" in record:
        wrong = _cores_fault(record, sum(sum(sockets) for _, sockets in nodes))
    else:
        wrong = _lanes_fault(record, len(nodes))
    return wrong and f"placement: {wrong}"


def _of_job(record: Mapping[str, Any], request: Request) -> bool:
    """Return whether its ranks match the request; on lent cores, ranks may have fewer cores than requested."""
    width: Any = record.get("width")
    return record.get("procs") == request.tasks and (width == request.cores_per_task or (
        "lent" in record and json_checks.positive(width) and width < request.cores_per_task))


def _cores_fault(record: Mapping[str, Any], cores: int) -> str:
    taken, held = _set(record["taken"], cores), _set(record.get("held", "0x0"), cores)
    lent = record.get("lent", [])
    if not (type(lent) is list and all(type(each) is list and len(each) == 2 and json_checks.count(each[0])
                                       and _set(each[1], cores) for each in lent)):
        return "what it borrows is wrong"
    room = record.get("room", ["0x0"] * 3)
    if not (type(room) is list and len(room) == 3 and all(_set(each, cores) is not None for each in room)):
        return "its room is wrong"
    if taken is None or bits.count(taken) != record["procs"] * record["width"]:
        return "its cores are wrong"
    return "its cores are wrong" if "held" in record and taken & ~(held or 0) else ""


def _lanes_fault(record: Mapping[str, Any], nodes: int) -> str:
    claims, order, most = record.get("claims"), record.get("order"), record.get("most", "")
    if (record.get("share") not in (WHOLE, HALF) or type(claims) is not list
            or len(claims) != 2 or type(order) is not list):
        return "it is not understood"
    sets = [some for each in (*claims, *order) if (some := _set(each, nodes)) is not None]
    if len(sets) < 2 + len(order):
        return "its claims or its order is wrong"
    held = sets[0] | sets[1]
    if not held or reduce(or_, sets[2:], 0) != held or sum(map(bits.count, sets[2:])) != bits.count(held):
        return "its nodes are wrong"
    return "" if most is None or (type(most) is dict and all(
        re.fullmatch("[0-9]{1,9}", node) and json_checks.count(ranks) for node,
        ranks in most.items())) else "most is wrong"


def _overlap_fault(parts: Sequence[Mapping[str, Any]]) -> str:
    """Return why the programs of a coupled job cannot all be where they are; "" if they can."""
    rooms = [tuple(int(each, 16) for each in (*part.get("claims", ("0x0", "0x0")), part.get("taken", "0x0")))
             for part in parts]
    twice = any(one & other for first, second in itertools.combinations(rooms, 2) for one, other in zip(first, second))
    return "placement: two programs are on one core" if twice or len({"taken" in part for part in parts}) > 1 else ""


_PACE = {"frequency": 0.0, "pace": 1.0}
"""The optional values of a record, with their defaults."""


def _pace(record: Mapping[str, Any]) -> dict[str, Any]:
    return {name: record.get(name, default) for name, default in _PACE.items()}


def _devices_sound(value: Any, nodes: int) -> bool:
    """Return whether the value can be devices by node and resource."""
    indices = json_checks.list_of(json_checks.count)
    return type(value) is dict and all(
        re.fullmatch("[0-9]{1,9}", node) and int(node) < nodes and type(here) is dict
        and all(json_checks.line(name) and indices(each) and len(set(each)) == len(each)
                for name, each in here.items())
        for node, here in value.items())


_HEX = re.compile(r"0x[0-9a-f]{1,200000}")


def _set(value: Any, below: int) -> int | None:
    """Parse a hexadecimal set of numbers less than `below`; None if it is not one."""
    if type(value) is not str or not _HEX.fullmatch(value):
        return None
    found = int(value, 16)
    return found if found.bit_length() <= below else None
