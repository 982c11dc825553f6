"""The run-time estimator of AccaSim."""

from __future__ import annotations

import re
from collections.abc import Hashable

from vrm.model.job import Job
from vrm.scheduling.estimators import Estimator, within


def prefix(name: str) -> str:
    """Return a job's name without the digits and separators at its end, with which users number jobs."""
    return re.sub(r"[\d_.:,;#@+ -]+$", "", name)


class AccaSim(Estimator):
    """Estimates the run time of a job as that of the user's last job with the same profile: user, name, queue, walltime
    and request (Galleguillos, Sîrbu, Kiziltan, Babaoglu, Borghesi and Bridi, "Data-driven job
    dispatching in HPC systems", 2017).

    The first of these rules that finds a job decides: (1) the whole profile is the same; (2) of the name, only the part
    before its final digits is the same; (3) the request may differ; (4) both differ as in (2) and (3); (5) only the
    user and the name are the same, or otherwise the part before the name's final digits; (6) otherwise the walltime is
    the estimate. The name is that of the program.
    """

    name = "accasim"

    def __init__(self) -> None:
        self._last: dict[Hashable, float] = {}

    @staticmethod
    def _keys(job: Job) -> list[Hashable]:
        user, name, short = job.user, job.app, prefix(job.app)
        kind = user, job.queue, job.walltime
        keys: list[Hashable] = [(1, kind, name, job.request), (2, kind, short, job.request),
                                (3, kind, name), (4, kind, short), (5, user, name),
                                (6, user, short)]
        return keys if short else keys[::2]

    def expected(self, job: Job) -> float:
        for key in self._keys(job):
            if key in self._last:
                return within(job, self._last[key])
        return job.walltime

    def learn(self, job: Job, run: float) -> None:
        for key in self._keys(job):
            self._last[key] = run
