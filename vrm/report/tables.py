"""Status tables: a snapshot of the manager's state, as text for people and as JSON for programs.

A snapshot is the content of the file `state`. Nothing here contacts the manager, so the output is the same on every
node that sees the file; its age shows whether the manager is alive.
"""

from __future__ import annotations

import itertools
import math
import re
import textwrap
import time
from dataclasses import dataclass
from typing import Any
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from vrm.model.node import Socket
from vrm.report import node_resources
from vrm.report.array_rows import shared_rows
from vrm.report.moments import FORECAST, NONE, brief
from vrm.results.forecast import AGED, ByJob, Record
from vrm.model.forms.hosts import fold as fold_nodes
from vrm.model.quantities import clock
from vrm.results.names import policy_name
from vrm.results.state import JOB, REQUIRED, Snapshot, jobs_of, label
from vrm.system.printing.local_times import local_time_text
from vrm.system.printing.output import boxed
from vrm.system.printing.text import printable

FORMAT = 2
"""Format number of the results of `queue_json` and `state_json`."""
STALE_AFTER = 15.0
"""Age in seconds from which a manager that has not ended is suspected to be dead: it writes at least every 5 s."""
FOLD_ABOVE = 64
"""Number of nodes above which equal neighbours share their lines in the table of nodes."""
APART = 10
"""Up to this number of equal waiting jobs (of an array or others), each has its own row."""


# --------------------------------------------------------------------------------- the head line


@dataclass(frozen=True)
class _Head:
    """The text above every table; `age` in seconds."""

    age: float
    stale: bool
    running: list[Mapping[str, Any]]
    queued: list[Mapping[str, Any]]

    @classmethod
    def of(cls, snapshot: Snapshot, now: float, apart: float = APART) -> _Head:
        age = max(0.0, now - snapshot["time"])  # clocks of two hosts may differ slightly
        stale = snapshot.get("dead", False) or (age > STALE_AFTER and snapshot["manager"]["phase"] != "ended")
        by_state: dict[str, list[Mapping[str, Any]]] = {"running": [], "queued": []}
        for job in jobs_of(snapshot, apart):
            by_state[job["state"]].append(job)
        return cls(age, stale, by_state["running"], by_state["queued"])

    def lines(self, snapshot: Snapshot, width: int | None) -> list[str]:
        """Return the lines of text, wrapped to `width` characters."""
        rules, manager, ended = (snapshot[key] for key in ("scheduling", "manager", "ended"))
        others = ", ".join(f"{count} {what}" for what, count in ended.items()
                           if count and what != "completed")
        policies = f"{policy_name(rules['algorithm'], rules['backfilling'])}, {rules['policy']}:"
        counts = (f"{len(self.running)} running, {_count(self.queued)} waiting,"
                  f" {sum(ended.values())} ended{f' ({others})' if others else ''};"
                  f" {ago(self.age)} ago")
        one_line = f"{policies} {counts}"
        lines = [one_line] if width is None or len(one_line) <= width else [policies, counts]
        if snapshot["emulated"]:
            lines.append(f"EMULATED: {geometry(snapshot['nodes'])} on this machine,"
                         f" ranks oversubscribed and unbound")
        if snapshot.get("dead"):
            lines.append(f"the manager (pid {manager['pid']}) is dead: the same vrm command continues its run")
        elif self.stale:
            lines.append(f"the manager (pid {manager['pid']} on {manager['host']}) has not written"
                         f" for {ago(self.age)}: it may have died")
        elif manager["phase"] == "ended":
            lines.append("the manager has ended")
        elif manager["phase"] == "stopping":
            lines.append("the manager is stopping: it starts no more jobs")
        if snapshot.get("unread"):
            lines.append(f"{snapshot['unread']} command(s) that were given meanwhile wait for the next manager")
        lines += (f"node {node['name']} takes no new jobs: {node['why']}" for node in snapshot["nodes"]
                  if node.get("why"))
        lines += map(reservation_line, snapshot.get("reservations", ()))
        lines += map(lend_line, snapshot.get("lends", ()))
        lines = [shown(line) for line in lines]
        if width is None:
            return lines
        return [part for line in lines for part in textwrap.wrap(line, max(width, 20))]


