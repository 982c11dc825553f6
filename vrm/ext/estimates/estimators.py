"""Estimators that use the last jobs, a table, or the actual run times."""

from __future__ import annotations

import copy
from collections.abc import Hashable, Mapping

from vrm.model.job import Job
from vrm.model.measured.quantile import quantile
from vrm.scheduling.estimators import Estimator, RunTimeRatios, Table, alike, within
from vrm.scheduling.registry import PolicyError


class LastTwo(Estimator):
    """Mean of the last two run times of like jobs (Tsafrir, Etsion and Feitelson, "Backfilling using system-generated
    predictions rather than user runtime estimates", 2007); the request until there are two."""

    name = "last-two"

    def __init__(self) -> None:
        self._last: dict[Hashable, tuple[float, ...]] = {}

    def expected(self, job: Job) -> float:
        last = self._last.get(alike(job), ())
        return within(job, sum(last) / 2) if len(last) == 2 else job.walltime

    def learn(self, job: Job, run: float) -> None:
        key = alike(job)
        self._last[key] = (*self._last.get(key, ())[-1:], run)


QUANTILE = 0.25
"""The quantile of the ratios that `history` uses."""

MEMORY = 10
"""The number of jobs that `history` uses."""


class QuantileEstimator(Estimator):
    """The request times a quantile of run time / request of the last jobs (see `RunTimeRatios`): QUANTILE of at most
    MEMORY of them, interpolated linearly. The quantile is low because an estimate that is too long costs the job its
    place in the order, while one that is too short is corrected. Until a job has ended, the estimate is the request."""

    name = "history"

    def __init__(self, quantile: float = QUANTILE, memory: int = MEMORY) -> None:
        self._quantile = quantile
        self._ratios = RunTimeRatios(memory)

    def expected(self, job: Job) -> float:
        ratios = self._ratios.of(job)
        return within(job, job.walltime * quantile(sorted(ratios), self._quantile)) if ratios else job.walltime

    def learn(self, job: Job, run: float) -> None:
        self._ratios.add(job, run)

    def copy(self) -> QuantileEstimator:
        twin = copy.copy(self)
        twin._ratios = self._ratios.copy()
        return twin


class Calibrated(Estimator):
    """The seconds of a table, by program and ranks; the request for jobs that are not in it."""

    name = "calibrated"

    def __init__(self, table: Table) -> None:
        self._table = table

    @classmethod
    def made(cls, table: Table | None, live: bool) -> Estimator:
        if table is None:
            raise PolicyError("`calibrated` needs a table of run times (`vrm calibrate` measures "
                              "one); name it: Scheduling.Calibrated in the configuration, "
                              "--calibrated FILE of `vrm simulate`")
        return cls(table)

    def expected(self, job: Job) -> float:
        seconds = self._table.get((job.app, job.procs))
        return job.walltime if seconds is None else within(job, seconds)

    def copy(self) -> Calibrated:
        return self


class Actual(Estimator):
    """The actual run time, which a simulation knows: an upper bound on the quality of estimators. `runs` has the
    seconds of jobs by id."""

    name = "actual"

    def __init__(self, runs: Mapping[int, float] | None = None) -> None:
        self.runs: Mapping[int, float] = {} if runs is None else runs

    @classmethod
    def made(cls, table: Table | None, live: bool) -> Estimator:
        if live:
            raise PolicyError("`actual` is what a job really takes, which only a simulation knows; "
                              "use last-two, history or another")
        return cls()

    def foresee(self, runs: Mapping[int, float]) -> None:
        self.runs = runs

    def expected(self, job: Job) -> float:
        return within(job, self.runs.get(job.id, job.walltime))

    def copy(self) -> Actual:
        return self
