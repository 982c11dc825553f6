"""Read the file `state` of a run, written by any version of vrm, in one form."""

from __future__ import annotations

import json
import math
import os
import time
from typing import Any
from collections.abc import Collection, Iterator, Mapping

from vrm.model.forms import json_checks
from vrm.model.forms.fields import TABLE
from vrm.model.quantities import fold, numbers
from vrm.model.rules import checks
from vrm.model.forms.json_checks import Check, count, flag, line, list_of, mapping, maybe, number, one_of
from vrm.system.files import read_regular

Snapshot = Mapping[str, Any]

FORMATS = (1, 2)
"""Formats of state files that are read: 1 is that of vrm 0.1; since 2, neighbours in the queue that differ only in
ids and indices are one value, and `after` is a text of ranges."""


def read(path: str | os.PathLike[str], keys: Collection[str] = ()) -> Snapshot:
    """Return the state in a file, checked for the needed `keys` (default: all). Raises OSError if it cannot be read,
    ValueError if it is not a state."""
    return parsed(read_regular(path), keys)


def parsed(data: bytes, keys: Collection[str] = ()) -> Snapshot:
    """Return the state in the content of a file, checked for these `keys`. Raises ValueError if it is not a state."""
    try:
        found: Snapshot = json.loads(data)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    wrong = json_checks.fault(found, {key: _ALL[key] for key in keys or _ALL},
                              {**_ALL, "ahead": number, "licences": _amounts, "reservations": list_of(_RESERVATION),
                               "lends": list_of(_LEND)})
    if wrong:
        raise ValueError(wrong)
    return found


def now(snapshot: Snapshot) -> float:
    """Return the present time by the clock of the run, which the times of the snapshot use."""
    return time.time() - float(snapshot.get("ahead", 0.0))


def current(snapshot: Snapshot) -> Snapshot:
    """Return a snapshot with one value for each job, in which all keys of a job (`JOB`) are filled in.

    A snapshot in this form is returned unchanged. Raises ValueError for another format.
    """
    if snapshot.get("expanded"):
        return snapshot
    return {**snapshot, "jobs": list(jobs_of(snapshot)), "expanded": True}


def jobs_of(snapshot: Snapshot, apart: float = math.inf) -> Iterator[dict[str, Any]]:
    """Yield the jobs of a snapshot with all keys, one by one. More than `apart` equal neighbours stay one value with
    `count`: its `id` is the first of its `ids`, and its `index` is a text as 0-8:2. Raises ValueError for another
    format.
    """
    if snapshot.get("format") not in FORMATS:
        raise ValueError(f"the state has format {snapshot.get('format')!r} and this vrm reads"
                         f" formats {' and '.join(map(str, FORMATS))}: ask with the vrm that runs "
                         "the manager")
    for value in snapshot["jobs"]:
        yield from (value,) if snapshot.get("expanded") else _jobs(value, apart)


REQUIRED = tuple(each.shown for each in TABLE if each.shown and each.always
                 and each.default is None)
"""The keys that a state has for every job, besides `id`, `state` and `submit`."""

JOB: Mapping[str, Any] = {
    **{each.shown: each.plain_default for each in TABLE
       if each.shown and each.shown not in REQUIRED},
    "held": False, "late": False, "lacks": "", "after": "", "why": "", "more": {}}
"""Defaults of the keys of a job that a state may leave out."""


def _jobs(value: Mapping[str, Any], apart: float = math.inf) -> Iterator[dict[str, Any]]:
    """Yield the job of a value, or all its jobs; if these are more than `apart`, the value with all keys."""
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


# Checks of a state's form: a manager never writes a text with a control character.


def _sound(wanted: Mapping[str, Check], may: Mapping[str, Check]) -> Check:
    return lambda value: not json_checks.fault(value, wanted, may)


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
    return bool(named) and not json_checks.fault(
        value, {**_JOB, **(_RUNNING if running else {})}, _JOB_MAY)


def _amounts(value: Any) -> bool:
    """Return whether this is a valid table of amounts by name: free amount and total."""
    return mapping(value) and all(map(line, value)) and all(
        list_of(number)(each) and len(each) == 2 for each in value.values())


def _added(value: Any) -> bool:
    """Return whether this is a valid table of values of extension fields by name."""
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
    """Return the label of a job among others of its program: its name and, in an array, its index, or all indices of
    the value."""
    index = f"[{job['index']}]" if job["index"] is not None else ""
    return f"{job['name']}{index}"