def _count(jobs: Sequence[Mapping[str, Any]]) -> int:
    """Return the number of jobs in these values."""
    return sum(job.get("count", 1) for job in jobs)


def reservation_line(reservation: Mapping[str, Any]) -> str:
    """Return a reservation of a snapshot as one line."""
    jobs = f", jobs {reservation['jobs']}" if reservation["jobs"] else ", no jobs yet"
    begin, end = (local_time_text(reservation[key], "%d %b %H:%M:%S") for key in ("begin", "end"))
    return (f"reservation {reservation['name']}: {fold_nodes(reservation['nodes'])} from {begin} to "
            f"{end}{jobs}")


def lend_line(lend: Mapping[str, Any]) -> str:
    """Return a lend of a snapshot as one line: lender, cores and borrower."""
    cores = f"{lend['cores']} core{'s' * (lend['cores'] > 1)} on {fold_nodes(lend['nodes'])}"
    whom = "nobody" if lend["to"] is None else f"job {lend['to']}"
    return {"lend": f"job {lend['id']} is about to lend {cores} to {whom}",
            "lent": f"job {lend['id']} lends {cores} to {whom}",
            "regain": f"job {lend['id']} is about to reclaim {cores}"}[lend["phase"]]


def geometry(nodes: Sequence[Mapping[str, Any]]) -> str:
    """Return the nodes of a snapshot in words: `8 nodes of 2x4`, by sockets and cores."""
    shapes = {tuple(len(socket) for socket in node["sockets"]) for node in nodes}
    count = f"{len(nodes)} node{'' if len(nodes) == 1 else 's'}"
    if len(shapes) != 1:
        return count
    sockets = shapes.pop()
    if len(set(sockets)) != 1:
        return f"{count} of {'+'.join(map(str, sockets))} cores"
    return f"{count} of {len(sockets)}x{sockets[0]}"


def ago(seconds: float) -> str:
    """Return a past duration in a suitable unit: `14 s`, `10 min`, `3 days`."""
    for unit, size, below in (("s", 1, 600), ("min", 60, 120 * 60), ("h", 3600, 72 * 3600)):
        if seconds < below:
            return f"{int(seconds // size)} {unit}"
    return f"{int(seconds // 86400)} days"


def shown(text: str) -> str:
    """Return the text with characters that could disturb a terminal made visible, because names come from users."""
    return printable(text)


def duration(seconds: float) -> str:
    """Return HH:MM:SS; a negative time is shown as +HH:MM:SS. A fraction of a second is rounded up."""
    if not math.isfinite(seconds):
        return "-"
    whole = math.ceil(seconds)
    return "+" * (whole < 0) + clock(abs(whole))


def first_parts(text: str) -> str:
    """Return the beginning of a list as 3,5-7,9,20-30 that is short enough for a table."""
    some = text.split(",")
    return f"{','.join(some[:3])}{',...' if len(some) > 3 else ''}"


def status(job: Mapping[str, Any]) -> str:
    """Return R for a running job and Q for one that waits for free cores. Other waiting jobs have the reason: held,
    after other jobs, nodes (it needs more than there are), late (for another allocation: it would not end before this
    one does)."""
    if job["state"] == "running":
        return "R"
    if job.get("held"):
        return "held"
    if job.get("after"):
        return f"after {first_parts(job['after'])}"
    if job.get("lacks"):
        return "nodes"
    return "late" if job.get("late") else "Q"


def remaining(job: Mapping[str, Any], now: float) -> float:
    """Return the estimate minus the time that has passed, in seconds; below 0 if the job exceeds it. It is longer for
    a job that has lent cores, or has borrowed fewer than it requested."""
    estimate: float = job["estimate"]
    if job["state"] != "running":
        return estimate
    return float(job["start"] + estimate + job.get("extra", 0.0) - now)


