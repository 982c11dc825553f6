"""The event loop in virtual time: a run as the live manager has it, with a clock that jumps from
event to event.

The order of things at one instant is fixed: first all ends, then running jobs that have outlived
what was expected of them, then nodes that go or come, then all submissions, then one scheduling step of these
and of jobs whose time to begin has come. Jobs that end at one instant do so by id. The real run time of a job
is known to the executor alone: who decides sees what is expected of it.

The order in which most schedules were published (that of the pyss simulator of Tsafrir, Etsion and
Feitelson) is the other choice, `published`: each submission of an instant and then each end, by the order of the
starts, has a step of its own; nodes go or come with the first of these, and corrections come first and have none.
A running job whose expected end has come has left its cores at the first event of that instant, also if its own
end is a later one.
"""

from __future__ import annotations

import heapq
import itertools
import math
from typing import NamedTuple
from collections.abc import Callable, Iterable, Iterator, Sequence

from vrm.model.cluster import Booking, Cluster
from vrm.results.shares import shared
from vrm.model.job import PLAIN, Details, Infeasible, Job, JobState
from vrm.run.again import waits_again
from vrm.run.entry import Dropped, LifeError
from vrm.run.expectations import Expectations
from vrm.run.run import Run
from vrm.run.state import State
from vrm.scheduling.backfilling.compressing import OFFERS, Compress
from vrm.scheduling.orderings.queue import JobQueue
from vrm.scheduling.registry import PolicyError
from vrm.scheduling.scheduler import Scheduler, Start
from vrm.simulation.executor import EXPECTED, LATER, NODE_DOWN, NODE_UP, SUBMISSION, Event, Rate, VirtualExecutor
from vrm.system import plugins
from vrm.workload.submission import Submission



def _compression() -> Compress | None:
    """What compresses long plans faster, where an extension has it."""
    plugin = plugins.find("vrm.options", "compression")
    found: Compress | None = None if plugin is None else plugins.load(plugin)()
    return found


OFFERS.append(_compression)

Change = tuple[float, Callable[[Cluster], Scheduler]]
"""A time, and who decides from then on."""

Moment = tuple[float, int, int, int]
"""A time, the jobs in the queue and the cores that they want, and the cores in use."""


class Recorder:
    """Is told what happens, times in seconds of the workload; notes nothing where a subclass does not say so."""

    def ended(self, booking: Booking, start: Start, end: float, status: str) -> None:
        """A job ended: `status` is completed, timeout when it was killed, failed when it has lost
        nodes too often."""

    def refused(self, job: Job, reason: str) -> None:
        """A job can never run on this machine."""

    def cancelled(self, job: Job, reason: str, now: float) -> None:
        """A job will never run since one that it depends on did not end as it wants."""

    def moment(self, state: Moment) -> None:
        """The state after everything that happened at one time."""


class Outage(NamedTuple):
    """A node (its number) that is lost at one time and back at another, in seconds."""

    node: int
    down: float
    up: float = math.inf


def _in_order(submissions: Iterable[Submission]) -> Iterator[Submission]:
    """Those of one time in the order of the ids, whatever the order of the lines."""
    for _, together in itertools.groupby(submissions, key=lambda one: one.job.submit):
        yield from sorted(together, key=lambda one: one.job.id)


