"""LML, the XML format of LLview and Eclipse PTP for a site's jobs and nodes: read as a snapshot, and written
again with the forecast (C. Karbach, Jülich report 4354, 2012).

`objects/object` are the objects (`id`, `type`). `information/info` describe them (`oid`) in `data` with `key`
and `value`; several infos of one object are merged. Unknown content is written back unchanged: the forecast is
added to the file's own text, as infos of the type `forecast`.

Keys of objects, and their defaults:

- job: `state` (Running if there is a dispatchdate, else Idle), `queuedate` (system_time), `dispatchdate`,
  `wall` (s; 86400), `nummachines` and `taskspernode` (if only one is given, the other is 1), `totalcores`
  (their product; alone: cores anywhere, 1), `queue`, `owner`, `nodelist` or `odelist`, `after` (ids of jobs,
  separated by commas)
- node: `ncores` (1), `avail_classes` (any), `state` (`down`: nothing starts)
- queue: `starters` (cores), `maxjobs`, `maxjobsperuser` (no limit)
- reservation: `starttime`, `endtime`, `nodelist`, `totalcores` (if amounts are counted), `jobs` (ids, separated
  by commas)
- scheduler: `system_sysprio` (`-DATEqueuedate`), `system_state` (`NodeState`), `scheduling_algorithm`
  (`Backfilling`), `topdogs` (1; `all`), `topdogs_per_queue` (`no`), `node_sharing` (`yes`),
  `simultaneous_events` (`together`; `one_by_one`, with the state NodeState)
- system: `system_time` (the latest date in the file), `date_format` (`%m/%d/%y-%H:%M:%S`)

Dates are in UTC: only differences count. `(1-1(4-5))` are the cores 4 and 5 of node 1, both counted from 1;
nodes are counted in the order of the file. Forecast keys: `predicted_dispatchdate`, `predicted_completiondate`,
`predicted_nodelist` (or `predicted_totalcores`), `predicted_reason`.
"""

from __future__ import annotations

import calendar
import math
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple
from collections.abc import Mapping, Sequence
from xml.parsers import expat
from xml.sax.saxutils import quoteattr

from vrm.model.quantities import seconds_of
from vrm.system.files import read_regular
from vrm.system.printing.text import printable
from vrm.ext.forecast.site.snapshot import (ALGORITHMS, MANAGERS, Formula, Place, SiteJob, SiteNode, SiteQueue,
                                   SiteReservation, Snapshot, SnapshotError)

FORECAST = "forecast"
"""The type of the infos that a forecast adds; they are ignored when the file is read, and replaced."""

DATES = "%m/%d/%y-%H:%M:%S"
WALL = 86400.0
LARGEST = 1 << 28
"""Greatest size of a file in bytes."""
MOST = 10_000_000
"""Greatest number of nodes, cores or seconds in one value."""
_DEEPEST = 100

FUNCTIONS = {"log", "log2", "log10", "sqrt", "min", "max"}
"""Functions in formulas; other words in them are keys of jobs."""

RUNNING = ("running", "starting", "completing")
WAITING = ("idle", "queued", "pending", "waiting", "submitted")
GONE = ("completed", "removed", "cancelled", "canceled", "failed", "timeout")


class LmlObject(NamedTuple):
    """An object with all its data: each value with its line."""

    id: str
    type: str
    name: str
    line: int
    data: dict[str, tuple[str, int]]


