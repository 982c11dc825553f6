"""The event loop in virtual time: the scheduler, policies and cluster of the live manager, with
a clock that jumps from event to event.

The order of things at one instant is fixed: first all ends, then all submissions, then one
scheduling step. Jobs that end at one instant do so by id. The real run time of a job is known to
the loop alone: the scheduler sees the estimate.
"""

from __future__ import annotations

import heapq
import math
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Protocol, Tuple

from vrm.model.cluster import Booking, Cluster
from vrm.model.job import PLAIN, Dependency, Details, Infeasible, Job, JobState
from vrm.model.ranges import to_ranges
from vrm.run.book import Dropped, JobBook, LifeError
from vrm.scheduling.queue import JobQueue
from vrm.scheduling.scheduler import Scheduler, Start
from vrm.workload.submission import Submission

# What an entry of the event list is. Ends come before moments at which a job should have ended.
_END, _EXPECTED = 0, 1


Moment = Tuple[float, int, int, int]
"""A time, the jobs in the queue and the cores that they want, and the cores in use."""


class Recorder(Protocol):
    """Is told what happens; times in seconds of the workload."""

    def ended(self, booking: Booking, start: Start, end: float, status: str) -> None:
        """A job ended: `status` is completed, or timeout when it was killed."""

    def refused(self, job: Job, reason: str) -> None:
        """A job can never run on this machine."""

    def cancelled(self, job: Job, reason: str, now: float) -> None:
        """A job will never run since one that it depends on did not end as it wants."""

    def moment(self, state: Moment) -> None:
        """The state after everything that happened at one time."""


class Speeds(Protocol):
    """How fast jobs run beside others (see `vrm.simulation.corun`)."""

    def started(self, booking: Booking, run: float, now: float) -> Iterable[Tuple[int, float]]:
        """A job of `run` seconds of work started: the jobs whose end changes, with their ends."""

    def ended(self, booking: Booking, now: float) -> Iterable[Tuple[int, float]]:
        """A job left: the jobs whose end changes, with their new ends."""

    def remaining(self, job_id: int, now: float) -> float:
        """Work that is left of a running job, in seconds."""


