"""What a simulation is fed with: jobs together with what only the future knows about them."""

from __future__ import annotations

from typing import NamedTuple

from vrm.model.job import PLAIN, Dependency, Details, Job


class Submission(NamedTuple):
    """A job, and its real run time in seconds, which no scheduler may see.

    It starts only after the jobs of `after`, which have lower ids, have ended as it wants (those
    that are not in the workload count as completed), and never if it is `held`, or `refused` for
    the reason that is given. `details` are what else it was submitted with: its retries, which it
    uses up when it is ended at its walltime, and what is kept for its record.
    """

    job: Job
    run: float
    after: tuple[Dependency, ...] = ()
    held: bool = False
    refused: str = ""
    details: Details = PLAIN

    @property
    def plain(self) -> bool:
        """Whether it says no more than its job and run time."""
        return self[2:] == _NOTHING


_NOTHING = Submission(Job(0, "", 1, 1.0), 0.0)[2:]
