"""The jobs in `vrm top`: tables of running, waiting and ended jobs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any
from collections.abc import Callable, Mapping, Sequence

from vrm.report.moments import brief
from vrm.report.ended_jobs import took
from vrm.report.tables import duration, remaining, shown
from vrm.ext.top.cells import Glyphs, Line, draw_bar, fill, pad
from vrm.ext.top.top_nodes import colour, fold, mark
from vrm.ext.top.top_view import JobEnd, Job
from vrm.system.printing.local_times import local_time_text


@dataclass(frozen=True)
class ListColumn:
    """A column of a list. `cell` draws a row in a given number of columns, at least `least` and at most `most`. Columns
    with low `rank` are kept longest on a narrow screen."""

    title: str
    least: int
    most: int
    rank: int
    cell: Callable[[Any, int], Line]
    right: bool = False


def text_of(value: Callable[[Any], str], style: str | Callable[[Any], str] = "plain"
          ) -> Callable[[Any, int], Line]:
    """Return a `cell` function that draws the text `value` of a row in `style`."""
    return lambda row, width: [(value(row), style if isinstance(style, str) else style(row))]


def running_columns(now: float, partners: Mapping[int, Sequence[int]], apps: Mapping[int, str],
                     glyphs: Glyphs) -> list[ListColumn]:
    """Return the columns of the list of running jobs; `partners`: by id, the jobs on the same nodes."""
    def late(job: Job) -> bool:
        return remaining(job, now) < 0

    def progress(job: Job, width: int) -> Line:
        share = _progress(job, now)
        percent = f" {min(share, 9.99):4.0%}".replace("%", " %")
        style = "bad" if late(job) else colour(job["id"])
        bar = draw_bar(min(1.0, share), width - len(percent), style, glyphs)
        if late(job) and width > len(percent):
            bar = [("!" * (width - len(percent)), style)]
        return [*bar, (percent, "bad" if late(job) else "plain")]

    def neighbours(job: Job, width: int) -> Line:
        line: Line = []
        for other in partners.get(job["id"], ()):
            line += [(", " if line else "", "plain"), (mark(other), colour(other)),
                     (f" {apps.get(other, f'job {other}')}", "plain")]
        return line

    return [
        ListColumn("Ranks", 5, 5, 5, text_of(lambda job: f"{job['procs']:>5}"), right=True),
        ListColumn("Nodes", 9, 16, 6, text_of(lambda job: fold(tuple(job.get("nodes", ()))))),
        ListColumn("Progress", 12, 28, 4, progress),
        ListColumn("Left", 9, 9, 3, text_of(lambda job: f"{duration(remaining(job, now)):>9}",
                                       lambda job: "bad" if late(job) else "plain"), right=True),
        ListColumn("With", 8, 200, 7, neighbours)]


def _progress(job: Job, now: float) -> float:
    """Return the fraction of its estimate that a job has run; above 1 if it is overdue."""
    ran = max(0.0, now - job["start"])
    share = ran / job["estimate"] if job["estimate"] > 0 else 1.0
    return share if math.isfinite(share) else 0.0


def waiting_columns(now: float, exclusive: bool = False) -> list[ListColumn]:
    """Return the columns of the list of waiting jobs; `exclusive`: some of these jobs share no node."""
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
            return [(_whole(brief(job["forecast"], now), width), "good")]
        moment = job.get("expected_start")
        if moment is None:
            return [(shown(job["why"]), "dim")]
        return [(_whole(f"{local_time_text(moment)}, in {duration(max(0.0, moment - now))}", width), "good")]

    return [
        ListColumn("Ranks", 5, 5, 5, text_of(lambda job: f"{job['procs']:>5}"), right=True),
        ListColumn("Estimate", 9, 9, 4, text_of(lambda job: f"{duration(job['estimate']):>9}"),
                right=True),
        ListColumn("Waited", 9, 9, 6, text_of(lambda job: f"{_waited(job, now):>9}"), right=True),
        *([ListColumn("", 9, 9, 7, text_of(lambda job: "exclusive" if job.get("exclusive") else "",
                                      "dim"))] if exclusive else []),
        ListColumn("Starts", 8, 200, 3, starts)]


def _whole(moment: str, width: int) -> str:
    """Return a time with its details; only the time if there is no room for both."""
    return moment if len(moment) <= width else moment.partition(" (")[0].partition(", in ")[0]


def ended_columns() -> list[ListColumn]:
    """Return the columns of the list of ended jobs."""
    def why(end: JobEnd) -> str:
        return shown(end.reason)

    def style(end: JobEnd) -> str:
        return {"completed": "good", "cancelled": "warn"}.get(end.status, "bad")

    return [
        ListColumn("Status", 9, 10, 3, text_of(lambda end: shown(end.status), style)),
        ListColumn("At", 8, 8, 4, text_of(lambda end: "" if end.end is None else local_time_text(end.end))),
        ListColumn("After", 9, 9, 5,
                text_of(lambda end: "" if end.took is None else f"{took(end.took):>9}"),
                right=True),
        ListColumn("Why", 8, 200, 6, text_of(why))]


def _waited(job: Job, now: float) -> str:
    waited = max(0.0, now - job["submit"])
    return duration(math.floor(waited) if math.isfinite(waited) else waited)


def table(heading: str, rows: Sequence[Any], shape: Sequence[ListColumn], width: int, ids: int,
           app: int, selected: int | None, glyphs: Glyphs) -> list[Line]:
    """Return a heading and its rows: mark, id, application, then the columns that fit."""
    start = 2 + ids + 1
    app = max(4, min(app, width - start))
    left = width - start - app
    widths: dict[ListColumn, int] = {}
    for column in sorted(shape, key=lambda column: column.rank):
        if left >= column.least + 1:
            widths[column] = column.least
            left -= column.least + 1
    for column in widths:
        more = min(column.most - column.least, left)
        widths[column] += more
        left -= more
    there = [column for column in shape if column in widths]
    title = f"  {'Id':>{ids}} {pad(heading, app, glyphs)}" + "".join(
        " " + (f"{column.title:>{widths[column]}}" if column.right
               else pad(column.title, widths[column], glyphs)) for column in there)
    lines: list[Line] = [[(pad(title, width, glyphs), "heading")]]
    for row in rows:
        job_id, name = (row.id, row.app) if isinstance(row, JobEnd) else (row["id"], row["app"])
        running = not isinstance(row, JobEnd) and row["state"] == "running"
        line: Line = [(mark(job_id) if running else " ", colour(job_id)),
                      (f" {job_id:>{ids}} {pad(shown(name), app, glyphs)}", "plain")]
        for column in there:
            line += [(" ", "plain"),
                     *fill(column.cell(row, widths[column]), widths[column], glyphs)]
        if job_id == selected and not isinstance(row, JobEnd):
            line = [(text, f"reverse {style}") for text, style in
                    fill(line, width, glyphs)]
        lines.append(line)
    return lines
