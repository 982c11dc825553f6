"""Selects what `vrm top` shows of a snapshot, and handles the keys that change it.

All functions are pure except `read_ends`.
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
"""Sort orders of the lists: as they run and wait, or by id, application, or time left."""


@dataclass(frozen=True)
class View:
    """The user's choice of what to show. Only `press` changes it.

    `mode` is list, help, filter (its text is being typed) or cancel (a question waits for y or n).
    """

    selected: int | None = None  # a job's id
    row: int = 0                    # the index of that job, for when it is gone
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
    """Return the running and the waiting jobs that match the filter, in the chosen order."""
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
    """Return what distinguishes a job from other jobs of its program: name, index and arguments."""
    return " ".join(filter(None, (label(job), job["args"])))


def _searched(job: Job) -> str:
    nodes = fold(tuple(job.get("nodes", ())))
    return (f"{job['id']} {job['app']} {name_of(job)} {nodes} "
            f"{'held' if job.get('held') else ''}").lower()


def chosen(jobs: Sequence[Job], view: View) -> int | None:
    """Return the index of the selected job; if it is gone, the index of its successor; None without a selection."""
    if not jobs or view.selected is None:
        return None
    for place, job in enumerate(jobs):
        if job["id"] == view.selected:
            return place
    return max(0, min(view.row, len(jobs) - 1))


def read_ends(path: PathLike, count: int = 100) -> list[JobEnd]:
    """Return the last jobs of `jobs.csv`, the latest first; empty if there is no such file.

    Only the end of the file is read. Lines that are not valid job lines are skipped.
    """
    return [_end(row) for values in read_last(path, count) for row in rows_of(values)][::-1]


def _end(row: JobRow) -> JobEnd:
    took = None if row.start is None or row.end is None else row.end - row.start
    return JobEnd(row.id, row.app, row.status, row.end, took, row.reason,
               name_of({"name": row.name, "index": row.index, "args": row.args}))


# ----------------------------------------------------------------------------------------- keys


def press(view: View, key: str, jobs: Sequence[Job], page: int = 10
          ) -> tuple[View, Command | None]:
    """Return the view after a key, and the command to send to the manager, if any.

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
    return _show(view, key), None


def _show(view: View, key: str) -> View:
    """Return the view after a key that does not concern a job."""
    if key == "s":
        order = ORDERS[(ORDERS.index(view.order) + 1) % len(ORDERS)]
        return replace(view, order=order)
    if key == "n":
        following = {"some": "all", "all": "none", "none": "some"}
        return replace(view, nodes=following[view.nodes])
    if key == "g":
        return replace(view, gantt=not view.gantt)
    if key == "escape":
        return replace(view, wanted="", selected=None)
    return replace(view, mode={"?": "help", "/": "filter"}.get(key, "list"))


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
