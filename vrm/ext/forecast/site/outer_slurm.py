"""Reads a site under Slurm from the output of squeue, sinfo and scontrol.

Jobs are ordered by squeue's priorities. A partition is a queue whose jobs run on its nodes. The cores of a
running job are counted in CPUs and spread evenly over its nodes.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any
from collections.abc import Mapping, Sequence

from vrm.model.forms.hosts import expand
from vrm.model.quantities import slurm_seconds, scale
from vrm.system.printing.text import printable
from vrm.ext.forecast.site.outer import UNKNOWN, NodeNames, output_of
from vrm.ext.forecast.site.snapshot import SiteJob, SiteNode, SiteReservation, Snapshot, SnapshotError
from vrm.system.printing.local_times import parse_local_time

FIELDS = ("%i", "%T", "%P", "%u", "%Q", "%D", "%C", "%l", "%V", "%S", "%N", "%r", "%v", "%E", "%h",
          "%j")
"""Id, state, partition, user, priority, nodes, CPUs, limit, submission, start, nodes, reason, reservation,
dependencies, whether it shares nodes. The name is last because it may contain any character."""

SQUEUE = ("squeue", "--all", "--noheader", "--array", "-o", "|".join(FIELDS))
SINFO = ("sinfo", "--all", "--noheader", "-N", "-o", "%N|%P|%c|%t|%l")
SCONTROL = ("scontrol", "show", "reservation", "--oneliner")

DOWN = ("down", "drain", "drng", "drained", "draining", "fail", "failg", "maint", "unk", "inval",
        "no_respond", "boot", "planned_down", "futr", "power")
BUSY = ("alloc", "mix")
"""States of nodes on which jobs run."""

LONG = 365 * 86400.0
"""Walltime of a job without a limit on a partition without a limit, in seconds."""

_DATE = "%Y-%m-%dT%H:%M:%S"
_RUNNING = ("RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "STAGE_OUT", "RESIZING", "STOPPED",
            "SIGNALING")
_HELD = re.compile(r"JobHeld|DependencyNeverSatisfied|BadConstraints|PartitionDown|PartitionInactive"
                   r"|PartitionNodeLimit|PartitionTimeLimit|Max\w+PerJob"
                   r"|InvalidAccount|InvalidQOS|AccountNotAllowed|launch_failed|Prolog", re.IGNORECASE)


def ask(now: float) -> Snapshot:
    """Return the site at `now` (epoch seconds), from its programs. Raises SnapshotError."""
    queue, nodes = output_of(SQUEUE), output_of(SINFO)
    try:
        reservations = output_of(SCONTROL)
    except SnapshotError:  # not every user may see them
        reservations = ""
    return parse(queue, nodes, now, reservations)


def parse(squeue: str, sinfo: str, now: float, scontrol: str = "") -> Snapshot:
    """Return the site in these outputs, which were printed at `now`; that of squeue may also be from --json.
    Raises SnapshotError with the line that cannot be read."""
    nodes, limits, default = _nodes(sinfo)
    known = NodeNames([node.name for node in nodes])
    smallest: dict[str, int] = {}
    for node in nodes:
        for partition in node.classes or ():
            smallest[partition] = min(node.cores, smallest.get(partition, node.cores))
    rows = _of_json(squeue) if squeue.lstrip().startswith("{") else _rows(squeue)
    jobs: list[SiteJob] = []
    reserved: dict[str, list[str]] = {}
    for place, row in rows:
        try:
            job = _job(row, known, limits, smallest, now)
        except (ValueError, KeyError) as error:
            raise SnapshotError(f"{place}: not a value of its column ({printable(str(error), 80)}); make "
                                f"the file with: {_typed(SQUEUE)}") from None
        if job is not None:
            jobs.append(job)
            if row["%v"] not in ("", "(null)", "N/A"):
                reserved.setdefault(row["%v"], []).append(job.key)
    queues = {job.queue for job in jobs}
    return Snapshot(now, _with_lists(nodes, queues), _arrays(jobs),
                    _reservations(scontrol, known, reserved, now), unknown=UNKNOWN,
                    longest={name: limit for name, limit in limits.items() if limit < LONG}, default=default)


def _typed(argv: Sequence[str]) -> str:
    return " ".join(f"'{word}'" if "%" in word else word for word in argv)


def _rows(text: str) -> list[tuple[str, dict[str, str]]]:
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        cells = line.split("|", len(FIELDS) - 1)
        if len(cells) != len(FIELDS):
            raise SnapshotError(f"squeue:{number}: it has {len(cells)} of {len(FIELDS)} columns; make "
                                f"the file with: {_typed(SQUEUE)}")
        rows.append((f"squeue:{number}", {name: cell.strip() for name, cell in zip(FIELDS, cells)}))
    return rows


def _of_json(text: str) -> list[tuple[str, dict[str, str]]]:
    """Return the rows of `_rows` from `squeue --json` of any version."""
    def plain(value: Any) -> str:
        if isinstance(value, Mapping):
            if value.get("infinite"):
                return "UNLIMITED"
            return plain(value.get("number")) if value.get("set", True) else ""
        if isinstance(value, list):
            return plain(value[0]) if value else ""
        return "" if value is None else str(value)

    try:
        jobs = json.loads(text)["jobs"]
        found = []
        for number, job in enumerate(jobs, 1):
            minutes = plain(job.get("time_limit"))
            array, task = plain(job.get("array_job_id")), plain(job.get("array_task_id"))
            row = {"%i": f"{array}_{task}" if array not in ("", "0") and task else plain(job["job_id"]),
                   "%T": plain(job["job_state"]), "%P": plain(job.get("partition")),
                   "%u": plain(job.get("user_name")), "%Q": plain(job.get("priority")) or "0",
                   "%D": plain(job.get("node_count")) or "1", "%C": plain(job.get("cpus")) or "1",
                   "%l": f"{minutes}:00" if minutes.isdecimal() else minutes,
                   "%V": f"@{plain(job.get('submit_time'))}", "%S": f"@{plain(job.get('start_time'))}",
                   "%N": plain(job.get("nodes")), "%r": plain(job.get("state_reason")),
                   "%v": plain(job.get("resv_name")), "%E": plain(job.get("dependency")),
                   "%h": {"none": "NO"}.get(plain(job.get("shared")), ""),
                   "%j": plain(job.get("name"))}
            found.append((f"squeue --json: job {number}", row))
        return found
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SnapshotError(f"squeue --json: it is not a list of jobs ({printable(str(error), 80)})"
                            ) from None


def _seconds(text: str) -> float:
    """Return a limit that Slurm prints, in seconds; LONG if there is none."""
    if text.upper() in ("NOT_SET", "N/A", "", "INVALID"):
        return LONG
    return min(LONG, slurm_seconds(text))


def _epoch(text: str) -> float | None:
    if text in ("", "N/A", "NONE", "Unknown", "(null)", "@", "@0"):
        return None
    return float(text[1:]) if text.startswith("@") else parse_local_time(text, _DATE)


def _job(row: Mapping[str, str], known: NodeNames, limits: Mapping[str, float],
         smallest: Mapping[str, int], now: float) -> SiteJob | None:
    """Return the job of a row; None if it has ended. A job with exclusive nodes takes all cores of each node,
    as many as the smallest node of its partition has."""
    state = row["%T"].upper()
    running = state in _RUNNING
    if not running and state not in ("PENDING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT",
                                     "REQUEUE_FED", "RESV_DEL_HOLD"):
        return None
    partition = row["%P"].rstrip("*")
    wall = _seconds(row["%l"])
    if wall == LONG:
        wall = min((limits[each] for each in partition.split(",") if each in limits), default=LONG)
    start, submit = _epoch(row["%S"]), _epoch(row["%V"])
    nodes = max(1, int(row["%D"].split("-")[0]))
    cores = max(1, _count(row["%C"]))
    each = -(-cores // nodes)
    if row["%h"] == "NO" and not running:
        each = max(each, min((smallest[name] for name in partition.split(",") if name in smallest),
                             default=each))
    stuck = f"Slurm holds it back: {row['%r']}" if (
        not running and (_HELD.search(row["%r"]) or state == "REQUEUE_HOLD")) else ""
    later = start is not None and "BeginTime" in row["%r"] and start > now
    return SiteJob(
        row["%i"], max(wall, 1.0), nodes * each, nodes, each, row["%j"], row["%u"], partition,
        (start if later and start is not None else min(submit or now, now)) - now,
        min(0.0, (start if start is not None else now) - now) if running else None,
        known.places(expand(row["%N"])) if running and row["%N"] else (),
        float(row["%Q"] or 0), (),
        tuple(re.findall(r"(?:^|[,?:])(\d+(?:_\d+)?)", re.sub(r"\([^)]*\)", "", row["%E"]))), stuck)


def _count(text: str) -> int:
    """Return a number of CPUs, which may be written as 8K."""
    found = re.fullmatch(r"(\d{1,9})([KM]?)", text)
    if not found:
        raise ValueError(text)
    return int(found[1]) * scale(found[2])


def _nodes(text: str) -> tuple[list[SiteNode], dict[str, float], str]:
    """Return the nodes, the time limits of the partitions in seconds, and the default partition."""
    found: dict[str, SiteNode] = {}
    limits: dict[str, float] = {}
    default = ""
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) != 5 or not cells[0] or not cells[2].isdecimal():
            raise SnapshotError(f"sinfo:{number}: not the columns of: {_typed(SINFO)}")
        name, partition, cpus, state, limit = cells
        default = partition.rstrip("*") if partition.endswith("*") else default
        partition = partition.rstrip("*")
        try:
            limits[partition] = _seconds(limit)
        except ValueError:
            raise SnapshotError(f"sinfo:{number}: `{printable(limit, 30)}` is not a time limit") from None
        before = found.get(name, SiteNode(name, int(cpus), {}))
        word = state.rstrip("*~#!%$@^-+").lower()
        found[name] = SiteNode(name, before.cores, {**(before.classes or {}), partition: before.cores},
                               not word.startswith(DOWN) and "*" not in state, word.startswith(BUSY))
    if not found:
        raise SnapshotError("sinfo: it names no nodes")
    return list(found.values()), limits, default


def _with_lists(nodes: list[SiteNode], queues: Sequence[str] | set[str]) -> list[SiteNode]:
    """Return the nodes with a class for each list of partitions that a job accepts."""
    lists = [queue for queue in queues if "," in queue]
    if not lists:
        return nodes
    return [replace(node, classes={**(node.classes or {}), **{
        queue: node.cores for queue in lists
        if any(part in (node.classes or {}) for part in queue.split(","))}}) for node in nodes]


def _arrays(jobs: Sequence[SiteJob]) -> list[SiteJob]:
    """Replace each dependency on an array by dependencies on its jobs."""
    parts: dict[str, list[str]] = {}
    for job in jobs:
        parts.setdefault(job.key.partition("_")[0], []).append(job.key)
    return [replace(job, after=tuple(key for each in job.after
                                     for key in ([each] if "_" in each else parts.get(each, [])))
                    ) if job.after else job for job in jobs]


def _reservations(text: str, known: NodeNames, jobs: Mapping[str, list[str]], now: float
                  ) -> list[SiteReservation]:
    found = []
    if text.strip() and "ReservationName=" not in text and "No reservations" not in text:
        raise SnapshotError(f"reservations: it names none; make the file with: {_typed(SCONTROL)}")
    for line in text.splitlines():
        values = dict(re.findall(r"(\w+)=(\S*)", line))
        try:
            begin, end = _epoch(values["StartTime"]), _epoch(values["EndTime"])
            if begin is None or end is None or end <= begin:
                continue
            nodes = known.places(expand(values["Nodes"]))
        except (KeyError, ValueError):  # without nodes: a reservation of licences
            continue
        name = values.get("ReservationName", "")
        found.append(SiteReservation(name, begin - now, end - now, tuple(node for node, _ in nodes),
                                     jobs=tuple(jobs.get(name, ()))))
    return found
