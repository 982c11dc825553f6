"""The scheduling rules of a run as one value, and the table of their keys.

A key is one field of `Rules`. The configuration, `vrm simulate` and `simulate(rules=)`, the state file,
`vrm validate`, `vrm compare` and the records of experiments read this table; keys are listed nowhere else. The effect
of a key is implemented by the scheduler, or by other readers of `Rules`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any
from collections.abc import Callable, Iterable, Mapping

from vrm.model.queues import NO_QUEUES, Queues
from vrm.model.forms.json_checks import count, flag, line, number


def _queues(value: Any) -> bool:
    try:
        Queues.of(value)
    except (TypeError, ValueError):
        return False
    return True


def _extensions(value: Any) -> bool:
    """Return whether it is a JSON text with a mapping for each package."""
    try:
        found = json.loads(value) if value else {}
    except (TypeError, ValueError):
        return False
    return isinstance(found, dict) and all(isinstance(keys, dict) for keys in found.values())


WORDS: Mapping[str, tuple[str, ...]] = {"speed": ("ideal", "worst"), "events": ("instant", "published")}
"""The allowed values of keys of these kinds."""

KINDS: Mapping[str, Callable[[Any], bool]] = {
    "text": line,
    "backfilling": lambda value: count(value) or line(value),
    "seconds": lambda value: number(value) and value >= 0,
    "number": lambda value: number(value) and value >= 0,
    "count": count,
    "flag": flag,
    "share": lambda value: number(value) and 0 <= value <= 1,
    **{kind: values.__contains__ for kind, values in WORDS.items()},
    "queues": _queues,
    "cap": lambda value: value == "" or line(value),
    "keys": _extensions,
}
"""Checks of a key's value in files, by the key's kind."""

_READ: Mapping[str, Callable[[Any], Any]] = {"backfilling": str, "queues": Queues.of}
"""Functions that make the value of a key from that in a file, for the kinds where they differ."""

LONG = 40
"""Maximum number of characters of a value that is shown in a line with others."""


@dataclass(frozen=True)
class Key:
    """Properties of a key besides its name and default.

    `config` is its place in the configuration, `Section.Key`; or a key of the top level with the word that means yes,
    `Walltime=kill`. `record` is its name in files, if that differs. With `always`, files contain it even if it has its
    default; otherwise they contain it if it, or the key `beside`, does not have its default. `own` says that it may
    name a policy of the user. `metavar` and `help` are for the option of `vrm simulate`, which has the key's name;
    `example` is for the message about a wrong value.
    """

    kind: str
    config: str
    help: str
    metavar: str = ""
    example: str = ""
    record: str = ""
    always: bool = False
    own: bool = False
    beside: str = ""


def _rule(default: Any, kind: str, config: str, help: str, **more: Any) -> Any:
    return field(default=default, metadata={"key": Key(kind, config, help, **more)})


@dataclass(frozen=True)
class Rules:
    """The scheduling rules of a run: which job starts next, which are backfilled, where jobs run, and what ends them.

    The policies `algorithm`, `backfill`, `policy`, `node_order` and `estimates` are names, as in the configuration, or
    in simulations the policy objects themselves (`vrm.scheduling.compose.compose`). `interval` is in seconds; 0:
    decide at every event. `KEYS` says what each field does and where it is in the configuration. Values are not
    checked here: `compose` raises PolicyError for an impossible one.
    """

    algorithm: Any = _rule(
        "FCFS", "text", "Scheduling.Algorithm",
        "fcfs, sjf, ljf, saf, laf, fcsj, wfp1, wfp3, an expression such as '(q/t)**3*n', or "
        "module:function (your module.py is found in this directory); advised in live runs", metavar="NAME|EXPR",
        example="FCFS", always=True, own=True)
    backfill: Any = _rule(
        "easy", "backfilling", "Scheduling.Backfilling",
        "none, easy, conservative, list, or N reservations; N-kept, easy-kept and "
        "conservative-recomputed for the other choice of keeping them; sd: easy in which malleable jobs borrow "
        "cores of running ones (with its defaults: 'sd max_slowdown=10 share=0.5 mates=2 when=earlier')", metavar="HOW",
        record="backfilling", always=True, own=True)
    policy: Any = _rule(
        "pack", "text", "Allocation.Policy", "pack (core by core: jobs share nodes), compact, spare, strip",
        metavar="NAME", example="pack", always=True, own=True)
    min_throughput: float = _rule(
        1.0, "number", "Allocation.MinThroughput",
        "under strip, with measured speed-ups: pairs whose combined throughput is below X share "
        "no node (1, the default: that of running them one after the other; 0: all may)",
        metavar="X")
    kill: bool = _rule(
        False, "flag", "Walltime=kill",
        "end jobs at their requested time (implies --keep-estimates)")
    interval: float = _rule(
        0.0, "seconds", "Scheduling.Interval",
        "decide only every SECONDS (default: at every event)", metavar="SECONDS")
    starts_per_interval: int = _rule(
        0, "count", "Scheduling.StartsPerInterval",
        "with --interval: start at most N heads of the queue each time", metavar="N",
        beside="interval")
    queues: Any = _rule(
        NO_QUEUES, "queues", "Queues", "limits, nodes, priorities and expected waits of queues")
    node_order: Any = _rule(
        "auto", "text", "Allocation.NodeOrder",
        "which nodes are first: first-fit, best-fit, balanced, weighted, hybrid, priority-weighted, "
        "number, heatmap, partners (default: heatmap under strip, "
        "partners if that is learned, first-fit under pack, number under others)", metavar="NAME",
        example="weighted", own=True)

    estimates: Any = _rule(
        "requested", "text", "Scheduling.Estimates",
        "how long jobs are expected to take: requested, last-two, accasim, history, calibrated, "
        "module:function, or (simulated only) actual; limits stay as requested",
        metavar="NAME", example="history", own=True)
    correction: str = _rule(
        "request", "text", "Scheduling.Correction",
        "what is expected of a job that runs longer: request, stepwise, doubling", metavar="NAME",
        example="stepwise", beside="estimates")
    reestimate: bool = _rule(
        False, "flag", "Scheduling.Reestimate",
        "estimate waiting jobs again whenever a job like them ends (default: once, when they are submitted)")
    backfill_order: str = _rule(
        "queue", "text", "Scheduling.BackfillOrder",
        "in which order later jobs are backfilled: queue, or an algorithm such as sjf or saf",
        metavar="NAME|EXPR", example="sjf", own=True)
    starvation: float = _rule(
        0.0, "number", "Starvation.Factor",
        "with easy: jobs that have waited longer than X times the mean wait are first (0: off)",
        metavar="X", example="25")
    events: str = _rule(
        "instant", "events", "Scheduling.Events",
        "simulated only: one decision for all that happens at one moment (instant), or one after each "
        "submission and each end, none at corrections (published: docs/reference/estimates.md)", metavar="HOW",
        example="published", record="event_order")
    malleable: float = _rule(
        0.0, "share", "Sharing.MalleableShare",
        "simulated only: all jobs run on whole nodes with a rank on each socket, and the share X of them, "
        "from 0 to 1, is malleable (0: the jobs as the workload has them; docs/reference/sd-policy.md)", metavar="X",
        example="0.5")
    malleable_seed: int = _rule(
        1, "count", "Sharing.MalleableSeed", "which ones: another N, others", metavar="N",
        beside="malleable")
    shared_speed: str = _rule(
        "ideal", "speed", "Sharing.SharedSpeed",
        "simulated only: how fast jobs are that lend or borrow cores: by all that they have (ideal), or "
        "by the rank that has the fewest (worst)", metavar="HOW", example="worst")
    power_cap: str = _rule(
        "", "cap", "PowerCap",
        "the most watts that the machine may draw: a number, or a file of lines time,watts; jobs wait "
        "until what they draw is left (docs/how-to/energy.md)", metavar="WATTS|FILE", example="5000")
    extensions: str = _rule(
        "", "keys", "Extensions", "keys of installed packages, as JSON by package and key (docs/how-to/extending.md)",
        metavar="JSON", example='{"vrm-example": {"SiteTokens": 4}}')

    def record(self) -> dict[str, Any]:
        """Return the form for files, which `read` reads."""
        return {key.record or name: _plain(getattr(self, name)) for name, key in KEYS.items()
                if key.always or self._changed(name) or (key.beside and self._changed(key.beside))}

    def _changed(self, name: str) -> bool:
        return bool(getattr(self, name) != DEFAULTS[name])

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> Rules:
        """Make rules from the record in a file of this or an older version. Raises KeyError for a missing key and
        ValueError for an invalid value."""
        found: dict[str, Any] = {}
        for name, key in KEYS.items():
            word = key.record or name
            if key.always or word in record:
                if not KINDS[key.kind](record[word]):
                    raise ValueError(f"{word} is {record[word]!r}")
                found[name] = _READ.get(key.kind, _same)(record[word])
        return cls(**found)

    @classmethod
    def of(cls, settings: Any) -> Rules:
        """Make rules from a configuration (`vrm.config.schema.Settings`)."""
        found: dict[str, Any] = {}
        for name, key in KEYS.items():
            place, _, yes = key.config.partition("=")
            value = settings
            for word in map(attribute, place.split(".")):
                value = getattr(value, word, None)
            if value is not None:  # otherwise the key belongs to an extension that is not installed
                found[name] = value == yes if yes else value
        return cls(**found)

    def changes(self) -> dict[str, Any]:
        """Return what a running manager gets when its rules are changed to these: the keys of CHANGEABLE, in the form
        for files."""
        return {KEYS[name].record or name: _plain(getattr(self, name)) for name in CHANGEABLE}

    def words(self, names: Iterable[str]) -> list[str]:
        """Format keys for people: `power cap 900`, `kill`."""
        values = {name.replace("_", " "): getattr(self, name) for name in names}
        return [name if value is True else f"{name} {_short(str(value))}"
                for name, value in values.items() if value is not False and value != ""]

    def changed(self) -> list[str]:
        """Return the keys, other than the policies, that do not have their default."""
        return [name for name, key in KEYS.items() if not key.always and self._changed(name)]

    def own(self) -> dict[str, str]:
        """Return the values that may name a policy of the user, by their keys in the configuration."""
        return {key.config: str(getattr(self, name)) for name, key in KEYS.items() if key.own}


def _short(text: str) -> str:
    """Shorten a value that is shown in a line of words: a cap over a year has hundreds of numbers."""
    return text if len(text) <= LONG else text[:LONG - 1] + "…"


def _same(value: Any) -> Any:
    return value


def _plain(value: Any) -> Any:
    """Convert a value to its form in files."""
    return value.record() if isinstance(value, Queues) else value


KEYS: Mapping[str, Key] = {each.name: each.metadata["key"] for each in fields(Rules)}
"""The properties of each key, by the name of its field."""

DEFAULTS: Mapping[str, Any] = {each.name: each.default for each in fields(Rules)}
"""The default of each key, by the name of its field."""


CHANGEABLE = ("algorithm", "backfill", "backfill_order", "policy", "node_order", "starvation")
"""The keys that can be changed while a manager runs."""


def section(name: str) -> dict[str, tuple[Key, Any]]:
    """Return the keys of a section of the configuration, such as `Scheduling`, by their attributes there, with their
    defaults."""
    found = {}
    for each, key in KEYS.items():
        place, _, word = key.config.partition(".")
        if place == name and word:
            found[attribute(word)] = (key, DEFAULTS[each])
    return found


@cache
def attribute(word: str) -> str:
    """Convert `MinThroughput` to `min_throughput`."""
    return "".join(f"_{letter.lower()}" if letter.isupper() and place else letter.lower()
                   for place, letter in enumerate(word))


def checks() -> tuple[dict[str, Callable[[Any], bool]], dict[str, Callable[[Any], bool]]]:
    """Return the checks of the keys' values in files, by their names there: first for required keys, then for optional
    ones."""
    must, may = ({key.record or name: KINDS[key.kind] for name, key in KEYS.items()
                  if key.always is always} for always in (True, False))
    return must, may

