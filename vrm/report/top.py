"""The picture of `vrm top`: a screen of text made of a snapshot, and what the keys do to it.

Everything here is a pure function but `read_ends`: the terminal and the files are in
`vrm/commands/screen.py`.
"""

from __future__ import annotations

import csv
import math
import os
import re
import textwrap
import unicodedata
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from vrm.report import holdings
from vrm.report.gantt import gantt
from vrm.report.moments import brief
from vrm.report.tables import (STALE_AFTER, ago, clock, duration, follows, geometry, remaining,
                               reservation_line, shown)
from vrm.results.jobs import seconds_of
from vrm.results.places import fold_nodes
from vrm.results.state import Snapshot, current, label

Job = Mapping[str, Any]
Span = Tuple[str, str]
"""Text and its style: plain, title, heading, dim, bold, good, warn, bad, ask, or job0 to job5; with
`reverse ` before it for what is selected."""
Line = List[Span]
Command = Dict[str, Any]

COLOURS = 6
"""Number of the styles job0, job1 ... by which jobs are told apart."""
ORDERS = ("queue", "id", "app", "time")
"""How the lists can be sorted: as they run and wait, or by id, application, or time left."""
_LOW = 20
"""Lines below which a screen has no room for long notices and ended jobs."""
_FEWEST = 3
"""Lines of jobs below which a screen has no room for nodes."""
MARKS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True)
class Glyphs:
    """The characters a picture is drawn with."""

    full: str
    rest: str
    free: str
    divider: str
    cut: str
    ascii: bool


UNICODE = Glyphs("━", "─", "·", "│", "…", ascii=False)
ASCII = Glyphs("#", "-", ".", "|", "~", ascii=True)


@dataclass(frozen=True)
class View:
    """What the user has chosen to see. Only `press` changes it.

    `mode` is list, help, filter (its text is being typed) or cancel (a question waits for y or n).
    """

    selected: Optional[int] = None  # a job's id
    row: int = 0                    # where that job stood among all, for when it is gone
    wanted: str = ""                # the filter
    order: str = ORDERS[0]
    nodes: str = "some"             # some, all or none of them
    gantt: bool = False             # jobs as bars over time in the place of nodes and lists
    mode: str = "list"


@dataclass(frozen=True)
class End:
    """A job that ended, from `jobs.csv`; `end` in epoch seconds, `took` in seconds."""

    id: int
    app: str
    status: str
    end: Optional[float]
    took: Optional[float]
    reason: str
    called: str = ""  # its name, its index in an array and its arguments


# ---------------------------------------------------------------------------------------- facts


def jobs_in_view(snapshot: Snapshot, view: View, now: float) -> Tuple[List[Job], List[Job]]:
    """The running and the waiting jobs that the filter lets pass, in the chosen order."""
    wanted = view.wanted.strip().lower()
    jobs = [job for job in current(snapshot)["jobs"] if not wanted or wanted in _searched(job)]
    running = sorted((job for job in jobs if job["state"] == "running"),
                     key=lambda job: (job["start"], job["id"]))
    waiting = [job for job in jobs if job["state"] != "running"]
    key: Optional[Callable[[Job], Any]] = {
        "id": lambda job: job["id"], "app": lambda job: (job["app"], job["id"]),
        "time": lambda job: (remaining(job, now), job["id"])}.get(view.order)
    if key is not None:
        running.sort(key=key)
        waiting.sort(key=key)
    return running, waiting


def _called(job: Job) -> str:
    """What tells a job from others of its program."""
    return " ".join(filter(None, (label(job), job["args"])))


def _searched(job: Job) -> str:
    nodes = _folded(tuple(job.get("nodes", ())))
    return (f"{job['id']} {job['app']} {_called(job)} {nodes} "
            f"{'held' if job.get('held') else ''}").lower()


def chosen(jobs: Sequence[Job], view: View) -> Optional[int]:
    """The place among the jobs of the selected one; when it is gone, that of its successor."""
    if not jobs or view.selected is None:
        return None
    for place, job in enumerate(jobs):
        if job["id"] == view.selected:
            return place
    return max(0, min(view.row, len(jobs) - 1))


def mark(job_id: int) -> str:
    """The letter that stands for a job on its cores; the same as long as it lives."""
    return MARKS[job_id % len(MARKS)]


