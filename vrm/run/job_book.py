"""The jobs of a run, from submission to end: which jobs may start, and why the others must wait.

A job is eligible when it is not held, its dependencies are met (the jobs ended or started as required), its begin
time has come, and it can end before the allocation does. Only eligible jobs are in the scheduler's queue. The
scheduler does not see the others: it makes no reservation for them, and none is broken.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator

from vrm.model import Job, JobState
from vrm.model.job import PLAIN, Details
from vrm.run.dependencies import Dependencies
from vrm.run.entry import DEPENDENCY, REMOVED, DroppedJob, Entry, JobStateError
from vrm.scheduling.orderings.queue import JobQueue


FLEXIBLE = "flexible"
"""Value of a job's `limit` field: its time limit is cut at the end of the allocation, so it can start as long as any
job can."""


MISSED = "it can no longer finish by its deadline"
"""Reason of a job that did not start early enough to finish by its deadline."""


class JobTimers(list[tuple[float, int]]):
    """A heap of (time, job id) for waiting jobs, earliest first; times are seconds as `moment` returns them
    (infinity: none). Outdated items are skipped: the job does not wait any longer, or its time has changed."""

    def __init__(self, entries: dict[int, Entry], moment: Callable[[Entry], float]) -> None:
        super().__init__()
        self._entries, self._moment = entries, moment

    def add(self, entry: Entry) -> None:
        """Add a job, if it has a finite time."""
        time = self._moment(entry)
        if time < math.inf:
            heapq.heappush(self, (time, entry.job.id))

    @property
    def next(self) -> float:
        """The earliest time in seconds; infinity if there is none."""
        while self:
            time, job_id = self[0]
            entry = self._entries.get(job_id)
            if entry is not None and entry.state is JobState.QUEUED and self._moment(entry) == time:
                return time
            heapq.heappop(self)
        return math.inf

    def due(self, now: float) -> Iterator[Entry]:
        """Remove and yield the jobs whose time has come."""
        while self.next <= now:
            yield self._entries[heapq.heappop(self)[1]]


class JobBook:
    """All jobs of a run. `queue` holds the eligible jobs; `parked` holds the other waiting jobs by id.

    `lacks(job)` returns why a job cannot run on the current nodes, "" if it can; without `lacks` all jobs can. With
    `forgets` the book drops each completed job that no other job waits for, and treats an unknown earlier job as
    completed (simulations have millions of jobs).

    A `frozen` book puts no job into the queue: it collects the jobs of a journal until `thaw`.
    """

    def __init__(self, queue: JobQueue, lacks: Callable[[Job], str] | None = None,
                 forgets: bool = False, frozen: bool = False) -> None:
        self.queue = queue
        self.frozen = frozen
        self._lacks = lacks
        self._forgets = forgets
        self.entries: dict[int, Entry] = {}
        self.parked: dict[int, Entry] = {}
        self.dependencies = Dependencies(self.entries, self, forgets)
        self._longest: list[tuple[float, int]] = []  # (-walltime, id) of queued jobs, a heap
        self.begins = JobTimers(self.entries, lambda entry: entry.begin if entry.early else math.inf)
        self.deadlines = JobTimers(self.entries, lambda entry: entry.latest)  # the latest start times
        self._deadline = math.inf

    @property
    def waiting(self) -> int:
        """Number of waiting jobs, eligible or not."""
        return len(self.queue) + len(self.parked)

    @property
    def held(self) -> Iterator[int]:
        """Ids of the held jobs."""
        return (job_id for job_id, entry in self.parked.items() if entry.held)

    @property
    def lacking(self) -> list[int]:
        """Ids of the waiting jobs that cannot run on the current nodes."""
        return [job_id for job_id, entry in self.parked.items() if entry.lacks]

    def get(self, job_id: int) -> Entry:
        """Return the entry of a job. Raises JobStateError if there is no such job."""
        try:
            return self.entries[job_id]
        except KeyError:
            raise JobStateError(f"there is no job {job_id}") from None

    # Submission, start and end of jobs.

    def enter(self, job: Job, details: Details = PLAIN) -> list[DroppedJob]:
        """Add a waiting job. Return it, and the jobs that depend on it, as dropped if one of its dependencies has
        failed already.

        Raises JobStateError for a dependency on a job that was not submitted before.
        """
        if details is PLAIN and self._lacks is None and not self.frozen:  # the common case: it can start at once
            entry = self.entries[job.id] = Entry(job)
            self._queue_up(entry)
            return []
        wish = self.dependencies.of(details.after, job.id) if details.after else None
        entry = self.entries[job.id] = Entry(job, details, held=details.held)
        if "begin" in details.more:
            self.not_before(entry, job.submit + details.more["begin"])
        if wish is not None:
            self.dependencies.join(entry, wish)
        return self._wait(entry)

    def not_before(self, entry: Entry, time: float) -> None:
        """Set the earliest start time (seconds) of a job, if it is later than the present one."""
        if time > max(entry.begin, entry.job.submit):
            entry.begin, entry.early = time, True
            self.begins.add(entry)

    def begin(self, now: float) -> bool:
        """Make the jobs eligible whose begin time has come; return whether there was one."""
        found = False
        for entry in self.begins.due(now):
            entry.early, found = False, True
            self.place(entry)
        return found

    def missed(self, now: float) -> list[DroppedJob]:
        """Return the waiting jobs that can no longer finish by their deadlines, because they have not started until
        `now`. They stay in the book: the caller must end them."""
        found = {entry.job.id: DroppedJob(entry.job, MISSED) for entry in self.deadlines.due(now)}
        return list(found.values())  # a job that waits again has two timers

    def _wait(self, entry: Entry) -> list[DroppedJob]:
        """Put a job among the waiting ones. If a dependency has failed, cancel it instead and return it as dropped,
        with the jobs that depend on it."""
        against = self.dependencies.against(entry)
        if against is None:
            if "deadline" in entry.details.more:
                self.deadlines.add(entry)
            if self._lacks is not None and not self.frozen:
                entry.lacks = self._lacks(entry.job)
            self.place(entry)
            return []
        self.take_out(entry)
        entry.cause = DEPENDENCY
        return [entry.dropped(*against), *self.dependencies.settle(entry, JobState.CANCELLED, entry.job.submit)]

    def know(self, job: Job, details: Details, state: JobState) -> None:
        """Add a job that was refused, or that runs or ended under an earlier manager."""
        self.entries[job.id] = Entry(job, details, state, begun=math.inf if state is JobState.QUEUED else job.submit)

    def started(self, job_id: int, now: float) -> None:
        """Record the start of a job that was taken out of the queue."""
        entry = self.entries[job_id]
        entry.state = JobState.RUNNING
        if entry.begun == math.inf:
            self.dependencies.begun(entry, now)

    def ended(self, job_id: int, state: JobState, now: float) -> list[DroppedJob]:
        """Record the final end of a job. Jobs whose last open dependency this was become eligible; return the jobs
        that now can never run, which are cancelled."""
        entry = self.entries[job_id]
        if entry.state is not JobState.RUNNING:
            self.take_out(entry)
            if entry.state.ended:  # it was dropped, together with the jobs that depend on it
                if state is not entry.state:  # it was refused: a journal records that after the job
                    entry.state = state
                    entry.cause = "" if entry.cause == DEPENDENCY else entry.cause
                return []
        if self._forgets and state is JobState.COMPLETED and entry.wished is None:
            del self.entries[job_id]
        return self.dependencies.settle(entry, state, now)

    def again(self, job_id: int, retry: bool = False) -> list[DroppedJob]:
        """Make a job that ran or ended wait again; the jobs that depend on it wait for it again. `retry`: it uses one
        of its retries. Return dropped jobs like `enter`."""
        entry = self.entries[job_id]
        if entry.state.ended:
            self.dependencies.reopen(entry)
        entry.state, entry.cause = JobState.QUEUED, ""
        entry.job, entry.asked = entry.asked or entry.job, None
        entry.late = False  # the next `fit` checks it again
        self.begins.add(entry)
        entry.tries += retry
        return self._wait(entry)

    def revise(self, job: Job, details: Details, refused: bool = False) -> list[DroppedJob]:
        """Replace a job that waits, or ended without having run, by another job with the same id; its dependents wait
        for the new one. `refused`: the new job will not run. Returns and raises like `enter`."""
        old = self.entries[job.id]
        wish = self.dependencies.of(details.after, job.id) if details.after and not refused else None
        self.take_out(old)
        if old.state.ended:
            self.dependencies.reopen(old)
        old.state = JobState.CANCELLED  # its dependencies ignore it from now on
        entry = self.entries[job.id] = Entry(job, details, held=details.held, wished=old.wished)
        if refused:
            return self.dependencies.settle(entry, JobState.REFUSED, job.submit)
        if "begin" in details.more:
            self.not_before(entry, job.submit + details.more["begin"])
        if wish is not None:
            self.dependencies.join(entry, wish)
        return self._wait(entry)

    def withdraw(self, job_id: int, now: float) -> list[DroppedJob]:
        """Cancel a waiting job whose line was removed; return the dropped jobs that depend on it."""
        entry = self.entries[job_id]
        self.take_out(entry)
        entry.cause = REMOVED
        return self.dependencies.settle(entry, JobState.CANCELLED, now)

    def place(self, entry: Entry) -> None:
        """Put a waiting job into the queue or among the parked jobs, as its state requires."""
        job_id = entry.job.id
        if self.frozen:
            self.parked[job_id] = entry
        elif not entry.eligible:
            if job_id in self.queue:
                self.queue.remove(job_id)
            self.parked[job_id] = entry
        elif job_id not in self.queue:
            self.parked.pop(job_id, None)
            self._queue_up(entry)

    def _queue_up(self, entry: Entry) -> None:
        """Add an eligible job to the queue."""
        self.queue.add(entry.job)
        if self._deadline < math.inf:
            heapq.heappush(self._longest, (-entry.job.walltime, entry.job.id))

    def take_out(self, entry: Entry) -> None:
        """Remove a job from the queue or from the parked jobs; no effect if it does not wait."""
        if entry.job.id in self.queue:
            self.queue.remove(entry.job.id)
        self.parked.pop(entry.job.id, None)

    def thaw(self) -> None:
        """End the frozen state: place all waiting jobs, in the order of their ids."""
        self.frozen = False
        waiting, self.parked = self.parked, {}
        for job_id in sorted(waiting):
            entry = waiting[job_id]
            entry.lacks = self._lacks(entry.job) if self._lacks is not None else ""
            self.place(entry)

    def recheck_lacking(self) -> None:
        """Check again the jobs that could not run on the nodes: the nodes or the check itself have changed."""
        if self._lacks is None or self.frozen:
            return
        for entry in [entry for entry in self.parked.values() if entry.lacks]:
            entry.lacks = self._lacks(entry.job)
            self.place(entry)

    def copy(self, queue: JobQueue) -> JobBook:
        """Return an independent copy that uses `queue`, a copy of the queue."""
        twin = JobBook(queue, self._lacks, self._forgets, self.frozen)
        twin.entries.update((job_id, entry.copy()) for job_id, entry in self.entries.items())
        self.dependencies.copy_to(twin.dependencies)
        twin.begins += self.begins
        twin.deadlines += self.deadlines
        twin.parked = {job_id: twin.entries[job_id] for job_id in self.parked}
        twin._longest, twin._deadline = list(self._longest), self._deadline
        return twin

    # Requests of users.

    def hold(self, job_id: int, held: bool = True) -> None:
        """Hold a waiting job, or release it (`held=False`). Raises JobStateError if it does not wait, or is not
        held."""
        entry = self.get(job_id)
        if entry.state is not JobState.QUEUED:
            raise JobStateError(f"job {job_id} does not wait: it is {entry.state.value}")
        if not held and not entry.held:
            raise JobStateError(f"job {job_id} is not held")
        entry.held = held
        self.place(entry)

    # The end of the allocation.

    @property
    def ends(self) -> bool:
        """Whether a finite end of the allocation has been set, so that jobs may be parked as too late."""
        return self._deadline < math.inf

    def fit(self, now: float, deadline: float) -> list[Job]:
        """Park the jobs that would not end by `deadline` (seconds) if they started now, and queue parked ones again
        that would; return the newly parked jobs."""
        if deadline < self._deadline == math.inf:
            self._longest = sorted((-job.walltime, job.id) for job in self.queue)
        if deadline > self._deadline:
            for parked in [each for each in self.parked.values() if each.late]:
                parked.late = now + parked.job.walltime > deadline
                self.place(parked)
        self._deadline = deadline
        late = []
        while deadline < math.inf and self._longest and now - self._longest[0][0] > deadline:
            _, job_id = heapq.heappop(self._longest)
            entry = self.entries[job_id] if job_id in self.queue else None
            if (entry is not None and entry.details.more.get("limit") != FLEXIBLE
                    and now + entry.job.walltime > deadline):
                entry.late = True
                self.place(entry)
                late.append(entry.job)
        return late
