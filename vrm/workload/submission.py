"""What a simulation is fed with: jobs together with what only the future knows about them."""

from __future__ import annotations

from typing import NamedTuple

from vrm.model.job import Job


class Submission(NamedTuple):
    """A job, its real run time in seconds, which no scheduler may see, and its user."""

    job: Job
    run: float
    user: str = ""
