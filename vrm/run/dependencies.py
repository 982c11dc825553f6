"""Dependencies between the jobs of a run, and what happens to dependent jobs when others start or end."""

from __future__ import annotations

import math
from typing import Protocol

from vrm.model import Dependency, Job, JobState
from vrm.model.job import START
from vrm.run.entry import DEPENDENCY, DroppedJob, Entry, JobStateError, SharedDependencies


class WaitingJobs(Protocol):
    """The container of waiting jobs (see `vrm.run.job_book.JobBook`)."""

    def place(self, entry: Entry) -> None:
        """Put a waiting job into the queue or among the parked jobs."""

    def take_out(self, entry: Entry) -> None:
        """Remove a job from the waiting jobs; no effect if it does not wait."""

    def not_before(self, entry: Entry, time: float) -> None:
        """Set the earliest start time (seconds) of a job."""


class Dependencies:
    """The dependencies of the jobs `entries` of a `book`. Jobs with equal `after` lists share one SharedDependencies.
    `forgets`: an unknown earlier job counts as completed. `opened`: jobs have become eligible since the flag was last
    cleared."""

    def __init__(self, entries: dict[int, Entry], book: WaitingJobs, forgets: bool) -> None:
        self._entries, self._book, self._forgets = entries, book, forgets
        self._shared: dict[tuple[Dependency, ...], SharedDependencies] = {}
        self._latest: SharedDependencies | None = None
        self.opened = False

    def of(self, after: tuple[Dependency, ...], before: int) -> SharedDependencies:
        """Return the shared dependencies of all jobs with this `after`; the job itself has the id `before`. Raises
        JobStateError if it depends on a job that was not submitted before."""
        if self._latest is not None and self._latest.after is after:
            return self._latest  # the next job of an array: even a hash would be too slow
        wish = self._shared.get(after)
        if wish is None:
            gone = {job_id for each in after for job_id in each.ids if job_id not in self._entries}
            unknown = min((job_id for job_id in gone if not self._forgets or job_id >= before), default=None)
            if unknown is not None:
                raise JobStateError(f"it depends on job {unknown}, and a job can depend only on "
                                    "earlier jobs")
            wish = self._shared[after] = SharedDependencies(after)
            for each in dict.fromkeys(after):
                pair = wish, each
                for job_id in each.ids:
                    if job_id not in gone:
                        self._entries[job_id].enter(pair)
                    elif not each.met(JobState.COMPLETED):
                        wish.failed[job_id] = JobState.COMPLETED
        self._latest = wish
        return wish

    def join(self, entry: Entry, wish: SharedDependencies) -> None:
        """Make a job wait for these shared dependencies, too."""
        entry.wish = wish
        wish.dependents.append(entry)
        if not wish.open:
            self._book.not_before(entry, wish.ready)

    def against(self, entry: Entry) -> tuple[int, JobState] | None:
        """Return the id and end state of a job that failed a dependency of `entry`; None if there is none."""
        if entry.wish is None and entry.details.after:
            self.join(entry, self.of(entry.details.after, entry.job.id))
        if entry.wish is None or not entry.wish.failed:
            return None
        return next(iter(entry.wish.failed.items()))

    def begun(self, entry: Entry, now: float) -> None:
        """Record the first start of a job, or that it will never start, for the jobs that wait for its start."""
        entry.begun = now
        if entry.wished is None:
            return
        mine = [pair for pair in entry.wished if pair[1].kind == START]
        if not mine:
            return
        entry.wished = [pair for pair in entry.wished if pair[1].kind != START]
        for wish, wanted in mine:
            wish.begun(wanted, now)
            if not wish.open and not wish.failed:
                self._open(wish, now)

    def _open(self, wish: SharedDependencies, now: float) -> None:
        """Make the dependents eligible: all their dependencies are met."""
        self.opened = True
        for dependent in wish.dependents:
            if dependent.state is JobState.QUEUED:
                if wish.ready > now:
                    self._book.not_before(dependent, wish.ready)
                self._book.place(dependent)

    def settle(self, entry: Entry, state: JobState, now: float) -> list[DroppedJob]:
        """Record the end of a job for the jobs that wait for it; return the jobs that now can never run, which are
        cancelled."""
        entry.state = state
        if entry.wished is None and entry.begun < math.inf:
            return []  # no job waits for it
        dropped: list[DroppedJob] = []
        ended = [entry]
        while ended:
            other = ended.pop()
            if other.begun == math.inf:
                self.begun(other, now)
            for wish, wanted in other.wished or ():
                wish.count(-1)
                if not wanted.met(other.state):
                    first = not wish.failed
                    wish.failed[other.job.id] = other.state
                    for dependent in wish.dependents if first else ():
                        if dependent.state is JobState.QUEUED:
                            self._book.take_out(dependent)
                            dependent.state, dependent.cause = JobState.CANCELLED, DEPENDENCY
                            dropped.append(dependent.dropped(other.job.id, other.state))
                            ended.append(dependent)
                elif not wish.open and not wish.failed:
                    self._open(wish, now)
        return dropped

    def reopen(self, entry: Entry) -> None:
        """Make the dependents of an ended job wait for it again."""
        for wish, _ in entry.wished or ():
            wish.count(+1)
            wish.failed.pop(entry.job.id, None)
            for dependent in wish.dependents if wish.open == 1 else ():
                if dependent.state is JobState.QUEUED:
                    self._book.place(dependent)

    def recoverable_dependents(self, job_id: int) -> list[Job]:
        """Return the jobs that were cancelled because they depend on this job, and whose dependencies have no failure
        now."""
        found = {each.job.id: each.job for wish, _ in self._entries[job_id].wished or () if not wish.failed
                 for each in wish.dependents
                 if each.cause == DEPENDENCY and each.state.ended and self._entries[each.job.id] is each}
        return list(found.values())

    def copy_to(self, twin: Dependencies) -> None:
        """Copy all dependencies to `twin`, whose book has copies of the entries."""
        copies = {id(wish): SharedDependencies(wish.after) for wish in self._shared.values()}
        for job_id, entry in self._entries.items():
            if entry.wish is not None:
                twin._entries[job_id].wish = copies[id(entry.wish)]
            if entry.wished is not None:
                twin._entries[job_id].wished = [(copies[id(wish)], wanted) for wish, wanted in entry.wished]
        for after, wish in self._shared.items():
            new = twin._shared[after] = copies[id(wish)]
            new.open, new.failed, new.ready = wish.open, dict(wish.failed), wish.ready
            new.dependents = [twin._entries[each.job.id] for each in wish.dependents
                              if self._entries[each.job.id] is each]
