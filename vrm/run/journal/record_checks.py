"""Checks the values of journal records.

A journal without checksums (vrm 0.1.0) may have lost or changed a line and still be valid JSON. So each record is
checked before use: its values here, and in `vrm.run.journal.history` whether the event was possible at that point.
"""

from __future__ import annotations

import os
import re
import sys
from typing import Any
from collections.abc import Iterator, Mapping

from vrm.model import JobState
from vrm.model.forms import json_checks
from vrm.model.forms.fields import TABLE
from vrm.model.forms.field_types import name_sound
from vrm.model.rules import checks
from vrm.run.journal import combined_records
from vrm.run.journal.codec import (MOST_TEMPLATES, TEMPLATE_KEYS, MissingExtension, is_own_dependencies,
                                   more_fault, template_key)
from vrm.model.forms.json_checks import (Check, count, flag, line, list_of, mapping, maybe, number, one_of,
                              positive, size, text, whole)

Record = dict[str, Any]

NEWEST = 4
"""The newest journal format that this vrm reads."""


class JournalError(ValueError):
    """A damaged journal; the text is `path:line: what is wrong`. `missing`: the record is right, but its extension is
    not installed."""

    def __init__(self, path: str | os.PathLike[str], line: int, what: str) -> None:
        super().__init__(f"{os.fspath(path)}:{line}: {what}")
        self.missing = isinstance(what, MissingExtension)  # not damaged: an extension is not installed


# ------------------------------------------------------------------------------------ values

def _path(value: Any) -> bool:
    return type(value) is str and "\0" not in value


def _pairs(second: Check) -> Check:
    """Return a check for lists of pairs: a job id and a value that passes `second`."""
    return list_of(lambda value: type(value) is list and len(value) == 2 and count(value[0])
                   and second(value[1]))


def _rules(value: Any) -> bool:
    return mapping(value) and not json_checks.fault(value, *checks())


def _cores(value: Any) -> bool:
    return type(value) is str and bool(re.fullmatch("0x[0-9a-f]{1,200000}", value))


def _node(value: Any) -> bool:
    if (type(value) is not list or len(value) not in (2, 3) or not line(value[0])
            or not list_of(positive)(value[1]) or not value[1]):
        return False
    return len(value) == 2 or not json_checks.fault(value[2], {}, _NODE_MAY)


def _amounts(value: Any) -> bool:
    return type(value) is dict and all(
        line(name) and number(amount) and amount >= 0 for name, amount in value.items())


def _devices(value: Any) -> bool:
    return type(value) is dict and all(
        line(name) and list_of(_device)(each) for name, each in value.items())


def _device(value: Any) -> bool:
    return (type(value) is list and len(value) == 3 and count(value[0]) and whole(value[1])
            and line(value[2]))


_NODE_MAY: dict[str, Check] = {"resources": _amounts, "features": list_of(line),
                               "devices": _devices, "threads": positive}
"""Optional values of a node, besides its name and sockets."""


def _position(value: Any) -> bool:
    return (type(value) is list and len(value) == 4 and size(value[0]) and size(value[1]) and size(value[2])
            and type(value[3]) is str)


_is_digest = re.compile("[0-9a-f]{1,16}").fullmatch


def _digest(value: Any) -> bool:
    return type(value) is str and bool(_is_digest(value))


STATES = {state.value: state for state in JobState if state.ended}
"""The end states of jobs by name."""

