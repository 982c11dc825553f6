"""The event loop in virtual time: a run like that of the live manager, with a clock that jumps from event to event.

The order of events at one instant is fixed: first all ends, then running jobs that have exceeded their expected ends,
then nodes that go down or come up, then all submissions, then one scheduling step, which also includes jobs whose
begin time has come. Jobs that end at one instant end in the order of their ids. Only the executor knows the real run
time of a job; the scheduler sees the expected one.

The other order, `published`, is that of most published schedules (of the pyss simulator of Tsafrir, Etsion and
Feitelson): each submission of an instant and then each end, in the order of the starts, has its own scheduling step.
Nodes go down or come up with the first of these; corrections of expected ends come first and have no step. A running
job that reaches its expected end leaves its cores at the first event of that instant, if it ends at that instant; its
own end may come later in the order.
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
from vrm.run.requeue import requeue_reason
from vrm.run.entry import DroppedJob, JobStateError
from vrm.run.expectations import Expectations
from vrm.run.run import Run
from vrm.run.state import State
from vrm.scheduling.backfilling.compression import OFFERS, Compress
from vrm.scheduling.orderings.queue import JobQueue
from vrm.scheduling.registry import PolicyError
from vrm.scheduling.scheduler import Scheduler, Start
from vrm.simulation.executor import EXPECTED, LATER, NODE_DOWN, NODE_UP, SUBMISSION, Event, SpeedModel, VirtualExecutor
from vrm.system import plugins
from vrm.workload.submission import Submission



def _compression() -> Compress | None:
    """Return the faster compression of long plans, if an extension has it; else None."""
    plugin = plugins.find("vrm.options", "compression")
    found: Compress | None = None if plugin is None else plugins.load(plugin)()
    return found


OFFERS.append(_compression)

Change = tuple[float, Callable[[Cluster], Scheduler]]
"""A time, and a function that makes the scheduler from then on."""

Moment = tuple[float, int, int, int]
"""A time, the number of queued jobs, the cores that they request, and the cores in use."""


class Recorder:
    """Receives the events of a simulation, with times in seconds of the workload; the methods do nothing unless a
    subclass overrides them."""

    def ended(self, booking: Booking, start: Start, end: float, status: str) -> None:
        """Record the end of a job: `status` is completed, timeout if it was killed, failed if it has lost nodes too
        often."""

    def refused(self, job: Job, reason: str) -> None:
        """Record a job that can never run on this machine."""

    def cancelled(self, job: Job, reason: str, now: float) -> None:
        """Record a job that will never run because a dependency failed."""

    def moment(self, state: Moment) -> None:
        """Record the state after all events of one time."""


class Outage(NamedTuple):
    """A node (its number) that is lost at `down` and back at `up`, in seconds."""

    node: int
    down: float
    up: float = math.inf


def _in_order(submissions: Iterable[Submission]) -> Iterator[Submission]:
    """Yield the submissions, those of one time in the order of their ids."""
    for _, together in itertools.groupby(submissions, key=lambda one: one.job.submit):
        yield from sorted(together, key=lambda one: one.job.id)


class Simulator:
    """A run in virtual time.

    With `kill`, a job that reaches its walltime is ended there (status `timeout`). `rate` makes jobs run faster or
    slower next to others. Jobs on a node with an outage wait again, like those of a live run. At `end`, in seconds,
    the allocation ends: jobs that would not have ended by then do not start, and jobs that run longer are left. At
    the times of `changes` other schedulers take over. `published`: use the published order of the events at one
    instant (see above). `progress(now, ended, waiting)` is called about every thousand events.
    """

    def __init__(self, scheduler: Scheduler, cluster: Cluster, recorder: Recorder,
                 kill: bool = False, rate: SpeedModel | None = None,
                 progress: Callable[[float, int, int], None] | None = None,
                 outages: Iterable[Outage] = (), end: float = math.inf,
                 expectations: Expectations | None = None, changes: Iterable[Change] = (),
                 published: bool = False) -> None:
        outages = tuple(outages)
        for each in outages:
            if not (0 <= each.node < len(cluster.nodes) and each.down < each.up):
                raise ValueError(f"{each}: expected a node from 0 to {len(cluster.nodes) - 1}, which is back (up) "
                                 "after it was lost (down)")
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
        self.wake = math.inf  # when the next step is due even if no event happens before
        self.one_by_one = False  # each event is followed by its own decision
        self._published, self._later = False, LATER
        self._left: dict[int, Booking] = {}  # jobs that have left their cores and end later at this instant
        self.events = 0
        self.ended = 0
        self.left = 0  # jobs that wait at the end: held ones, and their dependents
        self._busy = self.cluster.taken_cores  # only valid while no cores are lent
        self._changes: list[Change] = []
        self._coming: Iterator[Submission] = iter(())
        self._handlers = (self._node_down, self._node_up, self._submitted, self._ended, self._outlived)  # by kind

    @classmethod
    def of(cls, run: Run, recorder: Recorder, runs: dict[int, float], now: float,
           kill: bool = False, rate: SpeedModel | None = None, end: float = math.inf,
           due: bool = False, fit: bool = True) -> Simulator:
        """Continue a (copied) run at `now`. `runs` are the run times of its jobs in seconds; those of running jobs
        count from their starts. With a `rate`, the remaining time is work that is done at the jobs' speeds. `due`: a
        decision is needed at once; it is in any case if nothing runs. Without `fit`, jobs start up to the end, even
        if they would not have ended by then."""
        self = cls.__new__(cls)
        executor = VirtualExecutor(kill, rate, True, revises=run.expectations is not None)
        self._start_with(run, executor, recorder, end, fit)
        executor.runs.update(runs)
        for booking in run.state.cluster.running():
            executor.resume_from(Start(booking, False), now)
        self.now = now
        wake = run.wake(now)
        at_once = due or not run.state.cluster.bookings
        self.wake = now if at_once and not (run.scheduler.interval and wake < math.inf) else wake
        return self

    def run(self, submissions: Iterable[Submission]) -> None:
        """Run all submissions (sorted by time) to their ends."""
        for _ in self.moments(submissions):
            pass

    def moments(self, submissions: Iterable[Submission]) -> Iterator[float]:
        """Run the submissions event by event; yield each time after its scheduling step."""
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
            raise PolicyError(self._stuck())
        self.left = self.state.waiting

    def _stuck(self) -> str:
        """Return whose fault it is that jobs wait on an empty machine with nothing to wait for."""
        policy, number = self.scheduler.policy, len(self.queue)
        fit = next((job for job in self.queue if policy.place(job, self.cluster)), None)
        if fit is None:
            return f"the placement policy accepted {number} job(s) that it cannot start even on an empty machine"
        return (f"the backfilling `{self.scheduler.dispatcher.name}` starts none of the {number} job(s) that wait on "
                f"an empty machine, although job {fit.id} fits; `schedule` yields the jobs that start")

    def _next(self) -> float:
        """Return the time of the next event; infinity for never. A change of rules alone is not an event."""
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
        """Handle the events of `now`, or only the first if each event has its own decision."""
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
        """Make the decisions after all events of `now`."""
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
        """Return when the next step is due even if no event happens before; infinity if no job waits for a periodic
        step, or no waiting job fits on the empty machine."""
        if self.scheduler.interval and (not self.queue.jobs or (
                now == self.wake and not self._more and not self.cluster.bookings and not self.cluster.calendar)):
            return math.inf
        return self.subject.wake(now)

    def _change(self, make: Callable[[Cluster], Scheduler]) -> None:
        """Replace the scheduler, as in a live run: running jobs stay where they are, and promised starts are kept."""
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
        """Handle running jobs that have reached their expected ends: those that end now leave their cores, the others
        get later expected ends. Return whether nothing else happens now."""
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

    # Events.

    def _await_submission(self) -> None:
        """Plan the event of the next submission."""
        following = next(self._coming, None)
        self._more = following is not None
        if following is not None:
            self.executor.plan(following.job.submit, SUBMISSION + self._later, 0, following)

    def _submitted(self, event: Event) -> None:
        """Handle the submission of a job."""
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
        except (Infeasible, JobStateError) as reason:
            del self.executor.runs[job.id]
            self.state.submit([job], refused=True)
            self.state.end(job.id, JobState.REFUSED, self.now, str(reason))
            self.recorder.refused(job, str(reason))
        self._await_submission()

    def postpone(self, jobs: Sequence[Job], now: float) -> None:
        """Do nothing: jobs that would not have ended by the end of the allocation are left waiting."""

    def drop(self, dropped: Iterable[DroppedJob], cause: str = "") -> None:
        """Record the ends of jobs that will never run, and of their dependents."""
        jobs = list(dropped)
        for job, reason in jobs:
            jobs += self.state.end(job.id, JobState.CANCELLED, self.now, reason)
            self.executor.runs.pop(job.id, None)
            self.recorder.cancelled(job, reason, self.now)

    def start(self, start: Start, now: float) -> None:
        """Start a job; the expected ends of jobs that lend cores to it change."""
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
        """Handle a running job that has reached its expected end: extend the expectation."""
        if self.expectations is not None:
            booking = self.expectations.correct(self.cluster, event.subject.job.id, self.now)
            self.executor.revise(event.subject, booking.expected_end, self.now)

    def _ended(self, event: Event) -> None:
        """Handle the end of a job, by itself or at its walltime."""
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
        """Release the cores of a job."""
        booking = self.cluster.release(job_id)
        self._busy -= booking.job.request.cores
        if self.cluster.loans:
            self._returned(booking, self.now)
        return booking

    def _over(self, booking: Booking, start: Start, how: JobState, reason: str = "") -> None:
        """Record the final end of a job that ran."""
        job_id = booking.job.id
        del self.executor.runs[job_id]
        self.ended += 1
        self.recorder.ended(booking, start, self.now, how.value)
        dropped = self.state.end(job_id, how, self.now, reason)
        if dropped:
            self.drop(dropped)

    def _returned(self, booking: Booking, now: float) -> None:
        """Settle the loans of a job that has left: its lenders get back the cores that it borrowed, and its borrowers
        keep the cores that it lent."""
        if not shared(booking):
            return
        job_id = booking.job.id
        loans = self.cluster.loans.of_borrower(job_id)
        self.state.lending.returned(job_id, now)
        for loan in loans:
            self.executor.reshaped(self.cluster.bookings[loan.lender], now)
        known = self.cluster.loans
        among = {loan.lender for loan in loans} | known.borrowers_of(self.cluster, job_id)
        for other, wide in known.growable_jobs(self.cluster, now, among) if among else ():
            known.grow(self.cluster, other, wide, now)
            self.executor.reshaped(self.cluster.bookings[other], now)

    def _failed(self, start: Start, how: JobState, reason: str, intent: str) -> None:
        """Handle a job that has left its cores without completing: requeue it, or record its end."""
        job_id, state = start.job.id, self.state
        entry = state.entry(job_id)
        why, retry = requeue_reason(entry, how, reason, intent, True)
        if why:
            lost = {"lost": True} if intent == "node" and not retry else {}
            if entry.asked is not None:
                self.executor.runs[job_id] /= self.scheduler.dispatcher.stretch(entry.asked, entry.job)
            self.drop(state.again(job_id, self.now, why, retry, **lost))
            return
        self._over(start.booking, start, how, reason)

    def _node_up(self, event: Event) -> None:
        """Handle a node that comes up."""
        self.state.cluster.set_up(event.subject, True)

    def _node_down(self, event: Event) -> None:
        """Handle the loss of a node, and of the jobs that run there."""
        node = event.subject
        self.state.cluster.set_up(node, False)
        for job_id in self.cluster.jobs_on(node):
            self._leave(job_id)
            start = self.executor.start_of(job_id)
            self.executor.gone(start, self.now)
            self._failed(start, JobState.FAILED, f"node {self.cluster.nodes[node].name} is down", "node")
