"""Whether a record of a journal makes sense after those before it.

A journal without checksums (vrm 0.1.0) may have lost or changed a line and still be JSON. What it
would then have a manager do is asked here of each record, before it is believed: the values that
an event needs, and that its job is in a state in which it can happen.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, Dict, Union

from vrm.model import JobState, placement_forms, shapes
from vrm.model.fields import TABLE
from vrm.model.kinds import name_sound
from vrm.model.ranges import numbers
from vrm.model.rules import checks
from vrm.run import lending
from vrm.run.codec import own_sound
from vrm.model.shapes import (Check, count, flag, line, list_of, mapping, maybe, number, one_of,
                              positive, size, text, whole)

if TYPE_CHECKING:
    from vrm.run.journal import Past

Record = Dict[str, Any]

NEWEST = 2
"""The newest form of a journal that this vrm reads."""


class JournalError(ValueError):
    """A journal that is damaged; the text is `path:line: what is wrong`."""

    def __init__(self, path: "Union[str, os.PathLike[str]]", line: int, what: str) -> None:
        super().__init__(f"{os.fspath(path)}:{line}: {what}")


# ------------------------------------------------------------------------------------ values

def _path(value: Any) -> bool:
    return type(value) is str and "\0" not in value


def _pairs(second: Check) -> Check:
    """Pairs of the id of a job and something else."""
    return list_of(lambda value: type(value) is list and len(value) == 2 and count(value[0])
                   and second(value[1]))


def _rules(value: Any) -> bool:
    return mapping(value) and not shapes.fault(value, *checks())


def _cores(value: Any) -> bool:
    return type(value) is str and bool(re.fullmatch("0x[0-9a-f]{1,200000}", value))


def _node(value: Any) -> bool:
    if (type(value) is not list or len(value) not in (2, 3) or not line(value[0])
            or not list_of(positive)(value[1]) or not value[1]):
        return False
    return len(value) == 2 or not shapes.fault(value[2], {}, _NODE_MAY)


def _amounts(value: Any) -> bool:
    return type(value) is dict and all(
        line(name) and number(amount) and amount >= 0 for name, amount in value.items())


def _devices(value: Any) -> bool:
    return type(value) is dict and all(
        line(name) and list_of(_device)(each) for name, each in value.items())


def _device(value: Any) -> bool:
    return (type(value) is list and len(value) == 3 and count(value[0]) and whole(value[1])
            and line(value[2]))


_NODE_MAY: Dict[str, Check] = {"resources": _amounts, "features": list_of(line),
                               "devices": _devices}
"""What a node may have besides its sockets."""


def _position(value: Any) -> bool:
    return (type(value) is list and len(value) == 4 and all(map(size, value[:3]))
            and text(value[3]))


_STATES = {state.value for state in JobState if state.ended}

_WANTED: Dict[str, Dict[str, Check]] = {
    "run": {"run": lambda value: text(value) and bool(re.fullmatch(r"[0-9a-z]{1,64}", value))},
    "job": {"id": count, "submit": number, **{
        field.record: field.kind.sound for field in TABLE if field.record and field.always}},
    "input": {"ended": flag},
    "start": {"id": count, "time": number, "backfilled": flag,
              "placement": mapping},
    "back": {"id": count},
    "intent": {"id": count, "reason": text},
    "end": {"id": count, "time": number, "state": one_of(_STATES),
            "reason": text, "exit_code": maybe(whole)},
    "again": {"id": count, "retry": flag},
    "hold": {"id": count},
    "change": {"id": count, "walltime": lambda value: number(value) and value > 0, "priority": whole},
    "expect": {"jobs": _pairs(number)},
    "promise": {"time": number, "starts": _pairs(maybe(number))},
    "release": {"id": count},
    "reserve": {"reservation": positive, "name": name_sound, "nodes_reserved": list_of(line),
                "begin": number, "end": number, "jobs_bound": list_of(count), "time": number},
    "lend": {"number": positive, "id": count, "to": maybe(count), "cores": _cores, "time": number,
             "until": maybe(number)},
    "lent": {"number": positive, "id": count, "time": number},
    "regain": {"number": positive, "id": count, "reason": text, "time": number},
    "regained": {"number": positive, "id": count, "time": number},
    "grown": {"id": count, "cores": _cores, "width": positive, "time": number},
    "unreserve": {"reservation": positive, "reason": text, "time": number},
    "rules": {"time": number, "rules": _rules, "was": _rules, "reason": text},
    "finished": {},
}
"""The events of a journal, and the values that each must have."""


def _home(value: Any) -> bool:
    """The directory of a run."""
    return type(value) is dict and _path(value.get("path")) and size(value.get("inode"))


_MAY: Dict[str, Check] = {
    "time": number, "pid": count, "host": text, "boot": text, "allocation": text,
    "nodes": list_of(_node), "granted": list_of(_node), "lost": flag, "format": positive,
    "home": _home, "position": maybe(_position), "command": text,
    "ran": maybe(list_of(number, 2)),
    "slower": number,
}
"""Values of any event that are right where they are there; others are not looked at."""

_JOB_MAY: Dict[str, Check] = {**_MAY, **{
    field.record: field.kind.sound for field in TABLE if field.record and not field.always}, "own": own_sound}
"""The same of a job's record."""


