"""What `vrm top` shows of a snapshot, and what the keys do to that.

Pure functions, but for `read_ends`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any
from collections.abc import Callable, Mapping, Sequence

from vrm.report.tables import remaining
from vrm.ext.top.top_nodes import fold
from vrm.results.job_columns import PathLike, read_last
from vrm.results.jobs import JobRow, rows_of
from vrm.results.state import Snapshot, current, label

Job = Mapping[str, Any]
Command = dict[str, Any]
ORDERS = ("queue", "id", "app", "time")
"""How the lists can be sorted: as they run and wait, or by id, application, or time left."""


@dataclass(frozen=True)
class View:
    """What the user has chosen to see. Only `press` changes it.

    `mode` is list, help, filter (its text is being typed) or cancel (a question waits for y or n).
    """

    selected: int | None = None  # a job's id
    row: int = 0                    # where that job stood among all, for when it is gone
    wanted: str = ""                # the filter
    order: str = ORDERS[0]
    nodes: str = "some"             # some, all or none of them
    gantt: bool = False             # jobs as bars over time instead of nodes and lists
    mode: str = "list"


PLAIN = View()
"""All jobs, in the order of the queue; nothing is selected."""


@dataclass(frozen=True)
class JobEnd:
    """A job that ended, from `jobs.csv`; `end` in epoch seconds, `took` in seconds."""

    id: int
    app: str
    status: str
    end: float | None
    took: float | None
    reason: str
    called: str = ""  # its name, its index in an array and its arguments


# ---------------------------------------------------------------------------------------- facts


def jobs_in_view(snapshot: Snapshot, view: View, now: float) -> tuple[list[Job], list[Job]]:
    """The running and the waiting jobs that the filter lets pass, in the chosen order."""
    wanted = view.wanted.strip().lower()
    jobs = [job for job in current(snapshot)["jobs"] if not wanted or wanted in _searched(job)]
    running = sorted((job for job in jobs if job["state"] == "running"),
                     key=lambda job: (job["start"], job["id"]))
    waiting = [job for job in jobs if job["state"] != "running"]
    key: Callable[[Job], Any] | None = {
        "id": lambda job: job["id"], "app": lambda job: (job["app"], job["id"]),
        "time": lambda job: (remaining(job, now), job["id"])}.get(view.order)
    if key is not None:
        running.sort(key=key)
        waiting.sort(key=key)
    return running, waiting


def name_of(job: Job) -> str:
    """What tells a job from others of its program."""
    return " ".join(filter(None, (label(job), job["args"])))


def _searched(job: Job) -> str:
    nodes = fold(tuple(job.get("nodes", ())))
    return (f"{job['id']} {job['app']} {name_of(job)} {nodes} "
            f"{'held' if job.get('held') else ''}").lower()


def chosen(jobs: Sequence[Job], view: View) -> int | None:
    """The place among the jobs of the selected one; when it is gone, that of its successor."""
    if not jobs or view.selected is None:
        return None
    for place, job in enumerate(jobs):
        if job["id"] == view.selected:
            return place
    return max(0, min(view.row, len(jobs) - 1))


def read_ends(path: PathLike, count: int = 100) -> list[JobEnd]:
    """The last jobs of `jobs.csv`, the latest first; none when there is no such file.

    Only the file's end is read. What cannot be read as a job's line is passed over.
    """
    return [_end(row) for values in read_last(path, count) for row in rows_of(values)][::-1]


def _end(row: JobRow) -> JobEnd:
    took = None if row.start is None or row.end is None else row.end - row.start
    return JobEnd(row.id, row.app, row.status, row.end, took, row.reason,
               name_of({"name": row.name, "index": row.index, "args": row.args}))


# ----------------------------------------------------------------------------------------- keys


def press(view: View, key: str, jobs: Sequence[Job], page: int = 10
          ) -> tuple[View, Command | None]:
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
