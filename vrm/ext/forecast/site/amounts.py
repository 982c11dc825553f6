"""Site forecasts that only count cores: when jobs start if any free cores will do at any moment.

This is the manager AttributeState of C. Karbach (Jülich report 4354, 2012). It is cheap, but its schedule may
be impossible on real nodes: a job may have one core first and another one later.
"""

from __future__ import annotations

import bisect
import heapq
import math

from vrm.ext.forecast.site.snapshot import SiteJob, SiteReservation, Snapshot


class StepFunction:
    """A free amount as a step function of time: `free[i]` from `times[i]` on."""

    def __init__(self, now: float, free: int) -> None:
        self.times, self.free = [now], [free]

    def copy(self) -> StepFunction:
        """Return an independent copy."""
        twin = StepFunction(0.0, 0)
        twin.times, twin.free = list(self.times), list(self.free)
        return twin

    def _at(self, time: float) -> int:
        at = bisect.bisect_left(self.times, time)
        if at == len(self.times) or self.times[at] != time:
            self.times.insert(at, time)
            self.free.insert(at, self.free[at - 1])
        return at

    def take(self, begin: float, end: float, amount: int) -> None:
        """Reduce the free amount from `begin` to `end` by `amount`."""
        begin = max(begin, self.times[0])
        if begin < end:
            first = self._at(begin)
            last = self._at(end) if end < math.inf else len(self.times)
            for at in range(first, last):
                self.free[at] -= amount

    def forget(self, now: float) -> None:
        """Drop the times before `now`."""
        first = bisect.bisect_right(self.times, now) - 1
        del self.times[:first], self.free[:first]
        self.times[0] = now

    def fits(self, amount: int, duration: float) -> bool:
        """Return whether `amount` is free for `duration` seconds from the first time on."""
        if self.free[0] < amount:
            return False
        last = bisect.bisect_left(self.times, self.times[0] + duration)
        return min(self.free[:last]) >= amount

    def earliest(self, amount: int, duration: float) -> float:
        """Return the first time from which `amount` is free for `duration` seconds; infinity if there is none."""
        begin = math.inf
        for at, (time, free) in enumerate(zip(self.times, self.free)):
            if free < amount:
                begin = math.inf
            elif begin == math.inf:
                begin = time
            following = self.times[at + 1] if at + 1 < len(self.times) else math.inf
            if following >= begin + duration:
                return begin
        return math.inf


def starts(site: Snapshot, late: float) -> dict[str, float]:
    """Return when each waiting job starts, by key; jobs that never start are left out. Jobs beyond their limits
    end in `late` seconds."""
    return _CountedSite(site, late).run()


class _CountedSite:
    def __init__(self, site: Snapshot, late: float) -> None:
        self.site = site
        self.steps = StepFunction(0.0, sum(node.cores for node in site.nodes if node.up))
        self.events = [0.0]
        self.ends: list[tuple[float, str]] = []
        self.running: dict[str, SiteJob] = {}
        self.found: dict[str, float] = {}
        for job in site.jobs:
            if job.start is not None:
                end = job.start + job.wall
                self._runs(job, -math.inf, end if end > 0 else late)
        self.inside: dict[str, StepFunction] = {}
        self.bound: dict[str, SiteReservation] = {}
        for each in site.reservations:
            self.steps.take(each.begin, each.end, each.cores)
            self.inside[each.key] = StepFunction(min(0.0, each.begin), each.cores)
            self.bound.update(dict.fromkeys(each.jobs, each))
            self.events += [time for time in (each.begin, each.end) if time > 0]
        self.waiting = sorted((job for job in site.jobs if job.start is None and not job.stuck),
                              key=lambda job: (-job.rank, job.submit))
        self.events += [job.submit for job in self.waiting if job.submit > 0]
        self.open = {job.key for job in site.jobs}  # jobs that have not ended

    def _runs(self, job: SiteJob, start: float, end: float) -> None:
        self.steps.take(max(start, 0.0), end, job.total)
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
            self.steps.forget(now)
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
        plan = self.steps if site.algorithm != "Backfilling" else self.steps.copy()
        reserved: dict[str | None, int] = {}
        for job in [job for job in self.waiting
                    if job.key not in self.bound and self._ready(job, now)]:
            if self._over(job):
                continue
            if plan.fits(job.total, job.wall):
                self._start(job, now)
                if plan is not self.steps:
                    plan.take(now, now + job.wall, job.total)
            elif site.algorithm == "FCFS":
                return
            elif site.algorithm == "Backfilling":
                whose = job.queue if site.per_queue else None
                begin = plan.earliest(job.total, job.wall) if reserved.get(whose, 0) < site.depth else math.inf
                if begin < math.inf:
                    plan.take(begin, begin + job.wall, job.total)
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
                inside.forget(max(now, inside.times[0]))
                if inside.fits(job.total, job.wall):
                    inside.take(now, now + job.wall, job.total)
                    self.steps.take(now, now + job.wall, -job.total)  # its cores belong to the reservation
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