# ------------------------------------------------------------------------------------ events


def fault(record: Record, past: "Past") -> str:
    """Why a record makes no sense after what those before it tell; "" when it does."""
    event = record["event"]
    wanted = _WANTED.get(event)
    if wanted is None:
        return f"unknown event {event[:40]!r}"
    wrong = shapes.fault(record, wanted, _JOB_MAY if event == "job" else _MAY)
    if wrong:
        return f"{event}: {wrong}"
    if event == "run":
        newer = record.get("format", 1) > NEWEST
        return "written by a newer vrm, which must continue it" if newer else ""
    if not past.runs:
        return "no manager's record comes first"
    return _out_of_order(event, record, past)


_LENDING = {"lend": "", "lent": lending.LENDING, "regain": lending.LENDING + lending.LENT,
            "regained": lending.REGAINING}
"""The events of lends, and in which phases those must be before them."""


def _lending_out_of_order(event: str, record: Record, past: "Past") -> str:
    number, job_id = record["number"], record["id"]
    found = past.state.lends.all.get(number)
    if event == "lend":
        if found is not None:
            return f"lend {number} is there already"
        return "" if job_id in past.started and job_id not in past.ended else (
            f"lend of job {job_id}, which does not run")
    if found is None or found.lender != job_id:
        return f"{event} of lend {number} of job {job_id}, which there is not"
    return "" if found.phase in _LENDING[event] else (
        f"{event} of lend {number}, which is in phase {found.phase}")


def _out_of_order(event: str, record: Record, past: "Past") -> str:
    """Why what a record tells cannot have happened to its job then."""
    if event in ("reserve", "unreserve"):
        known = record["reservation"] in past.state.reservations
        return "" if known == (event == "unreserve") else (
            f"{event} of reservation {record['reservation']}, which "
            f"{'is there already' if known else 'is not there'}")
    if "id" not in record:
        return ""
    job_id = record["id"]
    if event in _LENDING:
        return _lending_out_of_order(event, record, past)
    if event == "job":
        if job_id < past.state.next_id:
            return f"job {job_id} exists already"
        jobs = len(numbers(record["array"])) if "array" in record else 1
        return "" if len(record.get("own", range(jobs))) == jobs else f"job {job_id}: own is not of {jobs} jobs"
    if job_id not in past.state.book.entries:
        return f"{event} of job {job_id}, which never came"
    started, ended = job_id in past.started, job_id in past.ended
    if event == "start" and (started or ended):
        return f"job {job_id} starts, and it {'ended' if ended else 'runs'} already"
    if event == "end" and ended:
        return f"job {job_id} ends, and it ended already"
    if event == "change" and ended:
        return f"job {job_id} has ended, and its limit is changed"
    if event in ("back", "intent", "grown") and (ended or not started):
        return f"{event} of job {job_id}, which does not run"
    if event == "again" and not (started or ended):
        return f"job {job_id} waits again, and it never started"
    if event == "start":
        return placement_forms.fault(record["placement"], past.state.book.entries[job_id].job,
                                     [each[:2] for each in past.runs[-1].get("nodes", [])])
    return ""