WANTED: dict[str, dict[str, Check]] = {
    "run": {"run": lambda value: text(value) and bool(re.fullmatch(r"[0-9a-z]{1,64}", value))},
    "job": {"id": count, "submit": number, **{
        field.record: field.kind.sound for field in TABLE if field.record and field.always}},
    "lines": {"gone": list_of(count), "moved": _pairs(count), "time": number},
    "input": {"ended": flag},
    "start": {"id": count, "time": number, "backfilled": flag,
              "placement": mapping},
    "back": {"id": count},
    "intent": {"id": count, "reason": text},
    "end": {"id": count, "time": number, "state": one_of(STATES),
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
    "part": {"part": line, "package": line, "what": line, "values": mapping, "time": number},
    "finished": {}, **combined_records.WANTED,
}
WANTED["revise"] = WANTED["job"]
"""For each journal event its required values, and their checks."""


def _home(value: Any) -> bool:
    """Return whether this is a valid record of a run's directory."""
    return type(value) is dict and _path(value.get("path")) and size(value.get("inode"))


def _as(value: Any) -> bool:
    """Return whether this is a valid record of a job that starts on another number of ranks: the ranks, and its
    times."""
    return (type(value) is dict and positive(value.get("procs"))
            and all(number(value.get(name)) and value[name] > 0 for name in ("walltime", "expected")))


_NOWHERE = [0, 0, 0, ""]
_exit_code = WANTED["end"]["exit_code"]


def _ran(value: Any) -> bool:
    return type(value) is list and len(value) == 2 and number(value[0]) and number(value[1])


_MAY: dict[str, Check] = {
    "time": number, "pid": count, "host": text, "boot": text, "allocation": text,
    "nodes": list_of(_node), "granted": list_of(_node), "lost": flag, "format": positive,
    "home": _home, "position": maybe(_position), "command": text,
    "ran": maybe(_ran),
    "slower": number, "as": _as,
}
"""Optional values of any event, and their checks; values with other names are not checked."""

_JOB_MAY: dict[str, Check] = {**_MAY, **{
    field.record: field.kind.sound for field in TABLE if field.record and not field.always},
    "own": is_own_dependencies, "line": _digest, "at": count, "fault": text}
"""Optional values of a job's record, and their checks."""


_EVENTS = {event: (wanted.keys(), {**(_JOB_MAY if event in ("job", "revise", "change") else _MAY), **wanted})
           for event, wanted in WANTED.items()}
_OWN = {name: check for name, check in _EVENTS["job"][1].items() if name not in TEMPLATE_KEYS}
_sound: set[bytes] = set()
"""The `template_key`s of checked records: for later records with the same key only the other values are checked."""


_STARTS = [frozenset(("event", *WANTED["start"], name)) for name in ("sum", "SUM")]
_END = frozenset(("event", *WANTED["end"]))
_END_MAY = _END | {"ran", "cause", "sum", "SUM"}
_JOB_OWN = frozenset(("event", "id", "submit", "line", "position", "command", "sum", "SUM"))


def is_usual(record: Record) -> bool:
    """Return whether this is a job, a start or an end in which nothing is unusual, and nothing wrong by itself. Most
    records are, and this is much faster than `fault`; for all others `fault` decides."""
    event, at = record["event"], record.get("time")
    if event == "start":
        return (record.keys() in _STARTS and count(record["id"]) and type(at) is float and -1e15 < at < 1e15
                and type(record["backfilled"]) is bool and type(record["placement"]) is dict)
    if event == "end":
        return (_END <= record.keys() <= _END_MAY and count(record["id"]) and type(at) is float
                and -1e15 < at < 1e15 and type(record["state"]) is str and record["state"] in STATES
                and type(record["reason"]) is str and _exit_code(record["exit_code"])
                and ("ran" not in record or _ran(record["ran"])))
    if event != "job" or not record.keys() - TEMPLATE_KEYS <= _JOB_OWN or template_key(record) not in _sound:
        return False
    return (count(record.get("id")) and number(record.get("submit")) and _digest(record.get("line", "0"))
            and _position(record.get("position", _NOWHERE)) and type(record.get("command", "")) is str)


class CompactRecord(Mapping[str, Any]):
    """A memory-saving form of a record: there may be hundreds of thousands of records."""

    __slots__: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> Any:
        try:
            return getattr(self, name)
        except AttributeError:
            raise KeyError(name) from None

    def __iter__(self) -> Iterator[str]:
        return (name for name in self.__slots__ if hasattr(self, name))

    def __len__(self) -> int:
        return sum(1 for _ in self)


class StartRecord(CompactRecord):
    """The compact record of a job's start."""

    __slots__ = ("id", "time", "backfilled", "placement")

    def __init__(self, record: Record, placement: Record) -> None:
        self.id: int = record["id"]
        self.time: float = record["time"]
        self.backfilled: bool = record["backfilled"]
        self.placement = placement


class EndRecord(CompactRecord):
    """The compact record of a job's end."""

    __slots__ = ("time", "state", "reason", "exit_code", "cause", "slower")

    def __init__(self, record: Record) -> None:
        self.time: float = record["time"]
        self.state = sys.intern(record["state"])
        self.reason = sys.intern(record["reason"])
        self.exit_code: int | None = record["exit_code"]
        for name in ("cause", "slower"):
            if name in record:
                setattr(self, name, record[name])

    @property
    def way(self) -> Record:
        """How the job ended: all but the time."""
        found: Record = {"state": self.state, "reason": self.reason, "exit_code": self.exit_code}
        found.update((name, getattr(self, name)) for name in ("cause", "slower") if hasattr(self, name))
        return found


def fault(record: Record) -> str:
    """Return which value of a record is missing or wrong; "" if the record is valid."""
    event = record["event"]
    if event not in _EVENTS:
        return f"unknown event {event[:40]!r}"
    wanted, checks = _EVENTS[event]
    known = template_key(record) if event in ("job", "revise") else b""
    wrong = json_checks.fault_of(record, wanted, _OWN if known in _sound else checks)
    if wrong:
        return f"{event}: {wrong}"
    if known and known not in _sound:
        wrong = more_fault(record["more"]) if "more" in record else ""
        if wrong:
            return wrong
        if len(_sound) == MOST_TEMPLATES:
            _sound.clear()
        _sound.add(known)
    newer = event == "run" and record.get("format", 1) > NEWEST
    return "written by a newer vrm, which must continue it" if newer else ""