class LmlDocument:
    """An LML file: its `objects` by id, and its text. Raises SnapshotError with file and line."""

    def __init__(self, content: bytes, name: str = "LML") -> None:
        self.name = name
        self.content = content
        self.objects: dict[str, LmlObject] = {}
        self._open: list[str] = []
        self._about: LmlObject | None = None
        self._skipped = -1  # where an info of an earlier forecast begins
        self._cuts: list[tuple[int, int]] = []
        self._end = -1  # where more infos can be inserted
        self._wrap = False  # whether they need an `information` element of their own
        if len(content) > LARGEST:
            raise SnapshotError(f"{name}: it is larger than {LARGEST >> 20} MiB")
        self._parser = parser = expat.ParserCreate()
        parser.StartElementHandler, parser.EndElementHandler = self._start, self._close
        parser.StartDoctypeDeclHandler = self._doctype
        parser.XmlDeclHandler = self._declared
        try:
            parser.Parse(content, True)
        except expat.ExpatError as error:
            raise self.wrong(f"it is not XML ({expat.errors.messages[error.code]})", error.lineno
                             ) from None
        if self._end < 0:
            raise self.wrong("it has no element `lgui`: it is not LML", 1)

    def wrong(self, what: str, line: int) -> SnapshotError:
        """Return the error, with file and line."""
        return SnapshotError(f"{self.name}:{line}: {what}")

    def _doctype(self, *about: object) -> None:
        raise self.wrong("it has a document type, in which entities can be hidden; remove the line "
                         "`<!DOCTYPE ...>`", self._parser.CurrentLineNumber)

    def _declared(self, version: str, encoding: str | None, standalone: int) -> None:
        if encoding is not None and encoding.upper() not in ("UTF-8", "US-ASCII", "ASCII"):
            raise self.wrong(f"its encoding is {printable(encoding, 30)}; convert it to UTF-8", 1)

    def _start(self, tag: str, attributes: Mapping[str, str]) -> None:
        tag, line = tag.rpartition(":")[2], self._parser.CurrentLineNumber
        if not self._open and tag != "lgui":
            raise self.wrong(f"it begins with <{printable(tag, 40)}>, and LML with <lml:lgui>", line)
        self._open.append(tag)
        if len(self._open) > _DEEPEST:
            raise self.wrong(f"its elements are nested more than {_DEEPEST} deep", line)
        if tag == "object" and "objects" in self._open:
            self._object(attributes, line)
        elif tag == "info":
            self._info(attributes, line)
        elif tag == "data" and self._about is not None:
            name = attributes.get("key")
            if not name:
                raise self.wrong("data has no key", line)
            self._about.data[name] = attributes.get("value", ""), line

    def _object(self, attributes: Mapping[str, str], line: int) -> None:
        key = attributes.get("id")
        if not key:
            raise self.wrong("an object has no id", line)
        before = self.objects.get(key)
        if before is not None and before.type:
            raise self.wrong(f"object {printable(key, 60)} is there already, in line {before.line}", line)
        self.objects[key] = LmlObject(key, attributes.get("type", ""), attributes.get("name", ""),
                                      line, before.data if before else {})

    def _info(self, attributes: Mapping[str, str], line: int) -> None:
        key = attributes.get("oid")
        if not key:
            raise self.wrong("an info has no oid", line)
        if attributes.get("type") == FORECAST:
            self._skipped = self._parser.CurrentByteIndex
        else:
            self._about = self.objects.setdefault(key, LmlObject(key, "", "", line, {}))

    def _close(self, tag: str) -> None:
        tag = tag.rpartition(":")[2]
        self._open.pop()
        at = self._parser.CurrentByteIndex
        if tag == "info":
            self._about = None
            if self._skipped >= 0:
                end = self.content.index(b">", at) + 1
                while self.content[end:end + 1] in (b" ", b"\n", b"\r", b"\t"):
                    end += 1
                self._cuts.append((self._skipped, end))
                self._skipped = -1
        elif tag == "information" and self.content.startswith(b"</", at):
            self._end, self._wrap = at, False
        elif tag == "lgui" and self._end < 0:
            if not self.content.startswith(b"</", at):
                raise self.wrong("it has no jobs", 1)
            self._end, self._wrap = at, True

    def of_type(self, *types: str) -> list[LmlObject]:
        """Return all objects of these types, in the order of the file."""
        return [each for each in self.objects.values() if each.type.lower() in types]

    def with_data(self, said: Mapping[str, Mapping[str, str]]) -> bytes:
        """Return the file with these values added, given by the ids of objects."""
        lines = []
        for key, data in said.items():
            lines.append(f"<info oid={quoteattr(key)} type=\"{FORECAST}\">")
            lines += [f" <data key={quoteattr(name)} value={quoteattr(value)}/>"
                      for name, value in data.items()]
            lines.append("</info>")
        text = "\n".join(lines) + "\n" if lines else ""
        if self._wrap and text:
            text = f"<information>\n{text}</information>\n"
        parts, at = [], 0
        for begin, end in (*self._cuts, (self._end, self._end)):
            if begin >= at:
                parts.append(self.content[at:begin])
                at = end
            if (begin, end) == (self._end, self._end):
                parts.append(text.encode("utf-8", "surrogateescape"))
        return b"".join((*parts, self.content[at:]))


