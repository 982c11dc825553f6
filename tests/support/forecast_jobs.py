"""Makes forecast files with jobs."""

from __future__ import annotations

from typing import Any

from support.snapshots import NOW


def job(job_id: int, start: Any, end: Any, p10: Any = None, p90: Any = None, **more: Any
        ) -> dict[str, Any]:
    """Return the forecast of a job; times are in seconds from NOW."""
    times = {"start": start, "p10": start if p10 is None else p10, "p90": start if p90 is None else p90,
             "end": end, "end_p10": end, "end_p90": end, "latest": start}
    return {"id": job_id, "app": "ep.x", "procs": 4, "running": False, "nodes": "n[0-1]", "chance": 1.0,
            "reason": "", **{name: None if value is None else NOW + value
                             for name, value in times.items()}, **more}


def made(*jobs: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"format": 1, "time": NOW - 3, "position": 7, "members": 50, "calibrated": "",
            "allocation_end": None, "jobs": list(jobs), **more}
