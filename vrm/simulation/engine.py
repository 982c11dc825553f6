"""The event loop in virtual time: a run as the live manager has it, with a clock that jumps from
event to event.

The order of things at one instant is fixed: first all ends, then running jobs that have outlived
what was expected of them, then nodes that go or come, then all submissions, then one scheduling step of these
and of jobs whose time to begin has come. Jobs that end at one instant do so by id. The real run time of a job
is known to the executor alone: who decides sees what is expected of it.
"""

from __future__ import annotations

import heapq
import itertools
import math
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Protocol, Tuple

from vrm.model.cluster import Booking, Cluster
from vrm.results.shares import shared
from vrm.model.job import PLAIN, Details, Infeasible, Job, JobState
from vrm.run.again import waits_again
from vrm.run.book import Dropped, LifeError
from vrm.run.expectations import Expectations
from vrm.run.run import Run
from vrm.run.state import State
from vrm.scheduling.compressing import OFFERS
from vrm.scheduling.estimators import Actual
from vrm.scheduling.queue import JobQueue
from vrm.scheduling.registry import PolicyError
from vrm.scheduling.scheduler import Scheduler, Start
from vrm.simulation.compiled import compiled
from vrm.simulation.executor import END, Event, Rate, VirtualExecutor
from vrm.workload.submission import Submission

OFFERS.append(compiled)  # for simulations of long plans

Change = Tuple[float, Callable[[Cluster], Scheduler]]
"""A time, and who decides from then on."""

Moment = Tuple[float, int, int, int]
"""A time, the jobs in the queue and the cores that they want, and the cores in use."""


class Recorder(Protocol):
    """Is told what happens; times in seconds of the workload."""

    def ended(self, booking: Booking, start: Start, end: float, status: str) -> None:
        """A job ended: `status` is completed, timeout when it was killed, failed when it has lost
        nodes too often."""

    def refused(self, job: Job, reason: str) -> None:
        """A job can never run on this machine."""

    def cancelled(self, job: Job, reason: str, now: float) -> None:
        """A job will never run since one that it depends on did not end as it wants."""

    def moment(self, state: Moment) -> None:
        """The state after everything that happened at one time."""


class Unrecorded:
    """A `Recorder` that notes nothing, for those that note a part of what happens."""

    def ended(self, booking: Booking, start: Start, end: float, status: str) -> None:
        """A job ended."""

    def refused(self, job: Job, reason: str) -> None:
        """A job can never run."""

    def cancelled(self, job: Job, reason: str, now: float) -> None:
        """A job will never run."""

    def moment(self, state: Moment) -> None:
        """All of one time has happened."""


class Outage(NamedTuple):
    """A node (its number) that is lost at one time and back at another, in seconds."""

    node: int
    down: float
    up: float = math.inf