def _colour(job_id: int) -> str:
    # Jobs with the same letter have different colours.
    return f"job{(job_id + job_id // len(MARKS)) % COLOURS}"


def _partners(nodes: Sequence[Mapping[str, Any]]) -> Dict[int, List[int]]:
    """By job: the other jobs that have cores of its nodes."""
    found: Dict[int, set] = {}
    for node in nodes:
        here = {job for slots in node["sockets"] for job in slots if job is not None}
        for job in here:
            found.setdefault(job, set()).update(here - {job})
    return {job: sorted(others) for job, others in found.items()}


_plain_name = re.compile(r"\w[\w.-]*", re.ASCII).fullmatch


@lru_cache(maxsize=4096)
def _folded(nodes: Tuple[str, ...]) -> str:
    if not nodes or not all(map(_plain_name, nodes)):  # ClusterShell reads more than names
        return shown(",".join(nodes))
    return fold_nodes(nodes)


def read_ends(path: Union[str, "os.PathLike[str]"], count: int = 100) -> List[End]:
    """The last jobs of `jobs.csv`, the latest first; none when there is no such file.

    Only the file's end is read. What cannot be read as a job's line is passed over.
    """
    try:
        with open(path, "rb") as file:
            names = file.readline().decode("utf-8", "replace").rstrip("\n").split(",")
            start = file.tell()
            size = file.seek(0, os.SEEK_END)
            first = max(start, size - (1 << 16))
            file.seek(first)
            lines = file.read().decode("utf-8", "replace").split("\n")
    except FileNotFoundError:
        return []
    lines = lines[first > start:-1]  # the first may be a part, the last is being written
    ends = (_end(names, line) for line in reversed(lines[-count:]))
    return [end for end in ends if end is not None]


def _end(names: Sequence[str], line: str) -> Optional[End]:
    try:
        row = dict(zip(names, next(csv.reader([line]))))
        start, end = (seconds_of(row[key]) if row[key] else None for key in ("start", "end"))
        took = None if start is None or end is None else end - start
        facts = {**row, "name": row.get("name", ""), "index": row.get("index") or None,
                 "args": row.get("args", "")}
        return End(int(row["id"]), row["app"], row["status"], end, took, row.get("reason", ""),
                   _called(facts))
    except (KeyError, ValueError, StopIteration, csv.Error):
        return None


# ----------------------------------------------------------------------------------------- keys


def press(view: View, key: str, jobs: Sequence[Job], page: int = 10
          ) -> Tuple[View, Optional[Command]]:
    """What a key changes, and the command to send to the manager, if any.

    Keys are single characters and up, down, pageup, pagedown, home, end, enter, escape,
    backspace. `jobs` are those in view, running ones first.
    """
    place = chosen(jobs, view)
    if view.mode == "help":
        return replace(view, mode="list"), None
    if view.mode == "cancel":
        job_id = view.selected
        sent = {"do": "cancel", "id": job_id} if key in ("y", "Y") else None
        return replace(view, mode="list"), sent
    if view.mode == "filter":
        return _type(view, key), None
    moves = {"up": -1, "k": -1, "down": 1, "j": 1, "pageup": -page, "pagedown": page,
             "home": -len(jobs), "end": len(jobs)}
    if key in moves and jobs:
        if place is None:
            place = len(jobs) - 1 if key == "end" else 0
        else:
            place = max(0, min(place + moves[key], len(jobs) - 1))
        return replace(view, selected=jobs[place]["id"], row=place), None
    if key in ("c", "h", "r") and place is not None:
        job_id = jobs[place]["id"]
        view = replace(view, selected=job_id, row=place)
        if key == "c":
            return replace(view, mode="cancel"), None
        return view, {"do": "hold" if key == "h" else "release", "id": job_id}
    if key == "s":
        order = ORDERS[(ORDERS.index(view.order) + 1) % len(ORDERS)]
        return replace(view, order=order), None
    if key == "n":
        following = {"some": "all", "all": "none", "none": "some"}
        return replace(view, nodes=following[view.nodes]), None
    if key == "g":
        return replace(view, gantt=not view.gantt), None
    if key == "escape":
        return replace(view, wanted="", selected=None), None
    return replace(view, mode={"?": "help", "/": "filter"}.get(key, "list")), None


