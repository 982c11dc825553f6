"""The jobs of a run, from submission to end: which may start, and why others must wait.

A job is eligible when nobody holds it, the jobs it depends on have ended (or begun) as it wants, its time to
begin has come, and it can end before the allocation does. Only eligible jobs are in the scheduler's queue: the
others are for it as if they were not there, so no reservation is made for them and none is broken.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator

from vrm.model import Job, JobState
from vrm.model.job import PLAIN, Details
from vrm.run.dependencies import Dependencies
from vrm.run.entry import DEPENDENCY, REMOVED, Dropped, Entry, LifeError
from vrm.scheduling.orderings.queue import JobQueue


FLEXIBLE = "flexible"
"""The `limit` of a job whose time ends with the allocation at the latest: it starts as long as others do."""


MISSED = "it can no longer finish by its deadline"
"""The reason of a job that did not start in time for its deadline."""


class Timers(list[tuple[float, int]]):
    """Moments of waiting jobs, as `moment` gives them (seconds; infinity for none), the earliest first. A job is passed
    over that does not wait any more, or has another moment by now. A heap of moments and ids."""

    def __init__(self, entries: dict[int, Entry], moment: Callable[[Entry], float]) -> None:
        super().__init__()
        self._entries, self._moment = entries, moment

    def add(self, entry: Entry) -> None:
        """Take in a job, if it has a moment."""
        time = self._moment(entry)
        if time < math.inf:
            heapq.heappush(self, (time, entry.job.id))

    @property
    def next(self) -> float:
        """The first moment; infinity for none."""
        while self:
            time, job_id = self[0]
            entry = self._entries.get(job_id)
            if entry is not None and entry.state is JobState.QUEUED and self._moment(entry) == time:
                return time
            heapq.heappop(self)
        return math.inf

    def due(self, now: float) -> Iterator[Entry]:
        """Take out the jobs whose moment has come."""
        while self.next <= now:
            yield self._entries[heapq.heappop(self)[1]]


class JobBook:
    """All jobs of a run. `queue` holds the eligible ones, `parked` the others that wait, by id.

    `lacks` says why a job cannot run on the nodes there are now ("" when it can); without it all
    jobs can. One that `forgets` keeps nothing of a job that has completed and for which no other waits,
    and takes a job that it does not know, but that came before, for such a one: simulations have millions of jobs.

    A `frozen` book puts no job into the queue: it takes up what a journal tells until `thaw`.
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
        self._longest: list[tuple[float, int]] = []  # (-walltime, id) of what was queued, a heap
        self.begins = Timers(self.entries, lambda entry: entry.begin if entry.early else math.inf)
        self.deadlines = Timers(self.entries, lambda entry: entry.latest)  # the last moments to start
        self._deadline = math.inf

    @property
    def waiting(self) -> int:
        """Number of the jobs that wait, eligible or not."""
        return len(self.queue) + len(self.parked)

    @property
    def held(self) -> Iterator[int]:
        """Ids of the jobs that somebody holds."""
        return (job_id for job_id, entry in self.parked.items() if entry.held)

    @property
    def lacking(self) -> list[int]:
        """Ids of the waiting jobs that cannot run on the nodes there are now."""
        return [job_id for job_id, entry in self.parked.items() if entry.lacks]

    def get(self, job_id: int) -> Entry:
        """The job of that id; LifeError when there is none."""
        try:
            return self.entries[job_id]
        except KeyError:
            raise LifeError(f"there is no job {job_id}") from None

    # Jobs come, start and end.

    def enter(self, job: Job, details: Details = PLAIN) -> list[Dropped]:
        """Enter a job that waits; it is in the result when one it depends on has failed already.

        Raises LifeError for a dependency on a job that was not submitted before.
        """
        if details is PLAIN and self._lacks is None and not self.frozen:  # it can start at once, as most can
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
        """A job does not start before this time (seconds)."""
        if time > max(entry.begin, entry.job.submit):
            entry.begin, entry.early = time, True
            self.begins.add(entry)

    def begin(self, now: float) -> bool:
        """Let jobs start whose time has come; whether there was one."""
        found = False
        for entry in self.begins.due(now):
            entry.early, found = False, True
            self.place(entry)
        return found

    def missed(self, now: float) -> list[Dropped]:
        """The waiting jobs that can end by their deadlines no more, since they have not started until `now`. They
        wait on: who asks ends them."""
        found = {entry.job.id: Dropped(entry.job, MISSED) for entry in self.deadlines.due(now)}
        return list(found.values())  # one that waits again is there twice

    def _wait(self, entry: Entry) -> list[Dropped]:
        """Let a job wait for what it depends on; it is in the result when that has failed, with
        those that depend on it."""
        against = self.dependencies.against(entry)
        if against is None:
            self.deadlines.add(entry)
            if self._lacks is not None and not self.frozen:
                entry.lacks = self._lacks(entry.job)
            self.place(entry)
            return []
        self.take_out(entry)
        entry.cause = DEPENDENCY
        return [entry.dropped(*against), *self.dependencies.settle(entry, JobState.CANCELLED, entry.job.submit)]

    def know(self, job: Job, details: Details, state: JobState) -> None:
        """Enter a job that was refused, or that runs or ended under an earlier manager."""
        self.entries[job.id] = Entry(job, details, state, begun=math.inf if state is JobState.QUEUED else job.submit)

    def started(self, job_id: int, now: float) -> None:
        """A job was taken out of the queue to run."""
        entry = self.entries[job_id]
        entry.state = JobState.RUNNING
        if entry.begun == math.inf:
            self.dependencies.begun(entry, now)

    def ended(self, job_id: int, state: JobState, now: float) -> list[Dropped]:
        """A job ended for good: those that waited for it alone become eligible; the result are
        those that now can never run, which have ended, too."""
        entry = self.entries[job_id]
        if entry.state is not JobState.RUNNING:
            self.take_out(entry)
            if entry.state.ended:  # it was dropped, and those that depend on it with it
                if state is not entry.state:  # it was refused, which a journal tells behind the job
                    entry.state = state
                    entry.cause = "" if entry.cause == DEPENDENCY else entry.cause
                return []
        if self._forgets and state is JobState.COMPLETED and entry.wished is None:
            del self.entries[job_id]
        return self.dependencies.settle(entry, state, now)

    def again(self, job_id: int, retry: bool = False) -> list[Dropped]:
        """A job that ran or ended waits anew, and those that depend on it wait for it; `retry`: it
        uses up one of its retries. The result is as of `enter`."""
        entry = self.entries[job_id]
        if entry.state.ended:
            self.dependencies.reopen(entry)
        entry.state, entry.cause = JobState.QUEUED, ""
        entry.job, entry.asked = entry.asked or entry.job, None
        entry.late = False  # the next `fit` judges it anew
        self.begins.add(entry)
        entry.tries += retry
        return self._wait(entry)

    def revise(self, job: Job, details: Details, refused: bool = False) -> list[Dropped]:
        """Another job takes the id of one that waits, or ended without having run; those that depend on it
        wait for it. `refused`: it will not run. The result is as of `enter`, and so are errors."""
        old = self.entries[job.id]
        wish = self.dependencies.of(details.after, job.id) if details.after and not refused else None
        self.take_out(old)
        if old.state.ended:
            self.dependencies.reopen(old)
        old.state = JobState.CANCELLED  # what it waited for passes it over
        entry = self.entries[job.id] = Entry(job, details, held=details.held, wished=old.wished)
        if refused:
            return self.dependencies.settle(entry, JobState.REFUSED, job.submit)
        if "begin" in details.more:
            self.not_before(entry, job.submit + details.more["begin"])
        if wish is not None:
            self.dependencies.join(entry, wish)
        return self._wait(entry)

    def withdraw(self, job_id: int, now: float) -> list[Dropped]:
        """A waiting job will not run; the result are those that depend on it."""
        entry = self.entries[job_id]
        self.take_out(entry)
        entry.cause = REMOVED
        return self.dependencies.settle(entry, JobState.CANCELLED, now)

    def place(self, entry: Entry) -> None:
        """Put a waiting job where it belongs."""
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
        """Put an eligible job into the queue."""
        self.queue.add(entry.job)
        if self._deadline < math.inf:
            heapq.heappush(self._longest, (-entry.job.walltime, entry.job.id))

    def take_out(self, entry: Entry) -> None:
        """Out of wherever it waits, if it does."""
        if entry.job.id in self.queue:
            self.queue.remove(entry.job.id)
        self.parked.pop(entry.job.id, None)

    def thaw(self) -> None:
        """Let the jobs of a frozen book wait where they belong, in the order of their ids."""
        self.frozen = False
        waiting, self.parked = self.parked, {}
        for job_id in sorted(waiting):
            entry = waiting[job_id]
            entry.lacks = self._lacks(entry.job) if self._lacks is not None else ""
            self.place(entry)

    def judge_again(self) -> None:
        """Ask again of the jobs that lacked something whether they still do: who decides has changed."""
        if self._lacks is None or self.frozen:
            return
        for entry in [entry for entry in self.parked.values() if entry.lacks]:
            entry.lacks = self._lacks(entry.job)
            self.place(entry)

    def copy(self, queue: JobQueue) -> JobBook:
        """An independent copy over a copy of the queue."""
        twin = JobBook(queue, self._lacks, self._forgets, self.frozen)
        twin.entries.update((job_id, entry.copy()) for job_id, entry in self.entries.items())
        self.dependencies.copy_to(twin.dependencies)
        twin.begins += self.begins
        twin.deadlines += self.deadlines
        twin.parked = {job_id: twin.entries[job_id] for job_id in self.parked}
        twin._longest, twin._deadline = list(self._longest), self._deadline
        return twin

    # What people ask for.

    def hold(self, job_id: int, held: bool = True) -> None:
        """Let a waiting job wait, or no longer; LifeError when it does not wait, or nobody holds it."""
        entry = self.get(job_id)
        if entry.state is not JobState.QUEUED:
            raise LifeError(f"job {job_id} does not wait: it is {entry.state.value}")
        if not held and not entry.held:
            raise LifeError(f"job {job_id} is not held")
        entry.held = held
        self.place(entry)

    # The end of the allocation.

    @property
    def ends(self) -> bool:
        """Whether there has been an end by which jobs must end: some may have been put aside."""
        return self._deadline < math.inf

    def fit(self, now: float, deadline: float) -> list[Job]:
        """Put aside the jobs that would not end by `deadline` (seconds, as `now`) if they started
        now, and take back such as would after all; gives those that were put aside."""
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