def expected_text(job: Mapping[str, Any], now: float) -> str:
    """Return the remaining expected time of a job; "" if its expected time is its estimate."""
    if job["expected"] is None:
        return ""
    return duration(job["expected"] if job["state"] != "running" else job["expected_end"] - now)


# ----------------------------------------------------------------------------------- the tables


def head_text(snapshot: Snapshot, now: float, width: int | None = None) -> str:
    """Return only the text above every table."""
    return "\n".join(_Head.of(snapshot, now).lines(snapshot, width))


def queue_table(snapshot: Snapshot, now: float | None = None, width: int | None = None,
                limit: int | None = None, forecasts: Mapping[int, Record] = NONE, each: bool = False,
                only: Callable[[int], bool] = lambda job_id: True) -> str:
    """Return a table of the jobs: running ones by start, then waiting ones in the order of the queue.

    Columns: Remaining is the estimate minus the run time so far; for a waiting job it is the estimate, and `+` marks
    a job that exceeds it. Expected is the same for the expected run time (Estimates), if that differs from the
    estimate. Status is the result of `status`, Name a job's name and its index in an array, Args its arguments, Why
    the reason why it waits. Forecast is the likely start with its range, or the likely end of a running job
    (`forecasts`, by id; their age is shown below the table if it is at least AGED). Name, Args, Expected, Forecast
    and Why are left out if no job has a value.

    `now` is in epoch seconds (default: the clock), `width` the width of the terminal in characters (default: no
    limit), and `limit` the maximum number of rows of waiting jobs. More than APART equal waiting jobs share a row,
    with the forecast of the first one; with `each`, all jobs have their own rows, of which the table has those whose id
    is accepted by `only`. Raises ValueError if the snapshot
    has another format.
    """
    now = time.time() if now is None else now
    head = _Head.of(snapshot, now, math.inf if each else APART)
    queued = ([job for job in head.queued if only(job["id"])] if each else list(shared_rows(head.queued, APART)))
    waiting = queued if limit is None else queued[:max(0, limit)]
    rows = [
        [first_parts(job.get("ids", str(job["id"]))), shown(job["app"]), shown(label(_short(job))), shown(job["args"]),
         str(job["procs"]), status(job),
         local_time_text(job["start"]) if job["state"] == "running" else "-",
         duration(remaining(job, now)), expected_text(job, now),
         brief(forecasts.get(job["id"]), now),
         "" if job["why"] == status(job) else shown(job["why"])]
        for job in [*sorted((job for job in head.running if only(job["id"])),
                            key=lambda job: (job["start"], job["id"])), *waiting]]
    names = ["Id", "App", "Name", "Args", "Ranks", "Status", "Started", "Remaining",
             "Expected", "Forecast", "Why"]
    drop_empty(names, rows, ("Why", "Forecast", "Expected", "Args", "Name"))
    if width is not None:
        if "Forecast" in names and width < _NARROW:  # only the start
            column = names.index("Forecast")
            for row in rows:
                row[column] = row[column].partition(" (")[0]
        narrow(names, rows, width)
    after = []
    if len(waiting) < len(queued):
        after.append(f"... and {_count(head.queued) - _count(waiting)} more waiting; `vrm queue --all` shows them")
    reserved = next((job for job in head.queued if job.get("expected_start") is not None), None)
    if reserved:
        moment = reserved["expected_start"]
        after.append(f"job {reserved['id']} has a reservation for {local_time_text(moment)},"
                     f" in {duration(max(0.0, moment - now))}")
    made = forecasts.time if isinstance(forecasts, ByJob) else now
    if "Forecast" in names and now - made >= AGED:
        after.append(f"the forecast is {ago(now - made)} old")
    return "\n".join([*head.lines(snapshot, width), boxed(names, rows), *after])


