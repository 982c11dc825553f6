"""Whether a record of a journal makes sense after those before it.

A journal without checksums (vrm 0.1.0) may have lost or changed a line and still be JSON. What it
would then have a manager do is asked here of each record, before it is believed: the values that
an event needs, and that its job is in a state in which it can happen.
"""

from __future__ import annotations

import math
import os
import re
from typing import TYPE_CHECKING, Any, Callable, Dict, Optional, Sequence, Union

from vrm.model import JobState, bits
from vrm.model.node import HALF, WHOLE
from vrm.workload.queue_file import (LONGEST_TIME, LineError, check_app, dependencies,
                                     numbers)

if TYPE_CHECKING:
    from vrm.live.journal import Past

Record = Dict[str, Any]
Check = Callable[[Any], bool]

NEWEST = 2
"""The newest form of a journal that this vrm reads."""


class JournalError(ValueError):
    """A journal that is damaged; the text is `path:line: what is wrong`."""

    def __init__(self, path: "Union[str, os.PathLike[str]]", line: int, what: str) -> None:
        super().__init__(f"{os.fspath(path)}:{line}: {what}")


# ------------------------------------------------------------------------------------ values

_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]")  # a line of a queue cannot hold them
_VARIABLE = re.compile(r"(?!VRM_)[A-Za-z_][A-Za-z0-9_]*")
_HEX = re.compile(r"0x[0-9a-f]{1,200000}")
_MOST = 10 ** 9


def _count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _MOST


def _positive(value: Any) -> bool:
    return _count(value) and value > 0


def _whole(value: Any) -> bool:
    return type(value) is int and -_MOST <= value <= _MOST


def _size(value: Any) -> bool:
    """Of a file: an inode or an offset."""
    return type(value) is int and 0 <= value < 1 << 64


def _number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and abs(value) < 1e15


def _seconds(value: Any) -> bool:
    return _number(value) and 0 < value <= LONGEST_TIME


def _flag(value: Any) -> bool:
    return type(value) is bool


def _text(value: Any) -> bool:
    return type(value) is str


def _line_text(value: Any) -> bool:
    """A text that a line of a queue can say."""
    return type(value) is str and not _CONTROL.search(value)


def _application(value: Any) -> bool:
    try:
        return type(value) is str and bool(check_app(value))
    except LineError:
        return False


def _numbers(value: Any) -> bool:
    try:
        return type(value) is str and bool(numbers(value))
    except ValueError:
        return False


def _variables(value: Any) -> bool:
    return type(value) is dict and all(_VARIABLE.fullmatch(name) and _line_text(text)
                                       for name, text in value.items())


def _list(check: Check, size: Optional[int] = None) -> Check:
    return lambda value: (type(value) is list and all(map(check, value))
                          and size in (None, len(value)))


def _after(value: Any) -> bool:
    """Ids as `after=` has them, or as vrm 0.1.0 wrote them."""
    try:
        return _list(_dependency)(value) or (
            type(value) is str and all(each.ids for each in dependencies(value)))
    except ValueError:
        return False


def _dependency(value: Any) -> bool:
    return type(value) is list and len(value) == 2 and _count(value[0]) and _flag(value[1])


def _node(value: Any) -> bool:
    return (type(value) is list and len(value) == 2 and _line_text(value[0])
            and _list(_positive)(value[1]) and bool(value[1]))


def _position(value: Any) -> bool:
    return (type(value) is list and len(value) == 4 and all(map(_size, value[:3]))
            and _text(value[3]))


def _maybe(check: Check) -> Check:
    return lambda value: value is None or check(value)


_STATES = {state.value for state in JobState if state.ended}

_WANTED: Dict[str, Dict[str, Check]] = {
    "run": {"run": lambda value: _text(value) and bool(re.fullmatch(r"[0-9a-z]{1,64}", value))},
    "job": {"id": _count, "app": _application, "procs": _positive, "estimate": _seconds,
            "submit": _number, "exclusive": _flag, "cores": _positive},
    "input": {"ended": _flag},
    "start": {"id": _count, "time": _number, "backfilled": _flag,
              "placement": lambda value: type(value) is dict},
    "back": {"id": _count},
    "intent": {"id": _count, "reason": _text},
    "end": {"id": _count, "time": _number, "state": lambda value: _text(value) and value in _STATES,
            "reason": _text, "exit_code": _maybe(_whole)},
    "again": {"id": _count, "retry": _flag},
    "hold": {"id": _count},
    "release": {"id": _count},
    "finished": {},
}
"""The events of a journal, and the values that each must have."""

