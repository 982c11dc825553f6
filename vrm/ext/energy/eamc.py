"""Energy-aware scheduling on several classes of nodes (EAMC; M. D'Amico, PhD thesis, UPC, 2021, chapter 6), and the
baselines that it is compared with.

Every waiting job is a candidate on each class on which its program was measured, at the frequency that is best there.
The variant orders these entries, and they are backfilled as in EASY: the first entry of each class that does not fit
has a reservation. When one entry of a job starts, its other entries are removed.

| variant | order of the entries |
|---|---|
| reorder | job after job; the classes of a job from the best to the worst |
| priority-inc | first the best class of every job, then the second best of every job, and so on |
| priority-inc-v | as priority-inc, but entries worse than the best of their job by more than `threshold` are last |
| base | only the best class of each job, at the highest frequency |
| min-runtime | job after job, its classes in the order of the database, at the fastest frequency |
| min-energy | as min-runtime, at the frequency with the least energy |

A job whose program was not measured runs on any class where it fits, at the default frequency of the nodes.
"""

from __future__ import annotations

import math
from typing import NamedTuple
from collections.abc import Hashable, Iterator

from vrm.model.cluster import Cluster
from vrm.model.measured.energy import BALANCED, ENERGY, HIGHEST, RUNTIME, ClassOffer, PowerClass
from vrm.model.job import Infeasible, Job
from vrm.model.policies import CountingPolicy
from vrm.model.measured.power import MARK
from vrm.scheduling.backfilling.dispatcher import Dispatcher, Starts
from vrm.scheduling.orderings.queue import QueueView
from vrm.scheduling.backfilling.shadow import Shadow, admitted

GOALS = {"reorder": BALANCED, "priority-inc": BALANCED, "priority-inc-v": BALANCED, "base": HIGHEST,
         "min-runtime": RUNTIME, "min-energy": ENERGY}
"""The variants, and the goal by which each chooses frequencies."""


class Candidate(NamedTuple):
    """A job on a class of nodes (`name`; "": any class). `asks` is the job with the request and the times that it
    would have there. The lowest `score` is the best."""

    job: Job
    asks: Job
    name: str
    frequency: float
    score: float


class Eamc(Dispatcher):
    """EASY backfilling over jobs and classes of nodes."""

    heads_first = False
    by_energy = True

    def __init__(self, variant: str = "priority-inc-v", weight: float = 1.0, threshold: float = 0.35
                 ) -> None:
        super().__init__()
        self.variant, self.weight, self.threshold = variant, weight, threshold
        self.name = f"eamc variant={variant} weight={weight:g} threshold={threshold:g}"
        self._entries: dict[int, tuple[Job, list[Candidate]]] = {}
        self._reserved: dict[str, Shadow] = {}
        self._classes: dict[str, PowerClass] = {}
        self._left: tuple[Cluster | None, int] = (None, -1)

    def copy(self, view: Cluster) -> Dispatcher:
        """Return an independent copy; reservations are made again."""
        twin = Eamc(self.variant, self.weight, self.threshold)
        twin._classes = self._classes
        return twin

    def decide(self, now: float, waiting: QueueView, view: Cluster, policy: CountingPolicy,
               heads: int) -> Starts:
        """Yield the jobs that start now, each with the frequency of its entry."""
        if not self._classes:
            self._classes = {power.name: power for each in view.classes
                             if (power := each.node.power) is not None}
        jobs = list(waiting)
        self._forget(waiting, jobs)
        self._reserved = {}
        started: set[int] = set()
        too_large: dict[Hashable, float] = {}
        for entry in self._in_order(jobs, view, policy):
            if entry.job.id in started:
                continue
            similar = policy.similar(entry.asks) or (None, 0)
            placement = similar[1] < too_large.get(similar[0], math.inf) and policy.place(entry.asks, view)
            if not placement:
                if similar[0] is not None:
                    too_large[similar[0]] = min(similar[1], too_large.get(similar[0], math.inf))
                if entry.name not in self._reserved:
                    self._reserved[entry.name] = Shadow(entry.asks, now, view, policy)
                continue
            placement = placement.but(frequency=entry.frequency)
            others = [known for name, known in self._reserved.items()
                      if name == entry.name or not name or not entry.name or view.constraints]
            if admitted(others, entry.asks, placement, now, policy):
                started.add(entry.job.id)
                yield entry.job, placement

    def _forget(self, waiting: QueueView, jobs: list[Job]) -> None:
        """Drop the entries of jobs that no longer wait."""
        if len(self._entries) > 2 * len(jobs) + 100:
            there = {job.id for job in jobs}
            self._entries = {each: found for each, found in self._entries.items() if each in there}

    def _in_order(self, jobs: list[Job], view: Cluster, policy: CountingPolicy) -> Iterator[Candidate]:
        """Yield the entries of all jobs in the order of the variant."""
        if not self.variant.startswith("priority"):
            for job in jobs:
                yield from self._of(job, view, policy)
            return
        ranks: list[list[Candidate]] = []
        last: list[Candidate] = []
        for job in jobs:
            found = self._of(job, view, policy)
            for rank, entry in enumerate(found):
                if (self.variant == "priority-inc-v"
                        and entry.score > found[0].score * (1 + self.threshold)):
                    last.append(entry)
                    continue
                if rank == len(ranks):
                    ranks.append([])
                ranks[rank].append(entry)
        for each in (*ranks, last):
            yield from each

    def _of(self, job: Job, view: Cluster, policy: CountingPolicy) -> list[Candidate]:
        """Return the entries of a job, in the order in which its classes are tried."""
        known = self._entries.get(job.id)
        if known is None or known[0] is not job:
            known = self._entries[job.id] = job, self._made(job, view, policy)
        return known[1]

    def _made(self, job: Job, view: Cluster, policy: CountingPolicy) -> list[Candidate]:
        offers = list(view.programs.offers(job.app, self._classes, GOALS[self.variant], self.weight))
        if GOALS[self.variant] in (BALANCED, HIGHEST):
            offers.sort(key=lambda offer: offer.score)  # stable: equal ones stay in the order of the database
        found = []
        for offer in offers:
            entry = _entry(job, offer)
            try:
                policy.nodes(entry.asks)
            except Infeasible:
                continue
            found.append(entry)
        if self.variant == "base":
            del found[1:]
        return found or [Candidate(job, job, "", 0.0, 0.0)]

    def reservations(self, now: float, waiting: QueueView, view: Cluster,
                     policy: CountingPolicy) -> dict[int, float]:
        """Return the reservations of the last step: the latest start of the first job that waits for each class."""
        found: dict[int, float] = {}
        for known in self._reserved.values():
            if known.time < math.inf and waiting.holds(known.job):
                found[known.job.id] = min(known.time, found.get(known.job.id, math.inf))
        return found


def _entry(job: Job, offer: ClassOffer) -> Candidate:
    """Return a job restricted to a class, with its times on that class."""
    request = job.request._replace(features=job.request.features | {f"{MARK}{offer.name}"})
    asks = job.but(request=request, walltime=job.walltime * offer.pace,
                   expected=job.expected * offer.pace)
    return Candidate(job, asks, offer.name, offer.prediction.frequency, offer.score)
