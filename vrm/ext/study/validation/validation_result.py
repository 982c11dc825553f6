"""The errors of the replay of a live run."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean, median
from collections.abc import Sequence


@dataclass(frozen=True)
class Pair:
    """A job in the live run and in the replay; waiting and running times in seconds."""

    id: int
    app: str
    procs: int
    live_wait: float
    live_run: float
    simulated_wait: float
    simulated_run: float

    @property
    def live(self) -> float:
        """The turnaround time in the live run (s)."""
        return self.live_wait + self.live_run

    @property
    def simulated(self) -> float:
        """The turnaround time in the replay (s)."""
        return self.simulated_wait + self.simulated_run

    @property
    def error(self) -> float:
        """The relative error of the replay's turnaround time: 0.1 is 10 % too long."""
        return self.simulated / self.live - 1

    @property
    def run_error(self) -> float:
        """The relative error of the replay's running time: 0.1 is 10 % too long."""
        return self.simulated_run / self.live_run - 1


@dataclass(frozen=True)
class Error:
    """Summary of relative errors: mean absolute error (MAPE), median absolute error, and mean with sign (bias)."""

    mape: float
    median: float
    bias: float

    @classmethod
    def of(cls, errors: Sequence[float]) -> Error:
        """Summarise at least one error."""
        return cls(fmean(map(abs, errors)), median(map(abs, errors)), fmean(errors))


@dataclass(frozen=True)
class ValidationResult:
    """A run compared with its replay; makespans in seconds. `known` is "calibrated" or "actual", the source of the
    run times. `left_out` is the number of jobs that ran but did not complete; they are replayed with their measured
    times, and their errors do not count."""

    known: str
    jobs: tuple[Pair, ...]
    live_makespan: float
    simulated_makespan: float
    left_out: int

    @property
    def makespan_error(self) -> float:
        """The relative error of the replay's makespan."""
        return self.simulated_makespan / self.live_makespan - 1

    @property
    def turnaround(self) -> Error:
        """The errors of the jobs' turnaround times."""
        return Error.of([pair.error for pair in self.jobs])

    @property
    def running(self) -> Error:
        """The errors of the jobs' running times."""
        return Error.of([pair.run_error for pair in self.jobs])

    @property
    def mean_turnaround(self) -> tuple[float, float]:
        """The mean turnaround time, live and simulated, in seconds."""
        return (fmean(pair.live for pair in self.jobs),
                fmean(pair.simulated for pair in self.jobs))
