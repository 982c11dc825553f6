"""Short explanations, for users, of why jobs wait. The work is bounded: one placement test for each kind of request,
and for at most MOST kinds, however many jobs wait.
"""

from __future__ import annotations

import math
import time
from collections.abc import Hashable, Mapping

from vrm.model import Cluster, Job
from vrm.model.reservation import Reservation
from vrm.run.entry import Entry
from vrm.scheduling import Scheduler
from vrm.scheduling.backfilling.easy import NoBackfilling
from vrm.scheduling.orderings.queue import QueueView
from vrm.scheduling.backfilling.shadow import Shadow
from vrm.system.printing.local_times import local_time_text

MOST = 24
"""Maximum number of kinds of requests that are tested."""

STOPPING = "the manager starts no more jobs"


def clock(moment: float, now: float) -> str:
    """Return a time (epoch seconds) as local time, with the date if it is not today."""
    today = time.localtime(moment)[:3] == time.localtime(now)[:3]
    return local_time_text(moment, "%H:%M:%S" if today else "%d %b %H:%M")


def parked(entry: Entry, entries: Mapping[int, Entry], now: float) -> str:
    """Return why a parked job may not start even if it fits on the nodes."""
    if entry.held:
        return "held"
    if entry.missing:
        assert entry.wish is not None
        return f"after {_few(entry.wish.still(entries))}"
    if entry.early:
        return f"begins {clock(entry.begin, now)}"
    return entry.lacks or ("would not end before the allocation does" if entry.late else "")


def why_bound(reservation: Reservation, now: float) -> str:
    """Return why a job that is bound to a reservation waits."""
    if reservation.begin > now:
        return f"reservation {reservation.name}, which begins {clock(reservation.begin, now)}"
    return (f"the nodes of reservation {reservation.name} are taken, or it would not end by "
            f"{clock(reservation.end, now)}")


def _few(ids: str) -> str:
    parts = ids.split(",")
    return ids if len(parts) < 4 else ",".join(parts[:3]) + ",..."


class WaitReasons:
    """Explains why the jobs of a queue wait at time `now`. `reserved` are the start times of jobs with scheduler
    reservations, by id; `phase` is the manager's."""

    def __init__(self, now: float, waiting: QueueView, cluster: Cluster, scheduler: Scheduler,
                 reserved: Mapping[int, float], phase: str = "running") -> None:
        self.now = now
        self.cluster = cluster
        self.policy = scheduler.policy_on(cluster, now)
        self.reserved = reserved
        self.stopping = phase != "running"
        self.head = waiting[0] if len(waiting) else None
        self.strict = isinstance(scheduler.dispatcher, NoBackfilling)
        self.interval = scheduler.interval
        self._known: dict[Hashable, str] = {}  # what each kind of request lacks; "": nothing

    def of(self, job: Job) -> str:
        """Return why this job does not run yet."""
        if self.stopping:
            return STOPPING
        assert self.head is not None
        lacks = "" if self.strict and job is not self.head else self._lacks(job)
        moment = self.reserved.get(job.id)
        if moment is not None and moment > self.now:
            return f"{lacks or 'its turn comes'}; starts by {clock(moment, self.now)}"
        if lacks:
            return lacks
        if job is self.head:
            return f"decided every {self.interval:g} s" if self.interval else "starts next"
        return f"behind job {self.head.id}" if self.strict or not self._asked(job) else (
            f"would delay job {self.head.id}")

    def _asked(self, job: Job) -> bool:
        return self._kind(job) in self._known

    def _kind(self, job: Job) -> Hashable:
        return job.app, job.request, job.walltime if self.cluster.calendar else 0

    def _lacks(self, job: Job) -> str:
        """Return which resource is short for the job now; "" if none is, or if MOST kinds have been tested
        already."""
        kind = self._kind(job)
        if kind not in self._known:
            if len(self._known) >= MOST:
                return ""
            placement = self.policy.place(job, self.cluster)
            self._known[kind] = "" if placement else self._why(job, str(placement))
        return self._known[kind]

    def _why(self, job: Job, needs: str) -> str:
        if job.id in self.reserved:
            return needs
        moment = Shadow(job, self.now, self.cluster, self.policy).time
        then = (f"; next {clock(moment, self.now)}" if self.now < moment < math.inf else
                "; a node of it is down" if moment == math.inf else "")
        return needs + then
