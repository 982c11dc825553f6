"""Repeats the lends that users requested in a live run (`vrm lend`) when the run is simulated."""

from __future__ import annotations

import copy
import math
from typing import NamedTuple
from collections.abc import Sequence

from vrm.model.cluster import Cluster
from vrm.model.policies import CountingPolicy
from vrm.scheduling.backfilling.dispatcher import Dispatcher, Starts
from vrm.ext.lending.offers import CannotLend, borrowed, offer
from vrm.scheduling.orderings.queue import QueueView


class RequestedLend(NamedTuple):
    """A request of a user: at `time` (seconds) `lender` lends `cores` cores on each of its nodes to `borrower`."""

    time: float
    lender: int
    borrower: int
    cores: int


class RecordedLends(Dispatcher):
    """Another dispatcher plus lends at given times. A lend is skipped if its jobs are not running or waiting then."""

    lends = True

    def __init__(self, inner: Dispatcher, asked: Sequence[RequestedLend]) -> None:
        super().__init__()
        self.inner = inner
        self.asked = sorted(asked)
        self.name, self.kept, self.tries_all = inner.name, inner.kept, inner.tries_all
        self.heads_first = False

    def idle(self, waiting: QueueView, view: Cluster, policy: CountingPolicy) -> bool:
        """Return whether nothing can start now."""
        return not self.asked and self.inner.idle(waiting, view, policy)

    def decide(self, now: float, waiting: QueueView, view: Cluster, policy: CountingPolicy,
               heads: int) -> Starts:
        """Yield what the inner dispatcher starts, and the borrowers that are due."""
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
            except CannotLend:
                continue
            place = borrowed(job_or_none, view, [(lender, found.cores)], job_or_none.malleable)
            if place is not None:
                yield job_or_none, place

    def wake(self, now: float) -> float:
        """Return when the inner dispatcher wants to wake, or when the next lend is due. Lends that were due already
        do not count."""
        return min(self.inner.wake(now), next((each.time for each in self.asked if each.time > now), math.inf))

    def copy(self, view: Cluster) -> RecordedLends:
        """Return an independent copy."""
        twin = copy.copy(self)
        twin.inner, twin.asked = self.inner.copy(view), list(self.asked)
        return twin
