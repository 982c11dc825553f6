"""The learned heatmap, for the placement of jobs and for `vrm heatmap`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from vrm.config.schema import Settings
from vrm.ext.learning.learned_jobs import LearnedJob, machine_of
from vrm.ext.learning.pairs.co_runs import co_runs
from vrm.ext.learning.pairs.model import PairModel
from vrm.ext.learning.store import LearnedStore, StoreError, place
from vrm.ext.measured.heatmap_files import STRIP, HeatmapFile, HeatmapLine, ranked, split_load
from vrm.model import Cluster
from vrm.model.measured.heatmap import Heatmap
from vrm.model.measured.speedups import SpeedError, Speedups
from vrm.run.journal import codec

NAME = "learned"
"""Its name in `Applications.Heatmap` and `vrm heatmap show`."""

HISTORY = 4000
"""Number of jobs that are read from the store: the last ones."""

RUNS = 300
"""Number of runs from which a manager learns: the last ones."""

Learned = tuple[dict[str, dict[str, float]], int]
"""The speed-ups of pairs, and from how many runs they were learned."""

LEARNED, GUESSED = "learned", "guessed"
"""Sources of a cell of a heatmap other than a measurement: the pair was seen in ordinary runs, or not at all."""


def speedups_of(model: PairModel) -> Speedups:
    """Return the speed-ups of all pairs of loads that have run, relative to running alone on half of the cores."""
    pairs = [(load, other) for load in model.loads for other in model.loads]
    found: dict[str, dict[str, float]] = {}
    for (load, other), speed in zip(pairs, model.speeds(pairs)):
        found.setdefault(load, {})[other] = speed.value
    return Speedups(found)


class LearnedHeatmap(Heatmap):
    """Orders partners by what was learned so far (`learn_again` and `take`). A program that has not run is an
    average partner. The refused pairs stay those of the beginning."""

    node_order = "partners"

    def __init__(self, jobs: Iterable[LearnedJob], least: float = 0.0) -> None:
        super().__init__({}, None, least)
        self.jobs = 0
        self.take(self.learn_again(jobs))
        self._first = Heatmap({}, self.throughput, least)

    @staticmethod
    def learn_again(jobs: Iterable[LearnedJob]) -> Learned:
        """Return what is learned from `jobs`, which are all known jobs."""
        runs = co_runs(jobs)[-RUNS:]
        return speedups_of(PairModel(runs)).pairs, len(runs)

    def take(self, learned: Learned) -> None:
        """Order partners by `learned` from now on."""
        pairs, self.jobs = learned
        found = Speedups(pairs).heatmap()
        super().__init__(found.ranks, found.throughput, self.least)

    def refuses(self, app: str, procs: int, partner: str, partner_procs: int) -> bool:
        """Return whether two jobs were known at the beginning to have less throughput together than `least`."""
        return self._first.refuses(app, procs, partner, partner_procs)

    @property
    def refused(self) -> list[tuple[str, str]]:
        """The refused pairs of loads."""
        return self._first.refused

    def missing(self, apps: Iterable[str]) -> list[str]:
        """Return no application: each is learned when it runs."""
        return []


class LearnedSource:
    """Makes the heatmap of `Applications: {Heatmap: learned}`."""

    def __call__(self, settings: Settings, cluster: Cluster) -> LearnedHeatmap:
        """Return the heatmap for the placement of jobs, from what was learned on this machine. Raises
        SpeedError."""
        path = place(settings.extended("Learning.Store"))
        machine = machine_of(codec.nodes_record(cluster.nodes))
        try:
            with contextlib.nullcontext() if path is None else LearnedStore(path, reading=True) as store:
                jobs = [] if store is None else store.jobs(machine=machine, last=HISTORY)
        except StoreError:
            jobs = []  # reported by the manager's part that writes the store
        return LearnedHeatmap(jobs, settings.rules.min_throughput)

    def shown(self, settings: Settings) -> HeatmapFile:
        """Return the heatmap of the machine of the last run for `vrm heatmap`, as a file of measured pairs.
        Raises SpeedError."""
        path = place(settings.extended("Learning.Store"))
        if path is None:
            raise SpeedError("nothing is learned here (Learning: {Store: off}); remove the key, or name a file")
        try:
            with LearnedStore(path, reading=True) as store:
                last = store.jobs(last=1)
                machine = store.machines()[last[0].run] if last else ""
                jobs = store.jobs(machine=machine, last=HISTORY) if last else []
        except StoreError as error:
            raise SpeedError(str(error)) from error
        model = PairModel(co_runs(jobs))
        if not model.loads:
            raise SpeedError(f"{path}: no job has run yet from which pairs could be learned")
        pairs = [(load, other) for load in model.loads for other in model.loads]
        figures = []
        for (load, other), speed in zip(pairs, model.speeds(pairs)):
            (app, procs), (partner, partner_procs) = split_load(load), split_load(other)
            figures.append(HeatmapLine(STRIP, app, procs, partner, partner_procs, speedup_compact=speed.value,
                                       spread=(speed.high - speed.low) / speed.value, runs=speed.runs,
                                       source=LEARNED if speed.runs else GUESSED))
        speedups = speedups_of(model)
        return HeatmapFile(speedups.heatmap(), speedups, tuple(ranked(figures)),
                           (f"machine: {machine}", "speed-ups are against running alone on half of the cores; "
                            "spread is the range of 8 in 10 cases"))


learned = LearnedSource()
