"""The estimator of AccaSim."""

from __future__ import annotations

import re
from collections.abc import Hashable

from vrm.model.job import Job
from vrm.scheduling.estimators import Estimator, within


def prefix(name: str) -> str:
    """A job's name without the digits and separators at its end, by which users number jobs."""
    return re.sub(r"[\d_.:,;#@+ -]+$", "", name)


class AccaSim(Estimator):
    """The run time of the last job of the user with the same profile: user, name, queue, walltime
    and request (Galleguillos, Sîrbu, Kiziltan, Babaoglu, Borghesi and Bridi, "Data-driven job
    dispatching in HPC systems", 2017).

    The first of these rules that finds one decides: (1) the whole profile is the same; (2) of the
    name, only what is before its final digits; (3) the request may differ; (4) both; (5) the name
    is the same, or else what is before its final digits; (6) else it is the walltime. The name is
    that of the program.
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
