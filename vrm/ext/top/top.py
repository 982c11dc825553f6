"""The picture of `vrm top`: a screen of text made from a snapshot.

Pure functions. The terminal and the files are in `vrm/ext/top/commands/screen.py`; the selection of jobs and the
effects of keys in `top_view`; the parts of the picture in `top_nodes` and `top_tables`.
"""

from __future__ import annotations

import math
import textwrap
from typing import Any
from collections.abc import Mapping, Sequence

from vrm.report import node_resources
from vrm.ext.top.cells import Glyphs, Line, Span, UNICODE, draw_bar, fit, pad, columns
from vrm.ext.top.gantt import gantt
from vrm.report.tables import STALE_AFTER, ago, duration, geometry, lend_line, reservation_line, shown
from vrm.ext.top.top_nodes import colour, draw_nodes
from vrm.ext.top.top_tables import ListColumn, ended_columns, running_columns, table, text_of, waiting_columns
from vrm.ext.top.top_view import PLAIN, JobEnd, Job, View, chosen, jobs_in_view, name_of
from vrm.results.names import policy_name
from vrm.results.state import Snapshot, current
from vrm.system.printing.local_times import local_time_text

_LOW = 20
"""Lines; a screen with fewer lines has no room for long notices and ended jobs."""
_FEWEST = 3
"""Minimum lines of jobs; if fewer would remain, no nodes are shown."""


def _partners(nodes: Sequence[Mapping[str, Any]]) -> dict[int, list[int]]:
    """Return for each job the other jobs that have cores on its nodes."""
    found: dict[int, set[Any]] = {}
    for node in nodes:
        here = {job for slots in node["sockets"] for job in slots if job is not None}
        for job in here:
            found.setdefault(job, set()).update(here - {job})
    return {job: sorted(others) for job, others in found.items()}


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


