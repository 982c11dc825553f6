"""A live run against its replay: the errors."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean, median
from collections.abc import Sequence


@dataclass(frozen=True)
class Pair:
    """A job as it was and as the replay has it; seconds, from its submission."""

    id: int
    app: str
    procs: int
    live_wait: float
    live_run: float
    simulated_wait: float
    simulated_run: float

    @property
    def live(self) -> float:
        """The turnaround of the live run."""
        return self.live_wait + self.live_run

    @property
    def simulated(self) -> float:
        """The turnaround of the replay."""
        return self.simulated_wait + self.simulated_run

    @property
    def error(self) -> float:
        """The replay's turnaround by the live one, less 1: 0.1 is a tenth too long."""
        return self.simulated / self.live - 1

    @property
    def run_error(self) -> float:
        """The same of the run time."""
        return self.simulated_run / self.live_run - 1


@dataclass(frozen=True)
class Error:
    """Relative errors of many figures: the mean of their sizes (MAPE), the median size, and the
    mean with signs (bias)."""

    mape: float
    median: float
    bias: float

    @classmethod
    def of(cls, errors: Sequence[float]) -> Error:
        """The error of at least one figure."""
        return cls(fmean(map(abs, errors)), median(map(abs, errors)), fmean(errors))


@dataclass(frozen=True)
class Validation:
    """A run and its replay; makespans in seconds. `left_out`: jobs that ran but did not complete;
    they are replayed with the time they took, and their errors do not count."""

    known: str
    jobs: tuple[Pair, ...]
    live_makespan: float
    simulated_makespan: float
    left_out: int

    @property
    def makespan_error(self) -> float:
        """The replay's makespan by the live one, less 1."""
        return self.simulated_makespan / self.live_makespan - 1

    @property
    def turnaround(self) -> Error:
        """The error of the jobs' turnaround."""
        return Error.of([pair.error for pair in self.jobs])

    @property
    def running(self) -> Error:
        """The error of the jobs' run times."""
        return Error.of([pair.run_error for pair in self.jobs])

    @property
    def mean_turnaround(self) -> tuple[float, float]:
        """The mean turnaround, live and simulated, in seconds."""
        return (fmean(pair.live for pair in self.jobs),
                fmean(pair.simulated for pair in self.jobs))
