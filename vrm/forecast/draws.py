"""How long jobs take, drawn from how long those before them took."""

from __future__ import annotations

from typing import List, Tuple

from vrm.model import Job


class History:
    """The jobs that have ended, with their run times in seconds, in the order of their ends."""

    def __init__(self) -> None:
        self.ended: List[Tuple[Job, float]] = []

    def add(self, job: Job, run: float) -> None:
        """A job has ended after `run` seconds, by itself or at its walltime."""
        self.ended.append((job, run))