class Lml:
    """An LML file as a snapshot, into which a forecast can be written."""

    def __init__(self, content: bytes, name: str = "LML") -> None:
        self.document = LmlDocument(content, name)
        systems, schedulers = (self.document.of_type(kind) for kind in ("system", "scheduler"))
        self.system = systems[0].data if systems else {}
        self.scheduler = schedulers[0].data if schedulers else {}
        self.dates = self.system.get("date_format", (DATES, 0))[0]
        self._nodes = self.document.of_type("node")
        self._jobs = self.document.of_type("job")
        self.time = self._moment()
        self.snapshot = self._snapshot()

    # Values.

    def _wrong(self, one: LmlObject, key: str, wanted: str) -> SnapshotError:
        value, line = one.data[key]
        return self.document.wrong(
            f"{one.type or 'object'} {printable(one.id, 60)}: {printable(key, 40)} is "
            f"`{printable(value, 60)}`, wanted {wanted}", line)

    def _epoch(self, one: LmlObject, key: str) -> float:
        try:
            return float(calendar.timegm(time.strptime(one.data[key][0], self.dates)))
        except (ValueError, OverflowError, re.error):
            raise self._wrong(one, key, f"a date as {self.dates}") from None

    def _date(self, one: LmlObject, key: str, default: float) -> float:
        return self._epoch(one, key) - self.time if one.data.get(key, ("", 0))[0] else default

    def _number(self, one: LmlObject, key: str, default: int, least: int = 1) -> int:
        if key not in one.data:
            return default
        text = one.data[key][0].strip()
        if not re.fullmatch(r"[0-9]{1,8}", text) or not least <= int(text) <= MOST:
            raise self._wrong(one, key, f"a whole number from {least} to {MOST}")
        return int(text)

    def _choice(self, one: Mapping[str, tuple[str, int]], key: str, known: Sequence[str]) -> str:
        """Return the value of a scheduler key, spelled as in `known`; the first of `known` is the default."""
        value, line = one.get(key, (known[0], 0))
        for each in known:
            if each.lower() == value.strip().lower():
                return each
        raise self.document.wrong(f"scheduler: {key} is `{printable(value, 60)}`, and there are "
                                  f"{', '.join(known)}", line)

    def _moment(self) -> float:
        """Return the time of the snapshot, in seconds."""
        systems = self.document.of_type("system")
        if systems and "system_time" in systems[0].data:
            return self._epoch(systems[0], "system_time")
        dates = [self._epoch(job, key) for job in self._jobs for key in ("queuedate", "dispatchdate")
                 if job.data.get(key, ("", 0))[0]]
        return max(dates, default=0.0)

    # The snapshot.

    def _snapshot(self) -> Snapshot:
        scheduler = self.scheduler
        manager = self._choice(scheduler, "system_state", MANAGERS)
        depth_text, line = scheduler.get("topdogs", ("1", 0))
        if not re.fullmatch(r"all|[0-9]{1,8}", depth_text.strip().lower()):
            raise self.document.wrong(f"scheduler: topdogs is `{printable(depth_text, 40)}`, wanted a "
                                      "number of reservations or `all`", line)
        depth = math.inf if depth_text.strip().lower() == "all" else float(depth_text)
        nodes = [self._node(each) for each in self._nodes]
        if not nodes:
            raise self.document.wrong("it describes no nodes (objects of the type node)", 1)
        jobs = [job for each in self._jobs if (job := self._job(each, len(nodes))) is not None]
        formula, jobs = self._formula(jobs)
        single = self._choice(scheduler, "simultaneous_events", ("together", "one_by_one")) != "together"
        if single and manager != "NodeState":
            raise self.document.wrong("scheduler: simultaneous_events one_by_one goes with the system_state "
                                      "NodeState", scheduler["simultaneous_events"][1])
        return Snapshot(
            self.time, nodes, jobs,
            [self._reservation(each, len(nodes)) for each in self.document.of_type("reservation")],
            {each.name or each.id: SiteQueue(*(self._number(each, key, 0, 0) for key in (
                "starters", "maxjobs", "maxjobsperuser")))
             for each in self.document.of_type("queue", "class")},
            self._choice(scheduler, "scheduling_algorithm", ("Backfilling", *ALGORITHMS)), manager,
            depth, self._choice(scheduler, "topdogs_per_queue", ("no", "yes")) == "yes",
            self._choice(scheduler, "node_sharing", ("yes", "no")) == "yes", formula,
            one_by_one=single)

    def _node(self, one: LmlObject) -> SiteNode:
        cores = self._number(one, "ncores", 1)
        classes: dict[str, int] | None = None
        if one.data.get("avail_classes", ("", 0))[0].strip():
            text = one.data["avail_classes"][0].strip()
            if not re.fullmatch(r"(\([^(),]{1,100},\s*[0-9]{1,8}\)\s*)+", text):
                raise self._wrong(one, "avail_classes", "queues with their cores: (small,4)(medium,8)")
            classes = {name.strip(): int(number) for name, number in re.findall(
                r"\(([^(),]+),\s*([0-9]+)\)", text)}
        down = one.data.get("state", ("", 0))[0].strip().lower() in ("down", "drained", "offline")
        return SiteNode(one.name or one.id, cores, classes, not down)

    def _job(self, one: LmlObject, nodes: int) -> SiteJob | None:
        """Return a job; None if it has ended."""
        def text(key: str) -> str:
            return one.data.get(key, ("", 0))[0].strip()
        submit, start = self._date(one, "queuedate", 0.0), self._date(one, "dispatchdate", math.inf)
        state = text("state").lower() or ("running" if start < math.inf else "idle")
        if state in GONE:
            return None
        runs = state in RUNNING
        stuck = "" if runs or state in WAITING else f"its state is {text('state')}"
        if runs and start == math.inf:
            start = 0.0
        if runs and start > 0:
            raise self._wrong(one, "dispatchdate", "one that is not later than the system_time, of a "
                                                   "job that runs")
        machines, each, total = self._size(one)
        places: tuple[Place, ...] = ()
        for key in ("nodelist", "odelist"):
            if runs and text(key) and not places:
                places = self._places(one, key, nodes)
        if places and not machines and "totalcores" not in one.data:
            total = sum(len(cores or ()) for _, cores in places)
        return SiteJob(one.id, self._wall(one), total, machines, each if machines else 0, one.name, text("owner"),
                       text("queue"), submit, start if runs else None, places,
                       after=tuple(part.strip() for part in text("after").split(",") if part.strip()),
                       stuck=stuck)

    def _size(self, one: LmlObject) -> tuple[int, int, int]:
        """Return the number of a job's nodes (0: not given), its cores on each, and its cores in total."""
        machines = self._number(one, "nummachines", 1 if "taskspernode" in one.data else 0)
        each = self._number(one, "taskspernode", 1)
        total = self._number(one, "totalcores", max(1, machines * each))
        if machines and total != machines * each:
            if "taskspernode" in one.data:
                raise self._wrong(one, "totalcores", f"nummachines x taskspernode, {machines * each}")
            each = -(-total // machines)
        return machines, each, total

    def _wall(self, one: LmlObject) -> float:
        """Return the walltime of a job in seconds."""
        if "wall" not in one.data:
            return WALL
        try:
            wall = seconds_of(one.data["wall"][0].strip())
        except ValueError:
            wall = 0.0
        if not 0 < wall <= 1e9:
            raise self._wrong(one, "wall", "seconds above 0")
        return wall

    def _places(self, one: LmlObject, key: str, nodes: int) -> tuple[Place, ...]:
        """Parse `(1-3(1-4)(6-6))(5-5)`: nodes with some cores, or with all of them."""
        text = re.sub(r"\s", "", one.data[key][0])
        part = r"\(([0-9]{1,8})(?:-([0-9]{1,8}))?((?:\([0-9]{1,8}(?:-[0-9]{1,8})?\))*)\)"
        if not re.fullmatch(f"(?:{part})+", text):
            raise self._wrong(one, key, "nodes and cores as (1-1(4-5))")
        found: dict[int, frozenset[int] | None] = {}
        for first, last, inside in re.findall(part, text):
            begin, end = int(first), int(last or first)
            cores: list[int] = []
            for low, high in re.findall(r"\(([0-9]+)(?:-([0-9]+))?\)", inside):
                if int(high or low) > MOST // 10:
                    raise self._wrong(one, key, "cores that their nodes have")
                cores += range(int(low) - 1, int(high or low))
            if not 1 <= begin <= end <= nodes:
                raise self._wrong(one, key, f"nodes from 1 to {nodes}, in order")
            for node in range(begin - 1, end):
                has = self._number(self._nodes[node], "ncores", 1)
                if (cores and not 0 <= min(cores) <= max(cores) < has) or bool(inside) > bool(cores):
                    raise self._wrong(one, key, f"cores from 1 to {has}, in order, of node {node + 1}")
                if node in found:
                    raise self._wrong(one, key, f"node {node + 1} once")
                found[node] = frozenset(cores) if cores else frozenset(range(has))
        return tuple(sorted(found.items(), key=lambda each: each[0]))

    def _reservation(self, one: LmlObject, nodes: int) -> SiteReservation:
        for key in ("starttime", "endtime"):
            if key not in one.data:
                raise self.document.wrong(f"reservation {printable(one.id, 60)} has no {key}", one.line)
        begin, end = self._date(one, "starttime", 0.0), self._date(one, "endtime", 0.0)
        if not begin < end:
            raise self._wrong(one, "endtime", "one after its starttime")
        key = next((key for key in ("nodelist", "odelist") if key in one.data), "")
        places = self._places(one, key, nodes) if key else ()
        cores = sum(len(each or ()) for _, each in places)
        jobs = one.data.get("jobs", ("", 0))[0]
        return SiteReservation(
            one.id, begin, end, tuple(node for node, _ in places),
            self._number(one, "totalcores", cores, 0),
            tuple(part.strip() for part in jobs.split(",") if part.strip()))

    # The order of jobs.

    def _formula(self, jobs: Sequence[SiteJob]) -> tuple[Formula, list[SiteJob]]:
        """Return the formula that orders the jobs, and the jobs with the values of its variables."""
        text, line = self.scheduler.get("system_sysprio", ("-DATEqueuedate", 0))
        names = sorted(set(re.findall(r"[A-Za-z_][A-Za-z0-9_]*", text)) - FUNCTIONS)
        where = f"{self.document.name}:{line}: scheduler: system_sysprio: "
        data = {each.id: {key.lower(): key for key in each.data} for each in self._jobs}
        objects = {each.id: each for each in self._jobs}
        known = {key for keys in data.values() for key in keys} | {
            "queuedate", "wall", "totalcores", "nummachines", "taskspernode"}
        for name in names:
            if _key(name) not in known and name.lower() not in known:
                raise SnapshotError(f"{where}no job has a key {printable(_key(name), 40)}")
        found = []
        for job in jobs:
            own = {"queuedate": job.submit, "wall": job.wall, "totalcores": float(job.total),
                   "nummachines": float(job.nodes), "taskspernode": float(job.per_node)}
            found.append(replace(job, values=tuple(
                self._value(objects[job.key], data[job.key], own, name) for name in names)))
        return Formula(text, tuple(names), where), found

    def _value(self, one: LmlObject, keys: Mapping[str, str], own: Mapping[str, float], name: str
               ) -> float:
        """Return the value of a formula's variable: a number, or a date in seconds from the snapshot's time; 0
        if the job does not have it."""
        for key in (name.lower(), _key(name)):
            if key in own:
                return own[key]
            if key in keys:
                text = one.data[keys[key]][0].strip()
                try:
                    value = float(text)
                    return value if math.isfinite(value) else 0.0
                except ValueError:
                    return self._date(one, keys[key], 0.0)
        return 0.0

    # The forecast.

    def written(self, found: Mapping[str, tuple[float, float, str, int, str]],
                ends: Mapping[str, float]) -> bytes:
        """Return the file with a forecast. `ends` are the ends of running jobs. `found` has for each waiting
        job: start and end (seconds from the snapshot's time; infinity: it does not start), its nodes and cores
        as text ("": amounts), its total of cores, and why it does not start."""
        said = {key: {"predicted_completiondate": self.date_text(end)} for key, end in ends.items()}
        for key, (start, end, places, cores, reason) in found.items():
            if start == math.inf:
                said[key] = {"predicted_reason": printable(reason)}
                continue
            said[key] = {"predicted_dispatchdate": self.date_text(start),
                         "predicted_completiondate": self.date_text(end),
                         **({"predicted_nodelist": places} if places else
                            {"predicted_totalcores": str(cores)})}
        return self.document.with_data(said)

    def date_text(self, seconds: float) -> str:
        """Return a time, in seconds from the snapshot's time, in the file's date format."""
        return time.strftime(self.dates, time.gmtime(self.time + round(seconds)))


def _key(name: str) -> str:
    """Return the key of a variable: `DATEqueuedate` is the date `queuedate`."""
    return name.removeprefix("DATE").lower()


def read(path: str | Path) -> Lml:
    """Read an LML file. Raises SnapshotError if it is not one, and OSError if it cannot be read."""
    return Lml(read_regular(path), str(path))
