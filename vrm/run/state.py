"""The state of a run: its jobs and their lives, the cluster with its bookings, and the number of jobs by end state.
Live managers, simulations, recovery and forecasts change it by the same transitions.

Each transition is one method. It makes all changes that belong together, and passes the event to `log`: the journal
of a live run, which has the event on disk before the manager acts on it. The events of a journal, applied in order
(`vrm.run.journal.history.replay`), restore the same state.

| transition | event | what it does |
|---|---|---|
| `submit` | job | a job, or an array of them, waits or is refused |
| `started` | start | a job that the scheduler has booked runs |
| `back` | back | a start that was not carried out: the job waits again |
| `intend` | intent | the manager is about to end a running job, and why |
| `release_cores` | | a job has left its cores; how it ended is not decided yet |
| `end` | end | a job will not run (any more), nor those that depend on it |
| `again` | again | a job that ran or ended waits again |
| `revise` | revise | another job takes the id of one that waits, or ended without having run |
| `withdraw` | lines | lines are not in the queue file any more, and their waiting jobs will not run |
| `hold`, `release` | hold, release | a waiting job is kept from starting, or no longer |
| `change` | change | a job that has not ended has another walltime, priority, name or comment |
| `expect` | expect | the expected run times of waiting jobs change |
| `promise` | promise | latest starts of waiting jobs are promised |
| `lending.lend` | lend | a running job is about to lend cores to another, or to the node |
| `lending.lent` | lent | its nodes are clear of it: the borrower may start |
| `lending.regain` | regain | it takes them back: the borrower has left, or does not start |
| `lending.regained` | regained | its nodes have answered that it has them |
| `reservations.reserve` | reserve | nodes are kept for some jobs from one time to another |
| `reservations.cancel` | unreserve | a reservation is over or cancelled: its jobs compete again |
| `reservations.pass_time` | | reservations open, and those that are over are removed |
| `cluster.set_up` | | jobs may start on a node, or no longer; jobs on it stay |

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
from vrm.run.job_book import JobBook
from vrm.run.entry import CANCEL, LINE, STOP, DroppedJob, Entry, JobStateError
from vrm.model.forms import placement_formats
from vrm.run.journal.codec import Own, job_record
from vrm.run.loan_transitions import LoanTransitions
from vrm.run.loans import LoanTable
from vrm.run.reservations import Log, Reservations
from vrm.scheduling import JobQueue, Start

_CAUSES = {"cancelled while it waited": CANCEL, "cancelled by its user": CANCEL, "the manager was stopped": STOP}
"""Causes of ends by their reasons, for journals of older vrm versions that record no cause."""

SAID = ("title", "comment", "requeue")
"""Fields of a job's details that may change until it ends."""