class Simulator:
    """A run in virtual time.

    With `kill`, a job that reaches its walltime is ended there (status `timeout`). `rate` lets jobs
    run faster or slower beside others. Jobs on a node with an outage wait again, as those of a live
    run do. At `end`, in seconds, the allocation ends: jobs that would not have ended by then do not
    start, and what runs longer is left. At the times of `changes` other schedulers take over.
    `published`: what happens at one instant has the order in which others published schedules.
    `progress(now, ended, waiting)` is called about every thousand events.
    """

    def __init__(self, scheduler: Scheduler, cluster: Cluster, recorder: Recorder,
                 kill: bool = False, rate: Rate | None = None,
                 progress: Callable[[float, int, int], None] | None = None,
                 outages: Iterable[Outage] = (), end: float = math.inf,
                 expectations: Expectations | None = None, changes: Iterable[Change] = (),
                 published: bool = False) -> None:
        outages = tuple(outages)
        tracked = bool(outages) or end < math.inf
        executor = VirtualExecutor(kill, rate, tracked, expectations is not None, published)
        self._start_with(Run(State(scheduler.new_queue(), cluster, forgets=True), scheduler, expectations),
                         executor, recorder, end)
        self.progress = progress
        self.one_by_one = self._published = published
        self._changes += changes
        self._later = 0 if published else LATER
        for each in outages:
            executor.plan(each.down, NODE_DOWN + self._later, each.node, each.node)
            if each.up < math.inf:
                executor.plan(each.up, NODE_UP + self._later, each.node, each.node)

    def _start_with(self, run: Run, executor: VirtualExecutor, recorder: Recorder, end: float = math.inf,
                    fit: bool = True) -> None:
        self.subject = run
        self.scheduler, self.state = run.scheduler, run.state
        self.cluster: Cluster = run.state.cluster
        self.queue: JobQueue = run.state.queue
        self.executor = executor
        self.expectations = run.expectations
        if self.expectations is not None:
            self.expectations.estimator.foresee(executor.runs)
        self.recorder = recorder
        self.progress = None
        self.end = end
        self._fits = fit and (end < math.inf or run.state.book.ends)
        self.now = 0.0
        self.wake = math.inf  # when the first step is due although nothing may happen by then
        self.one_by_one = False  # each event is followed by a decision of its own
        self._published, self._later = False, LATER
        self._left: dict[int, Booking] = {}  # jobs that have left their cores and end later at this moment
        self.events = 0
        self.ended = 0
        self.left = 0  # jobs that wait at the end: held ones, and those that depend on them
        self._busy = self.cluster.taken_cores  # where no cores are lent
        self._changes: list[Change] = []
        self._coming: Iterator[Submission] = iter(())
        self._handlers = (self._node_down, self._node_up, self._submitted, self._ended, self._outlived)  # by kind

    @classmethod
    def of(cls, run: Run, recorder: Recorder, runs: dict[int, float], now: float,
           kill: bool = False, rate: Rate | None = None, end: float = math.inf,
           due: bool = False, fit: bool = True) -> Simulator:
        """Go on with a (copied) run at `now`. `runs` are the run times of its jobs, of those that run
        from their start on, in seconds. With a `rate` what is left of them is work that is done at
        their speed. `due`: there is something to decide at once; where nothing runs, there is.
        Without `fit` jobs start up to the end, whether they would have ended by then or not."""
        self = cls.__new__(cls)
        executor = VirtualExecutor(kill, rate, True, revises=run.expectations is not None)
        self._start_with(run, executor, recorder, end, fit)
        executor.runs.update(runs)
        for booking in run.state.cluster.running():
            executor.go_on(Start(booking, False), now)
        self.now = now
        wake = run.wake(now)
        at_once = due or not run.state.cluster.bookings
        self.wake = now if at_once and not (run.scheduler.interval and wake < math.inf) else wake
        return self

    def run(self, submissions: Iterable[Submission]) -> None:
        """Run all submissions (in order of time) to their ends."""
        for _ in self.moments(submissions):
            pass

    def moments(self, submissions: Iterable[Submission]) -> Iterator[float]:
        """Run them event by event: yields each moment after its scheduling step."""
        self._coming = _in_order(submissions) if self._published else iter(submissions)
        self._await_submission()
        while True:
            now = self._next()
            if now > self.end or now == math.inf:
                break
            self.now = now
            while self._changes and self._changes[0][0] <= now:
                self._change(self._changes.pop(0)[1])
            if self._published and self._expire(now):
                continue
            self._handle(now)
            self._turn(now)
            yield now
        whole = self.cluster.up == (1 << len(self.cluster.nodes)) - 1 and not self.cluster.constraints
        if self.queue.jobs and self.end == math.inf and whole:
            raise PolicyError(f"the placement policy accepted {len(self.queue)} job(s) that it cannot start even on an "
                              "empty machine")
        self.left = self.state.waiting

    def _next(self) -> float:
        """When something happens next; infinity for never. Other rules alone are nothing that happens."""
        book = self.state.book
        time = self.executor.next_time()
        if self.wake < time:
            time = self.wake
        if book.begins or book.deadlines:
            time = min(time, max(min(book.begins.next, book.deadlines.next), self.now))
        if self._changes and (time < math.inf or self.queue.jobs):
            time = min(time, self._changes[0][0])
        return time

    def _handle(self, now: float) -> None:
        """Handle the events of now, or the first of them where each has a decision of its own."""
        executor, handlers, pop = self.executor, self._handlers, heapq.heappop
        events = executor.events
        while events and events[0][0] <= now:
            event = pop(events)
            kind = event[1]
            if kind >= LATER or executor.foreseen or not executor.is_void(event):
                handlers[kind % LATER](event)
            if self.one_by_one and kind > NODE_UP:
                return

    def _turn(self, now: float) -> None:
        """Decide, after all that happens now."""
        book, queue = self.state.book, self.queue
        if book.begins:
            book.begin(now)
        self.subject.turn(now, self, self.end, self._fits)
        self.wake = self._next_wake(now)
        busy = self.cluster.taken_cores if self.cluster.loans else self._busy
        self.recorder.moment((now, len(queue.jobs), queue.wanted, busy))
        self.events += 1
        if self.progress is not None and self.events % 1000 == 0:
            self.progress(now, self.ended, len(queue))

    def _next_wake(self, now: float) -> float:
        """When the next step is due although nothing may happen by then; not where nothing waits for a tick, or
        none of it fits on an empty machine."""
        if self.scheduler.interval and (not self.queue.jobs or (
                now == self.wake and not self._more and not self.cluster.bookings and not self.cluster.calendar)):
            return math.inf
        return self.subject.wake(now)

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

    def _expire(self, now: float) -> bool:
        """Running jobs whose expected ends have come leave their cores if they end now, or are expected
        longer. Whether nothing else happens now."""
        for job_id in [job_id for _, job_id in itertools.takewhile(lambda each: each[0] <= now, self.cluster.ends)]:
            if self.executor.end_of(job_id) <= now:
                self._left[job_id] = self._leave(job_id)
            elif self.expectations is not None:
                booking = self.expectations.correct(self.cluster, job_id, now)
                self.executor.revise(self.executor.start_of(job_id), booking.expected_end, now)
        events = self.executor.events
        while events and events[0].time <= now and events[0].kind == EXPECTED:
            heapq.heappop(events)
        return self._next() > now

    # What happens.

    def _await_submission(self) -> None:
        """The next submission is an event to come."""
        following = next(self._coming, None)
        self._more = following is not None
        if following is not None:
            self.executor.plan(following.job.submit, SUBMISSION + self._later, 0, following)

    def _submitted(self, event: Event) -> None:
        """A job comes."""
        submission: Submission = event.subject
        job = submission.job
        self.executor.runs[job.id] = submission.run
        if self.expectations is not None:
            job = self.expectations.of(job)
        try:
            if submission.refused:
                raise Infeasible(submission.refused)
            self.scheduler.check(job)
            self.drop(self.state.submit([job], PLAIN if submission.plain else Details(
                submission.after, submission.details.retries, held=submission.held,
                more=submission.details.more)))
        except (Infeasible, LifeError) as reason:
            del self.executor.runs[job.id]
            self.state.submit([job], refused=True)
            self.state.end(job.id, JobState.REFUSED, self.now, str(reason))
            self.recorder.refused(job, str(reason))
        self._await_submission()

    def put_off(self, jobs: Sequence[Job], now: float) -> None:
        """Jobs that would not have ended by the end of the allocation are left."""

    def drop(self, dropped: Iterable[Dropped], cause: str = "") -> None:
        """Record the ends of jobs that will never run, and of those that depend on them."""
        jobs = list(dropped)
        for job, reason in jobs:
            jobs += self.state.end(job.id, JobState.CANCELLED, self.now, reason)
            self.executor.runs.pop(job.id, None)
            self.recorder.cancelled(job, reason, self.now)

    def start(self, start: Start, now: float) -> None:
        """A job starts; those that lend cores to it run to other ends."""
        job = start[0][0]
        self._busy += job.request.cores
        asked = self.state.book.entries[job.id].asked
        if asked is not None:
            self.executor.runs[job.id] *= self.scheduler.dispatcher.stretch(asked, job)
        if self.cluster.loans:
            for loan in self.cluster.loans.of_borrower(job.id):
                self.executor.reshaped(self.cluster.bookings[loan.lender], now)
        self.executor.start(start, now)

    def _outlived(self, event: Event) -> None:
        """A job should have ended by now, and goes on."""
        if self.expectations is not None:
            booking = self.expectations.correct(self.cluster, event.subject.job.id, self.now)
            self.executor.revise(event.subject, booking.expected_end, self.now)

    def _ended(self, event: Event) -> None:
        """A job ends, by itself or at its walltime."""
        start: Start = event.subject
        now, job = self.now, start[0][0]
        killed = event.killed and self.executor.unfinished(job.id, now)
        booking = self._left.pop(job.id, None) or self._leave(job.id)
        if not self.executor.foreseen:
            self.executor.gone(start, now)
        if self.expectations is not None or self.scheduler.dispatcher.learns:
            slower = self.cluster.loans.lost(self.cluster, booking, now) if shared(booking) else 0.0
            self.subject.learn(booking.job, now - booking.start - slower,
                               JobState.TIMEOUT if killed else JobState.COMPLETED)
        if killed:
            self._failed(start, JobState.TIMEOUT, "ran longer than its walltime", "timeout")
        else:
            self._over(booking, start, JobState.COMPLETED)

    def _leave(self, job_id: int) -> Booking:
        """A job leaves its cores."""
        booking = self.cluster.release(job_id)
        self._busy -= booking.job.request.cores
        if self.cluster.loans:
            self._returned(booking, self.now)
        return booking

    def _over(self, booking: Booking, start: Start, how: JobState, reason: str = "") -> None:
        """A job that ran will not run again."""
        job_id = booking.job.id
        del self.executor.runs[job_id]
        self.ended += 1
        self.recorder.ended(booking, start, self.now, how.value)
        dropped = self.state.end(job_id, how, self.now, reason)
        if dropped:
            self.drop(dropped)

    def _returned(self, booking: Booking, now: float) -> None:
        """A job has left: what it had borrowed is its lenders' again, and what it left to those that
        borrowed of it is theirs."""
        if not shared(booking):
            return
        job_id = booking.job.id
        loans = self.cluster.loans.of_borrower(job_id)
        self.state.lending.returned(job_id, now)
        for loan in loans:
            self.executor.reshaped(self.cluster.bookings[loan.lender], now)
        known = self.cluster.loans
        among = {loan.lender for loan in loans} | known.borrowed_of(self.cluster, job_id)
        for other, wide in known.growing(self.cluster, now, among) if among else ():
            known.grow(self.cluster, other, wide, now)
            self.executor.reshaped(self.cluster.bookings[other], now)

    def _failed(self, start: Start, how: JobState, reason: str, intent: str) -> None:
        """A job has left its cores and did not complete: it waits again, or not."""
        job_id, state = start.job.id, self.state
        entry = state.entry(job_id)
        why, retry = waits_again(entry, how, reason, intent, True)
        if why:
            lost = {"lost": True} if intent == "node" and not retry else {}
            if entry.asked is not None:
                self.executor.runs[job_id] /= self.scheduler.dispatcher.stretch(entry.asked, entry.job)
            self.drop(state.again(job_id, self.now, why, retry, **lost))
            return
        self._over(start.booking, start, how, reason)

    def _node_up(self, event: Event) -> None:
        """A node comes."""
        self.state.cluster.set_up(event.subject, True)

    def _node_down(self, event: Event) -> None:
        """A node is lost, and with it the jobs that run there."""
        node = event.subject
        self.state.cluster.set_up(node, False)
        for job_id in self.cluster.jobs_on(node):
            self._leave(job_id)
            start = self.executor.start_of(job_id)
            self.executor.gone(start, self.now)
            self._failed(start, JobState.FAILED, f"node {self.cluster.nodes[node].name} is down", "node")
