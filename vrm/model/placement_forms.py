"""The forms in which a placement is kept: plain values for another process, a JSON record for files.

Both are read again on the nodes that it was made for: `layout` is that of their cluster. What people
read is in `vrm.results.places`.
"""

from __future__ import annotations

import re
from typing import Any, Dict, Mapping, Optional, Sequence, Tuple

from vrm.model import bits, shapes
from vrm.model.cluster import AnyPlacement
from vrm.model.core_share import Borrowed
from vrm.model.job import Job
from vrm.model.node import HALF, WHOLE
from vrm.model.placement import CoreLayout, CorePlacement, Placement

Values = Tuple[Any, ...]
"""A placement as numbers, texts and tuples of them."""

_BY_CORE, _BORROWED = 7, 8  # values of a placement made core by core; of others there are more


def to_values(placement: AnyPlacement) -> Values:
    """The placement as values that `marshal` takes."""
    if isinstance(placement, Borrowed):
        return (placement.taken, placement.procs, placement.width, placement.devices, placement.lent,
                placement.hold, placement.frequency, placement.pace)
    if isinstance(placement, CorePlacement):
        return (placement.taken, placement.procs, placement.width, placement.devices,
                placement.frequency, placement.pace, 0 if placement.held is placement.taken else placement.held)
    return (placement.share, placement.claims, placement.order, placement.procs, placement.width,
            placement.size, placement.most, placement.devices, placement.frequency, placement.pace)


def of_values(values: Values, layout: CoreLayout) -> AnyPlacement:
    """The placement of some values."""
    if len(values) == _BORROWED:
        taken, procs, width, given, lent, hold, frequency, pace = values
        borrowed = Borrowed(layout, taken, procs, width, lent, hold)
        borrowed.devices, borrowed.frequency, borrowed.pace = given, frequency, pace
        return borrowed
    return CorePlacement(layout, *values) if len(values) == _BY_CORE else Placement(*values)


def width_of(values: Values) -> int:
    """The cores of each rank."""
    width: int = values[2 if len(values) <= _BORROWED else 4]
    return width


def to_record(placement: AnyPlacement) -> Dict[str, Any]:
    """The placement as JSON values; sets of nodes or cores are hexadecimal."""
    record: Dict[str, Any]
    if isinstance(placement, CorePlacement):
        record = {"taken": hex(placement.taken), "procs": placement.procs,
                  "width": placement.width}
        if placement.held != placement.taken and not isinstance(placement, Borrowed):
            record["held"] = hex(placement.held)
        if isinstance(placement, Borrowed):
            record["lent"] = [[lender, hex(cores)] for lender, cores in placement.lent]
    else:
        most = placement.most
        record = {"share": placement.share, "claims": [hex(claim) for claim in placement.claims],
                  "order": [hex(group) for group in placement.order], "procs": placement.procs,
                  "width": placement.width,
                  "most": most and {str(node): ranks for node, ranks in most.items()}}
    for name, default in _PACE.items():
        if getattr(placement, name) != default:
            record[name] = getattr(placement, name)
    if placement.devices:
        record["devices"] = {str(node): {name: list(indices) for name, indices in here.items()}
                             for node, here in placement.devices.items()}
    return record


def of_record(record: Mapping[str, Any], layout: CoreLayout) -> AnyPlacement:
    """The placement of a record, of which `fault` finds nothing wrong."""
    devices = {int(node): {name: tuple(indices) for name, indices in here.items()}
               for node, here in record.get("devices", {}).items()}
    if "lent" in record:
        borrowed = Borrowed(layout, int(record["taken"], 16), record["procs"], record["width"],
                            tuple((lender, int(cores, 16)) for lender, cores in record["lent"]))
        borrowed.devices = devices
        borrowed.frequency, borrowed.pace = _pace(record).values()
        return borrowed
    if "taken" in record:
        return CorePlacement(layout, int(record["taken"], 16), record["procs"], record["width"],
                             devices, held=int(record.get("held", "0x0"), 16), **_pace(record))
    lane0, lane1 = (int(claim, 16) for claim in record["claims"])
    most = record["most"]
    return Placement(record["share"], (lane0, lane1),
                     tuple(int(group, 16) for group in record["order"]), record["procs"],
                     record["width"], devices=devices, **_pace(record),
                     most=most and {int(node): ranks for node, ranks in most.items()})


def fault(record: Mapping[str, Any], job: Job, nodes: Sequence[Tuple[str, Sequence[int]]]) -> str:
    """Why a record cannot be that of a job's placement on `nodes`, which are names with the cores of
    their sockets; "" when it can."""
    request = job.request
    width: Any = record.get("width")
    if (record.get("procs") != request.tasks or width != request.cores_per_task and not (
            "lent" in record and shapes.positive(width) and width < request.cores_per_task)):
        return "placement: it is that of another job"
    if not _devices_sound(record.get("devices", {}), len(nodes)):
        return "placement: its devices are wrong"
    if not all(shapes.number(each) and 0 <= each < 1e6 for each in _pace(record).values()):
        return "placement: its frequency or pace is wrong"
    if "taken" in record:
        cores = sum(sum(sockets) for _, sockets in nodes)
        taken = _set(record["taken"], cores)
        held = _set(record.get("held", "0x0"), cores)
        wrong = (taken is None or bits.count(taken) != request.tasks * record["width"]
                 or "held" in record and bool(taken & ~(held or 0)))
        if "lent" in record and not (type(record["lent"]) is list and all(
                type(each) is list and len(each) == 2 and shapes.count(each[0])
                and _set(each[1], cores) for each in record["lent"])):
            return "placement: what it borrows is wrong"
        return "placement: its cores are wrong" if wrong else ""
    claims, order = record.get("claims"), record.get("order")
    if (record.get("share") not in (WHOLE, HALF) or type(claims) is not list
            or len(claims) != 2 or type(order) is not list):
        return "placement: it is not understood"
    held, ranked = 0, 0
    for claim in claims:
        group = _set(claim, len(nodes))
        if group is None:
            return "placement: claims is wrong"
        held |= group
    for each in order:
        group = _set(each, len(nodes))
        if group is None or group & ranked:
            return "placement: order is wrong"
        ranked |= group
    if held != ranked or not held:
        return "placement: its nodes are wrong"
    if "most" not in record:
        return "placement: most is missing"
    most = record["most"]
    if most is not None and not (type(most) is dict and all(
            re.fullmatch("[0-9]{1,9}", node) and shapes.count(ranks)
            for node, ranks in most.items())):
        return "placement: most is wrong"
    return ""


_PACE = {"frequency": 0.0, "pace": 1.0}
"""What a record has of a placement where it is another value."""


def _pace(record: Mapping[str, Any]) -> Dict[str, Any]:
    return {name: record.get(name, default) for name, default in _PACE.items()}


def _devices_sound(value: Any, nodes: int) -> bool:
    """Whether a value can be devices by node and resource."""
    indices = shapes.list_of(shapes.count)
    return type(value) is dict and all(
        re.fullmatch("[0-9]{1,9}", node) and int(node) < nodes and type(here) is dict
        and all(shapes.line(name) and indices(each) and len(set(each)) == len(each)
                for name, each in here.items())
        for node, here in value.items())


_HEX = re.compile(r"0x[0-9a-f]{1,200000}")


def _set(value: Any, below: int) -> Optional[int]:
    """A set of numbers below a limit; None where it is none."""
    if type(value) is not str or not _HEX.fullmatch(value):
        return None
    found = int(value, 16)
    return found if found.bit_length() <= below else None