def _short(job: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a job; for many equal jobs, with at most as many indices as fit into a row."""
    return {**job, "index": first_parts(job["index"])} if type(job["index"]) is str else job


def drop_empty(names: list[str], rows: list[list[str]], columns: Sequence[str]) -> None:
    """Remove those of the columns in which all rows are empty."""
    for name in columns:
        column = names.index(name)
        if not any(row[column] for row in rows):
            for cells in (names, *rows):
                del cells[column]


_NARROW = 100
"""Width of a terminal, in characters, below which ranges of forecasts are left out."""
_STEPS = (("Args", 4), ("Why", 25), ("Name", 14), ("Expected", 0), ("Args", 0), ("Started", 0), ("Why", 12),
          ("Name", 6), ("App", 8), ("Why", 4), ("Why", 0), ("Name", 0), ("Forecast", 0), ("Ranks", 0))
"""How a table that is too wide becomes narrower: in this order a column is cut to the number of characters, or left out
(0)."""


def narrow(names: list[str], rows: list[list[str]], width: int,
           steps: Sequence[tuple[str, int]] = _STEPS) -> None:
    """Cut the texts of a table and leave out columns, step by step, until it fits."""
    for name, least in steps:
        over = width_of(names, rows) - width
        if over <= 0 or name not in names:
            continue
        column = names.index(name)
        longest = max([len(row[column]) for row in rows], default=0)
        for row in rows:
            row[column] = cut(row[column], max(least, longest - over))
        if not least:
            for cells in (names, *rows):
                del cells[column]


def state_table(snapshot: Snapshot, now: float | None = None,
                width: int | None = None) -> str:
    """Return a table of the nodes: a line for every socket, with the job on each core.

    Status is Empty, Full or Slots (some cores taken), Down, or Drained (it takes no new jobs). If the table is wider
    than `width` characters, its cores are folded into ranges (`0-15 #3 ft.B.x, 16-31 .`). In clusters of more than
    FOLD_ABOVE nodes, neighbours with the same jobs on the same cores (usually no jobs) share their lines (`n3-n999`).
    `now` is in epoch seconds (default: the clock). Raises ValueError if the snapshot has another format.
    """
    now = time.time() if now is None else now
    head = _Head.of(snapshot, now)
    apps = {job["id"]: shown(f"#{job['id']} {label(job) or job['app']}") for job in head.running}
    sockets = list(_sockets(snapshot["nodes"]))
    most = max([len(socket.slots) for _, _, socket in sockets], default=0)
    names = ["Node", "Socket", "Taken", "Status", *(f"Core {core}" for core in range(most))]
    left = [[name, str(socket.number), f"{socket.taken}/{len(socket.slots)}",
             closed or socket.status] for name, closed, socket in sockets]
    if width is None or 9 * most <= width:
        rows = [[*start, *(_app(job, apps) for job in socket.slots),
                 *[""] * (most - len(socket.slots))]
                for start, (_, _, socket) in zip(left, sockets)]
        if width is None or width_of(names, rows) <= width:
            return "\n".join([*head.lines(snapshot, width), boxed(names, rows),
                              *_resource_table(snapshot, apps)])
    names[4:] = ["Cores"]
    room = max(20, width - width_of(names[:4], left) - 3)
    rows = [[*start, _wrapped(_runs(socket.slots, apps), room)]
            for start, (_, _, socket) in zip(left, sockets)]
    return "\n".join([*head.lines(snapshot, width), boxed(names, rows), *_resource_table(snapshot, apps)])


def _resource_table(snapshot: Snapshot, apps: Mapping[int, str]) -> list[str]:
    """Return a table of what nodes have besides cores, and the run's licences; empty if it is of no interest."""
    if not node_resources.has_resources(snapshot):
        return []
    held = node_resources.held(snapshot["jobs"])
    alike = _groups([{**node, "sockets": [node_resources.gpus(node, held), node.get("resources"),
                                          node.get("features")]} for node in snapshot["nodes"]])
    names, rows = node_resources.rows([group[0] for group in alike], held, apps)
    for group, row in zip(alike, rows):
        row[0] = shown(group[0]["name"]) + f"-{shown(group[-1]['name'])}" * bool(group[1:])
    line = node_resources.licences_line(snapshot)
    return ["", boxed(names, [[shown(cell) for cell in row] for row in rows])] + [line] * bool(line)


def _closed(node: Mapping[str, Any]) -> str:
    """Return the status of a node on which nothing starts; "" for other nodes."""
    return "" if node["up"] else "Drained" if node.get("why") else "Down"


def _sockets(nodes: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str, Socket]]:
    """Yield, for every line of the table of nodes, the name, the status of a closed node, and the socket."""
    for group in _groups(nodes):
        first, last = group[0], group[-1]
        name = shown(first["name"])
        if last is not first:
            name += f"-{shown(last['name'])}"
        for number, slots in enumerate(first["sockets"]):
            yield name, _closed(first), Socket(number, slots)


