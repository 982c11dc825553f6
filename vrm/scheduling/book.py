"""The jobs of a run, from submission to end: which may start, and why others must wait. Live runs
have all their jobs in it, simulations those that depend on others or are held.

A job is eligible when nobody holds it, the jobs it depends on have ended as it wants, and it can
end before the allocation does. Only eligible jobs are in the scheduler's queue: the others are
for it as if they were not there, so no reservation is made for them and none is broken.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field
from typing import Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Set, Tuple

from vrm.model import Dependency, Job, JobState
from vrm.scheduling.queue import JobQueue


class LifeError(ValueError):
    """What was asked cannot be done with that job; the text says why."""


@dataclass(frozen=True)
class Details:
    """What a job was submitted with that the scheduler does not look at.

    `directory` is absolute, or empty for the manager's own. `index` is that of a job of an array.
    """

    after: Tuple[Dependency, ...] = ()
    retries: int = 0
    variables: Mapping[str, str] = field(default_factory=dict)
    arguments: Tuple[str, ...] = ()
    directory: str = ""
    index: Optional[int] = None
    held: bool = False
    name: str = ""

    @property
    def environment(self) -> Dict[str, str]:
        """Variables of this job alone; `VRM_ARRAY_INDEX` is its index in the array."""
        index = {} if self.index is None else {"VRM_ARRAY_INDEX": str(self.index)}
        return {**self.variables, **index}

    @property
    def words(self) -> Tuple[str, ...]:
        """The arguments; in a job of an array `%i` is its index."""
        if self.index is None:
            return self.arguments
        return tuple(word.replace("%i", str(self.index)) for word in self.arguments)


PLAIN = Details()
"""Those of a line with nothing but its columns."""


@dataclass
class Entry:
    """A job and where it is in its life. `tries` counts the retries that were used, `missing` are
    the jobs it still waits for, `late`: it would not end before the allocation does. `lacks` says
    why it cannot run on the nodes there are now, "" when it can."""

    job: Job
    details: Details = PLAIN
    state: JobState = JobState.QUEUED
    held: bool = False
    tries: int = 0
    missing: Set[int] = field(default_factory=set)
    late: bool = False
    lacks: str = ""

    @property
    def eligible(self) -> bool:
        """Whether it may start as soon as there is room for it."""
        return not (self.held or self.missing or self.late or self.lacks)


class Dropped(NamedTuple):
    """A job that will never run since one it depends on did not end as it wants."""

    job: Job
    reason: str


class JobBook:
    """All jobs of a run. `queue` holds the eligible ones, `parked` the others that wait, by id.

    `lacks` says why a job cannot run on the nodes there are now ("" when it can); without it all
    jobs can.
    """

    def __init__(self, queue: JobQueue, lacks: Optional[Callable[[Job], str]] = None) -> None:
        self.queue = queue
        self._lacks = lacks
        self.entries: Dict[int, Entry] = {}
        self.parked: Dict[int, Entry] = {}
        self._dependents: Dict[int, List[int]] = {}
        self._longest: List[Tuple[float, int]] = []  # (-estimate, id) of what was queued, a heap
        self._deadline = math.inf

    @property
    def waiting(self) -> int:
        """Number of the jobs that wait, eligible or not."""
        return len(self.queue) + len(self.parked)

    @property
    def held(self) -> List[int]:
        """Ids of the jobs that somebody holds."""
        return [job_id for job_id, entry in self.parked.items() if entry.held]

    @property
    def lacking(self) -> List[int]:
        """Ids of the waiting jobs that cannot run on the nodes there are now."""
        return [job_id for job_id, entry in self.parked.items() if entry.lacks]

    def get(self, job_id: int) -> Entry:
        """The job of that id; LifeError when there is none."""
        try:
            return self.entries[job_id]
        except KeyError:
            raise LifeError(f"there is no job {job_id}") from None

    # Jobs come, start and end.

    def enter(self, job: Job, details: Details = PLAIN) -> List[Dropped]:
        """Enter a job that waits; it is in the result when one it depends on has failed already.

        Raises LifeError for a dependency on a job that was not submitted before.
        """
        for dependency in details.after:
            if dependency.id not in self.entries or dependency.id == job.id:
                raise LifeError(f"it depends on job {dependency.id}, and a job can depend only on "
                                "such as were submitted before it")
        entry = self.entries[job.id] = Entry(job, details, held=details.held)
        for dependency in details.after:
            self._dependents.setdefault(dependency.id, []).append(job.id)
        return self._wait(entry)

    def _wait(self, entry: Entry) -> List[Dropped]:
        """Let a job wait for what it depends on; it is in the result when that has failed."""
        against = self.against(entry)
        if against is not None:
            return self._drop(entry, against)
        entry.lacks = self._lacks(entry.job) if self._lacks else ""
        entry.missing = {dependency.id for dependency in entry.details.after
                         if not self.entries[dependency.id].state.ended}
        self._place(entry)
        return []

    def against(self, entry: Entry) -> Optional[Entry]:
        """A job that ended otherwise than this one, which depends on it, wants; None: there is
        none."""
        for dependency in entry.details.after:
            other = self.entries[dependency.id]
            if other.state.ended and not _satisfies(other.state, dependency):
                return other
        return None

    def know(self, job: Job, details: Details, state: JobState) -> None:
        """Enter a job that was refused, or that runs or ended under an earlier manager."""
        self.entries[job.id] = Entry(job, details, state)
        for dependency in details.after:
            self._dependents.setdefault(dependency.id, []).append(job.id)

    def started(self, job_id: int) -> None:
        """A job was taken out of the queue to run."""
        self.entries[job_id].state = JobState.RUNNING

    def ended(self, job_id: int, state: JobState) -> List[Dropped]:
        """A job ended for good: those that waited for it alone become eligible; the result are
        those that now can never run, which have ended, too."""
        entry = self.entries[job_id]
        self._take_out(entry)
        entry.state = state
        dropped: List[Dropped] = []
        ended = [entry]
        while ended:
            other = ended.pop()
            for dependent in self._depending_on(other):
                if not all(_satisfies(other.state, dependency)
                           for dependency in dependent.details.after
                           if dependency.id == other.job.id):
                    dropped += self._drop(dependent, other)
                    ended.append(dependent)
                elif other.job.id in dependent.missing:
                    dependent.missing.discard(other.job.id)
                    self._place(dependent)
        return dropped

    def again(self, job_id: int, retry: bool = False) -> List[Dropped]:
        """A job that ran or ended waits anew, and those that depend on it wait for it; `retry`: it
        uses up one of its retries. The result is as of `enter`."""
        entry = self.entries[job_id]
        entry.state = JobState.QUEUED
        entry.late = False  # the next `fit` judges it anew
        entry.tries += retry
        for dependent in self._depending_on(entry):
            dependent.missing.add(job_id)
            self._place(dependent)
        dropped = self._wait(entry)
        return dropped + self.ended(job_id, entry.state) if dropped else []

    def _depending_on(self, entry: Entry) -> Iterator[Entry]:
        """The waiting jobs that depend on a job."""
        for job_id in self._dependents.get(entry.job.id, ()):
            if self.entries[job_id].state is JobState.QUEUED:
                yield self.entries[job_id]

    def _drop(self, entry: Entry, other: Entry) -> List[Dropped]:
        self._take_out(entry)
        entry.state = JobState.CANCELLED
        return [Dropped(entry.job, f"job {other.job.id}, on which it depends, ended as "
                                   f"{other.state.value}")]

    def _place(self, entry: Entry) -> None:
        """Put a waiting job where it belongs."""
        job_id = entry.job.id
        if not entry.eligible:
            if job_id in self.queue:
                self.queue.remove(job_id)
            self.parked[job_id] = entry
        elif job_id not in self.queue:
            self.parked.pop(job_id, None)
            self.queue.add(entry.job)
            heapq.heappush(self._longest, (-entry.job.estimate, job_id))

    def _take_out(self, entry: Entry) -> None:
        """Out of wherever it waits, if it does."""
        if entry.job.id in self.queue:
            self.queue.remove(entry.job.id)
        self.parked.pop(entry.job.id, None)

    # What people ask for.

    def hold(self, job_id: int) -> None:
        """Let a waiting job wait until `release`; LifeError when it does not wait."""
        entry = self._waiting(job_id)
        entry.held = True
        self._place(entry)

    def release(self, job_id: int) -> None:
        """Undo `hold`; LifeError when nobody holds it."""
        entry = self._waiting(job_id)
        if not entry.held:
            raise LifeError(f"job {job_id} is not held")
        entry.held = False
        self._place(entry)

    def _waiting(self, job_id: int) -> Entry:
        entry = self.get(job_id)
        if entry.state is not JobState.QUEUED:
            raise LifeError(f"job {job_id} does not wait: it is {entry.state.value}")
        return entry

    # The end of the allocation.

    def fit(self, now: float, deadline: float) -> List[Job]:
        """Put aside the jobs that would not end by `deadline` (seconds, as `now`) if they started
        now, and take back such as would after all; gives those that were put aside."""
        if deadline > self._deadline:
            for entry in [entry for entry in self.parked.values() if entry.late]:
                entry.late = now + entry.job.estimate > deadline
                self._place(entry)
        self._deadline = deadline
        late = []
        while deadline < math.inf and self._longest and now - self._longest[0][0] > deadline:
            _, job_id = heapq.heappop(self._longest)
            entry = self.entries[job_id]
            if job_id in self.queue:
                entry.late = True
                self._place(entry)
                late.append(entry.job)
        return late


def _satisfies(state: JobState, dependency: Dependency) -> bool:
    return dependency.any or state is JobState.COMPLETED
