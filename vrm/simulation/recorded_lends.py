"""Lends that people asked for in a live run (`vrm lend`), made again when the run is simulated."""

from __future__ import annotations

import copy
import math
from typing import Any, NamedTuple
from collections.abc import Iterable, Sequence

from vrm.model import bits
from vrm.model.cluster import Cluster
from vrm.model.policies import CountingPolicy
from vrm.results.jobs import JobRow
from vrm.run.lending import of_record
from vrm.scheduling.backfilling.dispatcher import Dispatcher, Starts
from vrm.scheduling.placement.offers import NoOffer, borrowed, offer
from vrm.scheduling.orderings.queue import Waiting


class AskedLend(NamedTuple):
    """At a time (seconds) a job is to lend so many cores on each of its nodes to another."""

    time: float
    lender: int
    borrower: int
    cores: int


def recorded(records: Iterable[dict[str, Any]], cluster: Cluster) -> list[AskedLend]:
    """The lends of a journal that somebody asked for and that came about, in the order of time."""
    asked: dict[int, AskedLend] = {}
    found = []
    for record in records:
        if record["event"] == "lend" and record.get("command") and record["to"] is not None:
            loan = of_record(record)
            most = max((bits.count(loan.cores & cluster.layout.node_cores(node))
                        for node in range(len(cluster.nodes))), default=0)
            asked[record["number"]] = AskedLend(loan.since, loan.lender, loan.borrower, most)
        elif record["event"] == "lent" and record["number"] in asked:
            found.append(asked[record["number"]])
    return found


def lent_to_nodes(records: Iterable[dict[str, Any]]) -> dict[int, float]:
    """The core seconds that jobs lent to no job in their last run, by id, from the records of a journal."""
    open_: dict[int, tuple[int, int, float]] = {}
    found: dict[int, float] = {}
    for record in records:
        event, job_id = record["event"], record.get("id", -1)
        if event == "lend" and record["to"] is None:
            open_[record["number"]] = job_id, bits.count(of_record(record).cores), record["time"]
        over = [number for number, (lender, _, _) in open_.items()
                if (number == record["number"] if event == "regain"
                    else event in ("end", "again") and lender == job_id)]
        for number in over:
            lender, cores, since = open_.pop(number)
            found[lender] = found.get(lender, 0.0) + cores * (record["time"] - since)
        if event == "start":
            found.pop(job_id, None)
    return found


def on_all_cores(row: JobRow, cores_per_task: int, to_nodes: float) -> float:
    """How long a job that ran would have run on all the cores that it asked for, in seconds, if it is as fast as its
    share of them; but for what it lent to no job (core seconds), which nobody lends in a replay."""
    assert row.start is not None and row.end is not None
    run: float = row.end - row.start
    if row.borrowed:
        return float(row.borrowed) / (row.procs * cores_per_task)
    return run - max(0.0, row.lent - to_nodes) / row.processors if row.lent else run


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
