"""The jobs of a run, from submission to end: which may start, and why others must wait.

A job is eligible when nobody holds it, the jobs it depends on have ended (or begun) as it wants, its time to
begin has come, and it can end before the allocation does. Only eligible jobs are in the scheduler's queue: the
others are for it as if they were not there, so no reservation is made for them and none is broken.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from typing import NamedTuple
from collections.abc import Callable, Iterator, Mapping

from vrm.model import Dependency, Job, JobState
from vrm.model.job import PLAIN, START, Details
from vrm.model.quantities import fold
from vrm.scheduling.queue import JobQueue


FLEXIBLE = "flexible"
"""The `limit` of a job whose time ends with the allocation at the latest: it starts as long as others do."""


DEPENDED = ", on which it depends, ended as"
"""What the reason of a job says that was dropped since another one ended otherwise than it wants."""


MISSED = "it can no longer finish by its deadline"
"""The reason of a job that did not start in time for its deadline."""


CANCEL, STOP, REMOVED, LINE, DEPENDENCY = "cancel", "stop", "removed", "line", "dependency"
"""Causes of ends that say what a later run does: its user cancelled the job, the manager was stopped, its line was
removed from the queue file, its line is wrong, or a job that it depends on ended otherwise."""


class LifeError(ValueError):
    """What was asked cannot be done with that job; the text says why."""


class SharedDependencies:
    """What all jobs with one `after` wait for, counted once for all of them: `open` things of it have
    not happened, `failed` are the ids of jobs that ended otherwise than wanted, and how. `ready` is when the
    last of its delays is over (seconds)."""

    __slots__ = ("after", "open", "failed", "dependents", "ready", "_text")

    def __init__(self, after: tuple[Dependency, ...]) -> None:
        self.after = after
        self.open = 0
        self.failed: dict[int, JobState] = {}
        self.dependents: list[Entry] = []
        self.ready = -math.inf
        self._text: str | None = None  # as `still` gives it, until something changes

    def count(self, change: int) -> None:
        """So many more of its jobs have not ended, or begun."""
        self.open += change
        self._text = None

    def begun(self, wanted: Dependency, time: float) -> None:
        """A job has begun, or never will, and that is what was wanted of it."""
        self.count(-1)
        self.ready = max(self.ready, time + wanted.delay)

    def still(self, entries: Mapping[int, Entry]) -> str:
        """The ids of the jobs that have not ended, or begun, as ranges."""
        if self._text is None:
            self._text = fold(sorted({job_id for each in self.after for job_id in each.ids
                                      if job_id in entries and entries[job_id].open_for(each)}))
        return self._text


@dataclass(slots=True, eq=False)
class Entry:
    """A job and where it is in its life. `tries` counts the retries that were used, `losses` how
    often it has lost a node or its launcher failed before it ran, `wish` is what it waits for, once
    it waits, `wished` are those of others in which it is (and what they want of it), `late`: it would not end before
    the allocation does. `lacks` says why it cannot run on the nodes there are now, "" when it can.
    `begun` is when it first began, or was found never to, in seconds; `early`: it is not to start yet, but at
    `begin`. `cause` is why it ended, "" where there is nothing to say of that."""

    job: Job
    details: Details = PLAIN
    state: JobState = JobState.QUEUED
    held: bool = False
    tries: int = 0
    losses: int = 0
    wish: SharedDependencies | None = None
    wished: list[tuple[SharedDependencies, Dependency]] | None = None
    late: bool = False
    lacks: str = ""
    begun: float = math.inf
    early: bool = False
    begin: float = -math.inf
    cause: str = ""

    def open_for(self, wanted: Dependency) -> bool:
        """Whether what is wanted of it has yet to happen."""
        return self.begun == math.inf if wanted.kind == START else not self.state.ended

    def enter(self, pair: tuple[SharedDependencies, Dependency]) -> None:
        """Others wait for it, who want this of it."""
        wish, wanted = pair
        if self.open_for(wanted):
            wish.open += 1
        elif wanted.kind == START:
            wish.ready = max(wish.ready, self.begun + wanted.delay)
            return  # it has begun for good, even if it waits again
        elif not wanted.met(self.state):
            wish.failed[self.job.id] = self.state
        if self.wished is None:
            self.wished = []
        self.wished.append(pair)

    @property
    def latest(self) -> float:
        """The last moment at which it may start, by its deadline (seconds)."""
        return self.job.submit + float(self.details.more.get("deadline", math.inf)) - self.job.walltime

    @property
    def missing(self) -> int:
        """How many ends and starts of jobs it still waits for."""
        return self.wish.open if self.wish is not None else 0

    @property
    def eligible(self) -> bool:
        """Whether it may start as soon as there is room for it."""
        return not (self.held or self.missing or self.late or self.lacks or self.early)


class Dropped(NamedTuple):
    """A job that will never run, since one it depends on did not end as it wants, or its deadline has come."""

    job: Job
    reason: str


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
        self._wishes: dict[tuple[Dependency, ...], SharedDependencies] = {}
        self._latest: SharedDependencies | None = None
        self._longest: list[tuple[float, int]] = []  # (-walltime, id) of what was queued, a heap
        self.opened = False  # jobs have become eligible since somebody looked
        self.begins: list[tuple[float, int]] = []  # (time, id) of jobs that are not to start before, a heap
        self.deadlines: list[tuple[float, int]] = []  # (last moment to start, id) of jobs that have one, a heap
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
        wish = self._wish(details.after, job.id) if details.after else None
        entry = self.entries[job.id] = Entry(job, details, held=details.held)
        if "begin" in details.more:
            self._not_before(entry, job.submit + details.more["begin"])
        if wish is not None:
            self._join(entry, wish)
        return self._wait(entry)

    def _wish(self, after: tuple[Dependency, ...], before: int) -> SharedDependencies:
        """The one wish of all jobs with this `after`; such a job has the id `before`."""
        if self._latest is not None and self._latest.after is after:
            return self._latest  # the next job of an array: even the hash would be too dear
        wish = self._wishes.get(after)
        if wish is None:
            gone = {job_id for each in after for job_id in each.ids if job_id not in self.entries}
            unknown = min((job_id for job_id in gone if not self._forgets or job_id >= before), default=None)
            if unknown is not None:
                raise LifeError(f"it depends on job {unknown}, and a job can depend only on "
                                "earlier jobs")
            wish = self._wishes[after] = SharedDependencies(after)
            for each in dict.fromkeys(after):
                pair = wish, each
                for job_id in each.ids:
                    if job_id not in gone:
                        self.entries[job_id].enter(pair)
                    elif not each.met(JobState.COMPLETED):
                        wish.failed[job_id] = JobState.COMPLETED
        self._latest = wish
        return wish

    def _join(self, entry: Entry, wish: SharedDependencies) -> None:
        entry.wish = wish
        wish.dependents.append(entry)
        if not wish.open:
            self._not_before(entry, wish.ready)

    def _not_before(self, entry: Entry, time: float) -> None:
        """A job does not start before this time (seconds)."""
        if time > max(entry.begin, entry.job.submit):
            entry.begin, entry.early = time, True
            heapq.heappush(self.begins, (time, entry.job.id))

    def _queued(self, job_id: int) -> Entry | None:
        """A job, if it waits."""
        entry = self.entries.get(job_id)
        return entry if entry is not None and entry.state is JobState.QUEUED else None

    @property
    def next_begin(self) -> float:
        """When the time of the next job comes that is to begin then; infinity for none."""
        while self.begins:
            time, job_id = self.begins[0]
            entry = self._queued(job_id)
            if entry is not None and entry.early and entry.begin == time:
                return time
            heapq.heappop(self.begins)
        return math.inf

    def begin(self, now: float) -> bool:
        """Let jobs start whose time has come; whether there was one."""
        found = False
        while self.next_begin <= now:
            entry = self.entries[heapq.heappop(self.begins)[1]]
            entry.early, found = False, True
            self._place(entry)
        return found

    @property
    def next_missed(self) -> float:
        """When the next waiting job has its last moment to start, by its deadline; infinity for none."""
        while self.deadlines:
            time, job_id = self.deadlines[0]
            entry = self._queued(job_id)
            if entry is not None and entry.latest == time:
                return time
            heapq.heappop(self.deadlines)
        return math.inf

    def missed(self, now: float) -> list[Dropped]:
        """The waiting jobs that can end by their deadlines no more, since they have not started until `now`. They
        wait on: who asks ends them."""
        found: dict[int, Dropped] = {}  # one that waits again is there twice
        while self.next_missed <= now:
            entry = self.entries[heapq.heappop(self.deadlines)[1]]
            found[entry.job.id] = Dropped(entry.job, MISSED)
        return list(found.values())

    def watch(self, entry: Entry) -> None:
        """Its deadline counts while it waits: call it again when its walltime has changed."""
        if "deadline" in entry.details.more:
            heapq.heappush(self.deadlines, (entry.latest, entry.job.id))

    def _wait(self, entry: Entry) -> list[Dropped]:
        """Let a job wait for what it depends on; it is in the result when that has failed, with
        those that depend on it."""
        against = self.against(entry)
        if against is None:
            self.watch(entry)
            if self._lacks is not None and not self.frozen:
                entry.lacks = self._lacks(entry.job)
            self._place(entry)
            return []
        self._take_out(entry)
        entry.cause = DEPENDENCY
        return [_dropped(entry, *against), *self._settle(entry, JobState.CANCELLED, entry.job.submit)]

    def against(self, entry: Entry) -> tuple[int, JobState] | None:
        """The id of a job that ended otherwise than this one, which depends on it, wants, and how it ended;
        None: there is none."""
        if entry.wish is None and entry.details.after:
            self._join(entry, self._wish(entry.details.after, entry.job.id))
        if entry.wish is None or not entry.wish.failed:
            return None
        return next(iter(entry.wish.failed.items()))

    def know(self, job: Job, details: Details, state: JobState) -> None:
        """Enter a job that was refused, or that runs or ended under an earlier manager."""
        self.entries[job.id] = Entry(job, details, state, begun=math.inf if state is JobState.QUEUED else job.submit)

    def started(self, job_id: int, now: float) -> None:
        """A job was taken out of the queue to run."""
        entry = self.entries[job_id]
        entry.state = JobState.RUNNING
        if entry.begun == math.inf:
            self._has_begun(entry, now)

    def _has_begun(self, entry: Entry, now: float) -> None:
        """Count the first start of a job, or that it will not start, for those that wait for it."""
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
        """All that was waited for has happened."""
        self.opened = True
        for dependent in wish.dependents:
            if dependent.state is JobState.QUEUED:
                if wish.ready > now:
                    self._not_before(dependent, wish.ready)
                self._place(dependent)

    def ended(self, job_id: int, state: JobState, now: float) -> list[Dropped]:
        """A job ended for good: those that waited for it alone become eligible; the result are
        those that now can never run, which have ended, too."""
        entry = self.entries[job_id]
        if entry.state is not JobState.RUNNING:
            self._take_out(entry)
            if entry.state.ended:  # it was dropped, and those that depend on it with it
                return []
        if self._forgets and state is JobState.COMPLETED and entry.wished is None:
            del self.entries[job_id]
        return self._settle(entry, state, now)

    def _settle(self, entry: Entry, state: JobState, now: float) -> list[Dropped]:
        """Count the end of a job for those that wait for it; the result is as of `ended`."""
        entry.state = state
        if entry.wished is None and entry.begun < math.inf:
            return []  # nobody waits for it
        dropped: list[Dropped] = []
        ended = [entry]
        while ended:
            other = ended.pop()
            if other.begun == math.inf:
                self._has_begun(other, now)
            for wish, wanted in other.wished or ():
                wish.count(-1)
                if not wanted.met(other.state):
                    first = not wish.failed
                    wish.failed[other.job.id] = other.state
                    for dependent in wish.dependents if first else ():
                        if dependent.state is JobState.QUEUED:
                            self._take_out(dependent)
                            dependent.state, dependent.cause = JobState.CANCELLED, DEPENDENCY
                            dropped.append(_dropped(dependent, other.job.id, other.state))
                            ended.append(dependent)
                elif not wish.open and not wish.failed:
                    self._open(wish, now)
        return dropped

    def again(self, job_id: int, retry: bool = False) -> list[Dropped]:
        """A job that ran or ended waits anew, and those that depend on it wait for it; `retry`: it
        uses up one of its retries. The result is as of `enter`."""
        entry = self.entries[job_id]
        if entry.state.ended:
            self._reopen(entry)
        entry.state, entry.cause = JobState.QUEUED, ""
        entry.late = False  # the next `fit` judges it anew
        if entry.early:
            heapq.heappush(self.begins, (entry.begin, job_id))
        entry.tries += retry
        return self._wait(entry)

    def _reopen(self, entry: Entry) -> None:
        """Others wait for a job again that had ended."""
        for wish, _ in entry.wished or ():
            wish.count(+1)
            wish.failed.pop(entry.job.id, None)
            for dependent in wish.dependents if wish.open == 1 else ():
                if dependent.state is JobState.QUEUED:
                    self._place(dependent)

    def revise(self, job: Job, details: Details, refused: bool = False) -> list[Dropped]:
        """Another job takes the id of one that waits, or ended without having run; those that depend on it
        wait for it. `refused`: it will not run. The result is as of `enter`, and so are errors."""
        old = self.entries[job.id]
        wish = self._wish(details.after, job.id) if details.after and not refused else None
        self._take_out(old)
        if old.state.ended:
            self._reopen(old)
        old.state = JobState.CANCELLED  # what it waited for passes it over
        entry = self.entries[job.id] = Entry(job, details, held=details.held, wished=old.wished)
        if refused:
            return self._settle(entry, JobState.REFUSED, job.submit)
        if "begin" in details.more:
            self._not_before(entry, job.submit + details.more["begin"])
        if wish is not None:
            self._join(entry, wish)
        return self._wait(entry)

    def let_down(self, job_id: int) -> list[Job]:
        """The jobs that were cancelled since they depend on this one, where nothing stands against them now."""
        found = {each.job.id: each.job for wish, _ in self.entries[job_id].wished or () if not wish.failed
                 for each in wish.dependents
                 if each.cause == DEPENDENCY and each.state.ended and self.entries[each.job.id] is each}
        return list(found.values())

    def withdraw(self, job_id: int, now: float) -> list[Dropped]:
        """A waiting job will not run; the result are those that depend on it."""
        entry = self.entries[job_id]
        self._take_out(entry)
        entry.cause = REMOVED
        return self._settle(entry, JobState.CANCELLED, now)

    def _place(self, entry: Entry) -> None:
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

    def _take_out(self, entry: Entry) -> None:
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
            self._place(entry)

    def judge_again(self) -> None:
        """Ask again of the jobs that lacked something whether they still do: who decides has changed."""
        if self._lacks is None or self.frozen:
            return
        for entry in [entry for entry in self.parked.values() if entry.lacks]:
            entry.lacks = self._lacks(entry.job)
            self._place(entry)

    def copy(self, queue: JobQueue) -> JobBook:
        """An independent copy over a copy of the queue."""
        twin = JobBook(queue, self._lacks, self._forgets, self.frozen)
        wishes = {id(wish): SharedDependencies(wish.after) for wish in self._wishes.values()}
        for job_id, entry in self.entries.items():
            new = twin.entries[job_id] = _twin(entry)
            if entry.wish is not None:
                new.wish = wishes[id(entry.wish)]
            if entry.wished is not None:
                new.wished = [(wishes[id(wish)], wanted) for wish, wanted in entry.wished]
        for after, wish in self._wishes.items():
            new_wish = twin._wishes[after] = wishes[id(wish)]
            new_wish.open, new_wish.failed, new_wish.ready = wish.open, dict(wish.failed), wish.ready
            new_wish.dependents = [twin.entries[each.job.id] for each in wish.dependents
                                   if self.entries[each.job.id] is each]
        twin.parked = {job_id: twin.entries[job_id] for job_id in self.parked}
        twin._longest, twin.begins, twin.deadlines = list(self._longest), list(self.begins), list(self.deadlines)
        twin._deadline = self._deadline
        return twin

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
                self._place(parked)
        self._deadline = deadline
        late = []
        while deadline < math.inf and self._longest and now - self._longest[0][0] > deadline:
            _, job_id = heapq.heappop(self._longest)
            entry = self._queued(job_id)
            if (entry is not None and job_id in self.queue and entry.details.more.get("limit") != FLEXIBLE
                    and now + entry.job.walltime > deadline):
                entry.late = True
                self._place(entry)
                late.append(entry.job)
        return late


def _dropped(entry: Entry, other: int, state: JobState) -> Dropped:
    return Dropped(entry.job, f"job {other}{DEPENDED} {state.value}")


def _twin(entry: Entry) -> Entry:
    """A copy without its wishes."""
    return Entry(entry.job, entry.details, entry.state, entry.held, entry.tries, entry.losses, None,
                 None, entry.late, entry.lacks, entry.begun, entry.early, entry.begin, entry.cause)
