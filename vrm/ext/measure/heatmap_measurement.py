"""Measures how fast every application runs together with every other on the nodes of the allocation.

The method is that of the ELiSE group (JSSPP 2025): both run on the same nodes, each on half of every socket; a run
that ends is started again; the result is the median of the complete runs. One co-run measures both directions of a
pair. First, every application runs alone, compact and on half the cores (spare). The CSV is rewritten after every
co-run, so an interrupted measurement continues.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from collections.abc import Callable, Sequence

from vrm.config.schema import Settings
from vrm.live.site.setup import Site
from vrm.ext.measure.bench import Bench, MeasureError, duration, machine_text
from vrm.model import Cluster, Infeasible, Job, Placement, RankSlot
from vrm.model.node import HALF
from vrm.model.measured.speedups import SpeedError
from vrm.scheduling import make_policy
from vrm.system.files import write_atomically
from vrm.ext.measured.heatmap_files import (COMPACT, SPARE, STRIP, HeatmapLine, against, csv_text, rank_text, ranked,
                                        read, spread)
from vrm.ext.generate.npb import allows, rule

Reporter = Callable[[str], None]
Key = tuple[str, str, str]
"""Placement, application, partner (empty if alone)."""

LOW_SHARE = 0.9
"""A rank that had its core for less than this share of its time was disturbed by other processes."""

TOO_SHORT = "it reports that it took 0 s, which cannot be compared; use a larger class"

LOW_OVERLAP = 0.5
"""A partner that computes for less than this share of the time disturbs hardly: its runs are too short."""


@dataclass(frozen=True)
class MeasurementMethod:
    """How long to measure: at least `runs` complete runs of each application, until the interquartile range of its
    times is at most `steady` of their median, or `period` seconds have passed. A run may take `limit` seconds."""

    runs: int = 3
    period: float = 600.0
    steady: float = 0.05
    limit: float = 3600.0

    def __str__(self) -> str:
        return (f"median of at least {self.runs} run(s) within {self.steady:g}, up to "
                f"{self.period:g} s for each co-run")


@dataclass
class _Times:
    """The complete runs of one application in a co-run."""

    seconds: list[float]
    whole: list[float]
    cpu: float = 0.0

    def steady(self, method: MeasurementMethod) -> bool:
        """Return whether there are enough runs with a small enough spread."""
        return len(self.seconds) >= method.runs and spread(self.seconds) <= method.steady

    @property
    def computing_share(self) -> float:
        """The share of the time in which the application computed, and was not being launched."""
        return min(1.0, sum(self.seconds) / sum(self.whole)) if sum(self.whole) > 0 else 0.0


def ranks_for(app: str, site: Site, most: int | None = None) -> int:
    """Return the ranks with which an application is measured: half of every socket's cores, or `most`, rounded down
    to a count that it allows. Raises MeasureError if it allows none."""
    half = sum(node.capacity(HALF, 0, 1) for node in site.cluster.nodes)
    for ranks in range(min(half, most or half), 0, -1):
        if allows(app, ranks):
            return ranks
    raise MeasureError(f"{app} cannot be measured: it runs on {rule(app)}, and half the cores of "
                       f"this allocation are {half}; leave it out with --apps")


def co_run_placements(cluster: Cluster, large: int, small: int) -> list[Placement]:
    """Return the placements of two applications that run together: first the one with `large` ranks, on the first
    half of its nodes' sockets, then copies of the one with `small` ranks until every node of the large one has a
    neighbour.

    The last copy may use nodes beyond those of the large one; if not enough nodes are left for it, the last nodes
    have no neighbour.
    """
    capacity = [node.capacity(HALF, 0, 1) for node in cluster.nodes]
    second = [node.capacity(HALF, 1, 1) for node in cluster.nodes]
    if not all(second):
        raise MeasureError("two applications cannot share a socket of one core; strip, and a "
                           "heatmap for it, want sockets of 2 cores or more")

    def take(first: int, ranks: int, lane: int) -> Placement | None:
        nodes, index, left = 0, first, ranks
        while left > 0:
            if index == len(cluster.nodes):
                return None
            nodes |= 1 << index
            left -= (second if lane else capacity)[index]
            index += 1
        return Placement(HALF, (0, nodes) if lane else (nodes, 0), (nodes,), ranks)

    whole = take(0, large, 0)
    if whole is None:
        raise MeasureError(f"{large} ranks do not fit on half the cores of the allocation")
    placements, first = [whole], 0
    while first < whole.node_set.bit_length():
        copy = take(first, small, 1)
        if copy is None:
            break
        placements.append(copy)
        first = copy.node_set.bit_length()
    if len(placements) == 1:
        raise MeasureError(f"{small} ranks do not fit with {large}")
    return placements


class HeatmapMeasurement:
    """The measurement of one heatmap: known figures, missing ones, and its file."""

    def __init__(self, settings: Settings, site: Site, apps: Sequence[str], method: MeasurementMethod,
                 out: Path, tell: Reporter, most: int | None = None, fresh: bool = False,
                 redo: float | None = None) -> None:
        self.settings = settings
        self.site = site
        self.method = method
        self.out = out
        self.tell = tell
        self.procs = {app: ranks_for(app, site, most) for app in apps}
        self.machine = machine_text(site)
        self.known: dict[Key, HeatmapLine] = {} if fresh else self._read_existing(redo)
        self.failed: dict[str, str] = {}
        self._begun = 0.0
        self._weights: list[float] = []  # of the steps measured since the start

    def _read_existing(self, redo: float | None) -> dict[Key, HeatmapLine]:
        """Return the figures already in the file; figures of these programs whose spread is above `redo` (if given)
        are left out. Raises MeasureError if the file was measured on another machine or with other rank counts."""
        if not self.out.exists():
            return {}
        mend = "name another file with --out, or start again with --fresh"
        try:
            there = read(self.out)
        except SpeedError as error:
            raise MeasureError(f"{error}; {mend}") from error
        if f"machine: {self.machine}" not in there.comments:
            said = next((line for line in there.comments if line.startswith("machine: ")),
                        "it does not say where")
            raise MeasureError(f"{self.out} was measured elsewhere ({said}; here: {self.machine}); "
                               f"{mend}")
        for figure in there.figures:
            for app, procs in ((figure.app, figure.procs), (figure.partner, figure.partner_procs)):
                if app in self.procs and procs != self.procs[app]:
                    raise MeasureError(f"{self.out} holds {app} on {procs} ranks, now it would be "
                                       f"{self.procs[app]}; {mend}")
        kept = [figure for figure in there.figures if redo is None or (figure.spread or 0) <= redo
                or figure.app not in self.procs]
        again = len(there.figures) - len(kept)
        self.tell(f"continuing {self.out}: {len(kept)} figure(s) are there"
                  + (f", {again} with a spread above {redo:g} are measured again" if again else ""))
        return {(figure.placement, figure.app, figure.partner): figure for figure in kept}

    def run(self) -> bool:
        """Measure what is missing; return True if every pair has its figures.

        Raises MeasureError or RunError if it cannot start or continue.
        """
        apps = list(self.procs)
        self._begun = time.monotonic()
        if self.site.emulated:
            self.tell("EMULATED: ranks share cores and are not bound; these figures say nothing "
                      "about a real machine")
        with Bench(self.settings, self.site) as bench:
            self.bench = bench
            for app in apps:
                self._measure_alone(app)
            pairs = self._pairs()
            for one, other in pairs:
                if not (self._has(one, other) or one in self.failed or other in self.failed):
                    self._measure_pair(one, other)
        for app, fault in self.failed.items():
            self.tell(f"not in the heatmap: {app}: {fault}")
        self._warn_of_short_runs()
        missing = [pair for pair in pairs if not self._has(*pair)]
        return not missing

    def write_ranks(self, path: Path) -> None:
        """Write the rank file. Raises MeasureError if that fails or there are no figures."""
        heatmap = read(self.out).heatmap if self.out.exists() else None
        if heatmap is None or not heatmap.ranks:
            raise MeasureError("no pair was measured, so there is nothing to write")
        _write(path, rank_text(heatmap, [f"machine: {self.machine}"]))

    # Progress.

    def _pairs(self) -> list[tuple[str, str]]:
        apps = list(self.procs)
        return [(one, other) for index, one in enumerate(apps) for other in apps[index:]]

    def _measured(self, text: str, *apps: str) -> None:
        """Print a completed step, the number of steps, and the time left, which assumes that the missing steps take
        as long, relative to the run times of their programs, as the steps since the start."""
        alone = [(placement, app) for app in self.procs for placement in (COMPACT, SPARE)]
        missing: list[tuple[str, ...]] = [(app,) for placement, app in alone
                                          if (placement, app, "") not in self.known]
        missing += [pair for pair in self._pairs() if not self._has(*pair)]
        steps = len(alone) + len(self._pairs())
        self._weights.append(self._weight(*apps))
        ahead = sum(self._weight(*step) for step in missing if not set(step) & set(self.failed))
        left = ahead * (time.monotonic() - self._begun) / sum(self._weights)
        self.tell(f"[{steps - len(missing)}/{steps}] {text}"
                  + (f"; about {duration(left)} left" if left else ""))

    def _weight(self, *apps: str) -> float:
        """Return the run time of the longest of some programs; the mean of the known ones for an unknown program."""
        known = {figure.app: figure.seconds for figure in self.known.values()
                 if figure.seconds and not figure.partner}
        mean = sum(known.values()) / len(known) if known else 1.0
        return max(known.get(app, mean) for app in apps) or 1.0

    # Figures.

    def _has(self, one: str, other: str) -> bool:
        return (STRIP, one, other) in self.known and (STRIP, other, one) in self.known

    def _save(self) -> None:
        comments = [f"machine: {self.machine}", f"method: {self.method}"]
        order = {COMPACT: 0, SPARE: 1, STRIP: 2}
        apps = list(dict.fromkeys([*self.procs, *(figure.app for figure in self.known.values())]))
        for key, figure in self.known.items():  # the times alone may have been measured again
            if figure.placement != COMPACT:
                spare = self.known.get((SPARE, figure.app, ""))
                self.known[key] = against(figure, self.known.get((COMPACT, figure.app, "")),
                                          spare if figure.placement == STRIP else None)
        figures = sorted(self.known.values(), key=lambda figure: (
            order[figure.placement], apps.index(figure.app),
            apps.index(figure.partner) if figure.partner else -1))
        _write(self.out, csv_text(ranked(figures), comments))

    def _measure_alone(self, app: str) -> None:
        """Measure the compact and the spare time of an application."""
        procs = self.procs[app]
        slots: dict[str, list[RankSlot]] = {}
        for placement in (COMPACT, SPARE):
            try:
                placed = make_policy(placement, self.site.cluster).place(
                    Job(0, app, procs, 1.0), self.site.cluster)
            except Infeasible as error:
                raise MeasureError(f"{app}: {error}") from error
            assert placed, "the nodes are empty"
            slots[placement] = list(placed.slots(self.site.cluster.nodes))
        for placement in (COMPACT, SPARE):
            if (placement, app, "") in self.known:
                continue
            compact = self.known.get((COMPACT, app, ""))
            figure = HeatmapLine(placement, app, procs)
            if placement == SPARE and slots[SPARE] == slots[COMPACT] and compact is not None:
                # Both use the same cores (for example if half a socket is one core): reuse the figure.
                figure = replace(compact, placement=SPARE)
            else:
                times = self._co_run([app], [slots[placement]])
                if times is None:
                    return
                figure = _timed(figure, times[0])
            if placement == SPARE:
                figure = against(figure, compact, None)
            self.known[placement, app, ""] = figure
            self._save()
            self._measured(f"{app} on {procs} rank(s), {placement}: {_shown(figure)}", app)

    def _measure_pair(self, one: str, other: str) -> None:
        large, small = sorted((one, other), key=lambda app: -self.procs[app])
        placements = co_run_placements(self.site.cluster, self.procs[large], self.procs[small])
        apps = [large] + [small] * (len(placements) - 1)
        slots = [list(placement.slots(self.site.cluster.nodes)) for placement in placements]
        found = self._co_run(apps, slots)
        if found is None:
            return
        times = {large: found[0], small: _merged(found[1:])}
        if one == other:
            times = {one: _merged(found)}
        told = []
        for app, partner in dict.fromkeys(((one, other), (other, one))):
            figure = _timed(HeatmapLine(STRIP, app, self.procs[app], partner, self.procs[partner]),
                            times[app])
            figure = replace(figure, overlap=round(times[partner].computing_share, 3))
            figure = against(figure, self.known.get((COMPACT, app, "")),
                             self.known.get((SPARE, app, "")))
            self.known[STRIP, app, partner] = figure
            told.append(f"{app} {_shown(figure)}")
        self._save()
        self._measured(" with ".join(told if one != other else told * 2), one, other)

    def _co_run(self, apps: Sequence[str], slots: Sequence[Sequence[RankSlot]]
                ) -> list[_Times] | None:
        """Run applications together until each has a steady figure; return None if one failed."""
        method = self.method
        found = [_Times([], []) for _ in apps]
        running: dict[int, int] = {}
        end = time.monotonic() + method.period
        for place, app in enumerate(apps):
            running[self.bench.start(app, slots[place], method.limit)] = place
        try:
            while True:
                for run in self.bench.wait():
                    place = running.pop(run.trial)
                    fault = run.fault or ("" if run.seconds > 0 else TOO_SHORT)
                    if fault:
                        self._fail(apps[place], fault)
                        return None
                    found[place].seconds.append(run.seconds)
                    found[place].whole.append(run.whole)
                    found[place].cpu += run.cpu
                    if self._enough(found, end):
                        self._warn_of_other_processes(apps, found)
                        return found
                    running[self.bench.start(apps[place], slots[place], method.limit)] = place
        finally:
            self.bench.end_all()

    def _enough(self, found: Sequence[_Times], end: float) -> bool:
        if all(times.steady(self.method) for times in found):
            return True
        return time.monotonic() >= end and all(times.seconds for times in found)

    def _fail(self, app: str, fault: str) -> None:
        self.failed[app] = fault
        self.tell(f"{app} on {self.procs[app]} rank(s): {fault}")

    def _warn_of_other_processes(self, apps: Sequence[str], found: Sequence[_Times]) -> None:
        """Warn if other processes used the cores. Ranks either compute or wait actively for messages, so they
        should have their cores for the whole time. Only on a single node is the CPU time of all ranks known."""
        if len(self.site.cluster.nodes) > 1 or self.site.emulated:
            return
        for app, times in dict(zip(apps, found)).items():
            share = times.cpu / (sum(times.seconds) * self.procs[app] or 1.0)
            if share < LOW_SHARE:
                self.tell(f"!! {app} had its core(s) for {share:.0%} of the time: if it does not "
                          "sleep, other processes disturb this measurement (--redo SPREAD repeats "
                          "noisy figures when they are gone)")

    def _warn_of_short_runs(self) -> None:
        short = sorted({figure.partner for figure in self.known.values()
                        if figure.overlap is not None and figure.overlap < LOW_OVERLAP
                        and figure.partner in self.procs})
        if short:
            self.tell(f"{', '.join(short)}: less than {LOW_OVERLAP:.0%} of the time computing, the "
                      "rest being started, so that the partners were hardly disturbed; a larger "
                      "class gives better figures")


def _merged(copies: Sequence[_Times]) -> _Times:
    return _Times([second for times in copies for second in times.seconds],
                  [whole for times in copies for whole in times.whole])


def _timed(figure: HeatmapLine, times: _Times) -> HeatmapLine:
    return replace(figure, seconds=median(times.seconds), spread=round(spread(times.seconds), 4),
                   runs=len(times.seconds))


def _shown(figure: HeatmapLine) -> str:
    by = (f" ({figure.speedup_compact:.2f} of compact's speed)"
          if figure.speedup_compact is not None else "")
    return f"{figure.seconds:.2f} s{by}, {figure.runs} run(s), spread {figure.spread:.1%}"


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text)
    except OSError as error:
        raise MeasureError(f"cannot write {path}: {error.strerror}; name another file with --out"
                           ) from error
