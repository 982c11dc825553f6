"""Estimators: of the last jobs, of a table, and what jobs really take."""

from __future__ import annotations

import copy
from collections.abc import Hashable, Mapping

from vrm.model.job import Job
from vrm.model.measured.quantile import quantile
from vrm.scheduling.estimators import Estimator, Ratios, Table, alike, within
from vrm.scheduling.registry import PolicyError


class LastTwo(Estimator):
    """The mean of the last two run times of jobs alike (Tsafrir, Etsion and Feitelson, "Backfilling
    using system-generated predictions rather than user runtime estimates", 2007); of the request
    until there are two."""

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
"""Of the ratios that `history` looks at."""

MEMORY = 10
"""How many jobs `history` looks at."""


class QuantileEstimator(Estimator):
    """The request times a quantile of run time / request of the last jobs (see `Ratios`): QUANTILE of at most MEMORY
    of them, between two of them in proportion. It is low since an estimate that is too long costs
    the job its place in the order, and one that is too short is corrected. Until a job has ended it is the request.
    """

    name = "history"

    def __init__(self, quantile: float = QUANTILE, memory: int = MEMORY) -> None:
        self._quantile = quantile
        self._ratios = Ratios(memory)

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
    """The seconds of a table, by program and ranks; of the request for what is not in it."""

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
    """The run time itself, which a simulation knows: the bound of what estimators can do. `runs` are
    the seconds of jobs by id."""

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
