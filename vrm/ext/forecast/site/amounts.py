"""Site forecasts that only count cores: when jobs start if any free cores will do at any moment.

This is the manager AttributeState of C. Karbach (Jülich report 4354, 2012). It is cheap, but its schedule may
be impossible on real nodes: a job may have one core first and another one later.
"""

from __future__ import annotations

import copy
import heapq
import math

from vrm.ext.forecast.site.snapshot import SiteJob, SiteReservation, Snapshot
from vrm.scheduling.backfilling.profile import UnitProfile


def starts(site: Snapshot, late: float) -> dict[str, float]:
    """Return when each waiting job starts, by key; jobs that never start are left out. Jobs beyond their limits
    end in `late` seconds."""
    return _CountedSite(site, late).run()


class _CountedSite:
    def __init__(self, site: Snapshot, late: float) -> None:
        self.site = site
        self.steps = UnitProfile(0.0, sum(node.cores for node in site.nodes if node.up))
        self.events = [0.0]
        self.ends: list[tuple[float, str]] = []
        self.running: dict[str, SiteJob] = {}
        self.found: dict[str, float] = {}
        for job in site.jobs:
            if job.start is not None:
                end = job.start + job.wall
                self._runs(job, -math.inf, end if end > 0 else late)
        self.inside: dict[str, UnitProfile] = {}
        self.bound: dict[str, SiteReservation] = {}
        for each in site.reservations:
            self.steps.change(max(each.begin, 0.0), each.end, -each.cores)
            self.inside[each.key] = UnitProfile(min(0.0, each.begin), each.cores)
            self.bound.update(dict.fromkeys(each.jobs, each))
            self.events += [time for time in (each.begin, each.end) if time > 0]
        self.waiting = sorted((job for job in site.jobs if job.start is None and not job.stuck),
                              key=lambda job: (-job.rank, job.submit))
        self.events += [job.submit for job in self.waiting if job.submit > 0]
        self.open = {job.key for job in site.jobs}  # jobs that have not ended

    def _runs(self, job: SiteJob, start: float, end: float) -> None:
        self.steps.change(max(start, self.steps.times[0]), end, -job.total)
        self.running[job.key] = job
        self.ends.append((end, job.key))
        heapq.heappush(self.events, end)

    def run(self) -> dict[str, float]:
        """Return all starts."""
        heapq.heapify(self.events)
        while self.events and self.waiting:
            now = heapq.heappop(self.events)
            while self.events and self.events[0] <= now:
                heapq.heappop(self.events)
            for end, key in [each for each in self.ends if each[0] <= now]:
                self.ends.remove((end, key))
                self.open.discard(key)
                del self.running[key]
            self.steps.advance(now)
            self._step(now)
        return self.found

    def _start(self, job: SiteJob, now: float) -> None:
        self.found[job.key] = now
        self.waiting.remove(job)
        self._runs(job, now, now + job.wall)

    def _ready(self, job: SiteJob, now: float) -> bool:
        return job.submit <= now and not self.open.intersection(job.after)

    def _step(self, now: float) -> None:
        self._step_reservations(now)
        site = self.site
        plan = self.steps if site.algorithm != "Backfilling" else copy.deepcopy(self.steps)
        reserved: dict[str | None, int] = {}
        for job in [job for job in self.waiting
                    if job.key not in self.bound and self._ready(job, now)]:
            if self._over(job):
                continue
            if plan.fits(job.total, job.wall):
                self._start(job, now)
                if plan is not self.steps:
                    plan.change(now, now + job.wall, -job.total)
            elif site.algorithm == "FCFS":
                return
            elif site.algorithm == "Backfilling":
                whose = job.queue if site.per_queue else None
                begin = plan.hole(job.total, job.wall) if reserved.get(whose, 0) < site.depth else math.inf
                if begin < math.inf:
                    plan.change(begin, begin + job.wall, -job.total)
                    reserved[whose] = reserved.get(whose, 0) + 1

    def _step_reservations(self, now: float) -> None:
        """Start the jobs of advance reservations."""
        for job in list(self.waiting):
            reservation = self.bound.get(job.key)
            if reservation is None:
                continue
            if now >= reservation.end:
                del self.bound[job.key]
            elif (now >= reservation.begin and now + job.wall <= reservation.end
                  and self._ready(job, now)):
                inside = self.inside[reservation.key]
                inside.advance(now)
                if inside.fits(job.total, job.wall):
                    inside.change(now, now + job.wall, -job.total)
                    self.steps.change(now, now + job.wall, job.total)  # its cores belong to the reservation
                    self._start(job, now)

    def _over(self, job: SiteJob) -> bool:
        """Return whether a limit of its queue keeps a job from starting."""
        limit = self.site.queues.get(job.queue)
        if limit is None:
            return False
        others = [other for other in self.running.values() if other.queue == job.queue]
        mine = sum(other.user == job.user for other in others)
        return bool((limit.jobs and len(others) >= limit.jobs)
                    or (limit.jobs_per_user and mine >= limit.jobs_per_user)
                    or (limit.cores and job.total + sum(each.total for each in others) > limit.cores))
