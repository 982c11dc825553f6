"""How fast jobs run beside others: measured pairs, and the model of a run whose neighbours change.

Definitions (the ELiSE group, JSSPP 2025): the *compact time* T of an application is that of a run
alone on full nodes; T(A|B) that of A on half of every socket with B on the other half. The
*speed-up* of A beside B is T / T(A|B), above 1 where sharing helps A. The *spare* speed-up is that
of A on half the cores while the others idle. A job is as fast as its slowest part: over all
neighbours on all its nodes the smallest speed-up. When neighbours change, the work that is left is
done at the new speed; the compact time is the work.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Tuple, Union

from vrm.model import bits
from vrm.model.cluster import Booking, Cluster
from vrm.model.heatmap import Heatmap
from vrm.model.job import application_kind
from vrm.model.node import HALF


class SpeedError(ValueError):
    """A file of speed-ups that cannot be used; the text names the place and the mend."""


class Speedups:
    """Speed-ups of pairs, spare speed-ups and compact times (seconds), by load.

    A load is named `bt.D.256` (application, class, ranks), `bt.D` or `bt`; a job is looked up by
    the most exact name that is known: with class and ranks, with class, by application alone.
    Pairs that are not known have speed-up 1.
    """

    def __init__(self, pairs: Mapping[str, Mapping[str, float]],
                 spare: Optional[Mapping[str, float]] = None,
                 compact: Optional[Mapping[str, float]] = None) -> None:
        self.pairs = {load: dict(row) for load, row in pairs.items()}
        self.spare = dict(spare or {})
        self.compact = dict(compact or {})
        for name, value in self._values():
            if not value > 0:
                raise SpeedError(f"{name}: a speed-up or time must be above 0, not {value:g}")
        self._known: Dict[Tuple[str, int, str, int], float] = {}

    def _values(self) -> Iterator[Tuple[str, float]]:
        for load, row in self.pairs.items():
            for partner, value in row.items():
                yield f"{load} beside {partner}", value
        for load, value in [*self.spare.items(), *self.compact.items()]:
            yield load, value

    @classmethod
    def read(cls, path: Union[str, Path], rows_are: str = "own") -> "Speedups":
        """Read a JSON pool of measured loads or a table of speed-ups.

        The pool is `{"loads": [...]}`, each load JSON text with `load_name`,
        `num_of_processes`, `compact_timelogs` and `coscheduled_timelogs` {partner: [[s, ...]]};
        the speed-up is the median compact time by the median co-run time. Of the table the first
        line names the columns and every other one a load with its speed-ups; `rows_are` own (the
        row's load is the one that is sped up) or partner. Raises SpeedError.
        """
        path = Path(path)
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise SpeedError(f"{path}: {error.strerror}") from error
        if text.lstrip().startswith("{"):
            return cls._pool(path, text)
        return cls._table(path, text, rows_are)

    @classmethod
    def _pool(cls, path: Path, text: str) -> "Speedups":
        try:
            loads = [json.loads(load) if isinstance(load, str) else load
                     for load in json.loads(text)["loads"]]
            pairs: Dict[str, Dict[str, float]] = {}
            spare: Dict[str, float] = {}
            compact: Dict[str, float] = {}
            for load in loads:
                name = load["load_name"]
                if not load["compact_timelogs"]:
                    continue
                compact[name] = median(load["compact_timelogs"])
                pairs[name] = {}
                for partner, copies in load.get("coscheduled_timelogs", {}).items():
                    runs = [run for copy in copies for run in copy]
                    if runs:
                        pairs[name][partner] = compact[name] / median(runs)
                if load.get("spare_timelogs"):
                    spare[name] = compact[name] / median(load["spare_timelogs"])
        except (ValueError, KeyError, TypeError) as error:
            raise SpeedError(f"{path}: not a pool of measured loads ({error!r}); it is a JSON "
                             "object with `loads`, each with load_name and compact_timelogs"
                             ) from error
        return cls(pairs, spare, compact)

    @classmethod
    def _table(cls, path: Path, text: str, rows_are: str) -> "Speedups":
        if rows_are not in ("own", "partner"):
            raise SpeedError(f"the rows of a table are `own` or `partner`, not `{rows_are}`")
        lines = [(number, line.split()) for number, line in enumerate(text.splitlines(), 1)
                 if line.strip() and not line.lstrip().startswith("#")]
        if len(lines) < 2:
            raise SpeedError(f"{path}: empty; the first line names the columns, every other one "
                             "a load and its speed-ups")
        columns = lines[0][1]
        pairs: Dict[str, Dict[str, float]] = {}
        spare: Dict[str, float] = {}
        for number, words in lines[1:]:
            if len(words) != len(columns) + 1:
                raise SpeedError(f"{path}:{number}: {len(words) - 1} speed-ups for "
                                 f"{len(columns)} columns")
            for column, word in zip(columns, words[1:]):
                try:
                    value = float(word)
                except ValueError:
                    raise SpeedError(f"{path}:{number}: `{word}` is not a speed-up") from None
                if column == "spare":
                    spare[words[0]] = value
                elif rows_are == "own":
                    pairs.setdefault(words[0], {})[column] = value
                else:
                    pairs.setdefault(column, {})[words[0]] = value
        return cls(pairs, spare)

    def beside(self, app: str, procs: int, partner: str, partner_procs: int) -> float:
        """The speed-up of an application beside another."""
        key = (app, procs, partner, partner_procs)
        known = self._known.get(key)
        if known is None:
            row = _named(self.pairs, app, procs)
            found = _named(row, partner, partner_procs) if row is not None else None
            known = self._known[key] = 1.0 if found is None else found
        return known

    def alone(self, app: str, procs: int) -> float:
        """The spare speed-up of an application; 1 if it is not known."""
        found = _named(self.spare, app, procs)
        return 1.0 if found is None else found

    def compact_time(self, app: str, procs: int) -> Optional[float]:
        """The run time of an application on full nodes, in seconds, if it was measured."""
        return _named(self.compact, app, procs)

    def heatmap(self) -> Heatmap:
        """The map of ranks that orders nodes under strip: per application, the partner with the
        largest mean speed-up first."""
        sums: Dict[str, Dict[str, List[float]]] = {}
        for load, row in self.pairs.items():
            own = sums.setdefault(application_kind(load).lower(), {})
            for partner, value in row.items():
                own.setdefault(application_kind(partner).lower(), []).append(value)
        ranks: Dict[str, Dict[str, float]] = {}
        for app, row in sums.items():
            means = {partner: sum(values) / len(values) for partner, values in row.items()}
            best = sorted(means, key=lambda partner: (-means[partner], partner))
            ranks[app] = {partner: float(rank) for rank, partner in enumerate(best, 1)}
        return Heatmap(ranks)


def _named(table: Mapping[str, Any], app: str, procs: int) -> Any:
    """What stands under the most exact name of a load."""
    words = app.split(".")
    short = ".".join(words[:2])
    for name in (f"{short}.{procs}", app, short, words[0]):
        if name in table:
            return table[name]
    return None


class _Run:
    """A running job: what is left of its work (s of compact time) at a moment, and its speed."""

    __slots__ = ("booking", "left", "since", "speed")

    def __init__(self, booking: Booking, left: float, since: float) -> None:
        self.booking = booking
        self.left = left
        self.since = since
        self.speed = 0.0


class CoRunning:
    """The speeds of the jobs on a cluster, as neighbours come and go."""

    def __init__(self, cluster: Cluster, speedups: Speedups) -> None:
        self.cluster = cluster
        self.speedups = speedups
        self._runs: Dict[int, _Run] = {}
        self._on_node: List[List[int]] = [[] for _ in cluster.nodes]

    def started(self, booking: Booking, run: float, now: float) -> Iterable[Tuple[int, float]]:
        """A job of `run` seconds of work started: the jobs whose end changes, with their ends."""
        job_id = booking.job.id
        self._runs[job_id] = _Run(booking, run, now)
        touched = [job_id]
        for node in bits.members(booking.placement.node_set):
            for other in self._on_node[node]:
                if other not in touched:
                    touched.append(other)
            self._on_node[node].append(job_id)
        return self._update(touched, now)

    def ended(self, booking: Booking, now: float) -> Iterable[Tuple[int, float]]:
        """A job left: the jobs whose end changes, with their new ends."""
        job_id = booking.job.id
        del self._runs[job_id]
        touched: List[int] = []
        for node in bits.members(booking.placement.node_set):
            here = self._on_node[node]
            here.remove(job_id)
            for other in here:
                if other not in touched:
                    touched.append(other)
        return self._update(touched, now)

    def remaining(self, job_id: int, now: float) -> float:
        """Work that is left of a running job, in seconds of compact time."""
        run = self._runs[job_id]
        return run.left - (now - run.since) * run.speed

    def _update(self, jobs: Iterable[int], now: float) -> List[Tuple[int, float]]:
        ends = []
        for job_id in jobs:
            run = self._runs[job_id]
            speed = self._speed(run)
            if speed != run.speed:
                run.left = max(0.0, run.left - (now - run.since) * run.speed)
                run.since = now
                run.speed = speed
                ends.append((job_id, now + run.left / speed))
        return ends

    def _speed(self, run: _Run) -> float:
        """The smallest speed-up over all nodes of the job."""
        job, placement = run.booking.job, run.booking.placement
        if placement.share != HALF:
            return 1.0
        neighbours = set()
        lonely = False
        for node in bits.members(placement.node_set):
            here = self._on_node[node]
            lonely = lonely or len(here) == 1
            neighbours.update(here)
        neighbours.discard(job.id)
        speeds = [self.speedups.alone(job.app, job.procs)] if lonely or not neighbours else []
        for other in neighbours:
            beside = self._runs[other].booking.job
            speeds.append(self.speedups.beside(job.app, job.procs, beside.app, beside.procs))
        return min(speeds)
