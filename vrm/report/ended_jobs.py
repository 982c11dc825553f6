"""The ended jobs of a run, as a table for people and as data for programs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any
from collections.abc import Sequence

from vrm.report.tables import drop_empty, duration, narrow, shown
from vrm.results.jobs import JobRow
from vrm.results.state import label
from vrm.system.printing.local_times import local_time_text
from vrm.system.printing.output import boxed

LAST = 20
"""Number of jobs that are shown by default."""


def ended_table(rows: Sequence[JobRow], width: int | None = None, all_of_them: bool = False
                ) -> str:
    """Return a table of the jobs in the order of their ends, with their run times and the reasons of failures.

    Without `all_of_them` it has only the last ones. `width` is the width of the terminal in characters (default: no
    limit).
    """
    last = rows if all_of_them else rows[-LAST:]
    names = ["Id", "App", "Name", "Args", "Ranks", "Status", "Started", "Ran", "Why"]
    cells = [_cells(row) for row in last]
    drop_empty(names, cells, ("Why", "Args", "Name"))
    if width is not None:
        narrow(names, cells, width)
    text = boxed(names, cells)
    if len(last) < len(rows):
        text += f"\n... and {len(rows) - len(last)} that ended before; `vrm queue --all` shows them"
    return text


def _cells(row: JobRow) -> list[str]:
    ran = row.start is not None and row.end is not None
    return [str(row.id), shown(row.app), shown(label(asdict(row))), shown(row.args),
            str(row.procs), row.status, local_time_text(row.start) if row.start is not None else "-",
            took(row.end - row.start) if ran else "-",  # type: ignore[operator]
            "" if row.status == "completed" else shown(row.reason)]


def took(seconds: float) -> str:
    """Return a run time, with hundredths of a second below 100 s."""
    return f"{seconds:.2f} s" if 0 <= seconds < 100 else duration(seconds)


def ended_json(rows: Sequence[JobRow]) -> list[dict[str, Any]]:
    """Return the jobs as data for `json.dumps`: the columns of `jobs.csv` by name."""
    return [asdict(row) for row in rows]
