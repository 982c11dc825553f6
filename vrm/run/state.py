"""The state of a run: its jobs and their lives, the cluster with its bookings, and how many jobs
ended how. Live managers, simulations, recovery and forecasts change it by the same transitions.

Each transition is one method. It changes all that belongs together, and gives the event to `log`:
a live run's journal, which has it on disk before the manager acts on it. The events of a journal,
applied in their order (`vrm.run.journal.past.replay`), make the same state again.

| transition | event | what it does |
|---|---|---|
| `submit` | job | a job, or an array of them, waits or is refused |
| `started` | start | a job that the scheduler has booked runs |
| `back` | back | a start that was not carried out: the job waits again |
| `intend` | intent | the manager is about to end a running job, and why |
| `vacate` | | a job has left its cores; how it ended is not decided yet |
| `end` | end | a job will not run (any more), nor those that depend on it |
| `again` | again | a job that ran or ended waits again |
| `revise` | revise | another job takes the id of one that waits, or ended without having run |
| `withdraw` | lines | lines are not in the queue file any more, and their waiting jobs will not run |
| `hold`, `release` | hold, release | a waiting job is kept from starting, or no longer |
| `change` | change | a job that has not ended has another walltime, priority, name or comment |
| `expect` | expect | something else is expected of waiting jobs than before |
| `promise` | promise | latest starts of waiting jobs are promised |
| `lending.lend` | lend | a running job is about to lend cores to another, or to the node |
| `lending.lent` | lent | its nodes are clear of it: the borrower may start |
| `lending.regain` | regain | it takes them back: the borrower has left, or does not start |
| `lending.regained` | regained | its nodes have answered that it has them |
| `reservations.reserve` | reserve | nodes are kept for some jobs from one time to another |
| `reservations.cancel` | unreserve | a reservation is over or cancelled: its jobs compete again |
| `reservations.pass_time` | | reservations open, and those that are over go |
| `cluster.set_up` | | jobs may start on a node, or no longer; who is on it stays |

Times are seconds; nothing here reads a clock or a file.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any
from collections.abc import Callable, Mapping, Sequence

from vrm.model import Cluster, Job, JobState
from vrm.model.job import PLAIN, Details
from vrm.model.reservation import ReservationError
from vrm.run.book import JobBook
from vrm.run.entry import CANCEL, LINE, STOP, Dropped, Entry, LifeError
from vrm.model.forms import placement_forms
from vrm.run.journal.codec import Own, job_record
from vrm.run.lend_transitions import LendTransitions
from vrm.run.lending import Lends
from vrm.run.reserving import Log, Reservations
from vrm.scheduling import JobQueue, Start

_CAUSES = {"cancelled while it waited": CANCEL, "cancelled by its user": CANCEL, "the manager was stopped": STOP}
"""The causes of ends by their reasons, where an older vrm has recorded none."""

SAID = ("title", "comment", "requeue")
"""What of a job's details may change until it ends."""

