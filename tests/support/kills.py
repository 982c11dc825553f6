"""Kills of a manager, counted."""

from __future__ import annotations

import collections
from pathlib import Path


def counted(log: Path, what: str) -> dict[int, int]:
    """How often each job began or ended."""
    words = (line.split() for line in log.read_text().splitlines())
    return collections.Counter(int(job_id) for found, job_id in words if found == what)