class Simulator:
    """A run in virtual time.

    With `kill`, a job that reaches its walltime is ended there (status `timeout`). `rate` lets jobs
    run faster or slower beside others. Jobs on a node with an outage wait again, as those of a live
    run do. At `end`, in seconds, the allocation ends: jobs that would not have ended by then do not
    start, and what runs longer is left. At the times of `changes` other schedulers take over.
    `progress(now, ended, waiting)` is called about every thousand events.
    """

    def __init__(self, scheduler: Scheduler, cluster: Cluster, recorder: Recorder,
                 kill: bool = False, rate: Optional[Rate] = None,
                 progress: Optional[Callable[[float, int, int], None]] = None,
                 outages: Iterable[Outage] = (), end: float = math.inf,
                 expectations: Optional[Expectations] = None, changes: Iterable[Change] = ()) -> None:
        outages = tuple(outages)
        sparse = end == math.inf
        self._start_with(Run(State(scheduler.new_queue(), cluster, sparse=sparse), scheduler,
                             expectations),
                         VirtualExecutor(kill, rate, bool(outages) or not sparse,
                                         revises=expectations is not None), recorder)
        self.progress = progress
        self.end = end
        self._changes += changes
        self._nodes += sorted([(each.down, False, each.node) for each in outages]
                              + [(each.up, True, each.node) for each in outages
                                 if each.up < math.inf])

    def _start_with(self, run: Run, executor: VirtualExecutor, recorder: Recorder) -> None:
        self.subject = run
        self.scheduler, self.state = run.scheduler, run.state
        self.cluster: Cluster = run.state.cluster
        self.queue: JobQueue = run.state.queue
        self.executor = executor
        self.expectations = run.expectations
        if self.expectations is not None and isinstance(self.expectations.estimator, Actual):
            self.expectations.estimator.runs = executor.runs
        self.recorder = recorder
        self.progress = None
        self.end, self.fit = math.inf, True
        self.now = 0.0
        self.wake = math.inf  # when the first step is due although nothing may happen by then
        self.one_by_one = False  # what happens at one moment is followed by a decision each
        self.events = 0
        self.ended = 0
        self.left = 0  # jobs that wait at the end: held ones, and those that depend on them
        self._nodes: List[Tuple[float, bool, int]] = []
        self._changes: List[Change] = []

    @classmethod
    def of(cls, run: Run, recorder: Recorder, runs: Dict[int, float], now: float,
           kill: bool = False, rate: Optional[Rate] = None, end: float = math.inf,
           due: bool = False, fit: bool = True) -> Simulator:
        """Go on with a (copied) run at `now`. `runs` are the run times of its jobs, of those that run
        from their start on, in seconds. With a `rate` what is left of them is work that is done at
        their speed. `due`: there is something to decide at once; where nothing runs, there is.
        Without `fit` jobs start up to the end, whether they would have ended by then or not."""
        self = cls.__new__(cls)
        tracked = end < math.inf or not run.state.sparse
        executor = VirtualExecutor(kill, rate, tracked, revises=run.expectations is not None)
        self._start_with(run, executor, recorder)
        executor.runs.update(runs)
        for booking in run.state.cluster.running():
            executor.go_on(Start(booking, False), now)
        self.now = now
        self.end, self.fit = end, fit
        wake = run.wake(now)
        at_once = due or not run.state.cluster.bookings
        self.wake = now if at_once and not (run.scheduler.interval and wake < math.inf) else wake
        return self

    def run(self, submissions: Iterable[Submission]) -> None:
        """Run all submissions (in order of time) to their ends."""
        for _ in self.moments(submissions):
            pass

    def moments(self, submissions: Iterable[Submission]) -> Iterator[float]:
        """The same, event by event: yields each moment after its scheduling step."""
        source = iter(submissions)
        following = next(source, None)
        executor, queue, cluster, state = self.executor, self.queue, self.cluster, self.state
        events, runs, waiting = executor.events, executor.runs, queue.jobs
        step, moment, start_job = self.subject.step, self.recorder.moment, executor.start
        arrive, sparse = state.arrive, state.sparse
        fit = self.fit and not sparse
        foreseen, expect = executor.foreseen, self.expectations
        interval = self.scheduler.interval
        wakes = interval or not self.scheduler.dispatcher.heads_first or bool(
            state.reservations) or cluster.budget is not None
        busy_cores = cluster.taken_cores
        book, begins, deadlines = state.book, state.book.begins, state.book.deadlines
        nodes, never, last, progress = self._nodes, math.inf, self.end, self.progress
        changes, single = self._changes, self.one_by_one
        end_job, pop = self._end, heapq.heappop
        number, changes_of_loans = self.events, cluster.loans.changes
        plain = ((), False, "")
        wake = self.wake
        submit = following[0].submit if following is not None else never
        while True:
            if not foreseen:
                executor.next_time()
            now = submit
            if events and events[0][0] < now:
                now = events[0][0]
            if wake < now:
                now = wake
            if begins and book.next_begin < now:
                now = max(book.next_begin, self.now)
            if deadlines and book.next_missed < now:
                now = max(book.next_missed, self.now)
            if nodes and nodes[0][0] < now:
                now = nodes[0][0]
            if changes and changes[0][0] <= now and (now < never or waiting):
                self.now = changes[0][0]
                self._change(changes.pop(0)[1])
                yield from self.moments(source if following is None else
                                        itertools.chain((following,), source))
                return
            if now > last or now == never:
                break
            self.now = now
            passed = False
            while events and events[0][0] <= now and not passed:
                passed = single
                event = pop(events)
                if event[1] == END:
                    if foreseen or not executor.is_void(event):
                        busy_cores -= end_job(event, now)
                elif expect is not None and not executor.is_void(event):
                    executor.revise(event[4], expect.correct(cluster, event[2], now)[3], now)
            while nodes and nodes[0][0] <= now:
                busy_cores -= self._node(*pop(nodes)[1:], now)
            while submit <= now and not passed:
                passed = single
                assert following is not None
                if (sparse and following[2:5] == plain and not following[5].retries
                        and "reservation" not in following[5].more and "begin" not in following[5].more
                        and "deadline" not in following[5].more):
                    job = following[0]
                    runs[job.id] = following[1]
                    if expect is not None:
                        job = expect.of(job)
                    try:
                        arrive(job)
                    except Infeasible as reason:
                        self._refuse(job, str(reason))
                else:
                    self._submit(following)
                following = next(source, None)
                submit = following[0].submit if following is not None else never
            if begins:
                book.begin(now)
            while True:
                if waiting and now < last:
                    if fit:
                        state.book.fit(now, last)
                    for start in step(now):
                        request = start[0][0].request
                        busy_cores += request[0] * request[1]
                        if cluster.loans:
                            self._lent(start.job.id, now)
                        start_job(start, now)
                missed = book.missed(now) if deadlines else ()
                if not missed:
                    break
                self._cancel(missed)  # for which others waited, perhaps
            if not wakes:
                wake = never
            else:
                tick = interval and now == wake
                wake = self.subject.wake(now)
                if interval and (not len(queue) or (tick and following is None
                                                    and not cluster.bookings
                                                    and not cluster.calendar)):
                    wake = never  # nothing waits, or none of it fits on an empty machine
            if cluster.loans.changes != changes_of_loans:
                busy_cores, changes_of_loans = cluster.taken_cores, cluster.loans.changes
            moment((now, len(waiting), queue.wanted, busy_cores))
            number += 1
            if progress is not None and number % 1000 == 0:
                progress(now, self.ended, len(queue))
            self.events = number
            yield now
        if len(queue) and self.end == math.inf and not self._down() and cluster.budget is None:
            raise PolicyError(f"{len(queue)} job(s) wait for ever on an empty machine; the "
                              "placement policy promised that they fit")
        self.left = state.waiting

    def _change(self, make: Callable[[Cluster], Scheduler]) -> None:
        """Another scheduler decides from now on, as live: jobs that run stay where they are, and what was
        promised stays promised."""
        run, before = self.subject, self.scheduler
        promised = before.promises(self.now, self.queue, self.cluster)
        self.scheduler = scheduler = make(self.cluster)
        self.state = run.state.ordered(scheduler.new_queue())
        self.queue = self.state.queue
        scheduler.dispatcher.follow(before.dispatcher)
        scheduler.dispatcher.restore(promised)
        self.subject = Run(self.state, scheduler, run.expectations)
        self.wake = self.now

    def _down(self) -> bool:
        """Whether a node is lost for good."""
        return self.cluster.up != (1 << len(self.cluster.nodes)) - 1

    def _submit(self, submission: Submission) -> None:
        """A job comes of which there is more to say than that it waits."""
        job = submission.job
        self.executor.runs[job.id] = submission.run
        if self.expectations is not None:
            job = self.expectations.of(job)
        try:
            if submission.refused:
                raise Infeasible(submission.refused)
            self.scheduler.check(job)
            details = (Details(submission.after, submission.details.retries,
                               held=submission.held, more=submission.details.more)
                       if submission.after or submission.held or submission.details.retries
                       or submission.details.more else PLAIN)
            self._cancel(self.state.submit([job], details))
        except (Infeasible, LifeError) as reason:
            self._refuse(job, str(reason))

    def _refuse(self, job: Job, reason: str) -> None:
        del self.executor.runs[job.id]
        self.state.failed(job, JobState.REFUSED)
        self.recorder.refused(job, reason)

    def _cancel(self, dropped: Iterable[Dropped]) -> None:
        """Record the ends of jobs that will never run, and of those that depend on them."""
        jobs = list(dropped)
        for job, reason in jobs:
            jobs += self.state.end(job.id, JobState.CANCELLED, self.now, reason)
            self.executor.runs.pop(job.id, None)
            self.recorder.cancelled(job, reason, self.now)

    def _end(self, event: Event, now: float) -> int:
        """A job ends; the cores that it leaves."""
        job_id, start, state = event[2], event[4], self.state
        executor = self.executor
        killed = event[3] and executor.unfinished(event, now)
        booking = state.leave(job_id)
        if self.cluster.loans:
            self._returned(booking, now)
        if not executor.foreseen:
            executor.gone(start, now)
        job = booking[0]
        if self.expectations is not None:
            loans = self.cluster.loans
            slower = loans.lost(self.cluster, booking, now) if shared(booking) else 0.0
            self.subject.learn(job, now - booking[2] - slower, JobState.TIMEOUT if killed
                                    else JobState.COMPLETED)
        if killed:
            self._failed(start, JobState.TIMEOUT, "ran longer than its walltime", "timeout")
            return job.request.cores
        del executor.runs[job_id]
        self.ended += 1
        self.recorder.ended(booking, start, now, "completed")
        if not state.sparse or state.book.entries:
            self._cancel(state.end(job_id, JobState.COMPLETED, now))
        return job.procs * job.cores

    def _lent(self, borrower: int, now: float) -> None:
        """A job has started: those that lend cores to it run to other ends."""
        for loan in self.cluster.loans.of_borrower(borrower):
            self.executor.reshaped(self.cluster.bookings[loan.lender], now)

    def _returned(self, booking: Booking, now: float) -> None:
        """A job has left: what it had borrowed is its lenders' again, and what it left to those that
        borrowed of it is theirs."""
        if not shared(booking):
            return
        job_id = booking.job.id
        loans = self.cluster.loans.of_borrower(job_id)
        self.state.returned(job_id, now)
        for loan in loans:
            self.executor.reshaped(self.cluster.bookings[loan.lender], now)
        known = self.cluster.loans
        among = {loan.lender for loan in loans} | known.borrowed_of(self.cluster, job_id)
        for other, wide in known.growing(self.cluster, now, among) if among else ():
            known.grow(self.cluster, other, wide)
            self.executor.reshaped(self.cluster.bookings[other], now)

    def _failed(self, start: Start, how: JobState, reason: str, intent: str) -> None:
        """A job has left its cores and did not complete: it waits again, or not."""
        job_id, state, now = start.job.id, self.state, self.now
        entry = state.book.entries.get(job_id)
        why, retry = waits_again(entry, how, reason, intent, True) if entry else ("", False)
        if why:
            lost = {"lost": True} if intent == "node" and not retry else {}
            self._cancel(state.again(job_id, now, why, retry, **lost))
            return
        if entry is None:
            state.failed(start.job, how)
        del self.executor.runs[job_id]
        self.ended += 1
        self.recorder.ended(start.booking, start, now, how.value)
        self._cancel(state.end(job_id, how, now, reason))

    def _node(self, up: bool, node: int, now: float) -> int:
        """A node comes or goes; the cores that its jobs leave."""
        if up:
            self.state.node_up(node)
            return 0
        self.state.node_down(node)
        cores = 0
        for job_id in self.cluster.jobs_on(node):
            self.state.entry(job_id)  # from now on there is something to say of it
            booking = self.state.leave(job_id)
            cores += booking.job.request.cores
            if self.cluster.loans:
                self._returned(booking, now)
            start = self.executor.gone_of(job_id, now)
            self._failed(start, JobState.FAILED,
                         f"node {self.cluster.nodes[node].name} is down", "node")
        return cores

    def waiting(self) -> Any:
        """The jobs that wait now, in order."""
        return self.queue.in_order(self.now)