class Simulator:
    """A scheduler and a cluster in virtual time.

    With `kill`, a job that reaches its estimate is ended there (status `timeout`). `speeds`
    lets jobs run faster or slower beside others. `progress(now, ended, waiting)` is called about
    every thousand events.
    """

    def __init__(self, scheduler: Scheduler, cluster: Cluster, recorder: Recorder,
                 kill: bool = False, speeds: Optional[Speeds] = None,
                 progress: Optional[Callable[[float, int, int], None]] = None) -> None:
        self.scheduler = scheduler
        self.cluster = cluster
        self.recorder = recorder
        self.kill = kill
        self.speeds = speeds
        self.progress = progress
        self.queue: JobQueue = scheduler.new_queue()
        self.now = 0.0
        self.events = 0
        self.ended = 0
        self.left = 0  # jobs that nobody released, and those that depend on them
        self._events: List[Tuple[float, int, int]] = []  # time, what, job
        self._hidden: Dict[int, Submission] = {}  # of jobs that have not ended
        self._started: Dict[int, Start] = {}
        self._ends: Dict[int, float] = {}  # of running jobs; events of other ends are void
        self._may_be_void = False
        self._book: Optional[JobBook] = None  # of the jobs that depend on others, and of these
        self._waits: Tuple[Tuple[Dependency, ...], Tuple[Dependency, ...]] = ((), ())
        self._failed: Dict[int, Tuple[Job, JobState]] = {}  # ended, but not completed

    def run(self, submissions: Iterable[Submission]) -> None:
        """Run all submissions (in order of time) to their ends."""
        for _ in self.moments(submissions):
            pass

    def moments(self, submissions: Iterable[Submission]) -> Iterator[float]:
        """The same, event by event: yields each moment after its scheduling step."""
        source = iter(submissions)
        following = next(source, None)
        events, queue, cluster = self._events, self.queue, self.cluster
        step, moment, progress = self.scheduler.step, self.recorder.moment, self.progress
        waiting = queue.jobs
        interval = self.scheduler.interval
        wakes = interval or not self.scheduler.dispatcher.heads_first
        busy_cores = 0
        wake = math.inf
        while True:
            if self._may_be_void:
                while events and self._is_void(events[0]):
                    heapq.heappop(events)
            if not events and following is None and wake == math.inf:
                break
            now = following.job.submit if following is not None else math.inf
            if events and events[0][0] < now:
                now = events[0][0]
            if wake < now:
                now = wake
            self.now = now
            while events and events[0][0] <= now:
                event = heapq.heappop(events)
                if not self._may_be_void or event[1] == _END and not self._is_void(event):
                    busy_cores -= self._end(event[2], now)
            while following is not None and following.job.submit <= now:
                self._submit(following)
                following = next(source, None)
            for start in step(now, queue, cluster):
                job = start[0][0]  # of its booking
                busy_cores += job.procs * job.cores
                self._start(start, now)
            if wakes:
                tick = interval and now == wake
                wake = self.scheduler.wake(now)
                if interval and (not len(queue) or (tick and following is None
                                                    and not cluster.bookings)):
                    wake = math.inf  # nothing waits, or none of it fits on an empty machine
            moment((now, len(waiting), queue.wanted, busy_cores))
            self.events += 1
            if progress is not None and self.events % 1000 == 0:
                progress(now, self.ended, len(queue))
            yield now
        if len(queue):
            raise RuntimeError(f"{len(queue)} job(s) wait for ever on an empty machine; the "
                               "placement policy promised that they fit")
        self.left = len(self._book.parked) if self._book is not None else 0

    def _is_void(self, event: Tuple[float, int, int]) -> bool:
        """Whether the end has been put elsewhere, or the job has ended before its estimate."""
        time, what, job_id = event
        end = self._ends.get(job_id)
        return end != time if what == _END else end is None

    def _submit(self, submission: Submission) -> None:
        job, _, after, held, refused = submission
        self._hidden[job.id] = submission
        try:
            if refused:
                raise Infeasible(refused)
            if after or held:
                self._cancel(self._enter(job, after, held))
            else:
                self.queue.add(job)
        except (Infeasible, LifeError) as reason:
            del self._hidden[job.id]
            self._failed[job.id] = job, JobState.REFUSED
            self.recorder.refused(job, str(reason))

    def _enter(self, job: Job, after: Tuple[Dependency, ...], held: bool) -> List[Dropped]:
        """Enter a job in the book, with those it depends on unless they have completed."""
        self.scheduler.check(job)
        if self._book is None:
            self._book = JobBook(self.queue)
        if self._waits[0] is not after:  # the jobs of an array have one in common
            self._waits = after, tuple(
                Dependency(ids, each.any) for each in after
                for ids in to_ranges([other for other in each.ids if self._waited_for(other, job)]))
        return self._book.enter(job, Details(self._waits[1], held=held))

    def _waited_for(self, other: int, job: Job) -> bool:
        """Whether a job is one to wait for: it has not completed. It is in the book then."""
        assert self._book is not None
        if other in self._book.entries:
            return True
        if other in self._started:
            self._book.know(self._started[other].job, PLAIN, JobState.RUNNING)
        elif other in self.queue:
            self._book.know(self.queue.get(other), PLAIN, JobState.QUEUED)
        elif other in self._failed:
            self._book.know(self._failed[other][0], PLAIN, self._failed[other][1])
        elif other < job.id:
            return False
        return True

    def _cancel(self, dropped: Iterable[Dropped]) -> None:
        """Record the ends of jobs that will never run."""
        for job, reason in dropped:
            self._failed[job.id] = job, JobState.CANCELLED
            del self._hidden[job.id]
            self.recorder.cancelled(job, reason, self.now)

    def _start(self, start: Start, now: float) -> None:
        booking = start[0]
        job_id = booking[0].id
        self._started[job_id] = start
        if self._book is not None and job_id in self._book.entries:
            self._book.started(job_id)
        run = self._hidden[job_id].run
        if self.speeds is not None:
            for changed, end in self.speeds.started(booking, run, now):
                self._schedule_end(changed, end)
        else:
            self._schedule_end(job_id, now + run)

    def _schedule_end(self, job_id: int, end: float) -> None:
        expected = self._started[job_id][0].expected_end
        again = job_id in self._ends
        if end > expected:
            if self.kill:
                end = expected
            elif not again:
                self._may_be_void = True
                heapq.heappush(self._events, (expected, _EXPECTED, job_id))
        if again:
            self._may_be_void = True
        self._ends[job_id] = end
        heapq.heappush(self._events, (end, _END, job_id))

    def _end(self, job_id: int, now: float) -> int:
        booking = self.cluster.release(job_id)
        submission = self._hidden.pop(job_id)
        del self._ends[job_id]
        killed = (self.kill and now >= booking.expected_end
                  and self._unfinished(booking, submission.run, now))
        if self.speeds is not None:
            for changed, end in self.speeds.ended(booking, now):
                self._schedule_end(changed, end)
        self.recorder.ended(booking, self._started.pop(job_id), now,
                            "timeout" if killed else "completed")
        self.ended += 1
        state = JobState.COMPLETED
        if killed:
            state = JobState.TIMEOUT
            self._failed[job_id] = booking.job, state
        if self._book is not None and job_id in self._book.entries:
            self._cancel(self._book.ended(job_id, state))
        return booking.job.procs * booking.job.cores

    def _unfinished(self, booking: Booking, run: float, now: float) -> bool:
        if self.speeds is not None:
            return self.speeds.remaining(booking.job.id, now) > 1e-6
        return run > booking.job.estimate

    def waiting(self) -> Any:
        """The jobs that wait now, in order."""
        return self.queue.in_order(self.now)
