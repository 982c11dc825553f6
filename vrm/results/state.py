"""What the file `state` of a run says, whichever vrm has written it, in one form."""

from __future__ import annotations

import json
import math
import os
import time
from typing import Any
from collections.abc import Collection, Iterator, Mapping

from vrm.model.forms import shapes
from vrm.model.forms.fields import TABLE
from vrm.model.quantities import fold, numbers
from vrm.model.rules import checks
from vrm.model.forms.shapes import Check, count, flag, line, list_of, mapping, maybe, number, one_of
from vrm.system.files import read_regular

Snapshot = Mapping[str, Any]

FORMATS = (1, 2)
"""Of state files that are read: 1 is that of vrm 0.1; since 2, neighbours in the queue of which only
ids and indices differ are one value, and `after` is a text of ranges."""


def read(path: str | os.PathLike[str], keys: Collection[str] = ()) -> Snapshot:
    """The state in a file, of which these keys are needed (default: all). OSError when it cannot be
    read, ValueError when no manager wrote it."""
    return parsed(read_regular(path), keys)


def parsed(data: bytes, keys: Collection[str] = ()) -> Snapshot:
    """The same of a file's content."""
    try:
        found: Snapshot = json.loads(data)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    wrong = shapes.fault(found, {key: _ALL[key] for key in keys or _ALL},
                         {**_ALL, "ahead": number, "licences": _amounts, "reservations": list_of(_RESERVATION),
                          "lends": list_of(_LEND)})
    if wrong:
        raise ValueError(wrong)
    return found


def now(snapshot: Snapshot) -> float:
    """What time it is by the clock of the run, which the times of the snapshot are of."""
    return time.time() - float(snapshot.get("ahead", 0.0))


def current(snapshot: Snapshot) -> Snapshot:
    """A snapshot with one value for each job, and all keys of a job: those of `JOB` are filled in.

    What is in this form already is given back as it is. ValueError for another format.
    """
    if snapshot.get("expanded"):
        return snapshot
    return {**snapshot, "jobs": list(jobs_of(snapshot)), "expanded": True}


def jobs_of(snapshot: Snapshot, apart: float = math.inf) -> Iterator[dict[str, Any]]:
    """The jobs of a snapshot with all keys, one by one. Neighbours that are alike, more than `apart`, stay one value:
    `count` of them, of whose `ids` the first is its `id`, and whose `index` is a list as 0-8:2. ValueError as above.
    """
    if snapshot.get("format") not in FORMATS:
        raise ValueError(f"the state has format {snapshot.get('format')!r} and this vrm reads"
                         f" formats {' and '.join(map(str, FORMATS))}: ask with the vrm that runs "
                         "the manager")
    for value in snapshot["jobs"]:
        yield from (value,) if snapshot.get("expanded") else _jobs(value, apart)


REQUIRED = tuple(each.shown for each in TABLE if each.shown and each.always
                 and each.default is None)
"""What a state says of every job, besides `id`, `state` and `submit`."""

JOB: Mapping[str, Any] = {
    **{each.shown: each.plain_default for each in TABLE
       if each.shown and each.shown not in REQUIRED},
    "held": False, "late": False, "lacks": "", "after": "", "why": "", "more": {}}
"""What a job has of which a state says nothing."""


def _jobs(value: Mapping[str, Any], apart: float = math.inf) -> Iterator[dict[str, Any]]:
    """The job of a value, or all of its jobs, or if these are more than `apart` the value with all keys."""
    facts = {**JOB, **value}
    if isinstance(facts["after"], list):
        facts["after"] = fold(facts["after"])
    ids = numbers(facts["ids"]) if "ids" in facts else (facts["id"],)
    folded = facts.pop("indices", "")
    if len(ids) > apart:
        yield {**facts, "id": ids[0], "count": len(ids), "index": folded or facts["index"]}
        return
    facts.pop("ids", None)
    indices = numbers(folded) if folded else (facts["index"],) * len(ids)
    for job_id, index in zip(ids, indices):
        own = {} if index is None else {key: facts[key].replace("%i", str(index)) for key in ("args", "dir", "name")}
        yield {**facts, **own, "id": job_id, "index": index}


# What a state must look like: a text with a control character is none that a manager has written.


def _sound(wanted: Mapping[str, Check], may: Mapping[str, Check]) -> Check:
    return lambda value: not shapes.fault(value, wanted, may)


def _ranges(value: Any) -> bool:
    try:
        return type(value) is str and (not value or bool(numbers(value)))
    except ValueError:
        return False


def _after(value: Any) -> bool:
    return list_of(count)(value) or (line(value) and all(
        _ranges(part.removeprefix("any:")) for part in value.split(",")))


def _job(value: Any) -> bool:
    named = type(value) is dict and ("id" in value or value.get("ids"))
    running = named and value.get("state") == "running"
    return bool(named) and not shapes.fault(
        value, {**_JOB, **(_RUNNING if running else {})}, _JOB_MAY)


def _amounts(value: Any) -> bool:
    """What is free and what there is, by name."""
    return mapping(value) and all(map(line, value)) and all(
        list_of(number)(each) and len(each) == 2 for each in value.values())


def _added(value: Any) -> bool:
    """Values of fields of extensions, by name."""
    return mapping(value) and all(map(line, value)) and all(
        line(each) or number(each) or flag(each) for each in value.values())


_SHOWN: Mapping[str, Check] = {each.shown: each.kind.plain_sound for each in TABLE if each.shown}
_JOB: Mapping[str, Check] = {
    **{key: _SHOWN[key] for key in REQUIRED}, "submit": number,
    "state": one_of(("running", "queued"))}
_RUNNING: Mapping[str, Check] = {"start": number, "expected_end": number, "nodes": list_of(line)}
_JOB_MAY: Mapping[str, Check] = {
    **_SHOWN, "id": count, "ids": _ranges, "indices": _ranges, "binding": line, "held": flag,
    "late": flag, "lacks": line, "after": _after, "why": line, "expected_start": number, "devices": line,
    "extra": number, "more": _added}
_ALL: Mapping[str, Check] = {
    "format": count, "time": number, "emulated": flag,
    "manager": _sound({"host": line, "pid": count, "start": number, "phase": line}, {}),
    "scheduling": _sound(*checks()),
    "allocation": _sound({"end": maybe(number)}, {}),
    "nodes": list_of(_sound({"name": line, "sockets": list_of(list_of(maybe(count)))},
                            {"up": flag, "why": line, "resources": _amounts, "features": list_of(line),
                             "devices": lambda value: mapping(value) and all(map(line, value))
                             and all(map(list_of(count), value.values()))})),
    "jobs": list_of(_job),
    "ended": lambda value: mapping(value) and all(map(count, value.values())) and all(
        map(line, value))}


_RESERVATION = _sound({"id": count, "name": line, "nodes": list_of(line), "begin": number,
                       "end": number, "jobs": _ranges}, {})


_LEND = _sound({"id": count, "to": maybe(count), "phase": one_of(("lend", "lent", "regain")),
                "since": number, "cores": count, "nodes": list_of(line)}, {})


def label(job: Mapping[str, Any]) -> str:
    """What tells a job from others of its program: its name and, in an array, its index, or the indices of all that
    the value stands for."""
    index = f"[{job['index']}]" if job["index"] is not None else ""
    return f"{job['name']}{index}"