def _type(view: View, key: str) -> View:
    if key == "enter":
        return replace(view, mode="list")
    if key == "escape":
        return replace(view, mode="list", wanted="")
    if key == "backspace":
        return replace(view, wanted=view.wanted[:-1])
    if len(key) == 1 and key.isprintable():
        return replace(view, wanted=view.wanted + key)
    return view


_HELP = (
    ("up, down, j, k", "select a job; page up, page down, home, end too"),
    ("c", "cancel the selected job (asks first)"),
    ("h", "hold it: it does not start until it is released"),
    ("r", "release it"),
    ("/", "show only jobs whose id, program, name, arguments or nodes have the text; escape shows "
          "all"),
    ("s", "sort: as they run and wait, by id, by program, by time left"),
    ("n", "nodes: some, all, none"),
    ("g", "jobs over time, as they are forecast, and back"),
    ("q", "quit; the manager continues"),
)


# -------------------------------------------------------------------------------------- drawing


def render(snapshot: Optional[Snapshot], ends: Sequence[End], size: Tuple[int, int], now: float,
           view: View = View(), status: Span = ("", "plain"), alive: Optional[bool] = None,
           glyphs: Glyphs = UNICODE, interactive: bool = True) -> List[Line]:
    """The picture: at most `size[1]` lines of at most `size[0]` columns.

    `snapshot` is None as long as there is no state file; `ends` are the last jobs that ended, the
    latest first; `now` is in epoch seconds. `status` takes the place of the keys in the last
    line. `alive` tells whether the manager is known to live. Not `interactive`: no last line.
    ValueError when the snapshot has another format.
    """
    width, height = max(1, size[0]), max(1, size[1])
    if snapshot is None:
        top: List[Line] = [[("vrm top", "title")]]
        body = _help(width, glyphs) if view.mode == "help" else []
    else:
        snapshot = current(snapshot)
        top = _head(snapshot, now, width, height, alive, glyphs)
        room = height - len(top) - interactive
        body = (_help(width, glyphs) if view.mode == "help"
                else _body(snapshot, ends, width, room, now, view, glyphs))
    lines = [_fitted(line, width, glyphs) for line in [*top, *body]]
    if not interactive:
        return lines[:height]
    lines = lines[:height - 1]
    lines += [[] for _ in range(height - 1 - len(lines))]
    # The last cell of a screen stays free: some terminals scroll when it is written to.
    return [*lines, _fitted(_foot(snapshot, view, status, width - 1), width - 1, glyphs)]


def plain_text(lines: Sequence[Line]) -> str:
    """The picture without its styles."""
    return "\n".join("".join(text for text, _ in line).rstrip() for line in lines)


