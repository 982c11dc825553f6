"""Lends that people asked for in a live run (`vrm lend`), made again when the run is simulated."""

from __future__ import annotations

import copy
import math
from typing import NamedTuple
from collections.abc import Sequence

from vrm.model.cluster import Cluster
from vrm.model.policies import CountingPolicy
from vrm.scheduling.backfilling.dispatcher import Dispatcher, Starts
from vrm.ext.lending.offers import NoOffer, borrowed, offer
from vrm.scheduling.orderings.queue import Waiting


class AskedLend(NamedTuple):
    """At a time (seconds) a job is to lend so many cores on each of its nodes to another."""

    time: float
    lender: int
    borrower: int
    cores: int


class WithLends(Dispatcher):
    """Another dispatcher, and lends at given times; those of jobs that do not run or wait then are left
    out."""

    lends = True

    def __init__(self, inner: Dispatcher, asked: Sequence[AskedLend]) -> None:
        super().__init__()
        self.inner = inner
        self.asked = sorted(asked)
        self.name, self.kept, self.tries_all = inner.name, inner.kept, inner.tries_all
        self.heads_first = False

    def idle(self, waiting: Waiting, view: Cluster, policy: CountingPolicy) -> bool:
        """Whether nothing can start now."""
        return not self.asked and self.inner.idle(waiting, view, policy)

    def decide(self, now: float, waiting: Waiting, view: Cluster, policy: CountingPolicy,
               heads: int) -> Starts:
        """What the other one starts, and the borrowers that are due."""
        started = set()
        for job, placement in self.inner.decide(now, waiting, view, policy, heads):
            started.add(job.id)
            yield job, placement
        while self.asked and self.asked[0].time <= now:
            _, lender, borrower, cores = self.asked.pop(0)
            job_or_none = next((job for job in waiting if job.id == borrower), None)
            if job_or_none is None or borrower in started or lender not in view.bookings:
                continue
            try:
                found = offer(view, lender, cores)
            except NoOffer:
                continue
            place = borrowed(job_or_none, view, [(lender, found.cores)], job_or_none.malleable)
            if place is not None:
                yield job_or_none, place

    def wake(self, now: float) -> float:
        """When the other one wants to wake, or the next lend is due: nobody waits for one that was due and is left."""
        return min(self.inner.wake(now), next((each.time for each in self.asked if each.time > now), math.inf))

    def copy(self, view: Cluster) -> WithLends:
        """An independent copy."""
        twin = copy.copy(self)
        twin.inner, twin.asked = self.inner.copy(view), list(self.asked)
        return twin