class State:
    """The state of one run. `queue` is the scheduler's queue, `cluster` the nodes of the run.

    `running`: started jobs that have not left their cores. `intents`: for each job that is to be ended, why and since
    when. `losing`: by id, jobs that can never run since a dependency failed, with the reason, until their own end
    event. `promises`: latest start times of waiting jobs (seconds), promised by kept reservations or by a guard
    against starvation. `reservations`: advance reservations by id; `JobQueue.bound` has the jobs that are bound to
    them. `lends`: the recorded lends of cores; the cluster has those in force; `lending` changes them.

    `lacks` and `forgets`: see `JobBook`. `frozen`: for replaying a journal, no job enters the queue and nothing is
    booked until `thaw`.
    """

    def __init__(self, queue: JobQueue, cluster: Cluster,
                 lacks: Callable[[Job], str] | None = None, forgets: bool = False, frozen: bool = False,
                 book: JobBook | None = None, lends: LoanTable | None = None) -> None:
        self.queue = queue
        self.cluster = cluster
        self.book = book or JobBook(queue, lacks, forgets, frozen)
        self.running: dict[int, Start] = {}
        self.intents: dict[int, tuple[str, float]] = {}
        self.losing: dict[int, str] = {}
        self.promises: dict[int, float] = {}
        self.reservations = Reservations(self.book, cluster, self.promises, self.record)
        self.lends = lends or LoanTable()
        self.lending = LoanTransitions(self.lends, cluster, self.record)
        self.counts: dict[str, int] = {state.value: 0 for state in JobState if state.ended}
        self.next_id = 0
        self.names: dict[str, list[int]] = {}  # job ids by job name
        self.log: Log | None = None

    def record(self, event: str, **values: Any) -> None:
        """Log an event, if there is a log."""
        if self.log is not None:
            self.log(event, **values)

    # Queries.

    def entry(self, job_id: int) -> Entry:
        """Return the entry of a job. Raises JobStateError if there is no such job."""
        return self.book.get(job_id)

    @property
    def waiting(self) -> int:
        """Number of waiting jobs, eligible or not."""
        return self.book.waiting

    # Transitions.

    def submit(self, jobs: Sequence[Job], details: Details = PLAIN, indices: Sequence[int] = (),
               own: Own = (), refused: bool = False, **origin: Any) -> list[DroppedJob]:
        """Submit one job, or an array of jobs with these `indices`. The jobs of an array differ only in their ids and
        in their additional dependencies `own`, if there are any.

        `refused`: they will not run, and the caller ends them next. `origin` is added to the event; its `fault` is
        what is wrong with their line. Return the jobs that can never run. Raises JobStateError for a dependency on a
        job that was not submitted before; Infeasible if the queue does not accept the job.
        """
        if self.log is not None:
            self.log("job", **job_record(jobs[0], details, indices, own), **origin)
        self.next_id = jobs[-1].id + 1
        if "reservation" in details.more and not refused:
            self._bind(jobs, details.more["reservation"])
        dropped: list[DroppedJob] = []
        for at, job in enumerate(jobs):
            each = details.of(indices[at], job.payload) if indices else details
            if each.name:
                self.names.setdefault(each.name, []).append(job.id)
            if own and own[at]:
                each = replace(each, after=(*each.after, *own[at]))
            if refused:
                self.book.know(job, each, JobState.REFUSED)
                self._record_line_fault(job.id, origin)
                continue
            try:
                dropped += self.book.enter(job, each)
            except JobStateError as error:
                if not self.book.frozen:
                    raise
                self.book.know(job, each, JobState.REFUSED)
                self.losing[job.id] = str(error)
        return self._lose(dropped)

    def _record_line_fault(self, job_id: int, origin: Mapping[str, Any]) -> None:
        """Record that a refused job has a wrong line, if `origin` has a fault; its end is a later event."""
        if origin.get("fault"):
            self.losing[job_id] = origin["fault"]
            self.book.entries[job_id].cause = LINE

    def revise(self, jobs: Sequence[Job], details: Details = PLAIN, indices: Sequence[int] = (),
               refused: bool = False, **origin: Any) -> list[DroppedJob]:
        """Replace jobs that wait, or ended without having run, by others with the same ids. Arguments and result are
        those of `submit`."""
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
        dropped: list[DroppedJob] = []
        for at, job in enumerate(jobs):
            each = replace(details, index=indices[at]) if indices else details
            dropped += self.book.revise(job, each, refused)
            if refused:
                self._record_line_fault(job.id, origin)
        return self._lose(dropped)

    def withdraw(self, ids: Sequence[int], now: float, **origin: Any) -> list[DroppedJob]:
        """Record that lines were removed from the queue file, and cancel the waiting ones of their jobs `ids`. Return
        these and the jobs that depend on them; each needs its own `end`."""
        self.record("lines", time=now, **origin)
        dropped: list[DroppedJob] = []
        for job_id in ids:
            entry = self.entry(job_id)
            if entry.state is JobState.QUEUED:
                dropped += [DroppedJob(entry.job, "its line was removed from the queue file"),
                            *self.book.withdraw(job_id, now)]
        return self._lose(dropped)

    def _bind(self, jobs: Sequence[Job], name: str) -> None:
        """Bind submitted jobs to the reservation that they name."""
        try:
            reservation = self.reservations.named(name)
        except ReservationError as error:
            if self.book.frozen:
                return  # the reservation has ended since
            raise JobStateError(str(error)) from error
        for job in jobs:
            self.queue.bind(job.id, reservation.id)

    def _lose(self, dropped: list[DroppedJob]) -> list[DroppedJob]:
        for job, reason in dropped:
            self.losing[job.id] = reason
        return dropped

    def started(self, start: Start, now: float) -> None:
        """Record the start of a job that the scheduler has booked and taken out of the queue."""
        job = start[0][0]
        job_id = job.id
        self.running[job_id] = start
        changed = self.reshape(job)
        self.began(job_id, now)
        if self.log is not None:
            self.log("start", id=job_id, time=now, backfilled=start.backfilled,
                     placement=placement_formats.to_record(start.booking.placement), **changed)

    def reshape(self, job: Job) -> dict[str, Any]:
        """Use the number of ranks with which a job starts, which may differ from its request; a requeued job has its
        request again. Return the values that the start event records of this."""
        entry = self.book.entries[job.id]
        if entry.job.procs == job.procs:
            return {}
        entry.asked, entry.job = entry.asked or entry.job, job
        return {"as": {"procs": job.procs, "walltime": job.walltime, "expected": job.expected}}

    def began(self, job_id: int, now: float) -> None:
        """Update all tables for a job that was started, by this manager or an earlier one."""
        self.intents.pop(job_id, None)
        self.losing.pop(job_id, None)
        self.promises.pop(job_id, None)
        self.book.parked.pop(job_id, None)
        self.lends.begins(job_id)
        self.book.started(job_id, now)

    def release_cores(self, job_id: int) -> None:
        """Release the cores of a job."""
        self.running.pop(job_id, None)
        self.lends.forget(job_id)
        if job_id in self.cluster.bookings:
            self.cluster.release(job_id)

    def back(self, job_id: int, recorded: bool = True) -> list[DroppedJob]:
        """Undo a start that was not carried out: the job waits again. `recorded`: the journal has the start. Returns
        like `submit`."""
        self.release_cores(job_id)
        if recorded:
            self.record("back", id=job_id)
        return self._lose(self.book.again(job_id))

    def intend(self, job_id: int, reason: str, time: float, tick: float, **origin: Any) -> None:
        """Record that the manager is about to end a running job. `time` is wall-clock time, `tick` the time since
        boot."""
        self.intents[job_id] = reason, tick
        self.record("intent", id=job_id, reason=reason, time=time, tick=tick, **origin)

    def end(self, job_id: int, state: JobState, now: float, reason: str = "",
            **more: Any) -> list[DroppedJob]:
        """Record the final end of a job; `more` is added to the event. Return the jobs that can never run because
        they depend on it; each needs its own `end`."""
        self.counts[state.value] += 1
        self.intents.pop(job_id, None)
        self.losing.pop(job_id, None)
        cause = more.get("cause") or _CAUSES.get(reason)
        if cause and job_id in self.book.entries:
            self.book.entries[job_id].cause = cause
        if self.log is not None:
            self.log("end", id=job_id, time=now, state=state.value, reason=reason, **more)
        self.running.pop(job_id, None)
        self.promises.pop(job_id, None)
        self.lends.forget(job_id)
        return self._lose(self.book.ended(job_id, state, now))

    def again(self, job_id: int, now: float, reason: str = "", retry: bool = False,
              **origin: Any) -> list[DroppedJob]:
        """Make a job that ran or ended wait again. `retry`: it uses one of its retries. `lost=True`: it has lost a
        node, or its launcher failed before it ran. Returns like `submit`."""
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
        """Set new expected run times of these waiting jobs."""
        for job in jobs:
            if job.id in self.queue:
                self.queue.replace(job)
            if job.id in self.book.entries:
                self.book.entries[job.id].job = job
        self.record("expect", jobs=[[job.id, job.expected] for job in jobs])

    def change(self, job_id: int, walltime: float, priority: int, said: Mapping[str, str] | None = None) -> None:
        """Set the walltime (seconds) and priority of a job that waits or runs, and the fields `said` (keys: SAID).
        Raises JobStateError if it has ended, or if it would run longer than promised starts of other jobs assume."""
        entry = self.entry(job_id)
        old = entry.job
        if entry.state.ended:
            raise JobStateError(f"job {job_id} has ended: it is {entry.state.value}")
        if job_id in self.running and walltime > old.walltime and self.promises:
            raise JobStateError("it runs, and other jobs were promised their starts by its limit")
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
        """Set the latest start times promised to waiting jobs. The event has only the changed ones, and None for jobs
        without a promise now."""
        kept = {job_id: time for job_id, time in starts.items() if time < math.inf}
        changed: dict[int, float | None] = {
            job_id: time for job_id, time in kept.items() if self.promises.get(job_id) != time}
        changed.update((job_id, None) for job_id in self.promises if job_id not in kept)
        self.promises.clear()
        self.promises.update(kept)
        if changed:
            self.record("promise", time=now, starts=[[job_id, time] for job_id, time in changed.items()])

    def hold(self, job_id: int) -> None:
        """Hold a waiting job until `release`. Raises JobStateError if it does not wait."""
        self.book.hold(job_id)
        self.promises.pop(job_id, None)
        self.record("hold", id=job_id)

    def release(self, job_id: int) -> None:
        """Undo `hold`. Raises JobStateError if the job is not held."""
        self.book.hold(job_id, held=False)
        self.record("release", id=job_id)

    def copy(self) -> State:
        """Return an independent copy without a log."""
        return self._twin(self.cluster.copy(), self.queue.copy())

    def ordered(self, queue: JobQueue) -> State:
        """Return a state with the same jobs in `queue`, an empty one; the old state must not be used afterwards.
        Raises Infeasible if that queue does not accept a job."""
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
