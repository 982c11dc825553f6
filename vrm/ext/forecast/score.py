"""How good the forecasts of a run were. The first forecast of each job that had to wait is kept, and compared
with the job's real start.

The file `forecasts.jsonl` has one line for each forecast. Lines are only appended; a half-written line of a
crash and any other line that is not a forecast are ignored.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple
from collections.abc import Callable, Iterable, Mapping, Sequence

from vrm.ext.forecast.calibration import NEEDED, Calibration
from vrm.ext.forecast.forecast import Forecast, JobForecast
from vrm.model.forms import json_checks
from vrm.model.quantities import said
from vrm.system.files import naming, open_own, read_own

NAME = "forecasts.jsonl"
"""Name of the file in a run's directory."""

CLOSE = 600.0
"""Error in seconds up to which a forecast counts as close, as in other work (Brown, 2022)."""

FACTOR = 2.0
"""Factor up to which a wait counts as forecast."""

INSTANT = 1.0
"""Shorter waits, in seconds, count as this long when they are divided."""


class Made(NamedTuple):
    """The forecast of a waiting job, made at `time`; the other attributes are as in `JobForecast`.
    `calibrated`: its range was calibrated."""

    id: int
    time: float
    p10: float
    start: float
    p90: float
    latest: float
    end_p10: float
    end: float
    end_p90: float
    drawn: tuple[float, ...]
    calibrated: bool

    @classmethod
    def of(cls, job: JobForecast, of: Forecast) -> Made:
        """Return the forecast of one job in the forecast `of`."""
        return cls(job.id, of.time, job.p10, job.start, job.p90, job.latest, job.end_p10, job.end,
                   job.end_p90, job.drawn, not of.calibrated)

    def line(self) -> str:
        """Return the forecast as a line of the file."""
        return json.dumps({name: _finite(value) for name, value in self._asdict().items()}) + "\n"

    @classmethod
    def read(cls, line: str) -> Made | None:
        """Return the forecast in a line; None if the line is not a forecast."""
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            return None
        if json_checks.fault(found, _SHAPE, {}):
            return None
        values: dict[str, Any] = {name: math.inf if found[name] is None else found[name]
                                  for name in cls._fields}
        values["drawn"] = tuple(math.inf if each is None else each for each in values["drawn"])
        return cls(**values)