def _home(value: Any) -> bool:
    """The directory of a run."""
    return type(value) is dict and _line_text(value.get("path")) and _size(value.get("inode"))


_MAY: Dict[str, Check] = {
    "time": _number, "pid": _count, "host": _text, "boot": _text, "allocation": _text,
    "nodes": _list(_node), "granted": _list(_node), "lost": _flag, "format": _positive,
    "home": _home, "position": _maybe(_position), "command": _text,
    "priority": _whole, "after": _after, "retries": _count, "variables": _variables,
    "arguments": _list(_line_text), "directory": _line_text, "held": _flag, "name": _line_text,
    "array": _numbers, "ran": _maybe(_list(_number, 2)),
}
"""Values that are right where they are there; others are not looked at."""


# ------------------------------------------------------------------------------------ events


def fault(record: Record, past: "Past") -> str:
    """Why a record makes no sense after what those before it tell; "" when it does."""
    event = record["event"]
    wanted = _WANTED.get(event)
    if wanted is None:
        return f"unknown event {event[:40]!r}"
    for name, check in wanted.items():
        if name not in record:
            return f"{event} without {name}"
        if not check(record[name]):
            return f"{event}: {name} is wrong"
    for name, check in _MAY.items():
        if name in record and name not in wanted and not check(record[name]):
            return f"{event}: {name} is wrong"
    if event == "run":
        newer = record.get("format", 1) > NEWEST
        return "written by a newer vrm, which must go on with it" if newer else ""
    if not past.runs:
        return "no manager's record comes first"
    return _out_of_order(event, record, past)


def _out_of_order(event: str, record: Record, past: "Past") -> str:
    """Why what a record tells cannot have happened to its job then."""
    if "id" not in record:
        return ""
    job_id = record["id"]
    if event == "job":
        return f"job {job_id} is there already" if job_id < past.next_id else ""
    if job_id not in past.jobs:
        return f"{event} of job {job_id}, which never came"
    started, ended = job_id in past.started, job_id in past.ended
    if event == "start" and (started or ended):
        return f"job {job_id} starts, and it {'ended' if ended else 'runs'} already"
    if event == "end" and ended:
        return f"job {job_id} ends, and it ended already"
    if event in ("back", "intent") and (ended or not started):
        return f"{event} of job {job_id}, which does not run"
    if event == "again" and not (started or ended):
        return f"job {job_id} waits again, and it never started"
    if event == "start":
        return _misplaced(record["placement"], past.jobs[job_id], past.runs[-1].get("nodes", []))
    return ""


def _misplaced(placement: Record, job: Any, nodes: Sequence[Any]) -> str:
    """Why a placement cannot be that of a job on the nodes of its run."""
    if placement.get("procs") != job.procs or placement.get("width") != job.cores:
        return "placement: it is that of another job"
    if "taken" in placement:
        cores = sum(sum(sockets) for _, sockets in nodes)
        taken = _set(placement["taken"], cores)
        wrong = taken is None or bits.count(taken) != job.procs * job.cores
        return "placement: its cores are wrong" if wrong else ""
    claims, order = placement.get("claims"), placement.get("order")
    if (placement.get("share") not in (WHOLE, HALF) or type(claims) is not list
            or len(claims) != 2 or type(order) is not list):
        return "placement: it is not understood"
    held, ranked = 0, 0
    for values, into in ((claims, "claims"), (order, "order")):
        for text in values:
            group = _set(text, len(nodes))
            if group is None or (into == "order" and group & ranked):
                return f"placement: {into} is wrong"
            if into == "claims":
                held |= group
            else:
                ranked |= group
    most = placement.get("most")
    if held != ranked or not held:
        return "placement: its nodes are wrong"
    if most is not None and not (type(most) is dict and all(
            re.fullmatch("[0-9]{1,9}", name) and _count(ranks) for name, ranks in most.items())):
        return "placement: most is wrong"
    return ""


def _set(text: Any, size: int) -> Optional[int]:
    """A set of numbers below `size`; None where it is none."""
    if type(text) is not str or not _HEX.fullmatch(text):
        return None
    value = int(text, 16)
    return value if value.bit_length() <= size else None
