"""Reads a site under PBS (OpenPBS, PBS Professional, Torque) from the output of `qstat -f` and `pbsnodes -a`.

Jobs are ordered by their priorities, then by their eligible times; how the site's scheduler combines them
(formulas, fair share) is not in this output.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from vrm.model.quantities import seconds_of
from vrm.system.printing.text import printable
from vrm.ext.forecast.site.outer import UNKNOWN, NodeNames, output_of
from vrm.ext.forecast.site.snapshot import SiteJob, SiteNode, Snapshot, SnapshotError
from vrm.system.printing.local_times import parse_local_time

QSTAT = ("qstat", "-f")
PBSNODES = ("pbsnodes", "-a")

LONG = 365 * 86400.0
"""Walltime of a job without a limit, in seconds."""

_DATE = "%a %b %d %H:%M:%S %Y"
_DOWN = re.compile(r"down|offline|unknown|stale|provisioning|maintenance")


def ask(now: float) -> Snapshot:
    """Return the site at `now` (epoch seconds), from its programs. Raises SnapshotError."""
    return parse(output_of(QSTAT), output_of(PBSNODES), now)


def parse(qstat: str, pbsnodes: str, now: float) -> Snapshot:
    """Return the site in these outputs, which were printed at `now`. Raises SnapshotError if they cannot be
    read."""
    nodes = _nodes(pbsnodes)
    known = NodeNames([node.name for node in nodes])
    jobs = []
    for line, key, values in _blocks(qstat, "qstat"):
        try:
            job = _job(key, values, known, nodes, now)
        except (ValueError, KeyError) as error:
            raise SnapshotError(f"qstat:{line}: job {printable(key, 60)}: not a value that PBS prints "
                                f"({printable(str(error), 80)}); make the file with: qstat -f") from None
        if job is not None:
            jobs.append(job)
    return Snapshot(now, nodes, jobs, unknown=(
        "the order of the site's scheduler: jobs are in that of their priorities and of the times "
        "from which they could run", *UNKNOWN))


def _blocks(text: str, name: str) -> list[tuple[int, str, dict[str, str]]]:
    """Return the blocks of indented `key = value` lines, each with its line number and its title. A value can
    continue in the next line, after a tab."""
    found: list[tuple[int, str, dict[str, str]]] = []
    key = ""
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        if not line[0].isspace():
            found.append((number, line.removeprefix("Job Id:").strip(), {}))
            key = ""
        elif not found:
            raise SnapshotError(f"{name}:{number}: it does not begin as {name} prints")
        elif line[0] == "\t" and key:
            found[-1][2][key] += line.strip()
        else:
            key, equals, value = (part.strip() for part in line.partition(" = "))
            if not equals:
                raise SnapshotError(f"{name}:{number}: `{printable(line.strip(), 60)}` is not a `key = value`")
            found[-1][2][key] = value
    return found


def _nodes(text: str) -> list[SiteNode]:
    found = []
    for line, name, values in _blocks(text, "pbsnodes"):
        cores = next((values[key] for key in ("resources_available.ncpus", "pcpus", "np")
                      if values.get(key, "").isdecimal()), "")
        if not cores:
            raise SnapshotError(f"pbsnodes:{line}: node {printable(name, 60)} has no ncpus, pcpus or np")
        if int(cores):
            queue = values.get("queue")
            state = values.get("state", "")
            found.append(SiteNode(name, int(cores), {queue: int(cores)} if queue else None,
                                  not _DOWN.search(state), state.startswith("job-") or "jobs" in values))
    if not found:
        raise SnapshotError("pbsnodes: it names no nodes")
    return found


def _shape(values: Mapping[str, str]) -> tuple[int, int, int]:
    """Return a job's number of nodes, cores on each (0 and 0 if its parts differ), and total of cores."""
    wish = values.get("Resource_List.select") or values.get("Resource_List.nodes") or ""
    parts = []
    for part in filter(None, wish.split("+")):
        first, *more = part.split(":")
        number = int(first) if first.isdecimal() else 1  # 1, or the name of a node
        each = next((int(word.partition("=")[2]) for word in more
                     if word.startswith(("ncpus=", "ppn="))), 1)
        parts.append((number, each))
    if not parts:
        total = max(1, int(values.get("Resource_List.ncpus", 1)))
        count = max(1, int(values.get("Resource_List.nodect", 1)))
        return (count, total // count, total) if total % count == 0 else (0, 0, total)
    total = max(1, sum(number * each for number, each in parts))
    each = parts[0][1]
    alike = each > 0 and all(one == each for _, one in parts)
    return (sum(number for number, _ in parts), each, total) if alike else (0, 0, total)


def _hosts(values: Mapping[str, str]) -> list[str]:
    """Return the nodes of a running job, from (n0:ncpus=2)+(n1:ncpus=2) or n0/0*2+n1/0-3."""
    vnodes = re.findall(r"[(+]([^():+]+):", values.get("exec_vnode", ""))
    return vnodes or [part.partition("/")[0] for part in values.get("exec_host", "").split("+") if part]


def _job(key: str, values: Mapping[str, str], known: NodeNames, all_nodes: list[SiteNode], now: float
         ) -> SiteJob | None:
    state = values["job_state"]
    if state not in ("R", "E", "S", "U", "Q", "H", "W", "T"):
        return None  # ended, moved, or the head of an array
    runs = state in ("R", "E", "S", "U")
    wall = values.get("Resource_List.walltime")
    nodes, each, total = _shape(values)
    places = known.places(_hosts(values)) if runs else ()
    if places and nodes and len(places) != nodes:  # chunks that share a node
        nodes, each = len(places), -(-total // len(places))
    if nodes and each > max(node.cores for node in all_nodes) and runs:
        each = max(node.cores for node in all_nodes)
    start = _date(values.get("stime")) if runs else None
    submit = _date(values.get("etime")) or _date(values.get("qtime")) or now
    later = _date(values.get("Execution_Time")) if state == "W" else None
    stuck = "" if state != "H" else f"PBS holds it back (Hold_Types = {values.get('Hold_Types', '?')})"
    if state == "H" and "depend" in values:
        stuck = ""
    return SiteJob(
        key, max(1.0, seconds_of(wall) if wall else LONG), total, nodes, each, values.get("Job_Name", ""),
        values.get("Job_Owner", "").partition("@")[0], values.get("queue", ""),
        (later if later is not None and later > now else min(submit, now)) - now,
        min(0.0, (start if start is not None else now) - now) if runs else None, places,
        float(values.get("Priority", 0) or 0), (),
        tuple(word for part in values.get("depend", "").split(",") if part.startswith("after")
              for word in re.findall(r":([^:@,]+)", part)), stuck)


def _date(text: str | None) -> float | None:
    return None if not text else parse_local_time(text, _DATE)
