"""Measured speed-ups of applications that share nodes: plain data, looked up by load.

Definitions (the ELiSE group, JSSPP 2025): the *compact time* T of an application is its run time alone on full nodes;
T(A|B) is the run time of A on half of every socket with B on the other half. The *speed-up* of A next to B is T /
T(A|B), above 1 where sharing helps A. The *spare* speed-up is that of A on half the cores while the others are idle.
"""

from __future__ import annotations

from typing import Any
from collections.abc import Iterator, Mapping

from vrm.model.measured.heatmap import Heatmap, Throughput, load_name
from vrm.model.job import application_kind

__all__ = ["SpeedError", "Speedups", "load_name"]


class SpeedError(ValueError):
    """Speed-ups that cannot be used; the text names the place and the fix."""


class Speedups:
    """Speed-ups of pairs, spare speed-ups and compact times (seconds), by load.

    A load is named `bt.D.256` (application, class, ranks), `bt.D` or `bt`; a job is looked up by the most specific
    known name: with class and ranks, with class, by application alone.
    """

    def __init__(self, pairs: Mapping[str, Mapping[str, float]],
                 spare: Mapping[str, float] | None = None,
                 compact: Mapping[str, float] | None = None) -> None:
        self.pairs = {load: dict(row) for load, row in pairs.items()}
        self.spare = dict(spare or {})
        self.compact = dict(compact or {})
        for name, value in self._values():
            if not value > 0:
                raise SpeedError(f"{name}: a speed-up or time must be above 0, not {value:g}")
        self._known: dict[tuple[str, int, str, int], float | None] = {}

    def _values(self) -> Iterator[tuple[str, float]]:
        for load, row in self.pairs.items():
            for partner, value in row.items():
                yield f"{load} with {partner}", value
        for load, value in [*self.spare.items(), *self.compact.items()]:
            yield load, value

    def beside(self, app: str, procs: int, partner: str, partner_procs: int) -> float | None:
        """Return the speed-up of an application next to another; None if it was not measured."""
        key = (app, procs, partner, partner_procs)
        if key not in self._known:
            row = _named(self.pairs, app, procs)
            self._known[key] = _named(row, partner, partner_procs) if row is not None else None
        return self._known[key]

    def alone(self, app: str, procs: int) -> float | None:
        """Return the spare speed-up of an application; None if it was not measured."""
        found: float | None = _named(self.spare, app, procs)
        return found

    def compact_time(self, app: str, procs: int) -> float | None:
        """Return the run time of an application on full nodes, in seconds; None if it was not measured."""
        found: float | None = _named(self.compact, app, procs)
        return found

    def against_spare(self) -> dict[str, dict[str, float]]:
        """Return the speed-ups of pairs relative to running alone on half the cores (spare) instead of compact; an
        unknown spare speed-up counts as 1."""
        return {load: {partner: value / self.spare.get(load, 1.0)
                       for partner, value in row.items()} for load, row in self.pairs.items()}

    def heatmap(self, least: float = 0.0) -> Heatmap:
        """Return the ranks that order nodes under strip: for each application, the partner with the largest mean
        speed-up first. Pairs whose combined throughput is below `least` are refused (see `Heatmap`; 0: none)."""
        means = _means(self.pairs)
        ranks: dict[str, dict[str, float]] = {}
        for app, row in means.items():
            best = sorted(row, key=lambda partner: (-row[partner], partner))
            ranks[app] = {partner: float(rank) for rank, partner in enumerate(best, 1)}
        return Heatmap(ranks, self.throughput(), least)

    def throughput(self) -> Throughput:
        """Return the combined throughput of pairs. Pairs measured in only one direction are left out."""
        speeds = self.against_spare()
        return Throughput({(load, partner): speed + speeds[partner][load]
                           for load, row in speeds.items() for partner, speed in row.items()
                           if load in speeds.get(partner, ())})


def _means(pairs: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Means over the loads of each application."""
    sums: dict[str, dict[str, list[float]]] = {}
    for load, row in pairs.items():
        own = sums.setdefault(application_kind(load).lower(), {})
        for partner, value in row.items():
            own.setdefault(application_kind(partner).lower(), []).append(value)
    return {app: {partner: sum(values) / len(values) for partner, values in row.items()}
            for app, row in sums.items()}


def _named(table: Mapping[str, Any], app: str, procs: int) -> Any:
    """Return the value of the most specific name of a load; None if there is none."""
    words = app.split(".")
    short = ".".join(words[:2])
    for name in (f"{short}.{procs}", app, short, words[0]):
        if name in table:
            return table[name]
    return None
