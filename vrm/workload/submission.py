"""The input of a simulation: jobs, together with facts that only the future shows."""

from __future__ import annotations

from typing import NamedTuple

from vrm.model.job import PLAIN, Dependency, Details, Job


class Submission(NamedTuple):
    """A job, and its real run time in seconds, which no scheduler may see.

    It starts only after its dependencies `after` are met; these jobs have lower ids, and those that are not in the
    workload count as completed. It never starts if it is `held`, or `refused` (the text is the reason). `details` are
    its other submission data: its retries, which are used when it is ended at its walltime, and the values for its
    record.
    """

    job: Job
    run: float
    after: tuple[Dependency, ...] = ()
    held: bool = False
    refused: str = ""
    details: Details = PLAIN

    @property
    def plain(self) -> bool:
        """Whether it has only a job and a run time."""
        return self[2:] == _NOTHING


_NOTHING = Submission(Job(0, "", 1, 1.0), 0.0)[2:]
