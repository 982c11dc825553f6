"""The journal: an append-only record of what the manager does, written before it does it.

One JSON object a line. `Journal` writes, `read` reads, `replay` turns the records into the past
of a run, from which a restarted manager goes on.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Dict, Iterable, List, Optional, Sequence, Set, Tuple

from vrm.model import AnyPlacement, Cluster, CorePlacement, Dependency, Job, Node, Placement
from vrm.scheduling.book import PLAIN, Details
from vrm.workload.queue_file import fold, numbers

Record = Dict[str, Any]


RESERVE = 1 << 16
"""Bytes by which the file is extended ahead of its records."""


class Journal:
    """Appends records; `sync` makes what was appended survive a crash of the machine.

    The file is extended with zeros ahead of the records and cut to them when it is closed: to
    write inside a file that does not grow needs no change of the file system's own records,
    which makes a sync several times faster. A line that an earlier crash left half-written is
    cut off, so that it cannot swallow the next record.
    """

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._pending: List[bytes] = []
        self._end = self._reserved = len(_whole_lines(path.read_bytes()))
        os.ftruncate(self._fd, self._end)

    def append(self, event: str, **values: Any) -> None:
        """Add a record; it is on disk after the next `sync`."""
        record = {"event": event, **values}
        self._pending.append(json.dumps(record, separators=(",", ":")).encode() + b"\n")

    def sync(self) -> None:
        """Write what is pending and wait until it is on disk; OSError when that fails."""
        if not self._pending:
            return
        data = b"".join(self._pending)
        try:
            if self._end + len(data) > self._reserved:
                self._write(bytes(len(data) + RESERVE))
                self._reserved = self._end + len(data) + RESERVE
            self._write(data)
            os.fdatasync(self._fd)
        except OSError:
            os.ftruncate(self._fd, self._end)
            self._reserved = self._end
            raise
        self._end += len(data)
        self._pending.clear()

    def _write(self, data: bytes) -> None:
        """Write behind the records."""
        written = 0
        while written < len(data):
            written += os.pwrite(self._fd, data[written:], self._end + written)

    def close(self) -> None:
        """Sync and close."""
        self.sync()
        os.ftruncate(self._fd, self._end)
        os.close(self._fd)


def _whole_lines(data: bytes) -> bytes:
    """The records in a file's content: up to the zeros kept ahead, without a torn last line."""
    end = data.find(b"\0")
    return data[:data.rfind(b"\n", 0, end if end >= 0 else len(data)) + 1]


def read(path: Path) -> List[Record]:
    """The records of a journal, without a half-written last line; [] when there is no file.

    Raises ValueError with the line's number for a line that is not a record.
    """
    try:
        lines = _whole_lines(path.read_bytes()).split(b"\n")[:-1]
    except FileNotFoundError:
        return []
    records = []
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
            record["event"]
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{path}:{number}: not a journal record") from error
        records.append(record)
    return records


@dataclass
class Past:
    """What a journal tells: the jobs, which were started where, and how they ended.

    `runs` are the records of the managers that wrote it, `run_of` the one under which a job was
    started. `tries` counts the retries of jobs, `again` are those that wait after a start.
    """

    run: str = ""
    finished: bool = False
    next_id: int = 0
    position: Optional[Record] = None
    input_ended: bool = False
    jobs: Dict[int, Job] = field(default_factory=dict)
    details: Dict[int, Details] = field(default_factory=dict)
    started: Dict[int, Record] = field(default_factory=dict)
    ended: Dict[int, Record] = field(default_factory=dict)
    intents: Dict[int, str] = field(default_factory=dict)
    tries: Dict[int, int] = field(default_factory=dict)
    again: Set[int] = field(default_factory=set)
    runs: List[Record] = field(default_factory=list)
    run_of: Dict[int, Record] = field(default_factory=dict)
    commands: List[str] = field(default_factory=list)

    @property
    def waiting(self) -> List[Job]:
        """Jobs that were neither started nor ended."""
        return [job for i, job in self.jobs.items()
                if i not in self.started and i not in self.ended]

    @property
    def running(self) -> List[Tuple[Job, Record]]:
        """Jobs that were started and whose end is not recorded, with the start's record."""
        return [(self.jobs[i], start) for i, start in self.started.items() if i not in self.ended]