class State:
    """One run. `queue` is the scheduler's, `cluster` the nodes that the run has.

    `running` are the jobs that were started and have not left their cores. `intents` says of those
    that are to be ended why, and since when. `losing` are jobs that can never run since one that
    they depend on failed, by id with the reason, until their own end is an event. `promises` are
    the latest starts that waiting jobs were promised, in seconds: by reservations that are kept, or by a
    guard against starvation. `reservations` are the advance reservations by id; `JobQueue.bound` has the
    jobs that are bound to them. `lends`: who lends cores to whom, as far as it is recorded; the cluster
    has those that are in force; `lending` changes them.

    `lacks` and `forgets`: see `JobBook`. `frozen`: no job enters the queue and nothing is booked until
    `thaw`; for the events of a journal.
    """

    def __init__(self, queue: JobQueue, cluster: Cluster,
                 lacks: Callable[[Job], str] | None = None, forgets: bool = False, frozen: bool = False,
                 book: JobBook | None = None, lends: Lends | None = None) -> None:
        self.queue = queue
        self.cluster = cluster
        self.book = book or JobBook(queue, lacks, forgets, frozen)
        self.running: dict[int, Start] = {}
        self.intents: dict[int, tuple[str, float]] = {}
        self.losing: dict[int, str] = {}
        self.promises: dict[int, float] = {}
        self.reservations = Reservations(self.book, cluster, self.promises, self.record)
        self.lends = lends or Lends()
        self.lending = LendTransitions(self.lends, cluster, self.record)
        self.counts: dict[str, int] = {state.value: 0 for state in JobState if state.ended}
        self.next_id = 0
        self.names: dict[str, list[int]] = {}  # ids of the jobs of each name
        self.log: Log | None = None

    def record(self, event: str, **values: Any) -> None:
        """Give an event to the log, where there is one."""
        if self.log is not None:
            self.log(event, **values)

    # What is asked.

    def entry(self, job_id: int) -> Entry:
        """The life of a job; LifeError when there is none of that id."""
        return self.book.get(job_id)

    @property
    def waiting(self) -> int:
        """Number of the jobs that wait, eligible or not."""
        return self.book.waiting

    # Transitions.

    def submit(self, jobs: Sequence[Job], details: Details = PLAIN, indices: Sequence[int] = (),
               own: Own = (), refused: bool = False, **origin: Any) -> list[Dropped]:
        """Jobs come: one, or an array with these `indices`, which differ by their ids alone, and by what each
        waits for besides, its `own` dependencies, if there are any.

        `refused`: they will not run, and their ends are the next events. `origin` goes into the
        event; its `fault` says what is wrong with their line.
        Gives those that can never run. Raises LifeError for a dependency on a job that did
        not come before; Infeasible where the queue does not take the job (see `JobBook.lacks`).
        """
        if self.log is not None:
            self.log("job", **job_record(jobs[0], details, indices, own), **origin)
        self.next_id = jobs[-1].id + 1
        if "reservation" in details.more and not refused:
            self._bind(jobs, details.more["reservation"])
        dropped: list[Dropped] = []
        for at, job in enumerate(jobs):
            each = details.of(indices[at], job.payload) if indices else details
            if each.name:
                self.names.setdefault(each.name, []).append(job.id)
            if own and own[at]:
                each = replace(each, after=(*each.after, *own[at]))
            if refused:
                self.book.know(job, each, JobState.REFUSED)
                self._blame(job.id, origin)
                continue
            try:
                dropped += self.book.enter(job, each)
            except LifeError as error:
                if not self.book.frozen:
                    raise
                self.book.know(job, each, JobState.REFUSED)
                self.losing[job.id] = str(error)
        return self._lose(dropped)

    def _blame(self, job_id: int, origin: Mapping[str, Any]) -> None:
        """Note of a refused job that its line is wrong, if it is: that it ends is an event to come."""
        if origin.get("fault"):
            self.losing[job_id] = origin["fault"]
            self.book.entries[job_id].cause = LINE

    def revise(self, jobs: Sequence[Job], details: Details = PLAIN, indices: Sequence[int] = (),
               refused: bool = False, **origin: Any) -> list[Dropped]:
        """Other jobs take the ids of such that wait, or ended without having run. The rest is as of
        `submit`."""
        for job in jobs:
            entry = self.entry(job.id)
            if self.losing.pop(job.id, None) is None and entry.state.ended:
                self.counts[entry.state.value] -= 1
            if entry.details.name:
                self.names[entry.details.name].remove(job.id)
            self.promises.pop(job.id, None)
            self.queue.bind(job.id, None)
        self.record("revise", **job_record(jobs[0], details, indices), **origin)
        if "reservation" in details.more and not refused:
            self._bind(jobs, details.more["reservation"])
        if details.name:
            self.names.setdefault(details.name, []).extend(job.id for job in jobs)
        dropped: list[Dropped] = []
        for at, job in enumerate(jobs):
            each = replace(details, index=indices[at]) if indices else details
            dropped += self.book.revise(job, each, refused)
            if refused:
                self._blame(job.id, origin)
        return self._lose(dropped)

    def withdraw(self, ids: Sequence[int], now: float, **origin: Any) -> list[Dropped]:
        """Lines were removed from the queue file: of their jobs, these ids, none starts that waits. Gives those
        and what depends on them; each needs an `end` of its own."""
        self.record("lines", time=now, **origin)
        dropped: list[Dropped] = []
        for job_id in ids:
            entry = self.entry(job_id)
            if entry.state is JobState.QUEUED:
                dropped += [Dropped(entry.job, "its line was removed from the queue file"),
                            *self.book.withdraw(job_id, now)]
        return self._lose(dropped)

    def _bind(self, jobs: Sequence[Job], name: str) -> None:
        """Bind jobs that come to the reservation which they name."""
        try:
            reservation = self.reservations.named(name)
        except ReservationError as error:
            if self.book.frozen:
                return  # it is over by now
            raise LifeError(str(error)) from error
        for job in jobs:
            self.queue.bind(job.id, reservation.id)

    def _lose(self, dropped: list[Dropped]) -> list[Dropped]:
        for job, reason in dropped:
            self.losing[job.id] = reason
        return dropped

    def started(self, start: Start, now: float) -> None:
        """A job runs that the scheduler has booked and taken out of the queue."""
        job = start[0][0]
        job_id = job.id
        self.running[job_id] = start
        changed = self.reshape(job)
        self.began(job_id, now)
        if self.log is not None:
            self.log("start", id=job_id, time=now, backfilled=start.backfilled,
                     placement=placement_forms.to_record(start.booking.placement), **changed)

    def reshape(self, job: Job) -> dict[str, Any]:
        """A job starts, perhaps on another number of ranks than it asked for: where it waits again, it asks as before.
        Gives what the event of its start says of that."""
        entry = self.book.entries[job.id]
        if entry.job.procs == job.procs:
            return {}
        entry.asked, entry.job = entry.asked or entry.job, job
        return {"as": {"procs": job.procs, "walltime": job.walltime, "expected": job.expected}}

    def began(self, job_id: int, now: float) -> None:
        """A job was started, wherever that was."""
        self.intents.pop(job_id, None)
        self.losing.pop(job_id, None)
        self.promises.pop(job_id, None)
        self.book.parked.pop(job_id, None)
        self.lends.begins(job_id)
        self.book.started(job_id, now)

    def vacate(self, job_id: int) -> None:
        """A job has left its cores."""
        self.running.pop(job_id, None)
        self.lends.forget(job_id)
        if job_id in self.cluster.bookings:
            self.cluster.release(job_id)

    def back(self, job_id: int, recorded: bool = True) -> list[Dropped]:
        """A start that was not carried out is undone: the job waits again; `recorded`: there is an event of the
        start. The result is as of `submit`."""
        self.vacate(job_id)
        if recorded:
            self.record("back", id=job_id)
        return self._lose(self.book.again(job_id))

    def intend(self, job_id: int, reason: str, time: float, tick: float, **origin: Any) -> None:
        """The manager is about to end a running job; `time` is of the wall clock, `tick` of that since the boot."""
        self.intents[job_id] = reason, tick
        self.record("intent", id=job_id, reason=reason, time=time, tick=tick, **origin)

    def end(self, job_id: int, state: JobState, now: float, reason: str = "",
            **more: Any) -> list[Dropped]:
        """A job will not run (any more). `more` goes into the event. Gives those that can never run
        since they depend on it; each needs an `end` of its own."""
        self.counts[state.value] += 1
        self.intents.pop(job_id, None)
        self.losing.pop(job_id, None)
        cause = more.get("cause") or _CAUSES.get(reason)
        if cause and job_id in self.book.entries:
            self.book.entries[job_id].cause = cause
        self.record("end", id=job_id, time=now, state=state.value, reason=reason, **more)
        self.running.pop(job_id, None)
        self.promises.pop(job_id, None)
        self.lends.forget(job_id)
        return self._lose(self.book.ended(job_id, state, now))

    def again(self, job_id: int, now: float, reason: str = "", retry: bool = False,
              **origin: Any) -> list[Dropped]:
        """A job that ran or ended waits again; `retry`: it uses up one of its retries. With
        `lost=True` it has lost a node or its launcher failed before it ran. The result is as of `submit`."""
        entry = self.entry(job_id)
        self.intents.pop(job_id, None)
        self.running.pop(job_id, None)
        self.lends.forget(job_id)
        if self.losing.pop(job_id, None) is None and entry.state.ended:
            self.counts[entry.state.value] -= 1
        entry.losses += bool(origin.get("lost"))
        self.record("again", id=job_id, time=now, reason=reason, retry=retry, **origin)
        return self._lose(self.book.again(job_id, retry))

    def expect(self, jobs: Sequence[Job]) -> None:
        """Something else is expected of these jobs, which wait, than before."""
        for job in jobs:
            if job.id in self.queue:
                self.queue.replace(job)
            if job.id in self.book.entries:
                self.book.entries[job.id].job = job
        self.record("expect", jobs=[[job.id, job.expected] for job in jobs])

    def change(self, job_id: int, walltime: float, priority: int, said: Mapping[str, str] | None = None) -> None:
        """A job that waits or runs has this walltime (seconds) and this priority from now on, and what of SAID is
        `said`. LifeError where it has ended, or where it would run longer than others count on."""
        entry = self.entry(job_id)
        old = entry.job
        if entry.state.ended:
            raise LifeError(f"job {job_id} has ended: it is {entry.state.value}")
        if job_id in self.running and walltime > old.walltime and self.promises:
            raise LifeError("it runs, and other jobs were promised their starts by its limit")
        expected = walltime if old.believed is None else min(old.expected, walltime)
        job = entry.job = old.but(walltime=walltime, expected=expected, priority=priority)
        if said:
            entry.details = replace(entry.details, more={**entry.details.more, **said})
        self.promises.pop(job_id, None)
        self.book.deadlines.add(entry)
        if job_id in self.queue:
            self.queue.replace(job)
        elif job_id in self.running:
            start = self.running[job_id]
            booking = start.booking._replace(job=job)
            if job_id in self.cluster.bookings:
                end = self.cluster.bookings[job_id].expected_end + expected - old.expected
                booking = self.cluster.reshape(job_id, job=job, expected_end=end)
            self.running[job_id] = start._replace(booking=booking)
        self.record("change", id=job_id, walltime=walltime, priority=priority, **(said or {}))

    def promise(self, starts: Mapping[int, float], now: float) -> None:
        """These are the latest starts of all waiting jobs that were promised one; the event has those
        that changed, and None for those that are not promised any more."""
        kept = {job_id: time for job_id, time in starts.items() if time < math.inf}
        changed: dict[int, float | None] = {
            job_id: time for job_id, time in kept.items() if self.promises.get(job_id) != time}
        changed.update((job_id, None) for job_id in self.promises if job_id not in kept)
        self.promises.clear()
        self.promises.update(kept)
        if changed:
            self.record("promise", time=now, starts=[[job_id, time] for job_id, time in changed.items()])

    def hold(self, job_id: int) -> None:
        """Let a waiting job wait until `release`; LifeError when it does not wait."""
        self.book.hold(job_id)
        self.promises.pop(job_id, None)
        self.record("hold", id=job_id)

    def release(self, job_id: int) -> None:
        """Undo `hold`; LifeError when nobody holds it."""
        self.book.hold(job_id, held=False)
        self.record("release", id=job_id)

    def copy(self) -> State:
        """An independent copy, without a log."""
        return self._twin(self.cluster.copy(), self.queue.copy())

    def ordered(self, queue: JobQueue) -> State:
        """Give a state with the same jobs in another queue, which is empty; the old one must not be used any
        more. Infeasible when that queue does not take a job."""
        queue.bound.update(self.queue.bound)
        for job in self.queue:
            queue.add(job)
        return self._twin(self.cluster, queue)

    def _twin(self, cluster: Cluster, queue: JobQueue) -> State:
        twin = State(queue, cluster, book=self.book.copy(queue), lends=self.lends.copy())
        twin.running = dict(self.running)
        twin.intents = dict(self.intents)
        twin.losing = dict(self.losing)
        twin.promises.update(self.promises)
        twin.reservations.take_over(self.reservations)
        twin.counts = dict(self.counts)
        twin.next_id = self.next_id
        twin.names = {name: list(ids) for name, ids in self.names.items()}
        return twin
