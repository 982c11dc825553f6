"""Counts job events for tests that kill managers."""

from __future__ import annotations

import collections
from pathlib import Path


def counted(log: Path, what: str) -> dict[int, int]:
    """Return by job id how often the log has the event `what` (lines `EVENT ID`)."""
    words = (line.split() for line in log.read_text().splitlines())
    return collections.Counter(int(job_id) for found, job_id in words if found == what)