def render(snapshot: Snapshot | None, ends: Sequence[JobEnd], size: tuple[int, int], now: float,
           view: View = PLAIN, status: Span = ("", "plain"), alive: bool | None = None,
           glyphs: Glyphs = UNICODE, interactive: bool = True, around: Sequence[str] = ()) -> list[Line]:
    """Return the picture: at most `size[1]` lines of at most `size[0]` columns.

    `snapshot` is None if there is no state file yet; `ends` are the last jobs that ended, the latest first; `now` is in
    epoch seconds. `status` replaces the keys in the last line. `alive`: whether the manager is known to live. Without
    `interactive` there is no last line. `around`: lines that extensions show; all of them if there is no state file,
    otherwise as many as leave room for the jobs. Raises ValueError if the snapshot has another format.
    """
    width, height = max(1, size[0]), max(1, size[1])
    if snapshot is None:
        top: list[Line] = [[("vrm top", "title")]]
        body = _help(width, glyphs) if view.mode == "help" else _around(around, height)
    else:
        snapshot = current(snapshot)
        top = [*_head(snapshot, now, width, height, alive, glyphs), *_around(around, height // 4)]
        room = height - len(top) - interactive
        body = (_help(width, glyphs) if view.mode == "help"
                else _body(snapshot, ends, width, room, now, view, glyphs))
    lines = [fit(line, width, glyphs) for line in [*top, *body]]
    if not interactive:
        return lines[:height]
    lines = lines[:height - 1]
    lines += [[] for _ in range(height - 1 - len(lines))]
    # The last cell of a screen stays free: some terminals scroll when it is written.
    return [*lines, fit(_foot(snapshot, view, status, width - 1), width - 1, glyphs)]


def _head(snapshot: Snapshot, now: float, width: int, height: int, alive: bool | None,
          glyphs: Glyphs) -> list[Line]:
    """Return the policy, counts, core use, reservations, loans and notices."""
    rules, ended, nodes = snapshot["scheduling"], snapshot["ended"], snapshot["nodes"]
    policies = f"{policy_name(rules['algorithm'], rules['backfilling'])}, {rules['policy']}"
    left = shown(f"vrm top  {policies}  {geometry(nodes)}")
    title = f"{pad(left, max(8, width - 9), glyphs)} {local_time_text(now)}"
    states = [job["state"] for job in snapshot["jobs"]]
    running = states.count("running")
    held = sum(1 for job in snapshot["jobs"] if job.get("held"))
    others = ", ".join(f"{count} {what}" for what, count in ended.items()
                       if count and what != "completed")
    counts: Line = [(f"{running} running, {len(states) - running} waiting", "bold"),
                    (f" ({held} held)" if held else "", "plain"),
                    (f", {sum(ended.values())} ended", "bold"),
                    (f" ({shown(others)})" if others else "", "warn")]
    reserved: list[Line] = [[(pad(shown(reservation_line(each)), width, glyphs).rstrip(), "plain")]
                            for each in snapshot.get("reservations", ())[:max(1, height // 12)]]
    reserved += [[(pad(shown(lend_line(each)), width, glyphs).rstrip(), "plain")]
                 for each in snapshot.get("lends", ())[:max(1, height // 12)]]
    return [[(title, "title")], counts, _use(snapshot, now, width, glyphs), *reserved,
            *_notices(snapshot, now, width, height, alive)]


def _around(lines: Sequence[str], rows: int) -> list[Line]:
    """Return the lines of extensions, cut to `rows` lines."""
    if len(lines) > rows:
        lines = [*lines[:max(0, rows - 1)], f"... {len(lines) - max(0, rows - 1)} more lines (vrm status)"]
    return [[(shown(line), "plain" if at else "bold")] for at, line in enumerate(lines)]


def _use(snapshot: Snapshot, now: float, width: int, glyphs: Glyphs) -> Line:
    """Return how many cores are in use, and when the allocation ends."""
    slots = [slots for node in snapshot["nodes"] if node["up"] for slots in node["sockets"]]
    cores = sum(map(len, slots))
    taken = cores - sum(part.count(None) for part in slots)
    share = taken / cores if cores else 0.0
    down = sum(1 for node in snapshot["nodes"] if not node["up"])
    rest: Line = [(f" {share:4.0%}".replace("%", " %"), "plain")]
    end = (snapshot.get("allocation") or {}).get("end")
    if end is not None and math.isfinite(end):
        left = max(0.0, end - now)
        rest.append((f"  ends {local_time_text(end)}, in {duration(left)}",
                     "plain" if left > 600 else "warn"))
    if down:
        rest.append((f"  {down} node{'s' * (down > 1)} down", "bad"))
    text = f"cores {taken} of {cores} "
    bar = max(4, min(20, width - len(text) - sum(len(part) for part, _ in rest)))
    return [(text, "plain"), *draw_bar(share, bar, "good", glyphs), *rest]


def _notices(snapshot: Snapshot, now: float, width: int, height: int,
             alive: bool | None) -> list[Line]:
    """Return warnings that concern the whole picture; one line each on a low screen."""
    manager = snapshot["manager"]
    age = max(0.0, now - snapshot["time"])
    who = f"(pid {manager['pid']} on {manager['host']})"
    found: list[Span] = []
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


def _body(snapshot: Snapshot, ends: Sequence[JobEnd], width: int, room: int, now: float,
          view: View, glyphs: Glyphs) -> list[Line]:
    """Return nodes, then running, waiting and ended jobs, each as far as there is room."""
    running, waiting = jobs_in_view(snapshot, view, now)
    wanted = view.wanted.strip().lower()
    ends = [end for end in ends if not wanted or wanted in f"{end.id} {end.app}".lower()]
    place = chosen([*running, *waiting], view)
    selected = None if place is None else [*running, *waiting][place]["id"]
    if view.gantt:
        end = (snapshot.get("allocation") or {}).get("end")
        return gantt([*running, *waiting], now, math.inf if end is None else end, (width, room), glyphs,
                     colour, first=max(0, (place or 0) - max(1, room - 3) + 1))
    headings = 2 if room < _LOW // 2 else 3
    some = max(2, (room - headings) // 3)
    if room - headings - some - 1 < _FEWEST:  # jobs come before nodes
        some = 0
    for_nodes = {"none": 0, "some": some, "all": room - headings - 3}[view.nodes]
    held = node_resources.held(snapshot["jobs"])
    nodes = draw_nodes([{**node, "gpus": [job for _, job in node_resources.gpus(node, held)]}
                    for node in snapshot["nodes"]], width, for_nodes, selected, glyphs)
    shares = _shares(room - headings - len(nodes), (
        len(running), len(waiting), len(ends) if headings == 3 else 0),
        first=int(place is not None and place >= len(running)))
    ids = max([2, *(len(str(job["id"])) for job in (*running, *waiting)),
               *(len(str(end.id)) for end in ends)])
    names = [shown(job["app"]) for job in (*running, *waiting)] + [shown(end.app) for end in ends]
    app = max(16 if width >= 60 else 14, min(max(map(columns, names), default=0), width // 4))
    calls = [*(name_of(job) for job in (*running, *waiting)), *(end.called for end in ends)]

    def called(part: Sequence[Any]) -> list[ListColumn]:
        """Return the column of names, if any of these jobs has one."""
        def name(row: Any) -> str:
            return shown(row.called if isinstance(row, JobEnd) else name_of(row))

        longest = max(map(columns, calls), default=0)
        return [ListColumn("Name", max(6, min(14, longest)), max(6, min(24, longest)), 3,
                       text_of(name))] if any(map(name, part)) else []

    partners = _partners(snapshot["nodes"])
    apps = {job["id"]: shown(job["app"]) for job in snapshot["jobs"]}

    def first(part: Sequence[Job], before: int, rows: int) -> int:
        """Return the first row to show, so that the selected one is visible."""
        at = (place if place is not None else -1) - before
        return max(0, min(at - rows // 2, len(part) - rows)) if 0 <= at < len(part) else 0

    done = sum(snapshot["ended"].values())
    lines = list(nodes)
    for title, part, shape, rows, start, total in (
            ("Running", running, [*called(running), *running_columns(now, partners, apps, glyphs)],
             shares[0], first(running, 0, shares[0]), None),
            ("Waiting", waiting,
             [*called(waiting), *waiting_columns(now, any(job.get("exclusive") for job in waiting))],
             shares[1], first(waiting, len(running), shares[1]), None),
            ("Ended", ends, [*called(ends), *ended_columns()], shares[2], 0, max(done, len(ends))))[:headings]:
        here = part[start:start + rows]
        seen = "" if total is not None or len(here) in (0, len(part)) else (
            f"{start + 1}-{start + len(here)}/")
        heading = f"{title} {seen}{len(part) if total is None else total}"
        lines += table(heading, here, shape, width, ids, app, selected, glyphs)
    return lines


def _shares(room: int, wants: Sequence[int], first: int) -> list[int]:
    """Return the numbers of lines for running, waiting and ended jobs: a third for each, more if others need less;
    at least one for the list `first`, if it has any jobs."""
    given = [0] * len(wants)
    for share in (max(1, room // 3), room):
        for part in sorted(range(len(wants)), key=lambda part: (part != first, part)):
            given[part] += max(0, min(wants[part] - given[part], share - given[part],
                                      room - sum(given)))
    return given


def _help(width: int, glyphs: Glyphs) -> list[Line]:
    lines: list[Line] = [[], [("Keys", "heading")]]
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


def _foot(snapshot: Snapshot | None, view: View, status: Span, width: int) -> Line:
    """Return the last line: a question, the filter being typed, the last message, or the keys."""
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