def replay(records: Iterable[Record]) -> Past:
    """The past that the records tell; each is applied to what those before it left."""
    past = Past()
    for record in records:
        event = record["event"]
        if event == "run":
            past.run, past.finished = past.run or record["run"], False
            past.runs.append(record)
        elif event == "job":
            _jobs_came(past, record)
        elif event == "input":
            past.position = record.get("position") or past.position
            past.input_ended = record["ended"]
        elif event == "start":
            past.started[record["id"]] = record
            past.intents.pop(record["id"], None)
            past.again.discard(record["id"])
            if past.runs:
                past.run_of[record["id"]] = past.runs[-1]
        elif event == "back":
            del past.started[record["id"]]
        elif event == "intent":
            past.intents[record["id"]] = record["reason"]
        elif event == "end":
            past.ended[record["id"]] = record
        elif event == "again":
            job_id = record["id"]
            for facts in (past.started, past.ended, past.intents):
                facts.pop(job_id, None)
            past.again.add(job_id)
            past.tries[job_id] = past.tries.get(job_id, 0) + record["retry"]
        elif event in ("hold", "release"):
            past.details[record["id"]] = replace(past.details[record["id"]],
                                                 held=event == "hold")
        elif event == "finished":
            past.finished = True
        if record.get("command"):
            past.commands.append(record["command"])
    return past


def _jobs_came(past: Past, record: Record) -> None:
    """The job of a record, or all jobs of an array."""
    indices = numbers(record["array"]) if "array" in record else (None,)
    for job_id, index in enumerate(indices, record["id"]):
        past.jobs[job_id] = job_of({**record, "id": job_id})
        past.details[job_id] = details_of(record, index)
    past.next_id = record["id"] + len(indices)
    past.position = record.get("position") or past.position


def job_record(job: Job, details: Details = PLAIN, indices: Sequence[int] = ()) -> Record:
    """A job as journal values, or with `indices` an array, whose first job it is."""
    record = {"id": job.id, "app": job.app, "procs": job.procs, "estimate": job.estimate,
              "submit": job.submit, "exclusive": job.exclusive, "cores": job.cores}
    more = {"priority": job.priority, "after": [list(each) for each in details.after],
            "retries": details.retries, "variables": dict(details.variables),
            "arguments": list(details.arguments), "directory": details.directory,
            "held": details.held, "name": details.name, "array": fold(indices)}
    return {**record, **{name: value for name, value in more.items() if value}}


def job_of(record: Record) -> Job:
    """The job of a journal record."""
    return Job(**{name: record[name] for name in
                  ("id", "app", "procs", "estimate", "submit", "exclusive", "cores")},
               priority=record.get("priority", 0))


def details_of(record: Record, index: Optional[int] = None) -> Details:
    """What else a job's record tells; `index` is its own in an array."""
    values = {name: record[name] for name in ("retries", "variables", "directory", "held", "name")
              if name in record}
    return Details(tuple(Dependency(*each) for each in record.get("after", ())),
                   arguments=tuple(record.get("arguments", ())), index=index, **values)


def nodes_record(nodes: Sequence[Node]) -> List[List[Any]]:
    """Names and sockets of nodes as journal values."""
    return [[node.name, list(node.sockets)] for node in nodes]


def cluster_of(record: Record, now: Cluster) -> Cluster:
    """The cluster of a `run` record: `now` itself where the nodes are the same, or not told."""
    if record.get("nodes") in (None, nodes_record(now.nodes)):
        return now
    return Cluster(Node(name, tuple(sockets)) for name, sockets in record["nodes"])


def placement_record(placement: AnyPlacement) -> Record:
    """A placement as journal values; sets of nodes or cores are hexadecimal."""
    if isinstance(placement, CorePlacement):
        return {"taken": hex(placement.taken), "procs": placement.procs,
                "width": placement.width}
    return {"share": placement.share, "claims": [hex(c) for c in placement.claims],
            "order": [hex(g) for g in placement.order], "procs": placement.procs,
            "width": placement.width,
            "most": placement.most and {str(n): r for n, r in placement.most.items()}}


def placement_of(record: Record, cluster: Cluster) -> AnyPlacement:
    """The placement of a journal record, on the cluster that it was made for."""
    if "taken" in record:
        return CorePlacement(cluster.layout, int(record["taken"], 16), record["procs"],
                             record["width"])
    lane0, lane1 = (int(c, 16) for c in record["claims"])
    return Placement(record["share"], (lane0, lane1),
                     tuple(int(g, 16) for g in record["order"]), record["procs"],
                     record["width"],
                     most=record["most"] and {int(n): r for n, r in record["most"].items()})