def _head(snapshot: Snapshot, now: float, width: int, height: int, alive: Optional[bool],
          glyphs: Glyphs) -> List[Line]:
    """Policy, counts, how much is in use, and what is wrong."""
    rules, ended, nodes = snapshot["scheduling"], snapshot["ended"], snapshot["nodes"]
    policies = f"{rules['policy']}, {rules['algorithm']}, backfilling {rules['backfilling']}"
    left = shown(f"vrm top  {policies}  {geometry(nodes)}")
    title = f"{_padded(left, max(8, width - 9), glyphs)} {clock(now)}"
    states = [job["state"] for job in snapshot["jobs"]]
    running = states.count("running")
    held = sum(1 for job in snapshot["jobs"] if job.get("held"))
    others = ", ".join(f"{count} {what}" for what, count in ended.items()
                       if count and what != "completed")
    counts: Line = [(f"{running} running, {len(states) - running} waiting", "bold"),
                    (f" ({held} held)" if held else "", "plain"),
                    (f", {sum(ended.values())} ended", "bold"),
                    (f" ({shown(others)})" if others else "", "warn")]
    reserved: List[Line] = [[(_padded(shown(reservation_line(each)), width, glyphs).rstrip(), "plain")]
                            for each in snapshot.get("reservations", ())[:max(1, height // 12)]]
    return [[(title, "title")], counts, _use(snapshot, now, width, glyphs), *reserved,
            *_notices(snapshot, now, width, height, alive)]


def _use(snapshot: Snapshot, now: float, width: int, glyphs: Glyphs) -> Line:
    """How many cores are taken, and when the allocation ends."""
    slots = [slots for node in snapshot["nodes"] if node["up"] for slots in node["sockets"]]
    cores = sum(map(len, slots))
    taken = cores - sum(part.count(None) for part in slots)
    share = taken / cores if cores else 0.0
    down = sum(1 for node in snapshot["nodes"] if not node["up"])
    rest: Line = [(f" {share:4.0%}".replace("%", " %"), "plain")]
    end = (snapshot.get("allocation") or {}).get("end")
    if end is not None and math.isfinite(end):
        left = max(0.0, end - now)
        rest.append((f"  ends {clock(end)}, in {duration(left)}",
                     "plain" if left > 600 else "warn"))
    if down:
        rest.append((f"  {down} node{'s' * (down > 1)} down", "bad"))
    text = f"cores {taken} of {cores} "
    bar = max(4, min(20, width - len(text) - sum(len(part) for part, _ in rest)))
    return [(text, "plain"), *_bar(share, bar, "good", glyphs), *rest]


def _notices(snapshot: Snapshot, now: float, width: int, height: int,
             alive: Optional[bool]) -> List[Line]:
    """What one must know before one believes the picture; a line each on a low screen."""
    manager = snapshot["manager"]
    age = max(0.0, now - snapshot["time"])
    who = f"(pid {manager['pid']} on {manager['host']})"
    found: List[Span] = []
    if snapshot["emulated"]:
        found.append((f"EMULATED: {geometry(snapshot['nodes'])} on this machine, ranks "
                      "oversubscribed and unbound", "warn"))
    if manager["phase"] == "ended":
        found.append((f"the manager has ended, {ago(age)} ago {who}", "bad"))
    elif alive is False:
        found.append((f"the manager is dead: it wrote last {ago(age)} ago {who}; the same vrm "
                      "command continues its jobs", "bad"))
    elif age > STALE_AFTER:
        found.append((f"the manager has not written for {ago(age)} {who}: it may have died, or "
                      "the file system hangs", "bad"))
    elif manager["phase"] == "stopping":
        found.append(("the manager is stopping: it starts no more jobs", "warn"))
    if height < _LOW:
        return [[(shown(text), style)] for text, style in found]
    return [[(part, style)] for text, style in found
            for part in textwrap.wrap(shown(text), max(width, 20))[:3]]


def _body(snapshot: Snapshot, ends: Sequence[End], width: int, room: int, now: float,
          view: View, glyphs: Glyphs) -> List[Line]:
    """Nodes, then running, waiting and ended jobs, each as far as there is room."""
    running, waiting = jobs_in_view(snapshot, view, now)
    wanted = view.wanted.strip().lower()
    ends = [end for end in ends if not wanted or wanted in f"{end.id} {end.app}".lower()]
    place = chosen([*running, *waiting], view)
    selected = None if place is None else [*running, *waiting][place]["id"]
    if view.gantt:
        end = (snapshot.get("allocation") or {}).get("end")
        return gantt([*running, *waiting], now, math.inf if end is None else end, (width, room), glyphs,
                     _colour, first=max(0, (place or 0) - max(1, room - 3) + 1))
    headings = 2 if room < _LOW // 2 else 3
    some = max(2, (room - headings) // 3)
    if room - headings - some - 1 < _FEWEST:  # jobs come before nodes
        some = 0
    for_nodes = {"none": 0, "some": some, "all": room - headings - 3}[view.nodes]
    held = holdings.held(snapshot["jobs"])
    nodes = _nodes([{**node, "gpus": [job for _, job in holdings.gpus(node, held)]}
                    for node in snapshot["nodes"]], width, for_nodes, selected, glyphs)
    shares = _shares(room - headings - len(nodes), (
        len(running), len(waiting), len(ends) if headings == 3 else 0),
        first=int(place is not None and place >= len(running)))
    ids = max([2, *(len(str(job["id"])) for job in (*running, *waiting)),
               *(len(str(end.id)) for end in ends)])
    names = [shown(job["app"]) for job in (*running, *waiting)] + [shown(end.app) for end in ends]
    app = max(16 if width >= 60 else 14, min(max(map(columns, names), default=0), width // 4))
    calls = [*(_called(job) for job in (*running, *waiting)), *(end.called for end in ends)]
    called = [_Column("Name", 6, max(6, min(24, max(map(columns, calls)))), 3,
                      _text(lambda row: shown(row.called if isinstance(row, End)
                                              else _called(row))))] if any(calls) else []
    partners = _partners(snapshot["nodes"])
    apps = {job["id"]: shown(job["app"]) for job in snapshot["jobs"]}

    def first(part: Sequence[Job], before: int, rows: int) -> int:
        """The first row shown, so that the selected one is seen."""
        at = (place if place is not None else -1) - before
        return max(0, min(at - rows // 2, len(part) - rows)) if 0 <= at < len(part) else 0

    done = sum(snapshot["ended"].values())
    lines = list(nodes)
    for title, part, shape, rows, start, total in (
            ("Running", running, [*called, *_running_columns(now, partners, apps, glyphs)],
             shares[0], first(running, 0, shares[0]), None),
            ("Waiting", waiting, [*called, *_waiting_columns(now)], shares[1],
             first(waiting, len(running), shares[1]), None),
            ("Ended", ends, [*called, *_ended_columns()], shares[2], 0, max(done, len(ends))))[:headings]:
        here = part[start:start + rows]
        seen = "" if total is not None or len(here) in (0, len(part)) else (
            f"{start + 1}-{start + len(here)}/")
        heading = f"{title} {seen}{len(part) if total is None else total}"
        lines += _table(heading, here, shape, width, ids, app, selected, glyphs)
    return lines



def _shares(room: int, wants: Sequence[int], first: int) -> List[int]:
    """Lines for running, waiting and ended jobs: a third for each, more where others need less;
    at least one for the list `first`, if there is any."""
    given = [0] * len(wants)
    for share in (max(1, room // 3), room):
        for part in sorted(range(len(wants)), key=lambda part: (part != first, part)):
            given[part] += max(0, min(wants[part] - given[part], share - given[part],
                                      room - sum(given)))
    return given


def _help(width: int, glyphs: Glyphs) -> List[Line]:
    lines: List[Line] = [[], [("Keys", "heading")]]
    for key, text in _HELP:
        parts = textwrap.wrap(text, max(10, width - 18))
        lines += [[(f"  {key if not at else '':<15} ", "bold"), (part, "plain")]
                  for at, part in enumerate(parts)]
    marks = ("A letter on a core is a job: the one that is in front of it in the list; "
             f"{glyphs.free} is a free core. Two letters on a node are two jobs that share it. "
             "Behind GPU are the node's GPUs in the order of their indices.")
    lines += [[], [("Picture", "heading")],
              *([(f"  {part}", "plain")] for part in textwrap.wrap(marks, max(10, width - 4)))]
    return lines


def _foot(snapshot: Optional[Snapshot], view: View, status: Span, width: int) -> Line:
    """The last line: a question, the filter being typed, the last message, or the keys."""
    if view.mode == "cancel" and snapshot is not None:
        app = next((job["app"] for job in snapshot["jobs"] if job["id"] == view.selected), "")
        return [(f"y/n: cancel job {view.selected} {shown(app)}?", "ask")]
    if view.mode == "filter":
        return [(f"filter: {shown(view.wanted)}_", "ask"),
                ("  enter keeps it, escape ends it", "dim")]
    if view.mode == "help":
        return [("any key goes back", "dim")]
    if status[0]:
        return [(shown(status[0]), status[1])]
    keys = ["q quit", "? help", "c cancel", "h hold", "r release",
            "g lists" if view.gantt else "g time", "arrows select",
            f"/ filter{': ' + shown(view.wanted) if view.wanted else ''}", f"s sort: {view.order}",
            f"n nodes: {view.nodes}"]
    text = keys[0]
    for key in keys[1:]:
        if columns(text) + 2 + columns(key) <= width:
            text += f"  {key}"
    return [(text, "dim")]


# ---------------------------------------------------------------------------------- the nodes


_GPUS = "GPU "


@dataclass(frozen=True)
class _Cell:
    """Nodes with the same jobs on the same cores, as they are drawn."""

    label: str
    marks: List[List[Optional[int]]]  # by socket
    up: bool
    gpus: List[Optional[int]]  # who has each


def _nodes(nodes: Sequence[Mapping[str, Any]], width: int, rows: int, selected: Optional[int],
           glyphs: Glyphs) -> List[Line]:
    """The nodes with the letter of a job on every core, in at most `rows` lines and a heading.

    What does not fit otherwise: neighbours with the same jobs are drawn once, then a mark
    stands for several cores, then the last nodes are left out.
    """
    if rows < 1 or not nodes:
        return []
    most = max((len(slots) for node in nodes for slots in node["sockets"]), default=1)
    # Coarser marks than half a socket would hide that two jobs share it.
    scales = [2 ** power for power in range(max(1, most // 2).bit_length())]
    every, folded = _cells(nodes, fold=False), _cells(nodes, fold=True)
    for scale in scales:
        for cells in (every, folded):
            label, marks, across = _measures(cells, width, scale)
            fits = label + 1 + marks <= width
            if fits and math.ceil(len(cells) / across) <= rows:
                return _drawn(nodes, cells, cells, scale, width, selected, glyphs)
    across = _measures(folded, width, scales[-1])[2]
    return _drawn(nodes, folded, folded[:rows * across], scales[-1], width, selected, glyphs)


def _cells(nodes: Sequence[Mapping[str, Any]], fold: bool) -> List[_Cell]:
    groups: List[List[Mapping[str, Any]]] = []
    for node in nodes:
        before = groups[-1][-1] if groups else None
        if (fold and before is not None and node["up"] == before["up"]
                and node["sockets"] == before["sockets"] and node["gpus"] == before["gpus"]
                and follows(node["name"], before["name"])):
            groups[-1].append(node)
        else:
            groups.append([node])
    return [_Cell(shown(group[0]["name"]) + (f"-{shown(group[-1]['name'])}" if group[1:] else ""),
                  group[0]["sockets"], group[0]["up"], group[0]["gpus"]) for group in groups]


def _measures(cells: Sequence[_Cell], width: int, scale: int) -> Tuple[int, int, int]:
    """Columns of the longest label and of the widest node, and how many stand side by side."""
    label = min(max(columns(cell.label) for cell in cells), max(4, width // 2))
    marks = max(4, max(sum(math.ceil(len(slots) / scale) + 1 for slots in cell.marks) - 1
                       + (len(_GPUS) + 1 + len(cell.gpus)) * bool(cell.gpus) for cell in cells))
    return label, marks, max(1, (width + 3) // (label + 1 + marks + 3))


def _drawn(nodes: Sequence[Mapping[str, Any]], every: Sequence[_Cell], cells: Sequence[_Cell],
           scale: int, width: int, selected: Optional[int], glyphs: Glyphs) -> List[Line]:
    label, marks, across = _measures(every, width, scale)
    title = f"Nodes ({len(nodes)})"
    notes = [f"a mark is {scale} cores"] if scale > 1 else []
    if len(cells) < len(every):
        notes.append(f"{len(every) - len(cells)} more are not shown (n shows all)")
    lines: List[Line] = [[(_padded(f"{title}  {', '.join(notes)}", width, glyphs), "heading")]]
    for start in range(0, len(cells), across):
        line: Line = []
        for cell in cells[start:start + across]:
            if line:
                line.append(("   ", "plain"))
            line.append((_padded(cell.label, label, glyphs) + " ", "plain" if cell.up else "bad"))
            line += _marks(cell, scale, marks, selected, glyphs)
        lines.append(line)
    return lines


def _marks(cell: _Cell, scale: int, width: int, selected: Optional[int],
           glyphs: Glyphs) -> Line:
    if not cell.up:
        return [(_padded("down", width, glyphs), "bad")]
    line: Line = []
    used = 0
    parts = [[_most(slots[at:at + scale]) for at in range(0, len(slots), scale)]
             for slots in cell.marks] + [cell.gpus] * bool(cell.gpus)
    for number, seen in enumerate(parts):
        before = glyphs.divider * bool(number) + _GPUS * (number == len(cell.marks))
        line += [(before, "dim")] * bool(number)
        used += len(seen) + len(before)
        for job, run in groupby(seen):
            count = len(list(run))
            if job is None:
                line.append((glyphs.free * count, "dim"))
            else:
                reverse = "reverse " if job == selected else ""
                line.append((mark(job) * count, reverse + _colour(job)))
    return [*line, (" " * max(0, width - used), "plain")]


def _most(slots: Sequence[Optional[int]]) -> Optional[int]:
    """The job that has most of these cores; free only if all are."""
    there = [job for job in slots if job is not None]
    return max(dict.fromkeys(there), key=there.count) if there else None


# ---------------------------------------------------------------------------------- the tables


@dataclass(frozen=True)
class _Column:
    """A column of a list: `cell` draws a row in so many columns, of which it needs `least` and can
    use `most`. Those of low `rank` are kept longest on a narrow screen."""

    title: str
    least: int
    most: int
    rank: int
    cell: Callable[[Any, int], Line]
    right: bool = False


def _text(value: Callable[[Any], str], style: Union[str, Callable[[Any], str]] = "plain"
          ) -> Callable[[Any, int], Line]:
    return lambda row, width: [(value(row), style if isinstance(style, str) else style(row))]


def _running_columns(now: float, partners: Mapping[int, Sequence[int]], apps: Mapping[int, str],
                     glyphs: Glyphs) -> List[_Column]:
    def late(job: Job) -> bool:
        return remaining(job, now) < 0

    def progress(job: Job, width: int) -> Line:
        share = _progress(job, now)
        percent = f" {min(share, 9.99):4.0%}".replace("%", " %")
        style = "bad" if late(job) else _colour(job["id"])
        bar = _bar(min(1.0, share), width - len(percent), style, glyphs)
        if late(job) and width > len(percent):
            bar = [("!" * (width - len(percent)), style)]
        return [*bar, (percent, "bad" if late(job) else "plain")]

    def neighbours(job: Job, width: int) -> Line:
        line: Line = []
        for other in partners.get(job["id"], ()):
            line += [(", " if line else "", "plain"), (mark(other), _colour(other)),
                     (f" {apps.get(other, f'job {other}')}", "plain")]
        return line

    return [
        _Column("Ranks", 5, 5, 5, _text(lambda job: f"{job['procs']:>5}"), right=True),
        _Column("Nodes", 9, 16, 6, _text(lambda job: _folded(tuple(job.get("nodes", ()))))),
        _Column("Progress", 12, 28, 4, progress),
        _Column("Left", 9, 9, 3, _text(lambda job: f"{duration(remaining(job, now)):>9}",
                                       lambda job: "bad" if late(job) else "plain"), right=True),
        _Column("With", 8, 24, 7, neighbours)]


def _progress(job: Job, now: float) -> float:
    """The share of its estimate that a job has run; above 1 when it is overdue."""
    ran = max(0.0, now - job["start"])
    share = ran / job["estimate"] if job["estimate"] > 0 else 1.0
    return share if math.isfinite(share) else 0.0


def _waiting_columns(now: float) -> List[_Column]:
    def starts(job: Job, width: int) -> Line:
        if job.get("held"):
            return [("held", "warn")]
        if job.get("after"):
            return [(f"after {job['after'].replace(',', ', ')}", "warn")]
        if job.get("lacks"):
            return [("on more nodes", "warn")]
        if job.get("late"):
            return [("in another allocation", "warn")]
        if job.get("forecast"):
            return [(brief(job["forecast"], now), "good")]
        moment = job.get("expected_start")
        if moment is None:
            return [(shown(job["why"]), "dim")]
        return [(f"{clock(moment)}, in {duration(max(0.0, moment - now))}", "good")]

    return [
        _Column("Ranks", 5, 5, 5, _text(lambda job: f"{job['procs']:>5}"), right=True),
        _Column("Starts", 8, 40, 3, starts),
        _Column("Estimate", 9, 9, 4, _text(lambda job: f"{duration(job['estimate']):>9}"),
                right=True),
        _Column("Waited", 9, 9, 6, _text(lambda job: f"{_waited(job, now):>9}"), right=True),
        _Column("", 9, 9, 7, _text(lambda job: "exclusive" if job.get("exclusive") else "",
                                   "dim"))]


def _ended_columns() -> List[_Column]:
    def why(end: End) -> str:
        return shown(end.reason)

    def style(end: End) -> str:
        return {"completed": "good", "cancelled": "warn"}.get(end.status, "bad")

    return [
        _Column("Status", 9, 10, 3, _text(lambda end: shown(end.status), style)),
        _Column("At", 8, 8, 4, _text(lambda end: "" if end.end is None else clock(end.end))),
        _Column("After", 9, 9, 5,
                _text(lambda end: "" if end.took is None else f"{_took(end.took):>9}"),
                right=True),
        _Column("Why", 8, 200, 6, _text(why))]


def _waited(job: Job, now: float) -> str:
    waited = max(0.0, now - job["submit"])
    return duration(math.floor(waited) if math.isfinite(waited) else waited)


def _took(seconds: float) -> str:
    return f"{seconds:.2f} s" if 0 <= seconds < 100 else duration(seconds)


def _table(heading: str, rows: Sequence[Any], shape: Sequence[_Column], width: int, ids: int,
           app: int, selected: Optional[int], glyphs: Glyphs) -> List[Line]:
    """A heading and its rows: mark, id, application, then what of the columns has room."""
    start = 2 + ids + 1
    app = max(4, min(app, width - start))
    left = width - start - app
    widths: Dict[_Column, int] = {}
    for column in sorted(shape, key=lambda column: column.rank):
        if left >= column.least + 1:
            widths[column] = column.least
            left -= column.least + 1
    for column in widths:
        more = min(column.most - column.least, left)
        widths[column] += more
        left -= more
    there = [column for column in shape if column in widths]
    title = f"  {'Id':>{ids}} {_padded(heading, app, glyphs)}" + "".join(
        " " + (f"{column.title:>{widths[column]}}" if column.right
               else _padded(column.title, widths[column], glyphs)) for column in there)
    lines: List[Line] = [[(_padded(title, width, glyphs), "heading")]]
    for row in rows:
        job_id, name = (row.id, row.app) if isinstance(row, End) else (row["id"], row["app"])
        running = not isinstance(row, End) and row["state"] == "running"
        line: Line = [(mark(job_id) if running else " ", _colour(job_id)),
                      (f" {job_id:>{ids}} {_padded(shown(name), app, glyphs)}", "plain")]
        for column in there:
            line += [(" ", "plain"),
                     *_exactly(column.cell(row, widths[column]), widths[column], glyphs)]
        if job_id == selected and not isinstance(row, End):
            line = [(text, f"reverse {style}") for text, style in
                    _exactly(line, width, glyphs)]
        lines.append(line)
    return lines


# ------------------------------------------------------------------------------- text and columns


def columns(text: str) -> int:
    """How many columns of a terminal the text takes."""
    return len(text) if text.isascii() else sum(map(_char_columns, text))


def _char_columns(char: str) -> int:
    if unicodedata.combining(char) or unicodedata.category(char) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def _cut(text: str, width: int, glyphs: Glyphs) -> str:
    """The text, shortened to so many columns if it is longer."""
    if columns(text) <= width:
        return text
    kept, used = [], columns(glyphs.cut)
    for char in text:
        used += _char_columns(char)
        if used > width:
            break
        kept.append(char)
    return "".join(kept) + (glyphs.cut if width > 0 else "")


def _drawable(text: str, glyphs: Glyphs) -> str:
    return text.encode("ascii", "replace").decode() if glyphs.ascii else text


def _padded(text: str, width: int, glyphs: Glyphs) -> str:
    text = _cut(_drawable(text, glyphs), width, glyphs)
    return text + " " * (width - columns(text))


def _fitted(line: Line, width: int, glyphs: Glyphs) -> Line:
    """The line, shortened to so many columns."""
    fitted: Line = []
    for text, style in line:
        text = _drawable(text, glyphs)
        if columns(text) > width:
            text = _cut(text, width, glyphs)
        width -= columns(text)
        if text:
            fitted.append((text, style))
    return fitted


def _exactly(line: Line, width: int, glyphs: Glyphs) -> Line:
    """The line in exactly so many columns."""
    fitted = _fitted(line, width, glyphs)
    used = sum(columns(text) for text, _ in fitted)
    return [*fitted, (" " * (width - used), "plain")]


def _bar(share: float, width: int, style: str, glyphs: Glyphs) -> Line:
    """A bar of which `share` (0 to 1) is full."""
    width = max(0, width)
    full = min(width, int(share * width + 0.5))
    return [(glyphs.full * full, style), (glyphs.rest * (width - full), "dim")]