def _finite(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and math.isinf(value) else value


_TIME = json_checks.maybe(json_checks.number)
_SHAPE: Mapping[str, json_checks.Check] = {
    **dict.fromkeys(("p10", "start", "p90", "latest", "end_p10", "end", "end_p90"), _TIME),
    "id": json_checks.count, "time": json_checks.number, "calibrated": json_checks.flag,
    "drawn": json_checks.list_of(_TIME, 4)}


def read(path: Path) -> tuple[list[Made], int]:
    """Return the forecasts in a file, and the number of its other lines. Raises OSError if it cannot be read."""
    found, wrong = [], 0
    for line in read_own(path).decode("utf-8", "replace").splitlines():
        made = Made.read(line)
        if made is not None:
            found.append(made)
        elif line.strip("\0 "):
            wrong += 1
    return found, wrong


Times = Callable[[int], float | None]
"""Returns when a job has started, or ended, in seconds; None: it has not."""


class Log:
    """The forecasts of one run, in a file, and the calibration that results from those that have come true.
    `calibration` is that of the next forecast."""

    def __init__(self, path: Path) -> None:
        """Open the log in a file, which may not exist yet. Raises OSError if it cannot be read."""
        self._path = path
        self.calibration = Calibration()
        self._starting: dict[int, Made] = {}
        self._ending: dict[int, Made] = {}
        self._known: dict[int, None] = {}
        try:
            made, _ = read(path)
        except FileNotFoundError:
            made = []
        for each in made:
            self._keep(each)

    def _keep(self, made: Made) -> None:
        if made.id not in self._known:
            self._known[made.id] = None
            self._starting[made.id] = self._ending[made.id] = made

    def note(self, found: Forecast) -> None:
        """Keep the forecasts of waiting jobs that have none yet and are expected to start. Raises OSError if
        the file cannot be written; the forecasts are then kept in memory only."""
        new = [Made.of(job, found) for job in found.jobs
               if not job.running and job.start < math.inf and job.id not in self._known]
        if not new:
            return
        for each in new:
            self._keep(each)
        handle = open_own(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        with naming(self._path), open(handle, "r+b", buffering=0) as file:
            torn = file.seek(0, os.SEEK_END) and os.pread(handle, 1, file.tell() - 1) != b"\n"
            file.write(b"\n" * bool(torn) + "".join(each.line() for each in new).encode())

    def learn(self, started: Times, ended: Times) -> None:
        """Learn from the forecasts that have come true since the last call."""
        events = [(truth, 0, made) for made in self._starting.values()
                  if (truth := started(made.id)) is not None]
        events += [(truth, 1, made) for made in self._ending.values()
                   if (truth := ended(made.id)) is not None]
        for truth, what, made in sorted(events, key=lambda each: (each[0], each[1], each[2].id)):
            learn(self.calibration, made, truth, bool(what))
            del (self._ending if what else self._starting)[made.id]


def learn(calibration: Calibration, made: Made, truth: float, ended: bool = False) -> None:
    """Update the calibration with a forecast whose job started, or with `ended` ended, at `truth` (seconds)."""
    truth = max(truth, made.time)  # clocks differ
    if ended:
        shown = [made.end_p10, made.end_p90] if made.calibrated else []
        calibration.ends.learn(made.drawn[2], made.drawn[3], truth, shown)
    else:
        shown = [made.p10, made.p90] if made.calibrated else []
        calibration.starts.learn(made.drawn[0], made.drawn[1], truth, shown)


class ScoredForecast(NamedTuple):
    """A forecast that has come true: the job started at `truth` (seconds)."""

    made: Made
    truth: float

    @property
    def wait(self) -> float:
        """Seconds from the forecast to the start."""
        return self.truth - self.made.time


def scored_forecasts(made: Iterable[Made], started: Times) -> list[ScoredForecast]:
    """Return the first forecast of each job that has started, in the order in which they were made. A start
    before its forecast, which differing clocks can cause, is set to the time of the forecast."""
    first: dict[int, Made] = {}
    for each in made:
        first.setdefault(each.id, each)
    return [ScoredForecast(each, max(truth, each.time)) for each in first.values()
            if each.start < math.inf and (truth := started(each.id)) is not None]


class Score(NamedTuple):
    """How good some forecasts were. Errors and waits are in seconds, fractions from 0 to 1.

    `number` counts the forecasts. `wait` is the mean time from forecast to start; `mean` and `median` are those
    of the absolute errors; `bias` is the mean error, positive if jobs started earlier than forecast. `factor`
    is the fraction of waits that were wrong by at most a factor of 2, `close` that of starts within ten
    minutes, `bound` that of starts not later than `latest`. Of the `ranged` forecasts, whose ranges were
    calibrated, the fraction `coverage` lies in its range, `early` before it and `late` after it (nan if there
    are none).
    """

    number: int
    wait: float
    mean: float
    median: float
    bias: float
    factor: float
    close: float
    bound: float
    ranged: int
    coverage: float
    early: float
    late: float

    @property
    def relative(self) -> float:
        """The mean error divided by the mean wait."""
        return self.mean / self.wait if self.wait else math.nan

    def lines(self) -> list[str]:
        """Return the score as lines of text."""
        bias = ("0s" if round(self.bias) == 0 else
                f"{said(abs(self.bias))} {'before' if self.bias > 0 else 'after'} what was forecast")
        found = [("forecasts that came true", f"{self.number}, the mean wait was {said(self.wait)}"),
                 ("error of the start", f"mean {said(self.mean)}, median {said(self.median)}"
                  + ("" if math.isnan(self.relative) else f"; {self.relative:.0%} of the mean wait")),
                 ("jobs started on average", bias),
                 ("wait within a factor of 2", f"{self.factor:.0%}"),
                 ("start within 10 minutes", f"{self.close:.0%}"),
                 ("no later than Latest", f"{self.bound:.0%}"),
                 ("ranges", f"{self.coverage:.0%} of {self.ranged} starts (80% promised); {self.early:.0%} "
                  f"earlier, {self.late:.0%} later" if self.ranged else
                  f"none was calibrated: {NEEDED} forecasts must have come true before")]
        return [f"{name:26} {text}" for name, text in found]

    def record(self) -> dict[str, Any]:
        """Return the score as JSON values."""
        return {name: None if isinstance(value, float) and math.isnan(value) else value
                for name, value in self._asdict().items()}

    @classmethod
    def of(cls, known: Sequence[ScoredForecast], start: Callable[[Made], float] = lambda made: made.start) -> Score:
        """Return the score of at least one forecast; `start` returns the time that is compared."""
        errors = [start(each.made) - each.truth for each in known]
        ranged = [each for each in known if each.made.calibrated]
        early = share(each.truth < each.made.p10 for each in ranged)
        late = share(each.truth > each.made.p90 for each in ranged)
        return cls(
            len(known), fmean(each.wait for each in known), fmean(map(abs, errors)),
            median(map(abs, errors)), fmean(errors),
            share(similar(start(each.made) - each.made.time, each.wait) for each in known),
            share(abs(error) <= CLOSE for error in errors),
            share(each.truth <= each.made.latest for each in known),
            len(ranged), 1 - early - late, early, late)


def similar(one: float, other: float) -> bool:
    """Return whether two waits (seconds) differ by at most a factor of 2."""
    one, other = max(one, INSTANT), max(other, INSTANT)
    return one <= FACTOR * other and other <= FACTOR * one


def share(values: Iterable[bool]) -> float:
    """Return the fraction of values that are true; nan if there are none."""
    found = list(values)
    return sum(found) / len(found) if found else math.nan