def _groups(nodes: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    if len(nodes) <= FOLD_ABOVE:
        return [[node] for node in nodes]
    groups: list[list[Mapping[str, Any]]] = []
    for node in nodes:
        before = groups[-1][-1] if groups else None
        if (before is not None and _closed(node) == _closed(before)
                and node["sockets"] == before["sockets"]
                and follows(node["name"], before["name"])):
            groups[-1].append(node)
        else:
            groups.append([node])
    return groups


_numbered = re.compile(r"(.*?)([0-9]+)").fullmatch


def follows(name: str, before: str) -> bool:
    """Return whether a name is the next one: n4 after n3, or cn010 after cn009."""
    found, earlier = _numbered(name), _numbered(before)
    if not found or not earlier or found[1] != earlier[1]:
        return False
    return found[2] == str(int(earlier[2]) + 1).zfill(len(earlier[2]))


def _app(job: int | None, apps: Mapping[int, str]) -> str:
    if job is None:
        return "."
    return apps.get(job) or f"job {job}"


def _runs(slots: Sequence[int | None], apps: Mapping[int, str]) -> list[str]:
    """Return neighbouring cores of the same job together: `0-15 #3 ft.B.x`, `16-31 .`."""
    runs = []
    first = 0
    for core in range(1, len(slots) + 1):
        if core == len(slots) or slots[core] != slots[first]:
            numbers = f"{first}" if core - 1 == first else f"{first}-{core - 1}"
            runs.append(f"{numbers} {_app(slots[first], apps)}")
            first = core
    return runs


def _wrapped(parts: Iterable[str], room: int) -> str:
    """Return the parts, separated by commas, in lines of at most `room` characters."""
    lines = [""]
    for part in parts:
        part = cut(part, room - 1)
        if not lines[-1]:
            lines[-1] = part
        elif len(lines[-1]) + 2 + len(part) < room:
            lines[-1] += f", {part}"
        else:
            lines[-1] += ","
            lines.append(part)
    return "\n".join(lines)


def cut(text: str, length: int) -> str:
    """Return the text shortened to at most `length` characters."""
    return text if len(text) <= length else f"{text[:length - 3]}..."


def width_of(names: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """Return the width of the table in characters."""
    columns = zip(names, *rows)
    return sum(max(map(len, column)) + 3 for column in columns) + 1


# ------------------------------------------------------------------------------------- as JSON


def queue_json(snapshot: Snapshot, now: float | None = None,
               forecasts: Mapping[int, Record] = NONE) -> dict[str, Any]:
    """Return the jobs as data; the keys are kept in later versions. `jobs` is an iterator that can be used once.

    Common to both forms: `format` (2; in 1 `after` was a list), `time` of the snapshot and its `age`, `manager`
    (`host`, `pid`, `start`, `phase`), `stale` (true: the manager may have died), `emulated`, `scheduling`
    (`algorithm`, `backfilling`, `policy`) and `ended` (number of jobs by end state). Here `jobs`, in the order of the
    table: `id`, `app`, `procs`, `state` (running or queued), `submit`, `estimate`, `exclusive`, `start` (null while
    queued), `remaining` (below 0: exceeds its estimate), `expected_start` (null without a reservation), `nodes` and
    `devices` (as in jobs.csv; both empty while queued), `cores` (of each rank), `name`, `priority`, `retries` (how
    often it may be tried again), `args` (quoted as in a shell), `dir` (empty: the run's), `index` (in an array, else
    null), `why` (why it waits, for people), `expected` (its expected run time at submission; null: its estimate), and
    the reasons why it waits although there may be free cores: `held`, `after` (the ids of the jobs it waits for, as
    `3,5-7`), `late` (it would not end before the allocation does), `lacks` (why the present nodes cannot run it, or
    an empty text). `forecast` is null, or has `start`, `p10`, `p90`, `end`, `latest` (null: not in this allocation),
    `chance`, `nodes` and `reason` (see `vrm forecast --json`). Times are epoch seconds, durations seconds.
    """
    now = time.time() if now is None else now
    head = _Head.of(snapshot, now)
    running = sorted(head.running, key=lambda job: (job["start"], job["id"]))
    queued = (job for job in jobs_of(snapshot) if job["state"] != "running")
    return {**_common(snapshot, head), "jobs": ({
        **{key: job[key] for key in ("id", *REQUIRED, "state", "submit")},
        "start": job.get("start"),
        "remaining": remaining(job, now),
        "expected_start": job.get("expected_start"),
        "nodes": list(job.get("nodes", ())),
        "devices": job.get("devices", ""),
        **{key: job[key] for key in JOB},
        "forecast": None if job["id"] not in forecasts else
        {key: forecasts[job["id"]][key] for key in FORECAST},
    } for job in itertools.chain(running, queued))}


def state_json(snapshot: Snapshot, now: float | None = None) -> dict[str, Any]:
    """Return the nodes as data for `json.dumps`; the keys are kept in later versions.

    The common keys are those of `queue_json`. Here `nodes`: `name`, `up` and `sockets`, each with `socket` (its
    number), `taken`, `status` (Empty, Full, Slots, Down or Drained) and for every core `jobs` (the id, or null) and
    `apps` (the application, or null). If there are any: `why` a node takes no new jobs, `gpus` (each with its `index`
    and `job`), `resources` (free amount and total, by name) and `features`; and next to `nodes`: `licences`,
    `reservations` (each with `id`, `name`, `nodes`, `begin`, `end` and the ids of its `jobs` as 3,5-7) and `lends`
    (each with the `id` of the lender, the borrower `to` (null: the node), `cores`, `nodes`, `since` and its `phase`:
    lend, lent or regain).
    """
    now = time.time() if now is None else now
    head = _Head.of(snapshot, now)
    apps = {job["id"]: job["app"] for job in head.running}

    def socket_json(closed: str, socket: Socket) -> dict[str, Any]:
        return {"socket": socket.number, "taken": socket.taken,
                "status": closed or socket.status, "jobs": list(socket.slots),
                "apps": [apps.get(job) if job is not None else None for job in socket.slots]}

    held = node_resources.held(head.running)
    more = {key: snapshot[key] for key in ("licences", "reservations", "lends") if snapshot.get(key)}
    return {**_common(snapshot, head), **more, "nodes": [{
        "name": node["name"], "up": node["up"],
        "sockets": [socket_json(_closed(node), Socket(number, slots))
                    for number, slots in enumerate(node["sockets"])],
        **{name: node[name] for name in ("resources", "features", "why") if node.get(name)},
        **{name: [{"index": index, "job": job} for index, job in found]
           for name, found in [("gpus", node_resources.gpus(node, held))] if found},
    } for node in snapshot["nodes"]]}


def _common(snapshot: Snapshot, head: _Head) -> dict[str, Any]:
    return {"format": FORMAT, "time": snapshot["time"], "age": head.age,
            "manager": dict(snapshot["manager"]), "stale": head.stale,
            "emulated": snapshot["emulated"], "scheduling": dict(snapshot["scheduling"]),
            "ended": dict(snapshot["ended"])}
