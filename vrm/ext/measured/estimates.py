"""The table of estimates: how long each application runs with each number of ranks.

CSV with the columns app, procs, seconds, spread, runs, app_seconds, times; only the first three are required, so
that a table can be written by hand. Lines that begin with `#` are comments.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median
from collections.abc import Iterable

from vrm.system.printing.output import comma_separated
from vrm.ext.measured.heatmap_files import spread
from vrm.system.errors import UserError

COLUMNS = ("app", "procs", "seconds", "spread", "runs", "app_seconds", "times")


class EstimateError(UserError, ValueError):
    """A table that cannot be used; the text names the place and the remedy."""


@dataclass(frozen=True)
class Estimate:
    """A line: the executable, its ranks, the median seconds of whole runs, and the seconds of each run (`times`);
    `app_seconds` and `app_times` are the same values as measured by the application itself."""

    app: str
    procs: int
    seconds: float = 0.0
    times: tuple[float, ...] = ()
    app_seconds: float = 0.0
    app_times: tuple[float, ...] = ()

    def with_run(self, whole: float, seconds: float) -> Estimate:
        """Return the line with one more run: its `whole` seconds, and the `seconds` that the application measured."""
        times, app_times = (*self.times, whole), (*self.app_times, seconds)
        return replace(self, times=times, seconds=median(times), app_times=app_times,
                       app_seconds=median(app_times))

    @property
    def mean(self) -> float:
        """The mean seconds of the single runs; the median if these are unknown. Times are skewed to longer values,
        so the sum of many run times is larger than the sum of their medians."""
        return fmean(self.times) if self.times else self.seconds


Table = dict[tuple[str, int], Estimate]


def read_estimates(path: str | Path) -> tuple[Table, list[str]]:
    """Return the table in a file, by executable and ranks, and its comment lines. Raises EstimateError."""
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    except OSError as error:
        raise EstimateError(f"{path}: {(error.strerror or str(error)).lower()}; `vrm calibrate "
                            f"--out {path}` measures one") from error
    except UnicodeDecodeError as error:
        raise EstimateError(f"{path}: byte {error.start + 1} is not UTF-8; is this a table of "
                            "estimates?") from error
    comments = [line[1:].strip() for line in lines if line.startswith("#")]
    rows = [(number, line) for number, line in enumerate(lines, 1)
            if line.strip() and not line.startswith("#")]
    header = next(csv.reader([rows[0][1]])) if rows else []
    missing = [name for name in COLUMNS[:3] if name not in header]
    if missing:
        raise EstimateError(f"{path}: no column {', '.join(missing)} in its first line; a table "
                            f"of estimates has {','.join(COLUMNS)}; the first three are "
                            "needed")
    table: Table = {}
    for number, line in rows[1:]:
        words = next(csv.reader([line]))
        place = f"{path}:{number}"
        if len(words) != len(header):
            raise EstimateError(f"{place}: {len(words)} values for {len(header)} columns")
        estimate = _estimate(place, dict(zip(header, words)))
        if (estimate.app, estimate.procs) in table:
            raise EstimateError(f"{place}: {estimate.app} on {estimate.procs} ranks has a line "
                                "already")
        table[estimate.app, estimate.procs] = estimate
    if not table:
        raise EstimateError(f"{path}: it has no lines but the first")
    return table, comments


def seconds_of_runs(path: str | Path) -> dict[tuple[str, int], float]:
    """Return the mean run times (s) of a table by executable and ranks. Raises EstimateError."""
    return {key: each.mean for key, each in read_estimates(path)[0].items()}


def _estimate(place: str, words: dict[str, str]) -> Estimate:
    try:
        procs, seconds = int(words["procs"]), float(words["seconds"])
        pairs = [pair.partition("/") for pair in words.get("times", "").split()]
        times = tuple(float(whole) for whole, _, _ in pairs)
        app_times = tuple(float(own or whole) for whole, _, own in pairs)
        app_seconds = float(words.get("app_seconds") or seconds)
    except ValueError as error:
        raise EstimateError(f"{place}: {error}; write {','.join(COLUMNS)}") from None
    if procs < 1 or not 0 < seconds < float("inf"):
        raise EstimateError(f"{place}: ranks are 1 or more and seconds above 0, not {procs} and "
                            f"{seconds:g}")
    return Estimate(words["app"].strip(), procs, seconds, times, app_seconds, app_times)


def table_text(estimates: Iterable[Estimate], comments: Iterable[str] = ()) -> str:
    """Return the table as text for a file; each single time as `whole/own` seconds."""
    return comma_separated([COLUMNS, *(
        [one.app, one.procs, f"{one.seconds:.3f}", f"{spread(one.times):.3f}", len(one.times), f"{one.app_seconds:.3f}",
         " ".join(f"{whole:.3f}/{own:.3f}" for whole, own in zip(one.times, one.app_times))]
        for one in estimates)], comments)
